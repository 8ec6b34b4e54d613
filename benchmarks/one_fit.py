"""One fit of one model by one solver, timed in this process; used by benchmarks/fits.py.

    python benchmarks/one_fit.py MODEL PROBLEM SOLVER

Prints a line of JSON after the first fit and another after the warm ones.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, softmax
from sklearn.datasets import load_breast_cancer, load_digits

DELTA = 5.0  # of Huber's loss
RATIO = {"elastic net": 0.5, "poisson": 0.5}  # of the l1 norm in the penalty; 1 elsewhere
TOL = 1e-10
MATRIX = ("multi-task lasso", "nuclear")


class Table:
    """Rows, labels and alpha of a model on a problem, and how far coefficients are from the minimiser."""

    def __init__(self, model: str, problem: str):
        self.model, rng = model, np.random.default_rng(0)
        self.X, y = self._rows(problem, rng)
        self.n, self.d = self.X.shape
        self.scale = self.X.std(axis=0)
        Z = (self.X - self.X.mean(axis=0)) / self.scale
        first = Z[:, :: max(1, self.d // 10)][:, :10]
        self.y = self._labels(y, first @ np.linspace(1, 0.1, first.shape[1]), rng)
        self.groups = np.arange(self.d) // 4
        self.classes = np.unique(self.y) if model == "logistic" else np.empty(0)
        self.outputs = len(self.classes) if len(self.classes) > 2 else self.y.reshape(self.n, -1).shape[1]
        self.start = self.gradient(np.zeros((self.d, self.outputs)), self._null())[0]
        self.ratio = RATIO.get(model, 1.0)
        self.alpha = 0.1 * self._critical()

    @staticmethod
    def _rows(problem: str, rng: np.random.Generator) -> Any:
        if problem == "cancer":
            return load_breast_cancer(return_X_y=True)
        if problem == "digits":
            X, y = load_digits(return_X_y=True)
            return X[:, np.std(X, axis=0) > 0], y
        n, d = map(int, problem.split(" x "))
        X = rng.standard_normal((n, d))
        for j in range(1, d):
            X[:, j] = 0.5 * X[:, j - 1] + 0.75**0.5 * X[:, j]
        return X, (X[:, :200:10] @ rng.standard_normal(20) + rng.standard_normal(n) > 0).astype(int)

    def _labels(self, y: np.ndarray, signal: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        noise = rng.standard_normal(self.n)
        if self.model == "logistic":
            return y
        if self.model == "poisson":
            return rng.poisson(np.exp(np.clip(0.5 * signal, -3, 3))).astype(float)
        if self.model in MATRIX:
            return np.column_stack([signal, 0.5 * signal + noise, -signal]) + rng.standard_normal((self.n, 3))
        return 10 * signal + noise

    def gradient(self, W: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of the smooth loss, in the coefficients (features, outputs) and the intercepts."""
        z, y = self.X @ W + b, self.y.reshape(self.n, -1)
        if self.model == "logistic":
            r = expit(z) - (y == self.classes[1]) if self.outputs == 1 else softmax(z, axis=1) - (y == self.classes)
        elif self.model == "poisson":
            r = np.exp(z) - y
        else:
            r = np.clip(z - y, -DELTA, DELTA) if self.model == "huber" else z - y
        return self.X.T @ r / self.n, r.mean(axis=0)

    def _null(self) -> np.ndarray:
        """The best intercepts without features."""
        if self.model == "logistic":
            shares = np.mean(self.y[:, None] == self.classes, axis=0)
            return np.log(shares) if self.outputs > 1 else np.log(shares[1:] / shares[:1])
        if self.model == "huber":
            y = self.y
            return np.array([brentq(lambda b: np.clip(b - y, -DELTA, DELTA).mean(), y.min(), y.max(), xtol=1e-14)])
        mean = np.atleast_1d(self.y.mean(axis=0))
        return np.log(mean) if self.model == "poisson" else mean

    def _critical(self) -> float:
        """The least alpha at which all coefficients are zero."""
        G = self.start
        if self.model == "group lasso":
            return float(np.sqrt(np.bincount(self.groups, G[:, 0] ** 2) / np.bincount(self.groups)).max())
        if self.model == "multi-task lasso":
            return float(np.linalg.norm(G, axis=1).max())
        return float(np.linalg.norm(G, 2)) if self.model == "nuclear" else float(np.abs(G).max() / self.ratio)

    def error(self, coef: np.ndarray, intercept: Any) -> float:
        """The subgradient of least norm in standardised columns, as a share of the gradient without features.

        For groups and matrices only of the gradient in the intercepts and of what is not zero.
        """
        W, b = np.reshape(coef, (self.outputs, self.d)).T, np.ravel(intercept)
        G, Gb = self.gradient(W, b)
        if self.model == "nuclear":
            left, values, right = np.linalg.svd(W, full_matrices=False)
            rank = int((values > 1e-9 * values.max(initial=0)).sum())
            G = (left[:, :rank].T @ G @ right[:rank].T + self.alpha * np.eye(rank)) if rank else np.zeros(1)
            return float(np.hypot(np.linalg.norm(G), np.linalg.norm(Gb)) / np.linalg.norm(self.start))
        G = G - self.X.mean(axis=0)[:, None] * Gb  # where the intercept is best
        if self.model in ("multi-task lasso", "group lasso"):
            group = np.arange(self.d) if self.model == "multi-task lasso" else self.groups
            size = np.sqrt(np.bincount(group, (W**2).sum(axis=1)))[group][:, None]
            weight = 1.0 if self.model == "multi-task lasso" else np.sqrt(np.bincount(group))[group][:, None]
            left = np.where(size > 0, G + self.alpha * weight * W / np.where(size > 0, size, 1.0), 0.0)
        else:
            left = G + self.alpha * ((1 - self.ratio) * W + self.ratio * np.sign(W))
            held = np.sign(G) * np.maximum(np.abs(G) - self.alpha * self.ratio, 0.0)
            left = np.where(W == 0, held, left)
        scale = self.scale[:, None]
        return float(np.hypot(np.linalg.norm(left / scale), np.linalg.norm(Gb)) / np.linalg.norm(self.start / scale))


