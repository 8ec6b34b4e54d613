"""The honest measure of an attack: how many rows of a site its candidates give away.

A row counts as recovered if at least three of its columns with more than ten distinct values are known to 1 % of their
spread (max - min), beyond what the best of 100 draws from the totals achieves. A draw is a table of as many candidates as the
attack has, from the normal distribution with the true mean and covariance, which the server knows. "Beyond" is strict: a row
needs more columns than any candidate of any draw knows of it, by a margin that no draw has over the other 99. So a table of draws
has a recovered row once in a hundred times, however many rows there are.

Wide tables have columns that move together, and lucky draws know several of them to 1 %. So the same is counted for 1e-4
and 1e-6 of the spread, where luck ends: an attack that knows three columns of a row to six digits has that row. There, values
that rows share (such as zeros) are the luck, so a draw is each column of the table in a random order: more than the server knows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.optimize import linear_sum_assignment

DRAWS = 100
LEAST_COLUMNS = 3
LEAST_VALUES = 11  # distinct values of a column that counts
TOLERANCES = (1e-2, 1e-4, 1e-6)  # of the spread of a column


@dataclass(frozen=True)
class Totals:
    """The facts that any fit reveals, and the columns that count."""

    mean: np.ndarray
    covariance: np.ndarray
    columns: np.ndarray  # numbers of the columns with more than ten values
    spread: np.ndarray  # of these

    @classmethod
    def of(cls, table: np.ndarray) -> Totals:
        columns = np.array([j for j, a in enumerate(table.T) if len(np.unique(a)) >= LEAST_VALUES], int)
        return cls(table.mean(axis=0), np.atleast_2d(np.cov(table.T)), columns, np.ptp(table[:, columns], axis=0))

    def subset(self, known: np.ndarray) -> Totals:
        """With those columns only that an attack claims to know."""
        keep = known[self.columns]
        return replace(self, columns=self.columns[keep], spread=self.spread[keep])

    def draw(self, rng: np.random.Generator, candidates: int) -> np.ndarray:
        """Candidates of a server that knows nothing else."""
        return rng.multivariate_normal(self.mean, self.covariance, candidates, method="eigh")


def columns_known(candidates: np.ndarray, rows: np.ndarray, totals: Totals, tolerance: float) -> np.ndarray:
    """How many columns of each row each candidate knows: a matrix (candidates, rows). NaN is not known."""
    known = np.zeros((len(candidates), len(rows)), np.int16)
    for j, spread in zip(totals.columns, totals.spread, strict=True):
        known += np.abs(candidates[:, j, None] - rows[:, j]) <= tolerance * spread
    return known


def recovered(candidates: np.ndarray, rows: np.ndarray, totals: Totals | None = None, seed: int = 0) -> int:
    """The number of rows that the candidates give away, each candidate used once.

    Parameters
    ----------
    candidates : array of shape (at most len(rows), columns)
        NaN where a column is not known.
    rows : array of shape (rows, columns)
    totals : Totals, optional
        Of the table that columns and spreads are taken from; of `rows` unless given.
    seed : int
        Of the draws.
    """
    candidates = np.reshape(np.asarray(candidates, float), (-1, rows.shape[1]))
    if len(candidates) > len(rows):
        raise ValueError(f"{len(candidates)} candidates for {len(rows)} rows: an attack has at most one for each row.")
    if not len(candidates):
        return 0
    totals = (Totals.of(rows) if totals is None else totals).subset(np.asarray(np.isfinite(candidates).any(axis=0)))
    pairs = np.zeros((len(candidates), len(rows)), bool)
    for tolerance in TOLERANCES:
        need = _columns_needed(len(candidates), _Rows(rows, totals), tolerance, seed)
        pairs |= columns_known(candidates, rows, totals, tolerance) >= need
    return int(pairs[linear_sum_assignment(pairs, maximize=True)].sum())


class _Rows:
    """Rows and totals that are equal if their bytes are, so that draws from them are judged once."""

    def __init__(self, rows: np.ndarray, totals: Totals):
        self.rows, self.totals = rows, totals
        self.key = (rows.tobytes(), totals.columns.tobytes(), totals.spread.tobytes())

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rows) and self.key == other.key


@lru_cache(maxsize=64)
def _columns_needed(candidates: int, target: _Rows, tolerance: float, seed: int) -> np.ndarray:
    """For each row: more columns than any draw knows of it, by a margin that no draw has over the other draws."""
    rows, totals, rng = target.rows, target.totals, np.random.default_rng(seed)

    def draw() -> np.ndarray:
        if tolerance == max(TOLERANCES) or len(rows) == 1:
            return totals.draw(rng, candidates)
        return np.column_stack([rng.permutation(a)[:candidates] for a in rows.T])

    best = np.array([columns_known(draw(), rows, totals, tolerance).max(axis=0) for _ in range(DRAWS)])
    second, first = np.sort(best, axis=0)[-2:]
    return np.maximum(LEAST_COLUMNS, first + int((first - second).max()) + 1)
