"""A problem without its rows: objective, penalty and weights, and the optimality of a point from sums over the sites."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array
from scipy.linalg import get_blas_funcs

from compfed._utils.arrays import readonly
from compfed._utils.compilation import jax_settings, jit, precision
from compfed._utils.records import describe
from compfed._utils.validation import check_numbers
from compfed.errors import InputError
from compfed.losses import Loss, SiteLoss
from compfed.losses.base import whole_site
from compfed.regularisers import Regulariser, largest_step
from compfed.regularisers.base import check_prox
from compfed.regularisers.coordinate_form import coordinate_form
from compfed.trace import Members


@dataclass(frozen=True, eq=False, kw_only=True)
class ProblemSpec:
    """min_x sum_i p_i f_i(x) + g(x), without the rows: what `Problem`, `LazyProblem` and the server have in common."""

    loss: Loss
    regulariser: Regulariser
    weights: np.ndarray  # p_i
    names: tuple[str, ...] | range  # of the sites; a range for sites known by their numbers
    numbers: tuple[int, ...] | range  # of the sites' random draws
    sizes: np.ndarray  # rows at each site
    width: int  # columns of a row
    dtype: np.dtype
    source: dict[str, object] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Number of clients."""
        return len(self.names)

    @property
    def d(self) -> int:
        """Number of coefficients."""
        return self.loss.size(self.width)

    @property
    def start(self) -> np.ndarray:
        """The default start of a run: zero, or the parameters a loss was made with."""
        return np.asarray(getattr(self.loss, "start", np.zeros(self.d)), self.dtype)

    @property
    def convex(self) -> bool | None:
        """True if f and g are known to be convex, so that a stationary point is a minimiser; False if one is known not to be.

        None where the loss does not say.
        """
        loss: bool | None = getattr(self.loss, "convex", None)
        return loss if largest_step(self.regulariser) == np.inf else False

    @property
    def strong_convexity(self) -> float:
        """mu: the strong convexity that the ridge guarantees to every f_i."""
        return float(self.loss.ridge)

    @property
    def fingerprints(self) -> np.ndarray | None:
        """One sum over the rows of each site, by which it is recognised; None where the rows are elsewhere."""
        return None

    def with_regulariser(self, g: Regulariser) -> Self:
        """The same problem with another g."""
        return replace(self, regulariser=g)

    def members(self) -> Members:
        """The sites, as a trace stores them for runs that continue it."""
        return Members(self.names, self.sizes, self.weights, self.fingerprints)

    def describe(self) -> dict[str, object]:
        """The problem in a few plain values, for provenance."""
        rows = {"total": int(self.sizes.sum()), "smallest": int(self.sizes.min()), "largest": int(self.sizes.max())}
        return {
            "loss": describe(self.loss),
            "regulariser": describe(self.regulariser),
            "clients": self.n,
            "samples": rows,
            "features": self.d,
            "uniform_weights": bool(np.ptp(self.weights) == 0),
            "source": self.source,
        }


# --- checks ---


def check_loss(loss: Loss, regulariser: Regulariser) -> None:
    """Refuse a loss that lacks a method, a class instead of an instance, and arguments in the wrong order."""
    for part in (loss, regulariser):
        if isinstance(part, type):
            raise InputError(f"got the class {part.__name__}; give an instance, such as {part.__name__}(...).")
    if hasattr(loss, "prox") and hasattr(regulariser, "gradient"):
        given = f"{type(loss).__name__}, {type(regulariser).__name__}"
        raise InputError(f"got Problem({given}, sites); the loss comes first, then the regulariser.")
    if isinstance(loss, SiteLoss):
        raise InputError(f"{whole_site(loss, 'the methods of a Problem')}.")
    lacks = [name for name in ("size", "values", "gradient", "evaluate") if not hasattr(loss, name)]
    if lacks:
        way_out = "Take one of compfed.losses, or make one of a function with losses.from_function."
        raise InputError(f"{type(loss).__name__} is not a loss: it has no {lacks[0]}. {way_out}")


