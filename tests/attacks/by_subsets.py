"""Attacks by chosen subsets of the rows: folds, hold-outs and mini-batches.

Each takes a `Target` and returns candidates for its rows, at most one per row. A refused query is left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import jax
import numpy as np
from attacks.target import Target, distinct, unscaled

import compfed as cf
from compfed._utils.compilation import precision
from compfed.federation import Evaluate, HeldOut, Lipschitz, LocalUpdate, Moments, Query, Refusal
from compfed.federation.spec import FeatureScaling, ObjectiveSpec, RunSpec
from compfed.losses import Logistic, Squared
from compfed.sampling import client_key, run_key, sample_rows
from compfed.splits import Fold, Holdout, RowSubset

FAR = 50.0  # standard deviations


def fold(target: Target, k: int, folds: int, seed: int = 0, held_out: bool = True) -> Fold:
    return Fold(k, folds, seed, np.zeros(target.index + 1, int), by_class=False, held_out=held_out)


def one_row_folds(target: Target) -> np.ndarray:
    """The moments of each of n folds are a row. If that is refused: as many folds as are answered, and complements."""
    n = target.rows
    for folds in (n, n - 1, n // 2, n // 3, n // 5, n // 10, 10, 5, 2):
        if folds < 2:
            continue
        held = [fold(target, k, folds) for k in range(folds)]
        found = sums_of_subsets(target, held + [fold(target, k, folds, held_out=False) for k in range(folds)])
        if found:
            return rows_of_sums(target, found)
    return np.empty((0, target.width))


def half_splits(target: Target, seeds: int | None = None) -> np.ndarray:
    """Halves of the rows by many seeds, whose members are public draws; least squares."""
    seeds = target.rows + 20 if seeds is None else seeds
    subsets: list[RowSubset] = [fold(target, 0, 2, seed) for seed in range(seeds)]
    subsets += [Holdout(0.4, seed, by_class=False, held_out=True) for seed in range(seeds // 4)]
    return rows_of_sums(target, sums_of_subsets(target, subsets))


def differing_folds(target: Target) -> np.ndarray:
    """Every number of folds from 2 to n with every fold: sets that differ by few rows, subtracted and solved."""
    n = target.rows
    subsets = [fold(target, k, folds) for folds in range(2, min(n, 40)) for k in range(min(folds, 8))]
    subsets += [fold(target, 0, folds, seed) for folds in (2, 3, 4, 5) for seed in range(1, n // 3)]
    return rows_of_sums(target, sums_of_subsets(target, subsets))


Sum = tuple[RowSubset, float, np.ndarray]  # of the rows of a subset: their number, and the sum of each column


def sums_of_subsets(target: Target, subsets: Iterable[RowSubset]) -> list[Sum]:
    subsets = list(subsets)
    replies = target.ask(*[Moments(subset=subset) for subset in subsets])
    return [
        (subset, reply.weight, reply.weight * (reply.mean + reply.mean_low))
        for subset, reply in zip(subsets, replies, strict=True)
        if not isinstance(reply, Refusal) and reply.weight > 0
    ]


def rows_of_sums(target: Target, sums: list[Sum]) -> np.ndarray:
    """Rows from sums over subsets: single rows, differences by one row, and least squares over the public masks."""
    (whole,) = target.ask(Moments())
    found = [total for _, weight, total in sums if weight < 1.5]
    if not isinstance(whole, Refusal):
        everything = whole.weight * (whole.mean + whole.mean_low)
        found += [everything - total for _, weight, total in sums if abs(whole.weight - weight - 1) < 0.5]
    if not found:
        by_size = sorted(sums, key=lambda s: s[1])
        pairs = itertools.pairwise(by_size)
        found = [np.abs(b[2] - a[2]) for a, b in pairs if abs(b[1] - a[1] - 1) < 0.5][: target.rows // 4]
    solved = _least_squares(target, sums)
    single = distinct(found, target)
    # public masks that do not explain the sums are not the site's: then the totals of small sets are all there is
    return solved if len(solved) else single if len(single) else distinct([t / w for _, w, t in sums], target)


def _least_squares(target: Target, sums: list[Sum]) -> np.ndarray:
    kept = [(subset.mask(target), total) for subset, _, total in sums]
    if not kept:
        return np.empty((0, target.width))
    masks, totals = np.array([mask for mask, _ in kept], float), np.array([total for _, total in kept])
    rows, _, rank, _ = np.linalg.lstsq(masks, totals, rcond=1e-9)
    explained = np.abs(masks @ rows - totals) <= 1e-6 * np.abs(totals).max(axis=0)
    known = np.ones(len(rows), bool)
    if rank < len(rows):  # rows whose value the sums determine: those orthogonal to the null space
        _, singular, V = np.linalg.svd(masks)
        null = V[int((singular > 1e-9 * singular[0]).sum()) :]
        known = np.abs(null).max(axis=0) < 1e-9
    return rows[known] if explained.all() else np.empty((0, target.width))


# --- other queries with a subset ---


def held_out_of_one_row(target: Target) -> np.ndarray:
    """The squared loss of x = e_j + c and of e_j - c on one row: their difference is 2 c (a_j - y)."""
    scaling, c, d = target.scaling(), 3.0, target.width
    steps = np.vstack([np.eye(d, d + 1), np.zeros((1, d + 1))])
    shift = np.zeros(d + 1)
    shift[-1] = c
    X = np.vstack([steps + shift, steps - shift])
    found = []
    for subset in small_folds(target):
        (reply,) = target.ask(HeldOut(target.objective(Squared(), scaling), subset, X))
        if not isinstance(reply, Refusal):
            residual = (reply.loss[: d + 1] - reply.loss[d + 1 :]) / (2 * c)
            found.append(unscaled(scaling, residual[:d] - residual[d]))
    return distinct(found, target)


def small_folds(target: Target) -> list[RowSubset]:
    """One-row folds; if the site refuses them, the smallest that it answers for."""
    n = target.rows
    for folds in (n, n // 2, n // 5, n // 10, n // 40, 10, 5, 2):
        if folds >= 2:
            (reply,) = target.ask(Moments(subset=fold(target, 0, folds)))
            if not isinstance(reply, Refusal):
                return [fold(target, k, folds) for k in range(folds)]
    return []


def lipschitz_of_one_row(target: Target, columns: int = 6) -> np.ndarray:
    """L of one row and one column is (a_j - centre)^2; with the centre far below all values that is a_j."""
    known, found = target.scaling(), []
    for subset in small_folds(target):
        row = np.full(target.width, np.nan)
        for j in range(columns):
            centre = known.centre[j : j + 1] - FAR * known.scale[j : j + 1]
            scaling = FeatureScaling(centre, known.scale[j : j + 1], intercept=False)
            objective = ObjectiveSpec(Squared(), scaling, subset=subset, columns=np.array([j]))
            (reply,) = target.ask(Lipschitz(objective))
            if not isinstance(reply, Refusal):
                row[j] = centre[0] + known.scale[j] * np.sqrt(reply.L)
        found.append(row)
    return distinct(found, target)


def gradients_of_one_row(target: Target) -> np.ndarray:
    """The squared loss at x = c on one row has the gradient (c - y) (a, 1)."""
    scaling = target.scaling()
    x, found = np.zeros((1, target.width + 1)), []
    x[0, -1] = FAR
    for subset in small_folds(target):
        (reply,) = target.ask(Evaluate(target.objective(Squared(), scaling, subset), x))
        if not isinstance(reply, Refusal):
            found.append(unscaled(scaling, reply.gradient[0, :-1] / reply.gradient[0, -1]))
    return distinct(found, target)


def hessians_of_one_row(target: Target, piece: int = 4) -> np.ndarray:
    """The Hessian of one row is a a^T; from pieces of a few columns and the intercept, each within a limit."""
    scaling, d = target.scaling(), target.width
    found = []
    for subset in small_folds(target):
        row = np.full(d, np.nan)
        objective = target.objective(Squared(), scaling, subset)
        pieces = [np.r_[j : min(j + piece, d), d] for j in range(0, d, piece)]
        queries = [Evaluate(objective, np.zeros((1, d + 1)), coords=coords) for coords in pieces]
        for coords, reply in zip(pieces, target.ask(*queries), strict=True):
            if not isinstance(reply, Refusal):
                H = Squared().unpack_hessian(reply.hessian[0], coords)
                row[coords[:-1]] = H[-1, :-1] / H[-1, -1]
        found.append(unscaled(scaling, row))
    return distinct(found, target)


def held_out_by_subtraction(target: Target, piece: int = 4) -> np.ndarray:
    """The Hessian of all rows less that of the rows to train with is that of the rows held out: for squared loss their Gram matrix.

    A cross-validation asks for both. Of one row that matrix is the row. Of several it is known but for a rotation of the rows, and
    the candidate is their mean.
    """
    scaling, d, found = target.scaling(), target.width, []
    for out in small_folds(target):
        row, held = np.full(d, np.nan), float(np.count_nonzero(out.mask(target)))
        for j in range(0, d, piece):
            coords = np.r_[j : min(j + piece, d), d]
            everything, rest = (
                target.objective(Squared(), scaling, subset) for subset in (None, replace(out, held_out=False))
            )
            queries = [Evaluate(objective, np.zeros((1, d + 1)), coords=coords) for objective in (everything, rest)]
            replies = target.ask(*queries)
            if any(isinstance(reply, Refusal) for reply in replies):
                continue
            whole, train = (Squared().unpack_hessian(reply.hessian[0], coords) for reply in replies)
            H = target.rows * whole - (target.rows - held) * train
            row[coords[:-1]] = H[-1, :-1] / H[-1, -1]
        found.append(unscaled(scaling, row))
    return distinct(found, target)


# --- mini-batches ---


def batches_of_one_row(target: Target) -> np.ndarray:
    """FedAvg with batch_size=1 and tau=1: a round returns one row; which one is a public draw."""
    return _minibatches(target, batch=1)


def half_batches(target: Target) -> np.ndarray:
    """FedAvg with batches of half the rows and public seeds: least squares over the rounds."""
    return _minibatches(target, batch=target.rows // 2)


def _minibatches(target: Target, batch: int) -> np.ndarray:
    """Logistic loss at x = 0: the gradient of a row is -y (a, 1) / 2, and its last coordinate tells the label y."""
    n, scaling = target.rows, target.scaling()
    run = fedavg_run(target.objective(Logistic(), scaling), target.width + 1, n, batch)
    rounds = np.arange(20 * n if batch == 1 else n + 60)
    masks = batch_masks(run, rounds, target.number, n)
    if batch == 1:  # the first round that shows each row
        rounds = np.unique(masks.argmax(axis=1), return_index=True)[1]
        masks = masks[rounds]
    replies = target.ask(*[update_query(run, r) for r in rounds.tolist()])
    answered = [not isinstance(reply, Refusal) for reply in replies]
    gradients = [-reply.u["delta"] / run.algorithm.eta * batch for reply in replies if not isinstance(reply, Refusal)]  # pyright: ignore[reportAttributeAccessIssue]
    if not gradients:
        return np.empty((0, target.width))
    return rows_of_gradients(target, scaling, masks[answered], np.array(gradients))


def rows_of_gradients(target: Target, scaling: FeatureScaling, masks: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Rows from sums of -y (a, 1) / 2 over known sets of rows."""
    solved = np.linalg.lstsq(masks, sums, rcond=1e-9)[0]
    solved = solved[np.abs(solved[:, -1]) > 1e-3]  # a row is seen if its label is
    return distinct(unscaled(scaling, solved[:, :-1] / solved[:, -1:]), target)


