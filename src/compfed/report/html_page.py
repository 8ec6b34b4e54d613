"""Write the HTML report: one self-contained page with claims, figures and settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from compfed._utils.files import write_text
from compfed._utils.text import short

STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #00794f; --bad: #c0392b; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem } h2 { font-size: 1.2rem; margin-top: 2.5rem }
.lead { font-size: 1.1rem; margin-top: 0 }
table { border-collapse: collapse; width: 100%; font-size: .92rem }
th, td { text-align: left; vertical-align: top; padding: .45rem .6rem; border-bottom: 1px solid var(--line) }
td.mark { font-weight: 700; white-space: nowrap } .yes { color: var(--good) } .no { color: var(--bad) }
.measured { color: #777; font-size: .88rem } .where { white-space: nowrap; color: #777 }
figure { margin: 1.5rem 0; background: #fff; padding: .5rem; border: 1px solid var(--line); border-radius: 6px }
figure svg { width: 100%; height: auto } figcaption { color: #333; font-size: .9rem; padding: .2rem .5rem }
pre { overflow-x: auto; font-size: .85rem; border: 1px solid var(--line); border-radius: 6px; padding: .7rem }
"""


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
    path: Path,
    title: str,
    lead: str,
    claims: Sequence[Mapping[str, Any]],
    figures: Sequence[tuple[Path, str]],
    settings: Mapping[str, object],
) -> None:
    """Write the page. Figures are (path without suffix, caption), and become part of the page."""
    held = sum(claim["holds"] for claim in claims)
    body = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}</style></head><body>
<h1>{escape(title)}</h1>
<p class="lead">{escape(lead)} <strong>{held} of {len(claims)} claims hold.</strong></p>
<h2>Claims</h2>
<table><thead><tr><th>Verdict</th><th>Claim and measurements</th><th>Where</th></tr></thead><tbody>
{"".join(_claim_row(claim) for claim in claims)}
</tbody></table>
<h2>Figures</h2>
{"".join(_figure(figure, caption) for figure, caption in figures)}
<h2>Settings</h2>
<pre>{escape(json.dumps(settings, indent=2))}</pre>
</body></html>
"""
    write_text(path, body)
