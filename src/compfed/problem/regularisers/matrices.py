"""Regularisers of the singular values of a model matrix X = x.reshape(-1, columns)."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from compfed.errors import InputError
from compfed.problem.regularisers.base import Combinable, ConvexSet, indicator, like, ratio, slack, soft
from compfed.problem.regularisers.sets import L1Ball
from compfed.tools.records import count, nonnegative, positive, record


@record
class Nuclear(Combinable):
    """g(x) = lam * (sum of the singular values of X), X = x.reshape(-1, columns): low rank."""

    lam: float = nonnegative(scalar=True)
    columns: int = count()

    def __call__(self, x: Array) -> Array:
        return like(x, self.lam) * singular_values(x, self.columns).sum()

    def prox(self, x: Array, t: Array | float) -> Array:
        return through_singular_values(x, self.columns, lambda s: soft(s, t * self.lam))

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
        return through_singular_values(x, self.columns, lambda s: L1Ball(self.radius).prox(s, t))


def as_matrix(x: Array, columns: int) -> Array:
    if x.size % columns:
        raise InputError(
            f"a model of {x.size} coefficients is no matrix with columns={columns}: give a divisor of {x.size}."
        )
    return x.reshape(-1, columns)


def through_singular_values(x: Array, columns: int, change: Callable[[Array], Array]) -> Array:
    """U diag(change(s)) V^T for X = U diag(s) V^T, as a vector."""
    U, s, Vt = jnp.linalg.svd(as_matrix(x, columns), full_matrices=False)
    # some GPUs would otherwise multiply float32 matrices with 10 bits
    return jnp.matmul(U * change(s), Vt, precision="highest").reshape(x.shape)


def singular_values(x: Array, columns: int) -> Array:
    return jnp.linalg.svd(as_matrix(x, columns), compute_uv=False)
