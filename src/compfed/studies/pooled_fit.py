"""Fit the pooled rows with a solver that is not ours: the model that a federated fit is compared with.

scikit-learn solves the problem wherever it has an estimator with the same objective, and `compfed.solve_pooled` elsewhere.
The result names the solver. It is also checked, because scikit-learn's stopping rules do not bound the gradient mapping.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
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
from compfed.estimators.base import FederatedModel
from compfed.estimators.programs.fit import describe_and_prepare
from compfed.federation.server.program import run_program
from compfed.federation.site.in_process import InProcess
from compfed.simulation.local_federation import Simulated
from compfed.solve import solve_pooled
from compfed.splits import RowSubset

GOOD = 1e-8  # largest accepted gradient mapping, relative to the gradient of the null model
DUST = 1e-12  # a coefficient below this share of the largest one is rounding, and is set to zero
EPOCHS = 3_000  # of scikit-learn's saga: with columns in comparable units it has converged by then
WORK = 2e8  # rows x columns x epochs that saga may take: a second or two


class PooledFit(NamedTuple):
    """The model of the pooled rows, and the name of the solver that found it."""

    coef: np.ndarray  # (outputs, features), on the original scale
    intercept: np.ndarray  # (outputs,)
    solver: str


class Rows(NamedTuple):
    """The pooled rows: columns centred and scaled as the estimator asks, weights that sum to the number of rows."""

    Z: np.ndarray
    y: np.ndarray  # labels; of a classifier, positions among the classes
    weight: np.ndarray
    classes: int  # 0 where labels are numbers
    __repr__ = shapes_shown


LinearFit = ElasticNet | Lasso | LogisticRegression | MultiTaskLasso | PoissonRegressor
Answer = tuple[np.ndarray, np.ndarray]  # coefficients (outputs, columns) and intercepts (outputs,) of Z
Route = tuple[str, Callable[..., Answer]]  # name, and a function of the estimator and the rows


def fit_pooled(estimator: FederatedModel, federation: InProcess, subset: RowSubset | None = None) -> PooledFit:
    """Fit an estimator with a given alpha to the rows of all sites together, or to a subset of them."""
    prepared, _ = run_program(federation, describe_and_prepare(federation, estimator.fit_options(), subset))
    alpha = float(estimator.alpha)  # pyright: ignore[reportAttributeAccessIssue]  # a field of every such estimator
    problem = Simulated(federation.sites).problem(prepared.at(alpha))
    rows, centre, scale = _pooled_rows(estimator, federation, subset, prepared.summary.labels.classes)
    failed = []
    for name, route in _routes(estimator, rows):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the gradient mapping below decides
            u, b = route(estimator, rows)
        size = np.abs(u) * rows.Z.std(axis=0)
        u[size < DUST * size.max()] = 0.0
        coef = (u / scale).T
        intercept = b - centre @ coef
        reached = problem.gradient_mapping(prepared.scaling.model(coef, intercept))
        if np.linalg.norm(reached) <= GOOD * (prepared.null.scale or 1.0):
            break
        failed.append(name)
    else:
        why = f"{' and '.join(failed)} did not converge" if failed else "scikit-learn has no model with this objective"
        name = f"compfed.solve_pooled, centralised ({why})"
        coef, intercept = prepared.scaling.coefficients(solve_pooled(problem).x)
    coef, intercept = prepared.options.family.coef_and_intercept(coef + 0.0, intercept)
    return PooledFit(np.atleast_2d(coef), np.atleast_1d(intercept), name)


def _pooled_rows(
    estimator: FederatedModel, federation: InProcess, subset: RowSubset | None, classes: np.ndarray | None
) -> tuple[Rows, np.ndarray, np.ndarray]:
    """The rows, and the centre and scale of their columns."""
    weights = [site.weights_of(subset) for site in federation.sites]
    X = np.concatenate([site.whole()[w > 0] for site, w in zip(federation.sites, weights, strict=True)])
    y = np.concatenate([site.labels[w > 0] for site, w in zip(federation.sites, weights, strict=True)])
    equal = estimator.site_weights == "equal"
    weight = np.concatenate([w[w > 0] / (w.sum() if equal else 1.0) for w in weights])
    weight *= len(weight) / weight.sum()
    centre = np.average(X, axis=0, weights=weight) if estimator.fit_intercept else np.zeros(X.shape[1])
    scale = np.ones(X.shape[1])
    if estimator.standardize:
        spread = np.sqrt(np.average((X - centre) ** 2, axis=0, weights=weight))
        varies = np.ptp(X, axis=0) > 0 if estimator.fit_intercept else spread > 0
        scale = np.where(varies, spread, 1.0)
    targets = y.astype(float) if classes is None else np.searchsorted(classes, y).astype(float)
    return Rows((X - centre) / scale, targets, weight, 0 if classes is None else len(classes)), centre, scale


def _routes(model: FederatedModel, rows: Rows) -> Iterator[Route]:
    """scikit-learn's way to solve the problem of `model`, if there is one."""
    if getattr(model, "alpha", None) == 0 and not isinstance(model, FederatedLogisticRegression):
        return
    if isinstance(model, (FederatedLasso, FederatedElasticNet)):
        yield ("scikit-learn Lasso" if isinstance(model, FederatedLasso) else "scikit-learn ElasticNet"), _least_squares
    elif isinstance(model, FederatedMultiTaskLasso) and np.ptp(rows.weight) == 0:
        yield "scikit-learn MultiTaskLasso", _multi_task
    elif isinstance(model, FederatedLogisticRegression):
        yield "scikit-learn LogisticRegression", _logistic
    elif isinstance(model, FederatedPoissonRegressor) and model.l1_ratio == 0:
        yield "scikit-learn PoissonRegressor", _poisson


