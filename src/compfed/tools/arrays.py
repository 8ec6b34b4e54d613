"""Whose an array is: what a caller gave is copied once, what was made here is not."""

from __future__ import annotations

import numpy as np


def owned(array: np.ndarray) -> np.ndarray:
    """The array where it is nobody else's (read-only, and no view of another), else a read-only copy of it."""
    return made_here(array.copy()) if array.flags.writeable or array.base is not None else array


def made_here(array: np.ndarray) -> np.ndarray:
    """An array that nobody else has: from now on `owned`, without another copy."""
    array.setflags(write=False)
    return array
