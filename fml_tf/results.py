"""Results as data: each notebook run writes `metrics.json` and figures; committed ones say when they are stale."""

import hashlib
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import re
import shutil
import tempfile
import uuid
import zipfile

import numpy as np

from fml_tf import problems

#: Raise by hand when a change of the package can change the numbers of a standard run; makes every notebook stale.
NUMERICS = 2

#: The repository, where the package is installed from one with `pip install -e .`.
ROOT = pathlib.Path(__file__).resolve().parent.parent

#: What every metrics.json holds.
KEYS = (
    "benchmark", "preset", "parameters", "seeds", "versions", "device", "data_hash", "seconds", "loss_initial",
    "loss_final", "loss_decades", "mean_error", "max_error", "error_times", "errors", "bounded_fraction",
)  # fmt: skip

#: Figures of committed runs that the README shows, kept beside the metrics.
README_FIGURES = {"5.1.1": ("trajectory", "error")}


def run_folder(problem, out_dir: str | None = None) -> pathlib.Path:
    """Return the folder that a run writes to, made if needed.

    Args:
        problem: the benchmark's record, or a topic's name.
        out_dir: a folder of your choice; None for `runs/<benchmark>-<preset>`, or `runs/<topic>`, in the repository,
            or below the current folder where the package is installed without one.

    Raises:
        ValueError: if it cannot be made or written to.
    """
    name = problem if isinstance(problem, str) else f"{problem.id}-{problem.preset}"
    folder = pathlib.Path(out_dir).expanduser() if out_dir else run_path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot make the folder {folder} ({error.strerror}): give another out_dir.") from error
    if not os.access(folder, os.W_OK):
        raise ValueError(f"the folder {folder} cannot be written to: give another out_dir.")
    return folder


def run_path(name: str) -> pathlib.Path:
    """Return where a run or a sweep of a name goes by default: below `runs/` in the repository, or in the current
    folder where the package is installed without one."""
    return (ROOT if (ROOT / "notebooks").is_dir() else pathlib.Path.cwd()) / "runs" / name


def describe(problem, errors, *, loss_initial, loss_final, bounded_fraction, **given) -> dict:
    """Return the record of a run, ready for `write_metrics`.

    Args:
        problem: the benchmark's record.
        errors: l2 errors over test trajectories, `(trajectory, time)`, see `metrics.l2_error`.
        loss_initial, loss_final: each member's loss over the training set before training and with its best
            weights, `(member,)`.
        bounded_fraction: fraction of the forecasts that stayed bounded.
        **given: `seeds`, `data_hash`, `seconds`, and whatever else the run reports.
    """
    from fml_tf._tensorflow import gpus  # here alone is TensorFlow needed

    errors = np.asarray(errors, "float64")
    average = errors.mean(axis=0)
    return {
        "benchmark": problem.id,
        "preset": problem.preset,
        "parameters": problem.numbers(),
        "versions": versions(),
        "device": {"name": "GPU" if gpus else "CPU", "machine": platform.machine(), "cores": os.cpu_count()},
        "loss_initial": loss_initial,
        "loss_final": loss_final,
        "loss_decades": float(np.min(np.log10(np.asarray(loss_initial) / np.asarray(loss_final)))),
        "mean_error": float(average.mean()),
        "max_error": float(average.max()),
        "error_times": [_digits(n * problem.time_step, 8) for n in range(1, errors.shape[1] + 1)],
        "errors": [_digits(error, 6) for error in average],
        "bounded_fraction": bounded_fraction,
        **given,
    }


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    names = ("fml_tf", "tensorflow", "keras", "numpy", "scipy")
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}


def write_metrics(folder, values: dict) -> pathlib.Path:
    """Write `metrics.json`, whole or not at all; numbers that are not finite become null.

    Args:
        folder: where, see `run_folder`.
        values: at least the keys in `KEYS`, see `describe`.

    Raises:
        ValueError: if a key is missing.
    """
    missing = [key for key in KEYS if key not in values]
    if missing:
        raise ValueError(f"metrics lack {', '.join(missing)}: results.describe gives most of them.")
    return write_json(pathlib.Path(folder) / "metrics.json", values)