def _least_squares(model: FederatedLasso | FederatedElasticNet, rows: Rows) -> Answer:
    options = {"fit_intercept": model.fit_intercept, "positive": model.positive, "tol": 1e-14, "max_iter": 100_000}
    lasso = isinstance(model, FederatedLasso)
    fit = Lasso(model.alpha, **options) if lasso else ElasticNet(model.alpha, l1_ratio=model.l1_ratio, **options)
    return _of(fit.fit(rows.Z, rows.y, sample_weight=rows.weight))


def _multi_task(model: FederatedMultiTaskLasso, rows: Rows) -> Answer:
    Y = rows.y.reshape(len(rows.y), -1)
    return _of(
        MultiTaskLasso(model.alpha, fit_intercept=model.fit_intercept, tol=1e-14, max_iter=100_000).fit(rows.Z, Y)
    )


def _poisson(model: FederatedPoissonRegressor, rows: Rows) -> Answer:
    fit = PoissonRegressor(
        alpha=model.alpha, fit_intercept=model.fit_intercept, solver="newton-cholesky", tol=1e-12, max_iter=1000
    )
    return _of(fit.fit(rows.Z, rows.y, sample_weight=rows.weight))


def _logistic(model: FederatedLogisticRegression, rows: Rows) -> Answer:
    n, d = rows.Z.shape
    two = rows.classes == 2
    C = 1.0 / (n * model.alpha) if model.alpha > 0 else np.inf
    options = {"C": C, "fit_intercept": model.fit_intercept, "tol": 1e-12, "random_state": 0}
    if model.l1_ratio > 0 and model.alpha > 0:
        options |= {"solver": "saga", "l1_ratio": model.l1_ratio, "max_iter": int(np.clip(WORK / (n * d), 20, EPOCHS))}
        if LogisticRegression().penalty == "l2":  # scikit-learn before 1.8 needs the penalty by name
            options["penalty"] = "elasticnet"
    else:
        options |= {"solver": "newton-cholesky" if two else "newton-cg", "max_iter": 1000}
    coef, intercept = _of(LogisticRegression(**options).fit(rows.Z, rows.y, sample_weight=rows.weight))
    return coef, intercept if two else intercept - intercept.mean()


def _of(fit: LinearFit) -> Answer:
    return np.atleast_2d(fit.coef_), np.atleast_1d(fit.intercept_)
