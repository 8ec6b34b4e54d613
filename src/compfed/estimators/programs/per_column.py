"""Penalty factors and bounds as a user gives them, as one number for each column."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compfed._utils.text import join_names, shorten
from compfed._utils.validation import check_numbers, is_int, is_number
from compfed.errors import InputError


def read_factors(
    given: Any, names: Sequence[str] | None, width: int, what: str = "column", by_place: bool = True
) -> np.ndarray | None:
    """penalty_factors as an array of shape (width,); None where there are none.

    `names` are those of the columns, or of the groups. Without `by_place` an entry is found by name alone.
    """
    if given is None:
        return None
    given = _as_mapping(given, "penalty_factors")
    if isinstance(given, Mapping):
        factors = np.ones(width)
        for key, value in _levels_last(given, names):
            factors[_places(key, names, width, "penalty_factors", what, by_place)] = _as_number(value, key)
    else:
        factors = check_numbers(given, "penalty_factors")
        _check_length(factors, width, "penalty_factors", what)
    wrong = np.isnan(factors) | (factors < 0)
    if wrong.any():
        j = int(wrong.argmax())
        raise InputError(
            f"penalty_factors: {what} {_called(j, names)} has {factors[j]:g}; a factor must be >= 0. 0 means not "
            f"penalised, inf leaves the {what} out."
        )
    return factors


def read_bounds(given: Any, names: Sequence[str] | None, width: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The least and the largest value of each coefficient, infinite for none; None where there are no bounds."""
    if given is None:
        return None
    lower, upper = np.full(width, -np.inf), np.full(width, np.inf)
    if isinstance(given, Mapping):
        for key, pair in _levels_last(given, names):
            j = _places(key, names, width, "bounds", "column", by_place=True)
            low, high = _as_pair(pair, f"bounds[{key!r}]")
            lower[j], upper[j] = (
                _side(side, least, 1, f"bounds[{key!r}]")[0] for side, least in ((low, -np.inf), (high, np.inf))
            )
    else:
        low, high = _as_pair(given, "bounds")
        lower, upper = _side(low, -np.inf, width, "bounds: lower"), _side(high, np.inf, width, "bounds: upper")
    wrong = ~((lower <= 0) & (upper >= 0))
    if wrong.any():
        j = int(wrong.argmax())
        raise InputError(
            f"bounds: column {_called(j, names)} has ({lower[j]:g}, {upper[j]:g}); lower <= 0 <= upper is needed, so that the "
            "coefficient can be 0. For a positive least value, move it into y, or into an offset."
        )
    return lower, upper


# --- parts ---


def _as_mapping(given: Any, what: str) -> Any:
    """A Series of pandas as a dict from its index; anything else as it is."""
    index: Any = getattr(given, "index", None)
    if not hasattr(index, "tolist"):
        return given
    keys = index.tolist()
    if len(set(keys)) < len(keys):
        raise InputError(f"{what} is a Series whose index has an entry twice. Give one value for each column.")
    return dict(zip(keys, given.tolist(), strict=True))


def _levels_last(given: Mapping[Any, Any], names: Sequence[str] | None) -> list[tuple[Any, Any]]:
    """The entries, those of a whole column of words before those of its single levels."""
    known = set(names or ())
    return sorted(given.items(), key=lambda entry: not isinstance(entry[0], str) or entry[0] in known)


def _places(
    key: object, names: Sequence[str] | None, width: int, option: str, what: str, by_place: bool
) -> int | list[int]:
    """Where a column is that is given by its name or position; all levels of a column of words that a schema encoded."""
    called = {name: j for j, name in enumerate(names or ())}
    if isinstance(key, str) or not by_place:
        if str(key) in called:
            return called[str(key)]
        levels = [j for name, j in called.items() if what == "column" and name.startswith(f"{key}=")]
        if levels:
            return levels
        near = difflib.get_close_matches(str(key), called, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        there = (
            f"It is one of {join_names([repr(name) for name in called])}."
            if called
            else f"The {what}s have no names; give positions."
        )
        raise InputError(f"{option}: there is no {what} {key!r}.{hint or ' ' + there}")
    if not is_int(key) or not 0 <= key < width:
        raise InputError(f"{option}: {what} {key!r} is not a name or a position from 0 to {width - 1}.")
    if called.get(str(key), key) != key:
        raise InputError(
            f"{option}: {key} may be the column called {key} (number {called[str(key)]}) or column number {key}. Give its "
            f"name as text, '{key}', to match by name; give X.to_numpy() to match by place."
        )
    return [int(key)]


def _as_number(value: object, key: object) -> float:
    if not is_number(value):
        raise InputError(f"penalty_factors[{key!r}]={shorten(repr(value), 40)} must be a number >= 0, or inf.")
    return float(value)


def _as_pair(given: Any, name: str) -> tuple[Any, Any]:
    try:
        low, high = given
    except (TypeError, ValueError):
        raise InputError(
            f"{name}={shorten(repr(given), 80)} must be a pair (lower, upper), each a number, None for none, or an array with one "
            "number for each column; or a dict from column to pair."
        ) from None
    return low, high


def _side(given: Any, none: float, width: int, name: str) -> np.ndarray:
    """One side of the bounds, for every column; None means none."""
    if given is None:
        return np.full(width, none)
    values = check_numbers(given, name)
    if np.isnan(values).any():
        raise InputError(f"{name} has a NaN. Give None, or an infinite number, where there is no bound.")
    if values.ndim:
        _check_length(values, width, name, "column")
    return np.full(width, values)


def _check_length(values: np.ndarray, width: int, name: str, what: str) -> None:
    if values.shape != (width,):
        raise InputError(
            f"{name} has shape {values.shape}; there are {width} {what}s: give one number for each, or a dict from {what} to number."
        )


def _called(j: int, names: Sequence[str] | None) -> str:
    return str(j) if not names else repr(names[j])
