"""Pieces of a page. Every function here escapes the texts that it is given; names of sites and columns are not trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

_ID = re.compile(r' id="([^"]+)"')
_HEADING = re.compile(r'<h2 id="([^"]*)">(.*?)</h2>')
_REFERENCE = re.compile(r'(?:url\(#|href="#)([^)"]+)')
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_PLACES = re.compile(r' (?:d|x|y)="[^"]*"')  # of lines and markers
_DECIMALS = re.compile(r"(\.\d)\d+")
_LINES = re.compile(r"[ML] \S+ \S+(?: \nL \S+ \S+)+")  # one letter is enough for all lines that follow each other


def text(value: object) -> str:
    """A text for the page, with control characters taken out."""
    return escape("".join(c if c.isprintable() or c == "\n" else " " for c in str(value)))


def paragraph(value: object, kind: str = "") -> str:
    """A paragraph of plain text."""
    return f'<p class="{kind}">{text(value)}</p>' if kind else f"<p>{text(value)}</p>"


def paragraphs(values: Iterable[object]) -> str:
    """Several paragraphs of plain text."""
    return "".join(map(paragraph, values))


def table(header: Sequence[object], rows: Iterable[Sequence[object]], kind: str = "") -> str:
    """A table of plain texts; in one of kind "numbers" cells but the first of a row align to the right, and it may be wider than text."""
    head = "".join(f'<th scope="col">{text(cell)}</th>' for cell in header)
    body = "".join(
        "<tr>"
        + "".join(f'<th scope="row">{text(c)}</th>' if i == 0 else f"<td>{text(c)}</td>" for i, c in enumerate(row))
        + "</tr>"
        for row in rows
    )
    head = f"<thead><tr>{head}</tr></thead>" if any(header) else ""
    free = " free" if "numbers" in kind.split() else ""
    return f'<div class="scroll{free}"><table class="{kind}">{head}<tbody>{body}</tbody></table></div>'


def section(title: str, *content: str) -> str:
    """A section, or nothing where it has no content."""
    inside = "".join(content)
    return f"<section>{heading(title)}{inside}</section>" if inside else ""


def heading(title: str) -> str:
    """The heading of a section, with a name to link to."""
    return f'<h2 id="{slug(title)}">{text(title)}</h2>'


def slug(title: str) -> str:
    """A title as the name of a place in the page."""
    return "-".join(re.findall(r"\w+", title.lower())) or "section"


def table_of_contents(content: str) -> str:
    """Links to the headings of a page with several; two headings with one name lead to the first."""
    found = dict(_HEADING.findall(content))
    links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title in found.items())
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>' if len(found) > 2 else ""


def card(title: str, sentences: Sequence[object], kind: str = "") -> str:
    """One of the answers at the top: a question and a few sentences, the first in bold."""
    first, *others = sentences
    return f'<div class="card {kind}"><h3>{text(title)}</h3><p><strong>{text(first)}</strong></p>{paragraphs(others)}</div>'


def details(title: str, content: object) -> str:
    """Text that is shown on demand."""
    return f"<details><summary>{text(title)}</summary><pre>{text(content)}</pre></details>"


def static_figure(svg: str, caption: object) -> str:
    """A figure that is drawn already. The SVG comes from matplotlib, which escapes names itself."""
    return f'<figure><div class="static scroll">{svg}</div><figcaption>{text(caption)}</figcaption></figure>'


def inline_svg(svg: str, prefix: str) -> str:
    """An SVG file as a part of the page, about half as large.

    Without prologue, metadata, indentation and unused names; places to a tenth of a point. Names get a prefix, as two
    figures may use the same.
    """
    svg = _METADATA.sub("", svg[svg.index("<svg") :])
    svg = _PLACES.sub(lambda found: _DECIMALS.sub(r"\1", found[0]), svg)
    svg = _LINES.sub(lambda found: found[0].replace(" \nL ", " "), svg)
    svg = re.sub(r"\n\s*", "\n", svg)
    used = set(_REFERENCE.findall(svg))
    svg = _ID.sub(lambda found: f' id="{prefix}-{found[1]}"' if found[1] in used else "", svg)
    return _REFERENCE.sub(lambda found: found[0].replace(f"#{found[1]}", f"#{prefix}-{found[1]}"), svg)


def json_for_script(value: Any) -> str:
    """JSON that cannot end the <script> element it stands in."""
    plain = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
