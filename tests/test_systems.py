"""Systems: exact flows against the matrix exponential and an independent solver."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from fml_tf import data, problems, systems

#: Of Σ11, Σ12, Σ21, Σ22, in units of 1e-3: sums of rows, sums of columns, and the entries at the four corners and
#: in row 5, column 6.
SUMS = [
    (
        [-1.835, -58.98, -2.273, -38.21, 14.59, 77.37, -52.82, 16.869, 12.684, 18.58],
        [-9.713, 46.39, 3.135, 11.44, 0.69, 53.35, -28.39, -45.796, -46.06, 0.929],
        [-6.09, 4.73, 3.07, 16.6, 1.77],
    ),
    (
        [17.415, 31.22, 5.847, 44.442, 50.128, -10.35, -64.386, -38.043, -0.955, -53.7],
        [40.496, -8.35, -2.775, -0.579, -45.69, 28.667, -15.8, -41.121, 27.34, -0.57],
        [11.7, -10.9, -16.8, -2.34, -4.96],
    ),
    (
        [-81.325, 43.2357, 49.114, 12.79, 60.85, -14.107, 39.07, 30.0, 2.378, 31.969],
        [5.989, 53.14, 7.544, -8.23, 12.991, 23.532, 16.7957, 10.772, 30.111, 21.33],
        [-3.51, -11.8, 1.41, -10.3, 7.62],
    ),
    (
        [854.0, 1674.9, 2867.0, 1974.0, 2335.9, -1902.0, 824.2, -1131.4, 702.4, 1190.0],
        [854.0, 1674.9, 2867.0, 1974.0, 2335.9, -1902.0, 824.2, -1131.4, 702.4, 1190.0],
        [1500.0, 242.0, 242.0, 1090.0, -973.0],
    ),
]


def tight(system, start, duration):
    """Integrate one state by SciPy to the last digits."""
    return solve_ivp(lambda t, y: system.rhs(y), (0, duration), start, method="DOP853", rtol=1e-12, atol=1e-12).y[:, -1]


def test_small_linear_system_is_the_papers():
    np.testing.assert_array_equal(systems.SMALL_LINEAR.matrix, [[1, -4], [4, -7]])
    np.testing.assert_allclose(np.linalg.eigvals(systems.SMALL_LINEAR.matrix), [-3, -3], atol=1e-6)


def test_propagator_is_the_matrix_exponential():
    """A double eigenvalue -3 gives expm(A t) = e^{-3t} (I + (A + 3 I) t), known in closed form."""
    matrix = systems.SMALL_LINEAR.matrix
    for time_step in (1e-3, 0.01, 1.0):
        closed = np.exp(-3 * time_step) * (np.eye(2) + (matrix + 3 * np.eye(2)) * time_step)
        propagator = systems.SMALL_LINEAR.propagator(time_step)
        np.testing.assert_allclose(propagator, closed, rtol=1e-13, atol=1e-16)
        np.testing.assert_array_equal(propagator, expm(matrix * time_step))


def test_flow_agrees_with_a_tight_integration_and_composes():
    system, start = systems.SMALL_LINEAR, np.array([[0.3, 1.7], [2.0, 0.1]])
    step = system.flow(0.01)
    states = start
    for _ in range(100):
        states = step(states)
    for begin, end in zip(start, states, strict=True):
        np.testing.assert_allclose(end, tight(system, begin, 1.0), rtol=1e-9)
    np.testing.assert_allclose(states, system.flow(1.0)(start), rtol=1e-12)


def test_a_matrix_that_does_not_fit_its_names_is_refused():
    with pytest.raises(ValueError, match=r"matrix has shape \(2, 2\), but 3 state names call for \(3, 3\)"):
        systems.LinearSystem("odd", np.eye(2), ("a", "b", "c"))


@pytest.mark.parametrize("benchmark", ["5.3.1", "5.3.3", "5.4.1"])
def test_each_step_of_a_nonlinear_trajectory_is_accurate_to_nine_digits(benchmark):
    """From the box to the end of the paper's trajectories, the step between two entries against a tight integration."""
    problem = problems.get(benchmark, n_test=3)
    states = data.sample_full_trajectories(problem)
    for trajectory in states:
        for entry in range(0, len(trajectory) - 1, len(trajectory) // 40):
            expected = tight(problem.system, trajectory[entry], problem.time_step)
            error = np.linalg.norm(trajectory[entry + 1] - expected) / np.linalg.norm(expected)
            assert error < 1e-9, entry


def test_nonlinear_flow_converges_at_order_eight():
    """Halving the step divides the error by 2^8, and substeps are steps."""
    start = np.array([[1.0, 2.0, 20.0]])
    coarse, fine = (systems.NonlinearSystem("", systems.LORENZ.right_hand_side, ("x", "y", "z"), n) for n in (4, 8))
    exact = tight(systems.LORENZ, start[0], 0.4)
    errors = [np.abs(system.flow(0.4)(start)[0] - exact).max() for system in (coarse, fine)]
    assert 2**7 < errors[0] / errors[1] < 2**9.5
    step = systems.LORENZ.flow(0.1)
    np.testing.assert_allclose(coarse.flow(0.4)(start), step(step(step(step(start)))), rtol=1e-14)


@pytest.mark.parametrize("system", [systems.PENDULUM, systems.RANDOM_PENDULUM, systems.LORENZ], ids=lambda s: s.name)
def test_right_hand_sides_are_the_papers(system):
    """Typed anew from the paper, at random states of any leading shape."""
    states = np.random.default_rng(0).uniform(-2, 2, (4, 5, len(system.state_names)))
    a, b, *c = np.moveaxis(states, -1, 0)
    if system is systems.LORENZ:
        expected = [10 * (b - a), a * (28 - c[0]) - b, a * b - 8 / 3 * c[0]]
    elif system is systems.PENDULUM:
        expected = [b, -0.1 * b - 9.80665 * np.sin(a)]
    else:
        expected = [b, -c[0] * b - 9.80665 * np.sin(a), np.zeros_like(a)]
    np.testing.assert_allclose(system.rhs(states), np.stack(expected, axis=-1), rtol=1e-14)
    assert system.flow(0.01)(states).shape == states.shape


def test_implied_damping_recovers_the_true_one():
    problem = problems.get("5.3.2", n_test=20)
    states = data.sample_full_trajectories(problem)
    implied = systems.implied_damping(states[..., 0], states[..., 1], time_step=problem.time_step)
    np.testing.assert_allclose(implied, states[:, 0, 2], rtol=1e-6, atol=1e-8)


def test_oscillatory_linear_system_is_the_papers():
    eigenvalues = np.linalg.eigvals(systems.OSCILLATORY_LINEAR.matrix)
    np.testing.assert_allclose(np.sort_complex(eigenvalues), [-1 / 64 - 1j, -1 / 64 + 1j], rtol=1e-14)
    np.testing.assert_array_equal(systems.OSCILLATORY_LINEAR.matrix[0], [-1 / 64, 1])


def test_large_linear_system_is_the_papers():
    """Sums over rows, columns and corners of each matrix of the appendix, added up from its text, and the spectrum."""
    matrix = 1e3 * (
        systems.LARGE_LINEAR.matrix - np.block([[np.zeros((10, 10)), np.eye(10)], [-np.eye(10), np.zeros((10, 10))]])
    )
    blocks = [matrix[:10, :10], matrix[:10, 10:], -matrix[10:, :10], -matrix[10:, 10:]]
    for block, (rows, columns, corners) in zip(blocks, SUMS, strict=True):
        np.testing.assert_allclose(block.sum(axis=1), rows, atol=1e-9)
        np.testing.assert_allclose(block.sum(axis=0), columns, atol=1e-9)
        np.testing.assert_allclose(block[[0, 0, 9, 9, 4], [0, 9, 0, 9, 5]], corners, atol=1e-9)
    np.testing.assert_allclose(blocks[3], blocks[3].T, atol=1e-9, err_msg="the paper's last matrix is symmetric")
    assert np.linalg.eigvals(systems.LARGE_LINEAR.matrix).real.max() == pytest.approx(-0.0040, abs=5e-5)
    assert len(systems.LARGE_LINEAR.state_names) == 20


def test_substeps_below_one_are_refused():
    with pytest.raises(ValueError, match="substeps=0: expected a whole number, 1 or more"):
        systems.NonlinearSystem("odd", lambda y: (y,), ("y",), substeps=0)
