"""The command line: `python -m fml_tf`, or `fml`."""

import dataclasses
import pathlib
import sys

import click

from fml_tf import problems, results


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main():
    """Flow map learning: run the paper's benchmarks."""


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
        values = _parameters(notebook, parameters)
        fields = {field.name for field in dataclasses.fields(problems.Problem)}
        problem = problems.get(benchmark, preset, **{name: v for name, v in values.items() if name in fields})
        folder = results.run_folder(problem, out_dir).resolve()
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


def _execute(notebook, executed, parameters):
    """Run a notebook through papermill, or say which cell failed and where the partial notebook lies."""
    import papermill  # slow to import, and needed here alone

    try:
        papermill.execute_notebook(
            notebook,
            executed,
            parameters,
            kernel_name="python3",
            cwd=notebook.parent,
            extra_arguments=["--log-level=CRITICAL"],
        )
    except papermill.PapermillExecutionError as error:
        click.echo(f"cell [{error.exec_count}] of {notebook.name} failed: {error.ename}: {error.evalue}", err=True)
        click.echo(f"the partial notebook: {_shown(executed)}", err=True)
        sys.exit(1)


def _parameters(notebook, given):
    """Return -p NAME VALUE pairs as values of the types that the notebook's parameters cell declares."""
    import papermill

    declared = papermill.inspect_notebook(notebook) if given else {}
    values = {}
    for name, text in given:
        problems.check_known("parameter", name, declared)
        if name in ("preset", "out_dir"):
            raise ValueError(f"give {name} with --{'preset' if name == 'preset' else 'out'}.")
        kind = {"int": int, "float": float}.get(declared[name]["inferred_type_name"], str)
        try:
            values[name] = kind(text)
        except ValueError as error:
            raise ValueError(f"parameter {name}={text!r}: expected {kind.__name__}.") from error
    return values


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
