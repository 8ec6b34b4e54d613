"""A path with cross-validation by one engine, in a process of its own: python path_with_folds.py ENGINE MODEL FOLDER LIMIT [OUT].

FOLDER has grid.npz (alphas, the fold of every row) and rows.npz or site*.csv. Each of the others has one path for all rows
and one for the rows outside each fold; compfed has all in one call. Before the clock runs, the engine has done the same on
400 rows, so that it is imported and compiled. Who has used LIMIT seconds of the processor begins no further path: `part` is
the share of the rows, summed over paths, that was done. Prints a line of JSON; OUT gets the
coefficients and the losses of the folds.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from importlib.metadata import version
from pathlib import Path

if os.environ.get("ONE_CORE") and hasattr(os, "sched_setaffinity"):  # before a library counts the cores
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import numpy as np

# what a solver is told of its own accuracy; the driver checks what coefficients that gives
GLUM, SKGLM, SAGA, LASSO = 1e-6, {"logistic": 1e-6, "lasso": 1e-6, "poisson": 1e-6}, 1e-5, 1e-8
SITES = 8


def of_glum(model, X, y, alphas):
    from glum import GeneralizedLinearRegressor

    family = {"logistic": "binomial", "lasso": "gaussian", "poisson": "poisson"}[model]
    fitted = GeneralizedLinearRegressor(
        family=family, alpha_search=True, alphas=alphas, l1_ratio=1, gradient_tol=GLUM, max_iter=1000
    ).fit(X, y)
    return fitted.coef_path_, fitted.intercept_path_


def of_skglm(model, X, y, alphas):
    from skglm import GeneralizedLinearEstimator
    from skglm.datafits import Logistic, Poisson, Quadratic
    from skglm.penalties import L1
    from skglm.solvers import AndersonCD, ProxNewton

    given = {"tol": SKGLM[model], "max_iter": 1000, "fit_intercept": True, "warm_start": True}
    solver = AndersonCD(**given) if model == "lasso" else ProxNewton(**given)
    datafit = {"logistic": Logistic, "lasso": Quadratic, "poisson": Poisson}[model]()
    one = GeneralizedLinearEstimator(datafit, L1(float(alphas[0])), solver)
    X, y, coefs, intercepts = np.asfortranarray(X), 2.0 * y - 1 if model == "logistic" else y, [], []
    for alpha in alphas:
        one.penalty.alpha = float(alpha)
        one.fit(X, y)
        coefs.append(np.ravel(one.coef_).copy())
        intercepts.append(float(np.ravel(one.intercept_)[0]))
    return coefs, intercepts


def of_scikit_learn(model, X, y, alphas):
    from sklearn.linear_model import LogisticRegression, lasso_path

    if model == "lasso":
        mean, middle = X.mean(axis=0), y.mean()
        coefs = lasso_path(X - mean, y - middle, alphas=alphas, tol=LASSO, max_iter=100_000)[1].T
        return coefs, middle - coefs @ mean
    one = LogisticRegression(l1_ratio=1.0, solver="saga", tol=SAGA, max_iter=100_000, warm_start=True)
    coefs, intercepts = [], []
    for alpha in alphas:
        one.set_params(C=1 / (alpha * len(y))).fit(X, y)
        coefs.append(one.coef_[0].copy())
        intercepts.append(one.intercept_[0])
    return coefs, intercepts


PATHS = {"glum": of_glum, "skglm": of_skglm, "scikit-learn": of_scikit_learn}


def loss(model, y, z):
    """Mean loss of each column of predictions."""
    y = y[:, None]
    each = {
        "logistic": lambda: np.logaddexp(0, z) - y * z,
        "lasso": lambda: (y - z) ** 2 / 2,
        "poisson": lambda: np.exp(z) - y * z,
    }
    return each[model]().mean(axis=0)


def in_turn(path, model, X, y, alphas, fold, limit):
    """All rows, then each fold left out; with the loss on what is left out."""
    began, coefs, losses, done, whole = time.process_time(), None, [], 0, 0
    for k in [None, *range(fold.max() + 1)]:
        kept = fold != k if k is not None else np.ones(len(fold), bool)
        whole += kept.sum()
        if done and time.process_time() - began > limit:
            continue
        W, b = path(model, X if k is None else X[kept], y if k is None else y[kept], alphas)
        W, b = np.asarray(W), np.asarray(b)
        done += kept.sum()
        if k is None:
            coefs = W
        else:
            losses.append(loss(model, y[~kept], X[~kept] @ W.T + b))
    return coefs, np.array(losses), {"part": float(done / whole)}


def of_compfed(model, table, alphas, folds):
    """`table` is (X, y, sites), or what compfed.data read."""
    import compfed as cf

    cv = {
        "logistic": cf.FederatedLogisticRegressionCV, "lasso": cf.FederatedLassoCV, "poisson": cf.FederatedPoissonRegressorCV,
    }[model](alphas, cv=folds, **({"l1_ratio": 1.0} if model == "poisson" else {}))  # fmt: skip
    cv = cv.fit(*table[:2], sites=table[2]) if isinstance(table, tuple) else cv.fit_sites(table)
    cost = cv.communication_
    said = {"part": 1.0, "messages": int(cost.rounds), "bytes up": float(cost.bytes_up)}
    return cv.coef_path_.reshape(len(alphas), -1), cv.cv_loss_.T, said


def numbers(folder):
    """X, y, read as a user of that engine reads them."""
    files = sorted(folder.glob("site*.csv"))
    if not files:
        with np.load(folder / "rows.npz") as rows:
            return rows["X"], rows["y"]
    import pandas as pd

    table = pd.concat([pd.read_csv(file) for file in files])
    return table.drop(columns="label").to_numpy(), table["label"].to_numpy(float)


def peak_megabytes():
    """The most memory that this process had so far, as Linux tells it."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), None)


