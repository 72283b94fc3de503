"""Train benchmarks with a preset, without their notebooks, and write what comes of it to results/<preset>/.

    python benchmarks/training/recipes.py paper [5.1.1 ...] [--hours 6]
    python benchmarks/training/recipes.py skip
    python benchmarks/training/recipes.py time      # on a quiet machine
    python benchmarks/training/recipes.py table     # beside the committed runs and polynomials, in docs/accuracy.md

`paper` is the paper's recipe to the letter, the reference of every claim about accuracy: batches of 200, 10,000 epochs,
Adam with a learning rate of 1e-4, the plain residual form; with ten members where networks are smallest and fewer where
hours would turn to days, so what is compared with it must have as many: `time` trains the standard preset with those,
to know its seconds. `skip` is the standard preset with a linear skip path. A training is backed up once a minute in
results/<preset>/unfinished/: after an interruption call again, or commit that folder and call on another day or
machine; 5.4 starts anew on one that rounds otherwise, since chaotic data are other data there. Where it would pass
`--hours` it is stopped, and the result has the epochs that it trained. Other work may run beside the paper's recipe:
seconds "quiet" are those of its fastest epochs, for all.
"""

import argparse
import dataclasses
import json
import shutil

import compare
import numpy as np

from fml_tf import data, metrics, models, polynomials, problems, results, training
from fml_tf.models import keras

#: Members of the paper's recipe; one of the benchmarks that are not here.
MEMBERS = {"5.1.1": 10, "5.3.1": 10} | dict.fromkeys(("5.1.2", "5.2.1", "5.2.2", "5.3.2", "5.3.3"), 3)

#: Degree, axes and noise that notebooks/topics/polynomials.ipynb chooses; for linear systems degree 1.
POLYNOMIALS = dict.fromkeys(("5.1.1", "5.1.2", "5.2.1", "5.2.2", "5.5.1"), (1, None, 0.0)) | {
    "5.3.1": (9, None, 0.0), "5.3.2": (5, 4, 1e-6), "5.3.3": (3, 6, 0.0), "5.4.1": (8, None, 0.0),
    "5.4.2": (5, 6, 1e-6), "5.4.3": (5, 6, 1e-6),
}  # fmt: skip
OUT = results.ROOT / "results" / "recipes.json"
PAGE = results.ROOT / "docs" / "accuracy.md"


class Limit(keras.callbacks.Callback):
    """Stop a training that has taken so many seconds, those before an interruption included."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training |= sum(log["seconds"] for log in self.model.epoch_logs) > self.seconds


def judge(problem, model):
    """Return errors of the paper's test `(trajectory, time)`, and what else a run reports."""
    history, truth = np.split(data.sample_trajectories(problem, seed=1), [problem.memory_steps + 1], axis=1)
    forecast = model.forecast(history, problem.horizon)
    found = {"bounded_fraction": metrics.bounded_fraction(forecast, *np.asarray(model.data_range))}
    if problem.exponent:
        start, after = compare.held_out(problem, problem.horizon)
        found["valid_prediction_time"] = metrics.score(problem, model.forecast(start, problem.horizon), after)
    return metrics.l2_error(forecast, truth), found


def train(name, preset, hours):
    """Train one benchmark and write its metrics and ensemble where the committed ones stand."""
    members = MEMBERS.get(name, 1) if preset == "paper" else None
    problem = problems.get(name, preset, members=members)
    folder = results.run_folder(problem)
    bursts = data.sample_bursts(problem, seed=0)
    model = training.build(problem, seed=0)
    initial = model.evaluate_members(bursts)
    callbacks = [Limit(3600 * hours), training.Progress(every=500)]
    target = results.committed(name, preset)
    backup = target.parent / "unfinished" / name
    seconds = {"train": training.train(model, problem, bursts, seed=0, callbacks=callbacks, backup=backup)}
    results.write_model(folder, model)
    if not problem.stages:
        each = [log["seconds"] for log in model.epoch_logs]
        seconds["quiet"] = len(each) * float(np.quantile(each, 0.1))
    final = model.evaluate_members(bursts)
    errors, found = judge(problem, model)
    trained = dataclasses.replace(problem, epochs=len(model.member_losses) - problem.stage_epochs)
    record = results.describe(
        trained, errors, loss_initial=initial, loss_final=final, seconds=seconds,
        seeds={"train": 0, "test": 1, "members": 0}, data_hash=data.fingerprint(bursts), **found,
    )  # fmt: skip
    results.write_metrics(folder, record)
    for source, place in (("metrics.json", target), ("model.keras", target.with_suffix(".keras"))):
        results.replace(place, lambda part, source=source: shutil.copy(folder / source, part))
    shutil.rmtree(backup)  # with what trainings on other data may have left there
    print(json.dumps({key: record[key] for key in ("benchmark", "mean_error", "seconds")} | found), flush=True)


