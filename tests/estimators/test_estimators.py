"""Estimators: the coefficients of the pooled rows, zeros included, with default arguments, whatever the sites."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import cvxpy as cp
import numpy as np
import pytest
from places import SHARED
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, MultiTaskLasso, PoissonRegressor

import compfed as cf
from compfed.data import bundled, partition
from compfed.estimators.classification import sparsest

needs_data = pytest.mark.skipif(not SHARED.exists(), reason="the real data of the shared folder is not here")
EXACT = {"tol": 1e-14, "max_iter": 1_000_000}


# --- tables: (X, y, sites) ---


def diabetes(by: Any = "age"):
    table = bundled.diabetes(sites=by)
    return table.X, table.y, table.sites


def breast_cancer():
    table = bundled.breast_cancer()
    return table.X, table.y, table.sites


def one_class_cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return X, y, y  # every site has one class


def digits():
    X, y = load_digits(return_X_y=True)
    return X, y, partition.dirichlet(y, 8, alpha=0.1, seed=1)


def some_digits(kept: list[int], rows: int):
    X, y, sites = digits()
    keep = np.flatnonzero(np.isin(y, kept))[:rows]
    return np.asarray(X)[keep], np.searchsorted(kept, y[keep]), sites[keep]


def five_digits():
    return some_digits([0, 1, 2, 3, 4], 450)


def skewed_wine():
    X, y = load_wine(return_X_y=True)
    return X, y, partition.size_skewed(len(y), 6, exponent=1.5, seed=0)


def counts():
    """Counts that depend on a few features of breast cancer, over sites of similar tumours."""
    X, _, sites = breast_cancer()
    Z = (X - X.mean(0)) / X.std(0)
    mean = np.exp(1.0 + 0.4 * Z[:, 0] - 0.5 * Z[:, 4] + 0.3 * Z[:, 21])
    return X, np.random.default_rng(0).poisson(mean).astype(float), sites


def pixels():
    """Three outcomes of the digits: ink in the upper half, in the lower half, and the digit itself."""
    X, y, sites = digits()
    X = np.asarray(X)
    Y = np.column_stack([X[:, :32].mean(1), X[:, 32:].mean(1), y])
    return X[:, 5::7], Y, sites


def three_of_cancer():
    """Size, texture and class from standardised errors and extremes of the measurements."""
    X, y, sites = breast_cancer()
    Z = (X - X.mean(0)) / X.std(0)
    return Z[:, 10:], np.column_stack([Z[:, 0], Z[:, 1], y]), sites


def three_of_diabetes():
    X, y, sites = diabetes()
    return X[:, :8], np.column_stack([y, 500 * X[:, 8], 500 * X[:, 9]]), sites


def heart():
    table = bundled.heart(SHARED / "heart")
    return table.X, table.y, table.sites


# --- independent pooled solutions ---


class Pooled(NamedTuple):
    coef: np.ndarray
    intercept: np.ndarray
    support: np.ndarray


def of_sklearn(model: Any, X, y) -> Pooled:
    model.fit(X, y)
    coef = np.atleast_2d(model.coef_)
    return Pooled(coef, np.atleast_1d(model.intercept_), coef != 0)


def of_cvxpy(loss: Callable, penalty: Callable, X: np.ndarray, outputs: int = 1, iterations: int = 200) -> Pooled:
    """min loss(predictions) + penalty(coefficients (width, outputs)), stated in standardised columns for accuracy."""
    centre, scale = X.mean(0), X.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    U, b = cp.Variable((X.shape[1], outputs)), cp.Variable(outputs)
    rows = np.column_stack([(X - centre) / scale, np.ones(len(X))])
    z = getattr(loss, "rows", lambda A: A)(rows) @ cp.vstack([U, cp.reshape(b, (1, outputs), order="C")])
    program = cp.Problem(cp.Minimize(loss(z) + penalty(cp.multiply(U, 1.0 / scale[:, None]))))
    tight = {f"tol_{name}": 1e-13 for name in ("gap_abs", "gap_rel", "feas")}
    with warnings.catch_warnings():  # "may be inaccurate": tighter than an interior point can promise
        warnings.simplefilter("ignore", UserWarning)
        # short steps stay near the central path, which is worth two or three digits
        program.solve(solver=cp.CLARABEL, max_iter=iterations, max_step_fraction=0.9, **tight)
    assert U.value is not None
    assert b.value is not None
    coef = np.asarray(U.value / scale[:, None])
    # an interior-point method leaves zeros at 1e-9 or so of the largest standardised coefficient
    return Pooled(coef.T, np.asarray(b.value - centre @ coef), (np.abs(U.value) > 1e-6 * np.abs(U.value).max()).T)


def logistic(y: np.ndarray) -> Callable:
    sign = np.where(y == y.max(), 1.0, -1.0)
    return lambda z: cp.sum(cp.logistic(-cp.multiply(sign, z[:, 0]))) / len(y)


def poisson(y: np.ndarray) -> Callable:
    return lambda z: cp.sum(cp.exp(z[:, 0]) - cp.multiply(y, z[:, 0])) / len(y)


def huber(y: np.ndarray, delta: Any) -> Callable:
    return lambda z: cp.sum(cp.huber(z[:, 0] - y, delta)) / (2 * len(y))  # cvxpy's is twice the usual


class Squares:
    """||Y - z||^2 / (2n), stated with the triangular factor of the rows: the same up to a constant, and accurate."""

    def __init__(self, Y: np.ndarray):
        self.Y = Y.reshape(len(Y), -1)

    def rows(self, A: np.ndarray) -> np.ndarray:
        Q, R = np.linalg.qr(A)
        self.right = Q.T @ self.Y
        return R

    def __call__(self, z):
        return cp.sum_squares(self.right - z) / (2 * len(self.Y))


def softmax(y: np.ndarray) -> Callable:
    hot = np.eye(int(y.max()) + 1)[y]
    return lambda z: cp.sum(cp.log_sum_exp(z, axis=1) - cp.sum(cp.multiply(hot, z), axis=1)) / len(y)


def elastic(alpha: float, l1_ratio: float = 1.0) -> Callable:
    square = alpha * (1 - l1_ratio) / 2  # not stated where it is zero: the solver is more accurate without
    return lambda W: alpha * l1_ratio * cp.sum(cp.abs(W)) + (square * cp.sum_squares(W) if square else 0.0)


def groups_of(alpha: float, members: np.ndarray) -> Callable:
    def penalty(W):
        rows = [np.flatnonzero(members == g) for g in np.unique(members)]
        return alpha * sum(np.sqrt(len(r)) * cp.norm2(W[r, 0]) for r in rows)

    return penalty


TEN_GROUPS = np.arange(30) % 10  # breast cancer: mean, error and worst of each of ten measurements
DIABETES_GROUPS = np.array([0, 0, 1, 1, 2, 2, 2, 2, 2, 3])


NEWTON: dict[str, Any] = {"solver": "newton-cholesky", "tol": 1e-12, "max_iter": 10_000}


def pooled(model: Any, X: np.ndarray, y: np.ndarray) -> Pooled:
    """What another solver makes of all rows together, with the statistical parameters of `model`."""
    alpha, ratio = model.alpha, getattr(model, "l1_ratio", 1.0)
    outputs = 1 if y.ndim == 1 else y.shape[1]
    match model:
        case cf.FederatedLasso():
            return of_sklearn(Lasso(alpha, positive=model.positive, **EXACT), X, y)
        case cf.FederatedElasticNet():
            return of_sklearn(ElasticNet(alpha, l1_ratio=ratio, positive=model.positive, **EXACT), X, y)
        case cf.FederatedMultiTaskLasso():
            return of_sklearn(MultiTaskLasso(alpha, **EXACT), X, y)
        case cf.FederatedNuclearRegressor():
            return of_cvxpy(Squares(y), lambda W: alpha * cp.normNuc(W), X, outputs)
        case cf.FederatedGroupLasso():
            return of_cvxpy(Squares(y), groups_of(alpha, np.asarray(model.groups)), X)
        case cf.FederatedHuber():
            return of_cvxpy(huber(y, model.delta), elastic(alpha, ratio), X)
        case cf.FederatedPoissonRegressor() if ratio == 0:
            return of_sklearn(PoissonRegressor(alpha=alpha, solver="newton-cholesky", tol=1e-12), X, y)
        case cf.FederatedPoissonRegressor():
            return of_cvxpy(poisson(y), elastic(alpha, ratio), X)
        case cf.FederatedLogisticRegression() if ratio == 0:
            return of_sklearn(LogisticRegression(C=1 / (alpha * len(y)), **NEWTON), X, y)
        case cf.FederatedLogisticRegression() if len(np.unique(y)) == 2:
            return of_cvxpy(logistic(y), elastic(alpha, ratio), X)
        case cf.FederatedLogisticRegression():
            return of_cvxpy(softmax(y), elastic(alpha, ratio), X, outputs=len(np.unique(y)))
    raise NotImplementedError(model)


DEFAULTS: dict[str, tuple[Any, Callable]] = {  # nothing is set
    "lasso, diabetes": (cf.FederatedLasso(), diabetes),
    "lasso, cancer": (cf.FederatedLasso(), breast_cancer),
    "lasso, digits": (cf.FederatedLasso(), digits),
    "elastic net, diabetes": (cf.FederatedElasticNet(), diabetes),
    "elastic net, cancer": (cf.FederatedElasticNet(), breast_cancer),
    "elastic net, digits": (cf.FederatedElasticNet(), digits),
    "logistic, cancer": (cf.FederatedLogisticRegression(), breast_cancer),
    "logistic, one class per site": (cf.FederatedLogisticRegression(), one_class_cancer),
    "logistic, wine": (cf.FederatedLogisticRegression(), skewed_wine),
    "logistic, five digits": (cf.FederatedLogisticRegression(), five_digits),
    "logistic, digits": (cf.FederatedLogisticRegression(), digits),
    "poisson, diabetes": (cf.FederatedPoissonRegressor(), diabetes),
    "poisson, cancer": (cf.FederatedPoissonRegressor(), counts),
    "poisson, digits": (cf.FederatedPoissonRegressor(), digits),
    "huber, diabetes": (cf.FederatedHuber(), diabetes),
    "huber, cancer": (cf.FederatedHuber(), breast_cancer),
    "huber, digits": (cf.FederatedHuber(), digits),
    "group lasso, diabetes": (cf.FederatedGroupLasso(groups=DIABETES_GROUPS), diabetes),
    "group lasso, cancer": (cf.FederatedGroupLasso(groups=TEN_GROUPS.tolist()), breast_cancer),
    "group lasso, digits": (cf.FederatedGroupLasso(groups=np.arange(64) // 8), digits),  # rows of the picture
    "multi-task lasso, diabetes": (cf.FederatedMultiTaskLasso(), three_of_diabetes),
    "multi-task lasso, cancer": (cf.FederatedMultiTaskLasso(), three_of_cancer),
    "multi-task lasso, digits": (cf.FederatedMultiTaskLasso(), pixels),
    "nuclear, diabetes": (cf.FederatedNuclearRegressor(), three_of_diabetes),
    "nuclear, cancer": (cf.FederatedNuclearRegressor(), three_of_cancer),
    "nuclear, digits": (cf.FederatedNuclearRegressor(), pixels),
}
OTHERS: dict[str, tuple[Any, Callable]] = {  # another penalty is asked for
    "weaker lasso, diabetes by sex": (cf.FederatedLasso(alpha=0.05), lambda: diabetes("sex")),
    "weaker lasso, one class per site": (cf.FederatedLasso(alpha=0.01), one_class_cancer),
    "positive lasso, diabetes": (cf.FederatedLasso(alpha=0.1, positive=True), diabetes),
    "weaker elastic net, diabetes": (cf.FederatedElasticNet(alpha=0.01), diabetes),
    "positive elastic net, diabetes": (cf.FederatedElasticNet(alpha=0.01, positive=True), diabetes),
    "logistic elastic net, cancer": (cf.FederatedLogisticRegression(l1_ratio=0.3), breast_cancer),
    "logistic ridge, one class per site": (cf.FederatedLogisticRegression(alpha=1e-3, l1_ratio=0.0), one_class_cancer),
    "softmax ridge, digits": (cf.FederatedLogisticRegression(l1_ratio=0.0), digits),
    "poisson l1, diabetes": (cf.FederatedPoissonRegressor(alpha=0.5, l1_ratio=1.0), diabetes),
    "poisson l1, cancer": (cf.FederatedPoissonRegressor(alpha=0.02, l1_ratio=1.0), counts),
    "wider huber, diabetes": (cf.FederatedHuber(alpha=0.05, delta=40.0), diabetes),
    "weaker group lasso, cancer": (cf.FederatedGroupLasso(alpha=0.02, groups=TEN_GROUPS.tolist()), breast_cancer),
    "stronger nuclear, digits": (cf.FederatedNuclearRegressor(alpha=2.0), pixels),
}
CASES = DEFAULTS | OTHERS
SLOW = {"logistic, digits", "softmax ridge, digits"}  # a minute or two of the other solver


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.thorough] if n in SLOW else []) for n in CASES])
def test_the_coefficients_of_the_pooled_rows(name):
    model, table = CASES[name]
    X, y, sites = table()
    model.fit(X, y, sites=sites)
    expected = pooled(model, X, y)
    coef = np.atleast_2d(model.coef_)
    assert len(np.unique(sites)) > 1
    assert not np.signbit(coef[coef == 0]).any()  # nobody wants to read -0.0
    # compared where features are alike: on the scale of the predictions
    size = X.std(0)
    assert np.linalg.norm((coef - expected.coef) * size) <= 1e-6 * np.linalg.norm(expected.coef * size)
    intercept = expected.intercept
    if hasattr(model, "classes_") and len(model.classes_) > 2:  # a common constant means nothing
        assert abs(model.intercept_.mean()) < 1e-10
        intercept = intercept - intercept.mean()
    np.testing.assert_allclose(np.atleast_1d(model.intercept_), intercept, rtol=2e-6, atol=1e-6)
    if "group" in name:  # a group is zero or not
        labels = np.asarray(model.groups)
        used = [[support[:, labels == g].any() for g in np.unique(labels)] for support in (coef != 0, expected.support)]
        assert used[0] == used[1]
        assert any(used[0])
    elif "nuclear" in name:  # low rank, not zeros
        rank = np.linalg.matrix_rank
        assert rank(coef, tol=1e-8) == rank(expected.coef, tol=1e-5 * np.abs(expected.coef).max()) > 0
    else:
        np.testing.assert_array_equal(coef != 0, expected.support)
        assert expected.support.any()
    assert model.certificate_.holds
    assert model.n_rounds_ == model.trace_["round"][-1] > 0
    assert model.n_rounds_ <= promised(model)


def promised(model: Any) -> int:
    """Messages of a whole fit: a quadratic is solved in one step; far out a Huber loss is straight, which takes longest."""
    squared = (cf.FederatedElasticNet, cf.FederatedGroupLasso, cf.FederatedMultiTaskLasso, cf.FederatedNuclearRegressor)
    if isinstance(model, (cf.FederatedLasso, *squared)):
        return 5
    return 60 if isinstance(model, cf.FederatedHuber) else 20


def test_nothing_is_set_in_the_defaults():
    """Three tables for every estimator, without a parameter beyond the groups, which have no default."""
    for kind in {type(model) for model, _ in CASES.values()}:
        models = [model for model, _ in DEFAULTS.values() if type(model) is kind]
        assert len(models) >= 3
        for model in models:
            usual = kind(groups=model.groups) if kind is cf.FederatedGroupLasso else kind()
            assert repr(model) == repr(usual)


def test_an_even_number_of_classes_has_many_minimisers_and_one_is_given():
    """The pooled solver ends elsewhere among them: at the same probabilities, and at no smaller an l1 norm."""
    X, y, sites = some_digits([4, 5, 6, 7], 400)
    model = cf.FederatedLogisticRegression().fit(X, y, sites=sites)
    alone = cf.FederatedLogisticRegression().fit(X, y, sites=None)
    expected = of_cvxpy(softmax(y), elastic(0.01), X, outputs=4)
    size = X.std(0)
    whole = np.linalg.norm(expected.coef * size)
    assert np.linalg.norm((model.coef_ - expected.coef) * size) > 1e-3 * whole
    middle = (model.coef_ - model.coef_.mean(0)) - (expected.coef - expected.coef.mean(0))
    assert np.linalg.norm(middle * size) <= 1e-6 * whole
    np.testing.assert_allclose(np.abs(model.coef_ * size).sum(), np.abs(expected.coef * size).sum(), rtol=1e-6)
    # of its own accord: the same whatever the sites, with a zero in every column
    np.testing.assert_array_equal(model.coef_ != 0, alone.coef_ != 0)
    assert np.linalg.norm((model.coef_ - alone.coef_) * size) <= 1e-6 * whole
    assert (model.coef_ == 0).any(axis=0).all()


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ([3.0, 1.0, -0.5, -2.0], [2.0, 0.0, -1.5, -3.0]),  # squares 15.25, not 16.75 as [3.5, 1.5, 0, -1.5]
        ([3.5, 1.5, 0.0, -1.5], [2.0, 0.0, -1.5, -3.0]),  # the same from there
        ([1.5, 1.0, -0.5, -3.0], [2.0, 1.5, 0.0, -2.5]),
        ([3.0, 1.0, 0.0, 0.0], [3.0, 1.0, 0.0, 0.0]),  # two zeros, not [2, 0, -1, -1]
        ([2.5, 0.5, -0.5, -0.5 - 1e-12], [3.0, 1.0, 0.0, 0.0]),  # up to rounding
        ([1.0, 0.0, 0.0, -3.0], [1.0, 0.0, 0.0, -3.0]),  # one minimiser only
        ([0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_the_sparsest_of_many_minimisers(given, chosen):
    found = sparsest(np.array([given]))[0]
    np.testing.assert_allclose(found, chosen)
    np.testing.assert_array_equal(found == 0, np.array(chosen) == 0)
    np.testing.assert_allclose(np.abs(given).sum(), np.abs(chosen).sum())


@needs_data
@pytest.mark.parametrize("model", [cf.FederatedLogisticRegression(), cf.FederatedLogisticRegression(alpha=0.02)])
def test_four_hospitals(model):
    """The heart data: what averaging local models misses, the federated fit does not."""
    X, y, sites = heart()
    model.fit(X, y, sites=sites)
    expected = pooled(model, X, y)
    size = X.std(0)
    assert np.linalg.norm((model.coef_ - expected.coef) * size) <= 1e-6 * np.linalg.norm(expected.coef * size)
    np.testing.assert_array_equal(model.coef_ != 0, expected.support)
    assert 0 < expected.support.sum() < X.shape[1]
    local = [
        cf.FederatedLogisticRegression(model.alpha).fit(X[sites == s], y[sites == s], sites=None).coef_
        for s in np.unique(sites)
    ]
    average = np.mean(local, axis=0)
    assert np.linalg.norm((average - expected.coef) * size) > 0.05 * np.linalg.norm(expected.coef * size)


@needs_data
@pytest.mark.parametrize("model", [cf.FederatedLogisticRegression(), cf.FederatedLogisticRegression(alpha=1e-3)])
def test_occupations_of_nine_to_four_thousand_rows(model):
    table = bundled.a9a(SHARED / "adult_a9a", sites="occupation", drop_site_columns=True)
    # The minimiser is unique without the first level of every factor, which the intercept and the others give, and
    # without the years of education, which are a function of its level.
    keep = [not (name.endswith("_1") or name.startswith("education-num")) for name in table.feature_names]
    X, y = table.X[:, keep], table.y
    sizes = np.unique(table.sites, return_counts=True)[1]
    assert (sizes.min(), sizes.max()) == (9, 4140)
    alpha, w = model.alpha, model.fit(X, y, sites=table.sites).coef_[0]
    chance = 1 / (1 + np.exp(-(X @ w + model.intercept_)))  # of y = 1
    gradient = X.T @ (chance - (y > 0)) / len(y)
    on = w != 0
    assert 5 < on.sum() < len(w)
    # Karush-Kuhn-Tucker: zero coefficients strictly inside, and what is left of the gradient for the others
    assert np.abs(gradient[~on]).max() < alpha * (1 - 1e-6)
    residual = np.append(gradient[on] + alpha * np.sign(w[on]), (chance - (y > 0)).mean())
    # on the support the objective is smooth and strongly convex near its minimiser, which bounds the distance to it
    A = np.column_stack([X[:, on], np.ones(len(y))])
    curvature = np.linalg.eigvalsh((A.T * (chance * (1 - chance))) @ A / len(y))[0]
    assert curvature > 1e-5
    assert np.linalg.norm(residual) / curvature <= 0.5e-6 * np.linalg.norm(w)


def test_memory_follows_the_rows_not_the_largest_site():
    rng = np.random.default_rng(0)
    sizes = [9, 149, 649, 928, 994, 1370, 1597, 1843, 2002, 3295, 3650, 3770, 4066, 4099, 4140]  # a9a by occupation
    sites = cf.data.from_arrays([rng.random((m, 3)) for m in sizes], [rng.random(m) for m in sizes])
    problem = cf.Problem(cf.losses.Squared(), cf.regularisers.Zero(), sites)
    assert len(problem.dataset.A) <= 1.5 * sum(sizes) < len(sizes) * max(sizes)
    one_giant = cf.data.from_arrays(
        [rng.random((m, 3)) for m in [5000] + [2] * 200], [np.zeros(m) for m in [5000] + [2] * 200]
    )
    problem = cf.Problem(cf.losses.Squared(), cf.regularisers.Zero(), one_giant)
    assert len(problem.dataset.A) <= 1.5 * 5400
