"""Sweeps: a notebook run for many sets of parameters, each run in a process of its own, that survive interruption.

A sweep lives in a folder: `manifest.json` lists its runs, and each has a folder below `runs/`, named by what decides
its numbers. A run's end is one file, written in one step. So a sweep that was interrupted, or extended, is called
again, and what is missing is run; any engine may run it, on any machine that sees the folder.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import errno
import hashlib
import itertools
import json
import pathlib

import yaml

from fml_tf import _checks, _cores, problems, results, runs

#: Parameters of a notebook that take the seed of a run.
SEEDED = ("train_seed", "member_seed", "seed")

#: Seconds to wait for a dask scheduler's answer.
CONNECT_SECONDS = 30


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Hold what a sweep file says.

    Attributes:
        benchmark: number in the paper, whose notebook is run; or
        notebook: path of another notebook, relative to the sweep file.
        preset: preset of the benchmark; by default "quick".
        parameters: values that all runs have.
        grid: name to list of values: all combinations are run.
        sets: list of sets of parameters, each combined with the grid.
        seeds: seeds, or how many from 0 on; each goes to the notebook's parameters `train_seed`, `member_seed` and
            `seed`, those that it has.
        repeats: runs of the same parameters and seed.
        minutes: longest run.

    Raises:
        ValueError: for a value that is not as described.
    """

    benchmark: str | None = None
    notebook: str | None = None
    preset: str | None = None
    parameters: dict = dataclasses.field(default_factory=dict)
    grid: dict = dataclasses.field(default_factory=dict)
    sets: list = dataclasses.field(default_factory=list)
    seeds: list | int | None = None
    repeats: int = 1
    minutes: float = 60.0

    def __post_init__(self):
        if (self.benchmark is None) == (self.notebook is None):
            raise ValueError(f"benchmark={self.benchmark!r}, notebook={self.notebook!r}: expected one of the two.")
        if self.notebook is not None and self.preset is not None:
            raise ValueError(f"preset={self.preset!r}: only a benchmark has presets; leave it out.")
        for name, kind, example in (
            ("parameters", dict, "{epochs: 40}"),
            ("grid", dict, "{memory_steps: [1, 2, 5]}"),
            ("sets", list, "[{epochs: 20, members: 5}, {epochs: 50, members: 2}]"),
        ):
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"{name}={getattr(self, name)!r}: expected for instance {name}: {example}.")
        for name, values in self.grid.items():
            if not isinstance(values, list | tuple) or not len(values):
                raise ValueError(f"grid has {name}: {values!r}: expected a list of values, for instance [1, 2, 5].")
        if not all(isinstance(given, dict) for given in self.sets):
            raise ValueError(f"sets={self.sets!r}: expected a list of sets of parameters, [{{epochs: 20}}].")
        twice = [name for names in (self.parameters, *self.sets) for name in names if name in self.grid]
        if twice:
            raise ValueError(f"{', '.join(sorted(set(twice)))} stands in grid and beside it: give it in one place.")
        _checks.count("repeats", self.repeats, 1)
        number = isinstance(self.minutes, int | float) and not isinstance(self.minutes, bool)
        if not number or not 0 < self.minutes < 1e6:
            raise ValueError(f"minutes={self.minutes!r}: expected the minutes that a run may take, a number like 60.")
        seeds = self.seeds if isinstance(self.seeds, list | None) else [self.seeds]
        whole = all(isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in seeds or ())
        if not whole or self.seeds in (0, []):
            raise ValueError(f"seeds={self.seeds!r}: expected a list of whole numbers, or how many from 0 on.")

    @property
    def swept(self) -> list[str]:
        """Names of the parameters that differ between runs, seeds apart."""
        return list(dict.fromkeys([*self.grid, *itertools.chain(*self.sets)]))


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, which takes no key twice."""

    def construct_mapping(self, node, deep=False):
        names = [self.construct_object(key) for key, _ in node.value]
        twice = [str(name) for place, name in enumerate(names) if name in names[:place]]
        if twice:
            problem = f"{', '.join(twice)} stands there twice"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return super().construct_mapping(node, deep)


def read(path) -> Sweep:
    """Read a sweep from a YAML file.

    Raises:
        ValueError: for a file that cannot be read, unknown keys, or values that are not as `Sweep` describes.
    """
    path = pathlib.Path(path)
    try:
        given = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ValueError(f"cannot read the sweep file {path}: {error.strerror}.") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ValueError(f"{path}{where}: this is no YAML: {problem}.") from error
    if not isinstance(given, dict):
        raise ValueError(f"{path}: expected keys and values, for instance 'benchmark: 5.1.2' in the first line.")
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        problems.check_known("key of a sweep", name, [field.name for field in dataclasses.fields(Sweep)])
    if "notebook" in given:
        given["notebook"] = str((path.parent / str(given["notebook"])).resolve())
    return Sweep(**given)


def plan(sweep: Sweep) -> list[dict]:
    """Return a sweep's runs, checked: each a dictionary of `id`, `swept`, `seed`, `repeat` and its `parameters`.

    Raises:
        ValueError: for an unknown benchmark or parameter, a value of the wrong type or out of range.
    """
    notebook, preset = notebook_of(sweep), sweep.preset or "quick"
    seeds = list(range(sweep.seeds)) if isinstance(sweep.seeds, int) else (sweep.seeds or [None])
    kinds = runs.declared(notebook)
    seeded = _seeded(sweep, kinds) if sweep.seeds is not None else ()
    common = runs.check_parameters(kinds, sweep.parameters)
    code, rows = results.code_of(notebook), []
    for given, values in itertools.product(sweep.sets or [{}], itertools.product(*sweep.grid.values())):
        swept = runs.check_parameters(kinds, {**given, **dict(zip(sweep.grid, values, strict=True))})
        _check_free(sweep, {**common, **swept})
        record = problems.of_run(str(sweep.benchmark), preset, {**common, **swept}) if sweep.benchmark else None
        for seed, repeat in itertools.product(seeds, range(sweep.repeats)):
            parameters = {**common, **dict.fromkeys(seeded, seed), **swept}
            parameters = {name: value for name, value in parameters.items() if value is not None}
            if sweep.benchmark:
                parameters["preset"] = preset
            decided = [code, results.NUMERICS, record and record.choices(), parameters, repeat]
            name = hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()[:12]
            rows.append({"id": name, "swept": swept, "seed": seed, "repeat": repeat, "parameters": parameters})
    double = [name for name, count in collections.Counter(row["id"] for row in rows).items() if count > 1]
    if double:
        row = next(row for row in rows if row["id"] == double[0])
        raise ValueError(f"{describe(row)} stands in the sweep more than once: for runs of the same, give repeats.")
    return rows


def notebook_of(sweep: Sweep) -> pathlib.Path:
    """Return the path of the notebook that a sweep runs.

    Raises:
        ValueError: for an unknown benchmark, or a notebook that is not there.
    """
    if sweep.benchmark is not None:
        return results.notebook_of(str(sweep.benchmark))
    path = pathlib.Path(sweep.notebook).expanduser().resolve()
    if not path.is_file():
        raise ValueError(f"there is no notebook {path}: expected a path relative to the sweep file.")
    return path


def _seeded(sweep, kinds):
    """Return the parameters that take the seeds."""
    names = [name for name in SEEDED if name in kinds]
    if not names:
        raise ValueError(
            f"seeds are given, but the notebook has no parameter {', '.join(SEEDED[:-1])} or {SEEDED[-1]}."
        )
    twice = sorted({*names} & {*sweep.parameters, *sweep.swept})
    if twice:
        raise ValueError(f"seeds are given, and {', '.join(twice)} beside them: give one or the other.")
    return names


def _check_free(sweep, values):
    """Refuse parameters that a sweep sets itself."""
    for name in ("out_dir", "preset") if sweep.benchmark else ("out_dir",):
        if name in values:
            raise ValueError(f"{name} is not for a sweep to vary: each run has a folder and the sweep's preset.")


def run(
    sweep: Sweep,
    folder,
    *,
    workers: int | None = None,
    threads: int | None = None,
    dask: str | None = None,
    shard: tuple[int, int] = (1, 1),
    retry: bool = False,
    echo=print,
) -> list[dict]:
    """Run what is missing of a sweep.

    A run that fails, for whatever reason, is a row with the reason and its partial notebook, and the others go on.

    Args:
        sweep: what to run.
        folder: where; the same folder carries an interrupted sweep on.
        workers: runs at a time; by default one a core.
        threads: that each run may use; by default its share of the cores, and one on a cluster elsewhere.
        dask: address of the scheduler of a running `dask.distributed` cluster, or "local" for one of this machine
            that is started and stopped; by default a pool of processes here.
        shard: (i, n) to run the i-th of n shares, for n calls of which none waits for another.
        retry: run again what had failed.
        echo: takes a line for each run that ends.

    Returns:
        The rows of this call's share, as `rows` gives them.

    Raises:
        ValueError: for what `plan` refuses, a folder that cannot be written to, or a shard out of range.
        OSError: with `errno.ENOSPC` where the disk is full: what was done is intact.
        KeyboardInterrupt: when interrupted: running runs are stopped, and count as missing.
    """
    planned, (index, shares) = plan(sweep), shard
    if not 1 <= index <= shares:
        raise ValueError(f"shard {index}/{shares}: expected i/n with i from 1 to n.")
    cores = _cores.allowed()
    workers = workers or max(1, cores // (threads or 1))
    threads = threads or (max(1, cores // workers) if dask in (None, "local") else 1)
    folder = results.run_folder("sweep", folder).resolve()
    results.write_json(folder / "manifest.json", {"sweep": dataclasses.asdict(sweep), "rows": planned})
    chosen = planned[index - 1 :: shares]
    missing = _prepare(sweep, folder, chosen, retry)
    echo(f"{len(chosen)} runs, {len(chosen) - len(missing)} done before; {len(missing)} to do in {folder}")
    with _engine(dask, workers, threads, echo) as executor:
        futures = {executor.submit(runs.start, str(folder / "runs" / row["id"]), threads): row for row in missing}
        try:
            for number, future in enumerate(concurrent.futures.as_completed(futures), 1):
                row = futures[future]
                state = _ended(future, folder / "runs" / row["id"])
                echo(f"[{number}/{len(missing)}] {describe(row)}: {_outcome(state)}")
        except BaseException:
            runs.stop_all()
            executor.shutdown(wait=False, cancel_futures=True)
            raise
    mine = {row["id"] for row in chosen}
    return [row for row in rows(folder) if row["id"] in mine]


def _prepare(sweep, folder, chosen, retry):
    """Write the tasks of the runs that are missing, and return their rows."""
    notebook, missing = notebook_of(sweep), []
    takes_folder = "out_dir" in runs.declared(notebook)
    for row in chosen:
        place = folder / "runs" / row["id"]
        state = runs.read_state(place)
        if state and not (retry and state["state"] == "failed"):
            continue
        (place / "state.json").unlink(missing_ok=True)
        place.mkdir(parents=True, exist_ok=True)
        parameters = row["parameters"] | ({"out_dir": str(place)} if takes_folder else {})
        task = {"notebook": str(notebook), "parameters": parameters, "seconds": 60 * sweep.minutes}
        results.write_json(place / "task.json", task)
        missing.append(row)
    return missing


@contextlib.contextmanager
def _engine(dask, workers, threads, echo):
    """Give an executor: threads that each wait for one process of this machine, or a dask cluster."""
    if dask is None:
        runs.start_anew()
        with concurrent.futures.ThreadPoolExecutor(workers) as executor:
            yield executor
        return
    try:
        from dask import distributed
    except ImportError as error:
        raise ValueError("dask is not installed: pip install 'fml_tf[dask]', or leave --dask out.") from error
    with contextlib.ExitStack() as stack:
        if dask == "local":
            dask = stack.enter_context(distributed.LocalCluster(n_workers=workers, threads_per_worker=1))
            echo(f"dask dashboard: {dask.dashboard_link}")
        try:
            client = stack.enter_context(distributed.Client(dask, timeout=CONNECT_SECONDS))
        except OSError as error:
            raise ValueError(f"no dask scheduler answers at {dask}: start one with 'dask scheduler'.") from error
        yield client.get_executor(retries=0, pure=False)


def _ended(future, place):
    """Return the state of a run whose future is done; a worker that died is a failure of its run."""
    try:
        return future.result()
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        reason = error
    except Exception as error:
        reason = error
    return runs.read_state(place) or runs.end(place, "failed", f"the worker was lost: {reason}")


def describe(row: dict) -> str:
    """Return a row's swept parameters and seed as text."""
    parts = [f"{name}={' '.join(str(value).split())}" for name, value in row["swept"].items()]
    parts += [] if row["seed"] is None else [f"seed {row['seed']}"]
    parts += [f"repeat {row['repeat']}"] if row["repeat"] else []
    return ", ".join(parts) or "one run"