def ours(t: Table) -> Any:
    cf = importlib.import_module("compfed")
    given = {"alpha": t.alpha, "tol": TOL}
    models: dict[str, Callable[[], Any]] = {
        "lasso": lambda: cf.FederatedLasso(**given),
        "elastic net": lambda: cf.FederatedElasticNet(l1_ratio=t.ratio, **given),
        "logistic": lambda: cf.FederatedLogisticRegression(**given),
        "poisson": lambda: cf.FederatedPoissonRegressor(l1_ratio=t.ratio, **given),
        "huber": lambda: cf.FederatedHuber(delta=DELTA, **given),
        "group lasso": lambda: cf.FederatedGroupLasso(groups=t.groups, **given),
        "multi-task lasso": lambda: cf.FederatedMultiTaskLasso(**given),
        "nuclear": lambda: cf.FederatedNuclearRegressor(**given),
    }
    return models[t.model]()


def of_scikit_learn(t: Table) -> Any:
    sk = importlib.import_module("sklearn.linear_model")
    tight = {"tol": 1e-11, "max_iter": 1_000_000}
    models: dict[str, Callable[[], Any]] = {
        "lasso": lambda: sk.Lasso(t.alpha, **tight),
        "elastic net": lambda: sk.ElasticNet(t.alpha, l1_ratio=t.ratio, **tight),
        "logistic": lambda: sk.LogisticRegression(C=1 / (t.n * t.alpha), l1_ratio=1.0, solver="saga", **tight),
        "multi-task lasso": lambda: sk.MultiTaskLasso(t.alpha, **tight),
    }
    return models[t.model]() if t.model in models else None


def of_skglm(t: Table) -> Any:
    sg = importlib.import_module("skglm")
    fits, penalties, solvers = (
        importlib.import_module(f"skglm.{name}") for name in ("datafits", "penalties", "solvers")
    )
    tol = TOL * float(np.linalg.norm(t.start))
    tight = {"tol": tol, "max_iter": 1000, "max_epochs": 1_000_000}
    groups = [np.flatnonzero(t.groups == k).tolist() for k in range(t.groups[-1] + 1)]
    weights = np.sqrt(np.bincount(t.groups))
    newton = {"max_iter": 1000, "max_pn_iter": 100_000, "tol": tol}
    models: dict[str, Callable[[], Any]] = {
        "lasso": lambda: sg.Lasso(t.alpha, **tight),
        "elastic net": lambda: sg.ElasticNet(t.alpha, l1_ratio=t.ratio, **tight),
        "poisson": lambda: sg.GeneralizedLinearEstimator(
            fits.Poisson(), penalties.L1_plus_L2(t.alpha, t.ratio), solvers.ProxNewton(fit_intercept=True, **newton)
        ),
        "huber": lambda: sg.GeneralizedLinearEstimator(
            fits.Huber(DELTA), penalties.L1(t.alpha), solvers.AndersonCD(fit_intercept=True, **tight)
        ),
        "group lasso": lambda: sg.GroupLasso(groups=groups, alpha=t.alpha, weights=weights, **tight),
        "multi-task lasso": lambda: sg.MultiTaskLasso(t.alpha, **tight),
    }
    if t.model == "logistic" and t.outputs == 1:
        return sg.SparseLogisticRegression(t.alpha, **tight)
    return models[t.model]() if t.model in models else None


SOLVERS = {
    "compfed": ("compfed", ours),
    "scikit-learn": ("sklearn.linear_model", of_scikit_learn),
    "skglm": ("skglm", of_skglm),
}


def main() -> None:
    warnings.simplefilter("ignore")
    model, problem, solver = sys.argv[1:4]
    module, make = SOLVERS[solver]
    table = Table(model, problem)
    began = time.perf_counter()
    importlib.import_module(module)
    imported = time.perf_counter() - began
    fitted = make(table)
    if fitted is None:
        print("null")
        return
    sites = (
        {"sites": np.random.default_rng(1).choice(4, table.n, p=[0.4, 0.3, 0.2, 0.1])} if solver == "compfed" else {}
    )
    seconds = []
    for turn in range(4):
        began = time.perf_counter()
        fitted.fit(table.X, table.y, **sites)
        seconds.append(time.perf_counter() - began)
        if turn in (0, 3):
            found = {"import": imported, "first": seconds[0], "warm": min(seconds[1:], default=None)}
            error, rounds = table.error(fitted.coef_, fitted.intercept_), getattr(fitted, "n_rounds_", None)
            print(json.dumps({**found, "error": error, "rounds": rounds}), flush=True)


if __name__ == "__main__":
    main()
