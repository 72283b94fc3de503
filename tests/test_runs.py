"""One run of a notebook: the types of its parameters, and how a run in a process of its own ends."""

import datetime
import json
import math
import os
import signal
import threading

import nbformat
import numpy as np
import psutil
import pytest

from fml_tf import results, runs


@pytest.fixture
def notebook(tmp_path):
    """Write a notebook of a parameters cell and some code; return its path."""

    def make(code="", parameters="x: int = 1\ny: float = 0.5\nname: str = 'a'\nflag: bool = False\nany = 3"):
        cells = [
            nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}),
            nbformat.v4.new_code_cell(code),
        ]
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        path = tmp_path / "note.ipynb"
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), path)
        return path

    return make


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("x", "3", 3), ("x", "1e3", 1000), ("x", np.int32(3), 3), ("x", 3.0, 3), ("x", None, None),
        ("x", "None", None), ("name", "None", None),
        ("y", "1e-4", 1e-4), ("y", 2, 2.0),
        ("y", np.float32(0.5), 0.5), ("name", "b", "b"), ("flag", True, True), ("any", "1e-4", 1e-4),
        ("any", [1, 2], [1, 2]), ("any", "text", "text"), ("any", "5", "5"),
    ],
)  # fmt: skip
def test_values_take_the_declared_type(notebook, name, value, expected):
    found = runs.check_parameters(runs.declared(notebook()), {name: value})[name]
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("x", "many", "x='many': expected int"), ("x", 1.5, "x=1.5: expected int"), ("x", True, "x=True: expected int"),
        ("x", (1, 2), r"x=\(1, 2\): expected one int; values to sweep over stand in a list under grid"),
        ("x", "(1, 2)", "expected int; values to sweep over stand in a list under grid"),
        ("y", np.ones(2), "expected one float"), ("y", "fast", "y='fast': expected a finite float"),
        ("name", 3, "name=3: expected str"), ("flag", "yes", "flag='yes': expected bool"),
        ("any", (1, 2), "expected one plain value"), ("any", datetime.date(2020, 1, 1), "text in quotes"),
        ("any", [math.nan], "a finite number"), ("y", "nan", "a finite float"), ("z", 1, "unknown parameter 'z'"),
    ],
)  # fmt: skip
def test_values_of_another_type_are_refused(notebook, name, value, message):
    with pytest.raises(ValueError, match=message):
        runs.check_parameters(runs.declared(notebook()), {name: value})


@pytest.fixture
def task(notebook, tmp_path):
    """Write the task of a run in a folder, and return the folder."""

    def make(code, seconds=60.0):
        folder = tmp_path / "a run"
        folder.mkdir()
        results.write_json(
            folder / "task.json", {"notebook": str(notebook(code)), "parameters": {"x": 2}, "seconds": seconds}
        )
        return folder

    return make


def test_a_run_ends_with_its_state_beside_its_notebook(task):
    folder = task("assert x == 2")
    (folder / "old").mkdir()
    (folder / "old" / "file").write_text("of an interrupted run")
    state = runs.start(folder, threads=1)
    assert state["state"] == "done"
    assert state["results"] == {}
    assert sorted(p.name for p in folder.iterdir() if p.name[0] != ".") == [
        "log.txt",
        "note.ipynb",
        "state.json",
        "task.json",
    ]
    assert json.loads((folder / "state.json").read_text()) == state
    assert not runs.is_running(folder)
    before = (folder / "state.json").stat().st_mtime_ns
    assert runs.start(folder) == state
    assert (folder / "state.json").stat().st_mtime_ns == before, "what has ended is not run again"


def test_a_run_that_is_killed_says_so_and_takes_its_kernel_along(task):
    folder = task("import time\nprint('here', flush=True)\ntime.sleep(60)")
    found = []

    def kill():
        while not found:
            for process in psutil.process_iter(["cmdline"]):
                if str(folder) in (process.info["cmdline"] or [])[-1:] and process.children():
                    found.extend([process, *process.children(recursive=True)])
        os.kill(found[0].pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    state = runs.start(folder)
    killer.join()
    assert state["state"] == "failed"
    assert "killed by signal 9, perhaps for its memory" in state["reason"]
    psutil.wait_procs(found, timeout=15)
    assert not any(process.is_running() and process.status() != "zombie" for process in found)


def test_a_kernel_that_does_not_start_is_tried_again(task, monkeypatch):
    tries = []

    def execute(*_, **__):
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("Kernel died before replying to kernel_info")

    monkeypatch.setattr(runs, "execute", execute)
    monkeypatch.setattr(runs.time, "sleep", lambda _: None)
    folder = task("")
    values = json.loads((folder / "task.json").read_text())
    assert runs._attempt(folder, values) == ("", {})
    assert len(tries) == 3
    monkeypatch.setattr(runs, "execute", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("no port")))
    assert runs._attempt(folder, values) == ("the kernel did not start: no port", {})


def test_results_are_the_plain_numbers_of_the_metrics(tmp_path):
    assert runs._results(tmp_path) == {}
    values = {"a": 1, "b": [2], "c": "d", "e": math.nan, "seconds": {"train": 2.0, "x": "y"}, "huge": 10**400}
    (tmp_path / "metrics.json").write_text(json.dumps(values))
    assert runs._results(tmp_path) == {"a": 1, "e": None, "seconds_train": 2.0}
    (tmp_path / "metrics.json").write_text('{"seconds": 3.5}')
    assert runs._results(tmp_path) == {"seconds": 3.5}
    for text in ("", "[1, 2]", "null", "{"):
        (tmp_path / "metrics.json").write_text(text)
        with pytest.raises(ValueError, match=r"metrics\.json is no JSON object"):
            runs._results(tmp_path)


def test_a_run_whose_metrics_cannot_be_read_has_failed(task):
    folder = task("import pathlib\npathlib.Path(name).write_text('[1]')")
    values = json.loads((folder / "task.json").read_text())
    values["parameters"]["name"] = str(folder / "metrics.json")
    results.write_json(folder / "task.json", values)
    state = runs.start(folder)
    assert (state["state"], state["reason"]) == ("failed", "metrics.json is no JSON object of names and numbers")
