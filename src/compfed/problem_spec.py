"""What is to be minimised, whoever holds the rows: loss, regulariser, weights and precision, checked.

What the server makes of f(x) and grad f(x) with its own g: the objective, and how far x is from the minimiser.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.linalg import get_blas_funcs

from compfed._utils.arrays import readonly
from compfed._utils.compilation import jit
from compfed._utils.precision import check_dtype, jax_settings, precision
from compfed._utils.records import describe
from compfed._utils.validation import check_numbers
from compfed.data import LazySites, Sites
from compfed.errors import InputError
from compfed.losses import Loss
from compfed.regularisers import Regulariser, from_object, largest_step
from compfed.regularisers.coordinate_form import coordinate_form


class Statement:
    """min_x sum_i p_i f_i(x) + g(x): what a `Problem` and a `LazyProblem` have in common."""

    sites: Any  # Sites, or LazySites

    def __init__(self, loss: Loss, regulariser: Regulariser, sites: Sites | LazySites, weights: Any, dtype: Any):
        self.dtype = check_dtype(dtype)
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
        check_fits(regulariser, loss.size(sites.width))
        self.loss, self.regulariser, self.sites = loss, regulariser, sites
        self.weights = checked_weights(weights, len(sites))

    def _check_loss(self, A: Any, y: Any) -> None:
        """A loss must give one number per row: a function that does not is found out here."""
        try:
            with precision(self.dtype):
                found = jax.eval_shape(self.loss.values, self.start, A, y).shape
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{type(self.loss).__name__} does not work with {self.sites.width} features: {error}"
            ) from error
        if found != y.shape[:1]:
            raise InputError(
                f"{type(self.loss).__name__} gives shape {found[1:]} for a row; it must give a single number."
            )

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

    def point(self, x: Any, name: str = "x") -> np.ndarray:
        """x as a vector of this problem, checked."""
        array = np.array(check_numbers(x, name, self.dtype))  # a copy: the caller may change his
        if array.shape != (self.d,):
            raise InputError(
                f"{name} has shape {array.shape}; this problem has {self.d} coefficients: shape ({self.d},)."
            )
        if not np.isfinite(array).all():
            raise InputError(f"{name} has NaN or infinite entries; it must be finite.")
        return array

    @property
    def strong_convexity(self) -> float:
        """mu: what the ridge guarantees to every f_i."""
        return float(self.loss.ridge)

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


@jit  # traced once for all regularisers of a kind, such as those of a path
def _prox(g: Regulariser, x: Array, t: Array) -> Array:
    return g.prox(x, t)


def check_fits(g: Regulariser, d: int) -> None:
    """A regulariser with an array (a weight per coefficient, bounds) must have d of them."""
    try:
        scalar, vector = (jax.ShapeDtypeStruct(shape, np.float32) for shape in ((), (d,)))
        with jax_settings():
            shape = jax.eval_shape(_prox, g, vector, scalar).shape
    except (TypeError, ValueError) as error:
        raise InputError(f"{type(g).__name__} does not work with {d} coefficients: {error}") from error
    if shape != (d,):
        raise InputError(f"{type(g).__name__} has a prox of shape {shape} where the model has shape ({d},).")


def checked_weights(weights: Any, n: int) -> np.ndarray:
    if weights is None:
        return np.full(n, 1.0 / n)
    p = readonly(check_numbers(weights, "weights"))
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


(_norm,) = get_blas_funcs(("nrm2",), dtype=np.float64)


def length(v: np.ndarray) -> float:
    """||v||, also where its square would be too large or too small for a number."""
    return float(_norm(np.ravel(np.asarray(v, float)))) if np.size(v) else 0.0


class AtPoint(NamedTuple):
    """F(x), and (x - prox_{step g}(x - step grad f(x))) / step, which is zero exactly at the minimiser."""

    objective: float
    mapping: np.ndarray

    @property
    def norm(self) -> float:
        return length(self.mapping)


def at_point(g: Regulariser, x: np.ndarray, value: float, gradient: np.ndarray, step: float) -> AtPoint:
    """From f(x) = value and grad f(x) = gradient. Nothing is compiled where g acts on single coefficients or groups."""
    form = coordinate_form(g, x.size) if x.dtype == np.float64 else None
    if form is not None:
        return AtPoint(float(value) + form.value(x), form.gradient_mapping(x, gradient, step))
    with precision(x.dtype):
        penalty, mapping = _penalty_and_mapping(g, jnp.asarray(x), jnp.asarray(gradient), step)
        return AtPoint(float(value) + float(penalty), np.asarray(mapping))


@jit
def _penalty_and_mapping(g: Regulariser, x: Array, gradient: Array, step: float) -> tuple[Array, Array]:
    return g(x), (x - g.prox(x - step * gradient, step)) / step


def usable(L: float, g: Regulariser) -> float:
    """L, if steps of length 1/L can be taken: it is a positive number, and the prox of g allows that length."""
    if not 0 < L < np.inf:
        raise InputError(
            f"the gradient of this problem has Lipschitz constant {L}: its features are all zero, or so large that "
            "their squares overflow. Rescale them."
        )
    limit = float(largest_step(g))
    if limit <= 1.0 / L:
        raise InputError(
            f"{type(g).__name__} is weakly convex: its prox needs steps below {limit:.3g}, and here 1/L = {1.0 / L:.3g}. "
            "Enlarge its gamma, or scale the features up."
        )
    return float(L)
