"""Units do not matter: data of any size gets the right coefficients, or a clear no; a certificate never holds for others."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from optimality import violation
from sklearn.exceptions import ConvergenceWarning

import compfed as cf
from compfed.stopping import Certificate

ROWS = 40
rng = np.random.default_rng(0)
X = rng.standard_normal((ROWS, 4)) @ np.triu(np.full((4, 4), 0.5)) + 1.0
SIGNAL = X @ np.array([1.0, -2.0, 0.0, 0.5])
Y = SIGNAL + 0.3 * rng.standard_normal(ROWS)
CLASSES = (SIGNAL + rng.standard_normal(ROWS) > SIGNAL.mean()).astype(int)
COUNTS = rng.poisson(np.exp(np.clip(0.3 * SIGNAL, -3, 3))).astype(float)
SITES = np.arange(ROWS) % 3
EXTREMES = [1e-300, 1e-150, 1e-60, 1e-8, 1e8, 1e60, 1e150, 1e300]


def outcome(model: Any, X: np.ndarray, y: np.ndarray, kind: str, l1: float, weights: Any = None, **given: Any) -> str:
    """The outcome of a fit: "refused", "right" (certified, and the optimality conditions hold), or "not certified"."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", cf.NotUniqueWarning)
            fitted = model.fit(X, y, sites=SITES, sample_weight=weights)
    except cf.InputError as refusal:
        return "refused" if "between 1e-70 and 1e+70" in str(refusal) else str(refusal)
    wrong = violation(kind, X, y, fitted.coef_, fitted.intercept_, l1, weights=weights, **given)
    if fitted.certificate_.holds:
        return "right" if wrong <= 1e-9 else f"{fitted.certificate_} holds, and the violation is {wrong:.1e}"
    return "not certified"


def expected(size: float) -> str:
    return "right" if 1e-69 < size < 1e69 else "refused"


@pytest.mark.parametrize("size", EXTREMES)
@pytest.mark.parametrize("columns", [slice(0, 4), slice(1, 2)], ids=["all columns", "one column"])
def test_features_in_any_unit(size, columns):
    scaled = X.copy()
    scaled[:, columns] *= size
    alpha = 0.1 * (size if columns == slice(0, 4) else 1.0)
    assert outcome(cf.FederatedLasso(alpha=alpha), scaled, Y, "squared", alpha) == expected(size)
    assert outcome(cf.FederatedLasso(alpha=0.0), scaled, Y, "squared", 0.0) == expected(size)
    alpha /= 5
    assert outcome(cf.FederatedLogisticRegression(alpha=alpha), scaled, CLASSES, "logistic", alpha) == expected(size)
    poisson = cf.FederatedPoissonRegressor(alpha=alpha, l1_ratio=1.0)
    assert outcome(poisson, scaled, COUNTS, "poisson", alpha) == expected(size)


@pytest.mark.parametrize("size", EXTREMES)
def test_labels_in_any_unit(size):
    alpha = 0.1 * size
    assert outcome(cf.FederatedLasso(alpha=alpha), X, Y * size, "squared", alpha) == expected(size)
    assert outcome(cf.FederatedLasso(alpha=0.0), X, Y * size, "squared", 0.0) == expected(size)
    huber = cf.FederatedHuber(alpha=alpha, delta=1.35 * size)
    assert outcome(huber, X, Y * size, "huber", alpha, delta=1.35 * size) == expected(size)
    poisson = cf.FederatedPoissonRegressor(alpha=alpha, l1_ratio=1.0)
    assert outcome(poisson, X, COUNTS * size, "poisson", alpha) == expected(size)


@pytest.mark.parametrize("size", [*EXTREMES, 5e-324])
def test_row_weights_in_any_unit(size):
    """Only their ratios count."""
    weights = np.where(np.arange(ROWS) % 2, size, size / 2 if size > 1e-320 else size)
    assert outcome(cf.FederatedLasso(alpha=0.1), X, Y, "squared", 0.1, weights) == "right"
    logistic = cf.FederatedLogisticRegression(alpha=0.02)
    assert outcome(logistic, X, CLASSES, "logistic", 0.02, weights) == "right"


@pytest.mark.parametrize("offset", [1e3, 1e8, 1e12, 1e15])
@pytest.mark.parametrize("of", ["labels", "features", "both"])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_what_rounding_takes_is_in_the_certificate(offset, of, fit_intercept):
    """Digits that an offset uses up are not there: where the model cannot be right to tol, the certificate does not hold."""
    moved = X + (offset if of != "labels" else 0.0)
    y = Y + (offset if of != "features" else 0.0)
    model = cf.FederatedLasso(alpha=0.1, fit_intercept=fit_intercept)
    found = outcome(model, moved, y, "squared", 0.1, fit_intercept=fit_intercept)
    assert found == "right" if offset == 1e3 and fit_intercept else found in ("right", "not certified")


def test_a_gap_is_a_number_one_can_use():
    """A slope at the end of the conjugate's domain must not make the bound infinite."""
    table = cf.data.bundled.breast_cancer()
    for alpha in (0.1, 0.01, 1e-3):
        model: Any = cf.FederatedLogisticRegression(alpha=alpha).fit(table.X, table.y, sites=table.sites)
        assert 0 < model.certificate_.duality_gap < 1e-9
    with pytest.warns(
        ConvergenceWarning, match="Rounding hides what is left: columns or labels are far larger than they vary"
    ):
        shifted: Any = cf.FederatedLasso(alpha=0.1).fit(X, Y + 1e12, sites=SITES)
    assert not shifted.certificate_.within_reach
    assert shifted.certificate_.duality_gap > 0, "rounding may not make it negative"


def test_a_certificate_that_rounding_spoils_says_so():
    """Columns of mean 1e6 and spread 1: the search meets tol, and u L ||x|| / sqrt(m) is above it."""
    with pytest.warns(
        ConvergenceWarning, match="tol = 1.0e-12, but rounding can hide .*: columns or labels are far larger"
    ):
        model: Any = cf.FederatedLasso(alpha=0.1).fit(X + 1e6, Y, sites=SITES)
    found = model.certificate_
    assert found.relative <= found.tol
    assert found.rounding > found.tol * found.scale
    assert "but rounding can hide" in found.words
    with pytest.warns(ConvergenceWarning, match="but rounding can hide"):
        cf.FederatedLassoCV([0.1], cv=2).fit(X + 1e6, Y, sites=SITES)


def test_the_words_of_a_certificate_say_what_is_known():
    kept = Certificate(gradient_mapping=1e-14, scale=1.0, tol=1e-12)
    assert kept.words == "Certified: relative optimality 1.0e-14."
    assert replace(kept, convex=False).words == (
        "Certified as a stationary point, which need not be a minimum: relative optimality 1.0e-14."
    )
    assert "there is no minimiser" in replace(kept, minimiser_exists=False).words
    short = replace(kept, gradient_mapping=1e-3)
    assert short.words == "NOT certified: the gradient mapping is 1.0e-03 of its scale; tol = 1.0e-12."
    assert "tol = 1.0e-12, but rounding can hide 1.0e-08: columns" in replace(short, rounding=1e-8).words


def test_weights_without_a_sum_are_refused():
    with pytest.raises(cf.InputError, match=r"site '0' has a row weight of 1e\+308; at most 1e\+300 is allowed"):
        cf.FederatedLasso().fit(X, Y, sites=SITES, sample_weight=np.full(ROWS, 1e308))
