"""Regularisers of the singular values of a model matrix X = x.reshape(-1, columns)."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from compfed.errors import InputError
from compfed.records import count, nonnegative, positive, record
from compfed.regularisers.base import Combinable, ConvexSet, indicator, like, ratio, slack, soft
from compfed.regularisers.sets import L1Ball


@record
class Nuclear(Combinable):
    """g(x) = lam * (sum of the singular values of X), X = x.reshape(-1, columns): low rank."""

    lam: float = nonnegative(scalar=True)
    columns: int = count()

    def __call__(self, x: Array) -> Array:
        return like(x, self.lam) * singular_values(x, self.columns).sum()

    def prox(self, x: Array, t: Array | float) -> Array:
        U, s, Vt = jnp.linalg.svd(as_matrix(x, self.columns), full_matrices=False)
        return ((U * soft(s, t * self.lam)) @ Vt).reshape(x.shape)

    def critical(self, gradient: Array) -> Array:
        return ratio(singular_values(gradient, self.columns).max(), self.lam)


@record
class NuclearBall(ConvexSet):
    """g(x) = 0 if the singular values of X = x.reshape(-1, columns) sum to at most radius, else inf."""

    radius: float = positive()
    columns: int = count()

    def __call__(self, x: Array) -> Array:
        return indicator(singular_values(x, self.columns).sum() <= like(x, self.radius) * slack(x), x)

    def prox(self, x: Array, t: Array | float) -> Array:
        U, s, Vt = jnp.linalg.svd(as_matrix(x, self.columns), full_matrices=False)
        inside = s.sum() <= like(x, self.radius)
        return jnp.where(inside, x, ((U * L1Ball(self.radius).prox(s, t)) @ Vt).reshape(x.shape))


def as_matrix(x: Array, columns: int) -> Array:
    if x.size % columns:
        raise InputError(
            f"a model of {x.size} coefficients is no matrix with columns={columns}: give a divisor of {x.size}."
        )
    return x.reshape(-1, columns)


def singular_values(x: Array, columns: int) -> Array:
    return jnp.linalg.svd(as_matrix(x, columns), compute_uv=False)
