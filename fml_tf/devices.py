"""What TensorFlow computes on, whether it computes right, and what to do about a GPU that it does not see."""

import os
import pathlib
import platform
import shutil
import subprocess
import sys

import numpy as np

from fml_tf import _engines, models, results
from fml_tf._tensorflow import gpus, tf

#: Where NVIDIA's driver lists its GPUs on Linux.
DRIVER = pathlib.Path("/proc/driver/nvidia/gpus")


def describe() -> dict[str, str]:
    """Return versions, devices, and what is in force, each as a line of text."""
    names = [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus]
    model = models.FlowMap(1, hidden=(2,))
    model.compile()
    return {
        **results.versions(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "devices": ", ".join(["CPU", *names]),
        "threads": str(_engines.cores()),
        "XLA": "on, for training and forecasts" if model.jit_compile else "off",
    }


def advice() -> list[str]:
    """Return what to do where this machine has an NVIDIA GPU that TensorFlow does not see; nothing elsewhere."""
    if gpus or not gpu_present():
        return []
    found = "This machine has an NVIDIA GPU that TensorFlow does not see. "
    if sys.platform == "win32":
        return [found + "TensorFlow has no GPU support on native Windows since 2.11: use WSL 2, 'wsl --install'."]
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1"):
        return [found + "CUDA_VISIBLE_DEVICES hides it: unset that variable."]
    if not tf.test.is_built_with_cuda():
        return [found + "This TensorFlow is built for CPUs alone: install the package tensorflow in place of it."]
    return [found + "Its CUDA libraries come from pip: pip install 'tensorflow[and-cuda]'; the driver must be there."]


def gpu_present() -> bool:
    """Say whether the system knows of an NVIDIA GPU, whatever TensorFlow sees."""
    if any(DRIVER.glob("*")):
        return True
    command = shutil.which("nvidia-smi")
    try:
        done = command and subprocess.run([command, "-L"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return bool(done) and done.returncode == 0 and "GPU" in done.stdout


def check(steps: int = 50) -> float:
    """Return the largest difference between a forecast and the same in NumPy's float64, relative to its size.

    It is of order 1e-6 where all is well: the arithmetic is single precision's.
    """
    model = models.FlowMap(2, memory_steps=2, members=3, hidden=(8, 8), activation="tanh", seed=3)
    history = np.random.default_rng(0).uniform(-1, 1, (20, 3, 2)).astype("float32")
    layers = [(np.asarray(layer.kernel, "float64"), np.asarray(layer.bias)) for layer in model.dense_layers]
    window, states = history.astype("float64"), []
    for _ in range(steps):
        hidden = np.swapaxes(window.reshape(len(window), -1), 0, 1)[None]
        for kernel, bias in layers[:-1]:
            hidden = np.tanh(kernel @ hidden + bias)
        kernel, bias = layers[-1]
        states.append(window[:, -1] + (kernel @ hidden + bias).mean(axis=0).T)
        window = np.concatenate([window[:, 1:], states[-1][:, None]], axis=1)
    expected = np.stack(states, axis=1)
    return float(np.abs(model.forecast(history, steps) - expected).max() / np.abs(expected).max())
