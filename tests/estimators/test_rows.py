"""Offsets, class weights, row weights and site effects: the coefficients of pooled solvers, over every kind of federation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import statsmodels.api as sm
from federation.wired import Wired
from places import SHARED
from scipy.optimize import minimize_scalar
from sklearn.base import clone
from sklearn.linear_model import GammaRegressor, Lasso, LogisticRegression

import compfed as cf
from compfed.data import bundled
from compfed.errors import InputError
from compfed.federation import DisclosurePolicy, Evaluate, InProcess, Refusal, Rows, Site
from compfed.federation.codec import from_bytes, pack, to_bytes, unpack
from compfed.federation.spec import FeatureScaling, ObjectiveSpec

EXACT: dict[str, Any] = {"tol": 1e-15, "max_iter": 1_000_000}
NEWTON: dict[str, Any] = {"solver": "newton-cholesky", "tol": 1e-13, "max_iter": 10_000}
FAMILIES = {"poisson": sm.families.Poisson(), "logistic": sm.families.Binomial(), "lasso": sm.families.Gaussian()}
MODELS: dict[str, Any] = {
    "poisson": cf.FederatedPoissonRegressor,
    "logistic": cf.FederatedLogisticRegression,
    "lasso": cf.FederatedLasso,
}


# --- tables: (X, y, sites), columns of unit spread ---


def synthetic(kind: str = "poisson", rows: int = 240) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    X, sites = rng.standard_normal((rows, 4)) + 1.0, rng.integers(0, 4, rows)
    z = X @ [0.5, -0.4, 0.0, 0.2] + 0.4 * sites - 0.5
    y = {
        "poisson": rng.poisson(np.exp(z)),
        "logistic": rng.random(rows) < 1 / (1 + np.exp(-z)),
        "lasso": z + rng.random(rows),
    }
    return X, y[kind].astype(float), sites


def cancer() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = bundled.breast_cancer()
    X = np.asarray(table.X)[:, [1, 4, 8, 9, 11]]  # of which no few separate the classes
    return (X - X.mean(0)) / X.std(0), np.asarray(table.y, float), np.arange(len(X)) % 5


def diabetes() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = bundled.diabetes()
    X = np.asarray(table.X)
    return (X - X.mean(0)) / X.std(0), np.asarray(table.y, float), np.asarray(table.sites)


def heart() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = bundled.heart(SHARED / "heart")
    X = np.asarray(table.X)
    return (X - X.mean(0)) / X.std(0), np.asarray(table.y, float), np.asarray(table.sites)


def counts() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts from the diabetes table: its labels are from 25 to 346."""
    X, y, sites = diabetes()
    return X[:, :6], np.rint(y / 25), sites


needs_data = pytest.mark.skipif(not SHARED.exists(), reason="the real data of the shared folder is not here")
TABLES: dict[str, tuple[str, Any]] = {
    "synthetic counts": ("poisson", synthetic),
    "diabetes counts": ("poisson", counts),
    "cancer": ("logistic", cancer),
    "synthetic classes": ("logistic", lambda: synthetic("logistic")),
    "heart": ("logistic", heart),
    "diabetes": ("lasso", diabetes),
    "synthetic numbers": ("lasso", lambda: synthetic("lasso")),
}
each_table = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[needs_data] if name == "heart" else []) for name in TABLES]
)


def offset_of(X: np.ndarray) -> np.ndarray:
    return np.random.default_rng(1).uniform(-1.0, 2.0, len(X))


def dummies(sites: np.ndarray) -> np.ndarray:
    return (sites[:, None] == np.unique(sites)).astype(float)


def glm(kind: str, y: np.ndarray, A: Any, **more: Any) -> np.ndarray:
    return np.asarray(
        sm.GLM(y, A, family=FAMILIES[kind], **more).fit(tol=1e-14, maxiter=500, tol_criterion="params").params
    )


def optimality(
    kind: str, z: np.ndarray, y: np.ndarray, A: np.ndarray, coef: np.ndarray, alpha: float, q: Any = None
) -> float:
    """How far 0 is from the subdifferential of mean loss + alpha ||coef||_1, in plain NumPy."""
    mean = {"poisson": np.exp(z), "logistic": 1 / (1 + np.exp(-z)), "lasso": z}[kind]
    v = A.T @ ((mean - y) * (np.full(len(y), 1 / len(y)) if q is None else q / q.sum()))
    return float(np.where(coef != 0, np.abs(v + alpha * np.sign(coef)), np.maximum(np.abs(v) - alpha, 0)).max())


def federations(X: Any, y: Any, sites: Any, **more: Any) -> list[InProcess]:
    """Sites in this process: plain, with exact sums, with a policy, and with both."""
    made = cf.data.from_table(X, y, sites)

    def listed(policy: DisclosurePolicy | None) -> list[Site]:
        found = []
        for i, name in enumerate(made.names):
            rows = np.flatnonzero(np.asarray(sites).astype(str) == name)
            own: dict[str, Any] = {key: np.asarray(values)[rows] for key, values in more.items()}
            found.append(Site(Rows(X[rows], y[rows], name=name, index=i, **own), policy=policy, secret=b"s"))
        return found

    return [InProcess(listed(policy), exact=exact) for policy in (None, DisclosurePolicy()) for exact in (False, True)]


