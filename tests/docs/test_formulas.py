"""Formulas of docstrings as MathML: what a mathematician would have written, and nothing else is taken for a formula."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

import pytest
from places import ROOT

pytest.importorskip("docutils", reason="the documentation site: pip install '.[docs]'")


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    """Our extensions of Sphinx."""
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    try:
        return {name: importlib.import_module(name) for name in ("formulas", "mathml", "code_host_links")}
    finally:
        sys.path.pop(0)


def plain(latex: str) -> str:
    return re.sub(r"\s+", "", latex)


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("zhat_{t+1} = zhat_t - eta grad f_i(z_t)", r"\hat{z}_{t+1} = \hat{z}_{t} - \eta \nabla f_{i}(z_{t})"),
        ("x+ = prox_{eta~ g}(x)", r"x^{+} = \operatorname{prox}_{\tilde{\eta} g}(x)"),
        ("alpha * ||w||_1 = 0", r"\alpha \, \lVert w \rVert_{1} = 0"),
        ("||w||**2 + |r| <= delta", r"\lVert w \rVert^2 + \lvert r \rvert \le \delta"),
        ("u_i ~ N(0, alpha)", r"u_{i} \sim N(0, \alpha)"),
        ("c = -log P(y | x)", r"c = -\log P(y \mid x)"),
    ],
)
def test_a_formula_is_what_it_says(made, text, latex):
    assert plain(made["formulas"].as_latex([text])) == plain(latex)


@pytest.mark.parametrize(
    "text",
    ["data/   rows.csv", 'names = ["a", "b"]', "x = cf.fit(table)  # a comment", "a = ||b", "s = difference of two points", "rows"],
)  # fmt: skip
def test_something_else_stays_as_it_is(made, text):
    assert made["formulas"].as_latex([text]) is None


def test_words_are_no_letters_with_hats(made):
    """that and what end in hat, too."""
    assert "hat{" not in made["formulas"].as_latex(["y = x + that"])


def test_a_list_of_symbols_is_no_formula(made):
    lines = ["x   global model      z   local model", "c_i   control variate of client i"]
    assert made["formulas"].as_legend(lines) == [
        ("x", "global model"),
        ("z", "local model"),
        ("c_{i}", "control variate of client i"),
    ]
    assert made["formulas"].as_latex(lines) is None


def test_the_subscript_of_an_accented_letter_stands_beside_it(made):
    found = made["mathml"].mathml(r"\hat z_{t+1} = \hat{z}_t", as_block=False)
    assert "munder" not in found
    assert found.count("<msub>") == 2
    assert found.count("\u02c6") == 2


def test_a_link_to_a_source_becomes_one_to_its_page(made):
    links = made["code_host_links"]
    assert (
        links.page_of("explanation/algorithm-1", "../../src/compfed/algorithms/scaffold.py")
        == "../reference/methods/Scaffold.md"
    )
    assert links.page_of("index", "../examples/gallery/") == "gallery/index.rst"
    assert links.page_of("reference/index", "glossary.md") == "glossary.md"
    assert links.page_of("index", "https://example.org/a") == "https://example.org/a"
    for source in links.MADE_FROM:
        assert (ROOT / source).exists()
