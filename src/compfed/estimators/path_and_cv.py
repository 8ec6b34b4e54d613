"""Many values of alpha: regularisation paths, and the twins of the estimators that choose alpha by cross-validation."""
# pyright: reportIncompatibleVariableOverride=false
# The alpha of an estimator is a parameter, and that of its twin is not.

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import BaseCrossValidator

from compfed._utils.text import shapes_shown
from compfed._utils.validation import check_choice, check_int, check_nonnegative
from compfed.errors import EdgeOfGridWarning, InputError, RunWarning
from compfed.estimators import regression
from compfed.estimators.base import FederatedModel, estimator, first
from compfed.estimators.classification import FederatedLogisticRegression
from compfed.estimators.programs.fit import (
    FitOptions,
    Relaxed,
    describe_and_prepare,
    refit_on_supports,
    with_common_intercepts,
)
from compfed.estimators.programs.leave_one_out import choose_by_leave_one_out
from compfed.estimators.programs.path_and_cv import (
    AlphaGrid,
    ModelPath,
    Selection,
    cross_validate,
    solve_paths,
    warn_if_not_converged,
)
from compfed.estimators.programs.plan import plan_choice, plan_path
from compfed.estimators.table import (
    UNSPECIFIED,
    CheckedTable,
    Features,
    Offset,
    RowWeights,
    SchemaLike,
    SiteOfRows,
    warn_of_one_site,
)
from compfed.federation.accounting import Communication
from compfed.federation.server.program import Federation, Program, run_program, state
from compfed.federation.site.in_process import InProcess
from compfed.losses.base import ignore_overflow
from compfed.splits import LEAVE_ONE_OUT, RowSubset, given_splits

# --- paths ---


@dataclass(frozen=True)
class Path:
    """Coefficients of an estimator at falling values of alpha.

    Attributes
    ----------
    alphas : ndarray of shape (n_alphas,)
        The values of alpha, the largest first.
    coefs : ndarray of shape (n_alphas, ...)
        `coef_` at each alpha.
    intercepts : ndarray of shape (n_alphas, ...)
        `intercept_` at each alpha.
    rounds : int
        Messages to each site for the whole path, set-up included.
    converged : bool
        Whether every fit reached its tolerance.
    communication : Communication
        Messages and bytes, by query.
    """

    alphas: np.ndarray
    coefs: np.ndarray
    intercepts: np.ndarray
    rounds: int
    converged: bool
    communication: Communication

    __repr__ = shapes_shown


def regularisation_path(
    model: FederatedModel,
    X: Features,
    y: npt.ArrayLike | str,
    sites: SiteOfRows = UNSPECIFIED,
    *,
    sample_weight: RowWeights = None,
    offset: Offset = None,
    schema: SchemaLike = None,
    alphas: npt.ArrayLike | None = None,
    n_alphas: int = 50,
    eps: float = 1e-3,
) -> Path:
    """The minimisers w(alpha), b(alpha) of an estimator's objective at many values of alpha.

    Fits start from the models at other alphas near them, and share their messages.

    Parameters
    ----------
    model : FederatedModel
        An estimator with a given alpha, such as ``FederatedLasso()``; the value of its alpha does not matter.
    X : array, DataFrame or sparse matrix of shape (n_rows, n_features)
    y : array of shape (n_rows,), or (n_rows, n_outcomes) where the estimator takes several
    sites : array of shape (n_rows,), str or None
        The site of every row, or the name of a column of X; None if all rows are at one site.
    sample_weight : array of shape (n_rows,), optional
        How much each row counts.
    offset : array of shape (n_rows,) or str, optional
        Added to the linear predictor of each row; or the name of a column of X.
    schema : "auto", Schema or path, optional
        How words and missing values of a DataFrame become numbers, as in `fit`.
    alphas : array, optional
        Values of alpha.
    n_alphas : int, default=50
        Without `alphas`: how many values, from alpha_max, the least alpha at which all coefficients are zero.
    eps : float, default=0.001
        Without `alphas`: the smallest value is ``eps * alpha_max``.

    Returns
    -------
    Path

    See Also
    --------
    FederatedLassoCV : chooses one alpha by cross-validation.

    Examples
    --------
    >>> import compfed as cf
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((60, 5))
    >>> y = 3 * X[:, 0] - X[:, 3]
    >>> path = cf.regularisation_path(cf.FederatedLasso(), X, y, sites=np.arange(60) % 3, n_alphas=5)
    >>> (path.coefs != 0).sum(axis=1)[[0, -1]]
    array([0, 2])
    """
    if not isinstance(model, FederatedModel) or hasattr(model, "cv"):
        own = ", which has its own path after fit: coef_path_" if hasattr(model, "cv") else ""
        raise InputError(
            f"regularisation_path needs an estimator with an alpha, such as FederatedLasso(); got {type(model).__name__}{own}."
        )
    grid = AlphaGrid("regularisation_path", alphas, n_alphas, eps)
    federation = model.make_table(X, y, sites, sample_weight, schema, offset).federation()
    path = path_over(federation, model, grid)
    warn_of_one_site("regularisation_path", sites)
    return path