def _outcome(state):
    if state["state"] != "done":
        return f"{state['state']}: {state['reason']}"
    first = next((name for name in METRICS if name in state["results"]), None)
    return f"done in {state['seconds']:.0f} s" + (f", {first} {state['results'][first]:.3g}" if first else "")


#: Results that are shown first, where a run has them.
METRICS = ("valid_prediction_time", "mean_error")


def rows(folder) -> list[dict]:
    """Return a sweep's rows, with how far each has come.

    Args:
        folder: of the sweep.

    Returns:
        For each run what `plan` gave, and `state` (done, failed, running or missing), `reason`, `seconds`, `host` and
        `results`, a dictionary of numbers.

    Raises:
        ValueError: for a folder without a manifest.
    """
    folder = pathlib.Path(folder)
    try:
        planned = json.loads((folder / "manifest.json").read_text())["rows"]
        whole = all({"id", "swept", "seed", "repeat"} <= set(row) for row in planned)
    except FileNotFoundError as error:
        raise ValueError(f"{folder} holds no manifest.json: expected the folder of a sweep.") from error
    except (OSError, ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise ValueError(f"{folder / 'manifest.json'} cannot be read: call fml sweep again, which writes it anew.")
    empty = {"reason": "", "seconds": None, "host": None, "results": {}}
    found = []
    for row in planned:
        place = folder / "runs" / row["id"]
        state = runs.read_state(place) or {"state": "running" if runs.is_running(place) else "missing"}
        found.append({**row, **empty, **state})
    return found
