"""The command line: `python -m fml_tf`, or `fml`."""

import collections
import errno
import functools
import pathlib
import sys

import click

from fml_tf import problems, results, runs, sweeps


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main():
    """Flow map learning: run the paper's benchmarks, and sweeps over their parameters."""


@main.command()
@click.argument("benchmark")
@click.option("--preset", default="standard", show_default=True, help="paper, standard, quick or skip")
@click.option(
    "-p", "--parameter", "parameters", nargs=2, multiple=True, metavar="NAME VALUE", help="a parameter of the notebook"
)
@click.option("--out", "out_dir", type=click.Path(path_type=pathlib.Path), help="folder for the results")
def run(benchmark, preset, parameters, out_dir):
    """Run a benchmark's notebook through papermill, for instance 5.1.1."""
    try:
        notebook = results.notebook_of(benchmark)
        for name in ("preset", "out_dir"):
            if name in dict(parameters):
                raise ValueError(f"give {name} with --{'preset' if name == 'preset' else 'out'}.")
        values = runs.check_parameters(runs.declared(notebook), dict(parameters))
        folder = results.run_folder(problems.of_run(benchmark, preset, values), out_dir).resolve()
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    executed = folder / notebook.name
    _execute(notebook, executed, {**values, "preset": preset, "out_dir": str(folder)})
    _report(folder, executed)


@main.command()
@click.argument("names", nargs=-1)
@click.option("--force", is_flag=True, help="execute even what is not stale")
def notebooks(names, force):
    """Execute the committed notebooks that are stale, one at a time: the benchmarks' with the standard preset, then
    those on topics, for instance lorenz_judged."""
    for name in names or [*problems.PAPER, *results.topics()]:
        try:
            notebook = results.notebook_of(name)
        except ValueError as error:
            if names:
                raise click.UsageError(str(error)) from error
            click.echo(f"{name}: {error}")
            continue
        if not force and not results.is_stale(name):
            click.echo(f"{name}: up to date")
            continue
        click.echo(f"{name}: executing {notebook.name}")
        topic = name in results.topics()
        folder = results.run_folder(name if topic else problems.get(name)).resolve()
        executed = folder / notebook.name
        _execute(notebook, executed, {})
        if topic:
            results.commit_topic(name, executed)
            continue
        results.commit_run(name, executed, folder)
        _report(folder, executed)


@main.command("results")
def gather_results():
    """Gather the committed results into the README's table."""
    try:
        click.echo(f"table written to {_shown(results.update_readme())}")
    except ValueError as error:
        raise click.UsageError(str(error)) from error


@main.command()
@click.argument("file", type=click.Path(path_type=pathlib.Path))
@click.option(
    "--out", "out_dir", type=click.Path(path_type=pathlib.Path), help="folder of the sweep [runs/<name of FILE>]"
)
@click.option("--workers", type=click.IntRange(1), help="runs at a time [one a core]")
@click.option("--threads", type=click.IntRange(1), help="threads of each run [its share of the cores]")
@click.option(
    "--dask", metavar="ADDRESS", help="run on a dask cluster, for instance tcp://host:8786; 'local' starts one here"
)
@click.option("--shard", metavar="I/N", default="1/1", show_default=True, help="run only the I-th of N shares")
@click.option("--retry", is_flag=True, help="run again what had failed")
def sweep(file, out_dir, workers, threads, dask, shard, retry):
    """Run a notebook for many sets of parameters, as a YAML FILE says.

    Each run has a process of its own. After an interruption call it again: only what is missing is run. Exit code 0
    means that all runs are done, 1 that some failed, 130 that it was interrupted.
    """
    try:
        share = tuple(int(part) for part in shard.split("/"))
        if len(share) != 2:
            raise ValueError
    except ValueError:
        raise click.UsageError(f"--shard {shard!r}: expected I/N, for instance 1/4.") from None
    folder = out_dir or results.run_path(file.stem)
    try:
        rows = sweeps.run(
            sweeps.read(file), folder, workers=workers, threads=threads, dask=dask, shard=share, retry=retry,
            echo=click.echo,
        )  # fmt: skip
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        what = f"{error.strerror}: {error.filename or folder}"
        if error.errno != errno.ENOSPC:
            raise click.UsageError(f"{what}: give another --out.") from error
        raise click.ClickException(f"{what}. What was done is kept: make room, and call again.") from error
    except KeyboardInterrupt:
        click.echo("interrupted: call again to run what is missing", err=True)
        sys.exit(130)
    sys.exit(_show_states(rows, folder))


def _show_states(rows, folder):
    """Say how far the runs of a sweep have come, and why some failed; return the exit code."""
    counts = collections.Counter(row["state"] for row in rows)
    click.echo(", ".join(f"{count} {state}" for state, count in counts.items()) + f"; in {_shown(folder)}")
    for row in rows:
        if row["state"] == "failed":
            place = _shown(pathlib.Path(folder) / "runs" / row["id"])
            click.echo(f"failed: {sweeps.describe(row)}: {row['reason']} ({place})", err=True)
    return int(counts["done"] < len(rows))


