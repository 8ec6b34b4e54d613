"""`compare_local_federated`: local, averaged, federated and pooled models against scikit-learn on the same rows."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression
from sklearn.metrics import accuracy_score, log_loss, r2_score

import compfed as cf
from compfed.data import bundled
from compfed.errors import InputError, MissingExtra
from compfed.estimators.base import FederatedModel
from compfed.federation import InProcess
from compfed.splits import Holdout
from compfed.studies.compare_sites import SiteComparison, with_alpha
from compfed.studies.pooled_fit import PooledFit, fit_pooled

ALPHA = 1.0
LOGISTIC_ALPHA = 0.02


@pytest.fixture(scope="module")
def table() -> bundled.BundledTable:
    return bundled.diabetes()


@pytest.fixture(scope="module")
def lasso(table) -> SiteComparison:
    model = cf.FederatedLasso(ALPHA, standardize=True)
    return cf.compare_local_federated(
        model, table.X, table.y, table.sites, pooled=True, feature_names=table.feature_names
    )


@pytest.fixture(scope="module")
def hospitals() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three sites; one has a single class."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((150, 6))
    where = rng.choice(["east", "north", "south"], 150)
    noisy = X[:, 0] - 0.5 * X[:, 2] + 0.7 * rng.standard_normal(150) > 0
    return X, np.where(noisy | (where == "south"), "ill", "well"), where


@pytest.fixture(scope="module")
def logistic(hospitals) -> SiteComparison:
    X, y, where = hospitals
    model = cf.FederatedLogisticRegression(LOGISTIC_ALPHA)
    return cf.compare_local_federated(model, X, y, where, pooled=True, test_size=0.4, seed=3)


def held_out(y: np.ndarray, where: np.ndarray, share: float = 0.3, seed: int = 0, by_class: bool = False) -> np.ndarray:
    """The rows of a table that its sites hold out."""
    out, codes = np.zeros(len(y), bool), np.unique(y, return_inverse=True)[1]
    for site in InProcess(cf.data.from_table(np.zeros((len(y), 1)), codes, where)).sites:
        out[where == site.name] = Holdout(share, seed, by_class, held_out=True).mask(site.rows)
    return out


def pooled(model: FederatedModel, X: np.ndarray, y: np.ndarray, where: np.ndarray) -> PooledFit:
    return fit_pooled(model, model.make_table(X, y, where, None).federation())


def by_hand(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
    """scikit-learn's lasso of standardised columns, back on the original scale."""
    centre, scale = X.mean(axis=0), X.std(axis=0)
    fit = Lasso(ALPHA, tol=1e-13, max_iter=100_000).fit((X - centre) / scale, y)
    coef = fit.coef_ / scale
    return coef, float(fit.intercept_ - centre @ coef)


# --- the models ---


def test_federated_is_scikit_learns_pooled_model_and_the_average_is_not(table, lasso):
    train = ~held_out(table.y, table.sites)
    coef, intercept = by_hand(table.X[train], table.y[train])
    s = table.X[train].std(axis=0)
    federated, average = lasso.coefficients[:, -2], lasso.coefficients[:, -3]
    assert lasso.pooled_by == "scikit-learn Lasso"
    np.testing.assert_allclose(federated, coef, atol=1e-6 * np.abs(coef).max())
    np.testing.assert_allclose(lasso.intercepts[0, -2], intercept, rtol=1e-6)
    assert ((federated != 0) == (coef != 0)).all()
    assert (coef == 0).sum() > 0
    for k, w in ((-2, federated), (-3, average)):
        by_formula = np.linalg.norm(s * (w - coef)) / np.linalg.norm(s * coef)
        np.testing.assert_allclose(lasso.distance[k], by_formula, rtol=1e-6, atol=1e-8)
    assert lasso.distance[-2] < 1e-6
    assert lasso.distance[-3] > 0.1
    assert lasso.extra[-3] + lasso.missing[-3] > 0


def test_local_models_are_those_of_the_sites_own_rows_and_the_average_is_by_rows(table, lasso):
    train = ~held_out(table.y, table.sites)
    fits = [by_hand(table.X[r], table.y[r]) for site in lasso.sites for r in [train & (table.sites == site)]]
    np.testing.assert_allclose(lasso.coefficients[:, :4], np.array([w for w, _ in fits]).T, rtol=1e-6, atol=1e-4)
    mean = np.average([w for w, _ in fits], axis=0, weights=lasso.rows[:, 0])
    np.testing.assert_allclose(lasso.coefficients[:, -3], mean, rtol=1e-6, atol=1e-4)
    np.testing.assert_array_equal(lasso.used, (lasso.coefficients != 0).sum(axis=0))
    pooled = lasso.coefficients[:, -1] != 0
    np.testing.assert_array_equal(lasso.missing, ((lasso.coefficients == 0) & pooled[:, None]).sum(axis=0))


