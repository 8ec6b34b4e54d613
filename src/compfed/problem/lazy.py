"""A problem whose rows are fetched client by client: what a round needs of them, and what can be known at a point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from compfed._utils.precision import precision
from compfed.data import LazySites, Sites, lazy_sites
from compfed.errors import InputError
from compfed.losses import Loss
from compfed.problem.local_dataset import PaddedDataset
from compfed.problem.problem import Problem
from compfed.problem_spec import Statement
from compfed.regularisers import Regulariser
from compfed.trace import Members

BLOCK = 2**26  # bytes of rows looked at together where all clients are


class LazyProblem(Statement):
    """min_x sum_i p_i f_i(x) + g(x) over clients that are too many, or too large, to be held at once.

    `sites` come from `data.lazy_sites` or `data.mapped_sites` (or are ordinary `Sites`, which then stay off the device).
    `simulate_out_of_core` runs it; `weights` and `dtype` are those of a `Problem`.
    """

    sites: LazySites

    def __init__(
        self,
        loss: Loss,
        regulariser: Regulariser,
        sites: LazySites | Sites,
        weights: Any = None,
        dtype: Any = "float64",
    ):
        super().__init__(loss, regulariser, _lazy(sites), weights, dtype)
        first = self.cohort(np.zeros(1, int))
        self._check_loss(first.A, first.y)

    def __repr__(self) -> str:
        parts = f"{type(self.loss).__name__}, {type(self.regulariser).__name__}, {self.sites!r}"
        return f"LazyProblem({parts}, {self.d} coefficients, {self.dtype.name})"

    def members(self) -> Members:
        """The clients, for whoever goes on from here. Of a few of them the rows are looked at."""
        return Members(self.sites.names, self.sites.sizes, self.weights, self.sites.marks)

    def cohort(self, who: np.ndarray, like_all: bool = False) -> PaddedDataset:
        """The rows of some clients on the device, each padded to the largest of them, or almost: to a power of two, so
        that cohorts share a few shapes. `like_all`: the store says that any of all clients might be there (mini-batches
        are drawn by the largest of all)."""
        sizes, largest = self.sites.sizes[who], self.sites.largest
        room = min(largest, 1 << int(sizes.max() - 1).bit_length())
        A, y, q = self._padded(who, sizes, room)
        p = self.weights[who]
        rows: dict[str, Any] = {
            "A": A.reshape(-1, self.sites.width),
            "y": y,
            "q": q.ravel(),
            "row_weight": (p[:, None] * q).astype(self.dtype).ravel(),
            "offset": np.arange(0, len(who) * room, room, dtype=np.int32),
            "size": sizes.astype(self.dtype),
            "weight": p.astype(self.dtype),
            "ids": who.astype(np.int32),
        }
        with precision(self.dtype):
            return jax.device_put(PaddedDataset(**rows, buckets=((len(who), largest if like_all else room),)))

    def _padded(self, who: np.ndarray, sizes: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        A = np.empty((len(who), room, self.sites.width), self.dtype)
        y = np.empty((len(who), room, *self.sites.outputs), self.dtype)
        for j, (i, m) in enumerate(zip(who.tolist(), sizes.tolist(), strict=True)):
            A[j, :m], y[j, :m] = self.sites.rows(i)
            A[j, m:], y[j, m:] = A[j, m - 1], y[j, m - 1]  # a loss may be infinite at made-up rows
        _check_finite(who, A, y)
        encoded = self.loss.encode(y.reshape(-1, *self.sites.outputs)).astype(self.dtype)
        there = np.arange(room) < sizes[:, None]
        return A, encoded, np.where(there, 1.0 / sizes[:, None], 0.0).astype(self.dtype)

    def subset(self, clients: Sequence[int] | np.ndarray) -> Problem:
        """Some of the clients as a problem of their own, weights in proportion: what a long run can be measured on."""
        who = np.asarray(clients)
        if who.ndim != 1 or who.dtype.kind not in "iu" or not len(who) or who.min() < 0 or who.max() >= self.n:
            raise InputError(f"subset(clients) needs numbers of clients, 0..{self.n - 1}; got {clients!r:.80}.")
        p = self.weights[who]
        if not p.sum() > 0:
            raise InputError(f"subset(clients): the clients {clients!r:.80} have weight 0; take some that count.")
        return Problem(self.loss, self.regulariser, self.sites.loaded(who), p / p.sum(), self.dtype)

    def objective(self, x: Any) -> float:
        """F(x) = sum_i p_i f_i(x) + g(x): one pass over all clients, a block of them at a time."""
        x = self.point(x)
        with precision(self.dtype):
            total = sum(float(w @ np.asarray(self.loss.values(x, A, y))) for A, y, w in self._blocks())
            return total + 0.5 * float(self.loss.ridge) * float(x @ x) + float(self.regulariser(x))

    def gradient(self, x: Any) -> np.ndarray:
        """sum_i p_i grad f_i(x), likewise."""
        x = self.point(x)
        with precision(self.dtype):
            total = sum(np.asarray(self.loss.gradient(x, A, y, w)) for A, y, w in self._blocks())
            return total + self.loss.ridge * x

    def _blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Features, labels and shares p_i / m_i of the rows of all clients."""
        sizes = self.sites.sizes
        of_block = np.cumsum(sizes) * self.sites.width * self.dtype.itemsize // BLOCK
        for who in np.split(np.arange(self.n), np.flatnonzero(np.diff(of_block)) + 1):
            rows = [self.sites.rows(i) for i in who.tolist()]
            A, y = (np.concatenate(parts).astype(self.dtype) for parts in zip(*rows, strict=True))
            _check_finite(who, A, y)
            w = np.repeat(self.weights[who] / sizes[who], sizes[who]).astype(self.dtype)
            yield A, self.loss.encode(y).astype(self.dtype), w


def _lazy(sites: Any) -> LazySites:
    if isinstance(sites, Sites):
        if sites.row_weights is not None:
            raise InputError("a LazyProblem has no row weights; use a Problem, or leave them out.")
        if sites.ids != tuple(range(len(sites))):
            raise InputError("a LazyProblem numbers clients 0..n-1 in their order; these sites were permuted.")
        given = sites
        return lazy_sites(lambda i: (given.features[i], given.labels[i]), sites.sizes, source=sites.source)
    if not isinstance(sites, LazySites):
        raise InputError(
            f"sites must come from compfed.data (lazy_sites, mapped_sites, ...); got {type(sites).__name__}."
        )
    return sites


def _check_finite(who: np.ndarray, A: np.ndarray, y: np.ndarray) -> None:
    """Refuse NaN and infinity in what was fetched."""
    if np.isfinite(A).all() and np.isfinite(y).all():
        return
    where = f"client {who[0]}" if len(who) == 1 else f"one of the clients {who[0]} to {who[-1]}"
    if A.ndim == 3:
        bad = ~(np.isfinite(A).all(axis=(1, 2)) & np.isfinite(y.reshape(len(y), -1)).all(axis=1))
        where = f"client {who[int(bad.argmax())]}"
    raise InputError(f"{where} has rows with NaN or infinite numbers. Leave those rows out, or impute them.")
