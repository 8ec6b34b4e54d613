"""Sets with a shape: g is 0 inside and infinite outside, and the prox is the projection."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from compfed._utils.records import positive, record
from compfed.regularisers.base import ConvexSet, indicator, like, slack


@record
class L2Ball(ConvexSet):
    """g(x) = 0 if ||x|| <= radius, else inf."""

    radius: float = positive()

    def __call__(self, x: Array) -> Array:
        # the projection itself may round to just outside; a few units in the last place are inside
        return indicator(jnp.linalg.norm(x) <= like(x, self.radius) * slack(x), x)

    def prox(self, x: Array, t: Array | float) -> Array:
        norm, radius = jnp.linalg.norm(x), like(x, self.radius)
        return jnp.where(norm > radius, x * (radius / jnp.where(norm > 0, norm, 1.0)), x)


@record
class Simplex(ConvexSet):
    """g(x) = 0 if x_j >= 0 for all j and sum_j x_j = radius, else inf."""

    radius: float = positive(default=1.0)

    def __call__(self, x: Array) -> Array:
        radius = like(x, self.radius)
        on_plane = jnp.abs(x.sum() - radius) <= radius * (slack(x) - 1.0)
        return indicator((x >= 0).all() & on_plane, x)

    def prox(self, x: Array, t: Array | float) -> Array:
        return onto_simplex(x, like(x, self.radius))


@record
class L1Ball(ConvexSet):
    """g(x) = 0 if sum_j |x_j| <= radius, else inf."""

    radius: float = positive()

    def __call__(self, x: Array) -> Array:
        return indicator(jnp.abs(x).sum() <= like(x, self.radius) * slack(x), x)

    def prox(self, x: Array, t: Array | float) -> Array:
        size, radius = jnp.abs(x), like(x, self.radius)
        return jnp.where(size.sum() > radius, jnp.sign(x) * onto_simplex(size, radius), x)


def water_level(v: Array, radius: Array) -> Array:
    """The number w with sum_j max(v_j - w, 0) = radius; the largest v_j if radius = 0."""
    falling = -jnp.sort(-v)
    k = jnp.arange(1, v.size + 1, dtype=v.dtype)
    levels = (jnp.cumsum(falling) - radius) / k  # the level, if exactly the k largest stand out of the water
    out = jnp.maximum((falling > levels).sum(), 1)
    return levels[out - 1]


def onto_simplex(v: Array, radius: Array) -> Array:
    """The projection on {u >= 0, sum u = radius}."""
    # Adding a number to all v_j changes nothing. Measured from the level, what stands out by little keeps its digits.
    v = v - water_level(v, radius)
    return jnp.maximum(v - water_level(v, radius), 0.0)
