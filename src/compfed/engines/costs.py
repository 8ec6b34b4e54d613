"""What a round costs: messages and evaluations, counted on a round of the algorithm itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed.algorithms.base import Algorithm, dense
from compfed.algorithms.shapes import FlatLoss
from compfed.problem.regularisers.form import Form, plain
from compfed.tools.precision import precision


@dataclass(frozen=True)
class Cost:
    """One round of one participating client (and of the server, for server_proxes)."""

    vectors_up: float
    vectors_down: float
    bytes_up: float
    bytes_down: float
    gradients: float  # evaluations, over a mini-batch or over all rows
    full_gradients: float  # those of them that are over all rows whatever the batch size
    client_proxes: float
    server_proxes: float

    def columns(self, rows: float, batch_size: int | None) -> dict[str, float]:
        """What a trace counts, for clients with `rows` rows: their gradients are of different lengths, so rows too."""
        counted = asdict(self)
        full = counted.pop("full_gradients")
        each = rows if batch_size is None else batch_size
        return counted | {"gradient_rows": (self.gradients - full) * each + full * rows}


class _CountingLoss(FlatLoss):
    """A loss with zero gradient that counts how often it is asked, and how often for all rows."""

    def __init__(self) -> None:
        self.asked = self.asked_for_all = 0

    def grad(self, x: Array, key: Array) -> Array:
        self.asked += 1
        return super().full_grad(x)

    def full_grad(self, x: Array) -> Array:
        self.asked += 1
        self.asked_for_all += 1
        return super().full_grad(x)


class _CountingRegulariser:
    def __init__(self) -> None:
        self.steps: list[Any] = []  # the t of every prox

    def __call__(self, x: Array) -> Array:
        return jnp.zeros((), x.dtype)

    def prox(self, x: Array, t: Array | float) -> Array:
        self.steps.append(t)
        return x

    def form(self, d: int) -> Form:
        """Nothing at all: what a second-order step at the server does with it is no prox."""
        return plain(d)


_counted: dict[Any, Cost] = {}


def cost_of_a_round(algorithm: Algorithm, d: int, dtype: np.dtype, everyone: bool) -> Cost:
    """Counted, not declared: rounds are run on a zero loss with every loop as a Python loop.

    One round is enough, unless the algorithm says that its rounds differ in length; then it is an average.
    """
    leaves, structure = jax.tree.flatten(algorithm)
    # step sizes do not change the count, except where they set the length of a round
    values = tuple(map(float, leaves)) if algorithm.rounds_to_count > 1 else ()
    case = (structure, values, d, dtype, everyone)
    if case not in _counted:
        _counted[case] = _count(algorithm, d, dtype, everyone)
    return _counted[case]


def largest_prox_step(algorithm: Algorithm) -> float:
    """The largest t in a prox_{t g} of the first rounds: what a weakly convex g puts a bound on."""
    g = _CountingRegulariser()
    with precision(np.dtype(float)), jax.disable_jit():
        _messages(algorithm, jnp.zeros(1), _CountingLoss(), g, g, everyone=True)
    return max((float(t) for t in g.steps), default=0.0)


def _count(algorithm: Algorithm, d: int, dtype: np.dtype, everyone: bool) -> Cost:
    def counted(run: Callable[..., Any]) -> Cost:
        f, g, server_g = _CountingLoss(), _CountingRegulariser(), _CountingRegulariser()
        up, down = run(lambda x0: _messages(algorithm, x0, f, g, server_g, everyone))
        totals = (*_size(up, d), *_size(down, d), f.asked, f.asked_for_all, len(g.steps), len(server_g.steps))
        vectors_up, bytes_up, vectors_down, bytes_down, *calls = (t / algorithm.rounds_to_count for t in totals)
        return Cost(vectors_up, vectors_down, bytes_up, bytes_down, *calls)

    with precision(dtype), jax.disable_jit():
        if algorithm.rounds_to_count > 1:  # the length of a round is a number that has to be known
            return counted(lambda round_: round_(jnp.zeros(d, dtype)))
        return counted(lambda round_: jax.eval_shape(round_, jax.ShapeDtypeStruct((d,), dtype)))


def _messages(
    algorithm: Algorithm,
    x0: Array,
    f: _CountingLoss,
    g: _CountingRegulariser,
    server_g: _CountingRegulariser,
    everyone: bool,
) -> tuple[list[Any], list[Any]]:
    """Every message up and every message down of the rounds to count."""
    up, down = [], []
    share, key = jnp.ones((), x0.dtype), jax.random.key(0)
    s, c = algorithm.init(x0)
    for _ in range(algorithm.rounds_to_count):
        for exchange in algorithm.exchanges:
            d = exchange.down(server_g, s)
            u, c, _ = exchange.client(f, g, d, c, key)
            s = exchange.server(server_g, s, dense(u, x0.size), share)
            up.append(u)
            down.append(d)
        if algorithm.closes():
            result = algorithm.exchanges[0].down(_CountingRegulariser(), s)
            if not everyone:  # with everyone present the closing message is the next round's opening one
                down.append(result)
            c = algorithm.close(g, result, c)
    return up, down


def _size(messages: list[Any], d: int) -> tuple[float, int]:
    """(d-vectors, bytes) of some messages. Scalars and counters are bytes, but not vectors."""
    leaves = jax.tree.leaves(messages)
    return sum(leaf.size for leaf in leaves if leaf.ndim) / d, sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
