"""The choice of alpha by cross-validation, at the server: all folds and the path over all rows share their messages.

The server says which rows a fold has: every site splits its own rows, or one whole site is left out. The sites find the rows
(`splits.RowSubset`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from compfed.errors import InputError
from compfed.estimators.programs.fit import (
    FitOptions,
    Fitted,
    PooledSummary,
    PreparedProblem,
    certify,
    describe_sites,
    prepare,
)
from compfed.estimators.programs.path import AlphaGrid, solve_path
from compfed.federation.queries import HeldOut
from compfed.federation.server.program import Federation, Program, Request, gather
from compfed.monitor import Progress
from compfed.solvers.base import FederatedSolution
from compfed.splits import RowSubset, cv_splits, training_rows


@dataclass(frozen=True)
class Selection:
    """The result of a cross-validation."""

    alphas: np.ndarray
    losses: np.ndarray  # (alphas, splits)
    chosen: int  # position of the alpha that was taken
    best: int
    within_error: int | None  # the largest alpha within one standard error of the best; None with a single split
    path: Sequence[FederatedSolution]
    paths: Sequence[Sequence[FederatedSolution]]  # of the splits
    splits: Sequence[RowSubset]  # held out
    fitted: Fitted

    @property
    def fits(self) -> list[FederatedSolution]:
        return [m for path in [*self.paths, self.path] for m in path]


def cross_validate(
    federation: Federation, options: FitOptions, grid: AlphaGrid, cv: object, seed: int, rule: str, listed: int
) -> Program[Selection]:
    """Fit every alpha to every split and to all rows, and choose one."""
    everything = yield from describe_sites(federation, options)
    classes, rows = everything.labels.classes, everything.rows.tolist()
    splits = cv_splits(cv, seed, rows, options.family.classifies, listed)
    if rule == "one_standard_error" and len(splits) < 2:
        raise InputError(f"{grid.name}: rule='one_standard_error' needs two splits or more; cv gives one.")
    summaries = yield from gather([describe_sites(federation, options, training_rows(split)) for split in splits])
    if classes is not None:
        _check_classes(grid.name, federation.names, summaries, rows, classes)
    prepared = yield from gather([prepare(federation, options, s, classes) for s in [everything, *summaries]])
    alphas = grid.values(prepared[0])
    prepared = _share_progress(options.search.progress, prepared)
    subsets = [None, *splits]  # all rows, then the folds
    searches = [_path_and_losses(federation, p, s, alphas) for p, s in zip(prepared, subsets, strict=True)]
    (path, _), *found = yield from gather(searches)
    losses = np.column_stack([loss for _, loss in found])
    best, within = best_and_within_error(losses)
    chosen = best if rule == "best" or within is None else within
    fitted = yield from certify(prepared[0], float(alphas[chosen]), path[chosen])
    return Selection(alphas, losses, chosen, best, within, path, [p for p, _ in found], splits, fitted)


def _share_progress(progress: Progress | None, paths: Sequence[PreparedProblem]) -> list[PreparedProblem]:
    """The problems, which report to one bar how many alphas of all of them are done."""
    if progress is None:
        return list(paths)
    done = [0] * len(paths)

    def bar(k: int) -> Progress:
        def show(here: int, total: int) -> None:
            done[k] = here
            progress(sum(done), len(paths) * total)

        return show

    return [
        replace(path, options=replace(path.options, search=replace(path.options.search, progress=bar(k))))
        for k, path in enumerate(paths)
    ]


def _path_and_losses(
    federation: Federation, prepared: PreparedProblem, split: RowSubset | None, alphas: np.ndarray
) -> Program[tuple[list[FederatedSolution], np.ndarray]]:
    """The models of the training rows, one per alpha, and their mean losses on the test rows of the split, if any."""
    path = yield from solve_path(federation, prepared, alphas)
    if split is None:
        return path, np.empty(0)
    models = np.array([m.x for m in path])
    ((held_out,),) = yield [Request((HeldOut(prepared.spec.objective, split, models),), models=len(models))]
    if not held_out.sites:
        raise InputError("a fold holds out every row, or none; give other folds.")
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


def _check_classes(
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
