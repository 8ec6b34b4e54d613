"""Penalty factors, bounds and relaxed fits, against solvers that are not ours, on the pooled rows."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from penalty_cases import EXACT, TABLES, assert_optimal, assert_same, counts, diabetes, factors_for, tables, units
from scipy.optimize import lsq_linear
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso

import compfed as cf
from compfed.data import bundled

# --- penalty factors ---


@tables
def test_factors_are_columns_in_other_units(table):
    """The lasso with factor f_j is that of the column divided by f_j."""
    X, y, sites = table()
    f = np.linspace(0.3, 2.0, X.shape[1])
    alpha = 0.1 * np.abs((X - X.mean(0)).T @ (y - y.mean()) / f).max() / len(y)
    model = cf.FederatedLasso(alpha, penalty_factors=f).fit(X, y, sites=sites)
    pooled = Lasso(alpha, **EXACT).fit((X - X.mean(0)) / f, y - y.mean())
    assert_same(model, pooled.coef_ / f, y.mean() - X.mean(0) @ (pooled.coef_ / f), X)
    np.testing.assert_array_equal(model.coef_ != 0, pooled.coef_ != 0)
    assert model.certificate_.holds
    gap = model.certificate_.duality_gap
    assert gap is not None
    assert gap <= 1e-10 * np.var(y)


@tables
@pytest.mark.parametrize("loss", ["squared", "logistic", "poisson", "huber"])
def test_factors_zero_and_infinite_for_every_loss(table, loss):
    X, count, label, sites = counts(table)
    f = factors_for(X)
    y = {"squared": table()[1], "logistic": label, "poisson": count, "huber": table()[1]}[loss]
    alpha = 0.02 * X.std() ** 0.2
    make: Any = {
        "squared": cf.FederatedElasticNet, "logistic": cf.FederatedLogisticRegression,
        "poisson": cf.FederatedPoissonRegressor, "huber": cf.FederatedHuber,
    }[loss]  # fmt: skip
    options = {"delta": 1.0} if loss == "huber" else {}
    model = make(alpha, l1_ratio=0.7, penalty_factors=f, **options).fit(X, y, sites=sites)
    assert model.certificate_.holds
    out = np.isinf(f)
    assert (np.ravel(model.coef_)[out] == 0).all()
    bound = np.where(out, 0.0, np.inf)
    finite = np.where(out, 0.0, f)
    assert_optimal(model, loss, X, y, alpha * 0.7 * finite, alpha * 0.3 * finite, -bound, bound)


def test_all_factors_zero_is_least_squares_and_inf_drops_columns():
    for table in TABLES:
        X, y, sites = table()
        model = cf.FederatedLasso(1.0, penalty_factors={0: np.inf} | dict.fromkeys(range(1, X.shape[1]), 0.0))
        model.fit(X, y, sites=sites)
        centre, scale = X[:, 1:].mean(0), X[:, 1:].std(0)
        pooled = sm.OLS(y, sm.add_constant((X[:, 1:] - centre) / scale)).fit()
        coef = np.append(0.0, pooled.params[1:] / scale)
        assert_same(model, coef, pooled.params[0] - centre @ coef[1:], X)
        assert model.coef_[0] == 0
        assert model.certificate_.duality_gap is None


def test_factors_by_name_by_place_and_as_a_series():
    X, y, sites = diabetes()
    frame = pd.DataFrame(X, columns=list(bundled.diabetes().feature_names))
    by_place = cf.FederatedLasso(0.1, penalty_factors={2: 0, 8: 3.0}).fit(X, y, sites=sites).coef_
    names = frame.columns[[2, 8]]
    for given in (
        {names[0]: 0, names[1]: 3.0},
        pd.Series([0, 3.0], index=names),
        np.array([1, 1, 0, 1, 1, 1, 1, 1, 3, 1]),
    ):
        np.testing.assert_array_equal(
            cf.FederatedLasso(0.1, penalty_factors=given).fit(frame, y, sites=sites).coef_, by_place
        )


def test_a_series_is_read_by_name_wherever_numbers_are_per_column_or_per_group():
    """In any order of its index, and after a model file: as the array in the order of the columns or labels."""
    X, y, sites = diabetes()
    frame = pd.DataFrame(X, columns=list(bundled.diabetes().feature_names))
    lower, upper = pd.Series(-100.0, frame.columns), pd.Series(np.linspace(50, 500, 10), frame.columns)
    labels = list("ccbbaaaabb")
    for by_name, in_order in (
        (
            cf.FederatedLasso(0.1, bounds=(lower, upper[::-1])),
            cf.FederatedLasso(0.1, bounds=(-100.0, upper.to_numpy())),
        ),
        (
            cf.FederatedLasso(0.1, bounds=(None, {"bmi": 100.0, 8: 200.0})),
            cf.FederatedLasso(0.1, bounds={"bmi": (None, 100.0), 8: (None, 200.0)}),
        ),
        (
            cf.FederatedGroupLasso(0.1, groups=labels, group_weights=pd.Series({"c": 1.0, "a": 4.0, "b": 2.0})),
            cf.FederatedGroupLasso(0.1, groups=labels, group_weights=[4.0, 2.0, 1.0]),
        ),
        (
            cf.FederatedGroupLasso(0.1, groups=labels, group_weights={"b": 3.0}),
            cf.FederatedGroupLasso(0.1, groups=labels, group_weights=[2.0, 3.0, 2**0.5]),
        ),
    ):
        found, expected = (model.fit(frame, y, sites=sites).coef_ for model in (by_name, in_order))
        assert expected.any()
        np.testing.assert_array_equal(found, expected)


def test_a_model_file_keeps_a_series_in_a_pair(tmp_path):
    X, y, sites = diabetes()
    frame = pd.DataFrame(X, columns=list(bundled.diabetes().feature_names))
    model = cf.FederatedLasso(0.1, bounds=(None, pd.Series({"bp": 100.0, "bmi": 50.0}))).fit(frame, y, sites=sites)
    again = cf.load_model(cf.save_model(model, tmp_path / "m.safetensors"))
    np.testing.assert_array_equal(again.fit(frame, y, sites=sites).coef_, model.coef_)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"penalty_factors": {"bmi": 2, 2: 3}}, "has 'bmi' and 2, which are both column 'bmi'. Give one of the two"),
        ({"bounds": {2: (0, 1), "bmi": (-1, 0)}}, "bounds has 2 and 'bmi', which are both column 'bmi'"),
        ({"bounds": (None, {2: 1, "bmi": 0})}, "bounds: upper has 2 and 'bmi', which are both column 'bmi'"),
        ({"bounds": (pd.Series({"x": -1.0}), None)}, "bounds: lower: there is no column 'x'"),
        (
            {"bounds": (pd.Series([-1.0] * 10, index=["bmi"] * 10), None)},
            "lower is a Series whose index has an entry twice",
        ),
        (
            {"penalty_factors": pd.DataFrame({"f": [1.0] * 10})},
            "penalty_factors is a DataFrame; give one of its columns",
        ),
        ({"bounds": pd.DataFrame({"low": [-1.0] * 10, "high": 1.0})}, "bounds is a DataFrame"),
        ({"bounds": (pd.DataFrame({"low": [-1.0] * 10}), 1)}, "bounds: lower is a DataFrame"),
        ({"penalty_factors": {"bni": 0}}, "no column 'bni'. Did you mean 'bmi'"),
        ({"penalty_factors": {10: 0}}, "position from 0 to 9"),
        ({"penalty_factors": {"bmi": -1}}, "column 'bmi' has -1"),
        ({"penalty_factors": {"bmi": np.nan}}, "column 'bmi' has nan"),
        ({"penalty_factors": {"bmi": "no"}}, "must be a number >= 0"),
        ({"penalty_factors": [1, 2]}, r"shape \(2,\); there are 10 columns"),
        ({"bounds": {"bni": (0, 1)}}, "Did you mean 'bmi'"),
        ({"bounds": {"bmi": (1, 2)}}, r"column 'bmi' has \(1, 2\); lower <= 0 <= upper"),
        ({"bounds": (0, np.nan)}, "NaN"),
        ({"bounds": 3}, "pair"),
        ({"bounds": ([0, 0], 1)}, "there are 10 columns"),
        ({"gamma": 0.5}, "needs relax=True"),
        ({"relax": True, "gamma": 1.5}, "between 0 and 1"),
        ({"relax": True, "gamma": [0.5]}, "between 0 and 1"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(options: Any, words):
    table = bundled.diabetes()
    frame = pd.DataFrame(table.X, columns=list(table.feature_names))
    model = cf.FederatedLasso(**options)
    for fit in (
        lambda: model.fit(frame, table.y, sites=table.sites),
        lambda: model.fit_sites(cf.data.from_table(frame, table.y, table.sites)),
    ):
        with pytest.raises(cf.InputError, match=words):
            fit()


def test_number_that_is_the_name_of_another_column_is_refused():
    X, y, sites = diabetes()
    frame = pd.DataFrame(X, columns=list(range(9, -1, -1)))
    with pytest.raises(cf.InputError, match="may be the column called 0"):
        cf.FederatedLasso(0.1, penalty_factors={0: 0}).fit(frame, y, sites=sites)


def test_words_of_glmnet_are_answered():
    make: Any = cf.FederatedLasso
    nuclear: Any = cf.FederatedNuclearRegressor
    groups: Any = cf.FederatedGroupLasso
    for word, hint in (
        ("penalty_factor", "penalty_factors"),
        ("exclude", "inf"),
        ("lower_limits", "bounds"),
        ("lambda_1se", "one_standard_error"),
    ):
        with pytest.raises(cf.InputError, match=hint):
            make(**{word: 1})
    with pytest.raises(cf.InputError, match="has no parameter 'penalty_factors'"):
        nuclear(penalty_factors=[1])
    with pytest.raises(cf.InputError, match="has no parameter 'bounds'"):
        groups(bounds=(0, 1))


# --- bounds ---


@tables
def test_bounds_without_a_penalty_are_bounded_least_squares(table):
    X, y, sites = table()
    scale = X.std(axis=0)
    lower, upper = -0.2 * y.std() / scale, 0.1 * y.std() / scale
    model = cf.FederatedLasso(0.0, bounds=(lower, upper)).fit(X, y, sites=sites)
    Z = (X - X.mean(0)) / scale
    pooled = lsq_linear(Z, y - y.mean(), (lower * scale, upper * scale), tol=1e-15, method="bvls")
    coef = pooled.x / scale
    assert_same(model, coef, y.mean() - X.mean(0) @ coef, X)
    assert ((model.coef_ == lower) | (model.coef_ == upper)).any()


@tables
@pytest.mark.parametrize("loss", ["squared", "logistic", "poisson", "huber"])
@pytest.mark.parametrize("algorithm", ["auto", "FISTA"])
def test_bounds_and_factors_for_every_loss(table, loss, algorithm):
    if algorithm == "FISTA" and (table is units or loss == "poisson"):
        pytest.skip("slow, and the same prox")
    X, count, label, sites = counts(table)
    y = {"squared": table()[1], "logistic": label, "poisson": count, "huber": table()[1]}[loss]
    f, scale = np.where(np.isinf(factors_for(X)), 1.0, factors_for(X)), X.std(axis=0)
    lower, upper = np.full(X.shape[1], -0.1) / scale, np.where(np.arange(X.shape[1]) % 2, np.inf, 0.2) / scale
    lower[1] = 0.0
    make: Any = {
        "squared": cf.FederatedLasso, "logistic": cf.FederatedLogisticRegression,
        "poisson": cf.FederatedPoissonRegressor, "huber": cf.FederatedHuber,
    }[loss]  # fmt: skip
    options: dict[str, Any] = {"delta": 1.0} if loss == "huber" else {}
    options |= {} if loss == "squared" else {"l1_ratio": 1.0}
    alpha = 0.01 * X.std() ** 0.2
    model = make(alpha, penalty_factors=f, bounds=(lower, upper), algorithm=algorithm, tol=1e-11, **options)
    model.fit(X, y, sites=sites)
    assert model.certificate_.holds
    assert_optimal(model, loss, X, y, alpha * f, 0.0, lower, upper)
    w = np.ravel(model.coef_)
    assert ((w == lower) | (w == upper)).any(), "no bound was reached: the test tests nothing"


@pytest.mark.parametrize("standardize", [False, True])
def test_positive_is_a_bound_and_bounds_are_of_the_published_coefficients(standardize):
    X, y, sites = units()
    one, other = (
        cf.FederatedElasticNet(0.05, standardize=standardize, positive=positive, bounds=bounds).fit(X, y, sites=sites)
        for positive, bounds in ((True, None), (False, (0, None)))
    )
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-10, atol=1e-300)
    np.testing.assert_array_equal(one.coef_ == 0, other.coef_ == 0)
    held = cf.FederatedElasticNet(0.01, l1_ratio=1.0, standardize=standardize, bounds={1: (None, 0.25)}).fit(
        X, y, sites=sites
    )
    assert held.coef_[1] == pytest.approx(0.25, rel=1e-14)
    rest = np.delete(np.arange(6), 1)
    scale = X.std(0) if standardize else np.ones(6)
    less = Lasso(0.01, **EXACT).fit(((X - X.mean(0)) / scale)[:, rest], y - 0.25 * X[:, 1])
    np.testing.assert_allclose((held.coef_ * X.std(0))[rest], less.coef_ / scale[rest] * X.std(0)[rest], atol=1e-9)


def test_bounds_that_keep_a_separable_fit_finite():
    """Without bounds there is no minimiser; with them there is one, at a bound."""
    x = np.arange(-10.0, 10.0)[:, None] + 0.5
    y = (x[:, 0] > 0).astype(int)
    model = cf.FederatedLogisticRegression(0.0, bounds=(-30.0, 30.0)).fit(x, y, sites=np.arange(20) % 2)
    assert model.coef_[0, 0] == 30.0
    assert model.certificate_.holds
    with pytest.warns(ConvergenceWarning, match="separable|still grow"):
        cf.FederatedLogisticRegression(0.0, bounds=(0.0, None)).fit(x, y, sites=np.arange(20) % 2)


def test_equal_sites_standardize_and_softmax_with_factors_and_bounds_against_cvxpy():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 4)) * [1, 2, 0.5, 1]
    y = (X @ rng.standard_normal((4, 3)) + rng.gumbel(size=(90, 3))).argmax(axis=1)
    sites = np.where(np.arange(90) < 60, "a", "b")
    f = np.array([0.5, 1.0, 2.0, np.inf])
    model = cf.FederatedLogisticRegression(
        0.02, l1_ratio=0.5, penalty_factors=f, bounds=(-0.6, 0.4), standardize=True, site_weights="equal"
    ).fit(X, y, sites=sites)
    assert model.certificate_.holds
    weight = np.where(sites == "a", 1 / 120, 1 / 60)
    scale = np.sqrt(np.average((X - np.average(X, axis=0, weights=weight)) ** 2, axis=0, weights=weight))
    W, b, g = cp.Variable((3, 3)), cp.Variable(3), f[:3] * scale[:3]
    bounds: Any = [W >= -0.6, W <= 0.4, cp.sum(b) == 0]
    z = X[:, :3] @ W.T + np.ones((90, 1)) @ cp.reshape(b, (1, 3), order="C")
    nll = cp.sum(cp.multiply(weight, cp.log_sum_exp(z, axis=1) - cp.sum(cp.multiply(np.eye(3)[y], z), axis=1)))
    ridge = cp.sum(cp.multiply(np.tile(f[:3] * scale[:3] ** 2, (3, 1)), cp.square(W)))
    penalty = 0.01 * cp.sum(cp.multiply(np.tile(g, (3, 1)), cp.abs(W))) + 0.005 * ridge
    problem = cp.Problem(cp.Minimize(nll + penalty), bounds)
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-14, tol_gap_rel=1e-14, tol_feas=1e-14)
    np.testing.assert_allclose(model.coef_[:, :3], np.asarray(W.value), atol=1e-6)
    assert (model.coef_[:, 3] == 0).all()
    np.testing.assert_allclose(model.intercept_, np.asarray(b.value), atol=1e-6)
