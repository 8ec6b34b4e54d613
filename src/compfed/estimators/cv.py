"""Estimators that choose alpha by cross-validation: the twin of each estimator with a given alpha, made from its class."""
# pyright: reportIncompatibleVariableOverride=false
# The alpha of an estimator is a parameter, and that of its twin is not.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import BaseCrossValidator

from compfed._utils.validation import check_int
from compfed.errors import InputError
from compfed.estimators.base import FederatedModel, estimator, first
from compfed.estimators.classification import FederatedLogisticRegression
from compfed.estimators.linear import (
    FederatedElasticNet,
    FederatedGroupLasso,
    FederatedHuber,
    FederatedLasso,
    FederatedPoissonRegressor,
)
from compfed.estimators.multi_output import FederatedMultiTaskLasso, FederatedNuclearRegressor
from compfed.estimators.programs.cv import cross_validate
from compfed.estimators.programs.fit import FitOptions
from compfed.estimators.programs.path import AlphaGrid, warn_if_not_converged
from compfed.estimators.table import Table, fold_of_rows
from compfed.federation.server.program import Federation, run_program
from compfed.splits import RowSubset, given_splits

RULES = ("best", "one_standard_error")


@estimator
class CrossValidated(FederatedModel):
    """Base class of the estimators that choose alpha by cross-validation.

    Alpha is chosen by the mean loss on held-out rows, without the penalty. The rows of a fold are held out at their sites, and
    only sums of losses leave. Scaling is fitted anew in each fold. All folds share their messages.

    Parameters
    ----------
    alphas : array of shape (n_alphas,), optional
        Values of alpha to choose from.
    n_alphas : int, default=50
        Without `alphas`: how many values, from the least alpha at which all coefficients are zero downwards.
    eps : float, default=0.001
        Without `alphas`: the smallest value, as a share of the largest.
    cv : int, str, array, splitter or pairs, default=5
        The number of folds inside the sites; "leave-one-site-out"; the fold of every row; or what scikit-learn takes, a
        splitter (its groups are the sites) or pairs (train, test) of rows.
    rule : {"best", "one_standard_error"}, default="best"
        "best" takes the alpha of least held-out loss. "one_standard_error" takes the largest alpha whose loss is within one
        standard error of the least: a sparser model that predicts almost as well.
    seed : int, default=0
        Seed of the folds.

    Attributes
    ----------
    alpha_ : float
        The alpha that was chosen.
    alpha_best_ : float
        The alpha of least held-out loss.
    alpha_one_standard_error_ : float
        The largest alpha whose loss is within one standard error of the least; NaN with a single split.
    alphas_ : ndarray of shape (n_alphas,)
        All alphas, the largest first.
    cv_loss_ : ndarray of shape (n_alphas, n_splits)
        Mean loss on the held-out rows, without the penalty.
    coef_path_ : ndarray of shape (n_alphas, ...)
        Coefficients of all rows at each alpha.
    intercept_path_ : ndarray of shape (n_alphas, ...)
        Intercepts of all rows at each alpha.
    fold_ : ndarray of shape (n_rows,)
        The split that held out each row; after `fit` to a table only.
    n_fits_ : int
        Number of fits, over all alphas and splits.
    n_fits_not_converged_ : int
        Number of fits that did not reach `tol`.
    """

    alphas: npt.ArrayLike | None = first(default=None)
    n_alphas: int = 50
    eps: float = 1e-3
    cv: int | str | Iterable[object] | BaseCrossValidator = 5
    rule: str = "best"
    seed: int = 0

    # As a class variable, the alpha of the twin is not a parameter; as this property, it is not an attribute either.
    alpha: ClassVar[property] = property(lambda self: _raise_no_alpha(self))

    def fit_options(self) -> FitOptions:
        self._alpha_grid()
        return super().fit_options()

    def _fit_table(self, table: Table, given: tuple[object, ...]) -> None:
        masks = given_splits(self.cv, table.y, table.site_of_row, given)
        federation = table.federation(masks)
        splits = self._choose_alpha(federation, len(masks), stacklevel=5)
        self.fold_ = fold_of_rows(table, federation.sites, splits)

    def fit_federation(self, federation: Federation) -> Self:
        """Choose alpha and fit over a federation; `cv` is a number of folds or "leave-one-site-out"."""
        with self._restored_on_failure():
            self._choose_alpha(federation, 0, stacklevel=4)
        return self

    def _alpha_grid(self) -> AlphaGrid:
        me = type(self).__name__
        grid = AlphaGrid(me, self.alphas, self.n_alphas, self.eps)
        grid.check()
        check_int(self.seed, f"{me}: seed", 0)
        if not isinstance(self.rule, str) or self.rule not in RULES:
            raise InputError(f"{me}(rule={self.rule!r}): rule must be one of {', '.join(map(repr, RULES))}.")
        return grid

    def _choose_alpha(self, federation: Federation, listed: int, stacklevel: int) -> Sequence[RowSubset]:
        options, grid = self.fit_options(), self._alpha_grid()
        program = cross_validate(federation, options, grid, self.cv, self.seed, self.rule, listed)
        found, cost = run_program(federation, program)
        self._set_attributes(federation, found.fitted, cost)
        self.trace_ = found.fitted.minimum.trace  # of one model among many: its own rounds
        self.alphas_, self.cv_loss_ = found.alphas, found.losses
        self.alpha_, self.alpha_best_ = float(found.alphas[found.chosen]), float(found.alphas[found.best])
        within = found.within_error
        self.alpha_one_standard_error_ = np.nan if within is None else float(found.alphas[within])
        coefs, intercepts = zip(*(found.fitted.prepared.coef_and_intercept(m.x) for m in found.path), strict=True)
        self.coef_path_, self.intercept_path_ = np.array(coefs), np.array(intercepts)
        self.n_fits_ = len(found.fits)
        self.n_fits_not_converged_ = sum(not m.converged for m in found.fits)
        warn_if_not_converged(type(self).__name__, found.fits, self.tol, self.max_rounds, stacklevel)
        self._warn_if_not_unique(found.fitted, stacklevel)
        return found.splits


