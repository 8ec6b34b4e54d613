"""One helper per kind of check: every error names the value, the requirement and, where there is one, the way out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compfed.errors import InputError


def is_whole(value: Any) -> bool:
    """A whole number; True and False are not."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """A number; True and False are not."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, (bool, np.bool_))


def whole(value: Any, name: str, at_least: int, hint: str = "") -> int:
    """`value` as an int, if it is a whole number >= at_least."""
    if not is_whole(value) or value < at_least:
        raise InputError(f"{name}={value!r} must be a whole number >= {at_least}.{hint}")
    return int(value)


def nonnegative(value: Any, name: str, hint: str = "") -> float:
    """`value` as a float, if it is a finite number >= 0."""
    if not is_number(value) or not 0 <= float(value) < np.inf:
        raise InputError(f"{name}={value!r} must be a finite number >= 0.{hint}")
    return float(value)


def positive(value: Any, name: str, hint: str = "") -> float:
    """`value` as a float, if it is a finite number > 0."""
    if not is_number(value) or not 0 < float(value) < np.inf:
        raise InputError(f"{name}={value!r} must be a finite number > 0.{hint}")
    return float(value)


def one_of(value: Any, name: str, options: Sequence[str], hint: str = "") -> None:
    """`value` is one of a few words."""
    if not isinstance(value, str) or value not in options:
        raise InputError(f"{name}={value!r} must be one of {', '.join(map(repr, options))}.{hint}")


def numbers(values: Any, name: str, dtype: Any = float) -> np.ndarray:
    """`values` as an array of numbers."""
    try:
        return np.asarray(values, dtype=dtype)
    except (TypeError, ValueError):
        raise InputError(f"{name}={values!r} cannot be read as an array of numbers.") from None
