"""Mathematics as MathML, which browsers draw themselves: translated from LaTeX at build time by docutils, which Sphinx brings.

No script runs at the reader's, nothing is fetched, and no package is needed beside Sphinx.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    """Draw mathematics in HTML with MathML (html_math_renderer = "mathml")."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


# docutils takes the subscript of z in \\hat z_t for one below the hat
ACCENTED = re.compile(
    r"<munderover>\s*(<mi>[^<]*</mi>)\s*(<mi>[^<]*</mi>|<mn>[^<]*</mn>|<mrow>.*?</mrow>)\s*(<mo[^>]*>[\u02c6\u00af\u02dc~^\u203e]</mo>)\s*</munderover>",
    re.DOTALL,
)
ACCENTED_BELOW = re.compile(
    r"<munder>\s*<mover>\s*(<mi>[^<]*</mi>)\s*(<mo[^>]*>[\u02c6\u00af\u02dc~^\u203e]</mo>)\s*</mover>(.*?)</munder>",
    re.DOTALL,
)


def mathml(latex: str, as_block: bool) -> str:
    """A formula as MathML: subscripts of accented letters beside them, and bars of a norm as high as the letters."""
    found = tex2mathml(latex, as_block=as_block)
    found = ACCENTED.sub(r"<msub><mover>\1\3</mover>\2</msub>", found)
    found = ACCENTED_BELOW.sub(r"<msub><mover>\1\2</mover>\3</msub>", found)
    return re.sub(r"<mo(?: class=\"[^\"]*\")?>([\u2016\u2223|])</mo>", r'<mo stretchy="false">\1</mo>', found)


def inline(self: Any, node: nodes.math) -> None:
    """Formulas in a line of text."""
    self.body.append(mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def block(self: Any, node: nodes.math_block) -> None:
    """Formulas on lines of their own."""
    self.body.append(f'<div class="formula">{mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode
