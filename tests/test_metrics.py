"""Metrics against values worked out by hand."""

import numpy as np
import pytest

from fml_tf import metrics


def test_l2_error_is_the_norm_over_the_state():
    truth = np.zeros((2, 3, 2))
    prediction = truth + np.array([3.0, 4.0])
    np.testing.assert_array_equal(metrics.l2_error(prediction, truth), np.full((2, 3), 5.0))


def test_persistence_repeats_the_last_entry():
    history = np.arange(12.0).reshape(2, 3, 2)
    np.testing.assert_array_equal(metrics.persistence(history, 4), np.tile(history[:, -1:], (1, 4, 1)))


def test_bounded_fraction_counts_finite_trajectories_in_range():
    prediction = np.zeros((4, 5, 1))
    prediction[1, 3] = 10.4  # ten ranges about the middle 0.5: bounded up to 10.5
    prediction[2, 2] = 10.6
    prediction[3, 4] = np.nan
    assert metrics.bounded_fraction(prediction, [0.0], [1.0]) == 0.5
    assert metrics.bounded_fraction(prediction, [0.0], [1.0], factor=11) == 0.75


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.l2_error(np.zeros((2, 3, 1)), np.zeros((2, 4, 1))), "leave out the n_M \\+ 1 history entries"),
        (lambda: metrics.l2_error(np.zeros((2, 3)), np.zeros((2, 3))), "expected the same"),
        (lambda: metrics.l2_error(np.zeros((1, 1, 1)), np.full((1, 1, 1), np.nan)), "truth holds NaN"),
        (lambda: metrics.bounded_fraction(np.zeros((1, 1, 2)), [0], [1]), "expected one range"),
        (lambda: metrics.bounded_fraction(np.zeros((1, 1, 1)), [1], [1]), "expected one range"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
