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


def test_valid_prediction_time_is_the_first_step_beyond_the_threshold():
    truth = np.zeros((3, 5, 2))
    prediction = truth.copy()
    prediction[0, 2:, 0] = 0.5  # beyond 0.4 from the third step on
    prediction[1, 3, 1] = np.nan
    times = metrics.valid_prediction_time(prediction, truth, time_step=0.1, scale=1.0)
    np.testing.assert_allclose(times, [0.3, 0.4, 0.5])
    np.testing.assert_allclose(
        metrics.valid_prediction_time(prediction, truth, time_step=0.1, scale=2.0), [0.5, 0.4, 0.5]
    )


def test_valid_prediction_time_is_in_units_of_the_truths_deviations():
    truth = np.random.default_rng(0).normal(size=(50, 400, 2)) * [3, 4]  # deviations 3 and 4: norm 5
    for offset, expected in ((1.9, 40.0), (2.1, 0.1)):
        times = metrics.valid_prediction_time(truth + np.array([offset, 0]), truth, time_step=0.1)
        np.testing.assert_allclose(times, expected)
    with pytest.raises(ValueError, match="threshold=0: expected a positive number"):
        metrics.valid_prediction_time(truth, truth, time_step=0.1, threshold=0)


def test_histogram_distance_of_known_distributions():
    a = np.linspace(0, 1, 10_001)[:-1, None]
    np.testing.assert_allclose(metrics.histogram_distance(a, a, [0], [1]), [0])
    np.testing.assert_allclose(metrics.histogram_distance(a, a + 5, [0], [6]), [1])
    np.testing.assert_allclose(metrics.histogram_distance(a, a / 2, [0], [1]), [0.5], atol=1e-3)
    np.testing.assert_allclose(metrics.histogram_distance(a, a + 5, [0], [1]), [0.98], atol=1e-3, err_msg="last bin")
    both = metrics.histogram_distance(np.c_[a, a], np.c_[a, a + 0.5], [0, 0], [1.5, 1.5], bins=30)
    np.testing.assert_allclose(both, [0, 0.5], atol=1e-3)


@pytest.mark.parametrize(
    ("a", "b", "low", "high", "message"),
    [
        (np.zeros((5, 2)), np.zeros((5, 1)), [0, 0], [1, 1], "a has 2 states, b 1"),
        (np.zeros((5, 1)), np.zeros((5, 1)), [1], [1], "low < high"),
        (np.full((5, 1), np.nan), np.zeros((5, 1)), [0], [1], "a or b holds NaN"),
    ],
)
def test_histograms_of_bad_states_are_refused(a, b, low, high, message):
    with pytest.raises(ValueError, match=message):
        metrics.histogram_distance(a, b, low, high)
