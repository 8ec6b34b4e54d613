"""What can be measured of a problem at a point, as pure functions of pytrees: jitted once, shared by all who measure."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from compfed.problem.curvature import steepest
from compfed.problem.losses import Loss
from compfed.problem.padded_rows import Store
from compfed.problem.regularisers import Regulariser
from compfed.tools.programs import compiled


@compiled
def gradients(loss: Loss, s: Store, X: Array) -> Array:
    """grad f at each row of X."""
    return jax.vmap(lambda x: loss.gradient(x, s.A, s.y, s.row_weight) + loss.ridge * x)(X)


@compiled(static_argnames="axis")
def objectives_and_mappings(
    loss: Loss, g: Regulariser, s: Store, X: Array, step: Array | float, axis: str | None = None
) -> tuple[Array, Array]:
    """F and the gradient mapping at each row of X; `axis` is that of the mesh where the rows are shared out over one."""
    values = jax.vmap(lambda x: loss.values(x, s.A, s.y) @ s.row_weight)(X)
    slopes = gradients(loss, s, X)
    if axis is not None:  # the ridge is in the gradient of every device
        values, slopes = jax.lax.psum((values, slopes - loss.ridge * X), axis)
        slopes = slopes + loss.ridge * X
    objectives = values + 0.5 * loss.ridge * (X * X).sum(axis=1) + jax.vmap(g)(X)
    forward = X - step * slopes
    return objectives, (X - jax.vmap(g.prox, (0, None))(forward, step)) / step


@compiled
def client_gradients(loss: Loss, s: Store, x: Array) -> Array:
    """grad f_i(x) for every client, in the order of the store."""
    one = jax.vmap(lambda A, y, q: loss.gradient(x, A, y, q))
    parts = [one(*block) for block in zip(*(s.blocks(a) for a in (s.A, s.y, s.q)), strict=True)]
    return jnp.concatenate(parts) + loss.ridge * x


@compiled
def curvatures(loss: Loss, s: Store, x: Array) -> tuple[Array, Array]:
    """Largest curvature at x of f, and of every f_i in the order of the store."""

    def top(client):
        A, y, weight = client
        return steepest(lambda x: loss.gradient(x, A, y, weight) + loss.ridge * x, x)

    blocks = zip(*(s.blocks(a) for a in (s.A, s.y, s.q)), strict=True)
    return top((s.A, s.y, s.row_weight)), jnp.concatenate([jax.lax.map(top, block) for block in blocks])
