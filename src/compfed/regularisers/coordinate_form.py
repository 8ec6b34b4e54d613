"""Regularisers coordinate by coordinate, in NumPy: the structure that second-order solvers at the server work with.

`coordinate_form(g, d)` is a `CoordinateForm`, or None where g has none. Each class states its own in a method of that name.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from jax import Array

from compfed.errors import InputError
from compfed.prox import group_norms, group_shrinkage, soft_threshold
from compfed.regularisers.base import Regulariser

Each: TypeAlias = npt.ArrayLike  # a number, or one for each coefficient


class CoordinateForm(NamedTuple):
    """g(x) = sum_j l1_j |v_j| + l2_j v_j^2 / 2 + sum_k group_weight_k ||v_(group k)||, v = x - kink, for lower <= x <= upper.

    Outside the bounds g is infinite. Coefficients of one group have one l2 and no bounds.
    """

    l1: np.ndarray
    l2: np.ndarray
    kink: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    group_weight: np.ndarray  # one number per group
    group: np.ndarray  # the group of each coefficient, 0, 1, ...; -1 for none

    def value(self, x: np.ndarray) -> float:
        """g(x)."""
        if (x < self.lower).any() or (x > self.upper).any():
            return np.inf
        v = x - self.kink
        return float(self.l1 @ np.abs(v) + 0.5 * (self.l2 @ (v * v)) + self.group_weight @ self.norms(v))

    def gradient_mapping(self, x: np.ndarray, gradient: np.ndarray, t: float) -> np.ndarray:
        """(x - prox_{t g}(x - t gradient)) / t, without losing digits where t gradient is small beside x.

        The prox is a soft threshold, then the groups, then l2, then the bounds. The function before l2 is h with
        h(c v) = c h(v), and for such an h the prox of t (h + l2 ||.||^2 / 2) is that of t h divided by 1 + t l2.
        """
        v = x - self.kink
        moved = v - t * gradient
        force = gradient + self.l1 * np.sign(moved)
        u = soft_threshold(moved, t * self.l1)  # v - t force, where that is not zero
        kept, shrinking = u, self.l2 * u
        if not self.separable:
            norms = self.norms(u)
            kept = u * self._per_coefficient(group_shrinkage(norms, t * self.group_weight), 1.0)
            shrinking = shrinking + self._per_coefficient(self.group_weight / np.where(norms > 0, norms, 1.0), 0.0) * u
        mapping = np.where(kept != 0, force + shrinking / (1.0 + t * self.l2), v / t)
        new = self.kink + kept / (1.0 + t * self.l2)
        inside = np.clip(new, self.lower, self.upper)
        return np.where(new == inside, mapping, (x - inside) / t)

    def min_subgradient(self, x: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """The element of least norm of gradient + subdifferential of g at x; its norm is the distance from optimality."""
        v = x - self.kink
        smooth = gradient + self.l2 * v + self.l1 * np.sign(v)
        least = np.where((v == 0) & (self.l1 > 0), soft_threshold(gradient, self.l1), smooth)
        if not self.separable:
            least = self._min_subgradient_of_groups(v, least)
        outward = ((x <= self.lower) & (least > 0)) | ((x >= self.upper) & (least < 0))
        return np.where(outward, 0.0, least)

    def _min_subgradient_of_groups(self, v: np.ndarray, least: np.ndarray) -> np.ndarray:
        """With the norms of groups added: v / ||v||, or, at zero, the multiple that cancels as much as possible."""
        grouped = self.group >= 0
        size = self._per_coefficient(self.norms(v), 0.0)
        weight = self._per_coefficient(self.group_weight, 0.0)
        cancelled = group_shrinkage(self._per_coefficient(self.norms(least), 0.0), weight)
        away = least + weight * v / np.where(size > 0, size, 1.0)
        # In a group that is not zero, the norm has derivative 0 in a coordinate at the kink of its own |.|.
        return np.where(grouped & (size == 0), least * cancelled, np.where(grouped & (v != 0), away, least))

    def at_kink(self, x: np.ndarray) -> np.ndarray:
        """Which coordinates sit at a kink of their |.|, or belong to a group that is zero."""
        there = (x == self.kink) & (self.l1 > 0)
        if self.separable:
            return there
        grouped = self.group >= 0
        nonzero = np.bincount(self.group[grouped], (x != self.kink)[grouped], len(self.group_weight)) > 0
        return there | self._per_coefficient(~nonzero & (self.group_weight > 0), False)

    def at_kink_or_bound(self, x: np.ndarray) -> np.ndarray:
        """Which coordinates sit at a kink or at a bound."""
        return self.at_kink(x) | (x <= self.lower) | (x >= self.upper)

    def norms(self, v: np.ndarray) -> np.ndarray:
        """||v_(group k)|| of each group."""
        if not self.group_weight.size:
            return self.group_weight
        return group_norms(v, self.group, len(self.group_weight))

    def _per_coefficient(self, per_group: np.ndarray, otherwise: float) -> np.ndarray:
        return np.append(per_group, otherwise)[self.group]  # -1, no group, reads the entry at the end

    def at(self, W: np.ndarray) -> CoordinateForm:
        """The form of the coefficients W (whole groups, or none of a group), the others being fixed."""
        inside = self.group[W]
        kept, renumbered = np.unique(inside[inside >= 0], return_inverse=True)
        if renumbered.size != np.isin(self.group, kept).sum():
            raise InputError("CoordinateForm.at: W cuts a group. Give all coefficients of a group, or none.")
        group = np.full(inside.shape, -1)
        group[inside >= 0] = renumbered
        each = (array[W] for array in (self.l1, self.l2, self.kink, self.lower, self.upper))
        return CoordinateForm(*each, group_weight=self.group_weight[kept], group=group)

    def holding(self, bounds: CoordinateForm) -> CoordinateForm:
        """Without the members of groups that the bounds hold at their kink, where they add nothing to a norm."""
        held = (bounds.lower == self.kink) & (bounds.upper == self.kink)
        group = np.where(held, -1, self.group)
        kept, renumbered = np.unique(group[group >= 0], return_inverse=True)
        group[group >= 0] = renumbered
        return self._replace(group=group, group_weight=self.group_weight[kept])

    @property
    def separable(self) -> bool:
        """Whether there are no groups."""
        return not (self.group >= 0).any()

    def scaled(self, factor: float) -> CoordinateForm:
        """factor g(x)."""
        return self._replace(l1=self.l1 * factor, l2=self.l2 * factor, group_weight=self.group_weight * factor)

    def shifted(self, offset: float | np.ndarray) -> CoordinateForm:
        """g(x - offset)."""
        offset = per_coefficient(offset, self.group.size)
        return self._replace(kink=self.kink + offset, lower=self.lower + offset, upper=self.upper + offset)

    def rescaled(self, scale: float) -> CoordinateForm:
        """g(x / scale)."""
        l1, l2, weight = self.l1 / scale, self.l2 / scale**2, self.group_weight / scale
        return CoordinateForm(l1, l2, self.kink * scale, self.lower * scale, self.upper * scale, weight, self.group)

    def plus(self, other: CoordinateForm) -> CoordinateForm | None:
        """g(x) + h(x), if that has a form: at most one has groups, and kinks that both have are the same.

        Bounds hold members of a group at its kink, or there are none: a held member leaves its group.
        """
        if not (self.separable or other.separable):
            return None
        if not self.separable:
            self = self.holding(other)
        elif not other.separable:
            other = other.holding(self)
        for g, h in ((self, other), (other, self)):
            bounded = np.isfinite(h.lower) | np.isfinite(h.upper)
            if (g.group >= 0)[bounded].any() or not _constant_within(g.group, h.l2):
                return None
        one, two = ((form.l1 != 0) | (form.l2 != 0) | (form.group >= 0) for form in (self, other))
        if not np.array_equal(self.kink[one & two], other.kink[one & two]):
            return None
        grouped = other if self.separable else self
        kink = np.where(two & ~one, other.kink, self.kink)
        lower, upper = np.maximum(self.lower, other.lower), np.minimum(self.upper, other.upper)
        return grouped._replace(l1=self.l1 + other.l1, l2=self.l2 + other.l2, kink=kink, lower=lower, upper=upper)


def coordinate_form(g: Regulariser, d: int) -> CoordinateForm | None:
    """The form of g for d coefficients; None where it has none.

    Only a class's own method counts: a class that inherits it may have changed the value or the prox.
    """
    return g.coordinate_form(d) if "coordinate_form" in vars(type(g)) else None  # pyright: ignore[reportAttributeAccessIssue]


def with_cached_form(g: Regulariser, d: int) -> Regulariser:
    """g with its form computed once, for a solver that needs it in every step; g itself where it has none."""
    form = coordinate_form(g, d)
    return g if form is None else _CachedForm(g, form)


class _CachedForm:
    def __init__(self, g: Regulariser, form: CoordinateForm):
        self.g, self.form, self.prox = g, form, g.prox

    def __call__(self, x: Array) -> Array:
        return self.g(x)

    def coordinate_form(self, d: int) -> CoordinateForm:
        return self.form


def separable_form(
    d: int, l1: Each = 0.0, l2: Each = 0.0, lower: Each = -np.inf, upper: Each = np.inf
) -> CoordinateForm:
    """A form without groups, kinks at 0; each argument is a number, or one for each of the d coefficients."""
    each = (per_coefficient(value, d) for value in (l1, l2, 0.0, lower, upper))
    return CoordinateForm(*each, group_weight=np.zeros(0), group=np.full(d, -1))


def side_by_side(forms: list[CoordinateForm]) -> CoordinateForm:
    """g_1(first coefficients) + g_2(next) + ..."""
    first = np.cumsum([0, *(len(form.group_weight) for form in forms)])
    group = [np.where(form.group >= 0, form.group + k, -1) for form, k in zip(forms, first, strict=False)]
    each = [np.concatenate(parts) for parts in zip(*(form[:-1] for form in forms), strict=True)]
    return CoordinateForm(*each, group=np.concatenate(group))


def per_coefficient(value: npt.ArrayLike, d: int) -> np.ndarray:
    """A number, or an array with one for each coefficient, as d numbers."""
    if np.shape(value) not in ((), (1,), (d,)):
        raise InputError(f"a regulariser has an array of shape {np.shape(value)}; the model has {d} coefficients.")
    return np.full(d, np.asarray(value, float))


def _constant_within(group: np.ndarray, array: np.ndarray) -> bool:
    """Whether the array is one number within each group."""
    inside = group >= 0
    one = np.zeros(group.max(initial=-1) + 1)
    one[group[inside]] = array[inside]
    return bool((one[group[inside]] == array[inside]).all())
