"""Polynomial flow maps: exact where the flow map is one, honest about rank, size and failure."""

import math

import numpy as np
import pytest

from fml_tf import data, metrics, polynomials, problems

LINEAR = {"5.1.1": 1e-12, "5.2.1": 1e-12, "5.1.2": 1e-10, "5.2.2": 1e-10, "5.5.1": 1e-10}


def bursts_and_test(benchmark, spin_up=0.0, **overrides):
    problem = problems.get(benchmark, "paper", **overrides)
    test = data.sample_trajectories(problem, spin_up=spin_up)
    history, truth = np.split(test, [problem.memory_steps + 1], axis=1)
    return problem, data.sample_bursts(problem), history, truth


@pytest.mark.parametrize("benchmark", LINEAR)
def test_degree_one_is_exact_for_linear_systems(benchmark):
    problem, bursts, history, truth = bursts_and_test(benchmark, n_trajectories=2000)
    model = polynomials.PolynomialFlowMap(bursts.shape[-1], memory_steps=problem.memory_steps, degree=1).fit(bursts)
    errors = metrics.l2_error(model.forecast(history, problem.horizon), truth)
    assert errors.mean(axis=0).max() < LINEAR[benchmark]


@pytest.mark.parametrize(("benchmark", "rank"), [("5.1.1", 2), ("5.1.2", 2), ("5.2.2", 2), ("5.5.1", 20)])
def test_history_of_a_linear_system_has_the_rank_of_its_state(benchmark, rank):
    problem, bursts, *_ = bursts_and_test(benchmark, n_trajectories=500)
    model = polynomials.PolynomialFlowMap(bursts.shape[-1], memory_steps=problem.memory_steps, degree=1).fit(bursts)
    assert model.input_rank == rank
    assert model.terms == rank + 1 == model.rank


def test_polynomial_map_is_found_exactly():
    rng = np.random.default_rng(0)

    def step(x):
        return x + 0.1 * np.stack([x[:, 0] * x[:, 1] - x[:, 0], x[:, 0] ** 3 - 0.5 * x[:, 1]], axis=-1)

    states = [rng.uniform(-1, 1, (400, 2))]
    for _ in range(6):
        states.append(step(states[-1]))
    bursts = np.stack(states, axis=1)
    model = polynomials.PolynomialFlowMap(2, degree=3).fit(bursts)
    assert model.terms == math.comb(2 + 3, 3) == 10
    assert model.residual < 1e-14
    assert 1 < model.condition_number < 1e4
    np.testing.assert_allclose(model.forecast(bursts[:, :1], 6), bursts[:, 1:], atol=1e-13)
    coarse = polynomials.PolynomialFlowMap(2, degree=2).fit(bursts)
    assert coarse.residual > 1e-5


def test_terms_that_the_data_cannot_tell_apart_are_counted():
    x = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], size=(300, 1, 1))
    bursts = np.concatenate([x, 0.5 * x], axis=1)  # three values: x³ is x, and only three terms can be told apart
    model = polynomials.PolynomialFlowMap(1, degree=5).fit(bursts)
    assert (model.terms, model.rank) == (6, 3)
    np.testing.assert_allclose(model.forecast(x, 1), 0.5 * x, atol=1e-14)


def test_memory_sees_what_a_partly_observed_system_hides():
    problem, bursts, history, truth = bursts_and_test(
        "5.4.2", spin_up=20.0, n_trajectories=200, trajectory_length=4000, horizon=50
    )
    errors = {}
    for degree in (1, 3):
        model = polynomials.PolynomialFlowMap(2, memory_steps=10, degree=degree, most_axes=5).fit(bursts)
        errors[degree] = metrics.l2_error(model.forecast(history, problem.horizon), truth).mean()
    assert errors[3] < errors[1] / 5


@pytest.mark.parametrize(("spin_up", "horizon", "least"), [(20.0, 2500, (10, 11)), (0.0, 3500, (17, 18))])
def test_degree_four_follows_the_lorenz_system(spin_up, horizon, least):
    problem, bursts, history, truth = bursts_and_test("5.4.1", spin_up, n_trajectories=3000, horizon=horizon)
    plain, weighted = (polynomials.PolynomialFlowMap(3, degree=4, reweights=times).fit(bursts) for times in (0, 1))
    assert plain.terms == weighted.terms == 35
    assert plain.residual < weighted.residual < 1.4 * plain.residual, "the squares are no longer the least"
    for model, lyapunov_times in zip((plain, weighted), least, strict=True):
        assert metrics.score(problem, model.forecast(history, horizon), truth) > lyapunov_times