def path_over(federation: Federation, model: FederatedModel, grid: AlphaGrid) -> Path:
    """`regularisation_path` over a federation: sites in this process, or sites across a network."""
    options = model.fit_options()
    plan = plan_path(federation, f"{type(model).__name__}.path", model._changed(), options, grid)
    state(federation, plan.stated)

    def program() -> Program[tuple[np.ndarray, ModelPath, list[Relaxed]]]:
        prepared = yield from describe_and_prepare(federation, options)
        values = yield from grid.values(federation, prepared)
        (found,) = yield from solve_paths(federation, [prepared], values, options.search.progress)
        (refits,) = yield from refit_on_supports(federation, [(prepared, found)])
        path = ModelPath(prepared, None, found, refits, np.empty((0, 1)))
        return values, path, (yield from with_common_intercepts(prepared, path.mixed(options.gammas[0])))

    (values, found, models), cost = run_program(federation, program())
    warn_if_not_converged(grid.name, found.fits, options.search)
    coefs, intercepts = found.prepared.coefs_and_intercepts(models)
    return Path(values, coefs, intercepts, cost.rounds, all(m.converged for m in found.fits), cost)


# --- cross-validation ---

MOST_TURNS = 4  # of a cross-validation and an estimate of theta
NO_FEATURES = 1e6  # alpha at which penalised coefficients are as good as zero


