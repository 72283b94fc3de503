"""Import TensorFlow and Keras without the lines they print, and let a GPU's memory grow as needed."""

import contextlib
import os
import sys
import tempfile


@contextlib.contextmanager
def _hold_back_stderr():
    """Keep the process's standard error in a file, and replay it only if the block fails.

    TensorFlow writes a few lines before it reads its own log level; in a notebook they would stand in the output.
    """
    with tempfile.TemporaryFile() as held:
        sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(kept, 2)
            held.seek(0)
            os.write(2, held.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


with _hold_back_stderr():
    import keras
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")

for gpu in gpus:
    with contextlib.suppress(RuntimeError):  # the process already uses it: too late to change
        tf.config.experimental.set_memory_growth(gpu, True)

__all__ = ["gpus", "keras", "tf"]
