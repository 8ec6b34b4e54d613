"""What a round costs: messages and evaluations, counted on a round of the algorithm itself."""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed.algorithms.base import Algorithm, dense
from compfed.algorithms.shapes import FlatLoss
from compfed.problem.regularisers.form import Form, plain
from compfed.tools.precision import precision

DRAWN = 1024  # rounds whose lengths are drawn together


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
    """Counted, not declared: a round is run on a zero loss with every loop as a Python loop.

    Where the length of a round is drawn, this is what one of average length would cost.
    """
    first, more = _prices(algorithm, d, dtype, everyone)
    if more is None:
        return first
    mean = float(_lengths(algorithm, 0, dtype).mean())
    return Cost(*(a + (mean - 1.0) * b for a, b in zip(astuple(first), astuple(more), strict=True)))


class Spending:
    """What a run has spent after some of its rounds: a client on average over all of them, and the server's proxes.

    `share` of the clients take part in a round, `rows` is what a client has on average, `start` the rounds done before.
    """

    def __init__(
        self, algorithm: Algorithm, d: int, dtype: np.dtype, *, share: float, rows: float, batch_size: int | None, start: int
    ):  # fmt: skip
        def priced(cost: Cost) -> dict[str, float]:
            counted = cost.columns(rows, batch_size)
            return {name: value * (1.0 if name == "server_proxes" else share) for name, value in counted.items()}

        first, more = _prices(algorithm, d, dtype, everyone=share == 1)
        self.first, self.more = priced(first), None if more is None else priced(more)
        self.algorithm, self.dtype, self.start = algorithm, dtype, start
        self._steps = np.zeros(1)  # after so many rounds of this run, beyond one in each

    def after(self, rounds: np.ndarray) -> dict[str, np.ndarray]:
        """After `rounds`, counted from the very first one, what the rounds since `start` cost."""
        done = rounds - self.start
        if self.more is None:
            return {name: done * price for name, price in self.first.items()}
        while len(self._steps) <= done.max():
            drawn = _lengths(self.algorithm, self.start + len(self._steps) - 1, self.dtype)
            self._steps = np.concatenate([self._steps, self._steps[-1] + np.cumsum(drawn - 1.0)])
        return {name: done * price + self._steps[done] * self.more[name] for name, price in self.first.items()}


_drawn = jax.jit(lambda algorithm, rounds: jax.vmap(algorithm.local_steps)(rounds))


def _lengths(algorithm: Algorithm, start: int, dtype: np.dtype) -> np.ndarray:
    """Local steps of rounds start, start + 1, ...: the draws of the clients, made once more."""
    with precision(dtype):
        return np.asarray(_drawn(algorithm, jnp.arange(start, start + DRAWN, dtype=jnp.int32)))


def _prices(algorithm: Algorithm, d: int, dtype: np.dtype, everyone: bool) -> tuple[Cost, Cost | None]:
    """A round, and None; where lengths are drawn, a round of one local step, and what each further step adds."""
    with precision(dtype):
        drawn = algorithm.local_steps(jnp.zeros((), jnp.int32)) is not None
    if not drawn:
        return _cost(algorithm, d, dtype, everyone), None
    one, two = (_cost(algorithm.with_local_steps(k), d, dtype, everyone) for k in (1, 2))
    return one, Cost(*(b - a for a, b in zip(astuple(one), astuple(two), strict=True)))


def _cost(algorithm: Algorithm, d: int, dtype: np.dtype, everyone: bool) -> Cost:
    case = (jax.tree.structure(algorithm), d, dtype, everyone)  # step sizes do not change the count
    if case not in _counted:
        _counted[case] = _count(algorithm, d, dtype, everyone)
    return _counted[case]


def largest_prox_step(algorithm: Algorithm) -> float:
    """The largest t in a prox_{t g} of the first round: what a weakly convex g puts a bound on."""
    g = _CountingRegulariser()
    with precision(np.dtype(float)), jax.disable_jit():
        _messages(algorithm, jnp.zeros(1), _CountingLoss(), g, g, everyone=True)
    return max((float(t) for t in g.steps), default=0.0)


def _count(algorithm: Algorithm, d: int, dtype: np.dtype, everyone: bool) -> Cost:
    f, g, server_g = _CountingLoss(), _CountingRegulariser(), _CountingRegulariser()
    with precision(dtype), jax.disable_jit():
        x0 = jax.ShapeDtypeStruct((d,), dtype)
        up, down = jax.eval_shape(lambda x0: _messages(algorithm, x0, f, g, server_g, everyone), x0)
    totals = (*_size(up, d), *_size(down, d), f.asked, f.asked_for_all, len(g.steps), len(server_g.steps))
    vectors_up, bytes_up, vectors_down, bytes_down, *calls = map(float, totals)
    return Cost(vectors_up, vectors_down, bytes_up, bytes_down, *calls)


def _messages(
    algorithm: Algorithm,
    x0: Array,
    f: _CountingLoss,
    g: _CountingRegulariser,
    server_g: _CountingRegulariser,
    everyone: bool,
) -> tuple[list[Any], list[Any]]:
    """Every message up and every message down of a round."""
    up, down = [], []
    share, key = jnp.ones((), x0.dtype), jax.random.key(0)
    s, c = algorithm.init(x0)
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
