"""Paths and cross-validation: what pooling the same folds would have chosen, and what the path must do at its ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso, LogisticRegression, MultiTaskLassoCV
from sklearn.metrics import log_loss, mean_squared_error
from sklearn.model_selection import KFold, LeaveOneGroupOut
from sklearn.preprocessing import StandardScaler

import compfed as cf
from compfed.data import bundled
from compfed.estimators.programs.path_and_cv import SIDE_BY_SIDE, AlphaGrid, best_and_within_error, cross_validate
from compfed.federation import run_program
from compfed.federation.site.in_process import sites_of
from compfed.splits import cv_splits

EXACT: dict[str, Any] = {"tol": 1e-13, "max_iter": 1_000_000}
ALPHAS = np.geomspace(0.2, 0.002, 6)


@pytest.fixture(scope="module")
def cancer():
    """Ten standardised columns of breast cancer, so that scikit-learn's solver is exact too, over four sites."""
    table = bundled.breast_cancer()
    return StandardScaler().fit_transform(table.X)[:, :10], table.y, table.sites


@pytest.fixture(scope="module")
def chosen(cancer):
    X, y, sites = cancer
    with pytest.warns(cf.EdgeOfGridWarning, match="smallest alpha, 0.002"):  # 0.0004 is better
        return cf.FederatedLogisticRegressionCV(ALPHAS, cv=3).fit(X, y, sites=sites)


def pooled_logistic(X, y, alpha) -> Any:
    return LogisticRegression(l1_ratio=1.0, C=1 / (alpha * len(y)), solver="saga", tol=1e-10, max_iter=100_000).fit(
        X, y
    )


def test_the_alpha_that_the_same_folds_pooled_would_choose(cancer, chosen):
    X, y, _ = cancer
    loss = np.empty((len(ALPHAS), 3))
    for k in range(3):
        train = chosen.fold_ != k
        for i, alpha in enumerate(chosen.alphas_):
            model = pooled_logistic(X[train], y[train], alpha)
            loss[i, k] = log_loss(y[~train], model.predict_proba(X[~train]))
    np.testing.assert_allclose(chosen.cv_loss_, loss, rtol=1e-6)
    mean, error = loss.mean(axis=1), loss.std(axis=1, ddof=1) / np.sqrt(3)
    best = mean.argmin()
    assert chosen.alpha_ == chosen.alpha_best_ == chosen.alphas_[best]
    within = [a for a, m in zip(chosen.alphas_, mean, strict=True) if m <= mean[best] + error[best]]
    assert chosen.alpha_one_standard_error_ == max(within)
    assert 0 < best < len(ALPHAS)


