"""Results as JSON, for another program."""

from __future__ import annotations

import json
from typing import Any

from compfed._utils.plain import json_safe


def json_text(value: Any) -> str:
    """A record as JSON: lists for arrays, null for a number that JSON does not have: NaN and infinity.

    >>> json_text({"auc": float("nan"), "rows": (1, 2)})
    '{"auc": null, "rows": [1, 2]}'
    """
    return json.dumps(json_safe(value), allow_nan=False, ensure_ascii=False)
