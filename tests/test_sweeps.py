"""Sweeps: what is planned and refused, that they survive interruption, and that a failure is a row with its reason."""

import csv
import json
import os
import pathlib
import re
import runpy
import signal
import subprocess
import sys
import time

import nbformat
import numpy as np
import psutil
import pytest
import yaml
from click.testing import CliRunner

from fml_tf import __main__ as cli
from fml_tf import reports, results, runs, sweeps

PARAMETERS = "x: int = 1\ny: float = 0.5\nname: str = 'a'\nseed: int = 0\nout_dir: str = None"
WRITE = """
import json, pathlib
values = {"mean_error": x + y / 10 + seed / 100, "seconds": {"train": 0.1}, "text": name}
pathlib.Path(out_dir, "metrics.json").write_text(json.dumps(values))
"""


@pytest.fixture
def write(tmp_path):
    """Write a notebook of a parameters cell and some code, and a sweep file beside it; return the file's path."""

    def make(code=WRITE, tag="parameters", parameters=PARAMETERS, **sweep):
        cells = [nbformat.v4.new_code_cell(text) for text in (parameters, code)]
        cells[0]["metadata"]["tags"] = [tag]
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), tmp_path / "tiny note.ipynb")
        path = tmp_path / "a sweep.yaml"
        path.write_text(yaml.safe_dump({"notebook": "tiny note.ipynb", **sweep}))
        return path

    return make


def fml(*arguments, **options):
    """Start the command line in a process of its own."""
    command = [sys.executable, "-m", "fml_tf", *map(str, arguments)]
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    # tests that run in the background ignore Ctrl-C, and so would what they start
    return subprocess.Popen(command, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **options)


def invoke(*arguments):
    """Call the command line in this process."""
    return CliRunner().invoke(cli.main, [str(argument) for argument in arguments])


def test_a_plan_is_the_grid_with_each_set_seed_and_repeat(write):
    sweep = sweeps.read(write(grid={"x": [1, 2, 3]}, sets=[{"y": 1}, {"y": "1e-4"}], seeds=2, repeats=2))
    planned = sweeps.plan(sweep)
    assert len(planned) == 3 * 2 * 2 * 2 == len({row["id"] for row in planned})
    assert planned[-1]["swept"] == {"y": 1e-4, "x": 3}
    assert planned[-1]["parameters"] == {"seed": 1, "y": 1e-4, "x": 3}
    assert [row["id"] for row in sweeps.plan(sweep)] == [row["id"] for row in planned]
    assert sweep.swept == ["x", "y"]


