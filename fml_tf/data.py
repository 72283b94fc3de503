"""Training bursts and test trajectories: drawn while the trajectories stream by, never all held at once."""

import hashlib
import warnings
from collections.abc import Sequence

import numpy as np

from fml_tf import _checks


def sample_bursts(problem, *, seed: int = 0) -> np.ndarray:
    """Draw the training set of a benchmark: short bursts from many trajectories (paper, Section 4.3).

    Initial conditions are uniform in the domain. From each trajectory `n_bursts` segments of n_M + K + 2 entries
    are taken, their starts uniform and without repeats. The starts are drawn first and all trajectories march
    together, so only the bursts are ever kept.

    Args:
        problem: the benchmark's record, see `problems.get`.
        seed: seed of the training data; the same number given to `sample_trajectories` draws others.

    Returns:
        Bursts, `(n_samples, burst_length, observed state)`, float64; the bursts of one trajectory stand together.

    Example:
        >>> sample_bursts(problems.get("5.1.1", "quick")).shape
        (5000, 12, 2)
    """
    rng = _stream(seed, "train")
    states = _initial_states(problem, problem.n_trajectories, rng)
    starts = _draw_starts(
        np.full(problem.n_trajectories, problem.trajectory_length), problem.burst_length, problem.n_bursts, rng
    )
    bursts = np.empty((problem.n_trajectories, problem.n_bursts, problem.burst_length, len(problem.observed)))
    step = problem.system.flow(problem.time_step)
    last = starts.max() + problem.burst_length
    for time in range(last):
        place = time - starts  # (trajectory, burst): the entry of each burst that is due now
        trajectory, burst = np.nonzero((place >= 0) & (place < problem.burst_length))
        bursts[trajectory, burst, place[trajectory, burst]] = states[trajectory][:, problem.observed]
        if time + 1 < last:
            states = step(states)
    return bursts.reshape(-1, *bursts.shape[2:])


def sample_trajectories(problem, *, seed: int = 1, steps: int | None = None, spin_up: float = 0.0) -> np.ndarray:
    """Return trajectories from fresh initial conditions of the same law, to test a forecast on.

    Args:
        problem: the benchmark's record.
        seed: seed of the test data.
        steps: steps to predict after the given history; by default the record's `horizon`.
        spin_up: time, in the system's units, that passes from the initial condition to the first entry; 20 puts the
            Lorenz system on its attractor.

    Returns:
        `(n_test, n_M + 1 + steps, observed state)`, float64: the first n_M + 1 entries are the history that a
        forecast is given, the first of all the initial condition, or what became of it after the spin-up.
    """
    states = sample_full_trajectories(problem, seed=seed, steps=steps, spin_up=spin_up)
    return np.ascontiguousarray(states[:, :, problem.observed])


def sample_full_trajectories(problem, *, seed: int = 1, steps: int | None = None, spin_up: float = 0.0) -> np.ndarray:
    """Return the same trajectories with every variable, also those that are not observed.

    Returns:
        `(n_test, n_M + 1 + steps, state)`, float64; see `sample_trajectories`.
    """
    steps = problem.horizon if steps is None else steps
    _checks.count("steps", steps, 1)
    if not 0 <= spin_up < np.inf:
        raise ValueError(f"spin_up={spin_up!r}: expected a time of 0 or more.")
    states = _initial_states(problem, problem.n_test, _stream(seed, "test"))
    step = problem.system.flow(problem.time_step)
    for _ in range(round(spin_up / problem.time_step)):
        states = step(states)
    entries = np.empty((problem.memory_steps + 1 + steps, *states.shape))
    entries[0] = states
    for time in range(1, len(entries)):
        entries[time] = step(entries[time - 1])
    return entries.swapaxes(0, 1)


