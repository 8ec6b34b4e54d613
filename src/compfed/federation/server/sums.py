"""The weighted sum of the replies of sites in this process, in double precision: fast, and in the order of the sites.

A server program receives `total(...)` and never a list of replies. Over a network, and where it is asked for, sums are exact
(`federation.server.exact`).
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from compfed._utils.arrays import add_pairs, multiply_pairs
from compfed._utils.compilation import precision
from compfed.algorithms.base import dense
from compfed.algorithms.round import message_shapes
from compfed.federation.codec import unnamed
from compfed.federation.queries import Describe, HeldOut, LocalUpdate, Moments, Query, Refusal
from compfed.federation.sums import Description, HeldOutSum, MomentsSum, UpdateSum


def total(query: Query, replies: Sequence[object], weights: np.ndarray | None, names: Sequence[str]) -> object:
    """sum_i weights_i reply_i, in the order of the sites: the same sum over any transport, to the last bit.

    A refusal by one of them is the result, whatever the others replied. Without weights each reply counts once.
    """
    refused = next((reply for reply in replies if isinstance(reply, Refusal)), None)
    if refused is not None:
        return refused
    parts: Sequence = replies
    match query:
        case Describe():
            return _description(parts)
        case HeldOut():
            return _held_out(parts)
        case Moments():
            return _moments(parts, weights)
        case LocalUpdate():
            return _updates(query, parts, weights, names)
    fields = zip(*parts, strict=True)
    return query.Reply(*(None if values[0] is None else weighted_sum(weights, values) for values in fields))


def weighted_sum(weights: np.ndarray | None, values: Sequence) -> np.ndarray:
    """sum_i weights_i values_i, one after the other. Counts are added as they are."""
    if weights is None or np.asarray(values[0]).dtype.kind in "biu":
        weights = np.ones(len(values), int)
    terms = (w * v for w, v in zip(weights, values, strict=True))
    result = np.array(next(terms))
    for value in terms:  # one at a time: a Hessian may be large
        result += value
    return result


def _description(replies: Sequence[Describe.Reply]) -> Description:
    kinds = tuple(reply.classes.dtype.kind for reply in replies)
    mixed = len({kind in "UO" for kind in kinds}) > 1  # the program refuses words at one site and numbers at another
    classes = np.empty(0) if mixed else np.unique(np.concatenate([reply.classes for reply in replies]))
    class_weights, class_shares = np.zeros(len(classes)), np.zeros(len(classes))
    for reply in replies if classes.size else ():
        place = np.searchsorted(classes, reply.classes)
        class_weights[place] += reply.class_weights
        class_shares[place] += reply.class_weights / (reply.weight or 1.0)
    shapes = tuple(np.shape(reply.label_mean) for reply in replies)
    means = [reply.label_mean for reply in replies]
    alike = len(set(shapes)) == 1 and not np.isnan(means[0]).any()
    weights = np.array([reply.weight for reply in replies])
    return Description(
        rows=np.array([reply.rows for reply in replies]),
        weights=weights,
        weight=float(weights.sum()),
        sites=int(np.count_nonzero(weights)),
        widths=tuple(reply.width for reply in replies),
        columns=tuple(reply.columns for reply in replies),
        label_kinds=kinds,
        label_shapes=shapes,
        classes=classes,
        class_weights=class_weights,
        class_shares=class_shares,
        label_sum=weighted_sum(weights, means) if alike else None,
        label_means=weighted_sum((weights > 0).astype(float), means) if alike else None,
        facts=replies[0].facts if len(replies) == 1 else None,
        site_classes=tuple(reply.classes for reply in replies),
    )


def _held_out(replies: Sequence[HeldOut.Reply]) -> HeldOutSum:
    weights, losses = np.array([reply.weight for reply in replies]), [reply.loss for reply in replies]
    there = weights > 0
    return HeldOutSum(
        float(weights.sum()), weighted_sum(weights, losses), int(there.sum()), weighted_sum(there.astype(float), losses)
    )


def _moments(replies: Sequence[Moments.Reply], weights: np.ndarray | None) -> MomentsSum | None:
    """Without weights each site counts as much as its rows weigh. A site without rows counts nothing.

    None if the sites differ in their columns: the program finds that in their descriptions, and names the site.
    """
    if len({reply.mean.size for reply in replies}) > 1:
        return None
    rows = np.array([reply.weight for reply in replies])
    w = rows if weights is None else np.where(rows > 0, weights, 0.0)
    exponent = int(np.frexp(w.max())[1])
    if exponent > 100:  # only ratios of weights count, and the product of large ones overflows
        w = np.ldexp(w, -exponent)
    d = replies[0].mean.size
    one, zero = np.ones(1), np.zeros(1)
    high = np.stack([np.concatenate([one, reply.mean, reply.square]) for reply in replies])
    low = np.stack([np.concatenate([zero, reply.mean_low, reply.square_low]) for reply in replies])
    highs, lows = multiply_pairs((np.broadcast_to(w[:, None], high.shape), np.zeros_like(high)), (high, low))
    total = highs[0], lows[0]
    for term in zip(highs[1:], lows[1:], strict=True):
        total = add_pairs(total, term)
    weight, mean, square = zip(*(np.split(part, [1, 1 + d]) for part in total), strict=True)
    return MomentsSum(weight, mean, square)


def _updates(
    query: LocalUpdate, replies: Sequence[LocalUpdate.Reply], weights: np.ndarray | None, names: Sequence[str]
) -> UpdateSum:
    run = query.run_spec
    shapes = message_shapes(run.algorithm, run.regulariser, run.x0.size, run.x0.dtype)[query.exchange]
    finite = [reply.finite and all(np.isfinite(a).all() for a in reply.u.values()) for reply in replies]
    lost = tuple(name for name, good in zip(names, finite, strict=True) if not good)
    with precision(run.x0.dtype):
        full = [dense(unnamed(reply.u, shapes.update), run.x0.size) for reply in replies]
    w = np.ones(len(replies)) if weights is None else weights

    def leaf_sum(*leaves):
        return weighted_sum(w.astype(leaves[0].dtype), [np.asarray(leaf) for leaf in leaves])

    return UpdateSum(None if lost else jax.tree.map(leaf_sum, *full), lost)
