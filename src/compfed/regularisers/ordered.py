"""Norms of the coefficients in order of size.

Regularisers of coefficients that stand in a row: time points, positions, dose levels.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed._utils.records import nonnegative, record
from compfed.errors import InputError
from compfed.regularisers.base import Combinable, like, ratio, sequential_on_cpu
from compfed.regularisers.sets import water_level


@record
class LinfNorm(Combinable):
    """g(x) = lam * max_j |x_j|.

    By Moreau's identity the prox is x minus its projection on the L1 ball of radius t lam: |x_j| is cut at one level.
    """

    lam: float = nonnegative(scalar=True)

    def __call__(self, x: Array) -> Array:
        return like(x, self.lam) * jnp.abs(x).max()

    def prox(self, x: Array, t: Array | float) -> Array:
        level = jnp.maximum(water_level(jnp.abs(x), like(x, t * self.lam)), 0.0)
        return jnp.clip(x, -level, level)

    def critical(self, gradient: Array) -> Array:
        return ratio(jnp.abs(gradient).sum(), self.lam)


@record
class SortedL1(Combinable):
    """g(x) = sum_k lam_k |x|_(k), with |x|_(1) >= |x|_(2) >= ... and lam_1 >= lam_2 >= ... >= 0 (OWL, SLOPE).

    Equal steps in `lam` group equal coefficients (OSCAR); a constant `lam` is L1. Reference: Bogdan, van den Berg,
    Sabatti, Su, Candès, "SLOPE: adaptive variable selection via convex optimization", 2015.
    """

    lam: np.ndarray = nonnegative()

    def check(self) -> None:
        if np.ndim(self.lam) != 1:
            raise InputError(f"SortedL1(lam={self.lam!r}): lam must be one number per coefficient, largest first.")
        if isinstance(self.lam, np.ndarray) and not (np.diff(self.lam) <= 0).all():
            raise InputError(f"SortedL1(lam={self.lam!r}): lam must not increase. Give np.sort(lam)[::-1].")

    def __call__(self, x: Array) -> Array:
        return (self._weights(x) * _falling(jnp.abs(x))).sum()

    def prox(self, x: Array, t: Array | float) -> Array:
        order = jnp.argsort(-jnp.abs(x))
        shrunk = jnp.abs(x)[order] - like(x, t) * self._weights(x)
        # sizes in the order they had, as near as can be to `shrunk`: order is kept by the prox, ties may appear
        sizes = jnp.maximum(nonincreasing_fit(shrunk), 0.0)
        return jnp.sign(x) * jnp.zeros_like(sizes).at[order].set(sizes)

    def critical(self, gradient: Array) -> Array:
        return ratio(jnp.cumsum(_falling(jnp.abs(gradient))), jnp.cumsum(self._weights(gradient))).max()

    def _weights(self, x: Array) -> Array:
        if np.shape(self.lam) != x.shape:
            raise InputError(
                f"SortedL1 has {np.size(self.lam)} numbers in lam; it does not fit a model of shape {x.shape}."
            )
        return like(x, self.lam)


def _falling(v: Array) -> Array:
    return -jnp.sort(-v)


@sequential_on_cpu
def nonincreasing_fit(v: Array) -> Array:
    """argmin over u_1 >= u_2 >= ... of ||u - v||^2, by pooling adjacent violators: O(d).

    The stack holds the sum and the size of each block of equal entries; a new entry absorbs the blocks below it
    whose mean is not larger than its own.
    """
    # As int32 the sizes would do; in the dtype of v the two stacks are one array.
    stack, top = jnp.zeros((v.size, 2), v.dtype), jnp.zeros((), jnp.int32)

    def push(carry: tuple[Array, Array], entry: Array) -> tuple[tuple[Array, Array], None]:
        stack, top = carry

        def violates(state: tuple[Array, Array]) -> Array:
            block, top = state
            below = stack[top - 1]
            return (top > 0) & (below[0] * block[1] <= block[0] * below[1])

        def absorb(state: tuple[Array, Array]) -> tuple[Array, Array]:
            block, top = state
            return block + stack[top - 1], top - 1

        block, top = jax.lax.while_loop(violates, absorb, (jnp.stack([entry, jnp.ones_like(entry)]), top))
        return (stack.at[top].set(block), top + 1), None

    (stack, top), _ = jax.lax.scan(push, (stack, top), v)
    used = jnp.arange(v.size) < top
    sizes = jnp.where(used, stack[:, 1], 0.0).astype(jnp.int32)
    means = stack[:, 0] / jnp.where(used, stack[:, 1], 1.0)
    return jnp.repeat(means, sizes, total_repeat_length=v.size)


@record
class TotalVariation1D(Combinable):
    """g(x) = lam * sum_j |x_{j+1} - x_j|.

    The prox is exact and direct, in O(d): dynamic programming on the derivative of the message that passes along the
    row (Johnson, "A dynamic programming algorithm for the fused lasso and L0-segmentation", 2013). Rounding adds up
    along the row: in float32, to 1e-6 of the largest coefficient for d = 2000 and 1e-5 for d = 100 000.
    """

    lam: float = nonnegative(scalar=True)

    def __call__(self, x: Array) -> Array:
        return like(x, self.lam) * jnp.abs(jnp.diff(x)).sum()

    def prox(self, x: Array, t: Array | float) -> Array:
        if x.size < 2:
            return x
        # From this strength on the answer is the mean; a larger one would only cost digits.
        enough = jnp.abs(jnp.cumsum(x - x.mean())).max()
        return _fused(x, jnp.minimum(like(x, t * self.lam), enough))


@sequential_on_cpu
def _fused(y: Array, lam: Array) -> Array:
    """argmin_u ||u - y||^2 / 2 + lam sum_j |u_{j+1} - u_j|.

    With F_j(b) the least cost of u_1, ..., u_j given u_j = b, the recursion is
    F_{j+1}'(b) = (b - y_{j+1}) + clip(F_j'(b), -lam, lam), and backwards u_j = u_{j+1} clipped to [low_j, high_j],
    where F_j'(low_j) = -lam and F_j'(high_j) = lam. The clipped derivative is piecewise linear and increasing. It is
    kept as a list of knots (position, change of slope, change of intercept): left of all it is -lam, right of all
    +lam. Each step removes knots at the two ends and adds one at each end, so that 2 d knots are touched in all.
    """
    d = y.size
    knots = jnp.zeros((2 * d, 3), y.dtype)
    knots = knots.at[d - 1].set(jnp.stack([y[0] - lam, jnp.ones_like(lam), lam - y[0]]))
    knots = knots.at[d].set(jnp.stack([y[0] + lam, -jnp.ones_like(lam), lam + y[0]]))

    def ends(knots: Array, first: Array, last: Array, offset: Array) -> tuple[Array, Array, Array, Array]:
        """The lines (slope, intercept) on which b - offset + (knots passed) is 0, from the left and from the right.

        Without the -lam and +lam at the two ends, "reaches -lam" and "reaches +lam" both read "is 0". One loop for
        both ends: with a loop for each XLA copies all knots at every step, and the work is no longer O(d). A few more
        operations here or in `forward` cost a factor of ten, as XLA then schedules them one by one.
        """

        def passing(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
            rising, i, falling, k = state
            left = (i <= k) & (rising[0] * knots[i, 0] + rising[1] <= 0)
            right = (i + left <= k) & (falling[0] * knots[k, 0] + falling[1] >= 0)  # no knot is passed from both ends
            return left, right

        def step(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
            (rising, i, falling, k), (left, right) = state, passing(state)
            rising = jnp.where(left, rising + knots[i, 1:], rising)
            falling = jnp.where(right, falling - knots[k, 1:], falling)
            return rising, i + left, falling, k - right

        line = jnp.stack([jnp.ones_like(offset), -offset])
        return jax.lax.while_loop(lambda state: jnp.any(jnp.stack(passing(state))), step, (line, first, line, last))

    def forward(carry: tuple[Array, Array, Array], y_j: Array) -> tuple[Any, tuple[Array, Array]]:
        knots, first, last = carry
        rising, first, falling, last = ends(knots, first, last, y_j)
        low, high = -rising[1] / rising[0], -falling[1] / falling[0]
        knots = knots.at[first - 1].set(jnp.concatenate([low[None], rising]))
        knots = knots.at[last + 1].set(jnp.concatenate([high[None], -falling]))
        return (knots, first - 1, last + 1), (low, high)

    start = knots, jnp.asarray(d - 1, jnp.int32), jnp.asarray(d, jnp.int32)
    (knots, first, last), (low, high) = jax.lax.scan(forward, start, y[1:-1])
    line, *_ = ends(knots, first, last, y[-1] + lam)  # from the left, with -lam counted: where F_d' is 0
    end = -line[1] / line[0]

    def backward(after: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        here = jnp.clip(after, *bounds)
        return here, here

    low, high = jnp.append(y[0] - lam, low), jnp.append(y[0] + lam, high)
    _, u = jax.lax.scan(backward, end, (low, high), reverse=True)
    return jnp.append(u, end)
