"""Regularisers g: a value and its proximal operator, from one formula.

`g(x)` is a number (0 or inf for the indicator of a set); `g.prox(x, t)` = argmin_u t g(u) + ||u - x||^2 / 2.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed.errors import InputError
from compfed.records import nonnegative, number, positive, record


@runtime_checkable
class Regulariser(Protocol):
    """What an algorithm may ask of g."""

    def __call__(self, x: Array) -> Array: ...
    def prox(self, x: Array, t: Array | float) -> Array: ...


def soft(x: Array, threshold: Array | np.ndarray | float) -> Array:
    """sign(x) max(|x| - threshold, 0): the prox of threshold * ||.||_1."""
    return jnp.sign(x) * jnp.maximum(jnp.abs(x) - threshold, 0.0)


def _indicator(inside: Array, x: Array) -> Array:
    return jnp.where(inside, 0.0, jnp.inf).astype(x.dtype)


@record
class Zero:
    """g(x) = 0."""

    def __call__(self, x: Array) -> Array:
        return jnp.zeros((), x.dtype)

    def prox(self, x: Array, t: Array | float) -> Array:
        return x


@record
class L1:
    """g(x) = lam * sum_j |x_j|. An array `lam` gives each coefficient its own weight."""

    lam: float | np.ndarray = nonnegative()

    def __call__(self, x: Array) -> Array:
        return (self.lam * jnp.abs(x)).sum()

    def prox(self, x: Array, t: Array | float) -> Array:
        return soft(x, t * self.lam)


@record
class ElasticNet:
    """g(x) = l1 * sum_j |x_j| + (l2 / 2) * ||x||^2."""

    l1: float | np.ndarray = nonnegative()
    l2: float | np.ndarray = nonnegative()

    def __call__(self, x: Array) -> Array:
        return (self.l1 * jnp.abs(x)).sum() + 0.5 * (self.l2 * x * x).sum()

    def prox(self, x: Array, t: Array | float) -> Array:
        return soft(x, t * self.l1) / (1.0 + t * self.l2)


@record
class Box:
    """g(x) = 0 if lower <= x_j <= upper for all j, else inf."""

    lower: float | np.ndarray = number()
    upper: float | np.ndarray = number()

    def check(self) -> None:
        known = all(isinstance(bound, (float, np.ndarray)) for bound in (self.lower, self.upper))
        if known and not np.all(np.asarray(self.lower) <= np.asarray(self.upper)):
            raise InputError(f"Box(lower={self.lower}, upper={self.upper}): lower must be <= upper everywhere.")

    def __call__(self, x: Array) -> Array:
        return _indicator(((x >= self.lower) & (x <= self.upper)).all(), x)

    def prox(self, x: Array, t: Array | float) -> Array:
        return jnp.clip(x, self.lower, self.upper)


@record
class NonNegative:
    """g(x) = 0 if x_j >= 0 for all j, else inf."""

    def __call__(self, x: Array) -> Array:
        return _indicator((x >= 0).all(), x)

    def prox(self, x: Array, t: Array | float) -> Array:
        return jnp.maximum(x, 0.0)


@record
class L2Ball:
    """g(x) = 0 if ||x|| <= radius, else inf."""

    radius: float = positive()

    def __call__(self, x: Array) -> Array:
        # the projection itself may round to just outside; a few units in the last place are inside
        slack = 1.0 + 8 * jnp.finfo(x.dtype).eps
        return _indicator(jnp.linalg.norm(x) <= self.radius * slack, x)

    def prox(self, x: Array, t: Array | float) -> Array:
        norm = jnp.linalg.norm(x)
        return jnp.where(norm > self.radius, x * (self.radius / jnp.where(norm > 0, norm, 1.0)), x)
