"""Regularisers made of regularisers: multiples, sums, shifts, scales, and blocks of coefficients."""

from __future__ import annotations

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from compfed._utils.array_namespace import ArrayT, Numbers, cast_like, namespace
from compfed._utils.records import count, index, labels, number, part, positive, record
from compfed._utils.validation import MAX_MAGNITUDE, MIN_MAGNITUDE, is_number
from compfed.errors import InputError
from compfed.regularisers.base import (
    BaseRegulariser,
    Regulariser,
    Subspace,
    alpha_max_by_bisection,
    from_object,
    largest_step,
)
from compfed.regularisers.coordinate_form import CoordinateForm, coordinate_form, separable_form, side_by_side
from compfed.regularisers.penalties import RULES, Ridge, WeaklyConvex


def _adapt_all(parts: object) -> object:
    return tuple(map(from_object, parts)) if isinstance(parts, tuple) else parts


class _OfOne(BaseRegulariser):
    """A combination with a single part `g`."""

    g: Regulariser

    @property
    def largest_step(self) -> float:
        return largest_step(self.g)


@record
class Scaled(_OfOne):
    """factor * g(x); also written `factor * g`.

    Parameters
    ----------
    g : Regulariser
    factor : float
        Larger than 0.

    Examples
    --------
    >>> from compfed.regularisers import L1, NonNegative, Zero
    >>> Scaled(L1(0.5), 2.0).prox(np.array([-2.0, 0.5]), 1.0)
    array([-1.,  0.])
    """

    g: Regulariser = part(convert=from_object)
    factor: float = positive()

    @property
    def largest_step(self) -> float:
        return largest_step(self.g) / self.factor

    def __call__(self, x: ArrayT) -> ArrayT:
        return cast_like(self.factor, x) * self.g(x)

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        return self.g.prox(x, t * self.factor)

    def coordinate_form(self, d: int) -> CoordinateForm | None:
        form = coordinate_form(self.g, d)
        return form and form.scaled(self.factor)

    def alpha_max(self, gradient: ArrayT) -> ArrayT:
        return _alpha_max(self.g, gradient) / cast_like(self.factor, gradient)


@record
class Shifted(_OfOne):
    """g(x - offset): draws x to the offset instead of to 0.

    Parameters
    ----------
    g : Regulariser
    offset : float or array of shape (d,)

    Examples
    --------
    >>> from compfed.regularisers import L1, NonNegative, Zero
    >>> Shifted(L1(1.0), 3.0).prox(np.array([5.0, 3.5]), 1.0)
    array([4., 3.])
    """

    g: Regulariser = part(convert=from_object)
    offset: float | np.ndarray = number()

    def check(self) -> None:
        if isinstance(self.offset, (float, np.ndarray)) and not np.isfinite(self.offset).all():
            raise InputError(f"Shifted(offset={self.offset!r}): offset must be finite.")

    def __call__(self, x: ArrayT) -> ArrayT:
        offset = cast_like(self.offset, x)
        return _value_near_boundary(self.g, x - offset, abs(x) + abs(offset))

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        offset = cast_like(self.offset, x)
        return offset + self.g.prox(x - offset, t)

    def coordinate_form(self, d: int) -> CoordinateForm | None:
        form = coordinate_form(self.g, d)
        return form and form.shifted(self.offset)


@record
class Rescaled(_OfOne):
    """g(x / scale).

    The scale is one number: with one per coefficient the prox would be that of g in another metric, which g does not
    know. Where g acts on single coefficients, put the scales into its weights instead, as in L1(lam / scales).

    Parameters
    ----------
    g : Regulariser
    scale : float
        Larger than 0.

    Examples
    --------
    >>> from compfed.regularisers import L1, NonNegative, Zero
    >>> Rescaled(L1(1.0), 2.0).prox(np.array([-2.0, 0.5]), 1.0)
    array([-1.5,  0. ])
    """

    g: Regulariser = part(convert=from_object)
    scale: float = positive()

    def check(self) -> None:
        if is_number(self.scale) and not MIN_MAGNITUDE <= self.scale <= MAX_MAGNITUDE:
            bounds = f"between {MIN_MAGNITUDE:g} and {MAX_MAGNITUDE:g}, or its square overflows"
            raise InputError(f"Rescaled(scale={self.scale:g}): scale must be {bounds}.")

    @property
    def largest_step(self) -> float:
        return largest_step(self.g) * self.scale**2

    def __call__(self, x: ArrayT) -> ArrayT:
        u = x / cast_like(self.scale, x)
        return _value_near_boundary(self.g, u, abs(u))

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        return cast_like(self.scale, x) * self.g.prox(x / cast_like(self.scale, x), t / self.scale**2)

    def coordinate_form(self, d: int) -> CoordinateForm | None:
        form = coordinate_form(self.g, d)
        return form and form.rescaled(self.scale)

    def alpha_max(self, gradient: ArrayT) -> ArrayT:
        return _alpha_max(self.g, gradient) * cast_like(self.scale, gradient)


