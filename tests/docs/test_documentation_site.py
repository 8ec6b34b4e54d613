"""The documentation site: it builds without a warning and a network, its links work, and every public name and method has a page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from pages import GENERATED, written_pages
from places import ROOT

import compfed as cf
from compfed._utils.text import markdown_table
from compfed.algorithms import ALGORITHMS
from compfed.solvers.second_order import SOLVERS
from compfed.studies.method_table import references

pytest.importorskip("sphinx_gallery", reason="the documentation site: pip install '.[docs]'")

pytestmark = pytest.mark.thorough  # run by `make docs`


@dataclass
class Page(HTMLParser):
    """The links, the anchors and the fetched files of a page."""

    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in ("script", "img", "source", "iframe") and "src" in found:
            self.fetched.append(found["src"])
        if tag == "link" and found.get("rel", "") in ("stylesheet", "icon", "preload", "preconnect"):
            self.fetched.append(found["href"])


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The site without the gallery's results, from a copy of the sources: a build writes beside them."""
    copy = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", copy / "docs", ignore=shutil.ignore_patterns(*GENERATED))
    shutil.copytree(ROOT / "examples", copy / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, copy)
    (copy / "src").symlink_to(ROOT / "src")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "docs", "build/html"]
    setting = os.environ | {
        "COMPFED_DOCS_QUICK": "1",
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
    }
    done = subprocess.run(command, cwd=copy, env=setting, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == ""
    return copy / "build" / "html"


@pytest.fixture(scope="module")
def pages(built) -> dict[Path, Page]:
    found = {}
    for path in built.rglob("*.html"):
        if path.is_relative_to(built / "_static"):  # a template of the theme
            continue
        found[path.resolve()] = page = Page()
        page.feed(path.read_text(encoding="utf-8"))
    return found


def broken(pages: dict[Path, Page]) -> Iterator[str]:
    """Links into the site that lead nowhere."""
    for path, page in pages.items():
        for link in page.links:
            address, anchor = urldefrag(link)
            if re.match(r"[a-z]+:", address):
                continue
            target = (path.parent / unquote(address)).resolve() if address else path
            if not target.exists():
                yield f"{path.name}: {link}"
            elif anchor and target.suffix == ".html" and unquote(anchor) not in pages[target].anchors:
                yield f"{path.name}: {link} has no such anchor"


def test_every_link_and_anchor_leads_somewhere(pages):
    assert len(pages) > 60
    assert sum(len(page.links) for page in pages.values()) > 4000
    assert list(broken(pages)) == []


def test_a_broken_link_is_found(pages):
    """The check itself: a page with a wrong anchor and a page that is not there."""
    path, page = next(item for item in pages.items() if item[0].name == "glossary.html")
    bad = Page(links=["#no-such-anchor", "nowhere.html"], anchors=page.anchors)
    assert len(list(broken({**pages, path: bad}))) == 2


def test_nothing_is_fetched_from_elsewhere(built, pages):
    for path, page in pages.items():
        for address in page.fetched:
            assert not re.match(r"(https?:)?//", address), f"{path.name}: {address}"
            assert (path.parent / unquote(urldefrag(address)[0].split("?")[0])).exists(), f"{path.name}: {address}"
    for style in built.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", style.read_text(encoding="utf-8")), style


def test_no_formula_was_read_as_emphasis(built):
    """Markdown takes the underscores of ||x||_1 and prox_{t g} for emphasis: write ‖x‖₁, or an indented block."""
    for path in built.rglob("*.html"):
        if "api" in path.parts:  # types of parameters are emphasised there
            continue
        found = re.findall(r"(?<!\()<em>([^<]*[_={}|^][^<]*)</em>", path.read_text(encoding="utf-8"))
        assert found == [], path


def test_every_public_name_is_in_the_reference(pages):
    anchors = set().union(*(page.anchors for page in pages.values()))
    modules = {
        "algorithms": cf.algorithms,
        "losses": cf.losses,
        "regularisers": cf.regularisers,
        "federation": cf.federation,
    }
    names = {f"compfed.{name}" for name in cf._HOME} | {
        f"compfed.{key}.{name}"
        for key, module in modules.items()
        for name in module.__all__
        if callable(getattr(module, name)) and getattr(getattr(module, name), "__module__", "").startswith("compfed")
    }
    top = {name.rpartition(".")[2] for name in anchors if name.startswith("compfed.")}
    assert {name for name in names if name not in anchors and name.rpartition(".")[2] not in top} == set()
    assert len(names) > 130


@pytest.mark.parametrize("name", [*ALGORITHMS, *SOLVERS])
def test_the_page_of_a_method_has_its_paper_and_its_messages(built, name):
    text = (built / "reference" / "methods" / f"{name}.html").read_text(encoding="utf-8")
    cls = (ALGORITHMS | SOLVERS)[name]
    assert cls.citation.title in text  # pyright: ignore[reportOptionalMemberAccess]
    if name in ALGORITHMS:
        assert "server to client" in text
        assert "Deviations" in text
        assert (built / "reference" / "methods" / "index.html").read_text().count(f"{name}.html") >= 1


def test_the_bibliography_has_every_paper(built):
    text = (built / "reference" / "bibliography.html").read_text(encoding="utf-8")
    for name, _ in references([*ALGORITHMS.values(), *SOLVERS.values()]):
        citation = (ALGORITHMS | SOLVERS)[name].citation
        assert citation is not None
        assert citation.title in text
        assert citation.authors in text


def test_the_table_of_methods_is_not_pasted_anywhere():
    """It is made at build time, so that it cannot be out of date."""
    row = markdown_table(["DecoupledProx", "Zhang 2024"], []).splitlines()[0].rstrip(" |")
    for path in written_pages():
        assert row not in path.read_text(encoding="utf-8"), path


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


# tables that are wider than the place they have
WIDER = """() => Array.from(document.querySelectorAll(".bd-article table"))
  .filter((table) => table.scrollWidth > table.parentElement.clientWidth + 1).map((table) => table.innerText.slice(0, 40))"""


def test_the_pages_of_the_api_are_short(built):
    """Every class has a page of its own, with where it is used; the page of a topic only lists them."""
    api = built / "reference" / "api"
    topic = (api / "estimators.html").read_text(encoding="utf-8")
    assert "FederatedLasso" in topic
    assert 'class="sig sig-object py"' not in topic
    own = (api / "estimators.FederatedLasso.html").read_text(encoding="utf-8")
    assert "<math" in own
    assert "Used in" in own


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_in_a_browser_from_the_disk(built):
    """Search works without a server, pages log no error and fetch nothing, and none is wider than a phone."""
    api = pytest.importorskip("playwright.sync_api", reason="drives the browser: pip install playwright")
    errors: list[str] = []
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda r: errors.append(r.url) if not r.url.startswith(("file:", "data:")) else None)
        page.goto(f"file://{built}/search.html?q=gradient+mapping")
        page.wait_for_selector("ul.search li", timeout=20_000)
        assert "Certificates" in page.inner_text("ul.search")
        for words, title in (
            ("confidence+interval", "Standard errors and intervals"),
            ("docker", "For an IT administrator"),
        ):
            page.goto(f"file://{built}/search.html?q={words}")
            page.wait_for_selector("ul.search li", timeout=20_000)
            assert title in page.inner_text("ul.search")
        for name in (
            "index",
            "explanation/few-rounds",
            "reference/methods/index",
            "reference/api/estimators",
            "howto/deploy",
        ):
            page.goto(f"file://{built}/{name}.html")
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
            assert page.evaluate(WIDER) == [], name
        page.set_viewport_size({"width": 1280, "height": 900})
        for name in ("explanation/few-rounds", "reference/methods/index", "howto/performance", "reference/glossary"):
            page.goto(f"file://{built}/{name}.html")
            assert page.evaluate(WIDER) == [], name
        page.goto(f"file://{built}/reference/api/estimators.FederatedLassoCV.html")
        assert page.locator("math").count() >= 1
        assert page.evaluate("document.documentElement.scrollHeight") < 8_000
        page.locator(".copy-button").first.click()
        page.locator(".copy-button", has_text="Copied").first.wait_for(timeout=10_000)
        browser.close()
    assert errors == []


def test_what_is_in_the_search_index(built):
    """Search runs in the browser on a file of this site."""
    index = (built / "searchindex.js").read_text(encoding="utf-8")
    assert "reference/methods/DecoupledProx" in index
    assert "howto/deploy" in index