def test_a_benchmark_is_planned_with_its_preset_and_its_two_seeds():
    sweep = sweeps.Sweep(
        benchmark="5.1.2", grid={"memory_steps": (1, np.int64(5))}, parameters={"learning_rate": "1e-3"}, seeds=[7]
    )
    parameters = sweeps.plan(sweep)[1]["parameters"]
    assert parameters == {
        "learning_rate": 1e-3,
        "train_seed": 7,
        "member_seed": 7,
        "memory_steps": 5,
        "preset": "quick",
    }
    json.dumps(parameters)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"grid": {"z": [1]}}, "unknown parameter 'z'"),
        ({"grids": {"x": [1]}}, "unknown key of a sweep 'grids'. Did you mean 'grid'"),
        ({"grid": {"x": ["many"]}}, "parameter x='many': expected int"),
        ({"grid": {"x": [1.5]}}, "parameter x=1.5: expected int"),
        ({"grid": {"x": [True]}}, "parameter x=True: expected int"),
        ({"grid": {"x": [[1, 2]]}}, r"parameter x=\[1, 2\]: expected one int"),
        ({"grid": {"name": [3]}}, "parameter name=3: expected str"),
        ({"grid": {"x": 3}}, "expected a list of values"),
        ({"grid": {"x": []}}, "expected a list of values"),
        ({"grid": {"x": [1, 1]}}, "more than once: for runs of the same, give repeats"),
        ({"grid": {"x": [1]}, "parameters": {"x": 2}}, "x stands in grid and beside it"),
        ({"grid": {"out_dir": ["here"]}}, "out_dir is not for a sweep to vary"),
        ({"sets": {"x": 1}}, "expected for instance sets"),
        ({"seeds": [-1]}, "expected a list of whole numbers"),
        ({"seeds": 0}, "expected a list of whole numbers"),
        ({"seeds": 2, "grid": {"seed": [1]}}, "give one or the other"),
        ({"grid": {"y": [float("nan")]}}, "y=nan: expected a finite float"),
        ({"grid": {"x": [float("inf")]}}, "x=inf: expected int"),
        ({"grid": {"y": [10**400]}}, "expected a finite float"),
        ({"preset": "quick"}, "only a benchmark has presets"),
        ({"repeats": True}, "expected a whole number, 1 or more"),
        ({"minutes": True}, "a number like 60"),
        ({"minutes": float("inf")}, "a number like 60"),
        ({"repeats": 0}, "expected a whole number, 1 or more"),
        ({"minutes": -1}, "expected the minutes that a run may take"),
        ({"benchmark": "5.1.1"}, "expected one of the two"),
        ({"notebook": None, "benchmark": "5.9.9"}, "unknown benchmark"),
        ({"notebook": None, "benchmark": "5.1.1", "preset": "fast"}, "unknown preset"),
        ({"notebook": None, "benchmark": "5.1.1", "grid": {"n_bursts": [500]}}, "bursts do not fit a trajectory"),
        ({"notebook": "another.ipynb"}, "there is no notebook"),
        ({"tag": "other"}, "has no cell tagged 'parameters'"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_runs(write, tmp_path, given, message):
    path = write(**{name: value for name, value in given.items() if name != "parameters"})
    if "parameters" in given:
        path.write_text(path.read_text() + yaml.safe_dump({"parameters": given["parameters"]}))
    done = invoke("sweep", path, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert re.search(message, " ".join(done.output.split())), done.output
    assert not (tmp_path / "out").exists()


def test_seeds_need_a_parameter_to_go_to(write):
    path = write(parameters="x: int = 1", seeds=2)
    with pytest.raises(ValueError, match="has no parameter train_seed, member_seed or seed"):
        sweeps.plan(sweeps.read(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected keys and values"),
        ("- 1", "expected keys and values"),
        ("a: [", r"file\.yaml, line 1: this is no YAML"),
        ("\x00", "this is no YAML"),
        ("grid: {x: [1]}\ngrid: {x: [2]}", r"line 1: this is no YAML: grid stands there twice"),
    ],
)
def test_files_that_are_no_sweep_are_refused_in_one_line(tmp_path, text, message):
    (tmp_path / "file.yaml").write_text(text)
    with pytest.raises(ValueError, match=message) as refused:
        sweeps.read(tmp_path / "file.yaml")
    assert "\n" not in str(refused.value)


def test_files_that_are_not_there_and_notebooks_that_are_none_are_refused(write, tmp_path):
    with pytest.raises(ValueError, match=r"cannot read the sweep file .*: Is a directory\."):
        sweeps.read(tmp_path)
    path = write()
    (tmp_path / "tiny note.ipynb").write_text("print('hello')")
    with pytest.raises(ValueError, match="is not a notebook"):
        sweeps.plan(sweeps.read(path))


def test_null_leaves_what_the_notebook_has(write):
    path = write(grid={"x": [None, 2]}, seeds=None)
    path.write_text(path.read_text() + "parameters: {y: null}")
    planned = sweeps.plan(sweeps.read(path))
    assert [row["parameters"] for row in planned] == [{}, {"x": 2}]


def test_files_that_say_nothing_count_as_missing(write, tmp_path):
    path, out = write(), tmp_path / "out"
    assert invoke("sweep", path, "--out", out).exit_code == 0
    state = next(out.glob("runs/*/state.json"))
    for text in ("", "3", '{"state": "weird"}'):
        state.write_text(text)
        assert [row["state"] for row in sweeps.rows(out)] == ["missing"]
    assert "1 to do" in invoke("sweep", path, "--out", out).output
    assert [row["state"] for row in sweeps.rows(out)] == ["done"]
    for text in ("", "[]", "null", '{"rows": 3}', '{"rows": [{}]}'):
        (out / "manifest.json").write_text(text)
        done = invoke("status", out)
        assert done.exit_code == 2
        assert "cannot be read: call fml sweep again" in " ".join(done.output.split())
    assert "0 to do" in invoke("sweep", path, "--out", out).output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shard", "3/2"], "expected i/n"),
        (["--shard", "a"], "expected I/N"),
        (["--out", "/dev/null/x"], "cannot make the folder"),
    ],
)
def test_options_out_of_range_are_refused(write, tmp_path, options, message):
    done = invoke("sweep", write(grid={"x": [1]}), "--out", tmp_path / "out", *options)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


