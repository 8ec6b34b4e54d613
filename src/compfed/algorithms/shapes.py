"""The messages of a round, by their shapes: what travels, without running anything."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed.algorithms.base import Algorithm
from compfed.problem.regularisers import Regulariser
from compfed.tools.precision import precision


class Shapes(NamedTuple):
    """Trees of shapes and dtypes of one exchange."""

    down: Any
    up: Any


class FlatLoss:
    """A loss that is zero everywhere: enough to trace what an algorithm does with a gradient."""

    def value(self, x: Array) -> Array:
        return jnp.zeros((), x.dtype)

    def grad(self, x: Array, key: Array) -> Array:
        return self.full_grad(x)

    def full_grad(self, x: Array) -> Array:
        return jnp.zeros_like(x)

    def hessian(self, x: Array, W: Array | None = None) -> Array:
        size = len(x) if W is None else len(W)
        return jnp.zeros((size, size), x.dtype)

    def model_hessian(self, x: Array, W: Array | None = None) -> Array:
        return self.hessian(x, W)


_known: dict[Any, list[Shapes]] = {}
KEPT = 1024  # cases; a server that is not trusted chooses them at a site


def message_shapes(algorithm: Algorithm, g: Regulariser, d: int, dtype: Any) -> list[Shapes]:
    """The messages of every exchange of a round, for a model of d coefficients."""
    dtype = np.dtype(dtype)
    case = (jax.tree.structure(algorithm), jax.tree.structure(g), d, dtype)
    if case not in _known:
        if len(_known) >= KEPT:
            _known.clear()
        with precision(dtype):
            _known[case] = jax.eval_shape(lambda x0: _exchanged(algorithm, g, x0), jax.ShapeDtypeStruct((d,), dtype))
    return _known[case]


def _exchanged(algorithm: Algorithm, g: Regulariser, x0: Array) -> list[Shapes]:
    share, key = jnp.ones((), x0.dtype), jax.random.key(0)
    s, c = algorithm.init(x0)
    found = []
    for exchange in algorithm.exchanges:
        down = exchange.down(g, s)
        up, c, _ = exchange.client(FlatLoss(), g, down, c, key)  # pyright: ignore[reportArgumentType]  # stands in
        found.append(Shapes(down, up))
        if exchange is not algorithm:
            s = exchange.server(g, s, up, share)
    return found
