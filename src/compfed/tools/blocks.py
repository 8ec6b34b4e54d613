"""Many small arrays in a few large blocks: what costs by the call is done once for a block."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

BYTES = 2**25  # of one block; an array that is larger is a block of its own


def in_blocks(sizes: np.ndarray, width: int) -> Iterator[tuple[int, int]]:
    """(first, end) of runs of arrays with `sizes` rows of `width` numbers each, the runs up to BYTES large.

    >>> list(in_blocks(np.array([1, 1, 1]), 1))
    [(0, 3)]
    """
    of_block = np.cumsum(sizes) * (8 * max(width, 1)) // BYTES
    cuts = [0, *(np.flatnonzero(np.diff(of_block)) + 1).tolist(), len(sizes)]
    yield from pairwise(cuts)


def joined(arrays: Any) -> np.ndarray:
    """The rows of some arrays in one; of a single one nothing is copied."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
