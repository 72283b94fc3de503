"""Data: bursts against trajectories marched by hand, seeds, and a user's own data."""

import numpy as np
import pytest

from fml_tf import data, problems


def test_bursts_are_pieces_of_trajectories_from_the_domain(quick):
    """March every trajectory in full, from the initial states the seed gives, and find each burst in its own."""
    problem = problems.get("5.1.1", "quick", n_trajectories=20)
    bursts = data.sample_bursts(problem, seed=3).reshape(20, problem.n_bursts, problem.burst_length, 2)
    start = np.random.default_rng([3, 0]).uniform(0, 2, (20, 2))
    entries, step = [start], problem.system.flow(problem.time_step)
    for _ in range(problem.trajectory_length - 1):
        entries.append(step(entries[-1]))
    whole = np.stack(entries, axis=1)
    windows = np.lib.stride_tricks.sliding_window_view(whole, problem.burst_length, axis=1).swapaxes(2, 3)
    for trajectory in range(20):
        places = [
            np.flatnonzero((windows[trajectory] == burst).all(axis=(1, 2))).tolist() for burst in bursts[trajectory]
        ]
        assert all(len(p) == 1 for p in places), "each burst stands in its trajectory, once"
        assert len({p[0] for p in places}) == problem.n_bursts, "no repeats"


def test_bursts_start_everywhere_in_a_trajectory():
    problem = problems.get("5.1.1", "quick", n_trajectories=2000, trajectory_length=30, multi_steps=3, n_bursts=1)
    starts = data._draw_starts(np.full(2000, 30), problem.burst_length, 1, np.random.default_rng(0))
    counts = np.bincount(starts.ravel(), minlength=26)
    assert len(counts) == 26, "the last place is 30 - 5"
    assert counts.min() > 40, "uniform: 77 expected at each place"


def test_sizes_seeds_and_fingerprints(quick):
    bursts = data.sample_bursts(quick)
    assert bursts.shape == (quick.n_samples, quick.burst_length, 2)
    assert bursts.dtype == np.float64
    assert data.fingerprint(bursts) == data.fingerprint(data.sample_bursts(quick))
    assert data.fingerprint(bursts) != data.fingerprint(data.sample_bursts(quick, seed=1))


def test_first_test_entry_is_the_initial_condition(quick):
    problem = problems.get("5.1.1", "quick", memory_steps=2)
    test = data.sample_trajectories(problem, seed=7)
    assert test.shape == (100, 3 + 200, 2)
    np.testing.assert_array_equal(test[:, 0], np.random.default_rng([7, 1]).uniform(0, 2, (100, 2)))
    np.testing.assert_allclose(test[:, 1], problem.system.flow(0.01)(test[:, 0]), rtol=1e-14)
    np.testing.assert_array_equal(data.sample_trajectories(problem, seed=7, steps=5), test[:, :8])


def test_a_hidden_parameter_is_drawn_for_each_trajectory_and_not_observed():
    problem = problems.get("5.3.3", n_test=50)
    full, observed = data.sample_full_trajectories(problem, steps=20), data.sample_trajectories(problem, steps=20)
    assert full.shape == (50, 31, 3)
    np.testing.assert_array_equal(observed, full[:, :, :1])
    damping = full[:, :, 2]
    np.testing.assert_array_equal(damping, damping[:, :1].repeat(31, axis=1), err_msg="constant along a trajectory")
    assert damping.min() >= 0
    assert damping.max() <= 0.2
    assert np.std(damping[:, 0]) == pytest.approx(0.2 / np.sqrt(12), rel=0.3)


def test_a_spin_up_lets_time_pass_before_the_first_entry():
    problem = problems.get("5.4.1", n_test=4)
    late = data.sample_trajectories(problem, steps=5, spin_up=0.3)
    np.testing.assert_array_equal(late, data.sample_trajectories(problem, steps=35)[:, 30:])
    attractor = data.sample_trajectories(problem, steps=1, spin_up=20.0)
    assert (attractor[:, :, 2] > 1).all(), "the attractor lies at z > 0; the box reaches below"
    with pytest.raises(ValueError, match="spin_up=-1: expected a time of 0 or more"):
        data.sample_trajectories(problem, spin_up=-1)


