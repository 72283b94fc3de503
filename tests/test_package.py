"""The package: what importing it does, and that its files agree with one another."""

import importlib
import itertools
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tomllib

import numpy as np
import pytest

from fml_tf import data, problems, results

ROOT = pathlib.Path(__file__).parent.parent


def python(code, **environment):
    """Run code in a fresh process with a changed environment (None removes a variable)."""
    env = {**os.environ, **environment}
    env = {name: value for name, value in env.items() if value is not None}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)


def test_import_selects_tensorflow_quietly_and_loads_nothing():
    code = """
import sys, os, json
import fml_tf
from fml_tf import data, metrics, problems, systems
print(json.dumps([os.environ["KERAS_BACKEND"], os.environ["TF_CPP_MIN_LOG_LEVEL"], "tensorflow" in sys.modules,
                  "keras" in sys.modules]))
"""
    done = python(code, KERAS_BACKEND=None, TF_CPP_MIN_LOG_LEVEL=None)
    assert json.loads(done.stdout) == ["tensorflow", "3", False, False]
    kept = python("import fml_tf, os; print(os.environ['TF_CPP_MIN_LOG_LEVEL'])", TF_CPP_MIN_LOG_LEVEL="0")
    assert kept.stdout.strip() == "0"


def test_another_keras_backend_is_refused():
    done = python("import fml_tf", KERAS_BACKEND="jax")
    assert done.returncode != 0
    assert "needs Keras on the TensorFlow backend, but this process uses 'jax'" in done.stderr


def test_models_import_prints_nothing():
    done = python("import fml_tf.models; fml_tf.models.FlowMap(1).forecast([[[0.5]]], 3)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_failing_import_shows_what_was_held_back():
    code = "from fml_tf import _tensorflow as t\nwith t._hold_back_stderr():\n import os; os.write(2, b'why'); 1 / 0"
    done = python(code)
    assert "why" in done.stderr
    assert "ZeroDivisionError" in done.stderr


def test_pins_satisfy_the_ranges_and_conda_uses_them():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "requirements.txt").read_text(), re.M))
    needed = project["dependencies"] + project["optional-dependencies"]["dev"]
    for requirement in needed:
        name, low = re.match(r"([\w-]+)>=([\d.]+)", requirement).groups()
        have, least = (tuple(map(int, re.findall(r"\d+", v))) for v in (pins[name], low))
        assert have >= least, requirement
    assert "-r requirements.txt" in (ROOT / "environment.yml").read_text()


def test_installed_versions_are_the_pinned_ones():
    import importlib.metadata

    pins = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "requirements.txt").read_text(), re.M))
    if not (ROOT / ".venv").exists() or not sys.prefix.startswith(str(ROOT)):
        pytest.skip("not in the environment that make sets up")
    for name in ("tensorflow", "keras", "numpy", "scipy", "papermill", "jupyterlab", "nbval"):
        assert importlib.metadata.version(name) == pins[name]


def test_addresses_of_the_repository_agree():
    """One place to change when the project moves: every other mention must equal it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    owner = project["urls"]["Repository"].removeprefix("https://github.com/")
    files = [ROOT / "README.md", ROOT / "CITATION.cff", *sorted((ROOT / "notebooks").glob("*.ipynb"))]
    for file in files:
        found = re.findall(r"(?:github\.com|colab\.research\.google\.com/github)/([\w-]+/[\w-]+)", file.read_text())
        assert found, f"{file.name} names no repository"
        assert set(found) == {owner}, file.name


def test_the_ten_lines_of_the_readme_forecast_well(tmp_path):
    """Run them as they stand, against the oscillation they are about, over two and a half times the data's length."""
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S).group(1)
    code += """
times = 0.05 * (1 + np.arange(1000)) + phases[0]
truth = np.c_[np.cos(times), -np.sin(times)]
print(np.linalg.norm(prediction[0] - truth, axis=1).mean())
"""
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.02
    assert (tmp_path / "oscillator.keras").exists()


