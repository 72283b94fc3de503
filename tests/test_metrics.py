"""Metrics against values worked out by hand."""

import numpy as np
import pytest

from fml_tf import metrics, problems, systems


def test_l2_error_is_the_norm_over_the_state():
    truth = np.zeros((2, 3, 2))
    prediction = truth + np.array([3.0, 4.0])
    np.testing.assert_array_equal(metrics.l2_error(prediction, truth), np.full((2, 3), 5.0))


@pytest.mark.filterwarnings("error")
def test_l2_error_of_a_forecast_that_ran_away_is_infinite_and_quiet():
    prediction = np.array([[[1e200, 0.0], [np.inf, 0.0], [np.nan, 1.0], [1.0, 0.0]]])
    errors = metrics.l2_error(prediction, np.zeros((1, 4, 2)))
    np.testing.assert_array_equal(errors, [[np.inf, np.inf, np.inf, 1.0]])


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


def _lorenz(trajectories, steps):
    """Return Lorenz trajectories on the attractor, `(trajectory, time, 3)`, a hundredth of a time unit apart."""
    step, states = (
        systems.LORENZ.flow(0.01),
        np.random.default_rng(0).uniform(-1, 1, (trajectories, 3)) + np.array([0, 0, 20]),
    )
    path = []
    for i in range(2000 + steps):
        states = step(states)
        if i >= 2000:
            path.append(states)
    return np.stack(path, axis=1)


@pytest.fixture(scope="module")
def lorenz():
    return _lorenz(20, 5000)


def test_lyapunov_spectrum_of_the_lorenz_system(lorenz):
    jacobians = metrics.jacobian(systems.LORENZ.flow(0.01), lorenz)
    exponents = metrics.lyapunov_exponents(jacobians, time_step=0.01, spin_up=200).mean(axis=0)
    assert abs(exponents[0] / systems.LORENZ_EXPONENT - 1) < 0.01
    assert abs(exponents[1]) < 0.005
    assert abs(exponents.sum() + 41 / 3) < 0.05, "the trace of the Lorenz system, -(σ + 1 + β)"


def test_lyapunov_exponents_of_a_linear_map_are_the_logarithms_of_its_eigenvalues():
    matrix = np.array([[0.5, 1.0, 0.0], [0.0, 0.9, 0.3], [0.0, 0.0, 1.2]])
    jacobians = np.broadcast_to(matrix, (2, 2000, 3, 3))
    exponents = metrics.lyapunov_exponents(jacobians, time_step=0.1, spin_up=1000)
    np.testing.assert_allclose(exponents, np.tile(np.log([1.2, 0.9, 0.5]) / 0.1, (2, 1)), atol=1e-9)
    singular = metrics.lyapunov_exponents(np.broadcast_to(np.diag([2.0, 0.0]), (1, 5, 2, 2)), time_step=1.0)
    np.testing.assert_allclose(singular, [[np.log(2), -np.inf]])


def test_jacobian_of_a_map_known_by_hand():
    states = np.array([[[0.3, 2.0], [1.0, -1.0]]])
    found = metrics.jacobian(lambda s: np.stack([s[..., 0] * s[..., 1], np.sin(s[..., 0])], axis=-1), states)
    x, y = states[..., 0], states[..., 1]
    expected = np.stack([np.stack([y, x], -1), np.stack([np.cos(x), 0 * x], -1)], axis=-2)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_autocorrelation_of_a_known_process():
    rng, values = np.random.default_rng(0), [np.zeros(50)]
    for _ in range(20_000):
        values.append(0.8 * values[-1] + rng.normal(size=50))
    walks = np.stack(values[100:], axis=1)[..., None]
    found = metrics.autocorrelation(np.concatenate([walks, 3 - 2 * walks], axis=-1), lags=5)
    np.testing.assert_allclose(found, np.tile(0.8 ** np.arange(6)[:, None], (1, 2)), atol=0.01)
    np.testing.assert_allclose(found[0], 1)


def test_power_spectrum_has_the_variance_under_it_and_its_peak_at_the_frequency():
    times = 0.01 * np.arange(8192)
    waves = np.sin(2 * np.pi * 2.5 * times)[None, :, None] * np.array([1.0, 3.0])
    frequencies, power = metrics.power_spectrum(waves, time_step=0.01)
    assert abs(frequencies[power[:, 0].argmax()] - 2.5) < 0.1
    np.testing.assert_allclose(power.sum(axis=0) * frequencies[1], [0.5, 4.5], rtol=0.02)


def test_maxima_of_the_lorenz_system_follow_a_cusp(lorenz):
    pairs = metrics.maxima_map(lorenz[..., 2:])
    assert pairs.min() > 27
    assert pairs.max() < 48
    left, right = pairs[pairs[:, 0] < 37], pairs[pairs[:, 0] > 40]
    assert np.corrcoef(left.T)[0, 1] > 0.95
    assert np.corrcoef(right.T)[0, 1] < -0.95
    bins = np.round(left[:, 0], 1)
    spread = [np.ptp(left[bins == b, 1]) for b in np.unique(bins) if np.sum(bins == b) > 5]
    assert np.median(spread) < 0.5, "one maximum decides the next, nearly"


