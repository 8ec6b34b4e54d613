"""Rows, labels, weights and sites as a user gives them, converted to arrays or refused.

A number may be given as a number, a truth value or text. NumPy would also convert a date, a complex number, a level of a
categorical column and an entry behind a mask: these are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from compfed._utils.validation import check_dense_size, check_distinct_names, check_unmasked
from compfed.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd
    from scipy.sparse import sparray, spmatrix

    TableLike = npt.ArrayLike | pd.DataFrame | spmatrix | sparray
    ColumnLike = npt.ArrayLike | pd.Series | Sequence[Hashable]

INEXACT = 2.0**53  # from here on a float stands for several whole numbers
WAY_OUT = "Encode words as numbers, or leave them out."


# --- numbers ---


def is_dataframe(table: object) -> TypeGuard[pd.DataFrame]:
    """Whether a table is a DataFrame of pandas, which need not be installed."""
    return hasattr(table, "columns") and hasattr(table, "iloc")


def is_numeric(column: pd.Series) -> bool:
    """Whether all values of a column are real numbers or truth values, by its dtype."""
    return getattr(column.dtype, "kind", "O") in "biuf"


def as_floats(values: Any, what: str) -> np.ndarray:
    """An array, a sparse matrix of scipy or a DataFrame as floats; missing values become NaN."""
    check_unmasked(values, what)
    if hasattr(values, "toarray"):
        check_dense_size(values.shape, what, "An estimator's fit(X, y, sites=...) takes them as they are.")
        values = values.toarray()
    if is_dataframe(values):
        check_column_names(what, values.columns)
        columns = [column_as_floats(values.iloc[:, j], what) for j in range(values.shape[1])]
        return np.column_stack(columns or [np.empty((len(values), 0))])
    try:
        found = np.asarray(values)
    except ValueError:
        raise InputError(f"{what} must be numbers, as many in every row; the rows given differ in length.") from None
    if found.dtype.kind in "biuf":
        return np.asarray(found, float)
    floats = [_number(v, lambda i=i, v=v: _place(what, found.shape, i, v)) for i, v in enumerate(found.flat)]
    return np.array(floats).reshape(found.shape)


def column_as_floats(column: pd.Series, what: str, way_out: str = WAY_OUT, after_row: str = "") -> np.ndarray:
    """A column as floats, missing values as NaN; refuses the first value that is not a number, naming it and its row."""
    if str(column.dtype) == "category":
        raise InputError(
            f"{what}: column {column.name!r} is categorical; its levels may be numbers, or names of kinds. Say which: "
            f"frame[{column.name!r}].astype(float), or one column per level with pandas.get_dummies."
        )
    if is_numeric(column):
        return column.to_numpy(float, na_value=np.nan)
    floats = np.full(len(column), np.nan)
    for i in np.flatnonzero(~column.isna().to_numpy()):
        floats[i] = _number(
            column.iloc[i],
            lambda i=i: f"{what}: column {column.name!r} has {_quoted(column.iloc[i])} in row {i}{after_row}",
            way_out,
        )
    return floats


def check_dataframe(frame: pd.DataFrame, what: str) -> None:
    """Refuse a column that does not hold numbers, by name and first value; numeric columns are not read."""
    check_column_names(what, frame.columns)
    for j in range(frame.shape[1]):
        if not is_numeric(column := frame.iloc[:, j]):
            column_as_floats(column, what)


def check_column_names(what: str, names: Iterable[Hashable]) -> None:
    """Refuse two columns of one name, spaces around it aside."""
    seen: dict[str, Hashable] = {}
    for name in names:
        bare = str(name).strip()
        if bare in seen:
            first = seen[bare]
            same = type(first) is type(name) and first == name
            found = f"two columns {name!r}" if same else f"columns {first!r} and {name!r}, which read as one name"
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


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, NaT, pandas.NA or NumPy's `masked`."""
    try:
        return value is None or value is np.ma.masked or bool(value != value)
    except (TypeError, ValueError):  # pandas.NA has no truth value; nor has an array
        return not hasattr(value, "__len__")


