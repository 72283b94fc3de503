"""Compare ways to train, each alone and the best together, on every benchmark, in equal time on the same machine.

    python benchmarks/training/compare.py [--benchmarks 5.1.1 ...] [--methods cosine ...] [--seconds 30]
    python benchmarks/training/compare.py --tables      # only renew docs/accuracy.md from the file

Every method starts from the paper's recipe (Adam, a constant rate of 1e-4, batches of 200, tanh, the plain residual
form) with what it names changed, and three members train as long as with all others: seconds an epoch are measured
first, then epochs are counted out, so that schedules end where the time does. Compiling does not count. Each benchmark
and method is a process of its own; what stands in `results/training.json` for these seconds is not measured again.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import multiprocessing
import sys
from concurrent import futures

import numpy as np

from fml_tf import data, metrics, problems, results

OUT = results.ROOT / "results" / "training.json"
PAGE = results.ROOT / "docs" / "accuracy.md"
MEMBERS = 3

_COSINE = dict(learning_rate=3e-3, schedule="cosine", final_learning_rate=1e-7)
_SCALED = dict(_COSINE, normalization="standard")
_SOAP = dict(_SCALED, optimizer="soap", batch_size=500, learning_rate=1e-2)


def _stage(epochs, **fields):
    return problems.Stage(**{"epochs": epochs, "optimizer": "adam", "learning_rate": 3e-3, "batch_size": 200, **fields})


_ONE_STEP = _stage(5, optimizer="soap", learning_rate=3e-2, batch_size=500)
_LEAST_SQUARES = _stage(2, optimizer="levenberg_marquardt", batch_size=15_000)

#: What each method changes in the paper's record; epochs are shares of the time. Names after a plus are no fields, see
#: `fit`.
METHODS = {
    "paper": {},
    "rate 1e-3": dict(learning_rate=1e-3),
    "cosine": _COSINE,
    "one cycle": dict(_COSINE, schedule="one_cycle", learning_rate=1e-2),
    "cyclic": dict(schedule="cyclic", learning_rate=1e-3, final_learning_rate=1e-5),
    "cosine, batch 1,000": dict(_COSINE, batch_size=1000),
    "batch growth": dict(
        learning_rate=1e-3, batch_size=5000, epochs=4,
        stages=tuple(_stage(1, multi_steps=10, learning_rate=1e-3, batch_size=b) for b in (200, 1000)),
    ),
    "average of weights (EMA)": {"learning_rate": 1e-3, "+average": "ema"},
    "average of weights (SWA)": {"learning_rate": 1e-3, "+average": "swa"},
    "cosine, K raised": dict(_COSINE, epochs=1, stages=(_stage(4), _stage(2, multi_steps=4))),
    "cosine, loss weighted over K": {**_COSINE, "+weights": 0.8},
    "cosine, He's weights": {**_COSINE, "+initializer": "he_normal"},
    "cosine, orthogonal weights": {**_COSINE, "+initializer": "orthogonal"},
    "cosine, ReLU": dict(_COSINE, activation="relu"),
    "cosine, GELU": dict(_COSINE, activation="gelu"),
    "cosine, float64": dict(_COSINE, dtype="float64"),
    "cosine, normalised": _SCALED,
    "cosine, whitened": dict(_COSINE, normalization="whitened"),
    "cosine, linear skip": dict(_SCALED, skip="linear"),
    "Soap": _SOAP,
    "Soap, GELU": dict(_SOAP, activation="gelu"),
    "Soap, GELU, one step first": dict(_SOAP, activation="gelu", epochs=1, learning_rate=1e-3, stages=(_ONE_STEP,)),
    "Soap, GELU, one step first, least squares": dict(
        _SOAP, activation="gelu", epochs=1, learning_rate=1e-3,
        stages=(dataclasses.replace(_ONE_STEP, epochs=3), _LEAST_SQUARES),
    ),
    "standard": None,
}  # fmt: skip


def record_of(benchmark, method):
    """Return the record of a method and what is no field of it."""
    changes = METHODS[method]
    if changes is None:
        return problems.get(benchmark, members=MEMBERS), {}
    fields = {name: value for name, value in changes.items() if not name.startswith("+")}
    extras = {name[1:]: value for name, value in changes.items() if name.startswith("+")}
    return problems.get(benchmark, "paper", members=MEMBERS, **{"epochs": 1, **fields}), extras


def scaled(record, factor):
    """Return a record with its epochs, those of the stages too, multiplied; at least one each."""
    stages = tuple(dataclasses.replace(stage, epochs=max(1, round(factor * stage.epochs))) for stage in record.stages)
    return dataclasses.replace(record, epochs=max(1, round(factor * record.epochs)), stages=stages)


def measure(benchmark, method, seconds):
    """Train a method on a benchmark for so long; return what came of it."""
    from fml_tf import training  # here alone is TensorFlow needed

    record, extras = record_of(benchmark, method)
    bursts = _bursts(record)
    model = build(record, extras)
    trial = dataclasses.replace(
        record, epochs=3, stages=tuple(dataclasses.replace(stage, epochs=3) for stage in record.stages)
    )
    progress = training.Progress(every=10**9)
    fit(model, trial, bursts, extras, [progress])
    each = np.reshape(progress.epoch_seconds, (-1, 3)).min(axis=1)  # of each stage
    needed = np.dot(each, [stage.epochs for stage in (*record.stages, record)])
    record = scaled(record, seconds / needed)
    model, progress = build(record, extras), training.Progress(every=10**9)
    fit(model, record, bursts, extras, [progress])
    return {
        **judge(record, model),
        "loss": float(np.median(model.evaluate_members(bursts))),
        "epochs": [stage.epochs for stage in (*record.stages, record)],
        "seconds": sum(progress.epoch_seconds) - progress.compile_seconds,
    }


def _bursts(record):
    """Return a benchmark's training data, drawn once and kept under runs/."""
    folder = results.run_folder("compare-training")
    path = folder / f"{record.id}-{record.memory_steps}-{record.multi_steps}.npy"
    if not path.exists():
        drawn = data.sample_bursts(record, seed=0)
        results.replace(path, lambda part: np.save(part, drawn))
    return np.load(path)


