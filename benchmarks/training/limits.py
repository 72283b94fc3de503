"""Separate what limits the accuracy of a learned flow map, on three benchmarks that are seen whole.

    python benchmarks/training/limits.py [5.1.1 5.3.1 5.4.1]
    python benchmarks/training/limits.py --tables      # only renew docs/limits.md and its figure from the file

Three members train anew with more steps (optimisation), less data, other widths (approximation), or in double
precision, one at a time; those of the recipe itself are the committed ones, but of 5.4.1, which trains for half as long
here. The errors of the committed ensemble's single steps, which can be told exactly where all variables are seen, are
carried on by the true flow map instead of the learned one: what that explains is accumulation. Each training is a
process of its own. Numbers go to `results/limits.json`; what stands there is kept.
"""

import argparse
import dataclasses
import functools
import json

import compare
import numpy as np

from fml_tf import data, metrics, problems, results

OUT = results.ROOT / "results" / "limits.json"
PAGE = results.ROOT / "docs" / "limits.md"
BENCHMARKS = ("5.1.1", "5.3.1", "5.4.1")
MEMBERS = 3
TRAJECTORIES = 1000


def _scaled_width(record, factor):
    return dataclasses.replace(record, hidden=tuple(round(factor * width) for width in record.hidden))


def _fewer(record, factor):
    """Return a record with less data, trained for as many steps, which are more epochs; batches are no larger than the
    data."""
    less = dataclasses.replace(record, n_trajectories=record.n_trajectories // factor)

    def lengthened(stage):
        samples, fewer = (one.n_samples * record.windows(stage) for one in (record, less))
        batch_size = min(stage.batch_size, fewer)
        steps = stage.epochs * -(-samples // stage.batch_size)
        epochs = max(1, round(steps / -(-fewer // batch_size)))
        return dataclasses.replace(stage, epochs=epochs, batch_size=batch_size)

    return dataclasses.replace(lengthened(less), stages=tuple(map(lengthened, record.stages)))


#: What each training changes in the recipe.
TRAININGS = {
    "twice the steps": lambda record: compare.scaled(record, 2),
    "half the data, as many steps": lambda record: _fewer(record, 2),
    "a tenth of the data, as many steps": lambda record: _fewer(record, 10),
    "half the width": lambda record: _scaled_width(record, 0.5),
    "twice the width": lambda record: _scaled_width(record, 2),
    "double precision": lambda record: dataclasses.replace(record, dtype="float64"),
}

#: Least squares cannot solve for as many weights as twice the width has.
LEFT_OUT = {("5.4.1", "twice the width")}

#: Lorenz's system takes half the steps of its standard recipe, and is trained anew, for it takes long enough.
SHARE = {"5.4.1": 0.5}

#: Three members of the recipe, and twice three more, to show what is chance.
RECIPE = {"the recipe": 0, "three other members": 3, "three more": 6}


def record_of(benchmark):
    record = problems.get(benchmark, members=MEMBERS, n_test=TRAJECTORIES, averaging="equal")
    return compare.scaled(record, SHARE.get(benchmark, 1))


def committed(benchmark):
    """Return the committed ensemble with equal shares: what is measured here is training."""
    from fml_tf import models  # here alone is TensorFlow needed

    model = models.load_pretrained(benchmark)
    model.weigh()
    return model


def recipe(benchmark, first):
    """Return scores and losses of three members of the recipe, the committed ones where it is the standard one."""
    record = record_of(benchmark)
    if benchmark in SHARE:
        return train(record, first)
    bursts = data.sample_bursts(record, seed=0)
    return judge(record, committed(benchmark).member(slice(first, first + MEMBERS)), bursts)


def change(benchmark, name):
    """Return the same of three members that are trained in another way."""
    return train(TRAININGS[name](record_of(benchmark)))


def train(record, first=0):
    """Train three members from number `first` on as a record says; return their scores and losses."""
    from fml_tf import training

    bursts, last = data.sample_bursts(record, seed=0), first + MEMBERS
    model = training.build(dataclasses.replace(record, members=last)).member(slice(first, last))
    training.train(model, record, bursts)
    return judge(record, model, bursts)


def judge(record, model, bursts):
    """Return scores of an ensemble and its median member, and its median loss on its training data and on new data."""
    model.compile()
    seen, fresh = (float(np.median(model.evaluate_members(part))) for part in (bursts, fresh_bursts(record)))
    return {**compare.judge(record, model), "loss": seen, "fresh": fresh}


def fresh_bursts(record):
    """Return bursts of the same law from other trajectories."""
    return data.sample_bursts(dataclasses.replace(record, n_trajectories=TRAJECTORIES), seed=3)


def accumulate(benchmark):
    """Return what comes of the ensemble's errors over single steps, and of rounding, under the true flow map: scores,
    and the median errors at some times.

    With δ the error of one step from a true state, "carried" is y <- Φ(y) + δ, "signs" the same with each step's δ
    given a random sign, so that errors add up by chance and not by direction. "rounded" is Φ alone, its states and its
    start held in single precision; "start" is Φ from a start so rounded.
    """
    record, model = record_of(benchmark), committed(benchmark)
    history, truth = compare.held_out(record)
    steps, flow, start = truth.shape[1], record.system.flow(record.time_step), history[:, -1]
    before = np.concatenate([history, truth[:, :-1]], axis=1)  # (trajectory, time, state), one step earlier
    single = np.concatenate([model.forecast(states[:, None], 1) for states in before.swapaxes(0, 1)], axis=1) - truth
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(*truth.shape[:2], 1))

    double = type(model).from_config({**model.get_config(), "name": None, "dtype": "float64"})
    double.set_weights(model.get_weights())
    ways = {
        "forecast": lambda: model.forecast(history, steps),
        "double": lambda: double.forecast(history, steps),
        "carried": lambda: carry(flow, start, single),
        "signs": lambda: carry(flow, start, single * signs),
        "rounded": lambda: carry(flow, rounded(start), np.zeros_like(truth), rounded),
        "start": lambda: carry(flow, rounded(start), np.zeros_like(truth)),
    }
    shown = np.unique(np.geomspace(1, steps, 100).astype(int)) - 1
    sizes = np.linalg.norm(single, axis=-1)
    found = {
        "single": {"mean": float(sizes.mean()), "median": float(np.median(sizes))},
        "times": (record.time_step * (1 + shown)).tolist(),
    }
    for name, way in ways.items():
        path = way()
        errors = np.median(metrics.l2_error(path[:, shown], truth[:, shown]), axis=0)
        found[name] = {"score": metrics.score(record, path, truth), "errors": [float(f"{e:.3g}") for e in errors]}
    return found


def carry(flow, start, shifts, hold=lambda states: states):
    """Roll out a flow map from states `(trajectory, state)`, adding to each step one of the shifts `(trajectory, time,
    state)`; `hold` is what storing does to a state."""
    states, path = start, np.empty_like(shifts)
    for step in range(shifts.shape[1]):
        states = path[:, step] = hold(flow(states) + shifts[:, step])
    return path


def rounded(states):
    """Return states as single precision holds them, in double."""
    return states.astype("float32").astype("float64")


def trainings_table(benchmark, values):
    """Return scores and losses of the trainings of a benchmark as Markdown."""
    rows = [["training", "three members", "median member", "loss", "loss on new data over that"]]
    for name in (*RECIPE, *TRAININGS):
        if run := values["trainings"].get(name):
            losses = [f"{run['loss']:.1e}", f"{run['fresh'] / run['loss']:.2f}"]
            rows.append([name, compare.cell(benchmark, run["score"]), compare.cell(benchmark, run["member"]), *losses])
    return results.markdown(rows)


#: What the table of accumulation shows, in its order.
CARRIED = {
    "forecast": "forecast of the ensemble",
    "double": "the same weights, computed in double precision",
    "carried": "true flow map, with the ensemble's error added to each step",
    "signs": "the same, each error with a random sign",
    "rounded": "true flow map, each state in single precision",
    "start": "true flow map, the start alone in single precision",
}

#: What the figure calls some of them.
SHOWN = {
    "forecast": "forecast",
    "carried": "its one-step errors, carried",
    "signs": "random signs",
    "rounded": "rounding alone",
}


def accumulation_table(found):
    """Return what errors of single steps come to as Markdown."""
    grown = {benchmark: values["accumulation"] for benchmark, values in found.items()}
    rows = [["", *grown], ["error of one step", *(f"{values['single']['mean']:.1e}" for values in grown.values())]]
    for key, text in CARRIED.items():
        rows.append([text, *(compare.cell(benchmark, values[key]["score"]) for benchmark, values in grown.items())])
    return results.markdown(rows)


def draw(found):
    """Write the figure of how errors grow beside the page."""
    from matplotlib import figure

    from fml_tf import plots

    plots.use_style()
    picture = figure.Figure(figsize=(10, 3.4), layout="constrained")
    for ax, (benchmark, values) in zip(picture.subplots(1, len(found)), found.items(), strict=True):
        grown = values["accumulation"]
        for name, style in (("forecast", "-"), ("carried", "--"), ("signs", "-"), ("rounded", "-")):
            ax.loglog(grown["times"], grown[name]["errors"], style, label=SHOWN[name])
        ax.axhline(grown["single"]["median"], color="0.6", linewidth=1, zorder=0)
        ax.set(title=f"{benchmark} {problems.PAPER[benchmark].system.name}", xlabel="time (units of the system)")
    picture.axes[0].set_ylabel("median ℓ2 error")
    picture.axes[0].legend(fontsize="small")
    results.replace(PAGE.with_suffix(".png"), lambda part: picture.savefig(part, dpi=120))


def tables(found):
    trainings = {f"limits-{benchmark}": trainings_table(benchmark, values) for benchmark, values in found.items()}
    return {**trainings, "accumulation": accumulation_table(found)}


def tasks(benchmark):
    """Return what is measured on a benchmark: the name of each training, and how to come by its numbers."""
    names = [name for name in TRAININGS if (benchmark, name) not in LEFT_OUT]
    return {
        **{name: functools.partial(recipe, benchmark, first) for name, first in RECIPE.items()},
        **{name: functools.partial(change, benchmark, name) for name in names},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("benchmarks", nargs="*", default=BENCHMARKS, help=f"of {', '.join(BENCHMARKS)}; by default all")
    parser.add_argument("--tables", action="store_true", help="only renew the page")
    given = parser.parse_args()
    if unknown := set(given.benchmarks) - set(BENCHMARKS):
        parser.error(f"{', '.join(sorted(unknown))}: expected some of {', '.join(BENCHMARKS)}, which are seen whole")
    found = compare.known(OUT)
    for benchmark in [] if given.tables else given.benchmarks:
        values = found.setdefault(benchmark, {"trainings": {}})
        if "accumulation" not in values:
            values["accumulation"] = compare.alone(functools.partial(accumulate, benchmark))
            compare.keep(OUT, found)
        for name, task in tasks(benchmark).items():
            if name not in values["trainings"]:
                values["trainings"][name] = compare.alone(task)
                print(benchmark, name, json.dumps(values["trainings"][name]), flush=True)
                compare.keep(OUT, found)
    results.write_tables(PAGE, tables(found))
    draw(found)


if __name__ == "__main__":
    main()
