"""Checks of arguments, one helper per kind: every error names the value, the requirement and the way out, if any."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse

from compfed._utils.text import shorten
from compfed.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
# A product of four such numbers does not overflow, nor underflow, with twelve digits to spare.
MIN_MAGNITUDE, MAX_MAGNITUDE = 1e-70, 1e70
MAX_DENSE_BYTES = 2**31  # of sparse rows written out without being asked


def is_int(value: object) -> TypeGuard[int]:
    """A whole number of at most 64 bits; True and False are not."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and abs(int(value)) < 2**63


def is_number(value: object) -> TypeGuard[float]:
    """A real number that a float can represent; True and False are not."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        return False
    return not isinstance(value, int) or abs(value) <= sys.float_info.max


def check_int(value: object, name: str, at_least: int, hint: str = "") -> int:
    """`value` as an int, if it is a whole number >= at_least."""
    if not is_int(value) or value < at_least:
        below = " and below 2**63" if isinstance(value, int) and value > at_least else ""
        raise InputError(f"{name}={value!r} must be a whole number >= {at_least}{below}.{hint}")
    return int(value)


def check_nonnegative(value: object, name: str, hint: str = "") -> float:
    """`value` as a float, if it is a finite number >= 0."""
    if not is_number(value) or not 0 <= float(value) < np.inf:
        raise InputError(f"{name}={value!r} must be a finite number >= 0.{hint}")
    return float(value)


def check_positive(value: object, name: str, hint: str = "") -> float:
    """`value` as a float, if it is a finite number > 0."""
    if not is_number(value) or not 0 < float(value) < np.inf:
        raise InputError(f"{name}={value!r} must be a finite number > 0.{hint}")
    return float(value)


def check_choice(value: object, name: str, options: Sequence[str], hint: str = "") -> None:
    """Refuse a value that is not one of a few words."""
    if not isinstance(value, str) or value not in options:
        raise InputError(f"{name}={value!r} must be one of {', '.join(map(repr, options))}.{hint}")


def check_bool(value: object, name: str, hint: str = "") -> bool:
    """`value` as a bool, if it is True, False, 1 or 0."""
    if not (isinstance(value, (bool, np.bool_)) or (is_int(value) and value in (0, 1))):
        raise InputError(f"{name}={value!r} must be True or False.{hint}")
    return bool(value)


def check_callable(value: T, name: str) -> T:
    """`value`, if it is callable or None."""
    if value is not None and not callable(value):
        raise InputError(f"{name}={shorten(repr(value), 80)} must be a function, or None.")
    return value


def check_unmasked(values: object, name: str) -> None:
    """Refuse arrays with masked entries, whose values NumPy would use all the same."""
    parts = values if isinstance(values, (list, tuple)) else [values]
    hidden = sum(int(np.ma.count_masked(part)) for part in parts if isinstance(part, np.ma.MaskedArray))
    if hidden:
        raise InputError(
            f"{name} has {hidden} masked value(s). Leave their rows out, or fill them: values.filled(...)."
        )


def check_numbers(values: Any, name: str, dtype: npt.DTypeLike = float) -> np.ndarray:
    """`values` as an array of numbers; words, truth values, dates and complex numbers are refused."""
    check_unmasked(values, name)
    try:
        found = np.asarray(values)
        plain = found.dtype.kind in "iuf" or (found.dtype.kind == "O" and all(map(is_number, found.flat)))
        truths = isinstance(values, (list, tuple)) and any(isinstance(v, (bool, np.bool_)) for v in values)
        if plain and not truths:  # NumPy makes 1.0 of a True among numbers
            with np.errstate(over="ignore"):  # a number too large for the dtype becomes infinite
                return found.astype(dtype)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InputError(f"{name}={shorten(repr(values), 120)} cannot be read as an array of numbers.")


def check_distinct_names(need: str, names: np.ndarray) -> None:
    """Refuse two names that differ only in spaces around them."""
    bare: dict[str, str] = {}
    for name in names if names.dtype.kind == "U" else ():
        twin = bare.setdefault(str(name).strip(), str(name))
        if twin != name:
            raise InputError(f"{need}; {twin!r} and {str(name)!r} are one name but for spaces. Strip them, or rename.")


def check_magnitudes(values: Any, what: str, columns: Sequence[str] | None = None) -> None:
    """Refuse a column, of an array or a sparse matrix, whose largest number has a square that over- or underflows."""
    if values.dtype.kind not in "fiu" or not min(values.shape):
        return
    if issparse(values):
        top = np.asarray(abs(values).max(axis=0).todense(), float).ravel()
    else:
        top = np.maximum(np.asarray(values.max(axis=0), float), -np.asarray(values.min(axis=0), float))
    odd = np.atleast_1d((top != 0) & ((top < MIN_MAGNITUDE) | (top > MAX_MAGNITUDE)))
    if odd.any():
        j = int(odd.argmax())
        where = f", column {j if columns is None else repr(columns[j])}" if np.ndim(top) else ""
        size = float(np.atleast_1d(top)[j])
        raise InputError(
            f"{what}{where}: the largest number is {size:.3g} in size; it must be 0 or between {MIN_MAGNITUDE:g} and "
            f"{MAX_MAGNITUDE:g}, or its square overflows or underflows. Divide by {10.0 ** np.floor(np.log10(size)):.0e}, say."
        )


def check_sample_weight(weights: np.ndarray, site: str) -> None:
    """Refuse row weights whose sum may overflow."""
    if np.max(weights) > 1e300:
        largest = f"site {site!r} has a row weight of {np.max(weights):.3g}"
        raise InputError(f"{largest}; at most 1e+300 is allowed, or their sum overflows. Divide all by it.")


def check_dense_size(shape: tuple[int, int], what: str, way_out: str, bytes_per_column: int = 0) -> None:
    """Refuse, before anything is allocated, to write out sparse rows that would be too large.

    `bytes_per_column` is what a column takes beside its numbers, such as its name.
    """
    rows, columns = shape
    size = columns * (8 * rows + bytes_per_column)
    if size > MAX_DENSE_BYTES:
        most = f"at most {MAX_DENSE_BYTES / 1e9:.3g} GB are allowed"
        takes = f"{rows} x {columns} sparse rows would take {size / 1e9:.3g} GB written out"
        raise InputError(f"{what}: {takes}; {most}. {way_out}")


# --- one label per row ---


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, NaT, pandas.NA or NumPy's `masked`."""
    try:
        return value is None or value is np.ma.masked or bool(value != value)
    except (TypeError, ValueError):  # pandas.NA has no truth value; nor has an array
        return not hasattr(value, "__len__")


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
        found = f"{int(missing.sum())} row(s) have none, the first is row {int(missing.argmax())}"
        raise InputError(f"{need}; {found}. Drop them or give them a value of their own.")
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
            same = f"{twin!r} and {value!r} are different values and would both be read as {read!r}"
            raise InputError(f"{need}; {same}. Give all as text or all as whole numbers, with a name for each value.")
    return found