def test_training_and_test_data_differ_even_with_one_seed(quick):
    starts = data.sample_trajectories(quick, seed=0)[:, 0]
    drawn = np.random.default_rng([0, 0]).uniform(0, 2, (100, 2))
    assert np.abs(starts[:, None] - drawn[None]).max(axis=2).min() > 1e-6


def test_bursts_of_your_own_data_are_its_pieces():
    series = [np.arange(n * 2.0).reshape(n, 2) + 1000 * n for n in (9, 30, 12)]
    bursts = data.cut_bursts(series, memory_steps=1, multi_steps=3, n_bursts=5)
    assert bursts.shape == (4 + 5 + 5, 6, 2), "the first has four places only"
    for burst in bursts:
        owner = next(s for s in series if (s == burst[0]).all(axis=1).any())
        start = np.flatnonzero((owner == burst[0]).all(axis=1))[0]
        np.testing.assert_array_equal(burst, owner[start : start + 6])


def test_short_trajectories_are_left_out_with_a_count():
    series = [np.zeros((5, 1)), np.ones((40, 1)), np.zeros((11, 1))]
    with pytest.warns(UserWarning, match="2 of 3 trajectories are shorter than a burst of 12 entries"):
        bursts = data.cut_bursts(series)
    assert (bursts == 1).all()


@pytest.mark.parametrize(
    ("trajectories", "options", "message"),
    [
        (np.zeros((3, 8, 2)), {}, "longest trajectory has 8 entries, .* 0 \\+ 10 \\+ 2 = 12: give longer"),
        (np.zeros((3, 8)), {}, r"trajectory 0 has shape \(8,\), expected \(time, state\)"),
        ([np.zeros((20, 2)), np.zeros((20, 3))], {}, "trajectory 1 has 3 states, trajectory 0 has 2"),
        ([np.zeros((20, 1)), np.full((20, 1), np.nan)], {}, "trajectory 1, entry 0, state 0 is nan"),
        ([np.full((20, 1), np.inf)], {}, "trajectory 0, entry 0, state 0 is inf"),
        ([[["a"]]], {}, "trajectory 0 cannot be read as numbers"),
        ([], {}, "no trajectories given"),
        (None, {}, "no trajectories given"),
        (np.zeros((3, 20, 0)), {}, "expected \\(time, state\\)"),
        ([np.zeros((20, 1)) * 1j], {}, "trajectory 0 has masked or complex entries"),
        (np.zeros((3, 20, 2)), {"memory_steps": -1}, "memory_steps=-1: expected a whole number, 0 or more"),
        (np.zeros((3, 20, 2)), {"multi_steps": -2}, "multi_steps=-2"),
        (np.zeros((3, 20, 2)), {"n_bursts": 0}, "n_bursts=0: expected a whole number, 1 or more"),
    ],
)
def test_bad_data_are_refused(trajectories, options, message):
    with pytest.raises(ValueError, match=message):
        data.cut_bursts(trajectories, **options)


def test_noise_is_on_the_history_alone_in_units_of_each_variable():
    bursts = np.random.default_rng(0).normal(size=(4000, 7, 2)) * [1.0, 30.0]
    noisy = data.add_noise(bursts, 0.1, memory_steps=2, seed=3)
    np.testing.assert_array_equal(noisy[:, 3:], bursts[:, 3:])
    np.testing.assert_allclose((noisy - bursts)[:, :3].std(axis=(0, 1)), [0.1, 3.0], rtol=0.03)
    np.testing.assert_array_equal(noisy, data.add_noise(bursts, 0.1, memory_steps=2, seed=3))
    assert (data.add_noise(bursts, 0.1, memory_steps=2, seed=4) != noisy)[:, :3].all()
    np.testing.assert_array_equal(data.add_noise(bursts, 0.0, memory_steps=2), bursts)
    with pytest.raises(ValueError, match=r"size=-1\.0: expected a fraction"):
        data.add_noise(bursts, -1.0, memory_steps=2)
