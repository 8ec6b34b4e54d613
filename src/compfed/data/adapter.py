"""Frames of pandas, polars, Arrow, DuckDB and narwhals as one `Frame`: columns of NumPy arrays, found by name.

The only module that knows these libraries, through narwhals. None of them need be installed: a frame brings its own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import issparse

from compfed._utils.text import shapes_shown
from compfed._utils.validation import is_missing, row_index
from compfed.errors import InputError
from compfed.schema import level_text

COLLECT_WITH = ("pyarrow", "polars", "pandas")  # any of these can hold the rows of a DuckDB relation
NO_FRAMES = (np.ndarray, np.generic, list, tuple, set, dict, str, bytes, int, float)
WAYS_OUT = {
    "polars": "Give X.collect().",
    "xarray": "Give an array, X.to_numpy(), or a frame, X.to_dataframe().",
    "narwhals": "Give X.collect().",
}


@dataclass(frozen=True, eq=False, repr=False)
class Column:
    """One column of a frame.

    `values` are numbers with NaN for a missing one, truth values where none is missing, or objects with None for a missing one.
    """

    name: Hashable
    values: np.ndarray
    categorical: bool = False
    levels: tuple[str, ...] | None = None  # of an ordered category, in its order
    index: Any = None  # of pandas
    __repr__ = shapes_shown

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_numeric(self) -> bool:
        """Whether all values are numbers or truth values, by their dtype."""
        return self.values.dtype.kind in "biuf" and not self.categorical

    @cached_property
    def missing(self) -> np.ndarray:
        """Which rows have no value."""
        if self.values.dtype.kind != "O":
            return self.values != self.values
        return np.array([value is None for value in self.values.tolist()], bool)


@dataclass(frozen=True, eq=False, repr=False)
class Frame:
    """The columns of a frame, in their order; each is read when it is asked for."""

    columns: tuple[Hashable, ...]
    rows: int
    read: Callable[[int], Column]
    places: tuple[int, ...]  # of the columns in the frame that was given
    index: Any = None  # of pandas
    kept: dict[int, Column] = field(default_factory=dict)
    __repr__ = shapes_shown

    def __len__(self) -> int:
        return self.rows

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, len(self.columns)

    def __getitem__(self, name: Hashable) -> Column:
        place = self.places[self.columns.index(name)]
        if place not in self.kept:
            self.kept[place] = self.read(place)
        return self.kept[place]

    def select(self, names: Sequence[Hashable]) -> Frame:
        """The columns with these names, in this order."""
        places = tuple(self.places[self.columns.index(name)] for name in names)
        return Frame(tuple(names), self.rows, self.read, places, self.index, self.kept)

    def without(self, names: Sequence[Hashable]) -> Frame:
        """The other columns."""
        return self.select([name for name in self.columns if name not in names])


def as_frame(table: Any, what: str = "X") -> Frame | None:
    """A frame of any of these libraries as a `Frame`; None for anything else, such as an array.

    A DuckDB relation is collected. Other lazy frames and xarray's tables are refused by name.
    """
    if isinstance(table, Frame):
        return table
    if isinstance(table, NO_FRAMES) or table is None or issparse(table):
        return None
    import narwhals.stable.v2 as nw

    table = table.to_native() if _library(table) == "narwhals" and hasattr(table, "to_native") else table
    if _library(table) == "xarray":
        _refuse(table, what)
    if nw.dependencies.is_pandas_dataframe(table):
        names, read = tuple(table.columns), lambda j: _column(table.iloc[:, j])
        return Frame(names, len(table), read, tuple(range(len(names))), row_index(table))
    found: Any = nw.from_native(table, pass_through=True)
    levels: Mapping[str, tuple[str, ...]] = {}
    if isinstance(found, nw.LazyFrame):
        if not found.implementation.is_duckdb():
            _refuse(table, what)
        kinds: dict[str, Any] = dict(found.collect_schema())
        levels = {name: tuple(kind.categories) for name, kind in kinds.items() if isinstance(kind, nw.Enum)}
        found = _collected(found, what)
    if not isinstance(found, nw.DataFrame):
        return None
    names = tuple(found.columns)
    return Frame(
        names, len(found), lambda j: _column(found.get_column(names[j]), levels.get(names[j])), tuple(range(len(names)))
    )  # fmt: skip


def as_column(values: Any) -> Column | None:
    """A Series of any of these libraries, or a relation of one column, as a `Column`; None for anything else."""
    if isinstance(values, Column):
        return values
    if isinstance(values, NO_FRAMES) or values is None or issparse(values):
        return None
    import narwhals.stable.v2 as nw

    values = values.to_native() if _library(values) == "narwhals" and hasattr(values, "to_native") else values
    if _library(values) == "pyarrow" and hasattr(values, "buffers"):  # an array, which is one chunk of a column
        import pyarrow

        values = pyarrow.chunked_array([values])
    found: Any = nw.from_native(values, pass_through=True, allow_series=True)
    if isinstance(found, nw.LazyFrame) and found.implementation.is_duckdb() and len(found.collect_schema()) == 1:
        frame = as_frame(values)
        return None if frame is None else frame[frame.columns[0]]
    return _column(values) if isinstance(found, nw.Series) else None


def column_of_values(values: np.ndarray) -> Column:
    """An array of one dimension as a `Column` without a name."""
    if values.dtype.kind in "biuf":
        return Column(None, values)
    return Column(None, _objects(values.tolist()))


def is_frame(table: Any) -> bool:
    """Whether a table is a frame of one of these libraries."""
    return as_frame(table) is not None


def _library(table: Any) -> str:
    return type(table).__module__.partition(".")[0]


def _refuse(table: Any, what: str) -> None:
    kind = f"{_library(table)}.{type(table).__name__}"
    way_out = WAYS_OUT.get(_library(table), "Collect it first, into a frame of pandas, polars or Arrow.")
    raise InputError(f"{what} is a {kind}, whose rows are not in memory as a frame. {way_out}")


def _collected(relation: Any, what: str) -> Any:
    for library in COLLECT_WITH:
        if importlib.util.find_spec(library) is not None:
            return relation.collect(library)
    raise InputError(
        f"{what} is a DuckDB relation, and none of {', '.join(COLLECT_WITH)} is installed to read its rows. Install one, or give "
        "arrays: X.fetchnumpy()."
    )


def _column(series: Any, levels: tuple[str, ...] | None = None) -> Column:
    """A Series, of pandas or narwhals, as NumPy has it."""
    import narwhals.stable.v2 as nw

    found: nw.Series = nw.from_native(series, series_only=True, pass_through=False) if not _is_nw(series) else series
    native, dtype = nw.to_native(found), found.dtype
    name, index = found.name, row_index(native)
    name = getattr(native, "name", name) if index is not None else name  # of pandas, where it may be a number
    if dtype == nw.Boolean or (dtype.is_numeric() and not dtype.is_decimal()):
        return Column(name, _numbers(found, dtype == nw.Boolean), index=index)
    if getattr(getattr(native, "dtype", None), "kind", "O") in "biuf":  # a sparse column of pandas
        return Column(name, np.asarray(native), index=index)
    values = _objects(found.to_list())
    categorical = dtype in (nw.Categorical, nw.Enum)
    return Column(name, values, categorical, levels or (_ordered_levels(native, dtype) if categorical else None), index)


def _objects(values: Sequence[Any]) -> np.ndarray:
    """Values as objects, None for a missing one."""
    found = np.empty(len(values), object)
    found[:] = [None if is_missing(value) else value for value in values]
    return found


def _is_nw(series: Any) -> bool:
    return _library(series) == "narwhals"


def _numbers(series: Any, truths: bool) -> np.ndarray:
    """Numbers or truth values; with missing ones as floats with NaN, or objects where a float cannot hold them."""
    missing = np.asarray(series.is_null().to_numpy(), bool)
    if not missing.any():
        return series.to_numpy()
    values = np.asarray(series.fill_null(False if truths else 0).to_numpy())
    if truths or (values.dtype.kind in "iu" and (np.abs(values.astype(float)) >= 2.0**53).any()):
        found = values.astype(object)
        found[missing] = None
        return found
    found = values.astype(float)
    found[missing] = np.nan
    return found


def _ordered_levels(native: Any, dtype: Any) -> tuple[str, ...] | None:
    """The levels of a category that has an order; None without one."""
    if hasattr(native, "cat") and hasattr(native.cat, "ordered"):  # pandas
        return tuple(map(_level, native.cat.categories.tolist())) if native.cat.ordered else None
    if hasattr(native, "type"):  # Arrow
        if not getattr(native.type, "ordered", False):
            return None
        return tuple(_level(value) for value in native.combine_chunks().dictionary.to_pylist())
    return tuple(dtype.categories) if hasattr(dtype, "categories") else None  # polars' Enum


def _level(value: Any) -> str:
    return level_text(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else str(value)
