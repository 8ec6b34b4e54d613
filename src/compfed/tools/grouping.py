"""The rows of a table, by the value of a column."""

from __future__ import annotations

import numpy as np


def rows_by(column: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The values of a column, sorted, and where the rows of each are, in the order they came.

    One sort for all of them: a look at the whole column for each value would be quadratic where every row has its own.

    >>> values, rows = rows_by(np.array(["b", "a", "b"]))
    >>> values.tolist(), [r.tolist() for r in rows]
    (['a', 'b'], [[1], [0, 2]])
    """
    values, codes, counts = np.unique(column, return_inverse=True, return_counts=True)
    return values, np.split(np.argsort(codes.ravel(), kind="stable"), np.cumsum(counts)[:-1])


def as_run(rows: np.ndarray) -> slice | np.ndarray:
    """Row numbers as a slice where they are one after another: taking them copies nothing then."""
    together = len(rows) > 0 and rows[-1] - rows[0] == len(rows) - 1 and bool((np.diff(rows) == 1).all())
    return slice(int(rows[0]), int(rows[-1]) + 1) if together else rows
