"""Regularisers that act on each coefficient by itself.

Weakly convex penalties: sparse like L1, but large coefficients are not shrunk.

Each of them plus a large enough multiple of ||x||^2 is convex. The prox is therefore unique for steps below
`largest_step`, and defined here for these only.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from compfed._utils.records import nonnegative, number, positive, record
from compfed.errors import InputError
from compfed.regularisers.base import Combinable, ConvexSet, indicator, like, ratio, soft
from compfed.regularisers.coordinate_form import CoordinateForm, plain


@record
class Zero(Combinable):
    """g(x) = 0."""

    def __call__(self, x: Array) -> Array:
        return like(x, 0.0)

    def prox(self, x: Array, t: Array | float) -> Array:
        return x

    def form(self, d: int) -> CoordinateForm:
        return plain(d)

    def critical(self, gradient: Array) -> Array:
        return indicator((gradient == 0).all(), gradient)


@record
class L1(Combinable):
    """g(x) = lam * sum_j |x_j|. An array `lam` gives each coefficient its own weight."""

    lam: float | np.ndarray = nonnegative()

    def __call__(self, x: Array) -> Array:
        return (like(x, self.lam) * jnp.abs(x)).sum()

    def prox(self, x: Array, t: Array | float) -> Array:
        return soft(x, t * self.lam)

    def form(self, d: int) -> CoordinateForm:
        return plain(d, l1=self.lam)

    def critical(self, gradient: Array) -> Array:
        return ratio(jnp.abs(gradient), self.lam).max()


@record
class ElasticNet(Combinable):
    """g(x) = l1 * sum_j |x_j| + (l2 / 2) * ||x||^2. Arrays give each coefficient its own weights."""

    l1: float | np.ndarray = nonnegative()
    l2: float | np.ndarray = nonnegative()

    def __call__(self, x: Array) -> Array:
        return (like(x, self.l1) * jnp.abs(x)).sum() + 0.5 * (like(x, self.l2) * x * x).sum()

    def prox(self, x: Array, t: Array | float) -> Array:
        return soft(x, t * self.l1) / (1.0 + like(x, t * self.l2))

    def form(self, d: int) -> CoordinateForm:
        return plain(d, l1=self.l1, l2=self.l2)

    def critical(self, gradient: Array) -> Array:
        return ratio(jnp.abs(gradient), self.l1).max()


@record
class Ridge(Combinable):
    """g(x) = (lam / 2) * ||x||^2."""

    lam: float = nonnegative(scalar=True)

    def __call__(self, x: Array) -> Array:
        return 0.5 * like(x, self.lam) * (x * x).sum()

    def prox(self, x: Array, t: Array | float) -> Array:
        return x / (1.0 + like(x, t * self.lam))

    def form(self, d: int) -> CoordinateForm:
        return plain(d, l2=self.lam)

    def critical(self, gradient: Array) -> Array:
        return indicator((gradient == 0).all(), gradient)


@record
class Box(ConvexSet):
    """g(x) = 0 if lower <= x_j <= upper for all j, else inf. Arrays give each coefficient its own bounds."""

    lower: float | np.ndarray = number()
    upper: float | np.ndarray = number()

    def check(self) -> None:
        known = all(isinstance(bound, (float, np.ndarray)) for bound in (self.lower, self.upper))
        if known and not np.all(np.asarray(self.lower) <= np.asarray(self.upper)):
            raise InputError(f"Box(lower={self.lower}, upper={self.upper}): lower must be <= upper everywhere.")

    def __call__(self, x: Array) -> Array:
        return indicator(((x >= like(x, self.lower)) & (x <= like(x, self.upper))).all(), x)

    def prox(self, x: Array, t: Array | float) -> Array:
        return jnp.clip(x, like(x, self.lower), like(x, self.upper))

    def form(self, d: int) -> CoordinateForm:
        return plain(d, lower=self.lower, upper=self.upper)


@record
class NonNegative(ConvexSet):
    """g(x) = 0 if x_j >= 0 for all j, else inf."""

    def __call__(self, x: Array) -> Array:
        return indicator((x >= 0).all(), x)

    def prox(self, x: Array, t: Array | float) -> Array:
        return jnp.maximum(x, 0.0)

    def form(self, d: int) -> CoordinateForm:
        return plain(d, lower=0.0)


@record
class MCP(Combinable):
    """g(x) = sum_j (lam |x_j| - x_j^2 / (2 gamma) if |x_j| <= gamma lam, else gamma lam^2 / 2), gamma > 1.

    Reference: Zhang, "Nearly unbiased variable selection under minimax concave penalty", 2010.
    """

    lam: float | np.ndarray = nonnegative()
    gamma: float = positive(default=3.0)

    def check(self) -> None:
        _check_gamma(self, self.gamma, 1.0)

    @property
    def largest_step(self) -> Any:
        return self.gamma

    def __call__(self, x: Array) -> Array:
        size, lam, gamma = jnp.abs(x), like(x, self.lam), like(x, self.gamma)
        size = jnp.minimum(size, gamma * lam)  # constant from there on
        return (lam * size - 0.5 * size * size / gamma).sum()

    def prox(self, x: Array, t: Array | float) -> Array:
        _check_step(self, t)
        lam, gamma, t = like(x, self.lam), like(x, self.gamma), like(x, t)
        bent = soft(x, t * lam) / jnp.where(t < gamma, 1.0 - t / gamma, 1.0)  # no NaN for a step found too late
        return jnp.where(jnp.abs(x) <= gamma * lam, bent, x)

    def critical(self, gradient: Array) -> Array:
        """The least c such that x = 0 is stationary for <gradient, x> + c g(x); without convexity no more is said."""
        return ratio(jnp.abs(gradient), self.lam).max()


@record
class SCAD(Combinable):
    """g(x) = sum_j of the even function with slope lam on [0, lam], falling linearly to 0 at gamma lam, gamma > 2.

    That is lam |x_j| up to lam, (2 gamma lam |x_j| - x_j^2 - lam^2) / (2 (gamma - 1)) up to gamma lam, and
    lam^2 (gamma + 1) / 2 beyond. Reference: Fan, Li, "Variable selection via nonconcave penalized likelihood", 2001.
    """

    lam: float | np.ndarray = nonnegative()
    gamma: float = positive(default=3.7)

    def check(self) -> None:
        _check_gamma(self, self.gamma, 2.0)

    @property
    def largest_step(self) -> Any:
        return self.gamma - 1.0

    def __call__(self, x: Array) -> Array:
        lam, gamma = like(x, self.lam), like(x, self.gamma)
        size = jnp.minimum(jnp.abs(x), gamma * lam)  # constant from there on
        excess = jnp.maximum(size - lam, 0.0)
        return (lam * size - 0.5 * excess * excess / (gamma - 1.0)).sum()

    def prox(self, x: Array, t: Array | float) -> Array:
        _check_step(self, t)
        lam, gamma, t = like(x, self.lam), like(x, self.gamma), like(x, t)
        bent = soft(x, t * lam * gamma / (gamma - 1.0)) / (1.0 - t / (gamma - 1.0))
        kept = jnp.where(jnp.abs(x) <= gamma * lam, bent, x)
        return jnp.where(jnp.abs(x) <= (1.0 + t) * lam, soft(x, t * lam), kept)

    def critical(self, gradient: Array) -> Array:
        """The least c such that x = 0 is stationary for <gradient, x> + c g(x); without convexity no more is said."""
        return ratio(jnp.abs(gradient), self.lam).max()


def _check_gamma(g: Any, gamma: Any, least: float) -> None:
    if isinstance(gamma, float) and not gamma > least:
        raise InputError(f"{type(g).__name__}(gamma={gamma!r}): gamma must be > {least:g}.")


def _check_step(g: Any, t: Any) -> None:
    """While tracing neither number is known: then whoever chose the step must have looked at `largest_step`."""
    limit = g.largest_step
    if not isinstance(t, Tracer) and not isinstance(limit, Tracer) and np.any(np.asarray(t) >= np.asarray(limit)):
        raise InputError(
            f"{type(g).__name__}(gamma={g.gamma}) has a prox for steps t < {limit}; got t = {t}. "
            "Take a smaller step or a larger gamma."
        )
