"""What rests on sums at agreed times: baseline hazards, concordance, one baseline for all sites, Kaplan-Meier, log-rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from statsmodels.duration.hazard_regression import PHReg
from survival_oracles import NAMES, reference, table

import compfed as cf
from compfed.errors import InputError, RunWarning
from compfed.federation import DisclosurePolicy, InProcess
from compfed.federation.queries import AtRisk
from compfed.federation.server.program import Request
from compfed.federation.site.at_risk import coarser
from compfed.federation.spec import FeatureScaling, ObjectiveSpec
from compfed.losses import CoxPartialLikelihood
from compfed.splits import Fold, cv_splits

AT = np.array([5.0, 10.0, 20.0, 40.0])


def event_times(t):
    return np.unique(t.y[:, -2])


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize("name", NAMES)
def test_one_baseline_for_all_sites_equals_the_pooled_coxph(name, ties):
    t = table(name)
    model = cf.FederatedCox(baseline="common", times=event_times(t), ties=ties).fit(
        t.X, t.y, sites=t.site, sample_weight=t.weight
    )
    np.testing.assert_allclose(model.coef_, reference("r")[f"{name}/{ties}/pooled/coef"], rtol=1e-9)
    likelihood = -t.weight.sum() * model.trace_["objective"][-1]
    assert likelihood == pytest.approx(reference("r")[f"{name}/{ties}/pooled/loglik"][1], rel=1e-9)
    assert model.certificate_.holds
    assert model.n_rounds_ <= 15


def test_one_baseline_on_a_grid_equals_the_pooled_fit_on_that_grid():
    """With a penalty, too; later events count as censored there."""
    t, grid = table("plain"), np.arange(2.0, 41.0, 2.0)
    model = cf.FederatedCox(0.02, l1_ratio=0.5, baseline="common", times=grid).fit(t.X, t.y, sites=t.site)
    place = np.searchsorted(grid, t.y[:, 0])
    rounded = np.column_stack([np.append(grid, 50.0)[place], t.y[:, 1] * (place < len(grid))])
    pooled = cf.FederatedCox(0.02, l1_ratio=0.5).fit(t.X, rounded, sites=None)
    np.testing.assert_allclose(model.coef_, pooled.coef_, rtol=1e-9)


@pytest.mark.parametrize("name", ["ties", "truncated"])
def test_the_baseline_hazard_is_that_of_breslow(name):
    """Of the row of zeros: events over the sum of relative risks of the rows at risk, by its definition."""
    t = table(name)
    model = cf.FederatedCox(ties="breslow", times=event_times(t)).fit(t.X, t.y, sites=None)
    risk = t.X @ model.coef_
    entry = np.full(len(risk), -np.inf) if t.entry is None else t.entry
    steps = [
        t.y[t.y[:, -2] == at, -1].sum() / np.exp(risk[(t.y[:, -2] >= at) & (entry < at)]).sum() for at in event_times(t)
    ]
    hazard = model.predict_cumulative_hazard(np.zeros((1, 4)), event_times(t))[0]
    np.testing.assert_allclose(hazard, np.cumsum(steps), rtol=1e-9)
    found = model.predict_survival_function(t.X[:3], AT)
    np.testing.assert_allclose(found, np.exp(-model.predict_cumulative_hazard(t.X[:3], AT)))
    assert (np.diff(found, axis=1) <= 0).all()
    assert model.predict_survival_function(t.X[:2], 0.0).tolist() == [[1.0], [1.0]]
    with pytest.raises(InputError, match="known up to"):
        model.predict_survival_function(t.X, 1e9)
    with pytest.raises(InputError, match="was fitted without times"):
        cf.FederatedCox().fit(t.X, t.y, sites=t.site).predict_survival_function(t.X)


def test_a_saved_model_predicts_the_same(tmp_path):
    t = table("ties")
    model = cf.FederatedCox(times=AT).fit(t.X, t.y, sites=t.site)
    again: Any = cf.load_model(cf.save_model(model, tmp_path))
    np.testing.assert_array_equal(again.predict_survival_function(t.X), model.predict_survival_function(t.X))


@pytest.mark.parametrize("name", ["plain", "ties", "truncated", "lonely"])
def test_concordance_without_pooling_is_that_of_coxph(name):
    t = table(name)
    model = cf.FederatedCox().fit(t.X, t.y, sites=t.site)
    found = model.evaluate(t.X, t.y, sites=t.site)
    if t.entry is None:  # R leaves out pairs of rows that were never at risk together
        assert found.concordance == pytest.approx(reference("r")[f"{name}/efron/site/concordance"][0], rel=1e-9)
        other = reference("python")[f"{name}/sksurv/concordance"]
        alone = cf.FederatedCox(ties="breslow").fit(t.X, t.y, sites=None)
        pairs = alone.evaluate(t.X, t.y)
        assert [pairs.concordant, pairs.discordant, pairs.same] == other[1:4]
        assert alone.score(t.X, t.y) == pytest.approx(other[0])
    assert "Concordance" in str(found)


@pytest.mark.parametrize(("name", "alpha"), [("ties", 0.0), ("plain", 0.02), ("lonely", 0.0)])
def test_a_concordance_by_folds_is_of_models_that_have_not_seen_the_rows(name, alpha):
    """Pairs counted one by one, within a fold and a site, by statsmodels' fits (or ours) to the rows outside the fold."""
    t, folds = table(name), 4
    sites = np.unique(t.site)
    federation = InProcess(
        cf.data.from_arrays(
            [t.X[t.site == s] for s in sites], [t.y[t.site == s] for s in sites], [f"s{s:g}" for s in sites]
        )
    )
    found = cf.FederatedCox(alpha=alpha).fit_federation(federation).evaluate(federation, cv=folds, seed=3)
    X, y, site = (np.concatenate([part[t.site == s] for s in sites]) for part in (t.X, t.y, t.site))
    expected = np.zeros(3)
    for split in cv_splits(folds, 3, [int(np.sum(t.site == s)) for s in sites], False):
        held = np.concatenate([one.rows.weights_of(split) > 0 for one in federation.sites])
        if alpha:
            coef = cf.FederatedCox(alpha=alpha).fit(X[~held], y[~held], sites=site[~held]).coef_
        else:
            model: Any = PHReg(y[~held, 0], X[~held], status=y[~held, 1], strata=site[~held].astype(int), ties="efron")
            coef = model.fit(disp=0).params
        z = X @ coef
        for i in np.flatnonzero(held & (y[:, 1] > 0)):
            later = held & (site == site[i]) & ((y[:, 0] > y[i, 0]) | ((y[:, 0] == y[i, 0]) & (y[:, 1] == 0)))
            expected += [
                np.sum(z[later] < z[i] - 1e-9),
                np.sum(z[later] > z[i] + 1e-9),
                np.sum(abs(z[later] - z[i]) <= 1e-9),
            ]
    assert [found.concordant, found.discordant, found.same] == expected.tolist()
    assert found.concordance < cf.FederatedCox(alpha=alpha).fit_federation(federation).evaluate(federation).concordance
    assert "each row by a model without its fold, 4 folds" in str(found)


