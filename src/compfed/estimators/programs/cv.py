"""Choosing alpha by cross-validation, at the server. All folds and the path over all rows are one conversation.

Each message carries the questions of all fits that are under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from compfed.errors import InputError
from compfed.estimators.programs.fit import (
    Fitted,
    Gathered,
    Plan,
    Prepared,
    certified,
    gathering,
    preparing,
)
from compfed.estimators.programs.path import AlphaGrid, following
from compfed.federation.queries import HeldOut
from compfed.federation.server.program import Federation, Program, Request, gather
from compfed.monitor import Progress
from compfed.solvers.search import FederatedSolution
from compfed.splits import RowSubset, cv_splits, training_rows


@dataclass(frozen=True)
class Selection:
    """What a cross-validation found."""

    alphas: np.ndarray
    losses: np.ndarray  # (alphas, splits)
    chosen: int  # position of the alpha that was taken
    best: int
    within_error: int | None  # the largest alpha within one standard error of the best; None with a single split
    path: Sequence[FederatedSolution]
    paths: Sequence[Sequence[FederatedSolution]]  # of the splits
    subsets: Sequence[RowSubset]  # held out, one per split
    fitted: Fitted

    @property
    def fits(self) -> list[FederatedSolution]:
        return [m for path in [*self.paths, self.path] for m in path]


def selecting(
    federation: Federation, plan: Plan, grid: AlphaGrid, cv: Any, seed: int, rule: str, listed: int
) -> Program[Selection]:
    """Fit every alpha to every split and to all rows, and choose."""
    everything = yield from gathering(federation, plan)
    classes = everything.labels.classes
    rows = everything.rows.tolist()
    subsets = cv_splits(cv, seed, rows, plan.family.of_classes, listed)
    if rule == "one_standard_error" and len(subsets) < 2:
        raise InputError(f"{grid.name}: rule='one_standard_error' needs two splits or more; cv gives one.")
    gathered = yield from gather([gathering(federation, plan, training_rows(subset)) for subset in subsets])
    if classes is not None:
        _check_classes(grid.name, federation.names, gathered, rows, classes)
    prepared, *folds = yield from gather([preparing(federation, plan, g, classes) for g in [everything, *gathered]])
    alphas = grid.values(prepared)
    prepared, *folds = _with_one_bar(plan.search.progress, [prepared, *folds])
    talks: list[Program[Any]] = [following(federation, prepared, alphas)]
    talks += [_held_out(federation, fold, subset, alphas) for fold, subset in zip(folds, subsets, strict=True)]
    path, *judged = yield from gather(talks)
    losses = np.column_stack([loss for _, loss in judged])
    best, within = best_and_within_error(losses)
    chosen = best if rule == "best" or within is None else within
    fitted = yield from certified(prepared, float(alphas[chosen]), path[chosen])
    return Selection(alphas, losses, chosen, best, within, path, [found for found, _ in judged], subsets, fitted)


def _with_one_bar(progress: Progress | None, paths: Sequence[Prepared]) -> list[Prepared]:
    """The paths, which report to one bar how many alphas of all of them are done."""
    if progress is None:
        return list(paths)
    done = [0] * len(paths)

    def bar(k: int) -> Progress:
        def show(here: int, total: int) -> None:
            done[k] = here
            progress(sum(done), len(paths) * total)

        return show

    return [
        replace(path, plan=replace(path.plan, search=replace(path.plan.search, progress=bar(k))))
        for k, path in enumerate(paths)
    ]


def _held_out(
    federation: Federation, prepared: Prepared, subset: RowSubset, alphas: np.ndarray
) -> Program[tuple[list[FederatedSolution], np.ndarray]]:
    """The models of the rows that are not held out, one per alpha, and their loss at those that are."""
    path = yield from following(federation, prepared, alphas)
    models = np.array([m.x for m in path])
    ((held_out,),) = yield [Request((HeldOut(prepared.spec.objective, subset, models),), models=len(models))]
    if not held_out.sites:
        raise InputError("a fold holds out every row, or none; give other folds.")
    equal = prepared.plan.equal_sites
    return path, held_out.means / held_out.sites if equal else held_out.loss / held_out.weight


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
            out = [site for site, here, m in zip(sites, split.rows, rows, strict=True) if here < m]
            raise InputError(
                f"{name}: one split has no row of class {absent[0]!s} to learn from; it holds out rows of: {', '.join(out)}. "
                "Use fewer folds, another seed, folds inside the sites, or leave the class out."
            )
