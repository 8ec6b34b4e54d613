"""The first exchange of methods that correct local models with gradients at a point of the server.

The server sends the point, every client sends its gradient there, and the server forms c = sum_i p_i grad f_i. The client keeps
the point and its own gradient for the exchange that follows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array


class Model(NamedTuple):
    x: Array


class Gradient(NamedTuple):
    gradient: Array  # grad f_i(x) over all rows


class Mean(NamedTuple):
    c: Array  # sum_i p_i grad f_i(x)


class Anchor(NamedTuple):
    """What a client keeps of the first exchange."""

    x: Array
    gradient: Array

    @classmethod
    def at(cls, x0: Array) -> Anchor:
        return cls(x=x0, gradient=jnp.zeros_like(x0))


class MeanGradient:
    """The exchange. The server state has the point in the field `x` and the mean in the field `c`."""

    def broadcast(self, g, s: Any):
        return Model(x=s.x)

    def client_update(self, f, g, d: Model, c: Anchor, key):
        gradient = f.full_grad(d.x)
        return Gradient(gradient=gradient), Anchor(x=d.x, gradient=gradient), d.x

    def server_update(self, g, s: Any, mean: Gradient, weight):
        return s._replace(c=mean.gradient)
