"""A table as it is in a file: columns of numbers or of words, missing values included. Over a network it stays at its site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from compfed._utils.text import join_names, shapes_shown
from compfed.schema import Schema, number_text


@dataclass(frozen=True, eq=False, repr=False)
class RawColumn:
    """One column: floats with NaN for a missing value, or words (object array of str) with None."""

    values: np.ndarray
    levels: tuple[str, ...] | None = None  # of a category that has an order, in its order
    __repr__ = shapes_shown

    @property
    def is_numeric(self) -> bool:
        return self.values.dtype.kind == "f"

    @cached_property
    def missing(self) -> np.ndarray:
        """Which rows have no value."""
        if self.is_numeric:
            return np.isnan(self.values)
        return np.array([value is None for value in self.values], bool)

    def words(self) -> np.ndarray:
        """The values as words, None for a missing one; a whole number has no decimal point."""
        if not self.is_numeric:
            return self.values
        found = [None if np.isnan(value) else number_text(value) for value in self.values.tolist()]
        return words_array(found)


@dataclass(frozen=True, eq=False, repr=False)
class RawTable:
    """The columns of one site, in the order of its file."""

    name: str  # of the file or the site, for messages
    columns: Mapping[str, RawColumn]
    lines: np.ndarray  # the line of the file that each row is on; of a DataFrame the row, counted from 0
    unit: Literal["line", "row"] = "line"  # which of the two
    notes: tuple[str, ...] = ()  # what was left out in reading, for a person
    __repr__ = shapes_shown

    @property
    def rows(self) -> int:
        return len(self.lines)

    def place(self, rows: Sequence[int] | np.ndarray, most: int = 5) -> str:
        """Where rows are: "line 3", or "lines 3, 7 and 2 more"."""
        numbers = self.lines[np.asarray(rows, int)].tolist()
        first = " (the first is 0)" if self.unit == "row" else ""
        return f"{self.unit}{'s' * (len(numbers) > 1)} {join_names(list(map(str, numbers)), most=most)}{first}"

    def take(self, rows: np.ndarray, name: str | None = None) -> RawTable:
        """Some of the rows, as a table of another name."""
        columns = {c: replace(column, values=column.values[rows]) for c, column in self.columns.items()}
        return replace(self, name=self.name if name is None else name, columns=columns, lines=self.lines[rows])


def joined(tables: Sequence[RawTable], name: str) -> RawTable:
    """The rows of several tables, one below the other; a column is one of words if it is in any of them."""
    if len(tables) == 1:
        return replace(tables[0], name=name)
    columns = {}
    for c in tables[0].columns:
        parts = [table.columns[c] for table in tables if c in table.columns]
        if len(parts) == len(tables):
            numeric = all(part.is_numeric for part in parts)
            columns[c] = RawColumn(np.concatenate([p.values if numeric else p.words() for p in parts]))
    lines = np.concatenate([table.lines for table in tables])
    return RawTable(name, columns, lines, tables[0].unit, tuple(note for table in tables for note in table.notes))


def used_columns(table: RawTable, schema: Schema) -> RawTable:
    """The table with the columns of features and labels of a schema alone: the others are nobody's business."""
    labels = () if schema.label is None else schema.label.column
    names = (*schema.columns, *((labels,) if isinstance(labels, str) else labels))
    return replace(table, columns={name: table.columns[name] for name in names})


def words_array(words: Sequence[str | None]) -> np.ndarray:
    """Words as an object array."""
    found = np.empty(len(words), object)
    found[:] = words
    return found