def build(record, extras):
    """Return the model of a record, with other initial weights or a loss of its own where the method asks for them."""
    from fml_tf import models, training

    model = training.build(record)
    kind = _weighted(extras["weights"]) if "weights" in extras else models.FlowMap
    initializer = extras.get("initializer", model.kernel_initializer)
    config = {**model.get_config(), "name": None, "activation": model.activation, "kernel_initializer": initializer}
    return kind.from_config(config)


def _weighted(factor):
    """Return the kind of flow map whose loss weighs each further step of a roll-out by a factor less."""
    from fml_tf import models
    from fml_tf._tensorflow import tf

    class Weighted(models.FlowMap):
        def roll_out_losses(self, bursts, network):
            width = (self.memory_steps + 1) * self.state_dim
            window, target = bursts[:, :width], bursts[:, width:]
            steps = target.shape[1] // self.state_dim
            weights = factor ** np.arange(steps)
            weights = tf.constant(weights / weights.sum(), bursts.dtype)[None, :, None]
            target = tf.reshape(target, (target.shape[0], steps, self.state_dim, -1))
            errors = tf.reduce_sum(tf.square(self.unroll(window, steps, network) - target), axis=2)
            return tf.reduce_mean(tf.reduce_sum(weights * errors, axis=1), axis=1)

    return Weighted


def fit(model, record, bursts, extras, callbacks):
    """Train as the record says, or with averaged weights."""
    from fml_tf import training
    from fml_tf.models import keras

    if "average" not in extras:
        training.train(model, record, bursts, callbacks=callbacks)
        return
    swa = extras["average"] == "swa"
    ema = {} if swa else {"use_ema": True, "ema_momentum": 0.999}
    model.compile(keras.optimizers.Adam(record.learning_rate, **ema))
    weights = model.trainable_variables
    sums, count = [np.zeros(weight.shape) for weight in weights], [0]

    def gather(epoch, logs):
        if swa and epoch >= 0.75 * record.epochs:
            count[0] += 1
            for total, weight in zip(sums, weights, strict=True):
                total += weight.numpy()

    options = dict(batch_size=record.batch_size, epochs=record.epochs, verbose=0, restore_best=False)
    model.fit(bursts, callbacks=[*callbacks, keras.callbacks.LambdaCallback(on_epoch_end=gather)], **options)
    if count[0]:
        for total, weight in zip(sums, weights, strict=True):
            weight.assign(total / count[0])


def held_out(record, steps=2500):
    """Return histories and the states that follow; of a chaotic system so many, from its attractor."""
    options = dict(seed=2, steps=steps, spin_up=20.0) if record.exponent else dict(seed=1)
    return np.split(data.sample_trajectories(record, **options), [record.memory_steps + 1], axis=1)


def judge(record, model):
    """Return the score of the ensemble and of its median member on test trajectories, and how many stay bounded."""
    history, truth = held_out(record)
    forecast = model.forecast(history, truth.shape[1])
    alone = [metrics.score(record, member, truth) for member in model.forecast(history, truth.shape[1], average=None)]
    return {
        "score": metrics.score(record, forecast, truth),
        "member": float(np.median(alone)),
        "bounded": metrics.bounded_fraction(forecast, *model.data_range.numpy()),
    }


def cell(benchmark, score):
    """Return a score as a table shows it: an error, or of a chaotic system a valid prediction time."""
    return format(score, ".1f" if problems.PAPER[benchmark].exponent else ".1e") if np.isfinite(score) else "ran away"


def known(path):
    """Return what was measured before."""
    return json.loads(path.read_text()) if path.exists() else {}


def keep(path, found):
    """Write what is measured so far."""
    results.replace(path, lambda part: part.write_text(json.dumps(found, indent=1) + "\n"))


def alone(task):
    """Return what a task returns, from a process of its own: what TensorFlow compiled goes with it."""
    with futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(task).result()


def tables(found):
    """Return the scores as a Markdown table, a row a method and a column a benchmark that have been measured."""
    columns = [benchmark for benchmark in problems.PAPER if found.get(benchmark)]
    rows = [["method", *columns]]
    for method in METHODS:
        cells = []
        for benchmark in columns:
            run = found[benchmark].get(method)
            cells.append(cell(benchmark, run["score"]) if run else "")
        if any(cells):
            rows.append([method, *cells])
    return {"training": results.markdown(rows)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--benchmarks", nargs="+", default=list(problems.PAPER), choices=list(problems.PAPER))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--tables", action="store_true", help="only renew the page")
    given = parser.parse_args()
    found, failed = known(OUT), False
    for benchmark, method in itertools.product(given.benchmarks, [] if given.tables else given.methods):
        if method in found.setdefault(benchmark, {}) and found[benchmark][method]["limit"] == given.seconds:
            continue
        try:
            run = alone(functools.partial(measure, benchmark, method, given.seconds))
        except Exception as error:  # of whatever kind: the others shall be measured
            failed = True
            print(f"{benchmark}, {method} failed: {type(error).__name__}: {error}", flush=True)
            continue
        found[benchmark][method] = {**run, "limit": given.seconds}
        print(f"{benchmark:6} {method:30} {found[benchmark][method]['score']:.3g}", flush=True)
        keep(OUT, found)
    results.write_tables(PAGE, tables(found))
    sys.exit(failed)


if __name__ == "__main__":
    main()