@pytest.mark.parametrize("site_weights", ["rows", "equal"])
@pytest.mark.parametrize("l1_ratio", [0.0, 0.5])
def test_pooled_logistic_model_is_scikit_learns_whatever_the_units(hospitals, l1_ratio, site_weights):
    """Columns in units a thousand times apart: scikit-learn is given comparable ones and a penalty per column."""
    X, y, where = hospitals
    units = np.array([1.0, 1000.0, 0.05, 1.0, 1.0, 20.0])
    model = cf.FederatedLogisticRegression(
        LOGISTIC_ALPHA, l1_ratio=l1_ratio, standardize=True, site_weights=site_weights
    )
    fitted = pooled(model, X * units, y, where)
    weight = np.ones(len(y))
    if site_weights == "equal":
        names, counts = np.unique(where, return_counts=True)
        weight = len(y) / (3 * counts[np.searchsorted(names, where)])
    centre = np.average(X, axis=0, weights=weight)
    scale = np.sqrt(np.average((X - centre) ** 2, axis=0, weights=weight))
    options = {"C": 1 / (len(y) * LOGISTIC_ALPHA), "tol": 1e-12, "max_iter": 10_000, "l1_ratio": l1_ratio}
    oracle = LogisticRegression(solver="saga" if l1_ratio else "newton-cholesky", **options)
    oracle.fit((X - centre) / scale, y, sample_weight=weight)
    np.testing.assert_allclose(fitted.coef * units * scale, oracle.coef_, atol=1e-7)
    assert fitted.solver == "scikit-learn LogisticRegression"


def test_where_saga_does_not_converge_the_centralised_solver_is_used(hospitals):
    """min of the same objective with columns in their units, by cvxpy."""
    cvxpy = pytest.importorskip("cvxpy")
    X, y, where = hospitals
    X = X * np.array([1.0, 300.0, 0.05, 1.0, 1.0, 20.0])
    fitted = pooled(cf.FederatedLogisticRegression(LOGISTIC_ALPHA), X, y, where)
    assert fitted.solver.endswith("(scikit-learn LogisticRegression did not converge)")
    w, b = cvxpy.Variable(6), cvxpy.Variable()
    z = X @ w + b
    loss = cvxpy.sum(cvxpy.logistic(z) - cvxpy.multiply((y == "well").astype(float), z)) / len(y)
    best = cvxpy.Problem(cvxpy.Minimize(loss + LOGISTIC_ALPHA * cvxpy.norm1(w))).solve(solver="CLARABEL")
    found = X @ fitted.coef[0] + fitted.intercept[0]
    value = np.mean(np.logaddexp(0, found) - (y == "well") * found) + LOGISTIC_ALPHA * np.abs(fitted.coef).sum()
    np.testing.assert_allclose(value, best, rtol=1e-7)


def test_without_a_counterpart_in_scikit_learn_the_centralised_solver_is_used_and_named(table):
    model = cf.FederatedHuber(1.0, delta=1e6, standardize=True)  # so wide that it is the lasso
    fitted = pooled(model, table.X, table.y, table.sites)
    assert fitted.solver.startswith("compfed.solve_pooled, ")
    np.testing.assert_allclose(fitted.coef[0], by_hand(table.X, table.y)[0], rtol=1e-6, atol=1e-6)


def test_an_estimator_that_chose_its_alpha_is_compared_at_that_alpha(table):
    fitted = pooled(with_alpha(cf.FederatedElasticNetCV(standardize=True), 0.3), table.X, table.y, table.sites)
    Z = (table.X - table.X.mean(axis=0)) / table.X.std(axis=0)
    oracle = ElasticNet(0.3, l1_ratio=0.5, tol=1e-13, max_iter=100_000).fit(Z, table.y)
    assert fitted.solver == "scikit-learn ElasticNet"
    np.testing.assert_allclose(fitted.coef[0] * table.X.std(axis=0), oracle.coef_, rtol=1e-6, atol=1e-8)


# --- the scores ---


