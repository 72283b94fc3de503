"""The paper's benchmarks as frozen records, and the presets that say how each is trained.

Every number of a benchmark stands here, as data: `PAPER` holds the key-parameter lists of the paper's Section 5,
`PRESETS` what each preset changes in them.
"""

import dataclasses
import difflib
import math
from typing import Any

from fml_tf import _checks, systems


@dataclasses.dataclass(frozen=True)
class Stage:
    """Hold one training that comes before a problem's own: epochs of an optimiser on roll-outs over `multi_steps` + 1
    steps, cut from the bursts, with `noise` on the histories (None: the record's)."""

    epochs: int
    multi_steps: int = 0
    optimizer: str = "soap"
    learning_rate: float = 3e-2
    batch_size: int = 500
    noise: float | None = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            _check_field(field.name, getattr(self, field.name), field.type)


@dataclasses.dataclass(frozen=True)
class Problem:
    """Hold everything that defines one benchmark and its training.

    Times are in time units of the system. `trajectory_length` and `burst_length` count entries; `horizon` counts
    predicted steps. `schedule` is one of `training.learning_rate`; `final_learning_rate` is where it ends, and where
    a cycle starts. `normalization`, `skip` and `dtype` are the model's, see `models.FlowMap`. `stages` are
    trained first, in their order. `noise` on the training histories is a fraction of each variable's deviation.
    `averaging` is "equal", as in the paper, or "inverse_loss": the members' shares in the mean, see `FlowMap.weigh`.
    """

    id: str
    title: str
    system: Any
    observed: tuple[int, ...]
    time_step: float
    domain: tuple[tuple[float, float], ...]
    n_trajectories: int
    trajectory_length: int
    n_bursts: int
    memory_steps: int
    multi_steps: int
    hidden: tuple[int, ...]
    members: int
    learning_rate: float
    epochs: int
    horizon: int
    preset: str = "paper"
    schedule: str = "constant"
    final_learning_rate: float = 0.0
    batch_size: int = 200
    activation: str = "tanh"
    normalization: str | None = None
    skip: str | None = None
    dtype: str = "float32"
    n_test: int = 100
    optimizer: str = "adam"
    stages: tuple[Stage, ...] = ()
    noise: float = 0.0
    averaging: str = "equal"

    def __post_init__(self):
        for field in dataclasses.fields(self):
            _check_field(field.name, getattr(self, field.name), field.type)
        variables = len(self.system.state_names)
        if not self.observed or not all(i in range(variables) for i in self.observed):
            raise ValueError(
                f"observed={self.observed!r}: expected indices of the {variables} variables of the system."
            )
        if len(self.domain) != variables or not all(low < high for low, high in self.domain):
            raise ValueError(f"domain={self.domain!r}: expected (low, high), low < high, for {variables} variables.")
        if self.burst_length > self.trajectory_length:
            raise ValueError(
                f"a burst of n_M + K + 2 = {self.memory_steps} + {self.multi_steps} + 2 = {self.burst_length} entries "
                f"does not fit a trajectory of {self.trajectory_length}: lower memory_steps or multi_steps, or raise "
                "trajectory_length."
            )
        longest = max((stage.multi_steps for stage in self.stages), default=0)
        if longest > self.multi_steps:
            raise ValueError(
                f"a stage of multi_steps={longest} needs longer bursts than multi_steps={self.multi_steps} gives: "
                "raise multi_steps."
            )
        starts = self.trajectory_length - self.burst_length + 1
        if self.n_bursts > starts:
            raise ValueError(
                f"n_bursts={self.n_bursts} bursts do not fit a trajectory of {self.trajectory_length} entries, which "
                f"has {starts} places to start one: lower n_bursts or raise trajectory_length."
            )

    @property
    def burst_length(self) -> int:
        """Entries in one training burst: n_M + K + 2 (paper, equation n_data)."""
        return self.memory_steps + self.multi_steps + 2

    @property
    def n_samples(self) -> int:
        """Bursts in the training set: N = n_bursts * n_trajectories."""
        return self.n_bursts * self.n_trajectories

    def windows(self, stage) -> int:
        """Windows that a stage, or the record itself, cuts from each burst: shorter roll-outs fit in more often."""
        return 1 + (self.multi_steps - stage.multi_steps) // 4

    @property
    def exponent(self) -> float | None:
        """Largest Lyapunov exponent of the system, per time unit; None where it is not chaotic."""
        return getattr(self.system, "exponent", None)

    @property
    def stage_epochs(self) -> int:
        """Epochs of all stages together, before those of the multi-step loss."""
        return sum(stage.epochs for stage in self.stages)

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the observed variables."""
        return tuple(self.system.state_names[i] for i in self.observed)

    def numbers(self) -> dict[str, Any]:
        """Return the record as plain values, the system by its name: what result files keep."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        stages = [
            {name: value for name, value in dataclasses.asdict(stage).items() if value is not None}
            for stage in self.stages
        ]
        return {**values, "system": self.system.name, "stages": stages}

    def choices(self) -> dict[str, Any]:
        """Return the numbers that are not a field's default: what decides a run, whatever options are added later."""
        defaults = {f.name: f.default for f in dataclasses.fields(self)}
        return {name: value for name, value in self.numbers().items() if getattr(self, name) != defaults[name]}