def test_reweighting_fits_most_windows_exactly_where_a_few_are_wrong():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (500, 1, 1))
    bursts = np.concatenate([x, 0.5 * x], axis=1)
    bursts[:25, 1] += rng.uniform(0, 2, (25, 1))
    errors = []
    for reweights in (0, 20):
        model = polynomials.PolynomialFlowMap(1, degree=1, reweights=reweights).fit(bursts)
        errors.append(np.abs(model.forecast(x[25:], 1) - 0.5 * x[25:]).max())
    assert errors[1] < errors[0] / 20


@pytest.mark.filterwarnings("ignore:.*turned non-finite:RuntimeWarning")
def test_noise_on_histories_keeps_a_hidden_variable_predictable():
    problem, bursts, history, truth = bursts_and_test("5.4.2", 20.0, n_trajectories=1500, horizon=1500)
    reached = {}
    for noise in (0.0, 1e-5):
        noisy = data.add_noise(bursts, noise, memory_steps=10)
        model = polynomials.PolynomialFlowMap(2, memory_steps=10, degree=5, most_axes=5).fit(noisy)
        reached[noise] = metrics.score(problem, model.forecast(history, problem.horizon), truth)
    assert reached[1e-5] > 4 > 2 > reached[0.0], reached


def test_save_and_load_forecast_the_same(tmp_path):
    rng = np.random.default_rng(0)
    options = dict(memory_steps=1, degree=2, reweights=1, time_step=0.1, state_names=("a", "b"))
    model = polynomials.PolynomialFlowMap(2, **options)
    model.fit(rng.normal(size=(200, 5, 2)))
    model.save(tmp_path / "map.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["map.npz"]
    loaded, history = polynomials.load(tmp_path / "map.npz"), 0.1 * rng.normal(size=(3, 2, 2))
    np.testing.assert_array_equal(loaded.forecast(history, 5), model.forecast(history, 5))
    assert (loaded.time_step, tuple(loaded.state_names), loaded.degree, loaded.reweights) == (0.1, ("a", "b"), 2, 1)
    assert (loaded.terms, loaded.rank, loaded.residual) == (model.terms, model.rank, model.residual)


def test_runaway_forecasts_are_reported():
    bursts = np.array([1.0, 1.5, 2.4])[None, :, None] * np.linspace(0.5, 1, 50)[:, None, None]
    model = polynomials.PolynomialFlowMap(1, degree=2).fit(bursts)
    with pytest.warns(RuntimeWarning, match="1 of 1 forecasts turned non-finite or left ten times the range"):
        model.forecast(np.ones((1, 1, 1)), 2000)


def fit(bursts=None, **arguments):
    bursts = np.random.default_rng(0).normal(size=(100, 12, 2)) if bursts is None else bursts
    return polynomials.PolynomialFlowMap(2, **arguments).fit(bursts)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: polynomials.PolynomialFlowMap(0), "state_dim=0: expected a whole number"),
        (lambda: polynomials.PolynomialFlowMap(2, degree=0), "degree=0"),
        (lambda: polynomials.PolynomialFlowMap(2, memory_steps=-1), "memory_steps=-1"),
        (lambda: polynomials.PolynomialFlowMap(2, most_axes=0), "most_axes=0"),
        (lambda: polynomials.PolynomialFlowMap(2, tolerance=2), "tolerance=2: expected a fraction"),
        (lambda: polynomials.PolynomialFlowMap(2, reweights=-1), "reweights=-1"),
        (lambda: polynomials.PolynomialFlowMap(2, state_names="xy"), "expected 2 names"),
        (lambda: fit(np.zeros((5, 4, 3))), "x has 3 states, but the model was built for 2"),
        (lambda: fit(np.full((5, 4, 2), np.nan)), "NaN or infinite"),
        (lambda: fit(np.ones((5, 4, 2))), "all histories are the same"),
        (lambda: fit(memory_steps=10, degree=3), "2,300 terms, more than the 100 windows"),
        (lambda: fit().forecast(np.zeros((1, 2, 2)), 5), "needs n_M \\+ 1 = 1"),
        (lambda: fit().forecast(np.zeros((1, 1, 2)), 0), "steps=0"),
        (lambda: polynomials.PolynomialFlowMap(2).forecast(np.zeros((1, 1, 2)), 5), "call fit\\(bursts\\) first"),
        (lambda: fit().save("map.keras"), "ends with .npz"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_basis_that_memory_cannot_hold_is_refused_before_it_is_built():
    bursts = np.random.default_rng(0).normal(size=(20_000, 12, 2))
    with pytest.raises(
        ValueError, match=r"degree=4 in 22 variables gives 14,950 terms, whose least squares take .* GB"
    ):
        polynomials.PolynomialFlowMap(2, memory_steps=10, degree=4).fit(bursts)


def test_file_of_something_else_is_refused(tmp_path):
    np.savez(tmp_path / "other.npz", a=1)
    with pytest.raises(ValueError, match="holds no PolynomialFlowMap: it lacks"):
        polynomials.load(tmp_path / "other.npz")