def fedavg_run(objective: ObjectiveSpec, d: int, capacity: int, batch: int | None, seed: int = 0) -> RunSpec:
    method = cf.algorithms.FedAvg(eta=1e-3, tau=1)
    return RunSpec(0, method, cf.regularisers.Zero(), objective, np.zeros(d), seed, batch, capacity)


def update_query(run: RunSpec, r: int, w: np.ndarray | None = None) -> Query:
    return LocalUpdate(run, r, 0, {"w": run.x0 if w is None else w})


def batch_masks(run: RunSpec, rounds: np.ndarray, number: int, rows: int) -> np.ndarray:
    """The rows of the mini-batch of each round, as anyone can draw them who knows the seed."""
    assert run.batch_size is not None
    with precision(np.dtype("float64")):
        chosen = np.asarray(_drawn(run.seed, rounds.astype(np.int32), number, rows, run.capacity, run.batch_size))
    masks = np.zeros((len(rounds), rows))
    np.put_along_axis(masks, chosen, 1.0, axis=1)
    return masks


@partial(jax.jit, static_argnames=("capacity", "size"))
def _drawn(seed, rounds, number, rows, capacity: int, size: int):
    def one(r):  # as in `Site.take_part` and in the first step of FedAvg
        return sample_rows(jax.random.split(client_key(run_key(seed), r, number), 1)[0], rows, capacity, size)

    return jax.vmap(one)(rounds)
