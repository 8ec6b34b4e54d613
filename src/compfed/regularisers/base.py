"""What the regularisers share: the protocol, the operators, and a few formulas."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array

if TYPE_CHECKING:
    from compfed.regularisers.algebra import Scaled
    from compfed.regularisers.coordinate_form import CoordinateForm
    from compfed.regularisers.sums import SumOf


@runtime_checkable
class Regulariser(Protocol):
    """What an algorithm may ask of g."""

    def __call__(self, x: Array) -> Array: ...
    def prox(self, x: Array, t: Array | float) -> Array: ...


class Combinable:
    """Gives a regulariser `2.0 * g` and `g + h`, and says that its prox is defined for every step.

    One more method is optional: `critical(gradient)`, the least factor c such that x = 0 minimises
    <gradient, x> + c g(x).
    """

    __array_ufunc__ = None  # so that a NumPy number times g asks g

    @property
    def largest_step(self) -> Any:
        """prox(x, t) is defined for t below this; infinite for convex g."""
        return math.inf

    def form(self, d: int) -> CoordinateForm | None:
        """This regulariser coefficient by coefficient, if it can be written so; ask with `form_of`."""
        return None

    # The algebra is built from the regularisers, and these from this class: hence imported when used.
    def __mul__(self, factor: Any) -> Scaled:
        from compfed.regularisers.algebra import Scaled

        return Scaled(self, factor)

    __rmul__ = __mul__

    def __add__(self, other: Any) -> SumOf:
        from compfed.regularisers.sums import SumOf

        return SumOf(self, other)


class ConvexSet(Combinable):
    """The indicator of a convex set; a factor does not change it."""

    def critical(self, gradient: Array) -> Array:
        """0 if x = 0 minimises <gradient, x> over the set, that is if it is the projection of -gradient; else inf."""
        return indicator((self.prox(-gradient, 1.0) == 0).all(), gradient)

    def prox(self, x: Array, t: Array | float) -> Array:
        raise NotImplementedError


def largest_step(g: Any) -> Any:
    """prox_{t g} is defined for t below this: g's own `largest_step`, infinite for an object that has none."""
    return getattr(g, "largest_step", math.inf)


def like(x: Array, value: Any) -> Array:
    """The value in the floating-point dtype of x, so that a double-precision parameter does not promote the model."""
    return jnp.asarray(value, jnp.result_type(x, float))


def soft(x: Array, threshold: Any) -> Array:
    """sign(x) max(|x| - threshold, 0): the prox of threshold * ||.||_1."""
    return jnp.sign(x) * jnp.maximum(jnp.abs(x) - like(x, threshold), 0.0)


def indicator(inside: Array, x: Array) -> Array:
    """0 where `inside` holds, else inf, in the dtype of x."""
    return like(x, jnp.where(inside, 0.0, jnp.inf))


def slack(x: Array) -> float:
    """1 + the relative rounding error of a sum over x, within which a point counts as on the boundary of its set."""
    return 1.0 + (8.0 + math.sqrt(x.size)) * float(jnp.finfo(jnp.result_type(x, float)).eps)


def ratio(a: Array, b: Any) -> Array:
    """a / b for a, b >= 0, with 0 / 0 = 0: the least c with a <= c b."""
    return jnp.where(a == 0, 0.0, a / like(a, b))


def least_factor(g: Regulariser, gradient: Array) -> Array:
    """The least c such that x = 0 minimises <gradient, x> + c g(x), for convex g: the least c with prox_{c g}(-gradient) = 0.

    By bisection of log2(c), to the last digits; 0 or inf where c would have to leave the range of squares.
    """
    bound = float(jnp.finfo(jnp.result_type(gradient, float)).maxexp // 2)

    def zero(exponent: Array) -> Array:
        return (g.prox(-gradient, jnp.exp2(exponent)) == 0).all()

    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = 0.5 * (low + high)
        done = zero(middle)
        return jnp.where(done, low, middle), jnp.where(done, middle, high)

    low, high = jax.lax.fori_loop(0, 64, halve, (like(gradient, -bound), like(gradient, bound)))
    found = jnp.where(high == bound, jnp.inf, jnp.exp2(high))  # an end that never moved is no answer
    return jnp.where(low == -bound, 0.0, found)


def sequential_on_cpu(f: Callable[..., Array]) -> Callable[..., Array]:
    """f with long data-dependent loops: a `vmap` of it runs its members one after the other on a CPU.

    In step, as usual and as a GPU wants it, each iteration gathers from and scatters to every member, which on a CPU
    costs ten times the loops themselves.
    """
    one_by_one = jax.custom_batching.sequential_vmap(f)
    return functools.wraps(f)(lambda *args: jax.lax.platform_dependent(*args, cpu=one_by_one, default=f))