@record
class OnBlock(_OfOne):
    """g(x[start:stop]); the other coefficients (an intercept, say) are free.

    Parameters
    ----------
    g : Regulariser
    start, stop : int
        The block, as in a slice.

    Examples
    --------
    >>> from compfed.regularisers import L1, NonNegative, Zero
    >>> OnBlock(L1(1.0), 0, 2).prox(np.array([3.0, 0.5, 0.5]), 1.0)
    array([2. , 0. , 0.5])
    """

    g: Regulariser = part(convert=from_object)
    start: int = index()
    stop: int = count()

    def check(self) -> None:
        if self.stop <= self.start:
            raise InputError(f"OnBlock(start={self.start}, stop={self.stop}): start must be below stop.")

    def __call__(self, x: ArrayT) -> ArrayT:
        return self.g(self._block(x))

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        block = self.g.prox(self._block(x), t)
        if namespace(x, block) is np:
            return np.concatenate([x[: self.start], block, x[self.stop :]])  # pyright: ignore[reportReturnType]  # x is of NumPy
        return jnp.asarray(x).at[self.start : self.stop].set(block)  # pyright: ignore[reportReturnType]  # x is of JAX

    def coordinate_form(self, d: int) -> CoordinateForm | None:
        form = coordinate_form(self.g, self._block(np.empty(d)).size)
        return form and side_by_side([separable_form(self.start), form, separable_form(d - self.stop)])

    def alpha_max(self, gradient: ArrayT) -> ArrayT:
        """alpha_max of the block, for a gradient taken where the free coefficients are optimal."""
        return _alpha_max(self.g, self._block(gradient))

    def subspace(self, points: Numbers) -> Subspace | None:
        """The block in its subspace, the free coefficients unchanged."""
        block = self.g.subspace(points[:, self.start : self.stop]) if isinstance(self.g, BaseRegulariser) else None
        if block is None:
            return None
        join, stop = namespace(points).concatenate, self.start + block.points.shape[1]
        reduced = join([points[:, : self.start], block.points, points[:, self.stop :]], axis=1)

        def lift(u: Numbers) -> Numbers:
            return join([u[: self.start], block.lift(u[self.start : stop]), u[stop:]])

        return Subspace(replace(self, g=block.g, stop=stop), reduced, lift)

    def _block(self, x: Numbers) -> Numbers:
        if self.stop > x.size:
            raise InputError(f"OnBlock(stop={self.stop}) does not fit a model of {x.size} coefficients.")
        return x[self.start : self.stop]


@record
class Blocks(BaseRegulariser):
    """g_1(first sizes[0] coefficients) + g_2(next sizes[1]) + ...: one regulariser for each block of x.

    Parameters
    ----------
    parts : tuple of Regulariser
    sizes : sequence of int
        Number of coefficients of each block.

    Examples
    --------
    >>> from compfed.regularisers import L1, NonNegative, Zero
    >>> Blocks((L1(0.1), Zero()), sizes=(784, 1)).sizes
    (784, 1)
    """

    parts: tuple[Regulariser, ...] = part(convert=_adapt_all)
    sizes: tuple[int, ...] = labels()

    def check(self) -> None:
        if not isinstance(self.parts, tuple) or len(self.parts) != len(self.sizes):
            raise InputError(f"Blocks(parts={self.parts!r}, sizes={self.sizes}): give a tuple with one part per size.")
        if min(self.sizes) < 1:
            raise InputError(f"Blocks(sizes={self.sizes}): every size must be >= 1.")

    @property
    def largest_step(self) -> float:
        steps = [largest_step(g) for g in self.parts]
        known = all(isinstance(step, float) for step in steps)
        return min(steps) if known else jnp.stack(list(map(jnp.asarray, steps))).min()  # pyright: ignore[reportReturnType]  # traced

    def __call__(self, x: ArrayT) -> ArrayT:
        values = [g(u) for g, u in self._pairs(x)]
        return namespace(*values).stack(values).sum()

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        blocks = [g.prox(u, t) for g, u in self._pairs(x)]
        return namespace(*blocks).concatenate(blocks)

    def coordinate_form(self, d: int) -> CoordinateForm | None:
        forms = [coordinate_form(g, u.size) for g, u in self._pairs(np.empty(d))]
        known = [form for form in forms if form is not None]
        return side_by_side(known) if len(known) == len(forms) else None

    def alpha_max(self, gradient: ArrayT) -> ArrayT:
        alphas = [_alpha_max(g, u) for g, u in self._pairs(gradient)]
        return namespace(*alphas).stack(alphas).max()

    def _pairs(self, x: Numbers) -> list[tuple[Regulariser, Numbers]]:
        if sum(self.sizes) != x.size:
            raise InputError(f"Blocks(sizes={self.sizes}) has {sum(self.sizes)} coefficients; the model has {x.size}.")
        ends = list(itertools.accumulate(self.sizes))
        return [(g, x[end - size : end]) for g, end, size in zip(self.parts, ends, self.sizes, strict=True)]


