"""`evaluate` measures what scikit-learn and statsmodels measure on the pooled rows, from sums and bounds of counts."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.metrics import (
    accuracy_score,
    brier_score_loss,
    confusion_matrix,
    d2_tweedie_score,
    log_loss,
    mean_absolute_error,
    r2_score,
    roc_auc_score,
    root_mean_squared_error,
)

import compfed as cf
from compfed.estimators.evaluation import Evaluation
from compfed.estimators.programs.scores import auc_bounds
from compfed.federation import DisclosurePolicy, InProcess, Rows, Site
from compfed.report.page import page_text

TABLE = cf.data.bundled.breast_cancer()
POLICY = DisclosurePolicy()
EXACT: Any = {"rel": 1e-10, "abs": 1e-12}


def scorer(coef: float = 1.0, intercept: float = 0.0) -> cf.FederatedLogisticRegression:
    """A model whose log-odds are its single feature."""
    model = cf.FederatedLogisticRegression()
    model.coef_, model.intercept_, model.classes_ = np.array([[coef]]), np.array([intercept]), np.array([0, 1])
    model.n_features_in_ = 1
    return model


@pytest.fixture(scope="module")
def fitted() -> cf.FederatedLogisticRegression:
    return cf.FederatedLogisticRegression(alpha=0.02).fit(TABLE.X, TABLE.y, sites=TABLE.sites)


# --- AUC ---


def random_case(seed: int):
    """Scores, labels, sites and weights: with ties, weights, tiny classes and odd scales, each in some of the cases."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(8, 400))
    events = int(rng.integers(1, 4)) if seed % 5 == 0 else max(int(rng.uniform(0.05, 0.95) * n), 1)
    y = np.zeros(n, int)
    y[rng.permutation(n)[: min(events, n - 1)]] = 1
    z = (rng.standard_normal(n) + rng.uniform(0, 2) * y) * 10.0 ** rng.integers(-3, 4) + rng.choice([0.0, 0.0, 50.0])
    if seed % 3 == 0:  # ties
        z = np.round(z, int(rng.integers(-1, 2)))
    weights = rng.uniform(0.1, 3.0, n) if seed % 4 == 0 else None
    return z, y, rng.integers(0, int(rng.integers(1, 6)), n), weights


def test_the_auc_interval_contains_that_of_the_pooled_scores_in_200_random_cases():
    for seed in range(200):
        z, y, sites, weights = random_case(seed)
        found = scorer().evaluate(z[:, None], y, sites=sites, sample_weight=weights)
        pooled = roc_auc_score(y, z, sample_weight=weights)
        assert found.auc.rounding_low - 1e-12 <= pooled <= found.auc.rounding_high + 1e-12, seed
        assert found.auc.rounding_low <= found.auc.value <= found.auc.rounding_high
        assert found.auc.rounding_high - found.auc.rounding_low <= 0.002, seed
        assert found.auc.value == pytest.approx(pooled, abs=3e-4), seed  # ties count half


def test_the_auc_interval_under_the_default_policy_contains_the_pooled_value():
    widths = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(25, 200, int(rng.integers(1, 5)))
        y = [rng.permutation(np.arange(m) % int(rng.integers(2, 5)) == 0).astype(int) for m in sizes]
        z = [rng.standard_normal(m) + rng.uniform(0, 3) * v for m, v in zip(sizes, y, strict=True)]
        federation = InProcess(cf.data.from_arrays([a[:, None] for a in z], y), policy=POLICY)
        found = scorer().evaluate(federation)
        labels, scores = np.concatenate(y), np.concatenate(z)
        assert found.auc.rounding_low <= roc_auc_score(labels, scores) <= found.auc.rounding_high
        widths.append(found.auc.rounding_high - found.auc.rounding_low)
        table = confusion_matrix(labels, scores > 0)
        assert (found.confusion_low <= table).all()
        assert (table <= found.confusion_high).all()
        for name, value in confusion_measures(table).items():
            low, high = found.bounds(name)
            assert low - 1e-12 <= value <= high + 1e-12, (seed, name)
    assert np.median(widths) < 0.4