@main.command()
@click.argument("folder", type=click.Path(path_type=pathlib.Path))
def status(folder):
    """Say how far the sweep in FOLDER has come; exit code 0 if all of it is done."""
    try:
        sys.exit(_show_states(sweeps.rows(folder), folder))
    except ValueError as error:
        raise click.UsageError(str(error)) from error


@main.command()
@click.argument("folder", type=click.Path(path_type=pathlib.Path))
@click.option("--metric", help="what the figure shows [valid_prediction_time or mean_error]")
@click.option("--out", type=click.Path(path_type=pathlib.Path), help="folder for the report [FOLDER]")
def report(folder, metric, out):
    """Turn the results of the sweep in FOLDER into tables and a figure."""
    from fml_tf import reports  # draws

    try:
        for path in reports.write(folder, metric=metric, out=out):
            click.echo(_shown(path))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise click.UsageError(f"{error.strerror}: {error.filename}: give another --out.") from error


@main.command("list")
def list_benchmarks():
    """List the paper's benchmarks with their key parameters."""
    click.echo(f"{'':7}{'observed':>9}{'n_M':>5}{'K':>4}{'nodes':>16}{'steps':>8}  title")
    for name, record in problems.PAPER.items():
        observed = f"{len(record.observed)} of {len(record.system.state_names)}"
        nodes = " × ".join(map(str, record.hidden))
        numbers = f"{record.memory_steps:5}{record.multi_steps:4}{nodes:>16}{record.horizon:8}"
        click.echo(f"{name:7}{observed:>9}{numbers}  {record.title}")
    click.echo("\npresets: paper, standard (as committed), quick (half a minute), skip (with a linear skip path)")


@main.command()
@click.argument("benchmark")
@click.option("--model", type=click.Choice(["network", "polynomial"]), default="network", show_default=True)
@click.option("--tolerance", type=float, default=0.05, show_default=True, help="distance of forecasts that agree")
@click.option("--steps", type=int, default=200, show_default=True, help="steps of the forecasts that are compared")
def memory(benchmark, model, tolerance, steps):
    """Choose the number of memory steps of a BENCHMARK by resolution independence, for instance 5.2.2."""
    from fml_tf import data
    from fml_tf import memory as choice  # TensorFlow

    try:
        problem = problems.get(benchmark, n_test=1000, memory_steps=0)
        spin_up = 20.0 if problem.exponent else 0.0  # on the attractor
        length = max(choice.GRID) + max(steps, problem.multi_steps + 1)
        trajectories = data.sample_trajectories(problem, seed=5, steps=length, spin_up=spin_up)
        noise = 1e-5 if problem.exponent else 0.0
        polynomial = functools.partial(choice.fit_polynomial, degree=5, most_axes=5, noise=noise)
        found = choice.choose_memory(
            trajectories,
            time_step=problem.time_step,
            steps=steps,
            n_bursts=10,
            tolerance=tolerance,
            train=polynomial if model == "polynomial" else None,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    click.echo(f"{'n_M':>4}{'error':>10}{'change':>10}")
    for row in found.table:
        change = "" if row["change"] is None else f"{row['change']:.1e}"
        click.echo(f"{row['memory_steps']:4}{row['error']:10.1e}{change:>10}")
    if found.memory_steps is None:
        click.echo(
            f"no two forecasts agree to {tolerance:g}: raise --tolerance, or see notebooks/topics/choosing_memory.ipynb"
        )
        sys.exit(1)
    click.echo(f"n_M = {found.memory_steps}, memory time {found.memory_time:g}")


@main.command()
def info():
    """Say which versions and devices are in use, and check the arithmetic against NumPy."""
    from fml_tf import devices

    for name, value in devices.describe().items():
        click.echo(f"{name:18}{value}")
    for line in devices.advice():
        click.echo(f"\n{line}")
    difference = devices.check()
    good = difference < 1e-5
    click.echo(f"\nself-check: a forecast differs from NumPy's by {difference:.1e}: {'good' if good else 'NOT good'}")
    sys.exit(int(not good))


def _execute(notebook, executed, parameters):
    """Run a notebook through papermill, or say which cell failed and where the partial notebook lies."""
    import papermill  # slow to import

    try:
        runs.execute(notebook, executed, parameters)
    except papermill.PapermillExecutionError as error:
        click.echo(f"cell [{error.exec_count}] of {notebook.name} failed: {error.ename}: {error.evalue}", err=True)
        click.echo(f"the partial notebook: {_shown(executed)}", err=True)
        sys.exit(1)


def _report(folder, executed):
    values = results.read_metrics(folder)
    steps, problem = len(values["errors"]), values["parameters"]
    click.echo(
        f"mean ℓ2 error  {values['mean_error']:.2e} over {steps} steps and {problem['n_test']} test trajectories"
    )
    click.echo(f"notebook       {_shown(executed)}")
    click.echo(f"figures        {', '.join(sorted(f.name for f in folder.glob('*.png')))} in {_shown(folder)}")
    click.echo(f"metrics        {_shown(folder / 'metrics.json')}")


def _shown(path):
    """Return a path relative to the current folder where it lies below it."""
    path = pathlib.Path(path)
    return path.relative_to(pathlib.Path.cwd()) if path.is_relative_to(pathlib.Path.cwd()) else path


if __name__ == "__main__":
    main()
