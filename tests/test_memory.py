"""The choice of memory: resolution independence on systems whose need is known, and classical embedding."""

import functools

import numpy as np
import pytest

from fml_tf import data, memory, problems, systems


def trajectories(benchmark, count=200, steps=230, spin_up=0.0, seed=0):
    problem = problems.get(benchmark, n_test=count, memory_steps=0)
    return data.sample_trajectories(problem, seed=seed, steps=steps, spin_up=spin_up)


@pytest.mark.parametrize(("benchmark", "least", "most"), [("5.1.1", 0, 0), ("5.1.2", 1, 3), ("5.2.2", 1, 3)])
def test_networks_agree_once_memory_suffices(benchmark, least, most):
    train = functools.partial(memory.train_network, members=1, steps=2000)
    for seed in range(5):
        choice = memory.choose_memory(
            trajectories(benchmark, seed=seed), time_step=0.01, steps=200, grid=(0, 1, 2, 3, 5), train=train, seed=seed
        )
        assert least <= choice.memory_steps <= most, choice
        assert choice.memory_time == choice.memory_steps * 0.01
        assert (
            choice.table[-1]["change"]
            <= choice.tolerance
            < min(row["change"] for row in choice.table[1:-1] or [{"change": 1}])
        )


def test_table_goes_on_where_asked_and_errors_are_against_the_truth():
    choice = memory.choose_memory(
        trajectories("5.1.2"), time_step=0.01, steps=150, grid=(0, 1, 2, 5), train=memory.fit_polynomial, stop=False
    )
    assert [row["memory_steps"] for row in choice.table] == [0, 1, 2, 5]
    assert choice.memory_steps == 1
    assert choice.table[0]["change"] is None
    assert choice.table[0]["error"] > 0.05 > 1e-8 > choice.table[1]["error"]
    assert choice.table[1]["change"] == pytest.approx(choice.table[0]["error"], rel=1e-3)


def test_no_agreement_is_said():
    choice = memory.choose_memory(
        trajectories("5.1.2"), time_step=0.01, steps=150, grid=(0, 1), train=memory.fit_polynomial
    )
    assert choice.memory_steps is None
    assert choice.memory_time is None


def test_linear_theory_asks_for_one_past_entry():
    for system, observed, expected in (
        (systems.SMALL_LINEAR, (0, 1), 0),
        (systems.SMALL_LINEAR, (0,), 1),
        (systems.OSCILLATORY_LINEAR, (0,), 1),
        (systems.LARGE_LINEAR, range(10), 1),
    ):
        assert memory.observability_steps(system.propagator(0.02), observed) == expected
    assert memory.observability_steps(np.diag([0.5, 0.9]), [0]) is None, "the second variable never shows"


def test_mutual_information_of_known_processes():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(20, 5000, 1))
    information = memory.mutual_information(noise, lags=2, bins=16)
    assert information[0] == pytest.approx(np.log(16), abs=1e-6)
    assert information[1] < 0.01
    walk = np.zeros((50, 4000, 1))
    for i in range(1, 4000):
        walk[:, i, 0] = 0.9 * walk[:, i - 1, 0] + rng.normal(size=50)
    expected = -0.5 * np.log(1 - 0.9**2)  # two normal variables with correlation 0.9
    assert memory.mutual_information(walk[:, 100:], lags=1)[1] == pytest.approx(expected, rel=0.05)


def test_first_minimum():
    assert memory.first_minimum([3, 2, 1, 2, 0, 1]) == 2
    assert memory.first_minimum([3, 2, 1]) is None


def test_lorenz_unfolds_in_three_delays():
    x = trajectories("5.4.3", count=20, steps=3000, spin_up=20.0)
    delay = memory.first_minimum(memory.mutual_information(x, lags=40))
    assert 12 <= delay <= 22, "0.16 time units is what the literature finds"
    shares = memory.false_neighbours(x, delay=delay, dimensions=4)
    assert shares[0] > 0.5 > 0.1 > shares[1] > 0.01 > shares[2]


def call(count=20, length=60, **arguments):
    values = np.random.default_rng(0).normal(size=(count, length, 1))
    arguments = {"time_step": 0.1, "steps": 10, "grid": (0, 1), "train": memory.fit_polynomial, **arguments}
    return memory.choose_memory(values, **arguments)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: call(grid=(1, 0)), "grid=\\(1, 0\\): expected two numbers"),
        (lambda: call(grid=(3,)), "two numbers of memory steps or more"),
        (lambda: call(tolerance=0), "tolerance=0"),
        (lambda: call(steps=0), "steps=0"),
        (lambda: call(steps=100), "20 trajectories of 60 entries"),
        (lambda: call(count=5), "5 trajectories of 60 entries: expected 10 at least"),
        (lambda: memory.choose_memory(np.zeros((5, 5)), time_step=1, steps=1), "expected an array"),
        (lambda: memory.choose_memory(np.full((20, 60, 1), np.nan), time_step=1, steps=1), "hold NaN"),
        (lambda: memory.mutual_information(np.ones((1, 50, 1)), lags=5), "variable 0 never changes"),
        (lambda: memory.mutual_information(np.arange(10.0)[None, :, None], lags=20), "at least 22"),
        (lambda: memory.false_neighbours(np.zeros((1, 50, 2)) + np.arange(50)[:, None], delay=1), "choose one"),
        (lambda: memory.false_neighbours(np.arange(50.0)[None, :, None], delay=0), "delay=0"),
    ],
)
def test_bad_arguments_are_refused(run, message):
    with pytest.raises(ValueError, match=message):
        run()
