"""Many values of alpha, at the server: the minimiser at each of them (a path), and the choice of one by cross-validation.

All folds of a cross-validation and the path over all rows share their messages. The server says which rows a fold has: every
site splits its own rows, or one whole site is left out. The sites find the rows (`splits.RowSubset`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning

from compfed._utils.compilation import precision
from compfed._utils.validation import check_int, check_numbers, is_int, is_number
from compfed.errors import InputError
from compfed.estimators.programs import fit
from compfed.estimators.programs.fit import FitOptions, Fitted, PooledSummary, PreparedProblem, Relaxed
from compfed.federation.enrolment import Enrolment
from compfed.federation.queries import HeldOut
from compfed.federation.query import SiteRefusal
from compfed.federation.server.program import Federation, Program, Request, gather
from compfed.federation.server.trial import Evaluated
from compfed.monitor import Progress
from compfed.solvers.auto import choose, solve
from compfed.solvers.base import FederatedSolution, SearchOptions, Start
from compfed.solvers.first_order import solve_all_by_rounds
from compfed.splits import LEAVE_ONE_SITE_OUT, RowSubset, check_folds, cv_splits, training_rows
from compfed.stopping import rounding_error

STRIDE = 8  # every eighth alpha first, then the rest
SIDE_BY_SIDE = 25  # values of alpha that share their rounds; the next block starts where these ended


# --- the values of alpha ---


@dataclass(frozen=True)
class AlphaGrid:
    """The values of alpha from the largest down: given ones, or n_alphas from alpha_max to eps times that, in even ratios."""

    name: str  # of the caller, for messages
    alphas: npt.ArrayLike | None
    n_alphas: int
    eps: float
    survives_refusals: bool = False  # whether a fit goes on where a site refuses a model

    def __post_init__(self) -> None:
        """Refuse parameters that cannot be used, before any work."""
        check_int(self.n_alphas, f"{self.name}: n_alphas", 1)
        if not is_number(self.eps) or not 0 < float(self.eps) < 1:
            raise InputError(f"{self.name}(eps={self.eps!r}): eps must be a number between 0 and 1.")
        if self.alphas is not None:
            values = check_numbers(self.alphas, "alphas")
            if values.ndim != 1 or not values.size or not ((values >= 0) & (values < np.inf)).all():
                raise InputError(f"alphas={self.alphas!r} must be a list of finite numbers >= 0.")

    @property
    def ratio(self) -> float:
        """Of an alpha to the next larger one; NaN where that is not defined."""
        return float(self.eps) ** (1 / (self.n_alphas - 1)) if self.alphas is None and self.n_alphas > 1 else np.nan

    def values(self, federation: Federation, prepared: PreparedProblem) -> Program[np.ndarray]:
        """Given ones are sorted; alpha_max takes one gradient, that of the null model, summed over the sites."""
        if self.alphas is not None:
            return np.sort(check_numbers(self.alphas, "alphas"))[::-1]
        g, gradient = prepared.at(1.0).regulariser, (yield from _null_gradient(federation, prepared))
        with precision(np.dtype(float)):
            largest = float(g.alpha_max(gradient))  # pyright: ignore[reportAttributeAccessIssue]  # every penalty here has it
        if not np.isfinite(largest):
            raise InputError(
                f"{self.name}: no alpha makes all coefficients zero, because the penalty of some has no kink "
                "(l1_ratio=0). Give alphas."
            )
        if largest == 0:
            raise InputError(
                f"{self.name}: all coefficients are zero at every alpha: no feature helps to predict y, which may "
                "be constant. Give alphas, or other data."
            )
        return np.geomspace(largest, self.eps * largest, self.n_alphas)


def _null_gradient(federation: Federation, prepared: PreparedProblem) -> Program[np.ndarray]:
    """The gradient where all penalised coefficients are 0 and the others optimal; 0 for the others, and where it is rounding alone.

    With unpenalised columns it is enlarged by its error, so that the coefficients are exactly 0 at the alpha_max that follows.
    """
    free, null, error = prepared.unpenalised(), prepared.null, 0.0
    at = null.at
    if free.any():
        kept = free.copy()
        kept[prepared.scaling.penalised :] = True
        search = replace(prepared.options.search, progress=None)
        found = yield from solve(federation, prepared.restricted(kept), search, null)
        at, error = found.at, 10 * (found.certificate.gradient_mapping + found.certificate.rounding)
    assert at is not None
    gradient = np.where(free, 0.0, at.gradient)
    if np.linalg.norm(gradient[: prepared.scaling.penalised]) <= 10 * _rounding(prepared, at):
        return np.zeros_like(gradient)
    return np.where(free, 0.0, gradient + np.copysign(error, gradient))


def _rounding(prepared: PreparedProblem, at: Evaluated) -> float:
    """What rounding can make of a gradient that is zero. The intercepts of a profile count too, though they stay at the sites."""
    x = at.x
    if prepared.options.site_effects:
        labels = prepared.summary.labels
        x = np.append(x, fit.near(prepared.options.family.null_intercept(labels), labels))
    return rounding_error(prepared.spec.sizes, x, prepared.null.L, at.terms)


# --- the path ---


def solve_path(
    federation: Federation,
    prepared: PreparedProblem,
    alphas: np.ndarray,
    progress: Progress | None = None,
    before: FederatedSolution | None = None,
) -> Program[list[FederatedSolution]]:
    """The minimiser at each alpha, after one at a larger alpha if known; searches under way share their messages.

    Second-order searches take every few alphas at first, from the null model; then those between, each from the nearest one
    found. An evaluation of f holds at every alpha: a search that starts from one needs no message before its first step, and
    its working set begins with that model's. First-order methods take blocks of alphas side by side, each block from the
    end of the one before. A round then serves a whole block, so that local work is the bottleneck: "auto" is FISTA here,
    which needs one gradient per round.
    """
    search = replace(prepared.options.search, progress=None)  # which is that of a single search
    specs, null = [prepared.at(float(alpha)) for alpha in alphas], prepared.null
    every, found = range(len(specs)), dict[int, FederatedSolution]()
    if before is not None:
        found[-1] = before
    second_order = choose(specs[0], search).second_order
    if second_order:
        batches = [every[::STRIDE], [k for k in every if k % STRIDE]]
    else:
        batches = [every[k : k + SIDE_BY_SIDE] for k in every[::SIDE_BY_SIDE]]
        search = replace(search, algorithm="FISTA" if search.algorithm == "auto" else search.algorithm)
    for batch in batches:
        if second_order:
            searches = [solve(federation, specs[k], search, _nearest(null, found, k)) for k in batch]
            solved = yield from gather(searches)
        else:
            start = replace(null, x=found[batch[0] - 1].x) if found else null
            solved = yield from solve_all_by_rounds(federation, [specs[k] for k in batch], search, start)
        found |= dict(zip(batch, solved, strict=True))
        if progress is not None:
            progress(len(found) - (before is not None), len(specs))
    return [found[k] for k in every]


def _nearest(null: Start, found: Mapping[int, FederatedSolution], k: int) -> Start:
    """The minimum at the nearest alpha (of two the larger one, whose model is sparser), or else the null model."""
    known = [j for j, minimum in found.items() if minimum.kept is not None]  # from a second-order search
    if not known:
        return null
    nearest = found[min(known, key=lambda j: (abs(j - k), j))]
    return replace(null, x=nearest.x, at=nearest.at, kept=nearest.kept)


def warn_if_not_converged(
    name: str, found: Sequence[FederatedSolution], search: SearchOptions, stacklevel: int = 3
) -> None:
    """One warning for all fits that did not converge."""
    short = [m.certificate.relative for m in found if not m.converged]
    if short:
        warnings.warn(
            f"{name}: {len(short)} of {len(found)} fits stopped at max_rounds={search.max_rounds} or before, with a gradient "
            f"mapping of up to {max(short):.1e} of its scale; tol is {search.tol:g}. Give more max_rounds, a larger tol, or "
            "an exact algorithm.",
            ConvergenceWarning,
            stacklevel=stacklevel,
        )


# --- cross-validation ---


@dataclass(frozen=True)
class Selection:
    """The result of a cross-validation."""

    alphas: np.ndarray
    gammas: tuple[float, ...]
    losses: np.ndarray  # (alphas, gammas, splits)
    chosen: int  # position of the alpha that was taken
    gamma: int  # position of the gamma that was taken
    best: int
    within_error: int | None  # the largest alpha within one standard error of the best; None with a single split
    paths: Sequence[ModelPath]  # of all rows, then of the splits
    models: Sequence[Sequence[Relaxed]]  # of all rows: for each gamma, one for each alpha
    splits: Sequence[RowSubset]  # held out
    fitted: Fitted
    edge: str  # a sentence, where the best alpha is the smallest or the largest and the loss still falls there


@dataclass(frozen=True)
class ModelPath:
    """The models of some rows: one per alpha, their refits if any, and their mean losses on held-out rows."""

    prepared: PreparedProblem
    split: RowSubset | None  # held out
    models: list[FederatedSolution]
    refits: list[FederatedSolution | None]
    losses: np.ndarray  # (alphas, gammas)

    def then(self, more: ModelPath) -> ModelPath:
        """With the models at smaller alphas."""
        losses = np.concatenate([self.losses, more.losses])
        return replace(self, models=self.models + more.models, refits=self.refits + more.refits, losses=losses)

    def mixed(self, gamma: float) -> list[Relaxed]:
        """The models with this gamma."""
        return [Relaxed(m, refit, gamma) for m, refit in zip(self.models, self.refits, strict=True)]

    @property
    def fits(self) -> list[FederatedSolution]:
        """All fits, each refit once."""
        refits = {id(refit): refit for refit in self.refits if refit is not None}
        return [*self.models, *refits.values()]


def cross_validate(
    federation: Federation, options: FitOptions, grid: AlphaGrid, cv: object, seed: int, rule: str, listed: int
) -> Program[Selection]:
    """Fit every alpha to every split and to all rows, and choose one."""
    if options.site_effects and isinstance(cv, str) and cv == LEAVE_ONE_SITE_OUT:
        raise InputError(
            "cv='leave-one-site-out' with site_effects='profile': a site that is left out has no rows to fit its own intercept "
            "to, and no intercept of another site is meant for it. Use folds inside the sites (cv=5)."
        )
    check_cv(federation.names, federation.enrolments, cv)
    everything = yield from fit.describe_sites(federation, options)
    classes, rows = everything.labels.classes, everything.rows.tolist()
    splits = cv_splits(cv, seed, rows, options.family.classifies, listed)
    if rule == "one_standard_error" and len(splits) < 2:
        raise InputError(f"{grid.name}: rule='one_standard_error' needs two splits or more; cv gives one.")
    training = [fit.describe_sites(federation, options, training_rows(split)) for split in splits]
    summaries = yield from gather(training)
    if classes is not None:
        check_classes_of_splits(grid.name, federation.names, summaries, rows, classes)
    prepared = yield from gather([fit.prepare(federation, options, s, classes) for s in [everything, *summaries]])
    alphas = yield from grid.values(federation, prepared[0])
    empty = np.empty((0, len(options.gammas)))
    start = [ModelPath(one, split, [], [], empty) for one, split in zip(prepared, [None, *splits], strict=True)]
    paths = yield from _continue_all(federation, start, alphas, options.search.progress)
    alphas, paths, refused = yield from _extend(federation, grid, alphas, paths)
    losses = _losses(paths)
    best, within, gamma_of = choose_model(losses)
    chosen = best if rule == "best" or within is None else within
    gamma = int(gamma_of[chosen])
    every = [model for share in options.gammas for model in paths[0].mixed(share)]
    every = yield from fit.with_common_intercepts(prepared[0], every)
    models = [every[k : k + len(alphas)] for k in range(0, len(every), len(alphas))]
    fitted = yield from fit.certify(prepared[0], float(alphas[chosen]), models[gamma][chosen])
    edge = _edge(grid, alphas, _mean_losses(paths), best, paths[0].models[0], refused)
    return Selection(alphas, options.gammas, losses, chosen, gamma, best, within, paths, models, splits, fitted, edge)


def _losses(paths: Sequence[ModelPath]) -> np.ndarray:
    """(alphas, gammas, splits)."""
    return np.stack([path.losses for path in paths[1:]], axis=-1)


def _mean_losses(paths: Sequence[ModelPath]) -> np.ndarray:
    """The mean loss of each alpha, with its best gamma."""
    return _losses(paths).mean(axis=-1).min(axis=1)


# --- an optimum at the edge of the grid ---

NOT_EXTENDED = " The grid was not extended, because sites with a disclosure policy may refuse smaller ones, which would end the run."
EXTENSIONS = 2  # of an automatic grid, each as long as half of the first
STILL_FALLS = 1e-3  # fall of the mean loss towards the edge, for a factor of 10 in alpha, as a share of its fall from the null model


def _extend(
    federation: Federation, grid: AlphaGrid, alphas: np.ndarray, paths: list[ModelPath]
) -> Program[tuple[np.ndarray, list[ModelPath], str]]:
    """Smaller alphas in the same ratio, while the loss still falls at the smallest one of an automatic grid.

    A site may refuse models that rest on few rows. The grid then stays as it is, and the reason is returned. Where a refusal
    ends the run the grid is not extended.
    """
    if not np.isfinite(grid.ratio):
        return alphas, paths, ""
    for _ in range(EXTENSIONS):
        if not falls_at_the_end(alphas, _mean_losses(paths)):
            break
        if not grid.survives_refusals and any(e.min_rows > 1 for e in federation.enrolments):
            return alphas, paths, NOT_EXTENDED
        more = alphas[-1] * grid.ratio ** np.arange(1, (grid.n_alphas + 1) // 2 + 1)
        try:
            paths = yield from _continue_all(federation, paths, more, None)
        except SiteRefusal as refusal:
            return alphas, paths, f" Smaller ones were tried, and a site refused them: {str(refusal).rstrip('.')}."
        alphas = np.concatenate([alphas, more])
    return alphas, paths, ""


def falls_at_the_end(alphas: np.ndarray, mean: np.ndarray) -> bool:
    """Whether the mean loss is least at the last alpha and still falls there by more than STILL_FALLS.

    A flat end does not count: beyond it the model is that without a penalty, as good as any. Of two alphas one is always last.
    """
    if len(alphas) < 3 or mean.argmin() != len(mean) - 1 or min(alphas[-2:]) == 0:
        return False
    decades = abs(float(np.log10(alphas[-2] / alphas[-1])))
    return bool(mean[-2] - mean[-1] > STILL_FALLS * min(decades, 1.0) * (mean.max() - mean[-1]))


def _edge(
    grid: AlphaGrid, alphas: np.ndarray, mean: np.ndarray, best: int, largest: FederatedSolution, refused: str
) -> str:
    """What to tell a person about a best alpha at the edge of the grid; "" if there is nothing to tell.

    The largest alpha of an automatic grid is that of the null model, which may well be the best one.
    """
    found = f"{grid.name}: the held-out loss is least at "
    if falls_at_the_end(alphas, mean):
        automatic = grid.alphas is None
        way_out = f"a smaller eps than {grid.eps:g}" if automatic else "smaller alphas"
        tried = ""
        if automatic:
            tried = refused or f" The grid was extended {EXTENSIONS} times."
        return (
            f"{found}the smallest alpha, {alphas[-1]:.3g}, and still falls there: a smaller one may predict better.{tried} Give "
            f"{way_out}, or standardize=True where columns have different units."
        )
    if grid.alphas is not None and best == 0 and falls_at_the_end(alphas[::-1], mean[::-1]) and largest.x.any():
        return (
            f"{found}the largest alpha, {alphas[0]:.3g}: a larger one may predict better. Give larger alphas, or none."
        )
    return ""


# --- folds ---


def check_cv(names: Sequence[str], enrolments: Sequence[Enrolment], cv: object) -> None:
    """Refuse folds that the policy of a site does not allow, before the first query."""
    if isinstance(cv, str) and cv == LEAVE_ONE_SITE_OUT and enrolments[0].secure_sum:
        raise InputError(
            "cv='leave-one-site-out': sums are masked, and leaving out one site would show its part of a sum by subtraction. "
            "Use folds inside the sites (cv=5), or let every site set secure_sum = false in its site.toml."
        )
    if is_int(cv) and any(e.min_rows > 1 for e in enrolments):
        check_folds(names, [e.buckets for e in enrolments], [e.min_rows for e in enrolments], int(cv))


def _report(progress: Progress | None, done: list[int], k: int, here: int, total: int) -> None:
    """Report to one bar how many alphas of all paths are done, of which `here` are of path k."""
    done[k] = here
    if progress is not None:
        progress(sum(done), len(done) * total)


def _continue_all(
    federation: Federation, paths: Sequence[ModelPath], alphas: np.ndarray, progress: Progress | None
) -> Program[list[ModelPath]]:
    """All paths with these alphas added, which are smaller than those before; paths share their messages."""
    done = [0] * len(paths)
    searches = [
        _continue(federation, path, alphas, partial(_report, progress, done, k)) for k, path in enumerate(paths)
    ]
    more = yield from gather(searches)
    return [path.then(rest) for path, rest in zip(paths, more, strict=True)]


def _continue(federation: Federation, path: ModelPath, alphas: np.ndarray, progress: Progress) -> Program[ModelPath]:
    """The models of the training rows at these alphas, and their mean losses on the test rows of the split, if any."""
    prepared, split, gammas = path.prepared, path.split, path.prepared.options.gammas
    models = yield from solve_path(federation, prepared, alphas, progress, path.models[-1] if path.models else None)
    refits = yield from fit.refit_on_supports(federation, prepared, models)
    if split is None:
        return replace(path, models=models, refits=refits, losses=np.full((len(alphas), len(gammas)), np.nan))
    x = np.array([m.x for m in models])
    at_zero = np.array([m.x if refit is None else refit.x for m, refit in zip(models, refits, strict=True)])
    mixed = np.concatenate([x if share == 1 else share * x + (1 - share) * at_zero for share in gammas])
    ((held_out,),) = yield [Request((HeldOut(prepared.spec.objective, split, mixed),), models=len(mixed))]
    if not held_out.sites:
        raise InputError(fit.NO_ROWS)
    if prepared.options.site_effects and not np.isfinite(held_out.loss).all():
        raise InputError(
            "cv: a split trains the intercept of a site (site_effects='profile') on rows of one class, and tests it on the other: "
            "the held-out loss is infinite. Use fewer folds, or leave out sites with a class of a single row."
        )
    losses = held_out.means / held_out.sites if prepared.options.equal_sites else held_out.loss / held_out.weight
    return replace(path, models=models, refits=refits, losses=losses.reshape(len(gammas), len(alphas)).T)


def choose_model(losses: np.ndarray) -> tuple[int, int | None, np.ndarray]:
    """Positions of the best alpha and of the largest within one standard error, and the best gamma of every alpha.

    `losses` has shape (alphas, gammas, splits). Each alpha counts with its best gamma: the two are chosen together.
    """
    gamma_of = losses.mean(axis=-1).argmin(axis=1)
    best, within = best_and_within_error(losses[np.arange(len(losses)), gamma_of])
    return best, within, gamma_of


def best_and_within_error(losses: np.ndarray) -> tuple[int, int | None]:
    """Positions in losses (alphas, splits): the least on average, and the first within one standard error of it."""
    mean = losses.mean(axis=1)
    best, splits = int(mean.argmin()), losses.shape[1]
    if splits < 2:
        return best, None
    error = losses[best].std(ddof=1) / np.sqrt(splits)
    return best, int(np.flatnonzero(mean <= mean[best] + error)[0])  # alphas fall: the first is the largest


def check_classes_of_splits(
    name: str, sites: Sequence[str], summaries: Sequence[PooledSummary], rows: Sequence[int], classes: np.ndarray
) -> None:
    """Refuse a split that trains without one of the classes: its held-out rows would have an infinite loss."""
    for split in summaries:
        found = split.labels.classes
        absent = classes if found is None else np.setdiff1d(classes, found)
        if absent.size:
            out = [site for site, here, m in zip(sites, split.rows, rows, strict=True) if here < m]
            raise InputError(
                f"{name}: one split has no row of class {absent[0]!s} to learn from; it holds out rows of: {', '.join(out)}. "
                "Use fewer folds, another seed, folds inside the sites, or leave the class out."
            )
