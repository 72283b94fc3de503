"""Measure the speed of training, forecasting and start-up side by side, and how cost grows; minutes, all in one run.

Every contender lives in a process of its own. A round asks each for one epoch, every round in another order, so that a
noisy machine disturbs all alike; medians over the rounds go to `results/speed.json`, and from there into the tables of
the README and `docs/speed.md`. JAX and PyTorch take part where they are installed: `pip install -e .[peers]`.

    python benchmarks/speed.py                                # everything, about an hour on 2 cores
    python benchmarks/speed.py training --shapes S --batches 1000
    python benchmarks/speed.py tables                         # only renew the pages from the file
"""

import argparse
import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import contenders
import numpy as np
from contenders import Shape

from fml_tf import results

OUT = results.ROOT / "results" / "speed.json"
PAGES = (results.ROOT / "README.md", results.ROOT / "docs" / "speed.md")

SHAPES = {
    "S": Shape(),
    "M": Shape(memory_steps=10, hidden=(30, 30, 30), samples=20_000),
    "L": Shape(state_dim=10, memory_steps=30, hidden=(100, 100, 100), samples=10_000),
}
BATCHES, MEMBERS = (200, 1000, 5000), (1, 5)
NEEDS = {"JAX": "jax", "PyTorch": "torch"}

#: What the growth of cost is measured over: the field, its values, and the rest of the shape.
GROWTH = {
    "members": (1, 2, 4, 8, 16, 32),
    "samples": (5_000, 50_000, 500_000),
    "multi_steps": (0, 5, 10, 20),
    "memory_steps": (0, 10, 30, 60),
    "nodes": (10, 30, 100, 200),
}


class Worker:
    """Hold one contender's process, ready to train epochs."""

    def __init__(self, name, shape):
        options = [f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(Shape)]
        values = [getattr(shape, field.name) for field in dataclasses.fields(Shape)]
        command = [sys.executable, contenders.__file__, name]
        for option, value in zip(options, values, strict=True):
            command += [option, *map(str, value if isinstance(value, tuple) else [value])]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, it lives as long as the process
        start = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )
        first = self._answer()
        self.start_up, self.members = time.perf_counter() - start, first["members"] if first else 0

    def complaint(self):
        """Return the last line of what a process that never got ready wrote to its standard error; "" of others."""
        self.errors.seek(0)
        return "" if self.members else (self.errors.read().strip().splitlines() or ["it wrote nothing"])[-1]

    def _answer(self):
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def ask(self):
        print(file=self.process.stdin, flush=True)

    def seconds(self):
        return self._answer()["seconds"]

    def close(self):
        """End the process; returns its peak memory in megabytes."""
        self.process.stdin.close()
        peak = self._answer()
        self.process.wait()
        return peak["peak_mb"] if peak else None


def race(shape, names, rounds):
    """Return what each contender needs for an epoch of all members: medians over rounds that ask each in turn."""
    workers = {}
    for name in names:
        if importlib.util.find_spec(NEEDS.get(name.split(",")[0], "json")) is None:
            continue
        crew = [Worker(name.removesuffix(", two processes"), shape) for _ in range(1 + name.endswith("two processes"))]
        complaints = [worker.complaint() for worker in crew]
        if not any(complaints):
            workers[name] = crew
            continue
        print(f"{name} takes no part: {max(complaints)}", flush=True)
        for worker in crew:
            worker.close()
    seconds = {name: [] for name in workers}
    rng = np.random.default_rng(0)
    for _ in range(rounds):  # each in another order, since what ran before leaves its mark on caches and clocks
        for name in rng.permutation(list(workers)):
            crew = workers[name]
            for worker in crew:
                worker.ask()
            longest = max(worker.seconds() for worker in crew)
            seconds[name].append(longest * shape.members / sum(worker.members for worker in crew))
    table = {}
    for name, crew in workers.items():
        peaks = [worker.close() for worker in crew]
        median = statistics.median(seconds[name])
        rate = shape.members * shape.samples / median
        table[name] = {"seconds": median, "rate": rate, "peak_mb": sum(peaks)}
    return table


