"""Relaxed fits, groups with factors, the largest alpha, and cross-validation at the edge of its grid."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from penalty_cases import EXACT, assert_same, counts, diabetes, tables, units
from places import SHARED
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso, MultiTaskLasso
from sklearn.preprocessing import StandardScaler

import compfed as cf
from compfed.data import bundled
from compfed.federation import DisclosurePolicy, InProcess
from compfed.regularisers import Box, GroupL2, SumOf

FAMILIES: dict[str, Any] = {
    "squared": (cf.FederatedLasso, sm.families.Gaussian),
    "logistic": (cf.FederatedLogisticRegression, sm.families.Binomial),
    "poisson": (cf.FederatedPoissonRegressor, sm.families.Poisson),
}


def outcome(table, family):
    X, count, label, sites = counts(table)
    return X, {"squared": table()[1], "logistic": label, "poisson": count}[family], sites


def glm(X, y, used, family):
    """Coefficients and intercept of statsmodels on the columns used, zeros elsewhere."""
    centre, scale = X.mean(0), X.std(0)
    design = sm.add_constant(((X - centre) / scale)[:, used], has_constant="add")
    found = sm.GLM(y, design, family=family()).fit(tol=1e-14, maxiter=200, method="IRLS").params
    coef = np.zeros(X.shape[1])
    coef[used] = found[1:] / scale[used]
    return coef, found[0] - centre @ coef


# --- relaxed fits ---


@tables
@pytest.mark.parametrize("family", FAMILIES)
def test_refit_is_the_model_without_a_penalty_on_the_support(table, family):
    X, y, sites = outcome(table, family)
    make, theirs = FAMILIES[family]
    options = {} if family == "squared" else {"l1_ratio": 1.0}
    alpha = 0.3 * float(cf.regularisation_path(make(**options), X, y, sites, n_alphas=2).alphas[0])
    plain = make(alpha, **options).fit(X, y, sites=sites)
    used = np.ravel(plain.coef_) != 0
    assert 0 < used.sum() < X.shape[1]
    coef, intercept = glm(X, y, used, theirs)
    refit = make(alpha, relax=True, **options).fit(X, y, sites=sites)
    assert refit.certificate_.holds
    assert refit.certificate_.duality_gap is None
    assert_same(refit, coef, intercept, X)
    mixed = make(alpha, relax=True, gamma=0.3, **options).fit(X, y, sites=sites)
    assert_same(mixed, 0.3 * np.ravel(plain.coef_) + 0.7 * coef, 0.3 * plain.intercept_ + 0.7 * intercept, X)
    penalised = make(alpha, relax=True, gamma=1.0, **options).fit(X, y, sites=sites)
    np.testing.assert_array_equal(penalised.coef_, plain.coef_)
    assert penalised.n_rounds_ == plain.n_rounds_


def test_refit_keeps_bounds_and_unpenalised_columns():
    X, y, sites = diabetes()
    model = cf.FederatedLasso(0.5, penalty_factors={0: 0.0, 5: np.inf}, bounds={2: (None, 0.3)}, relax=True)
    model.fit(X, y, sites=sites)
    plain = cf.FederatedLasso(0.5, penalty_factors={0: 0.0, 5: np.inf}, bounds={2: (None, 0.3)}).fit(X, y, sites=sites)
    used = (plain.coef_ != 0) & (np.arange(10) != 2)
    assert used[0]
    assert model.coef_[2] == pytest.approx(0.3, rel=1e-14)
    coef, intercept = glm(X, y - 0.3 * X[:, 2], used, sm.families.Gaussian)
    coef[2] = 0.3
    assert_same(model, coef, intercept, X)


def test_refit_without_a_minimiser_warns():
    x = np.column_stack([np.arange(-10.0, 10.0) + 0.5, np.cos(np.arange(20))])
    y = (x[:, 0] > 0).astype(int)
    with pytest.warns(ConvergenceWarning, match="refit without a penalty, relax=True"):
        model = cf.FederatedLogisticRegression(0.05, relax=True).fit(x, y, sites=np.arange(20) % 2)
    assert not model.certificate_.minimiser_exists


def test_path_and_first_order_refits_agree_with_single_fits():
    X, y, sites = diabetes()
    alphas = [0.6, 0.2, 0.05]
    path = cf.regularisation_path(cf.FederatedLasso(relax=True, gamma=0.25), X, y, sites, alphas=alphas)
    for alpha, coef, intercept in zip(path.alphas, path.coefs, path.intercepts, strict=True):
        one = cf.FederatedLasso(alpha, relax=True, gamma=0.25, algorithm="FISTA", tol=1e-11).fit(X, y, sites=sites)
        assert_same(one, coef, intercept, X)


def test_softmax_refit_against_statsmodels():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((200, 4))
    y = (X @ rng.standard_normal((4, 3)) + rng.gumbel(size=(200, 3))).argmax(axis=1)
    free: Any = cf.FederatedLogisticRegression(0.05, penalty_factors=[0, 0, np.inf, 0], relax=True).fit(
        X, y, sites=np.arange(200) % 3
    )
    used = [0, 1, 3]
    found = sm.MNLogit(y, sm.add_constant(X[:, used])).fit(disp=False, method="newton", maxiter=100, tol=1e-14)
    theirs = np.column_stack([np.zeros(4), found.params]).T  # of each class, the first is the reference
    np.testing.assert_allclose(free.coef_[:, used] - free.coef_[0, used], theirs[:, 1:], atol=1e-8)
    np.testing.assert_allclose(free.intercept_ - free.intercept_[0], theirs[:, 0], atol=1e-8)
    plain = cf.FederatedLogisticRegression(0.05, penalty_factors=[0, 0, np.inf, 0]).fit(X, y, sites=np.arange(200) % 3)
    np.testing.assert_allclose(plain.coef_.mean(axis=0), 0.0, atol=1e-12)  # of all choices the one of mean zero


# --- groups and rows ---


def assert_group_optimal(model, X, Y, groups, weights, alpha):
    """The KKT conditions of a group lasso: |gradient_g| <= alpha weight_g, with the direction of w_g where it is not 0."""
    W = np.atleast_2d(model.coef_).T
    gradient = (X - X.mean(0)).T @ ((X - X.mean(0)) @ W - (Y - Y.mean(0)).reshape(len(Y), -1)) / len(Y)
    for g, weight in enumerate(weights):
        members = groups == g
        w, v = W[members], gradient[members]
        if np.isinf(weight):
            assert (w == 0).all()
        elif (w == 0).all():
            assert np.linalg.norm(v) <= alpha * weight * (1 + 1e-9)
        else:
            np.testing.assert_allclose(v, -alpha * weight * w / np.linalg.norm(w), atol=1e-9)


@pytest.mark.parametrize("algorithm", ["auto", "FISTA"])
def test_group_factors(algorithm):
    X, y, sites = diabetes()
    labels = np.array(["a", "a", "b", "b", "c", "c", "c", "d", "d", "e"])
    groups = np.unique(labels, return_inverse=True)[1]
    factors = {"a": 0.0, "c": np.inf, "d": 2.0}
    model = cf.FederatedGroupLasso(0.1, groups=labels, penalty_factors=factors, algorithm=algorithm).fit(
        X, y, sites=sites
    )
    weights = np.sqrt(np.bincount(groups)) * [0.0, 1.0, 1.0, 2.0, 1.0]
    weights[2] = np.inf
    assert model.certificate_.holds
    assert_group_optimal(model, X, y, groups, weights, 0.1)
    assert (model.coef_[:2] != 0).all()
    lists = [[0, 1], [2, 3], [4, 5, 6], [7, 8], [9]]
    again = cf.FederatedGroupLasso(0.1, groups=lists, penalty_factors=[0, 1, np.inf, 2, 1]).fit(X, y, sites=sites)
    np.testing.assert_allclose(again.coef_, model.coef_, atol=1e-9)
    with pytest.raises(cf.InputError, match="no group 'f'"):
        cf.FederatedGroupLasso(0.1, groups=labels, penalty_factors={"f": 0.0}).fit(X, y, sites=sites)
    with pytest.raises(cf.InputError, match="there are 5 groups"):
        cf.FederatedGroupLasso(0.1, groups=labels, penalty_factors=np.ones(10)).fit(X, y, sites=sites)


def test_group_refit_takes_whole_groups_and_largest_alpha_holds_with_factors():
    X, y, sites = diabetes()
    lists = [[0, 1], [2, 3], [4, 5, 6], [7, 8], [9]]
    groups = np.repeat(np.arange(5), [2, 2, 3, 2, 1])
    make = cf.FederatedGroupLasso(groups=lists, penalty_factors={0: 0.0, 2: np.inf, 4: 0.5})
    path = cf.regularisation_path(make, X, y, sites, n_alphas=3)
    assert (path.coefs[0][2:] == 0).all()
    coef, intercept = glm(X, y, groups == 0, sm.families.Gaussian)
    gradient = (X - X.mean(0)).T @ (y - X @ coef - intercept) / len(y)
    size = [np.linalg.norm(gradient[groups == g]) / np.sqrt((groups == g).sum()) for g in (1, 3)]
    assert path.alphas[0] == pytest.approx(max(*size, abs(gradient[9]) / 0.5), rel=1e-9)
    plain = cf.FederatedGroupLasso(0.2, groups=lists, penalty_factors={2: np.inf}).fit(X, y, sites=sites)
    refit = cf.FederatedGroupLasso(0.2, groups=lists, penalty_factors={2: np.inf}, relax=True).fit(X, y, sites=sites)
    used = np.isin(groups, np.unique(groups[plain.coef_ != 0]))
    assert 0 < used.sum() < 7
    assert_same(refit, *glm(X, y, used, sm.families.Gaussian), X)


@tables
def test_rows_of_several_outcomes(table):
    X, y, sites = table()
    Y = np.column_stack([y, np.roll(y, 3) + y])
    Z = X / X.std(0)
    f = np.linspace(0.4, 2.0, X.shape[1])
    model = cf.FederatedMultiTaskLasso(0.05, penalty_factors=f).fit(Z, Y, sites=sites)
    pooled = MultiTaskLasso(0.05, **EXACT).fit((Z - Z.mean(0)) / f, Y - Y.mean(0))
    assert_same(model, pooled.coef_ / f, Y.mean(0) - Z.mean(0) @ (pooled.coef_ / f).T, Z)
    f[[0, 1]] = 0.0, np.inf
    model = cf.FederatedMultiTaskLasso(0.2, penalty_factors=f).fit(Z, Y, sites=sites)
    assert_group_optimal(model, Z, Y, np.arange(len(f)), f, 0.2)
    refit: Any = cf.FederatedMultiTaskLasso(0.2, penalty_factors=f, relax=True).fit(Z, Y, sites=sites)
    used = (model.coef_ != 0).any(axis=0)
    for k in (0, 1):
        coef, intercept = glm(Z, Y[:, k], used, sm.families.Gaussian)
        np.testing.assert_allclose(refit.coef_[k], coef, atol=1e-8)
        np.testing.assert_allclose(refit.intercept_[k], intercept, atol=1e-7)


def test_a_box_that_cuts_a_group_has_no_known_prox():
    group = GroupL2(1.0, groups=(0, 0, 1))
    g = SumOf(group, Box(np.array([-np.inf, -np.inf, 0.0]), np.array([np.inf, np.inf, 0.0])))
    np.testing.assert_allclose(g.prox(np.array([3.0, 4.0, 9.0]), 1.0)[2], 0.0)
    for lower in ([0.0, -np.inf, 0.0], [-1.0, -1.0, -np.inf]):
        with pytest.raises(cf.InputError, match="not known in closed form"):
            SumOf(group, Box(np.array(lower), -np.array(lower)))


# --- the largest alpha ---


@tables
@pytest.mark.parametrize("family", FAMILIES)
def test_largest_alpha_with_unpenalised_columns(table, family):
    """The null model has the unpenalised coefficients at their optimum."""
    X, y, sites = outcome(table, family)
    make, theirs = FAMILIES[family]
    options = {} if family == "squared" else {"l1_ratio": 0.8}
    f = np.linspace(0.5, 2.0, X.shape[1])
    f[[0, 2]] = 0.0, np.inf
    path = cf.regularisation_path(make(penalty_factors=f, **options), X, y, sites, n_alphas=4)
    used = np.arange(X.shape[1]) == 0
    coef, intercept = glm(X, y, used, theirs)
    z = X @ coef + intercept
    mean = {"squared": z, "logistic": 1 / (1 + np.exp(-z)), "poisson": np.exp(z)}[family]
    gradient = np.abs((X - X.mean(0)).T @ (y - mean)) / len(y) / options.get("l1_ratio", 1.0)
    rest = np.isfinite(f) & (f > 0)
    assert path.alphas[0] == pytest.approx((gradient[rest] / f[rest]).max(), rel=1e-8)
    coefs = path.coefs.reshape(4, -1)
    assert (coefs[0][~used] == 0).all()
    assert np.count_nonzero(coefs[1][~used]) >= 1
    np.testing.assert_allclose(coefs[0][0], coef[0], rtol=1e-7)


def test_largest_alpha_with_one_sided_bounds():
    X, y, sites = units()
    path = cf.regularisation_path(cf.FederatedLasso(bounds={2: (0, None)}), X, y, sites, n_alphas=3)
    pull = (X - X.mean(0)).T @ (y - y.mean()) / len(y)
    pull[2] = max(pull[2], 0.0)  # its coefficient would be negative
    assert path.alphas[0] == pytest.approx(np.abs(pull).max(), rel=1e-9)


# --- cross-validation ---


def test_alpha_and_gamma_are_chosen_together():
    X, y, sites = diabetes()
    alphas, gammas = np.array([0.4, 0.1, 0.03, 0.01, 0.001]), [0.0, 0.5, 1.0]
    model = cf.FederatedLassoCV(alphas, cv=3, relax=True, gamma=gammas).fit(X, y, sites=sites)
    table = pd.DataFrame(model.cv_results_)
    assert len(table) == 15
    for k in range(3):
        train = model.fold_ != k
        for alpha in alphas:
            lasso = Lasso(alpha, **EXACT).fit(X[train] - X.mean(0), y[train])
            lasso.intercept_ -= X.mean(0) @ lasso.coef_
            coef, intercept = glm(X[train], y[train], lasso.coef_ != 0, sm.families.Gaussian)
            for gamma in gammas:
                z = X @ (gamma * lasso.coef_ + (1 - gamma) * coef) + gamma * lasso.intercept_ + (1 - gamma) * intercept
                row = table[(table.alpha == alpha) & (table.gamma == gamma)].iloc[0]
                assert row[f"split{k}_loss"] == pytest.approx(np.mean((y - z)[~train] ** 2) / 2, rel=1e-8)
    best = table.loc[table.mean_loss.idxmin()]
    assert (model.alpha_, model.gamma_) == (best.alpha, best.gamma)
    assert np.count_nonzero(model.coef_) == best.n_nonzero
    np.testing.assert_allclose(table.standard_error, table[[f"split{k}_loss" for k in range(3)]].sem(axis=1))
    np.testing.assert_array_equal(model.cv_loss_.mean(axis=1), table[table.gamma == model.gamma_].mean_loss)
    single = cf.FederatedLasso(model.alpha_, relax=True, gamma=model.gamma_).fit(X, y, sites=sites)
    assert_same(model, single.coef_, single.intercept_, X)


def heart() -> Any:
    """Four hospitals, raw units, the mean where a value is missing."""
    folder = SHARED / "heart"
    if not folder.is_dir():
        pytest.skip("the heart data is not there")
    frames = [
        pd.read_csv(folder / f"processed.{name}.data", header=None, na_values="?").assign(site=name)
        for name in ("cleveland", "hungarian", "switzerland", "va")
    ]
    table = pd.concat(frames, ignore_index=True)
    X = table[list(range(13))]
    return X.fillna(X.mean()).to_numpy(), (table[13] > 0).astype(int).to_numpy(), table.site.to_numpy()


def test_grid_that_ends_too_early_is_extended():
    X, y, sites = heart()
    # no warning: it found the least loss
    model = cf.FederatedLogisticRegressionCV(n_alphas=16, cv=3).fit(X, y, sites=sites)
    assert len(model.alphas_) > 16
    loss = model.cv_loss_.mean(axis=1)
    assert 15 < loss.argmin() < len(loss) - 1
    assert np.count_nonzero(model.coef_path_[15]) < np.count_nonzero(model.coef_)
    assert loss.min() < loss[15] - 0.004
    np.testing.assert_allclose(np.diff(np.log(model.alphas_)), np.log(1e-3) / 15, rtol=1e-9)
    fine = cf.FederatedLogisticRegressionCV(model.alphas_, cv=3).fit(X, y, sites=sites)
    np.testing.assert_allclose(fine.cv_loss_, model.cv_loss_, rtol=1e-9)
    assert fine.alpha_ == model.alpha_


def test_edge_of_a_grid_is_reported():
    X, y, sites = diabetes()
    with pytest.warns(cf.EdgeOfGridWarning, match="extended 2 times. Give a smaller eps than 0.8, or standardize=True"):
        model = cf.FederatedLassoCV(n_alphas=4, eps=0.8, cv=3).fit(X, y, sites=sites)
    assert len(model.alphas_) == 8
    with pytest.warns(cf.EdgeOfGridWarning, match="smallest alpha, 0.8, and still falls there.*Give smaller alphas"):
        cf.FederatedLassoCV([1.0, 0.9, 0.8], cv=3).fit(X, y, sites=sites)
    noise = np.random.default_rng(0).standard_normal(len(y))
    with pytest.warns(cf.EdgeOfGridWarning, match="largest alpha, 0.0003: a larger one may predict better"):
        cf.FederatedLassoCV([3e-4, 2e-4, 1e-4], cv=3).fit(X, noise, sites=sites)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cf.FederatedLassoCV(cv=3).fit(X, y, sites=sites)
        cf.FederatedLassoCV([0.8, 0.01, 0.0], cv=3).fit(X, X @ np.arange(10.0), sites=sites)  # no penalty is the end
        cf.FederatedLassoCV(cv=3, n_alphas=10).fit(X, noise, sites=sites)  # the null model is a choice like any other


def test_refused_extension_keeps_the_fit():
    """Smaller alphas give models that separate the classes, with coefficients beyond what sites evaluate."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 3))
    y = (X[:, 0] + 0.05 * rng.standard_normal(120) > 0).astype(int)
    sites = cf.data.from_table(X, y, np.arange(120) % 2)
    model = cf.FederatedLogisticRegressionCV(cv=5, n_alphas=10, eps=0.03)
    with pytest.warns(
        cf.EdgeOfGridWarning, match="Smaller ones were tried, and a site refused them: .*over 16 standard"
    ):
        model.fit_federation(InProcess(sites, policy=DisclosurePolicy()))
    assert len(model.alphas_) == 10
    assert model.certificate_.holds
    exact = InProcess(sites, policy=DisclosurePolicy(), exact=True)  # as over a network: a refusal would end the run
    with pytest.warns(cf.EdgeOfGridWarning, match="was not extended"):
        again = cf.FederatedLogisticRegressionCV(cv=5, n_alphas=10, eps=0.03).fit_federation(exact)
    np.testing.assert_allclose(again.coef_, model.coef_, rtol=1e-7)


