"""Sums whose prox is known: prox_{t (a + b)} as the prox of one after that of the other.

prox_{a + b} = prox_b o prox_a whenever the subgradient that prox_a chose is still one after prox_b, that is
subdifferential a(p) is contained in subdifferential a(prox_b(p)) for p = prox_a(x) (Yu, "On decomposing the proximal
map", 2013). The rules below are the cases where this holds; nothing else is guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from compfed._utils.records import part, record
from compfed.errors import InputError
from compfed.regularisers.adapter import adopt
from compfed.regularisers.algebra import Scaled
from compfed.regularisers.base import Combinable, largest_step, least_factor, like
from compfed.regularisers.coordinate_form import CoordinateForm, coordinate_form
from compfed.regularisers.groups import GroupL2, SparseGroup
from compfed.regularisers.matrices import Nuclear
from compfed.regularisers.ordered import LinfNorm, SortedL1, TotalVariation1D
from compfed.regularisers.separable import L1, MCP, SCAD, Box, ElasticNet, NonNegative, Ridge, Zero
from compfed.regularisers.sets import L2Ball


def _one_number_for_all(g: Any) -> bool:
    """Whether g treats every coefficient alike."""
    return all(np.ndim(value) == 0 for value in vars(g).values())


class Rule(NamedTuple):
    """prox_{first + last} = prox_last o prox_first."""

    first: tuple[type, ...]
    last: tuple[type, ...]
    words: str
    condition: Callable[[Any], bool] = lambda last: True


RULES = (
    # A strictly convex function of one number, minimised over an interval: the free minimiser, clipped.
    Rule(
        (Zero, L1, ElasticNet, MCP, SCAD), (Box, NonNegative), "Zero, L1, ElasticNet, MCP or SCAD + Box or NonNegative"
    ),
    # Subgradients of the total variation depend on the order of neighbours, and one nondecreasing function, applied
    # to all coefficients, keeps the order. Weights that differ would not: L1(weights) is no such function.
    Rule(
        (TotalVariation1D,),
        (L1, ElasticNet, Box, NonNegative),
        "TotalVariation1D + L1, ElasticNet, Box or NonNegative with one number for all coefficients",
        _one_number_for_all,
    ),
    # Shrinking a group keeps its signs, or makes it zero, where every old subgradient is one.
    Rule((L1, NonNegative), (GroupL2,), "L1 or NonNegative + GroupL2"),
    # The projection on the ball is a multiple of x, and the subgradients of a norm are those of a multiple.
    Rule(
        (Zero, L1, NonNegative, GroupL2, SparseGroup, Nuclear, SortedL1, LinfNorm, TotalVariation1D),
        (L2Ball,),
        "Zero, NonNegative or a norm (L1, GroupL2, SparseGroup, Nuclear, SortedL1, LinfNorm, TotalVariation1D) + L2Ball",
    ),
)


@record
class SumOf(Combinable):
    """a(x) + b(x), for the pairs whose prox is known in closed form; also written `a + b`.

    Known, in either order and with any factors: any g + Ridge, and the pairs of `RULES`.

    >>> from compfed.regularisers import L1, NonNegative
    >>> (L1(0.5) + NonNegative()).prox(jnp.array([-2.0, 0.2, 2.0]), 1.0)
    Array([0. , 0. , 1.5], dtype=float32)
    """

    a: Any = part()
    b: Any = part()

    def check(self) -> None:
        adopt(self, "a", "b")
        if self._ridge() is None:
            self._ordered()

    def __call__(self, x: Array) -> Array:
        return self.a(x) + self.b(x)

    def prox(self, x: Array, t: Array | float) -> Array:
        ridge = self._ridge()
        if ridge is not None:
            # complete the square: t g(u) + t lam ||u||^2 / 2 + ||u - x||^2 / 2 has curvature 1 + t lam, centre x / that
            g, lam = ridge
            return g.prox(x / (1.0 + like(x, t * lam)), t / (1.0 + t * lam))
        first, last = self._ordered()
        return last.prox(first.prox(x, t), t)

    def form(self, d: int) -> CoordinateForm | None:
        a, b = coordinate_form(self.a, d), coordinate_form(self.b, d)
        return a.plus(b) if a is not None and b is not None else None

    @property
    def largest_step(self) -> Any:
        ridge = self._ridge()
        if ridge is None:
            first, _ = self._ordered()
            return largest_step(first)  # every `last` is convex
        g, lam = ridge
        step = largest_step(g)
        slope = 1.0 / step - lam  # t / (1 + t lam) < step
        if isinstance(slope, Tracer):
            return jnp.where(slope > 0, 1.0 / slope, jnp.inf)
        return 1.0 / slope if slope > 0 else np.inf

    def critical(self, gradient: Array) -> Array:
        for g in jax.tree.leaves(self, is_leaf=_is_nonconvex):
            if _is_nonconvex(g):
                raise InputError(f"a sum with {type(g).__name__} has no critical factor: it is not convex.")
        return least_factor(self, gradient)

    def _ridge(self) -> tuple[Any, Any] | None:
        """(g, lam) if this is g + (lam / 2) ||x||^2."""
        for g, other in ((self.a, self.b), (self.b, self.a)):
            if isinstance(core(other), Ridge):
                return g, _strength(other)
        return None

    def _ordered(self) -> tuple[Any, Any]:
        """(first, last) by the rule that is about this pair."""
        for first, last in ((self.a, self.b), (self.b, self.a)):
            f, l = core(first), core(last)
            if any(isinstance(f, rule.first) and isinstance(l, rule.last) and rule.condition(l) for rule in RULES):
                return first, last
        raise InputError(
            f"the prox of {core(self.a)!r} + {core(self.b)!r} is not known in closed form. Known: any g + Ridge; "
            + "; ".join(rule.words for rule in RULES)
            + "."
        )


def _is_nonconvex(g: Any) -> bool:
    return isinstance(g, (MCP, SCAD))


def core(g: Any) -> Any:
    """g without its factors, which no rule depends on."""
    return core(g.g) if isinstance(g, Scaled) else g


def _strength(ridge: Any) -> Any:
    return ridge.factor * _strength(ridge.g) if isinstance(ridge, Scaled) else ridge.lam
