"""Estimators that choose alpha by cross-validation, the folds made inside the sites or of whole sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from sklearn.base import is_classifier

from compfed.algorithms import Algorithm
from compfed.data import Sites
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
from compfed.estimators.many_outcomes import FederatedMultiTaskLasso, FederatedNuclearRegressor
from compfed.estimators.path import alpha_grid, at_alpha, check_grid, follow, published, rounds_of, warn_if_short
from compfed.problem.problem import Problem, objectives_and_mappings
from compfed.problem.regularisers import Zero
from compfed.solvers.federated import Minimum
from compfed.tools.precision import precision
from compfed.tools.progress import progress_bar

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
        parts = splits(federation.sites, federation.rows, federation.length, self.cv, self.seed, is_classifier(self))
        if self.rule == "one_standard_error" and len(parts) < 2:
            raise InputError(
                f"{type(self).__name__}: rule='one_standard_error' needs two splits or more; cv gives one."
            )
        if is_classifier(self):
            self._check_classes(federation.sites, parts, model.classes_)  # pyright: ignore[reportAttributeAccessIssue]
        prepared = model._prepare(federation)
        for name in [name for name in vars(self) if name.endswith("_")]:  # of an earlier fit
            delattr(self, name)
        self.alphas_ = alpha_grid(model, prepared, self.alphas, self.n_alphas, self.eps)
        self.fold_ = _fold_column(parts, federation.rows, federation.length)
        progress = progress_bar(type(self).__name__) if self.verbose else None
        paths, losses = [], []
        for number, split in enumerate(parts):
            path, loss = self._held_out(model, federation, split)
            paths.append(path)
            losses.append(loss)
            if progress is not None:
                progress(number + 1, len(parts) + 1)
        self.cv_loss_ = np.column_stack(losses)
        self._choose()
        path = follow(model, prepared, self.alphas_)
        if progress is not None:
            progress(len(parts) + 1, len(parts) + 1)
        coefs, intercepts = zip(*(published(model, prepared, m.x) for m in path), strict=True)
        self.coef_path_, self.intercept_path_ = np.array(coefs), np.array(intercepts)
        self.n_rounds_path_ = sum(map(rounds_of, [*paths, path]))
        chosen = replace(prepared, problem=at_alpha(model, prepared, self.alpha_))
        model._finish(chosen, path[int(np.flatnonzero(self.alphas_ == self.alpha_)[0])])
        fitted = {name: value for name, value in vars(model).items() if name not in model.get_params()}
        self.__dict__.update(fitted)
        warn_if_short(type(self).__name__, [m for p in [*paths, path] for m in p], model)
        return self

    def _check_selection(self) -> None:
        me = type(self).__name__
        check_grid(me, self.alphas, self.n_alphas, self.eps)
        whole(self.seed, f"{me}: seed", 0)
        if self.rule not in RULES:
            raise InputError(f"{me}(rule={self.rule!r}): rule must be one of {', '.join(map(repr, RULES))}.")

    def _check_classes(self, sites: Sites, parts: Sequence[Split], classes: np.ndarray) -> None:
        """A class that no training row has would be given no chance, and its held-out rows an infinite loss."""
        for split in parts:
            train = np.concatenate([y[t] for y, t in zip(sites.labels, split.train, strict=True)])
            absent = np.setdiff1d(np.arange(len(classes)), train)
            if absent.size:
                held = ", ".join(name for name, t in zip(sites.names, split.test, strict=True) if t.any())
                raise InputError(
                    f"{type(self).__name__}: one split has no row of class {classes[absent[0]]!s} to learn from; it holds "
                    f"out rows of: {held}. Use fewer folds, another seed, folds inside the sites, or leave the class out."
                )

    def _held_out(self, model: FederatedModel, table: Federation, split: Split) -> tuple[list[Minimum], np.ndarray]:
        """The models of the rows that are not held out, one per alpha, and their loss at those that are."""
        equal, counts = self.site_weights == "equal", table.sites.row_weights
        counts = [np.ones(m) for m in table.sites.sizes] if counts is None else counts
        train, p = restricted(table.sites, split.train, counts, equal)
        prepared = model._prepare(replace(table, sites=train, weights=p))
        path = follow(model, prepared, self.alphas_)
        test, p = restricted(prepared.problem.sites, split.test, counts, equal)
        problem = Problem(prepared.problem.loss, Zero(), test, weights=p)
        with precision(problem.dtype):
            models = np.array([m.x for m in path])
            losses = objectives_and_mappings(problem.loss, problem.regulariser, problem.store, models, 1.0)[0]
        return path, np.asarray(losses)

    def _choose(self) -> None:
        mean = self.cv_loss_.mean(axis=1)
        best, splits = int(mean.argmin()), self.cv_loss_.shape[1]
        self.alpha_best_, self.alpha_one_standard_error_ = float(self.alphas_[best]), np.nan
        if splits > 1:
            error = self.cv_loss_[best].std(ddof=1) / np.sqrt(splits)
            within = int(np.flatnonzero(mean <= mean[best] + error)[0])  # alphas fall: the first is the largest
            self.alpha_one_standard_error_ = float(self.alphas_[within])
        self.alpha_ = self.alpha_best_ if self.rule == "best" else self.alpha_one_standard_error_


def _fold_column(parts: Sequence[Split], rows: Sequence[np.ndarray], length: int) -> np.ndarray:
    """The number of the split that holds each row of the table out; -1 for a row that none does."""
    fold = np.full(length, -1)
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
    """FederatedPoissonRegressor with alpha chosen by cross-validation inside or across sites; see CrossValidated.

    `l1_ratio` is 0.5 unless given, not 0: with a ridge alone no alpha makes all coefficients zero, to start from.
    """

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


class _ManyOutcomesCV(CrossValidated):
    """The parameters of the two below."""

    def __init__(
        self, alphas: Any = None, *, n_alphas: int = 50, eps: float = 1e-3, cv: Any = 5, rule: str = "best",
        seed: int = 0, fit_intercept: bool = True, standardize: bool = False, site_weights: str = "rows",
        algorithm: str | Algorithm = "auto", tau: int = 5, tol: float = 1e-12, max_rounds: int = 20_000, verbose: bool = False,
    ):  # fmt: skip
        self.alphas = alphas
        self.n_alphas = n_alphas
        self.eps = eps
        self.cv = cv
        self.rule = rule
        self.seed = seed
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.site_weights = site_weights
        self.algorithm = algorithm
        self.tau = tau
        self.tol = tol
        self.max_rounds = max_rounds
        self.verbose = verbose


class FederatedMultiTaskLassoCV(_ManyOutcomesCV, FederatedMultiTaskLasso):
    """FederatedMultiTaskLasso with alpha chosen by cross-validation inside or across sites; see CrossValidated."""

    model = FederatedMultiTaskLasso


class FederatedNuclearRegressorCV(_ManyOutcomesCV, FederatedNuclearRegressor):
    """FederatedNuclearRegressor with alpha chosen by cross-validation inside or across sites; see CrossValidated."""

    model = FederatedNuclearRegressor