def check_finite(array: np.ndarray, what: str) -> None:
    """Refuse NaN and infinity, naming the first place."""
    bad = ~np.isfinite(array)
    if bad.any():
        first = zip(("row", "column"), np.argwhere(bad)[0].tolist(), strict=False)
        raise InputError(
            f"{what} has {int(bad.sum())} value(s) that are NaN or infinite, the first at "
            f"{', '.join(f'{axis} {k}' for axis, k in first)}. "
            "Drop those rows or impute them before building the federation."
        )


def _number(value: object, where: Callable[[], str], way_out: str = WAY_OUT) -> float:
    """A value as a float; `where()` describes its place for the error."""
    found = parse_float(value)
    if found is None:
        raise InputError(f"{where()}, which is not a number. {way_out}")
    return found


def _place(what: str, shape: tuple[int, ...], i: int, value: object) -> str:
    index = np.unravel_index(i, shape) if shape else ()
    names = [f"{axis} {int(k)}" for axis, k in zip(("row", "column"), index, strict=False)]
    return f"{what} must be numbers: {', '.join(names) or 'it'} has {_quoted(value)}"


def _quoted(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


# --- one label per row ---


def as_row_labels(need: str, column: Any) -> np.ndarray:
    """A column of words or numbers without missing values, as an array of one dtype in which different values differ."""
    # In a list of words NumPy turns a missing value into the word "nan": hence objects first.
    values = np.asarray(column, dtype=object) if isinstance(column, (list, tuple)) else np.asarray(column)
    if values.ndim != 1 or not len(values):
        raise InputError(f"{need}; got shape {values.shape}.")
    objects = values.dtype == object
    # in an array of another dtype only NaN and NaT are missing, and these are not equal to themselves
    missing = np.array([is_missing(value) for value in values.tolist()]) if objects else values != values
    if isinstance(column, np.ma.MaskedArray):
        missing |= np.ma.getmaskarray(column)
    if missing.any():
        raise InputError(
            f"{need}; {int(missing.sum())} row(s) have none, the first is row {int(missing.argmax())}. "
            "Drop them or give them a value of their own."
        )
    return _as_one_dtype(need, values.tolist()) if objects else values


def _as_one_dtype(need: str, given: list[Any]) -> np.ndarray:
    """Values as an array of one dtype; refuses different values that become equal there, as 1 and "1" do as words."""
    found = np.asarray(given)
    if found.ndim != 1:
        return found
    seen: dict[Any, Any] = {}
    for value, read in zip(given, found.tolist(), strict=True):
        value = value.item() if isinstance(value, np.generic) else value  # Python compares integers and floats exactly
        twin = seen.setdefault(read, value)
        if twin is not value and twin != value:
            raise InputError(
                f"{need}; {twin!r} and {value!r} are different values and would both be read as {read!r}. Give all as text "
                "or all as whole numbers, and give different values different names."
            )
    return found


def as_site_labels(need: str, column: Any) -> np.ndarray:
    """The site of every row; refuses fractions, which look like weights, and names that differ only in spaces."""
    where = as_row_labels(need, column)
    if where.dtype.kind == "f":
        if (fraction := where != np.rint(where)).any():
            first = int(np.argmax(fraction))
            raise InputError(
                f"{need}; row {first} has {float(where[first])!r}. These look like weights of rows, which are "
                "sample_weight=... (row_weights=... in compfed.data); if they do name sites, give them as text: "
                "[str(s) for s in sites]."
            )
        if (inexact := np.abs(where) >= INEXACT).any():
            first = int(np.argmax(inexact))
            raise InputError(
                f"{need}; row {first} has {float(where[first])!r}, and from 2**53 on a float stands for several whole numbers: two "
                "sites may have become one. Give them as whole numbers (dtype int64) or as text."
            )
    check_distinct_names(need, np.unique(where))
    return where


# --- rows are matched by their place ---


def row_index(table: object) -> Any:
    """The index of a DataFrame or Series of pandas; None for anything else."""
    index = getattr(table, "index", None)
    return index if hasattr(index, "equals") else None


def check_same_index(X: object, other: object, name: str, what: str = "X") -> None:
    """Refuse a Series or DataFrame whose index is not that of X, label by label."""
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