# --- offsets ---


@each_table
def test_an_offset_as_in_a_pooled_glm(name):
    kind, make = TABLES[name]
    X, y, sites = make()
    o = offset_of(X)
    model = MODELS[kind](alpha=0.0).fit(X, y, sites=sites, offset=o)
    expected = glm(kind, y, sm.add_constant(X), offset=o)
    np.testing.assert_allclose(np.ravel(model.coef_), expected[1:], rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(np.ravel(model.intercept_), expected[:1], rtol=1e-8)
    assert model.certificate_.holds
    assert model.has_offset_


@each_table
def test_a_penalised_model_with_an_offset_is_optimal(name):
    kind, make = TABLES[name]
    X, y, sites = make()
    o, alpha = offset_of(X), {"poisson": 0.1, "logistic": 0.03, "lasso": 0.1}[kind]
    more = {"l1_ratio": 1.0} if kind == "poisson" else {}
    model = MODELS[kind](alpha=alpha, **more).fit(X, y, sites=sites, offset=o)
    z, coef = X @ np.ravel(model.coef_) + model.intercept_ + o, np.ravel(model.coef_)
    assert optimality(kind, z, y, X, coef, alpha) < 1e-9 * max(np.abs(y).max(), 1)
    assert abs(optimality(kind, z, y, np.ones((len(y), 1)), np.zeros(1), 0.0)) < 1e-9 * max(np.abs(y).max(), 1)
    if kind == "lasso":
        pooled = Lasso(alpha=alpha, **EXACT).fit(X, y - o)
        np.testing.assert_allclose(model.coef_, pooled.coef_, rtol=1e-8, atol=1e-10)
        assert model.certificate_.duality_gap < 1e-8 * np.square(y).mean()
    # without an intercept
    alone = MODELS[kind](alpha=alpha, fit_intercept=False, **more).fit(X, y, sites=sites, offset=o)
    coef = np.ravel(alone.coef_)
    assert optimality(kind, X @ coef + o, y, X, coef, alpha) < 1e-9 * max(np.abs(y).max(), 1)


@pytest.mark.parametrize("algorithm", ["ProximalBFGS", "FISTA"])
def test_other_methods_know_the_offset(algorithm):
    X, y, sites = synthetic("logistic")
    o = offset_of(X)
    newton, other = (
        cf.FederatedLogisticRegression(alpha=0.02, algorithm=name, tol=1e-10).fit(X, y, sites=sites, offset=o)
        for name in ("auto", algorithm)
    )
    np.testing.assert_allclose(other.coef_, newton.coef_, rtol=1e-7, atol=1e-8)


def test_an_offset_over_every_federation():
    X, y, sites = synthetic()
    o = offset_of(X)
    model = cf.FederatedPoissonRegressor(alpha=0.01).fit(X, y, sites=sites, offset=o)
    for federation in federations(X, y, sites, offset=o):
        other = cf.FederatedPoissonRegressor(alpha=0.01).fit_federation(federation)
        np.testing.assert_allclose(other.coef_, model.coef_, rtol=1e-9, atol=1e-10)
        assert other.has_offset_
    made = cf.data.from_table(X, y, sites)
    offsets = tuple(o[np.asarray(sites) == int(name)] for name in made.names)
    from_sites = cf.FederatedPoissonRegressor(alpha=0.01).fit_sites(cf.data.Sites(**{**vars(made), "offsets": offsets}))
    np.testing.assert_allclose(from_sites.coef_, model.coef_, rtol=1e-12)


def test_huber_with_an_offset_is_huber_of_the_rest():
    X, y, sites = diabetes()
    o = 20 * offset_of(X)
    model = cf.FederatedHuber(alpha=0.5, delta=40).fit(X, y, sites=sites, offset=o)
    rest = cf.FederatedHuber(alpha=0.5, delta=40).fit(X, y - o, sites=sites)
    np.testing.assert_allclose(model.coef_, rest.coef_, rtol=1e-8, atol=1e-8)


def test_paths_and_folds_with_an_offset():
    X, y, sites = synthetic("lasso")
    o = offset_of(X)
    path, rest = (
        cf.regularisation_path(cf.FederatedLasso(), X, labels, sites, n_alphas=6, offset=given)
        for labels, given in ((y, o), (y - o, None))
    )
    np.testing.assert_allclose(path.coefs, rest.coefs, rtol=1e-8, atol=1e-9)
    chosen, other = (
        cf.FederatedLassoCV(n_alphas=6, cv=3).fit(X, labels, sites=sites, offset=given)
        for labels, given in ((y, o), (y - o, None))
    )
    np.testing.assert_allclose(chosen.cv_loss_, other.cv_loss_, rtol=1e-8)  # held-out losses have the offset, too


def test_predictions_need_the_offset_of_the_fit():
    pd = pytest.importorskip("pandas")
    X, y, sites = synthetic()
    o = offset_of(X)
    frame = pd.DataFrame(X, columns=list("abcd")).assign(log_time=o, ward=sites)
    model = cf.FederatedPoissonRegressor(alpha=0.0).fit(frame, y, sites="ward", offset="log_time")
    same = cf.FederatedPoissonRegressor(alpha=0.0).fit(X, y, sites=sites, offset=o)
    expected = np.exp(X @ same.coef_ + same.intercept_ + o)
    np.testing.assert_allclose(model.predict(frame), expected, rtol=1e-9)
    np.testing.assert_allclose(same.predict(X, offset=o), expected, rtol=1e-12)
    np.testing.assert_allclose(same.predict(X, offset=0), np.exp(X @ same.coef_ + same.intercept_))
    assert model.score(frame, y) == pytest.approx(same.score(X, y, offset=o), rel=1e-9)
    with pytest.raises(InputError, match=r"fitted with an offset.*offset=0"):
        same.predict(X)
    with pytest.raises(InputError, match="fitted without an offset"):
        cf.FederatedLasso().fit(X, y, sites=sites).predict(X, offset=o)
    classes = (y > y.mean()).astype(int)
    classifier = cf.FederatedLogisticRegression(alpha=0.01).fit(X, classes, sites=sites, offset=o)
    odds = X @ classifier.coef_[0] + classifier.intercept_ + o
    np.testing.assert_allclose(classifier.predict_proba(X, offset=o)[:, 1], 1 / (1 + np.exp(-odds)))
    assert classifier.score(X, classes, offset=o) == np.mean((odds > 0) == classes)


def test_offsets_that_cannot_be_used():
    X, y, sites = synthetic()
    o = offset_of(X)
    with pytest.raises(InputError, match="one finite number for each of 240 rows"):
        cf.FederatedLasso().fit(X, y, sites=sites, offset=o[:-1])
    with pytest.raises(InputError, match="offset='time' names a column"):
        cf.FederatedLasso().fit(X, y, sites=sites, offset="time")
    with pytest.raises(InputError, match="one prediction per row"):
        cf.FederatedLogisticRegression().fit(X, np.minimum(y, 2), sites=sites, offset=o)
    both = [Site(Rows(X, y, name="a", index=0, offset=o)), Site(Rows(X, y, name="b", index=1))]
    for exact in (False, True):
        with pytest.raises(InputError, match="'a' have an offset, those of site 'b' have none"):
            cf.FederatedLasso().fit_federation(InProcess(both, exact=exact))


# --- class weights ---


@pytest.mark.parametrize("weights", ["balanced", {0: 1.0, 1: 5.0}, {1: 0.2}])
@pytest.mark.parametrize("name", ["cancer", "synthetic classes", pytest.param("heart", marks=needs_data)])
def test_class_weights_of_scikit_learn(name, weights):
    X, y, sites = TABLES[name][1]()
    y = y.astype(int)
    row = np.ones(len(y)) if weights == "balanced" else np.array([weights.get(c, 1.0) for c in y.tolist()])
    model = cf.FederatedLogisticRegression(alpha=0.02, l1_ratio=0.0, class_weight=weights).fit(X, y, sites=sites)
    pooled = LogisticRegression(C=1 / (0.02 * row.sum()), class_weight=weights, **NEWTON).fit(X, y)
    np.testing.assert_allclose(model.coef_, pooled.coef_, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(model.intercept_, pooled.intercept_, rtol=1e-8, atol=1e-9)
    lasso = cf.FederatedLogisticRegression(alpha=0.02, class_weight=weights).fit(X, y, sites=sites)
    by_row = cf.FederatedLogisticRegression(alpha=0.02).fit(
        X, y, sites=sites, sample_weight=1 / np.bincount(y)[y] if weights == "balanced" else row
    )
    np.testing.assert_allclose(lasso.coef_, by_row.coef_, rtol=1e-8, atol=1e-9)
    assert lasso.certificate_.holds
    assert (lasso.certificate_.duality_gap or 0.0) < 1e-10


def test_class_weights_of_more_classes_and_together_with_row_weights():
    X, y, sites = synthetic()
    classes, w = (
        np.array(["few", "many", "none"])[np.digitize(y, [1, 3])],
        np.random.default_rng(2).uniform(0.5, 2, len(y)),
    )
    weights = {"few": 2.0, "none": 0.5}
    row = w * np.array([weights.get(c, 1.0) for c in classes])
    model = cf.FederatedLogisticRegression(alpha=0.02, l1_ratio=0.0, class_weight=weights)
    model.fit(X, classes, sites=sites, sample_weight=w)
    pooled = LogisticRegression(C=1 / (0.02 * row.sum()), class_weight=weights, **NEWTON).fit(
        X, classes, sample_weight=w
    )
    np.testing.assert_allclose(
        model.coef_ - model.coef_.mean(0), pooled.coef_ - pooled.coef_.mean(0), rtol=1e-8, atol=1e-8
    )
    other = cf.FederatedLogisticRegression(alpha=0.02, l1_ratio=0.0, algorithm="FISTA", tol=1e-10, class_weight=weights)
    np.testing.assert_allclose(
        other.fit(X, classes, sites=sites, sample_weight=w).coef_, model.coef_, rtol=1e-6, atol=1e-7
    )


def test_class_weights_over_every_federation_and_with_an_offset():
    X, y, sites = synthetic("logistic")
    o = offset_of(X)
    weights = {0.0: 1.0, 1.0: 3.0}
    row = np.where(y == 1, 3.0, 1.0)
    expected = glm("logistic", y, sm.add_constant(X), offset=o, freq_weights=row)
    for federation in federations(X, y, sites, offset=o):
        model = cf.FederatedLogisticRegression(alpha=0.0, class_weight=weights).fit_federation(federation)
        np.testing.assert_allclose(np.r_[model.intercept_, model.coef_[0]], expected, rtol=1e-8, atol=1e-9)


def test_folds_weigh_classes_by_their_training_rows():
    X, y, sites = synthetic("logistic")
    model = cf.FederatedLogisticRegressionCV(alphas=[0.05], cv=3, class_weight="balanced").fit(X, y, sites=sites)
    for k in range(3):
        train = model.fold_ != k
        alone = cf.FederatedLogisticRegression(alpha=0.05, class_weight="balanced").fit(
            X[train], y[train], sites=sites[train]
        )
        z, t = alone.decision_function(X[~train]), y[~train]
        w = np.where(t == 1, 1 / (2 * y[train].mean()), 1 / (2 * (1 - y[train].mean())))
        assert model.cv_loss_[0, k] == pytest.approx(np.mean(w * np.logaddexp(0, np.where(t == 1, -z, z))), rel=1e-8)


@pytest.mark.parametrize("weights", ["balanced", {0: 1.0, 1: 4.0}])
def test_the_largest_alpha_knows_the_class_weights(weights):
    X, y, sites = synthetic("logistic")
    w = np.where(y == 1, 1 / y.mean(), 1 / (1 - y.mean())) if weights == "balanced" else np.where(y == 1, 4.0, 1.0)
    v = X.T @ (w * (np.average(y, weights=w) - y)) / w.sum()
    model = cf.FederatedLogisticRegression(class_weight=weights)
    path = cf.regularisation_path(model, X, y, sites, n_alphas=2)
    assert path.alphas[0] == pytest.approx(np.abs(v).max(), rel=1e-10)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("even", "must be None, 'balanced', or a dict"),
        ({0: 0.0}, "finite number > 0"),
        ({"ill": 2.0}, "'ill', which is not a class. The classes are 0.0, 1.0"),
    ],
)
def test_class_weights_that_cannot_be_used(given, message):
    X, y, sites = synthetic("logistic")
    with pytest.raises(InputError, match=message):
        cf.FederatedLogisticRegression(class_weight=given).fit(X, y, sites=sites)