def test_scores_are_those_of_scikit_learn_on_the_held_out_rows(table, lasso):
    out = held_out(table.y, table.sites)
    masks = [*(out & (table.sites == site) for site in lasso.sites), out]
    for k in range(len(lasso.models)):
        z = table.X @ lasso.coefficients[:, k] + lasso.intercepts[0, k]
        np.testing.assert_allclose(lasso.scores["R^2"][k], [r2_score(table.y[m], z[m]) for m in masks])
    z = np.concatenate(
        [table.X[m] @ lasso.coefficients[:, i] + lasso.intercepts[0, i] for i, m in enumerate(masks[:-1])]
    )
    y = np.concatenate([table.y[m] for m in masks[:-1]])
    np.testing.assert_allclose(lasso.own["R^2"], [*np.diag(lasso.scores["R^2"][:4]), r2_score(y, z)])


def test_a_classifier_has_accuracy_and_log_loss(hospitals, logistic):
    X, y, where = hospitals
    out = held_out(y, where, 0.4, 3, by_class=True)
    z = X[out] @ logistic.coefficients[:, -2] + logistic.intercepts[0, -2]
    p = 1 / (1 + np.exp(-z))
    predicted = np.where(z > 0, "well", "ill")
    np.testing.assert_allclose(logistic.scores["accuracy"][-2, -1], accuracy_score(y[out], predicted))
    assert list(logistic.scores) == ["accuracy", "log loss"]
    np.testing.assert_allclose(logistic.scores["log loss"][-2, -1], log_loss(y[out], np.column_stack([1 - p, p])))
    north = where[out] == "north"
    np.testing.assert_allclose(logistic.scores["accuracy"][-2, 1], accuracy_score(y[out][north], predicted[north]))


def test_a_site_with_one_class_has_no_model_and_is_scored_by_the_others(hospitals, logistic):
    south = logistic.models.index("local: south")
    assert logistic.status[south] == "cannot be fitted"
    assert any("y has one class: ill" in note for note in logistic.notes)
    assert np.isnan(logistic.coefficients[:, south]).all()
    assert np.isnan(logistic.own["accuracy"][[2, 3]]).all()
    assert not np.isnan(logistic.scores["accuracy"][:2]).any()
    assert logistic.status[-3] == "2 of 3 sites"
    assert "local: south (cannot be fitted)" in str(logistic)
    X, y, where = hospitals  # three classes, two of them at a site
    c = cf.compare_local_federated(cf.FederatedLogisticRegression(), X, where, y, pooled=True)
    assert c.status == ("", "2 of 3 classes", "1 of 2 sites", "", "")
    assert np.isnan(c.scores["log loss"][1]).all()  # there are rows of a class without a probability
    assert np.isfinite(c.scores["accuracy"][1]).all()


def test_a_score_that_is_not_defined_is_a_dash(table):
    y = np.where(table.sites == "60-79", 100.0, table.y)  # nothing to explain there
    c = cf.compare_local_federated(cf.FederatedLasso(ALPHA, standardize=True), table.X, y, table.sites, pooled=True)
    assert np.isnan(c.scores["R^2"][:, 3]).all()
    assert not np.isnan(c.scores["R^2"][:, [0, 1, 2, 4]]).any()
    line = next(line for line in str(c).splitlines() if line.startswith("federated "))
    assert line.split()[-2] == "-"


# --- the split ---


@pytest.mark.parametrize("model", [cf.FederatedLasso(ALPHA), cf.FederatedLogisticRegression(LOGISTIC_ALPHA)])
def test_the_same_rows_are_held_out_with_and_without_the_pooled_model(model, hospitals, monkeypatch):
    """Row by row, as the sites choose them; and the losses on them are those of a formula on these rows."""
    X, y, where = hospitals
    y = (y == "well").astype(float) if hasattr(model, "predict_proba") else X[:, 1] + (y == "ill")
    chosen: dict[bool, dict[str, np.ndarray]] = {True: {}, False: {}}
    mask = Holdout.mask

    def recorded(self, site):
        rows = mask(self, site)
        chosen[with_pooled].setdefault(f"{site.name}: {self.held_out}", rows)
        return rows

    monkeypatch.setattr(Holdout, "mask", recorded)
    found = {}
    for with_pooled in (False, True):
        data: tuple[Any, ...] = (X, y, where) if with_pooled else (InProcess(cf.data.from_table(X, y, where)),)
        found[with_pooled] = cf.compare_local_federated(model, *data, pooled=with_pooled, test_size=0.35, seed=5)
    assert set(chosen[True]) == set(chosen[False]) == {f"{s}: {out}" for s in np.unique(where) for out in (True, False)}
    for name, rows in chosen[True].items():
        np.testing.assert_array_equal(rows, chosen[False][name], err_msg=name)
    np.testing.assert_array_equal(found[True].rows, found[False].rows)
    (loss,) = found[False].scores
    np.testing.assert_allclose(found[True].scores[loss][:-1], found[False].scores[loss], rtol=1e-9)
    z = X @ found[False].coefficients[:, -1] + found[False].intercepts[0, -1]
    each = np.logaddexp(0, np.where(y == 1, -z, z)) if loss == "log loss" else (z - y) ** 2 / 2
    for i, site in enumerate(found[False].sites):
        out = np.flatnonzero(where == site)[chosen[False][f"{site}: True"]]
        np.testing.assert_allclose(found[False].scores[loss][-1, i], each[out].mean(), rtol=1e-9)


