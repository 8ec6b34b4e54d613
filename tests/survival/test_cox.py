"""FederatedCox and FederatedCoxCV against R's survival and glmnet, lifelines, scikit-survival and statsmodels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from statsmodels.duration.hazard_regression import PHReg
from survival_oracles import GRID, NAMES, log_likelihood, reference, table

import compfed as cf
from compfed.errors import InputError
from compfed.losses import CoxPartialLikelihood

TIES = ["efron", "breslow"]
RESULTS = "statsmodels.duration.tests.results"
UNWEIGHTED = ["plain", "ties", "truncated", "lonely"]


def fitted(name, ties="efron", strata=None, offset=None, sites: str | None = "site", **parameters):
    t = table(name)
    where = None if sites is None else t.site
    return cf.FederatedCox(ties=ties, **parameters).fit(
        t.X, t.y, sites=where, sample_weight=t.weight, strata=strata, offset=offset
    )


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("name", NAMES)
def test_equals_coxph(name, ties):
    """R's coxph with strata(site), and with finer strata and offsets; in few messages."""
    t, R = table(name), reference("r")
    for which, model in (
        ("site", fitted(name, ties)),
        ("cell", fitted(name, ties, t.stratum, t.offset)),
        ("pooled", fitted(name, ties, sites=None)),
    ):
        key = f"{name}/{ties}/{which}"
        np.testing.assert_allclose(model.coef_, R[f"{key}/coef"], rtol=1e-6, atol=1e-8)
        likelihood = -t.weight.sum() * model.trace_["objective"][[0, -1]]
        np.testing.assert_allclose(likelihood, R[f"{key}/loglik"], rtol=1e-9)
        assert model.certificate_.holds
        assert model.n_rounds_ <= 15
        found = model.summary()  # with entry times, weights, offsets, and a site without events
        assert found.covariance is not None
        assert found.log_likelihood is not None
        np.testing.assert_allclose(found.covariance, R[f"{key}/var"], rtol=1e-6, atol=1e-10)
        assert found.log_likelihood is not None
        np.testing.assert_allclose(found.log_likelihood, R[f"{key}/loglik"][1], rtol=1e-9)
        assert found.bic == pytest.approx(4 * np.log(t.weight.sum()) - 2 * R[f"{key}/loglik"][1], rel=1e-9)
    y = CoxPartialLikelihood(ties=ties).encode(t.y, t.site, weights=t.weight)
    H = CoxPartialLikelihood(ties=ties).hessian(
        np.array(R[f"{name}/{ties}/site/coef"]), t.X, y, t.weight / t.weight.sum()
    )
    np.testing.assert_allclose(np.linalg.inv(t.weight.sum() * H), R[f"{name}/{ties}/site/var"], rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("name", UNWEIGHTED)
def test_equals_statsmodels(name, ties):
    t = table(name)
    other = PHReg(t.y[:, -2], t.X, status=t.y[:, -1], entry=t.entry, strata=t.cell.astype(int), ties=ties).fit(disp=0)
    np.testing.assert_allclose(fitted(name, ties, t.stratum).coef_, other.params, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_equals_lifelines(name):
    other = reference("python")
    model = fitted(name)
    np.testing.assert_allclose(model.coef_, other[f"{name}/lifelines/coef"], atol=1e-6)


@pytest.mark.parametrize("name", ["plain", "ties", "lonely"])
def test_equals_scikit_survival(name):
    """One stratum: Newton with both ties, and the path of Coxnet."""
    t, other = table(name), reference("python")
    for ties in TIES:
        np.testing.assert_allclose(fitted(name, ties, sites=None).coef_, other[f"{name}/sksurv/{ties}"], rtol=1e-6)
    path = cf.regularisation_path(cf.FederatedCox(ties="breslow"), t.X, t.y, None, alphas=GRID)
    np.testing.assert_allclose(path.coefs, other[f"{name}/sksurv/coxnet"], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("mix", [1, 0.5])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "lonely"])
def test_the_path_equals_that_of_glmnet(name, mix, standardize):
    t = table(name)
    expected = np.array(reference("r")[f"{name}/glmnet/{mix}/{str(standardize).upper()}"])
    path = cf.regularisation_path(
        cf.FederatedCox(l1_ratio=mix, ties="breslow", standardize=standardize), t.X, t.y, t.site,
        sample_weight=t.weight, alphas=GRID,
    )  # fmt: skip
    np.testing.assert_allclose(path.coefs, expected, rtol=1e-6, atol=1e-7)
    assert mix < 1 or (path.coefs == 0).any()
    assert (path.coefs != 0).any()


@pytest.mark.parametrize("name", ["ties", "everything"])
def test_penalty_factors_and_bounds_are_those_of_glmnet(name):
    t = table(name)
    expected = np.array(reference("r")[f"{name}/glmnet/factors"])
    for k in (0, 7):
        model = fitted(
            name, "breslow", alpha=GRID[k], standardize=True, penalty_factors=[1, 0, 2, 1],
            bounds=([-np.inf, -np.inf, -np.inf, -0.1], np.inf),
        )  # fmt: skip
        np.testing.assert_allclose(model.coef_, expected[k], rtol=1e-6, atol=1e-7)
    assert expected[7, 3] == -0.1
    assert t.X.shape[1] == 4


@pytest.mark.filterwarnings("ignore::compfed.errors.EdgeOfGridWarning")
@pytest.mark.parametrize("name", ["plain", "ties"])
def test_cross_validation_is_that_of_glmnet(name):
    """cvm is twice the mean over the folds, by events, of V; minus the saturated models, which are the same at every alpha."""
    t = table(name)
    model = cf.FederatedCoxCV(alphas=GRID, ties="breslow", cv=t.fold.astype(int)).fit(t.X, t.y, sites=None)
    events = np.array([t.y[t.fold == k, -1].sum() for k in range(4)])
    ours = 2 * model.cv_loss_ @ events / events.sum()
    theirs = np.array(reference("r")[f"{name}/glmnet/cv"])
    np.testing.assert_allclose(ours - ours[0], theirs - theirs[0], atol=2e-6)
    assert model.n_rounds_ <= 40


@pytest.mark.parametrize("ties", TIES)
def test_the_loss_of_a_fold_is_that_of_verweij_and_van_houwelingen(ties):
    """Folds inside three sites, with entry, weights and strata, from the likelihood by its definition."""
    t = table("everything")
    model = cf.FederatedCoxCV(alphas=[0.05, 0.01], ties=ties, cv=3).fit(
        t.X, t.y, sites=t.site, sample_weight=t.weight, strata=t.stratum, offset=t.offset
    )
    for k in range(3):
        train, scale = model.fold_ != k, t.weight
        events = (scale * t.y[:, -1])[~train].sum()
        for j, alpha in enumerate(model.alphas_):
            one = cf.FederatedCox(alpha=float(alpha), ties=ties).fit(
                t.X[train], t.y[train], sites=t.site[train], sample_weight=scale[train], strata=t.stratum[train],
                offset=t.offset[train],
            )  # fmt: skip
            l_all, l_train = (log_likelihood(one.coef_, t, ties, t.cell, t.offset, kept) for kept in (None, train))
            assert model.cv_loss_[j, k] == pytest.approx((l_train - l_all) / events, rel=1e-9)


def test_fifty_alphas_and_five_folds_take_at_most_forty_messages():
    t = table("everything")
    model = cf.FederatedCoxCV().fit(t.X, t.y, sites=t.site, sample_weight=t.weight)
    assert len(model.alphas_) >= 50
    assert model.n_fits_ >= 300
    assert model.n_rounds_ <= 40
    assert model.n_fits_not_converged_ == 0


def test_stored_results_of_coxph_in_statsmodels():
    """Tables and values that nobody here made: R's coxph, with ties, entry and strata."""
    import importlib
    from pathlib import Path

    results = importlib.import_module(f"{RESULTS}.survival_r_results")
    folder = Path(str(results.__file__)).parent
    for n, p in ((50, 2), (100, 5)):
        data = np.loadtxt(folder / f"survival_data_{n}_{p}.csv")
        time, status, entry, X = data[:, 0], data[:, 1], data[:, 2], data[:, 3:]
        right = status * (time < 1e9)
        strata = np.kron(range(5), np.ones(len(X) // 5))
        for ties, short in (("efron", "efr"), ("breslow", "bre")):
            for kind, y, where in (
                ("", np.column_stack([time, right]), None),
                ("_et", np.column_stack([entry, time, right]), None),
                ("_st", np.column_stack([time, right]), strata),
                ("_et_st", np.column_stack([entry, time, right]), strata),
            ):
                expected = getattr(results, f"coef_{n}_{p}{kind}_{short}", None)
                if expected is None:
                    continue
                kept = y[:, 0] < y[:, 1] if kind.startswith("_et") else slice(None)
                model = cf.FederatedCox(ties=ties).fit(X[kept], y[kept], sites=None if where is None else where[kept])
                np.testing.assert_allclose(model.coef_, expected, rtol=3e-3, atol=3e-3)  # of three digits and more


def test_every_form_of_y_is_the_same():
    t = table("everything")
    names = ["a", "b", "c", "d"]
    frame = pd.DataFrame(t.X, columns=names)
    structured = np.array([(e > 0, s, t_) for s, t_, e in t.y], [("dead", bool), ("from", float), ("to", float)])
    whole = frame.assign(site=t.site, start=t.y[:, 0], stop=t.y[:, 1], dead=t.y[:, 2] > 0, ward=t.stratum)
    expected = cf.FederatedCox().fit(t.X, t.y, sites=t.site, strata=t.stratum).coef_
    schema = cf.Schema.from_toml(
        "[columns.a]\n[columns.b]\n[columns.c]\n[columns.d]\n[label]\ncolumn = ['start', 'stop', 'dead']\n[rows]\nstratum = 'ward'\n"
    )
    for model in (
        cf.FederatedCox().fit(t.X, structured, sites=t.site, strata=t.stratum),
        cf.FederatedCox().fit(
            frame, pd.DataFrame(t.y, columns=["start", "stop", "dead"]), sites=t.site, strata=t.stratum
        ),
        cf.FederatedCox().fit(whole, ("start", "stop", "dead"), sites="site", strata="ward"),
        cf.FederatedCox().fit(whole, ("start", "stop", "dead"), sites="site", strata="ward", schema="auto"),
        cf.FederatedCox().fit(whole, ("start", "stop", "dead"), sites="site", schema=schema),
    ):
        np.testing.assert_allclose(model.coef_, expected, rtol=1e-11)
    np.testing.assert_allclose(model.predict(whole), t.X @ expected, rtol=1e-10)
    assert model.ratio_name == "hazard ratio"


def test_strata_of_a_file(tmp_path):
    t = table("ties")
    for k in np.unique(t.site):
        mine = t.site == k
        columns = {f"x{j}": t.X[mine, j] for j in range(4)} | {
            "time": t.y[mine, 0], "event": t.y[mine, 1].astype(int), "ward": np.where(t.stratum[mine] > 0, "icu", "ward")
        }  # fmt: skip
        pd.DataFrame(columns).to_csv(tmp_path / f"site{k:g}.csv", index=False)
    schema = cf.Schema.from_toml(
        "".join(f"[columns.x{j}]\n" for j in range(4))
        + "[label]\ncolumn = ['time', 'event']\n[rows]\nstratum = 'ward'\n"
    )
    sites = cf.data.from_files(tmp_path, schema=schema)
    expected = cf.FederatedCox().fit(t.X, t.y, sites=t.site, strata=t.stratum).coef_
    np.testing.assert_allclose(cf.FederatedCox().fit_sites(sites).coef_, expected, rtol=1e-11)


def test_a_mistake_is_told_before_the_fit():
    t = table("plain")
    model = cf.FederatedCox()
    for y, told in (
        (t.y[:, 0], "two columns"),
        ("time", "y=\\('time', 'event'\\)"),
        (np.column_stack([t.y[:, 1], t.y[:, 0]]), "0 \\(censored\\) and 1"),
        (np.column_stack([t.y[:, 0], 0 * t.y[:, 1]]), "no row has an event"),
        (np.zeros(len(t.X), [("a", float), ("b", float)]), "truth values"),
    ):
        with pytest.raises(InputError, match=told):
            model.fit(t.X, y, sites=t.site)
    with pytest.raises(InputError, match="stratum of each of 160 rows"):
        model.fit(t.X, t.y, sites=t.site, strata=[1, 2])
    with pytest.raises(InputError, match="'efron', 'breslow'"):
        cf.FederatedCox(ties="exact").fit(t.X, t.y, sites=t.site)
    for estimator in (cf.FederatedCox, cf.FederatedCoxCV):
        for name in ("fit_intercept", "site_effects"):
            with pytest.raises(InputError, match=f"no parameter '{name}'"):
                estimator(**{name: True})  # pyright: ignore[reportArgumentType]


def test_sparse_rows_and_many_strata():
    """Rows that stay sparse, and matched pairs: a stratum for every two rows, as in a conditional logistic regression."""
    rng = np.random.default_rng(2)
    m = 1200
    X = rng.standard_normal((m, 8)) * (rng.random((m, 8)) < 0.2)
    y = np.column_stack([rng.permutation(m) + 1.0, np.ones(m)])
    site, pair = np.arange(m) % 3, np.arange(m) // 6
    dense = cf.FederatedCox().fit(X, y, sites=site, strata=pair)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("compfed.estimators.table.DENSE_BYTES", 0)  # so few rows would be made dense
        sparse = cf.FederatedCox().fit(csr_matrix(X), y, sites=site, strata=pair)
    np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-9, atol=1e-12)
    other = PHReg(y[:, 0], X, strata=pair * 3 + site).fit(disp=0)
    np.testing.assert_allclose(dense.coef_, other.params, rtol=1e-6)


def test_relaxed_fit_is_the_fit_on_its_support():
    t = table("ties")
    model = fitted("ties", "breslow", alpha=GRID[1], relax=True)
    used = np.flatnonzero(model.coef_)
    assert 0 < len(used) < 4
    alone = cf.FederatedCox(ties="breslow").fit(t.X[:, used], t.y, sites=t.site)
    np.testing.assert_allclose(model.coef_[used], alone.coef_, rtol=1e-9)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_standard_errors_are_those_of_statsmodels(ties):
    """And the log-likelihood; robust errors are refused, as rows have no likelihood of their own."""
    rng = np.random.default_rng(40)
    X, strata = rng.standard_normal((240, 3)), np.arange(240) % 3
    died = rng.exponential(np.exp(-X @ [0.7, -0.4, 0.0]))
    censored = 2 * rng.exponential(size=240)
    y = np.column_stack([np.ceil(10 * np.minimum(died, censored)) / 10, died <= censored]).astype(float)
    model = cf.FederatedCox(alpha=0, ties=ties).fit(X, y, sites=strata)
    found = model.summary()
    expected: Any = PHReg(y[:, 0], X, status=y[:, 1], strata=strata, ties=ties).fit(disp=0)
    assert found.log_likelihood is not None
    np.testing.assert_allclose(found.standard_errors, expected.bse, rtol=1e-8)
    np.testing.assert_allclose(found.log_likelihood, expected.llf, rtol=1e-10)
    np.testing.assert_allclose(found.p_values, expected.pvalues, rtol=1e-6, atol=1e-300)
    assert found.ratio_name == "hazard ratio"
    assert found.deviance is None
    with pytest.raises(cf.InputError, match="a partial likelihood is no sum over rows"):
        model.summary(se="HC0")