def cut_bursts(
    trajectories, *, memory_steps: int = 0, multi_steps: int = 10, n_bursts: int = 5, seed: int = 0
) -> np.ndarray:
    """Cut training bursts from trajectories of your own.

    Args:
        trajectories: one array `(trajectory, time, state)`, or a sequence of arrays `(time, state)` of any lengths,
            entries a constant time step apart.
        memory_steps: n_M, past entries that the model sees beyond the present one.
        multi_steps: K, extra steps in the loss.
        n_bursts: segments taken from each trajectory, starts uniform and without repeats; a trajectory with fewer
            places gives as many as it has. The paper advises fewer than 10.
        seed: seed of the starts.

    Returns:
        Bursts, `(sample, n_M + K + 2, state)`, float64.

    Raises:
        ValueError: for a wrong rank, unequal numbers of states, NaN or infinity, negative or fractional counts, or
            where no trajectory is long enough. Shorter ones are left out with a warning that counts them.

    Example:
        >>> cut_bursts(np.zeros((100, 50, 2)), memory_steps=3).shape
        (500, 15, 2)
    """
    for name, value, low in (
        ("memory_steps", memory_steps, 0),
        ("multi_steps", multi_steps, 0),
        ("n_bursts", n_bursts, 1),
    ):
        _checks.count(name, value, low)
    series = _checked_series(trajectories)
    length = memory_steps + multi_steps + 2
    long_enough = [entries for entries in series if len(entries) >= length]
    if not long_enough:
        raise ValueError(
            f"the longest trajectory has {max(map(len, series))} entries, but a burst needs n_M + K + 2 = "
            f"{memory_steps} + {multi_steps} + 2 = {length}: give longer trajectories or lower memory_steps or "
            "multi_steps."
        )
    if len(long_enough) < len(series):
        warnings.warn(
            f"{len(series) - len(long_enough)} of {len(series)} trajectories are shorter than a burst of {length} "
            "entries and were left out.",
            stacklevel=2,
        )
    rng = np.random.default_rng(seed)
    bursts = []
    for entries in long_enough:
        places = len(entries) - length + 1
        starts = rng.choice(places, size=min(n_bursts, places), replace=False)
        bursts.append(entries[starts[:, None] + np.arange(length)])
    return np.concatenate(bursts)


def add_noise(bursts: np.ndarray, size: float, *, memory_steps: int, seed: int = 0) -> np.ndarray:
    """Return bursts with normal noise on their histories; the entries to be predicted stay as they are.

    A network that must predict from such histories learns not to lean on differences between entries that are smaller
    than the noise: on its own forecasts these hold only its errors, which would feed on themselves.

    Args:
        bursts: `(sample, n_M + K + 2, state)`.
        size: standard deviation of the noise, as a fraction of each variable's own.
        memory_steps: n_M; the first n_M + 1 entries are the history.
        seed: seed of the noise.

    Raises:
        ValueError: for a size or seed below 0.
    """
    if not 0 <= size < np.inf:
        raise ValueError(f"size={size!r}: expected a fraction of the deviation, 0 or more.")
    noisy = np.array(bursts, "float64")
    history = noisy[:, : memory_steps + 1]
    history += size * noisy.std(axis=(0, 1)) * _stream(seed, "noise").normal(size=history.shape)
    return noisy


def fingerprint(array: np.ndarray) -> str:
    """Return a short hash of an array's shape, type and bytes, to tell data sets apart."""
    array = np.ascontiguousarray(array)
    digest = hashlib.sha256(f"{array.shape}{array.dtype}".encode())
    digest.update(array)
    return digest.hexdigest()[:16]


def _stream(seed, purpose):
    """Return the generator of one purpose: training and test data differ even where their seeds are the same."""
    _checks.count("seed", seed, 0)
    return np.random.default_rng([seed, ("train", "test", "noise").index(purpose)])


def _initial_states(problem, count, rng):
    """Draw full states uniformly from the domain, (count, state)."""
    low, high = np.array(problem.domain).T
    return rng.uniform(low, high, size=(count, len(low)))


def _draw_starts(lengths, burst_length, n_bursts, rng):
    """Draw burst starts without repeats inside a trajectory, (trajectory, burst), sorted."""
    starts = [rng.choice(length - burst_length + 1, size=n_bursts, replace=False) for length in lengths]
    return np.sort(starts, axis=1)


def _checked_series(trajectories: Sequence) -> list[np.ndarray]:
    """Return a user's trajectories as a list of float64 arrays (time, state), or say what is wrong with which."""
    series = []
    for number, entries in enumerate(trajectories if trajectories is not None else []):
        if np.ma.is_masked(entries) or np.iscomplexobj(entries):
            raise ValueError(f"trajectory {number} has masked or complex entries: split it at gaps, give real numbers.")
        try:
            entries = np.asarray(entries, "float64")
        except (TypeError, ValueError) as error:
            raise ValueError(f"trajectory {number} cannot be read as numbers: {error}") from error
        if entries.ndim != 2 or not entries.shape[1]:
            raise ValueError(
                f"trajectory {number} has shape {entries.shape}, expected (time, state): give an array (trajectory, "
                "time, state) or a list of arrays (time, state); a single variable needs a last axis of length 1."
            )
        if series and entries.shape[1] != series[0].shape[1]:
            raise ValueError(
                f"trajectory {number} has {entries.shape[1]} states, trajectory 0 has {series[0].shape[1]}: all must "
                "hold the same observed variables."
            )
        bad = np.argwhere(~np.isfinite(entries))
        if len(bad):
            time, state = bad[0]
            raise ValueError(
                f"trajectory {number}, entry {time}, state {state} is {entries[time, state]}: remove or split the "
                "trajectory there; a gap cannot be bridged, since entries must be a constant time step apart."
            )
        series.append(entries)
    if not series:
        raise ValueError("no trajectories given: expected an array (trajectory, time, state) or a list of arrays.")
    return series
