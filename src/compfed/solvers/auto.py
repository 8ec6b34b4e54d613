"""The minimiser over sites, with nothing to tune: a method chosen by what it is expected to cost, and a certificate.

Everything here happens at the server and is written as a talk (`federation.conversation`): it runs over sites in this process
and over a network alike, and reads no row.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compfed.algorithms import AcceleratedDecoupledProx, Algorithm, ProximalNewton
from compfed.federation.queries import Lipschitz, Refusal, SiteRefusal
from compfed.federation.server.program import Federation, Program, Request
from compfed.federation.spec import ProblemSpec
from compfed.problem_spec import length
from compfed.solvers.certificate import OUT_OF_REACH, Certificate, hidden
from compfed.solvers.first_order import minimising_by_rounds
from compfed.solvers.method_choice import Choice, automatic, certificate_step, named, of_first_order, working_width
from compfed.solvers.search import FIRST_ORDER, FederatedSolution, Search, Start, bounds_of
from compfed.solvers.second_order import NO_MINIMISER, STILL_GROWS, asking, questions_at, read


def minimising(federation: Federation, spec: ProblemSpec, search: Search, start: Start) -> Program[FederatedSolution]:
    """Rounds until the certificate holds, with the method asked for or, for "auto", the one expected to cost the least."""
    choice = _choice(spec, search, start)
    if not choice.method.by_questions:
        return _explained((yield from minimising_by_rounds(federation, spec, search, start)), choice)
    found = yield from _by_questions(spec, search, start, choice)
    if (
        found.converged
        or search.algorithm != "auto"
        or not found.certificate.minimiser_exists
        or found.rounds >= search.max_rounds
    ):
        return found
    if not found.certificate.within_reach:  # whatever the method
        said = [] if OUT_OF_REACH in found.notes else [OUT_OF_REACH]
        return replace(found, notes=[*found.notes, *said])
    rest = replace(search, algorithm=FIRST_ORDER, max_rounds=search.max_rounds - found.rounds)
    later = yield from minimising_by_rounds(federation, spec, rest, replace(start, x=found.x))
    notes = [*found.notes, f"going on with {type(later.algorithm).__name__}", *later.notes]
    whole = replace(later, rounds=found.rounds + later.rounds, trace=found.trace.then(later.trace), notes=notes)
    return _explained(whole, choice)


def _explained(minimum: FederatedSolution, choice: Choice) -> FederatedSolution:
    """The minimum, whose trace says why the method was chosen, where there was a choice."""
    if not choice.why:
        return minimum
    trace = minimum.trace
    return replace(minimum, trace=replace(trace, provenance=trace.provenance | {"choice": choice.why}))


def starting(spec: ProblemSpec, search: Search, x: np.ndarray, scale: float | None = None) -> Program[Start]:
    """One message: Lipschitz constants, value and gradient at x, and what a second-order search asks first."""
    choice = _choice(spec, search)
    curved = choice.method is ProximalNewton and working_width(spec.regulariser, spec.d) == spec.d
    W = np.arange(spec.d, dtype=np.int32) if curved else None
    refused = ""
    try:
        rough = Lipschitz(spec.objective, x, roughly=choice.method.by_questions)
        (answers,) = yield [Request((rough, *questions_at(spec, x, W)))]
    except SiteRefusal as refusal:
        (answers,) = refusal.replies
        answers, W, refused = [said[:2] for said in answers], None, str(refusal)
        if any(isinstance(a, Refusal) for said in answers for a in said):
            raise
    seen = read(spec, x, W, [said[1:] for said in answers])
    L = np.array([said[0].L for said in answers])
    scale = length(seen.at.gradient) if scale is None else scale
    return Start(x, L, scale, seen, None, refused, choice.method.by_questions)


def asks_questions(spec: ProblemSpec, search: Search) -> bool:
    """Is this a search by plain questions?"""
    return _choice(spec, search).method.by_questions


def _choice(spec: ProblemSpec, search: Search, start: Start | None = None) -> Choice:
    """The method to use, and why."""
    if isinstance(search.algorithm, Algorithm):
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


def _by_questions(spec: ProblemSpec, search: Search, start: Start, choice: Choice) -> Program[FederatedSolution]:
    """A second-order search. Where a site refuses curvature, "auto" goes on without."""
    step, notes = certificate_step(spec, start.L), [start.refused] if start.refused else []
    algorithm = search.algorithm
    if not isinstance(algorithm, Algorithm):
        algorithm = choice.method.from_bounds(bounds_of(spec, search, start), 1.0)
    if isinstance(algorithm, ProximalNewton) and algorithm.width is None:
        algorithm = replace(algorithm, width=working_width(spec.regulariser, spec.d))
    given = {"tol": search.tol * start.scale, "step": step, "max_rounds": search.max_rounds}
    try:
        reached = yield from asking(spec, algorithm, start.seen or start.x, kept=start.kept, **given)
    except SiteRefusal as refusal:
        if search.algorithm != "auto" or not isinstance(algorithm, ProximalNewton):
            raise
        return (yield from minimising_without_curvature(spec, search, start, str(refusal)))
    if search.progress is not None:
        search.progress(reached.messages, reached.messages)
    exists = not {NO_MINIMISER, STILL_GROWS}.intersection(reached.notes)
    hides = hidden(reached.seen.x, 1.0 / step, reached.seen.at.terms, float(np.sum(spec.sizes)))
    certificate = Certificate(reached.mapping, start.scale, search.tol, minimiser_exists=exists, rounding=hides)
    found = FederatedSolution(
        reached.seen.x, certificate, reached.good, reached.messages, algorithm, reached.trace,
        [*notes, *reached.notes], reached.seen.at, reached,
    )  # fmt: skip
    return _explained(found, choice)


def minimising_without_curvature(
    spec: ProblemSpec, search: Search, start: Start, refused: str
) -> Program[FederatedSolution]:
    """The same after a refusal."""
    cached = replace(start, refused=refused, seen=None if start.seen is None else start.seen.without_curvature())
    choice = automatic(spec, search.seconds_per_round, refused=refused)
    return (yield from _by_questions(spec, search, cached, choice))