def test_a_concordance_by_folds_needs_sites_without_a_policy():
    federation = behind_policies()
    model = cf.FederatedCox().fit_federation(federation)
    with pytest.raises(InputError, match=r"count pairs over all rows, not over those of a fold\. Leave out cv"):
        model.evaluate(federation, cv=5)
    objective, rows = (
        ObjectiveSpec(CoxPartialLikelihood(), FeatureScaling(np.zeros(4), np.ones(4), False)),
        Fold(0, 5, 0, np.zeros(4, int), False, held_out=True),
    )
    with pytest.raises(InputError, match="would tell others by subtraction"):  # nor do the sites answer another server
        federation.exchange([Request((AtRisk(objective, model.coef_, np.ones(1), pairs=True, subset=rows),))])
    chosen = cf.FederatedCoxCV(n_alphas=4, eps=0.1, cv=3).fit_federation(InProcess(clinic_sites()))
    assert "alpha was chosen on all rows" in str(chosen.evaluate(InProcess(clinic_sites()), cv=3))
    with pytest.raises(InputError, match="cv"):
        chosen.evaluate(InProcess(clinic_sites()), cv=1)


@pytest.mark.parametrize("name", ["plain", "ties", "truncated", "lonely"])
def test_kaplan_meier_equals_survfit(name):
    t, R = table(name), reference("r")
    grid = np.union1d(event_times(t), AT)
    frame = pd.DataFrame({"arm": np.where(t.X[:, 3] > 0, "b", "a"), "site": t.site})
    for table_of_rows, by in ((frame, "arm"), (pd.DataFrame(t.X, columns=list("wxyz")).assign(site=t.site), "z")):
        found = cf.kaplan_meier(table_of_rows, t.y, times=grid, by=by, sites="site")
        at = np.searchsorted(grid, AT)
        for g in (0, 1):
            survival, _, low, high, at_risk = np.array(R[f"{name}/km/{g}"], float)
            np.testing.assert_allclose(found.survival[g, at], survival, rtol=1e-9)
            np.testing.assert_allclose(found.low[g, at], low, rtol=1e-9)
            np.testing.assert_allclose(found.high[g, at], high, rtol=1e-9)
            np.testing.assert_array_equal(found.at_risk[g, at], at_risk)
        if t.entry is None:
            assert found.log_rank is not None
            assert found.log_rank.statistic == pytest.approx(R[f"{name}/logrank/pooled"][0], rel=1e-9)
    if f"{name}/lifelines/km" in reference("python"):
        np.testing.assert_allclose(found.survival[:, at], reference("python")[f"{name}/lifelines/km"], rtol=1e-9)
    assert found.communication.rounds == 1
    assert "Log-rank" in str(found)


