"""What the training benchmark times: this package, and the same training as users of other tools would write it.

Each function of `CONTENDERS` takes bursts `(sample, burst_length, state)` and a shape, and returns a function that
trains one epoch and returns its seconds, and how many members that epoch trained. As a program it is one contender in
a process of its own, which answers each line on its input with the seconds of one epoch:

    python benchmarks/contenders.py "FlowMap.fit" --batch 1000 < /dev/null
"""

import argparse
import dataclasses
import itertools
import json
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Shape:
    """Hold the size of a training: the paper's symbols, by their names in the package."""

    state_dim: int = 2
    memory_steps: int = 0
    hidden: tuple[int, ...] = (10, 10, 10)
    multi_steps: int = 10
    members: int = 10
    samples: int = 50_000
    batch: int = 1000

    @property
    def burst_length(self):
        return self.memory_steps + self.multi_steps + 2

    def bursts(self):
        """Return smooth random trajectories: sums of slow waves."""
        rng = np.random.default_rng(0)
        phase, speed = rng.uniform(0, 6, (2, self.samples, 1, self.state_dim))
        return np.sin(phase + 0.02 * speed * np.arange(self.burst_length)[:, None]).astype("float32")

    def flops(self):
        """Return the floating-point operations of matrix products for one member-sample, forward and backward."""
        widths = [(self.memory_steps + 1) * self.state_dim, *self.hidden, self.state_dim]
        products = sum(a * b for a, b in itertools.pairwise(widths))
        return 6 * products * (self.multi_steps + 1)


def timed(run):
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def median_seconds(run, repeats):
    """Return the median seconds of a call, after one that compiles."""
    run()
    return statistics.median(timed(run) for _ in range(repeats))


def keras_epoch(model, bursts, batch):
    """Return a function that fits two epochs and returns the seconds of the second, an epoch within a longer fit."""
    from fml_tf._tensorflow import keras

    class Clock(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.start = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            self.seconds = time.perf_counter() - self.start

    clock = Clock()

    def epoch():
        model.fit(bursts, batch_size=batch, epochs=2, verbose=0, callbacks=[clock])
        return clock.seconds

    return epoch


# This package ------------------------------------------------------------------------------------------------------


def build(shape):
    """Return an ensemble of a shape, compiled."""
    from fml_tf import models
    from fml_tf._tensorflow import keras

    model = models.FlowMap(shape.state_dim, memory_steps=shape.memory_steps, hidden=shape.hidden, members=shape.members)
    model.compile(keras.optimizers.Adam(1e-3))
    return model


def flow_map(bursts, shape):
    """`FlowMap.fit`, all members at once, callbacks and order of the samples included."""
    return keras_epoch(build(shape), bursts, shape.batch), shape.members


def compiled_step(bursts, shape):
    """The compiled programs of `fit` alone, with nothing around them."""
    from fml_tf import _engines, models

    model = build(shape)
    feed = models._Feed(bursts, shape.batch)
    order = feed.order(0, model.member_ids, 0)

    def epoch():
        with _engines.borrowed_parts(model) as parts:

            def once():
                _engines.run_parts(parts, feed.bursts, *order)
                for engine, _ in parts:
                    engine.loss_tracker.total.numpy()  # waits for the end

            return timed(once)

    return epoch, shape.members


# Others ------------------------------------------------------------------------------------------------------------


def _plain_keras(bursts, shape, jit_compile):
    import plain_keras

    model = plain_keras.build(
        bursts, memory_steps=shape.memory_steps, hidden=shape.hidden, activation="tanh", jit_compile=jit_compile
    )
    return keras_epoch(model, bursts, shape.batch), 1


def plain_keras_graph(bursts, shape):
    """Keras as its tutorials write it: `Dense` layers, a custom `train_step`, Keras's own loop; one member."""
    return _plain_keras(bursts, shape, False)


def plain_keras_xla(bursts, shape):
    """The same, compiled with XLA."""
    return _plain_keras(bursts, shape, True)


def _jax(bursts, shape, lanes):
    import jax
    import jax.numpy as jnp

    d, width = shape.state_dim, (shape.memory_steps + 1) * shape.state_dim
    sizes, rng = [width, *shape.hidden, d], np.random.default_rng(0)
    data = jnp.asarray(bursts.reshape(len(bursts), -1))
    layers = [
        (jnp.asarray(rng.normal(size=(shape.members, i, o)) / i**0.5, "float32"), jnp.zeros((shape.members, o)))
        for i, o in itertools.pairwise(sizes)
    ]
    if lanes:
        layers = [(weight.swapaxes(1, 2), bias[..., None]) for weight, bias in layers]

    def loss(layers, batch):  # of one member: (batch, feature), or (feature, batch) in lanes
        axis = 0 if lanes else 1
        batch = batch.T if lanes else batch
        window, targets = jnp.split(batch, [width], axis)
        total = 0.0
        for target in jnp.split(targets, shape.multi_steps + 1, axis):
            hidden = window
            for place, (weight, bias) in enumerate(layers):
                hidden = weight @ hidden + bias if lanes else hidden @ weight + bias
                hidden = jnp.tanh(hidden) if place < len(layers) - 1 else hidden
            state = jnp.split(window, [width - d], axis)[1] + hidden
            total += jnp.sum((state - target) ** 2)
            window = jnp.concatenate([jnp.split(window, [d], axis)[1], state], axis)
        return total / (shape.batch * (shape.multi_steps + 1))

    def step(carry, index):
        layers, first, second, count = carry
        slopes = jax.vmap(jax.grad(loss))(layers, data[index])
        count = count + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, slopes)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, slopes)
        rate = 1e-3 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        layers = jax.tree.map(lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-7), layers, first, second)
        return (layers, first, second, count), None

    run = jax.jit(lambda carry, order: jax.lax.scan(step, carry, order)[0])
    zeros = jax.tree.map(jnp.zeros_like, layers)
    carry = [(layers, zeros, zeros, jnp.zeros(()))]
    steps = len(bursts) // shape.batch

    def once():
        orders = np.stack([np.random.default_rng(m).permutation(len(bursts)) for m in range(shape.members)])
        order = orders[:, : steps * shape.batch].reshape(shape.members, steps, shape.batch).swapaxes(0, 1)
        carry[0] = jax.block_until_ready(run(carry[0], order))

    return lambda: timed(once), shape.members


