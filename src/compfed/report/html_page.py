"""Write the HTML report: one self-contained page with claims, figures and settings, from the template page.html."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from compfed._utils.files import write_text
from compfed._utils.text import short


def _claim_row(claim: Mapping[str, Any]) -> str:
    mark, word = ("yes", "holds") if claim["holds"] else ("no", "does not hold")
    measured = "<br>".join(f"{escape(name)}: {escape(short(value))}" for name, value in claim["measured"].items())
    return (
        f'<tr id="{escape(claim["id"])}"><td class="mark {mark}">{word}</td><td>{escape(claim["claim"])}'
        f'<div class="measured">{measured}</div></td><td class="where">{escape(claim["where"])}</td></tr>'
    )


def _figure(path: Path, caption: str) -> str:
    svg = path.with_suffix(".svg").read_text(encoding="utf-8")
    return f"<figure>{svg[svg.index('<svg') :]}<figcaption>{escape(caption)}</figcaption></figure>"


def write_page(
    path: Path, lead: str, claims: Sequence[Mapping[str, Any]], figures: Sequence[tuple[Path, str]], settings: object
) -> None:
    """Write the page. Figures are (path without suffix, caption), and become part of the page."""
    page = Template(files("compfed.report").joinpath("page.html").read_text(encoding="utf-8"))
    text = page.substitute(
        lead=escape(lead),
        held=sum(claim["holds"] for claim in claims),
        total=len(claims),
        claims="".join(map(_claim_row, claims)),
        figures="".join(_figure(figure, caption) for figure, caption in figures),
        settings=escape(json.dumps(settings, indent=2)),
    )
    write_text(path, text)