def test_runs_reach_the_table_the_summary_and_the_figure(write, tmp_path):
    path, out = write(grid={"x": [1, 2]}, seeds=2), tmp_path / "my out"
    done = invoke("sweep", path, "--out", out, "--workers", 2)
    assert done.exit_code == 0, done.output
    assert "4 done" in done.output
    assert "x=2, seed 1: done in" in done.output
    again = invoke("sweep", path, "--out", out)
    assert "4 done before; 0 to do" in again.output
    assert invoke("status", out).exit_code == 0
    assert invoke("report", out).exit_code == 0
    table = list(csv.DictReader((out / "results.csv").open()))
    assert [(row["x"], row["seed"]) for row in table] == [("1", "0"), ("1", "1"), ("2", "0"), ("2", "1")]
    assert [float(row["mean_error"]) for row in table] == pytest.approx([1.05, 1.06, 2.05, 2.06])
    assert table[0]["host"]
    assert table[0]["seconds_train"] == "0.1"
    summary = list(csv.DictReader((out / "summary.csv").open()))
    assert [float(row["mean_error_mean"]) for row in summary] == pytest.approx([1.055, 2.055])
    assert float(summary[0]["mean_error_std"]) == pytest.approx(np.std([1.05, 1.06], ddof=1))
    assert (out / "figure.png").stat().st_size > 5000
    assert not list(out.rglob(".part-*"))


def test_a_sweep_that_grows_runs_only_what_is_new(write, tmp_path):
    out = tmp_path / "out"
    assert invoke("sweep", write(grid={"x": [1]}), "--out", out).exit_code == 0
    done = invoke("sweep", write(grid={"x": [1, 2]}), "--out", out)
    assert "1 done before; 1 to do" in done.output
    changed = invoke("sweep", write(code=WRITE + "\n", grid={"x": [1, 2]}), "--out", out)
    assert "0 done before; 2 to do" in changed.output, "other code makes other numbers"


FAILING = """
import os, signal, time
if x == 1:
    os.kill(os.getpid(), signal.SIGKILL)
elif x == 2:
    time.sleep(1000)
elif x == 3:
    1 / 0
elif x == 4:
    for _ in range(1000):
        print("o" * 100_000)
elif x == 6:
    from IPython.display import HTML, display
    for _ in range(100):
        display(HTML("o" * 1_000_000))
"""


def test_each_failure_is_a_row_with_its_reason_and_the_others_go_on(write, tmp_path):
    path, out = write(code=FAILING + WRITE, grid={"x": [1, 2, 3, 4, 5, 6]}, minutes=0.5), tmp_path / "out"
    done = invoke("sweep", path, "--out", out, "--workers", 2)
    assert done.exit_code == 1
    rows = {row["swept"]["x"]: row for row in sweeps.rows(out)}
    assert {x: rows[x]["state"] for x in rows if x != 5} == dict.fromkeys((1, 2, 3, 4, 6), "failed")
    assert rows[5]["state"] == "done"
    assert "the kernel died" in rows[1]["reason"]
    assert "longer than 30 seconds" in rows[2]["reason"]
    assert "raised ZeroDivisionError: division by zero" in rows[3]["reason"]
    assert "its output passed 10 MB" in rows[4]["reason"]
    assert "its output passed 10 MB" in rows[6]["reason"]
    for row in rows.values():
        partial = out / "runs" / row["id"] / "tiny note.ipynb"
        assert partial.stat().st_size < 1.1 * runs.OUTPUT_LIMIT
        nbformat.read(partial, as_version=4)
    assert "5 failed" in invoke("status", out).output
    assert "0 to do" in invoke("sweep", path, "--out", out).output, "what failed is not run again"
    retried = invoke("sweep", write(code=FAILING + WRITE, grid={"x": [3, 5]}), "--out", out, "--retry")
    assert "1 done before; 1 to do" in retried.output


def test_a_full_disk_stops_the_sweep_and_what_was_done_stays(write, tmp_path):
    full = "if x == 2:\n    raise OSError(28, 'No space left on device')\n"
    path, out = write(code=full + WRITE, grid={"x": [1, 2, 3]}), tmp_path / "out"
    done = invoke("sweep", path, "--out", out, "--workers", 1)
    assert done.exit_code == 1
    assert "no space left on the disk" in done.output
    assert "make room, and call again" in " ".join(done.output.split())
    assert [row["state"] for row in sweeps.rows(out)] == ["done", "missing", "missing"]


def kernels(folder):
    """Return the processes, kernels among them, that work on runs below a folder."""
    found = set()
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in part for part in process.info["cmdline"] or ()):
            found |= {process, *process.children(recursive=True)}
    return found


def is_kernel(process):
    try:
        return any("ipykernel" in part for part in process.cmdline())
    except psutil.Error:  # it has ended
        return False


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)
    return condition()