def test_an_auc_with_ties_is_exact_without_a_policy_and_the_report_names_its_intervals(monkeypatch):
    """Ties count half, as in scikit-learn; under a policy the AUC has rounding bounds, which the report calls so."""
    for module in ("bokeh", "matplotlib", "matplotlib.figure"):  # words are all that is looked at
        monkeypatch.setitem(sys.modules, module, None)
    rng = np.random.default_rng(6)
    y, z = np.arange(240) % 2, np.round(rng.standard_normal(240) + np.arange(240) % 2)
    rows = cf.data.from_arrays([z[i::3, None] for i in range(3)], [y[i::3] for i in range(3)])
    blocks = "counts are known to blocks of rows only"
    for policy in (None, POLICY):
        found = scorer().evaluate(InProcess(rows, policy=policy))
        record = {"kind": "fit", "features": ["z"], "coef": [[1.0]], "intercept": [0.0], "evaluation": found.to_dict()}
        page = page_text(record)
        for name in (
            "AUC (ties count half)",
            "rounding bounds of the AUC",
            "95 % confidence interval of the AUC (DeLong)",
            "95 % confidence interval of the sensitivity at a predicted risk of 0.5 (Wilson)",
        ):
            assert name in page
        assert (blocks in page) == (policy is not None)
        listed = [(line.split("  ")[0], line.split()[-1]) for line in map(str.strip, str(found).splitlines()) if line]
        lines = dict(reversed(listed))  # the first of each: that of the AUC
        assert lines["95 % confidence interval (DeLong)"] == f"{found.auc.confidence_high:.3f}"
        assert (lines["rounding bounds"] == "exact") == (policy is None)
        assert lines["AUC (ties count half)"] == f"{found.auc.value:.3f}"
        if policy is None:
            each = (found.auc.value, found.auc.rounding_low, found.auc.rounding_high)
            assert each == pytest.approx([roc_auc_score(y, z)] * 3, rel=1e-12)
        assert found.auc.confidence_low < found.auc.value < found.auc.confidence_high


def test_the_bounds_are_attained():
    """Two negatives and two positives between one pair of thresholds: any order is possible."""
    low = high = np.array([[0.0, 2.0], [0.0, 2.0]])
    assert auc_bounds(low, high, 2.0, 2.0) == (0.0, 1.0)
    orders = [roc_auc_score([0, 0, 1, 1], z) for z in ([1, 2, 3, 4], [3, 4, 1, 2])]
    assert orders == [1.0, 0.0]


def test_scores_that_are_all_the_same_have_the_middle_as_their_auc():
    found = scorer().evaluate(np.full((20, 1), 0.3), np.arange(20) % 2)
    assert (found.auc.value, found.auc.rounding_low, found.auc.rounding_high) == (0.5, 0.5, 0.5)


def test_one_class_alone_has_no_auc():
    found = scorer().evaluate(np.linspace(-1, 1, 9)[:, None], np.ones(9, int))
    assert np.isnan(found.auc.value)
    assert found.sensitivity == pytest.approx(4 / 9)


# --- two classes ---


