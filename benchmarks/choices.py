"""Put what the example sweeps found, from their committed reports, into the tables of docs/choices.md.

    fml sweep sweeps/NAME.yaml && fml report runs/NAME --out sweeps/NAME     # renews one report
    python benchmarks/choices.py

`make sweeps` does this for all.
"""

import csv

from fml_tf import results, sweeps

PAGE = results.ROOT / "docs" / "choices.md"

#: Results that a table shows of a sweep beside what it is judged by.
COLUMNS = {
    "multi_steps_5_3_1": ("seconds_train",),
    "memory_5_2_2": ("bounded_fraction",),
    "memory_5_4_3": ("bounded_fraction_from_attractor",),
}

#: Heading and format of each result.
SHOWN = {
    "mean_error": ("mean error", ".1e"),
    "valid_prediction_time": ("valid prediction time, Lyapunov times", ".2f"),
    "bounded_fraction": ("bounded", ".0%"),
    "bounded_fraction_from_attractor": ("bounded", ".0%"),
    "seconds_train": ("seconds of training", ".0f"),
}


def cell(line, name, kind="median"):
    """Return what a line of a summary says of a result as text."""
    value = line[f"{name}_{kind}"]
    return format(float(value), SHOWN[name][1]) if value else "none"


def spread(line, name):
    return f"{cell(line, name, 'min')} to {cell(line, name, 'max')}"


def one(lines, parameter, metric, more):
    """Return the table of a sweep over one parameter: a row a value, medians over seeds, least and largest."""
    head = [parameter, SHOWN[metric][0], "least to largest"]
    for name in more:
        head += [SHOWN[name][0], "least to largest"]
    names = (metric, *more)
    rows = [[line[parameter], *(text for n in names for text in (cell(line, n), spread(line, n)))] for line in lines]
    return results.markdown([head, *rows])


def two(lines, across, down, metric, more):
    """Return the table of a sweep over two parameters: medians over seeds, and what more is asked for behind them."""
    names = (metric, *more)
    found = {(line[across], line[down]): " / ".join(cell(line, name) for name in names) for line in lines}
    columns, values = (list(dict.fromkeys(line[parameter] for line in lines)) for parameter in (across, down))
    rows = [[value, *(found[column, value] for column in columns)] for value in values]
    return results.markdown([[f"{down} \\ {across}", *columns], *rows])


def tables():
    """Return the table of each example sweep, of one parameter or two, as Markdown, by the sweep's name."""
    found = {}
    for folder in sorted(path.with_suffix("") for path in (results.ROOT / "sweeps").glob("*.yaml")):
        with open(folder / "summary.csv") as file:
            lines = list(csv.DictReader(file))
        metric = next(name for name in sweeps.METRICS if f"{name}_median" in lines[0])
        swept = list(lines[0])[: list(lines[0]).index("runs")]
        make = one if len(swept) == 1 else two
        found[folder.name] = make(lines, *swept, metric, COLUMNS.get(folder.name, ()))
    return found


if __name__ == "__main__":
    results.write_tables(PAGE, tables())
