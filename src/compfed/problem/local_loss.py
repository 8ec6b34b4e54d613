"""f_i as a client computes it, and F with its gradient and gradient mapping at several points, compiled."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from compfed._utils.array_namespace import namespace
from compfed._utils.compilation import jit
from compfed._utils.text import shapes_shown
from compfed.losses import Loss
from compfed.losses.from_function import FromFunction
from compfed.losses.lipschitz import largest_hessian_eigenvalue
from compfed.problem.padded_dataset import PaddedDataset, rows_from
from compfed.regularisers import Regulariser
from compfed.sampling import sample_rows

# --- f_i as an algorithm sees it ---


class LocalLoss(Protocol):
    """f_i as an algorithm uses it."""

    def value(self, x: Array) -> Array:
        """f_i(x) over all rows, whatever the batch size."""
        ...

    def grad(self, x: Array, key: Array) -> Array:
        """The gradient of f_i at x; `key` decides the mini-batch, where there is one."""
        ...

    def full_grad(self, x: Array) -> Array:
        """The gradient of f_i at x over all rows, whatever the batch size."""
        ...

    def hessian(self, x: Array, W: Array | None = None) -> Array:
        """Rows and columns W (all for None) of the Hessian of f_i at x, over all rows."""
        ...

    @property
    def steps_per_epoch(self) -> Array:
        """How many gradients read as many rows as the client has: 1, or its rows over those of a mini-batch, rounded up."""
        ...


class FullGradient(NamedTuple):
    """f_i(x) = sum_l q_l loss(x; a_l, y_l) + (ridge / 2) ||x||^2, and its derivatives."""

    loss: Loss
    A: Array  # (rows, width)
    y: Array
    q: Array  # sample weights, 0 for padding
    __repr__ = shapes_shown

    def value(self, x: Array) -> Array:
        return self.q @ self.loss.values(x, self.A, self.y) + 0.5 * self.loss.ridge * (x @ x)

    def grad(self, x: Array, key: Array) -> Array:
        return self.full_grad(x)

    def full_grad(self, x: Array) -> Array:
        return self.loss.gradient(x, self.A, self.y, self.q) + self.loss.ridge * x

    def hessian(self, x: Array, W: Array | None = None) -> Array:
        H = self.loss.hessian(x, self.A, self.y, self.q, W)
        return H + self.loss.ridge * namespace(H).eye(len(H), dtype=H.dtype)

    @property
    def steps_per_epoch(self) -> Array:
        return jnp.int32(1)


class MiniBatch(NamedTuple):
    """f_i with a gradient over `batch` distinct rows, drawn for each key and weighted so that its mean is the gradient."""

    loss: Loss
    A: Array  # rows of all clients; this client's are offset .. offset + size - 1
    y: Array
    q: Array
    offset: Array
    size: Array
    capacity: int  # static bound on size
    batch: int  # at most `capacity`
    ragged: bool = False  # whether `size` may be below `batch`: then all rows are the mini-batch
    __repr__ = shapes_shown

    def value(self, x: Array) -> Array:
        return self._all_rows().value(x)

    def grad(self, x: Array, key: Array) -> Array:
        row, scale = self._drawn(key)
        rows = self.offset + row
        A, y, q = (
            a.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False) for a in (self.A, self.y, self.q)
        )
        # Without the barrier XLA fetches the rows once for each product with them.
        A, y, q = jax.lax.optimization_barrier((A, y, q))
        return self.loss.gradient(x, A, y, q * scale) + self.loss.ridge * x

    def _drawn(self, key: Array) -> tuple[Array, Array]:
        """The rows of a mini-batch, and what their weights are multiplied by."""
        if not self.ragged:
            return sample_rows(key, self.size, self.capacity, self.batch), self.size / self.batch
        drawn = sample_rows(key, jnp.maximum(self.size, self.batch), self.capacity, self.batch)
        place, few = jnp.arange(self.batch), self.size < self.batch
        row = jnp.where(few, jnp.minimum(place, self.size - 1), drawn)
        return row, jnp.where(few, place < self.size, self.size / self.batch)

    def full_grad(self, x: Array) -> Array:
        return self._all_rows().full_grad(x)

    def hessian(self, x: Array, W: Array | None = None) -> Array:
        return self._all_rows().hessian(x, W)

    @property
    def steps_per_epoch(self) -> Array:
        return -(-jnp.asarray(self.size, jnp.int32) // self.batch)

    def _all_rows(self) -> FullGradient:
        """f_i on a window of `capacity` rows that holds all of this client's; the last clients' window starts early."""
        window = min(self.capacity, self.A.shape[0])
        start = jnp.minimum(self.offset, self.A.shape[0] - window)
        A, y, q = (jax.lax.dynamic_slice_in_dim(a, start, window) for a in (self.A, self.y, self.q))
        row = start + jnp.arange(window)
        mine = (row >= self.offset) & (row < self.offset + self.size)
        return FullGradient(self.loss, A, y, jnp.where(mine, q, 0.0))


# --- F: pure functions of pytrees, compiled once ---

PREDICTIONS = 2**18  # computed at a time on a CPU: so many stay in its cache


@jit
def gradients(loss: Loss, s: PaddedDataset, X: Array) -> Array:
    """grad f at each row of X."""
    return jax.vmap(lambda x: loss.gradient(x, s.A, s.y, s.row_weight) + loss.ridge * x)(X)


def values_and_gradients(loss: Loss, s: PaddedDataset, X: Array) -> tuple[Array, Array]:
    """f and grad f, both without the ridge, at each row of X; on a CPU over blocks of the data."""
    if isinstance(loss, FromFunction) and len(X) > 1:  # what it computes for one model is large
        return jax.lax.map(lambda x: jax.tree.map(lambda leaf: leaf[0], values_and_gradients(loss, s, x[None])), X)

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


@jit(static_argnames="axis")
def objectives(loss: Loss, g: Regulariser, s: PaddedDataset, X: Array, axis: str | None = None) -> Array:
    """F at each row of X."""
    values, _ = values_and_gradients(loss, s, X)  # XLA leaves the gradients out
    if axis is not None:
        values = jax.lax.psum(values, axis)
    return values + 0.5 * loss.ridge * (X * X).sum(axis=1) + jax.vmap(g)(X)


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
    return jnp.concatenate([one(*block) for block in s.client_blocks()]) + loss.ridge * x


@jit
def curvatures(loss: Loss, s: PaddedDataset, x: Array) -> tuple[Array, Array]:
    """Largest curvature at x of f, and of every f_i in the order of the dataset."""

    def top(client):
        A, y, weight = client
        return largest_hessian_eigenvalue(lambda x: loss.gradient(x, A, y, weight) + loss.ridge * x, x)

    of_clients = jnp.concatenate([jax.lax.map(top, block) for block in s.client_blocks()])
    return top((s.A, s.y, s.row_weight)), of_clients
