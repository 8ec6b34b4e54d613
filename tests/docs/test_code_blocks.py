"""Every Python block of README.md and of the pages runs, in order, in a folder of its own; every command line is understood."""

from __future__ import annotations

import re
import shlex

import pytest
from pages import blocks, name_of, written_pages
from places import ROOT

from compfed.cli import _parser

ELSEWHERE = {"howto/deploy.md"}  # tests/network/test_docs.py
# compiles a network (tests/studies/test_example_network.py runs the example itself); many methods, seeds and settings
SLOW = {"howto/sparse-network.md", "howto/compare-methods.md"}
WITH_CODE = [path for path in written_pages() if blocks(path, "python") and name_of(path) not in ELSEWHERE]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=name_of(path), marks=[pytest.mark.thorough] * (name_of(path) in SLOW))
        for path in WITH_CODE
    ],
)
def test_documented_code_runs(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    names: dict = {}
    for block in blocks(path, "python"):
        exec(compile(block, name_of(path), "exec"), names)


def test_the_pages_with_code_were_found():
    assert {"README.md", "start/first-fit.md", "howto/estimators.md", "explanation/averaging.md"} <= set(
        map(name_of, WITH_CODE)
    )


COMMANDS = [
    pytest.param(line, id=f"{name_of(path)}: {line[:60]}")
    for path in written_pages()
    for block in blocks(path, "sh")
    for line in block.replace("\\\n", " ").splitlines()  # a command may go on in the next line
    if line.startswith("compfed ") and "--version" not in line
]


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_of_a_page_exists(line):
    assert _parser().parse_args(shlex.split(line, comments=True)[1:]).run is not None


TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


@pytest.mark.parametrize("path", written_pages(), ids=name_of)
def test_every_make_target_of_a_page_exists(path):
    text = path.read_text(encoding="utf-8")
    said = set(re.findall(r"`(?:[A-Z_]+=\S+ )?make ([a-z-]+)", text))
    said |= {line.split()[1] for block in blocks(path, "sh") for line in block.splitlines() if line.startswith("make ")}
    assert said <= TARGETS


@pytest.mark.parametrize("path", written_pages(), ids=name_of)
def test_paragraphs_are_short(path):
    """At most five sentences to a paragraph or an entry of a list; more becomes a list, a table or two paragraphs."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`", "code", text)
    paragraphs = [p for p in re.split(r"\n\s*\n|\n(?=\s*- |\d+\. )", text) if not p.lstrip().startswith(("|", "#"))]
    long = [p for p in paragraphs if len(re.findall(r"[.!?](?=\s+[A-Z*\[]|\s*$)", p)) > 5]
    assert long == []
