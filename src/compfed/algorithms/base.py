"""The contract of an algorithm: a frozen record of hyper-parameters with a few pure methods.

An engine draws the participants, derives their keys, maps `client` over them, averages what they send, and stores
what they remember; it does no mathematics. One round is

    d = down(g, s)                           the server sends d
    u_i, c_i, z_i = client(f_i, g, d, c_i)   each participant works and answers u_i; z_i is its local model, to look at
    s = server(g, s, mean, share)            mean of the u_i, weighted; share of the weights that took part

S and C are what server and client remember; D and U are what travels. With all clients mean = sum_i p_i u_i and share = 1.
How a sample S of k of the n clients stands for all is one of three schemes (`compfed.sampling`):

    "proportional"   mean = sum_S (p_i / pi_i) u_i, pi_i ~ p_i the chance to be drawn    share = sum_S p_i     unbiased
    "uniform"        mean = (n/k) sum_S p_i u_i                                          share = k/n           unbiased
    "self-normalised"          mean = sum_S p_i u_i / sum_S p_i                                    share = sum_S p_i     biased

Under the last two share * mean = sum_S p_i u_i, on which a server that keeps sum_i p_i of something relies: such a method
cannot be run with the first. A class lists in `schemes` what its server's step is right with, its default first.

For methods that need more:

- `close(g, d, c)`: a participant hears the result of its round (the message that opens the next one). With all
  clients in every round that message is sent anyway; with sampling it is counted on its own.
- `exchanges`: a round of several exchanges lists them, each with `down`, `client` and `server` (Mime).
- A part of a message with a method `dense(d)` enters the mean in that form (`Sparse`). What is counted is the message.

What a rule for step sizes may know of a problem: a few Lipschitz bounds, and the number of local steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed.errors import InputError
from compfed.regularisers import Regulariser, Zero
from compfed.sampling import Scheme

if TYPE_CHECKING:
    from compfed.problem.local_loss import LocalLoss
    from compfed.problem_spec import ProblemSpec


Sampling = Literal["no", "observed", "proved"]
S = TypeVar("S")
C = TypeVar("C")
D = TypeVar("D")
U = TypeVar("U")


@dataclass(frozen=True)
class Citation:
    """Where a method comes from: the paper it is the method of, or the one that ours is made after.

    `ours`: another method than the paper's. `reconstructed`: meant to be the paper's, whose pseudo-code was not at hand.
    Both are ours after theirs, and say so.
    """

    authors: str  # "Zhang, Hu, Johansson"
    year: int | None = None
    title: str = ""
    where: str = ""  # venue or identifier
    reconstructed: bool = False
    ours: bool = False

    @property
    def short(self) -> str:
        return self._theirs(f"{self.authors.split(',')[0]} {self.year or ''}".strip())

    def __str__(self) -> str:
        """All of it: authors, title, where, year."""
        said = [self.authors, f'"{self.title}"' if self.title else "", self.where, str(self.year or "")]
        return self._theirs(", ".join(part for part in said if part))

    def _theirs(self, what: str) -> str:
        return f"ours, after {what}" if self.ours or self.reconstructed else what


class Exchange(Protocol):
    """One message down, the clients' work, and the server's step on the mean of their answers."""

    def broadcast(self, g: Regulariser, s: Any) -> Any: ...
    def client_update(self, f: LocalLoss, g: Regulariser, d: Any, c: Any, key: Array) -> tuple[Any, Any, Array]: ...
    def server_update(self, g: Regulariser, s: Any, mean: Any, share: Array) -> Any: ...


class Algorithm(Generic[S, C, D, U]):
    """One federated method. Subclasses are records (see `compfed._utils.records`) and define the five methods below."""

    citation: ClassVar[Citation | None] = None
    # What is claimed of a method; None is "nobody has said", and the table prints it as unknown.
    composite: ClassVar[bool | None] = None  # does it handle a non-smooth g?
    exact: ClassVar[bool | None] = None  # with full gradients of all clients, is its limit the minimiser?
    slow: ClassVar[bool] = False  # exact, but with an error that falls only like 1/t
    exact_sampled: ClassVar[bool | None] = None  # is it, when some of the clients take part?
    sampling: ClassVar[Sampling] = "no"  # may a round use only some of the clients, and who says so?
    proof: ClassVar[str] = ""  # of "proved": paper and theorem; its assumptions stand in the docstring of the file
    # How a sample stands for all clients where weights differ: what suits the server's step, the default first.
    schemes: ClassVar[tuple[Scheme, ...]] = ()
    # Fields that what is remembered depends on: a run goes on with the same ones only. None is "nobody has said": all of them.
    state_depends_on: ClassVar[tuple[str, ...] | None] = None
    # Fields of U that are single numbers on purpose; any other single number is refused, since it would broadcast.
    scalars: ClassVar[tuple[str, ...]] = ()

    def init(self, x0: Array) -> tuple[S, C]:
        """What the server and each client know before round 0.

        The method's own variable starts at x0: `solution` is x0 then, or the prox of x0 where that variable is before a prox.
        """
        raise NotImplementedError

    def broadcast(self, g: Regulariser, s: S) -> D:
        """The message that opens a round."""
        raise NotImplementedError

    def client_update(self, f: LocalLoss, g: Regulariser, d: D, c: C, key: Array) -> tuple[U, C, Array]:
        """The local work of one participant: its answer, its memory, and the local model it ended with."""
        raise NotImplementedError

    def server_update(self, g: Regulariser, s: S, mean: U, share: Array) -> S:
        """The server's step on the average of what the participants sent."""
        raise NotImplementedError

    def solution(self, g: Regulariser, s: S) -> Array:
        """The model."""
        raise NotImplementedError

    def finish_round(self, g: Regulariser, d: D, c: C) -> C:
        """A participant's last act in a round, once it has heard the result. Most algorithms need none."""
        return c

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """What happens in a round, in this order; the last one is the algorithm itself."""
        return (self,)

    def correction(self, s: S, c: C) -> Array | None:
        """The drift correction of a client, where there is one: their weighted sum should vanish."""
        return None

    def with_seed(self, seed: int) -> Self:
        """The method as it runs with this seed; for those that draw something all clients share."""
        return self

    def local_steps(self, r: Array) -> Array | None:
        """Local steps in round r, where they are drawn anew for each round; None where all rounds cost the same."""
        return None

    def with_local_steps(self, steps: int) -> Self:
        """The method with so many in every round, which is how the price of a step is found."""
        return self

    def integrates_rounding(self) -> bool:
        """Do rounding errors of every round stay in what is remembered, and add up?"""
        return False

    @classmethod
    def from_bounds(cls, b: Bounds, scale: float) -> Self:
        """The method with steps from the bounds; `scale` multiplies the main one."""
        raise InputError(
            f"there is no rule for the step sizes of {cls.__name__}; build it yourself: {cls.__name__}(eta=...), or "
            f"give the class a method suggested(cls, bounds, scale)."
        )

    def bind(self, problem: ProblemSpec, participants: int) -> Self:
        """The algorithm as it will run on `problem` with `participants` clients a round; refuses what cannot work."""
        if participants < problem.n and self.sampling == "no":
            raise InputError(
                f"{type(self).__name__} needs every client in every round; got participants={participants} of "
                f"{problem.n}. Leave participants out, or use an algorithm that allows sampling."
            )
        if self.composite is False and not isinstance(problem.regulariser, Zero):
            raise InputError(
                f"{type(self).__name__} is for smooth problems and has no place for the regulariser "
                f"{type(problem.regulariser).__name__}. Use regularisers.Zero(), or a composite method such as "
                "DecoupledProx, FedDR or Scaffnew."
            )
        return self

    @classmethod
    def finishes_rounds(cls) -> bool:
        """Does a participant need the result of its round?"""
        return cls.finish_round is not Algorithm.finish_round

    @classmethod
    def has_default_steps(cls) -> bool:
        """Does it say which steps suit given bounds?"""
        return cls.from_bounds.__func__ is not Algorithm.from_bounds.__func__


