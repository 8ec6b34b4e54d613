"""Problem: min_x F(x) = sum_i p_i f_i(x) + g(x), and everything one may want to know about it at a point."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax import Array

from compfed.data import Sites
from compfed.errors import InputError
from compfed.problem.curvature import largest_eigenvalue
from compfed.problem.gradient_mapping import usable
from compfed.problem.losses import Loss
from compfed.problem.measures import client_gradients, curvatures, gradients, objectives_and_mappings
from compfed.problem.padded_rows import store
from compfed.problem.regularisers import Regulariser, from_object
from compfed.tools.arrays import owned
from compfed.tools.checks import numbers, positive
from compfed.tools.precision import checked_dtype, our_settings, precision
from compfed.tools.programs import compiled
from compfed.tools.records import describe
from compfed.trace import Members


class Problem:
    """min_x sum_i p_i f_i(x) + g(x), with f_i the mean loss over the rows of site i (plus the loss's ridge).

    The rows count equally within a site unless `sites` has row weights.

    - `weights`: p_i, 1/n unless given (0: the site is there and does not count); `sites.shares` makes the problem that
      of the pooled table.
    - `dtype`: "float64" (default) or "float32": the precision of every run on this problem.
    """

    def __init__(
        self,
        loss: Loss,
        regulariser: Regulariser,
        sites: Sites,
        weights: Any = None,
        dtype: Any = "float64",
    ):
        self.dtype = checked_dtype(dtype)
        if not isinstance(sites, Sites):
            raise InputError(
                f"sites must come from compfed.data (from_arrays, from_table, ...); got {type(sites).__name__}."
            )
        for part in (loss, regulariser):
            if isinstance(part, type):
                raise InputError(f"got the class {part.__name__}; give an instance, such as {part.__name__}(...).")
        if hasattr(loss, "prox") and hasattr(regulariser, "gradient"):
            raise InputError(
                f"got Problem({type(loss).__name__}, {type(regulariser).__name__}, sites); "
                "the loss comes first, then the regulariser."
            )
        lacks = [name for name in ("size", "values", "gradient", "gradient_terms") if not hasattr(loss, name)]
        if lacks:
            raise InputError(
                f"{type(loss).__name__} is no loss: it has no {lacks[0]}. Take one of compfed.losses, or make one of a "
                "function of a row and its label with losses.from_function."
            )
        regulariser = from_object(regulariser)
        _check_fits(regulariser, loss.size(sites.width))
        self.loss, self.regulariser, self.sites = loss, regulariser, sites
        self.weights = _checked_weights(weights, len(sites))
        encoded = loss.encode(np.concatenate(sites.labels))
        labels = np.split(encoded, np.cumsum(sites.sizes)[:-1])
        self.store, self.order = store(sites, labels, self.weights, self.dtype)
        self._check_loss()

    def _check_loss(self) -> None:
        """A loss must give one number per row: a function that does not is found out here."""
        try:
            with precision(self.dtype):
                found = jax.eval_shape(self.loss.values, self.start, self.store.A, self.store.y).shape
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{type(self.loss).__name__} does not work with {self.sites.width} features: {error}"
            ) from error
        if found != self.store.y.shape[:1]:
            raise InputError(
                f"{type(self.loss).__name__} gives shape {found[1:]} for a row; it must give a single number."
            )

    def __repr__(self) -> str:
        parts = f"{type(self.loss).__name__}, {type(self.regulariser).__name__}, {self.sites!r}"
        return f"Problem({parts}, {self.d} coefficients, {self.dtype.name})"

    @property
    def n(self) -> int:
        """Number of clients."""
        return len(self.sites)

    @property
    def d(self) -> int:
        """Number of coefficients."""
        return self.loss.size(self.sites.width)

    @property
    def start(self) -> np.ndarray:
        """Where a run starts unless told otherwise: zero, or the parameters a loss was made with."""
        return np.asarray(getattr(self.loss, "start", np.zeros(self.d)), self.dtype)

    def replace(self, loss: Loss | None = None, regulariser: Regulariser | None = None) -> Problem:
        """The same data with another loss or regulariser; nothing is copied, and equal shapes compile once."""
        loss = self.loss if loss is None else loss
        regulariser = self.regulariser if regulariser is None else from_object(regulariser)
        # another loss may read the labels differently
        if type(loss) is not type(self.loss) or loss.size(self.sites.width) != self.d:
            return Problem(loss, regulariser, self.sites, self.weights, self.dtype)
        _check_fits(regulariser, self.d)
        new = copy.copy(self)
        new.loss, new.regulariser = loss, regulariser
        if loss is not self.loss:
            new.__dict__.pop("_curvature_at_start", None)
        return new

    def astype(self, dtype: Any) -> Problem:
        """The same problem in another precision."""
        if checked_dtype(dtype) == self.dtype:
            return self
        return Problem(self.loss, self.regulariser, self.sites, self.weights, dtype)

    def point(self, x: Any, name: str = "x") -> np.ndarray:
        """x as a vector of this problem, checked."""
        array = np.array(numbers(x, name, self.dtype))  # a copy: the caller may change his
        if array.shape != (self.d,):
            raise InputError(
                f"{name} has shape {array.shape}; this problem has {self.d} coefficients: shape ({self.d},)."
            )
        if not np.isfinite(array).all():
            raise InputError(f"{name} has NaN or infinite entries; it must be finite.")
        return array

    def objective(self, x: Any) -> float:
        """F(x) = sum_i p_i f_i(x) + g(x)."""
        with precision(self.dtype):
            return float(
                objectives_and_mappings(self.loss, self.regulariser, self.store, self.point(x)[None], 1.0)[0][0]
            )

    def gradient(self, x: Any) -> np.ndarray:
        """sum_i p_i grad f_i(x)."""
        with precision(self.dtype):
            return np.asarray(gradients(self.loss, self.store, self.point(x)[None])[0])

    def client_gradients(self, x: Any) -> np.ndarray:
        """grad f_i(x), one row per site."""
        with precision(self.dtype):
            return np.asarray(client_gradients(self.loss, self.store, self.point(x)))[np.argsort(self.order)]

    def gradient_mapping(self, x: Any, step: float | None = None) -> np.ndarray:
        """(x - prox_{step g}(x - step grad f(x))) / step, zero exactly at the minimiser; step is 1/L unless given."""
        with precision(self.dtype):
            t = 1.0 / self.lipschitz if step is None else positive(step, "step")
            return np.asarray(
                objectives_and_mappings(self.loss, self.regulariser, self.store, self.point(x)[None], t)[1][0]
            )

    @property
    def lipschitz(self) -> float:
        """L: Lipschitz constant of the gradient of f = sum_i p_i f_i.

        For a loss whose curvature has no bound: the largest curvature of f at `start`.
        """
        bound = self.loss.curvature
        L = self._curvature_at_start[0] if bound is None else self._top_eigenvalue * bound + float(self.loss.ridge)
        return usable(float(L), self.regulariser)

    @property
    def client_lipschitz(self) -> np.ndarray:
        """L_i of every site, likewise."""
        bound = self.loss.curvature
        if bound is None:
            return self._curvature_at_start[1]
        return self._client_top_eigenvalues * bound + float(self.loss.ridge)

    def curvature_at(self, x: Any) -> tuple[float, np.ndarray]:
        """Largest eigenvalue, in size, of the second derivative of f at x, and the same of every f_i."""
        with precision(self.dtype):
            total, clients = curvatures(self.loss, self.store, self.point(x))
            return float(total), np.asarray(clients, float)[np.argsort(self.order)]

    @cached_property
    def _curvature_at_start(self) -> tuple[float, np.ndarray]:
        return self.curvature_at(self.start)

    # Of the data alone, so `replace` keeps them.
    @cached_property
    def _top_eigenvalue(self) -> float:
        weights = [p * q for p, q in zip(self.weights, self.sites.row_shares, strict=True)]
        return largest_eigenvalue(self.sites.features, weights)

    @cached_property
    def _client_top_eigenvalues(self) -> np.ndarray:
        rows = zip(self.sites.features, self.sites.row_shares, strict=True)
        return np.array([largest_eigenvalue([A], [q]) for A, q in rows])

    @property
    def strong_convexity(self) -> float:
        """mu: what the ridge guarantees to every f_i."""
        return float(self.loss.ridge)

    def members(self) -> Members:
        """The sites, for whoever goes on from here."""
        return Members(self.sites.names, self.sites.sizes, self.weights, self.sites.marks)

    def describe(self) -> dict[str, Any]:
        """The problem in a few plain values, for provenance."""
        sizes = self.sites.sizes
        return {
            "loss": describe(self.loss),
            "regulariser": describe(self.regulariser),
            "clients": self.n,
            "samples": {"total": int(sizes.sum()), "smallest": int(sizes.min()), "largest": int(sizes.max())},
            "features": self.d,
            "uniform_weights": bool(np.ptp(self.weights) == 0),
            "source": self.sites.source,
        }


@compiled  # traced once for all regularisers of a kind, such as those of a path
def _prox(g: Regulariser, x: Array, t: Array) -> Array:
    return g.prox(x, t)


def _check_fits(g: Regulariser, d: int) -> None:
    """A regulariser with an array (a weight per coefficient, bounds) must have d of them."""
    try:
        scalar, vector = (jax.ShapeDtypeStruct(shape, np.float32) for shape in ((), (d,)))
        with our_settings():
            shape = jax.eval_shape(_prox, g, vector, scalar).shape
    except (TypeError, ValueError) as error:
        raise InputError(f"{type(g).__name__} does not work with {d} coefficients: {error}") from error
    if shape != (d,):
        raise InputError(f"{type(g).__name__} has a prox of shape {shape} where the model has shape ({d},).")


def _checked_weights(weights: Any, n: int) -> np.ndarray:
    if weights is None:
        return np.full(n, 1.0 / n)
    p = owned(numbers(weights, "weights"))
    if p.shape != (n,):
        raise InputError(f"weights has shape {p.shape}; there are {n} sites: give one weight per site.")
    if not (np.isfinite(p).all() and (p >= 0).all()):
        raise InputError(f"weights must be finite and >= 0; the smallest is {p.min()!r}.")
    if abs(p.sum() - 1.0) > 1e-8:
        raise InputError(
            f"weights sum to {float(p.sum())!r}; they must sum to 1 within 1e-8, and are {p.sum() - 1.0:.2g} off. Divide them "
            "by their sum."
        )
    return p