def _raise_no_alpha(model: CrossValidated) -> float:
    raise AttributeError(f"{type(model).__name__} has no alpha: fit chooses it, as alpha_.")


@estimator
class FederatedLassoCV(CrossValidated, FederatedLasso):
    """Lasso over sites, with alpha chosen by cross-validation.

    See Also
    --------
    FederatedLasso : with a given alpha.
    regularisation_path : the coefficients at many values of alpha, without choosing one.

    Examples
    --------
    >>> import compfed as cf
    >>> table = cf.data.bundled.diabetes()
    >>> model = cf.FederatedLassoCV(n_alphas=10, cv=3).fit(table.X, table.y, sites=table.sites)
    >>> model.cv_loss_.shape, bool(model.alpha_ == model.alphas_[model.cv_loss_.mean(axis=1).argmin()])
    ((10, 3), True)
    """


@estimator
class FederatedElasticNetCV(CrossValidated, FederatedElasticNet):
    """Elastic net over sites, with alpha chosen by cross-validation.

    See Also
    --------
    FederatedElasticNet : with a given alpha.

    Examples
    --------
    >>> import compfed as cf
    >>> table = cf.data.bundled.diabetes()
    >>> model = cf.FederatedElasticNetCV(n_alphas=10, cv="leave-one-site-out").fit(table.X, table.y, sites=table.sites)
    >>> model.cv_loss_.shape[1] == len(model.site_names_)
    True
    """


@estimator
class FederatedHuberCV(CrossValidated, FederatedHuber):
    """Huber regression over sites, with alpha chosen by cross-validation.

    See Also
    --------
    FederatedHuber : with a given alpha.

    Examples
    --------
    >>> import compfed as cf
    >>> table = cf.data.bundled.diabetes()
    >>> model = cf.FederatedHuberCV(delta=50, n_alphas=5, cv=2).fit(table.X, table.y, sites=table.sites)
    >>> model.n_fits_, model.n_fits_not_converged_
    (15, 0)
    """