# --- row weights ---


def test_row_weights_over_every_federation():
    X, y, sites = synthetic()
    w = np.random.default_rng(2).uniform(0.2, 3.0, len(y))
    expected = glm("poisson", y, sm.add_constant(X), freq_weights=w)
    for federation in federations(X, y, sites, sample_weight=w):
        model = cf.FederatedPoissonRegressor(alpha=0.0).fit_federation(federation)
        np.testing.assert_allclose(np.r_[model.intercept_, model.coef_], expected, rtol=1e-8, atol=1e-9)
        for site, enrolment in zip(federation.sites, federation.enrolments, strict=True):
            assert enrolment.weighted
            assert enrolment.weight == pytest.approx(site.rows.weights.sum())
            assert enrolment.rows == len(site.rows.labels)


def test_row_weights_at_some_sites_or_in_another_unit_are_refused():
    X, y, _ = synthetic()
    w = np.ones(len(y))
    for other, message in (
        (None, "'a' have weights, those of site 'b' have none"),
        (1e-4 * w, "site 'a' weigh over 1000"),
    ):
        sites = [
            Site(Rows(X, y, name="a", index=0, sample_weight=w)),
            Site(Rows(X, y, name="b", index=1, sample_weight=other)),
        ]
        with pytest.raises(InputError, match=message):
            cf.FederatedLasso().fit_federation(InProcess(sites, exact=True))


