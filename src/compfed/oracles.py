"""What a client sees of its own loss: f.grad(x, key), over all of its rows or over a fresh mini-batch."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from compfed.losses import Loss
from compfed.randomness import sample_rows


class LocalLoss(Protocol):
    """f_i as an algorithm sees it."""

    def grad(self, x: Array, key: Array) -> Array:
        """The gradient of f_i at x; `key` decides the mini-batch, where there is one."""
        ...

    def full_grad(self, x: Array) -> Array:
        """The gradient of f_i at x over all rows, whatever the batch size."""
        ...


class FullGradient(NamedTuple):
    """grad f_i(x) = (1/m) A^T slope(A x, y) + ridge x."""

    loss: Loss
    A: Array  # (rows, d); rows beyond `size` are zero and so add nothing to A^T(...)
    y: Array
    size: Array  # m: number of rows

    def grad(self, x: Array, key: Array) -> Array:
        return self.full_grad(x)

    def full_grad(self, x: Array) -> Array:
        return self.loss.slope(self.A @ x, self.y) @ self.A / self.size + self.loss.ridge * x


class MiniBatch(NamedTuple):
    """The same over `batch` distinct rows, drawn afresh for each key."""

    loss: Loss
    A: Array  # rows of all clients; this client's are offset .. offset + size - 1
    y: Array
    offset: Array
    size: Array
    capacity: int  # static bound on size
    batch: int

    def grad(self, x: Array, key: Array) -> Array:
        rows = self.offset + sample_rows(key, self.size, self.capacity, self.batch)
        A = self.A.at[rows].get(mode="promise_in_bounds")
        y = self.y.at[rows].get(mode="promise_in_bounds")
        return self.loss.slope(A @ x, y) @ A / self.batch + self.loss.ridge * x

    def full_grad(self, x: Array) -> Array:
        # A window of `capacity` rows that holds all of this client's; the last clients' window starts early.
        window = min(self.capacity, self.A.shape[0])
        start = jnp.minimum(self.offset, self.A.shape[0] - window)
        A = jax.lax.dynamic_slice_in_dim(self.A, start, window)
        y = jax.lax.dynamic_slice_in_dim(self.y, start, window)
        row = start + jnp.arange(window)
        mine = (row >= self.offset) & (row < self.offset + self.size)
        return jnp.where(mine, self.loss.slope(A @ x, y), 0.0) @ A / self.size + self.loss.ridge * x
