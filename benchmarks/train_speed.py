"""Time training side by side in one run: this package, plain Keras, the bare compiled step, and what the cores can do.

All see 50,000 bursts of the same shape; ten members count as ten trainings. A round times one epoch of each contender
in turn, so that a noisy machine disturbs all alike; medians over the rounds are printed and written as JSON.

    python benchmarks/train_speed.py --batch 1000 200
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import tempfile
import time

import numpy as np
import plain_keras

from fml_tf import _engines, models, results
from fml_tf.models import keras

HERE = pathlib.Path(__file__).parent


class Clock(keras.callbacks.Callback):
    """Keep the seconds of the last epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds = time.perf_counter() - self.start


def flow_map(bursts, batch, args):
    """Return a compiled ensemble, and functions that time one epoch: through `fit`, and of the compiled step alone."""
    model = models.FlowMap(
        args.state, memory_steps=args.memory, hidden=args.hidden, activation=args.activation, members=args.members
    )
    model.compile(keras.optimizers.Adam(1e-3))
    clock = Clock()

    def fit():
        model.fit(bursts, batch_size=batch, verbose=0, callbacks=[clock])
        return clock.seconds

    feed = models._Feed(bursts, batch)
    order = feed.order(0, model.member_ids, 0)

    def step():
        with _engines.borrowed(model) as engine:
            run = _engines.program(engine, "_train_epoch")
            start = time.perf_counter()
            run(feed.bursts, *order)
            engine.loss_tracker.total.numpy()  # waits for the end
            return time.perf_counter() - start

    return fit, step


def plain(bursts, batch, args, jit_compile):
    """Return a function that times an epoch of plain Keras, one member, times the number of members."""
    model = plain_keras.build(
        bursts, memory_steps=args.memory, hidden=args.hidden, activation=args.activation, jit_compile=jit_compile
    )
    clock = Clock()

    def fit():
        model.fit(bursts, batch_size=batch, verbose=0, callbacks=[clock])
        return clock.seconds * args.members

    return fit


def limit(args):
    """Return a function that times the fused kernel, or None without gcc or for another shape than its own."""
    shape = (args.memory, args.state, tuple(args.hidden), args.multi, args.activation)
    if shutil.which("gcc") is None or shape != (0, 2, (10, 10, 10), 10, "tanh"):
        return None
    binary = pathlib.Path(tempfile.mkdtemp()) / "limit_kernel"
    flags = ["-O3", "-march=native", "-ffast-math", "-fopenmp"]
    subprocess.run(["gcc", *flags, HERE / "limit_kernel.c", "-o", binary, "-lm"], check=True)

    def kernel():
        done = subprocess.run([binary, str(args.samples), "9"], capture_output=True, text=True, check=True)
        return float(done.stdout) * args.members

    return kernel


def measure(batch, args):
    """Return the median seconds an epoch of every contender at one batch size."""
    shape = (args.samples, args.memory + args.multi + 2, args.state)
    bursts = np.random.default_rng(0).uniform(-1, 1, shape).astype("float32")
    fit, step = flow_map(bursts, batch, args)
    contenders = {
        "FlowMap.fit": fit,
        "compiled step alone": step,
        "plain Keras": plain(bursts, batch, args, False),
        "plain Keras, XLA": plain(bursts, batch, args, True),
        "limit kernel": limit(args),
    }
    contenders = {name: run for name, run in contenders.items() if run}
    for run in contenders.values():
        run()  # compiles
    seconds = {name: [] for name in contenders}
    for _ in range(args.rounds):
        for name, run in contenders.items():
            seconds[name].append(run())
    return {name: float(np.median(values)) for name, values in seconds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1000, 200])
    for name, default in dict(samples=50_000, members=10, memory=0, multi=10, state=2, rounds=11).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--hidden", type=int, nargs="+", default=[10, 10, 10])
    parser.add_argument("--activation", default="tanh")
    parser.add_argument("--out", type=pathlib.Path, help="file for the figures, as JSON")
    args = parser.parse_args()
    table = {"settings": {k: v for k, v in vars(args).items() if k != "out"}, "versions": results.versions()}
    for batch in args.batch:
        medians = measure(batch, args)
        table[f"batch {batch}"] = medians
        print(f"\nbatch {batch}, {args.members} members, {args.samples:,} bursts: median of {args.rounds} rounds")
        print(f"{'':22}{'s an epoch':>11}{'member-samples/s':>18}{'fit is faster by':>18}")
        for name, seconds in medians.items():
            rate = args.members * args.samples / seconds
            print(f"{name:22}{seconds:11.3f}{rate:18,.0f}{seconds / medians['FlowMap.fit']:17.2f}x", flush=True)
    if args.out:
        args.out.write_text(json.dumps(table, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
