"""Fit the pooled rows with a solver that is not ours: the model that a federated fit is compared with.

scikit-learn solves the problem wherever it has an estimator with the same objective, and `compfed.solve_pooled` elsewhere.
The result names the solver. It is also checked, because scikit-learn's stopping rules do not bound the gradient mapping.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

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
from compfed.estimators.base import FederatedModel, RelaxedModel
from compfed.estimators.programs.fit import PreparedProblem, describe_and_prepare
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


class PooledRows(NamedTuple):
    """The pooled rows: columns centred and scaled as the estimator asks, weights that sum to the number of rows."""

    Z: np.ndarray
    y: np.ndarray  # labels; of a classifier, positions among the classes
    weight: np.ndarray
    classes: int  # 0 where labels are numbers
    __repr__ = shapes_shown


LinearFit = ElasticNet | Lasso | LogisticRegression | MultiTaskLasso | PoissonRegressor


def fit_pooled(estimator: FederatedModel, federation: InProcess, subset: RowSubset | None = None) -> PooledFit:
    """Fit an estimator with a given alpha to the rows of all sites together, or to a subset of them."""
    prepared, _ = run_program(federation, describe_and_prepare(federation, estimator.fit_options(), subset))
    alpha = float(estimator.alpha)  # pyright: ignore[reportAttributeAccessIssue]  # a field of every such estimator
    problem = Simulated(federation.sites).problem(prepared.at(alpha))
    why = "scikit-learn has no model with this objective"
    if isinstance(estimator, RelaxedModel) and estimator.has_own_penalty:
        return _relaxed(prepared, federation, solve_pooled(problem).x, why)
    rows, centre, scale = _pooled_rows(estimator, federation, subset, prepared.summary.labels.classes)
    model = _scikit_learn_model(estimator, alpha, rows)
    if model is not None:
        name = f"scikit-learn {type(model).__name__}"
        u, b = _fitted(model, rows)
        size = np.abs(u) * rows.Z.std(axis=0)
        u[size < DUST * size.max()] = 0.0
        coef = (u / scale).T
        intercept = b - centre @ coef
        reached = problem.gradient_mapping(prepared.scaling.model(coef, intercept))
        if np.linalg.norm(reached) <= GOOD * (prepared.null.scale or 1.0):
            return _published(prepared, coef, intercept, name)
        why = f"{name} did not converge"
    coef, intercept = prepared.scaling.coefficients(solve_pooled(problem).x)
    return _published(prepared, coef, intercept, f"compfed.solve_pooled, centralised ({why})")


def _relaxed(prepared: PreparedProblem, federation: InProcess, x: np.ndarray, why: str) -> PooledFit:
    """The penalised model x, mixed with its refit where the estimator asks for one."""
    (coef, intercept), share = prepared.coef_and_intercept(x), prepared.options.gammas[0]
    if share < 1:
        problem = Simulated(federation.sites).problem(prepared.restricted(prepared.support(x)))
        refit = prepared.coef_and_intercept(solve_pooled(problem).x, refit=True)
        coef, intercept = share * coef + (1 - share) * refit[0], share * intercept + (1 - share) * refit[1]
    return PooledFit(np.atleast_2d(coef), np.atleast_1d(intercept), f"compfed.solve_pooled, centralised ({why})")


def _published(prepared: PreparedProblem, coef: np.ndarray, intercept: Any, solver: str) -> PooledFit:
    family = prepared.options.family
    coef, intercept = family.coef_and_intercept(family.representative(coef + 0.0), intercept)
    return PooledFit(np.atleast_2d(coef), np.atleast_1d(intercept), solver)


def _pooled_rows(
    estimator: FederatedModel, federation: InProcess, subset: RowSubset | None, classes: np.ndarray | None
) -> tuple[PooledRows, np.ndarray, np.ndarray]:
    """The rows, and the centre and scale of their columns."""
    weights = [site.rows.weights_of(subset) for site in federation.sites]
    X = np.concatenate([site.rows.whole()[w > 0] for site, w in zip(federation.sites, weights, strict=True)])
    y = np.concatenate([site.rows.labels[w > 0] for site, w in zip(federation.sites, weights, strict=True)])
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
    return PooledRows((X - centre) / scale, targets, weight, 0 if classes is None else len(classes)), centre, scale


def _scikit_learn_model(model: FederatedModel, alpha: float, rows: PooledRows) -> LinearFit | None:
    """scikit-learn's estimator with the objective of `model`, if there is one."""
    intercept = model.fit_intercept
    exact: dict[str, Any] = {"fit_intercept": intercept, "tol": 1e-14, "max_iter": 100_000}
    if isinstance(model, FederatedLogisticRegression):
        return _logistic(model, rows)
    if alpha == 0:
        return None
    if isinstance(model, FederatedLasso):
        return Lasso(alpha, positive=model.positive, **exact)
    if isinstance(model, FederatedElasticNet):
        return ElasticNet(alpha, l1_ratio=model.l1_ratio, positive=model.positive, **exact)
    if isinstance(model, FederatedMultiTaskLasso) and np.ptp(rows.weight) == 0:
        return MultiTaskLasso(alpha, **exact)
    if isinstance(model, FederatedPoissonRegressor) and model.l1_ratio == 0:
        options: dict[str, Any] = {"solver": "newton-cholesky", "tol": 1e-12, "max_iter": 1000}
        return PoissonRegressor(alpha=alpha, fit_intercept=intercept, **options)
    return None


def _logistic(model: FederatedLogisticRegression, rows: PooledRows) -> LogisticRegression:
    n, d = rows.Z.shape
    C = 1.0 / (n * model.alpha) if model.alpha > 0 else np.inf
    options = {"C": C, "fit_intercept": model.fit_intercept, "tol": 1e-12, "random_state": 0}
    if model.l1_ratio > 0 and model.alpha > 0:
        options |= {"solver": "saga", "l1_ratio": model.l1_ratio, "max_iter": int(np.clip(WORK / (n * d), 20, EPOCHS))}
        if LogisticRegression().penalty == "l2":  # scikit-learn before 1.8 needs the penalty by name
            options["penalty"] = "elasticnet"
    else:
        options |= {"solver": "newton-cholesky" if rows.classes == 2 else "newton-cg", "max_iter": 1000}
    return LogisticRegression(**options)


def _fitted(model: LinearFit, rows: PooledRows) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients (outputs, columns) and intercepts (outputs,) of Z."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the gradient mapping decides
        if isinstance(model, MultiTaskLasso):
            model.fit(rows.Z, rows.y.reshape(len(rows.y), -1))
        else:
            model.fit(rows.Z, rows.y, sample_weight=rows.weight)
    coef, intercept = np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)
    return coef, intercept - intercept.mean() if rows.classes > 2 else intercept