def write_json(path, values) -> pathlib.Path:
    """Write values as JSON, whole or not at all; numbers that are not finite become null."""
    replace(path, lambda part: part.write_text(_json(values)))
    return path


def read_metrics(folder) -> dict:
    """Return the values of a folder's `metrics.json`."""
    return _read(pathlib.Path(folder) / "metrics.json")


def write_figure(folder, name: str, figure) -> pathlib.Path:
    """Write a figure as PNG, or in another format where `name` ends with one, whole or not at all."""
    path = pathlib.Path(folder) / (name if "." in name else f"{name}.png")
    replace(path, lambda part: figure.savefig(part, format=path.suffix[1:]))
    return path


def write_model(folder, model) -> pathlib.Path:
    """Write an ensemble as `model.keras`, without its optimiser's state and compressed, whole or not at all."""

    def write(part):
        with tempfile.TemporaryDirectory() as scratch:
            plain = pathlib.Path(scratch) / "model.keras"
            model.without_optimizer().save(plain)
            with zipfile.ZipFile(plain) as source, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as target:
                for name in sorted(source.namelist()):
                    target.writestr(name, source.read(name))

    path = pathlib.Path(folder) / "model.keras"
    replace(path, write)
    return path


def committed(benchmark: str, preset: str = "standard") -> pathlib.Path:
    """Return the path of a benchmark's committed metrics."""
    return ROOT / "results" / preset / f"{benchmark}.json"


def topics() -> list[str]:
    """Return the names of the notebooks on topics, which examine what the benchmarks' notebooks have learnt."""
    return sorted(path.stem for path in (ROOT / "notebooks" / "topics").glob("*.ipynb"))


def notebook_of(name: str) -> pathlib.Path:
    """Return the path of a benchmark's notebook, or of a topic's.

    Raises:
        ValueError: for an unknown name, or an installation without notebooks.
    """
    if name in topics():
        return ROOT / "notebooks" / "topics" / f"{name}.ipynb"
    problems.get(name)
    found = sorted((ROOT / "notebooks").glob(name.replace(".", "_") + "_*.ipynb"))
    if not found:
        raise ValueError(
            f"no notebook of {name} at {ROOT / 'notebooks'}: clone the repository and install it with "
            "'pip install -e .'."
        )
    return found[0]


def source_hash(name: str) -> str:
    """Return a hash of what decides a notebook's numbers: its code cells, `NUMERICS`, and the benchmark's standard
    record or, for a topic that loads them, the ensembles of all benchmarks, which their losses tell apart.

    Of the record, what is not a default: an option that is added later makes nothing stale.
    """
    code = code_of(notebook_of(name))
    if name in topics():
        loads = "load_pretrained" in " ".join(code)
        decided = [_read(committed(benchmark)).get("loss_final") for benchmark in problems.PAPER] if loads else []
    else:
        decided = _plain(problems.get(name).choices())
    return hashlib.sha256(json.dumps([code, decided, NUMERICS]).encode()).hexdigest()[:16]


def code_of(notebook) -> list[str]:
    """Return the source of each code cell of a notebook."""
    return ["".join(cell["source"]) for cell in _read(notebook)["cells"] if cell["cell_type"] == "code"]


def is_stale(name: str) -> bool:
    """Say whether a committed notebook was executed with other code, another record, or other numerics."""
    if name in topics():
        return _read(notebook_of(name))["metadata"].get("source") != source_hash(name)
    return not committed(name).exists() or _read(committed(name)).get("source") != source_hash(name)


def commit_run(benchmark: str, executed, folder) -> None:
    """Put an executed standard notebook, and its metrics with the source hash, where the committed ones stand."""
    values, target = read_metrics(folder), committed(benchmark)
    target.parent.mkdir(parents=True, exist_ok=True)
    _commit_notebook(benchmark, executed)
    values["source"] = source_hash(benchmark)
    write_json(target, values)
    replace(target.with_suffix(".keras"), lambda part: shutil.copy(pathlib.Path(folder) / "model.keras", part))
    for name in README_FIGURES.get(benchmark, ()):
        figure = pathlib.Path(folder) / f"{name}.png"
        replace(target.with_name(f"{benchmark}-{name}.png"), lambda part, figure=figure: shutil.copy(figure, part))