def test_the_tables_of_speed_are_those_of_the_committed_file(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    speed = importlib.import_module("speed")
    figures = json.loads(speed.OUT.read_text())
    assert {"training", "growth", "start_up", "forecast", "data", "versions"} <= set(figures)
    for page in speed.PAGES:
        text, copy = page.read_text(), tmp_path / page.name
        copy.write_text(text)
        speed.write_page(copy, figures)
        assert copy.read_text() == text, "run python benchmarks/speed.py tables"
        for name in re.findall(r"<!-- ([\w-]+): begin -->\n<!-- \1: end -->", text):
            raise AssertionError(f"{page.name}: the table {name} is empty")
    for race in figures["training"]:
        rate = race["contenders"]["FlowMap.fit"]["rate"]
        name = "members" if race["members"] in speed.MEMBERS else f"training-{race['shape']}"
        assert f"**{rate:,.0f}**" in speed.tables(figures)[name]


@pytest.fixture
def training_scripts(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "training")
    return importlib.import_module


RENEW = {"compare": "--tables", "limits": "--tables", "pool": "--tables", "recipes": "table"}


@pytest.mark.parametrize("name", RENEW)
def test_the_tables_of_accuracy_are_those_of_the_committed_files(training_scripts, tmp_path, name):
    script = training_scripts(name)
    copy = tmp_path / script.PAGE.name
    copy.write_text(script.PAGE.read_text())
    results.write_tables(copy, script.tables(json.loads(script.OUT.read_text())))
    assert copy.read_text() == script.PAGE.read_text(), f"run python benchmarks/training/{name}.py {RENEW[name]}"


def cells(table):
    """Return the cells of a Markdown table by the text of their row and column."""
    head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
    return {(row[0], column): cell for row in rows for column, cell in zip(head, row, strict=True)}


def test_the_tables_of_accuracy_show_what_was_measured(training_scripts):
    compare, limits, pool, recipes = map(training_scripts, ("compare", "limits", "pool", "recipes"))
    found = json.loads(compare.OUT.read_text())
    assert all(set(methods) <= set(compare.METHODS) for methods in found.values())
    shown = cells(compare.tables(found)["training"])
    for method, values in found["5.1.1"].items():
        assert shown[method, "5.1.1"] == f"{values['score']:.1e}"
    found = json.loads(limits.OUT.read_text())
    for benchmark, form in zip(limits.BENCHMARKS, (".1e", ".1e", ".1f"), strict=True):
        assert set(found[benchmark]["trainings"]) == set(limits.tasks(benchmark))
        shown = cells(limits.tables(found)[f"limits-{benchmark}"])
        for name, run in found[benchmark]["trainings"].items():
            assert shown[name, "three members"] == format(run["score"], form)
            assert shown[name, "median member"] == format(run["member"], form)
            assert shown[name, "loss"] == f"{run['loss']:.1e}"
            assert float(shown[name, "loss on new data over that"]) == round(run["fresh"] / run["loss"], 2)
        grown, accumulation = found[benchmark]["accumulation"], cells(limits.tables(found)["accumulation"])
        assert accumulation["error of one step", benchmark] == f"{grown['single']['mean']:.1e}"
        for row, part in (
            ("forecast of the ensemble", "forecast"),
            ("the same, each error with a random sign", "signs"),
        ):
            assert accumulation[row, benchmark] == format(grown[part]["score"], form)
    found = json.loads(pool.OUT.read_text())
    shown = cells(pool.tables(found)["pool"])
    for benchmark, values in found.items():
        errors, weighed, members = values["errors"], values["weighed"], values["members"]
        assert [*map(len, (errors, weighed, values["bounded"], members))] == [*[pool.DRAWS] * 3, pool.MEMBERS]
        assert shown[benchmark, "equal shares"] == f"{np.median(errors):.1e}"
        assert shown[benchmark, "largest over least"] == f"{max(errors) / min(errors):.1f}"
        assert shown[benchmark, "their largest over least"] == f"{max(weighed) / min(weighed):.1f}"
        few, most = np.percentile(errors, [5, 95])
        assert shown[benchmark, "of nine tenths"] == f"{most / few:.1f}"
        assert shown[benchmark, "tens bounded"] == f"{values['bounded'].count(1.0)} of {pool.DRAWS}"
        assert shown[benchmark, "members bounded"] == f"{members.count(1.0)} of {pool.MEMBERS}"
    found = json.loads(recipes.OUT.read_text())
    shown = cells(recipes.tables(found)["recipes"])
    for benchmark, record in problems.PAPER.items():
        form = ".1f" if record.exponent else ".1e"
        assert shown[benchmark, "polynomial"] == format(found[benchmark]["polynomial"], form)
        ours = json.loads(results.committed(benchmark).read_text())
        if found[benchmark]["members"] == len(ours["loss_final"]):
            score = ours["valid_prediction_time" if record.exponent else "mean_error"]
            assert found[benchmark]["ours"] == score
            assert shown[benchmark, "our minutes"] == f"{ours['seconds']['train'] / 60:.1f}"
        elif shown[benchmark, "our minutes"]:
            assert found[benchmark]["timed"]["members"] == found[benchmark]["members"]
            assert shown[benchmark, "our minutes"] == f"{found[benchmark]['timed']['seconds'] / 60:.1f}"
        assert shown[benchmark, "ours"] == format(found[benchmark]["ours"], form)
        paper = results.committed(benchmark, "paper")
        assert bool(shown[benchmark, "paper's recipe"]) == paper.exists()
        if paper.exists() and not record.exponent:
            error = json.loads(paper.read_text())["mean_error"]
            assert shown[benchmark, "paper's recipe"].split()[0] == format(error, form)
            assert shown[benchmark, "gain"] == f"{error / found[benchmark]['ours']:,.0f}×"


def test_less_data_take_as_many_steps(training_scripts):
    limits = training_scripts("limits")
    for benchmark, factor in itertools.product(limits.BENCHMARKS, (2, 10)):
        record = limits.record_of(benchmark)
        less = limits._fewer(record, factor)
        assert less.n_samples * factor == record.n_samples
        for stage, longer in zip((*record.stages, record), (*less.stages, less), strict=True):
            before, after = (
                one.epochs * math.ceil(whole.n_samples * record.windows(stage) / one.batch_size)
                for one, whole in ((stage, record), (longer, less))
            )
            assert before == after


def test_a_true_flow_map_carries_errors_on(training_scripts):
    limits = training_scripts("limits")
    record = problems.get("5.1.1", n_test=4)
    truth = data.sample_trajectories(record, steps=50)
    flow, start = record.system.flow(record.time_step), truth[:, 0]
    shifts = np.zeros((4, 50, 2))
    np.testing.assert_array_equal(limits.carry(flow, start, shifts), truth[:, 1:])
    shifts[:, 3, 0] = 1e-3  # which then moves as the difference of two trajectories
    moved = limits.carry(flow, start, shifts) - truth[:, 1:]
    assert not moved[:, :3].any()
    expected = np.linalg.matrix_power(record.system.propagator(record.time_step), 46) @ [1e-3, 0]
    np.testing.assert_allclose(moved[:, -1], np.tile(expected, (4, 1)), rtol=1e-6)
    held = limits.carry(flow, limits.rounded(start), np.zeros((4, 50, 2)), limits.rounded)
    np.testing.assert_array_equal(held, held.astype("float32"))
    assert 0 < np.abs(held - truth[:, 1:]).max() < 1e-5


def test_every_way_to_train_is_a_record_of_every_benchmark(training_scripts):
    compare = training_scripts("compare")
    for benchmark, method in itertools.product(problems.PAPER, compare.METHODS):
        record, _ = compare.record_of(benchmark, method)
        assert (record.id, record.members) == (benchmark, compare.MEMBERS)
        longer = compare.scaled(record, 3)
        assert (longer.epochs, longer.stage_epochs) == (3 * record.epochs, 3 * record.stage_epochs)
    names = {name for changes in compare.METHODS.values() for name in changes or {} if name.startswith("+")}
    assert names == {"+average", "+weights", "+initializer"}


def test_a_recipe_is_written_whatever_another_training_left_unfinished(training_scripts, monkeypatch, tmp_path):
    recipes = training_scripts("recipes")
    small = problems.get("5.1.1", "quick", members=1, epochs=1, n_trajectories=50, n_test=2)
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(problems, "get", lambda *_, **__: small)
    unfinished = results.committed("5.1.1", "quick").parent / "unfinished" / "5.1.1"
    (unfinished / "other data").mkdir(parents=True)
    recipes.train("5.1.1", "quick", hours=1)
    values = json.loads(results.committed("5.1.1", "quick").read_text())
    assert (values["parameters"]["epochs"], len(values["errors"])) == (1, small.horizon)
    assert results.committed("5.1.1", "quick").with_suffix(".keras").exists()
    assert not unfinished.exists()
