"""Ordinary work under the default policy and masks: fits and cross-validations have the coefficients of the pooled rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="a federation across a network: pip install '.[flower]'")

from attacks import ordinary_work
from network.memory_link import furnish, remote

import compfed as cf

HEART = Path(__file__).parents[3] / "shared" / "data" / "heart"
GROUPS = [[0, 1], [2, 3], [4, 5, 6, 7, 8, 9]]
later = pytest.mark.thorough


def diabetes(two: bool = False) -> Any:
    table = cf.data.bundled.diabetes()
    y = np.column_stack([table.y, table.X[:, 2] * 500 + np.sqrt(table.y)]) if two else table.y
    return cf.data.from_table(table.X, y, table.sites)


def cancer() -> Any:
    table = cf.data.bundled.breast_cancer()
    return cf.data.from_table(table.X, table.y, table.sites)


def heart() -> Any:
    """The complete rows of four hospitals: 303, 261, 46 and 130, of which the 46 have one row of a class."""
    if not HEART.is_dir():
        pytest.skip("the heart data is not there")
    A, labels, names = [], [], ("cleveland", "hungarian", "switzerland", "va")
    for name in names:
        lines = [line.split(",") for line in (HEART / f"processed.{name}.data").read_text().split()]
        rows = np.array([[float(v) for v in line[:10]] for line in lines if "?" not in line[:10]])
        cp, ecg = (rows[:, [2]] == [2, 3, 4]).astype(float), (rows[:, [6]] == [1, 2]).astype(float)
        A.append(np.hstack([rows[:, [0, 1, 3, 4, 5, 7, 8, 9]], cp, ecg]))
        labels.append(np.array([float(line[13] != "0") for line in lines if "?" not in line[:10]]))
    return cf.data.from_arrays(A, labels, names)


CASES: dict[str, tuple[Any, Any, type, dict[str, Any]]] = {
    "lasso": (diabetes, cf.FederatedLassoCV(), cf.FederatedLasso, {}),
    "logistic": (cancer, cf.FederatedLogisticRegressionCV(), cf.FederatedLogisticRegression, {}),
    "Poisson": (diabetes, cf.FederatedPoissonRegressorCV(n_alphas=20, l1_ratio=1.0), cf.FederatedPoissonRegressor, {"l1_ratio": 1.0}),
    "groups": (diabetes, cf.FederatedGroupLassoCV(groups=GROUPS, n_alphas=20), cf.FederatedGroupLasso, {"groups": GROUPS}),
    "outcomes": (lambda: diabetes(two=True), cf.FederatedMultiTaskLassoCV(n_alphas=20), cf.FederatedMultiTaskLasso, {}),
    "lasso, cancer": (cancer, cf.FederatedLassoCV(n_alphas=20), cf.FederatedLasso, {}),
    "heart": (heart, cf.FederatedLogisticRegressionCV(cv=4), cf.FederatedLogisticRegression, {}),
}  # fmt: skip
QUICK = ("lasso", "groups")


@pytest.mark.filterwarnings("ignore::compfed.EdgeOfGridWarning")  # columns in raw units
@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=later) for name in CASES])
def test_a_cross_validation_has_the_coefficients_of_the_pooled_rows(name, tmp_path):
    make, estimator, base, options = CASES[name]
    sites = make()
    federation, _ = remote(furnish(tmp_path, sites, "", "", secure_sum=True))
    model = estimator.fit_federation(federation)
    assert federation.problems == []
    assert model.certificate_.holds
    X, y = np.concatenate(sites.features), np.concatenate(sites.labels)
    pooled = base(alpha=model.alpha_, **options).fit(X, y, sites=None)  # one table, without sums over a network
    scale = X.std(axis=0)
    apart = np.abs((model.coef_ - pooled.coef_) * scale).max()
    assert apart <= 1e-10 * max(np.abs(pooled.coef_ * scale).max(), 1.0)
    np.testing.assert_array_equal(model.coef_ != 0, pooled.coef_ != 0)
    again = base(alpha=model.alpha_, **options).fit_federation(
        remote(furnish(tmp_path / "again", sites, "", "", secure_sum=True))[0]
    )
    assert np.abs((again.coef_ - pooled.coef_) * scale).max() <= 1e-10 * max(np.abs(pooled.coef_ * scale).max(), 1.0)


def test_more_folds_than_the_smallest_site_has_buckets_are_refused_before_the_first_query(tmp_path):
    federation, _ = remote(furnish(tmp_path, diabetes(), "", "", secure_sum=True))
    with pytest.raises(
        cf.InputError, match=r"cv = 30 needs 30 buckets of 10 rows at site '.*': use cv = \d+, or leave"
    ):
        cf.FederatedLassoCV(cv=30).fit_federation(federation)
    assert federation.number == 1  # the enrolment


def test_a_huber_model_takes_few_numbers_about_the_labels(tmp_path):
    """Its intercept without features has to be searched for; numbers about the labels are counted against the labels alone."""
    sites = ordinary_work.table(1, "number")
    found = ordinary_work.done(
        furnish(tmp_path, sites, "", "", secure_sum=True, counted=True), ordinary_work.ANALYSES["Huber"]
    )
    assert found.done.startswith("done")
    assert "person" not in found.done
