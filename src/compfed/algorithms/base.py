"""The contract of an algorithm: a frozen record of hyper-parameters with a few pure methods.

A loop (`algorithms.round`) draws the participants, maps `client_update` over them, averages their updates and stores their
states; it does no mathematics. One round is

    d = broadcast(g, s)                                   the server sends d
    u_i, c_i, z_i = client_update(f_i, g, d, c_i, key)    each participant sends its update u_i; z_i is its local model
    s = server_update(g, s, mean, weight)                 the weighted mean of the u_i, and the participation weight

S and C are the states of server and client; D and U are the broadcast and the update. With all clients mean = sum_i p_i u_i and
weight = 1. A sample S of k of the n clients estimates that mean in one of three ways (`compfed.sampling`):

    "proportional"      mean = sum_S (p_i / pi_i) u_i, pi_i ~ p_i the inclusion probability    weight = sum_S p_i   unbiased
    "uniform"           mean = (n/k) sum_S p_i u_i                                             weight = k/n         unbiased
    "self-normalised"   mean = sum_S p_i u_i / sum_S p_i                                       weight = sum_S p_i   biased

Under the last two weight * mean = sum_S p_i u_i. A server that keeps sum_i p_i of something relies on that, and cannot be run
with the first. A class lists in `schemes` those that suit its server step, its default first.

For methods that need more:

- `finish_round(g, d, c)`: a participant receives the result of its round, which is the broadcast that opens the next one. With
  all clients in every round that message is sent anyway; with sampling it is counted on its own.
- `exchanges`: a round of several exchanges lists them, each with `broadcast`, `client_update` and `server_update` (Mime).
- A part of a message with a method `dense(d)` enters the mean in that form (`Sparse`). The message itself is counted.
"""

from __future__ import annotations

import inspect
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


PyTree = Any  # states and messages: NamedTuples, tuples or dicts of arrays
Sampling = Literal["no", "observed", "proved"]
S = TypeVar("S")
C = TypeVar("C")
D = TypeVar("D")
U = TypeVar("U")


