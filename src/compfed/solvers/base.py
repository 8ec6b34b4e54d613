"""What all solvers share: the options of a search, its start and its solution, and the steps of a second-order solver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from compfed._utils.html_table import html_table
from compfed._utils.text import shorten
from compfed.algorithms import Algorithm
from compfed.algorithms.base import Bounds, Citation
from compfed.errors import InputError
from compfed.federation.accounting import Communication
from compfed.federation.queries.held_out import HeldOutSum
from compfed.federation.server.program import Federation
from compfed.federation.server.rounds import Rounds, by_messages
from compfed.federation.server.trial import Evaluated, Trial
from compfed.federation.spec import FederatedProblem
from compfed.monitor import Progress
from compfed.problem_spec import check_lipschitz
from compfed.regularisers import Regulariser
from compfed.solvers.quadratic_model import OUTSIDE_DOMAIN, penalty_value, sufficient_decrease
from compfed.stopping import Certificate
from compfed.trace import Trace

FIRST_ORDER = "first-order"  # the faster one of the first-order methods


class SolverState(NamedTuple):
    """A second-order solver between two trials: the model that was accepted last, and the trial on the way from it."""

    at: Evaluated  # f at the accepted model
    F: float  # f + g there
    trial: Trial
    kept: Mapping[str, np.ndarray]  # what does not depend on g, for a search with another one
    t: float = 1.0  # share of the step that the trial takes
    D: float = 0.0  # decrease that a linear model of f predicts for the whole step


class SecondOrder:
    """A solver that evaluates f at trial points. A subclass says which quadratic model of f it minimises.

    The step from x goes to u, the minimiser of the quadratic model plus g, and the trial is x + t (u - x): t = 1 after an
    acceptance, halved while F(trial) > F(x) + t D / 10^4, with D = <grad f(x), u - x> + g(u) - g(x). No coefficient moves
    by more than `longest` in one step.
    """

    citation: ClassVar[Citation]
    longest: float = np.inf

    @classmethod
    def from_bounds(cls, bounds: Bounds) -> Self:
        """The solver with its default parameters."""
        raise NotImplementedError

    def init(
        self, x0: np.ndarray, at: Evaluated | None = None, kept: Mapping[str, np.ndarray] | None = None
    ) -> SolverState:
        """The state before the first trial, which is x0; `at` is f there if known, `kept` from a search with another g."""
        raise NotImplementedError

    def minimise_model(self, g: Regulariser, at: Evaluated, kept: Mapping[str, np.ndarray]) -> np.ndarray:
        """u."""
        raise NotImplementedError

    def hessian_coordinates(
        self, g: Regulariser, at: Evaluated, x: np.ndarray, kept: Mapping[str, np.ndarray], ask: bool
    ) -> np.ndarray | None:
        """The coordinates of the Hessian to ask for at the trial x, on the way from `at`; None for none.

        `ask` says whether a Hessian is worth its message where the solver could do without.
        """
        return None

    def keep(self, s: SolverState, at_trial: Evaluated, t: float, accepted: bool) -> Mapping[str, np.ndarray]:
        """What to remember after an evaluation."""
        return s.kept

    def update(self, g: Regulariser, s: SolverState, at_trial: Evaluated, ask: bool = True) -> SolverState:
        """Accept or reject the trial, and propose the next one."""
        F = at_trial.value + penalty_value(g, at_trial.x)
        accepted = sufficient_decrease(F, s.F, s.t * s.D)
        at, F, t = (at_trial, F, 1.0) if accepted else (s.at, s.F, s.t / 2)
        kept = self.keep(s, at_trial, t, accepted)
        u = self.minimise_model(g, at, kept)
        if (far := float(np.abs(u - at.x).max(initial=0.0))) > self.longest:
            t = min(t, self.longest / far)
        D = float(at.gradient @ (u - at.x) + penalty_value(g, u) - penalty_value(g, at.x))
        x = u if t == 1.0 else at.x + t * (u - at.x)
        W = self.hessian_coordinates(g, at, x, kept, ask or not accepted)
        return SolverState(at, F, Trial(x, W), kept, t, D)


def first_state(
    x0: np.ndarray, W: np.ndarray | None = None, kept: Mapping[str, np.ndarray] | None = None
) -> SolverState:
    """The state whose first trial is x0, which any value of f there improves on."""
    nothing = Evaluated(x0, OUTSIDE_DOMAIN, np.zeros_like(x0), 0.0)
    return SolverState(nothing, OUTSIDE_DOMAIN, Trial(x0, W), kept or {})


Method = type[Algorithm] | type[SecondOrder]


@dataclass(frozen=True)
class SearchOptions:
    """The method of a search, and when it stops: at a gradient mapping of at most `tol` times the scale of its start."""

    algorithm: str | Method | Algorithm | SecondOrder = "auto"
    tau: int = 5
    tol: float = 1e-12
    max_rounds: int = 20_000
    seed: int = 0
    progress: Progress | None = None
    seconds_per_round: float = 1.0  # cost of a message beside its bytes
    rounds: Callable[[Federation], Rounds] = by_messages  # how rounds of a first-order method are run

    def __post_init__(self) -> None:
        given = self.algorithm
        is_method = isinstance(given, type) and issubclass(given, (Algorithm, SecondOrder))
        if not (is_method or isinstance(given, (str, Algorithm, SecondOrder))):
            raise InputError(
                "algorithm must be a name such as 'DecoupledProx' or a class of algorithms; got "
                f"{shorten(repr(given), 80)}."
            )


@dataclass(frozen=True)
class Start:
    """Where a search starts: a model, Lipschitz bounds, and the scale of the gradient."""

    x: np.ndarray
    L: float  # sum_i p_i L_i
    L_max: float  # a bound on max_i L_i
    scale: float
    at: Evaluated | None = None  # f at x
    kept: Mapping[str, np.ndarray] | None = None  # from a search with another g: SolverState.kept
    refused: str = ""  # why a site gave no Hessian
    upper_bound: bool = False  # are L and L_max bounds that are too large for steps?

    def bounds(self, spec: FederatedProblem, tau: int) -> Bounds:
        """The bounds that a rule for step sizes may use."""
        return Bounds(self.L, self.L_max, float(spec.loss.ridge), tau, spec.d)

    def certificate_step(self, spec: FederatedProblem) -> float:
        """1 / sum_i p_i L_i, the step of the gradient mapping that certifies a model; refuses L that allow no step."""
        return 1.0 / check_lipschitz(self.L, spec.regulariser)


@dataclass(frozen=True)
class FederatedSolution:
    """The minimiser that `solve_federated` found, and how it was found. ``np.asarray(solution)`` is x.

    Attributes
    ----------
    x : ndarray of shape (d,)
        The model.
    certificate : Certificate
        How far x can be from the minimiser.
    converged : bool
        Whether the certificate holds, or the gradient mapping is zero to rounding.
    rounds : int
        Messages to each site, without those before the search (bounds, and f at the start).
    algorithm : Algorithm, ProximalNewton, ProximalBFGS or PartialNewton
        The method, with the steps it ended with.
    trace : Trace
        One row per evaluation; ``trace.provenance["choice"]`` says why "auto" chose the method.
    notes : list of str
        Steps that were halved, refusals of sites, and why a search stopped early.
    at : Evaluated or None
        f and its gradient at x.
    kept : dict or None
        SolverState of a second-order solver from which a search with another penalty can start. Of ProximalNewton: its
        matrix "H" on the coordinates "W", and "summed", the last Hessian that the sites gave, if that was in double precision.
    communication : Communication or None
        Messages and bytes of the whole search.
    held_out : HeldOutSum or None
        The loss of x on the rows that a split holds out, where it came with the last message.

    Examples
    --------
    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> solution = cf.solve_federated(cf.Problem(cf.losses.Squared(), cf.regularisers.L1(0.01), sites))
    >>> type(solution.algorithm).__name__, solution.converged
    ('ProximalNewton', True)
    """

    x: np.ndarray
    certificate: Certificate
    converged: bool
    rounds: int
    algorithm: Algorithm | SecondOrder
    trace: Trace
    notes: list[str] = field(default_factory=list)
    at: Evaluated | None = None
    kept: Mapping[str, np.ndarray] | None = None
    communication: Communication | None = None
    held_out: HeldOutSum | None = None

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.x, dtype=dtype) if copy or dtype else self.x

    def _repr_html_(self) -> str:
        rows = [
            ["method", type(self.algorithm).__name__],
            ["messages to each site", f"{self.rounds}"],
            ["coefficients that are not zero", f"{np.count_nonzero(self.x)} of {self.x.size}"],
            *(["note", note] for note in self.notes),
        ]
        return html_table(self.certificate.words, rows)

    def __repr__(self) -> str:
        state = f"converged to a {self.certificate.claim}" if self.converged else "NOT converged"
        return (
            f"FederatedSolution({state}: {type(self.algorithm).__name__}, {self.rounds} messages, "
            f"{np.count_nonzero(self.x)} of {self.x.size} coefficients non-zero, "
            f"gradient mapping {self.certificate.relative:.1e} of its scale)"
        )