def test_kaplan_meier_of_levels_and_of_mistakes():
    t = table("ties")
    frame = pd.DataFrame({"arm": np.array(["low", "mid", "top"])[np.arange(len(t.X)) % 3]})
    found = cf.kaplan_meier(frame, t.y, times=AT, by="arm", sites=t.site)
    assert found.groups == ("arm=low", "arm=mid", "arm=top")
    assert found.log_rank is not None
    assert found.log_rank.degrees == 2
    np.testing.assert_allclose(found.log_rank.expected.sum(), found.log_rank.observed.sum())
    wrong: dict[str, Any]
    for wrong, told in (({"times": [2.0, 1.0]}, "increase"), ({"times": AT, "by": "ward"}, "no column of this name")):
        with pytest.raises(InputError, match=told):
            cf.kaplan_meier(frame, t.y, sites=t.site, **wrong)
    numbers = pd.DataFrame(t.X, columns=list("abcd"))
    with pytest.raises(InputError, match="0 or 1"):
        cf.kaplan_meier(numbers, t.y, times=AT, by="a", sites=t.site)


def test_the_figure_shows_every_group():
    pytest.importorskip("matplotlib")
    t = table("ties")
    figure = cf.kaplan_meier(pd.DataFrame(t.X, columns=list("abcd")), t.y, times=AT, by="d", sites=t.site).plot()
    top, below = figure.axes
    legend: Any = top.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["d=0", "d=1"]
    assert len(below.texts) == 2 * len(AT)


# --- under the default policy ---


def clinic(sites=4, rows=720):
    rng = np.random.default_rng(11)
    X = np.column_stack([rng.standard_normal((rows, 3)), rng.random(rows) < 0.5]).astype(float)
    time, censored = rng.exponential(10 * np.exp(-0.6 * X[:, 0])), np.minimum(rng.exponential(20, rows), 30.0)
    return X, np.column_stack([np.minimum(time, censored), time <= censored]), np.arange(rows) % sites


def behind_policies(exact=True, **rules):
    return InProcess(clinic_sites(), policy=DisclosurePolicy(**rules), exact=exact)


