"""Coverage of 95 % confidence intervals over simulated draws, as a Markdown table: `summary`, and the shares and AUC of `evaluate`.

    PYTHONPATH=src python benchmarks/coverage.py [--draws 500] [--jobs 16] [--only Cox] [--quick]

Every draw has new rows, three sites of different sizes and unequal effects; an interval covers if it has the true coefficient in it,
intercepts included. Measures of `evaluate` are those of a fixed score whose true values are known: Phi(delta / sqrt(2)) is the AUC of
normal scores that are delta apart. Robust errors are tried where those of the model are wrong: errors whose variance grows with a
feature, counts that are more dispersed than Poisson's, rows of a site that are alike. Clustered errors are an approximation for many
sites; with few they tend to be too small for a feature that is the same for all rows of a site, so that 40 and 20 sites need not hold.
The last column is what the study is about: the mean over coefficients between 93 and 97 %, and each between 92 and 98 %. Exit status
1 where a row that should hold does not.

A draw depends on its number alone, so that the table is the same for every number of processes. It needs what compfed needs, and no
more.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm

import compfed as cf

ROWS, FEATURES = 600, 4
BETA = np.array([0.5, -0.3, 0.2, 0.0])
SITES = np.repeat([0, 1, 2], [300, 200, 100])
INTERCEPT = -0.4
ALIKE = 0.7  # standard deviation of what the rows of a site share
DELTA, PREVALENCE = 1.0, 0.3  # between the means of the scores of the two classes; share of events
CLASSES = np.array([[0.0, 0.0], [0.5, -0.2], [-0.3, 0.4]])  # of the first two features, with intercepts of 0
WITH_INTERCEPT = np.append(BETA, INTERCEPT)
CHUNK = 25  # draws of one task
ONE_THREAD = {
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}  # fmt: skip


class Draw(NamedTuple):
    X: np.ndarray
    y: np.ndarray
    sites: np.ndarray = SITES


class Case(NamedTuple):
    draw: Callable[[np.random.Generator], Draw]
    model: Any
    se: str
    holds: bool  # whether these errors are right for these rows, and there are enough of them
    truth: np.ndarray = WITH_INTERCEPT


# --- rows ---


def design(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Features that are correlated, one of them a 0/1 column, and the linear predictor."""
    X = rng.standard_normal((ROWS, FEATURES))
    X[:, 1] += 0.5 * X[:, 0]
    X[:, 2] = X[:, 2] > 0.3
    return X, X @ BETA + INTERCEPT


def linear(rng: np.random.Generator) -> Draw:
    X, z = design(rng)
    return Draw(X, z + rng.standard_normal(ROWS))


def unequal_variance(rng: np.random.Generator) -> Draw:
    X, z = design(rng)
    return Draw(X, z + rng.standard_normal(ROWS) * np.exp(0.6 * X[:, 0]))