def test_a_killed_driver_leaves_nothing_running_and_is_carried_on(write, tmp_path):
    path = write(code="import time\ntime.sleep(0.5)\n" + WRITE, grid={"x": list(range(8))})
    out, random = tmp_path / "out", np.random.default_rng(int(time.time()))
    for _ in range(5):
        driver = fml("sweep", path, "--out", out, "--workers", 2)
        time.sleep(random.uniform(1, 6))
        started = kernels(out)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        assert wait_until(lambda started=started: not any(p.is_running() and p.status() != "zombie" for p in started))
    done = invoke("sweep", path, "--out", out, "--workers", 2)
    assert done.exit_code == 0, done.output
    rows = sweeps.rows(out)
    assert [row["state"] for row in rows] == ["done"] * 8
    assert [row["results"]["mean_error"] for row in rows] == pytest.approx([x + 0.05 for x in range(8)])
    assert sorted(p.name for p in (out / "runs").iterdir()) == sorted(row["id"] for row in rows)
    assert not list(out.rglob(".part-*"))
    for place in out.rglob("*.json"):
        json.loads(place.read_text())
    assert not kernels(out)


def test_ctrl_c_stops_the_runs_and_says_how_to_go_on(write, tmp_path):
    path, out = write(code="import time\ntime.sleep(60)", grid={"x": [1, 2, 3]}), tmp_path / "out"
    driver = fml("sweep", path, "--out", out, "--workers", 2)
    assert wait_until(lambda: len([p for p in kernels(out) if is_kernel(p)]) == 2, seconds=90)
    started = kernels(out)
    driver.send_signal(signal.SIGINT)
    output, _ = driver.communicate(timeout=30)
    assert driver.returncode == 130
    assert "call again to run what is missing" in output
    assert wait_until(lambda: not any(p.is_running() and p.status() != "zombie" for p in started))
    assert [row["state"] for row in sweeps.rows(out)] == ["missing"] * 3


def test_shards_share_the_runs_and_wait_for_no_other(write, tmp_path):
    path, out = write(grid={"x": [1, 2, 3, 4, 5]}), tmp_path / "out"
    drivers = [fml("sweep", path, "--out", out, "--shard", f"{i}/2", "--workers", 1) for i in (1, 2)]
    outputs = [driver.communicate(timeout=120)[0] for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], outputs
    assert "3 runs" in outputs[0]
    assert "2 runs" in outputs[1]
    assert [row["state"] for row in sweeps.rows(out)] == ["done"] * 5


def test_two_drivers_at_the_same_sweep_run_each_row_once(write, tmp_path):
    code = "import pathlib, uuid\npathlib.Path(out_dir).parent.parent.joinpath(f'{x}-{uuid.uuid4()}').write_text('')\n"
    path, out = write(code=code + WRITE, grid={"x": [1, 2, 3]}), tmp_path / "out"
    drivers = [fml("sweep", path, "--out", out, "--workers", 3) for _ in range(2)]
    outputs = [driver.communicate(timeout=120)[0] for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], outputs
    assert len([p for p in out.iterdir() if p.is_file() and p.name[0].isdigit()]) == 3


def test_threads_are_those_of_the_run(write, tmp_path):
    code = "import os, json, pathlib\nvalues = {'mean_error': int(os.environ['TF_NUM_INTRAOP_THREADS'])}\n"
    code += "pathlib.Path(out_dir, 'metrics.json').write_text(json.dumps(values))"
    out = tmp_path / "out"
    assert invoke("sweep", write(code=code), "--out", out, "--workers", 1, "--threads", 3).exit_code == 0
    assert sweeps.rows(out)[0]["results"]["mean_error"] == 3


def test_a_folder_that_holds_no_sweep_is_refused(tmp_path):
    for command in ("status", "report"):
        done = invoke(command, tmp_path)
        assert done.exit_code == 2
        assert "holds no manifest.json" in " ".join(done.output.split())


def steady(folder):
    """Return a sweep's table without what may differ between executions."""
    table = reports.table(sweeps.rows(folder))
    return [{k: v for k, v in row.items() if not k.startswith(reports.VOLATILE)} for row in table]


@pytest.fixture
def cluster():
    """Start a dask scheduler with two workers by hand; return its address."""
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    environment = os.environ | {"DASK_DISTRIBUTED__ADMIN__TICK__LIMIT": "60s"}
    started = [
        subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", "0", "--no-dashboard"],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
    ]
    address = next(line.split()[-1] for line in started[0].stderr if "Scheduler at" in line)
    worker = [
        sys.executable,
        "-m",
        "distributed.cli.dask_worker",
        address,
        "--nthreads",
        "1",
        "--no-nanny",
        "--no-dashboard",
    ]
    started += [subprocess.Popen(worker, stderr=subprocess.DEVNULL, env=environment) for _ in range(2)]
    yield address
    for process in started:
        process.terminate()
        process.wait(20)


