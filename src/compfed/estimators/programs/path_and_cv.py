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
from compfed.estimators.programs.fit import FitOptions, Fitted, PooledSummary, PreparedProblem
from compfed.federation.enrolment import Enrolment
from compfed.federation.queries import HeldOut
from compfed.federation.server.program import Federation, Program, Request, enrolments_of, gather
from compfed.monitor import Progress
from compfed.solvers.auto import choose, solve
from compfed.solvers.base import FederatedSolution, SearchOptions, Start
from compfed.solvers.first_order import solve_all_by_rounds
from compfed.splits import LEAVE_ONE_SITE_OUT, RowSubset, check_folds, cv_splits, training_rows

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

    def __post_init__(self) -> None:
        """Refuse parameters that cannot be used, before any work."""
        check_int(self.n_alphas, f"{self.name}: n_alphas", 1)
        if not is_number(self.eps) or not 0 < float(self.eps) < 1:
            raise InputError(f"{self.name}(eps={self.eps!r}): eps must be a number between 0 and 1.")
        if self.alphas is not None:
            values = check_numbers(self.alphas, "alphas")
            if values.ndim != 1 or not values.size or not ((values >= 0) & (values < np.inf)).all():
                raise InputError(f"alphas={self.alphas!r} must be a list of finite numbers >= 0.")

    def values(self, prepared: PreparedProblem) -> np.ndarray:
        """Given ones are sorted; alpha_max takes one gradient, that of the null model, summed over the sites."""
        if self.alphas is not None:
            return np.sort(check_numbers(self.alphas, "alphas"))[::-1]
        g, null = prepared.at(1.0).regulariser, prepared.null.at
        assert null is not None
        with precision(np.dtype(float)):
            largest = float(g.alpha_max(null.gradient))  # pyright: ignore[reportAttributeAccessIssue]  # every penalty here has it
        if not np.isfinite(largest):
            raise InputError(
                f"{self.name}: no alpha makes all coefficients zero, because the penalty of some has no kink "
                "(l1_ratio=0, or a group of weight 0). Give alphas."
            )
        if largest == 0:
            raise InputError(
                f"{self.name}: all coefficients are zero at every alpha: no feature helps to predict y, which may "
                "be constant. Give alphas, or other data."
            )
        return np.geomspace(largest, self.eps * largest, self.n_alphas)


# --- the path ---


def solve_path(
    federation: Federation, prepared: PreparedProblem, alphas: np.ndarray, progress: Progress | None = None
) -> Program[list[FederatedSolution]]:
    """The minimiser at each alpha; searches that are under way share their messages.

    Second-order searches take every few alphas at first, from the null model; then those between, each from the nearest one
    found. An evaluation of f holds at every alpha: a search that starts from one needs no message before its first step, and
    its working set begins with that model's. First-order methods take blocks of alphas side by side, each block from the
    end of the one before. A round then serves a whole block, so that local work is the bottleneck: "auto" is FISTA here,
    which needs one gradient per round.
    """
    search = replace(prepared.options.search, progress=None)  # which is that of a single search
    specs, null = [prepared.at(float(alpha)) for alpha in alphas], prepared.null
    every, found = range(len(specs)), dict[int, FederatedSolution]()
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
            progress(len(found), len(specs))
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
    losses: np.ndarray  # (alphas, splits)
    chosen: int  # position of the alpha that was taken
    best: int
    within_error: int | None  # the largest alpha within one standard error of the best; None with a single split
    paths: Sequence[Sequence[FederatedSolution]]  # of all rows, then of the splits
    splits: Sequence[RowSubset]  # held out
    fitted: Fitted


def cross_validate(
    federation: Federation, options: FitOptions, grid: AlphaGrid, cv: object, seed: int, rule: str, listed: int
) -> Program[Selection]:
    """Fit every alpha to every split and to all rows, and choose one."""
    enrolments = enrolments_of(federation)
    if enrolments is not None:
        check_cv(federation.names, enrolments, cv)
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
    alphas, done = grid.values(prepared[0]), [0] * len(prepared)
    searches = [
        _path_and_losses(federation, one, split, alphas, partial(_report, options.search.progress, done, k))
        for k, (one, split) in enumerate(zip(prepared, [None, *splits], strict=True))
    ]
    paths, (_, *losses) = zip(*(yield from gather(searches)), strict=True)
    losses = np.column_stack(losses)
    best, within = best_and_within_error(losses)
    chosen = best if rule == "best" or within is None else within
    fitted = yield from fit.certify(prepared[0], float(alphas[chosen]), paths[0][chosen])
    return Selection(alphas, losses, chosen, best, within, paths, splits, fitted)


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


def _path_and_losses(
    federation: Federation, prepared: PreparedProblem, split: RowSubset | None, alphas: np.ndarray, progress: Progress
) -> Program[tuple[list[FederatedSolution], np.ndarray]]:
    """The models of the training rows, one per alpha, and their mean losses on the test rows of the split, if any."""
    path = yield from solve_path(federation, prepared, alphas, progress)
    if split is None:
        return path, np.empty(0)
    models = np.array([m.x for m in path])
    ((held_out,),) = yield [Request((HeldOut(prepared.spec.objective, split, models),), models=len(models))]
    if not held_out.sites:
        raise InputError(fit.NO_ROWS)
    equal = prepared.options.equal_sites
    return path, held_out.means / held_out.sites if equal else held_out.loss / held_out.weight


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
