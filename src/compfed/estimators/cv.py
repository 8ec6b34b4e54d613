"""Estimators that choose alpha by cross-validation, the folds made inside the sites or of whole sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from compfed._utils.validation import check_int
from compfed.data.splits import given_splits
from compfed.errors import InputError
from compfed.estimators.base import FederatedModel, check_nothing_third, estimator, first
from compfed.estimators.classification import FederatedLogisticRegression, LogisticModel
from compfed.estimators.groups import FederatedGroupLasso, GroupLassoModel
from compfed.estimators.linear import (
    ElasticNetModel,
    FederatedElasticNet,
    FederatedHuber,
    FederatedLasso,
    FederatedPoissonRegressor,
    HuberModel,
    LassoModel,
    PoissonModel,
)
from compfed.estimators.multi_output import (
    FederatedMultiTaskLasso,
    FederatedNuclearRegressor,
    MultiTaskModel,
    NuclearModel,
)
from compfed.estimators.programs.cv import selecting
from compfed.estimators.programs.path import AlphaGrid, warn_if_short
from compfed.estimators.table import NOT_SAID, fold_column
from compfed.federation.server.program import Federation, run_program
from compfed.splits import RowSubset

RULES = ("best", "one_standard_error")


@estimator
class CrossValidated(FederatedModel):
    """What all of them share. The rows of a fold are held out at their sites; only losses leave.

    - `alphas`, or `n_alphas` of them from the least at which all coefficients are zero down to eps times that;
    - `cv`: a number of folds inside the sites, "leave-one-site-out", an array with the fold of every row, or what
      scikit-learn takes (a splitter, pairs of train and test rows);
    - `rule`: "best" takes the alpha of least held-out loss, "one_standard_error" the largest alpha whose loss is within
      one standard error of the least: a sparser model that does about as well;
    - `seed`: of the folds. Scaling is refitted in each fold.

    After `fit` also: `alpha_`, `alpha_best_`, `alpha_one_standard_error_`, `alphas_`, `cv_loss_` (alphas, folds; the
    smooth loss of the held-out rows), `coef_path_`, `intercept_path_`, `fold_` (the split that held each row out; where
    the rows are in this process). `n_rounds_` and `communication_` are those of the whole cross-validation, all folds and
    set-up included; `communication_.models_per_message` says how many models shared a message, `n_fits_` how many fits
    there were and `n_fits_not_converged_` how many of them did not reach `tol`.
    """

    model: ClassVar[type[FederatedModel]]  # the estimator with a given alpha

    alphas: Any = first(default=None)
    n_alphas: int = 50
    eps: float = 1e-3
    cv: Any = 5
    rule: str = "best"
    seed: int = 0

    def fit(self, X: Any, y: Any, *more: Any, sites: Any = NOT_SAID, sample_weight: Any = None) -> Any:
        """Choose alpha by cross-validation, then fit with it over all rows."""
        check_nothing_third(type(self).__name__, more)
        self._grid()
        table = self.tabulated(X, y, sites, sample_weight)
        splits = given_splits(self.cv, table.y, table.site_of_row, (X, y, sites, sample_weight))
        federation = table.federation(splits)
        with self._restored_on_failure():
            parts = self._select(federation, len(splits), stacklevel=4)
            self.fold_ = fold_column(table, federation.sites, parts)
            self._after_a_table(X, sites)
        return self

    def fit_federation(self, federation: Federation) -> Any:
        """The same over whoever answers; `cv` is a number of folds or "leave-one-site-out"."""
        with self._restored_on_failure():
            self._select(federation, 0, stacklevel=4)
        return self

    def _grid(self) -> AlphaGrid:
        me = type(self).__name__
        grid = AlphaGrid(me, self.alphas, self.n_alphas, self.eps)
        grid.check()
        check_int(self.seed, f"{me}: seed", 0)
        if not isinstance(self.rule, str) or self.rule not in RULES:
            raise InputError(f"{me}(rule={self.rule!r}): rule must be one of {', '.join(map(repr, RULES))}.")
        return grid

    def _select(self, federation: Federation, listed: int, stacklevel: int) -> Sequence[RowSubset]:
        talk = selecting(federation, self.plan(), self._grid(), self.cv, self.seed, self.rule, listed)
        found, cost = run_program(federation, talk)
        self._publish(federation, found.fitted, cost)
        self.trace_ = found.fitted.minimum.trace  # of one model among many: its own rounds
        prepared = found.fitted.prepared
        self.alphas_, self.cv_loss_ = found.alphas, found.losses
        self.alpha_, self.alpha_best_ = float(found.alphas[found.chosen]), float(found.alphas[found.best])
        within = found.within_error
        self.alpha_one_standard_error_ = np.nan if within is None else float(found.alphas[within])
        coefs, intercepts = zip(*(prepared.published(m.x) for m in found.path), strict=True)
        self.coef_path_, self.intercept_path_ = np.array(coefs), np.array(intercepts)
        self.n_fits_ = len(found.fits)
        self.n_fits_not_converged_ = sum(not m.converged for m in found.fits)
        warn_if_short(type(self).__name__, found.fits, self.tol, self.max_rounds, stacklevel)
        self._warn_if_undecided(found.fitted, stacklevel)
        return found.subsets


@estimator
class FederatedLassoCV(CrossValidated, LassoModel):
    """FederatedLasso with alpha chosen by cross-validation inside or across sites; see CrossValidated."""

    model = FederatedLasso


@estimator
class FederatedElasticNetCV(CrossValidated, ElasticNetModel):
    """FederatedElasticNet with alpha chosen by cross-validation inside or across sites; see CrossValidated."""

    model = FederatedElasticNet


@estimator
class FederatedHuberCV(CrossValidated, HuberModel):
    """FederatedHuber with alpha chosen by cross-validation inside or across sites; see CrossValidated."""

    model = FederatedHuber


@estimator
class FederatedPoissonRegressorCV(CrossValidated, PoissonModel):
    """FederatedPoissonRegressor with alpha chosen by cross-validation inside or across sites; see CrossValidated.

    `l1_ratio` is 0.5 unless given, not 0: with a ridge alone no alpha makes all coefficients zero, to start from.
    """

    model = FederatedPoissonRegressor

    l1_ratio: float = 0.5


@estimator
class FederatedGroupLassoCV(CrossValidated, GroupLassoModel):
    """FederatedGroupLasso with alpha chosen by cross-validation inside or across sites; see CrossValidated."""

    model = FederatedGroupLasso


@estimator
class FederatedLogisticRegressionCV(CrossValidated, LogisticModel):
    """FederatedLogisticRegression with alpha chosen by cross-validation inside or across sites; see CrossValidated."""

    model = FederatedLogisticRegression


@estimator
class FederatedMultiTaskLassoCV(CrossValidated, MultiTaskModel):
    """FederatedMultiTaskLasso with alpha chosen by cross-validation inside or across sites; see CrossValidated."""

    model = FederatedMultiTaskLasso


@estimator
class FederatedNuclearRegressorCV(CrossValidated, NuclearModel):
    """FederatedNuclearRegressor with alpha chosen by cross-validation inside or across sites; see CrossValidated."""

    model = FederatedNuclearRegressor
