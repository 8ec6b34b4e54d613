"""Fits of anything: a clear error, or coefficients whose optimality conditions hold to the tolerance stated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from optimality import Objective
from oracles import answered, check_certificate, fuzz, row_shares
from strategies import DAMAGES, SCALES, Rows, damaged, mostly, odd, tables

import compfed as cf

KINDS = ["lasso", "elastic net", "logistic", "huber", "poisson", "group", "multi-task"]
ALPHAS = st.sampled_from([0.0, 1e-300, 1e-9, 1e-3, 1e-2, 0.1, 0.1, 0.1, 1.0, 10.0, 1e6, 1e300])


def labels(kind: str, rows: Rows, style: str, size: float) -> np.ndarray:
    """Labels that suit the model."""
    z, n = rows.signal, len(rows.signal)
    if style == "constant":
        z = np.ones(n)
    if kind == "logistic":
        classes = np.digitize(z, [-0.5, 0.5]) if style == "three classes" else (z > 0).astype(int)
        if style == "words":
            return np.array(["sick", "healthy", "ä$"])[classes]
        return classes if style != "separated" else (rows.X[:, 0] > 0).astype(int) if rows.X.shape[1] else classes
    if kind == "poisson":
        z = np.round(np.exp(np.clip(z, -5, 5)))
    if kind == "multi-task":
        z = z[:, None] * np.array([1.0, -0.5]) + 0.1 * np.cos(np.arange(2 * n)).reshape(n, 2)
    with np.errstate(all="ignore"):
        return z * size if style == "scaled" else z + size if style == "offset" else z


def estimator(kind: str, alpha: float, ratio: float, d: int, common: dict[str, Any]) -> tuple[Any, Objective, bool]:
    """(the estimator, what it says it minimises, is the minimiser sure to exist?)"""
    shared = {k: common[k] for k in ("fit_intercept", "standardize")}
    mixed = {"l1_ratio": ratio}
    plain = {
        "lasso": (cf.FederatedLasso, "squared", {}),
        "elastic net": (cf.FederatedElasticNet, "squared", mixed),
        "logistic": (cf.FederatedLogisticRegression, "logistic", mixed),
        "huber": (cf.FederatedHuber, "huber", mixed),
        "poisson": (cf.FederatedPoissonRegressor, "poisson", mixed),
    }
    if kind in plain:
        make, loss, own = plain[kind]
        positive = common["positive"] and make in (cf.FederatedLasso, cf.FederatedElasticNet)
        own = own | ({"positive": True} if positive else {})
        given = {k: v for k, v in common.items() if k != "positive"}
        return (
            make(alpha=alpha, **own, **given),
            Objective(loss, alpha, **({"l1_ratio": 1.0} | own), **shared),
            alpha > 0,
        )
    given = {k: v for k, v in common.items() if k != "positive"}
    if kind == "multi-task":
        of = Objective("squared", alpha, groups=np.arange(d), group_weights=np.ones(d), **shared)
        return cf.FederatedMultiTaskLasso(alpha=alpha, **given), of, True
    groups = np.arange(d) // 2
    weights = np.sqrt(np.bincount(groups)) if d else np.ones(0)
    model = cf.FederatedGroupLasso(alpha=alpha, groups=groups.tolist(), **given)
    return model, Objective("squared", alpha, groups=groups, group_weights=weights, **shared), True


STYLES = st.sampled_from(["plain"] * 6 + ["scaled", "offset", "constant", "words", "three classes", "separated"])
COMMON = st.fixed_dictionaries(
    {
        "fit_intercept": mostly(True, False, of=3),
        "standardize": mostly(False, True, of=3),
        "positive": mostly(False, True, of=3),
        "site_weights": mostly("rows", "equal", of=4),
        "tol": mostly(1e-12, 1e-6, 1e-9, of=4),
        # a search that Newton steps do not finish must not compile first-order rounds here
        "max_rounds": mostly(30, 3, 100),
    }
)


@fuzz(
    30,
    kind=st.sampled_from(KINDS),
    rows=tables(),
    style=STYLES,
    size=SCALES,
    alpha=ALPHAS,
    ratio=st.sampled_from([1.0, 1.0, 0.5, 0.0, 0.99]),
    common=COMMON,
)
def test_fits(kind, rows, style, size, alpha, ratio, common):
    y = labels(kind, rows, style, size)
    model, of, sure = estimator(kind, alpha, ratio, rows.X.shape[1], common)
    before = rows.X.copy()
    _, warned = answered(lambda: model.fit(rows.given_X, y, sites=rows.given_sites, sample_weight=rows.given_weights))
    np.testing.assert_array_equal(rows.X, before)
    target = y
    if kind == "logistic":
        target = np.searchsorted(model.classes_, y)
        of = replace(of, loss="softmax" if len(model.classes_) > 2 else "logistic")
    q = row_shares(rows.where, rows.weights, common["site_weights"] == "equal")
    count = rows.weights is None or np.asarray(rows.weights) > 0
    used = np.ones(len(y), bool) if count is True else count
    plain = rows.plain and style in ("plain", "words") and 1e-3 <= alpha <= 10 and common["max_rounds"] >= 30 and sure
    check_certificate(model, of, rows.X[used], np.asarray(target)[used], q[used], plain, warned)
    check_predictions(model, rows, y)


def check_predictions(model: Any, rows: Rows, y: np.ndarray) -> None:
    """X w + b, as worked out with longer numbers."""
    z, _ = answered(lambda: model.linear_predictor(rows.given_X))
    W, b = np.atleast_2d(model.coef_).astype(np.longdouble), np.atleast_1d(model.intercept_).astype(np.longdouble)
    X = rows.X.astype(np.longdouble)
    slack = 1e-13 * (np.abs(X) @ np.abs(W).T + np.abs(b))
    assert (np.abs(X @ W.T + b - z) <= slack).all()
    predicted, _ = answered(lambda: model.predict(rows.given_X))
    assert len(predicted) == len(y)
    if len(y) >= 2:
        score, _ = answered(lambda: model.score(rows.given_X, y, rows.given_weights))
        assert score <= 1 or np.isnan(score)
    if hasattr(model, "predict_proba"):
        np.testing.assert_allclose(model.predict_proba(rows.given_X).sum(axis=1), 1.0, atol=1e-12)
        assert set(predicted) <= set(model.classes_)


@fuzz(
    6,
    kind=st.sampled_from(KINDS),
    rows=tables(rows=st.sampled_from([5, 12]), columns=st.integers(1, 3)),
    damage=st.sampled_from(DAMAGES),
)
def test_damaged_tables(kind, rows, damage):
    """Refused, or read in the only way there is: what is accepted must then fit."""
    given, named = damaged(damage, rows, labels(kind, rows, "plain", 1.0))
    model, *_ = estimator(
        kind,
        0.1,
        1.0,
        rows.X.shape[1],
        {"fit_intercept": True, "standardize": False, "positive": False, "max_rounds": 100},
    )
    answered(lambda: model.fit(*given, **named))
    assert np.isfinite(model.coef_).all()
    assert damage not in (
        "nan",
        "inf",
        "word",
        "complex",
        "3-D",
        "short y",
        "short sites",
        "third",
        "negative weight",
        "no weight",
    )


NAMES = [
    "alpha",
    "l1_ratio",
    "fit_intercept",
    "standardize",
    "site_weights",
    "algorithm",
    "tau",
    "tol",
    "max_rounds",
    "seconds_per_round",
    "verbose",
    "positive",
    "delta",
    "groups",
    "group_weights",
]
fixed = np.random.default_rng(5)
X0 = fixed.standard_normal((12, 3))
Y0 = {"logistic": (X0[:, 0] > 0).astype(int), "poisson": np.round(np.exp(X0[:, 0])), "multi-task": X0 @ np.ones((3, 2))}


@fuzz(7, kind=st.sampled_from(KINDS), name=st.sampled_from(NAMES), value=odd)
def test_odd_parameters(kind, name, value):
    common = {"fit_intercept": True, "standardize": False, "positive": False, "max_rounds": 30}
    model, *_ = estimator(kind, 0.1, 1.0, 3, common)
    if name not in model.get_params():
        answered(lambda: model.set_params(**{name: value}))
        raise AssertionError(f"{name} was taken")
    model.set_params(**{name: value})
    answered(lambda: model.fit(X0, Y0.get(kind, X0[:, 1]), sites=np.arange(12) % 3))
    assert np.isfinite(model.coef_).all()


CV = {
    "lasso": cf.FederatedLassoCV,
    "logistic": cf.FederatedLogisticRegressionCV,
    "multi-task": cf.FederatedMultiTaskLassoCV,
}


@fuzz(
    2,
    kind=st.sampled_from(list(CV)),
    rows=tables(rows=st.sampled_from([3, 8, 12, 20]), columns=st.integers(1, 3)),
    cv=mostly(3, 2, 1, 50, "leave-one-site-out", 0, "x", None, of=3),
    alphas=mostly(None, [0.1], [1.0, 0.1], [], [-1.0], [0.1, 0.1], [1e-3, 1e300], of=3),
    rule=mostly("best", "one_standard_error", "x"),
)
def test_cross_validation(kind, rows, cv, alphas, rule):
    """alpha_ is one of alphas_, and the model is that of alpha_."""
    y = labels(kind, rows, "plain", 1.0)
    model = CV[kind](alphas=alphas, n_alphas=3, cv=cv, rule=rule, max_rounds=60)
    _, warned = answered(lambda: model.fit(rows.given_X, y, sites=rows.given_sites, sample_weight=rows.given_weights))
    assert model.alpha_ in model.alphas_
    assert np.isfinite(model.cv_loss_).any(axis=1).all()
    common = {"fit_intercept": True, "standardize": False, "positive": False}
    _, of, _ = estimator(kind, model.alpha_, 1.0, rows.X.shape[1], common)
    used = np.ones(len(y), bool) if rows.weights is None else np.asarray(rows.weights) > 0
    target = np.searchsorted(model.classes_, y) if kind == "logistic" else y
    q = row_shares(rows.where, rows.weights, equal=False)
    check_certificate(model, of, rows.X[used], np.asarray(target)[used], q[used], False, warned)


@fuzz(
    2,
    rows=tables(rows=st.just(12), columns=st.just(3)),
    alpha=st.sampled_from([1e-3, 0.1, 1.0, 1e6]),
    common=st.fixed_dictionaries({"standardize": st.booleans(), "site_weights": mostly("rows", "equal")}),
)
def test_low_rank(rows, alpha, common):
    """Compiled, so of one shape."""
    where = np.arange(12) % 3
    y = labels("multi-task", rows, "plain", 1.0)
    model = cf.FederatedNuclearRegressor(alpha=alpha, max_rounds=300, **common)
    _, warned = answered(lambda: model.fit(rows.given_X, y, sites=where))
    of = Objective("squared", alpha, nuclear=True, standardize=common["standardize"])
    check_certificate(model, of, rows.X, y, row_shares(where, None, common["site_weights"] == "equal"), False, warned)