@estimator
class CrossValidated(FederatedModel):
    """Base class of the estimators that choose alpha by cross-validation.

    Alpha is chosen by the mean loss on held-out rows, without the penalty. The rows of a fold are held out at their sites, and
    only sums of losses leave. With `standardize`, the scale of a column is that over the rows to train with. All folds share their
    messages.

    Parameters
    ----------
    alphas : array of shape (n_alphas,), optional
        Values of alpha to choose from.
    n_alphas : int, default=50
        Without `alphas`: how many values, from the least alpha at which all penalised coefficients are zero downwards. Where the
        loss still falls at the smallest one, half as many again are added below it, at most twice; then an
        `EdgeOfGridWarning` says so.
    eps : float, default=0.001
        Without `alphas`: the smallest value, as a share of the largest.
    gamma : float or list of float, default=0.0
        With `relax`: the model is gamma * penalised fit + (1 - gamma) * refit. Of a list, the best is chosen together with alpha.
    cv : int, str, array, splitter or pairs, default=5
        The number of folds inside the sites; "loo", approximate leave-one-out; "leave-one-site-out"; the fold of every row; or
        what scikit-learn takes, a splitter (its groups are the sites) or pairs (train, test) of rows. "loo" fits one path, to
        all rows, and takes one Newton step without each row. Where rows left out lose over twice as much as in the fit the
        step is no approximation (off by 5 to 20 %, or far more), and five folds choose alpha in its place, with a `RunWarning`.
    rule : {"best", "one_standard_error"}, default="best"
        "best" takes the alpha of least held-out loss. "one_standard_error" takes the largest alpha whose loss is within one
        standard error of the least: a sparser model that predicts almost as well. The standard error is that of the mean over
        the splits; with cv="loo" that of the mean over the rows.
    seed : int, default=0
        Seed of the folds.
    cv_tol : float, optional
        Tolerance of the fits without the rows of a fold, where that is larger than `tol`. They only choose alpha: with 1e-6 their
        loss differed by less than 1e-4 on the tables that were tried.

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
        Mean loss on the held-out rows, without the penalty; with `relax`, that of `gamma_`. With cv="loo" one column, infinite
        where it is not known.
    cv_results_ : dict of ndarray
        One entry for each alpha (and gamma): alpha, mean_loss, std_loss, standard_error, n_nonzero, split0_loss, ...;
        ``pandas.DataFrame(model.cv_results_)`` is the table.
    coef_path_ : ndarray of shape (n_alphas, ...)
        Coefficients of all rows at each alpha.
    intercept_path_ : ndarray of shape (n_alphas, ...)
        Intercepts of all rows at each alpha.
    fold_ : ndarray of shape (n_rows,)
        The split that held out each row, -1 for none; after `fit` to a table only.
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
    cv_tol: float | None = None

    several_gammas = True

    # As a class variable, the alpha of the twin is not a parameter; as this property, it is not an attribute either.
    alpha: ClassVar[property] = property(lambda self: _raise_no_alpha(self))

    def fit_options(self) -> FitOptions:
        me = type(self).__name__
        self._alpha_grid()
        check_int(self.seed, f"{me}: seed", 0)
        check_choice(self.rule, f"{me}: rule", ("best", "one_standard_error"))
        options = super().fit_options()
        if self.cv_tol is None:
            return options
        return replace(options, cv_tol=check_nonnegative(self.cv_tol, f"{me}: cv_tol"))

    def _alpha_grid(self) -> AlphaGrid:
        return AlphaGrid(type(self).__name__, self.alphas, self.n_alphas, self.eps)

    def _fit_table(self, table: CheckedTable, given: tuple[object, ...]) -> None:
        masks = given_splits(self.cv, table.y, table.site_of_row, given)
        federation = table.federation(masks)
        splits = self._choose_alpha(federation, len(masks), stacklevel=5)
        self.fold_ = np.full(table.length, -1)  # of a row that no split tests with
        for number, split in enumerate(splits):
            for rows, site in zip(table.rows, federation.sites, strict=True):
                self.fold_[rows[split.mask(site.rows)]] = number

    def fit_federation(self, federation: Federation) -> Self:
        """Choose alpha and fit over a federation; `cv` is a number of folds, "loo" or "leave-one-site-out"."""
        self._check_schema(federation.schema)
        with self._restored_on_failure():
            self._choose_alpha(federation, 0, stacklevel=4)
        return self

    def _choose_alpha(self, federation: Federation, listed: int, stacklevel: int) -> Sequence[RowSubset]:
        # sites in this process answer on after a refusal, unless their sums are to be those of a network
        recovers = isinstance(federation, InProcess) and not federation.exact
        options, grid = self.fit_options(), replace(self._alpha_grid(), survives_refusals=recovers)
        plan = plan_choice(
            federation, type(self).__name__, self._changed(), options, grid, self.cv, self._numbers_after
        )
        options, grid = plan.options, plan.grid or grid
        state(federation, plan.stated)
        if isinstance(plan.cv, str) and plan.cv == LEAVE_ONE_OUT:
            program = choose_by_leave_one_out(federation, options, grid, self.seed, self.rule)
        else:
            program = cross_validate(federation, options, grid, plan.cv, self.seed, self.rule, listed)
        found, cost = run_program(federation, program)
        fits = [m for path in found.paths for m in path.fits]
        self._set_attributes(federation, found.fitted, cost)
        self.trace_ = found.fitted.minimum.trace  # of one model among many: its own rounds
        self.alphas_, self.cv_loss_ = found.alphas, found.losses[:, found.gamma]
        self.alpha_, self.alpha_best_ = float(found.alphas[found.chosen]), float(found.alphas[found.best])
        within = found.within_error
        self.alpha_one_standard_error_ = np.nan if within is None else float(found.alphas[within])
        prepared = found.fitted.prepared
        paths = [prepared.coefs_and_intercepts(models) for models in found.models]
        self.coef_path_, self.intercept_path_ = paths[found.gamma]
        self.cv_results_ = _results(found, [coefs for coefs, _ in paths], bool(getattr(self, "relax", False)))
        self.n_fits_, self.n_fits_not_converged_ = len(fits), sum(not m.converged for m in fits)
        warn_if_not_converged(grid.name, fits, options.search, stacklevel)
        self._warn_if_not_certified(found.fitted, stacklevel)
        self._warn_if_not_unique(found.fitted, stacklevel)
        if found.edge:
            warnings.warn(found.edge, EdgeOfGridWarning, stacklevel=stacklevel)
        if plan.note:
            self.trace_.provenance["plan"] = plan.note
        for note in filter(None, (plan.note, found.note)):
            warnings.warn(note, RunWarning, stacklevel=stacklevel)
        return found.splits


@ignore_overflow  # a held-out loss may be infinite
def _results(found: Selection, coefs: Sequence[np.ndarray], relaxed: bool) -> dict[str, np.ndarray]:
    """cv_results_: one row for each alpha, and for each gamma of it."""
    losses, (alphas, gammas, splits) = found.losses, found.losses.shape
    flat = losses.reshape(-1, splits)
    spread = flat.std(axis=1) if found.errors is None else np.full(len(flat), np.nan)
    error = flat.std(axis=1, ddof=1) / np.sqrt(splits) if splits > 1 else np.full(len(flat), np.nan)
    error = error if found.errors is None else found.errors.ravel()
    nonzero = np.array([np.count_nonzero(c.reshape(alphas, -1), axis=1) for c in coefs]).T.ravel()
    table = {"alpha": np.repeat(found.alphas, gammas)}
    if relaxed:
        table["gamma"] = np.tile(found.gammas, alphas)
    table |= {
        "mean_loss": flat.mean(axis=1),
        "std_loss": spread,
        "standard_error": error,
        "n_nonzero": nonzero,
    }
    return table | {f"split{k}_loss": flat[:, k] for k in range(splits)}


def _raise_no_alpha(model: CrossValidated) -> float:
    raise AttributeError(f"{type(model).__name__} has no alpha: fit chooses it, as alpha_.")


@estimator
class FederatedLassoCV(CrossValidated, regression.FederatedLasso):
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
class FederatedElasticNetCV(CrossValidated, regression.FederatedElasticNet):
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
class FederatedHuberCV(CrossValidated, regression.FederatedHuber):
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
class FederatedPoissonRegressorCV(CrossValidated, regression.FederatedPoissonRegressor):
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
    >>> X = np.arange(60.0)[:, None] / 60
    >>> counts = np.floor(np.exp(3 * X[:, 0]))
    >>> model = cf.FederatedPoissonRegressorCV(n_alphas=10, cv=3).fit(X, counts, sites=np.arange(60) % 3)
    >>> bool(model.coef_[0] > 2)
    True
    """

    l1_ratio: float = 0.5


