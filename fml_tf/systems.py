"""The dynamical systems of the paper, as data: right-hand side, state names and exact flow.

A system is any object with ``name``, ``state_names``, ``rhs(states)`` and ``flow(time_step)``; arrays hold the
full state in float64, one row a trajectory. Nothing here depends on TensorFlow.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from scipy.linalg import expm


@dataclasses.dataclass(frozen=True, eq=False)
class LinearSystem:
    """Hold a linear system dy/dt = A y, whose flow is known exactly.

    Args:
        name: what figures and tables call it.
        matrix: A, `(state, state)`, in inverse time units of the system.
        state_names: one name for each variable.

    Raises:
        ValueError: if `matrix` is not square or does not match `state_names`.
    """

    name: str
    matrix: np.ndarray
    state_names: tuple[str, ...]

    def __post_init__(self):
        shape, expected = np.shape(self.matrix), (len(self.state_names),) * 2
        if shape != expected:
            raise ValueError(
                f"matrix has shape {shape}, but {len(self.state_names)} state names call for {expected}: "
                "give a square matrix and one name for each variable."
            )

    def rhs(self, states: np.ndarray) -> np.ndarray:
        """Return dy/dt at `states`, both `(..., state)`."""
        return states @ np.asarray(self.matrix).T

    def propagator(self, time_step: float) -> np.ndarray:
        """Return expm(A Δ), `(state, state)`: the matrix that moves a state by `time_step` without error."""
        return expm(np.asarray(self.matrix, "float64") * time_step)

    def flow(self, time_step: float) -> Callable[[np.ndarray], np.ndarray]:
        """Return the flow map over `time_step`: a function from states `(..., state)` to the states after it.

        Example:
            >>> step = SMALL_LINEAR.flow(0.01)
            >>> step(np.array([[1.0, 2.0]])).shape
            (1, 2)
        """
        transposed = self.propagator(time_step).T
        return lambda states: states @ transposed


#: Section 5.1: both eigenvalues are -3, so solutions decay without oscillating.
SMALL_LINEAR = LinearSystem("small linear system", np.array([[1.0, -4.0], [4.0, -7.0]]), ("y1", "y2"))