@jit  # traced once for all regularisers of a kind, such as those of a path
def _prox(g: Regulariser, x: Array, t: Array) -> Array:
    return g.prox(x, t)


def check_regulariser(g: Regulariser, d: int) -> None:
    """Refuse a regulariser that does not fit a model of d coefficients, or whose prox is not that of its value."""
    try:
        scalar, vector = (jax.ShapeDtypeStruct(shape, np.float32) for shape in ((), (d,)))
        with jax_settings():
            shape = jax.eval_shape(_prox, g, vector, scalar).shape
    except (TypeError, ValueError) as error:
        raise InputError(f"{type(g).__name__} does not work with {d} coefficients: {error}") from error
    if shape != (d,):
        raise InputError(f"{type(g).__name__} has a prox of shape {shape} where the model has shape ({d},).")
    check_prox(g, d)


def check_site_weights(weights: npt.ArrayLike | None, n: int) -> np.ndarray:
    """p_i as an array, uniform for None; refuses weights that do not sum to 1."""
    if weights is None:
        return np.full(n, 1.0 / n)
    p = readonly(check_numbers(weights, "weights"))
    if p.shape != (n,):
        raise InputError(f"weights has shape {p.shape}; there are {n} sites: give one weight per site.")
    if not (np.isfinite(p).all() and (p >= 0).all()):
        raise InputError(f"weights must be finite and >= 0; the smallest is {p.min()!r}.")
    if abs(p.sum() - 1.0) > 1e-8:
        off = f"{float(p.sum())!r}; they must sum to 1 within 1e-8, and are {p.sum() - 1.0:.2g} off"
        raise InputError(f"weights sum to {off}. Divide them by their sum.")
    return p


def check_lipschitz(L: float, g: Regulariser) -> float:
    """L, if steps of length 1/L can be taken: it is a positive number, and the prox of g allows that length."""
    if not 0 < L < np.inf:
        why = "its features are all zero, or so large that their squares overflow, or the loss is flat where it was looked at"
        raise InputError(
            f"the gradient of this problem has Lipschitz constant {L}: {why}. Rescale the features, or give a constant, L=..."
        )
    limit = float(largest_step(g))
    if limit <= 1.0 / L:
        steps = f"its prox needs steps below {limit:.3g}, and here 1/L = {1.0 / L:.3g}"
        raise InputError(f"{type(g).__name__} is weakly convex: {steps}. Enlarge its gamma, or scale the features up.")
    return float(L)


# --- the optimality of a point ---

(_norm,) = get_blas_funcs(("nrm2",), dtype=np.float64)


def safe_norm(v: npt.ArrayLike) -> float:
    """||v||, also where its square would overflow or underflow."""
    return float(_norm(np.ravel(np.asarray(v, float)))) if np.size(v) else 0.0


class Optimality(NamedTuple):
    """F(x), and the gradient mapping (x - prox_{step g}(x - step grad f(x))) / step.

    The mapping is zero exactly at stationary points; if f and g are convex, these are the minimisers.
    """

    objective: float
    mapping: np.ndarray

    @property
    def norm(self) -> float:
        """The norm of the gradient mapping."""
        return safe_norm(self.mapping)


def optimality_at(g: Regulariser, x: np.ndarray, value: float, gradient: np.ndarray, step: float) -> Optimality:
    """F and the gradient mapping at x, from f(x) = value and grad f(x) = gradient.

    Nothing is compiled where g acts on single coefficients or groups.
    """
    form = coordinate_form(g, x.size) if x.dtype == np.float64 else None
    if form is not None:
        return Optimality(float(value) + form.value(x), form.gradient_mapping(x, gradient, step))
    with precision(x.dtype):
        penalty, mapping = _penalty_and_mapping(g, jnp.asarray(x), jnp.asarray(gradient), step)
        return Optimality(float(value) + float(penalty), np.asarray(mapping))


@jit
def _penalty_and_mapping(g: Regulariser, x: Array, gradient: Array, step: float) -> tuple[Array, Array]:
    return g(x), (x - g.prox(x - step * gradient, step)) / step
