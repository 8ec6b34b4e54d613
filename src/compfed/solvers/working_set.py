"""Which coefficients ask for attention: how far each is from optimal, or, at a kink of g, from leaving it."""

from __future__ import annotations

import numpy as np

from compfed.regularisers.coordinate_form import CoordinateForm


def settled(form: CoordinateForm, x: np.ndarray) -> np.ndarray:
    """Which coordinates sit at their kink (for a group: all of it) or at a bound."""
    return at_kink(form, x) | (x <= form.lower) | (x >= form.upper)


def at_kink(form: CoordinateForm, x: np.ndarray) -> np.ndarray:
    there = (x == form.kink) & (form.l1 > 0)
    if form.separable:
        return there
    grouped, member = form.group >= 0, np.maximum(form.group, 0)
    away = np.bincount(member[grouped], x[grouped] != form.kink[grouped], minlength=len(form.pull)) > 0
    return there | (grouped & ~away[member] & (form.pull[member] > 0))


def subgradient(form: CoordinateForm, x: np.ndarray, r: np.ndarray) -> np.ndarray:
    """The element of least size of r + subdifferential of g at x; where none is zero, going against it is descent."""
    v = x - form.kink
    smooth = r + form.l2 * v + form.l1 * np.sign(v)
    least = np.where((v == 0) & (form.l1 > 0), np.sign(r) * np.maximum(np.abs(r) - form.l1, 0.0), smooth)
    if not form.separable:
        least = _with_groups(form, v, least)
    outward = ((x <= form.lower) & (least > 0)) | ((x >= form.upper) & (least < 0))
    return np.where(outward, 0.0, least)


def _with_groups(form: CoordinateForm, v: np.ndarray, least: np.ndarray) -> np.ndarray:
    """The pull of the groups: against v, or, at a kink, as far as it can hold the rest."""
    grouped, member = form.group >= 0, np.maximum(form.group, 0)
    size = norms(form, v)[member]
    force = norms(form, least)[member]
    pull = np.where(grouped, form.pull[member], 0.0)
    held = np.where(force > pull, 1.0 - pull / np.where(force > 0, force, 1.0), 0.0)
    pulled = least + pull * v / np.where(size > 0, size, 1.0)
    # within a group that is not zero, a coordinate at the kink of its own |.| feels no pull of the group
    return np.where(grouped & (size == 0), least * held, np.where(grouped & (v != 0), pulled, least))


def norms(form: CoordinateForm, v: np.ndarray) -> np.ndarray:
    grouped = form.group >= 0
    return np.sqrt(np.bincount(form.group[grouped], v[grouped] ** 2, minlength=len(form.pull)))


def margin(form: CoordinateForm, x: np.ndarray, r: np.ndarray) -> np.ndarray:
    """How far a coordinate at its kink is from leaving it: negative while it is held, positive where it will go."""
    held = ((x <= form.lower) & (r > 0)) | ((x >= form.upper) & (r < 0))
    over = np.where(settled(form, x), np.where(held, -np.abs(r), np.abs(r)) - form.l1, np.inf)
    if form.separable:
        return over
    grouped, member = form.group >= 0, np.maximum(form.group, 0)
    force = norms(form, np.maximum(np.abs(r) - form.l1, 0.0))[member]
    return np.where(grouped & np.isfinite(over), np.where(force > 0, force, over) - form.pull[member], over)


def ranked(form: CoordinateForm, x: np.ndarray, r: np.ndarray, width: int) -> np.ndarray:
    """`width` coordinates: first those at no kink, then those nearest to leaving theirs.

    Where so many or more are at no kink, those that are furthest from where they should be, whoever they are.
    """
    width, ahead, force = min(width, len(x)), margin(form, x, r), np.abs(subgradient(form, x, r))
    away = np.isinf(ahead)
    if away.sum() >= width:
        return np.argsort(-force, kind="stable")[:width]
    # few of many are wanted: only those that may be among them are sorted
    ahead = np.where(away, np.inf, ahead)
    some = np.flatnonzero(ahead >= -np.partition(-ahead, width - 1)[width - 1])
    first = np.lexsort((np.where(away, -force, -ahead)[some], ~away[some]))
    return some[first[:width]]


def working_set(form: CoordinateForm, x: np.ndarray, r: np.ndarray, least: int) -> np.ndarray:
    """Everything that is at no kink, then those nearest to leaving theirs: at least so many, whole groups."""
    away = int(np.sum(~settled(form, x)))
    wanted = max(least, away + 1, int(1.5 * away))
    taken = np.zeros(len(x), bool)
    taken[ranked(form, x, r, wanted)] = True
    if not form.separable:
        some = np.unique(form.group[taken])
        taken |= np.isin(form.group, some[some >= 0])
    return np.flatnonzero(taken)
