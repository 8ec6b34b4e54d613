"""One communication round, written once.

    for every exchange:   d = broadcast(g, s)                      the server sends d to the participants
                          u_i, c_i, z_i = client_update(f_i, g, d, c_i, key_i)
                          s = server_update(g, s, mean, weight)    the weighted mean of the updates u_i
    at the end:           c_i = finish_round(g, d, c_i)            d opens the next round, and has the result of this one

`run_round` is the server's half as a generator. It yields each message, receives the mean of the updates and the
participation weight, and returns the new server state. Whoever drives it maps the clients and takes the mean: by messages
(`federation.server`), as one XLA program on one device or a mesh (`simulation`), in a GPU kernel, or on shapes alone
(`round_of_one_client`, for the contract, the message shapes and the costs).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed._utils.compilation import precision
from compfed.algorithms.base import Algorithm, Exchange, PyTree, dense
from compfed.regularisers import Regulariser

S = TypeVar("S")


class Message(NamedTuple):
    """A message from the server to the participants of a round."""

    exchange: Exchange | None  # None for the message that ends the round: participants call `finish_round`
    broadcast: PyTree


Reply = tuple[PyTree, Array]  # the weighted mean of the updates, the participation weight


def run_round(
    algorithm: Algorithm[S, Any, Any, Any], g: Regulariser, state: S, finish: bool = True
) -> Generator[Message, Reply | None, S]:
    """Run the server's half of one round.

    Parameters
    ----------
    algorithm : Algorithm
    g : Regulariser
    state : server state
    finish : bool, default=True
        Yield the closing message too, for a method with `finish_round`. A server whose clients take part in every round
        leaves it out: the broadcast of the next round is the same message.

    Yields
    ------
    Message
        Send (mean, weight) back for each exchange, and None for the closing message.

    Returns
    -------
    The new server state.
    """
    for exchange in algorithm.exchanges:
        reply = yield Message(exchange, exchange.broadcast(g, state))
        assert reply is not None
        state = exchange.server_update(g, state, *reply)
    if finish and algorithm.finishes_rounds():
        yield Message(None, algorithm.exchanges[0].broadcast(g, state))
    return state


def drive_round(messages: Generator[Message, Reply | None, S], reply_to: Callable[[Message], Reply | None]) -> S:
    """Run a round to its end, with a function that maps the clients, and return the new server state."""
    reply = None
    while True:
        try:
            message = messages.send(reply)
        except StopIteration as end:
            return end.value
        reply = reply_to(message)


class ZeroLoss:
    """A loss that is zero everywhere: enough to trace an algorithm."""

    def value(self, x: Array) -> Array:
        return jnp.zeros((), x.dtype)

    def grad(self, x: Array, key: Array) -> Array:
        return self.full_grad(x)

    def full_grad(self, x: Array) -> Array:
        return jnp.zeros_like(x)

    def hessian(self, x: Array, W: Array | None = None) -> Array:
        size = len(x) if W is None else len(W)
        return jnp.zeros((size, size), x.dtype)

    @property
    def steps_per_epoch(self) -> Array:
        return jnp.int32(1)


class RoundOfOne(NamedTuple):
    """One round of a federation with a single client."""

    exchanges: list[ExchangeMessages]
    closing: PyTree  # the message that ends the round; None where the method needs none
    server: PyTree
    client: PyTree
    after: list[PyTree]  # client state and local model after each exchange


class ExchangeMessages(NamedTuple):
    """The two messages of one exchange, or their shapes and dtypes."""

    broadcast: PyTree
    update: PyTree


def round_of_one_client(algorithm: Any, f: Any, g: Any, server_g: Any, x0: Array, finish: bool = True) -> RoundOfOne:
    """Run round 0 with one client; `g` is the client's regulariser, `server_g` the server's.

    The stand-ins passed for the losses and regularisers decide what comes of it: shapes, counts or checks. Client state and
    local model of each exchange are results, so that nothing a client computes is dead code.
    """
    exchanges: list[ExchangeMessages] = []
    after: list[PyTree] = []
    closing, key = None, jax.random.key(0)
    server, client = algorithm.init(x0)

    def one_client(message: Message) -> Reply | None:
        nonlocal client, closing
        exchange, d = message
        if exchange is None:
            closing, client = d, algorithm.finish_round(g, d, client)
            return None
        u, client, z = exchange.client_update(f, g, d, client, key)
        after.append((client, z))
        exchanges.append(ExchangeMessages(d, u))
        return dense(u, x0.size), jnp.ones((), x0.dtype)

    server = drive_round(run_round(algorithm, server_g, server, finish), one_client)
    return RoundOfOne(exchanges, closing, server, client, after)


_shapes: dict[Any, list[ExchangeMessages]] = {}
MAX_CACHED = 1024  # sets of shapes; at a site an untrusted server chooses them


def message_shapes(algorithm: Algorithm, g: Regulariser, d: int, dtype: Any) -> list[ExchangeMessages]:
    """The shapes and dtypes of the messages of a round, exchange by exchange, for a model of d coefficients."""
    dtype = np.dtype(dtype)
    case = (jax.tree.structure(algorithm), jax.tree.structure(g), d, dtype)
    if case not in _shapes:
        if len(_shapes) >= MAX_CACHED:
            _shapes.clear()
        with precision(dtype):
            x0 = jax.ShapeDtypeStruct((d,), dtype)
            _shapes[case] = jax.eval_shape(
                lambda x0: round_of_one_client(algorithm, ZeroLoss(), g, g, x0).exchanges, x0
            )
    return _shapes[case]


_uses_hessian: dict[Any, bool] = {}


def uses_hessian(algorithm: Algorithm, g: Regulariser, d: int, dtype: Any) -> bool:
    """Whether a client asks for its Hessian in a round."""
    dtype = np.dtype(dtype)
    case = (jax.tree.structure(algorithm), jax.tree.structure(g), d, dtype)
    if case not in _uses_hessian:
        if len(_uses_hessian) >= MAX_CACHED:
            _uses_hessian.clear()
        f = _AsksForHessian()
        with precision(dtype):
            x0 = jax.ShapeDtypeStruct((d,), dtype)
            jax.eval_shape(lambda x0: round_of_one_client(algorithm, f, g, g, x0).after, x0)
        _uses_hessian[case] = f.asked
    return _uses_hessian[case]


class _AsksForHessian(ZeroLoss):
    """A zero loss that remembers whether it was asked for its Hessian."""

    asked = False

    def hessian(self, x: Array, W: Array | None = None) -> Array:
        self.asked = True
        return super().hessian(x, W)


def array_bytes(messages: Iterable[PyTree]) -> int:
    """The bytes of the arrays in some messages, or of the arrays that their shapes stand for."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(list(messages)))