def polynomial(problem):
    """Return the polynomial flow map of a benchmark, fitted to the data of its networks."""
    degree, axes, noise = POLYNOMIALS[problem.id]
    bursts = data.add_noise(data.sample_bursts(problem, seed=0), noise, memory_steps=problem.memory_steps)
    shape = dict(memory_steps=problem.memory_steps, degree=degree, most_axes=axes)
    return polynomials.PolynomialFlowMap(bursts.shape[-1], **shape).fit(bursts)


def score(problem, model):
    """Return the valid prediction time of a forecast of a chaotic system, the mean error of any other."""
    errors, found = judge(problem, model)
    return found.get("valid_prediction_time", float(errors.mean()))


def gather(name, known):
    """Return the score of ours with as many members as the paper's recipe was run with, the committed one if that is
    all of them, and of the polynomial, which is fitted anew only if it was not `known`."""
    record, paper, ours = problems.PAPER[name], _committed(name, "paper"), _committed(name, "standard")
    members = len((paper or ours)["loss_final"])
    choice = list(POLYNOMIALS[name])
    fitted = known["polynomial"] if known.get("choice") == choice else score(record, polynomial(record))
    whole = members == len(ours["loss_final"])
    mine = ours[_key(record)] if whole else score(record, models.load_pretrained(name).member(slice(members)))
    found = {"members": members, "ours": mine, "polynomial": fitted, "choice": choice}
    return {**found, "timed": known["timed"]} if "timed" in known else found


def time(name):
    """Return how long the standard recipe takes with as many members as the paper's recipe has."""
    members = MEMBERS.get(name, 1)
    problem = problems.get(name, members=members)
    seconds = training.train(training.build(problem, seed=0), problem, data.sample_bursts(problem, seed=0), seed=0)
    return {"members": members, "seconds": seconds, "source": results.source_hash(name)}


def _minutes(name, found):
    """Return the minutes of the standard recipe with the members that are compared, if they were measured."""
    ours, timed = _committed(name, "standard"), found.get("timed", {})
    if found["members"] == len(ours["loss_final"]):
        return f"{ours['seconds']['train'] / 60:.1f}"
    current = (timed.get("members"), timed.get("source")) == (found["members"], results.source_hash(name))
    return f"{timed['seconds'] / 60:.1f}" if current else ""


def _key(record):
    """Return the name of a benchmark's score among its metrics."""
    return "valid_prediction_time" if record.exponent else "mean_error"


def tables(found):
    """Return what the recipes reach as a Markdown table."""
    head = "benchmark, members, paper's recipe, its minutes, ours, gain, our minutes, skip, polynomial"
    rows = [head.split(", ")]
    for name, record in problems.PAPER.items():
        key = _key(record)
        paper, skip = (_committed(name, preset) for preset in ("paper", "skip"))
        mine, members, best = (found[name][part] for part in ("ours", "members", "polynomial"))
        baseline, minutes, gain = "", "", ""
        if paper:
            gain = f"+{mine - paper[key]:.1f}" if record.exponent else f"{paper[key] / mine:,.0f}×"
            baseline = compare.cell(name, paper[key]) + _unfinished(paper)
            minutes = f"{paper['seconds'].get('quiet', paper['seconds']['train']) / 60:.0f}"
        row = [name, str(members), baseline, minutes, compare.cell(name, mine), gain]
        row += [_minutes(name, found[name]), compare.cell(name, skip[key]) if skip else ""]
        rows.append([*row, compare.cell(name, best)])
    return {"recipes": results.markdown(rows)}


def _committed(name, preset):
    return compare.known(results.committed(name, preset))


def _unfinished(values):
    """Say after how many epochs a training was stopped, if it was."""
    epochs = values["parameters"]["epochs"]
    return f" (after {epochs:,} epochs)" if epochs < problems.PAPER[values["benchmark"]].epochs else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("preset", choices=["paper", "skip", "time", "table"])
    parser.add_argument("benchmarks", nargs="*", help="numbers in the paper; by default all that have no result")
    parser.add_argument("--hours", type=float, default=6, help="longest training")
    given = parser.parse_args()
    found = compare.known(OUT)
    if given.preset == "time":
        fewer = [name for name in problems.PAPER if MEMBERS.get(name, 1) < problems.get(name).members]
        for name in given.benchmarks or fewer:
            found.setdefault(name, {})["timed"] = time(name)
            print(f"{name}: {found[name]['timed']['seconds']:.0f} s", flush=True)
            compare.keep(OUT, found)
        return
    if given.preset == "table":
        for name in problems.PAPER:
            found[name] = gather(name, found.get(name, {}))
            compare.keep(OUT, found)
        results.write_tables(PAGE, tables(found))
        return
    missing = [name for name in problems.PAPER if not results.committed(name, given.preset).exists()]
    for name in given.benchmarks or missing:
        print(f"{name}: training", flush=True)
        train(name, given.preset, given.hours)


if __name__ == "__main__":
    main()
