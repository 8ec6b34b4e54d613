"""Results as JSON, for another program."""

from __future__ import annotations

import json
from typing import Any


def json_text(value: Any) -> str:
    """A record as JSON: lists for arrays, null for a number that JSON does not have: NaN and infinity.

    >>> json_text({"auc": float("nan"), "rows": (1, 2)})
    '{"auc": null, "rows": [1, 2]}'
    """
    return json.dumps(_plain(value), allow_nan=False, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
