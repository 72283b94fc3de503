"""Errors of a forecast, NumPy in and NumPy out. Arrays are `(trajectory, time, state)`."""

import numpy as np


def l2_error(prediction, truth) -> np.ndarray:
    """Return the absolute l2 error of each predicted state, `(trajectory, time)`.

    e_ij = || prediction_ij - truth_ij ||_2, in the data's units, over the state.

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
    return np.linalg.norm(prediction - truth, axis=-1)


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
    bad = ~(errors <= threshold * scale)  # True for NaN
    first = np.where(bad.any(axis=1), bad.argmax(axis=1), bad.shape[1] - 1)
    return time_step * (first + 1)


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
    a, b = (np.asarray(v, "float64").reshape(-1, np.shape(v)[-1]) for v in (a, b))
    low, high = np.asarray(low, "float64"), np.asarray(high, "float64")
    if a.shape[1] != b.shape[1] or low.shape != (a.shape[1],) or high.shape != low.shape or np.any(high <= low):
        raise ValueError(
            f"a has {a.shape[1]} states, b {b.shape[1]}, low={low}, high={high}: expected the same states in both, and "
            "one range, low < high, for each."
        )
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("a or b holds NaN or infinite values: leave those trajectories out.")

    def density(states, i):
        counts = np.histogram(np.clip(states[:, i], low[i], high[i]), bins, (low[i], high[i]))[0]
        return counts / len(states)

    return np.array([np.abs(density(a, i) - density(b, i)).sum() / 2 for i in range(len(low))])