def test_every_site_holds_out_its_share_class_by_class():
    rng = np.random.default_rng(1)
    where, y = rng.choice(list("abc"), 200), rng.choice([0, 0, 0, 1], 200)
    out = held_out(y, where, 0.25, by_class=True)
    for site in "abc":
        for label in (0, 1):
            rows = (where == site) & (y == label)
            assert abs(out[rows].sum() - 0.25 * rows.sum()) <= 1
    assert (out != held_out(y, where, 0.25, seed=1, by_class=True)).any()


# --- rows in this process, and elsewhere ---


class Elsewhere:
    """A federation whose rows are not in this process."""

    def __init__(self, sites: cf.data.Sites):
        self._there = InProcess(sites)
        self.names, self.schema, self.problems = self._there.names, self._there.schema, ()
        self.enrolments, self.exchange = self._there.enrolments, self._there.exchange


def test_without_rows_in_this_process_there_is_no_pooled_model(table):
    federation = Elsewhere(cf.data.from_table(table.X, table.y, table.sites))
    there = cf.compare_local_federated(cf.FederatedLasso(ALPHA), federation)
    here = cf.compare_local_federated(cf.FederatedLasso(ALPHA), table.X, table.y, table.sites)
    np.testing.assert_allclose(there.coefficients, here.coefficients, rtol=1e-12)
    assert there.models == here.models
    assert there.models[-1] == "federated"
    assert there.pooled_by == ""
    with pytest.raises(InputError, match="pooled=True needs the rows in this process"):
        cf.compare_local_federated(cf.FederatedLasso(), federation, pooled=True)
    with pytest.raises(InputError, match=r"over a network .* needs an estimator with a given alpha"):
        cf.compare_local_federated(cf.FederatedLassoCV(), federation)


def test_an_estimator_that_chooses_its_alpha_chooses_it_from_the_rows_that_are_kept(table):
    model = cf.FederatedLassoCV(n_alphas=6, cv=3, standardize=True)
    c = cf.compare_local_federated(model, table.X, table.y, table.sites, pooled=True)
    train = ~held_out(table.y, table.sites)
    chosen = cf.FederatedLassoCV(n_alphas=6, cv=3, standardize=True)
    chosen.fit(table.X[train], table.y[train], sites=table.sites[train])
    np.testing.assert_allclose(c.coefficients[:, -2], chosen.coef_, rtol=1e-7, atol=1e-7)
    first = train & (table.sites == c.sites[0])
    alone = cf.FederatedLassoCV(n_alphas=6, cv=3, standardize=True).fit(table.X[first], table.y[first], sites=None)
    np.testing.assert_allclose(c.coefficients[:, 0], alone.coef_, rtol=1e-7, atol=1e-7)
    assert c.distance[-2] < 1e-6


def test_row_weights_count_in_the_pooled_model(table):
    """A row of weight 2 is two rows."""
    weights = 1.0 + (np.arange(442) % 2)
    names = np.unique(table.sites)
    members = [np.flatnonzero(table.sites == name) for name in names]
    sites = cf.data.from_arrays([table.X[m] for m in members], [table.y[m] for m in members], names.tolist())
    weighted = replace(sites, sample_weight=tuple(weights[m] for m in members))
    model = cf.FederatedLasso(ALPHA, standardize=True)
    fitted = fit_pooled(model, InProcess(weighted))
    twice = np.repeat(np.arange(442), weights.astype(int))
    np.testing.assert_allclose(fitted.coef[0], by_hand(table.X[twice], table.y[twice])[0], rtol=1e-6, atol=1e-6)
    assert cf.compare_local_federated(model, weighted, pooled=True).distance[-2] < 1e-6