class Clock:
    def __init__(self):
        self.cpu, self.wall = time.process_time(), time.perf_counter()

    def took(self):
        return {"cpu": time.process_time() - self.cpu, "wall": time.perf_counter() - self.wall}


def main():
    warnings.simplefilter("ignore")
    engine, model, folder, limit = sys.argv[1], sys.argv[2], Path(sys.argv[3]), float(sys.argv[4])
    with np.load(folder / "grid.npz") as grid:
        alphas, fold, few = grid["alphas"], grid["fold"], (grid["few_X"], grid["few_y"])
    starting, ours, half = Clock(), engine == "compfed", np.arange(len(few[1])) % 2
    if ours:
        import compfed as cf

        sites = np.sort(np.arange(len(half)) % SITES)
        of_compfed(model, (*few, sites), alphas[:5], 2)
    else:
        in_turn(PATHS[engine], model, *few, alphas[:5], half, limit)
    said = {"start": starting.took(), "peak before": peak_megabytes()}
    reading, files = Clock(), sorted(folder.glob("site*.csv"))
    if ours and files:
        table = cf.data.from_files(files, "label")
    else:
        table = numbers(folder)
        table = (*table, np.sort(np.arange(len(fold)) % SITES)) if ours else table
    said["reading"] = reading.took() if files else None
    fitting = Clock()
    if ours:
        coefs, losses, more = of_compfed(model, table, alphas, int(fold.max()) + 1)
    else:
        coefs, losses, more = in_turn(PATHS[engine], model, *table, alphas, fold, limit)
    said |= {"fitting": fitting.took(), "peak": peak_megabytes(), **more}
    package = "compfed" if ours else engine
    try:
        said["version"] = version(package)
    except ModuleNotFoundError:  # the source folder on a path, not installed
        said["version"] = ""
    if len(sys.argv) > 5:
        np.savez(sys.argv[5], coefs=coefs, losses=losses)
    print(json.dumps({"engine": engine, **said}))


if __name__ == "__main__":
    main()
