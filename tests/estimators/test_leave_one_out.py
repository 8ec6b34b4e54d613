"""`cv="loo"`: one Newton step without each row, against that step worked out row by row on the pooled rows, and against refits."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from federation.wired import Masked, sites_of, wired
from scipy.special import expit, logsumexp, softmax, xlogy
from sklearn.linear_model import Lasso, PoissonRegressor, RidgeCV, TweedieRegressor
from sklearn.model_selection import LeaveOneOut

import compfed as cf
from compfed.data import bundled
from compfed.estimators.programs import leave_one_out as programs
from compfed.federation import DisclosurePolicy, InProcess

RNG = np.random.default_rng(0)
N, D = 60, 6
X = RNG.standard_normal((N, D)) * [1.0, 3.0, 0.2, 1.0, 1.0, 2.0] + [0, 1, 0, 5, 0, 0]
SITES = np.repeat([0, 1, 2], [15, 20, 25])
Z = X[:, :3] @ [0.6, -0.2, 2.0] + 0.4 * RNG.standard_normal(N)
WEIGHT = RNG.uniform(0.3, 3.0, N)
OFFSET = RNG.uniform(-0.5, 0.5, N)
CLASSES = (RNG.random(N) < expit(2 * Z)).astype(int)
THREE = np.digitize(Z + 0.3 * RNG.standard_normal(N), [-0.4, 0.4])
COUNTS = RNG.poisson(np.exp(0.5 + 0.5 * Z)).astype(float)
AMOUNTS = np.exp(Z) * RNG.gamma(3.0, 1 / 3, N)
PAIRS = np.column_stack([Z, X[:, 4] - Z + 0.3 * RNG.standard_normal(N)])
GROUPS = [[0, 1], [2, 3], [4, 5]]
BALANCED = N / 2 / np.bincount(CLASSES)
TWICE = np.column_stack([X, X[:, 0], X[:, 1] + X[:, 2]])  # columns that depend on others
FAR: dict[str, Any] = {"alphas": [0.2, 0.05, 0.01]}


# --- the pooled step, with nothing of compfed in it ---


def one(value, first, second):
    """(value, gradient, Hessian) of a loss of one prediction, as arrays over outputs."""
    return lambda z, y: (value(z[0], y), np.array([first(z[0], y)]), np.array([[second(z[0], y)]]))


def logistic(weights=(1.0, 1.0)):
    return one(
        lambda z, y: weights[y] * np.logaddexp(0, -(2 * y - 1) * z),
        lambda z, y: weights[y] * (expit(z) - y),
        lambda z, y: weights[y] * expit(z) * expit(-z),
    )


def softmax_loss(z, y):
    p = softmax(z)
    return logsumexp(z) - z[y], p - np.eye(len(z))[y], np.diag(p) - np.outer(p, p)


THETA = 1.0
SQUARED = one(lambda z, y: (z - y) ** 2 / 2, lambda z, y: z - y, lambda z, y: 1.0)
POISSON = one(lambda z, y: np.exp(z) - y * z, lambda z, y: np.exp(z) - y, lambda z, y: np.exp(z))
GAMMA = one(lambda z, y: y * np.exp(-z) + z, lambda z, y: 1 - y * np.exp(-z), lambda z, y: y * np.exp(-z))
NEGATIVE_BINOMIAL = one(
    lambda z, y: (y + THETA) * np.log1p(np.exp(z) / THETA) - y * z,
    lambda z, y: (y + THETA) * expit(z - np.log(THETA)) - y,
    lambda z, y: (y + THETA) * expit(z - np.log(THETA)) * expit(np.log(THETA) - z),
)


def two_squares(z, y):
    return float(((z - y) ** 2).sum() / 2), z - y, np.eye(len(z))


def pooled(loss, X, y, W, b, share, free, curvature, offset=None, intercept=True):
    """The loss of each row at its own Newton step: H without the row is made and solved anew, row by row.

    W has shape (features, outputs), `free` the positions of its entries that move, `curvature` the penalty's there.
    """
    K = W.shape[1]
    Z = X @ W + b + (0.0 if offset is None else offset[:, None])
    J = [np.kron(np.append(a, 1.0) if intercept else a, np.eye(K)) for a in X]
    J = [j.reshape(K, -1)[:, np.concatenate([free, np.arange(W.size, W.size + K)]) if intercept else free] for j in J]
    at = [loss(z, label) for z, label in zip(Z, y, strict=True)]
    H = np.sum([s * j.T @ h @ j for s, j, (_, _, h) in zip(share, J, at, strict=True)], axis=0)
    H[: len(free), : len(free)] += curvature
    found = np.empty(len(y))
    for k, (s, j, (_, g, h)) in enumerate(zip(share, J, at, strict=True)):
        step = np.linalg.lstsq(H - s * j.T @ h @ j, s * j.T @ g, rcond=1e-11)[0]
        found[k] = loss(Z[k] + j @ step, y[k])[0]
    return found


def elastic_net(l1_ratio=1.0, factors=None, scale=1.0):
    def of(alpha, W):
        free = np.flatnonzero(W.ravel())
        each = np.repeat((np.ones(len(W)) if factors is None else factors) * scale, W.shape[1])[free]
        return free, alpha * (1 - l1_ratio) * np.diag(each)

    return of


def groups_of(members):
    """The penalty alpha sum_g sqrt(size) ||w_g|| for groups of entries of W.ravel()."""

    def of(alpha, W):
        w, free = W.ravel(), np.flatnonzero(W.ravel())
        every = np.zeros((w.size, w.size))
        for group in members:
            v = w[group]
            if (size := np.linalg.norm(v)) > 0:
                weight = np.sqrt(len(group)) if len(members) == len(GROUPS) else 1.0
                every[np.ix_(group, group)] = alpha * weight * (np.eye(len(v)) / size - np.outer(v, v) / size**3)
        return free, every[np.ix_(free, free)]

    return of


def bounded(alpha, W):
    """Coefficients between -0.1 and 0.3 that are at neither end."""
    w = W.ravel()
    return np.flatnonzero((w != 0) & ~np.isclose(w, 0.3) & ~np.isclose(w, -0.1)), 0.0


ROWS = [[2 * j, 2 * j + 1] for j in range(D)]
RATES: dict[str, Any] = {"l1_ratio": 0.6, **FAR}
EQUAL = np.repeat(1 / 3 / np.array([15, 20, 25]), [15, 20, 25])
HALF = np.where(np.arange(N) % 7 == 0, 0.0, 1.0)  # rows without a weight
# name: (estimator, X, y, what fit is given, loss, penalty, shares of rows)
CASES: dict[str, tuple[Any, ...]] = {
    "lasso": (cf.FederatedLassoCV(**FAR), X, Z, {}, SQUARED, elastic_net(), None),
    "lasso, standardised": (cf.FederatedLassoCV(standardize=True, **FAR), X, Z, {}, SQUARED, elastic_net(), None),
    "no intercept": (cf.FederatedLassoCV(fit_intercept=False, **FAR), X, Z, {}, SQUARED, elastic_net(), None),
    "rows without a weight": (cf.FederatedLassoCV(**FAR), X, Z, {"sample_weight": HALF}, SQUARED, elastic_net(), HALF / HALF.sum()),
    "dependent columns": (cf.FederatedLassoCV(alphas=[0.05, 0.0]), TWICE, Z, {}, SQUARED, elastic_net(), None),
    "elastic net with factors": (
        cf.FederatedElasticNetCV(l1_ratio=0.4, penalty_factors=[1, 0, 2, 1, 1, 0.5], **FAR), X, Z, {"sample_weight": WEIGHT},
        SQUARED, elastic_net(0.4, np.array([1, 0, 2, 1, 1, 0.5])), WEIGHT / WEIGHT.sum(),
    ),
    "bounds": (cf.FederatedLassoCV(bounds=(-0.1, 0.3), **FAR), X, Z, {}, SQUARED, bounded, None),
    "logistic": (cf.FederatedLogisticRegressionCV(**FAR), X, CLASSES, {}, logistic(), elastic_net(), None),
    "logistic with offsets and weights": (
        cf.FederatedLogisticRegressionCV(l1_ratio=0.7, **FAR), X, CLASSES, {"sample_weight": WEIGHT, "offset": OFFSET}, logistic(),
        elastic_net(0.7), WEIGHT / WEIGHT.sum(),
    ),
    "class weights": (
        cf.FederatedLogisticRegressionCV(class_weight="balanced", **FAR), X, CLASSES, {}, logistic(BALANCED), elastic_net(), None,
    ),
    "sites count the same": (
        cf.FederatedLogisticRegressionCV(site_weights="equal", **FAR), X, CLASSES, {}, logistic(), elastic_net(), EQUAL,
    ),
    "three classes": (cf.FederatedLogisticRegressionCV(**FAR), X, THREE, {}, softmax_loss, elastic_net(), None),
    "three classes, ridge": (
        cf.FederatedLogisticRegressionCV(l1_ratio=0.3, **FAR), X, THREE, {}, softmax_loss, elastic_net(0.3), None,
    ),
    "Poisson": (cf.FederatedPoissonRegressorCV(**RATES), X, COUNTS, {"offset": OFFSET}, POISSON, elastic_net(0.6), None),
    "Gamma": (cf.FederatedGammaRegressorCV(**RATES), X, AMOUNTS, {}, GAMMA, elastic_net(0.6), None),
    "negative binomial": (
        cf.FederatedNegativeBinomialRegressorCV(**RATES), X, COUNTS, {}, NEGATIVE_BINOMIAL, elastic_net(0.6), None,
    ),
    "groups": (cf.FederatedGroupLassoCV(groups=GROUPS, **FAR), X, Z, {}, SQUARED, groups_of(GROUPS), None),
    "several outcomes": (cf.FederatedMultiTaskLassoCV(**FAR), X, PAIRS, {}, two_squares, groups_of(ROWS), None),
}  # fmt: skip


def fitted(estimator: Any, X: Any, y: Any, **given: Any) -> Any:
    """A fit by approximate leave-one-out, wherever its alphas are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cf.EdgeOfGridWarning)
        return estimator.set_params(cv="loo").fit(X, y, sites=given.pop("sites", SITES), **given)


