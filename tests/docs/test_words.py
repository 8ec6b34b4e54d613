"""The field's words: no private word of earlier versions is left in README, pages, help texts or messages.

`docs/reference/glossary.md` has the words that we use. The list here has those that they replaced. Words that are ordinary English
too (question, answer, look, memory) are refused as names in code only.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import name_of, written_pages
from places import ROOT

from compfed.cli import _parser

# what was said: what to say
PRIVATE = {
    r"\bconvers(e|ed|ing)\b": "run a program",
    r"\bin_parallel\b": "gather",
    r"\bsteep(ness)?\b": "Lipschitz constant",
    r"\bleast_rows\b": "min_rows",
    r"\bcurvature_share\b": "max_hessian_share",
    r"\bValueAndGradient\b": "Evaluate",
    r"\bdealt\b": "assigned",
    r"\bunheard\b": "pending",
    r"\bmemories\b": "client states",
    r"\"ratio\"": "self-normalised",
    r"\bblown\b": "diverged",
    r"\bjudged\b": "compared, evaluated",
    r"\bonchip\b": "Pallas",
    r"\bsimulate_cohorts\b|\bcohorts?\b": "out of core, participants",
    r"\b(open_)?desk\b": "site",
    r"\bcourier\b": "Flower",
    r"\bpatience\b": "retry policy",
    r"\bjournal\b": "write-ahead log",
    r"\bended\.json\b": "status.json",
    r"\bseeded\b": "with_seed",
    r"\bnull search\b": "alpha_max",
    r"\bwho he is\b|\bin vain\b": "plain words",
    r"\bfor else\b|\bis no number\b|\bno promise of\b|\banswered alike\b|\blooked at alone\b|\bcome twice\b": "plain words",
    r"\bquestions? (about|of) (few|the rows|rows)": "queries",
}
# Ordinary English, but no longer names
NAMES = [
    "Talk", "Question", "Answer", "Refusals", "View", "Frame", "Part", "Share", "Listed", "Look", "Store", "Job", "Order", "Plan",
    "Memory", "Odds", "Guard", "Patience", "whole", "truth", "asked", "told", "looked", "slope", "critical", "turned", "suggested",
    "prepared",
]  # fmt: skip


def private_words(text: str) -> list[str]:
    return [
        f"{match.group()!r}: say {better}"
        for was, better in PRIVATE.items()
        for match in re.finditer(was, text, re.IGNORECASE)
    ]


def help_texts(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from help_texts(child)


def messages(path: Path) -> Iterator[str]:
    """The texts of a source file that may reach a reader: string literals that are not docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented) and ast.get_docstring(node) is not None
                  and isinstance(node.body[0], ast.Expr)}  # fmt: skip
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
            and " " in node.value
        ):
            yield node.value


TEXTS = [*written_pages(), ROOT / "CONTRIBUTING.md", *(ROOT / "src").rglob("*.toml"), *(ROOT / "src").rglob("*.html")]


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_pages_use_the_words_of_the_field(path):
    text = path.read_text(encoding="utf-8")
    assert private_words(text) == []
    assert [name for name in NAMES if re.search(rf"`(cf\.|compfed\.)?([a-z_.]+\.)?{name}(\(|`)", text)] == []


def test_help_texts_use_the_words_of_the_field():
    assert [word for text in help_texts(_parser()) for word in private_words(text)] == []


def test_messages_use_the_words_of_the_field():
    found = [
        (path.name, word)
        for path in (ROOT / "src").rglob("*.py")
        for text in messages(path)
        for word in private_words(text)
    ]
    assert found == []


def test_the_list_finds_what_it_is_for():
    assert private_words("rows are dealt, for else the least_rows of a cohort") != []
    assert private_words("log-odds, an odds ratio and the odds of a class") == []
