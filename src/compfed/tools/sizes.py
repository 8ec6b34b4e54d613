"""Numbers whose squares a double can hold: beyond, sums of squares are zero or infinite, and say nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import issparse

from compfed.errors import InputError

LEAST, MOST = 1e-70, 1e70  # room for a product of four, and for twelve digits below


def check_sizes(values: Any, what: str, columns: Sequence[str] | None = None) -> None:
    """The largest number of every column is zero, or of a size that can be worked with."""
    if values.dtype.kind not in "fiu" or not min(values.shape):
        return
    if issparse(values):
        top = np.asarray(abs(values).max(axis=0).todense(), float).ravel()
    else:
        top = np.maximum(np.asarray(values.max(axis=0), float), -np.asarray(values.min(axis=0), float))
    odd = np.atleast_1d((top != 0) & ((top < LEAST) | (top > MOST)))
    if odd.any():
        j = int(odd.argmax())
        where = f", column {j if columns is None else repr(columns[j])}" if np.ndim(top) else ""
        size = float(np.atleast_1d(top)[j])
        raise InputError(
            f"{what}{where}: the largest number is {size:.3g} in size; it must be 0 or between {LEAST:g} and {MOST:g}, for "
            f"else its square is no number. Give it in other units: divide by {10.0 ** np.floor(np.log10(size)):.0e}, say."
        )


def check_weights(weights: np.ndarray, site: str) -> None:
    """Row weights whose sum is a number."""
    if np.max(weights) > 1e300:
        raise InputError(
            f"site {site!r} has a row weight of {np.max(weights):.3g}; 1e+300 is the most whose sums are numbers. Only their "
            "ratios count: divide them all by it."
        )