def _alpha_max(g: Regulariser, gradient: Numbers) -> Numbers:
    if not hasattr(g, "alpha_max"):
        raise InputError(f"{type(g).__name__} has no alpha_max.")
    return g.alpha_max(gradient)  # pyright: ignore[reportAttributeAccessIssue]


def _value_near_boundary(g: Regulariser, u: Numbers, size: Numbers) -> Numbers:
    """g(u), where u was computed from numbers of the given size.

    A point on the boundary of a set may then lie just outside. prox(u, 0) is u itself, or its projection on the domain
    of g: if that is u up to rounding, its value is meant.
    """
    p = g.prox(u, 0.0)
    xp, rounding = namespace(p, u), 4 * np.finfo(p.dtype).eps * size
    return g(xp.where((xp.abs(p - u) <= rounding).all(), p, u))


# --- sums: prox_{t (a + b)} as the prox of one after that of the other ---


@record
class SumOf(BaseRegulariser):
    """a(x) + b(x), for the pairs whose prox is known in closed form; also written `a + b`.

    Known, in either order and with any factors: any g + Ridge, and the pairs of `penalties.RULES`.

    Parameters
    ----------
    a, b : Regulariser

    References
    ----------
    Yu, "On decomposing the proximal map", NeurIPS, 2013.

    Examples
    --------
    >>> from compfed.regularisers import L1, NonNegative, Zero
    >>> (L1(0.5) + NonNegative()).prox(np.array([-2.0, 0.2, 2.0]), 1.0)
    array([0. , 0. , 1.5])
    """

    a: Regulariser = part(convert=from_object)
    b: Regulariser = part(convert=from_object)

    def check(self) -> None:
        if self._ridge() is None:
            self._ordered()

    def __call__(self, x: ArrayT) -> ArrayT:
        return self.a(x) + self.b(x)

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        ridge = self._ridge()
        if ridge is not None:
            # Complete the square: t g(u) + t lam ||u||^2 / 2 + ||u - x||^2 / 2 is t g(u) + (1 + t lam) ||u - c||^2 / 2,
            # up to a constant, with c = x / (1 + t lam).
            g, lam = ridge
            return g.prox(x / (1.0 + cast_like(t * lam, x)), t / (1.0 + t * lam))
        first, last = self._ordered()
        return last.prox(first.prox(x, t), t)

    def coordinate_form(self, d: int) -> CoordinateForm | None:
        a, b = coordinate_form(self.a, d), coordinate_form(self.b, d)
        return a.plus(b) if a is not None and b is not None else None

    @property
    def largest_step(self) -> float:
        ridge = self._ridge()
        if ridge is None:
            first, _ = self._ordered()
            return largest_step(first)  # every `last` is convex
        g, lam = ridge
        rate = 1.0 / largest_step(g) - lam  # t / (1 + t lam) < largest_step(g)
        if isinstance(rate, Tracer):
            return jnp.where(rate > 0, 1.0 / rate, jnp.inf)  # pyright: ignore[reportReturnType]  # traced
        return 1.0 / rate if rate > 0 else np.inf

    def alpha_max(self, gradient: ArrayT) -> ArrayT:
        for g in jax.tree.leaves(self, is_leaf=lambda part: isinstance(part, WeaklyConvex)):
            if isinstance(g, WeaklyConvex):
                raise InputError(f"a sum with {type(g).__name__} has no alpha_max: it is not convex.")
        return alpha_max_by_bisection(self, gradient)

    def _ridge(self) -> tuple[Regulariser, float] | None:
        """(g, lam) if this is g + (lam / 2) ||x||^2."""
        for g, other in ((self.a, self.b), (self.b, self.a)):
            ridge = without_factors(other)
            if isinstance(ridge, Ridge):
                return g, _factor(other) * ridge.lam
        return None

    def _ordered(self) -> tuple[Regulariser, Regulariser]:
        """(first, last) by the rule for this pair."""
        for first, last in ((self.a, self.b), (self.b, self.a)):
            f, l = without_factors(first), without_factors(last)
            if any(rule.holds(f, l) for rule in RULES):
                return first, last
        unknown = f"{without_factors(self.a)!r} + {without_factors(self.b)!r} is not known in closed form"
        raise InputError(f"the prox of {unknown}. Known: any g + Ridge; {'; '.join(map(str, RULES))}.")


def without_factors(g: Regulariser) -> Regulariser:
    """g without its factors, on which no rule depends."""
    return without_factors(g.g) if isinstance(g, Scaled) else g


def _factor(g: Regulariser) -> float:
    return g.factor * _factor(g.g) if isinstance(g, Scaled) else 1.0
