"""Rows, vectors and group penalties in the form that kernels need: sides that are powers of two, and no gathers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed._utils.array_namespace import cast_like
from compfed._utils.text import shapes_shown
from compfed.algorithms.base import PyTree
from compfed.problem.padded_dataset import PaddedDataset
from compfed.prox import group_shrinkage, soft_threshold
from compfed.regularisers import GroupL2, Regulariser, SparseGroup

MAX_GROUPED = 128  # coefficients of a group penalty: its matrix is held on chip beside the rows


def power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


class Bucket(NamedTuple):
    """Clients of one size: A is (clients, rows, width). Padding rows have weight 0."""

    A: Array
    y: Array
    q: Array
    __repr__ = shapes_shown


class Flat(NamedTuple):
    """The rows of all clients, one after another, with columns padded to a power of two."""

    A: Array
    y: Array
    q: Array
    __repr__ = shapes_shown


def in_buckets(data: PaddedDataset, pad_rows: bool) -> list[Bucket]:
    """The data set bucket by bucket, columns padded to a power of two, and rows too if `pad_rows`."""
    width = power(data.A.shape[1]) - data.A.shape[1]
    found = []
    for A, y, q in zip(*(data.blocks(a) for a in (data.A, data.y, data.q)), strict=True):
        more = power(A.shape[1]) - A.shape[1] if pad_rows else 0
        # padding repeats the last label: a loss may not be defined at a made-up label
        y = jnp.pad(y, ((0, 0), (0, more), *[(0, 0)] * (y.ndim - 2)), mode="edge") if more else y
        found.append(Bucket(jnp.pad(A, ((0, 0), (0, more), (0, width))), y, jnp.pad(q, ((0, 0), (0, more)))))
    return found


def in_one_piece(data: PaddedDataset) -> Flat:
    """The data set with columns padded to a power of two."""
    width = power(data.A.shape[1]) - data.A.shape[1]
    return Flat(jnp.pad(data.A, ((0, 0), (0, width))), data.y, data.q)


def widened(tree: PyTree, d: int) -> PyTree:
    """The tree with every vector of length d padded with zeros to a power of two."""

    def one(leaf: Any) -> Any:
        if jnp.ndim(leaf) == 0 or leaf.shape[-1] != d:
            return leaf
        return jnp.pad(leaf, [*[(0, 0)] * (leaf.ndim - 1), (0, power(d) - d)])

    return jax.tree.map(one, tree)


def narrowed(tree: PyTree, d: int) -> PyTree:
    """The tree without the padding of `widened`."""
    return jax.tree.map(lambda leaf: leaf[..., :d] if jnp.ndim(leaf) and leaf.shape[-1] == power(d) else leaf, tree)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Groups:
    """The prox of GroupL2 and SparseGroup, with group norms by a product with a matrix: kernels cannot gather."""

    same: Array  # 1 where row and column are in one group
    threshold: Array  # lam w_g of each coefficient's group
    l1: Array

    def prox(self, x: Array, t: Array | float) -> Array:
        x = soft_threshold(x, t * self.l1)
        norm = jnp.sqrt(self.same @ (x * x))
        return x * group_shrinkage(norm, cast_like(t, x) * self.threshold)


def for_kernels(g: Regulariser, d: int) -> Any:
    """g with d coefficients padded to a power of two, in a form that kernels can run if there is one."""
    if not isinstance(g, GroupL2 | SparseGroup) or d > MAX_GROUPED:
        return widened(g, d)
    blank = jnp.zeros(d, jnp.float32)
    member, more = g.group_of(blank), (0, power(d) - d)
    same = np.pad((member[:, None] == member[None, :]).astype(np.float32), (more, more))
    l1 = jnp.broadcast_to(cast_like(g.l1 if isinstance(g, SparseGroup) else 0.0, blank), d)
    return Groups(jnp.asarray(same), jnp.pad(g.thresholds(blank)[member], more), jnp.pad(l1, more))
