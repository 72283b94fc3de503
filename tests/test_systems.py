"""Systems: exact flows against the matrix exponential and an independent solver."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from fml_tf import systems


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
        solved = solve_ivp(lambda t, y: system.rhs(y), (0, 1), begin, method="DOP853", rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(end, solved.y[:, -1], rtol=1e-9)
    np.testing.assert_allclose(states, system.flow(1.0)(start), rtol=1e-12)


def test_a_matrix_that_does_not_fit_its_names_is_refused():
    with pytest.raises(ValueError, match=r"matrix has shape \(2, 2\), but 3 state names call for \(3, 3\)"):
        systems.LinearSystem("odd", np.eye(2), ("a", "b", "c"))