@dataclass(frozen=True)
class Citation:
    """The paper of a method, or the paper that a method of ours is derived from.

    `ours`: another method than the paper's. `reconstructed`: meant to be the paper's, whose pseudo-code was not at hand.
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
        """Authors, title, venue, year."""
        parts = [self.authors, f'"{self.title}"' if self.title else "", self.where, str(self.year or "")]
        return self._theirs(", ".join(part for part in parts if part))

    def _theirs(self, what: str) -> str:
        return f"ours, after {what}" if self.ours else f"reconstruction of {what}" if self.reconstructed else what


def with_reference(doc: str, reference: str) -> str:
    """A docstring with a section of references, before its examples."""
    text, heading, examples = inspect.cleandoc(doc).partition("\nExamples\n--------\n")
    return f"{text.rstrip()}\n\nReferences\n----------\n{reference[0].upper()}{reference[1:]}.\n{heading}{examples}"


class Exchange(Protocol):
    """A broadcast, the clients' updates, and the server's step on their mean."""

    def broadcast(self, g: Regulariser, s: PyTree) -> PyTree: ...
    def client_update(
        self, f: LocalLoss, g: Regulariser, d: PyTree, c: PyTree, key: Array
    ) -> tuple[PyTree, PyTree, Array]: ...
    def server_update(self, g: Regulariser, s: PyTree, mean: PyTree, weight: Array) -> PyTree: ...


class Algorithm(Generic[S, C, D, U]):
    """Base class of the methods. A subclass is a `record` and defines init, broadcast, the two updates and solution.

    Attributes
    ----------
    citation : Citation or None
    composite : bool or None
        Whether it handles a non-smooth g. None, here and below, means unknown.
    exact : bool or None
        Whether its limit is the minimiser, with full gradients of all clients.
    exact_proof : str
        Paper, theorem and step-size condition that prove the limit as we run it by default; "" where tests observe it.
    setting : str
        What a reader must know beside that: what the paper proves instead, and where our runs are outside its theory.
    slow : bool
        Exact, but with an error that falls only like 1/t.
    exact_sampled : bool or None
        Whether it is exact when some of the clients take part.
    sampling : {"no", "observed", "proved"}
        Whether a round may use only some of the clients, and on what evidence.
    proof : str
        Paper, theorem and conditions, for "proved"; the file's docstring has its assumptions.
    same_as : (str, str) or None
        Another method of which this is a second name, and the parameters for which the two coincide.
    schemes : tuple of str
        Sampling schemes that suit the server step where weights differ, the default first.
    state_depends_on : tuple of str or None
        Fields that the states depend on; a run resumes only with the same ones. None stands for all fields.
    scalars : tuple of str
        Fields of U that are single numbers on purpose. Any other single number is refused, since it would broadcast.

    Examples
    --------
    See examples/my_method.py for a skeleton to copy.
    """

    citation: ClassVar[Citation | None] = None
    composite: ClassVar[bool | None] = None
    exact: ClassVar[bool | None] = None
    exact_proof: ClassVar[str] = ""
    setting: ClassVar[str] = ""
    slow: ClassVar[bool] = False
    exact_sampled: ClassVar[bool | None] = None
    sampling: ClassVar[Sampling] = "no"
    proof: ClassVar[str] = ""
    same_as: ClassVar[tuple[str, str] | None] = None
    schemes: ClassVar[tuple[Scheme, ...]] = ()
    state_depends_on: ClassVar[tuple[str, ...] | None] = None
    scalars: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **given: object) -> None:
        """Give the docstring its section of references, from `citation`: it is written once."""
        super().__init_subclass__(**given)
        cited = vars(cls).get("citation")
        if cited is not None and cls.__doc__:  # python -OO has none
            cls.__doc__ = with_reference(cls.__doc__, str(cited))

    def init(self, x0: Array) -> tuple[S, C]:
        """The states of the server and of each client before round 0.

        The method's own variable starts at x0: `solution` is x0 then, or the prox of x0 where that variable is before a prox.
        """
        raise NotImplementedError

    def broadcast(self, g: Regulariser, s: S) -> D:
        """The message that opens a round."""
        raise NotImplementedError

    def client_update(self, f: LocalLoss, g: Regulariser, d: D, c: C, key: Array) -> tuple[U, C, Array]:
        """The local steps of one participant: its update, its new state, and its last local model."""
        raise NotImplementedError

    def server_update(self, g: Regulariser, s: S, mean: U, weight: Array) -> S:
        """The server's step on the mean of the updates."""
        raise NotImplementedError

    def solution(self, g: Regulariser, s: S) -> Array:
        """The model."""
        raise NotImplementedError

    def finish_round(self, g: Regulariser, d: D, c: C) -> C:
        """The state of a participant once it has received the result of its round. Most methods leave it unchanged."""
        return c

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchanges of a round, in order; the last one is the algorithm itself."""
        return (self,)

    def correction(self, s: S, c: C) -> Array | None:
        """The drift correction c_i of a client, whose weighted mean over all clients should be zero; None without one."""
        return None

    def with_seed(self, seed: int) -> Self:
        """The method with the seed of the run, where it draws random numbers that all clients share."""
        return self

    def integrates_rounding(self) -> bool:
        """Whether rounding errors stay in the state and add up over rounds."""
        return False

    @classmethod
    def from_bounds(cls, b: Bounds, scale: float) -> Self:
        """The method with steps from Lipschitz bounds; `scale` multiplies the main one."""
        raise InputError(
            f"there is no rule for the step sizes of {cls.__name__}; build it yourself: {cls.__name__}(eta=...), or "
            f"give the class a method from_bounds(cls, bounds, scale)."
        )

    def bind(self, problem: ProblemSpec, participants: int) -> Self:
        """The algorithm for `problem` with `participants` clients a round; refuses combinations that cannot work."""
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
        """Whether a participant needs the result of its round."""
        return cls.finish_round is not Algorithm.finish_round

    @classmethod
    def has_default_steps(cls) -> bool:
        """Whether it has a rule for its step sizes."""
        return cls.from_bounds.__func__ is not Algorithm.from_bounds.__func__


class Sparse(NamedTuple):
    """A vector of which only some coordinates are sent."""

    values: Array
    indices: Array

    def dense(self, d: int) -> Array:
        return jnp.zeros(d, self.values.dtype).at[self.indices].set(self.values)


def dense(message: PyTree, d: int) -> PyTree:
    """A message as it enters the mean: parts with a method `dense` are replaced by their d numbers."""

    def has_dense(part: object) -> bool:
        return hasattr(part, "dense")

    return jax.tree.map(lambda part: part.dense(d) if has_dense(part) else part, message, is_leaf=has_dense)


@dataclass(frozen=True)
class Bounds:
    """Lipschitz bounds of a problem, for the rules of step sizes.

    L bounds the curvature of f, L_max that of every f_i, mu is the ridge of every f_i, tau the number of local steps.
    For methods whose local steps are gradient steps corrected for drift, the length of a whole round matters as well as that
    of a step: `corrected` is the smaller of 1/L_max and 4/(L_max tau), found stable on every problem tried. Methods that
    solve a local proximal problem take its parameter a few times 1/L_max, and the inner step that allows.
    """

    L: float
    L_max: float
    mu: float
    tau: int
    d: int

    @classmethod
    def of(cls, L: np.ndarray, weights: np.ndarray, mu: float, tau: int, d: int) -> Bounds:
        """From the L_i of the sites: sum_i p_i L_i bounds L, and a server can know it."""
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
