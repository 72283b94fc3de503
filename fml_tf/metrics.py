"""Errors of a forecast and measures of chaos, NumPy in and NumPy out. Arrays are `(trajectory, time, state)`."""

import numpy as np
from scipy import fft, signal, spatial, stats


def l2_error(prediction, truth) -> np.ndarray:
    """Return the absolute l2 error of each predicted state, `(trajectory, time)`.

    e_ij = || prediction_ij - truth_ij ||_2, in the data's units, over the state; infinite where a forecast ran away.

    Args:
        prediction: predicted steps, `(trajectory, time, state)`.
        truth: the true states at the same steps, of the same shape.

    Raises:
        ValueError: if shapes differ, or the truth is not finite.

    Source: paper, Section 5: its "average l2 error" is the mean over trajectories, `.mean(axis=0)`.
    """
    prediction, truth = np.asarray(prediction, "float64"), np.asarray(truth, "float64")
    if prediction.shape != truth.shape or prediction.ndim != 3:
        raise ValueError(
            f"prediction has shape {prediction.shape}, truth {truth.shape}: expected the same (trajectory, time, "
            "state). A forecast holds the predicted steps only: leave out the n_M + 1 history entries of the truth."
        )
    if not np.isfinite(truth).all():
        raise ValueError("truth holds NaN or infinite values: leave those trajectories out.")
    with np.errstate(over="ignore", invalid="ignore"):  # of forecasts that run away
        return np.nan_to_num(np.linalg.norm(prediction - truth, axis=-1), nan=np.inf, posinf=np.inf)


def persistence(history, steps: int) -> np.ndarray:
    """Forecast that nothing changes, the baseline any model must beat: `(trajectory, steps, state)`.

    Args:
        history: `(trajectory, n_M + 1, state)`; its last entry is repeated.
        steps: steps to predict.
    """
    return np.repeat(np.asarray(history)[:, -1:], steps, axis=1)


def bounded_fraction(prediction, low, high, *, factor: float = 10.0) -> float:
    """Return the fraction of trajectories that stay finite and within `factor` times the range of the data.

    Args:
        prediction: `(trajectory, time, state)`.
        low, high: lowest and highest training states, `(state,)`.
        factor: how many times the range, about its middle, still counts as bounded.

    Raises:
        ValueError: if the range does not match the states, or is empty.
    """
    prediction, low, high = (np.asarray(a, "float64") for a in (prediction, low, high))
    if low.shape != prediction.shape[-1:] or high.shape != low.shape or np.any(high <= low):
        raise ValueError(f"low={low}, high={high}: expected one range, low < high, for each of the states.")
    with np.errstate(invalid="ignore"):
        inside = np.abs(prediction - (low + high) / 2) <= factor * (high - low)  # False for NaN
    return float(inside.all(axis=(1, 2)).mean())


def valid_prediction_time(
    prediction, truth, *, time_step: float, threshold: float = 0.4, scale: float | None = None
) -> np.ndarray:
    """Return how long each forecast stays close to the truth, `(trajectory,)`, in the units of `time_step`.

    It is the time of the first step whose l2 error, over `scale`, exceeds `threshold` (or is not finite); the whole
    length where none does. Multiplied with the largest Lyapunov exponent it counts Lyapunov times.

    Args:
        prediction: predicted steps, `(trajectory, time, state)`.
        truth: the true states at the same steps.
        time_step: time between entries.
        threshold: error that ends the valid time.
        scale: what errors are measured in; by default the norm of the standard deviations of the true variables,
            over all trajectories and times.

    Raises:
        ValueError: for arrays that do not match, or a threshold, scale or time step that is not positive.
    """
    errors = l2_error(prediction, truth)
    if scale is None:
        scale = float(np.linalg.norm(np.std(np.asarray(truth, "float64"), axis=(0, 1))))
    for name, value in (("time_step", time_step), ("threshold", threshold), ("scale", scale)):
        if not value > 0:
            raise ValueError(f"{name}={value!r}: expected a positive number.")
    bad = errors > threshold * scale
    first = np.where(bad.any(axis=1), bad.argmax(axis=1), bad.shape[1] - 1)
    return time_step * (first + 1)


