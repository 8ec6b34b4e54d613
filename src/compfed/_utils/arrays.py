"""Whose an array is: what a caller gave is copied once, what was made here is not.

Arrays of NumPy that a CPU device of JAX takes over as they are.

Many small arrays in a few large blocks: what costs by the call is done once for a block.

The rows of a table, by the value of a column.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np


def readonly(array: np.ndarray) -> np.ndarray:
    """The array where it is nobody else's (read-only, and no view of another), else a read-only copy of it."""
    return set_readonly(array.copy()) if array.flags.writeable or array.base is not None else array


def set_readonly(array: np.ndarray) -> np.ndarray:
    """An array that nobody else has: from now on `owned`, without another copy."""
    array.setflags(write=False)
    return array


CACHE_LINE_BYTES = 64  # bytes of a line of the cache: where XLA wants an array to begin


def empty_aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Like numpy.empty, but `jax.device_put` to a CPU need not copy it, as it does what begins in the middle of a line.

    That saves the copy, and more: NumPy asks Linux for large pages (of 2 MiB) for a large array, JAX does not for its copies, and rows
    fetched here and there from large pages arrive sooner.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.empty(size + CACHE_LINE_BYTES, np.uint8)
    first = -room.ctypes.data % CACHE_LINE_BYTES
    return room[first : first + size].view(dtype).reshape(shape)


BLOCK_BYTES = 2**25  # of one block; an array that is larger is a block of its own


def block_ranges(sizes: np.ndarray, width: int) -> Iterator[tuple[int, int]]:
    """(first, end) of runs of arrays with `sizes` rows of `width` numbers each, the runs up to BYTES large.

    >>> list(block_ranges(np.array([1, 1, 1]), 1))
    [(0, 3)]
    """
    of_block = np.cumsum(sizes) * (8 * max(width, 1)) // BLOCK_BYTES
    cuts = [0, *(np.flatnonzero(np.diff(of_block)) + 1).tolist(), len(sizes)]
    yield from pairwise(cuts)


def concatenate_rows(arrays: Any) -> np.ndarray:
    """The rows of some arrays in one; of a single one nothing is copied."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def group_rows(column: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The values of a column, sorted, and where the rows of each are, in the order they came.

    One sort for all of them: a look at the whole column for each value would be quadratic where every row has its own.

    >>> values, rows = group_rows(np.array(["b", "a", "b"]))
    >>> values.tolist(), [r.tolist() for r in rows]
    (['a', 'b'], [[1], [0, 2]])
    """
    values, codes, counts = np.unique(column, return_inverse=True, return_counts=True)
    return values, np.split(np.argsort(codes.ravel(), kind="stable"), np.cumsum(counts)[:-1])


def as_slice(rows: np.ndarray) -> slice | np.ndarray:
    """Row numbers as a slice where they are one after another: taking them copies nothing then."""
    together = len(rows) > 0 and rows[-1] - rows[0] == len(rows) - 1 and bool((np.diff(rows) == 1).all())
    return slice(int(rows[0]), int(rows[-1]) + 1) if together else rows
