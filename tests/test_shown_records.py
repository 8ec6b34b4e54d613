"""Records in a log, on a screen and in a notebook: one line each, and tables whose texts are escaped."""

from __future__ import annotations

import io
import logging
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import compfed as cf
from compfed._utils.html_table import html_table
from compfed.errors import InputError

EVIL = "<script>alert(1)</script>&\"'\x1b[2J"


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y, sites = X[:, 0] + rng.normal(size=60) > 0, np.repeat([EVIL, "b", "c"], 20)
    model = cf.FederatedLogisticRegression(alpha=0.05).fit(X, y, sites=sites)
    sites_of_problem = cf.data.synthetic(clients=3, samples=20, features=40)
    problem = cf.Problem(cf.losses.Squared(), cf.regularisers.L1(0.01), sites_of_problem)
    trace = cf.simulate(problem, cf.algorithms.FISTA(eta=0.05), 40, record_every=1)
    path = cf.regularisation_path(cf.FederatedLasso(), X, y.astype(float), sites=sites, n_alphas=3)
    evaluation = model.evaluate(X, y, sites=sites, per_site=True)
    solution = cf.solve_federated(problem)
    return {
        "model": model, "evaluation": evaluation, "auc": evaluation.auc, "roc": evaluation.roc, "trace": trace, "path": path,
        "calibration": evaluation.calibration, "certificate": model.certificate_, "cost": model.communication_,
        "federated": solution, "pooled": cf.solve_pooled(problem), "state": trace.state, "table": cf.describe(sites_of_problem),
    }  # fmt: skip


def test_every_repr_is_one_line(records):
    for name, record in records.items():
        assert "\n" not in repr(record), name
        assert len(repr(record)) < 400, (name, repr(record))


class Text(HTMLParser):
    """The texts of a page and its elements."""

    def __init__(self, page: str):
        super().__init__()
        self.elements, self.texts = list[str](), list[str]()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        assert not attrs
        self.elements.append(tag)

    def handle_data(self, data):
        self.texts.append(data)


@pytest.mark.parametrize("name", ["evaluation", "certificate", "cost", "trace", "federated", "pooled"])
def test_in_a_notebook_it_is_a_table_with_its_numbers(records, name):
    page = Text(records[name]._repr_html_())
    assert set(page.elements) <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    said = " ".join(page.texts)
    expected = {
        "evaluation": f"{records['evaluation'].brier:.3f}", "certificate": records["certificate"].words,
        "cost": f"{records['cost'].bytes_up / 1e3:.1f}", "trace": f"{records['trace']['objective'][-1]:.6g}",
        "federated": records["federated"].certificate.words, "pooled": f"{records['pooled'].objective:.12g}",
    }  # fmt: skip
    assert expected[name] in said


def test_names_of_sites_are_escaped(records):
    page = records["evaluation"]._repr_html_()
    assert "<script" not in page
    assert "\x1b" not in page
    assert "<script>alert(1)</script>&\"'\\x1b[2J" in Text(page).texts
    for text in (html_table(EVIL, [[EVIL, EVIL]], [EVIL, EVIL]),):
        assert set(Text(text).elements) == {"table", "caption", "thead", "tbody", "tr", "th", "td"}


# --- the logger ---


def test_verbose_reports_to_the_logger_where_somebody_listens(caplog, capsys):
    X, y = np.random.default_rng(1).normal(size=(30, 2)), np.arange(30.0)
    model = cf.FederatedLasso(alpha=0.1, verbose=True)
    with caplog.at_level(logging.INFO, logger="compfed"):
        model.fit(X, y, sites=None)
    lines = [record.getMessage() for record in caplog.records if record.name == "compfed"]
    assert re.match(r"FederatedLasso: \d+/\d+", lines[0])
    assert re.match(r"FederatedLasso: tol=1e-12 reached; \d+ messages", lines[-1])
    assert capsys.readouterr().err == ""
    caplog.clear()
    model.fit(X, y, sites=None)  # nobody listens at this level: the error stream, as without any logging
    assert "tol=1e-12 reached" in capsys.readouterr().err
    assert not caplog.records


def test_a_stream_that_was_given_gets_the_progress_whoever_listens(caplog):
    out = io.StringIO()
    with caplog.at_level(logging.INFO, logger="compfed"):
        cf.progress_bar("rounds", out, quiet=0)(5, 5)
    assert out.getvalue() == "rounds: 5/5, 0 s\n"


def test_errors_are_still_errors():
    with pytest.raises(InputError):
        cf.FederatedLasso(verbose="yes").fit([[0.0]], [1.0], sites=None)  # pyright: ignore[reportArgumentType]
