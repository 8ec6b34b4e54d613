"""Regularisers that act on each coefficient by itself."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed.errors import InputError
from compfed.problem.regularisers.base import Combinable, ConvexSet, indicator, like, ratio, soft
from compfed.tools.records import nonnegative, number, record


@record
class Zero(Combinable):
    """g(x) = 0."""

    def __call__(self, x: Array) -> Array:
        return like(x, 0.0)

    def prox(self, x: Array, t: Array | float) -> Array:
        return x

    def critical(self, gradient: Array) -> Array:
        return indicator((gradient == 0).all(), gradient)

    def optimality_distance(self, x: Array, gradient: Array) -> Array:
        return jnp.linalg.norm(gradient)


@record
class L1(Combinable):
    """g(x) = lam * sum_j |x_j|. An array `lam` gives each coefficient its own weight."""

    lam: float | np.ndarray = nonnegative()

    def __call__(self, x: Array) -> Array:
        return (like(x, self.lam) * jnp.abs(x)).sum()

    def prox(self, x: Array, t: Array | float) -> Array:
        return soft(x, t * self.lam)

    def critical(self, gradient: Array) -> Array:
        return ratio(jnp.abs(gradient), self.lam).max()

    def optimality_distance(self, x: Array, gradient: Array) -> Array:
        return jnp.linalg.norm(_l1_residual(x, gradient, like(x, self.lam)))


@record
class ElasticNet(Combinable):
    """g(x) = l1 * sum_j |x_j| + (l2 / 2) * ||x||^2. Arrays give each coefficient its own weights."""

    l1: float | np.ndarray = nonnegative()
    l2: float | np.ndarray = nonnegative()

    def __call__(self, x: Array) -> Array:
        return (like(x, self.l1) * jnp.abs(x)).sum() + 0.5 * (like(x, self.l2) * x * x).sum()

    def prox(self, x: Array, t: Array | float) -> Array:
        return soft(x, t * self.l1) / (1.0 + like(x, t * self.l2))

    def critical(self, gradient: Array) -> Array:
        return ratio(jnp.abs(gradient), self.l1).max()

    def optimality_distance(self, x: Array, gradient: Array) -> Array:
        return jnp.linalg.norm(_l1_residual(x, gradient + like(x, self.l2) * x, like(x, self.l1)))


@record
class Ridge(Combinable):
    """g(x) = (lam / 2) * ||x||^2."""

    lam: float = nonnegative(scalar=True)

    def __call__(self, x: Array) -> Array:
        return 0.5 * like(x, self.lam) * (x * x).sum()

    def prox(self, x: Array, t: Array | float) -> Array:
        return x / (1.0 + like(x, t * self.lam))

    def critical(self, gradient: Array) -> Array:
        return indicator((gradient == 0).all(), gradient)

    def optimality_distance(self, x: Array, gradient: Array) -> Array:
        return jnp.linalg.norm(gradient + like(x, self.lam) * x)


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

    def optimality_distance(self, x: Array, gradient: Array) -> Array:
        """Infinite outside the box; inside, a bound absorbs the part of the gradient that pushes against it."""
        at_lower, at_upper = x <= like(x, self.lower), x >= like(x, self.upper)
        pull = jnp.where(at_lower, jnp.minimum(gradient, 0.0), gradient)
        return jnp.linalg.norm(jnp.where(at_upper, jnp.maximum(pull, 0.0), pull)) + self(x)


@record
class NonNegative(ConvexSet):
    """g(x) = 0 if x_j >= 0 for all j, else inf."""

    def __call__(self, x: Array) -> Array:
        return indicator((x >= 0).all(), x)

    def prox(self, x: Array, t: Array | float) -> Array:
        return jnp.maximum(x, 0.0)

    def optimality_distance(self, x: Array, gradient: Array) -> Array:
        return jnp.linalg.norm(jnp.where(x > 0, gradient, jnp.minimum(gradient, 0.0))) + self(x)


def _l1_residual(x: Array, gradient: Array, lam: Array) -> Array:
    """Coefficient by coefficient, what is left of the gradient once lam |x_j| has answered as well as it can."""
    return jnp.where(x == 0, jnp.maximum(jnp.abs(gradient) - lam, 0.0), jnp.abs(gradient + lam * jnp.sign(x)))
