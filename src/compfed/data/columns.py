"""What a person gives as rows, labels, weights or sites, read as such or refused: nothing is taken for something else.

A number may be written as a number, a truth value or plain text. A date, a complex number, a level of a categorical
column and an entry behind a mask are no numbers, though NumPy would make one of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

from compfed._utils.validation import check_dense_size, check_distinct_names, check_unmasked
from compfed.errors import InputError

BEYOND = 2.0**53  # from here on a float is no longer one whole number
WAY_OUT = "Encode words as numbers, or leave them out."


def is_dataframe(table: Any) -> bool:
    """A DataFrame of pandas, as far as it matters here."""
    return hasattr(table, "columns") and hasattr(table, "iloc")


def check_column_names(what: str, names: Iterable[Any]) -> None:
    """No two columns of a table have one name, spaces around it aside."""
    seen: dict[str, Any] = {}
    for name in names:
        bare = str(name).strip()
        if bare in seen:
            first = seen[bare]
            same = type(first) is type(name) and first == name
            found = f"two columns {name!r}" if same else f"columns {first!r} and {name!r}, which read as one name"
            raise InputError(f"{what} has {found}; which one is meant cannot be told. Rename or drop one of them.")
        seen[bare] = name


def check_dataframe(frame: Any, what: str) -> None:
    """Refuse a column that holds no numbers, by name and first value; a table of many numeric columns costs nothing."""
    check_column_names(what, frame.columns)
    for j, name in enumerate(frame.columns):
        column = frame.iloc[:, j]
        kind = getattr(column.dtype, "kind", "O")
        check_not_categorical(column, what, name)
        if kind not in "biuf":
            parse_column(column, what, name)


def check_not_categorical(column: Any, what: str, name: Any) -> None:
    """Refuse a categorical column."""
    if str(column.dtype) == "category":
        raise InputError(
            f"{what}: column {name!r} is categorical; its levels may be numbers, or names of kinds. Say which: "
            f"frame[{name!r}].astype(float), or one column per level with pandas.get_dummies."
        )


def parse_column(column: Any, what: str, name: Any) -> np.ndarray:
    """One column as floats, holes as NaN; refuses the first value that is no number, naming it and its row."""
    empty = column.isna().to_numpy()
    values = np.full(len(column), np.nan)
    for i in np.flatnonzero(~empty):
        values[i] = _number(
            column.iloc[i], lambda i=i: f"{what}: column {name!r} has {_quoted(column.iloc[i])} in row {i}"
        )
    return values


def as_floats(values: Any, what: str) -> np.ndarray:
    """An array, a sparse matrix of scipy or a DataFrame as floats; holes become NaN."""
    check_unmasked(values, what)
    if hasattr(values, "toarray"):
        check_dense_size(values.shape, what, "An estimator's fit(X, y, sites=...) takes them as they are.")
        values = values.toarray()
    if is_dataframe(values):
        check_dataframe(values, what)
        columns = [values.iloc[:, j] for j in range(values.shape[1])]
        return np.column_stack(
            [
                c.to_numpy(float, na_value=np.nan)
                if getattr(c.dtype, "kind", "O") in "biuf"
                else parse_column(c, what, n)
                for n, c in zip(values.columns, columns, strict=True)
            ]
            or [np.empty((len(values), 0))]
        )
    try:
        found = np.asarray(values)
    except ValueError:
        raise InputError(f"{what} must be numbers, as many in every row; the rows given differ in length.") from None
    if found.dtype.kind in "biuf":
        return np.asarray(found, float)
    return np.array(
        [_number(v, lambda i=i, v=v: _at(what, found.shape, i, v)) for i, v in enumerate(found.flat)]
    ).reshape(found.shape)


def parse_float(value: Any) -> float | None:
    """A value as a float, NaN for a hole, None where it is no number."""
    if is_missing(value):
        return float("nan")
    text = isinstance(value, (str, bytes))
    if (text and "_" in str(value)) or not (text or isinstance(value, (Real, Decimal, np.bool_))):  # Python reads 1_000
        return None
    try:
        return None if isinstance(value, np.timedelta64) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _number(value: Any, where: Callable[[], str]) -> float:
    """A value as a float; `where()` says in words where it stands."""
    found = parse_float(value)
    if found is None:
        raise InputError(f"{where()}, which is not a number. {WAY_OUT}")
    return found


def _at(what: str, shape: tuple[int, ...], i: int, value: Any) -> str:
    place = np.unravel_index(i, shape) if shape else ()
    names = [f"{name} {int(k)}" for name, k in zip(("row", "column"), place, strict=False)]
    return f"{what} must be numbers: {', '.join(names) or 'it'} has {_quoted(value)}"


def _quoted(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def check_finite(array: np.ndarray, what: str, columns: Sequence[Any] | None = None) -> None:
    """Refuse NaN and infinity, saying where the first one is."""
    bad = ~np.isfinite(array)
    if bad.any():
        first: list[int] = np.argwhere(bad)[0].tolist()
        named = "" if columns is None or len(first) < 2 else f" ({columns[first[1]]!r})"
        where = f"row {first[0]}" + (f", column {first[1]}{named}" if len(first) > 1 else "")
        raise InputError(
            f"{what} has {int(bad.sum())} value(s) that are NaN or infinite, the first at {where}. "
            "Drop those rows or impute them before building the federation."
        )


# --- names, one per row ---


def as_row_labels(need: str, column: Any) -> np.ndarray:
    """A column of words or numbers without holes; where there are both, all are words, and no two become one."""
    # NumPy makes the word "nan" of a hole in a list of words: look first
    values = np.asarray(column, dtype=object) if isinstance(column, (list, tuple)) else np.asarray(column)
    if values.ndim != 1 or not len(values):
        raise InputError(f"{need}; got shape {values.shape}.")
    words = values.dtype == object
    # elsewhere NaN and NaT are all there is, and are not themselves
    missing = np.array([is_missing(value) for value in values.tolist()]) if words else values != values
    if isinstance(column, np.ma.MaskedArray):
        missing |= np.ma.getmaskarray(column)
    if missing.any():
        raise InputError(
            f"{need}; {int(missing.sum())} row(s) have none, the first is row {int(missing.argmax())}. "
            "Drop them or give them a value of their own."
        )
    return _as_one_kind(need, values.tolist()) if words else values


def _as_one_kind(need: str, given: list[Any]) -> np.ndarray:
    """Values as an array of one kind; refuses different values that are the same there, as 1 and "1" are as words."""
    found = np.asarray(given)
    if found.ndim != 1:
        return found
    seen: dict[Any, Any] = {}
    for value, read in zip(given, found.tolist(), strict=True):
        value = (
            value.item() if isinstance(value, np.generic) else value
        )  # Python compares whole numbers and floats exactly
        twin = seen.setdefault(read, value)
        if twin is not value and twin != value:
            raise InputError(
                f"{need}; {twin!r} and {value!r} are different values and would both be read as {read!r}. Give all as text "
                "or all as whole numbers, and give different values different names."
            )
    return found


def as_site_labels(need: str, column: Any) -> np.ndarray:
    """The same of sites: a fraction is more likely a weight, and names that differ in spaces are more likely one site."""
    where = as_row_labels(need, column)
    if where.dtype.kind == "f" and (where != np.rint(where)).any():
        first = int(np.argmax(where != np.rint(where)))
        raise InputError(
            f"{need}; row {first} has {float(where[first])!r}. These look like weights of rows, which are "
            "sample_weight=... (row_weights=... in compfed.data); if they do name sites, give them as text: "
            "[str(s) for s in sites]."
        )
    if where.dtype.kind == "f" and (np.abs(where) >= BEYOND).any():
        first = int(np.argmax(np.abs(where) >= BEYOND))
        raise InputError(
            f"{need}; row {first} has {float(where[first])!r}, and from 2**53 on a float stands for several whole numbers: two "
            "sites may have become one. Give them as whole numbers (dtype int64) or as text."
        )
    check_distinct_names(need, np.unique(where))
    return where


def row_index(*tables: Any) -> Any:
    """The index of the first table that has one, as DataFrames and Series of pandas have; None without any."""
    found = (getattr(table, "index", None) for table in tables)
    return next((index for index in found if hasattr(index, "equals")), None)


def check_same_index(X: Any, other: Any, name: str, what: str = "X") -> None:
    """Refuse a Series or DataFrame whose index is not that of X, label by label: rows are matched by their place."""
    mine, theirs = row_index(X), row_index(other)
    if mine is None or theirs is None or not len(mine) or len(mine) != len(theirs) or mine.equals(theirs):
        return
    by_place = f"{name}.to_numpy() to match by place"
    if mine.is_unique and theirs.is_unique and set(mine.tolist()) == set(theirs.tolist()):
        raise InputError(
            f"{name} has the index of {what} in another order: rows could be matched by place or by index. Give "
            f"{name}.loc[{what}.index] to match by index, or {by_place}."
        )
    labels = zip(mine.tolist(), theirs.tolist(), strict=True)
    row, (a, b) = next(((i, pair) for i, pair in enumerate(labels) if pair[0] != pair[1]), (0, (mine[0], theirs[0])))
    raise InputError(
        f"{name} has another index than {what}: row {row} is {a!r} in {what} and {b!r} in {name}. Both need the same labels "
        f"in the same order. Give {by_place}, or both with their own index."
    )


def is_missing(value: Any) -> bool:
    """None, NaN, NaT, pandas.NA and NumPy's `masked`."""
    try:
        return value is None or value is np.ma.masked or bool(value != value)
    except (TypeError, ValueError):  # pandas.NA will not say; nor will an array
        return not hasattr(value, "__len__")
