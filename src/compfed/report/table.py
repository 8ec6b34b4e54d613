"""Plain-text tables and short numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def short(value: Any) -> str:
    """A value in a few characters: 3.2e-13, 0.301, 258, yes."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "never"
    if isinstance(value, float):
        if value == int(value) and abs(value) < 1e6:
            return str(int(value))
        return f"{value:.3g}" if 1e-3 <= abs(value) < 1e5 else f"{value:.1e}"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {short(v)}" for key, v in value.items())
    if isinstance(value, (list, tuple)):
        return " to ".join(short(v) for v in value)
    return str(value)


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, a rule under the header."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in [header, *rows]]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same for a README."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
