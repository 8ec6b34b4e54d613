"""Costs of a round: vectors, bytes, gradients and prox evaluations, counted on a round of the algorithm itself."""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed._utils.compilation import precision
from compfed.algorithms.base import Algorithm
from compfed.algorithms.round import ZeroLoss, array_bytes, round_of_one_client

DRAWN_TOGETHER = 1024  # rounds whose numbers of local steps are drawn in one call


@dataclass(frozen=True)
class Cost:
    """The cost of one round for one participating client (and for the server, in `server_proxes`)."""

    vectors_up: float
    vectors_down: float
    bytes_up: float
    bytes_down: float
    gradients: float  # evaluations, over a mini-batch or over all rows
    full_gradients: float  # those of them that are over all rows whatever the batch size
    client_proxes: float
    server_proxes: float

    def columns(self, rows: float, batch_size: int | None) -> dict[str, float]:
        """The columns of a trace, for clients with `rows` rows on average."""
        counted = asdict(self)
        full = counted.pop("full_gradients")
        each = rows if batch_size is None else batch_size
        return counted | {"gradient_rows": (self.gradients - full) * each + full * rows}


class _CountingLoss(ZeroLoss):
    """A zero loss that counts its gradients, and those over all rows."""

    def __init__(self) -> None:
        self.gradients = self.full_gradients = 0

    def grad(self, x: Array, key: Array) -> Array:
        self.gradients += 1
        return super().full_grad(x)

    def full_grad(self, x: Array) -> Array:
        self.gradients += 1
        self.full_gradients += 1
        return super().full_grad(x)


class _CountingRegulariser:
    """A zero regulariser that keeps the parameter t of every prox."""

    def __init__(self) -> None:
        self.steps: list[Array | float] = []

    def __call__(self, x: Array) -> Array:
        return jnp.zeros((), x.dtype)

    def prox(self, x: Array, t: Array | float) -> Array:
        self.steps.append(t)
        return x


def cost_of_a_round(algorithm: Algorithm, d: int, dtype: np.dtype, everyone: bool) -> Cost:
    """Count the cost of a round; where its number of local steps is drawn, of a round of average length.

    `everyone` says whether all clients take part in every round. Then no message is spent on the end of a round.
    """
    first, per_step = _per_round(algorithm, d, dtype, everyone)
    if per_step is None:
        return first
    mean = float(_local_steps(algorithm, 0, dtype).mean())
    return Cost(*(a + (mean - 1.0) * b for a, b in zip(astuple(first), astuple(per_step), strict=True)))


def largest_prox_step(algorithm: Algorithm) -> float:
    """The largest t in a prox_{t g} of the first round, which a weakly convex g bounds."""
    g = _CountingRegulariser()
    with precision(np.dtype(float)), jax.disable_jit():
        round_of_one_client(algorithm, _CountingLoss(), g, g, jnp.zeros(1))
    return max((float(t) for t in g.steps), default=0.0)


class CumulativeCost:
    """The cost of the first rounds of a run, averaged over all clients.

    Parameters
    ----------
    algorithm : Algorithm
    d : int
    dtype : dtype
    fraction : float
        Share of the clients that take part in a round.
    rows : float
        Rows of a client on average.
    batch_size : int or None
    start : int
        Rounds done before this run, which it does not count.
    """

    def __init__(
        self, algorithm: Algorithm, d: int, dtype: np.dtype, *, fraction: float, rows: float, batch_size: int | None,
        start: int,
    ):  # fmt: skip
        def averaged(cost: Cost) -> dict[str, float]:
            columns = cost.columns(rows, batch_size)
            return {name: value * (1.0 if name == "server_proxes" else fraction) for name, value in columns.items()}

        first, per_step = _per_round(algorithm, d, dtype, everyone=fraction == 1)
        self.per_round, self.per_step = averaged(first), None if per_step is None else averaged(per_step)
        self.algorithm, self.dtype, self.start = algorithm, dtype, start
        self._steps = np.zeros(1)  # [k]: local steps in the first k rounds of this run, beyond one in each

    def after(self, rounds: np.ndarray) -> dict[str, np.ndarray]:
        """The columns of a trace after `rounds`, which count from the very first round."""
        done = rounds - self.start
        if self.per_step is None:
            return {name: done * cost for name, cost in self.per_round.items()}
        while len(self._steps) <= done.max():
            drawn = _local_steps(self.algorithm, self.start + len(self._steps) - 1, self.dtype)
            self._steps = np.concatenate([self._steps, self._steps[-1] + np.cumsum(drawn - 1.0)])
        return {name: done * cost + self._steps[done] * self.per_step[name] for name, cost in self.per_round.items()}


_drawn = jax.jit(lambda algorithm, rounds: jax.vmap(algorithm.local_steps)(rounds))


def _local_steps(algorithm: Algorithm, start: int, dtype: np.dtype) -> np.ndarray:
    """Local steps of rounds start, start + 1, ...: the clients' own draws, repeated."""
    with precision(dtype):
        return np.asarray(_drawn(algorithm, jnp.arange(start, start + DRAWN_TOGETHER, dtype=jnp.int32)))


def _per_round(algorithm: Algorithm, d: int, dtype: np.dtype, everyone: bool) -> tuple[Cost, Cost | None]:
    """The cost of a round, and None; where lengths are drawn, of a round with one local step, and of each further step."""
    with precision(dtype):
        drawn = algorithm.local_steps(jnp.zeros((), jnp.int32)) is not None
    if not drawn:
        return _counted(algorithm, d, dtype, everyone), None
    one, two = (_counted(algorithm.with_local_steps(k), d, dtype, everyone) for k in (1, 2))
    return one, Cost(*(b - a for a, b in zip(astuple(one), astuple(two), strict=True)))


_known: dict[object, Cost] = {}


def _counted(algorithm: Algorithm, d: int, dtype: np.dtype, everyone: bool) -> Cost:
    """Count on a round with a zero loss, in which every loop is a Python loop."""
    case = (jax.tree.structure(algorithm), d, dtype, everyone)  # step sizes do not change the count
    if case in _known:
        return _known[case]
    f, g, server_g = _CountingLoss(), _CountingRegulariser(), _CountingRegulariser()
    with precision(dtype), jax.disable_jit():
        x0 = jax.ShapeDtypeStruct((d,), dtype)
        done = jax.eval_shape(lambda x0: round_of_one_client(algorithm, f, g, server_g, x0)[:2], x0)
    exchanges, closing = done
    up, down = [e.update for e in exchanges], [e.broadcast for e in exchanges]
    server_proxes = len(server_g.steps)
    if closing is not None:
        server_proxes -= _proxes_of_broadcast(algorithm, x0, dtype)  # the closing message opens the next round too
        down += [] if everyone else [closing]
    _known[case] = cost = Cost(
        *(_vectors(up, d), _vectors(down, d), float(array_bytes(up)), float(array_bytes(down))),
        *map(float, (f.gradients, f.full_gradients, len(g.steps), server_proxes)),
    )
    return cost


def _proxes_of_broadcast(algorithm: Algorithm, x0: jax.ShapeDtypeStruct, dtype: np.dtype) -> int:
    g = _CountingRegulariser()
    with precision(dtype), jax.disable_jit():
        jax.eval_shape(lambda x0: algorithm.exchanges[0].broadcast(g, algorithm.init(x0)[0]), x0)
    return len(g.steps)


def _vectors(messages: list[object], d: int) -> float:
    """How many d-vectors some messages hold; scalars and counters are not counted."""
    return sum(leaf.size for leaf in jax.tree.leaves(messages) if leaf.ndim) / d
