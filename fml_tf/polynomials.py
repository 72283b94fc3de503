"""`PolynomialFlowMap`: the flow map as a polynomial of the history, found by linear least squares in float64.

Nothing here depends on TensorFlow. The paper calls polynomials "perhaps among the best options" where the input is of
small dimension: no training, no ensemble, and errors near rounding where the flow map is smooth.
"""

import functools
import itertools
import json
import math
import pathlib
from collections.abc import Sequence

import numpy as np
from numpy.polynomial.legendre import legvander
from scipy.linalg import lapack

from fml_tf import _checks, results

#: Most bytes that the least squares may take.
MOST_BYTES = 2 * 1024**3

#: Rows that are taken into the least squares at a time.
BLOCK = 2_000


class PolynomialFlowMap:
    """Learn the flow map of an unknown system as a polynomial of the history.

    The next state is x_{n+1} = x_n + c P(z), with z the history's principal axes, scaled to [-1, 1], and P all
    products of Legendre polynomials of total degree up to `degree`. The entries of a history depend on each other:
    eleven delays of a linear system of two variables span a plane. So only the axes that hold something are kept,
    and the basis lives in them.

    Where a part of a nonlinear system is hidden, fit to histories with a little noise, some 1e-6 of the deviation (see
    `data.add_noise`). Without it least squares use differences between entries near rounding, which in a forecast
    hold nothing but its own errors.

    Args:
        state_dim: d, number of observed variables.
        memory_steps: n_M, past entries beyond the present one.
        degree: total degree of the polynomial; 1 is the linear delay map (dynamic mode decomposition with memory).
        most_axes: principal axes to keep, at most; None keeps all above `tolerance`.
        tolerance: axes whose deviation is below this fraction of the first one's are left out, and so are, in the
            least squares, combinations of terms that the data hardly tell apart. Data in single precision want 1e-6.
        reweights: times that the least squares are solved again with weights that turn them into least absolute
            errors. The typical window is then fitted better and the worst ones worse, which may lengthen forecasts of
            chaotic systems a little where the degree is low.
        time_step: time between entries, in the system's units; kept with the model, not used in computing.
        state_names: names of the observed variables; kept with the model.

    Raises:
        ValueError: for an argument out of range.

    Attributes: after `fit`, `input_rank` (axes kept), `terms` (of the basis), `rank` (of the least squares),
    `condition_number` (largest over smallest singular value kept) and `residual` (root mean square over the training
    data of the one-step error's 2-norm).

    Example:
        >>> model = PolynomialFlowMap(2, degree=3).fit(bursts)      # (sample, n_M + K + 2, 2)
        >>> model.forecast(history, steps=1000)                     # (trajectory, 1000, 2)

    Source: paper, Section 4.1, on the choice of the approximation space.
    """

    compute_dtype = "float64"  # of the arrays that checks hand over

    def __init__(
        self,
        state_dim: int,
        *,
        memory_steps: int = 0,
        degree: int = 3,
        most_axes: int | None = None,
        tolerance: float = 1e-12,
        reweights: int = 0,
        time_step: float | None = None,
        state_names: Sequence[str] | None = None,
    ):
        least_one = dict(state_dim=state_dim, degree=degree, most_axes=1 if most_axes is None else most_axes)
        for name, value in least_one.items():
            _checks.count(name, value, 1)
        _checks.count("memory_steps", memory_steps, 0)
        _checks.count("reweights", reweights, 0)
        if not 0 < tolerance < 1:
            raise ValueError(f"tolerance={tolerance!r}: expected a fraction between 0 and 1, for instance 1e-12.")
        _checks.variable_names(state_names, state_dim)
        self.state_dim, self.memory_steps, self.degree = int(state_dim), int(memory_steps), int(degree)
        self.most_axes, self.tolerance, self.time_step = most_axes, float(tolerance), time_step
        self.reweights = int(reweights)
        self.state_names = None if state_names is None else tuple(state_names)
        self.coefficients = None

    # Fitting -------------------------------------------------------------------------------------------------

    def fit(self, x) -> "PolynomialFlowMap":
        """Find the polynomial of least squares over all one-step windows of bursts; returns the model.

        Args:
            x: bursts `(sample, burst_length, state)` in the data's units, of n_M + 2 entries at least.

        Raises:
            ValueError: for bursts of the wrong shape, too short or not finite; for a basis with more terms than there
                are windows, or than memory can hold.
        """
        bursts = _checks.bursts(self, x, "x")
        features = (self.memory_steps + 1) * self.state_dim
        entries = bursts.reshape(len(bursts), -1)
        starts = range(0, entries.shape[1] - features, self.state_dim)
        self.data_range = np.stack([bursts.min((0, 1)), bursts.max((0, 1))])
        self._learn_axes(entries, features, starts)
        self._choose_basis(len(bursts) * len(starts))
        self._solve(entries, features, starts)
        return self

    def _learn_axes(self, entries, features, starts):
        """Find the principal axes of the histories, and scales that bring all windows into [-1, 1] on them."""
        histories = entries[:, :features]
        self.centre = histories.mean(axis=0)
        factor = _triangle(histories[i : i + BLOCK] - self.centre for i in range(0, len(histories), BLOCK))
        _, spread, axes = np.linalg.svd(factor)
        kept = int(np.sum(spread > self.tolerance * spread[0])) if spread[0] else 0
        if not kept:
            raise ValueError("all histories are the same: a polynomial has nothing to learn from them.")
        self.axes = axes[: min(kept, self.most_axes or kept)].T
        self.input_rank = self.axes.shape[1]
        reach = [np.abs((entries[:, s : s + features] - self.centre) @ self.axes).max(axis=0) for s in starts]
        self.axes = self.axes / np.max(reach, axis=0)

    def _choose_basis(self, windows):
        """List the terms of the basis; refuse one larger than the data or than memory."""
        self.terms = math.comb(self.input_rank + self.degree, self.degree)
        basis = f"degree={self.degree} in {self.input_rank} variables gives {self.terms:,} terms"
        if self.terms > windows:
            raise ValueError(f"{basis}, more than the {windows:,} windows of the data: lower degree or most_axes.")
        needed = 3 * 8 * self.terms * (self.terms + min(windows, BLOCK))
        if needed > MOST_BYTES:
            raise ValueError(
                f"{basis}, whose least squares take {needed / 1e9:.0f} GB, more than the {MOST_BYTES / 1e9:.0f} GB "
                "allowed: lower degree, or keep fewer principal axes (most_axes)."
            )
        self.products = _products(self.input_rank, self.degree)

    def _solve(self, entries, features, starts):
        """Solve the least squares, and as often again as `reweights` says, with less weight where more was missed: so
        the sum of 2-norms falls, not that of their squares."""
        blocks, windows = functools.partial(self._blocks, entries, features, starts), len(entries) * len(starts)
        missed = self._least_squares(np.concatenate(block) for block in blocks())
        typical = missed / math.sqrt(windows) or 1.0  # exact data need no other weights
        for _ in range(self.reweights):
            self._least_squares(
                np.concatenate(block) / np.sqrt(self._missed(*block) / typical + 0.1) for block in blocks()
            )
        if self.reweights:
            missed = math.sqrt(sum((self._missed(*block) ** 2).sum() for block in blocks()))
        self.residual = float(missed / math.sqrt(windows))

    def _blocks(self, entries, features, starts):
        """Yield the basis at windows, `(term, row)`, and the increments after them, `(state, row)`."""
        d = self.state_dim
        for start in starts:
            for i in range(0, len(entries), BLOCK):
                window = entries[i : i + BLOCK, start : start + features + d]
                increments = window[:, features:] - window[:, features - d : features]
                yield self._basis(window[:, :features]), increments.T

    def _least_squares(self, blocks):
        """Find the coefficients from blocks of basis and increments, `(term + state, row)`: the triangular factor of
        all rows, then its singular values. Returns the norm of what is missed."""
        factor = _triangle(block.T for block in blocks)
        left, spread, right = np.linalg.svd(factor[: self.terms, : self.terms])
        kept = spread > self.tolerance * spread[0]
        self.rank, self.condition_number = int(kept.sum()), float(spread[0] / spread[kept][-1])
        gain = np.where(kept, 1 / np.where(kept, spread, 1), 0)
        self.coefficients = right.T @ (gain[:, None] * (left.T @ factor[: self.terms, self.terms :]))
        return np.linalg.norm(factor[:, self.terms :] - factor[:, : self.terms] @ self.coefficients)

    def _missed(self, basis, increments):
        """Return the 2-norm of each window's one-step error."""
        return np.linalg.norm(increments - self.coefficients.T @ basis, axis=0)

    def _basis(self, windows):
        """Return the terms of the basis at windows `(row, feature)`, `(term, row)`."""
        powers_of = legvander(((windows - self.centre) @ self.axes).T, self.degree)  # (axis, row, power)
        powers_of = np.ascontiguousarray(np.moveaxis(powers_of, -1, 1))
        terms = np.empty((self.terms, len(windows)))
        terms[0] = 1
        for term, (before, variable, power) in enumerate(self.products, 1):
            np.multiply(terms[before], powers_of[variable, power], out=terms[term])
        return terms

    # Forecasting ---------------------------------------------------------------------------------------------

    def forecast(self, history, steps: int) -> np.ndarray:
        """Predict the states that follow a history.

        Args:
            history: `(trajectory, n_M + 1, state)` in the data's units, oldest entry first.
            steps: steps to predict.

        Returns:
            The predicted steps only, `(trajectory, steps, state)`. Outside its data a polynomial grows fast:
            trajectories that turn non-finite, or leave ten times the range of the training data, are returned as they
            are and reported in a warning with the first such step.

        Raises:
            ValueError: for a history of the wrong shape or not finite, steps below 1, or a model not fitted.
        """
        _checks.count("steps", steps, 1)
        if self.coefficients is None:
            raise ValueError("this model is not fitted: call fit(bursts) first.")
        window = _checks.history(self, history).reshape(len(history), -1)
        states = np.empty((int(steps), len(window), self.state_dim))
        with np.errstate(over="ignore", invalid="ignore"):
            for step in range(int(steps)):
                states[step] = window[:, -self.state_dim :] + self._basis(window).T @ self.coefficients
                window = np.concatenate([window[:, self.state_dim :], states[step]], axis=1)
        states = states.swapaxes(0, 1)
        _checks.runaways(states[None], *self.data_range)
        return states

    # Files ---------------------------------------------------------------------------------------------------

    def save(self, filepath) -> None:
        """Save to an `.npz` file, whole or not at all; `polynomials.load` reads it.

        Raises:
            ValueError: for another ending, or a model not fitted.
        """
        path = pathlib.Path(filepath)
        if path.suffix != ".npz" or self.coefficients is None:
            raise ValueError(f"cannot save to {filepath}: expected a fitted model and a name that ends with .npz.")
        arguments, facts, arrays = (
            {name: getattr(self, name) for name in names} for names in (_ARGUMENTS, _FACTS, _ARRAYS)
        )

        record = np.array(json.dumps([arguments, facts]))
        results.replace(path, lambda part: np.savez(part, **arrays, record=record))