# --- site effects ---


@each_table
def test_site_effects_are_dummy_variables(name):
    kind, make = TABLES[name]
    X, y, sites = make()
    model = MODELS[kind](alpha=0.0, site_effects="profile").fit(X, y, sites=sites)
    expected = glm(kind, y, np.column_stack([X, dummies(sites)]))
    width = X.shape[1]
    np.testing.assert_allclose(np.ravel(model.coef_), expected[:width], rtol=1e-8, atol=1e-8)
    names = np.unique(sites).astype(str).tolist()
    np.testing.assert_allclose([model.site_intercepts_[n] for n in names], expected[width:], rtol=1e-8, atol=1e-8)
    common = glm(kind, y, np.ones((len(y), 1)), offset=X @ expected[:width])
    np.testing.assert_allclose(np.ravel(model.intercept_), common, rtol=1e-8, atol=1e-8)
    assert model.certificate_.holds


@each_table
def test_penalised_site_effects_are_optimal(name):
    kind, make = TABLES[name]
    X, y, sites = make()
    alpha = {"poisson": 0.1, "logistic": 0.03, "lasso": 0.1}[kind]
    more = {"l1_ratio": 1.0} if kind == "poisson" else {}
    model = MODELS[kind](alpha=alpha, site_effects="profile", **more).fit(X, y, sites=sites)
    coef = np.ravel(model.coef_)
    own = np.array([model.site_intercepts_[str(s)] for s in sites])
    z = X @ coef + own
    assert optimality(kind, z, y, X, coef, alpha) < 1e-9 * max(np.abs(y).max(), 1)
    assert optimality(kind, z, y, dummies(sites), np.zeros(len(np.unique(sites))), 0.0) < 1e-9 * max(np.abs(y).max(), 1)
    if kind == "lasso":  # least squares with dummies is least squares of what is left within each site
        D = dummies(sites)
        within = np.eye(len(y)) - D @ np.linalg.pinv(D)
        pooled = Lasso(alpha=alpha, fit_intercept=False, **EXACT).fit(within @ X, within @ y)
        np.testing.assert_allclose(coef, pooled.coef_, rtol=1e-8, atol=1e-9)
    if kind != "poisson":
        assert model.certificate_.duality_gap < 1e-8 * max(np.square(y).mean(), 1)


