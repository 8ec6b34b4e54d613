"""Arrays of NumPy: read-only copies, arrays that JAX takes over without a copy, blocks of small arrays, groups of rows."""

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
