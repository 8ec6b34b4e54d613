"""The protocol of a regulariser, its base class, and the adapter for objects written elsewhere."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from compfed._utils.array_namespace import ArrayT, Numbers, cast_like, namespace
from compfed._utils.compilation import jit, numpy_callback, precision
from compfed._utils.records import fixed, record
from compfed.errors import InputError

if TYPE_CHECKING:
    from compfed.regularisers.combinations import Scaled, SumOf
    from compfed.regularisers.coordinate_form import CoordinateForm


@runtime_checkable
class Regulariser(Protocol):
    """A function g(x) with a proximal operator: all that an algorithm needs of it.

    `g(x)` is a number, 0 or inf for the indicator of a set. `g.prox(x, t)` is argmin_u t g(u) + ||u - x||^2 / 2.
    """

    def __call__(self, x: Numbers) -> Numbers: ...
    def prox(self, x: Numbers, t: Array | float) -> Numbers: ...


class Subspace(NamedTuple):
    """A penalised problem in the coordinates of a subspace that contains its minimiser."""

    g: Regulariser
    points: Numbers  # the given points, one per row, in the coordinates of the subspace
    lift: Callable[[Numbers], Numbers]  # from these coordinates back to the model


class BaseRegulariser:
    """Base class of the regularisers: `2.0 * g`, `g + h`, and defaults for the optional methods.

    A convex g that is zero at x = 0 may also define `alpha_max(gradient)`: the least alpha such that x = 0 minimises
    <gradient, x> + alpha g(x).
    """

    __array_ufunc__ = None  # so that a NumPy number times g calls g.__rmul__

    @property
    def largest_step(self) -> float:
        """prox(x, t) is defined for t below this; infinite for convex g."""
        return math.inf

    def coordinate_form(self, d: int) -> CoordinateForm | None:
        """g coordinate by coordinate, if it can be written so. Call `coordinate_form(g, d)` instead."""
        return None

    def subspace(self, points: Numbers) -> Subspace | None:
        """A smaller problem whose minimiser is that of g plus a quadratic made of `points`; None if there is none."""
        return None

    # The combinations are built from the regularisers, and these from this class: hence imported when used.
    def __mul__(self, factor: float) -> Scaled:
        from compfed.regularisers.combinations import Scaled

        return Scaled(self, factor)  # pyright: ignore[reportArgumentType]  # a subclass has a value and a prox

    __rmul__ = __mul__

    def __add__(self, other: Regulariser) -> SumOf:
        from compfed.regularisers.combinations import SumOf

        return SumOf(self, other)  # pyright: ignore[reportArgumentType]  # a subclass has a value and a prox


class ConvexSet(BaseRegulariser):
    """The indicator of a convex set; a factor does not change it."""

    prox: Callable[..., Numbers]

    def alpha_max(self, gradient: ArrayT) -> ArrayT:
        """0 if x = 0 minimises <gradient, x> over the set, that is if it is the projection of -gradient; else inf."""
        return indicator((self.prox(-gradient, 1.0) == 0).all(), gradient)


def largest_step(g: Regulariser) -> float:
    """prox_{t g} is defined for t below this: g's own `largest_step`, infinite for an object that has none."""
    return getattr(g, "largest_step", math.inf)


def indicator(inside: Numbers, x: Numbers) -> Numbers:
    """0 where `inside` holds, else inf, in the dtype of x."""
    return cast_like(namespace(inside, x).where(inside, 0.0, np.inf), x)


def boundary_tolerance(x: Numbers) -> float:
    """1 + the relative rounding error of a sum over x, within which a point counts as on the boundary of its set."""
    return 1.0 + (8.0 + math.sqrt(x.size)) * float(np.finfo(cast_like(0.0, x).dtype).eps)


@np.errstate(divide="ignore", invalid="ignore")
def ratio(a: Numbers, b: Numbers) -> Numbers:
    """a / b for a, b >= 0, with 0 / 0 = 0: the least c with a <= c b."""
    return namespace(a, b).where(a == 0, 0.0, a / cast_like(b, a))