@estimator
class FederatedPoissonRegressorCV(CrossValidated, FederatedPoissonRegressor):
    """Poisson regression of counts over sites, with alpha chosen by cross-validation.

    Parameters
    ----------
    l1_ratio : float, default=0.5
        Share of the l1 norm in the penalty. Not 0 as in FederatedPoissonRegressor: with a ridge alone no alpha makes all
        coefficients zero, so that there is no largest alpha to start from.

    See Also
    --------
    FederatedPoissonRegressor : with a given alpha.

    Examples
    --------
    >>> import numpy as np
    >>> import compfed as cf
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((90, 3))
    >>> y = rng.poisson(np.exp(0.5 * X[:, 0] + 1))
    >>> model = cf.FederatedPoissonRegressorCV(n_alphas=10, cv=3).fit(X, y, sites=np.arange(90) % 3)
    >>> bool(model.coef_[0] > 0.3)
    True
    """

    l1_ratio: float = 0.5


@estimator
class FederatedGroupLassoCV(CrossValidated, FederatedGroupLasso):
    """Group lasso over sites, with alpha chosen by cross-validation.

    See Also
    --------
    FederatedGroupLasso : with a given alpha.

    Examples
    --------
    >>> import compfed as cf
    >>> table = cf.data.bundled.diabetes()
    >>> groups = [[0, 1], [2, 3], [4, 5, 6, 7, 8, 9]]
    >>> model = cf.FederatedGroupLassoCV(groups=groups, n_alphas=10, cv=3, rule="one_standard_error")
    >>> model.fit(table.X, table.y, sites=table.sites).alpha_ >= model.alpha_best_
    True
    """


@estimator
class FederatedLogisticRegressionCV(CrossValidated, FederatedLogisticRegression):
    """Logistic regression over sites, with alpha chosen by cross-validation.

    See Also
    --------
    FederatedLogisticRegression : with a given alpha.

    Examples
    --------
    >>> import compfed as cf
    >>> table = cf.data.bundled.breast_cancer()
    >>> model = cf.FederatedLogisticRegressionCV(n_alphas=10, cv=3).fit(table.X, table.y, sites=table.sites)
    >>> model.score(table.X, table.y) > 0.9
    True
    """


@estimator
class FederatedMultiTaskLassoCV(CrossValidated, FederatedMultiTaskLasso):
    """Multi-task lasso over sites, with alpha chosen by cross-validation.

    See Also
    --------
    FederatedMultiTaskLasso : with a given alpha.

    Examples
    --------
    >>> import numpy as np
    >>> import compfed as cf
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((60, 4))
    >>> Y = np.column_stack([X[:, 0] + X[:, 1], X[:, 0] - X[:, 1]])
    >>> model = cf.FederatedMultiTaskLassoCV(n_alphas=5, cv=2).fit(X, Y, sites=np.arange(60) % 3)
    >>> model.coef_path_.shape
    (5, 2, 4)
    """


@estimator
class FederatedNuclearRegressorCV(CrossValidated, FederatedNuclearRegressor):
    """Low-rank regression over sites, with alpha chosen by cross-validation.

    See Also
    --------
    FederatedNuclearRegressor : with a given alpha.

    Examples
    --------
    >>> import numpy as np
    >>> import compfed as cf
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((60, 4))
    >>> Y = np.outer(X @ [1.0, -1.0, 2.0, 0.5], [1.0, 2.0, 3.0]) + 0.1 * rng.standard_normal((60, 3))
    >>> model = cf.FederatedNuclearRegressorCV(n_alphas=5, cv=2).fit(X, Y, sites=np.arange(60) % 3)
    >>> model.coef_.shape
    (3, 4)
    """
