"""The parameters of a search for the minimiser, its start, and its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compfed._utils.text import shorten
from compfed.algorithms import Algorithm
from compfed.algorithms.base import Bounds
from compfed.errors import InputError
from compfed.federation.accounting import Communication
from compfed.federation.server.evaluation import Evaluation
from compfed.federation.spec import FederatedProblem
from compfed.monitor import Progress
from compfed.solvers.certificate import Certificate
from compfed.solvers.second_order import ProximalBFGS, ProximalNewton, Reached, SecondOrder
from compfed.trace import Trace

FIRST_ORDER = "first-order"  # the better of the first-order methods


@dataclass(frozen=True)
class Search:
    """How to look for a minimum: until the gradient mapping is at most `tol` times a scale."""

    algorithm: str | type[Algorithm] | type[SecondOrder] | Algorithm | SecondOrder = "auto"
    tau: int = 5
    tol: float = 1e-12
    max_rounds: int = 20_000
    seed: int = 0
    progress: Progress | None = None
    seconds_per_round: float = 1.0  # what a message costs, beside its bytes

    def __post_init__(self) -> None:
        if not isinstance(self.algorithm, (str, type, Algorithm, ProximalNewton, ProximalBFGS)):
            raise InputError(
                "algorithm must be a name such as 'DecoupledProx' or a class of algorithms; got "
                f"{shorten(repr(self.algorithm), 80)}."
            )


@dataclass(frozen=True)
class Start:
    """Where a search starts: a model, Lipschitz bounds, and the scale of the gradient."""

    x: np.ndarray
    L: float  # sum_i p_i L_i
    L_max: float  # a bound on max_i L_i
    scale: float
    at: Evaluation | None = None  # f at x
    kept: dict[str, np.ndarray] | None = None  # from a search with another g: what is true of f whatever g is
    refused: str = ""  # why a site gave no Hessian
    upper_bound: bool = False  # are the L_i bounds that are too large for steps?


@dataclass(frozen=True)
class FederatedSolution:
    """What `solve_federated` found; np.asarray(minimum) is x."""

    x: np.ndarray
    certificate: Certificate
    converged: bool
    rounds: int
    algorithm: Algorithm | SecondOrder
    trace: Trace
    notes: list[str] = field(default_factory=list)  # steps that were halved, and why a search ended
    at: Evaluation | None = None  # f at x
    reached: Reached | None = None  # of a second-order search: where another one may start
    communication: Communication | None = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.x, dtype=dtype) if copy or dtype else self.x


def bounds_of(spec: FederatedProblem, search: Search, start: Start) -> Bounds:
    """The bounds that a rule for step sizes may use."""
    return Bounds(start.L, start.L_max, float(spec.loss.ridge), search.tau, spec.d)