@estimator
class FederatedNegativeBinomialRegressorCV(CrossValidated, regression.FederatedNegativeBinomialRegressor):
    """Negative binomial regression of counts over sites, with alpha chosen by cross-validation.

    Parameters
    ----------
    l1_ratio : float, default=0.5
        Share of the l1 norm in the penalty. Not 0: with a ridge alone no alpha makes all coefficients zero, so that
        there is no largest alpha to start from.

    See Also
    --------
    FederatedNegativeBinomialRegressor : with a given alpha.

    Examples
    --------
    >>> import numpy as np
    >>> import compfed as cf
    >>> X = np.arange(60.0)[:, None] / 60
    >>> counts = np.floor(np.exp(3 * X[:, 0]))
    >>> model = cf.FederatedNegativeBinomialRegressorCV(n_alphas=5, cv=3).fit(X, counts, sites=np.arange(60) % 3)
    >>> bool(model.coef_[0] > 2)
    True
    """

    l1_ratio: float = 0.5

    def _choose_alpha(self, federation: Federation, listed: int, stacklevel: int) -> Sequence[RowSubset]:
        """With theta="ml": an alpha with the theta of no features, theta at that alpha, and so on until an alpha is chosen again."""
        if not self._estimates_theta:
            splits = super()._choose_alpha(federation, listed, stacklevel + 1)
            self.theta_ = float(self.theta)
            return splits
        total, splits, theta, alpha, before = Communication(), [], 1.0, NO_FEATURES, -1
        try:
            for _ in range(MOST_TURNS):
                plain = self._of_one_alpha(alpha).fit_federation(federation)
                self._theta = theta = plain.theta_
                splits = super()._choose_alpha(federation, listed, stacklevel + 1)
                total = total.then(plain.communication_).then(self.communication_)
                alpha, place = self.alpha_, self.alphas_.tolist().index(self.alpha_)
                if place == before:
                    break
                before = place
        finally:
            self._theta = None
            vars(self).pop("_minimum", None)
        self.theta_ = theta
        self.communication_, self.n_rounds_, self.n_iter_ = total, total.rounds, total.rounds
        return splits

    def _of_one_alpha(self, alpha: float) -> regression.FederatedNegativeBinomialRegressor:
        """The estimator with a given alpha, and the other parameters of this one."""
        model = regression.FederatedNegativeBinomialRegressor()
        given = {name: getattr(self, name) for name in model.get_params() if hasattr(self, name) and name != "alpha"}
        return model.set_params(**given | {"alpha": alpha, "relax": False, "gamma": 0.0})