def training(args):
    """Race all contenders for each shape and batch, and this package and JAX for smaller ensembles."""
    two = "plain Keras, two processes"
    table = []
    for shape_name in args.shapes:
        for batch in args.batches:
            shape = dataclasses.replace(SHAPES[shape_name], batch=batch)
            races = [(shape, [*contenders.CONTENDERS, two])]
            if batch == 1000:
                few = ["FlowMap.fit", "plain Keras", "JAX", "JAX, features before batch"]
                races += [(dataclasses.replace(shape, members=members), few) for members in MEMBERS]
            for runs, names in races:
                found = race(runs, names, args.rounds)
                table.append({"shape": shape_name, "batch": batch, "members": runs.members, "contenders": found})
                print(f"{shape_name}, batch {batch}, {runs.members} members:", flush=True)
                for name, row in found.items():
                    ratio = row["seconds"] / found["FlowMap.fit"]["seconds"]
                    print(f"  {name:30}{row['seconds']:9.3f} s{ratio:9.2f} x fit{row['peak_mb']:8.0f} MB", flush=True)
    return table


def growth(args):
    """Measure an epoch of `fit` while one size grows."""
    table = {}
    for field, values in GROWTH.items():
        table[field] = {}
        for value in values:
            name, given = ("hidden", (value,) * 3) if field == "nodes" else (field, value)
            base = Shape(samples=20_000) if field != "samples" else Shape()
            shape = dataclasses.replace(base, **{name: given})
            table[field][value] = race(shape, ["FlowMap.fit"], args.rounds)["FlowMap.fit"]
            print(f"{field} {value}: {table[field][value]['seconds']:.3f} s an epoch", flush=True)
    return table


def start_up(args):
    """Measure the time from process start to the end of the first training step, compiling included, and imports."""
    table = {}
    for shape_name in args.shapes:
        shape = dataclasses.replace(SHAPES[shape_name], samples=1000, batch=1000)
        for name in ("FlowMap.fit", "plain Keras", "plain Keras, XLA", "JAX"):
            if importlib.util.find_spec(NEEDS.get(name, "json")) is not None:
                runs = [Worker(name, shape) for _ in range(3)]
                table[f"{name}, {shape_name}"] = statistics.median(worker.start_up for worker in runs)
                for worker in runs:
                    worker.close()
    for name, code in {
        "Python alone": "pass",
        "import fml_tf": "import fml_tf",
        "import fml_tf.models": "import fml_tf.models",
    }.items():
        runs = [
            contenders.timed(lambda code=code: subprocess.run([sys.executable, "-c", code], check=True))
            for _ in range(5)
        ]
        table[name] = statistics.median(runs)
    for name, seconds in table.items():
        print(f"{name:30}{seconds:8.2f} s", flush=True)
    return table


def script(name):
    """Return the figures of another benchmark, run as a program."""

    def run(args):
        out = OUT.with_name(f".{name}.json")
        subprocess.run([sys.executable, pathlib.Path(__file__).with_name(f"{name}.py"), "--out", out], check=True)
        figures = json.loads(out.read_text())
        out.unlink()
        return figures

    return run


PARTS = {
    "training": training,
    "growth": growth,
    "start_up": start_up,
    "forecast": script("forecast_speed"),
    "data": script("data_speed"),
    "sweep": script("sweep_speed"),
}


def _merged(old, new):
    """Return the figures of a part with those measured now in place of older ones of the same."""
    if isinstance(new, dict):
        return {**(old or {}), **new}
    races = {(race["shape"], race["batch"], -race["members"]): race for race in [*(old or []), *new]}
    return [races[key] for key in sorted(races)]


def versions():
    """Return the versions of everything that takes part."""
    found = results.versions()
    for name in NEEDS.values():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


# The page ----------------------------------------------------------------------------------------------------------


