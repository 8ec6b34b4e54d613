"""The result of a fit as plain data, for every family of models, and its page."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Lasso

import compfed as cf
from compfed.estimators.export import result_of
from compfed.federation.queries import LEAVES, QUERIES
from compfed.report.page import page_text
from compfed.report.run_result import read_result, write_result

rng = np.random.default_rng(0)
X = rng.standard_normal((90, 4)) * [1.0, 10.0, 0.1, 2.0]
Y = X[:, [0]] @ [[2.0, -1.0]] + 0.1 * rng.standard_normal((90, 2))
SITES = np.arange(90) % 3
CLASSES = np.array(["low", "middle", "high"])[np.digitize(X[:, 0], [-0.5, 0.5])]
FITS: list[tuple[Any, Any, str]] = [
    (cf.FederatedLasso(0.1), Y[:, 0], "Larger values raise the prediction: feature 0"),
    (
        cf.FederatedPoissonRegressor(alpha=0.1),
        np.round(np.exp(X[:, 0])),
        "Larger values raise the expected count: feature 0",
    ),
    (cf.FederatedLogisticRegression(0.05, standardize=True), CLASSES, "The largest effects: feature 0"),
    (cf.FederatedMultiTaskLasso(0.1), Y, "The largest effects: feature 0"),
    (
        cf.FederatedLassoCV(n_alphas=5, cv=2, rule="one_standard_error"),
        Y[:, 0],
        "within one standard error of the least",
    ),
    (cf.FederatedLasso(1e6), Y[:, 0], "None of 4 variables is in the model."),
]


@pytest.mark.parametrize(("model", "y", "words"), FITS, ids=[type(model).__name__ for model, *_ in FITS])
def test_every_family_has_a_record_and_a_page(model, y, words, tmp_path):
    fitted = model.fit(X, y, sites=SITES)
    write_result(tmp_path, result_of(fitted))
    back = read_result(tmp_path)
    np.testing.assert_array_equal(np.asarray(back["coef"]), np.atleast_2d(fitted.coef_))
    np.testing.assert_allclose(back["feature_scale"], X.std(axis=0), rtol=1e-12)
    assert sum(q["bytes_up"] for q in back["communication"]["queries"]) == pytest.approx(
        back["communication"]["bytes_up"]
    )
    assert back["certificate"]["holds"] is True
    assert json.loads((tmp_path / "result.json").read_text())["kind"] == "fit"
    text = page_text(back)
    assert words in text
    assert f"{back['communication']['rounds']} messages to each of 3 sites" in text


def test_the_coefficients_are_those_of_the_pooled_rows():
    record = result_of(cf.FederatedLasso(0.1).fit(X, Y[:, 0], sites=SITES), label="outcome")
    pooled = Lasso(0.1, tol=1e-12, max_iter=100_000).fit(X, Y[:, 0])
    np.testing.assert_allclose(record["coef"][0], pooled.coef_, atol=1e-9)
    assert record["label"] == "outcome"


def test_every_query_is_described():
    assert set(LEAVES) == {query.__name__ for query in QUERIES}


def test_a_model_that_was_read_from_a_file_has_a_record_without_its_trace(tmp_path):
    model = cf.FederatedLasso(0.1).fit(X, Y[:, 0], sites=SITES)
    for name in ("trace_", "certificate_", "communication_", "algorithm_"):
        delattr(model, name)
    text = page_text(result_of(model))
    assert "in the model" in text
    assert "Convergence" not in text


def test_an_evaluation_may_be_a_record_of_its_own():
    class Evaluation:
        def to_dict(self) -> dict[str, Any]:
            return {"brier": np.float64(0.75), "auc": {"value": 0.75, "rounding_low": 0.7, "rounding_high": 0.8}}

    model = cf.FederatedLasso(0.1).fit(X, Y[:, 0], sites=SITES)
    record = result_of(model, Evaluation())
    assert record["evaluation"] == {"brier": 0.75, "auc": {"value": 0.75, "rounding_low": 0.7, "rounding_high": 0.8}}
    page = page_text(record)
    assert "between 0.700 and 0.800" in page
    assert "These are rounding bounds, which contain it for certain." in page


def test_numbers_that_json_does_not_have(tmp_path):
    model = cf.FederatedLasso(0.1).fit(X, Y[:, 0], sites=SITES)
    record = result_of(model, {"calibration_slope": np.nan, "brier": 0.7})
    record["parameters"]["bounds"] = "inf"
    record["trace"]["objective"] = np.array([1.0, np.nan, np.inf])
    write_result(tmp_path, record)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    strict = json.loads((tmp_path / "result.json").read_text(), parse_constant=refuse)
    assert strict["evaluation"] == {"calibration_slope": None, "brier": 0.7}
    assert strict["trace"]["objective"] == [1.0, None, None]
    assert "calibration slope" not in page_text(read_result(tmp_path))