def as_site_labels(need: str, column: Any) -> np.ndarray:
    """The site of every row; refuses fractions, which look like weights, and names that differ only in spaces."""
    where = as_row_labels(need, column)
    if where.dtype.kind == "f":
        weight = "This looks like a row weight: give sample_weight=... (sample_weight=... in compfed.data)"
        large = "A float of this size stands for several whole numbers: two sites may be one"
        for odd, why in ((where != np.rint(where), weight), (np.abs(where) >= 2.0**53, large)):
            if odd.any():
                found = f"row {odd.argmax()} has {float(where[odd.argmax()])!r}"
                names = "For names, give all as text, [str(s) for s in sites], or as whole numbers (dtype int64)."
                raise InputError(f"{need}; {found}. {why}. {names}")
    check_distinct_names(need, np.unique(where))
    return where


# --- frames of pandas, which need not be installed; rows are matched by their place ---


def is_dataframe(table: object) -> TypeGuard[pd.DataFrame]:
    """Whether a table is a DataFrame."""
    return hasattr(table, "columns") and hasattr(table, "iloc")


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
        by_index = f"{name}.loc[{what}.index] to match by index"
        raise InputError(f"{name} has the index of {what} in another order. Give {by_index}, or {by_place}.")
    labels = enumerate(zip(mine.tolist(), theirs.tolist(), strict=True))
    row, (a, b) = next((entry for entry in labels if entry[1][0] != entry[1][1]), (0, (mine[0], theirs[0])))
    differ = f"row {row} is {a!r} in {what} and {b!r} in {name}"
    raise InputError(f"{name} has another index than {what}: {differ}. Give {by_place}, or both with the same index.")