def test_everything_runs_under_the_default_policy():
    X, y, site = clinic()
    X, times = pd.DataFrame(X, columns=list("abcd")), np.arange(1.0, 31.0)
    here = cf.FederatedCox(times=times).fit(X, y, sites=site)
    federation = behind_policies()
    there = cf.FederatedCox(times=times).fit_federation(federation)
    np.testing.assert_allclose(there.coef_, here.coef_, rtol=1e-9)
    assert there.certificate_.holds
    assert there.n_rounds_ <= 15
    # blocks of ten events: near the curve early, in wide steps at its end
    ours, exact = (model.predict_survival_function(X[:5]) for model in (there, here))
    np.testing.assert_allclose(ours[:, :10], exact[:, :10], atol=0.05)
    np.testing.assert_allclose(ours, exact, atol=0.15)
    cv = cf.FederatedCoxCV(eps=0.02, cv=5).fit_federation(behind_policies())
    assert cv.n_rounds_ <= 40
    assert there.evaluate(federation).concordance == pytest.approx(
        here.evaluate(X, y, sites=site).concordance, abs=0.01
    )
    curves = cf.kaplan_meier(federation, times=times, by="d")
    exact = cf.kaplan_meier(clinic_sites(), times=times, by="d")
    np.testing.assert_allclose(curves.survival[:, :10], exact.survival[:, :10], atol=0.1)


def test_a_common_baseline_is_refused_before_a_message_with_the_reason_and_the_way_out(monkeypatch):
    federation = behind_policies()
    _ = federation.enrolments

    def exchange(requests: object) -> None:
        pytest.fail("a message was sent")

    monkeypatch.setattr(federation, "exchange", exchange)
    reason = (
        r"that of a time with one event is the row of the event: .* refuse it. Take baseline='site', R's strata\(site\)"
    )
    with pytest.raises(InputError, match=reason):
        cf.FederatedCox(baseline="common", times=[6.0, 12.0]).fit_federation(federation)
    monkeypatch.undo()
    assert cf.FederatedCox(baseline="site", times=[6.0, 12.0]).fit_federation(federation).certificate_.holds


def clinic_sites():
    X, y, site = clinic()
    return cf.data.from_arrays([X[site == k] for k in range(4)], [y[site == k] for k in range(4)], columns=list("abcd"))


def test_coarser_times_are_means_of_whole_blocks():
    rng = np.random.default_rng(0)
    for _ in range(50):
        m = int(rng.integers(40, 200))
        time, event = np.ceil(rng.exponential(10, m) * 4) / 4, rng.random(m) < 0.7
        group = rng.integers(0, 2, m)
        entry = np.where(rng.random(m) < 0.5, -np.inf, time * rng.random(m) * 0.9)
        if min(np.count_nonzero(event & (group == g)) for g in (0, 1)) < 5:
            continue
        plain = coarser(entry, time, event, 0 * group, 5)
        grouped = coarser(entry, time, event, group, 5)
        for (first, seen), parts in ((plain, [np.ones(m, bool)]), (grouped, [group == 0, group == 1])):
            assert (first < seen).all()
            for at in np.unique(seen):
                assert seen[seen == at].mean() == pytest.approx(time[event & (seen == at)].mean())
                assert all(np.count_nonzero(part & event & (seen == at)) >= 5 for part in parts)
        # blocks with groups are unions of those without
        assert len(set(zip(plain[1], grouped[1], strict=True))) == len(np.unique(plain[1]))


def test_few_events_are_refused():
    X, y, site = clinic()
    y = y.copy()
    y[np.flatnonzero((site == 1) & (y[:, 1] > 0))[7:], 1] = 0  # seven events are left at site 1
    sites = cf.data.from_arrays(
        [X[site == k] for k in range(4)], [y[site == k] for k in range(4)], columns=list("abcd")
    )
    federation = InProcess(sites, policy=DisclosurePolicy())
    with pytest.raises(InputError, match="fewer events than its min_rows"):
        cf.kaplan_meier(federation, times=AT)
    with pytest.warns(RunWarning, match="has no baseline hazard"):
        model = cf.FederatedCox(times=AT).fit_federation(federation)
    assert model.certificate_.holds
    assert not hasattr(model, "baseline_times_")
    y[np.flatnonzero((site == 1) & (y[:, 1] > 0))[2:], 1] = 0
    sites = cf.data.from_arrays([X[site == k] for k in range(4)], [y[site == k] for k in range(4)])
    with pytest.raises(InputError, match="min_level_rows"):
        cf.FederatedCox().fit_federation(InProcess(sites, policy=DisclosurePolicy()))
