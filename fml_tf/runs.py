"""One run of a notebook through papermill, in this process or in one of its own."""

import contextlib
import errno
import json
import math
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import threading
import time

from fml_tf import _cores, problems, results

#: Characters that a run of a sweep may put out before it is stopped.
OUTPUT_LIMIT = 10_000_000

#: Exit code of a run for which there was no space left to write.
DISK_FULL = 28


class TooMuchOutput(Exception):
    """Say that a notebook put out more than it may."""


def execute(notebook, executed, parameters, *, output_limit: int | None = None, **options) -> None:
    """Run a notebook through papermill, its cells in the folder where it lies.

    Args:
        notebook: the notebook to run.
        executed: path of the executed copy, written after each cell.
        parameters: values for its parameters cell, see `check_parameters`.
        output_limit: characters that it may put out: what it prints counts at once, what it displays when a cell ends.
        **options: of `papermill.execute_notebook`.

    Raises:
        papermill.PapermillExecutionError: for a cell that fails.
        TooMuchOutput: for more than `output_limit`.
    """
    import papermill  # slow to import, and needed here alone
    from nbclient.exceptions import DeadKernelError

    counter = _Counter(output_limit)
    if output_limit:
        options |= {"stdout_file": counter, "stderr_file": counter, "on_cell_executed": counter.take_displayed}
    try:
        papermill.execute_notebook(
            notebook,
            executed,
            parameters,
            kernel_name="python3",
            cwd=pathlib.Path(notebook).parent,
            extra_arguments=["--log-level=CRITICAL"],
            **options,
        )
    except (DeadKernelError, TooMuchOutput, papermill.PapermillExecutionError) as error:
        if not counter.exceeded:
            raise
        _trim(executed, output_limit)
        raise TooMuchOutput(f"its output passed {output_limit / 1e6:g} MB") from error


class _Counter:
    """Take what a notebook puts out, count it, and end the kernel when it is too much: it may never stop by itself."""

    def __init__(self, limit):
        self.left, self.exceeded = limit, False

    def write(self, text):
        self._count(len(text))

    def take_displayed(self, cell, **_):
        self._count(sum(len(json.dumps(output)) for output in cell.outputs if output.output_type != "stream"))

    def _count(self, characters):
        self.left -= characters
        if self.left < 0:
            self.exceeded = True
            _kill_children()
            raise TooMuchOutput  # so that no more of it is read

    def flush(self):
        pass


