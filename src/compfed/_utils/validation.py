"""Checks of arguments, one helper per kind: every error names the value, the requirement and the way out, if any."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TypeGuard, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse

from compfed._utils.text import shorten
from compfed.errors import InputError

T = TypeVar("T")
MIN_MAGNITUDE, MAX_MAGNITUDE = (
    1e-70,
    1e70,
)  # a product of four does not overflow, nor underflow with twelve digits to spare
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
            f"{name} has {hidden} masked value(s), which cannot be used. Leave their rows out, or fill them in first: "
            "values.filled(...)."
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
            raise InputError(
                f"{need}; {twin!r} and {str(name)!r} are one name but for spaces. Strip them if they are one, or rename "
                "one of them."
            )


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
            f"{MAX_MAGNITUDE:g}, or its square overflows or underflows. Give it in other units: divide by "
            f"{10.0 ** np.floor(np.log10(size)):.0e}, say."
        )


def check_row_weights(weights: np.ndarray, site: str) -> None:
    """Refuse row weights whose sum may overflow."""
    if np.max(weights) > 1e300:
        raise InputError(
            f"site {site!r} has a row weight of {np.max(weights):.3g}; at most 1e+300 is allowed, or their sum overflows. "
            "Only their ratios count: divide them all by it."
        )


def check_dense_size(shape: tuple[int, int], what: str, way_out: str, bytes_per_column: int = 0) -> None:
    """Refuse, before anything is allocated, to write out sparse rows that would be too large.

    `bytes_per_column` is what a column takes beside its numbers, such as its name.
    """
    rows, columns = shape
    size = columns * (8 * rows + bytes_per_column)
    if size > MAX_DENSE_BYTES:
        raise InputError(
            f"{what}: {rows} x {columns} sparse rows would take {size / 1e9:.3g} GB written out, which this needs; at "
            f"most {MAX_DENSE_BYTES / 1e9:.3g} GB are. {way_out}"
        )
