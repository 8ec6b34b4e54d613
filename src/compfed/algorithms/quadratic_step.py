"""The proximal step of a quadratic model, for methods that know a Hessian: no gradient of f_i is read for it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from compfed.regularisers import Regulariser


def quadratic_prox(gradient: Array, H: Array, x: Array, g: Regulariser, steps: int) -> Array:
    """argmin_u <gradient, u - x> + (u - x)^T H (u - x) / 2 + g(u), by `steps` accelerated proximal steps from x.

    H is symmetric positive semi-definite. The momentum starts again whenever it points uphill. If x is the minimiser, x comes
    back whatever the number of steps.
    """
    largest = jnp.linalg.eigvalsh(H)[-1]
    eta = 1.0 / jnp.where(largest > 0, largest, 1.0)

    def step(carry, _):
        u, y, t = carry
        new = g.prox(y - eta * (gradient + H @ (y - x)), eta)
        uphill = (y - new) @ (new - u) > 0
        t = jnp.where(uphill, 1.0, t)
        t_new = 0.5 * (1.0 + jnp.sqrt(1.0 + 4.0 * t * t))
        y = new + jnp.where(uphill, 0.0, (t - 1.0) / t_new) * (new - u)
        return (new, y, jnp.where(uphill, 1.0, t_new)), None

    (u, _, _), _ = jax.lax.scan(step, (x, x, jnp.ones((), x.dtype)), length=steps)
    return u