def jax_rows(bursts, shape):
    """JAX, `vmap` over members and `scan` over the steps of an epoch, in its usual layout (batch, feature)."""
    return _jax(bursts, shape, False)


def jax_lanes(bursts, shape):
    """The same in the layout of this package, (feature, batch)."""
    return _jax(bursts, shape, True)


def _torch(bursts, shape, dtype):
    import torch

    width = (shape.memory_steps + 1) * shape.state_dim
    sizes, layers = [width, *shape.hidden], []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.Tanh()]
    network = torch.nn.Sequential(*layers, torch.nn.Linear(sizes[-1], shape.state_dim)).to(dtype)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    entries = torch.as_tensor(bursts.reshape(len(bursts), -1), dtype=dtype)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(entries), batch_size=shape.batch, shuffle=True)

    def once():
        for (batch,) in loader:
            optimizer.zero_grad()
            window, loss = batch[:, :width], 0.0
            for target in batch[:, width:].split(shape.state_dim, dim=1):
                state = window[:, -shape.state_dim :] + network(window)
                loss = loss + ((state - target) ** 2).sum(dim=1).mean()
                window = torch.cat([window[:, shape.state_dim :], state], dim=1)
            (loss / (shape.multi_steps + 1)).backward()
            optimizer.step()

    return lambda: timed(once), 1


def torch_float32(bursts, shape):
    """PyTorch as such code is usually written: a `DataLoader`, `Linear` layers, Adam; one member, float32."""
    import torch

    return _torch(bursts, shape, torch.float32)


def torch_float64(bursts, shape):
    """The same in float64, as the method's own published code has it."""
    import torch

    return _torch(bursts, shape, torch.float64)


# Limits ------------------------------------------------------------------------------------------------------------


def limit_kernel(bursts, shape):
    """One fused kernel in C, forward and backward, one member: what the cores can do for the smallest shape."""
    own = dataclasses.replace(Shape(), members=shape.members, samples=shape.samples, batch=shape.batch)
    if shape != own:
        raise SystemExit("the limit kernel is written for one shape: state 2, no memory, 3 x 10 nodes, K = 10")
    if shutil.which("gcc") is None:
        raise SystemExit("the limit kernel needs gcc")
    binary = pathlib.Path(tempfile.mkdtemp()) / "limit_kernel"
    flags = ["-O3", "-march=native", "-ffast-math", "-fopenmp"]
    subprocess.run(["gcc", *flags, HERE / "limit_kernel.c", "-o", binary, "-lm"], check=True)

    def epoch():
        done = subprocess.run([binary, str(shape.samples), "9"], capture_output=True, text=True, check=True)
        return float(done.stdout)

    return epoch, 1


def matrix_products(bursts, shape):
    """The same number of operations as one large matrix product in NumPy, one member: the limit of large shapes."""
    size = 2048
    a, b = np.random.default_rng(0).normal(size=(2, size, size)).astype("float32")
    needed = shape.flops() * shape.samples / (2 * size**3)
    return lambda: needed * min(timed(lambda: a @ b) for _ in range(5)), 1


CONTENDERS = {
    "FlowMap.fit": flow_map,
    "compiled step alone": compiled_step,
    "plain Keras": plain_keras_graph,
    "plain Keras, XLA": plain_keras_xla,
    "JAX": jax_rows,
    "JAX, features before batch": jax_lanes,
    "PyTorch, float32": torch_float32,
    "PyTorch, float64": torch_float64,
    "limit kernel": limit_kernel,
    "large matrix products": matrix_products,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contender", choices=CONTENDERS)
    for field in dataclasses.fields(Shape):
        kind = dict(nargs="+") if field.name == "hidden" else {}
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, default=field.default, **kind)
    given = vars(parser.parse_args())
    name = given.pop("contender")
    shape = Shape(**{**given, "hidden": tuple(given["hidden"])})
    epoch, members = CONTENDERS[name](shape.bursts(), shape)
    epoch()  # compiles
    print(json.dumps({"members": members}), flush=True)
    for _ in sys.stdin:
        print(json.dumps({"seconds": epoch()}), flush=True)
    print(json.dumps({"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}), flush=True)


if __name__ == "__main__":
    main()
