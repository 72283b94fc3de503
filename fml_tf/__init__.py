"""Flow map learning on TensorFlow and Keras: predict an unknown dynamical system from its trajectories.

Modules, each imported by name: ``systems``, ``problems``, ``data``, ``models``, ``optimizers``, ``training``,
``polynomials``, ``memory``, ``metrics``, ``plots``, ``results``, ``runs``, ``sweeps``, ``reports``, ``devices``.
Importing the package loads neither TensorFlow nor Keras; it selects Keras's TensorFlow backend and a quiet TensorFlow
log where the environment leaves them open.
"""

import os
import sys

__version__ = "0.1.0"

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

_loaded = sys.modules["keras"].config.backend() if "keras" in sys.modules else os.environ["KERAS_BACKEND"]
if _loaded != "tensorflow":
    raise ImportError(
        f"fml_tf needs Keras on the TensorFlow backend, but this process uses {_loaded!r}. Set "
        "KERAS_BACKEND=tensorflow (or unset it) and import fml_tf before keras, in a fresh process."
    )