def valid_prediction_curve(
    prediction, truth, thresholds, *, time_step: float, scale: float | None = None
) -> np.ndarray:
    """Return the valid prediction time for each of several thresholds, `(threshold, trajectory)`: how much it owes to
    the choice of one. See `valid_prediction_time`."""
    return np.stack(
        [valid_prediction_time(prediction, truth, time_step=time_step, threshold=t, scale=scale) for t in thresholds]
    )


def score(problem, prediction, truth) -> float:
    """Return what forecasts of a benchmark are judged by: the mean l2 error over trajectories and steps, infinite if
    one ran away; of a chaotic system the median valid prediction time in Lyapunov times, where more is better.

    Args:
        problem: the benchmark's record; chaotic is one that has an `exponent`.
        prediction: predicted steps, `(trajectory, time, state)`.
        truth: the true states at the same steps.

    Raises:
        ValueError: if shapes differ, or the truth is not finite.
    """
    if problem.exponent:
        reached = valid_prediction_time(prediction, truth, time_step=problem.time_step)
        return float(problem.exponent * np.median(reached))
    with np.errstate(over="ignore"):
        return float(l2_error(prediction, truth).mean())


def histogram_distance(a, b, low, high, *, bins: int = 50) -> np.ndarray:
    """Return the total variation distance of two sets of states, variable by variable, `(state,)`: from 0 to 1.

    It is half the sum over bins of |p_a - p_b|, for histograms with equal fixed bins; what lies outside is counted
    into the bins at the ends.

    Args:
        a, b: states `(..., state)`.
        low, high: ends of the bins for each variable, `(state,)`.
        bins: number of bins.

    Raises:
        ValueError: for unequal numbers of states, an empty range, or values that are not finite.
    """
    a, b = _two_sets(a, b)
    low, high = np.asarray(low, "float64"), np.asarray(high, "float64")
    if low.shape != (a.shape[1],) or high.shape != low.shape or np.any(high <= low):
        raise ValueError(f"low={low}, high={high}: expected one range, low < high, for each of {a.shape[1]} states.")

    def density(states, i):
        counts = np.histogram(np.clip(states[:, i], low[i], high[i]), bins, (low[i], high[i]))[0]
        return counts / len(states)

    return np.array([np.abs(density(a, i) - density(b, i)).sum() / 2 for i in range(len(low))])


def wasserstein_distance(a, b) -> np.ndarray:
    """Return the Wasserstein distance of two sets of states, variable by variable, `(state,)`, in their units: how
    far the values of one have to be moved, on average, to be distributed like the other's.

    Args:
        a, b: states `(..., state)`.

    Raises:
        ValueError: for unequal numbers of states, or values that are not finite.
    """
    return np.array(
        [stats.wasserstein_distance(x, y) for x, y in zip(*(states.T for states in _two_sets(a, b)), strict=True)]
    )


def _two_sets(a, b):
    """Return two sets of states as float64 arrays `(state vector, state)`."""
    a, b = (np.asarray(states, "float64").reshape(-1, np.shape(states)[-1]) for states in (a, b))
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"a has {a.shape[1]} states, b {b.shape[1]}: expected the same states in both.")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("a or b holds NaN or infinite values: leave those trajectories out.")
    return a, b


def time_series(values, shortest, what):
    """Return trajectories `(trajectory, time, state)` in float64; refuse what no statistic of time can be taken of."""
    values = np.asarray(values, "float64")
    if values.ndim != 3 or values.shape[1] < shortest:
        raise ValueError(
            f"trajectories of shape {values.shape}: {what} needs (trajectory, time, state) with at least {shortest} "
            "entries in time. Give longer trajectories."
        )
    if not np.isfinite(values).all():
        raise ValueError("the trajectories hold NaN or infinite values: leave those trajectories out.")
    constant = np.ptp(values, axis=(0, 1)) == 0
    if constant.any():
        raise ValueError(f"variable {int(constant.argmax())} never changes: {what} is not defined. Leave it out.")
    return values


