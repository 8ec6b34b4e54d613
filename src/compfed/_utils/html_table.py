"""A small table for a notebook: every text is escaped, since names of sites and columns come from outside."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from compfed._utils.text import printable


def html_table(caption: str, rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> str:
    """A caption and rows whose first cell names them.

    >>> html_table("<Rome>", [["AUC", "0.9"]])
    '<table><caption>&lt;Rome&gt;</caption><tbody><tr><th>AUC</th><td>0.9</td></tr></tbody></table>'
    """
    head = f"<thead><tr>{''.join(f'<th>{_safe(cell)}</th>' for cell in header)}</tr></thead>" if header else ""
    body = "".join(
        f"<tr><th>{_safe(name)}</th>{''.join(f'<td>{_safe(cell)}</td>' for cell in cells)}</tr>"
        for name, *cells in rows
    )
    return f"<table><caption>{_safe(caption)}</caption>{head}<tbody>{body}</tbody></table>"


def _safe(text: str) -> str:
    return escape(printable(text))
