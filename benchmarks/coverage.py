"""Coverage of 95 % confidence intervals over simulated draws, as a Markdown table: `summary`, and the AUC of `evaluate`.

    PYTHONPATH=src python benchmarks/coverage.py [--draws 500] [--quick]

Every draw has new rows, three sites of different sizes and unequal effects; an interval covers if it has the true coefficient in it.
The AUC is that of a fixed score whose true AUC is known: Phi(delta / sqrt(2)) for normal scores that are delta apart. Robust errors are
tried where those of the model are wrong: errors whose variance grows with a feature, and counts that are more dispersed than Poisson's.
The last column is what the study is about: the mean over coefficients between 93 and 97 %, and each between 92 and 98 %. Exit status 1
where a row that should hold does not.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.stats import norm

import compfed as cf

ROWS, FEATURES = 600, 4
BETA = np.array([0.5, -0.3, 0.2, 0.0])
SITES = np.repeat([0, 1, 2], [300, 200, 100])
INTERCEPT = -0.4
DELTA = 1.0  # between the means of the scores of the two classes
CLASSES = np.array([[0.0, 0.0], [0.5, -0.2], [-0.3, 0.4]])  # of the first two features, with intercepts of 0

Draw = tuple[np.ndarray, np.ndarray]


def design(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Features that are correlated, one of them a 0/1 column, and the linear predictor."""
    X = rng.standard_normal((ROWS, FEATURES))
    X[:, 1] += 0.5 * X[:, 0]
    X[:, 2] = X[:, 2] > 0.3
    return X, X @ BETA + INTERCEPT


def linear(rng: np.random.Generator) -> Draw:
    X, z = design(rng)
    return X, z + rng.standard_normal(ROWS)


def unequal_variance(rng: np.random.Generator) -> Draw:
    X, z = design(rng)
    return X, z + rng.standard_normal(ROWS) * np.exp(0.6 * X[:, 0])


def logistic(rng: np.random.Generator) -> Draw:
    X, z = design(rng)
    return X, (rng.uniform(size=ROWS) < 1 / (1 + np.exp(-z))).astype(float)


def poisson(rng: np.random.Generator) -> Draw:
    X, z = design(rng)
    return X, rng.poisson(np.exp(z)).astype(float)


def overdispersed(rng: np.random.Generator) -> Draw:
    X, z = design(rng)
    return X, rng.poisson(rng.gamma(1.5, np.exp(z) / 1.5)).astype(float)


def gamma(rng: np.random.Generator) -> Draw:
    X, z = design(rng)
    return X, rng.gamma(2.0, np.exp(z) / 2.0)


def several_classes(rng: np.random.Generator) -> Draw:
    X, _ = design(rng)
    return X[:, :2], np.argmax(X[:, :2] @ CLASSES.T + rng.gumbel(size=(ROWS, 3)), axis=1).astype(float)


# name: the draw, the estimator, standard errors, and whether they should cover
CASES: dict[str, tuple[Callable[[np.random.Generator], Draw], Any, str, bool]] = {
    "linear": (linear, cf.FederatedLasso(alpha=0), "model", True),
    "linear, unequal variance": (unequal_variance, cf.FederatedLasso(alpha=0), "model", False),
    "linear, unequal variance, robust": (unequal_variance, cf.FederatedLasso(alpha=0), "HC1", True),
    "logistic": (logistic, cf.FederatedLogisticRegression(alpha=0), "model", True),
    "logistic, robust": (logistic, cf.FederatedLogisticRegression(alpha=0), "HC0", True),
    "Poisson": (poisson, cf.FederatedPoissonRegressor(alpha=0), "model", True),
    "Poisson, overdispersed counts": (overdispersed, cf.FederatedPoissonRegressor(alpha=0), "model", False),
    "Poisson, overdispersed counts, robust": (overdispersed, cf.FederatedPoissonRegressor(alpha=0), "HC1", True),
    "negative binomial": (overdispersed, cf.FederatedNegativeBinomialRegressor(alpha=0, theta="ml"), "model", True),
    "Gamma": (gamma, cf.FederatedGammaRegressor(alpha=0), "model", True),
    "three classes": (several_classes, cf.FederatedLogisticRegression(alpha=0), "model", True),
}


def covered(draw: Callable[[np.random.Generator], Draw], model: Any, se: str, seed: int) -> np.ndarray:
    """Whether the interval of each coefficient, intercepts left out, has the true one in it."""
    X, y = draw(np.random.default_rng(seed))
    found = model.fit(X, y, sites=SITES).summary(se=se)
    truth = (CLASSES[1:] - CLASSES[0]).T.ravel() if draw is several_classes else BETA
    k = len(truth)
    return (found.low[:k] <= truth) & (truth <= found.high[:k])


def auc_covered(seed: int) -> tuple[bool, bool]:
    """Whether DeLong's interval has the true AUC, and Wilson's the true sensitivity at a risk of one half."""
    rng = np.random.default_rng(seed)
    y = (rng.uniform(size=ROWS) < 0.3).astype(int)
    z = rng.standard_normal(ROWS) + DELTA * y
    scorer = cf.FederatedLogisticRegression(alpha=0.1).fit(
        np.array([[-1.0], [1.0], [0.5], [-0.5]]), [0, 1, 0, 1], sites=None
    )
    scorer.coef_, scorer.intercept_ = np.ones((1, 1)), np.zeros(1)
    found = scorer.evaluate(z[:, None], y, sites=SITES)
    truth = norm.cdf(DELTA / np.sqrt(2))
    low, high = found.confidence["sensitivity"]
    auc, within = (
        bool(found.auc.confidence_low <= truth <= found.auc.confidence_high),
        bool(low <= norm.cdf(DELTA) <= high),
    )
    return auc, within


def main() -> int:
    parser = argparse.ArgumentParser(description="Coverage of 95 % confidence intervals.")
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--quick", action="store_true", help="three draws of each, which says nothing about coverage")
    args = parser.parse_args()
    draws, wrong = 3 if args.quick else args.draws, []
    warnings.simplefilter("ignore")
    print(f"{draws} draws of {ROWS} rows at three sites of 300, 200 and 100\n")
    print("| model | standard errors | mean coverage | least | most | should hold |\n|---|---|---|---|---|---|")
    rows: dict[str, tuple[str, np.ndarray, bool]] = {}
    for name, (draw, model, se, holds) in CASES.items():
        each = np.mean([covered(draw, model, se, seed) for seed in range(draws)], axis=0)
        _print(name, se, each, holds)
        rows[name] = se, each, holds
    both = np.mean([auc_covered(seed) for seed in range(draws)], axis=0)
    for name, se, share in (("AUC", "DeLong", both[:1]), ("sensitivity", "Wilson", both[1:])):
        _print(name, se, share, True)
        rows[name] = se, share, True
    for name, (_, each, holds) in rows.items():
        if holds and not (0.93 <= each.mean() <= 0.97 and each.min() >= 0.92 and each.max() <= 0.98):
            wrong.append(name)
    if wrong and not args.quick:
        print(f"\nout of range: {', '.join(wrong)}")
    return int(bool(wrong) and not args.quick)


def _print(name: str, se: str, each: np.ndarray, holds: bool) -> None:
    numbers = " | ".join(f"{100 * value:.1f} %" for value in (each.mean(), each.min(), each.max()))
    print(f"| {name} | {se} | {numbers} | {'yes' if holds else 'no'} |", flush=True)


if __name__ == "__main__" and main():
    sys.exit(1)