_ARGUMENTS = (
    "state_dim", "memory_steps", "degree", "most_axes", "tolerance", "reweights", "time_step", "state_names",
)  # fmt: skip
_ARRAYS = ("data_range", "centre", "axes", "coefficients")
_FACTS = ("input_rank", "terms", "rank", "condition_number", "residual")


def load(filepath) -> PolynomialFlowMap:
    """Load a model that `PolynomialFlowMap.save` wrote.

    Raises:
        ValueError: if the file holds something else.
    """
    with np.load(filepath, allow_pickle=False) as file:
        missing = {*_ARRAYS, "record"} - set(file.files)
        if missing:
            raise ValueError(f"{filepath} holds no PolynomialFlowMap: it lacks {', '.join(sorted(missing))}.")
        arguments, facts = json.loads(str(file["record"]))
        model = PolynomialFlowMap(**arguments)
        for name, value in [*facts.items(), *((name, file[name]) for name in _ARRAYS)]:
            setattr(model, name, value)
    model.products = _products(model.input_rank, model.degree)
    return model


def _products(variables, degree):
    """Say how each term of total degree up to `degree` is made, but the first, which is 1: the place of the earlier
    term that it multiplies, the variable that comes in, and its power."""
    chosen = list(itertools.combinations_with_replacement(range(variables + 1), degree))  # 0 fills up
    place, products = {term: i for i, term in enumerate(chosen)}, []
    for term in chosen[1:]:
        power = term.count(term[-1])
        products.append((place[(0,) * power + term[: degree - power]], term[-1] - 1, power))
    return products


def _triangle(blocks):
    """Return the triangular factor R of a matrix given by blocks of its rows, A = Q R.

    LAPACK's recursive factorisation takes half the time of NumPy's.
    """
    factor = np.empty((0, 0))
    for block in blocks:
        columns = np.concatenate([factor.T, block.T], axis=1) if len(factor) else block.T
        upper = lapack.dgeqrt(min(32, *columns.shape), columns.T, overwrite_a=True)[0]
        factor = np.triu(upper[: len(columns)])
    return factor
