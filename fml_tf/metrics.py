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
