"""The dynamical systems of the paper, as data: right-hand side, state names and accurate flow.

A system is any object with ``name``, ``state_names``, ``rhs(states)`` and ``flow(time_step)``; arrays hold the
full state in float64, one row a trajectory. Nothing here depends on TensorFlow.
"""

import dataclasses
import pathlib
from collections.abc import Callable

import numpy as np
from scipy.integrate import DOP853, simpson
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


@dataclasses.dataclass(frozen=True, eq=False)
class NonlinearSystem:
    """Hold a nonlinear system dy/dt = f(y), stepped by a Runge-Kutta method of order eight.

    Args:
        name: what figures and tables call it.
        right_hand_side: f, from the variables, one array each, to their rates of change in the same order.
        state_names: one name for each variable.
        substeps: steps of the method within one `time_step` of `flow`; one is accurate to 1e-9 relative to the
            state's norm for the paper's systems and time steps.
        exponent: largest Lyapunov exponent, per time unit, of a chaotic system.

    Raises:
        ValueError: if `substeps` is no whole number of at least 1.

    Source: the method is the one of eighth order in Hairer, Norsett and Wanner, *Solving Ordinary Differential
    Equations I*, Section II.5 (DOP853); its coefficients are SciPy's.
    """

    name: str
    right_hand_side: Callable[..., tuple]
    state_names: tuple[str, ...]
    substeps: int = 1
    exponent: float | None = None

    def __post_init__(self):
        if not isinstance(self.substeps, int) or self.substeps < 1:
            raise ValueError(f"substeps={self.substeps!r}: expected a whole number, 1 or more.")

    def rhs(self, states: np.ndarray) -> np.ndarray:
        """Return dy/dt at `states`, both `(..., state)`."""
        states = np.asarray(states, "float64")
        rates = np.empty_like(states)
        self._write_rates(np.moveaxis(states, -1, 0), np.moveaxis(rates, -1, 0))
        return rates

    def _write_rates(self, variables, out):
        """Write dy/dt of variables `(state, ...)`: this way round each variable is contiguous."""
        for i, rate in enumerate(self.right_hand_side(*variables)):
            out[i] = rate

    def flow(self, time_step: float) -> Callable[[np.ndarray], np.ndarray]:
        """Return the flow map over `time_step`: a function from states `(..., state)` to the states after it.

        All trajectories march together, at a fixed step: a thousand times faster than one after another. The function
        keeps its working memory: give each thread one of its own.

        Example:
            >>> step = LORENZ.flow(0.01)
            >>> step(np.ones((10, 3))).shape
            (10, 3)
        """
        step, stages = time_step / self.substeps, np.empty((DOP853.n_stages, 0))

        def advance(states):
            nonlocal stages
            variables = np.ascontiguousarray(np.moveaxis(np.asarray(states, "float64"), -1, 0))
            if stages.shape[1:] != variables.shape:  # kept from call to call: fresh memory costs a fifth of the time
                stages = np.empty((DOP853.n_stages, *variables.shape))
            for _ in range(self.substeps):
                variables = self._step(variables, step, stages)
            return np.moveaxis(variables, 0, -1)

        return advance

    def _step(self, variables, step, stages):
        """Make one step of the Runge-Kutta method, with room for its stages, `(stage, state, ...)`: their combinations
        are products with a short vector."""
        flat = stages.reshape(DOP853.n_stages, -1)
        for stage in range(DOP853.n_stages):
            change = (step * DOP853.A[stage, :stage]) @ flat[:stage]
            self._write_rates(variables + change.reshape(variables.shape), stages[stage])
        return variables + ((step * DOP853.B) @ flat).reshape(variables.shape)


#: β of the pendulum, gravity over length.
GRAVITY = 9.80665


def _pendulum(angle, velocity, damping):
    return velocity, -damping * velocity - GRAVITY * np.sin(angle)


def implied_damping(angles, velocities, *, time_step: float) -> np.ndarray:
    """Return the damping α that pendulum trajectories imply by the energy they lose, `(trajectory,)`.

    dE/dt = -α y2², so α is the energy lost, E = y2²/2 + β (1 - cos y1), over the integral of y2² (Simpson's rule).

    Args:
        angles, velocities: y1 and y2, `(trajectory, time)`.
        time_step: time between entries.
    """
    energies = velocities**2 / 2 + GRAVITY * (1 - np.cos(angles))
    return (energies[:, 0] - energies[:, -1]) / simpson(velocities**2, dx=time_step, axis=1)


def _large_matrix():
    """Return A = [[Σ11, I + Σ12], [-(I + Σ21), -Σ22]] from the paper's appendix."""
    entries = 1e-3 * np.loadtxt(pathlib.Path(__file__).with_name("large_linear.txt"))
    s11, s12, s21, s22 = entries.reshape(4, 10, 10)
    return np.block([[s11, np.eye(10) + s12], [-(np.eye(10) + s21), -s22]])


#: Section 5.1: both eigenvalues are -3, so solutions decay without oscillating.
SMALL_LINEAR = LinearSystem("small linear system", np.array([[1.0, -4.0], [4.0, -7.0]]), ("y1", "y2"))

#: Section 5.2: eigenvalues -1/64 ± i, so solutions turn about the origin and hardly decay.
OSCILLATORY_LINEAR = LinearSystem(
    "oscillatory linear system", np.array([[-1 / 64, 1.0], [-1.0, -1 / 64]]), ("y1", "y2")
)

#: Section 5.3.1: a pendulum with damping α = 0.1; y1 is its angle, y2 its angular velocity.
PENDULUM = NonlinearSystem("damped pendulum", lambda y1, y2: _pendulum(y1, y2, 0.1), ("y1", "y2"))

#: Sections 5.3.2 and 5.3.3: the damping α differs between trajectories. It is a third variable that never changes and
#: that nobody observes.
RANDOM_PENDULUM = NonlinearSystem(
    "pendulum of unknown damping",
    lambda y1, y2, damping: (*_pendulum(y1, y2, damping), 0.0),
    ("y1", "y2", "alpha"),
)

#: Largest Lyapunov exponent of the Lorenz system: nearby states part by a factor e in 1/0.9056 time units (Viswanath,
#: *Lyapunov exponents from random Fibonacci sequences to the Lorenz equations*, Cornell 1998).
LORENZ_EXPONENT = 0.9056

#: Section 5.4: Lorenz's system of 1963, σ = 10, ρ = 28, β = 8/3.
LORENZ = NonlinearSystem(
    "Lorenz system",
    lambda x, y, z: (10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z),
    ("x", "y", "z"),
    exponent=LORENZ_EXPONENT,
)

#: Section 5.5: twenty variables, spectral abscissa -0.0040.
LARGE_LINEAR = LinearSystem("large linear system", _large_matrix(), tuple(f"y{i}" for i in range(1, 21)))
