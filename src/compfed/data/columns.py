"""Rows, labels, weights and sites as a user gives them, converted to arrays or refused.

A number may be given as a number, a truth value or text. NumPy would also convert a date, a complex number, a level of a
categorical column and an entry behind a mask: these are refused.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from compfed._utils.text import join_names
from compfed._utils.validation import check_dense_size, check_unmasked, is_dataframe, is_missing
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
    floats = np.empty(found.shape)
    for place, value in np.ndenumerate(found):
        where = ", ".join(f"{axis} {k}" for axis, k in zip(("row", "column"), place, strict=False)) or "it"
        floats[place] = _number(value, f"{what} must be numbers: {where}", "", WAY_OUT)
    return floats


def column_as_floats(column: pd.Series, what: str, way_out: str = WAY_OUT, after_row: str = "") -> np.ndarray:
    """A column as floats, missing values as NaN; refuses the first value that is not a number, naming it and its row."""
    if str(column.dtype) == "category":
        raise InputError(
            f"{what}: column {column.name!r} is categorical; its levels may be numbers or names. Say which: "
            f"frame[{column.name!r}].astype(float), or one column per level with pandas.get_dummies."
        )
    if is_numeric(column):
        return column.to_numpy(float, na_value=np.nan)
    floats = np.full(len(column), np.nan)
    for i in np.flatnonzero(~column.isna().to_numpy()):
        floats[i] = _number(column.iloc[i], f"{what}: column {column.name!r}", f" in row {i}{after_row}", way_out)
    return floats


def check_dataframe(frame: pd.DataFrame, what: str, way_out: str = WAY_OUT) -> None:
    """Refuse columns that do not hold numbers, each by name and first value; numeric columns are not read."""
    check_column_names(what, frame.columns)
    problems = []
    for j in range(frame.shape[1]):
        if not is_numeric(column := frame.iloc[:, j]):
            try:
                column_as_floats(column, what, way_out)
            except InputError as problem:
                problems.append(str(problem))
    if problems:
        raise InputError(join_names([*problems[:1], *(p.removeprefix(f"{what}: ") for p in problems[1:])], " ", 10))


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
Frame: TypeAlias = Any  # a DataFrame, or a column of one


def take_column(X: Frame, role: str, column: str) -> tuple[Frame, Frame]:
    """A DataFrame without its column of labels, sites or offsets, and that column."""
    if column not in getattr(X, "columns", ()):
        has = "; it has " + join_names([str(c) for c in X.columns], most=12) if is_dataframe(X) else ""
        way_out = f"Give a DataFrame with that column, or {ONE_PER_ROW[role]}."
        raise InputError(f"{role}={column!r} names a column, and X has none of that name{has}. {way_out}")
    check_column_names("X", X.columns)
    return X.drop(columns=column), X[column]


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
