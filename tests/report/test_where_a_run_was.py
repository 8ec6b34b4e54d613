"""A result says where the rows were, and what was on the way: one process, or sites across a network."""

from __future__ import annotations

import io
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import redirect_stderr
from typing import Any

import numpy as np
import pytest
from network.memory_link import assert_whole_messages, furnish, number_of, remote, without_framing

import compfed as cf
from compfed.cli import main
from compfed.estimators.export import result_of
from compfed.federation import InProcess
from compfed.report import words
from compfed.report.page import page_text

UNTRUE_HERE = ("Each site read", "left its site", "site sent", "left the sites", "What left", "sent by a site")


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    """Words and tables are all that is looked at."""
    for module in ("bokeh", "matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)


def sites() -> cf.data.Sites:
    rng = np.random.default_rng(2)
    A = [rng.standard_normal((m, 3)) for m in (20, 24, 16)]
    y = [a @ [1.0, 0.0, -0.5] + 0.1 * rng.standard_normal(len(a)) for a in A]
    return cf.data.from_arrays(A, y, ["north", "south", "east"])


def shown(record: dict[str, Any]) -> str:
    """The text of a page, without tags."""
    return re.sub(r"<[^>]*>", " ", page_text(record))


def kilobytes(text: str, pattern: str) -> float:
    """A number of bytes in a text."""
    found = re.search(pattern.replace("SIZE", r"([\d.]+) (bytes|kB|MB)"), text)
    assert found is not None, text
    return float(found[1]) * {"bytes": 1e-3, "kB": 1.0, "MB": 1e3}[found[2]]


def test_a_rehearsal_says_so_and_names_what_a_network_would_carry():
    """The oracle of the bytes is the same fit with the exact sums of a network, whose page gives its count as it is."""
    model = cf.FederatedLassoCV(cv=3, n_alphas=12).fit_sites(sites())
    text = shown(model.to_result())
    assert "Fitted to 60 rows of north, south, east. Rehearsal: all rows were in this process." in text
    assert not [words for words in UNTRUE_HERE if words in text]
    exact = cf.FederatedLassoCV(cv=3, n_alphas=12).fit_federation(InProcess(sites(), exact=True))
    there = exact.communication_.bytes_up / 1e3
    pattern = f"A network would have carried {exact.n_rounds_} messages to each of 3 sites, and SIZE from each"
    said = kilobytes(text, pattern.replace("SIZE", "about SIZE or more"))
    assert there / 3 < said < 1.1 * there
    text = shown(exact.to_result())
    assert kilobytes(text, pattern) == pytest.approx(there, rel=5e-3)
    assert "double precision" not in text
    assert not [words for words in UNTRUE_HERE if words in text]


def test_a_comparison_of_sites_and_a_fit_of_files_are_rehearsals_too(tmp_path, capsys):
    text = shown(cf.compare_local_federated(cf.FederatedLasso(0.1), sites()).to_result())
    assert "Rehearsal: all rows were in this process." in text
    assert not [words for words in UNTRUE_HERE if words in text]
    for name, A, y in zip(sites().names, sites().features, sites().labels, strict=True):
        lines = ["a,b,c,y", *(",".join(map(repr, row)) for row in np.column_stack([A, y]).tolist())]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    paths = [str(tmp_path / f"{name}.csv") for name in sites().names]
    argv = ["--label", "y", "--model", "lasso", "--alpha", "0.1", "--evaluate", "none", "--out", str(tmp_path / "run")]
    assert main(["fit", *paths, *argv]) == 0
    assert (
        "60 rows of 3 sites: 3 columns make 3 features.\nNo row was left out.\nRehearsal: all rows were in this process.\n"
        in capsys.readouterr().out
    )
    text = re.sub(r"<[^>]*>", " ", (tmp_path / "run" / "report.html").read_text())
    assert "Rehearsal: all rows were in this process." in text
    assert not [words for words in UNTRUE_HERE if words in text]
    with redirect_stderr(io.StringIO()) as said:
        cf.FederatedLasso(0.1, verbose=True).fit_sites(sites())
    assert "messages to each of 3 site(s)\n" in said.getvalue()
    assert "up from each" not in said.getvalue()


def test_the_report_of_a_network_has_what_was_sent_and_the_problems_on_the_way(tmp_path):
    federation, link = remote(furnish(tmp_path, sites()))
    lost, bodies = iter([True]), defaultdict[int, np.ndarray](lambda: np.zeros(2))  # bytes down and up of each message

    def counted(name: str, data: bytes, reply: Callable[[], bytes]) -> bytes | None:
        bodies[number_of(data)] += len(data), 0
        if name == "south" and next(lost, False):
            return None
        sent = reply()
        bodies[number_of(data)] += 0, len(sent)
        return sent

    link.meddle = counted
    with federation:
        model = cf.FederatedLasso(0.1).fit_federation(federation)
        evaluation = model.evaluate(federation)
    record = result_of(model, evaluation)
    text = shown(record)
    assert "Fitted to 60 rows of north, south, east. Each site read its own rows." in text
    assert "Rehearsal" not in text
    assert "would have" not in text
    assert "would leave" not in text
    # every message of the fit went to every site once, and to one of them twice
    count = len([name for name, _ in link.sent if name == "north"])
    said = re.search(
        r"(\d+) messages to each of 3 sites; each site sent .* The evaluation took (\d+) messages more", text
    )
    assert said is not None
    assert int(said[1]) + int(said[2]) + 1 == count  # the first one asks the site to enrol
    fit = 1 + int(said[1])
    sizes = np.array([bodies[k] / 3 for k in range(1, count + 1)])
    (down, up), (_, scored) = sizes[:fit].sum(axis=0), sizes[fit:].sum(axis=0)
    assert kilobytes(text, "each site sent SIZE on average") == pytest.approx(up / 1e3, rel=5e-3)
    assert kilobytes(text, f"{said[2]} messages more, and SIZE from each site") == pytest.approx(scored / 1e3, rel=5e-3)
    # the byte axis ends with the whole fit, and between two points are whole messages
    trace = record["trace"]
    assert (trace["bytes_down"][-1], trace["bytes_up"][-1]) == pytest.approx((down, up), rel=1e-12)
    assert_whole_messages(trace, sizes[:fit])
    here = InProcess(sites(), exact=True)
    same = cf.FederatedLasso(0.1).fit_federation(here)
    assert without_framing(model.communication_) == without_framing(same.communication_)
    assert without_framing(evaluation.communication) == without_framing(same.evaluate(here).communication)
    for query in record["communication"]["queries"]:
        assert query["leaves"].capitalize() in text
    assert re.search(r"problems on the way\s+1\b", text)
    assert "message 1, site south: no reply in time" in text


def test_a_record_that_does_not_say_where_it_ran_claims_nothing(tmp_path):
    model = cf.FederatedLasso(0.1).fit_sites(sites())
    record = model.to_result()
    del record["place"]
    text = shown(record)
    assert "Fitted to 60 rows of north, south, east. " in text
    assert "Rehearsal" not in text
    assert not [words for words in UNTRUE_HERE if words in text]
    cf.save_model(model, tmp_path)
    text = shown(cf.load_model(tmp_path).to_result())
    assert not [words for words in (*UNTRUE_HERE, "Rehearsal") if words in text]


def test_a_method_that_sends_models_is_not_said_to_send_sums_only():
    for algorithm, sends in (("ProximalNewton", False), ("DecoupledProx", True)):
        model = cf.FederatedLasso(0.1, algorithm=algorithm, tol=1e-3).fit_sites(sites())
        moved = words.traffic(model.to_result())
        assert moved is not None
        assert (
            ("models after local steps" in " ".join(moved[1]))
            == ("LocalUpdate" in model.communication_.by_query)
            == sends
        )
