"""Time the compiled training epoch on a machine that has JAX but no TensorFlow: a GPU server, say.

`export` writes the epoch's program as StableHLO, for shapes S, M, L and several batches; `run` compiles these files
through JAX and times them on its default device, beside what that device does in large matrix products. The programs
are those that `FlowMap.fit` runs, of ten members and ten steps each.

    python benchmarks/hlo_speed.py export FOLDER      # needs this package
    python benchmarks/hlo_speed.py run FOLDER         # needs jax, numpy and this folder alone
"""

import argparse
import dataclasses
import json
import pathlib
import re
import time

import contenders
import numpy as np

BATCHES, STEPS = (1000, 5000, 50_000), 10


def export(folder, batches, shapes):
    """Write one StableHLO file a shape and batch, and what `run` must know of each."""
    import speed

    from fml_tf import _engines, models

    folder.mkdir(parents=True, exist_ok=True)
    programs = {}
    for name in shapes:
        for batch in batches:
            shape = dataclasses.replace(speed.SHAPES[name], batch=batch, samples=STEPS * batch)
            model = contenders.build(shape)
            feed = models._Feed(shape.bursts(), batch)
            order = feed.order(0, model.member_ids, 0)
            with _engines.borrowed(model) as engine:
                program = _engines.program(engine, "_train_epoch")
                text = program.experimental_get_compiler_ir(feed.bursts, *order)(stage="stablehlo")
            path = folder / f"{name}_{batch}.mlir"
            path.write_text(plain(text))
            programs[path.name] = {
                "shape": name,
                "batch": batch,
                "members": shape.members,
                "steps": STEPS,
                "flops": shape.flops() * batch * shape.members,
            }
            print(f"{path}: {path.stat().st_size / 1e3:.0f} kB", flush=True)
    (folder / "programs.json").write_text(json.dumps(programs, indent=1) + "\n")


def plain(text):
    """Return a module without the attributes of TensorFlow's own dialect, which JAX does not know."""
    text = re.sub(r"^(module @[\w.]+) attributes \{.*\} \{$", r"\1 {", text, flags=re.M)
    name = re.search(r"^module @([\w.]+)", text, flags=re.M)[1]
    return text.replace(f"module @{name}", "module @epoch", 1)


def arguments(text, samples):
    """Return arguments for the main function of a module: small random numbers, and places among the samples."""
    signature = re.search(r"func\.func (?:public )?@main\((.*?)\)\s*->", text, flags=re.S)[1]
    values, rng = [], np.random.default_rng(0)
    for kind in re.findall(r"%[\w.]+: tensor<([^>]+)>", signature):
        *sizes, dtype = kind.split("x")
        sizes = tuple(map(int, sizes))
        whole = {"i32": "int32", "i64": "int64"}.get(dtype)
        if whole:
            values.append(np.asarray(rng.integers(samples, size=sizes) if sizes else 0, whole))
        else:
            values.append(np.asarray(0.1 * rng.random(sizes), {"f32": "float32", "f64": "float64"}[dtype]))
    return values


def run(folder, repeats):
    """Compile each file through JAX and print the seconds of one training step, and the rate it stands for."""
    import jax

    device = jax.devices()[0]
    jax.config.update("jax_enable_x64", True)  # the count of steps is a 64-bit integer
    size = 8192 if device.platform != "cpu" else 2048
    square = jax.numpy.ones((size, size), "float32")
    product = jax.jit(lambda a: a @ a)
    peak = 2 * size**3 / contenders.median_seconds(lambda: jax.block_until_ready(product(square)), repeats)
    print(f"{device.device_kind}: {peak / 1e9:,.0f} GFLOP/s in a matrix product of {size} x {size}, float32")
    rows = []
    for name, facts in json.loads((folder / "programs.json").read_text()).items():
        text = (folder / name).read_text()
        start = time.perf_counter()
        executable = compiled(device, text)
        compiling = time.perf_counter() - start
        values = [jax.device_put(value, device) for value in arguments(text, facts["steps"] * facts["batch"])]

        def once(executable=executable, values=values):
            for output in executable.execute(values):
                output.block_until_ready()

        seconds = contenders.median_seconds(once, repeats) / facts["steps"]
        rate = facts["members"] * facts["batch"] / seconds
        share = facts["flops"] / seconds / peak
        rows.append({**facts, "seconds": seconds, "rate": rate, "share_of_peak": share, "compiling": compiling})
        print(
            f"{facts['shape']}, batch {facts['batch']:6,}: {seconds * 1e3:9.3f} ms a step, "
            f"{rate:14,.0f} member-samples/s, {share:6.1%} of the matrix products' rate, compiled in {compiling:.0f} s",
            flush=True,
        )
    return {"device": device.device_kind, "jax": jax.__version__, "peak": peak, "programs": rows}


def compiled(device, text):
    """Compile a StableHLO module for a device."""
    from jax._src.lib import xla_client  # no public door leads to a program that JAX did not trace

    client, options = device.client, xla_client.CompileOptions()
    if hasattr(client, "compile_and_load"):
        devices = xla_client.DeviceList((device,))
        return client.compile_and_load(text.encode(), devices, options)
    return client.compile(text, options)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["export", "run"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--shapes", nargs="+", default=["S", "M", "L"])
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out", type=pathlib.Path, help="file for the figures, as JSON")
    args = parser.parse_args()
    if args.what == "export":
        export(args.folder, args.batches, args.shapes)
        return
    figures = run(args.folder, args.repeats)
    if args.out:
        args.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
