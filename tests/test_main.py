"""The command line: what it runs, and what it refuses before running anything."""

import pathlib
import re
import shutil

import nbformat
import pytest
from click.testing import CliRunner

from fml_tf import __main__ as cli
from fml_tf import problems, results


@pytest.fixture
def invoke():
    """Call the command line in this process and return its result."""
    return lambda *arguments: CliRunner().invoke(cli.main, [str(a) for a in arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "5.9.9"], "unknown benchmark '5.9.9'"),
        (["run", "5.1.1", "--preset", "fast"], "unknown preset 'fast'"),
        (["run", "5.1.1", "-p", "epoch", "3"], "unknown parameter 'epoch'. Did you mean 'epochs'?"),
        (["run", "5.1.1", "-p", "epochs", "many"], "parameter epochs='many': expected int"),
        (["run", "5.1.1", "-p", "learning_rate", "fast"], "expected a finite float"),
        (["run", "5.1.1", "-p", "preset", "quick"], "give preset with --preset"),
        (["run", "5.1.1", "-p", "epochs", "-3"], "epochs=-3: expected a whole number"),
        (["run", "5.1.1", "-p", "n_bursts", "500"], "bursts do not fit a trajectory"),
        (["run", "5.1.1", "--out", "/dev/null/x"], "give another out_dir"),
        (["notebooks", "5.9.9"], "unknown benchmark"),
    ],
)
def test_bad_calls_are_refused_with_exit_code_2(invoke, arguments, message):
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


def test_parameters_reach_the_notebook_in_the_declared_types(invoke, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(cli.runs, "execute", lambda notebook, executed, parameters: given.append(parameters))
    monkeypatch.setattr(cli, "_report", lambda *_: None)
    options = ["-p", "epochs", "3", "-p", "learning_rate", "1e-4", "-p", "activation", "gelu", "--out", tmp_path]
    assert invoke("run", "5.1.1", "--preset", "quick", *options).exit_code == 0
    expected = {"epochs": 3, "learning_rate": 1e-4, "activation": "gelu", "preset": "quick", "out_dir": str(tmp_path)}
    assert given == [expected]


def test_the_benchmarks_are_listed_with_their_key_parameters(invoke):
    done = invoke("list")
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert [line.split()[0] for line in lines[1:12]] == list(problems.PAPER)
    assert lines[8].split()[:10] == ["5.4.1", "3", "of", "3", "0", "10", "30", "×", "30", "×"]


def test_info_says_what_is_used_and_checks_it(invoke, monkeypatch):
    from fml_tf import devices

    done = invoke("info")
    assert done.exit_code == 0, done.output
    for name in ("tensorflow", "devices", "threads", "XLA"):
        assert re.search(rf"^{name} +\S", done.output, re.MULTILINE)
    assert re.search(r"differs from NumPy's by \d\.\de-0[678]: good", done.output)
    monkeypatch.setattr(devices, "check", lambda: 0.5)
    assert invoke("info").exit_code == 1


def test_memory_is_chosen_as_the_theory_says(invoke):
    done = invoke("memory", "5.2.2", "--model", "polynomial")
    assert done.exit_code == 0, done.output
    assert "n_M = 1, memory time 0.01" in done.output
    assert invoke("memory", "5.2.2", "--model", "polynomial", "--tolerance", "1e-16").exit_code == 1
    assert invoke("memory", "5.9.9").exit_code == 2


def test_fresh_notebooks_are_left_alone(invoke, monkeypatch):
    monkeypatch.setattr(cli, "_execute", lambda *_: pytest.fail("executed"))
    done = invoke("notebooks", "5.1.1")
    assert done.exit_code == 0
    assert done.output == "5.1.1: up to date\n"


def test_a_failing_cell_is_named_and_the_partial_notebook_kept(invoke, tmp_path, monkeypatch):
    cells = [
        nbformat.v4.new_code_cell("preset: str = 'quick'\nout_dir: str = None"),
        nbformat.v4.new_code_cell("1 / 0"),
    ]
    cells[0]["metadata"]["tags"] = ["parameters"]
    source = tmp_path / "broken.ipynb"
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), source)
    monkeypatch.setattr(results, "notebook_of", lambda benchmark: source)
    done = invoke("run", "5.1.1", "--preset", "quick", "--out", tmp_path / "a b")
    assert done.exit_code == 1
    assert "of broken.ipynb failed: ZeroDivisionError: division by zero" in done.output
    assert pathlib.Path(tmp_path / "a b" / "broken.ipynb").exists()


def test_a_topic_is_executed_as_it_is_and_committed(invoke, tmp_path, monkeypatch):
    for folder in ("notebooks", "results"):
        shutil.copytree(results.ROOT / folder, tmp_path / folder)
    monkeypatch.setattr(results, "ROOT", tmp_path)
    given = []

    def execute(notebook, executed, parameters):
        given.append(parameters)
        shutil.copy(notebook, executed)

    monkeypatch.setattr(cli, "_execute", execute)
    name = results.topics()[0]
    done = invoke("notebooks", "--force", name)
    assert (done.exit_code, given) == (0, [{}])
    assert done.output == f"{name}: executing {name}.ipynb\n"
    assert (tmp_path / "runs" / name / f"{name}.ipynb").exists()
    assert not results.is_stale(name)


def test_without_arguments_every_benchmark_and_topic_gets_a_line(invoke, monkeypatch):
    monkeypatch.setattr(cli, "_execute", lambda *_: pytest.fail("executed"))
    monkeypatch.setattr(results, "is_stale", lambda benchmark: False)
    done = invoke("notebooks")
    assert done.exit_code == 0
    assert [line.split(":")[0] for line in done.output.splitlines()] == [*problems.PAPER, *results.topics()]


def test_results_are_gathered_into_the_readme(invoke, tmp_path, monkeypatch):
    (tmp_path / "README.md").write_text("\n".join(["top", *results.marks("results")]))
    monkeypatch.setattr(results, "table", lambda: "| the table |")
    monkeypatch.setattr(results, "ROOT", tmp_path)
    assert invoke("results").exit_code == 0
    assert "| the table |" in (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").write_text("no marks")
    assert invoke("results").exit_code == 2
