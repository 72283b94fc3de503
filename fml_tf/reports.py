"""Reports of sweeps: tables of parameters and results, mean, median and spread over seeds, and a figure."""

import csv
import io
import itertools
import json
import pathlib

import numpy as np

from fml_tf import results, sweeps

#: What a summary says of the values of a result over seeds and repeats.
MEASURES = {
    "mean": np.mean,
    "median": np.median,
    "std": lambda values: values.std(ddof=1) if len(values) > 1 else None,
    "min": np.min,
    "max": np.max,
}

#: Columns that may differ between two executions of the same sweep.
VOLATILE = ("seconds", "host")


def write(folder, *, metric: str | None = None, out=None) -> list[pathlib.Path]:
    """Write `results.csv`, one row a run, `summary.csv`, one row a set of parameters, and `figure.png`.

    Args:
        folder: of the sweep.
        metric: the result that the figure shows; by default the valid prediction time, or else the mean error.
        out: another folder for the report.

    Returns:
        Paths of what was written: no figure where nothing was swept, or more than two parameters.

    Raises:
        ValueError: for a folder without a manifest or without a run that is done, an unknown metric, or an `out`
            that cannot be written to.
    """
    rows = sweeps.rows(folder)
    done = [row for row in rows if row["state"] == "done"]
    if not done:
        raise ValueError(f"no run in {folder} is done: 'fml status {folder}' says why.")
    known = list(dict.fromkeys(itertools.chain(*(row["results"] for row in done))))
    if metric is not None and metric not in known:
        raise ValueError(f"unknown metric {metric!r}: the runs report {', '.join(known) or 'nothing'}.")
    metric = metric or next((name for name in (*sweeps.METRICS, *known) if name in known), None)
    out = results.run_folder("report", out or folder)
    written = [out / "results.csv", out / "summary.csv"]
    for path, lines in zip(written, (table(rows), summary(done, known)), strict=True):
        results.replace(path, lambda part, lines=lines: part.write_text(_csv(lines)))
    names = list(dict.fromkeys(itertools.chain(*(row["swept"] for row in rows))))
    if metric and 1 <= len(names) <= 2:
        written.append(results.write_figure(out, "figure", draw(done, names, metric)))
    return written


def table(rows: list[dict]) -> list[dict]:
    """Return a sweep's rows, flat: a column a swept parameter, then seed, repeat, state, reason, each result, seconds
    and host."""
    names = list(dict.fromkeys(itertools.chain(*(row["swept"] for row in rows))))
    known = list(dict.fromkeys(itertools.chain(*(row["results"] for row in rows))))
    steady = [name for name in known if not name.startswith("seconds_")]
    timed = [name for name in known if name.startswith("seconds_")]
    own = ("seed", "repeat", "state", "reason")
    taken = ("run", *own, *VOLATILE)
    column = {name: f"result_{name}" if name in (*taken, *names) else name for name in known}
    return [
        {"run": row["id"]}
        | {f"parameter_{name}" if name in taken else name: row["swept"].get(name) for name in names}
        | {name: row[name] for name in own}
        | {column[name]: row["results"].get(name) for name in (*steady, *timed)}
        | {name: row[name] for name in VOLATILE}
        for row in rows
    ]


def summary(done: list[dict], known: list[str]) -> list[dict]:
    """Return, for each set of swept parameters, the number of runs that are done, and the mean, median, standard
    deviation (None of one run), least and largest of each result over seeds and repeats."""
    lines = []
    for swept, runs in _groups(done):
        line = {**swept, "runs": len(runs)}
        for name in known:
            values = np.array([row["results"][name] for row in runs if row["results"].get(name) is not None], "float64")
            line |= {f"{name}_{kind}": measure(values) if len(values) else None for kind, measure in MEASURES.items()}
        lines.append(line)
    return lines


def _groups(done):
    """Return (swept parameters, their runs), in the order of the manifest."""
    groups = {}
    for row in done:
        groups.setdefault(json.dumps(row["swept"]), []).append(row)
    return [(runs[0]["swept"], runs) for runs in groups.values()]


def _csv(lines):
    text = io.StringIO()
    columns = list(dict.fromkeys(itertools.chain(*lines)))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def draw(done: list[dict], names: list[str], metric: str):
    """Return a figure of a result's median over seeds against one swept parameter, a line for each value of a second
    one; where both have four numbers or more, a map of colours."""
    import matplotlib.pyplot as plt

    from fml_tf import plots

    plots.use_style()
    groups = [
        ({name: _shown(swept.get(name)) for name in names}, [row["results"].get(metric) for row in runs])
        for swept, runs in _groups(done)
    ]
    axis = [_values(groups, name) for name in names]
    figure, ax = plt.subplots()
    if len(names) == 2 and all(len(values) >= 4 and _numbers(values) for values in axis):
        plots.heat_map(*_map(groups, names, axis), names=[*map(_words, names)], label=_words(metric), ax=ax)
        return figure
    two = len(names) == 2
    if two and (_numbers(axis[1]), len(axis[1])) > (_numbers(axis[0]), len(axis[0])):  # the longer line of numbers
        names, axis = names[::-1], axis[::-1]
    for value in axis[1] if two else [None]:
        line = [(swept, found) for swept, found in groups if not two or swept.get(names[1]) == value]
        plots.spread(
            [swept.get(names[0]) for swept, _ in line],
            [np.array([np.nan if y is None else y for y in found]) for _, found in line],
            label=f"{_words(names[1])} = {value}" if two else None,
            ax=ax,
        )
    ax.set(xlabel=_words(names[0]), ylabel=_words(metric))
    if two:
        ax.legend()
    return figure


def _shown(value):
    """Return a value as a figure shows it: numbers as they are, all else as text."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if number else str(value).replace("$", r"\$")


def _values(groups, name):
    return list(dict.fromkeys(swept.get(name) for swept, _ in groups))


def _numbers(values):
    return all(isinstance(value, int | float) for value in values)


def _map(groups, names, axis):
    x, y = (sorted(values) for values in axis)
    found = {tuple(swept.values()): [value for value in values if value is not None] for swept, values in groups}
    return x, y, np.array([[np.median(found.get((a, b)) or np.nan) for a in x] for b in y])


def _words(name):
    return name.replace("_", " ").replace("$", r"\$")
