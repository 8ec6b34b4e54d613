"""Splits of rows: one rule for a table in this process and for sites that split their own rows."""

from __future__ import annotations

import numpy as np
import pytest

import compfed as cf
from compfed.data import from_table, held_out
from compfed.federation import InProcess
from compfed.splits import Fold, Holdout, SiteFold, apportion, training_rows


@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.75])
def test_a_table_and_its_sites_hold_out_the_same_rows(by_class, share):
    """Two comparisons with equal arguments must evaluate the same rows: `held_out` here, `Holdout` at the sites."""
    rng = np.random.default_rng(3)
    where, y = rng.choice(["c", "a", "b", "single"], 90, p=[0.5, 0.3, 0.19, 0.01]), rng.choice([0, 0, 1, 2], 90)
    X = np.arange(90.0)[:, None]  # the row number, to find a row again at its site
    out = held_out(where, share, seed=7, classes=y if by_class else None)
    sites = InProcess(from_table(X, y, where)).sites
    subset = Holdout(share, 7, by_class, held_out=True)
    at_sites = np.concatenate([site.rows.features[subset.mask(site.rows), 0] for site in sites]).astype(int)
    assert set(at_sites) == set(np.flatnonzero(out))
    kept = np.concatenate([site.rows.features[training_rows(subset).mask(site.rows), 0] for site in sites]).astype(int)
    assert sorted([*at_sites, *kept]) == list(range(90))


def test_both_comparisons_judge_the_same_rows():
    table = cf.data.bundled.diabetes()
    over_sites = cf.compare_local_federated(
        cf.FederatedLasso(0.5), InProcess(table.federation()), test_size=0.4, seed=1
    )
    out = held_out(table.sites, 0.4, seed=1)
    model = cf.FederatedLasso(0.5).fit(table.X[~out], table.y[~out], sites=table.sites[~out])
    error = (model.predict(table.X[out]) - table.y[out]) ** 2 / 2
    expected = [error[table.sites[out] == site].mean() for site in np.unique(table.sites)]
    np.testing.assert_allclose(over_sites.scores["mean loss"][-1, :-1], expected, rtol=1e-7)


def test_every_row_is_held_out_by_exactly_one_fold():
    rng = np.random.default_rng(0)
    sites = InProcess(from_table(np.ones((50, 1)), rng.integers(0, 3, 50), rng.integers(0, 4, 50))).sites
    first = np.concatenate([[0], np.cumsum([len(site.rows.labels) for site in sites])[:-1]])
    folds = [Fold(k, 5, 2, first, by_class=True, held_out=True) for k in range(5)]
    for site in sites:
        assert (np.sum([fold.mask(site.rows) for fold in folds], axis=0) == 1).all()
        for fold in folds:
            assert (fold.mask(site.rows) != training_rows(fold).mask(site.rows)).all()
    assert [SiteFold(1, held_out=True).mask(site.rows).all() for site in sites] == [False, True, False, False]


@pytest.mark.parametrize(("total", "shares"), [(10, [0.5, 0.5]), (7, [0.7, 0.2, 0.1]), (1, [0.25] * 4), (0, [1.0])])
def test_apportioned_seats_are_within_one_of_their_share(total, shares):
    seats = apportion(total, np.array(shares))
    assert seats.sum() == total
    assert (np.abs(seats - total * np.array(shares)) < 1).all()
