"""A regulariser coefficient by coefficient, in NumPy: for a method at the server that compiles nothing.

`form_of(g, d)` is a `Form`, or None where g has none. Each class says its own in a method `form(d)`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jax.core import Tracer

from compfed._utils.array_namespace import namespace
from compfed.errors import InputError

Numbers = Any  # an array of NumPy, or of JAX where it depends on a number that is being traced


class CoordinateForm(NamedTuple):
    """g(x) = sum_j l1_j |v_j| + l2_j v_j^2 / 2 + sum_k pull_k ||v_(group k)||, v = x - kink, for lower <= x <= upper.

    Outside the bounds g is infinite. Coefficients of one group have one l2 and no bounds, so that `prox` is right.
    The methods `value`, `prox`, `at`, and `smooth` need numbers that are known; the others serve tracers as well.
    """

    l1: Numbers
    l2: Numbers
    kink: Numbers
    lower: Numbers
    upper: Numbers
    pull: Numbers  # one number per group
    group: np.ndarray  # the group of each coefficient, 0, 1, ...; -1 for none

    def value(self, x: Any) -> float:
        """g(x)."""
        x = np.asarray(x, float)
        if (x < self.lower).any() or (x > self.upper).any():
            return np.inf
        v = x - self.kink
        return float(self.l1 @ np.abs(v) + 0.5 * (self.l2 @ (v * v)) + self.pull @ self._norms(v))

    def prox(self, x: Any, t: Any) -> np.ndarray:
        """argmin_u g(u) + sum_j (u_j - x_j)^2 / (2 t_j); t is a number, or one per coefficient, equal within a group.

        Soft thresholding, then the groups, as in SparseGroup. Then l2: what is before it is the prox of a function
        h with h(c v) = c h(v), and for such an h the prox of t (h + l2 ||.||^2 / 2) is that of t h divided by
        1 + t l2. Then the bounds: a convex function of one number is least on an interval at its free minimiser, clipped.
        """
        x = np.asarray(x, float)
        v = x - self.kink
        u = np.sign(v) * np.maximum(np.abs(v) - t * self.l1, 0.0)
        if not self.separable:
            u = u * self._shrinkage(u, t)
        u = u / (1.0 + t * self.l2)
        # kink + (x - kink) may round: a coefficient that nothing moved is x itself
        return np.clip(np.where(u == v, x, self.kink + u), self.lower, self.upper)

    def mapping(self, x: Any, gradient: np.ndarray, t: float) -> np.ndarray:
        """(x - prox(x - t gradient, t)) / t, written so that no digits are lost where t gradient is small beside x."""
        x = np.asarray(x, float)
        v = x - self.kink
        moved = v - t * gradient
        sign = np.sign(moved)
        force = gradient + self.l1 * sign
        u = sign * np.maximum(np.abs(moved) - t * self.l1, 0.0)  # v - t force, where that is not zero
        kept, pulled = u, self.l2 * u
        if not self.separable:
            kept = u * self._shrinkage(u, t)
            norms = self._norms(u)
            pulled = pulled + np.append(self.pull / np.where(norms > 0, norms, 1.0), 0.0)[self.group] * u
        mapping = np.where(kept != 0, force + pulled / (1.0 + t * self.l2), v / t)
        new = self.kink + kept / (1.0 + t * self.l2)
        inside = np.clip(new, self.lower, self.upper)
        return np.where(new == inside, mapping, (x - inside) / t)

    def at(self, W: Any) -> CoordinateForm:
        """The form of the coefficients W (whole groups, or none of a group), the others being fixed."""
        W = np.asarray(W)
        inside = self.group[W]
        kept, renumbered = np.unique(inside[inside >= 0], return_inverse=True)
        if renumbered.size != np.isin(self.group, kept).sum():
            raise InputError("Form.at: W cuts a group. Give all coefficients of a group, or none.")
        group = np.full(inside.shape, -1)
        group[inside >= 0] = renumbered
        each = (array[W] for array in (self.l1, self.l2, self.kink, self.lower, self.upper))
        return CoordinateForm(*each, pull=self.pull[kept], group=group)

    @property
    def separable(self) -> bool:
        """Are there no groups?"""
        return not (self.group >= 0).any()

    @property
    def smooth(self) -> np.ndarray:
        """The coefficients in which g has neither a kink nor a bound: nothing acts on them, or an l2 alone."""
        bounded = np.isfinite(self.lower) | np.isfinite(self.upper)
        return (self.l1 == 0) & (np.append(self.pull, 0.0)[self.group] == 0) & ~bounded

    def scaled(self, factor: Any) -> CoordinateForm:
        """factor g(x)."""
        return self._replace(l1=times(self.l1, factor), l2=times(self.l2, factor), pull=times(self.pull, factor))

    def moved(self, offset: Any) -> CoordinateForm:
        """g(x - offset)."""
        offset = spread(offset, self.group.size)
        return self._replace(kink=self.kink + offset, lower=self.lower + offset, upper=self.upper + offset)

    def stretched(self, scale: Any) -> CoordinateForm:
        """g(x / scale)."""
        scale = numbers(scale)
        return CoordinateForm(
            l1=times(self.l1, 1.0 / scale),
            l2=times(self.l2, 1.0 / scale**2),
            kink=times(self.kink, scale),
            lower=times(self.lower, scale),
            upper=times(self.upper, scale),
            pull=times(self.pull, 1.0 / scale),
            group=self.group,
        )

    def plus(self, other: CoordinateForm) -> CoordinateForm | None:
        """g(x) + h(x), if that has a form and it can be known: kinks that are being traced cannot be compared."""
        if not (self.separable or other.separable):
            return None
        for g, h in ((self, other), (other, self)):
            # a traced l2 is one number for all: of what has curvature, only Ridge may be added to groups
            if (g.group >= 0)[_bounded(h)].any() or (_known(h.l2) and not _equal_within(g.group, h.l2)):
                return None
        one, two = self._penalised(), other._penalised()
        both = one & two
        if both.any():
            comparable = _known(self.kink) and _known(other.kink)
            if not (comparable and np.array_equal(self.kink[both], other.kink[both])):
                return None
        kink = self.kink
        if (two & ~one).any():
            kink = namespace(kink, other.kink).where(one, kink, other.kink)
        grouped = other if self.separable else self
        return CoordinateForm(
            l1=self.l1 + other.l1,
            l2=self.l2 + other.l2,
            kink=kink,
            lower=namespace(self.lower, other.lower).maximum(self.lower, other.lower),
            upper=namespace(self.upper, other.upper).minimum(self.upper, other.upper),
            pull=grouped.pull,
            group=grouped.group,
        )

    def _norms(self, v: np.ndarray) -> np.ndarray:
        """||v_(group k)|| of each group."""
        inside = self.group >= 0
        return np.sqrt(np.bincount(self.group[inside], v[inside] ** 2, minlength=len(self.pull)))

    def _shrinkage(self, v: np.ndarray, t: Any) -> np.ndarray:
        """(1 - t pull_k / ||v_(group k)||)_+ for each coefficient, 1 for those in no group."""
        steps = np.broadcast_to(t, v.shape)
        if not _equal_within(self.group, steps):
            raise InputError("Form.prox: the steps t differ within a group; the prox of a norm needs one step.")
        norms, thresholds = self._norms(v), _of_groups(self.group, steps) * self.pull
        factor = np.where(norms > thresholds, 1.0 - thresholds / np.where(norms > 0, norms, 1.0), 0.0)
        return np.append(factor, 1.0)[self.group]  # -1, no group, reads the 1 at the end

    def _penalised(self) -> np.ndarray:
        """The coefficients whose kink matters, or may matter: a number that is being traced may be positive."""
        return _may_differ(self.l1, 0.0) | _may_differ(self.l2, 0.0) | (self.group >= 0)


def coordinate_form(g: Any, d: int) -> CoordinateForm | None:
    """The form of g for d coefficients; None where it has none.

    Only what a class itself says counts: a class that inherits its `form` may have changed the value or the prox.
    """
    return g.form(d) if "form" in vars(type(g)) else None


def remembering(g: Any, d: int) -> Any:
    """g with its form worked out once, for a search that asks for it in every step; g itself where it has none."""
    form = coordinate_form(g, d)
    return g if form is None else _Remembered(g, form)


class _Remembered:
    def __init__(self, g: Any, known: CoordinateForm):
        self.g, self.known = g, known

    def form(self, d: int) -> CoordinateForm | None:
        return self.known

    def __call__(self, x: Any) -> Any:
        return self.g(x)

    def prox(self, x: Any, t: Any) -> Any:
        return self.g.prox(x, t)


def plain(d: int, l1: Any = 0.0, l2: Any = 0.0, lower: Any = -np.inf, upper: Any = np.inf) -> CoordinateForm:
    """A form without groups, kinks at 0; each argument is a number, or one for each of the d coefficients."""
    each = (spread(value, d) for value in (l1, l2, 0.0, lower, upper))
    return CoordinateForm(*each, pull=np.zeros(0), group=np.full(d, -1))


def side_by_side(forms: list[CoordinateForm]) -> CoordinateForm:
    """g_1(first coefficients) + g_2(next) + ..."""
    first = np.cumsum([0, *(len(form.pull) for form in forms)])
    group = [np.where(form.group >= 0, form.group + k, -1) for form, k in zip(forms, first, strict=False)]
    each = [namespace(*parts).concatenate(parts) for parts in zip(*(form[:-1] for form in forms), strict=True)]
    return CoordinateForm(*each, group=np.concatenate(group))


def spread(value: Any, d: int) -> Numbers:
    """A number, or an array with one for each coefficient, as d numbers."""
    if np.shape(value) not in ((), (1,), (d,)):
        raise InputError(f"a regulariser has an array of shape {np.shape(value)}; the model has {d} coefficients.")
    return np.full(d, numbers(value)) if _known(value) else namespace(value).broadcast_to(value, (d,))


def numbers(value: Any) -> Numbers:
    """The value in NumPy and double precision, unless it is being traced."""
    return np.asarray(value, float) if _known(value) else value


def times(array: Numbers, factor: Any) -> Numbers:
    """The product; zeros that are known stay known, whatever the factor."""
    return array if _known(array) and not array.any() else array * numbers(factor)


def _known(value: Any) -> bool:
    return not isinstance(value, Tracer)


def _may_differ(array: Numbers, value: float) -> np.ndarray:
    """Where the array is not the value, or not known."""
    return array != value if _known(array) else np.ones(array.shape, bool)


def _bounded(form: CoordinateForm) -> np.ndarray:
    return _may_differ(form.lower, -np.inf) | _may_differ(form.upper, np.inf)


def _of_groups(group: np.ndarray, array: np.ndarray) -> np.ndarray:
    """The number of one coefficient of each group."""
    inside = group >= 0
    one = np.zeros(group.max(initial=-1) + 1)
    one[group[inside]] = array[inside]
    return one


def _equal_within(group: np.ndarray, array: np.ndarray) -> bool:
    """Is the array one number within each group?"""
    inside = group >= 0
    return bool((_of_groups(group, array)[group[inside]] == array[inside]).all())
