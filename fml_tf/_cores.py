"""How many cores a process may use, and how one that it starts is told; without TensorFlow."""

import os

#: Variables by which TensorFlow, and the libraries beneath NumPy, are told how many threads to use.
THREADS = (
    "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
)  # fmt: skip


def allowed() -> int:
    """Return the number of cores that this process is bound to."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