def _trim(path, limit):
    """Cut each output of a notebook: of what was printed the last characters stay, of what was displayed none."""
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if len(output.get("text", "")) > limit // 100:
                output["text"] = "[cut]\n" + output["text"][-limit // 100 :]
            if len(json.dumps(output.get("data", {}))) > limit // 100:
                output["data"] = nbformat.from_dict({"text/plain": "[cut]"})
    results.replace(pathlib.Path(path), lambda part: nbformat.write(notebook, part))


def check_parameters(kinds: dict[str, str], values: dict) -> dict:
    """Return values for a notebook's parameters in the types that its parameters cell declares.

    Text that reads as a number serves where a number belongs, as on a command line or for YAML, which takes `1e-4` for
    text; NumPy's scalars become Python's.

    Args:
        kinds: the declared types, see `declared`.
        values: name to value; None, or the text None, leaves the notebook's own.

    Raises:
        ValueError: for an unknown parameter, or a value that is not of its type.
    """
    for name in values:
        problems.check_known("parameter", name, kinds)
    return {name: _typed(name, value, kinds[name]) for name, value in values.items()}


def declared(notebook) -> dict[str, str]:
    """Return the names and the declared types of a notebook's parameters.

    Raises:
        ValueError: for a notebook without a cell tagged "parameters".
    """
    import papermill

    try:
        found = papermill.inspect_notebook(str(notebook))
    except ValueError as error:
        raise ValueError(f"{notebook} is not a notebook: expected a file as JupyterLab writes it (.ipynb).") from error
    if not found:
        raise ValueError(f"{notebook} has no cell tagged 'parameters': tag the one that sets what is to be varied.")
    return {name: parameter["inferred_type_name"] for name, parameter in found.items()}


def _typed(name, value, kind):
    value = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
    wanted = {"int": int, "float": float, "str": str, "bool": bool}.get(kind)
    if value is None or (isinstance(value, str) and value == "None"):  # as papermill's command line has it
        return None
    if wanted is None:  # not declared: as it is, but for 1e-4, which YAML takes for text
        if not _is_plain(value):
            raise ValueError(
                f"parameter {name}={value!r}: expected one plain value, a finite number or text in quotes."
            )
        return float(value) if re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", str(value)) else value
    if isinstance(value, dict | list | tuple) or hasattr(value, "tolist"):
        raise ValueError(
            f"parameter {name}={value!r}: expected one {kind}; values to sweep over stand in a list under grid."
        )
    with contextlib.suppress(ValueError, OverflowError, TypeError):
        if wanted in (str, bool) and type(value) is wanted:
            return value
        if wanted is int and not isinstance(value, bool) and float(value).is_integer():
            return value if isinstance(value, int) else int(float(value))
        if wanted is float and not isinstance(value, bool) and math.isfinite(float(value)):
            return float(value)
    several = isinstance(value, str) and value.startswith(("(", "["))
    raise ValueError(
        f"parameter {name}={value!r}: expected {'a finite float' if wanted is float else kind}"
        + ("; values to sweep over stand in a list under grid." if several else ".")
    )


def _is_plain(value):
    """Say whether a value means the same in YAML, JSON and Python."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    return isinstance(value, str | int | None) or (isinstance(value, float) and math.isfinite(value))


def start(folder, threads: int | None = None) -> dict:
    """Run the task of a folder in a process of its own, and return how it ended.

    The process ends with this one, however this one ends, and takes its kernel with it.

    Args:
        folder: it holds `task.json`: the notebook's path, its parameters, and the seconds it may take. The executed
            copy, what the notebook writes to its `out_dir`, and at last `state.json` go there.
        threads: that it may use; by default TensorFlow decides.

    Raises:
        OSError: with `errno.ENOSPC`, if the disk was full.
    """
    folder = pathlib.Path(folder)
    settings = {} if threads is None else dict.fromkeys(_cores.THREADS, str(threads))
    command = [sys.executable, "-m", "fml_tf.runs", str(folder)]
    with open(folder / "log.txt", "w") as log:
        with _STARTING:  # kernels that start at the same moment may choose the same port
            time.sleep(0.3)
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=os.environ | settings,
                start_new_session=True,  # Ctrl-C is for the sweep alone, which stops its runs
            )
            _STARTED.add(process)
        if _STOPPED.is_set():
            process.stdin.close()
        process.wait()
        _STARTED.discard(process)
        process.stdin.close()
    if process.returncode == DISK_FULL:
        raise OSError(errno.ENOSPC, "no space left on the disk", str(folder))
    state = read_state(folder)
    if state or _STOPPED.is_set():
        return state or {"state": "missing", "reason": "stopped"}
    if process.returncode < 0:
        return end(folder, "failed", f"the run was killed by signal {-process.returncode}, perhaps for its memory")
    return end(folder, "failed", f"the run ended with exit code {process.returncode}, see {folder / 'log.txt'}")


_STARTING, _STOPPED, _STARTED = threading.Lock(), threading.Event(), set()


def stop_all() -> None:
    """Stop the runs that this process has started: they leave no state, and count as missing."""
    _STOPPED.set()
    for process in list(_STARTED):
        process.stdin.close()


def start_anew() -> None:
    """Allow runs again after `stop_all`."""
    _STOPPED.clear()


def read_state(folder) -> dict | None:
    """Return what a run's folder says of its end; None while it has none."""
    try:
        values = json.loads((pathlib.Path(folder) / "state.json").read_text())
    except (OSError, ValueError):  # a file that says nothing counts as none
        return None
    whole = isinstance(values, dict) and values.get("state") in ("done", "failed")
    return values if whole and isinstance(values.get("results"), dict) else None


def is_running(folder) -> bool:
    """Say whether a process is at the run of a folder."""
    import filelock

    path = pathlib.Path(folder) / ".lock"
    if not path.exists():
        return False
    try:
        with filelock.FileLock(path, timeout=0):
            return False
    except filelock.Timeout:
        return True


def end(folder, state: str, reason: str = "", **more) -> dict:
    """Write how a run ended, whole or not at all, and return it."""
    values = {"state": state, "reason": reason, "seconds": None, "host": platform.node(), "results": {}, **more}
    results.write_json(pathlib.Path(folder) / "state.json", values)
    return values


def main(folder) -> int:
    """Do the task of a folder in this process; return its exit code."""
    import filelock

    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    folder = pathlib.Path(folder)
    with filelock.FileLock(folder / ".lock"):  # a second sweep in the same place waits for the first one's run
        if read_state(folder):
            return 0
        task = json.loads((folder / "task.json").read_text())
        for old in folder.iterdir():  # of an interrupted run
            if old.name not in ("task.json", "log.txt", ".lock"):
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        clock = threading.Timer(task["seconds"], _end_for_time, [folder, task["seconds"]])
        clock.daemon = True
        clock.start()
        begin = time.monotonic()
        try:
            reason, found = _attempt(folder, task)
            clock.cancel()
            end(folder, "failed" if reason else "done", reason, seconds=time.monotonic() - begin, results=found)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                return DISK_FULL
            raise
    return 0


def _attempt(folder, task):
    """Return why a run failed, an empty text if it did not, and its results."""
    import papermill
    from nbclient.exceptions import DeadKernelError

    notebook = pathlib.Path(task["notebook"])
    for left in (2, 1, 0):
        try:
            execute(notebook, folder / notebook.name, task["parameters"], output_limit=OUTPUT_LIMIT, progress_bar=False)
            return "", _results(folder)
        except papermill.PapermillExecutionError as error:
            if "No space left on device" in str(error.evalue):
                raise OSError(errno.ENOSPC, error.evalue) from error
            return f"cell [{error.exec_count}] raised {error.ename}: {' '.join(str(error.evalue).split())}", {}
        except (TooMuchOutput, ValueError) as error:
            return str(error), {}
        except DeadKernelError:
            return "the kernel died, perhaps for its memory", {}
        except RuntimeError as error:  # the kernel did not start: another took its port, or the machine is busy
            if not left:
                return f"the kernel did not start: {error}", {}
            time.sleep(5)


def _results(folder):
    """Return the plain numbers of a run's `metrics.json`, those of `seconds` as seconds_name.

    Raises:
        ValueError: for a file that is no JSON object.
    """
    path, found = folder / "metrics.json", {}
    if not path.exists():
        return found
    try:
        values = dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ValueError("metrics.json is no JSON object of names and numbers") from error
    if isinstance(values.get("seconds"), dict):
        values |= {f"seconds_{name}": value for name, value in values["seconds"].items()}
    for name, value in values.items():
        if value is None or isinstance(value, int | float):
            with contextlib.suppress(OverflowError):  # an integer that is no float
                found[name] = value if value is not None and math.isfinite(float(value)) else None
    return found


def _end_with_the_parent():
    """End when the other end of standard input is closed, as a system does when a process dies."""
    with contextlib.suppress(OSError):
        while os.read(0, 1000):  # not sys.stdin, whose lock would stand in the way of a normal end
            pass
    _exit()


def _end_for_time(folder, seconds):
    end(folder, "failed", f"it took longer than {seconds:g} seconds", seconds=seconds)
    _exit()


def _exit():
    """End this process at once, and its kernel before it."""
    _kill_children()
    os._exit(1)


def _kill_children():
    import psutil

    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            child.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
