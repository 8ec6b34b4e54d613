"""Confidence intervals of an evaluation: DeLong's for the AUC, pair by pair, and Wilson's for shares, apart from rounding bounds."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, roc_auc_score
from statsmodels.stats.proportion import proportion_confint

import compfed as cf
from compfed.estimators.evaluation import wilson
from compfed.federation import DisclosurePolicy, InProcess


def delong(y: np.ndarray, z: np.ndarray) -> float:
    """The standard error of the AUC from all pairs of rows (DeLong, DeLong, Clarke-Pearson, Biometrics 1988)."""
    above, below = z[y == 1], z[y == 0]
    wins = np.array([[1.0 if a > b else 0.5 if a == b else 0.0 for b in below] for a in above])
    return float(np.sqrt(wins.mean(axis=1).var(ddof=1) / len(above) + wins.mean(axis=0).var(ddof=1) / len(below)))


def scorer() -> cf.FederatedLogisticRegression:
    """The model whose score is the feature."""
    model = cf.FederatedLogisticRegression(alpha=0.1).fit(
        np.array([[-1.0], [1.0], [0.5], [-0.5]]), [0, 1, 0, 1], sites=None
    )
    model.coef_, model.intercept_ = np.ones((1, 1)), np.zeros(1)
    return model


def rows(seed: int, n: int = 240, digits: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = (rng.uniform(size=n) < 0.3).astype(int)
    z = rng.standard_normal(n) + y
    return y, z if digits is None else np.round(z, digits)


@pytest.mark.parametrize(("digits", "tol"), [(0, 1e-9), (1, 1e-9), (None, 2e-3)])
def test_the_interval_of_the_auc_is_that_of_all_pairs(digits, tol):
    """Exact with ties, where every score has a bin of its own; else to the pairs that share a bin."""
    for seed in range(4):
        y, z = rows(seed, digits=digits)
        auc = scorer().evaluate(z[:, None], y, sites=np.arange(len(y)) % 3).auc
        error, value = delong(y, z), roc_auc_score(y, z)
        assert auc.confidence_low == pytest.approx(value - 1.959963984540054 * error, abs=tol)
        assert auc.confidence_high == pytest.approx(min(value + 1.959963984540054 * error, 1.0), abs=tol)
        assert auc.confidence_method == "DeLong"


@pytest.mark.parametrize(("count", "n"), [(0, 10), (7, 19), (50, 50), (113, 400)])
def test_wilson_is_that_of_statsmodels(count, n):
    assert wilson(count, n) == pytest.approx(proportion_confint(count, n, method="wilson"), abs=1e-12)
    assert wilson(0, 0) is None


def test_shares_have_wilson_intervals():
    y, z = rows(5)
    found = scorer().evaluate(z[:, None], y, sites=np.arange(len(y)) % 3)
    (tn, fp), (fn, tp) = confusion_matrix(y, z > 0).tolist()
    shares = {
        "sensitivity": (tp, tp + fn),
        "specificity": (tn, tn + fp),
        "ppv": (tp, tp + fp),
        "npv": (tn, tn + fn),
        "accuracy": (tp + tn, 240),
    }
    assert set(found.confidence) == set(shares)
    for name, share in shares.items():
        assert found.confidence[name] == pytest.approx(proportion_confint(*share, method="wilson"), abs=1e-12)


def test_intervals_and_rounding_bounds_have_lines_of_their_own():
    """The estimate comes first; under a policy rounding bounds stand beside the interval, each with its name."""
    y, z = rows(6)
    sites = cf.data.from_arrays([z[i::3, None] for i in range(3)], [y[i::3] for i in range(3)])
    for policy in (None, DisclosurePolicy()):
        found = scorer().evaluate(InProcess(sites, policy=policy))
        lines = [line.strip() for line in str(found).splitlines()]
        at = next(k for k, line in enumerate(lines) if line.startswith("sensitivity"))
        assert lines[at].split()[-1] == f"{found.sensitivity:.3f}"
        bounds = lines[at + 1].startswith("rounding bounds")
        assert bounds == (policy is not None)
        low, high = found.confidence["sensitivity"]
        line = lines[at + 1 + bounds]
        assert line.startswith("95 % confidence interval (Wilson)")
        assert line.endswith(f"{low:.3f} to {high:.3f}")
        at = next(k for k, line in enumerate(lines) if line.startswith("AUC"))
        assert lines[at + 2].startswith("95 % confidence interval (DeLong)")
        assert found.auc.confidence_low < found.auc.value < found.auc.confidence_high
        assert ("Rounding bounds contain" in str(found)) == (policy is not None)
        assert "Confidence intervals are about other rows" in str(found)
        plain: Any = json.loads(json.dumps(found.to_dict()))
        assert plain["confidence_method"] == "Wilson"
        assert plain["auc"]["confidence_method"] == "DeLong"
        assert plain["confidence"]["sensitivity"] == [low, high]


def test_there_is_no_interval_where_the_formula_has_none():
    """With weights, one row of a class, or classes that are told apart entirely."""
    y, z = rows(7)
    weighted = scorer().evaluate(z[:, None], y, sites=None, sample_weight=np.arange(240) % 3 + 0.5)
    assert weighted.auc.confidence_low is None
    assert weighted.confidence == {}
    assert "not computed" in str(weighted)
    perfect = scorer().evaluate(np.where(y == 1, 1.0, -1.0)[:, None], y, sites=None)
    assert perfect.auc.value == 1.0
    assert perfect.auc.confidence_low is None
    assert perfect.confidence["sensitivity"][1] == pytest.approx(1.0)
    one = np.zeros(240, int)
    one[3] = 1
    assert scorer().evaluate(z[:, None], one, sites=None).auc.confidence_low is None


def test_several_classes_have_an_interval_each():
    """Each class against the others; their mean has none."""
    rng = np.random.default_rng(8)
    X, y = rng.standard_normal((300, 3)), rng.integers(0, 3, 300)
    X[np.arange(300), y] += 1
    model = cf.FederatedLogisticRegression(alpha=0.01).fit(X, y, sites=np.arange(300) % 3)
    found: Any = model.evaluate(X, y, sites=np.arange(300) % 3)
    z = model.decision_function(X)
    assert found.auc.confidence_low is None
    for k, auc in enumerate(found.auc_by_class):
        others = np.delete(z, k, axis=1)
        score = z[:, k] - np.log(np.exp(others).sum(axis=1))
        reach = 1.959963984540054 * delong((y == k).astype(int), score)
        assert auc.confidence_high - auc.value == pytest.approx(reach, abs=2e-3)
    assert found.confidence["accuracy"] == pytest.approx(
        proportion_confint((z.argmax(axis=1) == y).sum(), 300, method="wilson")
    )
