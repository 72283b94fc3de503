"""Time a long forecast side by side in one run: `forecast`, a Python loop over the compiled step, `predict` in a loop.

The loops are timed over fewer steps and scaled up. A second forecast of another length shows that none recompiles.

    python benchmarks/forecast_speed.py --steps 10000
"""

import argparse
import json
import pathlib
import time

import numpy as np
from contenders import median_seconds

from fml_tf import models, results
from fml_tf._tensorflow import keras, tf


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in dict(steps=10_000, trajectories=100, members=10, memory=0, state=2, few=200).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--hidden", type=int, nargs="+", default=[10, 10, 10])
    parser.add_argument("--out", type=pathlib.Path, help="file for the figures, as JSON")
    args = parser.parse_args()

    model = models.FlowMap(args.state, memory_steps=args.memory, hidden=args.hidden, members=args.members)
    model.compile("adam")
    for layer in model.dense_layers[-1:]:  # small increments, so that an untrained forecast stays in range
        layer.kernel.assign(layer.kernel * 1e-3)
    shape = (args.trajectories, args.memory + 1, args.state)
    history = np.random.default_rng(0).uniform(-1, 1, shape).astype("float32")

    start = time.perf_counter()
    model.forecast(history, 1)
    compiling = time.perf_counter() - start
    start = time.perf_counter()
    model.forecast(history, args.steps + 123)
    another = time.perf_counter() - start

    step = tf.function(lambda window: model(window), jit_compile=True)

    def python_loop():
        window = tf.constant(history)
        for _ in range(args.few):
            window = tf.concat([window[:, 1:], step(window)[:, None]], axis=1)
        return window.numpy()

    def predict_loop(call, few):
        window = history
        for _ in range(few):
            window = np.concatenate([window[:, 1:], call(window)[:, None]], axis=1)

    class Step(keras.Model):
        def call(self, window):
            return model.call(window)

    keras_step = Step()
    few = max(1, args.few // 10)
    seconds = {
        "forecast": median_seconds(lambda: model.forecast(history, args.steps), 5),
        "loop over compiled step": median_seconds(python_loop, 5) * args.steps / args.few,
        "Keras predict in a loop": median_seconds(
            lambda: predict_loop(lambda w: keras_step.predict(w, verbose=0), few), 3
        )
        * args.steps
        / few,
    }
    print(f"{args.steps:,} steps, {args.trajectories} trajectories, {args.members} members: medians")
    for name, value in seconds.items():
        print(f"{name:26}{value:9.2f} s{value / seconds['forecast']:10.1f} x forecast")
    print(f"compiling, once            {compiling:8.2f} s; then {args.steps + 123:,} steps {another:.2f} s")
    if args.out:
        extra = {"compile": compiling, "another_length": another, "versions": results.versions()}
        args.out.write_text(json.dumps({**seconds, **extra}, indent=1) + "\n")


if __name__ == "__main__":
    main()