#: Smallest value that each whole number of a record may take.
_AT_LEAST = dict.fromkeys(("memory_steps", "multi_steps"), 0) | dict.fromkeys(
    ("n_trajectories", "trajectory_length", "n_bursts", "members", "epochs", "horizon", "batch_size", "n_test"), 1,
)  # fmt: skip


def _check_field(name, value, declared):
    """Refuse a value of the wrong kind or range, naming it."""
    if name in _AT_LEAST:
        _checks.count(name, value, _AT_LEAST[name])
    elif declared is float or (declared == float | None and value is not None):
        zero = name in ("final_learning_rate", "noise")  # which alone may be zero
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value < 0 or (value == 0 and not zero):
            raise ValueError(f"{name}={value!r}: expected a positive number{', or 0' * zero}.")
    elif name == "hidden":
        if not isinstance(value, tuple) or not value or not all(isinstance(n, int) and n > 0 for n in value):
            raise ValueError(f"hidden={value!r}: expected the nodes of each hidden layer, for instance (10, 10, 10).")
    elif name == "stages":
        if not isinstance(value, tuple) or not all(isinstance(stage, Stage) for stage in value):
            raise ValueError(f"stages={value!r}: expected a tuple of problems.Stage.")
    elif name in CHOICES and value not in CHOICES[name]:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(map(str, CHOICES[name]))}.")


CHOICES = {
    "schedule": ("constant", "cosine", "one_cycle", "cyclic"),
    "optimizer": ("adam", "soap", "levenberg_marquardt"),
    "skip": (None, "linear"),
    "dtype": ("float32", "float64"),
    "averaging": ("equal", "inverse_loss"),
}

_SMALL_BOX = ((0.0, 2.0), (0.0, 2.0))
_PENDULUM_BOX = ((-math.pi / 2, math.pi / 2), (-math.pi, math.pi))

_SMALL = Problem(
    id="5.1.1",
    title="Small decaying linear system, fully observed",
    system=systems.SMALL_LINEAR,
    observed=(0, 1),
    time_step=0.01,
    domain=_SMALL_BOX,
    n_trajectories=10_000,
    trajectory_length=200,
    n_bursts=5,
    memory_steps=0,
    multi_steps=10,
    hidden=(10, 10, 10),
    members=10,
    learning_rate=1e-4,
    epochs=10_000,
    horizon=200,
)
_OSCILLATORY = dataclasses.replace(
    _SMALL, id="5.2.1", title="Oscillatory linear system, fully observed", system=systems.OSCILLATORY_LINEAR
)
_PENDULUM = dataclasses.replace(
    _SMALL,
    id="5.3.1",
    title="Damped pendulum, fully observed",
    system=systems.PENDULUM,
    domain=_PENDULUM_BOX,
    trajectory_length=1000,
    horizon=1000,
)
_RANDOM_PENDULUM = dataclasses.replace(
    _PENDULUM,
    id="5.3.2",
    title="Damped pendulum of unknown damping, angle and velocity observed",
    system=systems.RANDOM_PENDULUM,
    domain=(*_PENDULUM_BOX, (0.0, 0.2)),
    memory_steps=10,
)
_LORENZ = dataclasses.replace(
    _SMALL,
    id="5.4.1",
    title="Lorenz system, fully observed",
    system=systems.LORENZ,
    observed=(0, 1, 2),
    domain=((-math.pi / 2, math.pi / 2),) * 3,
    trajectory_length=10_000,
    horizon=10_000,
    hidden=(30, 30, 30),
)
_LARGE = dataclasses.replace(
    _SMALL,
    id="5.5.1",
    title="Large linear system, ten of twenty variables observed",
    system=systems.LARGE_LINEAR,
    observed=tuple(range(10)),
    time_step=0.02,
    domain=((-2.0, 2.0),) * 20,
    trajectory_length=100,
    horizon=100,
    memory_steps=30,
    hidden=(100, 100, 100),
)