def by_hand(model: Any, X: Any, y: Any, loss: Any, penalty: Any, share: Any, offset: Any) -> np.ndarray:
    """(alphas, rows): the losses of rows left out, from the coefficients of the path."""
    found = []
    for alpha, W, b in zip(model.alphas_, model.coef_path_, model.intercept_path_, strict=True):
        W, b = np.atleast_2d(W).T, np.atleast_1d(b)
        free, curvature = penalty(alpha, W)
        found.append(pooled(loss, X, y, W, b, share, free, curvature, offset, model.fit_intercept))
    return np.array(found)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::compfed.NotUniqueWarning")
def test_the_losses_are_those_of_one_step_without_each_row(name):
    estimator, A, y, given, loss, penalty, share = CASES[name]
    model = fitted(estimator, A, y, **given)
    share = np.full(N, 1 / N) if share is None else share
    rows = by_hand(model, A, y, loss, penalty, share, given.get("offset"))
    assert model.cv_loss_.shape == (len(model.alphas_), 1)
    np.testing.assert_allclose(model.cv_loss_[:, 0], rows @ share, rtol=1e-10)
    assert model.alpha_ == model.alphas_[(rows @ share).argmin()]
    assert model.n_fits_ == len(model.alphas_)
    assert (model.fold_ == -1).all()


