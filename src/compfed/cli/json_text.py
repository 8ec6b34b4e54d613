"""Results as JSON, for another program."""

from __future__ import annotations

import json
from typing import Any

from compfed._utils.plain import plain


def json_text(value: Any) -> str:
    """A record as JSON: lists for arrays, null for a number that JSON does not have: NaN and infinity.

    >>> json_text({"auc": float("nan"), "rows": (1, 2)})
    '{"auc": null, "rows": [1, 2]}'
    """
    return json.dumps(_finite(plain(value)), allow_nan=False, ensure_ascii=False)


def _finite(value: Any) -> Any:
    """Plain data with null for NaN and infinity."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value
