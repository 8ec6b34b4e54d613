"""Penalty factors and bounds as a user gives them, as one number for each column."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compfed._utils.text import join_names, shorten
from compfed._utils.validation import check_numbers, is_dataframe, is_int, is_number
from compfed.errors import InputError

NEEDS = {
    "penalty_factors": "a number >= 0, or inf",
    "group_weights": "a number >= 0",
    "bounds": "a number, or None for no bound",
}


def read_factors(
    given: Any, names: Sequence[str] | None, width: int, what: str = "column", by_place: bool = True
) -> np.ndarray | None:
    """penalty_factors as an array of shape (width,); None where there are none.

    `names` are those of the columns, or of the groups. Without `by_place` an entry is found by name alone.
    """
    if given is None:
        return None
    factors = _numbers_of_each(given, np.ones(width), names, "penalty_factors", what, by_place)
    wrong = np.isnan(factors) | (factors < 0)
    if wrong.any():
        j = int(wrong.argmax())
        raise InputError(
            f"penalty_factors: {what} {_called(j, names)} has {factors[j]:g}; a factor must be >= 0. 0 means not "
            f"penalised, inf leaves the {what} out."
        )
    return factors


def read_group_weights(given: Any, names: Sequence[str] | None, sizes: np.ndarray, by_place: bool) -> np.ndarray:
    """group_weights as an array, one for each group; the square root of its size for a group without one."""
    usual = np.sqrt(sizes)
    weights = usual if given is None else _numbers_of_each(given, usual, names, "group_weights", "group", by_place)
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise InputError(f"group_weights={given!r} must be {sizes.size} finite numbers >= 0, one for each group.")
    return weights


def read_bounds(given: Any, names: Sequence[str] | None, width: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The least and the largest value of each coefficient, infinite for none; None where there are no bounds."""
    if given is None:
        return None
    lower, upper = np.full(width, -np.inf), np.full(width, np.inf)
    given = _as_mapping(given, "bounds")
    if isinstance(given, Mapping):
        for places, key, pair in _entries(given, names, width, "bounds"):
            low, high = _as_pair(pair, f"bounds[{key!r}]")
            for bound, side in ((lower, low), (upper, high)):
                if side is not None:
                    bound[places] = _as_number(side, f"bounds[{key!r}]", NEEDS["bounds"])
    else:
        low, high = _as_pair(given, "bounds")
        lower, upper = (_side(low, lower, names, "bounds: lower"), _side(high, upper, names, "bounds: upper"))
    wrong = ~((lower <= 0) & (upper >= 0))
    if wrong.any():
        j = int(wrong.argmax())
        if np.isnan([lower[j], upper[j]]).any():
            raise InputError(
                f"bounds: column {_called(j, names)} has a NaN. Give None, or an infinite number, where there is no bound."
            )
        raise InputError(
            f"bounds: column {_called(j, names)} has ({lower[j]:g}, {upper[j]:g}); lower <= 0 <= upper is needed, so that the "
            "coefficient can be 0. For a positive least value, move it into y, or into an offset."
        )
    return lower, upper


# --- parts ---


def _numbers_of_each(
    given: Any,
    default: np.ndarray,
    names: Sequence[str] | None,
    option: str,
    what: str = "column",
    by_place: bool = True,
) -> np.ndarray:
    """One number for each column, or group: given by name or position, with the default for the others, or all in order."""
    given = _as_mapping(given, option)
    if isinstance(given, Mapping):
        found = default.copy()
        for places, key, value in _entries(given, names, len(default), option, what, by_place):
            found[places] = _as_number(value, f"{option}[{key!r}]", NEEDS[option.partition(":")[0]])
        return found
    values = check_numbers(given, option)
    if values.shape != default.shape:
        raise InputError(
            f"{option} has shape {values.shape}; there are {len(default)} {what}s: give one number for each, or a dict from "
            f"{what} to number."
        )
    return values


def _side(given: Any, none: np.ndarray, names: Sequence[str] | None, name: str) -> np.ndarray:
    """One side of the bounds, for every column; None means none."""
    if given is None:
        return none
    return _numbers_of_each(np.full(none.shape, given) if is_number(given) else given, none, names, name)


def _as_mapping(given: Any, option: str) -> Any:
    """A Series of pandas as a dict from its index; anything else as it is."""
    index: Any = getattr(given, "index", None)
    if not hasattr(index, "tolist"):
        return given
    if is_dataframe(given):
        raise InputError(
            f"{option} is a DataFrame; give one of its columns, a Series whose index names the columns of X."
        )
    keys = index.tolist()
    if len(set(keys)) < len(keys):
        raise InputError(f"{option} is a Series whose index has an entry twice. Give one value for each column.")
    return dict(zip(keys, given.tolist(), strict=True))


def _entries(
    given: Mapping[Any, Any],
    names: Sequence[str] | None,
    width: int,
    option: str,
    what: str = "column",
    by_place: bool = True,
) -> list[tuple[list[int], Any, Any]]:
    """(positions, key, value) of every entry, those of a whole column of words before those of its single levels.

    Refuses two entries for one column, such as its name and its position.
    """
    known, found = set(names or ()), list[tuple[list[int], Any, Any]]()
    seen: dict[tuple[int, bool], object] = {}
    for key, value in given.items():
        places, whole = _places(key, names, width, option, what, by_place), isinstance(key, str) and key not in known
        for j in places:
            other = seen.setdefault((j, whole), key)
            if other is not key:
                raise InputError(
                    f"{option} has {other!r} and {key!r}, which are both {what} {_called(j, names)}. Give one of the two."
                )
        found.append((places, key, value))
    return sorted(found, key=lambda entry: not isinstance(entry[1], str) or entry[1] in known)


def _places(key: object, names: Sequence[str] | None, width: int, option: str, what: str, by_place: bool) -> list[int]:
    """Where a column is that is given by its name or position; all levels of a column of words that a schema encoded."""
    called = {name: j for j, name in enumerate(names or ())}
    if isinstance(key, str) or not by_place:
        if str(key) in called:
            return [called[str(key)]]
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


def _as_number(value: object, name: str, need: str) -> float:
    if not is_number(value):
        raise InputError(f"{name}={shorten(repr(value), 40)} must be {need}.")
    return float(value)


def _as_pair(given: Any, name: str) -> tuple[Any, Any]:
    try:
        low, high = given
    except (TypeError, ValueError):
        raise InputError(
            f"{name}={shorten(repr(given), 80)} must be a pair (lower, upper), each a number, None for none, or an array or a "
            "Series with one number for each column; or a dict from column to pair."
        ) from None
    return low, high


def _called(j: int, names: Sequence[str] | None) -> str:
    return str(j) if not names else repr(names[j])