@pytest.mark.parametrize("algorithm", ["ProximalBFGS", "FISTA"])
@pytest.mark.parametrize("estimator", [cf.FederatedElasticNetCV, cf.FederatedLogisticRegressionCV])
def test_a_search_without_second_derivatives_asks_for_them(estimator, algorithm):
    """FISTA leaves no evaluation of its models either. A squared loss has one Hessian for all of them."""
    options: dict[str, Any] = {"l1_ratio": 0.5, "tol": 1e-10, "alphas": [0.2, 0.05]}
    y, scaled = (Z if estimator is cf.FederatedElasticNetCV else CLASSES), X / X.std(axis=0)
    newton, other = (fitted(estimator(**options, algorithm=how), scaled, y) for how in ("ProximalNewton", algorithm))
    np.testing.assert_allclose(other.cv_loss_, newton.cv_loss_, rtol=1e-7)
    np.testing.assert_allclose(other.cv_results_["standard_error"], newton.cv_results_["standard_error"], rtol=1e-6)
    assert other.communication_.by_query["LeaveOneOut"][0] == 2


@pytest.mark.parametrize("algorithm", ["auto", "ProximalBFGS"])
def test_wide_models_take_several_messages(algorithm, monkeypatch):
    whole = fitted(cf.FederatedLogisticRegressionCV(algorithm=algorithm, **FAR), X, CLASSES)
    monkeypatch.setattr(programs, "NUMBERS", 20)
    parts = fitted(cf.FederatedLogisticRegressionCV(algorithm=algorithm, **FAR), X, CLASSES)
    np.testing.assert_allclose(parts.cv_loss_, whole.cv_loss_, rtol=1e-13)
    assert parts.n_rounds_ > whole.n_rounds_


