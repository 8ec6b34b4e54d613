"""The fit of the pooled rows by another route than the estimator's own: what a federated fit is to be compared with.

scikit-learn solves the same problem wherever it has one with the same objective; `compfed.solve` does elsewhere. Which one it
was is said, and its answer is checked: scikit-learn's stopping rules promise less than they are asked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, MultiTaskLasso, PoissonRegressor

from compfed._utils.text import shapes_shown
from compfed.estimators import (
    FederatedElasticNet,
    FederatedLasso,
    FederatedLogisticRegression,
    FederatedMultiTaskLasso,
    FederatedPoissonRegressor,
)
from compfed.estimators.programs.fit import PreparedProblem, describe_and_prepare
from compfed.federation.server.program import run_program
from compfed.solve import solve_pooled

GOOD = 1e-8  # gradient mapping, as a share of the gradient without features, of an answer to be trusted
DUST = 1e-12  # of the largest coefficient: zero but for rounding
EPOCHS = 3_000  # of scikit-learn's saga, which has converged by then or has columns that it cannot cope with
WORK = 2e8  # rows x columns x epochs, a second or two


@dataclass(frozen=True)
class Rows:
    """The pooled rows: columns centred and scaled as the estimator asks, weights that sum to their number."""

    Z: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    __repr__ = shapes_shown


Answer = tuple[np.ndarray, np.ndarray]  # coefficients (outputs, columns) and intercepts (outputs,) of Z
Route = tuple[str, Callable[[Any, Rows], Answer]]


def fit_pooled(model: Any, X: np.ndarray, y: np.ndarray, sites: np.ndarray) -> tuple[Any, str]:
    """`model` fitted to the pooled rows by an independent solver, and the name of that solver.

    `sites` matter for nothing but site_weights="equal".
    """
    fitted: Any = clone(model)
    federation = fitted.make_table(X, y, sites, None).federation()
    prepared, _ = run_program(federation, describe_and_prepare(federation, fitted.fit_options()))
    problem = federation.problem(prepared.at(fitted.alpha))
    if prepared.summary.labels.classes is not None:
        fitted.classes_ = prepared.summary.labels.classes
    rows, centre, scale = _rows(fitted, X, y, sites)
    scale_of_gradient = prepared.null.scale or 1.0
    failed = []
    for name, route in _routes(fitted):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # what is reached is measured below
            u, b = route(fitted, rows)
        size = np.abs(u) * rows.Z.std(axis=0)
        u[size < DUST * size.max()] = 0.0
        coef = (u / scale).T
        intercept = b - centre @ coef
        reached = problem.gradient_mapping(prepared.scaling.model(coef, intercept))
        if np.linalg.norm(reached) <= GOOD * scale_of_gradient:
            return _published(fitted, prepared, coef + 0.0, intercept), name
        failed.append(name)
    why = f"{' and '.join(failed)} did not converge" if failed else "scikit-learn has no model with this objective"
    answer = _published(fitted, prepared, *prepared.scaling.coefficients(solve_pooled(problem).x))
    return answer, f"compfed.solve, centralised ({why})"


def _published(model: Any, prepared: PreparedProblem, coef: np.ndarray, intercept: np.ndarray) -> Any:
    model.coef_, model.intercept_ = prepared.options.family.coef_and_intercept(coef, intercept)
    model.one_outcome_ = prepared.summary.labels.one_column
    return model


def _rows(model: Any, X: np.ndarray, y: np.ndarray, sites: np.ndarray) -> tuple[Rows, np.ndarray, np.ndarray]:
    _, where, size = np.unique(sites, return_inverse=True, return_counts=True)
    weight = np.ones(len(X)) if model.site_weights == "rows" else len(X) / (len(size) * size[where])
    centre = np.average(X, axis=0, weights=weight) if model.fit_intercept else np.zeros(X.shape[1])
    scale = np.ones(X.shape[1])
    if model.standardize:
        spread = np.sqrt(np.average((X - centre) ** 2, axis=0, weights=weight))
        scale = np.where(np.ptp(X, axis=0) > 0, spread, 1.0) if model.fit_intercept else np.where(spread > 0, spread, 1)
    targets = y.astype(float) if not hasattr(model, "classes_") else np.searchsorted(model.classes_, y).astype(float)
    return Rows((X - centre) / scale, targets, weight), centre, scale


def _routes(model: Any) -> Iterator[Route]:
    """scikit-learn's ways to solve the problem of `model`, the most familiar first."""
    if model.alpha == 0 and not isinstance(model, FederatedLogisticRegression):
        return
    if isinstance(model, (FederatedLasso, FederatedElasticNet)):
        yield ("scikit-learn Lasso" if isinstance(model, FederatedLasso) else "scikit-learn ElasticNet"), _least_squares
    elif isinstance(model, FederatedMultiTaskLasso) and model.site_weights == "rows":
        yield "scikit-learn MultiTaskLasso", _multi_task
    elif isinstance(model, FederatedLogisticRegression):
        yield "scikit-learn LogisticRegression", _logistic
        if model.l1_ratio > 0 and model.alpha > 0 and len(model.classes_) == 2:
            yield "Newton steps with scikit-learn ElasticNet", _newton
    elif isinstance(model, FederatedPoissonRegressor):
        if model.l1_ratio == 0:
            yield "scikit-learn PoissonRegressor", _poisson
        else:
            yield "Newton steps with scikit-learn ElasticNet", _newton


