"""Attacks by `Tabulate`: counts below thresholds that close in on one value, and counts of levels that differ by one row."""

from __future__ import annotations

import numpy as np
from attacks.target import Target

from compfed.federation import Refusal, Tabulate

STEPS = 60  # messages of a bisection
POINTS = 100  # thresholds of each


def largest_value(target: Target, column: str, rows: int) -> tuple[float, float]:
    """An interval that holds the largest value of a column, as narrow as the counts make it."""
    low, high = -1e6, 1e6
    for _ in range(STEPS):
        points = np.unique(np.linspace(low, high, POINTS))
        (reply,) = target.ask(Tabulate((column,), (points,)))
        if isinstance(reply, Refusal):
            break
        above, within = points[reply.below[:, 1] < rows], points[reply.below[:, 0] >= rows]
        closer = max(low, *above, low), min(high, *within, high)
        if closer == (low, high):
            break
        low, high = closer
    return low, high


def steps_of_counts(target: Target, column: str, low: float, high: float) -> list[tuple[float, float]]:
    """(threshold, jump) for every threshold at which a bound of the count moves, from thousands of them."""
    found = []
    for start in np.linspace(low, high, 40):
        points = np.linspace(start, start + (high - low) / 40, POINTS)
        (reply,) = target.ask(Tabulate((column,), (points,)))
        for bound in reply.below.T:
            jumps = np.flatnonzero(np.diff(bound))
            found += [(float(points[j + 1]), float(bound[j + 1] - bound[j])) for j in jumps]
    return found


def rows_of_level(target: Target, column: str, known: tuple[str, ...], guess: str) -> float | None:
    """How many rows have a level that is only guessed: from the counts with it and without, whatever differs."""
    with_it, without = (target.ask(Tabulate((), (), (column,), (levels,)))[0] for levels in ((*known, guess), known))
    apart = (
        np.abs(with_it.levels[: len(known)] - without.levels).sum() + np.abs(with_it.missing - without.missing).sum()
    )
    low, high = with_it.levels[-1]
    return float(low) if low == high else (float(apart) if apart else None)