def confusion_measures(table: np.ndarray) -> dict[str, float]:
    (tn, fp), (fn, tp) = table
    measures = {"sensitivity": tp / (tp + fn), "specificity": tn / (tn + fp), "accuracy": (tn + tp) / table.sum()}
    return measures | {"ppv": tp / (tp + fp), "npv": tn / (tn + fn)} if min(tp + fp, tn + fn) else measures


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("threshold", [0.5, 0.2])
def test_every_measure_of_two_classes_is_that_of_the_pooled_rows(fitted, weighted, threshold):
    weights = np.random.default_rng(0).uniform(0.2, 2, len(TABLE.y)) if weighted else None
    found = fitted.evaluate(TABLE.X, TABLE.y, sites=TABLE.sites, sample_weight=weights, threshold=threshold)
    p, z, w = fitted.predict_proba(TABLE.X)[:, 1], fitted.decision_function(TABLE.X), weights
    total = len(TABLE.y) if w is None else w.sum()
    assert found.weight == pytest.approx(total, **EXACT)
    assert found.events == pytest.approx(TABLE.y.sum() if w is None else w @ TABLE.y, **EXACT)
    assert found.brier == pytest.approx(brier_score_loss(TABLE.y, p, sample_weight=w), **EXACT)
    loss = log_loss(TABLE.y, p, sample_weight=w)
    assert found.log_loss == pytest.approx(loss, **EXACT)
    null = log_loss(TABLE.y, np.full(len(p), np.average(TABLE.y, weights=w)), sample_weight=w)
    assert found.deviance_explained == pytest.approx(1 - loss / null, **EXACT)
    table = confusion_matrix(TABLE.y, p > threshold, sample_weight=w)
    np.testing.assert_allclose(found.confusion, table, rtol=1e-10)
    for name, value in confusion_measures(table).items():
        assert getattr(found, name) == pytest.approx(value, **EXACT)
    assert found.auc.value == pytest.approx(roc_auc_score(TABLE.y, z, sample_weight=w), abs=3e-4)
    design = sm.add_constant(z)
    line = sm.GLM(TABLE.y, design, family=sm.families.Binomial(), freq_weights=w).fit(tol=1e-14, maxiter=100)
    np.testing.assert_allclose([found.calibration_intercept, found.calibration_slope], line.params, atol=1e-8, rtol=0)
    flat = sm.GLM(TABLE.y, design[:, :1], family=sm.families.Binomial(), freq_weights=w, offset=z).fit(tol=1e-14)
    assert found.calibration_in_the_large == pytest.approx(flat.params[0], abs=1e-8)
    assert found.communication.rounds <= 8


def test_the_calibration_curve_has_the_rows_between_its_thresholds(fitted):
    curve = fitted.evaluate(TABLE.federation()).calibration
    p = fitted.predict_proba(TABLE.X)[:, 1]
    order = np.argsort(p)
    sizes = np.rint(curve.weight_low).astype(int)
    assert sizes.sum() == len(p)
    assert len(sizes) >= 8
    for k, rows in enumerate(np.split(order, np.cumsum(sizes)[:-1])):
        assert curve.observed_low[k] == curve.observed_high[k] == pytest.approx(TABLE.y[rows].mean(), **EXACT)
        assert curve.predicted_low[k] == pytest.approx(p[rows].mean(), **EXACT)


def test_the_roc_has_the_rates_at_its_thresholds(fitted):
    roc = fitted.evaluate(TABLE.federation()).roc
    p = fitted.predict_proba(TABLE.X)[:, 1]
    for k in range(0, len(roc.thresholds), 101):
        above = p > roc.thresholds[k]
        assert roc.true_positive_low[k] == pytest.approx(above[TABLE.y == 1].mean())
        assert roc.false_positive_high[k] == pytest.approx(above[TABLE.y == 0].mean())


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_calibration_of_bad_models_is_that_of_statsmodels(scale):
    rng = np.random.default_rng(1)
    z = rng.standard_normal(300)
    y = (rng.uniform(size=300) < 1 / (1 + np.exp(1 - z))).astype(int)
    found = scorer(scale).evaluate(z[:, None], y, sites=np.arange(300) % 3)
    line = sm.GLM(y, sm.add_constant(z), family=sm.families.Binomial()).fit(tol=1e-14)
    np.testing.assert_allclose([found.calibration_intercept, scale * found.calibration_slope], line.params, rtol=1e-8)


def test_separated_classes_have_no_calibration_slope():
    found = scorer().evaluate(np.r_[-2:-1:10j, 1:2:10j][:, None], np.repeat([0, 1], 10))
    assert np.isnan(found.calibration_slope)
    assert found.auc.value == pytest.approx(1.0)