def _partly(record, number, title, observed):
    """Return a record with some variables hidden and the paper's ten memory steps."""
    return dataclasses.replace(record, id=number, title=title, observed=observed, memory_steps=10)


#: The key-parameter list of each benchmark, to the letter; batch size and activation, which the paper leaves out,
#: are 200 (the group's own published code) and tanh. The horizon is the paper's L.
PAPER = {
    record.id: record
    for record in (
        _SMALL,
        _partly(_SMALL, "5.1.2", "Small decaying linear system, one variable observed", (0,)),
        _OSCILLATORY,
        _partly(_OSCILLATORY, "5.2.2", "Oscillatory linear system, one variable observed", (0,)),
        _PENDULUM,
        _RANDOM_PENDULUM,
        _partly(_RANDOM_PENDULUM, "5.3.3", "Damped pendulum of unknown damping, angle observed", (0,)),
        _LORENZ,
        _partly(_LORENZ, "5.4.2", "Lorenz system, x and y observed", (0, 1)),
        _partly(_LORENZ, "5.4.3", "Lorenz system, x observed", (0,)),
        _LARGE,
    )
}

_SOAP = dict(optimizer="soap", learning_rate=1e-2, schedule="cosine", final_learning_rate=1e-7, batch_size=500)
_LINEAR = dict(_SOAP, activation="relu", normalization="standard")
_SMOOTH = dict(_SOAP, activation="gelu", normalization="standard", learning_rate=1e-3)
_REFINED = dict(
    optimizer="levenberg_marquardt", schedule="cosine", final_learning_rate=1e-7, activation="gelu", epochs=1,
)  # fmt: skip


def _least_squares(epochs, **fields):
    return Stage(epochs, optimizer="levenberg_marquardt", **{"batch_size": 5000, **fields})


_FALLING_NOISE = tuple(
    _least_squares(epochs, noise=noise) for epochs, noise in ((4, 1e-5), (4, 3e-6), (6, 1e-6), (6, 3e-7), (10, 1e-7))
)
_UNKNOWN_DAMPING = dict(
    _REFINED, normalization="whitened", dtype="float64", noise=1e-7, batch_size=5000,
    stages=(Stage(40, batch_size=1000, noise=1e-5), *_FALLING_NOISE),
)  # fmt: skip
_NOISY_LORENZ = dict(
    _SMOOTH, noise=1e-5, epochs=15, learning_rate=1e-4,
    stages=(Stage(60, noise=1e-4), _least_squares(1, noise=3e-5), _least_squares(1, noise=1e-5)),
)  # fmt: skip
_QUIET_LORENZ = dict(
    _SMOOTH, noise=1e-6, epochs=15, learning_rate=1e-4,
    stages=(
        Stage(120, learning_rate=1e-2, noise=1e-4),
        *(_least_squares(epochs, noise=noise) for epochs, noise in ((1, 3e-5), (1, 1e-5), (2, 3e-6), (2, 1e-6))),
    ),
)  # fmt: skip
_SMALL_DATA = dict(n_trajectories=2000, members=2, batch_size=100)

