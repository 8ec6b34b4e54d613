"""The contract of an algorithm: a frozen record of hyper-parameters with a few pure methods.

An engine does five things and no mathematics: it draws the participants, derives their keys, maps `client` over
them, averages what they send, and stores what they remember. One round is

    d = down(g, s)                      the server sends d
    u_i, c_i = client(f_i, g, d, c_i)   each participant works and answers u_i
    s = server(g, s, mean, share)       mean = sum_S p_i u_i / sum_S p_i,  share = sum_S p_i
    c_i = close(g, down(g, s), c_i)     the participants hear the result (only for algorithms that define `close`)

S and C are what server and client remember; D and U are what travels. With all clients in every round the message
that closes round r is the one that opens round r + 1, so it is counted once; with sampling it is counted on its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from jax import Array

from compfed.errors import InputError
from compfed.oracles import LocalLoss
from compfed.regularisers import Regulariser

if TYPE_CHECKING:
    from compfed.problem import Problem

S = TypeVar("S")
C = TypeVar("C")
D = TypeVar("D")
U = TypeVar("U")


class Algorithm(Generic[S, C, D, U]):
    """One federated method. Subclasses are records (see `compfed.records`) and define the five methods below."""

    sampling: ClassVar[bool] = True  # may a round use only some of the clients?

    def init(self, x0: Array) -> tuple[S, C]:
        """What the server and each client know before round 0."""
        raise NotImplementedError

    def down(self, g: Regulariser, s: S) -> D:
        """The message that opens a round."""
        raise NotImplementedError

    def client(self, f: LocalLoss, g: Regulariser, d: D, c: C, key: Array) -> tuple[U, C]:
        """The local work of one participant."""
        raise NotImplementedError

    def server(self, g: Regulariser, s: S, mean: U, share: Array) -> S:
        """The server's step on the average of what the participants sent."""
        raise NotImplementedError

    def solution(self, g: Regulariser, s: S) -> Array:
        """The model."""
        raise NotImplementedError

    def close(self, g: Regulariser, d: D, c: C) -> C:
        """A participant's last act in a round, once it has heard the result. Most algorithms need none."""
        return c

    def local(self, g: Regulariser, d: D, u: U, c: C) -> Array | None:
        """The local model a participant ended with, before `close`. Only for looking: it feeds the drift column."""
        return None

    def prepared(self, problem: Problem, participants: int) -> Self:
        """The algorithm as it will run on `problem` with `participants` clients a round; refuses what cannot work."""
        if participants < problem.n and not self.sampling:
            raise InputError(
                f"{type(self).__name__} needs every client in every round; got participants={participants} of "
                f"{problem.n}. Leave participants out, or use an algorithm that allows sampling."
            )
        return self

    @classmethod
    def closes(cls) -> bool:
        """Does a participant need the result of its round?"""
        return cls.close is not Algorithm.close


def correction(c: Any) -> Array | None:
    """The drift correction inside a client state: its field `c`, where there is one."""
    return getattr(c, "c", None)
