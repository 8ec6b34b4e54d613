"""Estimators that choose alpha by cross-validation, the folds made inside the sites or of whole sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from sklearn.base import is_classifier

from compfed.algorithms import Algorithm
from compfed.engines.run import whole
from compfed.errors import InputError
from compfed.estimators.base import FederatedModel, Federation
from compfed.estimators.folds import Split, restricted, splits
from compfed.estimators.linear import (
    FederatedElasticNet,
    FederatedGroupLasso,
    FederatedHuber,
    FederatedLasso,
    FederatedPoissonRegressor,
)
from compfed.estimators.logistic import FederatedLogisticRegression
from compfed.estimators.path import alpha_grid, alpha_max, at_alpha, checked_alphas, follow, published, rounds_of
from compfed.precision import precision
from compfed.problem import Problem, objectives_and_mappings
from compfed.regularisers import Zero

RULES = ("best", "one_standard_error")


class CrossValidated(FederatedModel):
    """What all of them share. The rows of a fold are held out at their sites; only losses leave.

    - `alphas`, or `n_alphas` of them from the least at which all coefficients are zero down to eps times that;
    - `cv`: a number of folds inside the sites, "leave-one-site-out", an array with the fold of every row, or what
      scikit-learn takes (a splitter, pairs of train and test rows);
    - `rule`: "best" takes the alpha of least held-out loss, "one_standard_error" the largest alpha whose loss is within
      one standard error of the least: a sparser model that does about as well;
    - `seed`: of the folds. Scaling is refitted in each fold.

    After `fit` also: `alpha_`, `alpha_best_`, `alpha_one_standard_error_`, `alphas_`, `cv_loss_` (alphas, folds; the
    smooth loss of the held-out rows), `coef_path_`, `intercept_path_`, `fold_` (the split that held each row out) and `n_rounds_path_`.
    """

    model: ClassVar[type[FederatedModel]]  # the estimator with a given alpha
    alphas: Any
    n_alphas: int
    eps: float
    cv: Any
    rule: str
    seed: int

    def fit(self, X: Any, y: Any, sites: Any = None, sample_weight: Any = None) -> Any:
        """Choose alpha by cross-validation, then fit with it over all rows."""
        self._check_selection()
        names = set(self.model().get_params()) - {"alpha"}
        model = self.model(**{name: getattr(self, name) for name in names})
        federation = model._federation(X, y, sites, sample_weight)
        prepared = model._prepare(federation)
        parts = splits(federation.sites, federation.rows, self.cv, self.seed, is_classifier(self))
        if self.alphas is None:
            self.alphas_ = alpha_grid(alpha_max(model, prepared), self.n_alphas, self.eps)
        else:
            self.alphas_ = checked_alphas(self.alphas)
        self.fold_ = _fold_column(parts, federation.rows)
        held = [self._held_out(model, federation, split) for split in parts]
        self.cv_loss_ = np.column_stack([loss for loss, _ in held])
        self._choose()
        path = follow(model, prepared, self.alphas_)
        coefs, intercepts = zip(*(published(model, prepared, m.x) for m in path), strict=True)
        self.coef_path_, self.intercept_path_ = np.array(coefs), np.array(intercepts)
        self.n_rounds_path_ = rounds_of(path) + sum(rounds for _, rounds in held)
        chosen = replace(prepared, problem=at_alpha(model, prepared, self.alpha_))
        model._finish(chosen, path[int(np.flatnonzero(self.alphas_ == self.alpha_)[0])])
        fitted = {name: value for name, value in vars(model).items() if name not in model.get_params()}
        self.__dict__.update(fitted)
        return self

    def _check_selection(self) -> None:
        me = type(self).__name__
        whole(self.n_alphas, f"{me}: n_alphas", 1)
        whole(self.seed, f"{me}: seed", 0)
        if not 0 < self.eps < 1:
            raise InputError(f"{me}(eps={self.eps!r}): eps must be between 0 and 1.")
        if self.rule not in RULES:
            raise InputError(f"{me}(rule={self.rule!r}): rule must be one of {', '.join(map(repr, RULES))}.")

    def _held_out(self, model: FederatedModel, whole: Federation, split: Split) -> tuple[np.ndarray, int]:
        """The loss of the held-out rows for the model of the others, at every alpha, and the rounds this took."""
        equal, counts = self.site_weights == "equal", whole.sites.row_weights
        counts = [np.ones(m) for m in whole.sites.sizes] if counts is None else counts
        train, p = restricted(whole.sites, split.train, counts, equal)
        prepared = model._prepare(replace(whole, sites=train, weights=p))
        path = follow(model, prepared, self.alphas_)
        test, p = restricted(prepared.problem.sites, split.test, counts, equal)
        problem = Problem(prepared.problem.loss, Zero(), test, weights=p)
        with precision(problem.dtype):
            models = np.array([m.x for m in path])
            losses = objectives_and_mappings(problem.loss, problem.regulariser, problem.store, models, 1.0)[0]
        return np.asarray(losses), rounds_of(path)

    def _choose(self) -> None:
        mean = self.cv_loss_.mean(axis=1)
        error = self.cv_loss_.std(axis=1, ddof=1) / np.sqrt(self.cv_loss_.shape[1])
        best = int(mean.argmin())
        within = int(np.flatnonzero(mean <= mean[best] + error[best])[0])  # alphas fall: the first is the largest
        self.alpha_best_, self.alpha_one_standard_error_ = float(self.alphas_[best]), float(self.alphas_[within])
        self.alpha_ = self.alpha_best_ if self.rule == "best" else self.alpha_one_standard_error_


def _fold_column(parts: Sequence[Split], rows: Sequence[np.ndarray]) -> np.ndarray:
    """The number of the split that holds each row of the table out; -1 for a row that none does."""
    fold = np.full(1 + max(int(r.max()) for r in rows), -1)
    for number, split in enumerate(parts):
        for place, test in zip(rows, split.test, strict=True):
            fold[place[test]] = number
    return fold


class FederatedLassoCV(CrossValidated, FederatedLasso):
    """FederatedLasso with alpha chosen by cross-validation inside or across sites; see CrossValidated."""

    model = FederatedLasso

    def __init__(
        self, alphas: Any = None, *, n_alphas: int = 50, eps: float = 1e-3, cv: Any = 5, rule: str = "best",
        seed: int = 0, positive: bool = False, fit_intercept: bool = True, standardize: bool = False,
        site_weights: str = "rows", algorithm: str | Algorithm = "auto", tau: int = 5, tol: float = 1e-12, max_rounds: int = 20_000,
        verbose: bool = False,
    ):  # fmt: skip
        self.alphas = alphas
        self.n_alphas = n_alphas
        self.eps = eps
        self.cv = cv
        self.rule = rule
        self.seed = seed
        self.positive = positive
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.site_weights = site_weights
        self.algorithm = algorithm
        self.tau = tau
        self.tol = tol
        self.max_rounds = max_rounds
        self.verbose = verbose


class FederatedElasticNetCV(CrossValidated, FederatedElasticNet):
    """FederatedElasticNet with alpha chosen by cross-validation inside or across sites; see CrossValidated."""

    model = FederatedElasticNet

    def __init__(
        self, alphas: Any = None, *, n_alphas: int = 50, eps: float = 1e-3, cv: Any = 5, rule: str = "best",
        seed: int = 0, l1_ratio: float = 0.5, positive: bool = False, fit_intercept: bool = True, standardize: bool = False,
        site_weights: str = "rows", algorithm: str | Algorithm = "auto", tau: int = 5, tol: float = 1e-12, max_rounds: int = 20_000,
        verbose: bool = False,
    ):  # fmt: skip
        self.alphas = alphas
        self.n_alphas = n_alphas
        self.eps = eps
        self.cv = cv
        self.rule = rule
        self.seed = seed
        self.l1_ratio = l1_ratio
        self.positive = positive
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.site_weights = site_weights
        self.algorithm = algorithm
        self.tau = tau
        self.tol = tol
        self.max_rounds = max_rounds
        self.verbose = verbose


class FederatedHuberCV(CrossValidated, FederatedHuber):
    """FederatedHuber with alpha chosen by cross-validation inside or across sites; see CrossValidated."""

    model = FederatedHuber

    def __init__(
        self, alphas: Any = None, *, n_alphas: int = 50, eps: float = 1e-3, cv: Any = 5, rule: str = "best",
        seed: int = 0, delta: float = 1.35, l1_ratio: float = 1.0, fit_intercept: bool = True, standardize: bool = False,
        site_weights: str = "rows", algorithm: str | Algorithm = "auto", tau: int = 5, tol: float = 1e-12, max_rounds: int = 20_000,
        verbose: bool = False,
    ):  # fmt: skip
        self.alphas = alphas
        self.n_alphas = n_alphas
        self.eps = eps
        self.cv = cv
        self.rule = rule
        self.seed = seed
        self.delta = delta
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.site_weights = site_weights
        self.algorithm = algorithm
        self.tau = tau
        self.tol = tol
        self.max_rounds = max_rounds
        self.verbose = verbose


class FederatedPoissonRegressorCV(CrossValidated, FederatedPoissonRegressor):
    """FederatedPoissonRegressor with alpha chosen by cross-validation inside or across sites; see CrossValidated."""

    model = FederatedPoissonRegressor

    def __init__(
        self, alphas: Any = None, *, n_alphas: int = 50, eps: float = 1e-3, cv: Any = 5, rule: str = "best",
        seed: int = 0, l1_ratio: float = 0.5, fit_intercept: bool = True, standardize: bool = False,
        site_weights: str = "rows", algorithm: str | Algorithm = "auto", tau: int = 5, tol: float = 1e-12, max_rounds: int = 20_000,
        verbose: bool = False,
    ):  # fmt: skip
        self.alphas = alphas
        self.n_alphas = n_alphas
        self.eps = eps
        self.cv = cv
        self.rule = rule
        self.seed = seed
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.site_weights = site_weights
        self.algorithm = algorithm
        self.tau = tau
        self.tol = tol
        self.max_rounds = max_rounds
        self.verbose = verbose


class FederatedGroupLassoCV(CrossValidated, FederatedGroupLasso):
    """FederatedGroupLasso with alpha chosen by cross-validation inside or across sites; see CrossValidated."""

    model = FederatedGroupLasso

    def __init__(
        self, alphas: Any = None, *, n_alphas: int = 50, eps: float = 1e-3, cv: Any = 5, rule: str = "best",
        seed: int = 0, groups: Any = None, group_weights: Any = None, fit_intercept: bool = True, standardize: bool = False,
        site_weights: str = "rows", algorithm: str | Algorithm = "auto", tau: int = 5, tol: float = 1e-12, max_rounds: int = 20_000,
        verbose: bool = False,
    ):  # fmt: skip
        self.alphas = alphas
        self.n_alphas = n_alphas
        self.eps = eps
        self.cv = cv
        self.rule = rule
        self.seed = seed
        self.groups = groups
        self.group_weights = group_weights
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.site_weights = site_weights
        self.algorithm = algorithm
        self.tau = tau
        self.tol = tol
        self.max_rounds = max_rounds
        self.verbose = verbose


class FederatedLogisticRegressionCV(CrossValidated, FederatedLogisticRegression):
    """FederatedLogisticRegression with alpha chosen by cross-validation inside or across sites; see CrossValidated."""

    model = FederatedLogisticRegression

    def __init__(
        self, alphas: Any = None, *, n_alphas: int = 50, eps: float = 1e-3, cv: Any = 5, rule: str = "best",
        seed: int = 0, l1_ratio: float = 1.0, fit_intercept: bool = True, standardize: bool = False,
        site_weights: str = "rows", algorithm: str | Algorithm = "auto", tau: int = 5, tol: float = 1e-12, max_rounds: int = 20_000,
        verbose: bool = False,
    ):  # fmt: skip
        self.alphas = alphas
        self.n_alphas = n_alphas
        self.eps = eps
        self.cv = cv
        self.rule = rule
        self.seed = seed
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.site_weights = site_weights
        self.algorithm = algorithm
        self.tau = tau
        self.tol = tol
        self.max_rounds = max_rounds
        self.verbose = verbose
