"""The rows of all sites as arrays on the device: sites of similar size padded alike, so that few shapes compile."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed._utils.arrays import block_ranges, empty_aligned
from compfed._utils.precision import precision
from compfed._utils.text import shapes_shown
from compfed.data import Sites

SMALL = 256  # rows of a single site up to which it is padded to a power of two


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PaddedDataset:
    """The rows of all clients, one client after another, in arrays that live on the device.

    Clients of similar size form a bucket and are padded to its largest with rows that do not count; memory stays
    within 1.5 times the data however unequal the sites are. Clients are stored from the largest bucket to the smallest.
    """

    A: Array  # (rows, width)
    y: Array  # (rows,) or (rows, outputs)
    q: Array  # share of a row in its client's loss, 1 / m_i unless rows are weighted; 0 for padding
    row_weight: Array  # p_i q: share of a row in f
    offset: Array  # first row of each client
    size: Array  # m_i
    weight: Array  # p_i
    ids: Array
    buckets: tuple[tuple[int, int], ...] = field(metadata={"static": True})  # (clients, rows each)
    __repr__ = shapes_shown

    def blocks(self, rows: Array) -> list[Array]:
        """An array over rows, cut into one (clients, rows each, ...) block per bucket."""
        cuts = np.cumsum([k * m for k, m in self.buckets])[:-1]
        parts = jnp.split(rows, cuts)
        return [a.reshape(k, m, *a.shape[1:]) for a, (k, m) in zip(parts, self.buckets, strict=True)]

    def parts(self, clients: Array) -> list[Array]:
        """An array over clients, cut into one part per bucket."""
        return jnp.split(clients, np.cumsum([k for k, _ in self.buckets])[:-1])


def rows_from(A: Array, first: Array, count: int) -> Array:
    """A copy of so many rows, as one run of numbers: of a matrix XLA copies row by row, which takes twice as long."""
    width = A.shape[1]
    if A.size >= 2**31:  # too many to be numbered
        return jax.lax.dynamic_slice_in_dim(A, first, count)
    run = jax.lax.dynamic_slice(A.reshape(-1), (first * width,), (count * width,))
    return jax.lax.optimization_barrier(run).reshape(count, width)


def store(sites: Sites, labels: np.ndarray, weights: np.ndarray, dtype: np.dtype) -> tuple[PaddedDataset, np.ndarray]:
    """The store of a federation, and `order`: the site at each position of the store. `labels` are those of all rows."""
    sizes = sites.sizes
    order = np.argsort(-sizes, kind="stable")
    buckets = _buckets(sizes[order])
    padded = np.repeat([rows for _, rows in buckets], [k for k, _ in buckets])
    offset = np.concatenate([[0], np.cumsum(padded)[:-1]])
    A = empty_aligned((int(padded.sum()), sites.width), dtype)
    y = empty_aligned((len(A), *labels.shape[1:]), dtype)
    q, row_weight = empty_aligned((len(A),), dtype), empty_aligned((len(A),), dtype)
    begins, shares = np.cumsum(sizes) - sizes, np.concatenate(sites.row_shares)
    for a, b in block_ranges(padded, sites.width):
        who, room = order[a:b], padded[a:b]
        end = np.cumsum(room)
        rows = slice(offset[a], offset[a] + end[-1])
        row = np.arange(end[-1]) - np.repeat(end - room, room)  # of its client
        # the last row again, with weight 0: a loss may be infinite at made-up rows, and 0 * inf is not 0
        there, row = row < np.repeat(sizes[who], room), np.minimum(row, np.repeat(sizes[who] - 1, room))
        if b - a == 1:  # a large site: no second copy of it
            A[rows][: sizes[who[0]]], A[rows][sizes[who[0]] :] = sites.features[who[0]], sites.features[who[0]][-1]
        else:
            first = np.cumsum(sizes[who]) - sizes[who]
            A[rows] = np.concatenate([sites.features[i] for i in who])[np.repeat(first, room) + row]
        row += np.repeat(begins[who], room)  # of all
        share = np.where(there, shares[row], 0.0)
        y[rows], q[rows], row_weight[rows] = labels[row], share, np.repeat(weights[who], room) * share
    with precision(dtype):
        # device_put, for jnp.asarray compiles a program for every shape; nothing else holds these arrays
        made = PaddedDataset(
            A=jax.device_put(A),
            y=jax.device_put(y),
            q=jax.device_put(q),
            row_weight=jax.device_put(row_weight),
            offset=jax.device_put(offset.astype(np.int32)),
            size=jax.device_put(sizes[order].astype(dtype)),
            weight=jax.device_put(weights[order].astype(dtype)),
            ids=jax.device_put(np.asarray(sites.ids, np.int32)[order]),
            buckets=tuple(buckets),
        )
    return made, order


def _buckets(sizes: np.ndarray) -> list[tuple[int, int]]:
    """(clients, rows each) for falling sizes: as few buckets as keep all padding within half of the data.

    A single small site is the exception: it is padded to a power of two.

    Each bucket is a program of its own, and costs its time to compile.
    """
    if len(sizes) == 1 and sizes[0] <= SMALL:  # fits of many small tables, one by one, share a few programs
        return [(1, max(16, 1 << int(sizes[0] - 1).bit_length()))]
    cuts = np.array([0, len(sizes)])
    # cutting between two equal sizes saves less than cutting beside them
    candidates = np.flatnonzero(np.diff(sizes)) + 1
    while sizes[cuts[:-1]] @ np.diff(cuts) > 1.5 * sizes.sum():
        bucket = np.searchsorted(cuts, candidates, side="right")
        saved = (sizes[cuts[bucket - 1]] - sizes[candidates]) * (cuts[bucket] - candidates)
        cuts = np.sort(np.append(cuts, candidates[saved.argmax()]))
    return [(int(b - a), int(sizes[a])) for a, b in pairwise(cuts)]
