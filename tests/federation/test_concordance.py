"""The AUC of masked sites (`Concordance`): it is always inside its bounds, these are narrow, and counts are in threes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import rankdata

import compfed as cf
from compfed.estimators.programs.scores import LinearModel, Part, concordance
from compfed.federation import DisclosurePolicy, InProcess, Refusal, Rows, Site
from compfed.federation.queries import Concordance
from compfed.federation.server.program import run_program
from compfed.federation.site.concordance import counts_of_others
from compfed.splits import Fold

CLASSES = np.array([0.0, 1.0])
MODEL = LinearModel(cf.losses.Logistic(), np.array([[1.0]]), np.zeros(1), CLASSES, None)


def masked(sizes: list[int], events: float, seed: int, ties: bool = False) -> tuple[InProcess, np.ndarray, np.ndarray]:
    """Sites that mask their sums, and all their rows: one column, larger for the events."""
    rng, sites = np.random.default_rng(seed), list[Site]()
    for i, n in enumerate(sizes):
        y = (rng.permutation(n) < round(events * n)).astype(float)
        a = 1.2 * y + rng.normal(size=n) * (1 + 0.3 * rng.random())
        a = np.rint(4 * a) / 4 if ties else a
        sites.append(Site(Rows(a[:, None], y, name=f"s{i}", index=i), policy=DisclosurePolicy(), secure_sum=True))
    z, y = (np.concatenate(part) for part in ([s.rows.features[:, 0] for s in sites], [s.rows.labels for s in sites]))
    return InProcess(sites, exact=True), z, y


def exact_auc(z: np.ndarray, y: np.ndarray) -> float:
    m, n = (y == 1).sum(), (y == 0).sum()
    return float((rankdata(z)[y == 1].sum() - m * (m + 1) / 2) / (m * n))


def bounds(federation: InProcess, parts: list[Part], y: np.ndarray) -> tuple[float, float]:
    return run_program(federation, concordance(parts, np.array([(y == 0).sum(), (y == 1).sum()], float)))[0]


@pytest.mark.parametrize(
    ("sizes", "events", "width"),
    [
        ([200] * 4, 0.5, 0.03),
        ([200] * 4, 0.1, 0.03),
        ([200] * 4, 0.9, 0.03),
        ([200] * 3, 0.5, 0.03),
        ([50] * 16, 0.5, 0.09),
    ],
)
def test_the_auc_is_inside_narrow_bounds(sizes, events, width):
    for seed in range(3):
        federation, z, y = masked(sizes, events, seed)
        low, high = bounds(federation, [Part(MODEL)], y)
        assert low - 1e-12 <= exact_auc(z, y) <= high + 1e-12
        assert high - low <= width


def test_ties_count_half():
    for seed in range(3):
        federation, z, y = masked([150, 120, 100], 0.3, seed, ties=True)
        low, high = bounds(federation, [Part(MODEL)], y)
        assert low - 1e-12 <= exact_auc(z, y) <= high + 1e-12


def test_rows_of_all_folds_are_ranked_together():
    """Each fold has a model of its own; the AUC is that of all scores together, as pooled out-of-fold predictions have it."""
    federation, z, y = masked([200] * 4, 0.3, 0)
    folds = [Fold(k, 5, 0, np.zeros(4, int), True, held_out=True) for k in range(5)]
    parts = [
        Part(replace(MODEL, coef=np.array([[1.0 + 0.1 * k]]), intercept=np.array([0.2 * k])), fold)
        for k, fold in enumerate(folds)
    ]
    low, high = bounds(federation, parts, y)
    fold_of = np.concatenate([np.asarray(site.rows.buckets_of_rows) % 5 for site in federation.sites])
    scores = z * (1.0 + 0.1 * fold_of) + 0.2 * fold_of
    assert low - 1e-12 <= exact_auc(scores, y) <= high + 1e-12
    assert high - low <= 0.03


def test_an_evaluation_over_masked_sites_has_these_bounds():
    federation, z, y = masked([200] * 4, 0.3, 1)
    model = cf.FederatedLogisticRegression(alpha=0.01).fit_federation(federation)
    found = model.evaluate(federation)
    assert found.auc.rounding_low <= exact_auc(z, y) <= found.auc.rounding_high
    assert found.auc.rounding_high - found.auc.rounding_low <= 0.03
    folds = model.evaluate(federation, cv=5)
    assert folds.auc.rounding_high - folds.auc.rounding_low <= 0.03


def test_counts_are_whole_threes_and_bounds_contain_those_of_others():
    federation, _, y = masked([60, 50, 70], 0.4, 2)
    run_program(federation, concordance([Part(MODEL)], np.array([(y == 0).sum(), (y == 1).sum()], float)))
    edges, none = np.linspace(-3, 3, 50), np.empty(0)
    query: Any = Concordance(MODEL.objective, MODEL.x[None], (None,), 1, edges, none)
    replies: list[Any] = [site.reply([query])[0] for site in federation.sites]
    each = [reply.below for reply in replies]
    truth = [[((s.rows.features[:, 0] <= e) & (s.rows.labels == 0)).sum() for e in edges] for s in federation.sites]
    for below, counts in zip(each, truth, strict=True):
        assert (below % 3 == 0).all()
        assert ((counts - below >= 0) & (counts - below <= 2)).all()
    totals = np.append(np.sum(each, axis=0), (y == 0).sum())
    mine = int((federation.sites[0].rows.labels == 0).sum())
    low, high = counts_of_others(totals, each[0], mine, 2)
    rest = np.sum(truth[1:], axis=0)
    assert ((low <= rest) & (rest <= high[:-1])).all()
    assert high[-1] == (y == 0).sum() - mine


def test_without_masks_no_threes_are_counted():
    federation, _, _ = masked([60, 50, 70], 0.4, 2)
    rows = federation.sites[0].rows
    plain = Site(Rows(rows.features, rows.labels, name="plain", index=0), policy=DisclosurePolicy())
    (reply,) = plain.reply([Concordance(MODEL.objective, MODEL.x[None], (None,), 1, np.array([0.0]), np.empty(0))])
    assert isinstance(reply, Refusal)
    assert "only where sums are masked" in reply.reason