def test_site_effects_of_a_lasso_by_cvxpy():
    X, y, sites = synthetic("logistic")
    w, b, sign = cp.Variable(4), cp.Variable(4), 2 * y - 1
    loss = cp.sum(cp.logistic(-cp.multiply(sign, X @ w + dummies(sites) @ b))) / len(y)
    cp.Problem(cp.Minimize(loss + 0.03 * cp.norm1(w))).solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12)
    model = cf.FederatedLogisticRegression(alpha=0.03, site_effects="profile").fit(X, y, sites=sites)
    np.testing.assert_allclose(model.coef_[0], np.asarray(w.value), atol=1e-6)


def test_site_effects_over_every_federation_with_offsets_and_weights():
    X, y, sites = synthetic()
    o, w = offset_of(X), np.random.default_rng(2).uniform(0.2, 3.0, len(y))
    expected = glm("poisson", y, np.column_stack([X, dummies(sites)]), offset=o, freq_weights=w)
    for federation in federations(X, y, sites, offset=o, sample_weight=w):
        for algorithm in ("auto", "ProximalBFGS"):
            model = cf.FederatedPoissonRegressor(alpha=0.0, site_effects="profile", algorithm=algorithm)
            model.fit_federation(federation)
            np.testing.assert_allclose(model.coef_, expected[:4], rtol=1e-8, atol=1e-9)
            assert hasattr(model, "site_intercepts_") != federation.walled


def test_sites_of_one_class_say_nothing_about_slopes():
    """With an intercept of its own a site of one class is fitted for sure: the others decide."""
    X, y, sites = synthetic("logistic")
    keep = (sites > 0) | (y == 1)
    mixed = sites > 0
    model = cf.FederatedLogisticRegression(alpha=0.0, site_effects="profile").fit(X[keep], y[keep], sites=sites[keep])
    expected = glm("logistic", y[mixed], np.column_stack([X[mixed], dummies(sites[mixed])]))
    np.testing.assert_allclose(model.coef_[0], expected[:4], rtol=1e-7)
    assert model.site_intercepts_["0"] == np.inf
    policed = InProcess(cf.data.from_table(X[keep], y[keep], sites[keep]), policy=DisclosurePolicy(), exact=True)
    other = cf.FederatedLogisticRegression(alpha=0.0, site_effects="profile").fit_federation(policed)
    np.testing.assert_allclose(other.coef_, model.coef_, rtol=1e-8)


def test_paths_and_folds_with_site_effects():
    X, y, sites = synthetic("lasso")
    model = cf.FederatedLassoCV(alphas=[0.05, 0.01], cv=3, site_effects="profile").fit(X, y, sites=sites)
    for k in range(3):
        train = model.fold_ != k
        alone = cf.FederatedLasso(alpha=0.01, site_effects="profile").fit(X[train], y[train], sites=sites[train])
        own = np.array([alone.site_intercepts_[str(s)] for s in sites[~train]])
        residual = y[~train] - X[~train] @ alone.coef_ - own
        assert model.cv_loss_[1, k] == pytest.approx(np.mean(residual**2) / 2, rel=1e-8)
    path = cf.regularisation_path(cf.FederatedLasso(site_effects="profile"), X, y, sites, alphas=[0.05, 0.01])
    np.testing.assert_allclose(path.coefs, model.coef_path_, rtol=1e-9)
    np.testing.assert_allclose(path.intercepts, model.intercept_path_, rtol=1e-9)
    one = cf.FederatedLasso(alpha=0.05, site_effects="profile").fit(X, y, sites=sites)
    np.testing.assert_allclose(path.intercepts[0], one.intercept_, rtol=1e-9)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"site_effects": "random"}, "site_effects='random'"),
        ({"site_effects": "profile", "fit_intercept": False}, "leave out fit_intercept=False"),
        ({"site_effects": "profile", "algorithm": "FISTA"}, "'FISTA'.*Use 'auto', 'ProximalNewton' or 'ProximalBFGS'"),
        ({"site_effects": "profile", "algorithm": cf.algorithms.FISTA(eta=0.1)}, "local steps know none"),
    ],
)
def test_site_effects_that_cannot_be_used(more, message):
    X, y, sites = synthetic("lasso")
    with pytest.raises(InputError, match=message):
        cf.FederatedLasso(**more).fit(X, y, sites=sites)