def alpha_max_by_bisection(g: Regulariser, gradient: Numbers) -> Numbers:
    """The least alpha with prox_{alpha g}(-gradient) = 0, for convex g: then x = 0 minimises <gradient, x> + alpha g(x).

    Bisection of log2(alpha) to the last digits; 0 or inf where the square of alpha would leave the range of numbers.
    """
    dtype = cast_like(0.0, gradient).dtype
    bound = float(np.finfo(dtype).maxexp // 2)
    low, high = -bound, bound
    for _ in range(64):
        middle = 0.5 * (low + high)
        zero = bool((g.prox(-gradient, 2.0**middle) == 0).all())
        low, high = (low, middle) if zero else (middle, high)
    found = np.inf if high == bound else 2.0**high  # the upper end never moved: there is no such alpha
    return dtype.type(0.0 if low == -bound else found)


# --- objects written elsewhere ---


class Identity:
    """Compares an object by identity, whatever its own equality: the key of compiled programs."""

    def __init__(self, target: Regulariser):
        self.target = target
        self.__name__ = type(target).__name__  # the name in a trace

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.target is other.target

    def __hash__(self) -> int:
        return id(self.target)

    def __repr__(self) -> str:
        return repr(self.target)


@record
class Adapted(BaseRegulariser):
    """g(x) = obj(x), with prox obj.prox(x, t): made by `from_object`."""

    source: Identity = fixed()

    @property
    def largest_step(self) -> float:
        return largest_step(self.source.target)

    def __call__(self, x: Array) -> Array:
        x = jnp.asarray(x)
        if _traceable(self.source, "__call__", x.shape, x.dtype.name):
            value = jnp.asarray(self.source.target(x))
        else:
            value = numpy_callback(lambda x, t: _number(self.source.target(x)), (), x, 0.0)
        return indicator(value, x) if value.dtype == bool else value.astype(x.dtype)

    def prox(self, x: Array, t: Array | float) -> Array:
        x = jnp.asarray(x)
        if _traceable(self.source, "prox", x.shape, x.dtype.name):
            return jnp.asarray(self.source.target.prox(x, t), x.dtype)
        return numpy_callback(self.source.target.prox, x.shape, x, t)


def from_object(obj: Regulariser) -> Regulariser:
    """g from any object with `obj(x)`, the value, and `obj.prox(x, t)`, the prox of t times it.

    Parameters
    ----------
    obj : object
        A record, or any other pytree of JAX, is returned unchanged. Methods that JAX can trace are compiled with the rest
        of a program. Other methods get NumPy arrays on the host, one call per client and step: slow, but it works, also
        for the operators of PyProximal. The object is compared by identity: changes after its first use go unnoticed.

    Returns
    -------
    Regulariser

    Raises
    ------
    InputError
        If a method is missing. `Problem` also tests whether the prox belongs to the value.

    Examples
    --------
    >>> class Cone:
    ...     def __call__(self, x): return 0.0 if np.all(np.asarray(x) >= 0) else np.inf
    ...     def prox(self, x, t): return np.maximum(np.asarray(x), 0.0)
    >>> from_object(Cone()).prox(np.array([-1.0, 2.0], np.float32), 0.5)
    Array([0., 2.], dtype=float32)
    """
    if isinstance(obj, type):
        raise InputError(f"got the class {obj.__name__}; give an instance, such as {obj.__name__}(...).")
    for method, use in (("__call__", "g(x), the value"), ("prox", "g.prox(x, t), the prox of t g")):
        if not callable(getattr(obj, method, None)):
            raise InputError(f"{type(obj).__name__} has no {method}; a regulariser needs {use}.")
    return obj if not jax.tree_util.all_leaves([obj]) else Adapted(Identity(obj))


def _number(value: object) -> object:
    """Some libraries return whether x is in the set: True is 0, False is inf."""
    return (0.0 if value else np.inf) if np.asarray(value).dtype == bool else value


@functools.lru_cache(maxsize=256)
def _traceable(source: Identity, method: str, shape: tuple[int, ...], dtype: str) -> bool:
    """Whether JAX can trace the method. Either way its result must have the right shape."""
    obj, expected = source.target, () if method == "__call__" else shape
    call, step = (obj, ()) if method == "__call__" else (obj.prox, (0.5,))
    try:
        found = jax.eval_shape(call, jax.ShapeDtypeStruct(shape, dtype), *step).shape
        traceable = True
    except Exception:  # NumPy code fails on a tracer in many ways
        traceable = False
        try:
            found = np.shape(call(np.ones(shape, dtype), *step))
        except Exception as error:
            raise InputError(f"{type(obj).__name__}: {method} fails on a model of shape {shape}: {error}") from error
    if found != expected:
        returned = f"{method} returns shape {found} for a model of shape {shape}"
        raise InputError(f"{type(obj).__name__}: {returned}; it must return {expected}.")
    return traceable


# --- does a prox belong to its g? ---

PROX_TESTS = 12  # random points, at three scales
PROX_TOLERANCE = 0.02  # of the terms in the inequality: a prox may be iterative, or in single precision


def check_prox(g: Regulariser, d: int) -> None:
    """Test that g.prox is the prox of g, at a few random points, where g or a part of it was written elsewhere.

    For convex g, p = prox_{t g}(z) exactly when t (g(u) - g(p)) >= <z - p, u - p> for all u. A g with a finite
    `largest_step` s is weakly convex, and ||u - p||^2 t / (2 s) is subtracted on the right.
    """
    if _is_ours(g) or any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(g)):
        return
    name, longest = repr(g.source) if isinstance(g, Adapted) else type(g).__name__, float(largest_step(g))
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((PROX_TESTS, d)) * np.repeat([0.1, 1.0, 10.0], PROX_TESTS // 3)[:, None]
    T = np.tile([0.1, 1.0], PROX_TESTS // 2) * min(1.0, 0.5 * longest)
    with precision(np.dtype(float)):
        P, U, at_P, at_U = (np.asarray(part, float) for part in _prox_and_values(g, Z, T))
    if not np.isfinite(P).all() or not np.isfinite(at_P).any():
        raise InputError(f"{name}: g(g.prox(x, t)) is not finite at any of {PROX_TESTS} random x. Correct one of them.")
    for z, t, p, g_p, others, g_others in zip(Z, T, P, at_P, U, at_U, strict=True):
        for u, g_u in zip(others, g_others, strict=True):
            if not (np.isfinite(g_p) and np.isfinite(g_u)):  # a projection may round to just outside its set
                continue
            needed = (z - p) @ (u - p) - 0.5 * t / longest * (u - p) @ (u - p)
            size = t * (abs(g_u) + abs(g_p)) + np.abs(z - p) @ np.abs(u - p)
            if t * (g_u - g_p) < needed - PROX_TOLERANCE * size - 1e-9 * (z @ z):
                raise InputError(
                    f"{name}: its prox does not belong to its value. With z random, t = {t:.3g} and p = g.prox(z, t), "
                    f"t (g(u) - g(p)) = {t * (g_u - g_p):.3g} at some u, and must be at least <z - p, u - p> = {needed:.3g}. "
                    "prox(x, t) must be argmin_u t g(u) + ||u - x||^2 / 2: check factors such as t and 1/2, and signs. A "
                    "weakly convex g says for which t its prox is defined, in an attribute `largest_step`."
                )


@jit
def _prox_and_values(g: Regulariser, Z: Array, T: Array) -> tuple[Array, Array, Array, Array]:
    """p = prox_{t g}(z) for the rows of Z, other points u of the domain for each p, and g at all of them."""
    prox = jax.vmap(g.prox)
    P = prox(Z, T)
    # Other points of the domain: longer and shorter steps, and proxes of other points.
    others = [prox(Z, 0.5 * T), prox(0.5 * Z, T), prox(-Z, T), prox(jnp.zeros_like(Z), T), prox(jnp.roll(Z, 1, 0), T)]
    U = jnp.stack(others, axis=1)
    return P, U, jax.vmap(g)(P), jax.vmap(jax.vmap(g))(U)


def _is_ours(g: object) -> bool:
    """Whether a regulariser and all its parts are classes of this package: their tests are not repeated at run time."""
    if not type(g).__module__.startswith("compfed.") or isinstance(g, Adapted):
        return False
    parts = [getattr(g, name) for name in ("g", "a", "b") if hasattr(g, name)]
    return all(map(_is_ours, [*parts, *getattr(g, "parts", ())]))
