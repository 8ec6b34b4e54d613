"""Regularisers of the singular values of a model matrix X = x.reshape(-1, columns).

A regulariser of singular values in few dimensions.

Such a g does not change when all columns of the matrix X are turned in space, and grows with whatever a column has outside
a subspace. So the minimiser of g plus a quadratic lies in the span of the columns that the quadratic is made of: in a basis
of that span it is a search among as many rows as the basis has vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from compfed._utils.array_namespace import Numbers, namespace
from compfed._utils.records import count, nonnegative, positive, record
from compfed.errors import InputError
from compfed.regularisers.algebra import OnBlock
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


class Subspace(NamedTuple):
    g: Any
    given: Numbers  # what was given, in the basis
    back: Callable[[Numbers], Numbers]


def turned(g: Any, given: Numbers) -> Subspace | None:
    """g and the rows of `given` in a basis of their span; None if g is of another kind, or the basis no smaller."""
    if isinstance(g, OnBlock):
        return _block_turned(g, given)
    if not isinstance(g, (Nuclear, NuclearBall)) or given[0].size <= len(given) * g.columns**2:
        return None
    xp = namespace(given)
    matrices = given.reshape(len(given), -1, g.columns)
    basis, few = xp.linalg.qr(xp.moveaxis(matrices, 0, 1).reshape(matrices.shape[1], -1))
    few = xp.moveaxis(few.reshape(len(few), len(given), g.columns), 1, 0)
    return Subspace(g, few.reshape(len(given), -1), lambda u: (basis @ u.reshape(-1, g.columns)).ravel())


def _block_turned(g: OnBlock, given: Numbers) -> Subspace | None:
    """The block in its basis, the free coefficients as they are."""
    block = turned(g.g, given[:, g.start : g.stop])
    if block is None:
        return None
    join, stop = namespace(given).concatenate, g.start + block.given.shape[1]
    few = join([given[:, : g.start], block.given, given[:, g.stop :]], axis=1)

    def back(u: Numbers) -> Numbers:
        return join([u[: g.start], block.back(u[g.start : stop]), u[stop:]])

    return Subspace(replace(g, g=block.g, stop=stop), few, back)
