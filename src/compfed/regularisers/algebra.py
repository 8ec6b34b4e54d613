"""Regularisers made of regularisers: multiplied, moved, stretched, on a block, side by side.

Sums are in sums.py."""

from __future__ import annotations

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed._utils.records import count, index, labels, number, part, positive, record
from compfed._utils.validation import MAX_MAGNITUDE, MIN_MAGNITUDE, is_number
from compfed.errors import InputError
from compfed.regularisers.adapter import adopt
from compfed.regularisers.base import Combinable, largest_step, like
from compfed.regularisers.coordinate_form import CoordinateForm, coordinate_form, plain, side_by_side


@record
class Scaled(Combinable):
    """factor * g(x), factor > 0; also written `factor * g`."""

    g: Any = part()
    factor: float = positive()

    def check(self) -> None:
        adopt(self, "g")

    @property
    def largest_step(self) -> Any:
        return largest_step(self.g) / self.factor

    def __call__(self, x: Array) -> Array:
        return like(x, self.factor) * self.g(x)

    def prox(self, x: Array, t: Array | float) -> Array:
        return self.g.prox(x, t * self.factor)

    def form(self, d: int) -> CoordinateForm | None:
        form = coordinate_form(self.g, d)
        return form and form.scaled(self.factor)

    def critical(self, gradient: Array) -> Array:
        return _critical(self.g, gradient) / like(gradient, self.factor)


@record
class Shifted(Combinable):
    """g(x - offset): draws x to the offset instead of to 0. The offset is a number or a vector."""

    g: Any = part()
    offset: float | np.ndarray = number()

    def check(self) -> None:
        adopt(self, "g")
        if isinstance(self.offset, (float, np.ndarray)) and not np.isfinite(self.offset).all():
            raise InputError(f"Shifted(offset={self.offset!r}): offset must be finite.")

    @property
    def largest_step(self) -> Any:
        return largest_step(self.g)

    def __call__(self, x: Array) -> Array:
        offset = like(x, self.offset)
        return _value(self.g, x - offset, jnp.abs(x) + jnp.abs(offset))

    def prox(self, x: Array, t: Array | float) -> Array:
        offset = like(x, self.offset)
        return offset + self.g.prox(x - offset, t)

    def form(self, d: int) -> CoordinateForm | None:
        form = coordinate_form(self.g, d)
        return form and form.moved(self.offset)


@record
class Rescaled(Combinable):
    """g(x / scale), scale > 0.

    The scale is one number: with one per coefficient the prox would be that of g in another metric, which g does not
    know. Where g acts on single coefficients, put the scales into its weights instead, as in L1(lam / scales).
    """

    g: Any = part()
    scale: float = positive()

    def check(self) -> None:
        adopt(self, "g")
        if is_number(self.scale) and not MIN_MAGNITUDE <= self.scale <= MAX_MAGNITUDE:
            raise InputError(
                f"Rescaled(scale={self.scale:g}): scale must be between {MIN_MAGNITUDE:g} and {MAX_MAGNITUDE:g}; otherwise "
                "its square overflows or underflows."
            )

    @property
    def largest_step(self) -> Any:
        return largest_step(self.g) * self.scale**2

    def __call__(self, x: Array) -> Array:
        u = x / like(x, self.scale)
        return _value(self.g, u, jnp.abs(u))

    def prox(self, x: Array, t: Array | float) -> Array:
        return like(x, self.scale) * self.g.prox(x / like(x, self.scale), t / self.scale**2)

    def form(self, d: int) -> CoordinateForm | None:
        form = coordinate_form(self.g, d)
        return form and form.stretched(self.scale)

    def critical(self, gradient: Array) -> Array:
        return _critical(self.g, gradient) * like(gradient, self.scale)