def _least_squares(model: Any, rows: Rows) -> Answer:
    options = {"fit_intercept": model.fit_intercept, "positive": model.positive, "tol": 1e-14, "max_iter": 100_000}
    lasso = isinstance(model, FederatedLasso)
    fit = Lasso(model.alpha, **options) if lasso else ElasticNet(model.alpha, l1_ratio=model.l1_ratio, **options)
    return _of(fit.fit(rows.Z, rows.y, sample_weight=rows.weight))


def _multi_task(model: Any, rows: Rows) -> Answer:
    Y = rows.y.reshape(len(rows.y), -1)
    return _of(
        MultiTaskLasso(model.alpha, fit_intercept=model.fit_intercept, tol=1e-14, max_iter=100_000).fit(rows.Z, Y)
    )


def _poisson(model: Any, rows: Rows) -> Answer:
    fit = PoissonRegressor(
        alpha=model.alpha, fit_intercept=model.fit_intercept, solver="newton-cholesky", tol=1e-12, max_iter=1000
    )
    return _of(fit.fit(rows.Z, rows.y, sample_weight=rows.weight))


def _logistic(model: Any, rows: Rows) -> Answer:
    n, d = rows.Z.shape
    two = len(model.classes_) == 2
    C = 1.0 / (n * model.alpha) if model.alpha > 0 else np.inf
    options: dict[str, Any] = {"C": C, "fit_intercept": model.fit_intercept, "tol": 1e-12, "random_state": 0}
    if model.l1_ratio > 0 and model.alpha > 0:
        options |= {"solver": "saga", "l1_ratio": model.l1_ratio, "max_iter": int(np.clip(WORK / (n * d), 20, EPOCHS))}
        if LogisticRegression().penalty == "l2":  # scikit-learn before 1.8 has to be told
            options["penalty"] = "elasticnet"
    else:
        options |= {"solver": "newton-cholesky" if two else "newton-cg", "max_iter": 1000}
    coef, intercept = _of(LogisticRegression(**options).fit(rows.Z, rows.y, sample_weight=rows.weight))
    return coef, intercept if two else intercept - intercept.mean()


def _newton(model: Any, rows: Rows) -> Answer:
    """Newton steps on the smooth part, the penalised quadratic problem of each by coordinate descent, as in glmnet.

    Coordinate descent copes with columns in different units, where saga does not.
    """
    Z, y, v = rows.Z, rows.y, rows.weight / len(rows.y)
    logistic = isinstance(model, FederatedLogisticRegression)
    options = {"fit_intercept": model.fit_intercept, "tol": 1e-14, "max_iter": 20_000, "warm_start": True}
    quadratic = ElasticNet(l1_ratio=model.l1_ratio, **options)

    def objective(w: np.ndarray, z: np.ndarray) -> float:
        loss = (np.logaddexp(0.0, z) if logistic else np.exp(z)) - y * z
        penalty = model.l1_ratio * np.abs(w).sum() + (1 - model.l1_ratio) / 2 * w @ w
        return float(v @ loss + model.alpha * penalty)

    w, b = np.zeros(Z.shape[1]), 0.0
    for _ in range(100):
        z = Z @ w + b
        mean = expit(z) if logistic else np.exp(z)
        h = np.maximum(mean * (1 - mean) if logistic else mean, 1e-12)
        quadratic.set_params(alpha=model.alpha / (v @ h)).fit(Z, z + (y - mean) / h, sample_weight=v * h)
        dw, db = quadratic.coef_ - w, quadratic.intercept_ - b
        now, dz, t = objective(w, z) * (1 + 1e-15), Z @ dw + db, 1.0
        while objective(w + t * dw, z + t * dz) > now and t > 1e-10:
            t /= 2
        w, b = (quadratic.coef_.copy() if t == 1.0 else w + t * dw), b + t * db  # a whole step keeps exact zeros
        if np.abs(dz).max() < 1e-12:
            break
    return w[None], np.atleast_1d(b)


def _of(fit: Any) -> Answer:
    return np.atleast_2d(fit.coef_), np.atleast_1d(fit.intercept_)
