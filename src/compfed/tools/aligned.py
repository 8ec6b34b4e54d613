"""Arrays of NumPy that a CPU device of JAX takes over as they are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

LINE = 64  # bytes of a line of the cache: where XLA wants an array to begin


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Like numpy.empty, but `jax.device_put` to a CPU need not copy it, as it does what begins in the middle of a line.

    That saves the copy, and more: NumPy asks Linux for large pages (of 2 MiB) for a large array, JAX does not for its copies, and rows
    fetched here and there from large pages arrive sooner.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.empty(size + LINE, np.uint8)
    first = -room.ctypes.data % LINE
    return room[first : first + size].view(dtype).reshape(shape)
