"""Norms of the coefficients in order of size."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed.errors import InputError
from compfed.problem.regularisers.base import Combinable, like, ratio, sequential_on_cpu
from compfed.problem.regularisers.sets import water_level
from compfed.tools.records import nonnegative, record


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
