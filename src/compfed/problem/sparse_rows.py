"""Rows that are mostly zero, centred and scaled without being filled in.

A column that is centred has no zeros left. Here the rows stay as they were given, and centre and scale enter the few
products that a linear model needs; only columns that are asked for by number are ever written out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse

from compfed._utils.text import shapes_shown
from compfed._utils.validation import check_dense_size

SMALL = 2**26  # bytes up to which rows are written out at once: products are faster then
SPARSE_METHODS = (
    "An estimator with algorithm='auto', 'ProximalNewton' or 'ProximalBFGS' works on sparse rows as they are."
)


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Z = (A - centre) / scale, with a last column of ones for an intercept; A is a csr matrix of scipy."""

    A: Any
    centre: np.ndarray
    scale: np.ndarray
    intercept: bool
    __repr__ = shapes_shown

    __array_ufunc__ = None  # so that a NumPy array times this asks this

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

    def astype(self, dtype: Any, copy: bool = False) -> SparseRows:
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

    def __getitem__(self, where: tuple[slice, Any]) -> np.ndarray:
        """Columns by number, written out."""
        columns = np.asarray(where[1])
        inside = columns < self.A.shape[1]
        out = np.ones((len(self), columns.size))
        chosen = columns[inside]
        out[:, inside] = (self.A[:, chosen].toarray() - self.centre[chosen]) / self.scale[chosen]
        return out

    def lengths(self) -> np.ndarray:
        """The norm of every row."""
        at_zero = (self.centre / self.scale) ** 2
        squares = self.A.copy()  # of the entries that are there, what they have more than a zero would
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


def moments(A: Any, q: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mean, rest, square) of the columns of a csr matrix, rows weighted by q: see `Moments`."""
    by_row, width = np.repeat(q, np.diff(A.indptr)), A.shape[1]

    def summed(values: np.ndarray) -> np.ndarray:
        return np.bincount(A.indices, by_row * values, minlength=width)

    zeros = np.maximum(q.sum() - summed(np.ones_like(A.data)), 0.0)  # the weight of the entries that are not there
    mean = summed(A.data)
    mean = mean + (summed(A.data - mean[A.indices]) - zeros * mean)  # once more, for what was lost in a long sum
    away = A.data - mean[A.indices]
    return mean, summed(away) - zeros * mean, summed(away**2) + zeros * mean**2


def written_out(A: Any, who: str) -> np.ndarray:
    """A as an array, if that is not too large."""
    if not issparse(A):
        return np.asarray(A)
    check_dense_size(A.shape, who, SPARSE_METHODS)
    return A.toarray()