def test_exact_sums_give_the_same_evaluation(fitted):
    plain, exact = (fitted.evaluate(InProcess(TABLE.federation(), exact=e), per_site=True) for e in (False, True))
    for one, other in [(plain, exact), *zip(plain.per_site.values(), exact.per_site.values(), strict=True)]:
        assert one.metrics().keys() == other.metrics().keys()
        np.testing.assert_allclose(list(one.metrics().values()), list(other.metrics().values()), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(one.roc.true_positive_low, other.roc.true_positive_low, rtol=1e-12)


# --- several classes, numbers, counts ---


@pytest.mark.parametrize("policy", [None, POLICY], ids=["none", "policy"])
def test_several_classes(policy):
    X, y = load_wine(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    sites = np.arange(len(y)) % 2
    model = cf.FederatedLogisticRegression(alpha=0.1).fit(X, y, sites=sites)
    rows = cf.data.from_arrays([X[sites == i] for i in (0, 1)], [y[sites == i] for i in (0, 1)])
    found, p = model.evaluate(InProcess(rows, policy=policy)), model.predict_proba(X)
    assert found.log_loss == pytest.approx(log_loss(y, p), **EXACT)
    assert found.brier == pytest.approx(((p - np.eye(3)[y]) ** 2).sum(axis=1).mean(), **EXACT)
    table = confusion_matrix(y, model.predict(X))
    assert (found.confusion_low <= table).all()
    assert (table <= found.confusion_high).all()
    low, high = found.bounds("accuracy")
    assert low <= accuracy_score(y, model.predict(X)) <= high
    for k, one in enumerate(found.auc_by_class or ()):
        assert one.rounding_low - 1e-12 <= roc_auc_score(y == k, p[:, k]) <= one.rounding_high + 1e-12
    assert found.auc.rounding_low - 1e-12 <= roc_auc_score(y, p, multi_class="ovr") <= found.auc.rounding_high + 1e-12
    if policy is None:
        np.testing.assert_array_equal(found.confusion, table)
        assert found.auc.rounding_high - found.auc.rounding_low <= 0.002


def numbers(seed=0, outcomes=1, columns=("a", "b", "c")) -> cf.data.Sites:
    rng = np.random.default_rng(seed)
    A = [rng.standard_normal((m, len(columns))) + i for i, m in enumerate((37, 50, 43))]
    y = [a @ np.arange(1.0, 1 + len(columns)) + rng.standard_normal(len(a)) + 1e3 for a in A]
    return cf.data.from_arrays(A, [np.c_[v, -v] if outcomes == 2 else v for v in y], columns=list(columns))


@pytest.mark.parametrize("policy", [None, POLICY], ids=["none", "policy"])
@pytest.mark.parametrize(
    "model", [cf.FederatedLasso(0.5), cf.FederatedHuber(alpha=0.1, delta=2), cf.FederatedLassoCV(cv=2, n_alphas=3)]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_every_measure_of_numbers_is_that_of_the_pooled_rows(model, policy):
    model.fit_federation(InProcess(numbers()))
    others = numbers(seed=1)
    A, y = np.concatenate(others.features), np.concatenate(others.labels)
    found, z = model.evaluate(InProcess(others, policy=policy)), A @ model.coef_ + model.intercept_
    assert found.r2 == pytest.approx(r2_score(y, z), **EXACT)
    assert found.rmse == pytest.approx(root_mean_squared_error(y, z), **EXACT)
    if policy is None:
        assert found.mae == pytest.approx(mean_absolute_error(y, z), **EXACT)
    else:  # sites round their sums of absolute errors: no number rather than a wrong one
        assert found.mae is None
        assert "MAE" not in str(found)
    slope, intercept = np.polyfit(z - z.mean(), y, 1)
    assert found.calibration_slope == pytest.approx(slope, rel=1e-8)
    assert found.calibration_intercept == pytest.approx(intercept - slope * z.mean(), rel=1e-6)
    if not isinstance(model, cf.FederatedHuber):
        assert found.deviance_explained == pytest.approx(found.r2, **EXACT)
    assert found.communication.rounds == 2


def test_counts_have_their_deviance():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 3))
    y = rng.poisson(np.exp(0.5 * X[:, 0] + 1)).astype(float)
    w = rng.uniform(0.5, 2, 90)
    model = cf.FederatedPoissonRegressor(alpha=0.1).fit(X, y, sites=np.arange(90) % 3)
    found = model.evaluate(X, y, sites=np.arange(90) % 3, sample_weight=w)
    assert found.deviance_explained == pytest.approx(
        d2_tweedie_score(y, model.predict(X), sample_weight=w, power=1), **EXACT
    )
    assert found.r2 == pytest.approx(r2_score(y, model.predict(X), sample_weight=w), **EXACT)


def test_several_outcomes():
    rows = numbers(outcomes=2)
    model = cf.FederatedMultiTaskLasso(alpha=0.1).fit_federation(InProcess(rows))
    A, y = np.concatenate(rows.features), np.concatenate(rows.labels)
    found, z = model.evaluate(rows), A @ model.coef_.T + model.intercept_
    np.testing.assert_allclose(found.r2_by_outcome, r2_score(y, z, multioutput="raw_values"), rtol=1e-10)
    assert found.r2 == pytest.approx(r2_score(y, z), **EXACT)
    assert found.rmse == pytest.approx(root_mean_squared_error(y, z), **EXACT)


def test_labels_that_are_all_the_same():
    same = cf.data.from_arrays([np.eye(3)], [np.ones(3)], columns=["a", "b", "c"])
    model = cf.FederatedLasso(0.5).fit_federation(InProcess(numbers()))
    assert model.evaluate(InProcess(same)).r2 == r2_score(np.ones(3), model.coef_ + model.intercept_)


# --- by site, and honestly ---


def test_the_evaluation_of_a_site_is_that_of_its_rows(fitted):
    found = fitted.evaluate(TABLE.federation(), per_site=True)
    assert list(found.per_site) == ["0", "1", "2", "3"]
    for i, one in enumerate(found.per_site.values()):
        here = TABLE.sites == i
        alone = fitted.evaluate(TABLE.X[here], TABLE.y[here])
        assert (
            one.auc.rounding_low - 1e-12
            <= roc_auc_score(TABLE.y[here], fitted.decision_function(TABLE.X[here]))
            <= one.auc.rounding_high + 1e-12
        )
        assert one.auc.rounding_high - one.auc.rounding_low <= 0.002
        for name in ("brier", "log_loss", "accuracy", "calibration_slope"):
            assert getattr(one, name) == pytest.approx(getattr(alone, name), rel=1e-8)


@pytest.mark.parametrize("policy", [None, POLICY], ids=["none", "policy"])
def test_leave_one_site_out_is_the_held_out_sites_view(policy):
    """Diabetes: the policy allows it, as labels are numbers."""
    table, model = cf.data.bundled.diabetes(), cf.FederatedLasso(alpha=0.5)
    federation = InProcess(as_sites(table), policy=policy)
    found = model.fit_federation(federation).evaluate(federation, cv="leave-one-site-out")
    predicted = np.empty(len(table.y))
    for name, one in zip(np.unique(table.sites), found.per_site.values(), strict=True):
        out = table.sites == name
        without = cf.FederatedLasso(alpha=0.5).fit(table.X[~out], table.y[~out], sites=table.sites[~out])
        predicted[out] = without.predict(table.X[out])
        assert one.r2 == pytest.approx(r2_score(table.y[out], predicted[out]), rel=1e-8)
    assert found.r2 == pytest.approx(r2_score(table.y, predicted), rel=1e-8)


def as_sites(table) -> cf.data.Sites:
    names = np.unique(table.sites)
    return cf.data.from_arrays([table.X[table.sites == i] for i in names], [table.y[table.sites == i] for i in names])


def test_cross_validation_scores_every_row_by_a_model_without_it(fitted):
    found = fitted.evaluate(TABLE.federation(), cv=5)
    folds = cf.FederatedLogisticRegressionCV(alphas=[0.02], cv=5).fit(TABLE.X, TABLE.y, sites=TABLE.sites).fold_
    p = np.empty(len(TABLE.y))
    for k in range(5):
        out = folds == k
        without = cf.FederatedLogisticRegression(alpha=0.02).fit(TABLE.X[~out], TABLE.y[~out], sites=TABLE.sites[~out])
        p[out] = without.predict_proba(TABLE.X[out])[:, 1]
    assert found.brier == pytest.approx(brier_score_loss(TABLE.y, p), rel=1e-8)
    assert found.auc.rounding_low <= roc_auc_score(TABLE.y, p) <= found.auc.rounding_high
    assert found.log_loss > fitted.evaluate(TABLE.federation()).log_loss
    assert "5 folds" in str(found)


def tiny_sites() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, their linear predictor and their sites: sites of 3, 1 and 4 rows have no row in most folds."""
    rng, sites = np.random.default_rng(3), np.repeat(np.arange(5), [70, 50, 3, 1, 4])
    X = rng.standard_normal((len(sites), 3))
    return X, X @ [1.0, -0.5, 0.0] + 0.5 * rng.standard_normal(len(sites)), sites


def classes_of(z: np.ndarray, sites: np.ndarray, classes: int) -> np.ndarray:
    """Classes by size of z; the rows of the last site are all of one class."""
    return np.where(sites == 4, classes - 1, np.digitize(z, np.quantile(z, np.arange(1, classes) / classes)))


SKLEARN: Any = {"tol": 1e-12, "solver": "newton-cholesky"}
PENALTY = 0.05
TINY_SITE_CASES: dict[str, tuple[Any, Any, Any]] = {
    "two classes": (
        cf.FederatedLogisticRegression(alpha=PENALTY, l1_ratio=0),
        lambda n: LogisticRegression(C=1 / (PENALTY * n), **SKLEARN),
        lambda z, sites: classes_of(z, sites, 2),
    ),
    "several classes": (
        cf.FederatedLogisticRegression(alpha=PENALTY, l1_ratio=0),
        lambda n: LogisticRegression(C=1 / (PENALTY * n), **SKLEARN),
        lambda z, sites: classes_of(z, sites, 3),
    ),
    "numbers": (
        cf.FederatedElasticNet(alpha=PENALTY, l1_ratio=0),
        lambda n: Ridge(PENALTY * n),
        lambda z, sites: z,
    ),
    "counts": (
        cf.FederatedPoissonRegressor(alpha=PENALTY, l1_ratio=0),
        lambda n: PoissonRegressor(alpha=PENALTY, **SKLEARN),
        lambda z, sites: np.floor(np.exp(z / 2)),
    ),
}


@pytest.mark.parametrize(
    ("case", "exact"),
    [("two classes", False), ("two classes", True), ("several classes", True), ("numbers", False), ("counts", False)],
)
def test_sites_with_fewer_rows_than_folds_are_scored_as_the_pooled_rows(case, exact):
    model, pooled, labels = TINY_SITE_CASES[case]
    X, z, sites = tiny_sites()
    y = labels(z, sites)
    given = cf.data.from_arrays([X[sites == i] for i in range(5)], [y[sites == i] for i in range(5)])
    found = model.fit(X, y, sites=sites).evaluate(InProcess(given, exact=exact), cv=5, per_site=True)
    cv_model = type(model).__name__ + "CV"
    folds = getattr(cf, cv_model)(alphas=[PENALTY], l1_ratio=0, cv=5).fit(X, y, sites=sites).fold_
    assert len(set(folds[sites == 2])) == 3
    p = np.empty((len(y), len(np.unique(y))) if hasattr(model, "predict_proba") else len(y))
    for k in range(5):
        without = pooled((folds != k).sum()).fit(X[folds != k], y[folds != k])
        predict = without.predict_proba if hasattr(without, "predict_proba") else without.predict
        p[folds == k] = predict(X[folds == k])
    for one, rows in [(found, sites >= 0), *zip(found.per_site.values(), (sites == i for i in range(5)), strict=True)]:
        assert one.weight == rows.sum()
        if p.ndim == 1:
            assert one.mae == pytest.approx(mean_absolute_error(y[rows], p[rows]), rel=1e-7)
            assert one.rmse == pytest.approx(root_mean_squared_error(y[rows], p[rows]), rel=1e-7)
            continue
        truth = np.eye(p.shape[1])[y[rows]]
        brier = ((p[rows] - truth) ** 2).sum(axis=1).mean() / (2 if p.shape[1] == 2 else 1)
        assert one.brier == pytest.approx(brier, rel=1e-7)
        assert one.log_loss == pytest.approx(log_loss(y[rows], p[rows], labels=range(p.shape[1])), rel=1e-7)
        assert one.accuracy == pytest.approx((p[rows].argmax(axis=1) == y[rows]).mean())
        if p.shape[1] == 2 and len(np.unique(y[rows])) == 2:
            assert one.auc.rounding_low - 1e-12 <= roc_auc_score(y[rows], p[rows, 1]) <= one.auc.rounding_high + 1e-12


def masked_sites() -> list[Site]:
    return [
        Site(
            Rows(TABLE.X[TABLE.sites == i], TABLE.y[TABLE.sites == i], name=str(i), index=i),
            policy=POLICY,
            secure_sum=True,
        )
        for i in (1, 2, 3)
    ]


def test_single_sites_are_not_scored_under_masks(fitted):
    federation = InProcess(masked_sites())
    assert fitted.evaluate(federation).auc.rounding_high > 0.9
    with pytest.raises(cf.InputError, match="one site would show its part of a sum by subtraction"):
        fitted.evaluate(federation, per_site=True)
    with pytest.raises(cf.InputError, match="leaving out one site would show its part of a sum by subtraction"):
        fitted.evaluate(federation, cv="leave-one-site-out")


# --- the record, and mistakes ---


def test_the_record_is_a_table_a_dictionary_and_a_figure(fitted):
    found = fitted.evaluate(TABLE.federation(), per_site=True)
    lines = str(found).splitlines()
    assert "optimistic" in lines[0]
    assert lines[2].split() == ["all", "sites", "0", "1", "2", "3"]
    assert any(line.startswith("AUC") for line in lines)
    again = json.loads(json.dumps(found.to_dict()))
    assert again["auc"] == vars(found.auc)
    assert again["per_site"]["2"]["brier"] == found.per_site["2"].brier
    pytest.importorskip("matplotlib")
    figure = found.plot()
    assert len(figure.axes) == 2
    assert found.plot(figure.axes) is figure
    numbers_only = cf.FederatedLasso(0.5).fit_federation(InProcess(numbers())).evaluate(numbers())
    assert isinstance(numbers_only, Evaluation)
    with pytest.raises(cf.InputError, match="no curves to draw"):
        numbers_only.plot()


def test_rows_are_counted_and_their_weight_is_not_called_rows(fitted):
    weights = np.random.default_rng(0).integers(0, 4, len(TABLE.y)).astype(float)
    found = fitted.evaluate(TABLE.X, TABLE.y, sites=TABLE.sites, sample_weight=weights, per_site=True)
    assert (found.rows, found.weight) == (np.count_nonzero(weights), weights.sum())
    here = TABLE.sites == 2
    assert (found.per_site["2"].rows, found.per_site["2"].weight) == (
        np.count_nonzero(weights[here]),
        weights[here].sum(),
    )
    cells = {line.split("  ")[0]: line.split()[-5:] for line in str(found).splitlines()}
    assert float(cells["rows"][0]) == np.count_nonzero(weights)
    assert float(cells["weight of the rows"][0]) == weights.sum()
    assert float(cells["weight of the events"][0]) == weights @ TABLE.y
    assert "events" not in cells
    plain = str(fitted.evaluate(TABLE.federation(), cv=3))
    assert "weight" not in plain
    assert "alpha was chosen" not in plain


def test_an_alpha_that_was_chosen_on_all_rows_is_said():
    X, y, sites = tiny_sites()
    model = cf.FederatedLassoCV(cv=3, n_alphas=5).fit(X, y, sites=sites)
    assert "; alpha was chosen on all rows, which is a little optimistic." in str(
        model.evaluate(X, y, sites=sites, cv=3)
    )
    assert "alpha was chosen" not in str(model.evaluate(X, y, sites=sites))


def test_mistakes_are_named(fitted):
    model = cf.FederatedLasso(0.5).fit_federation(InProcess(numbers()))
    with pytest.raises(cf.InputError, match="site '0' has other columns than the model was fitted with"):
        model.evaluate(InProcess(numbers(columns=("a", "b", "d"))))
    with pytest.raises(cf.InputError, match="2 outcomes per row; the model has 1"):
        model.evaluate(InProcess(numbers(outcomes=2)))
    with pytest.raises(cf.InputError, match=r"threshold=1.5.*between 0 and 1"):
        fitted.evaluate(TABLE.federation(), threshold=1.5)
    with pytest.raises(cf.InputError, match=r"needs a federation, sites from compfed\.data, or rows with their labels"):
        fitted.evaluate(TABLE.X)
    with pytest.raises(cf.InputError, match="not among the classes"):
        fitted.evaluate(TABLE.X, TABLE.y + 1, sites=TABLE.sites)