class Sparse(NamedTuple):
    """A vector of which only some coordinates are sent."""

    values: Array
    indices: Array

    def dense(self, d: int) -> Array:
        return jnp.zeros(d, self.values.dtype).at[self.indices].set(self.values)


def dense(message: Any, d: int) -> Any:
    """A message as it enters the mean: parts that know a dense form of d numbers are in it."""

    def knows(part: Any) -> bool:
        return hasattr(part, "dense")

    return jax.tree.map(lambda part: part.dense(d) if knows(part) else part, message, is_leaf=knows)


@dataclass(frozen=True)
class Bounds:
    """L bounds the curvature of f, L_max that of the worst f_i, mu is the ridge of every f_i.

    For the methods whose local work is a gradient step corrected for drift, the length of a whole round matters as well
    as that of a step: `corrected` is the smaller of 1/L_max and 4/(L_max tau), found stable on every problem tried.
    Methods that solve a local proximal problem take its parameter a few times 1/L_max, and the inner step that allows.
    """

    L: float
    L_max: float
    mu: float
    tau: int
    d: int

    @classmethod
    def of(cls, L: np.ndarray, weights: np.ndarray, mu: float, tau: int, d: int) -> Bounds:
        """From the L_i of the sites: sum_i p_i L_i bounds L, and is what a server can know of it."""
        return cls(L=float(weights @ L), L_max=float(np.max(L)), mu=mu, tau=tau, d=d)

    def corrected(self, scale: float) -> float:
        """The local step of a drift-corrected method."""
        return scale * min(1.0, 4.0 / self.tau) / self.L_max

    def prox_parameter(self, scale: float) -> float:
        """lam of a local proximal problem f_i + ||. - v||^2 / (2 lam)."""
        return 8.0 * scale / self.L_max

    def inner_step(self, scale: float) -> float:
        """The gradient step that such a problem allows."""
        return 1.0 / (self.L_max + 1.0 / self.prox_parameter(scale))
