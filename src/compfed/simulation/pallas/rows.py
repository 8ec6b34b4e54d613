"""The rows of a federation as kernels want them: sides that are powers of two, and a gradient that is one pass over them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap

from compfed._utils.text import shapes_shown
from compfed.problem.local_dataset import PaddedDataset
from compfed.problem.local_loss import FullGradient
from compfed.simulation.pallas.one_pass import gradients, power


class Bucket(NamedTuple):
    """Clients of one size: A is (clients, rows, width). Rows and columns that were added count nothing."""

    A: Array
    y: Array
    q: Array
    __repr__ = shapes_shown


def in_buckets(data: PaddedDataset, rows_too: bool) -> list[Bucket]:
    """The store bucket by bucket, columns filled up to a power of two, and rows too where they stay on chip."""
    width = power(data.A.shape[1]) - data.A.shape[1]
    found = []
    for A, y, q in zip(*(data.blocks(a) for a in (data.A, data.y, data.q)), strict=True):
        more = power(A.shape[1]) - A.shape[1] if rows_too else 0
        # labels of added rows are the last one's: a loss may not be defined at a made-up label
        y = jnp.pad(y, ((0, 0), (0, more), *[(0, 0)] * (y.ndim - 2)), mode="edge") if more else y
        found.append(Bucket(jnp.pad(A, ((0, 0), (0, more), (0, width))), y, jnp.pad(q, ((0, 0), (0, more)))))
    return found


def widened(tree: Any, d: int) -> Any:
    """Every vector of length d, filled up with zeros to a power of two."""

    def one(leaf: Any) -> Any:
        if jnp.ndim(leaf) == 0 or leaf.shape[-1] != d:
            return leaf
        return jnp.pad(leaf, [*[(0, 0)] * (leaf.ndim - 1), (0, power(d) - d)])

    return jax.tree.map(one, tree)


def narrowed(tree: Any, d: int) -> Any:
    """The same back."""
    return jax.tree.map(lambda leaf: leaf[..., :d] if jnp.ndim(leaf) and leaf.shape[-1] == power(d) else leaf, tree)


class OnePass(NamedTuple):
    """f_i with a gradient that, for all clients at once, is one pass over their rows."""

    loss: Any
    A: Array  # (rows, width filled up)
    y: Array
    q: Array
    interpret: bool
    __repr__ = shapes_shown

    def value(self, x: Array) -> Array:
        return self._plainly(x).value(x)

    def hessian(self, x: Array, W: Array | None = None) -> Array:
        return self._plainly(x).hessian(x, W)

    def _plainly(self, x: Array) -> FullGradient:
        return FullGradient(self.loss, self.A[:, : x.size].astype(x.dtype), self.y, self.q)

    def full_grad(self, x: Array) -> Array:
        wide = jnp.pad(x, (0, self.A.shape[1] - x.size))
        pieces, form = jax.tree.flatten(self.loss)
        return _gradient(form, self.interpret)(pieces, self.A, self.y, self.q, wide)[: x.size] + self.loss.ridge * x

    def grad(self, x: Array, key: Array) -> Array:
        return self.full_grad(x)


def _gradient(form: Any, interpret: bool) -> Any:
    @custom_vmap
    def gradient(pieces: Any, A: Array, y: Array, q: Array, x: Array) -> Array:
        return jax.tree.unflatten(form, pieces).gradient(x, A.astype(x.dtype), y, q)

    @gradient.def_vmap
    def of_all(size: int, batched: Any, pieces: Any, A: Array, y: Array, q: Array, x: Array) -> Any:
        of_loss, *of_rows, of_x = batched
        if any(jax.tree.leaves(of_loss)) or not all(of_rows):
            axes = jax.tree.map(lambda b: 0 if b else None, batched)
            plain = jax.vmap(lambda p, *rest: jax.tree.unflatten(form, p).gradient(rest[3], *rest[:3]), in_axes=axes)
            return plain(pieces, A.astype(x.dtype), y, q, x), True
        each = x if of_x else jnp.broadcast_to(x, (size, *x.shape))
        return gradients(jax.tree.unflatten(form, pieces), A, y, q, each, interpret), True

    return gradient