def one_variable(trajectories, shortest, what):
    """Return trajectories of one variable, `(trajectory, time)`, checked as `time_series` does."""
    values = time_series(trajectories, shortest, what)
    if values.shape[-1] != 1:
        raise ValueError(f"the trajectories hold {values.shape[-1]} variables: choose one, keeping the axis.")
    return values[..., 0]


def autocorrelation(trajectories, *, lags: int) -> np.ndarray:
    """Return the autocorrelation of each variable at lags 0 to `lags`, `(lag, state)`, averaged over trajectories.

    Args:
        trajectories: `(trajectory, time, state)` of a stationary process; mean and variance are those of all together.
        lags: largest lag, in entries.

    Raises:
        ValueError: for trajectories that are too short, not finite or constant.
    """
    values = time_series(trajectories, int(lags) + 2, f"an autocorrelation up to lag {lags}")
    values = values - values.mean(axis=(0, 1))
    length = values.shape[1]
    spectrum = fft.rfft(values, fft.next_fast_len(length + int(lags), real=True), axis=1)
    products = fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, : int(lags) + 1].mean(axis=0)
    return products / (length - np.arange(int(lags) + 1))[:, None] / values.var(axis=(0, 1))


def power_spectrum(trajectories, *, time_step: float, segment: int = 1024) -> tuple[np.ndarray, np.ndarray]:
    """Return frequencies `(frequency,)` in cycles per time unit, and the power density of each variable there,
    `(frequency, state)`, by Welch's method averaged over trajectories.

    Args:
        trajectories: `(trajectory, time, state)`.
        time_step: time between entries.
        segment: entries in one segment of Welch's method (Hann window, half overlapping).

    Raises:
        ValueError: for trajectories that are too short, not finite or constant.
    """
    values = time_series(trajectories, int(segment), f"a spectrum from segments of {segment}")
    frequencies, power = signal.welch(values, fs=1 / time_step, nperseg=int(segment), axis=1)
    return frequencies, power.mean(axis=0)