def alike(rng: np.random.Generator, count: int) -> Draw:
    """The first feature and a part of the error are the same for all rows of a site."""
    X, _ = design(rng)
    sites = np.repeat(np.arange(count), ROWS // count)
    X[:, 0] = rng.standard_normal(count)[sites]
    shared = ALIKE * rng.standard_normal(count)[sites]
    return Draw(X, X @ BETA + INTERCEPT + shared + rng.standard_normal(ROWS), sites)


def other_means(rng: np.random.Generator) -> Draw:
    """Every site has an intercept of its own, and other values of the first feature."""
    X, _ = design(rng)
    X[:, 0] += SITES
    return Draw(X, X @ BETA - 2.0 * SITES + rng.standard_normal(ROWS))


def logistic(rng: np.random.Generator) -> Draw:
    X, z = design(rng)
    return Draw(X, (rng.uniform(size=ROWS) < 1 / (1 + np.exp(-z))).astype(float))


def poisson(rng: np.random.Generator) -> Draw:
    X, z = design(rng)
    return Draw(X, rng.poisson(np.exp(z)).astype(float))


def overdispersed(rng: np.random.Generator) -> Draw:
    X, z = design(rng)
    return Draw(X, rng.poisson(rng.gamma(1.5, np.exp(z) / 1.5)).astype(float))


def gamma(rng: np.random.Generator) -> Draw:
    X, z = design(rng)
    return Draw(X, rng.gamma(2.0, np.exp(z) / 2.0))


def log_normal(rng: np.random.Generator) -> Draw:
    """Amounts with the mean of a Gamma model, and a variance that grows with a feature: mean exp(z) for every spread."""
    X, z = design(rng)
    spread = 0.5 * np.exp(0.3 * X[:, 0])
    return Draw(X, np.exp(z + spread * rng.standard_normal(ROWS) - spread**2 / 2))


def several_classes(rng: np.random.Generator) -> Draw:
    X, _ = design(rng)
    return Draw(X[:, :2], np.argmax(X[:, :2] @ CLASSES.T + rng.gumbel(size=(ROWS, 3)), axis=1).astype(float))


def survival(rng: np.random.Generator) -> Draw:
    """Months until an event or the end of follow-up; every site has a baseline hazard of its own, Weibull's."""
    X, _ = design(rng)
    shape, scale = np.array([0.8, 1.0, 1.5])[SITES], np.array([20.0, 30.0, 45.0])[SITES]
    time = scale * (rng.exponential(size=ROWS) * np.exp(-X @ BETA)) ** (1 / shape)
    followed = rng.uniform(6, 60, ROWS)
    return Draw(X, np.column_stack([np.minimum(time, followed), time <= followed]))


def in_months(rng: np.random.Generator) -> Draw:
    """The same in whole months: most events have others at their time."""
    X, y, sites = survival(rng)
    return Draw(X, np.column_stack([np.ceil(y[:, 0]), y[:, 1]]), sites)


_ols, _glm = cf.FederatedLasso(alpha=0), cf.FederatedLogisticRegression(alpha=0)
_counts, _amounts = cf.FederatedPoissonRegressor(alpha=0), cf.FederatedGammaRegressor(alpha=0)
_differences = np.append((CLASSES[1:] - CLASSES[0]).T.ravel(), [0.0, 0.0])
CASES: dict[str, Case] = {
    "linear": Case(linear, _ols, "model", True),
    "linear, unequal variance": Case(unequal_variance, _ols, "model", False),
    "linear, unequal variance, robust": Case(unequal_variance, _ols, "HC1", True),
    "linear, rows of a site alike": Case(partial(alike, count=120), _ols, "model", False),
    "linear, rows of 120 sites alike, clustered": Case(partial(alike, count=120), _ols, "cluster", True),
    "linear, rows of 40 sites alike, clustered": Case(partial(alike, count=40), _ols, "cluster", False),
    "linear, rows of 20 sites alike, clustered": Case(partial(alike, count=20), _ols, "cluster", False),
    "linear, an intercept for each site": Case(
        other_means, cf.FederatedLasso(alpha=0, site_effects="profile"), "model", True, BETA
    ),
    "logistic": Case(logistic, _glm, "model", True),
    "logistic, robust": Case(logistic, _glm, "HC0", True),
    "Poisson": Case(poisson, _counts, "model", True),
    "Poisson, overdispersed counts": Case(overdispersed, _counts, "model", False),
    "Poisson, overdispersed counts, robust": Case(overdispersed, _counts, "HC1", True),
    "negative binomial": Case(overdispersed, cf.FederatedNegativeBinomialRegressor(alpha=0, theta="ml"), "model", True),
    "Gamma": Case(gamma, _amounts, "model", True),
    "Gamma, log-normal amounts, robust": Case(log_normal, _amounts, "HC1", True),
    "three classes": Case(several_classes, _glm, "model", True, _differences),
    "Cox": Case(survival, cf.FederatedCox(alpha=0), "model", True, BETA),
    "Cox, times in whole months, Efron": Case(in_months, cf.FederatedCox(alpha=0), "model", True, BETA),
}
EVALUATED = "evaluate"
SENSITIVITY, SPECIFICITY = float(norm.cdf(DELTA)), 0.5  # of "the score is above 0"
POSITIVE = PREVALENCE * SENSITIVITY + (1 - PREVALENCE) * (1 - SPECIFICITY)
MEASURES = {  # true values
    "AUC": float(norm.cdf(DELTA / np.sqrt(2))),
    "sensitivity": SENSITIVITY,
    "specificity": SPECIFICITY,
    "PPV": PREVALENCE * SENSITIVITY / POSITIVE,
    "NPV": (1 - PREVALENCE) * SPECIFICITY / (1 - POSITIVE),
    "accuracy": PREVALENCE * SENSITIVITY + (1 - PREVALENCE) * SPECIFICITY,
}


# --- one draw ---


def intervals(case: Case, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The intervals of a draw, of every coefficient and intercept."""
    X, y, sites = case.draw(np.random.default_rng(seed))
    found = case.model.fit(X, y, sites=sites).summary(se=case.se)
    return found.low, found.high


def scored(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of rows and whether they have the event."""
    rng = np.random.default_rng(seed)
    y = (rng.uniform(size=ROWS) < PREVALENCE).astype(int)
    return rng.standard_normal(ROWS) + DELTA * y, y


def measured(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The intervals of `evaluate` of a draw, in the order of MEASURES: DeLong's of the AUC, and Wilson's."""
    z, y = scored(seed)
    X = np.array([[-1.0], [1.0], [0.5], [-0.5]])
    scorer = cf.FederatedLogisticRegression(alpha=0.1).fit(X, [0, 1, 0, 1], sites=None)
    scorer.coef_, scorer.intercept_ = np.ones((1, 1)), np.zeros(1)
    found = scorer.evaluate(z[:, None], y, sites=SITES)
    auc = (found.auc.confidence_low, found.auc.confidence_high)
    low, high = zip(auc, *(found.confidence[name.lower()] for name in list(MEASURES)[1:]), strict=True)
    return np.array(low), np.array(high)


def covered(name: str, seeds: range) -> np.ndarray:
    """Whether the intervals of each draw have the true values in them, of shape (draws, values)."""
    warnings.simplefilter("ignore")
    if name == EVALUATED:
        found, truth = [measured(seed) for seed in seeds], np.array(list(MEASURES.values()))
    else:
        found, truth = [intervals(CASES[name], seed) for seed in seeds], CASES[name].truth
    return np.array([(low <= truth) & (truth <= high) for low, high in found])


# --- all draws ---


def study(names: list[str], draws: int, jobs: int) -> Iterator[tuple[str, np.ndarray]]:
    """The coverage of every value, case by case; in processes of one thread each if there are to be several."""
    tasks = {name: [range(k, min(k + CHUNK, draws)) for k in range(0, draws, CHUNK)] for name in names}
    if jobs == 1:
        for name, parts in tasks.items():
            yield name, np.concatenate([covered(name, seeds) for seeds in parts]).mean(axis=0)
        return
    os.environ.update(ONE_THREAD)  # of the processes: this one computes nothing
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running: dict[str, list[Future[np.ndarray]]] = {
            name: [pool.submit(covered, name, seeds) for seeds in parts] for name, parts in tasks.items()
        }
        for name, parts in running.items():
            yield name, np.concatenate([part.result() for part in parts]).mean(axis=0)


def main() -> int:
    parser = argparse.ArgumentParser(description="Coverage of 95 % confidence intervals.")
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--only", default="", help="the models with these words in their names")
    parser.add_argument("--quick", action="store_true", help="three draws of each, which says nothing about coverage")
    args = parser.parse_args()
    draws, wrong = 3 if args.quick else args.draws, []
    names = [name for name in (*CASES, EVALUATED) if args.only in name]
    if min(draws, args.jobs) < 1 or not names:
        parser.error("--draws and --jobs must be at least 1, and --only must name a model")
    print(
        f"{draws} draws of {ROWS} rows at three sites of 300, 200 and 100; where rows of a site are alike, 120, 40 and 20 sites\n"
    )
    print("| model | standard errors | mean coverage | least | most | should hold |\n|---|---|---|---|---|---|")
    for name, each in study(names, draws, args.jobs):
        if name == EVALUATED:
            found = [(n, "DeLong" if n == "AUC" else "Wilson", each[[k]], True) for k, n in enumerate(MEASURES)]
        else:
            found = [(name, CASES[name].se, each, CASES[name].holds)]
        for row in found:
            print(_line(*row), flush=True)
            wrong += [row[0]] if row[3] and not in_range(row[2]) else []
    if wrong and not args.quick:
        print(f"\nout of range: {', '.join(wrong)}")
    return int(bool(wrong) and not args.quick)


def in_range(each: np.ndarray) -> bool:
    return bool(0.93 <= each.mean() <= 0.97 and each.min() >= 0.92 and each.max() <= 0.98)


def _line(name: str, se: str, each: np.ndarray, holds: bool) -> str:
    numbers = " | ".join(f"{100 * value:.1f} %" for value in (each.mean(), each.min(), each.max()))
    return f"| {name} | {se} | {numbers} | {'yes' if holds else 'no'} |"


if __name__ == "__main__" and main():
    sys.exit(1)
