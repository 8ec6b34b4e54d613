"""What all solvers share: the options of a search for a minimiser, its start, and its solution."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from compfed._utils.text import shorten
from compfed.algorithms import Algorithm, find
from compfed.algorithms.base import Bounds
from compfed.errors import InputError
from compfed.federation.accounting import Communication
from compfed.federation.server.evaluation import Evaluation
from compfed.federation.spec import FederatedProblem
from compfed.monitor import Progress
from compfed.problem_spec import check_lipschitz
from compfed.solvers.prox_bfgs import ProximalBFGS
from compfed.solvers.prox_newton import ProximalNewton
from compfed.stopping import Certificate
from compfed.trace import Trace

SecondOrder = ProximalNewton | ProximalBFGS
SOLVERS: dict[str, type[SecondOrder]] = {"ProximalNewton": ProximalNewton, "ProximalBFGS": ProximalBFGS}
Method = type[Algorithm] | type[SecondOrder]

FIRST_ORDER = "first-order"  # the faster one of the first-order methods


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

    def __post_init__(self) -> None:
        if not isinstance(self.algorithm, (str, type, Algorithm, ProximalNewton, ProximalBFGS)):
            raise InputError(
                "algorithm must be a name such as 'DecoupledProx' or a class of algorithms; got "
                f"{shorten(repr(self.algorithm), 80)}."
            )


def find_method(asked: str | Method) -> Method:
    """The class of a name, or the class itself: a second-order solver, or a local-update algorithm."""
    plain = asked.lower().replace("-", "").replace("_", "") if isinstance(asked, str) else ""
    for name, solver in SOLVERS.items():
        if asked is solver or plain == name.lower():
            return solver
    cls = find(asked) if isinstance(asked, str) else asked
    if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
        raise InputError(f"algorithm must be a name such as 'DecoupledProx' or a class of algorithms; got {cls!r}.")
    return cls


@dataclass(frozen=True)
class Start:
    """Where a search starts: a model, Lipschitz bounds, and the scale of the gradient."""

    x: np.ndarray
    L: float  # sum_i p_i L_i
    L_max: float  # a bound on max_i L_i
    scale: float
    at: Evaluation | None = None  # f at x
    kept: dict[str, np.ndarray] | None = None  # from a search with another g: the solver's state that depends on f only
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
    algorithm : Algorithm, ProximalNewton or ProximalBFGS
        The method, with the steps it ended with.
    trace : Trace
        One row per evaluation; ``trace.provenance["choice"]`` says why "auto" chose the method.
    notes : list of str
        Steps that were halved, refusals of sites, and why a search stopped early.
    at : Evaluation or None
        f and its gradient at x.
    kept : dict or None
        State of a second-order solver from which a search with another penalty can start.
    communication : Communication or None
        Messages and bytes of the whole search.

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
    at: Evaluation | None = None
    kept: dict[str, np.ndarray] | None = None
    communication: Communication | None = None

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.x, dtype=dtype) if copy or dtype else self.x