@record
class OnBlock(Combinable):
    """g(x[start:stop]); the other coefficients (an intercept, say) are free."""

    g: Any = part()
    start: int = index()
    stop: int = count()

    def check(self) -> None:
        adopt(self, "g")
        if self.stop <= self.start:
            raise InputError(f"OnBlock(start={self.start}, stop={self.stop}): start must be below stop.")

    @property
    def largest_step(self) -> Any:
        return largest_step(self.g)

    def __call__(self, x: Array) -> Array:
        return self.g(self._block(x))

    def prox(self, x: Array, t: Array | float) -> Array:
        return jnp.asarray(x).at[self.start : self.stop].set(self.g.prox(self._block(x), t))

    def form(self, d: int) -> CoordinateForm | None:
        form = coordinate_form(self.g, self._block(np.empty(d)).size)
        return form and side_by_side([plain(self.start), form, plain(d - self.stop)])

    def critical(self, gradient: Array) -> Array:
        """The critical factor of the block, for a gradient taken where the free coefficients are optimal."""
        return _critical(self.g, self._block(gradient))

    def _block(self, x: Any) -> Any:
        if self.stop > x.size:
            raise InputError(f"OnBlock(stop={self.stop}) does not fit a model of {x.size} coefficients.")
        return x[self.start : self.stop]


@record
class Blocks(Combinable):
    """g_1(first sizes[0] coefficients) + g_2(next sizes[1]) + ...: one regulariser for each block of x.

    >>> from compfed.regularisers import L1, Zero
    >>> Blocks((L1(0.1), Zero()), sizes=(784, 1)).sizes
    (784, 1)
    """

    parts: tuple[Any, ...] = part()
    sizes: tuple[int, ...] = labels()

    def check(self) -> None:
        if not isinstance(self.parts, tuple) or len(self.parts) != len(self.sizes):
            raise InputError(f"Blocks(parts={self.parts!r}, sizes={self.sizes}): give a tuple with one part per size.")
        if min(self.sizes) < 1:
            raise InputError(f"Blocks(sizes={self.sizes}): every size must be >= 1.")
        adopt(self, "parts")

    @property
    def largest_step(self) -> Any:
        return _least([largest_step(g) for g in self.parts])

    def __call__(self, x: Array) -> Array:
        return jnp.stack([g(u) for g, u in self._pairs(x)]).sum()

    def prox(self, x: Array, t: Array | float) -> Array:
        return jnp.concatenate([g.prox(u, t) for g, u in self._pairs(x)])

    def form(self, d: int) -> CoordinateForm | None:
        forms = [coordinate_form(g, u.size) for g, u in self._pairs(np.empty(d))]
        known = [form for form in forms if form is not None]
        return side_by_side(known) if len(known) == len(forms) else None

    def critical(self, gradient: Array) -> Array:
        return jnp.stack([_critical(g, u) for g, u in self._pairs(gradient)]).max()

    def _pairs(self, x: Any) -> list[tuple[Any, Any]]:
        if sum(self.sizes) != x.size:
            raise InputError(f"Blocks(sizes={self.sizes}) has {sum(self.sizes)} coefficients; the model has {x.size}.")
        ends = list(itertools.accumulate(self.sizes))
        return [(g, x[end - size : end]) for g, end, size in zip(self.parts, ends, self.sizes, strict=True)]


def _least(steps: list[Any]) -> Any:
    known = all(isinstance(step, float) for step in steps)
    return min(steps) if known else jnp.stack([jnp.asarray(step) for step in steps]).min()


def _critical(g: Any, gradient: Array) -> Array:
    if not hasattr(g, "critical"):
        raise InputError(f"{type(g).__name__} has no critical.")
    return g.critical(gradient)


def _value(g: Any, u: Array, size: Array) -> Array:
    """g(u), where u was computed from numbers of the given size.

    A point on the boundary of a set may then lie just outside. prox(u, 0) is u itself, or its projection on the domain
    of g: if that is u up to rounding, its value is meant.
    """
    p = g.prox(u, 0.0)
    rounding = 4 * jnp.finfo(p.dtype).eps * size
    return g(jnp.where((jnp.abs(p - u) <= rounding).all(), p, u))
