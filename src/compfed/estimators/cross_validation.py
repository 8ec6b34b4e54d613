"""Estimators that choose alpha by cross-validation, the folds made inside the sites or of whole sites.

All folds and the path over all rows are one conversation: each message carries the questions of all that are under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from compfed.errors import InputError
from compfed.estimators.folds import Parts, fold_column, parts_of, splits_of
from compfed.estimators.linear import (
    ElasticNetModel,
    FederatedElasticNet,
    FederatedGroupLasso,
    FederatedHuber,
    FederatedLasso,
    FederatedPoissonRegressor,
    GroupLassoModel,
    HuberModel,
    LassoModel,
    PoissonModel,
)
from compfed.estimators.logistic import FederatedLogisticRegression, LogisticModel
from compfed.estimators.many_outcomes import (
    FederatedMultiTaskLasso,
    FederatedNuclearRegressor,
    MultiTaskModel,
    NuclearModel,
)
from compfed.estimators.model import FederatedModel, estimator, first
from compfed.estimators.path import AlphaGrid, following, warn_if_short
from compfed.estimators.pipeline import Fitted, Gathered, Plan, Prepared, certified, gathering, preparing, site_weights
from compfed.federation.questions import HeldOut
from compfed.federation.talk import Federation, Request, Talk, converse, in_parallel
from compfed.solvers.federated import Minimum
from compfed.tools.checks import whole

RULES = ("best", "one_standard_error")


@dataclass(frozen=True)
class Selection:
    """What a cross-validation found."""

    alphas: np.ndarray
    losses: np.ndarray  # (alphas, splits)
    chosen: int  # position of the alpha that was taken
    best: int
    within_error: int | None  # the largest alpha within one standard error of the best; None with a single split
    path: Sequence[Minimum]
    paths: Sequence[Sequence[Minimum]]  # of the splits
    parts: Sequence[Parts]
    fitted: Fitted

    @property
    def fits(self) -> list[Minimum]:
        return [m for path in [*self.paths, self.path] for m in path]


def selecting(
    federation: Federation, plan: Plan, grid: AlphaGrid, cv: Any, seed: int, rule: str, listed: int
) -> Talk[Selection]:
    """Fit every alpha to every split and to all rows, and choose."""
    everything = yield from gathering(federation, plan)
    classes = everything.labels.classes
    rows = [a.rows for a in everything.described]
    parts = parts_of(cv, seed, rows, plan.family.of_classes, listed)
    if rule == "one_standard_error" and len(parts) < 2:
        raise InputError(f"{grid.name}: rule='one_standard_error' needs two splits or more; cv gives one.")
    gathered = yield from in_parallel([gathering(federation, plan, part(False)) for part in parts])
    if classes is not None:
        _check_classes(grid.name, federation.names, gathered, rows, classes)
    prepared, *folds = yield from in_parallel(
        [preparing(federation, plan, g, classes) for g in [everything, *gathered]]
    )
    alphas = grid.values(prepared)
    talks: list[Talk[Any]] = [following(federation, prepared, alphas)]
    talks += [_held_out(federation, fold, part, alphas) for fold, part in zip(folds, parts, strict=True)]
    path, *judged = yield from in_parallel(talks)
    losses = np.column_stack([loss for _, loss in judged])
    best, within = best_and_within_error(losses)
    chosen = best if rule == "best" or within is None else within
    fitted = yield from certified(prepared, float(alphas[chosen]), path[chosen])
    return Selection(alphas, losses, chosen, best, within, path, [found for found, _ in judged], parts, fitted)


def _held_out(
    federation: Federation, prepared: Prepared, part: Parts, alphas: np.ndarray
) -> Talk[tuple[list[Minimum], np.ndarray]]:
    """The models of the rows that are not held out, one per alpha, and their loss at those that are."""
    path = yield from following(federation, prepared, alphas)
    models = np.array([m.x for m in path])
    (answers,) = yield [Request((HeldOut(prepared.task.view, part(True), models),), models=len(models))]
    said = [answer for (answer,) in answers]
    p = site_weights([answer.weight for answer in said], prepared.plan.equal_sites)
    return path, p @ np.array([answer.loss for answer in said])


def best_and_within_error(losses: np.ndarray) -> tuple[int, int | None]:
    """Of losses (alphas, splits): the least on average, and the first within one standard error of it."""
    mean = losses.mean(axis=1)
    best, splits = int(mean.argmin()), losses.shape[1]
    if splits < 2:
        return best, None
    error = losses[best].std(ddof=1) / np.sqrt(splits)
    return best, int(np.flatnonzero(mean <= mean[best] + error)[0])  # alphas fall: the first is the largest


def _check_classes(
    name: str, sites: Sequence[str], gathered: Sequence[Gathered], rows: Sequence[int], classes: np.ndarray
) -> None:
    """A class that no training row has would be given no chance, and its held-out rows an infinite loss."""
    for split in gathered:
        learnt = split.labels.classes
        absent = classes if learnt is None else np.setdiff1d(classes, learnt)
        if absent.size:
            out = [site for site, a, m in zip(sites, split.described, rows, strict=True) if a.rows < m]
            raise InputError(
                f"{name}: one split has no row of class {absent[0]!s} to learn from; it holds out rows of: {', '.join(out)}. "
                "Use fewer folds, another seed, folds inside the sites, or leave the class out."
            )


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

    alphas: Any = first(None)
    n_alphas: int = 50
    eps: float = 1e-3
    cv: Any = 5
    rule: str = "best"
    seed: int = 0

    def fit(self, X: Any, y: Any, sites: Any = None, sample_weight: Any = None) -> Any:
        """Choose alpha by cross-validation, then fit with it over all rows."""
        self._grid()
        table = self.tabulated(X, y, sites, sample_weight)
        splits = splits_of(table, self.cv)
        federation = table.federation(splits)
        parts = self._select(federation, len(splits), stacklevel=4)
        self.fold_ = fold_column(table, federation.sites, parts)
        return self

    def fit_federation(self, federation: Federation) -> Any:
        """The same over whoever answers; `cv` is a number of folds or "leave-one-site-out"."""
        self._select(federation, 0, stacklevel=4)
        return self

    def _grid(self) -> AlphaGrid:
        me = type(self).__name__
        grid = AlphaGrid(me, self.alphas, self.n_alphas, self.eps)
        grid.check()
        whole(self.seed, f"{me}: seed", 0)
        if self.rule not in RULES:
            raise InputError(f"{me}(rule={self.rule!r}): rule must be one of {', '.join(map(repr, RULES))}.")
        return grid

    def _select(self, federation: Federation, listed: int, stacklevel: int) -> Sequence[Parts]:
        talk = selecting(federation, self.plan(), self._grid(), self.cv, self.seed, self.rule, listed)
        found, cost = converse(federation, talk)
        kept = {"site_column_"}
        for name in [name for name in vars(self) if name.endswith("_") and name not in kept]:  # of an earlier fit
            delattr(self, name)
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
        return found.parts


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
