"""The minimiser over sites with nothing to tune: the method is chosen by its expected cost in rounds and bytes.

Everything here is a server program (`federation.server.program`): it runs over sites in this process and over a network
alike, and reads no row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from compfed.algorithms import AcceleratedDecoupledProx, Algorithm
from compfed.federation.queries import Lipschitz, Refusal, SiteRefusal
from compfed.federation.server.evaluation import Trial, evaluate_request, evaluation, lipschitz_bounds
from compfed.federation.server.program import Federation, Program, Request
from compfed.federation.spec import FederatedProblem
from compfed.problem_spec import safe_norm
from compfed.regularisers import Regulariser
from compfed.regularisers.coordinate_form import coordinate_form
from compfed.solvers.base import (
    FIRST_ORDER,
    SOLVERS,
    FederatedSolution,
    Method,
    SearchOptions,
    SecondOrder,
    Start,
    find_method,
)
from compfed.solvers.first_order import faster_method, solve_by_rounds
from compfed.solvers.prox_bfgs import ProximalBFGS
from compfed.solvers.prox_newton import ProximalNewton
from compfed.solvers.second_order import solve_by_trials
from compfed.stopping import OUT_OF_REACH


def solve(
    federation: Federation, spec: FederatedProblem, search: SearchOptions, start: Start
) -> Program[FederatedSolution]:
    """Search until the certificate holds, with the given method or, for "auto", the one expected to cost the least."""
    choice = _choose(spec, search, start)
    if not choice.second_order:
        return _explained((yield from solve_by_rounds(federation, spec, search, start)), choice)
    found = yield from _solve_by_trials(spec, search, start, choice)
    certificate = found.certificate
    if found.converged or search.algorithm != "auto" or not certificate.minimiser_exists:
        return found
    if found.rounds >= search.max_rounds:
        return found
    if not certificate.within_reach:  # no method can do better
        more = [] if OUT_OF_REACH in found.notes else [OUT_OF_REACH]
        return replace(found, notes=[*found.notes, *more])
    rest = replace(search, algorithm=FIRST_ORDER, max_rounds=search.max_rounds - found.rounds)
    later = yield from solve_by_rounds(federation, spec, rest, replace(start, x=found.x))
    notes = [*found.notes, f"continuing with {type(later.algorithm).__name__}", *later.notes]
    both = replace(later, rounds=found.rounds + later.rounds, trace=found.trace.then(later.trace), notes=notes)
    return _explained(both, choice)


def evaluate_start(
    spec: FederatedProblem, search: SearchOptions, x: np.ndarray, scale: float | None = None
) -> Program[Start]:
    """One message: Lipschitz bounds, value and gradient at x, and the Hessian a second-order search begins with.

    Where a site refuses the Hessian, a second message asks without it.
    """
    choice = _choose(spec, search)
    every = choice.method is ProximalNewton and working_width(spec.regulariser, spec.d) == spec.d
    trial, refused = Trial(x, np.arange(spec.d, dtype=np.int32) if every else None), ""
    bound = Lipschitz(spec.objective, x, upper_bound=choice.second_order)
    try:
        sums = yield [Request((bound,), weights=spec.weights), evaluate_request(spec, trial)]
    except SiteRefusal as refusal:
        sums: Any = refusal.sums
        if trial.W is None or isinstance(sums[0][0], Refusal):
            raise
        trial, refused = Trial(x), str(refusal)
        sums = [sums[0], *(yield [evaluate_request(spec, trial)])]
    (summed_bound,), (summed,) = sums
    at = evaluation(spec, trial, summed)
    scale = safe_norm(at.gradient) if scale is None else scale
    return Start(x, *lipschitz_bounds(spec, summed_bound), scale, at, refused=refused, upper_bound=choice.second_order)


def is_second_order(spec: FederatedProblem, search: SearchOptions) -> bool:
    """Whether the search would use a second-order solver."""
    return _choose(spec, search).second_order


def _solve_by_trials(
    spec: FederatedProblem, search: SearchOptions, start: Start, choice: Choice
) -> Program[FederatedSolution]:
    """A second-order search. Where a site refuses its Hessian, "auto" goes on without."""
    given = search.algorithm
    if isinstance(given, (ProximalNewton, ProximalBFGS)):
        solver: SecondOrder = given
    else:
        solver = SOLVERS[choice.method.__name__].from_bounds(start.bounds(spec, search.tau))
    if isinstance(solver, ProximalNewton):
        solver = solver.with_width(working_width(spec.regulariser, spec.d))
    try:
        return _explained((yield from solve_by_trials(spec, search, solver, start)), choice)
    except SiteRefusal as refusal:
        if search.algorithm != "auto" or not isinstance(solver, ProximalNewton):
            raise
        without = None if start.at is None else start.at.without_hessian()
        start = replace(start, refused=str(refusal), at=without)
        choice = choose_method(spec, search.seconds_per_round, refused=str(refusal))
    return (yield from _solve_by_trials(spec, search, start, choice))


def _explained(solution: FederatedSolution, choice: Choice) -> FederatedSolution:
    """The solution, with the reasons for the choice of its method in its trace."""
    if not choice.why:
        return solution
    trace = solution.trace
    return replace(solution, trace=replace(trace, provenance=trace.provenance | {"choice": choice.why}))


# --- the choice of a method ---

BANDWIDTH = 10e6  # bytes a second between a site and the server
WHOLE = 256  # the Hessian of a model with no more coefficients is asked for in full
WIDTH = (64, 128)  # of a larger model, the Hessian on an eighth of its coordinates at least, within these bounds
WIDEST = 3000  # coordinates of a Hessian at most: 36 MB a message
# Rounds that a search typically takes, from the runs behind docs/few-rounds.md
ROUNDS = {"ProximalNewton": 12, "ProximalBFGS": 80, FIRST_ORDER: 1000}


@dataclass(frozen=True)
class Choice:
    """A method, and why it was chosen."""

    method: Method
    why: str = ""

    @property
    def second_order(self) -> bool:
        return self.method in SOLVERS.values()


class Candidate(NamedTuple):
    """The expected cost of a search with a method."""

    method: Method
    rounds: int
    bytes: float  # of one round, both ways

    def seconds(self, a_round: float) -> float:
        return self.rounds * (a_round + self.bytes / BANDWIDTH)

    def describe(self, a_round: float) -> str:
        size = f"{self.bytes / 1e6:.3g} MB" if self.bytes > 1e6 else f"{self.bytes / 1e3:.3g} kB"
        return f"{self.method.__name__}: about {self.rounds} rounds of {size}, {self.seconds(a_round):.3g} s"


def working_width(g: Regulariser, d: int) -> int:
    """Coordinates on which a second-order search asks for the Hessian: all, where g couples them."""
    return d if d <= WHOLE or coordinate_form(g, d) is None else min(max(d // 8, WIDTH[0]), WIDTH[1])


def candidates(spec: FederatedProblem, first_order: type[Algorithm]) -> list[Candidate]:
    """The methods that can solve a problem, and their expected costs.

    Second-order steps are for convex problems, since another quadratic model need not have a minimum, and for double
    precision, in which the server computes.
    """
    loss, g, d = spec.loss, spec.regulariser, spec.d
    vectors = 16.0 * d
    found = [Candidate(first_order, ROUNDS[FIRST_ORDER], vectors)]
    if not spec.convex or spec.dtype != np.float64:
        return found
    found.append(Candidate(ProximalBFGS, ROUNDS["ProximalBFGS"], vectors))
    w = working_width(g, d)
    if w <= WIDEST:
        message = vectors + 4 * w + 8.0 * loss.packed_size(w)
        found.append(Candidate(ProximalNewton, ROUNDS["ProximalNewton"], message))
    return found


def choose_method(
    spec: FederatedProblem,
    seconds_per_round: float,
    first_order: type[Algorithm] = AcceleratedDecoupledProx,
    refused: str = "",
) -> Choice:
    """The method whose rounds and bytes are expected to cost the least; one without Hessians where a site refused them."""
    listed = sorted(candidates(spec, first_order), key=lambda c: c.seconds(seconds_per_round))
    if refused:
        listed = [c for c in listed if c.method is not ProximalNewton]
    price = f"at {seconds_per_round:g} s a round and {BANDWIDTH / 1e6:g} MB/s"
    costs = "; ".join(c.describe(seconds_per_round) for c in listed)
    return Choice(listed[0].method, f"expected {price}: {costs}." + (f" {refused}" if refused else ""))


def _choose(spec: FederatedProblem, search: SearchOptions, start: Start | None = None) -> Choice:
    """The method to use; before the start is known, the first-order method stands for all of its kind."""
    asked = search.algorithm
    if isinstance(asked, (Algorithm, ProximalNewton, ProximalBFGS)):
        return Choice(type(asked))
    if asked == FIRST_ORDER:
        return Choice(AcceleratedDecoupledProx)
    if asked != "auto":
        return Choice(find_method(asked))
    if start is None:
        return choose_method(spec, search.seconds_per_round)
    start.certificate_step(spec)  # refuses features that are all zero, which allow no step of any method
    if start.upper_bound and spec.n > 1:  # L_max is not known well enough to compare the first-order methods
        return choose_method(spec, search.seconds_per_round, refused=start.refused)
    first = faster_method(start.bounds(spec, search.tau), spec.n)
    return choose_method(spec, search.seconds_per_round, first, start.refused)
