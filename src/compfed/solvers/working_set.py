"""Working sets: the coordinates that are furthest from optimal, or, at a kink of g, nearest to leaving it."""

from __future__ import annotations

import numpy as np

from compfed.prox import soft_threshold
from compfed.regularisers.coordinate_form import CoordinateForm


def kink_margin(form: CoordinateForm, x: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Gradient less the slope of the kink or bound at x: negative where a coordinate stays, positive where it will leave.

    Infinite for coordinates that are at no kink or bound.
    """
    held = ((x <= form.lower) & (gradient > 0)) | ((x >= form.upper) & (gradient < 0))
    excess = np.where(held, -np.abs(gradient), np.abs(gradient)) - form.l1
    margin = np.where(form.at_kink_or_bound(x), excess, np.inf)
    if form.separable:
        return margin
    grouped, member = form.group >= 0, np.maximum(form.group, 0)
    force = form.norms(soft_threshold(gradient, form.l1))[member]
    of_group = np.where(force > 0, force, margin) - form.group_weight[member]
    return np.where(grouped & np.isfinite(margin), of_group, margin)


def ranked(form: CoordinateForm, x: np.ndarray, gradient: np.ndarray, width: int) -> np.ndarray:
    """`width` coordinates: first those at no kink, then those nearest to leaving theirs.

    If at least `width` are at no kink, the ones furthest from optimal among all.
    """
    width, margin = min(width, len(x)), kink_margin(form, x, gradient)
    distance = np.abs(form.min_subgradient(x, gradient))
    free = np.isinf(margin)
    if free.sum() >= width:
        return np.argsort(-distance, kind="stable")[:width]
    # Few of many are wanted: only coordinates that can be among them are sorted.
    margin = np.where(free, np.inf, margin)
    some = np.flatnonzero(margin >= -np.partition(-margin, width - 1)[width - 1])
    first = np.lexsort((np.where(free, -distance, -margin)[some], ~free[some]))
    return some[first[:width]]


def working_set(form: CoordinateForm, x: np.ndarray, gradient: np.ndarray, least: int) -> np.ndarray:
    """All coordinates at no kink, then those nearest to leaving theirs: at least `least` of them, in whole groups."""
    free = int(np.sum(~form.at_kink_or_bound(x)))
    wanted = max(least, free + 1, int(1.5 * free))
    taken = np.zeros(len(x), bool)
    taken[ranked(form, x, gradient, wanted)] = True
    if not form.separable:
        some = np.unique(form.group[taken])
        taken |= np.isin(form.group, some[some >= 0])
    return np.flatnonzero(taken)
