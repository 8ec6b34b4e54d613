"""Rows as computations take them: padded for the device, of one site on the scale of an objective, or sparse.

`pad_sites` pads all sites of a `Problem`, `pad_clients` some clients of a `LazyProblem`, `LocalDataset.padded` one site of a
federation. Padding repeats the last row with weight 0: a loss may be infinite at made-up rows, and 0 * inf is not 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array
from scipy.sparse import issparse

from compfed._utils.array_namespace import Numbers
from compfed._utils.arrays import block_ranges, empty_aligned
from compfed._utils.compilation import precision
from compfed._utils.text import shapes_shown
from compfed._utils.validation import check_dense_size
from compfed.data import LazySites, Sites
from compfed.errors import InputError
from compfed.losses import Loss

Buckets: TypeAlias = Sequence[tuple[int, int]]  # (clients, rows each)
SparseMatrix: TypeAlias = Numbers  # a csr matrix of scipy, which has no types

MAX_POWER_OF_TWO = 256  # rows up to which a single site is padded to a power of two
MIN_BUCKET, MIN_LOCAL = 16, 32  # rows to which it is padded at least, in a Problem and in a federation
DENSE_BYTES = 2**26  # up to which sparse rows are made dense at once: products are faster then
SPARSE_METHODS = "An estimator with algorithm='auto', 'ProximalNewton' or 'ProximalBFGS' takes sparse rows as they are."


# --- all sites, padded for the device ---


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PaddedDataset:
    """The rows of all clients, one client after another, in arrays on the device.

    Clients of similar size form a bucket and are padded to its largest with rows of weight 0. Memory stays within 1.5
    times the data however unequal the sites are. Clients are stored from the largest bucket to the smallest.
    """

    A: Array  # (rows, width)
    y: Array  # (rows,) or (rows, outputs)
    q: Array  # sample weight of a row in its client's loss, 1 / m_i unless rows are weighted; 0 for padding
    row_weight: Array  # p_i q: sample weight of a row in f
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

    def client_blocks(self) -> Iterator[tuple[Array, ...]]:
        """(A, y, q) of each bucket, one client after another along the first axis."""
        return zip(*(self.blocks(a) for a in (self.A, self.y, self.q)), strict=True)

    def parts(self, clients: Array) -> list[Array]:
        """An array over clients, cut into one part per bucket."""
        return jnp.split(clients, np.cumsum([k for k, _ in self.buckets])[:-1])


def rows_from(A: Array, first: Array, count: int) -> Array:
    """A copy of `count` rows as one run of numbers: XLA copies a matrix row by row, which takes twice as long."""
    width = A.shape[1]
    if A.size >= 2**31:  # beyond the range of an int32 index
        return jax.lax.dynamic_slice_in_dim(A, first, count)
    run = jax.lax.dynamic_slice(A.reshape(-1), (first * width,), (count * width,))
    return jax.lax.optimization_barrier(run).reshape(count, width)


def pad_sites(
    sites: Sites, labels: np.ndarray, weights: np.ndarray, dtype: np.dtype
) -> tuple[PaddedDataset, np.ndarray]:
    """The padded dataset of all sites, and `order`: the site at each position of it. `labels` are those of all rows."""
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
        chosen, room = order[a:b], padded[a:b]
        end = np.cumsum(room)
        rows = slice(offset[a], offset[a] + end[-1])
        row = np.arange(end[-1]) - np.repeat(end - room, room)  # within its client
        there, row = row < np.repeat(sizes[chosen], room), np.minimum(row, np.repeat(sizes[chosen] - 1, room))
        if b - a == 1:  # a large site: not copied twice
            site = sites.features[chosen[0]]
            A[rows][: len(site)], A[rows][len(site) :] = site, site[-1]
        else:
            first = np.cumsum(sizes[chosen]) - sizes[chosen]
            A[rows] = np.concatenate([sites.features[i] for i in chosen])[np.repeat(first, room) + row]
        row += np.repeat(begins[chosen], room)  # among all rows
        share = np.where(there, shares[row], 0.0)
        y[rows], q[rows], row_weight[rows] = labels[row], share, np.repeat(weights[chosen], room) * share
    ids = np.asarray(sites.ids)[order]
    return _on_device((A, y, q, row_weight), (offset, sizes[order], weights[order], ids), buckets), order


def _on_device(rows: tuple[np.ndarray, ...], clients: tuple[np.ndarray, ...], buckets: Buckets) -> PaddedDataset:
    """The dataset of arrays (A, y, q, row weight) over rows and (offset, size, weight, id) over clients."""
    dtype = rows[0].dtype
    per_client = (a.astype(d) for a, d in zip(clients, (np.int32, dtype, dtype, np.int32), strict=True))
    with precision(dtype):  # device_put, because jnp.asarray compiles a program for every shape
        return PaddedDataset(*jax.device_put((*rows, *per_client)), buckets=tuple(buckets))


def _buckets(sizes: np.ndarray) -> list[tuple[int, int]]:
    """(clients, rows each) for falling sizes: as few buckets as keep all padding within half of the data.

    Each bucket is compiled separately. A single small site is padded to a power of two, so that fits of many small tables
    share a few programs.
    """
    if len(sizes) == 1 and sizes[0] <= MAX_POWER_OF_TWO:
        return [(1, max(MIN_BUCKET, power_of_two(sizes[0])))]
    cuts = np.array([0, len(sizes)])
    # Cutting between two equal sizes saves less than cutting beside them.
    candidates = np.flatnonzero(np.diff(sizes)) + 1
    while sizes[cuts[:-1]] @ np.diff(cuts) > 1.5 * sizes.sum():
        bucket = np.searchsorted(cuts, candidates, side="right")
        saved = (sizes[cuts[bucket - 1]] - sizes[candidates]) * (cuts[bucket] - candidates)
        cuts = np.sort(np.append(cuts, candidates[saved.argmax()]))
    return [(int(b - a), int(sizes[a])) for a, b in pairwise(cuts)]


def pad_clients(
    sites: LazySites, clients: np.ndarray, weights: np.ndarray, loss: Loss, dtype: np.dtype, capacity: int | None
) -> PaddedDataset:
    """The rows of some clients on the device, each padded to a power of two that holds the largest of them.

    So cohorts of different clients share a few shapes. `capacity` is the size of a client that the dataset states instead.
    """
    sizes = sites.sizes[clients]
    room = min(sites.largest, power_of_two(sizes.max()))
    A = np.empty((len(clients), room, sites.width), dtype)
    y = np.empty((len(clients), room, *sites.outputs), dtype)
    for j, (i, m) in enumerate(zip(clients.tolist(), sizes.tolist(), strict=True)):
        A[j, :m], y[j, :m] = sites.rows(i)
        A[j, m:], y[j, m:] = A[j, m - 1], y[j, m - 1]
    check_finite(clients, A, y)
    q = np.where(np.arange(room) < sizes[:, None], 1.0 / sizes[:, None], 0.0).astype(dtype)
    encoded = loss.encode(y.reshape(-1, *sites.outputs)).astype(dtype)
    row_weight = (weights[:, None] * q).astype(dtype).ravel()
    offset, buckets = np.arange(0, len(clients) * room, room), [(len(clients), capacity or room)]
    A = A.reshape(-1, sites.width)
    return _on_device((A, encoded, q.ravel(), row_weight), (offset, sizes, weights, clients), buckets)


def check_finite(clients: np.ndarray, A: np.ndarray, y: np.ndarray) -> None:
    """Refuse NaN and infinity in fetched rows."""
    if np.isfinite(A).all() and np.isfinite(y).all():
        return
    where = f"client {clients[0]}" if len(clients) == 1 else f"one of the clients {clients[0]} to {clients[-1]}"
    if A.ndim == 3:
        bad = ~(np.isfinite(A).all(axis=(1, 2)) & np.isfinite(y.reshape(len(y), -1)).all(axis=1))
        where = f"client {clients[int(bad.argmax())]}"
    raise InputError(f"{where} has rows with NaN or infinite numbers. Leave those rows out, or impute them.")


def power_of_two(rows: int | np.integer) -> int:
    """The least power of two that is at least `rows`."""
    return 1 << int(rows - 1).bit_length()


# --- one site ---


class LocalDataset(NamedTuple):
    """The rows of one site, scaled and encoded for an objective."""

    A: Numbers  # an array, or `SparseRows`
    y: np.ndarray
    q: np.ndarray  # sample weights, which sum to 1
    start: np.ndarray  # the default start of a model
    row_norms: np.ndarray  # ||a_l||
    order: np.ndarray | None = None  # the place in the table of each row, where rows are not in the order of the table
    __repr__ = shapes_shown

    def in_order(self, values: np.ndarray) -> np.ndarray:
        """One value for each row of the table, in the order of these rows."""
        return values if self.order is None else values[self.order]

    def padded(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """(A, y, q, rows) on the device; a small site is padded to a power of two, so that such sites share programs."""
        rows = len(self.q)
        room = max(MIN_LOCAL, power_of_two(rows)) if rows <= MAX_POWER_OF_TWO else rows
        last = np.minimum(np.arange(room), rows - 1)
        q = np.where(np.arange(room) < rows, self.q[last], 0.0).astype(self.q.dtype)
        return jax.device_put((self.A[last], self.y[last], q, np.int32(rows)))  # which compiles nothing


# --- sparse rows ---


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Z = (A - centre) / scale, with a last column of ones for an intercept, without filling in the zeros of A.

    A column that is centred has no zeros left. Here A stays as it was given, and centre and scale enter the few products
    that a linear model needs. Only columns that are asked for by number are made dense.
    """

    A: SparseMatrix
    centre: np.ndarray
    scale: np.ndarray
    intercept: bool
    __repr__ = shapes_shown

    __array_ufunc__ = None  # so that a NumPy array times this calls __rmatmul__

    @property
    def shape(self) -> tuple[int, int]:
        return self.A.shape[0], self.A.shape[1] + int(self.intercept)

    @property
    def dtype(self) -> np.dtype:
        return self.A.dtype

    @property
    def T(self) -> _Transposed:
        return _Transposed(self)

    def __len__(self) -> int:
        return self.A.shape[0]

    def astype(self, dtype: npt.DTypeLike, copy: bool = False) -> SparseRows:
        return SparseRows(self.A.astype(dtype, copy=copy), self.centre, self.scale, self.intercept)

    def __matmul__(self, x: np.ndarray) -> np.ndarray:
        """Z x, for a vector or a matrix x."""
        width = self.A.shape[1]
        u = (x[:width].T / self.scale).T
        moved = self.A @ u - self.centre @ u
        return moved + x[width] if self.intercept else moved

    def __rmatmul__(self, r: np.ndarray) -> np.ndarray:
        """r Z, for a vector r."""
        return self.T @ r

    def __getitem__(self, where: tuple[slice, npt.ArrayLike]) -> np.ndarray:
        """Columns by number, dense."""
        columns = np.asarray(where[1])
        inside = columns < self.A.shape[1]
        out = np.ones((len(self), columns.size))
        chosen = columns[inside]
        out[:, inside] = (self.A[:, chosen].toarray() - self.centre[chosen]) / self.scale[chosen]
        return out

    def row_norms(self) -> np.ndarray:
        """The norm of every row."""
        at_zero = (self.centre / self.scale) ** 2
        squares = self.A.copy()  # of the stored entries: how much each exceeds the square that a zero gives
        columns = squares.indices
        squares.data = ((squares.data - self.centre[columns]) / self.scale[columns]) ** 2 - at_zero[columns]
        total = np.asarray(squares.sum(axis=1)).ravel() + at_zero.sum() + int(self.intercept)
        return np.sqrt(np.maximum(total, 0.0))

    def largest(self) -> float:
        """A bound on the size of an entry."""
        away = np.abs(self.centre) / self.scale
        per_column = np.asarray(abs(self.A).max(axis=0).todense()).ravel() / self.scale
        return float(max(np.max(per_column + away), float(self.intercept)))