def test_a_sparse_table_has_the_losses_of_the_dense_one():
    from scipy.sparse import csr_array

    A = np.where(np.abs(X) > 0.8, X, 0.0)
    dense, sparse = (
        fitted(cf.FederatedLogisticRegressionCV(n_alphas=5), table, CLASSES).cv_loss_ for table in (A, csr_array(A))
    )
    np.testing.assert_allclose(sparse, dense, rtol=1e-9)


# --- leave-one-out itself ---


def test_of_a_ridge_regression_it_is_leave_one_out_to_rounding():
    """The step is exact: least squares without the term of the row, penalty and all other terms as they are."""
    model = fitted(cf.FederatedElasticNetCV(alphas=[1.0, 0.1, 0.01], l1_ratio=0.0), X, Z, sample_weight=WEIGHT)
    A, s = np.column_stack([X, np.ones(N)]), WEIGHT / WEIGHT.sum()
    for alpha, found in zip(model.alphas_, model.cv_loss_[:, 0], strict=True):
        total, P = 0.0, alpha * np.diag([1.0] * D + [0.0])
        for k in range(N):
            t = np.where(np.arange(N) == k, 0.0, s)
            w = np.linalg.solve((A.T * t) @ A + P, (A.T * t) @ Z)
            total += s[k] * (A[k] @ w - Z[k]) ** 2 / 2
        assert found == pytest.approx(total, rel=1e-10)


def test_it_is_the_leave_one_out_of_scikit_learn_for_ridge_regression():
    alphas = np.array([1.0, 0.1, 0.01])
    theirs: Any = RidgeCV(alphas * N, store_cv_results=True).fit(X, Z)
    model = fitted(cf.FederatedElasticNetCV(alphas=alphas, l1_ratio=0.0), X, Z)
    np.testing.assert_allclose(model.cv_loss_[:, 0], theirs.cv_results_.mean(axis=0) / 2, rtol=1e-9)
    assert model.alpha_ == pytest.approx(theirs.alpha_ / N)


def refits(fit: Any, X: Any, y: Any, alphas: Any, loss: Any) -> np.ndarray:
    """Exact leave-one-out by scikit-learn: the mean loss at each alpha."""
    found = np.zeros(len(alphas))
    for train, test in LeaveOneOut().split(X):
        for i, alpha in enumerate(alphas):
            found[i] += loss(fit(alpha).fit(X[train], y[train]).predict(X[test])[0], y[test][0]) / len(y)
    return found


def squares(mean, y):
    return (mean - y) ** 2 / 2


def lasso(alpha):
    return Lasso(alpha, tol=1e-8, max_iter=100_000)


