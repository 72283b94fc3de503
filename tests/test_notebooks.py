"""Notebooks: the committed ones are executed and clean, and each runs from top to bottom with the quick preset."""

import json
import re
import subprocess
import sys

import nbformat
import papermill
import pytest
from papermill.parameterize import parameterize_notebook

from fml_tf import problems, results

NOTEBOOKS = sorted((results.ROOT / "notebooks").rglob("*.ipynb"))
BENCHMARKS = [path for path in NOTEBOOKS if path.parent.name == "notebooks"]


def ids(path):
    return path.stem


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_committed_notebook_is_executed_and_clean(path):
    text, notebook = path.read_text(), nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "in order, from a clean kernel"
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    assert not re.search(r"/(home|root|tmp|work|Users)/|[A-Z]:\\\\", json.dumps(outputs)), "an absolute path"
    assert "warning" not in json.dumps([o.get("text", "") for o in outputs]).lower()
    assert notebook.metadata.kernelspec.name == "python3"
    assert "papermill" not in notebook.metadata
    assert not [cell for cell in notebook.cells if "papermill" in cell.metadata]
    assert len(text) < 700_000
    titles = [c.source for c in notebook.cells if c.cell_type == "markdown" and re.match(r"# ", c.source)]
    assert len(titles) == 1
    assert len(cells) <= 25
    assert sorted(len(c.source.splitlines()) for c in cells)[len(cells) // 2] <= 10


@pytest.mark.parametrize("path", BENCHMARKS, ids=ids)
def test_parameters_cell_is_tagged_literal_typed_and_explained(path):
    notebook = nbformat.read(path, as_version=4)
    tagged = [cell for cell in code_cells(notebook) if "parameters" in cell.metadata.get("tags", [])]
    assert len(tagged) == 1
    parameters = papermill.inspect_notebook(path)
    assert {"preset", "members", "epochs", "memory_steps", "multi_steps", "train_seed", "out_dir"} <= set(parameters)
    for name, parameter in parameters.items():
        assert parameter["inferred_type_name"] in ("str", "int", "float"), name
        assert parameter["help"], name
    shown = subprocess.run(
        [sys.executable, "-m", "papermill", "--help-notebook", str(path)], capture_output=True, text=True, timeout=120
    ).stdout
    for name, parameter in parameters.items():
        pattern = rf"{name}: {parameter['inferred_type_name']} \(default .*?\)\s+{re.escape(parameter['help'][:20])}"
        assert re.search(pattern, shown), f"{name} in papermill --help-notebook:\n{shown}"


@pytest.mark.parametrize("path", BENCHMARKS, ids=ids)
def test_notebook_runs_with_quick_under_nbval(path, tmp_path):
    """Parameterise a copy with quick, as papermill would, and let nbval run it: no cell may fail, and the outputs of
    cells tagged nbval-check-output, which no preset changes, must equal the committed ones."""
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata["papermill"] = {}  # where papermill notes the values
    quick = parameterize_notebook(notebook, {"preset": "quick", "out_dir": str(tmp_path / "out")})
    copy = tmp_path / path.name
    nbformat.write(quick, copy)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--nbval-lax",
        "--nbval-cell-timeout=300",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run([*command, copy.name], cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:]
    assert f"{len(code_cells(quick))} passed" in done.stdout
    values = results.read_metrics(tmp_path / "out")
    assert values["preset"] == "quick"
    assert values["loss_decades"] > 2
    if "valid_prediction_time" in values:  # chaotic: the mean error saturates
        trivial = values["valid_prediction_times"]["persistence, attractor"]
        assert values["valid_prediction_time"] > 5 * trivial, "visibly learnt"
    elif "mean damping, true physics" in values["baseline_errors"]:  # in half a minute the pendulum, not its damping
        assert values["mean_error"] < 1.5 * values["baseline_errors"]["mean damping, true physics"], "visibly learnt"
    else:
        assert values["mean_error"] < values["baseline_errors"]["persistence"] / 20, "visibly learnt"
    assert len(list((tmp_path / "out").glob("*.png"))) >= 3


@pytest.mark.parametrize("path", BENCHMARKS, ids=ids)
def test_papermill_keeps_the_parameters_tag_and_takes_values(path, tmp_path):
    """Run through the command line, as a user would, with unusual parameters and a folder with a space."""
    out, benchmark = tmp_path / "my run", ".".join(path.stem.split("_")[:3])
    command = [sys.executable, "-m", "fml_tf", "run", benchmark, "--preset", "quick", "--out", str(out)]
    memory = 0 if problems.PAPER[benchmark].memory_steps else 2
    for name, value in {"epochs": 3, "n_trajectories": 200, "members": 1, "memory_steps": memory}.items():
        command += ["-p", name, str(value)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"mean ℓ2 error +\d\.\d+e[+-]\d+ over \d+ steps and 100 test trajectories", done.stdout)
    executed = nbformat.read(out / results.notebook_of(benchmark).name, as_version=4)
    tags = [tag for cell in executed.cells for tag in cell.metadata.get("tags", [])]
    assert tags.count("parameters") == 1
    assert tags.count("injected-parameters") == 1
    values = results.read_metrics(out)
    assert values["parameters"]["epochs"] == 3
    assert values["parameters"]["memory_steps"] == memory
    assert len(values["loss_final"]) == 1


#: Parameters that make the notebooks on topics short, and a line that each must still print.
TOPICS = {
    "choosing_memory": (
        {"trajectories": 100, "longest": 3, "training_steps": 300, "members": 1},
        r"5\.1\.2: the state is decided by 1 past entry",
    ),
    "long_runs": (
        {"trajectories": 5, "lorenz_trajectories": 3, "lorenz_steps": 2000},
        r"5\.3\.1 +\d\.\de-0[67] +\d\.\de-0[45] +\d\.\de-05 +\d\d +\d\n",
    ),
    "ensembles_examined": ({"n_test": 5, "lorenz_steps": 300}, r"5\.1\.1( +\d\.\de-0[67]){6}\n"),
    "lorenz_judged": (
        {"trajectories": 5, "steps": 3000, "exponent_steps": 500},
        r"5\.4\.1, attractor +(?:[7-9]|1[0-2])\.\d +0\.\d\d +0\.\d+ +\d\.\d+ +100 +[01]\.\d+\n",
    ),
    "polynomials": (
        {
            "n_trajectories": 300, "n_test": 5, "n_validation": 5, "lorenz_steps": 300, "fit_bursts": 500,
            "most_terms": 60,
        },
        r"5\.1\.1 +\d\.\de-06 +\d\.\de-1\d ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", results.topics())
def test_topic_runs_with_few_trajectories(name, tmp_path):
    parameters, line = TOPICS[name]
    path = results.notebook_of(name)
    declared = papermill.inspect_notebook(path)
    assert set(parameters) <= set(declared)
    assert all(entry["help"] and entry["inferred_type_name"] for entry in declared.values())
    executed = papermill.execute_notebook(
        path, tmp_path / path.name, parameters, kernel_name="python3", cwd=tmp_path, progress_bar=False
    )
    outputs = [output for cell in code_cells(executed) for output in cell.outputs]
    assert re.search(line, "".join(o.get("text", "") for o in outputs if o.output_type == "stream"))
    assert sum("image/png" in o.get("data", {}) for o in outputs) >= 2