def tables(figures):
    """Return the tables of the parts that were measured, by name, as Markdown."""
    made = {}
    if "training" in figures:
        races = figures["training"]
        made |= {f"training-{name}": _training_table(races, name) for name in {race["shape"] for race in races}}
        made |= {"members": _members_table(races), "speed": _seconds_table(races)}
    if "growth" in figures:
        made["growth"] = _growth_table(figures["growth"])
    if "start_up" in figures:
        made["start-up"] = _pairs(figures["start_up"], "what", "seconds")
    if "forecast" in figures:
        plain = {name: value for name, value in figures["forecast"].items() if isinstance(value, float)}
        made["forecast"] = _pairs(plain, "forecast", "seconds")
    if "data" in figures:
        seconds = {name: value["seconds"] for name, value in figures["data"].items() if isinstance(value, dict)}
        made["data"] = _pairs(seconds, "Lorenz training data of paper size", "seconds")
    if "sweep" in figures:
        made["sweep"] = _pairs(figures["sweep"], "sweep of the quick 5.1.1", "seconds, or their ratio")
    listed = ", ".join(f"{name} {version}" for name, version in figures.get("versions", {}).items())
    return {**made, "versions": f"With {listed}."}


def _seconds_table(races):
    """Return seconds an epoch of ten members for the smallest shape, and how many times as long each takes."""
    chosen = _of_shape(races, "S")
    rows = [_batches(chosen)]
    for name, cells in _contenders(chosen).items():
        texts = [f"{row['seconds']:.2f} ({row['seconds'] / fit['seconds']:.1f}×)" if row else "" for row, fit in cells]
        rows.append([f"**{name}**" if name == "FlowMap.fit" else name, *texts])
    return results.markdown(rows)


def _of_shape(races, shape):
    """Return the races of full ensembles of a shape."""
    return [race for race in races if race["shape"] == shape and race["members"] == SHAPES[shape].members]


def _batches(races):
    return ["", *(f"batch {race['batch']:,}" for race in races)]


def _contenders(races):
    """Return each contender's rows of some races, None where it took no part, beside those of `fit`."""
    names = dict.fromkeys(name for race in races for name in race["contenders"])
    entered = [race["contenders"] for race in races]
    return {name: [(rows.get(name), rows["FlowMap.fit"]) for rows in entered] for name in names}


def _training_table(races, shape):
    """Return the rate of `fit` for ten members of a shape, and how many times as long each contender takes."""
    chosen = _of_shape(races, shape)
    rows = [[*_batches(chosen), "peak memory, MB"]]
    for name, cells in _contenders(chosen).items():
        peak = max(row["peak_mb"] for row, _ in cells if row)
        rows.append([name, *_ratios(cells), f"{peak:,.0f}"])
    return results.markdown(rows)


def _members_table(races):
    """Return the same for other ensemble sizes."""
    chosen = [race for race in races if race["members"] in MEMBERS]
    head = ["", *(f"{race['shape']}, {race['members']}" for race in chosen)]
    return results.markdown([head, *([name, *_ratios(cells)] for name, cells in _contenders(chosen).items())])


def _ratios(cells):
    """Return a contender's times over those of `fit` as texts, or the rates of `fit` itself."""
    return [
        "" if row is None else f"**{row['rate']:,.0f}**" if row is fit else f"{fit['rate'] / row['rate']:.2f}"
        for row, fit in cells
    ]


def _growth_table(growths):
    rows = [["grows", "seconds an epoch", "exponent of the last stretch"]]
    for field, values in growths.items():
        points = [(float(value), row["seconds"]) for value, row in values.items()]
        (x, a), (y, b) = points[-2:]
        rows.append(
            [
                field,
                ", ".join(f"{value}: {row['seconds']:.3f}" for value, row in values.items()),
                f"{math.log(b / a) / math.log(y / x):.2f}",
            ]
        )
    return results.markdown(rows)


def _pairs(values, left, right):
    return results.markdown([[left, right], *([name, f"{value:.2f}"] for name, value in values.items())])


def write_page(page, figures):
    """Put into a page those of the tables that it has marks for."""
    text = page.read_text()
    results.write_tables(
        page, {name: table for name, table in tables(figures).items() if results.marks(name)[0] in text}
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS, "tables"], default=[], help="default: all")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    figures = json.loads(OUT.read_text()) if OUT.exists() else {}
    for part in args.parts or PARTS:
        if part != "tables":
            figures[part] = _merged(figures.get(part), PARTS[part](args))
            figures |= {"versions": {**figures.get("versions", {}), **versions()}, "cores": os.cpu_count()}
            text = json.dumps(figures, indent=1) + "\n"
            results.replace(OUT, lambda path, text=text: path.write_text(text))
    for page in PAGES:
        write_page(page, figures)


if __name__ == "__main__":
    main()