@dataclass(frozen=True, eq=False)
class _Transposed:
    rows: SparseRows

    def __matmul__(self, r: np.ndarray) -> np.ndarray:
        """Z^T r, for a vector or a matrix r."""
        rows, total = self.rows, r.sum(axis=0)
        moved = ((rows.A.T @ r).T / rows.scale - np.multiply.outer(total, rows.centre / rows.scale)).T
        return np.concatenate([moved, np.asarray(total)[None]]) if rows.intercept else moved


def sparse_moments(A: SparseMatrix, q: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mean, rest, square) of the columns of a csr matrix, rows weighted by q: see `Moments`."""
    by_row, width = np.repeat(q, np.diff(A.indptr)), A.shape[1]

    def summed(values: np.ndarray) -> np.ndarray:
        return np.bincount(A.indices, by_row * values, minlength=width)

    zeros = np.maximum(q.sum() - summed(np.ones_like(A.data)), 0.0)  # the weight of the zeros
    mean = summed(A.data)
    mean = mean + (summed(A.data - mean[A.indices]) - zeros * mean)  # a correction for the rounding of a long sum
    away = A.data - mean[A.indices]
    return mean, summed(away) - zeros * mean, summed(away**2) + zeros * mean**2


def dense_rows(A: SparseMatrix, name: str) -> np.ndarray:
    """A as a dense array, if that is not too large."""
    if not issparse(A):
        return np.asarray(A)
    check_dense_size(A.shape, name, SPARSE_METHODS)
    return A.toarray()
