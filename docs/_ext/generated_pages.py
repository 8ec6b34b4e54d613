"""Pages that are written from the code at every build: methods, the API, queries, the command line, the bibliography.

Nothing here is typed by hand, so nothing of it can be out of date. The pages go to folders that git ignores (`PAGES`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import api_pages
import method_pages
from sphinx.application import Sphinx
from sphinx.util import logging

log = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the pages before Sphinx looks for sources."""
    app.connect(
        "config-inited", lambda app, config: write_pages(Path(app.srcdir), Path(app.outdir), quick=bool(config.QUICK))
    )
    app.add_config_value("QUICK", False, "env", bool)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write_pages(docs: Path, out: Path, *, quick: bool) -> None:
    """Write every generated page below `docs/reference`; remove those that are left from another build."""
    os.environ["NO_COLOR"], os.environ["COLUMNS"] = "1", "96"
    reference = docs / "reference"
    pages = {f"api/{name}": text for name, text in api_pages.pages().items()}
    pages |= {"command-line.md": api_pages.command_line(), "queries.md": api_pages.queries()}
    pages |= {"bibliography.md": method_pages.bibliography()}
    figures = {} if quick else method_pages.figures(out.parent / "method-figures")
    pages |= {f"methods/{name}": text for name, text in method_pages.pages(figures).items()}
    pages |= {f"methods/{name}.svg": text for name, text in figures.items()}
    for folder in ("api", "methods"):
        (reference / folder).mkdir(parents=True, exist_ok=True)
        for old in (reference / folder).iterdir():
            if f"{folder}/{old.name}" not in pages:
                old.unlink()
    for name, text in pages.items():
        path = reference / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # a page that is as it was is not read again
            path.write_text(text, encoding="utf-8")
    log.info("wrote %d pages from the code", len(pages))
