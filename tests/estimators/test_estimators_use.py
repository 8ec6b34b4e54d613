"""Estimators as people use them: sites, weights, frame, methods, names, and what goes wrong."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import set_config
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso, LinearRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import compfed as cf
from compfed.estimators.programs.gap_and_uniqueness import certify_further
from compfed.federation import Evaluate, InProcess, ask, run_program
from compfed.federation.server.trial import Trial, evaluation
from compfed.federation.spec import FeatureScaling, FederatedProblem

ROWS, WIDTH = 60, 6


@pytest.fixture(scope="module")
def table():
    """Features in different units, three sites that differ in mean and in slope."""
    rng = np.random.default_rng(0)
    site = np.repeat([0, 1, 2], ROWS // 3)
    X = (rng.standard_normal((ROWS, WIDTH)) + site[:, None]) * [1.0, 0.01, 100.0, 1.0, 5.0, 1.0] + [0, 3, 50, 0, 0, -2]
    y = X[:, 0] * (1 + site) - 200 * X[:, 1] + 0.02 * X[:, 2] + rng.standard_normal(ROWS) + 7
    return X, y, site


def pooled(X, y, alpha, **options):
    return Lasso(alpha=alpha, tol=1e-14, max_iter=1_000_000, **options).fit(X, y)


def agree(model, expected, tol=1e-8):
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=tol, atol=tol)
    np.testing.assert_array_equal(model.coef_ != 0, expected.coef_ != 0)
    np.testing.assert_allclose(model.intercept_, expected.intercept_, rtol=tol, atol=tol)


def test_sites_do_not_change_the_answer(table):
    """One site, three, or two of unequal size: the answer is that of the pooled rows."""
    X, y, site = table
    expected = pooled(X, y, 0.1)
    for sites in (None, site, np.where(np.arange(ROWS) < 50, "large", "small")):
        agree(cf.FederatedLasso(alpha=0.1).fit(X, y, sites=sites), expected)


def test_without_intercept(table):
    X, y, site = table
    agree(
        cf.FederatedLasso(alpha=0.1, fit_intercept=False).fit(X, y, sites=site), pooled(X, y, 0.1, fit_intercept=False)
    )


def test_standardize_without_intercept_divides_by_the_standard_deviation(table):
    """As a scaler that does not centre; a constant column, which has no standard deviation, is in its own unit."""
    X, y, site = table
    X = np.column_stack([X[:, [0, 2, 4]], np.full(ROWS, 5.0)])
    scaler, lasso = (
        StandardScaler(with_mean=False),
        Lasso(alpha=0.3, fit_intercept=False, tol=1e-14, max_iter=1_000_000),
    )
    make_pipeline(scaler, lasso).fit(X, y)
    assert lasso.coef_[3] != 0
    for units in (1.0, 10.0 ** np.array([3, -2, 1, 0])):
        model = cf.FederatedLasso(alpha=0.3, standardize=True, fit_intercept=False).fit(X * units, y, sites=site)
        np.testing.assert_allclose(model.feature_scale_, np.asarray(scaler.scale_) * units, rtol=1e-12)
        np.testing.assert_allclose(model.coef_ * model.feature_scale_, lasso.coef_, rtol=1e-8, atol=1e-8)


def test_standardize_is_a_pipeline_with_coefficients_on_the_original_scale(table):
    X, y, site = table
    model = cf.FederatedLasso(alpha=0.3, standardize=True).fit(X, y, sites=site)
    scaler, lasso = StandardScaler(), Lasso(alpha=0.3, tol=1e-14, max_iter=1_000_000)
    pipeline = make_pipeline(scaler, lasso).fit(X, y)
    np.testing.assert_allclose(model.coef_, np.asarray(lasso.coef_) / np.asarray(scaler.scale_), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(model.predict(X), pipeline.predict(X), rtol=1e-8)
    assert not np.array_equal(model.coef_ != 0, pooled(X, y, 0.3).coef_ != 0), "frame must matter here"


def test_row_weights(table):
    X, y, site = table
    weight = np.random.default_rng(1).integers(0, 4, ROWS).astype(float)
    model = cf.FederatedLasso(alpha=0.1).fit(X, y, sites=site, sample_weight=weight)
    repeated = np.repeat(np.arange(ROWS), weight.astype(int))
    agree(model, pooled(X[repeated], y[repeated], 0.1))


def test_a_site_whose_rows_have_weight_zero_is_left_out(table):
    X, y, site = table
    absent = site == np.unique(site)[0]
    model = cf.FederatedLasso(alpha=0.1).fit(X, y, sites=site, sample_weight=np.where(absent, 0.0, 2.0))
    agree(model, pooled(X[~absent], y[~absent], 0.1))
    assert model.site_names_.tolist() == np.unique(site[~absent]).astype(str).tolist()


def test_a_class_whose_rows_have_weight_zero_is_left_out(table):
    X, _, site = table
    y = np.arange(ROWS) % 3
    model = cf.FederatedLogisticRegression().fit(X, y, sites=site, sample_weight=np.where(y == 2, 0.0, 1.0))
    without = cf.FederatedLogisticRegression().fit(X[y != 2], y[y != 2], sites=site[y != 2])
    np.testing.assert_array_equal(model.classes_, [0, 1])
    np.testing.assert_allclose(model.coef_, without.coef_, atol=1e-9)


def test_sites_are_words_where_some_are_and_holes_are_refused(table):
    X, y, _ = table
    mixed = [7 if i % 2 else "north" for i in range(ROWS)]
    expected = ["7", "north"]
    assert cf.FederatedLasso().fit(X, y, sites=mixed).site_names_.tolist() == expected
    assert cf.FederatedLasso().fit(X, y, sites=np.array(mixed, object)).site_names_.tolist() == expected
    for hole in (np.nan, None):
        listed: list[Any] = ["north"] * (ROWS - 1) + [hole]
        for given in (listed, pd.Series(listed)):
            with pytest.raises(cf.InputError, match=r"site of every row; 1 row\(s\) have none, the first is row 59"):
                cf.FederatedLasso().fit(X, y, sites=given)


def test_equal_sites_weigh_rows_by_one_over_their_site(table):
    X, y, _ = table
    uneven = np.where(np.arange(ROWS) < 45, 0, 1)
    model = cf.FederatedLasso(alpha=0.1, site_weights="equal").fit(X, y, sites=uneven)
    by_hand = Lasso(alpha=0.1, tol=1e-14, max_iter=1_000_000)
    by_hand.fit(X, y, sample_weight=np.where(uneven == 0, 1 / 45, 1 / 15))
    agree(model, by_hand)
    assert np.abs(model.coef_ - pooled(X, y, 0.1).coef_).max() > 1e-3


@pytest.mark.parametrize("algorithm", ["FISTA", "Scaffnew", cf.algorithms.AcceleratedDecoupledProx(eta=0.1, tau=3)])
def test_any_exact_method_gives_the_same_answer(table, algorithm):
    X, y, site = table
    model = cf.FederatedLasso(alpha=0.1, algorithm=algorithm, max_rounds=50_000).fit(X, y, sites=site)
    agree(model, pooled(X, y, 0.1), tol=1e-6)
    assert type(model.algorithm_).__name__ in str(algorithm)


def test_an_inexact_method_says_so(table):
    X, y, site = table
    with pytest.warns(ConvergenceWarning, match=r"stopped after \d+ rounds .* this one is not exact"):
        cf.FederatedLasso(alpha=0.1, algorithm="FedMid").fit(X, y, sites=site)


def test_too_few_rounds_say_so(table):
    X, y, site = table
    with pytest.warns(ConvergenceWarning, match=r"stopped after 20 rounds .* Give more max_rounds\."):
        model = cf.FederatedLasso(alpha=1e-4, max_rounds=20, algorithm="FISTA").fit(X, y, sites=site)
    # describe, bounds; 20 rounds; the last look, the duality gap
    assert model.n_rounds_ == 2 + 20 + 1 + 1
    assert not model.certificate_.holds


def test_data_frames_keep_names_and_the_site_column_is_no_feature(table):
    X, y, site = table
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(WIDTH)]).assign(hospital=site)
    model = cf.FederatedLasso(alpha=0.1).fit(frame, y, sites="hospital")
    assert model.feature_names_in_.tolist() == [f"x{i}" for i in range(WIDTH)]
    agree(model, pooled(X, y, 0.1))
    plain = frame.drop(columns="hospital")
    np.testing.assert_array_equal(model.predict(frame), model.predict(plain))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(plain.rename(columns={"x0": "other"}))


def test_fit_sites_takes_a_federation(table):
    X, y, site = table
    federation = cf.data.from_table(pd.DataFrame(X, columns=list("abcdef")), y, site)
    model = cf.FederatedLasso(alpha=0.1).fit_sites(federation)
    agree(model, pooled(X, y, 0.1))
    assert model.feature_names_in_.tolist() == list("abcdef")
    with pytest.raises(cf.InputError, match=r"fit_sites takes what compfed\.data makes"):
        cf.FederatedLasso().fit_sites(X)


def test_sites_are_routed_by_scikit_learn(table):
    """Metadata routing hands each fold its part of `sites`; without the request scikit-learn refuses."""
    X, y, site = table
    set_config(enable_metadata_routing=True)
    try:
        model = cf.FederatedLasso(alpha=0.1).set_fit_request(sites=True)
        found = cross_validate(model, X, y, params={"sites": site}, cv=3, return_estimator=True)
        assert all(len(m.site_names_) == 2 for m in found["estimator"]), "unshuffled folds leave out one site each"
        with pytest.raises(ValueError, match="sites"):
            cross_validate(cf.FederatedLasso(alpha=0.1), X, y, params={"sites": site}, cv=3)
        search = GridSearchCV(model, {"alpha": [0.1, 100.0]}, cv=GroupKFold(3)).fit(X, y, sites=site, groups=site)
        assert search.best_params_["alpha"] == 0.1
    finally:
        set_config(enable_metadata_routing=False)


def test_probabilities(table):
    X, _, site = table
    y = np.array(["no", "yes"])[(X[:, 0] > X[:, 0].mean()).astype(int)]
    model: Any = cf.FederatedLogisticRegression(alpha=0.05).fit(X, y, sites=site)
    P = model.predict_proba(X)
    np.testing.assert_allclose(P.sum(axis=1), 1.0)
    np.testing.assert_allclose(P[:, 1], 1 / (1 + np.exp(-(X @ model.coef_[0] + model.intercept_[0]))))
    np.testing.assert_allclose(np.log(P), model.predict_log_proba(X))
    np.testing.assert_array_equal(model.predict(X), model.classes_[P.argmax(axis=1)])
    assert model.score(X, y) > 0.9


def test_trace_and_certificate(table):
    X, y, site = table
    model = cf.FederatedLasso(alpha=0.1).fit(X, y, sites=site)
    assert model.certificate_.relative <= model.tol
    assert model.trace_["gradient_mapping"][-1] == model.certificate_.gradient_mapping
    assert model.site_names_.tolist() == ["0", "1", "2"]
    # the certificate's scale is the gradient of the mean model, in standardised columns
    Z = (X - X.mean(0)) / X.std(0)
    np.testing.assert_allclose(model.certificate_.scale, np.linalg.norm(Z.T @ (y - y.mean()) / ROWS), rtol=1e-10)


@pytest.mark.parametrize("standardize", [False, True])
def test_duality_gap_bounds_the_suboptimality(table, standardize):
    """Weak duality, at models far from and near the minimiser, and strong duality at it."""
    X, y, site = table
    for labels, model in (
        (y, cf.FederatedLasso(alpha=0.1, standardize=standardize)),
        (y, cf.FederatedElasticNet(alpha=0.1, standardize=standardize)),
        (y > y.mean(), cf.FederatedLogisticRegression(alpha=0.02, standardize=standardize)),
    ):
        best: Any = model.fit(X, labels, sites=site)
        assert 0 <= best.certificate_.duality_gap + 1e-13 <= 1e-9
        least = best.trace_["objective"][-1]
        for rounds in (10, 20, 40):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                rough: Any = type(model)(**{**model.get_params(), "max_rounds": rounds}).fit(X, labels, sites=site)
            assert rough.certificate_.duality_gap >= rough.trace_["objective"][-1] - least - 1e-12


def test_duality_gap_is_scikit_learns(table):
    """At a rough solution: scikit-learn's dual_gap_ is of the same objective at its own coefficients."""
    X, y, _ = table
    Z = StandardScaler().fit_transform(X)
    rough = Lasso(alpha=0.1, tol=1e-2).fit(Z, y)
    sites = cf.data.from_arrays([np.column_stack([Z, np.ones(ROWS)])], [y])
    g = cf.regularisers.OnBlock(cf.regularisers.ElasticNet(np.full(WIDTH, 0.1), np.zeros(WIDTH)), 0, WIDTH)
    frame = FeatureScaling(np.zeros(WIDTH), np.ones(WIDTH), intercept=True)
    x, federation = np.append(rough.coef_, rough.intercept_), InProcess(sites)
    spec = FederatedProblem.of(cf.Problem(cf.losses.Squared(), g, sites))
    (summed,) = ask(federation, Evaluate(spec.objective, x[None]), weights=spec.weights)
    at = evaluation(spec, Trial(x), summed)
    found: Any = SimpleNamespace(x=x, at=at, kept=None, converged=False)
    (gap, _), _ = run_program(federation, certify_further(spec, found, frame))
    assert gap is not None
    assert gap > 1e-8
    np.testing.assert_allclose(gap, rough.dual_gap_, rtol=1e-6, atol=1e-12)


