"""F, its gradient and the gradient mapping at several points, as pure functions of pytrees, compiled once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from compfed._utils.compilation import jit
from compfed.losses import Loss
from compfed.losses.lipschitz import largest_hessian_eigenvalue
from compfed.problem.padded_dataset import PaddedDataset, rows_from
from compfed.regularisers import Regulariser

PREDICTIONS = 2**18  # computed at a time on a CPU: so many stay in its cache


@jit
def gradients(loss: Loss, s: PaddedDataset, X: Array) -> Array:
    """grad f at each row of X."""
    return jax.vmap(lambda x: loss.gradient(x, s.A, s.y, s.row_weight) + loss.ridge * x)(X)


def values_and_gradients(loss: Loss, s: PaddedDataset, X: Array) -> tuple[Array, Array]:
    """f and grad f, both without the ridge, at each row of X; on a CPU over blocks of the data."""

    def part(A: Array, y: Array, weight: Array) -> tuple[Array, Array]:
        values = jax.vmap(lambda x: loss.values(x, A, y) @ weight)(X)
        return values, jax.vmap(lambda x: loss.gradient(x, A, y, weight))(X)

    rows, at_once = len(s.A), max(PREDICTIONS // len(X), 1)
    if jax.default_backend() != "cpu" or rows <= at_once:
        return part(s.A, s.y, s.row_weight)

    def add_block(k: Array, so_far: tuple[Array, Array]) -> tuple[Array, Array]:
        y, weight = (jax.lax.dynamic_slice_in_dim(a, k * at_once, at_once) for a in (s.y, s.row_weight))
        return jax.tree.map(jnp.add, so_far, part(rows_from(s.A, k * at_once, at_once), y, weight))

    blocks, rest = divmod(rows, at_once)
    blocks, rest = (blocks, rest) if rest else (blocks - 1, at_once)
    return jax.lax.fori_loop(0, blocks, add_block, part(s.A[-rest:], s.y[-rest:], s.row_weight[-rest:]))


@jit(static_argnames="axis")
def objectives_and_mappings(
    loss: Loss, g: Regulariser, s: PaddedDataset, X: Array, step: Array | float, axis: str | None = None
) -> tuple[Array, Array]:
    """F and the gradient mapping at each row of X; `axis` names the axis of a mesh over which the rows are split."""
    values, grads = values_and_gradients(loss, s, X)
    if axis is not None:
        values, grads = jax.lax.psum((values, grads), axis)
    return with_regulariser(loss, g, X, values, grads, step)


@jit
def with_regulariser(
    loss: Loss, g: Regulariser, X: Array, values: Array, grads: Array, step: Array | float
) -> tuple[Array, Array]:
    """F and the gradient mapping at each row of X, from the result of `values_and_gradients`."""
    objectives = values + 0.5 * loss.ridge * (X * X).sum(axis=1) + jax.vmap(g)(X)
    forward = X - step * (grads + loss.ridge * X)
    return objectives, (X - jax.vmap(g.prox, (0, None))(forward, step)) / step


@jit
def client_gradients(loss: Loss, s: PaddedDataset, x: Array) -> Array:
    """grad f_i(x) for every client, in the order of the dataset."""
    one = jax.vmap(lambda A, y, q: loss.gradient(x, A, y, q))
    parts = [one(*block) for block in zip(*(s.blocks(a) for a in (s.A, s.y, s.q)), strict=True)]
    return jnp.concatenate(parts) + loss.ridge * x


@jit
def curvatures(loss: Loss, s: PaddedDataset, x: Array) -> tuple[Array, Array]:
    """Largest curvature at x of f, and of every f_i in the order of the dataset."""

    def top(client):
        A, y, weight = client
        return largest_hessian_eigenvalue(lambda x: loss.gradient(x, A, y, weight) + loss.ridge * x, x)

    blocks = zip(*(s.blocks(a) for a in (s.A, s.y, s.q)), strict=True)
    return top((s.A, s.y, s.row_weight)), jnp.concatenate([jax.lax.map(top, block) for block in blocks])