def test_what_site_effects_refuse():
    X, y, sites = synthetic()
    with pytest.raises(InputError, match="no rows to fit its own intercept"):
        cf.FederatedLassoCV(cv="leave-one-site-out", site_effects="profile").fit(X, y, sites=sites)
    with pytest.raises(InputError, match="no rows to fit its own intercept"):  # the same by a list of folds
        cf.FederatedLassoCV(alphas=[0.1], cv=sites, site_effects="profile").fit(X, y, sites=sites)
    with pytest.raises(InputError, match="one prediction per row"):
        cf.FederatedLogisticRegression(site_effects="profile").fit(X, np.minimum(y, 2), sites=sites)


# --- what a server may not do with the new fields ---


def refused(site: Site, objective: ObjectiveSpec, x: np.ndarray, coords: Any = None) -> str:
    (reply,) = site.reply([Evaluate(objective, np.atleast_2d(x), coords)])
    return reply.reason if isinstance(reply, Refusal) else ""


def policed(kind: str, rows: Any = slice(None), **more: Any) -> Site:
    X, y, _ = synthetic(kind)
    return Site(Rows(X[rows], y[rows], name="north", index=0, **more), policy=DisclosurePolicy(), secret=b"s")


CLASSES, SCALING = np.array([0.0, 1.0]), FeatureScaling(np.zeros(4), np.ones(4), intercept=True)


def weighted(low: float, high: float) -> ObjectiveSpec:
    return ObjectiveSpec(cf.losses.ClassWeightedLogistic(class_weights=[low, high]), SCALING, CLASSES)


def test_class_weights_do_not_single_out_a_class_or_a_row_of_it():
    site, zero = policed("logistic"), np.zeros(5)
    assert refused(site, weighted(1.0, 3.0), zero) == ""
    assert "over 1000 times as much" in refused(site, weighted(1.0, 1001.0), zero)
    # A class whose rows are all fitted for sure but a few: the sums of that class alone would show them.
    X, y, _ = synthetic("logistic")
    a = X[:, 0]
    far = np.argsort(np.where(y == 1, a, np.inf))[:2]  # the two rows of class 1 with the least values
    cut = float(np.sort(a[y == 1])[2]) - 1e-3
    slope = 12.0 / a.std()  # a site refuses coefficients over 16 standard deviations before it looks at rows
    steep = np.array([slope, 0.0, 0.0, 0.0, -slope * cut])
    h = np.exp(-np.logaddexp(0, slope * (a - cut)))[y == 1]
    assert h.sum() ** 2 / (h**2).sum() < 5  # the gradient of class 1 rests on few rows
    assert "fewer rows than its min_rows" in refused(site, weighted(1.0, 1.001), steep)
    assert len(far) == 2
    few = policed("logistic", np.flatnonzero((y == 0) | (np.cumsum(y == 1) <= 4)))
    assert refused(few, ObjectiveSpec(cf.losses.Logistic(), SCALING, CLASSES), zero) == ""
    assert "half of its min_rows rows of every class" in refused(few, weighted(1.0, 1.001), zero)


def test_a_gradient_of_a_class_that_rests_on_one_row_is_refused_where_the_whole_is_not():
    """Two class weights would give the gradient of class 1 alone, though all rows together have enough curvature."""
    rng = np.random.default_rng(0)
    a = np.r_[rng.uniform(-0.5, 0.5, 60), np.full(39, 12.0) + rng.random(39), -1.0]
    y = np.r_[np.zeros(60), np.ones(40)]
    site = Site(Rows(a[:, None], y, name="north", index=0), policy=DisclosurePolicy(min_level_rows=1), secret=b"s")
    scaling = FeatureScaling(np.zeros(1), np.ones(1), intercept=True)
    plain = ObjectiveSpec(cf.losses.Logistic(), scaling, CLASSES)
    both = ObjectiveSpec(cf.losses.ClassWeightedLogistic(class_weights=[1.0, 1.01]), scaling, CLASSES)
    model = np.array([2.0, 0.0])
    assert refused(site, plain, model) == ""
    assert "fewer rows" in refused(site, both, model)


def test_a_profile_rests_on_enough_rows_at_its_own_intercept():
    """A steep model: the site moves its intercept to where its rows are, and few of them have curvature there."""
    site = policed("logistic", slice(32))
    objective = ObjectiveSpec(
        cf.losses.Logistic(), FeatureScaling(np.zeros(4), np.ones(4), False), CLASSES, profile=True
    )
    assert refused(site, objective, np.zeros(4)) == ""
    assert refused(site, objective, np.array([0.5, 0.0, 0.0, 0.0]), np.arange(4)) == ""
    assert "fewer rows than its min_rows" in refused(site, objective, np.array([14.0, 0.0, 0.0, 0.0]))


def test_a_profile_is_judged_at_its_own_intercept():
    """Far from zero all rows are classified with certainty; with the intercept of the site they are not."""
    X, y, _ = synthetic("logistic")
    site = Site(Rows(X + 100.0, y, name="north", index=0), policy=DisclosurePolicy(), secret=b"s")
    scaling, x = FeatureScaling(np.zeros(4), np.ones(4), False), np.array([0.5, 0.3, 0.1, 0.2])
    plain = ObjectiveSpec(cf.losses.Logistic(), scaling, CLASSES)
    assert "fewer rows than its min_rows" in refused(site, plain, x)
    assert refused(site, replace(plain, profile=True), x) == ""


