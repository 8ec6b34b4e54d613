"""Symmetric matrices as they travel: the upper triangle, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np


def upper(matrix: Any) -> Any:
    """w (w + 1) / 2 numbers of a symmetric (w, w) matrix, of NumPy or of JAX."""
    return matrix[np.triu_indices(len(matrix))]


def square(triangle: Any, w: int) -> Any:
    """The symmetric matrix of which this is the upper triangle."""
    place = np.zeros((w, w), int)
    place[np.triu_indices(w)] = np.arange(w * (w + 1) // 2)
    return triangle[np.maximum(place, place.T)]