def commit_topic(name: str, executed) -> None:
    """Put an executed notebook on a topic, with its source hash, where the committed one stands."""
    _commit_notebook(name, executed, source=source_hash(name))


def _commit_notebook(name, executed, **metadata):
    notebook = _read(executed)
    notebook["metadata"].pop("papermill", None)
    for cell in notebook["cells"]:
        for key in ("papermill", "execution"):
            cell["metadata"].pop(key, None)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook["metadata"] |= {"kernelspec": kernel, **metadata}
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    replace(notebook_of(name), lambda part: part.write_text(text))


def _read(path):
    return json.loads(pathlib.Path(path).read_text())


def table(preset: str = "standard") -> str:
    """Return the committed results of a preset as a Markdown table, one row a benchmark."""
    head = [
        "benchmark", "observed", "n_M", "mean ℓ2 error", "largest in time", "persistence", "valid, Lyapunov times",
        "decades of loss", "training", "bounded",
    ]  # fmt: skip
    paths = {record: committed(benchmark, preset) for benchmark, record in problems.PAPER.items()}
    return markdown([head, *(_row(record, _read(path)) for record, path in paths.items() if path.exists())])


def _row(record, values):
    hidden = len(record.system.state_names) - len(record.observed)
    names = ", ".join(record.state_names) if len(record.observed) < 5 else f"y1 to y{len(record.observed)}"
    return [
        f"[{record.id}](notebooks/{notebook_of(record.id).name}) {record.system.name}",
        f"{names} ({'all' if not hidden else f'{hidden} hidden'})",
        str(record.memory_steps),
        f"{values['mean_error']:.1e}",
        f"{values['max_error']:.1e}",
        f"{values['baseline_errors']['persistence']:.1e}",
        f"{values['valid_prediction_time']:.1f}" if "valid_prediction_time" in values else "",
        f"{values['loss_decades']:.1f}",
        f"{values['seconds']['train'] / 60:.0f} min",
        f"{100 * values['bounded_fraction']:.0f} %",
    ]


def markdown(rows: list[list[str]]) -> str:
    """Return rows of cells, the first its head, as a Markdown table."""
    head, *rest = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rest])


def update_readme() -> pathlib.Path:
    """Write the table of the standard results into the README, between its two marks.

    Raises:
        ValueError: if the marks are missing.
    """
    path = ROOT / "README.md"
    write_tables(path, {"results": table()})
    return path


def marks(name: str) -> tuple[str, str]:
    """Return the two lines of a Markdown page between which a generated table stands."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def write_tables(path, tables: dict[str, str]) -> None:
    """Write generated tables into a Markdown page, each between the marks of its name.

    Raises:
        ValueError: if marks are missing.
    """
    text = path.read_text()
    for name, content in tables.items():
        begin, end = marks(name)
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"{path} lacks the lines {begin} and {end}, where the table belongs.")
        before, rest = text.split(begin)
        after = rest.split(end)[1]
        text = f"{before}{begin}\n{content}\n{end}{after}"
    replace(path, lambda part: part.write_text(text))


def replace(path, write):
    """Let `write` fill a file beside `path`, then move it there in one step."""
    part = path.with_name(f".part-{uuid.uuid4().hex[:8]}-{path.name}")  # the ending, by which writers choose a format
    try:
        write(part)
        with open(part, "r+b") as file:
            os.fsync(file.fileno())  # or a power cut could leave the new name without its content
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _json(values):
    """Return values as JSON text, each list of plain numbers on a line of its own."""
    text = json.dumps(_plain(values), indent=1, allow_nan=False)
    return re.sub(r"\[[^\[\]{}\"]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text) + "\n"


def _digits(value, digits):
    return float(f"{value:.{digits}g}")


def _plain(value):
    """Return a value as JSON knows it."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
