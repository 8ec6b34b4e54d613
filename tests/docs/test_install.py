"""No page and no message tells anybody to install `compfed` by its bare name: that name on a package index is not ours.

pip looks a bare name up at the index, with extras or without; a path (`.`, `./compfed`, a wheel) it takes from the disk.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from places import ROOT

from compfed.errors import MissingExtra

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
FROM_AN_INDEX = re.compile(
    rf"(?<![\w./-])compfed\s*\[\s*(?:{'|'.join(EXTRAS)}|{{)"  # a requirement with an extra
    r"|\b(?:install|add|download)\s+(?:-\S+\s+)*[\"'`]*compfed(?![\w./-]|\[)"  # pip install, uv add, pipx install, ...
)
OURS = Path(__file__).name
FOLDERS = ("src", "docs", "examples", "benchmarks", "tests")
KINDS = {".py", ".md", ".rst", ".toml", ".html", ".js", ".ini", ".yml"}
TEXTS = [ROOT / "Makefile", *ROOT.glob("*.md")] + [
    path for name in FOLDERS for path in (ROOT / name).rglob("*") if path.suffix in KINDS and path.name != OURS
]


@pytest.mark.parametrize("name", ["Makefile", *FOLDERS])
def test_nobody_is_told_to_install_from_an_index(name):
    texts = [
        path
        for path in TEXTS
        if path.relative_to(ROOT).parts[0] == name or (name == "Makefile" and path.parent == ROOT)
    ]
    assert texts
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in texts
        for match in FROM_AN_INDEX.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_message_about_a_missing_extra_names_a_path(extra):
    said = str(MissingExtra("some package", extra, "Something"))
    assert f"pip install '.[{extra}]'" in said
    assert not FROM_AN_INDEX.search(said)


@pytest.mark.parametrize(
    "line",
    [
        "pip install compfed",
        "pip install -U 'compfed[flower]'",
        "pipx install compfed",
        "uv add compfed",
        "python -m pip install --upgrade compfed==0.1",
        "the extra compfed[report]",
    ],
)
def test_a_bare_name_is_found(line):
    assert FROM_AN_INDEX.search(line)


@pytest.mark.parametrize(
    "line",
    [
        'pip install ".[report]"',
        "pip install ./compfed",
        "pip install 'dist/compfed-0.1.0-py3-none-any.whl[flower]'",
        "In a clone of compfed, run: pip install '.[flower]'",
    ],
)
def test_a_path_is_no_bare_name(line):
    assert not FROM_AN_INDEX.search(line)
