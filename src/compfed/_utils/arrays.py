"""Arrays of NumPy: read-only copies, arrays that JAX need not copy, blocks of small arrays, groups of rows, double-double sums."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

CACHE_LINE_BYTES = 64  # XLA wants an array to begin at a multiple of this
BLOCK_BYTES = 2**25


def readonly(array: np.ndarray) -> np.ndarray:
    """The array itself if nobody can change it (read-only, and not a view of another), else a read-only copy."""
    return set_readonly(array.copy()) if array.flags.writeable or array.base is not None else array


def set_readonly(array: np.ndarray) -> np.ndarray:
    """Make an array read-only in place; only for arrays that the caller does not have."""
    array.setflags(write=False)
    return array


def empty_aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
    """Like numpy.empty, but `jax.device_put` to a CPU need not copy it: it begins at a line of the cache.

    NumPy also asks Linux for large pages (of 2 MiB) for a large array, which JAX does not for its copies, and rows
    fetched at random arrive sooner from large pages.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.empty(size + CACHE_LINE_BYTES, np.uint8)
    first = -room.ctypes.data % CACHE_LINE_BYTES
    return room[first : first + size].view(dtype).reshape(shape)


def block_ranges(sizes: np.ndarray, width: int) -> Iterator[tuple[int, int]]:
    """(first, end) of runs of arrays that are about BLOCK_BYTES together; a larger array is a block of its own.

    The arrays have `sizes` rows of `width` numbers. Work with a cost per call is done once for a block.

    >>> list(block_ranges(np.array([1, 1, 1]), 1))
    [(0, 3)]
    """
    block = np.cumsum(sizes) * (8 * max(width, 1)) // BLOCK_BYTES
    yield from pairwise([0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), len(sizes)])


def concatenate_rows(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The rows of all arrays in one; a single array is not copied."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def group_rows(column: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The sorted values of a column, and the numbers of the rows with each, in increasing order.

    One sort serves all values: a pass over the column for each would be quadratic where every row has its own.

    >>> values, rows = group_rows(np.array(["b", "a", "b"]))
    >>> values.tolist(), [r.tolist() for r in rows]
    (['a', 'b'], [[1], [0, 2]])
    """
    values, codes, counts = np.unique(column, return_inverse=True, return_counts=True)
    return values, np.split(np.argsort(codes.ravel(), kind="stable"), np.cumsum(counts)[:-1])


def as_slice(rows: np.ndarray) -> slice | np.ndarray:
    """Consecutive row numbers as a slice, with which indexing copies nothing; other row numbers unchanged."""
    consecutive = len(rows) > 0 and rows[-1] - rows[0] == len(rows) - 1 and bool((np.diff(rows) == 1).all())
    return slice(int(rows[0]), int(rows[-1]) + 1) if consecutive else rows


# --- double-double arithmetic: a number is an unevaluated sum of two doubles, with about 32 digits ---
# Dekker, "A floating-point technique for extending the available precision", Numerische Mathematik 1971.

Pair = tuple[np.ndarray, np.ndarray]  # (high, low)


def two_sum(a: np.ndarray, b: np.ndarray) -> Pair:
    """(s, e) with s = fl(a + b) and a + b = s + e exactly."""
    s = a + b
    other = s - a
    return s, (a - (s - other)) + (b - other)


def two_product(a: np.ndarray, b: np.ndarray) -> Pair:
    """(p, e) with p = fl(a b) and a b = p + e exactly, unless that overflows."""
    p = a * b
    (a1, a2), (b1, b2) = _split(a), _split(b)
    return p, ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2


def add_pairs(x: Pair, y: Pair) -> Pair:
    """x + y."""
    s, e = two_sum(x[0], y[0])
    return two_sum(s, e + (x[1] + y[1]))


def multiply_pairs(x: Pair, y: Pair) -> Pair:
    """x y."""
    p, e = two_product(x[0], y[0])
    return two_sum(p, e + (x[0] * y[1] + x[1] * y[0]))


def divide_pairs(x: Pair, by: Pair | float) -> Pair:
    """x / by."""
    y = by if isinstance(by, tuple) else (np.asarray(by, float), np.zeros(()))
    q = x[0] / y[0]
    p, e = multiply_pairs((q, np.zeros_like(q)), y)
    return two_sum(q, ((x[0] - p) + (x[1] - e)) / y[0])


def _split(a: np.ndarray) -> Pair:
    c = 134217729.0 * a  # 2^27 + 1
    high = c - (c - a)
    return high, a - high
