"""A table as it is in a file: columns of numbers or of words, missing values included. It never leaves its site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from compfed._utils.text import shapes_shown


@dataclass(frozen=True, eq=False, repr=False)
class RawColumn:
    """One column: floats with NaN for a missing value, or words (object array of str) with None."""

    values: np.ndarray
    __repr__ = shapes_shown

    @property
    def is_numeric(self) -> bool:
        return self.values.dtype.kind == "f"

    @property
    def missing(self) -> np.ndarray:
        """Which rows have no value."""
        if self.is_numeric:
            return np.isnan(self.values)
        return np.array([value is None for value in self.values], bool)


@dataclass(frozen=True, eq=False, repr=False)
class RawTable:
    """The columns of one site, in the order of its file."""

    name: str  # of the file or the site, for messages
    columns: Mapping[str, RawColumn]
    lines: np.ndarray | None = None  # the line of the file that each row is on
    __repr__ = shapes_shown

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values())).values) if self.columns else 0
