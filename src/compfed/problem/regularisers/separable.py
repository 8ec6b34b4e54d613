"""Regularisers that act on each coefficient by itself."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed.errors import InputError
from compfed.problem.regularisers.base import Combinable, ConvexSet, indicator, like, ratio, soft
from compfed.problem.regularisers.form import Form, plain
from compfed.tools.records import nonnegative, number, record


@record
class Zero(Combinable):
    """g(x) = 0."""

    def __call__(self, x: Array) -> Array:
        return like(x, 0.0)

    def prox(self, x: Array, t: Array | float) -> Array:
        return x

    def form(self, d: int) -> Form:
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

    def form(self, d: int) -> Form:
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

    def form(self, d: int) -> Form:
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

    def form(self, d: int) -> Form:
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

    def form(self, d: int) -> Form:
        return plain(d, lower=self.lower, upper=self.upper)


@record
class NonNegative(ConvexSet):
    """g(x) = 0 if x_j >= 0 for all j, else inf."""

    def __call__(self, x: Array) -> Array:
        return indicator((x >= 0).all(), x)

    def prox(self, x: Array, t: Array | float) -> Array:
        return jnp.maximum(x, 0.0)

    def form(self, d: int) -> Form:
        return plain(d, lower=0.0)