def small_tables() -> dict[str, tuple[Any, ...]]:
    """Name: (estimator, X, y, exact losses at the alphas of a fitted model)."""
    rng = np.random.default_rng(1)
    diabetes, cancer = bundled.diabetes(), bundled.breast_cancer()
    rows = rng.permutation(len(diabetes.y))[:100]
    D1, y1 = diabetes.X[rows] / diabetes.X.std(axis=0), diabetes.y[rows]
    rows = rng.permutation(len(cancer.y))[:70]
    C = (cancer.X[rows][:, :8] - cancer.X[:, :8].mean(axis=0)) / cancer.X[:, :8].std(axis=0)
    noise = rng.standard_normal((60, 12))
    equal = 0.9 * rng.standard_normal((60, 1)) + 0.4 * rng.standard_normal((60, 10))
    y4 = equal[:, :3] @ [1.0, -2.0, 1.0] + rng.standard_normal(60)

    def counted(kind, loss):
        return lambda alphas, X, y: refits(kind, X, y, alphas, loss)

    poisson = counted(lambda a: PoissonRegressor(alpha=a, tol=1e-8, max_iter=1000), lambda m, y: m - xlogy(y, m))
    gamma = counted(
        lambda a: TweedieRegressor(power=2, alpha=a, link="log", tol=1e-8, max_iter=1000),
        lambda m, y: y / m + np.log(m),
    )

    def folds(alphas, X, y):
        every = cf.FederatedLogisticRegressionCV(alphas=alphas, cv=np.arange(len(y)), tol=1e-8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cf.EdgeOfGridWarning)
            return every.fit(X, y, sites=None).cv_loss_.mean(axis=1)

    far = np.geomspace(3.0, 0.003, 8)
    return {
        "diabetes": (cf.FederatedLassoCV(n_alphas=10), D1, y1, counted(lasso, squares)),
        "noise": (cf.FederatedLassoCV(n_alphas=10), noise, rng.standard_normal(60), counted(lasso, squares)),
        "equal columns": (cf.FederatedLassoCV(n_alphas=10), equal, y4, counted(lasso, squares)),
        "cancer": (cf.FederatedLogisticRegressionCV(n_alphas=8, eps=0.01), C, cancer.y[rows], folds),
        "counts": (cf.FederatedPoissonRegressorCV(alphas=far, l1_ratio=0.0), X, COUNTS, poisson),
        "amounts": (cf.FederatedGammaRegressorCV(alphas=far, l1_ratio=0.0), X, AMOUNTS, gamma),
    }


@pytest.mark.parametrize("name", ["diabetes", "noise", "equal columns", "cancer", "counts", "amounts"])
def test_on_a_small_table_it_picks_the_alpha_of_leave_one_out_or_its_neighbour(name):
    estimator, A, y, exact = small_tables()[name]
    model = fitted(estimator, A, y, sites=np.arange(len(y)) % 2)
    assert model.cv_loss_.shape[1] == 1  # by no folds
    expected = exact(model.alphas_, A, y)
    best = int(np.flatnonzero(model.alphas_ == model.alpha_)[0])
    assert abs(best - int(expected.argmin())) <= 1
    assert model.cv_loss_[best, 0] == pytest.approx(expected[best], rel=0.08)


# --- the choice ---


def test_one_standard_error_is_that_of_the_mean_over_rows():
    model = fitted(
        cf.FederatedLogisticRegressionCV(alphas=np.geomspace(0.2, 0.002, 12), rule="one_standard_error"), X, CLASSES
    )
    rows = by_hand(model, X, CLASSES, logistic(), elastic_net(), np.full(N, 1 / N), None)
    error = rows.std(axis=1, ddof=1) / np.sqrt(N)
    np.testing.assert_allclose(model.cv_results_["standard_error"], error, rtol=1e-9)
    mean = rows.mean(axis=1)
    best = mean.argmin()
    within = model.alphas_[np.flatnonzero(mean <= mean[best] + error[best])[0]]
    assert model.alpha_ == model.alpha_one_standard_error_ == within > model.alpha_best_ == model.alphas_[best]
    assert np.isnan(model.cv_results_["std_loss"]).all()


