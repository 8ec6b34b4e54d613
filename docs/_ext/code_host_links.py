"""Links from written pages to pages that exist only after a build.

On a code host nothing is built. So a written page links to the source that a page is made from (`../../src/compfed/losses/`), which
is there to be read, and a build turns the link into one to the page (`../reference/api/losses.rst`).
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from sphinx.application import Sphinx

PACKAGE = "src/compfed"
MADE_FROM = {  # source from the root of the repository: page from docs/
    PACKAGE: "reference/api/index.rst",
    f"{PACKAGE}/estimators": "reference/api/estimators.rst",
    f"{PACKAGE}/data": "reference/api/data.rst",
    f"{PACKAGE}/federation": "reference/api/federation.rst",
    f"{PACKAGE}/losses": "reference/api/losses.rst",
    f"{PACKAGE}/regularisers": "reference/api/penalties.rst",
    f"{PACKAGE}/algorithms": "reference/methods/index.md",
    f"{PACKAGE}/federation/queries": "reference/queries.md",
    f"{PACKAGE}/cli": "reference/command-line.md",
    f"{PACKAGE}/studies/method_table.py": "reference/bibliography.md",
    "examples/gallery": "gallery/index.rst",
}
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def setup(app: Sphinx) -> dict[str, Any]:
    """Turn the links of every page that is read."""
    app.connect("source-read", turn)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def turn(app: Sphinx, name: str, source: list[str]) -> None:
    """Replace links to sources by links to the pages that are made from them."""
    source[0] = LINK.sub(lambda found: f"{found[1]}{page_of(name, found[2])}{found[3]}", source[0])


def page_of(name: str, target: str) -> str:
    """The page that is made from the target of a link on page `name`; any other target as it is."""
    if "://" in target:
        return target
    here = PurePosixPath("docs", name).parent
    made = made_from(os.path.normpath(here / target))
    return target if made is None else Path(os.path.relpath(PurePosixPath("docs", made), here)).as_posix()


def made_from(source: str) -> str | None:
    """The page below docs/ that is made from a file or folder of the repository."""
    path = PurePosixPath(source)
    if path.parent == PurePosixPath("examples/gallery") and path.suffix == ".py":
        return f"gallery/{path.stem}.rst"
    if path.parent == PurePosixPath(PACKAGE, "algorithms") and path.suffix == ".py":
        return _page_of_method(path.stem)
    return MADE_FROM.get(source)


def _page_of_method(module: str) -> str | None:
    from compfed.algorithms import ALGORITHMS

    names = [name for name, cls in ALGORITHMS.items() if cls.__module__ == f"compfed.algorithms.{module}"]
    return f"reference/methods/{names[0]}.md" if names else None
