"""Sums over rows for many models at once: one pass over the rows of a site serves a path and its folds.

The models of a message are pairs (subset of the rows, coefficients). A block of rows is multiplied by the coefficients of all
models whose subset has rows there, and the derivatives of the loss are multiplied by the block. Predictions stay in the cache
of a core. Where rows are ordered by fold, rows that a fold holds out cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from compfed._utils.array_namespace import Numbers, product
from compfed._utils.threads import map_in_order

if TYPE_CHECKING:
    from compfed.losses.base import LinearModel

PREDICTIONS = 2**17  # of a block: they stay in the cache of a core
LEAST_ROWS = 256  # of a block: products of fewer are slow
CHUNK = 2**15  # rows whose sums a core forms by itself; the chunks are added in order, however many cores there are


class LossEvaluation(NamedTuple):
    """f(x), its gradient and the size of the gradient's terms for several models, without the ridge."""

    value: np.ndarray  # (models,)
    gradient: np.ndarray  # (models, d)
    terms: np.ndarray  # (models,), sum_l q_l ||grad loss(x; a_l, y_l)||: rounding is a small multiple of this


class _Models:
    """The coefficients of all models, by subset, in the columns of matrices that multiply rows."""

    def __init__(self, X: np.ndarray, which: np.ndarray, outputs: int, dtype: np.dtype):
        self.outputs = outputs
        self.of_subset = [np.flatnonzero(which == k) for k in range(int(which.max(initial=-1)) + 1)]
        self._X, self._joined = X.astype(dtype, copy=False), dict[tuple[int, ...], np.ndarray]()

    def with_rows(self, q: np.ndarray) -> tuple[int, ...]:
        """The subsets that have models, and rows in this block, whose weights are q (subsets, rows)."""
        return tuple(k for k, models in enumerate(self.of_subset) if models.size and q[k].any())

    def columns(self, subsets: tuple[int, ...]) -> np.ndarray:
        """(width, models * outputs): the coefficients of the models of these subsets, one subset after another."""
        if subsets not in self._joined:
            x = self._X[np.concatenate([self.of_subset[k] for k in subsets])]
            x = x.reshape(len(x), -1, self.outputs).transpose(1, 0, 2)
            self._joined[subsets] = np.ascontiguousarray(x.reshape(len(x), -1))
        return self._joined[subsets]


def evaluate_many(
    loss: LinearModel, X: np.ndarray, A: Numbers, y: np.ndarray, Q: np.ndarray, which: np.ndarray, row_norms: np.ndarray
) -> LossEvaluation:
    """The evaluation of model X[m] on the subset of weights Q[which[m]], for all m."""
    models, d = _Models(X, which, loss.predictions_of_row, A.dtype), A.shape[1]

    def of_chunk(chunk: slice) -> list[np.ndarray]:
        value, terms = np.zeros(len(X), A.dtype), np.zeros(len(X), A.dtype)
        gradient = np.zeros((len(X), loss.predictions_of_row, d), A.dtype)
        for rows in _blocks(A, chunk, len(X) * loss.predictions_of_row):
            subsets = models.with_rows(Q[:, rows])
            if not subsets:
                continue
            block = A[rows] if isinstance(A, np.ndarray) else A
            z = loss.by_model(product(block, models.columns(subsets)))
            losses, slope = loss.value_and_derivative(z, y[rows][:, None])
            first = 0
            for k in subsets:
                mine, last = models.of_subset[k], first + len(models.of_subset[k])
                q = Q[k, rows]
                slope[:, first:last] *= q.reshape(-1, *(1,) * (slope.ndim - 1))
                added = q @ losses[:, first:last]
                if not np.isfinite(added).all():  # 0 times infinity: a row without a weight adds nothing
                    slope[q == 0, first:last] = 0.0
                    added = q[q > 0] @ losses[q > 0, first:last]
                value[mine] += added
                first = last
            who = np.concatenate([models.of_subset[k] for k in subsets])
            terms[who] += row_norms[rows] @ loss.size_of(slope)
            flat = slope.reshape(len(slope), -1)
            gradient[who] += (block.T @ flat).T.reshape(len(who), loss.predictions_of_row, d)
        return [value, gradient, terms]

    value, gradient, terms = _added(of_chunk, A)
    return LossEvaluation(value, gradient.transpose(0, 2, 1).reshape(len(X), -1), terms)


def held_out_loss(loss: LinearModel, X: np.ndarray, A: Numbers, y: np.ndarray, q: np.ndarray) -> np.ndarray:
    """sum_l q_l loss(x; a_l, y_l) for the models in the rows of X. Rows without a weight are left out."""
    models = _Models(X, np.zeros(len(X), int), loss.predictions_of_row, A.dtype)

    def of_chunk(chunk: slice) -> list[np.ndarray]:
        total = np.zeros(len(X), A.dtype)
        for rows in _blocks(A, chunk, len(X) * loss.predictions_of_row):
            used = q[rows] > 0
            if not used.any():
                continue
            if isinstance(A, np.ndarray):
                z = product(A[rows] if used.all() else A[rows][used], models.columns((0,)))
            else:
                z = (A @ models.columns((0,)))[used]
            total += q[rows][used] @ loss.value(loss.by_model(z), y[rows][used][:, None])
        return [total]

    return _added(of_chunk, A)[0]


def _added(of_chunk: object, A: Numbers) -> Sequence[np.ndarray]:
    """The sums over all chunks, added one after another."""
    chunks = [slice(a, min(a + CHUNK, len(A))) for a in range(0, max(len(A), 1), CHUNK)]
    if not isinstance(A, np.ndarray):  # sparse rows are multiplied whole
        chunks = [slice(0, len(A))]
    total: list[np.ndarray] = []
    for parts in map_in_order(of_chunk, chunks):  # pyright: ignore[reportArgumentType]
        total = [a + b for a, b in zip(total, parts, strict=True)] if total else parts
    return total


def _blocks(A: Numbers, chunk: slice, columns: int) -> Iterator[slice]:
    """The rows of a chunk in blocks, for so many columns of predictions."""
    rows = max(PREDICTIONS // columns, LEAST_ROWS)
    if not isinstance(A, np.ndarray):
        rows = chunk.stop - chunk.start
    for first in range(chunk.start, chunk.stop, max(rows, 1)):
        yield slice(first, min(first + rows, chunk.stop))
