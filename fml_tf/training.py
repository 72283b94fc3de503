"""Learning-rate schedules, a quiet progress callback, and the paper's check of the loss decay."""

import time
import warnings

import numpy as np

from fml_tf._tensorflow import keras, tf


@keras.saving.register_keras_serializable(package="fml_tf")
class CyclicLearningRate(keras.optimizers.schedules.LearningRateSchedule):
    """Swing the learning rate between two bounds in a triangle wave.

    Args:
        lower: rate at the start and end of each cycle.
        upper: rate in the middle of a cycle; the paper suggests 1e-3 at most.
        cycle_steps: training steps (batches) of one cycle.

    Raises:
        ValueError: unless 0 <= lower < upper and cycle_steps is at least 2.

    Source: paper, Section 4.4, optimization and learning rate.
    """

    def __init__(self, lower: float, upper: float, cycle_steps: int):
        if not 0 <= lower < upper:
            raise ValueError(f"lower={lower!r}, upper={upper!r}: expected 0 <= lower < upper.")
        if cycle_steps < 2:
            raise ValueError(f"cycle_steps={cycle_steps!r}: expected at least 2 training steps a cycle.")
        self.lower, self.upper, self.cycle_steps = lower, upper, cycle_steps

    def __call__(self, step):
        phase = tf.cast(tf.math.floormod(tf.cast(step, "int64"), self.cycle_steps), "float32") / self.cycle_steps
        return self.lower + (self.upper - self.lower) * (1 - tf.abs(2 * phase - 1))

    def get_config(self):
        return {"lower": self.lower, "upper": self.upper, "cycle_steps": self.cycle_steps}


def learning_rate(schedule: str, rate: float, *, steps: int, final: float = 0.0, cycles: int = 10):
    """Return what a Keras optimiser takes as its learning rate.

    Args:
        schedule: "constant"; "cosine", from `rate` down to `final`; or "cyclic", between `final` and `rate`.
        rate: the constant, first or highest rate. Below 1e-3 is safe for Adam, says the paper; a cosine may start at
            3e-3.
        steps: training steps in all, epochs times batches an epoch.
        final: last rate of the cosine, lower bound of the cycles.
        cycles: number of cycles.

    Raises:
        ValueError: for an unknown schedule or a final rate above `rate`.

    Example:
        >>> keras.optimizers.Adam(learning_rate("cosine", 3e-3, final=1e-7, steps=75_000))
    """
    if not rate > 0 or final < 0 or steps < 1 or cycles < 1:
        raise ValueError(
            f"rate={rate!r}, final={final!r}, steps={steps!r}, cycles={cycles!r}: expected a positive rate, a final "
            "rate of 0 or more, and at least one step and cycle."
        )
    if final > rate:
        raise ValueError(f"final={final!r} is above rate={rate!r}: expected a rate that falls.")
    if schedule == "constant":
        return rate
    if schedule == "cosine":
        return keras.optimizers.schedules.CosineDecay(rate, decay_steps=steps, alpha=final / rate)
    if schedule == "cyclic":
        return CyclicLearningRate(final, rate, cycle_steps=max(2, steps // cycles))
    raise ValueError(f"schedule={schedule!r}: expected constant, cosine or cyclic.")


class Progress(keras.callbacks.Callback):
    """Print one plain line every so many epochs, and keep the seconds of each.

    Args:
        every: epochs between lines; by default a tenth of all, so that a training prints about ten lines.

    Attributes:
        epoch_seconds: duration of each epoch; the first includes compiling.
    """

    def __init__(self, every: int | None = None):
        super().__init__()
        self.every, self.epoch_seconds = every, []

    def on_epoch_begin(self, epoch, logs=None):
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.epoch_seconds.append(time.perf_counter() - self._start)
        epochs = self.params["epochs"]
        every = self.every or max(1, epochs // 10)
        if epoch == 0 or (epoch + 1) % every == 0 or epoch + 1 == epochs:
            values = "".join(f"   {name} {value:.2e}" for name, value in (logs or {}).items())
            rate = float(self.model.optimizer.learning_rate)
            print(f"epoch {epoch + 1:5d}/{epochs}{values}   learning rate {rate:.1e}", flush=True)

    @property
    def compile_seconds(self) -> float:
        """Seconds that the first epoch took longer than a usual one; 0 before training."""
        if not self.epoch_seconds:
            return 0.0
        usual = float(np.median(self.epoch_seconds[1:])) if len(self.epoch_seconds) > 1 else 0.0
        return max(0.0, self.epoch_seconds[0] - usual)


def loss_decay(initial, final, *, needed: float = 2.0) -> np.ndarray:
    """Return by how many decades each member's loss fell, and warn of members below the paper's two.

    Args:
        initial: loss of each member over the whole training set before training, `(member,)`, see
            `FlowMap.evaluate_members`.
        final: the same with its best weights.
        needed: decades below which to warn; the paper calls two essential.

    Returns:
        log10(initial / final), `(member,)`.

    Raises:
        ValueError: for losses of different shape, or not positive.

    Source: paper, Section 4.4, training loss.
    """
    initial, final = np.asarray(initial, "float64"), np.asarray(final, "float64")
    if initial.shape != final.shape or initial.ndim != 1:
        raise ValueError(f"initial has shape {initial.shape}, final {final.shape}: expected one loss a member in both.")
    if not (np.all(initial > 0) and np.all(final > 0)):
        raise ValueError(f"losses must be positive: initial {initial}, final {final}.")
    decades = np.log10(initial / final)
    short = [member for member, decade in enumerate(decades) if not decade >= needed]
    if short:
        warnings.warn(
            f"the loss of member(s) {', '.join(map(str, short))} fell by less than {needed:g} decades: train longer, "
            "or with a lower learning rate if it does not fall early on.",
            stacklevel=2,
        )
    return decades