def test_every_engine_gives_the_same_table(write, tmp_path, cluster):
    path = write(code=FAILING.replace("SIGKILL", "SIGTERM") + WRITE, grid={"x": [3, 5, 7]}, seeds=2)
    for name, engine in {"pool": [], "local": ["--dask", "local"], "cluster": ["--dask", cluster]}.items():
        done = invoke("sweep", path, "--out", tmp_path / name, "--workers", 2, *engine)
        assert done.exit_code == 1, done.output
        assert "4 done" in done.output
        assert ("dashboard" in done.output) == (name == "local")
    assert steady(tmp_path / "pool") == steady(tmp_path / "local") == steady(tmp_path / "cluster")
    assert len(steady(tmp_path / "pool")) == 6


def test_a_scheduler_that_does_not_answer_is_named(write, tmp_path, monkeypatch):
    monkeypatch.setattr(sweeps, "CONNECT_SECONDS", 2)
    done = invoke("sweep", write(), "--out", tmp_path / "out", "--dask", "tcp://127.0.0.1:1")
    assert done.exit_code == 2
    assert "no dask scheduler answers at tcp://127.0.0.1:1" in " ".join(done.output.split())


SLURM = pathlib.Path(results.ROOT / "sweeps" / "slurm")


def test_the_job_array_shares_the_runs(write, tmp_path):
    path, out = write(grid={"x": [1, 2, 3]}), tmp_path / "out"
    for task in ("1", "2"):
        environment = {"SLURM_ARRAY_TASK_ID": task, "SLURM_ARRAY_TASK_COUNT": "2", "PYTHON": sys.executable}
        command = ["bash", str(SLURM / "job_array.sh"), str(path), "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, cwd=results.ROOT)
        assert done.returncode == 0, done.stderr
        assert f"{3 - int(task)} done" in done.stdout
    assert [row["state"] for row in sweeps.rows(out)] == ["done"] * 3
    alone = subprocess.run(["bash", str(SLURM / "job_array.sh"), str(path)], capture_output=True, text=True)
    assert "run this with sbatch --array=1-N" in alone.stderr


def test_slurm_jobs_become_dask_workers(write, tmp_path):
    """With commands that stand in for SLURM's: a job is a process of this machine."""
    place = tmp_path / "bin"
    place.mkdir()
    (place / "sbatch").write_text(
        f'#!/bin/bash\ncp "$1" {tmp_path}/job-$$.sh\nsetsid bash {tmp_path}/job-$$.sh &> {tmp_path}/job.log &\n'
        'echo "Submitted batch job $!"\n'
    )
    (place / "scancel").write_text('#!/bin/bash\nkill -- "-$1" "$1" 2> /dev/null\ntrue\n')
    for name in ("sbatch", "scancel"):
        (place / name).chmod(0o755)
    path, out = write(grid={"x": [1, 2, 3]}), tmp_path / "out"
    command = [
        sys.executable,
        str(SLURM / "run_on_slurm.py"),
        str(path),
        "--out",
        str(out),
        "--jobs",
        "2",
        "--cores",
        "1",
    ]
    environment = os.environ | {"PATH": f"{place}:{os.environ['PATH']}"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [row["state"] for row in sweeps.rows(out)] == ["done"] * 3
    assert "#SBATCH --cpus-per-task=1" in next(tmp_path.glob("job-*.sh")).read_text()


EXAMPLES = sorted((results.ROOT / "sweeps").glob("*.yaml"))


def test_there_are_six_example_sweeps():
    assert len(EXAMPLES) == 6


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_sweeps_have_the_reports_of_what_they_plan(path):
    planned, report = sweeps.plan(sweeps.read(path)), path.with_suffix("")
    with open(report / "results.csv") as file:
        found = list(csv.DictReader(file))
    assert [row["run"] for row in found] == [row["id"] for row in planned], f"stale: fml sweep {path}, then fml report"
    assert {row["state"] for row in found} == {"done"}
    with open(report / "summary.csv") as file:
        assert sum(int(row["runs"]) for row in csv.DictReader(file)) == len(planned)
    assert (report / "figure.png").stat().st_size > 10_000


def test_the_page_on_choices_shows_the_reports():
    made = runpy.run_path(str(results.ROOT / "benchmarks" / "choices.py"))
    page = made["PAGE"].read_text()
    for name, content in made["tables"]().items():
        begin, end = results.marks(name)
        assert f"{begin}\n{content}\n{end}" in page, f"{name} is not renewed: make sweeps"
