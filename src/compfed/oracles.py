"""What a client sees of its own loss: f.grad(x, key), over all of its rows or over a fresh mini-batch."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from jax import Array

from compfed.losses import Loss
from compfed.randomness import sample_rows


class LocalLoss(Protocol):
    """f_i as an algorithm sees it."""

    def grad(self, x: Array, key: Array) -> Array:
        """The gradient of f_i at x; `key` decides the mini-batch, where there is one."""
        ...


class FullGradient(NamedTuple):
    """grad f_i(x) = (1/m) A^T slope(A x, y) + ridge x."""

    loss: Loss
    A: Array  # (rows, d); rows beyond `count` are zero and so add nothing to A^T(...)
    y: Array
    count: Array

    def grad(self, x: Array, key: Array) -> Array:
        return self.loss.slope(self.A @ x, self.y) @ self.A / self.count + self.loss.ridge * x


class MiniBatch(NamedTuple):
    """The same over `size` distinct rows, drawn afresh for each key."""

    loss: Loss
    A: Array  # rows of all clients; this client's are offset .. offset + count - 1
    y: Array
    offset: Array
    count: Array
    capacity: int  # static bound on count
    size: int

    def grad(self, x: Array, key: Array) -> Array:
        rows = self.offset + sample_rows(key, self.count, self.capacity, self.size)
        A = self.A.at[rows].get(mode="promise_in_bounds")
        y = self.y.at[rows].get(mode="promise_in_bounds")
        return self.loss.slope(A @ x, y) @ A / self.size + self.loss.ridge * x