def test_more_folds_than_the_policy_allows_are_refused_with_the_number_that_fits():
    table = bundled.breast_cancer()
    X = StandardScaler().fit_transform(table.X)[:, :4]
    rare = np.where(np.arange(len(X)) % 2, "a", "b")
    for labels, make in ((table.y, cf.FederatedLogisticRegressionCV), (X[:, 0], cf.FederatedLassoCV)):
        federation = InProcess(cf.data.from_table(X, labels, rare), policy=DisclosurePolicy(min_rows=40))
        with pytest.raises(
            cf.InputError, match=r"cv = 30 needs 30 buckets of 40 rows at site '[ab]': use cv = (\d+)"
        ) as refused:
            make(cv=30).fit_federation(federation)
        fits = int(str(refused.value).split("use cv = ")[1].split(",")[0])
        make([0.1, 0.01], cv=fits).fit_federation(federation)


def test_over_a_federation_of_messages_the_same():
    X, y, sites = diabetes()
    options: dict[str, Any] = {
        "penalty_factors": {0: 0.0, 4: np.inf, 2: 2.0},
        "bounds": (-1.0, 0.4),
        "relax": True,
        "gamma": 0.5,
    }
    here = cf.FederatedLasso(0.1, **options).fit(X, y, sites=sites)
    for exact in (False, True):
        there = cf.FederatedLasso(0.1, **options).fit_federation(
            InProcess(cf.data.from_table(X, y, sites), exact=exact)
        )
        assert_same(there, here.coef_, here.intercept_, X, 1e-10)
    local = cf.FederatedLasso(0.1, algorithm="DecoupledProx", tol=1e-11, **options).fit(X, y, sites=sites)
    assert_same(local, here.coef_, here.intercept_, X)


def test_comparison_takes_them():
    table = bundled.diabetes()
    model = cf.FederatedLasso(0.1, penalty_factors={2: 0.0}, bounds=(-300, None), relax=True)
    found = cf.compare_local_federated(model, table.X, table.y, table.sites, pooled=True)
    assert found.distance[-2] < 1e-6


def test_default_fit_costs_no_more_messages():
    """No more than before these arguments existed: 4 and 7."""
    table = bundled.diabetes()
    assert cf.FederatedLasso(0.1).fit(table.X, table.y, sites=table.sites).n_rounds_ == 4
    assert cf.FederatedLassoCV(n_alphas=10, cv=3).fit(table.X, table.y, sites=table.sites).n_rounds_ <= 6
