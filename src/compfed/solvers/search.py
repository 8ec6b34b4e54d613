"""What a search for a minimum is told, where it starts, and what it finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compfed._utils.text import shortened
from compfed.algorithms import Algorithm
from compfed.algorithms.base import Bounds
from compfed.errors import InputError
from compfed.federation.accounting import Communication
from compfed.federation.server.rounds import Evaluation
from compfed.federation.spec import ProblemSpec
from compfed.monitor import Progress
from compfed.solvers.certificate import Certificate
from compfed.solvers.second_order import Reached, Seen
from compfed.trace import Trace

FIRST_ORDER = "first-order"  # the better of the first-order methods


@dataclass(frozen=True)
class Search:
    """How to look for a minimum: until the gradient mapping is at most `tol` times a scale."""

    algorithm: str | type[Algorithm] | Algorithm = "auto"
    tau: int = 5
    tol: float = 1e-12
    max_rounds: int = 20_000
    seed: int = 0
    progress: Progress | None = None
    seconds_per_round: float = 1.0  # what a message costs, beside its bytes

    def __post_init__(self) -> None:
        if not isinstance(self.algorithm, (str, type, Algorithm)):
            raise InputError(
                "algorithm must be a name such as 'DecoupledProx' or a class of algorithms; got "
                f"{shortened(repr(self.algorithm), 80)}."
            )


@dataclass(frozen=True)
class Start:
    """Where a search starts, and what the sites said there: their Lipschitz constants, and the scale of the gradient."""

    x: np.ndarray
    L: np.ndarray  # L_i, one per site
    scale: float
    seen: Seen | None = None  # what they said of f at x
    kept: dict[str, np.ndarray] | None = None  # what a method remembers of f
    refused: str = ""  # why a site told no curvature
    rough: bool = False  # are the L_i bounds that are too large for steps?


@dataclass(frozen=True)
class FederatedSolution:
    """What `solve_federated` found; np.asarray(minimum) is x."""

    x: np.ndarray
    certificate: Certificate
    converged: bool
    rounds: int
    algorithm: Algorithm
    trace: Trace
    notes: list[str] = field(default_factory=list)  # what the guard did
    at: Evaluation | None = None  # what the sites say of x
    reached: Reached | None = None  # of a search by questions: where another one may start
    communication: Communication | None = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.x, dtype=dtype) if copy or dtype else self.x


def bounds_of(spec: ProblemSpec, search: Search, start: Start) -> Bounds:
    """What a rule for step sizes may know."""
    return Bounds.of(start.L, spec.weights, float(spec.loss.ridge), search.tau, spec.d)
