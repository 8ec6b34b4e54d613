"""The pages of the documentation that people write, and their blocks of code."""

from __future__ import annotations

import re
from pathlib import Path

from places import ROOT

GENERATED = ("_build", "gallery", "api", "methods", "sg_execution_times.rst")  # by a build of the site
FROM_THE_CODE = {"bibliography.md", "command-line.md", "queries.md"}


def written_pages() -> list[Path]:
    """README and the pages that people write."""
    found = [path for path in sorted((ROOT / "docs").rglob("*.md")) if path.name not in FROM_THE_CODE]
    return [ROOT / "README.md", *(path for path in found if not set(path.parts) & set(GENERATED))]


def name_of(path: Path) -> str:
    """A short name for a test's title."""
    return path.relative_to(ROOT / "docs").as_posix() if path.is_relative_to(ROOT / "docs") else path.name


def blocks(path: Path, language: str) -> list[str]:
    """The blocks of code in one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
