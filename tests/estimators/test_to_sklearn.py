"""`to_sklearn`: the estimator of scikit-learn with the same predictions. Oracle: our own formula, and ONNX Runtime."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from places import ROOT
from scipy.special import expit, softmax
from sklearn import linear_model
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

import compfed as cf

rng = np.random.default_rng(3)
X = rng.normal(size=(90, 5))
SITES = np.repeat(["a", "b", "c"], 30)
Z = X @ [1.0, -1.0, 0.0, 0.5, 0.0] + 0.3
TWO = np.column_stack([Z, 1 - Z]) + 0.1 * rng.normal(size=(90, 2))
CLASSES = np.array(["low", "mid", "top"])[np.digitize(Z + rng.normal(size=90), [-0.5, 0.7])]
CASES: list[tuple[str, Any, dict[str, Any], Any]] = [
    ("FederatedLasso", TWO[:, 0], {}, linear_model.Lasso),
    ("FederatedElasticNet", TWO[:, 0], {"fit_intercept": False}, linear_model.ElasticNet),
    ("FederatedHuber", TWO[:, 0], {}, linear_model.HuberRegressor),
    ("FederatedGroupLasso", TWO[:, 0], {"groups": [[0, 1], [2, 3, 4]]}, linear_model.LinearRegression),
    ("FederatedPoissonRegressor", rng.poisson(np.exp(Z)), {}, linear_model.PoissonRegressor),
    ("FederatedGammaRegressor", rng.gamma(2.0, np.exp(Z)), {}, linear_model.GammaRegressor),
    ("FederatedMultiTaskLasso", TWO, {}, linear_model.MultiTaskLasso),
    ("FederatedMultiTaskLasso", TWO[:, 0], {}, linear_model.LinearRegression),
    ("FederatedNuclearRegressor", TWO, {}, linear_model.LinearRegression),
    ("FederatedLogisticRegression", np.where(Z > 0, "yes", "no"), {}, linear_model.LogisticRegression),
    ("FederatedLogisticRegression", CLASSES, {}, linear_model.LogisticRegression),
]


@pytest.mark.parametrize(
    ("name", "y", "options", "twin"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_its_predictions_are_those_of_the_model(name, y, options, twin):
    """Oracle: the mean of the family at X w + b, and P by the logistic function or the softmax."""
    model = getattr(cf, name)(alpha=0.05, **options).fit(X, y, sites=SITES)
    found: Any = model.to_sklearn()
    check_is_fitted(found)
    assert type(found) is twin
    z = X @ np.atleast_2d(model.coef_).T + np.atleast_1d(model.intercept_)
    if is_classifier(model):
        p = np.column_stack([expit(-z), expit(z)]) if z.shape[1] == 1 else softmax(z, axis=1)
        np.testing.assert_allclose(found.predict_proba(X), p, rtol=0, atol=1e-12)
        assert found.predict(X).tolist() == model.predict(X).tolist()
        return
    mean = np.exp(z) if "Poisson" in name or "Gamma" in name else z
    np.testing.assert_allclose(found.predict(X), mean if np.ndim(model.predict(X)) == 2 else mean[:, 0], rtol=1e-12)
    np.testing.assert_allclose(found.predict(X), model.predict(X), rtol=1e-12)


def test_the_class_that_was_chosen_as_event_stays_the_second():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=list("abcde")).assign(died=np.where(Z > 0, "yes", "no"))
    schema = cf.Schema({name: cf.NumericColumn() for name in "abcde"}, label=cf.Label("died", classes=("yes", "no")))
    model = cf.FederatedLogisticRegression(alpha=0.05).fit(frame, "died", sites=SITES, schema=schema)
    found: Any = model.to_sklearn()
    assert found.classes_.tolist() == ["yes", "no"]
    assert found.feature_names_in_.tolist() == list("abcde")
    np.testing.assert_allclose(found.predict_proba(frame[list("abcde")]), model.predict_proba(frame), atol=1e-12)


def test_a_model_that_scikit_learn_does_not_have_is_refused_by_name():
    counts = rng.poisson(np.exp(Z))
    model = cf.FederatedNegativeBinomialRegressor(alpha=0.1).fit(X, counts, sites=SITES)
    with pytest.raises(cf.InputError, match=r"FederatedNegativeBinomialRegressor.to_sklearn: scikit-learn has no such"):
        model.to_sklearn()
    rates = cf.FederatedPoissonRegressor(alpha=0.1).fit(X, counts, sites=SITES, offset=np.ones(90))
    with pytest.raises(cf.InputError, match="the model has an offset"):
        rates.to_sklearn()


def test_the_result_is_json_and_has_the_numbers_of_the_model():
    model = cf.FederatedLassoCV(n_alphas=4, cv=3).fit(X, TWO[:, 0], sites=SITES)
    found = json.loads(json.dumps(model.to_result(), allow_nan=False))
    assert found["coef"] == [model.coef_.tolist()]
    assert found["cv"]["losses"] == model.cv_loss_.tolist()
    assert found["features"] == [f"feature {j}" for j in range(5)]


def test_the_how_to_on_onnx_runs():
    """skl2onnx and onnxruntime are no part of our environment: `pip install skl2onnx onnxruntime` into one of its own."""
    pytest.importorskip("skl2onnx", reason="skl2onnx is not installed: pip install skl2onnx onnxruntime")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install skl2onnx onnxruntime")
    from pages import blocks

    page, names = ROOT / "docs" / "howto" / "notebooks.md", dict[str, Any]()
    for block in [blocks(page, "python")[0], *blocks(page, "py")]:
        exec(compile(block, page.name, "exec"), names)
    assert len(names["labels"]) == len(names["table"].y)
