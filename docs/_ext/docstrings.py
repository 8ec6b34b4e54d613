"""Docstrings as reStructuredText: indented formulas become literal blocks, and bars, stars and underscores are text.

Our docstrings are written to be read in a terminal. A formula stands in an indented block, and prose has ||x||, x_i and u*.
reStructuredText would read these as quotations, substitutions and links.
"""

from __future__ import annotations

import re
from typing import Any

from formulas import as_latex
from sphinx.application import Sphinx

SECTIONS = {
    "Parameters",
    "Attributes",
    "Returns",
    "Raises",
    "Examples",
    "References",
    "Notes",
    "Yields",
    "See Also",
    "Warns",
}
LISTED = {"Parameters", "Attributes", "Returns", "Raises", "Yields", "Warns"}  # indented text there is a description


def setup(app: Sphinx) -> dict[str, Any]:
    """Work on every docstring before napoleon does."""
    app.connect("autodoc-process-docstring", process, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def process(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Rewrite the lines of one docstring in place."""
    if what in ("property", "attribute", "data") and lines:
        lines[0] = lines[0].replace(": ", "; ")  # napoleon would take the words before a colon for a type
    lines[:] = with_formulas(rewritten(lines))


def rewritten(lines: list[str]) -> list[str]:
    """The lines with formulas as literal blocks and prose escaped; headings and doctests stay as they are."""
    out: list[str] = []
    section, in_formula, listed_indent = "", False, 0
    for i, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if line.strip() in SECTIONS and i + 1 < len(lines) and set(lines[i + 1].strip()) == {"-"}:
            section, in_formula = line.strip(), False
        listed_indent = 4 if section in LISTED else 0
        starts_block = line.strip() and indent >= listed_indent + 4 and i > 0 and not lines[i - 1].strip()
        if starts_block and not in_formula and section != "Examples":
            if not _last_word(lines, i).endswith("::"):
                out += [" " * listed_indent + "::", ""]
            in_formula = True
        elif line.strip() and indent < listed_indent + 4:
            in_formula = False
        doctest = section == "Examples" and (line.lstrip().startswith((">>>", "...")) or _in_doctest(lines, i))
        entry = section in LISTED and indent == 0
        rule = set(line.strip()) <= {"-"}
        out.append(line if in_formula or doctest or rule or entry else escaped(line))
    return out


def with_formulas(lines: list[str]) -> list[str]:
    """The lines with literal blocks that are formulas as mathematics."""
    out, k = list[str](), 0
    while k < len(lines):
        line = lines[k]
        out.append(line)
        k += 1
        if not line.rstrip().endswith("::") or line.lstrip().startswith(".."):
            continue
        indent = len(line) - len(line.lstrip())
        end = k
        while end < len(lines) and (not lines[end].strip() or len(lines[end]) - len(lines[end].lstrip()) > indent):
            end += 1
        latex = as_latex(lines[k:end])
        if latex is not None:
            before = line.rstrip().removesuffix("::")
            out[-1:] = [f"{before}:", ""] if before.strip() else []
            margin = " " * indent
            out += [f"{margin}.. math::", "", *(f"{margin}   {row}" for row in latex.split("\n")), ""]
            k = end
    return out


def escaped(line: str) -> str:
    """A line of prose with |, * and trailing _ as text, outside of `code` and apart from *emphasis* and **this**."""
    parts = re.split(r"(``.*?``|`[^`]*`|\*\*\w[^*]*\*\*|(?<![\w*)])\*(?=\w)[^*]*\w\*(?![\w*]))", line)
    for i in range(0, len(parts), 2):
        text = parts[i].replace("|", r"\|").replace("*", r"\*")
        parts[i] = re.sub(r"(\w)_(?=\W|$)", r"\1\\_", text)
    return "".join(parts)


def _last_word(lines: list[str], i: int) -> str:
    """The last line with text above line i."""
    return next((line.rstrip() for line in reversed(lines[:i]) if line.strip()), "")


def _in_doctest(lines: list[str], i: int) -> bool:
    """Whether line i is output of a doctest: no blank line between it and a prompt."""
    for line in reversed(lines[:i]):
        if not line.strip():
            return False
        if line.lstrip().startswith(">>>"):
            return True
    return False
