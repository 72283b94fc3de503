"""Seconds and memory to draw the paper-size Lorenz training data, beside SciPy's solve_ivp in a loop.

    python benchmarks/data_speed.py [--out results/data_speed.json]

10,000 trajectories of 10,000 entries each, of which 5 bursts of 12 entries (5.4.1) and of 22 (5.4.2, 5.4.3) are kept.
solve_ivp integrates 20 of these trajectories, one after another, to the same accuracy (DOP853, tolerances 1e-12); its
time for all is extrapolated. Each measurement runs in a process of its own, so that its peak memory is its own.
"""

import argparse
import json
import pathlib
import subprocess
import sys

CODE = {
    "bursts of 12 entries": "data.sample_bursts(problems.get('5.4.1'))",
    "bursts of 22 entries": "data.sample_bursts(problems.get('5.4.2'))",
    "solve_ivp, 20 trajectories": """[
        solve_ivp(lambda t, y: LORENZ.rhs(y), (0, times[-1]), y0, method="DOP853", rtol=1e-12, atol=1e-12, t_eval=times)
        for y0 in rng.uniform(-np.pi / 2, np.pi / 2, (20, 3))
    ]""",
}
HEAD = """
import json, resource, time
import numpy as np
from scipy.integrate import solve_ivp
from fml_tf import data, problems
from fml_tf.systems import LORENZ

rng, times = np.random.default_rng(0), np.arange(10_000) * 0.01
start = time.perf_counter()
"""
TAIL = """
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"seconds": time.perf_counter() - start, "peak_mb": peak}))
"""


def measure(code):
    """Run one line in a process of its own; return its seconds and peak memory."""
    done = subprocess.run([sys.executable, "-c", HEAD + code + TAIL], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, help="write the figures to this JSON file")
    out = parser.parse_args().out
    figures = {name: measure(code) for name, code in CODE.items()}
    one_by_one = figures["solve_ivp, 20 trajectories"]["seconds"] * 10_000 / 20
    figures["solve_ivp, 10,000 trajectories, extrapolated"] = {"seconds": one_by_one}
    figures["times faster"] = one_by_one / figures["bursts of 12 entries"]["seconds"]
    for name, values in figures.items():
        shown = f"{values:.0f}" if isinstance(values, float) else ", ".join(f"{k} {v:.0f}" for k, v in values.items())
        print(f"{name:46} {shown}")
    if out:
        out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
