"""Seconds for a sweep of 24 runs of the quick 5.1.1 with two workers of one thread each, beside one after another.

    python benchmarks/sweep_speed.py [--runs 24] [--out results/sweep_speed.json]

Half of the single runs come before the two workers and half after them, so that a machine whose speed drifts disturbs
both alike. Wall times hold everything: planning, processes, kernels, TensorFlow's start.
"""

import argparse
import json
import pathlib
import tempfile
import time

from fml_tf import runs, sweeps


def measure(count):
    """Return the seconds of the two workers, and of one with the same runs."""
    sweep, seconds = sweeps.Sweep(benchmark="5.1.1", seeds=count), {"two": 0.0, "one": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        folders = {name: pathlib.Path(folder) / name for name in seconds}
        for name, workers, shard in (("one", 1, (1, 2)), ("two", 2, (1, 1)), ("one", 1, (2, 2))):
            start = time.perf_counter()
            rows = sweeps.run(sweep, folders[name], workers=workers, threads=1, shard=shard)
            seconds[name] += time.perf_counter() - start
            failed = [row["reason"] for row in rows if row["state"] != "done"]
            if failed:
                raise SystemExit(f"{len(failed)} runs failed, the first because {failed[0]}")
        alone = [runs.read_state(place)["seconds"] for place in (folders["one"] / "runs").iterdir()]
    return {
        f"{count} runs one after another, one thread": seconds["one"],
        f"{count} runs, two workers of one thread": seconds["two"],
        "ratio": seconds["two"] / seconds["one"],
        "longest of the single runs": max(alone),
        "shortest of the single runs": min(alone),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--out", type=pathlib.Path, help="write the figures to this JSON file")
    given = parser.parse_args()
    figures = measure(given.runs)
    for name, value in figures.items():
        print(f"{name:46} {value:.2f}")
    if given.out:
        given.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
