"""Results: what a metrics file holds, that writing is whole or not at all, and when a notebook is stale."""

import json
import shutil

import numpy as np
import pytest

from fml_tf import problems, results

COMMITTED = sorted((results.ROOT / "results").glob("*/*.json"))


@pytest.fixture
def values(quick):
    """A complete record of a run, from made-up errors."""
    errors = np.array([[1.0, 3.0], [3.0, 5.0]])
    return results.describe(
        quick, errors, loss_initial=[1.0, 10.0], loss_final=[1e-3, 1e-3], bounded_fraction=1.0, seeds={"train": 0},
        data_hash="0", seconds={"data": 1.0},
    )  # fmt: skip


def test_describe_computes_what_it_says(values):
    assert set(results.KEYS) <= set(values)
    assert values["loss_decades"] == pytest.approx(3.0)
    assert values["mean_error"] == pytest.approx(3.0)
    assert values["max_error"] == pytest.approx(4.0)
    np.testing.assert_allclose(values["errors"], [2, 4])
    np.testing.assert_allclose(values["error_times"], [0.01, 0.02])
    assert values["parameters"]["members"] == 2


def test_metrics_survive_the_file_and_infinity_becomes_null(values, tmp_path):
    results.write_metrics(tmp_path, {**values, "errors": np.array([1.0, np.inf, np.nan])})
    read = results.read_metrics(tmp_path)
    assert read["errors"] == [1.0, None, None]
    assert read["benchmark"] == "5.1.1"
    assert [f.name for f in tmp_path.iterdir()] == ["metrics.json"]


def test_incomplete_metrics_are_refused_and_the_old_file_stays(values, tmp_path):
    results.write_metrics(tmp_path, values)
    before = (tmp_path / "metrics.json").read_text()
    with pytest.raises(ValueError, match="metrics lack seconds"):
        results.write_metrics(tmp_path, {k: v for k, v in values.items() if k != "seconds"})
    with pytest.raises(TypeError):
        results.write_metrics(tmp_path, {**values, "seeds": object()})
    assert (tmp_path / "metrics.json").read_text() == before
    assert [f.name for f in tmp_path.iterdir()] == ["metrics.json"]


def test_a_folder_that_cannot_be_made_is_refused(quick, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot make the folder .*give another out_dir"):
        results.run_folder(quick, str(tmp_path / "file" / "below"))
    assert results.run_folder(quick, str(tmp_path / "with space")).is_dir()


def test_notebooks_of_unknown_benchmarks_are_refused():
    with pytest.raises(ValueError, match="unknown benchmark"):
        results.notebook_of("9.9.9")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A copy of the notebook and its committed result, to change freely."""
    for folder in ("notebooks", "results"):
        shutil.copytree(results.ROOT / folder, tmp_path / folder)
    monkeypatch.setattr(results, "ROOT", tmp_path)
    return tmp_path


def test_text_makes_nothing_stale_but_code_record_and_numerics_do(checkout, monkeypatch):
    assert not results.is_stale("5.1.1")
    path = results.notebook_of("5.1.1")
    notebook = json.loads(path.read_text())
    notebook["cells"][0]["source"] = ["# Another title"]
    path.write_text(json.dumps(notebook))
    assert not results.is_stale("5.1.1")
    with monkeypatch.context() as change:
        change.setattr(results, "NUMERICS", results.NUMERICS + 1)
        assert results.is_stale("5.1.1")
    with monkeypatch.context() as change:
        change.setitem(problems.PRESETS["5.1.1"], "standard", {"epochs": 7})
        assert results.is_stale("5.1.1")
    assert not results.is_stale("5.1.1")
    code = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    code["source"] = ["x = 1"]
    path.write_text(json.dumps(notebook))
    assert results.is_stale("5.1.1")


def test_committing_a_run_cleans_the_notebook_and_records_its_source(checkout, values):
    notebook = json.loads(results.notebook_of("5.1.1").read_text())
    notebook["metadata"]["papermill"] = {"input_path": "/somewhere"}
    notebook["cells"][0]["metadata"]["papermill"] = {"duration": 1}
    executed, folder = checkout / "executed.ipynb", checkout / "run"
    folder.mkdir()
    executed.write_text(json.dumps(notebook))
    results.write_metrics(folder, values)
    for name in results.README_FIGURES["5.1.1"]:
        (folder / f"{name}.png").write_bytes(b"figure")
    results.commit_run("5.1.1", executed, folder)
    assert "papermill" not in results.notebook_of("5.1.1").read_text().replace("papermill …", "").replace(
        "Papermill", ""
    )
    assert not results.is_stale("5.1.1")
    assert (checkout / "results/standard/5.1.1-error.png").read_bytes() == b"figure"


@pytest.mark.parametrize("path", COMMITTED, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_committed_results_are_complete_fresh_and_good(path):
    if path.parent.name != "standard":
        pytest.skip("not a standard run")
    values = json.loads(path.read_text())
    assert set(results.KEYS) <= set(values)
    assert not results.is_stale(values["benchmark"]), "run make notebooks"
    assert values["loss_decades"] >= 2
    assert values["bounded_fraction"] == 1
    assert np.mean(values["errors"]) == pytest.approx(values["mean_error"])


def test_the_standard_run_of_5_1_1_meets_its_target():
    values = json.loads(results.committed("5.1.1").read_text())
    assert values["mean_error"] <= 1e-4
    assert values["loss_decades"] > 4
    assert len(values["loss_final"]) == 10
    assert values["mean_error"] < values["baseline_errors"]["persistence"] / 1000