@pytest.mark.parametrize("kind", ["logistic", "poisson", "huber"])
def test_a_profile_and_its_derivatives(kind):
    """The value by SciPy's scalar minimisation, the gradient and the Hessian by finite differences."""
    X, y, _ = synthetic("lasso" if kind == "huber" else kind)
    loss: Any = {
        "logistic": cf.losses.Logistic(),
        "poisson": cf.losses.Poisson(),
        "huber": cf.losses.Huber(delta=50.0),
    }[kind]
    site = Site(Rows(X, y, name="north", index=0))
    objective = ObjectiveSpec(loss, profile=True)
    x, h, W = np.array([0.2, -0.1, 0.3, 0.1]), 1e-5, np.arange(4, dtype=np.int32)
    at: Any = site.reply([Evaluate(objective, x[None], W)])[0]
    labels = 2 * y - 1 if kind == "logistic" else y
    best = minimize_scalar(lambda b: np.mean(loss.value(X @ x + b, labels)), options={"xtol": 1e-12})
    assert at.value[0] == pytest.approx(best.fun, rel=1e-10)
    near: Any = site.reply([Evaluate(objective, np.concatenate([x + h * np.eye(4), x - h * np.eye(4)]))])[0]
    np.testing.assert_allclose((near.value[:4] - near.value[4:]) / (2 * h), at.gradient[0], rtol=1e-6, atol=1e-8)
    H = (near.gradient[:4] - near.gradient[4:]) / (2 * h)
    np.testing.assert_allclose(at.hessian[0], H[np.triu_indices(4)], rtol=1e-5, atol=1e-7)


def test_rows_with_an_offset_are_not_evaluated_without():
    """Two sums, with and without an offset, would differ by the rows that have one."""
    site = policed("lasso", offset=np.r_[1.0, np.zeros(239)])
    assert "have an offset" in refused(site, ObjectiveSpec(cf.losses.Squared(), SCALING), np.zeros(5))
    assert refused(site, ObjectiveSpec(cf.losses.WithOffset(cf.losses.Squared()), SCALING), np.zeros(5)) == ""


@pytest.mark.parametrize(
    "make",
    [
        lambda: cf.losses.WithOffset(cf.losses.WithOffset(cf.losses.Squared())),
        lambda: cf.losses.WithOffset(cf.losses.Softmax(outputs=3)),
        lambda: cf.losses.WithOffset("Squared"),
        lambda: cf.losses.ClassWeightedLogistic(class_weights=[1.0, 0.0]),
        lambda: cf.losses.ClassWeightedLogistic(class_weights=[1.0, np.inf]),
        lambda: cf.losses.ClassWeightedLogistic(class_weights=np.ones(3)),
        lambda: cf.losses.ClassWeightedLogistic(class_weights=2.0),
        lambda: cf.losses.ClassWeightedSoftmax(outputs=3, class_weights=[1.0, 2.0]),
    ],
)
def test_losses_that_cannot_be_made(make):
    with pytest.raises(InputError):
        make()


def test_all_of_it_as_bytes_within_the_limits_of_a_network():
    X, y, sites = synthetic("logistic")
    o = offset_of(X)
    here = [Site(Rows(X[sites == i], y[sites == i], name=f"site{i}", index=i, offset=o[sites == i])) for i in range(4)]
    model: Any = cf.FederatedLogisticRegressionCV(
        alphas=[0.05, 0.01], cv=3, class_weight="balanced", site_effects="profile"
    )
    models: Any = clone(model), clone(model)
    over_bytes, plain = models[0].fit_federation(Wired(here)), models[1].fit_federation(InProcess(here, exact=True))
    np.testing.assert_array_equal(over_bytes.coef_, plain.coef_)
    np.testing.assert_array_equal(over_bytes.cv_loss_, plain.cv_loss_)
    assert not hasattr(over_bytes, "site_intercepts_")


def test_the_new_losses_travel():
    loss = cf.losses.WithOffset(cf.losses.ClassWeightedLogistic(class_weights=[0.5, 2.0]))
    query = Evaluate(ObjectiveSpec(loss, SCALING, CLASSES, profile=True), np.zeros((1, 5)))
    again = unpack(from_bytes(to_bytes(pack(query))))
    assert repr(again.objective.loss) == repr(loss)
    assert again.objective.profile is True


# --- amounts and overdispersed counts ---


def amounts() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X, y, sites = synthetic("lasso")
    return X, np.exp(y), sites


