"""A search by rounds of a first-order method. Steps that prove too long are halved (step backtracking)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

from compfed._utils.records import has_leaf, with_leaf
from compfed.algorithms import FISTA, AcceleratedDecoupledProx, Algorithm, find
from compfed.algorithms.base import Bounds
from compfed.errors import StepSizeWarning
from compfed.federation.queries import Lipschitz
from compfed.federation.server.program import Federation, Program, Request, gather
from compfed.federation.server.rounds import CHECK, Order, Segment
from compfed.federation.server.trial import Evaluated, lipschitz_bounds
from compfed.federation.spec import FederatedProblem
from compfed.solvers.base import FIRST_ORDER, FederatedSolution, SearchOptions, Start
from compfed.stopping import Certificate, Status, has_converged, has_stalled, rounding_error, rounding_level
from compfed.trace import Trace

SEGMENT = 500  # rounds between two checks of the step
SHARED_ROUNDS = 3000  # rounds side by side, before the models that have not converged go on alone
HALVINGS = 12  # of the step, before giving up: a factor of 4096


def solve_by_rounds(
    federation: Federation, spec: FederatedProblem, search: SearchOptions, start: Start
) -> Program[FederatedSolution]:
    """Rounds of a method with steps of its own, until the certificate holds.

    A step that proves too long (the model diverges, or 500 rounds bring the objective no lower) is halved, and the run
    continues from the best model so far; `notes` and a `StepSizeWarning` say so.
    """
    if start.upper_bound:
        ((bound,),) = yield [
            Request((Lipschitz(spec.objective, start.x),), weights=spec.weights, weighting=spec.weighting)
        ]
        L, L_max = lipschitz_bounds(spec, bound)
        start = replace(start, L=L, L_max=L_max, upper_bound=False)
    steps = SteppedAlgorithm(spec, search, start.bounds(spec, search.tau))
    step, tol = start.certificate_step(spec), search.tol * start.scale
    good, pieces, notes = start.x, list[Trace](), list[str]()
    done = spent = 0  # rounds in all, and with steps that were given up
    run = search.rounds(federation)(Order([spec], steps.algorithm, good, tol, step, search.seed, search.progress))
    while True:
        allowed = min(steps.rounds_to_check(done), search.max_rounds - done)
        (segment,) = yield from run.advance(allowed)
        before, done = done, spent + int(segment.trace["round"][-1])
        certificate = _certificate(spec, search, start, segment)
        status = _status(segment, allowed, done - before, certificate)
        zero_to_rounding = segment.at is not None and has_converged(
            certificate.gradient_mapping, rounding_level(segment.trace.x, 1.0 / step, segment.at.terms)
        )
        if status is Status.CONVERGED or done >= search.max_rounds or (status.failed and zero_to_rounding):
            break
        good = good if status.failed else segment.trace.x
        note, steps_after = steps.after(status, allowed, segment.at)
        if note:
            notes.append(f"round {done}: {note}")
        if steps_after is None:
            break
        if steps_after is not steps:
            steps, pieces, spent = steps_after, [*pieces, segment.trace], done
            run = search.rounds(federation)(
                Order([spec], steps.algorithm, good, tol, step, search.seed, search.progress)
            )
    trace = reduce(Trace.then, [*pieces, segment.trace])
    x = good if segment.at is None else trace.x
    converged = status is Status.CONVERGED or zero_to_rounding
    return FederatedSolution(x.astype(float), certificate, converged, done, steps.algorithm, trace, notes, segment.at)


def solve_all_by_rounds(
    federation: Federation, specs: Sequence[FederatedProblem], search: SearchOptions, start: Start
) -> Program[list[FederatedSolution]]:
    """Problems that differ in the numbers of their regulariser, all from one start, side by side.

    They share their rounds: a message holds one vector per problem. Those that do not converge this way go on alone.
    """
    if specs[0].loss.curvature is None:  # the step depends on the model, and each problem has its own
        return (yield from gather([solve_by_rounds(federation, spec, search, start) for spec in specs]))
    algorithm = SteppedAlgorithm(specs[0], search, start.bounds(specs[0], search.tau)).algorithm
    step = start.certificate_step(specs[0])
    order = Order(specs, algorithm, start.x, search.tol * start.scale, step, search.seed)
    segments = yield from search.rounds(federation)(order).advance(min(search.max_rounds, SHARED_ROUNDS))

    def finish(spec: FederatedProblem, segment: Segment) -> Program[FederatedSolution]:
        """The solution of a segment that converged, or of the search that goes on from it."""
        trace, done, at = segment.trace, int(segment.trace["round"][-1]), segment.at
        certificate = _certificate(spec, search, start, segment)
        if certificate.holds or done >= search.max_rounds:
            return FederatedSolution(
                trace.x.astype(float), certificate, certificate.holds, done, algorithm, trace, at=at
            )
        rest = replace(search, max_rounds=search.max_rounds - done)
        last = replace(start, x=start.x if at is None else trace.x)
        alone = yield from solve_by_rounds(federation, spec, rest, last)
        return replace(alone, rounds=done + alone.rounds, trace=trace.then(alone.trace))

    return (yield from gather([finish(spec, segment) for spec, segment in zip(specs, segments, strict=True)]))


# --- when to stop ---


def _certificate(spec: FederatedProblem, search: SearchOptions, start: Start, segment: Segment) -> Certificate:
    """The certificate of the last model of a segment."""
    norm, at = float(segment.trace["gradient_mapping"][-1]), segment.at
    L = 1.0 / start.certificate_step(spec)
    rounding = 0.0 if at is None else rounding_error(spec.sizes, segment.trace.x, L, at.terms)
    return Certificate(norm, start.scale, search.tol, rounding=rounding, convex=spec.convex)


def _status(segment: Segment, allowed: int, done: int, certificate: Certificate) -> Status:
    """The status after a segment of `allowed` rounds, of which `done` were done."""
    if segment.at is None:
        return Status.DIVERGED
    # a run that stopped without a round has converged, even where the certificate misses the tolerance by the last bit
    if certificate.holds or done == 0:
        return Status.CONVERGED
    return Status.STALLED if has_stalled(segment.trace, allowed // CHECK + 1) else Status.RUNNING


# --- step sizes ---


def faster_method(bounds: Bounds, n: int) -> type[Algorithm]:
    """The first-order method that takes the longer step per round over n sites.

    A round of AcceleratedDecoupledProx is a step of length min(tau, 4) / L_max, one of FISTA of length 1 / L: local
    steps pay unless the L_i of one site is far above L. With a single site there is no communication to save, and FISTA
    needs fewer gradients.
    """
    longer = bounds.corrected(1.0) * bounds.tau > 1.0 / bounds.L
    return AcceleratedDecoupledProx if n > 1 and longer else FISTA


@dataclass(frozen=True)
class SteppedAlgorithm:
    """The algorithm in use, and the next one to try when its step proves too long (step backtracking)."""

    spec: FederatedProblem
    search: SearchOptions
    bounds: Bounds
    halvings: int = 0

    @cached_property
    def algorithm(self) -> Algorithm:
        asked, factor = self.search.algorithm, 0.5**self.halvings
        if isinstance(asked, Algorithm):
            return with_leaf(asked, "eta", getattr(asked, "eta", 1.0) * factor) if self.halvings else asked
        if asked in ("auto", FIRST_ORDER):
            asked = faster_method(self.bounds, self.spec.n)
        method: Any = find(asked) if isinstance(asked, str) else asked
        return method.from_bounds(self.bounds, factor)

    def rounds_to_check(self, done: int) -> int:
        """Rounds until the next check of the step: few, at first, where the curvature changes with the model."""
        return SEGMENT if self.spec.loss.curvature is not None or done >= SEGMENT else SEGMENT // 10

    def after(self, status: Status, rounds: int, at: Evaluated | None) -> tuple[str, SteppedAlgorithm | None]:
        """(note, steps): the same steps if they serve, shorter ones after a failure, None if nothing is left to try."""
        algorithm = self.algorithm
        if not status.failed:
            return self._after_curvature_change(at)
        trouble = f"{rounds} {status.value}" if status is Status.STALLED else status.value
        if algorithm.exact is False or self.halvings == HALVINGS or not has_leaf(algorithm, "eta"):
            return f"{trouble}; stopped", None
        steps = replace(self, halvings=self.halvings + 1)
        eta = vars(steps.algorithm)["eta"]
        note = f"{trouble}; step halved to eta={eta:.3g}, continuing from the last good model"
        warnings.warn(f"{type(algorithm).__name__}: {note}.", StepSizeWarning, stacklevel=2)
        return note, steps

    def _after_curvature_change(self, at: Evaluated | None) -> tuple[str, SteppedAlgorithm]:
        """New steps where the curvature at the model has changed by half or more."""
        old, given = self.bounds, isinstance(self.search.algorithm, Algorithm)
        if given or at is None or at.L is None or at.L_max is None or old.L / 1.5 < at.L < old.L * 1.5:
            return "", self
        # halvings were for the curvature of another place
        steps = replace(self, bounds=replace(old, L=at.L, L_max=at.L_max), halvings=0)
        return f"the curvature at the model is now {at.L:.3g}; new step", steps