def test_least_squares_without_penalty_has_no_duality_gap(table):
    X, y, site = table
    model = cf.FederatedLasso(alpha=0.0).fit(X, y, sites=site)
    np.testing.assert_allclose(model.coef_, LinearRegression().fit(X, y).coef_, rtol=1e-8)
    assert model.certificate_.holds
    assert model.certificate_.duality_gap is None


WRONG = {
    "alpha": (
        lambda X, y, s: cf.FederatedLasso(alpha=-1.0).fit(X, y, sites=s),
        r"alpha=-1.0 must be a finite",
    ),
    "l1_ratio": (
        lambda X, y, s: cf.FederatedElasticNet(l1_ratio=1.5).fit(X, y, sites=s),
        r"l1_ratio=1.5 must be between 0 and 1",
    ),
    "tau": (lambda X, y, s: cf.FederatedLasso(tau=0).fit(X, y, sites=s), r"tau=0 must be a whole number >= 1"),
    "site weights": (
        lambda X, y, s: cf.FederatedLasso(site_weights="mean").fit(X, y, sites=s),
        r"site_weights='mean' must be one of 'rows', 'equal'\. With 'rows' every row",
    ),
    "sites too short": (
        lambda X, y, s: cf.FederatedLasso().fit(X, y, sites=s[:5]),
        r"sites has 5 entries; X has 60 rows",
    ),
    "sites a name, X an array": (
        lambda X, y, s: cf.FederatedLasso().fit(X, y, sites="hospital"),
        r"sites='hospital' names a column, and X has none of that name",
    ),
    "one class": (
        lambda X, y, s: cf.FederatedLogisticRegression().fit(X, np.ones(ROWS), sites=s),
        r"at least 2 classes over all sites together; y has one class: 1.0",
    ),
    "negative counts": (
        lambda X, y, s: cf.FederatedPoissonRegressor().fit(X, -np.ones(ROWS), sites=s),
        r"y must be >= 0 and not all zero. The smallest is -1",
    ),
    "groups": (
        lambda X, y, s: cf.FederatedGroupLasso(groups=[0, 1]).fit(X, y, sites=s),
        r"groups has 2 labels; X has 6 features",
    ),
    "groups as lists": (
        lambda X, y, s: cf.FederatedGroupLasso(groups=[[0, 1], [1, 2, 3, 4, 5]]).fit(X, y, sites=s),
        r"must list each of the 6 features exactly once, by position 0..5",
    ),
    "groups by names of an array": (
        lambda X, y, s: cf.FederatedGroupLasso(groups=[["a", "b"], [2, 3, 4, 5]]).fit(X, y, sites=s),
        r"must list each of the 6 features exactly once, by position 0..5\.",
    ),
    "negative group weight": (
        lambda X, y, s: cf.FederatedGroupLasso(groups=[0, 0, 0, 1, 1, 1], group_weights=[1, -1]).fit(X, y, sites=s),
        r"group_weights=\[1, -1\] must be 2 finite numbers >= 0",
    ),
    "unknown method": (
        lambda X, y, s: cf.FederatedLasso(algorithm="Nope").fit(X, y, sites=s),
        r"(?i)nope",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input(table, name):
    call, message = WRONG[name]
    with pytest.raises(cf.InputError, match=message):
        call(*table)


def test_groups_as_lists_of_positions_or_names(table):
    X, y, site = table
    labelled = cf.FederatedGroupLasso(alpha=0.05, groups=["b", "a", "b", "c", "a", "c"]).fit(X, y, sites=site)
    listed = cf.FederatedGroupLasso(alpha=0.05, groups=[[1, 4], [0, 2], [3, 5]]).fit(X, y, sites=site)
    np.testing.assert_array_equal(labelled.coef_, listed.coef_)
    names = ["age", "bmi", "bp", "chol", "hr", "sex"]
    by_name = cf.FederatedGroupLasso(alpha=0.05, groups=[["bmi", "hr"], ["age", "bp"], ["chol", "sex"]])
    # whose rows lie otherwise in memory, and round otherwise
    by_name.fit(pd.DataFrame(X, columns=names), y, sites=site)
    np.testing.assert_allclose(by_name.coef_, listed.coef_, rtol=1e-12)
    singles = cf.FederatedGroupLasso(alpha=0.1).fit(X, y, sites=site)
    agree(singles, pooled(X, y, 0.1))


def test_the_share_explained_of_counts_that_are_all_the_same():
    """As r2_score has it: 1 where the prediction is exact, 0 elsewhere; scikit-learn's deviance divides by zero."""
    X, y = np.arange(6.0)[:, None], np.array([1.0, 2, 3, 5, 9, 14])
    model = cf.FederatedPoissonRegressor(alpha=0.1).fit(X, y, sites=None)
    assert model.score(X, np.full(6, 2.0)) == 0.0
    assert model.score(X, y, sample_weight=np.eye(6)[2]) == 0.0
    assert model.score(X[[0, 0]], model.predict(X[[0, 0]])) == 1.0
