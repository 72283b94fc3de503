"""Build the model of a benchmark; learning-rate schedules, quiet progress, the check of the loss decay."""

import hashlib
import json
import pathlib
import shutil
import time
import warnings

import numpy as np

from fml_tf import data, models, optimizers, results
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
        schedule: "constant"; "cosine", from `rate` down to `final`; "one_cycle", from a 25th of `rate` up to it in the
            first three tenths, then down like the cosine; or "cyclic", between `final` and `rate`.
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
    if schedule == "one_cycle":
        up = max(1, 3 * steps // 10)
        return keras.optimizers.schedules.CosineDecay(
            rate / 25, decay_steps=max(1, steps - up), alpha=final / rate, warmup_target=rate, warmup_steps=up
        )
    if schedule == "cyclic":
        return CyclicLearningRate(final, rate, cycle_steps=max(2, steps // cycles))
    raise ValueError(f"schedule={schedule!r}: expected constant, cosine, one_cycle or cyclic.")


def build(problem, *, seed: int = 0) -> models.FlowMap:
    """Return the flow map of a benchmark's record, compiled with the record's optimiser and learning rate.

    Args:
        problem: the benchmark's record, see `problems.get`.
        seed: seed of initial weights and sample orders.

    Example:
        >>> problem = problems.get("5.1.2")
        >>> model = build(problem)
        >>> model.fit(data.sample_bursts(problem), batch_size=problem.batch_size, epochs=problem.epochs)
    """
    model = models.FlowMap(
        state_dim=len(problem.observed),
        memory_steps=problem.memory_steps,
        hidden=problem.hidden,
        activation=problem.activation,
        members=problem.members,
        normalization=problem.normalization,
        skip=problem.skip,
        dtype=problem.dtype,
        seed=seed,
        time_step=problem.time_step,
        state_names=problem.state_names,
    )
    model.compile(_optimizer(problem, problem, problem.n_samples, problem.batch_size))
    return model


def train(model, problem, bursts, *, seed: int = 0, callbacks=(), backup=None) -> float:
    """Train a model as a benchmark's record says: its stages, as a rule one step ahead, then K + 1 steps.

    One step costs a tenth of eleven, and the windows within the bursts are many: what takes the multi-step loss many
    epochs to find, the one-step loss finds sooner. The multi-step loss then sees to roll-outs. Where much is hidden,
    one step says too little of what happens beside the true histories, and roll-outs may run away: the record's noise
    on the histories keeps them from it. Noise that falls from stage to stage ends at forecasts that are both stable and
    exact, where little noise from the start ends at neither.

    Where the record's `averaging` is "inverse_loss", the members' losses on the bursts decide their shares at the end.

    Args:
        model: as `build` returns it.
        problem: the benchmark's record.
        bursts: training set, `(sample, burst_length, state)`.
        seed: which windows of a burst serve the stages, and the noise.
        callbacks: Keras callbacks, for every stage.
        backup: folder to keep the training in, once a minute, until it is done. After an interruption the same call
            with the same model, record and data goes on from there, to the same weights; any other starts anew.

    Returns:
        Seconds of all epochs, those before an interruption included.

    Raises:
        ValueError: for a backup folder that cannot be made, or what `FlowMap.fit` refuses.
    """
    folder, before = _backup_folder(backup, model, problem, bursts, seed), len(model.epoch_logs)
    if not int(model.adapted.numpy()):
        model.adapt(bursts)  # on the data as they are: stages see parts of them, with noise
    for number, stage in enumerate((*problem.stages, problem)):  # its own training comes last, on whole bursts
        samples = data.cut_bursts(
            bursts,
            memory_steps=problem.memory_steps,
            multi_steps=stage.multi_steps,
            n_bursts=problem.windows(stage),
            seed=seed,
        )
        noise = problem.noise if stage.noise is None else stage.noise
        if noise:
            samples = data.add_noise(samples, noise, memory_steps=problem.memory_steps, seed=seed)
        batch_size = problem.batch_size if stage is problem else min(stage.batch_size, len(samples))
        model.compile(_optimizer(problem, stage, len(samples), batch_size))
        keep = [_Backup(folder / f"{number}.weights.h5")] if folder else []
        model.fit(samples, batch_size=batch_size, epochs=stage.epochs, verbose=0, callbacks=[*callbacks, *keep])
    if problem.averaging == "inverse_loss":
        model.weigh(model.evaluate_members(bursts))
    if folder:
        shutil.rmtree(folder)
    return sum(log["seconds"] for log in model.epoch_logs[before:])


def _backup_folder(backup, model, problem, bursts, seed):
    """Return the folder that holds this training and no other, None without `backup`."""
    if backup is None:
        return None
    decided = [problem.choices(), data.fingerprint(bursts), seed, {**model.get_config(), "name": None}]
    name = hashlib.sha256(json.dumps(decided, default=str).encode()).hexdigest()[:16]
    folder = pathlib.Path(backup).expanduser() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot make the folder {folder} ({error.strerror}): give another backup.") from error
    return folder


class _Backup(keras.callbacks.Callback):
    """Keep one `fit` in a file, at most once a minute and at its end, and go on from there; Keras's own callback would
    write at every epoch, and may be killed between its two files."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_train_begin(self, logs=None):
        before = len(self.model.member_losses)
        if self.path.exists():
            self.model.load_weights(self.path)
            self.model._initial_epoch = len(self.model.member_losses) - before  # as Keras's own does
        self.written = time.monotonic()

    def on_epoch_end(self, epoch, logs=None):
        if time.monotonic() - self.written > 60 or epoch + 1 == self.params["epochs"]:
            results.replace(self.path, self.model.save_weights)
            self.written = time.monotonic()


def _optimizer(problem, stage, samples, batch_size):
    if stage.optimizer == "levenberg_marquardt":
        return optimizers.LevenbergMarquardt()
    steps = stage.epochs * -(-samples // batch_size)
    final = min(problem.final_learning_rate, stage.learning_rate)
    kind = {"adam": keras.optimizers.Adam, "soap": optimizers.Soap}[stage.optimizer]
    return kind(learning_rate(problem.schedule, stage.learning_rate, final=final, steps=steps))


class Progress(keras.callbacks.Callback):
    """Print one plain line every so many epochs, and keep the seconds of each.

    Args:
        every: epochs between lines; by default a tenth of all, so that a training prints about ten lines.
    """

    def __init__(self, every: int | None = None):
        super().__init__()
        self.every, self._fits = every, []

    @property
    def epoch_seconds(self) -> list[float]:
        """Duration of each epoch, over all trainings that it watched."""
        return [seconds for fit in self._fits for seconds in fit]

    def on_train_begin(self, logs=None):
        self._fits.append([])

    def on_epoch_begin(self, epoch, logs=None):
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self._fits[-1].append(time.perf_counter() - self._start)
        epochs = self.params["epochs"]
        every = self.every or max(1, epochs // 10)
        if epoch == 0 or (epoch + 1) % every == 0 or epoch + 1 == epochs:
            values = "".join(f"   {name} {value:.2e}" for name, value in (logs or {}).items())
            if not isinstance(self.model.optimizer, optimizers.LevenbergMarquardt):  # which has none
                values += f"   learning rate {float(self.model.optimizer.learning_rate):.1e}"
            print(f"epoch {epoch + 1:5d}/{epochs}{values}", flush=True)

    @property
    def compile_seconds(self) -> float:
        """Seconds that the first epoch of each training took longer than a usual one; 0 before training."""
        return float(sum(max(0.0, fit[0] - np.median(fit[1:])) for fit in self._fits if len(fit) > 1))


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