def maxima(series, *, time_step: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return times and heights of the maxima of one time series, `(maximum,)` each.

    Each is that of the parabola through an entry and its two neighbours, which are lower. The first entry is at time 0.

    Args:
        series: `(time,)`.
        time_step: time between entries.

    Raises:
        ValueError: for a series of another shape, or not finite.
    """
    series = np.asarray(series, "float64")
    if series.ndim != 1 or not np.isfinite(series).all():
        raise ValueError(f"a series of shape {series.shape}: expected (time,), one variable, and finite.")
    top = signal.argrelmax(series)[0]
    left, middle, right = series[top - 1], series[top], series[top + 1]
    bend = left - 2 * middle + right
    return time_step * (top + (left - right) / (2 * bend)), middle - (right - left) ** 2 / (8 * bend)


def maxima_map(trajectories) -> np.ndarray:
    """Return pairs of successive maxima of one variable, `(pair, 2)`: Lorenz's return map, if it is his z.

    See `maxima`.

    Args:
        trajectories: `(trajectory, time, 1)`.

    Raises:
        ValueError: for more than one variable, or trajectories that are too short, not finite, constant, or without
            two maxima.

    Source: E. N. Lorenz, *Deterministic nonperiodic flow*, J. Atmos. Sci. 20 (1963), Figure 4.
    """
    pairs = []
    for series in one_variable(trajectories, 3, "a map of maxima"):
        _, peaks = maxima(series)
        pairs.append(np.stack([peaks[:-1], peaks[1:]], axis=1))
    pairs = np.concatenate(pairs)
    if not len(pairs):
        raise ValueError("no trajectory has two maxima: give longer ones.")
    return pairs


def correlation_dimension(trajectories, *, points: int = 10_000, seed: int = 0) -> float:
    """Return the correlation dimension of the set that trajectories visit: how the number of pairs closer than r
    grows with r.

    Pairs are counted among states drawn from all trajectories and times, so that neighbours in time are rare among
    them; the slope is fitted where between 1e-4 and 1e-2 of all pairs are closer.

    Args:
        trajectories: `(trajectory, time, state)`; delay coordinates, if the system is partly observed.
        points: states drawn, at most.
        seed: seed of the draw.

    Raises:
        ValueError: for fewer than 1000 states, values not finite, or a variable that never changes.

    Source: P. Grassberger and I. Procaccia, *Measuring the strangeness of strange attractors*, Physica D 9 (1983).
    """
    values = time_series(trajectories, 1, "a dimension")
    states = values.reshape(-1, values.shape[-1])
    if len(states) < 1000:
        raise ValueError(f"{len(states)} states: a dimension needs 1000 at least. Give more or longer trajectories.")
    chosen = np.random.default_rng(seed).choice(len(states), min(int(points), len(states)), replace=False)
    states = states[chosen]
    half = len(states) // 2
    sample = np.linalg.norm(states[:half] - states[half : 2 * half], axis=1)
    radii = np.geomspace(*np.quantile(sample, (1e-4, 1e-2)), 20)
    tree = spatial.cKDTree(states)
    closer = tree.count_neighbors(tree, radii) - len(states)  # without each with itself
    shares = closer / (len(states) * (len(states) - 1))
    fitted = (shares > 1e-4) & (shares < 1e-2)
    if fitted.sum() < 3:
        raise ValueError("too few distances between states differ to fit a slope: the trajectories repeat themselves.")
    return float(np.polyfit(np.log(radii[fitted]), np.log(shares[fitted]), 1)[0])


def jacobian(step, states, *, change: float = 1e-5) -> np.ndarray:
    """Return the derivative of a map at states, `(..., state, state)`, row i that of component i, by central
    differences in float64.

    Args:
        step: a function from states `(..., state)` to states, for instance `systems.LORENZ.flow(0.01)`. A trained
            model has its exact derivative, `FlowMap.jacobian`.
        states: `(..., state)`.
        change: half the distance of the difference, in the states' units.
    """
    states = np.asarray(states, "float64")
    shifts = change * np.eye(states.shape[-1])
    columns = step(states[..., None, :] + shifts) - step(states[..., None, :] - shifts)
    return np.swapaxes(columns, -1, -2) / (2 * change)


def lyapunov_exponents(jacobians, *, time_step: float, spin_up: int = 0) -> np.ndarray:
    """Return all Lyapunov exponents along trajectories, `(trajectory, state)`, the largest first, per time unit.

    Perturbations are carried along by the derivatives of the map and made orthogonal at each step (QR); an exponent
    is the mean logarithm of a perturbation's growth. What shrinks to nothing in a step has the exponent -inf.

    Args:
        jacobians: derivative of each step, `(trajectory, time, state, state)`: see `jacobian`, `FlowMap.jacobian`.
        time_step: time of one step.
        spin_up: steps at the start that turn the perturbations but do not count.

    Raises:
        ValueError: for another shape, values not finite, or no step left after `spin_up`.

    Source: G. Benettin et al., *Lyapunov characteristic exponents for smooth dynamical systems*, Meccanica 15 (1980).
    """
    jacobians = np.asarray(jacobians, "float64")
    if jacobians.ndim != 4 or jacobians.shape[-1] != jacobians.shape[-2]:
        raise ValueError(f"jacobians have shape {jacobians.shape}: expected (trajectory, time, state, state).")
    if jacobians.shape[1] <= spin_up:
        raise ValueError(f"{jacobians.shape[1]} steps, of which spin_up={spin_up} do not count: give more steps.")
    if not np.isfinite(jacobians).all():
        raise ValueError("the jacobians hold NaN or infinite values: leave those trajectories out.")
    directions = np.broadcast_to(np.eye(jacobians.shape[-1]), jacobians[:, 0].shape)
    growth = np.zeros(directions.shape[:-1])
    for i in range(jacobians.shape[1]):
        directions, factors = np.linalg.qr(jacobians[:, i] @ directions)
        if i >= spin_up:
            with np.errstate(divide="ignore"):
                growth += np.log(np.abs(np.diagonal(factors, axis1=-2, axis2=-1)))
    return np.sort(growth / (time_step * (jacobians.shape[1] - spin_up)), axis=-1)[:, ::-1]
