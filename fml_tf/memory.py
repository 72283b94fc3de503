"""How much memory a system needs: the paper's resolution independence, and what the theory of embedding says."""

import dataclasses
import time
import warnings
from collections.abc import Callable, Sequence

import numpy as np
from scipy import signal, spatial

from fml_tf import _checks, data, metrics, polynomials

#: Numbers of memory steps that are tried by default.
GRID = (0, 1, 2, 3, 5, 8, 10, 15, 20, 30)


@dataclasses.dataclass(frozen=True)
class MemoryChoice:
    """Hold the result of `choose_memory`.

    Attributes:
        memory_steps: the chosen n_M, or None where no two forecasts of the grid agreed.
        memory_time: T_M = n_M Δ, in the units of the time step, or None.
        tolerance: how close two forecasts had to be.
        table: one dictionary a trained n_M: `memory_steps`, `memory_time`, `error` (of its forecast against the
            truth) and `change` (against the forecast of the n_M before it), both averaged over steps, of the median
            trajectory, and relative to the deviation of the data, and `seconds` of its training.
    """

    memory_steps: int | None
    memory_time: float | None
    tolerance: float
    table: tuple[dict, ...]


def choose_memory(
    trajectories,
    *,
    time_step: float,
    steps: int,
    grid: Sequence[int] = GRID,
    tolerance: float = 0.05,
    multi_steps: int = 10,
    n_bursts: int = 5,
    train: Callable | None = None,
    stop: bool = True,
    seed: int = 0,
) -> MemoryChoice:
    """Choose n_M by resolution independence: raise it until forecasts no longer change.

    One trajectory in ten is held out. For each n_M of the grid a model is trained on the others and forecasts those,
    all from the same moment. The first n_M whose forecast agrees with that of the next is chosen.

    Args:
        trajectories: `(trajectory, time, state)` of the observed variables, entries `time_step` apart.
        time_step: Δ, time between entries.
        steps: steps of the forecasts that are compared: long, but for a chaotic system no longer than forecasts can
            agree, a few Lyapunov times.
        grid: numbers of memory steps to try, rising.
        tolerance: forecasts agree if the mean l2 distance between them, for the median trajectory, is below this
            fraction of the norm of the data's deviations.
        multi_steps, n_bursts: K, and bursts taken from each trajectory, for training.
        train: a function from (bursts, memory_steps, seed) to a model with `forecast(history, steps)`: by default
            `train_network`; `fit_polynomial` takes seconds.
        stop: end with the first agreement; False trains the whole grid, for the table.
        seed: seed of the split, the bursts and the training.

    Raises:
        ValueError: for fewer than ten trajectories, ones that are too short for the largest n_M and the forecast,
            a grid that does not rise, or a tolerance that is not positive.

    Example:
        >>> choice = choose_memory(trajectories, time_step=0.01, steps=200, grid=(0, 1, 2, 3))
        >>> choice.memory_steps, choice.memory_time

    Source: paper, Section 3.2, on the choice of the memory, and Section 4.2.
    """
    values = _trajectories(trajectories)
    grid = [int(n) for n in grid]
    if len(grid) < 2 or grid[0] < 0 or sorted(set(grid)) != grid:
        raise ValueError(f"grid={tuple(grid)}: expected two numbers of memory steps or more, rising from 0 or above.")
    if not (tolerance > 0 and time_step > 0):
        raise ValueError(f"tolerance={tolerance!r}, time_step={time_step!r}: expected positive numbers.")
    _checks.count("steps", steps, 1)
    longest = grid[-1] + 1 + max(int(steps), multi_steps + 1)
    if len(values) < 10 or values.shape[1] < longest:
        raise ValueError(
            f"{len(values)} trajectories of {values.shape[1]} entries: expected 10 at least, of max(grid) + 1 + steps "
            f"= {longest} entries or more. Give more or longer ones, or lower steps or the grid."
        )
    train = train or train_network
    chosen = np.random.default_rng(seed).permutation(len(values))
    held_out, rest = np.split(values[chosen], [len(values) // 10])
    truth = held_out[:, grid[-1] + 1 :][:, :steps]
    scale = np.linalg.norm(values.std(axis=(0, 1)))
    table, forecast, agreed = [], None, None
    for place, n in enumerate(grid):
        start = time.perf_counter()
        bursts = data.cut_bursts(rest, memory_steps=n, multi_steps=multi_steps, n_bursts=n_bursts, seed=seed)
        model = train(bursts, n, seed)
        seconds = time.perf_counter() - start
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of forecasts that run away: the table shows them
            before, forecast = forecast, model.forecast(held_out[:, grid[-1] - n : grid[-1] + 1], int(steps))
        row = {"memory_steps": n, "memory_time": n * time_step, "error": _distance(forecast, truth) / scale}
        row |= {"change": None if before is None else _distance(forecast, before) / scale, "seconds": seconds}
        table.append(row)
        if agreed is None and before is not None and row["change"] <= tolerance:
            agreed = grid[place - 1]
            if stop:
                break
    return MemoryChoice(agreed, None if agreed is None else agreed * time_step, tolerance, tuple(table))


def _distance(a, b):
    """Return the mean l2 distance of two forecasts, of the median trajectory: one that runs away is one among all."""
    with np.errstate(over="ignore", invalid="ignore"):
        distances = np.linalg.norm(np.asarray(a, "float64") - b, axis=-1).mean(axis=1)
    return float(np.median(np.where(np.isfinite(distances), distances, np.inf)))


def train_network(bursts, memory_steps: int, seed: int = 0, *, members: int = 2, steps: int = 3000):
    """Train a small ensemble on bursts, enough to see what memory does; seconds, where a final one takes minutes.

    Args:
        bursts: `(sample, n_M + K + 2, state)`.
        memory_steps: n_M.
        seed: seed of initial weights and sample orders.
        members: size of the ensemble.
        steps: batches of 100 bursts to train on, in epochs of a hundred or more.
    """
    from fml_tf import models, optimizers, training  # TensorFlow is needed here alone

    model = models.FlowMap(
        bursts.shape[-1],
        memory_steps=memory_steps,
        members=members,
        normalization="whitened",  # else a history of two nearly equal entries takes long to tell them apart
        seed=seed,
    )
    batch = min(100, len(bursts))
    bursts = np.tile(bursts, (-(-100 * batch // len(bursts)), 1, 1))  # an epoch of a few steps costs more than they do
    epochs = -(-steps * batch // len(bursts))
    rate = training.learning_rate("cosine", 1e-2, steps=epochs * -(-len(bursts) // batch), final=1e-6)
    model.compile(optimizers.Soap(rate))
    model.fit(bursts, batch_size=batch, epochs=epochs, verbose=0)
    return model


def fit_polynomial(
    bursts, memory_steps: int, seed: int = 0, *, degree: int = 3, most_axes: int | None = 6, noise: float = 0.0
):
    """Fit a polynomial flow map to bursts.

    Args:
        bursts: `(sample, n_M + K + 2, state)`.
        memory_steps: n_M.
        seed: seed of the noise.
        degree, most_axes: see `PolynomialFlowMap`.
        noise: on the histories, see `data.add_noise`; a chaotic system of which a part is hidden wants some 1e-5.
    """
    model = polynomials.PolynomialFlowMap(
        bursts.shape[-1], memory_steps=memory_steps, degree=degree, most_axes=most_axes
    )
    return model.fit(data.add_noise(bursts, noise, memory_steps=memory_steps, seed=seed))


def observability_steps(propagator, observed: Sequence[int]) -> int | None:
    """Return how many past entries of the observed variables decide the state of a linear system, in exact arithmetic;
    None where no number does.

    Args:
        propagator: E, the matrix of one step, `(state, state)`: see `systems.LinearSystem.propagator`.
        observed: indices of the observed variables.
    """
    propagator = np.asarray(propagator, "float64")
    seen = np.eye(len(propagator))[list(observed)]
    rows = seen
    for n in range(len(propagator)):
        if np.linalg.matrix_rank(rows, tol=1e-10) == len(propagator):
            return n
        seen = seen @ propagator
        rows = np.concatenate([rows, seen])
    return None


def mutual_information(trajectories, *, lags: int, bins: int = 64) -> np.ndarray:
    """Return the mutual information of a variable with itself at lags 0 to `lags`, `(lag,)`, in nats.

    Its first minimum is a classical choice of the delay between the coordinates of an embedding.

    Args:
        trajectories: `(trajectory, time, 1)`.
        lags: largest lag, in entries.
        bins: bins of the histogram, equally filled.

    Raises:
        ValueError: for more than one variable, or trajectories too short, not finite or constant.

    Source: A. M. Fraser and H. L. Swinney, *Independent coordinates for strange attractors from mutual information*,
    Physical Review A 33 (1986).
    """
    values = metrics.one_variable(trajectories, int(lags) + 2, f"an information up to lag {lags}")
    edges = np.quantile(values, np.linspace(0, 1, bins + 1)[1:-1])
    cells, information = np.searchsorted(edges, values), []
    for lag in range(int(lags) + 1):
        now, then = cells[:, lag:].ravel(), cells[:, : cells.shape[1] - lag].ravel()
        joint = np.bincount(now * bins + then, minlength=bins * bins).reshape(bins, bins) / len(now)
        apart = np.outer(joint.sum(axis=1), joint.sum(axis=0))
        filled = joint > 0
        information.append(np.sum(joint[filled] * np.log(joint[filled] / apart[filled])))
    return np.array(information)


def first_minimum(values) -> int | None:
    """Return the place of the first minimum within a sequence, or None where it only falls or rises."""
    places = signal.argrelmin(np.asarray(values))[0]
    return int(places[0]) if len(places) else None


def false_neighbours(trajectories, *, delay: int, dimensions: int = 6, points: int = 5000, seed: int = 0) -> np.ndarray:
    """Return the share of false nearest neighbours in delay coordinates of 1 to `dimensions` entries, `(dimension,)`.

    Two neighbours are false if one more coordinate drives them apart, by more than 15 times their distance or two
    deviations of the variable. Where none are left, the coordinates unfold the attractor.

    Args:
        trajectories: `(trajectory, time, 1)`.
        delay: entries between coordinates, for instance the first minimum of `mutual_information`.
        dimensions: coordinates, at most.
        points: points drawn, at most.
        seed: seed of the draw.

    Raises:
        ValueError: for more than one variable, or trajectories too short, not finite or constant.

    Source: M. B. Kennel, R. Brown and H. D. I. Abarbanel, *Determining embedding dimension for phase-space
    reconstruction*, Physical Review A 45 (1992).
    """
    _checks.count("delay", delay, 1)
    span = delay * dimensions
    values = metrics.one_variable(trajectories, span + 2, "an embedding")
    windows = np.lib.stride_tricks.sliding_window_view(values, span + 1, axis=1)[..., ::delay].reshape(
        -1, dimensions + 1
    )
    chosen = np.random.default_rng(seed).choice(len(windows), min(points, len(windows)), replace=False)
    windows, deviation = windows[chosen], values.std()
    shares = []
    for dimension in range(1, dimensions + 1):
        near, place = spatial.cKDTree(windows[:, :dimension]).query(windows[:, :dimension], k=2)
        near, gap = near[:, 1], np.abs(windows[:, dimension] - windows[place[:, 1], dimension])
        false = (gap > 15 * near) | (np.hypot(near, gap) > 2 * deviation)
        shares.append(false[near > 0].mean())
    return np.array(shares)


def _trajectories(values):
    """Return trajectories as one float64 array `(trajectory, time, state)`."""
    values = np.asarray(values, "float64")
    if values.ndim != 3:
        raise ValueError(f"trajectories of shape {values.shape}: expected an array (trajectory, time, state).")
    if not np.isfinite(values).all():
        raise ValueError("the trajectories hold NaN or infinite values: leave those trajectories out.")
    return values