def test_where_rows_decide_about_themselves_folds_choose():
    """More columns than rows: the fit is near an interpolation, and the result is that of five folds."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((40, 80))
    y = A[:, :4] @ [2.0, -2.0, 1.0, 1.0] + rng.standard_normal(40)
    sites = np.arange(40) % 2
    model = cf.FederatedLassoCV(cv="loo", n_alphas=15)
    with pytest.warns(
        cf.RunWarning, match=r"rows left out lose [\d.]+ times .*5 folds chose alpha in its place; cv=5 does"
    ):
        model.fit(A, y, sites=sites)
    folds = cf.FederatedLassoCV(cv=5, n_alphas=15).fit(A, y, sites=sites)
    np.testing.assert_array_equal(model.cv_loss_, folds.cv_loss_)
    np.testing.assert_array_equal(model.coef_, folds.coef_)
    assert model.n_rounds_ > folds.n_rounds_


def test_the_grid_is_extended_where_the_loss_still_falls():
    model = fitted(cf.FederatedLassoCV(n_alphas=6, eps=0.5), X, Z)
    assert len(model.alphas_) == 12
    np.testing.assert_allclose(model.alphas_[1:] / model.alphas_[:-1], 0.5**0.2)
    whole = fitted(cf.FederatedLassoCV(alphas=model.alphas_), X, Z)
    np.testing.assert_allclose(model.cv_loss_, whole.cv_loss_, rtol=1e-10)


REFUSED = {
    "second derivative of Huber jumps": (cf.FederatedHuberCV(cv="loo"), X, Z),
    "not one of single coefficients or groups": (cf.FederatedNuclearRegressorCV(cv="loo"), X, PAIRS),
    "a relaxed fit jumps": (cf.FederatedLassoCV(cv="loo", relax=True), X, Z),
    "site_effects='profile' every site fits": (cf.FederatedLassoCV(cv="loo", site_effects="profile"), X, Z),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_has_no_step_is_refused_with_the_way_out(reason):
    estimator, A, y = REFUSED[reason]
    with pytest.raises(cf.InputError, match=rf"{type(estimator).__name__}\(cv='loo'\): .*{reason}.*cv=5"):
        estimator.fit(A, y, sites=SITES)


# --- over a federation ---

BIG = np.random.default_rng(5).standard_normal((240, 8))
LABELS = (np.random.default_rng(6).random(240) < expit(BIG[:, :3] @ [1.5, -1.0, 0.5])).astype(int)
PARTS = [(BIG[i::4], LABELS[i::4]) for i in range(4)]


def under(policy: DisclosurePolicy, **how: bool) -> InProcess:
    return InProcess(cf.data.from_arrays([A for A, _ in PARTS], [y for _, y in PARTS]), policy=policy, **how)


def federations() -> dict[str, InProcess]:
    return {
        "plain": InProcess(sites_of(PARTS)),
        "exact": InProcess(sites_of(PARTS), exact=True),
        "masked": Masked(sites_of(PARTS)),
        "wired": wired(PARTS),
        "policy": under(DisclosurePolicy(), exact=True),
    }


def test_it_is_the_same_over_exact_and_masked_sums_and_a_policy():
    found = {}
    for name, federation in federations().items():
        found[name] = cf.FederatedLogisticRegressionCV(cv="loo", n_alphas=20, eps=0.01).fit_federation(federation)
    for name, model in found.items():
        assert model.alpha_ == found["plain"].alpha_
        np.testing.assert_allclose(model.coef_, found["plain"].coef_, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(model.cv_loss_, found["plain"].cv_loss_, rtol=2e-4 if name == "policy" else 1e-12)
    rounded = np.abs(found["policy"].cv_loss_ / found["plain"].cv_loss_ - 1).max()
    assert rounded > 1e-6  # 14 bits, and rounded Hessians
    for name in ("masked", "wired"):
        np.testing.assert_array_equal(found[name].cv_loss_, found["exact"].cv_loss_)


def test_it_takes_one_path_and_three_numbers_for_each_alpha():
    loo, folds = (
        cf.FederatedLogisticRegressionCV(cv=cv, n_alphas=20, eps=0.01).fit_federation(
            InProcess(sites_of([(BIG, LABELS)]))
        )
        for cv in ("loo", 5)
    )
    asked, whole = loo.communication_.by_query, folds.communication_.by_query
    assert 3 * asked["Evaluate"][0] <= whole["Evaluate"][0]
    assert asked["LeaveOneOut"][0] == 20
    assert "HeldOut" not in asked
    assert loo.n_rounds_ <= folds.n_rounds_ + 2  # second derivatives that the path did without, and the losses


def test_where_sites_allow_too_few_second_derivatives_folds_choose():
    policy = DisclosurePolicy(max_hessian_share=3 / 60)
    with pytest.warns(
        cf.RunWarning, match=r"no second derivatives on so many columns \(at most 3\).*folds chose alpha"
    ):
        model = cf.FederatedLogisticRegressionCV(cv="loo", n_alphas=8, eps=0.05).fit_federation(under(policy))
    assert model.cv_loss_.shape[1] == 5


def test_sites_of_few_rows_that_allow_no_second_derivatives_are_asked_for_an_alpha():
    sites = cf.data.from_arrays([A[:15] for A, _ in PARTS], [y[:15] for _, y in PARTS])
    federation = InProcess(sites, policy=DisclosurePolicy(max_hessian_share=0))
    with pytest.raises(cf.InputError, match=r"\(at most 0\)\. There are too few rows for folds.*Give an alpha"):
        cf.FederatedLogisticRegressionCV(cv="loo", n_alphas=4, eps=0.3).fit_federation(federation)
