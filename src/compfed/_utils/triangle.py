"""Symmetric matrices as they travel: the upper triangle, row by row."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np


def upper(matrix: Any) -> Any:
    """w (w + 1) / 2 numbers of a symmetric (w, w) matrix, of NumPy or of JAX."""
    return matrix.reshape(-1)[_places(len(matrix))[0]]


def square(triangle: Any, w: int) -> Any:
    """The symmetric matrix of which this is the upper triangle."""
    return triangle[_places(w)[1]]


@functools.lru_cache(maxsize=4)  # of 3,000 coordinates this is 54 MB
def _places(w: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the numbers of a triangle are in the matrix, and those of the matrix in the triangle."""
    rows, columns = np.triu_indices(w)
    place = np.zeros((w, w), np.int32)  # a program in single precision knows no other
    place[rows, columns] = np.arange(len(rows))
    return (rows * w + columns).astype(np.int32), np.maximum(place, place.T)
