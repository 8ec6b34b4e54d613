"""f_i as a client computes it: value, gradient (over all rows or a fresh mini-batch) and Hessian."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from compfed._utils.array_namespace import namespace
from compfed._utils.text import shapes_shown
from compfed.losses import Loss
from compfed.sampling import sample_rows


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


class MiniBatch(NamedTuple):
    """f_i with a gradient over `batch` distinct rows, drawn for each key and weighted so that its mean is the gradient."""

    loss: Loss
    A: Array  # rows of all clients; this client's are offset .. offset + size - 1
    y: Array
    q: Array
    offset: Array
    size: Array
    capacity: int  # static bound on size
    batch: int
    __repr__ = shapes_shown

    def value(self, x: Array) -> Array:
        return self._all_rows().value(x)

    def grad(self, x: Array, key: Array) -> Array:
        rows = self.offset + sample_rows(key, self.size, self.capacity, self.batch)
        A, y, q = (
            a.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False) for a in (self.A, self.y, self.q)
        )
        # Without the barrier XLA fetches the rows once for each product with them.
        A, y, q = jax.lax.optimization_barrier((A, y, q))
        return self.loss.gradient(x, A, y, q * (self.size / self.batch)) + self.loss.ridge * x

    def full_grad(self, x: Array) -> Array:
        return self._all_rows().full_grad(x)

    def hessian(self, x: Array, W: Array | None = None) -> Array:
        return self._all_rows().hessian(x, W)

    def _all_rows(self) -> FullGradient:
        """f_i on a window of `capacity` rows that holds all of this client's; the last clients' window starts early."""
        window = min(self.capacity, self.A.shape[0])
        start = jnp.minimum(self.offset, self.A.shape[0] - window)
        A, y, q = (jax.lax.dynamic_slice_in_dim(a, start, window) for a in (self.A, self.y, self.q))
        row = start + jnp.arange(window)
        mine = (row >= self.offset) & (row < self.offset + self.size)
        return FullGradient(self.loss, A, y, jnp.where(mine, q, 0.0))
