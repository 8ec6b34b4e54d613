"""The minimiser over sites, with nothing to tune: a method chosen by its expected cost, and a certificate.

Everything here is a server program (`federation.server.program`): it runs over sites in this process and over a network
alike, and reads no row.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compfed.algorithms import AcceleratedDecoupledProx, Algorithm
from compfed.federation.queries import Lipschitz, Refusal, SiteRefusal
from compfed.federation.server.evaluation import Trial, evaluate_request, evaluation, lipschitz_bounds
from compfed.federation.server.program import Federation, Program, Request
from compfed.federation.spec import FederatedProblem
from compfed.problem_spec import safe_norm
from compfed.solvers.certificate import OUT_OF_REACH, Certificate, hidden
from compfed.solvers.first_order import minimising_by_rounds
from compfed.solvers.method_choice import Choice, automatic, certificate_step, named, of_first_order, working_width
from compfed.solvers.prox_newton import ProximalNewton
from compfed.solvers.search import FIRST_ORDER, FederatedSolution, Search, Start, bounds_of
from compfed.solvers.second_order import NO_MINIMISER, SOLVERS, STILL_GROWS, SecondOrder, search_trials


def minimising(
    federation: Federation, spec: FederatedProblem, search: Search, start: Start
) -> Program[FederatedSolution]:
    """Search until the certificate holds, with the method asked for or, for "auto", the one expected to cost the least."""
    choice = _choice(spec, search, start)
    if not _is_second_order(choice):
        return _explained((yield from minimising_by_rounds(federation, spec, search, start)), choice)
    found = yield from _by_trials(spec, search, start, choice)
    if (
        found.converged
        or search.algorithm != "auto"
        or not found.certificate.minimiser_exists
        or found.rounds >= search.max_rounds
    ):
        return found
    if not found.certificate.within_reach:  # whatever the method
        more = [] if OUT_OF_REACH in found.notes else [OUT_OF_REACH]
        return replace(found, notes=[*found.notes, *more])
    rest = replace(search, algorithm=FIRST_ORDER, max_rounds=search.max_rounds - found.rounds)
    later = yield from minimising_by_rounds(federation, spec, rest, replace(start, x=found.x))
    notes = [*found.notes, f"going on with {type(later.algorithm).__name__}", *later.notes]
    both = replace(later, rounds=found.rounds + later.rounds, trace=found.trace.then(later.trace), notes=notes)
    return _explained(both, choice)


def _explained(solution: FederatedSolution, choice: Choice) -> FederatedSolution:
    """The solution, whose trace says why the method was chosen, where there was a choice."""
    if not choice.why:
        return solution
    trace = solution.trace
    return replace(solution, trace=replace(trace, provenance=trace.provenance | {"choice": choice.why}))


def starting(spec: FederatedProblem, search: Search, x: np.ndarray, scale: float | None = None) -> Program[Start]:
    """One message: Lipschitz bounds, value and gradient at x, and the Hessian a second-order search begins with.

    Where a site refuses the Hessian, a second message asks without it.
    """
    choice = _choice(spec, search)
    second_order = _is_second_order(choice)
    whole = choice.method is ProximalNewton and working_width(spec.regulariser, spec.d) == spec.d
    trial, refused = Trial(x, np.arange(spec.d, dtype=np.int32) if whole else None), ""
    bound = Lipschitz(spec.objective, x, upper_bound=second_order)
    try:
        sums = yield [Request((bound,), weights=spec.weights), evaluate_request(spec, trial)]
    except SiteRefusal as refusal:
        sums = refusal.sums
        if trial.W is None or isinstance(sums[0][0], Refusal):
            raise
        trial, refused = Trial(x), str(refusal)
        sums = [sums[0], *(yield [evaluate_request(spec, trial)])]
    (summed_bound,), (summed,) = sums
    at = evaluation(spec, trial, summed)
    L, L_max = lipschitz_bounds(spec, summed_bound)
    scale = safe_norm(at.gradient) if scale is None else scale
    return Start(x, L, L_max, scale, at, None, refused, second_order)


def is_second_order(spec: FederatedProblem, search: Search) -> bool:
    """Is this a search by trials of a second-order solver?"""
    return _is_second_order(_choice(spec, search))


def _is_second_order(choice: Choice) -> bool:
    return choice.method in SOLVERS.values()


def _choice(spec: FederatedProblem, search: Search, start: Start | None = None) -> Choice:
    """The method to use, and why."""
    if isinstance(search.algorithm, (Algorithm, *SOLVERS.values())):
        return Choice(type(search.algorithm))
    if search.algorithm == FIRST_ORDER:
        return Choice(AcceleratedDecoupledProx)
    if search.algorithm != "auto":
        return Choice(named(search.algorithm))
    if start is None:
        return automatic(spec, search.seconds_per_round)
    certificate_step(spec, start.L)  # refuses features that are all zero, which allow no step of any method
    first = of_first_order(bounds_of(spec, search, start), spec.n)
    return automatic(spec, search.seconds_per_round, first, start.refused)


def _by_trials(spec: FederatedProblem, search: Search, start: Start, choice: Choice) -> Program[FederatedSolution]:
    """A second-order search. Where a site refuses its Hessian, "auto" goes on without."""
    step, notes = certificate_step(spec, start.L), [start.refused] if start.refused else []
    given = search.algorithm
    solver: SecondOrder
    if isinstance(given, tuple(SOLVERS.values())):
        solver = given
    else:
        solver = SOLVERS[choice.method.__name__].from_bounds(bounds_of(spec, search, start))
    if isinstance(solver, ProximalNewton):
        solver = solver.with_width(working_width(spec.regulariser, spec.d))
    limits = {"tol": search.tol * start.scale, "step": step, "max_rounds": search.max_rounds}
    try:
        first = start.x if start.at is None else start.at
        reached = yield from search_trials(spec, solver, first, kept=start.kept, **limits)
    except SiteRefusal as refusal:
        if search.algorithm != "auto" or not isinstance(solver, ProximalNewton):
            raise
        without = None if start.at is None else start.at.without_hessian()
        start = replace(start, refused=str(refusal), at=without)
        choice = automatic(spec, search.seconds_per_round, refused=str(refusal))
        return (yield from _by_trials(spec, search, start, choice))
    if search.progress is not None:
        search.progress(reached.messages, reached.messages)
    exists = not {NO_MINIMISER, STILL_GROWS}.intersection(reached.notes)
    hides = hidden(reached.at.x, 1.0 / step, reached.at.terms, float(np.sum(spec.sizes)))
    certificate = Certificate(reached.mapping, start.scale, search.tol, minimiser_exists=exists, rounding=hides)
    found = FederatedSolution(
        reached.at.x, certificate, reached.good, reached.messages, solver, reached.trace, [*notes, *reached.notes],
        reached.at, reached,
    )  # fmt: skip
    return _explained(found, choice)