#: What each preset changes in the paper's record.
PRESETS = {
    "5.1.1": {
        "standard": dict(_LINEAR, epochs=200),
        "quick": dict(_LINEAR, **_SMALL_DATA, epochs=40),
    },
    "5.1.2": {
        "standard": dict(_LINEAR, epochs=300),
        "quick": dict(_LINEAR, **_SMALL_DATA, epochs=30),
    },
    "5.2.1": {
        "standard": dict(_LINEAR, epochs=200),
        "quick": dict(_LINEAR, **_SMALL_DATA, epochs=40),
    },
    "5.2.2": {
        "standard": dict(_LINEAR, epochs=150),
        "quick": dict(_LINEAR, **_SMALL_DATA, epochs=30),
    },
    "5.3.1": {
        "standard": dict(
            _REFINED,
            normalization="standard",
            batch_size=10_000,
            epochs=3,
            stages=(Stage(40, batch_size=1000), _least_squares(15, batch_size=15_000)),
        ),
        "quick": dict(_SMOOTH, **_SMALL_DATA, stages=(Stage(40),), epochs=20),
    },
    "5.3.2": {
        "standard": _UNKNOWN_DAMPING,
        "quick": dict(_SMOOTH, **_SMALL_DATA, stages=(Stage(40),), epochs=15),
    },
    "5.3.3": {
        "standard": _UNKNOWN_DAMPING,
        "quick": dict(_SMOOTH, **_SMALL_DATA, stages=(Stage(40),), epochs=15),
    },
    "5.4.1": {
        "standard": dict(_SMOOTH, stages=(Stage(120), _least_squares(2)), epochs=30, learning_rate=1e-4),
        "quick": dict(_SMOOTH, **_SMALL_DATA, trajectory_length=4000, stages=(Stage(30),), epochs=8),
    },
    "5.4.2": {
        "standard": _NOISY_LORENZ,
        "quick": dict(_SMOOTH, **_SMALL_DATA, trajectory_length=4000, learning_rate=1e-2, epochs=15),
    },
    "5.4.3": {
        "standard": _QUIET_LORENZ,
        "quick": dict(_SMOOTH, **_SMALL_DATA, trajectory_length=4000, learning_rate=1e-2, epochs=15),
    },
    "5.5.1": {
        "standard": dict(_LINEAR, stages=(Stage(60, learning_rate=1e-2),), epochs=15, learning_rate=1e-3),
        "quick": {
            **_LINEAR,
            **_SMALL_DATA,
            "learning_rate": 1e-3,
            "n_bursts": 1,
            "stages": (Stage(20, learning_rate=1e-2, batch_size=100),),
            "epochs": 3,
        },
    },
}


def _with_common(benchmark, presets):
    """Add what all benchmarks have: the paper's own numbers, and the linear skip path, beside which the network of a
    linear system has nothing left to learn."""
    trained = (
        dict(_LINEAR, epochs=10) if isinstance(PAPER[benchmark].system, systems.LinearSystem) else presets["standard"]
    )
    return {"paper": {}, **presets, "skip": {**trained, "skip": "linear", "dtype": "float64"}}


PRESETS = {benchmark: _with_common(benchmark, presets) for benchmark, presets in PRESETS.items()}


def get(benchmark: str, preset: str = "standard", **overrides) -> Problem:
    """Return the record of a benchmark under a preset.

    Args:
        benchmark: its number in the paper, for instance "5.1.1".
        preset: "paper" (the paper's numbers), "standard" (what the committed notebooks ran), "quick", or "skip"
            (standard with a linear skip path).
        **overrides: fields of `Problem` to change; `None` keeps the preset's value.

    Raises:
        ValueError: for an unknown benchmark, preset or field, or a value out of range.

    Example:
        >>> get("5.1.1", "quick", members=3).members
        3
    """
    check_known("benchmark", benchmark, PAPER)
    check_known("preset", preset, PRESETS[benchmark])
    fields = [f.name for f in dataclasses.fields(Problem)]
    for name in overrides:
        check_known("field of a problem", name, fields)
    given = {name: value for name, value in overrides.items() if value is not None}
    for name, value in given.items():
        given[name] = tuple(value) if isinstance(value, list) else value.item() if hasattr(value, "item") else value
    return dataclasses.replace(PAPER[benchmark], **{"preset": preset, **PRESETS[benchmark][preset], **given})


def of_run(benchmark: str, preset: str, parameters: dict[str, Any]) -> Problem:
    """Return the record that a benchmark's notebook makes of its parameters, of which seeds and folders are no part.

    Raises:
        ValueError: for what `get` refuses.
    """
    fields = {field.name for field in dataclasses.fields(Problem)}
    return get(benchmark, preset, **{name: value for name, value in parameters.items() if name in fields})


def check_known(kind: str, name: str, known) -> None:
    """Refuse a name that is not among the known ones, proposing the nearest."""
    if name not in known:
        near = difflib.get_close_matches(str(name), list(known), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(known)}.")