@estimator
class FederatedGammaRegressorCV(CrossValidated, regression.FederatedGammaRegressor):
    """Gamma regression of amounts over sites, with alpha chosen by cross-validation.

    Parameters
    ----------
    l1_ratio : float, default=0.5
        Share of the l1 norm in the penalty. Not 0: with a ridge alone no alpha makes all coefficients zero, so that
        there is no largest alpha to start from.

    See Also
    --------
    FederatedGammaRegressor : with a given alpha.

    Examples
    --------
    >>> import compfed as cf
    >>> table = cf.data.bundled.diabetes()
    >>> model = cf.FederatedGammaRegressorCV(n_alphas=5, cv=3).fit(table.X, table.y, sites=table.sites)
    >>> model.n_fits_not_converged_
    0
    """

    l1_ratio: float = 0.5


@estimator
class FederatedGroupLassoCV(CrossValidated, regression.FederatedGroupLasso):
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
class FederatedMultiTaskLassoCV(CrossValidated, regression.FederatedMultiTaskLasso):
    """Multi-task lasso over sites, with alpha chosen by cross-validation.

    See Also
    --------
    FederatedMultiTaskLasso : with a given alpha.

    Examples
    --------
    >>> import compfed as cf
    >>> table = cf.data.bundled.diabetes()
    >>> X, Y = table.X[:, :4], table.X[:, 4:6]
    >>> model = cf.FederatedMultiTaskLassoCV(n_alphas=5, cv=2).fit(X, Y, sites=table.sites)
    >>> model.coef_path_.shape
    (5, 2, 4)
    """


@estimator
class FederatedNuclearRegressorCV(CrossValidated, regression.FederatedNuclearRegressor):
    """Low-rank regression over sites, with alpha chosen by cross-validation.

    See Also
    --------
    FederatedNuclearRegressor : with a given alpha.

    Examples
    --------
    >>> import compfed as cf
    >>> table = cf.data.bundled.diabetes()
    >>> model = cf.FederatedNuclearRegressorCV(n_alphas=5, cv="leave-one-site-out")
    >>> model.fit(table.X[:, :4], table.X[:, 4:7], sites=table.sites).coef_.shape
    (3, 4)
    """
