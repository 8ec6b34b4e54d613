"""The numbers of messages that docs/explanation/few-rounds.md states, counted anew. Oracle: the page (README quotes it)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from places import ROOT
from test_estimators import CASES

import compfed as cf

PAGE = (ROOT / "docs" / "explanation" / "few-rounds.md").read_text(encoding="utf-8")
NUMBER = r"(\d[\d,]*)"
STATED = {
    name: (int(before.replace(",", "")), int(after.replace(",", "")))
    for name, before, after in re.findall(rf"^\| ([^|]+) \| {NUMBER} \| {NUMBER} \|$", PAGE, flags=re.MULTILINE)
}
SHARES = {"30 of 30": np.inf, "26 of 30": 0.33, "8 of 30": 0.1}
COLUMNS = {
    shown: [[int(n) for n in cell.split(" and ")] for cell in cells]
    for shown, *cells in re.findall(
        r"^\| (\d+ of 30) [^|]*\| (\d+ and \d+) \| (\d+ and \d+) \|$", PAGE, flags=re.MULTILINE
    )
}


def near(stated: int) -> object:
    """Another CPU rounds otherwise, which may move the end of a long search by a few messages."""
    return stated if stated <= 20 else pytest.approx(stated, rel=0.02)


def drawn(seed: int, rows: int = 80) -> cf.data.Sites:
    """The draws of the page's code: four sites with 30 columns."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(4 * rows, 30))
    risk = 1 / (1 + np.exp(-X[:, :5].sum(axis=1)))
    return cf.data.from_table(X, (rng.uniform(size=4 * rows) < risk).astype(int), np.repeat(range(4), rows))


def fitted(model, sites: cf.data.Sites, share: float):
    policy = cf.federation.DisclosurePolicy(max_hessian_share=share)
    return model.fit_federation(cf.federation.InProcess(sites, policy=policy))


def test_the_page_states_every_case():
    assert set(STATED) == set(CASES)
    assert set(COLUMNS) == set(SHARES)
    counts = [after for _, after in STATED.values()]
    few = sum(3 <= n <= 13 for n in counts)
    assert f"{few} of these {len(counts)} fits take 3 to 13 messages" in PAGE


def copied(model: Any, **settings: Any) -> Any:
    """The model before any fit: other tests fit those of CASES."""
    return model.__class__(**model.get_params() | settings)


@pytest.mark.parametrize("name", CASES)
def test_messages_of_a_fit(name):
    model, table = CASES[name]
    X, y, sites = table()
    assert copied(model).fit(X, y, sites=sites).n_rounds_ == near(STATED[name][1])


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_messages_of_first_order_rounds(name):
    model, table = CASES[name]
    X, y, sites = table()
    kinds = "AcceleratedDecoupledProx", "FISTA"
    fits = [copied(model, algorithm=kind).fit(X, y, sites=sites) for kind in kinds]
    assert all(fit.certificate_.holds for fit in fits)
    assert min(fit.n_rounds_ for fit in fits) == near(STATED[name][0])


@pytest.mark.parametrize("shown", SHARES)
@pytest.mark.parametrize("seed", [0, 1])
def test_messages_where_sites_refuse_columns(shown, seed):
    found = fitted(cf.FederatedLogisticRegression(alpha=0.01), drawn(seed), SHARES[shown])
    assert found.n_rounds_ == near(COLUMNS[shown][0][seed])
    in_code = dict(re.findall(r"(inf|0\.\d+): (\d+)", PAGE.partition("print(messages)  # ")[2].partition("\n")[0]))
    assert int(in_code[f"{SHARES[shown]:g}"]) == COLUMNS[shown][0][0]


@pytest.mark.thorough
@pytest.mark.parametrize("shown", SHARES)
@pytest.mark.parametrize("seed", [0, 1])
def test_messages_of_folds_where_sites_refuse_columns(shown, seed):
    found = fitted(cf.FederatedLogisticRegressionCV(cv=5), drawn(seed), SHARES[shown])
    assert found.n_rounds_ == near(COLUMNS[shown][1][seed])


@pytest.mark.thorough
def test_messages_of_sites_with_a_hundred_rows():
    single, folds = re.findall(
        rf"Four such sites of 100 rows took {NUMBER} messages\s+for a fit, and {NUMBER} for", PAGE
    )[0]
    sites = drawn(0, rows=100)
    assert fitted(cf.FederatedLogisticRegression(alpha=0.01), sites, 0.33).n_rounds_ == int(single)
    assert fitted(cf.FederatedLogisticRegressionCV(cv=5, eps=0.01), sites, 0.33).n_rounds_ == near(int(folds))


def test_messages_of_a_path_with_folds():
    fits, messages = re.findall(rf"are {NUMBER} fits in {NUMBER} messages", PAGE)[0]
    table = cf.data.bundled.breast_cancer()
    found = cf.FederatedLogisticRegressionCV(n_alphas=20, cv=5).fit(table.X, table.y, sites=table.sites)
    assert (found.n_fits_, found.n_rounds_) == (int(fits), near(int(messages)))
