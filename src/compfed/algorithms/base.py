"""The contract of an algorithm: a frozen record of hyper-parameters with a few pure methods.

An engine draws the participants, derives their keys, maps `client` over them, averages what they send, and stores
what they remember; it does no mathematics. One round is

    d = down(g, s)                      the server sends d
    u_i, c_i = client(f_i, g, d, c_i)   each participant works and answers u_i
    s = server(g, s, mean, share)       mean = sum_S p_i u_i / sum_S p_i,  share = sum_S p_i

S and C are what server and client remember; D and U are what travels. Three hooks exist for the methods that need
them, and cost nothing to the others:

- `close(g, d, c)`: a participant hears the result of its round (the message that opens the next one). With all
  clients in every round that message is sent anyway; with sampling it is counted on its own.
- `ask`, `answer`, `digest`: a first exchange before the one above, with the same participants (Mime).
- `decode(u, d)`: turns a compressed message into what is averaged. What is counted is the message itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar

from jax import Array

from compfed.errors import InputError
from compfed.problem.local import LocalLoss
from compfed.problem.regularisers import Regulariser, Zero

if TYPE_CHECKING:
    from compfed.problem.problem import Problem

Sampling = Literal["no", "observed", "proved"]
S = TypeVar("S")
C = TypeVar("C")
D = TypeVar("D")
U = TypeVar("U")


class Algorithm(Generic[S, C, D, U]):
    """One federated method. Subclasses are records (see `compfed.tools.records`) and define the five methods below."""

    composite: ClassVar[bool] = True  # does it handle a non-smooth g?
    exact: ClassVar[bool] = True  # with full gradients and constant steps, is its limit the minimiser?
    sampling: ClassVar[Sampling] = "no"  # may a round use only some of the clients, and who says so?
    rounds_to_count: ClassVar[int] = 1  # rounds over which costs are averaged; more than 1 if rounds differ in length

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

    def ask(self, g: Regulariser, s: S) -> Any:
        """The message that opens the first of two exchanges."""
        raise NotImplementedError

    def answer(self, f: LocalLoss, g: Regulariser, d: Any, c: C, key: Array) -> tuple[Any, C]:
        """A participant's reply to `ask`."""
        raise NotImplementedError

    def digest(self, g: Regulariser, s: S, mean: Any, share: Array) -> S:
        """The server's step on the average of the answers, before `down`."""
        raise NotImplementedError

    def decode(self, u: U, d: int) -> Any:
        """The content of an upload, as it enters the mean; d is the number of coefficients."""
        return u

    def local(self, g: Regulariser, d: D, u: U, c: C) -> Array | None:
        """The local model a participant ended with, before `close`. Only for looking: it feeds the drift column."""
        return None

    def prepared(self, problem: Problem, participants: int) -> Self:
        """The algorithm as it will run on `problem` with `participants` clients a round; refuses what cannot work."""
        if participants < problem.n and self.sampling == "no":
            raise InputError(
                f"{type(self).__name__} needs every client in every round; got participants={participants} of "
                f"{problem.n}. Leave participants out, or use an algorithm that allows sampling."
            )
        if not self.composite and not isinstance(problem.regulariser, Zero):
            raise InputError(
                f"{type(self).__name__} is for smooth problems and has no place for the regulariser "
                f"{type(problem.regulariser).__name__}. Use regularisers.Zero(), or a composite method such as "
                "DecoupledProx, FedDR or Scaffnew."
            )
        return self

    @classmethod
    def closes(cls) -> bool:
        """Does a participant need the result of its round?"""
        return cls.close is not Algorithm.close

    @classmethod
    def asks(cls) -> bool:
        """Does a round have two exchanges?"""
        return cls.ask is not Algorithm.ask


def correction(c: Any) -> Array | None:
    """The drift correction inside a client state: its field `c`, where there is one."""
    return getattr(c, "c", None)