# --- the result ---


def test_the_same_seed_gives_the_same_comparison(table, lasso):
    model = cf.FederatedLasso(ALPHA, standardize=True)
    again = cf.compare_local_federated(
        model, table.X, table.y, table.sites, pooled=True, feature_names=table.feature_names
    )
    assert str(again) == str(lasso)
    np.testing.assert_array_equal(again.coefficients, lasso.coefficients)


def test_the_text_has_every_site_model_and_feature(lasso):
    text = str(lasso)
    for word in (*lasso.sites, *lasso.models, *lasso.features, "scikit-learn Lasso", "each site its own"):
        assert word in text
    summary = next(line for line in text.splitlines() if line.startswith("federated"))
    assert "same" in summary
    assert max(map(len, text.splitlines())) <= 120


def test_many_sites_are_summed_up(table):
    c = cf.compare_local_federated(cf.FederatedLasso(ALPHA), table.X, table.y, np.arange(442) % 12, pooled=True)
    text = str(c)
    assert "local: median of 12" in text
    assert "worst site" in text
    assert max(map(len, text.splitlines())) <= 120
    c.figure()


def test_tables_for_pandas_and_a_folder(table, lasso, tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    summary, coefficients = lasso.to_pandas()
    np.testing.assert_array_equal(summary["distance"], lasso.distance)
    np.testing.assert_array_equal(coefficients.loc["bmi"], lasso.coefficients[2])
    written = lasso.save(tmp_path / "out")
    figures = ["figure.svg", "figure.png", "figure.pdf"]
    assert [path.name for path in written] == ["table.txt", "coefficients.csv", *figures, "result.json", "report.html"]
    assert written[0].read_text(encoding="utf-8") == f"{lasso}\n"
    with written[1].open(encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["feature", *lasso.models]
    np.testing.assert_array_equal(np.array([row[1:] for row in rows[1:11]], float), lasso.coefficients)
    assert all(site in written[2].read_text(encoding="utf-8") for site in lasso.sites)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[pandas\]'"):
        lasso.to_pandas()


def test_a_column_of_a_data_frame_says_where_rows_live(hospitals, logistic):
    pandas = pytest.importorskip("pandas")
    X, y, where = hospitals
    frame = pandas.DataFrame(X, columns=list("abcdef")).assign(hospital=where)
    model = cf.FederatedLogisticRegression(LOGISTIC_ALPHA)
    c = cf.compare_local_federated(model, frame, pandas.Series(y), "hospital", pooled=True, test_size=0.4, seed=3)
    assert c.features == tuple("abcdef")
    assert c.sites == ("east", "north", "south")
    np.testing.assert_array_equal(c.coefficients, logistic.coefficients)


def test_columns_that_are_combinations_of_others_are_named_as_the_reason(table):
    X = table.X.copy()
    X[:, 4] = -X[:, 2]  # bmi twice: any share of its effect may go to either
    c = cf.compare_local_federated(cf.FederatedLasso(ALPHA, standardize=True), X, table.y, table.sites, pooled=True)
    assert c.distance[-2] > 1e-3
    assert any("combinations of others" in note for note in c.notes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"estimator": Lasso()}, "needs an estimator of compfed"),
        ({"sites": ["here"] * 442}, "at least two sites"),
        ({"sites": "hospital"}, "names a column"),
        ({"y": "y"}, "y='y': give the label of every row"),
        ({"estimator": cf.FederatedLassoCV(cv=np.arange(442) % 3)}, "its cv names the rows of one table"),
        ({"sites": ["a", "b"]}, "sites has 2 entries; X has 442 rows"),
        ({"sites": None}, "sites is missing"),
        ({"data": InProcess(cf.data.from_arrays([np.eye(3)] * 2, [np.ones(3)] * 2))}, "y and sites belong to a table"),
        ({"test_size": 1.0}, "between 0 and 1"),
        ({"seed": -1}, "seed=-1"),
        ({"feature_names": ["one"]}, "1 names; X has 10"),
    ],
)
def test_mistakes_are_named(table, change, message):
    given = {"estimator": cf.FederatedLasso(), "data": table.X, "y": table.y, "sites": table.sites} | change
    with pytest.raises(InputError, match=message):
        cf.compare_local_federated(**given)
