"""benchmarks/coverage.py: the true values of its draws are true, and its processes change nothing."""

from __future__ import annotations

import runpy
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from places import ROOT
from scipy.special import expit, softmax

STUDY = ROOT / "benchmarks" / "coverage.py"
DRAWS = 60


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    return runpy.run_path(str(STUDY))


def residuals(name: str, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """y less its mean given the features, by the definition of each model."""
    if name.startswith("linear"):
        return y - z
    return y - (expit(z) if name.startswith("logistic") else np.exp(z))


def score(name: str, case: Any, seed: int, sites: np.ndarray) -> np.ndarray:
    """The derivative of the log-likelihood of a draw in the coefficients, at the true ones."""
    X, y, _ = case.draw(np.random.default_rng(seed))
    if name == "three classes":
        W = np.zeros((2, 3))
        W[:, 1:] = case.truth[:4].reshape(2, 2)
        left = np.eye(3)[y.astype(int)] - softmax(X @ W + np.append(0.0, case.truth[4:]), axis=1)
        return np.append(X.T @ left[:, 1:], left[:, 1:].sum(axis=0))
    if name.startswith("linear, an intercept"):
        inside = np.concatenate([X[sites == s] - X[sites == s].mean(axis=0) for s in range(3)])  # sites are in order
        return inside.T @ (y - X @ case.truth)
    left = residuals(name, y, X @ case.truth[:4] + case.truth[4])
    return np.append(X.T @ left, left.sum())


def partial_score(case: Any, seed: int, sites: np.ndarray) -> np.ndarray:
    """That of the partial likelihood stratified by site: at each event, the features less their mean over the rows at risk."""
    X, y, _ = case.draw(np.random.default_rng(seed))
    total, risk = np.zeros(4), np.exp(X @ case.truth)
    for s in range(3):
        for i in np.flatnonzero((sites == s) & (y[:, 1] > 0)):
            at = (sites == s) & (y[:, 0] >= y[i, 0])
            total += X[i] - risk[at] @ X[at] / risk[at].sum()
    return total


def test_true_coefficients_are_those_of_the_draws(study):
    """At the true coefficients the derivative of the log-likelihood has mean 0, whatever the variance of the errors."""
    names = [
        name for name in study["CASES"] if "whole months" not in name
    ]  # a likelihood with ties is an approximation
    assert len(names) == 18
    for name in names:
        case, sites = study["CASES"][name], study["SITES"]
        found = [
            partial_score(case, seed, sites) if name == "Cox" else score(name, case, seed, sites)
            for seed in range(DRAWS // 4 if name == "Cox" else DRAWS)
        ]
        assert np.shape(found)[1] == len(case.truth)
        error = np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
        np.testing.assert_array_less(np.abs(np.mean(found, axis=0)), 4.5 * error, err_msg=name)


def test_true_measures_are_those_of_the_scores(study):
    z, y = (np.concatenate(parts) for parts in zip(*(study["scored"](seed) for seed in range(200)), strict=True))
    said, event = z > 0, y == 1
    ranks = np.argsort(np.argsort(z)) + 1.0
    above = ranks[event].sum() - event.sum() * (event.sum() + 1) / 2
    shares = {
        "AUC": above / (event.sum() * (~event).sum()),
        "sensitivity": said[event].mean(), "specificity": (~said)[~event].mean(), "PPV": event[said].mean(),
        "NPV": (~event)[~said].mean(), "accuracy": (said == event).mean(),
    }  # fmt: skip
    assert shares.keys() == study["MEASURES"].keys()
    for name, value in shares.items():
        assert abs(value - study["MEASURES"][name]) < 4.5 * 0.5 / np.sqrt(event.sum()), name


def test_a_share_of_draws_is_counted(study):
    """A model without noise left to chance: intervals of half the width hold the truth in about 67 % of the draws."""
    case = study["CASES"]["linear"]
    found = [study["intervals"](case, seed) for seed in range(40)]
    half = [((low + high) / 2, (high - low) / 4) for low, high in found]
    share = np.mean([np.abs(middle - case.truth) <= reach for middle, reach in half])
    assert 0.55 < share < 0.8  # 2 Phi(0.98) - 1 = 0.673
    assert not study["in_range"](np.full(5, share))
    assert study["in_range"](np.full(5, 0.95))


@pytest.mark.thorough
def test_processes_change_nothing():
    """A draw depends on its number alone."""
    command = [sys.executable, str(STUDY), "--draws", "27", "--only", "Cox"]
    tables = [
        subprocess.run([*command, "--jobs", jobs], capture_output=True, text=True, timeout=300).stdout
        for jobs in ("1", "3")
    ]
    assert tables[0] == tables[1]
    assert tables[0].count("\n| Cox") == 2
