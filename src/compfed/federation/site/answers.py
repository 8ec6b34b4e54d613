"""How a site answers each query from its own rows. Pure, but for the client state of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import issparse

from compfed._utils.arrays import two_product, two_sum
from compfed.errors import InputError
from compfed.federation.queries import (
    LIPSCHITZ_BINS,
    Describe,
    Evaluate,
    FinishRound,
    HeldOut,
    Lipschitz,
    LocalUpdate,
    Moments,
    Query,
    Tabulate,
    lipschitz_bin,
)
from compfed.federation.site.disclosure import rounded_hessian
from compfed.federation.site.tabulation import tabulated
from compfed.problem.padded_dataset import LocalDataset, sparse_moments

if TYPE_CHECKING:
    from compfed.federation.site.site import Site


def answer(query: Query, site: Site) -> object:
    """The reply of one site to one query; an error is the site's reason not to give one."""
    match query:
        case Describe():
            return _described(query, site)
        case Moments():
            return _moments(query, site)
        case Lipschitz():
            return _lipschitz(query, site)
        case Evaluate():
            return _evaluated(query, site)
        case HeldOut():
            return _held_out(query, site)
        case LocalUpdate():
            return query.Reply(*site.take_part(query.run_spec, query.r, query.exchange, query.d))
        case FinishRound():
            return query.Reply(site.finish_round(query.run_spec, query.r, query.d))
        case Tabulate():
            return tabulated(query, site)
    raise InputError(f"{type(query).__name__} is not a query it knows.")


def _described(query: Describe, site: Site) -> Describe.Reply:
    weights = site.weights_of(query.subset)
    rows, weight = int(np.count_nonzero(weights)), float(weights.sum())
    if query.classes:
        site.check_classes()
        found, codes = np.unique(site.labels[weights > 0], return_inverse=True)
        each = np.bincount(codes, weights[weights > 0], minlength=len(found)).astype(float)  # of no rows it is of int
        return query.Reply(rows, weight, site.width, site.columns, found, each, np.array(np.nan))
    if site.labels.dtype.kind not in "biuf":
        raise InputError(f"the labels of site {site.name!r} are words, not numbers. Use a classifier, or encode them.")
    mean = np.asarray((weights / weight if weight > 0 else weights) @ site.labels)
    return query.Reply(rows, weight, site.width, site.columns, np.empty(0), np.empty(0), mean)


def _moments(query: Moments, site: Site) -> Moments.Reply:
    """Means around a row of the site's own, so that a constant column has exactly its value as mean."""
    A, weights = site.features, site.weights_of(query.subset)
    weight = float(weights.sum())
    q = weights / (weight or 1.0)
    if issparse(A):
        mean, low, spread = sparse_moments(A, q)
    else:
        away = np.subtract(A, A[0], dtype=float)
        mean = A[0] + q @ away
        np.subtract(A, mean, out=away)  # in place, as rows may be many
        low = q @ away
        spread = q @ np.square(away, out=away)
    # with a = mean + (a - mean): E a^2 = mean^2 + 2 mean low + spread, as a pair of doubles
    if weight == 0:
        mean = low = spread = np.zeros(site.width)
    square, square_low = two_product(mean, mean)
    return query.Reply(weight, mean, low, *two_sum(square, square_low + (2 * mean * low + spread)))


def _lipschitz(query: Lipschitz, site: Site) -> Lipschitz.Reply:
    data, loss = site.dataset(query.objective), query.objective.loss
    at = None if loss.curvature is not None else (data.start if query.x is None else query.x)
    if query.upper_bound:
        bound = loss.lipschitz_upper_bound(data.A, data.q, data.row_norms, at, data.y)
        return query.Reply(float(bound) + float(loss.ridge), None)
    L = float(loss.lipschitz(data.A, data.q, at, data.y)) + float(loss.ridge)
    counts = np.zeros(LIPSCHITZ_BINS, np.uint8)
    counts[lipschitz_bin(L)] = 1
    return query.Reply(L, counts)


def _evaluated(query: Evaluate, site: Site) -> Evaluate.Reply:
    data, loss = site.dataset(query.objective), query.objective.loss
    x = np.asarray(query.x, data.A.dtype)
    half = 0.5 * float(loss.ridge)
    value, gradient, terms = loss.evaluate(x, data.A, data.y, data.q, data.row_norms)
    value, gradient = value + half * np.sum(x * x, axis=1), gradient + 2 * half * x
    hessian = conjugate = None
    if query.coords is not None:
        every = [loss.packed_hessian(v, data.A, data.y, data.q, query.coords) for v in query.x]
        hessian = np.stack([rounded_hessian(site.policy, loss, np.asarray(each)) for each in every])
    if query.dual is not None:
        conjugate = np.array([_conjugate(query, data, v, *at) for v, at in zip(x, query.dual, strict=True)])
    return query.Reply(value, gradient, terms, hessian, conjugate)


def _conjugate(
    query: Evaluate, data: LocalDataset, x: np.ndarray, shift: float, stretch: float, mix: float, z: float
) -> float:
    loss = query.objective.loss  # the server asks this only of a loss with a conjugate
    theta = (1 - mix) * (loss.derivative(data.A @ x, data.y) - shift)  # pyright: ignore[reportAttributeAccessIssue]
    if mix > 0:
        theta = theta + mix * loss.derivative(np.full(len(theta), z), data.y)  # pyright: ignore[reportAttributeAccessIssue]
    return float(data.q @ loss.conjugate(stretch * theta, data.y))  # pyright: ignore[reportAttributeAccessIssue]


def _held_out(query: HeldOut, site: Site) -> HeldOut.Reply:
    data, weights = site.dataset(query.objective), site.weights_of(query.subset)
    q = weights / (weights.sum() or 1.0)
    loss = np.array([q @ np.asarray(query.objective.loss.values(v, data.A, data.y)) for v in query.x])
    return query.Reply(float(weights.sum()), loss)
