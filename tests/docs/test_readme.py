"""README.md and the other pages at the root: their links exist, and the figures of README are those of the pages that it quotes."""

from __future__ import annotations

import re

import pytest
from places import ROOT

from compfed._utils.text import PROMISE
from compfed.algorithms import ALGORITHMS
from compfed.network.site_settings import SiteSettings, disclosure_text, init
from compfed.report.run_result import NETWORK
from compfed.report.words import traffic
from compfed.studies.paper import claims

README = (ROOT / "README.md").read_text(encoding="utf-8")
FLAT = re.sub(r"\s+", " ", README)
LINKS = [
    (page.name, link)
    for page in sorted(ROOT.glob("*.md"))
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    if not re.match(r"[a-z]+:", link)
]


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the tables below a heading of level 2."""
    (section,) = re.findall(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE)
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")
    ]


def anchors(text: str) -> set[str]:
    """As a reader of Markdown on the web names the headings."""
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(("name", "link"), LINKS, ids=[f"{name}: {link}" for name, link in LINKS])
def test_a_link_of_a_page_at_the_root_exists(name, link):
    path, _, anchor = link.partition("#")
    target = ROOT / (path or name)
    assert target.exists()
    assert not anchor or anchor in anchors(target.read_text(encoding="utf-8"))


def test_the_links_were_found():
    assert {name for name, _ in LINKS} >= {"README.md", "CONTRIBUTING.md", "SECURITY.md"}
    assert ("README.md", "src/compfed/algorithms/decoupled_prox.py") in LINKS


def test_the_claims_are_counted_apart():
    """Oracle: the places that the source names, one for each claim."""
    source = (ROOT / "src/compfed/studies/paper/claims.py").read_text(encoding="utf-8")
    where = re.findall(r'^@_claim\(.*, "([^"]+)"\)$', source, flags=re.MULTILINE)
    assert len(where) == len(claims.CHECKS)
    beyond = where.count("beyond the paper")
    assert f"{len(where) - beyond} of {len(where) - beyond} claims reproduced, and {beyond} of our own" in FLAT
    assert f"each of the {len(ALGORITHMS)} methods" in FLAT


def test_the_messages_are_those_of_the_page():
    text = page("explanation/few-rounds.md")
    fits = [cells for cells in rows(text, "Rounds before and after") if cells[-1].replace(",", "").isdigit()]
    before, after = ([int(cells[k].replace(",", "")) for cells in fits] for k in (1, 2))
    few = [n for n in after if 3 <= n <= 13]
    assert f"{len(few)} of the {len(fits)} fits" in FLAT
    assert f"first-order methods take {min(before)} to {max(before):,}" in FLAT
    assert f"Huber regression takes up to {max(after)}" in FLAT
    assert all(cells[0].find("huber") >= 0 for cells in fits if int(cells[2]) not in few)
    allowed = {cells[0].split(" (")[0]: cells[1:] for cells in rows(text, "Rounds before and after")}
    (fits_26, folds_26), (fits_8, folds_8) = allowed["26 of 30"], allowed["8 of 30"]
    assert f"such fits took {fits_26.split()[0]} messages" in FLAT
    assert (
        f"cross-validations {' and '.join(sorted(folds_26.split(' and ')))}; on 8 of 30, {fits_8}, and {folds_8}"
        in FLAT
    )
    ((_, first, now),) = [cells for cells in fits if cells[0] == "logistic, cancer"]
    assert f"took {first} messages by first-order rounds and takes {now}" in FLAT


def test_the_speeds_are_those_of_the_page():
    text = page("howto/performance.md")

    def times(heading: str, gradients: str) -> str:
        """The range of the ratio to a NumPy loop, as README rounds it: two digits."""
        ((*_, ratio),) = [c for c in rows(text, heading) if c[:2] == [gradients, "simulate"]]
        return " to ".join(f"{float(x):.0f}" if float(x) >= 10 else x for x in ratio.split(" to "))

    together, awake = "With `use_all_cores()` alone: cores may sleep while they wait", "A round, in one process"
    alone = "The same without `use_all_cores()`"
    assert f"mini-batches is {times(together, 'b=20')} times" in FLAT
    assert f"({times(alone, 'b=20')} without; {times(awake, 'b=20')} with `awake=True`" in FLAT
    assert f"full gradients {times(together, 'full')} times ({times(alone, 'full')} without)" in FLAT
    peers = {
        cells[0]: float(cells[4].split()[0]) for cells in rows(text, "Other engines") if cells[0].startswith("Flower")
    }
    polling, looking = (peers[f"Flower simulation{rest}"] for rest in ("", ", looking all the time"))
    assert f"takes {polling:.0f} times as long for the latter, and {looking:.0f} times where it looks" in FLAT
    (gpu,) = [c for c in rows(text, "Rounds on a GPU") if c[:2] == ["20000 x 256 x 64", "all rows"]]
    assert f"a round of 20,000 clients takes {gpu[2]} ms" in FLAT


@pytest.mark.parametrize("name", ["README.md", "SECURITY.md", "docs/explanation/what-leaves-a-site.md"])
def test_what_was_read_is_said(name):
    """Whoever decides reads first what was read, and what is done about it, in the same words everywhere."""
    text = re.sub(r"\s+", " ", (ROOT / name).read_text(encoding="utf-8"))
    assert "In November 2026 our own attack, with masks and the policy of that time, read all 521 of 521 rows" in text
    assert PROMISE in text.replace("> ", "")


def test_a_site_and_a_report_say_the_same(tmp_path):
    home = init(tmp_path, "north", "127.0.0.1:1")[0][0].parent
    assert PROMISE in disclosure_text(SiteSettings.read(home / "site.toml"))
    result = {"communication": {"rounds": 3, "bytes_up": 9.0, "queries": []}, "sites": ["a"], "place": NETWORK}
    found = traffic(result)
    assert found is not None
    assert PROMISE in found[1]


PROMISES = re.compile(
    r"\bno rows? (?:ever )?(?:leaves?|left)\b|rows? (?:cannot|can not|can never) be read"
    r"|\b(?:rows?|tables?|data|it|they) never leaves? (?:its|the|their) sites?\b"
    r"|\bno row can be read|\brows? (?:are|is) (?:safe|secret)\b|stayed at their sites|\bdefaults are safe\b",
    re.IGNORECASE,
)
KINDS = {".md", ".py", ".toml", ".html", ".svg", ".rst"}
FOLDERS = [ROOT / name for name in ("docs", "src", "examples")]
READ = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in folder.rglob("*.*") if path.suffix in KINDS)]


def test_nothing_promises_that_rows_cannot_be_read():
    """Sums can tell rows, so no page, docstring, report or message says otherwise."""
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in READ
        for match in PROMISES.finditer(re.sub(r"\s+", " ", path.read_text(encoding="utf-8")))
    ]
    assert found == []


def test_a_promise_is_found():
    """Sentences of earlier versions."""
    for said in (
        "compfed promises that no row can be read by anyone",
        "No row left its site.",
        "No row leaves its site for that.",
    ):
        assert PROMISES.search(said)
    assert not PROMISES.search("A private key never leaves its owner. Over a network rows stay at their site.")
