"""Values in a form that JSON has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

JsonObject: TypeAlias = dict[str, Any]  # values by name, as a file of JSON has them
Record: TypeAlias = Mapping[str, Any]  # the same, only to read


def json_safe(value: Any) -> Any:
    """A value as JSON has it: lists for arrays, None for a number that JSON does not have: NaN and infinity.

    >>> import numpy as np
    >>> json_safe({"auc": float("nan"), "rows": (1, np.int64(2))})
    {'auc': None, 'rows': [1, 2]}
    """
    return _finite(plain(value))


def _finite(value: Any) -> Any:
    """Plain data with None for NaN and infinity."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value


def plain(value: Any) -> Any:
    """Arrays as lists, NumPy's numbers by value, other objects in words.

    >>> import numpy as np
    >>> plain({"alpha": np.float64(0.5), 2: (np.arange(2), None)})
    {'alpha': 0.5, '2': [[0, 1], None]}
    """
    if isinstance(value, (np.ndarray, np.generic)):  # first: a double of NumPy is a float too
        return plain(value.tolist())
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "to_dict"):  # a Series of pandas, or a record of ours
        value = value.to_dict()
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, Sequence):
        return [plain(each) for each in value]
    return str(value)
