"""Estimators: the coefficients of the pooled rows, zeros included, with default arguments, whatever the sites."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cvxpy as cp
import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, MultiTaskLasso, PoissonRegressor

import compfed as cf
from compfed.data import bundled, partition

SHARED = Path(__file__).parents[2] / "shared" / "data"
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
        program.solve(solver=cp.CLARABEL, max_iter=iterations, **tight)
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


def l1(alpha: float) -> Callable:
    return lambda W: alpha * cp.sum(cp.abs(W))


def groups_of(alpha: float, members: np.ndarray) -> Callable:
    def penalty(W):
        rows = [np.flatnonzero(members == g) for g in np.unique(members)]
        return alpha * sum(np.sqrt(len(r)) * cp.norm2(W[r, 0]) for r in rows)

    return penalty


TEN_GROUPS = np.arange(30) % 10  # breast cancer: mean, error and worst of each of ten measurements
DIABETES_GROUPS = np.array([0, 0, 1, 1, 2, 2, 2, 2, 2, 3])


class Case(NamedTuple):
    model: Any
    table: Callable
    pooled: Callable[[np.ndarray, np.ndarray], Pooled]


def inverse(alpha: float, y: np.ndarray) -> float:
    return 1.0 / (alpha * len(y))  # scikit-learn's C


NEWTON: dict[str, Any] = {"solver": "newton-cholesky", "tol": 1e-12, "max_iter": 10_000}
CASES: dict[str, Case] = {
    "lasso, diabetes": Case(cf.FederatedLasso(), diabetes, lambda X, y: of_sklearn(Lasso(**EXACT), X, y)),
    "lasso, diabetes by sex": Case(
        cf.FederatedLasso(alpha=0.05), lambda: diabetes("sex"), lambda X, y: of_sklearn(Lasso(0.05, **EXACT), X, y)
    ),
    "lasso, cancer": Case(cf.FederatedLasso(alpha=0.01), breast_cancer, lambda X, y: of_sklearn(Lasso(0.01, **EXACT), X, y)),
    "lasso, one class per site": Case(
        cf.FederatedLasso(alpha=0.01), one_class_cancer, lambda X, y: of_sklearn(Lasso(0.01, **EXACT), X, y)
    ),
    "lasso, digits": Case(cf.FederatedLasso(alpha=0.1), digits, lambda X, y: of_sklearn(Lasso(0.1, **EXACT), X, y)),
    "positive lasso, diabetes": Case(
        cf.FederatedLasso(alpha=0.1, positive=True),
        diabetes,
        lambda X, y: of_sklearn(Lasso(0.1, positive=True, **EXACT), X, y),
    ),
    "elastic net, diabetes": Case(
        cf.FederatedElasticNet(alpha=0.01), diabetes, lambda X, y: of_sklearn(ElasticNet(0.01, **EXACT), X, y)
    ),
    "elastic net, cancer": Case(
        cf.FederatedElasticNet(), breast_cancer, lambda X, y: of_sklearn(ElasticNet(**EXACT), X, y)
    ),
    "elastic net, digits": Case(cf.FederatedElasticNet(), digits, lambda X, y: of_sklearn(ElasticNet(**EXACT), X, y)),
    "logistic, cancer": Case(
        cf.FederatedLogisticRegression(), breast_cancer, lambda X, y: of_cvxpy(logistic(y), l1(0.01), X)
    ),
    "logistic, one class per site": Case(
        cf.FederatedLogisticRegression(), one_class_cancer, lambda X, y: of_cvxpy(logistic(y), l1(0.01), X)
    ),
    "logistic ridge, one class per site": Case(
        cf.FederatedLogisticRegression(alpha=1e-3, l1_ratio=0.0),
        one_class_cancer,
        lambda X, y: of_sklearn(LogisticRegression(C=inverse(1e-3, y), **NEWTON), X, y),
    ),
    "logistic, wine": Case(
        cf.FederatedLogisticRegression(), skewed_wine, lambda X, y: of_cvxpy(softmax(y), l1(0.01), X, outputs=3)
    ),
    "softmax ridge, digits": Case(
        cf.FederatedLogisticRegression(l1_ratio=0.0),
        digits,
        lambda X, y: of_sklearn(LogisticRegression(C=inverse(0.01, y), **NEWTON), X, y),
    ),
    "poisson, diabetes": Case(
        cf.FederatedPoissonRegressor(),
        diabetes,
        lambda X, y: of_sklearn(PoissonRegressor(solver="newton-cholesky", tol=1e-12), X, y),
    ),
    "poisson l1, diabetes": Case(
        cf.FederatedPoissonRegressor(alpha=0.5, l1_ratio=1.0), diabetes, lambda X, y: of_cvxpy(poisson(y), l1(0.5), X)
    ),
    "poisson l1, counts": Case(
        cf.FederatedPoissonRegressor(alpha=0.02, l1_ratio=1.0), counts, lambda X, y: of_cvxpy(poisson(y), l1(0.02), X)
    ),
    "poisson, digits": Case(
        cf.FederatedPoissonRegressor(alpha=0.1),
        digits,
        lambda X, y: of_sklearn(PoissonRegressor(alpha=0.1, solver="newton-cholesky", tol=1e-12), X, y),
    ),
    "huber, diabetes": Case(
        cf.FederatedHuber(alpha=0.05, delta=40.0), diabetes, lambda X, y: of_cvxpy(huber(y, 40.0), l1(0.05), X)
    ),
    "huber, cancer": Case(cf.FederatedHuber(), breast_cancer, lambda X, y: of_cvxpy(huber(y, 1.35), l1(0.01), X)),
    "huber, digits": Case(
        cf.FederatedHuber(alpha=0.1), digits, lambda X, y: of_cvxpy(huber(y, 1.35), l1(0.1), X)
    ),
    "group lasso, diabetes": Case(
        cf.FederatedGroupLasso(groups=DIABETES_GROUPS),
        diabetes,
        lambda X, y: of_cvxpy(Squares(y), groups_of(1.0, DIABETES_GROUPS), X),
    ),
    "group lasso, cancer": Case(
        cf.FederatedGroupLasso(alpha=0.02, groups=TEN_GROUPS.tolist()),
        breast_cancer,
        lambda X, y: of_cvxpy(Squares(y), groups_of(0.02, TEN_GROUPS), X),
    ),
    "group lasso, digits": Case(
        cf.FederatedGroupLasso(alpha=0.5, groups=np.arange(64) // 8),  # rows of the picture
        digits,
        lambda X, y: of_cvxpy(Squares(y), groups_of(0.5, np.arange(64) // 8), X),
    ),
    "multi-task lasso, digits": Case(
        cf.FederatedMultiTaskLasso(alpha=0.2), pixels, lambda X, Y: of_sklearn(MultiTaskLasso(0.2, **EXACT), X, Y)
    ),
    "multi-task lasso, cancer": Case(
        cf.FederatedMultiTaskLasso(alpha=0.1),
        three_of_cancer,
        lambda X, Y: of_sklearn(MultiTaskLasso(0.1, **EXACT), X, Y),
    ),
    "multi-task lasso, diabetes": Case(
        cf.FederatedMultiTaskLasso(alpha=0.5),
        three_of_diabetes,
        lambda X, Y: of_sklearn(MultiTaskLasso(0.5, **EXACT), X, Y),
    ),
    "nuclear, cancer": Case(
        cf.FederatedNuclearRegressor(alpha=0.5),
        three_of_cancer,
        lambda X, Y: of_cvxpy(Squares(Y), lambda W: 0.5 * cp.normNuc(W), X, outputs=3),
    ),
    "nuclear, diabetes": Case(
        cf.FederatedNuclearRegressor(),
        three_of_diabetes,
        lambda X, Y: of_cvxpy(Squares(Y), cp.normNuc, X, outputs=3),
    ),
    "nuclear, digits": Case(
        cf.FederatedNuclearRegressor(alpha=2.0),
        pixels,
        lambda X, Y: of_cvxpy(Squares(Y), lambda W: 2.0 * cp.normNuc(W), X, outputs=3),
    ),
}  # fmt: skip


def fitted(case: Case) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    X, y, sites = case.table()
    return case.model.fit(X, y, sites=sites), X, y, sites


@pytest.mark.parametrize("name", CASES)
def test_the_coefficients_of_the_pooled_rows(name):
    model, X, y, sites = fitted(CASES[name])
    expected = CASES[name].pooled(X, y)
    coef = np.atleast_2d(model.coef_)
    assert len(np.unique(sites)) > 1
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
        assert 0 < sum(used[0]) < len(used[0])
    elif "nuclear" in name:  # low rank, not zeros
        rank = np.linalg.matrix_rank
        assert rank(coef, tol=1e-8) == rank(expected.coef, tol=1e-5 * np.abs(expected.coef).max()) < 3
    else:
        np.testing.assert_array_equal(coef != 0, expected.support)
    assert model.certificate_.holds
    assert model.n_rounds_ == model.trace_["round"][-1] > 0


@needs_data
def test_four_hospitals():
    """The heart data: what averaging local models misses, the federated fit does not."""
    X, y, sites = heart()
    model = cf.FederatedLogisticRegression(alpha=0.02).fit(X, y, sites=sites)
    expected = of_cvxpy(logistic(y), l1(0.02), X)
    size = X.std(0)
    assert np.linalg.norm((model.coef_ - expected.coef) * size) <= 1e-6 * np.linalg.norm(expected.coef * size)
    np.testing.assert_array_equal(model.coef_ != 0, expected.support)
    assert 0 < expected.support.sum() < X.shape[1]
    local = [
        cf.FederatedLogisticRegression(alpha=0.02).fit(X[sites == s], y[sites == s]).coef_ for s in np.unique(sites)
    ]
    average = np.mean(local, axis=0)
    assert np.linalg.norm((average - expected.coef) * size) > 0.05 * np.linalg.norm(expected.coef * size)


@needs_data
def test_occupations_of_nine_to_four_thousand_rows():
    table = bundled.a9a(SHARED / "adult_a9a", sites="occupation", drop_site_columns=True)
    # the first level of every factor goes: with all of them and an intercept the minimiser is not unique
    X, y = table.X[:, [not name.endswith("_1") for name in table.feature_names]], table.y
    sizes = np.unique(table.sites, return_counts=True)[1]
    assert (sizes.min(), sizes.max()) == (9, 4140)
    alpha = 1e-3
    model = cf.FederatedLogisticRegression(alpha=alpha).fit(X, y, sites=table.sites)
    w = model.coef_[0]
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
    assert np.linalg.norm(residual) / curvature <= 0.5e-6 * np.linalg.norm(w)


def test_memory_follows_the_rows_not_the_largest_site():
    rng = np.random.default_rng(0)
    sizes = [9, 149, 649, 928, 994, 1370, 1597, 1843, 2002, 3295, 3650, 3770, 4066, 4099, 4140]  # a9a by occupation
    sites = cf.data.from_arrays([rng.random((m, 3)) for m in sizes], [rng.random(m) for m in sizes])
    problem = cf.Problem(cf.losses.Squared(), cf.regularisers.Zero(), sites)
    assert len(problem.store.A) <= 1.5 * sum(sizes) < len(sizes) * max(sizes)
    one_giant = cf.data.from_arrays(
        [rng.random((m, 3)) for m in [5000] + [2] * 200], [np.zeros(m) for m in [5000] + [2] * 200]
    )
    problem = cf.Problem(cf.losses.Squared(), cf.regularisers.Zero(), one_giant)
    assert len(problem.store.A) <= 1.5 * 5400