def test_the_chosen_model_is_the_fit_with_that_alpha(cancer, chosen):
    X, y, sites = cancer
    plain = cf.FederatedLogisticRegression(chosen.alpha_).fit(X, y, sites=sites)
    np.testing.assert_allclose(chosen.coef_, plain.coef_, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(chosen.coef_ != 0, plain.coef_ != 0)
    at = int(np.flatnonzero(chosen.alphas_ == chosen.alpha_)[0])
    np.testing.assert_array_equal(chosen.coef_path_[at], chosen.coef_)
    np.testing.assert_array_equal(chosen.predict(X), plain.predict(X))


@pytest.mark.filterwarnings("ignore::compfed.EdgeOfGridWarning")  # larger alphas than the best, on which solvers agree
def test_one_standard_error_takes_the_sparser_model(cancer, chosen):
    X, y, sites = cancer
    sparse = cf.FederatedLogisticRegressionCV(ALPHAS, cv=3, rule="one_standard_error").fit(X, y, sites=sites)
    assert sparse.alpha_ == chosen.alpha_one_standard_error_ > chosen.alpha_best_
    assert (sparse.coef_ != 0).sum() < (chosen.coef_ != 0).sum()


@pytest.mark.filterwarnings("ignore::compfed.EdgeOfGridWarning")  # larger alphas than the best, on which solvers agree
def test_leave_one_site_out(cancer):
    X, y, sites = cancer
    model = cf.FederatedLogisticRegressionCV(ALPHAS[:3], cv="leave-one-site-out").fit(X, y, sites=sites)
    np.testing.assert_array_equal(model.fold_, sites)
    for k in range(4):
        expected = pooled_logistic(X[sites != k], y[sites != k], ALPHAS[1])
        held = log_loss(y[sites == k], expected.predict_proba(X[sites == k]), labels=[0, 1])
        np.testing.assert_allclose(model.cv_loss_[1, k], held, rtol=1e-6)


def test_scaling_is_refitted_inside_the_fold():
    table = bundled.diabetes()
    fold = np.arange(len(table.y)) % 2
    X = table.X * np.where(fold == 0, 1.0, 5.0)[:, None]  # the folds differ in scale
    model = cf.FederatedLassoCV([5.0, 1.0], cv=fold, standardize=True).fit(X, table.y, sites=table.sites)
    for k in range(2):
        train = fold != k
        scaler = StandardScaler().fit(X[train])
        for i, alpha in enumerate([5.0, 1.0]):
            lasso = Lasso(alpha, **EXACT).fit(scaler.transform(X[train]), table.y[train])
            mse = mean_squared_error(table.y[~train], lasso.predict(scaler.transform(X[~train])))
            np.testing.assert_allclose(model.cv_loss_[i, k], mse / 2, rtol=1e-8)


def test_folds_as_scikit_learn_gives_them():
    """A splitter, its pairs and the array of its folds are the same thing."""
    table = bundled.diabetes()
    splitter = KFold(3, shuffle=True, random_state=0)
    pairs = list(splitter.split(table.X))
    fold = np.empty(len(table.y), int)
    for k, (_, test) in enumerate(pairs):
        fold[test] = k
    everyone = np.arange(len(table.y))
    masks = [(np.isin(everyone, train), np.isin(everyone, test)) for train, test in pairs]
    lists = [[train.tolist(), test.tolist()] for train, test in pairs]
    losses = [
        cf.FederatedLassoCV([1.0, 0.1], cv=cv).fit(table.X, table.y, sites=table.sites).cv_loss_
        for cv in (splitter, pairs, masks, lists, iter(pairs), fold, pd.Series(fold))
    ]
    for other in losses[1:]:
        np.testing.assert_array_equal(losses[0], other)


@pytest.mark.filterwarnings("ignore::compfed.EdgeOfGridWarning")  # larger alphas than the best, on which solvers agree
def test_several_outcomes_on_the_same_folds_pooled():
    """scikit-learn's MultiTaskLassoCV, the folds given; its loss is the mean over outcomes, ours half their sum."""
    table = bundled.diabetes()
    Y = np.column_stack([table.y, 500 * table.X[:, 8]])
    X, alphas = table.X[:, :8], np.geomspace(2.0, 0.02, 6)
    folds = list(KFold(3, shuffle=True, random_state=0).split(X))
    model = cf.FederatedMultiTaskLassoCV(alphas, cv=folds).fit(X, Y, sites=table.sites)
    pooled: Any = MultiTaskLassoCV(**EXACT, alphas=alphas, cv=folds).fit(X, Y)  # pyright: ignore[reportArgumentType]  # its stubs lag
    np.testing.assert_allclose(model.cv_loss_, pooled.mse_path_, rtol=1e-6)  # 2 outcomes: half the sum is the mean
    assert model.alpha_ == pooled.alpha_
    np.testing.assert_allclose(model.coef_, pooled.coef_, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(model.coef_ != 0, pooled.coef_ != 0)


def test_low_rank_on_the_same_folds_pooled():
    """The chosen model is the fit with the chosen alpha, and held-out losses are those of fits without these rows."""
    table = bundled.diabetes()
    Y = np.column_stack([table.y, 500 * table.X[:, 8]])
    X, fold = table.X[:, :8], np.arange(len(Y)) % 2
    model = cf.FederatedNuclearRegressorCV([3.0, 0.3], cv=fold).fit(X, Y, sites=table.sites)
    for i, alpha in enumerate(model.alphas_):
        for k in (0, 1):
            one = cf.FederatedNuclearRegressor(alpha).fit(X[fold != k], Y[fold != k], sites=None)
            rest = Y[fold == k] - one.predict(X[fold == k])
            np.testing.assert_allclose(model.cv_loss_[i, k], (rest**2).sum() / (2 * len(rest)), rtol=1e-8)
    assert model.alpha_ == model.alphas_[model.cv_loss_.mean(axis=1).argmin()]


def test_groups_of_a_splitter_are_the_sites():
    table = bundled.diabetes()
    one, other = (
        cf.FederatedLassoCV([1.0, 0.1], cv=cv).fit(table.X, table.y, sites=table.sites).cv_loss_
        for cv in (LeaveOneGroupOut(), "leave-one-site-out")
    )
    np.testing.assert_array_equal(one, other)


def test_equal_sites_count_the_same_in_training_and_when_held_out():
    table = bundled.diabetes()
    where = np.array([0, 0, 0, 1])[np.arange(len(table.y)) % 4]  # three rows of one to every row of the other
    model = cf.FederatedLassoCV([0.1], cv=3, site_weights="equal").fit(table.X, table.y, sites=where)
    for k in range(3):
        train = model.fold_ != k
        each = [1 / np.sum(train & (where == w)) for w in where]
        lasso = Lasso(0.1, **EXACT).fit(table.X[train], table.y[train], sample_weight=np.array(each)[train])
        squares = (table.y - lasso.predict(table.X)) ** 2
        by_site = [squares[~train & (where == s)].mean() / 2 for s in (0, 1)]
        np.testing.assert_allclose(model.cv_loss_[0, k], np.mean(by_site), rtol=1e-8)


def test_one_standard_error_by_hand():
    """Means 4, 2.1, 1; at the best the losses 0, 1, 2 have deviation 1 (not sqrt(2/3)) and the mean of three 1/sqrt(3)."""
    for second, expected in ((1.0 + 1 / np.sqrt(3) - 1e-9, 1), (1.0 + 1 / np.sqrt(3) + 1e-9, 2)):
        losses = np.array([[4.0] * 3, [second] * 3, [0.0, 1.0, 2.0]])
        assert best_and_within_error(losses) == (2, expected)
    assert best_and_within_error(losses[:, :1]) == (2, None)


def test_one_split_has_a_best_alpha_and_no_standard_error():
    table = bundled.diabetes()
    cv = [(np.arange(300), np.arange(300, 442))]
    model = cf.FederatedLassoCV([1.0, 0.1, 0.01], cv=cv).fit(table.X, table.y, sites=table.sites)
    errors = [
        np.sum((table.y[300:] - Lasso(a, **EXACT).fit(table.X[:300], table.y[:300]).predict(table.X[300:])) ** 2)
        for a in model.alphas_
    ]
    assert model.alpha_ == model.alphas_[int(np.argmin(errors))]
    assert np.isnan(model.alpha_one_standard_error_)
    legend = cf.plot_path(model, names=np.array(table.feature_names)).legends[0]
    assert [text.get_text() for text in legend.get_texts()] == [f"best, chosen: alpha = {model.alpha_:.3g}"]


def test_given_alphas_fall_whatever_their_order():
    table = bundled.diabetes()
    path = cf.regularisation_path(cf.FederatedLasso(), table.X, table.y, table.sites, alphas=[0.1, 2.0, 0.5])
    assert path.alphas.tolist() == [2.0, 0.5, 0.1]
    assert (np.diff(np.abs(path.coefs).sum(axis=1)) > 0).all()  # the l1 norm grows as alpha falls


@pytest.mark.parametrize("algorithm", ["FISTA", "auto"])
def test_rounds_of_a_path_are_shared(algorithm):
    """Alphas side by side need as many rounds as the slowest, and so do folds."""
    table = bundled.diabetes()
    alphas = np.geomspace(1.0, 0.01, 10)
    alone = cf.FederatedLasso(alpha=0.01, algorithm=algorithm).fit(table.X, table.y, sites=table.sites)
    lasso = cf.FederatedLasso(algorithm=algorithm)
    path = cf.regularisation_path(lasso, table.X, table.y, table.sites, alphas=alphas)
    assert 0.5 * alone.n_rounds_ <= path.rounds <= 1.5 * alone.n_rounds_
    model = cf.FederatedLassoCV(alphas, cv=4, algorithm=algorithm).fit(table.X, table.y, sites=table.sites)
    assert 0.5 * path.rounds <= model.n_rounds_ <= 2 * path.rounds
    assert 6 < model.communication_.models_per_message < 50
    assert (model.n_fits_, model.n_fits_not_converged_) == (50, 0)


def test_one_bar_for_all_folds():
    """Three folds and all rows, three alphas each: what is done only grows, and ends at twelve of twelve."""
    table, seen = bundled.diabetes(), []
    model = cf.FederatedLassoCV(n_alphas=3, eps=0.3, cv=3)
    options = model.fit_options()
    search = replace(options.search, progress=lambda done, total: seen.append((done, total)))
    federation = model.make_table(table.X, table.y, table.sites, None).federation()
    options, grid = replace(options, search=search), AlphaGrid("test", None, 3, 0.3)
    run_program(federation, cross_validate(federation, options, grid, 3, 0, "best", 0))
    assert {total for _, total in seen} == {12}
    assert (np.diff([done for done, _ in seen]) > 0).all()
    assert seen[-1] == (12, 12)
    assert len(seen) >= 2  # the anchors, then the rest


def test_the_next_alphas_start_where_the_last_ones_ended():
    table = bundled.diabetes()
    alphas = np.append(np.geomspace(1.0, 0.01, SIDE_BY_SIDE), 0.01 - 1e-9)
    cold, warm = (
        cf.regularisation_path(cf.FederatedLasso(algorithm="FISTA"), table.X, table.y, table.sites, alphas=a).rounds
        for a in (alphas[-1:], alphas)
    )
    assert warm < 1.7 * cold  # the last alpha alone needs nearly as many rounds as all before it


def test_a_second_fit_forgets_the_first():
    table = bundled.diabetes()
    frame = pd.DataFrame(table.X, columns=list(table.feature_names)).assign(hospital=table.sites)
    plain = cf.data.from_table(table.X[:, :3], table.y, table.sites)
    for model in (cf.FederatedLassoCV([1.0, 0.1], cv=3), cf.FederatedLasso(0.1)):
        for again in (lambda m: m.fit(table.X[:, :3], table.y, sites=table.sites), lambda m: m.fit_sites(plain)):
            model.fit(frame, table.y, sites="hospital")
            assert model.site_column_ == "hospital"
            np.testing.assert_array_equal(model.predict(frame), model.predict(frame.drop(columns="hospital")))
            again(model)
            assert not hasattr(model, "site_column_")
            assert not hasattr(model, "feature_names_in_")
            assert model.predict(table.X[:, :3]).shape == table.y.shape


def test_folds_of_rows_without_weight_have_their_place():
    table = bundled.diabetes()
    weight = np.ones(len(table.y))
    weight[-40:] = 0.0
    model = cf.FederatedLassoCV([1.0], cv=3).fit(table.X, table.y, sites=table.sites, sample_weight=weight)
    assert len(model.fold_) == len(table.y)
    assert set(model.fold_[:-40].tolist()) == {0, 1, 2}
    assert (model.fold_[-40:] == -1).all()


def test_fits_that_stop_short_are_counted():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((30, 60)), rng.standard_normal(30)
    with pytest.warns(
        ConvergenceWarning, match=r"FederatedLassoCV: [1-8] of 8 fits stopped at max_rounds=10 or before"
    ):
        cf.FederatedLassoCV([5.0, 1e-4], cv=3, algorithm="FISTA", max_rounds=10).fit(X, y, sites=None)
    with pytest.warns(ConvergenceWarning, match=r"regularisation_path: 1 of 2 fits stopped"):
        cf.regularisation_path(cf.FederatedLasso(algorithm="FISTA", max_rounds=10), X, y, None, alphas=[5.0, 1e-4])
    with pytest.warns(ConvergenceWarning, match=r"regularisation_path: 1 of 2 fits stopped at max_rounds=2"):
        cf.regularisation_path(cf.FederatedLogisticRegression(max_rounds=2), X, y > 0, None, alphas=[5.0, 1e-3])


def test_a_class_must_be_there_to_learn_from():
    table = bundled.diabetes()
    y = (table.y > 150).astype(int)
    only_old = np.where(table.sites == "60-79", y, 0)
    with pytest.raises(cf.InputError, match=r"no row of class 1 to learn from; it holds out rows of: 60-79"):
        cf.FederatedLogisticRegressionCV([0.1], cv="leave-one-site-out").fit(table.X, only_old, sites=table.sites)


@pytest.mark.parametrize("algorithm", ["auto", "FISTA"])
def test_path_against_scikit_learn(algorithm):
    table = bundled.diabetes()
    path = cf.regularisation_path(cf.FederatedLasso(algorithm=algorithm), table.X, table.y, table.sites, n_alphas=30)
    n = len(table.y)
    # at alpha_max all are zero, just below one is not: alpha_max = max |X^T (y - mean)| / n
    np.testing.assert_allclose(path.alphas[0], np.abs(table.X.T @ (table.y - table.y.mean())).max() / n, rtol=1e-12)
    assert not path.coefs[0].any()
    assert path.coefs[1].any()
    for i in (1, 7, 8, 20, 28, 29):  # coarse and fine ones; by blocks, the last ones start from the end of the first
        expected = Lasso(path.alphas[i], **EXACT).fit(table.X, table.y)
        np.testing.assert_allclose(path.coefs[i], expected.coef_, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(path.coefs[i] != 0, expected.coef_ != 0)
        np.testing.assert_allclose(path.intercepts[i], expected.intercept_, rtol=1e-9)
    assert path.converged


def test_a_path_by_rounds_is_one_compiled_program(compilations):
    table = bundled.diabetes()
    model = cf.FederatedLasso(algorithm="FISTA")
    cf.regularisation_path(model, table.X, table.y, table.sites, n_alphas=25)
    before = compilations()
    assert before > 0
    cf.regularisation_path(model, table.X, table.y, table.sites, alphas=np.geomspace(1.0, 0.01, 50))
    assert compilations() == before


def test_a_second_order_path_compiles_nothing(compilations):
    table = bundled.diabetes()
    path = cf.regularisation_path(cf.FederatedGroupLasso(groups=[0] * 5 + [1] * 5), table.X, table.y, table.sites)
    assert path.converged
    assert compilations() == 0


@pytest.mark.thorough
def test_fifty_alphas_and_five_folds_in_few_messages():
    """Raw columns of breast cancer. The oracle is skglm, fold by fold and alpha by alpha; three digits of a loss are enough."""
    skglm = pytest.importorskip("skglm")
    table = bundled.breast_cancer()
    model = cf.FederatedLogisticRegressionCV(n_alphas=50, cv=5).fit(table.X, table.y, sites=table.sites)
    assert (len(model.alphas_), model.n_fits_, model.n_fits_not_converged_) == (50, 300, 0)
    assert model.n_rounds_ <= 40
    sign = np.where(table.y == model.classes_[1], 1.0, -1.0)
    loss = np.empty((50, 5))
    for k in range(5):
        kept = model.fold_ != k
        Z = table.X - table.X[kept].mean(axis=0)  # the intercept makes this no change
        one = skglm.SparseLogisticRegression(tol=1e-5, max_iter=1000, warm_start=True)
        for i, alpha in enumerate(model.alphas_):
            one.alpha = alpha
            one.fit(np.asfortranarray(Z[kept]), sign[kept])
            z = Z[~kept] @ np.ravel(one.coef_) + one.intercept_
            loss[i, k] = np.logaddexp(0.0, -sign[~kept] * z).mean()
    np.testing.assert_allclose(model.cv_loss_, loss, rtol=1e-3)
    assert model.alpha_ == model.alphas_[loss.mean(axis=1).argmin()]


@pytest.mark.parametrize(
    ("model", "target"),
    [
        (cf.FederatedElasticNet(l1_ratio=0.3), lambda y: y),
        (cf.FederatedGroupLasso(groups=[0, 0, 1, 1, 2, 2, 2, 2, 2, 3]), lambda y: y),
        (cf.FederatedHuber(delta=30.0), lambda y: y),
        (cf.FederatedPoissonRegressor(l1_ratio=1.0), lambda y: np.floor(y / 50)),
        (cf.FederatedLogisticRegression(), lambda y: y > 80),
        (cf.FederatedLogisticRegression(), lambda y: np.digitize(y, [80, 250])),
        (cf.FederatedMultiTaskLasso(), lambda y: np.column_stack([y, y**2 / 100])),
        (cf.FederatedNuclearRegressor(), lambda y: np.column_stack([y, y**2 / 100])),
    ],
)
def test_alpha_max_is_where_the_first_coefficient_appears(model, target):
    table = bundled.diabetes()
    at, below = cf.regularisation_path(model, table.X, target(table.y), table.sites, n_alphas=2, eps=0.99).coefs
    assert np.abs(at).max() <= 1e-8 * np.abs(below).max()
    assert below.any()


def fold_of_rows(sites: cf.data.Sites, folds: int, seed: int, classes: bool) -> list[np.ndarray]:
    """The fold of every row, as each site deals its own."""
    part: Any = cv_splits(folds, seed, sites.sizes.tolist(), classes)[0]
    return [part.assign_folds(site.rows) for site in sites_of(sites)]


def test_folds_are_even_inside_every_site_and_class(cancer):
    X, y, where = cancer
    sites = cf.data.from_table(X, y, where)
    folds = fold_of_rows(sites, 5, seed=0, classes=True)
    for fold, labels in zip(folds, sites.labels, strict=True):
        for c in np.unique(labels):
            counts = np.bincount(fold[labels == c], minlength=5)
            assert counts.max() - counts.min() <= 1
    other = fold_of_rows(sites, 5, seed=1, classes=True)
    assert any(not np.array_equal(a, b) for a, b in zip(folds, other, strict=True))
    a, b = fold_of_rows(cf.data.from_arrays([np.ones((20, 1))] * 2, [np.zeros(20)] * 2), 5, seed=0, classes=False)
    assert len(set(((a - b) % 5).tolist())) > 1  # equal sites are not shuffled alike
    # a site deals its own rows the same way whoever else is there, up to where the dealing starts
    alone = fold_of_rows(sites.permuted([2, 0, 1, 3]), 5, seed=0, classes=True)
    shift = (alone[0] - folds[2]) % 5
    assert len(set(shift.tolist())) == 1


def test_tiny_sites_do_not_leave_a_fold_empty():
    sites = cf.data.from_arrays([np.ones((1, 1))] * 7, [np.ones(1)] * 7)
    folds = np.concatenate(fold_of_rows(sites, 5, seed=0, classes=False))
    assert set(folds.tolist()) == set(range(5))
    rng = np.random.default_rng(0)
    X = rng.standard_normal((14, 2))
    model = cf.FederatedLassoCV([0.1, 0.01], cv=3).fit(X, X[:, 0], sites=np.arange(14) // 2)
    assert np.isfinite(model.cv_loss_).all()


WRONG = {
    "one fold": ({"cv": 1}, r"cv=1: it must be a whole number >= 2"),
    "word": ({"cv": "loso"}, r"cv='loso': it must be a whole number >= 2, 'leave-one-site-out', an array"),
    "array": ({"cv": np.zeros(20)}, r"cv as an array needs one fold per row and at least two folds"),
    "one site": ({"cv": "leave-one-site-out"}, r"needs at least two sites; there is one"),
    "too many folds": ({"cv": 21}, r"cv=21 folds need at least 21 rows; got n_samples=20"),
    "rule": ({"rule": "1se"}, r"rule='1se' must be one of 'best', 'one_standard_error'"),
    "eps": ({"eps": 2.0}, r"eps=2.0\): eps must be a number between 0 and 1"),
    "n_alphas": ({"n_alphas": 0}, r"n_alphas=0 must be a whole number >= 1"),
    "longer array": ({"cv": np.arange(30) % 3}, r"got 30 entries for 20 rows with 3 different folds"),
    "row that is not there": ({"cv": [([0, 1], [25])]}, r"rows that are not there: .* The table has 20 rows"),
    "mask too short": ({"cv": [([True] * 5, [False] * 5)]}, r"rows that are not there: .* The table has 20 rows"),
    "no pair": ({"cv": [([0], [1], [2])]}, r"not a pair \(train, test\)"),
    "empty": ({"cv": []}, r"cv=\[\]: it must be a whole number"),
    "number": ({"cv": 2.5}, r"cv=2.5: it must be a whole number"),
    "one split": (
        {"cv": [([0, 1, 2], [3])], "rule": "one_standard_error"},
        r"rule='one_standard_error' needs two splits or more; cv gives one",
    ),
    "a word for alphas": ({"alphas": "auto"}, r"alphas='auto' cannot be read as an array of numbers"),
    "a word for eps": ({"eps": "a"}, r"eps='a'\): eps must be a number between 0 and 1"),
    "nothing to find": ({"positive": True}, r"all coefficients are zero at every alpha"),
    "alphas": ({"alphas": [-1.0]}, r"alphas=\[-1.0\] must be a list of finite numbers >= 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input(name):
    options, message = WRONG[name]
    X = np.random.default_rng(0).standard_normal((20, 2))
    with pytest.raises(cf.InputError, match=message):
        cf.FederatedLassoCV(**options).fit(X, -X.sum(axis=1) if name == "nothing to find" else X[:, 0])


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (Lasso(), {}, r"needs an estimator with an alpha, such as FederatedLasso\(\); got Lasso\."),
        (cf.FederatedLassoCV(), {}, r"got FederatedLassoCV, which has its own path after fit: coef_path_"),
        (cf.FederatedLasso(), {"n_alphas": 0}, r"n_alphas=0 must be a whole number >= 1"),
        (cf.FederatedLasso(), {"eps": 2}, r"eps=2\): eps must be a number between 0 and 1"),
    ],
)
def test_bad_input_for_a_path(model, options, message):
    X = np.random.default_rng(0).standard_normal((20, 2))
    with pytest.raises(cf.InputError, match=message):
        cf.regularisation_path(model, X, X[:, 0], **options)


def test_ridge_alone_has_no_alpha_max():
    X = np.random.default_rng(0).standard_normal((20, 2))
    with pytest.raises(cf.InputError, match=r"no alpha makes all coefficients zero, .* Give alphas"):
        cf.FederatedElasticNetCV(l1_ratio=0.0).fit(X, X[:, 0])


@pytest.mark.parametrize("size", [0.1, 3.3, 1e5 + 0.1])
def test_a_gradient_that_is_rounding_alone_makes_no_alphas(size):
    """Where the columns without a penalty explain every label there is nothing to choose, whatever doubles make of the mean."""
    X, sites = np.random.default_rng(0).standard_normal((40, 3)), np.arange(40) % 2
    constant, halves = np.full(40, size), np.where(sites, size, 0.7)
    for model, y in (
        (cf.FederatedLasso(), constant),
        (cf.FederatedPoissonRegressor(l1_ratio=1), constant),
        (cf.FederatedMultiTaskLasso(), np.column_stack([constant, halves * 0 + 0.3])),
        (cf.FederatedLasso(penalty_factors={0: 0}), size + X[:, 0] / 3),
        (cf.FederatedLasso(site_effects="profile"), halves),
        (cf.FederatedLogisticRegression(), np.tile([0, 1], 20)),
    ):
        rows = X if y.dtype.kind == "f" else np.repeat(X[:20], 2, axis=0)  # every row once in each class
        with pytest.raises(cf.InputError, match="no feature helps to predict y, which may be constant"):
            cf.regularisation_path(model, rows, y, np.arange(40) // 20 if rows is not X else sites)
    y = size + 1e-6 * X[:, 1]
    path = cf.regularisation_path(cf.FederatedLasso(tol=1e-3), X, y, sites, n_alphas=2)
    largest = np.abs((X - X.mean(axis=0)).T @ (y - y.mean())).max() / 40
    np.testing.assert_allclose(path.alphas[0], largest, rtol=1e-4)