def test_maxima_lie_between_entries():
    wave = np.cos(np.arange(0, 40, 0.3) - 0.1)[None, :, None]
    np.testing.assert_allclose(metrics.maxima_map(wave), 1, atol=1e-3)
    times, heights = metrics.maxima(wave[0, :, 0], time_step=0.3)
    np.testing.assert_allclose(times, 0.1 + 2 * np.pi * np.arange(1, 7), atol=3e-3)
    np.testing.assert_allclose(heights, 1, atol=1e-3)
    with pytest.raises(ValueError, match=r"shape \(1, 134, 1\): expected \(time,\)"):
        metrics.maxima(wave)
    with pytest.raises(ValueError, match="and finite"):
        metrics.maxima([0.0, np.inf, 0.0])


@pytest.mark.parametrize("dimension", [1, 2])
def test_correlation_dimension_of_lines_and_planes(dimension):
    points = np.random.default_rng(0).uniform(size=(1, 20_000, dimension))
    embedded = np.concatenate([points, points.sum(axis=-1, keepdims=True)], axis=-1)
    assert abs(metrics.correlation_dimension(embedded) - dimension) < 0.05


def test_correlation_dimension_of_the_lorenz_attractor(lorenz):
    assert abs(metrics.correlation_dimension(lorenz) - 2.05) < 0.06


def test_wasserstein_distance_is_the_shift_of_a_distribution():
    values = np.random.default_rng(0).normal(size=(10, 500, 2))
    np.testing.assert_allclose(metrics.wasserstein_distance(values, values + np.array([0.5, 2.0])), [0.5, 2.0])


def test_score_is_the_mean_error_or_lyapunov_times():
    pendulum, lorenz = problems.get("5.3.1"), problems.get("5.4.3")
    truth = np.random.default_rng(0).normal(size=(5, 60, 2))
    prediction = truth + np.array([0.3, 0.4])
    assert metrics.score(pendulum, prediction, truth) == pytest.approx(0.5)
    prediction[0, 7] = 1e308
    assert metrics.score(pendulum, prediction, truth) == np.inf, "one ran away"
    prediction, lost = truth.copy(), np.array([10, 20, 30, 40, 50])
    for path, step in zip(prediction, lost, strict=True):
        path[step:] += 100
    expected = systems.LORENZ_EXPONENT * 31 * lorenz.time_step
    assert metrics.score(lorenz, prediction[..., :1], truth[..., :1]) == pytest.approx(expected)


def test_valid_prediction_curve_is_the_time_at_each_threshold():
    truth = np.zeros((2, 5, 1))
    prediction = 0.1 * np.arange(1, 6)[None, :, None] * np.array([1, 2])[:, None, None]
    curve = metrics.valid_prediction_curve(prediction, truth, [0.15, 0.35], time_step=1.0, scale=1.0)
    np.testing.assert_array_equal(curve, [[2, 1], [4, 2]])


SERIES_MEASURES = {
    "autocorrelation": lambda x: metrics.autocorrelation(x, lags=5),
    "power_spectrum": lambda x: metrics.power_spectrum(x, time_step=0.1),
    "maxima_map": metrics.maxima_map,
    "correlation_dimension": metrics.correlation_dimension,
}


@pytest.mark.parametrize("name", SERIES_MEASURES)
def test_measures_refuse_series_that_have_none(name):
    measure, good = SERIES_MEASURES[name], np.random.default_rng(0).normal(size=(2, 2000, 1))
    measure(good)
    broken = good.copy()
    broken[1, 7] = np.nan
    with pytest.raises(ValueError, match="hold NaN or infinite values: leave those"):
        measure(broken)
    with pytest.raises(ValueError, match="variable 0 never changes"):
        measure(np.ones((2, 2000, 1)))
    with pytest.raises(ValueError, match=r"longer trajectories|more or longer"):
        measure(good[:, :2])
    with pytest.raises(ValueError, match=r"\(trajectory, time, state\)"):
        measure(good[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.maxima_map(np.random.default_rng(0).normal(size=(1, 50, 2))), "choose one, keeping the axis"),
        (lambda: metrics.maxima_map(np.arange(50.0)[None, :, None]), "no trajectory has two maxima"),
        (lambda: metrics.lyapunov_exponents(np.ones((5, 3, 3)), time_step=1), "expected \\(trajectory, time, state"),
        (lambda: metrics.lyapunov_exponents(np.ones((1, 5, 3, 3)), time_step=1, spin_up=5), "give more steps"),
        (lambda: metrics.lyapunov_exponents(np.full((1, 5, 3, 3), np.nan), time_step=1), "jacobians hold NaN"),
        (lambda: metrics.wasserstein_distance(np.zeros((5, 2)), np.zeros((5, 1))), "a has 2 states, b 1"),
        (lambda: metrics.wasserstein_distance(np.full((5, 1), np.nan), np.zeros((5, 1))), "a or b holds NaN"),
    ],
)
def test_measures_refuse_what_they_cannot_measure(call, message):
    with pytest.raises(ValueError, match=message):
        call()
