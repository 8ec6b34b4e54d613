"""Weights, offsets, penalty factors, bounds, class weights, site effects, refits and families over processes and over memory.

One table serves all: a label of 1 and 2 is a class, a count and an amount. Masks and the default disclosure policy are on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from sklearn.metrics import brier_score_loss, log_loss, r2_score, roc_auc_score, root_mean_squared_error

pytest.importorskip("flwr", reason="a federation across a network: pip install '.[flower]'")

from network.memory_link import approving, remote
from network.processes import Processes

import compfed as cf
from compfed.network import server
from compfed.network.site_settings import SiteSettings, check

FEATURES = ("age", "bmi", "crp", "sodium", "sex=male")
SCHEMA = """[columns.age]
[columns.bmi]
[columns.crp]
[columns.sodium]
[columns.sex]
levels = ["female", "male"]
[label]
column = "visits"
[rows]
weight = "w"
offset = "log_time"
"""


def frame(seed: int, rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((rows, 4)).round(4)
    sex, time = rng.choice(["female", "male"], rows), rng.uniform(-0.5, 0.5, rows).round(3)
    z = A @ [0.8, -0.5, 0.3, 0.0] + 0.6 * (sex == "male") + time + 0.3 * seed - 0.4
    found = pd.DataFrame(A, columns=["age", "bmi", "crp", "sodium"])
    found["sex"], found["log_time"], found["w"] = sex, time, rng.choice([0.5, 1.0, 2.0], rows)
    found["visits"] = 1 + (rng.random(rows) < 1 / (1 + np.exp(-z)))
    return found


FRAMES = {name: frame(k, rows) for k, (name, rows) in enumerate({"north": 130, "south": 100, "east": 110}.items())}
ROWS = pd.concat([table.assign(site=name) for name, table in FRAMES.items()], ignore_index=True)
X = np.column_stack([ROWS[["age", "bmi", "crp", "sodium"]], ROWS["sex"] == "male"]).astype(float)
Y, W, OFFSET = (ROWS[name].to_numpy(float) for name in ("visits", "w", "log_time"))
LOG = sm.families.links.Log()


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """A run that waits for a person, as bounds do, is asked for again at once."""
    monkeypatch.setattr(server, "PENDING_PAUSE", 0.0)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Processes:
    """The folders of the sites; nothing runs yet."""
    home = tmp_path_factory.mktemp("arguments") / "clinics"
    tables = {name: table.to_csv(index=False).encode() for name, table in FRAMES.items()}
    federation = Processes(home, tables, "")
    federation.adopt(SCHEMA)
    return federation


def in_memory(made: Processes) -> Any:
    """The services of the sites in this process, every message through their bytes, masks and files."""
    federation, link = remote([made.site_folder(name) / "site.toml" for name in made.names])
    approving(link)
    return federation


@pytest.fixture(scope="module")
def processes(made) -> Iterator[Any]:
    with made:
        made.start()
        with made.approving(), cf.network.connect(made.home, progress=False) as federation:
            yield federation


# --- oracles on the pooled rows ---


def glm(
    family: Any, weight: np.ndarray = W, columns: Any = slice(None), y: np.ndarray = Y, dummies: bool = False
) -> Any:
    """Coefficients and intercept of statsmodels; with `dummies` for sites without an intercept."""
    sites = pd.get_dummies(ROWS["site"]).to_numpy(float)
    design = np.column_stack([X[:, columns], sites]) if dummies else sm.add_constant(X[:, columns], prepend=False)
    model = sm.GLM(y, design, family=family, freq_weights=weight, offset=OFFSET)
    found = model.fit(tol=1e-14, maxiter=500, tol_criterion="params").params
    coef = np.zeros(X.shape[1])
    coef[columns] = found[: len(coef[columns])]
    return coef, None if dummies else found[-1]


def balanced(model: Any) -> Any:
    of_class = {value: W.sum() / (2 * W[value == Y].sum()) for value in (1.0, 2.0)}
    return glm(sm.families.Binomial(), W * np.vectorize(of_class.get)(Y), y=Y - 1)


def refit(model: Any) -> Any:
    """statsmodels on the support of the penalised fit in one process."""
    used = np.flatnonzero(pooled(cf.FederatedLogisticRegression(alpha=0.06)).coef_)
    assert 0 < len(used) < X.shape[1]
    return glm(sm.families.Binomial(), columns=used, y=Y - 1)


def pooled(estimator: Any) -> Any:
    """A fit to all rows as one site, in this process; numbers only, no schema."""
    return estimator.fit(pd.DataFrame(X, columns=list(FEATURES)), Y, sites=None, sample_weight=W, offset=OFFSET)


def bounded(model: Any) -> Any:
    """The conditions at the minimum in NumPy, and the fit to the pooled rows."""
    assert model.coef_[0] == BOUNDED["bounds"]["age"][1]
    z = X @ model.coef_ + model.intercept_ + OFFSET
    gradient = X.T @ (W * (np.exp(z) - Y)) / W.sum() + 0.1 * np.array([1, 0, 1, 2, 1]) * model.coef_
    np.testing.assert_allclose(gradient[1:], 0, atol=1e-10)
    assert gradient[0] < -1e-3
    one = pooled(cf.FederatedPoissonRegressor(**BOUNDED))
    return one.coef_, one.intercept_


BOUNDED: dict[str, Any] = {
    "alpha": 0.1,
    "penalty_factors": {"bmi": 0.0, "sodium": 2.0},
    "bounds": {"age": (-1.0, 0.05)},
}
CASES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "Poisson": (cf.FederatedPoissonRegressor(alpha=0.0), lambda _: glm(sm.families.Poisson())),
    "Gamma": (cf.FederatedGammaRegressor(alpha=0.0), lambda _: glm(sm.families.Gamma(LOG))),
    "class weights": (cf.FederatedLogisticRegression(alpha=0.0, class_weight="balanced"), balanced),
    "site effects": (
        cf.FederatedPoissonRegressor(alpha=0.0, site_effects="profile"), lambda _: glm(sm.families.Poisson(), dummies=True),
    ),
    "refit": (cf.FederatedLogisticRegression(alpha=0.06, relax=True), refit),
    "factors and bounds": (cf.FederatedPoissonRegressor(**BOUNDED), bounded),
}  # fmt: skip


def check_fit(name: str, federation: Any) -> None:
    estimator, oracle = CASES[name]
    model = estimator.fit_federation(federation)
    coef, intercept = oracle(model)
    assert model.certificate_.holds
    assert model.has_offset_
    np.testing.assert_allclose(np.ravel(model.coef_), coef, rtol=1e-8, atol=1e-8)
    if intercept is not None:
        np.testing.assert_allclose(np.ravel(model.intercept_), intercept, rtol=1e-8, atol=1e-8)
    assert model.feature_names_in_.tolist() == list(FEATURES)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough) if name == "factors and bounds" else name for name in CASES]
)
def test_a_fit_through_the_services_of_the_sites(name, made):
    with in_memory(made) as federation:
        check_fit(name, federation)
        waited = [(p["site"], p["problem"]) for p in federation.problems]
        why = "it waits for a person at the site to approve this run: bounds hold numbers of the operator's choice"
        assert waited == ([(site, why) for site in federation.names] if name == "factors and bounds" else [])


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_a_fit_over_processes(name, processes):
    check_fit(name, processes)


def check_evaluation(federation: Any) -> None:
    """A classifier and a count regression against scikit-learn on the pooled rows."""
    model = cf.FederatedLogisticRegression(alpha=0.01).fit_federation(federation)
    found = model.evaluate(federation)
    event, risk = Y == 2, model.predict_proba(ROWS)[:, 1]
    assert found.auc.rounding_low <= roc_auc_score(event, risk, sample_weight=W) <= found.auc.rounding_high
    assert found.brier == pytest.approx(brier_score_loss(event, risk, sample_weight=W), rel=1e-8)
    assert found.log_loss == pytest.approx(log_loss(event, risk, sample_weight=W), rel=1e-8)
    with pytest.raises(cf.InputError, match="masked"):
        model.evaluate(federation, per_site=True)


def check_counts(federation: Any) -> None:
    model = cf.FederatedPoissonRegressor(alpha=0.01).fit_federation(federation)
    found, predicted = model.evaluate(federation), model.predict(ROWS)
    assert found.r2 == pytest.approx(r2_score(Y, predicted, sample_weight=W), rel=1e-8)
    assert found.rmse == pytest.approx(root_mean_squared_error(Y, predicted, sample_weight=W), rel=1e-8)
    assert found.mean_loss == pytest.approx(np.average(predicted - Y * np.log(predicted), weights=W), rel=1e-8)


def check_table_one(federation: Any) -> None:
    table = cf.describe(federation)
    assert table.sites is None  # masked
    for name in ("age", "bmi"):
        column: Any = table.overall.columns[name]
        assert column.mean == pytest.approx(ROWS[name].mean(), abs=1e-10)


@pytest.mark.parametrize("check", [check_evaluation, check_counts, check_table_one])
def test_evaluation_and_table_one_through_the_services_of_the_sites(check, made):
    with in_memory(made) as federation:
        check(federation)


@pytest.mark.thorough
@pytest.mark.parametrize("check", [check_evaluation, check_counts, check_table_one])
def test_evaluation_and_table_one_over_processes(check, processes):
    check(processes)


def test_the_columns_of_weights_and_offsets_are_those_of_the_rows(made):
    for name, table in FRAMES.items():
        site = SiteSettings.read(made.site_folder(name) / "site.toml").site()
        np.testing.assert_array_equal(site.rows.weights, table["w"])
        np.testing.assert_array_equal(site.rows.offset, table["log_time"])  # pyright: ignore[reportArgumentType]
        assert site.rows.columns == FEATURES
    lines: list[str] = []
    check(made.site_folder("north") / "site.toml", lines.append)
    assert "Column 'w' is the weight of each row, no feature." in lines
    assert "Column 'log_time' is the offset of each row, no feature." in lines
