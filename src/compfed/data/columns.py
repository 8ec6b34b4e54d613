"""Rows, labels, weights and sites as a user gives them, converted to arrays or refused.

A number may be given as a number, a truth value or text. NumPy would also convert a date, a complex number, a level of a
categorical column and an entry behind a mask: these are refused.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from compfed._utils.text import join_names
from compfed._utils.validation import check_dense_size, check_unmasked, is_missing
from compfed.data.adapter import Column, Frame, as_column, as_frame
from compfed.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd
    from scipy.sparse import sparray, spmatrix

    TableLike = npt.ArrayLike | pd.DataFrame | spmatrix | sparray
    ColumnLike = npt.ArrayLike | pd.Series | Sequence[Hashable]

WAY_OUT = "Encode words as numbers, or leave them out."


# --- numbers ---


def is_numeric(column: pd.Series) -> bool:
    """Whether all values of a column are real numbers or truth values, by its dtype."""
    return getattr(column.dtype, "kind", "O") in "biuf"


def as_floats(values: Any, what: str) -> np.ndarray:
    """An array, a sparse matrix of scipy, a frame or a Series as floats; missing values become NaN."""
    check_unmasked(values, what)
    if hasattr(values, "toarray"):
        check_dense_size(values.shape, what, "An estimator's fit(X, y, sites=...) takes them as they are.")
        values = values.toarray()
    if (frame := read_frame(values, what)) is not None:
        return frame_as_floats(frame, what)
    if (column := as_column(values)) is not None:
        return column_as_floats(column, what)
    try:
        found = np.asarray(values)
    except ValueError:
        raise InputError(f"{what} must be numbers, as many in every row; the rows given differ in length.") from None
    if found.dtype.kind in "biuf":
        return np.asarray(found, float)
    floats = np.empty(found.shape)
    for place, value in np.ndenumerate(found):
        where = ", ".join(f"{axis} {k}" for axis, k in zip(("row", "column"), place, strict=False)) or "it"
        floats[place] = _number(value, f"{what} must be numbers: {where}", "", WAY_OUT)
    return floats


def read_frame(table: Any, what: str) -> Frame | None:
    """A frame of any library whose columns have different names; None for anything else."""
    frame = as_frame(table, what)
    if frame is not None:
        check_column_names(what, frame.columns)
    return frame


def frame_as_floats(frame: Frame, what: str, way_out: str = WAY_OUT) -> np.ndarray:
    """A frame as an array of floats, missing values as NaN; refuses columns that do not hold numbers, each by name and first value."""
    problems, columns = [], []
    for name in frame.columns:
        try:
            columns.append(column_as_floats(frame[name], what, way_out))
        except InputError as problem:
            problems.append(str(problem))
    if problems:
        raise InputError(join_names([*problems[:1], *(p.removeprefix(f"{what}: ") for p in problems[1:])], " ", 10))
    return np.column_stack(columns or [np.empty((len(frame), 0))])


def column_as_floats(column: Column, what: str, way_out: str = WAY_OUT) -> np.ndarray:
    """A column as floats, missing values as NaN; refuses the first value that is not a number, naming it and its row."""
    if column.categorical:
        raise InputError(
            f"{what}: column {column.name!r} is categorical; its levels may be numbers or names. Say which: convert it to numbers, "
            "or make one column per level."
        )
    if column.is_numeric:
        return np.asarray(column.values, float)
    floats = np.full(len(column), np.nan)
    for i in np.flatnonzero(~column.missing).tolist():
        floats[i] = _number(column.values[i], f"{what}: column {column.name!r}", f" in row {i}", way_out)
    return floats


def check_roles(**roles: str | Sequence[str] | None) -> None:
    """Refuse a column that is named in two roles, such as label and weight."""
    seen: dict[str, str] = {}
    for role, names in roles.items():
        for name in (names,) if isinstance(names, str) else names or ():
            other = seen.setdefault(name, role)
            if other != role:
                raise InputError(
                    f"{other}={name!r} and {role}={name!r} name one column, which can be only one of the two. Name another column "
                    "for one of them, or leave it out."
                )


ONE_PER_ROW = {"y": "one label per row", "sites": "one site per row", "offset": "one number per row"}


def take_column(X: Frame | None, role: str, name: str) -> tuple[Frame, Any]:
    """A frame without its column of labels, sites or offsets, and that column; X is None for what is no frame."""
    if X is None or name not in X.columns:
        has = "; it has " + join_names([str(c) for c in X.columns], most=12) if X is not None else ""
        way_out = f"Give a DataFrame with that column, or {ONE_PER_ROW[role]}."
        raise InputError(f"{role}={name!r} names a column, and X has none of that name{has}. {way_out}")
    return X.without([name]), X[name]


def check_column_names(what: str, names: Iterable[Hashable]) -> None:
    """Refuse two columns of one name, spaces around it aside."""
    seen: dict[str, Hashable] = {}
    for name in names:
        bare = str(name).strip()
        if bare in seen:
            same = type(seen[bare]) is type(name) and seen[bare] == name
            found = f"two columns {name!r}" if same else f"columns {seen[bare]!r} and {name!r}, which read as one name"
            raise InputError(f"{what} has {found}; which one is meant is not clear. Rename or drop one of them.")
        seen[bare] = name


def parse_float(value: Any) -> float | None:
    """A value as a float, NaN for a missing one, None for one that is not a number."""
    if is_missing(value):
        return float("nan")
    text = isinstance(value, (str, bytes))
    if (text and "_" in str(value)) or not (text or isinstance(value, (Real, Decimal, np.bool_))):  # Python reads 1_000
        return None
    try:
        return None if isinstance(value, np.timedelta64) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def check_finite(array: np.ndarray, what: str) -> None:
    """Refuse NaN and infinity, naming the first place."""
    bad = ~np.isfinite(array)
    if bad.any():
        first = zip(("row", "column"), np.argwhere(bad)[0].tolist(), strict=False)
        where = ", ".join(f"{axis} {k}" for axis, k in first)
        found = f"{what} has {int(bad.sum())} value(s) that are NaN or infinite, the first at {where}"
        raise InputError(f"{found}. Drop those rows or impute them before building the federation.")


def _number(value: object, place: str, row: str, way_out: str) -> float:
    """A value as a float; an error says that this place has the value."""
    found = parse_float(value)
    if found is None:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise InputError(f"{place} has {shown}{row}, which is not a number. {way_out}")
    return found
