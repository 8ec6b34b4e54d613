"""Plain-text tables, short numbers, text from outside made safe to print, and the versions in use."""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from compfed import __version__

# C0, DEL, C1; marks, overrides and isolates of bidirectional text; line and paragraph separators; surrogates.
_NOT_PRINTED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def short(value: object) -> str:
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


def shorten(name: str, most: int) -> str:
    """A long name without its middle: names often differ at their ends.

    >>> shorten("fractal dimension error, worst", 20)
    'fractal di…or, worst'
    """
    tail = (most - 1) // 2
    return name if len(name) <= most else f"{name[: most - 1 - tail]}…{name[-tail:]}"


def join_names(words: Sequence[str], between: str = ", ", most: int = 5) -> str:
    """The first few of many names, and how many more there are."""
    return between.join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def printable(text: str, most: int = 500) -> str:
    """Text from outside, safe for a terminal or a log: control characters as visible escapes, at most `most` characters.

    >>> printable("ok\\x1b[2J" + "a" * 20, most=16)
    'ok\\\\x1b[2Jaaaa...'
    """
    shown = "".join(map(_escaped, text[: most + 1]))  # an escape is longer than its character, never shorter
    if len(shown) <= most and len(text) <= most:
        return shown
    kept, room = [], most - 3
    for piece in map(_escaped, text[:most]):  # no escape is cut in two
        if len(piece) > room:
            break
        kept.append(piece)
        room -= len(piece)
    return "".join(kept) + "..."


def is_printable(text: str) -> bool:
    """Whether a text has no control character, so that `printable` keeps it as it is."""
    return _NOT_PRINTED.search(text) is None


def _escaped(character: str) -> str:
    if is_printable(character):
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def shapes_shown(self: Any) -> str:
    """A record in one line with the shapes of its arrays, for `__repr__`: rows do not belong on a screen or in a log."""
    named = self._asdict() if hasattr(self, "_asdict") else vars(self)
    return f"{type(self).__name__}({', '.join(f'{name}={_shape_shown(value)}' for name, value in named.items())})"


def _shape_shown(value: object) -> str:
    if (shape := getattr(value, "shape", None)) is not None:
        return f"<{'x'.join(map(str, shape)) or 'number'}>"
    if isinstance(value, (tuple, list)):
        return f"<{len(value)} entries>"
    return repr(value)


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, a rule under the header."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in [header, *rows]]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def number_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with names in the first column, to the left, and numbers in the others, to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in [header, *rows]
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


@functools.cache  # reads the files of four packages
def versions() -> dict[str, str]:
    """The versions of compfed, Python and the packages that compute."""
    found = {name: version(name) for name in ("jax", "jaxlib", "numpy")}
    return {"compfed": __version__} | found | {"python": platform.python_version()}