LOG_LINK: dict[str, tuple[Any, Any, Any]] = {
    "gamma, diabetes": (cf.FederatedGammaRegressor, sm.families.Gamma(sm.families.links.Log()), diabetes),
    "gamma, synthetic": (cf.FederatedGammaRegressor, sm.families.Gamma(sm.families.links.Log()), amounts),
    "gamma, cancer": (
        cf.FederatedGammaRegressor, sm.families.Gamma(sm.families.links.Log()),
        lambda: (cancer()[0][:, :4], np.exp(0.3 * cancer()[0][:, 4].clip(-2, 2)), cancer()[2]),
    ),
    "negative binomial, synthetic": (
        lambda **k: cf.FederatedNegativeBinomialRegressor(theta=0.7, **k), sm.families.NegativeBinomial(alpha=1 / 0.7), synthetic,
    ),
    "negative binomial, diabetes": (
        lambda **k: cf.FederatedNegativeBinomialRegressor(theta=3.0, **k), sm.families.NegativeBinomial(alpha=1 / 3.0), counts,
    ),
    "negative binomial, cancer": (
        lambda **k: cf.FederatedNegativeBinomialRegressor(theta=2.0, **k), sm.families.NegativeBinomial(alpha=0.5),
        lambda: (cancer()[0][:, :4], np.rint(np.exp(1 + 0.5 * cancer()[0][:, 4].clip(-2, 2))), cancer()[2]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOG_LINK)
def test_families_of_statsmodels_with_and_without_offset_and_site_effects(name):
    make, family, table = LOG_LINK[name]
    X, y, sites = table()
    o = offset_of(X)
    more = {"tol": 1e-15, "maxiter": 1000, "tol_criterion": "params"}
    expected = sm.GLM(y, sm.add_constant(X), family=family, offset=o).fit(**more).params
    model = make(alpha=0.0).fit(X, y, sites=sites, offset=o)
    np.testing.assert_allclose(np.r_[model.intercept_, model.coef_], expected, rtol=1e-8, atol=1e-8)
    expected = sm.GLM(y, np.column_stack([X, dummies(sites)]), family=family).fit(**more).params
    model = make(alpha=0.0, site_effects="profile").fit(X, y, sites=sites)
    np.testing.assert_allclose(model.coef_, expected[: X.shape[1]], rtol=1e-8, atol=1e-8)
    fitted = sm.GLM(y, sm.add_constant(X), family=family).fit(**more)
    model = make(alpha=0.0).fit(X, y, sites=sites)
    np.testing.assert_allclose(np.r_[model.intercept_, model.coef_], fitted.params, rtol=1e-8, atol=1e-8)
    assert model.score(X, y) == pytest.approx(1 - fitted.deviance / fitted.null_deviance, rel=1e-8)
    for federation in federations(X, y, sites)[1::2]:  # exact sums, without and with a policy
        other = make(alpha=0.0).fit_federation(federation)
        np.testing.assert_allclose(other.coef_, model.coef_, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("table", [diabetes, amounts])
def test_gamma_regression_of_scikit_learn(table):
    X, y, sites = table()
    model = cf.FederatedGammaRegressor(alpha=0.1).fit(X, y, sites=sites)
    pooled = GammaRegressor(alpha=0.1, solver="newton-cholesky", tol=1e-13, max_iter=1000).fit(X, y)
    np.testing.assert_allclose(model.coef_, pooled.coef_, rtol=1e-8, atol=1e-9)
    assert model.score(X, y) == pytest.approx(pooled.score(X, y), rel=1e-9)
    np.testing.assert_allclose(model.predict(X), pooled.predict(X), rtol=1e-8)


def test_penalised_families_are_optimal_and_choose_alpha():
    X, y, sites = synthetic()
    model = cf.FederatedNegativeBinomialRegressorCV(theta=1.5, n_alphas=6, cv=3, l1_ratio=1.0).fit(X, y, sites=sites)
    mu = model.predict(X)
    v = X.T @ ((mu - y) / (1 + mu / 1.5)) / len(y)
    apart = np.where(
        model.coef_ != 0, np.abs(v + model.alpha_ * np.sign(model.coef_)), np.maximum(np.abs(v) - model.alpha_, 0)
    )
    assert apart.max() < 1e-9
    X, y, sites = amounts()
    model = cf.FederatedGammaRegressorCV(n_alphas=6, cv=3, l1_ratio=1.0).fit(X, y, sites=sites)
    v = X.T @ (1 - y / model.predict(X)) / len(y)
    apart = np.where(
        model.coef_ != 0, np.abs(v + model.alpha_ * np.sign(model.coef_)), np.maximum(np.abs(v) - model.alpha_, 0)
    )
    assert apart.max() < 1e-9


@pytest.mark.parametrize(
    ("model", "wrong"), [(cf.FederatedGammaRegressor(), 0.0), (cf.FederatedNegativeBinomialRegressor(), -1.0)]
)
def test_labels_outside_of_the_family(model, wrong):
    X, y, sites = amounts()
    y = np.rint(y) + 1
    y[3] = wrong
    with pytest.raises(InputError, match="out of the valid range"):
        model.fit(X, y, sites=sites)
    with pytest.raises(InputError, match="needs labels"):
        model.fit_sites(cf.data.from_table(X, y, sites))


@pytest.mark.parametrize(
    ("model", "wrong"),
    [
        (cf.FederatedGammaRegressor(0.1), 0.0),
        (cf.FederatedPoissonRegressor(0.1), -1.0),
        (cf.FederatedNegativeBinomialRegressor(0.1), -1.0),
    ],
)
def test_a_row_of_weight_zero_may_have_any_label(model, wrong):
    """Oracle: the table without that row."""
    X, y, sites = amounts()
    y, weights, others = np.rint(y) + 1, np.ones(len(y)), np.arange(len(y)) != 3
    y[3], weights[3] = wrong, 0.0
    found = model.fit(X, y, sites=sites, sample_weight=weights).coef_
    np.testing.assert_array_equal(found, model.fit(X[others], y[others], sites=np.asarray(sites)[others]).coef_)
