"""A search by rounds of a method with steps of its own, and a guard that mends steps that prove too long."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from compfed._utils.records import has_leaf, with_leaf
from compfed.algorithms import Algorithm
from compfed.algorithms.base import Bounds
from compfed.errors import StepSizeWarning
from compfed.federation.queries import Lipschitz
from compfed.federation.server.evaluation import Evaluation, lipschitz_bounds
from compfed.federation.server.program import Federation, Program, Request, gather
from compfed.federation.server.rounds import Order, Segment, runner
from compfed.federation.spec import FederatedProblem
from compfed.solvers.certificate import Certificate, Verdict, at_rounding_level, hidden, judged
from compfed.solvers.method_choice import certificate_step, named, of_first_order
from compfed.solvers.search import FIRST_ORDER, FederatedSolution, Search, Start, bounds_of
from compfed.trace import Trace

SEGMENT = 500  # rounds between two looks at the step
TOGETHER = 3000  # rounds side by side, before the last ones go on alone
HALVINGS = 12  # of the step, before giving up: a factor of 4096


def minimising_by_rounds(
    federation: Federation, spec: FederatedProblem, search: Search, start: Start
) -> Program[FederatedSolution]:
    """Rounds of a method with steps of its own.

    A step that turns out too long (the model blows up, or 500 rounds bring the objective no lower) is halved, and the
    run goes on from the best model so far; `notes` and a `StepSizeWarning` say so.
    """
    if start.upper_bound:
        ((bound,),) = yield [Request((Lipschitz(spec.objective, start.x),), weights=spec.weights)]
        L, L_max = lipschitz_bounds(spec, bound)
        start = replace(start, L=L, L_max=L_max, upper_bound=False)
    guard = _Guard.at_start(spec, search, start)
    step = certificate_step(spec, start.L)
    tol = search.tol * start.scale
    good, pieces, notes = start.x, list[Trace](), list[str]()
    spent = 0  # rounds with steps that were given up
    run = runner(federation, Order([spec], guard.algorithm, good, tol, step, search.seed, search.progress))
    done = 0
    while True:
        allowed = min(guard.patience(done), search.max_rounds - done)
        (segment,) = yield from run.advance(allowed)
        before, done = done, spent + int(segment.trace["round"][-1])
        certificate = _certificate(spec, search, start, segment, step)
        verdict = judged(segment, allowed, done - before, certificate)
        rounding = at_rounding_level(segment, 1.0 / step)
        if verdict is Verdict.ARRIVED or done >= search.max_rounds or (verdict.is_trouble and rounding):
            break
        good = good if verdict.is_trouble else segment.trace.x
        change = guard.revised(verdict, allowed, segment.at)
        if change is None:
            continue
        notes.append(f"round {done}: {change.said}")
        if change.guard is None:
            break
        guard, pieces, spent = change.guard, [*pieces, segment.trace], done
        run = runner(federation, Order([spec], guard.algorithm, good, tol, step, search.seed, search.progress))
    trace = reduce(Trace.then, [*pieces, segment.trace])
    x = good if segment.at is None else trace.x
    converged = verdict is Verdict.ARRIVED or rounding
    return FederatedSolution(x.astype(float), certificate, converged, done, guard.algorithm, trace, notes, segment.at)


def minimising_all(
    federation: Federation, specs: Sequence[FederatedProblem], search: Search, start: Start
) -> Program[list[FederatedSolution]]:
    """`minimising` for tasks that differ in the numbers of their regulariser, all from one start, side by side.

    They share their rounds: a message holds one vector per task. Whoever does not arrive this way goes on alone.
    """
    if specs[0].loss.curvature is None:  # the step follows the model, and each has its own
        return (yield from gather([minimising_by_rounds(federation, spec, search, start) for spec in specs]))
    algorithm = _Guard.at_start(specs[0], search, start).algorithm
    step = certificate_step(specs[0], start.L)
    order = Order(specs, algorithm, start.x, search.tol * start.scale, step, search.seed)
    segments = yield from runner(federation, order).advance(min(search.max_rounds, TOGETHER))
    talks = [_or_alone(federation, spec, search, start, s, algorithm) for spec, s in zip(specs, segments, strict=True)]
    return (yield from gather(talks))


def _or_alone(
    federation: Federation, spec: FederatedProblem, search: Search, start: Start, segment: Segment, algorithm: Algorithm
) -> Program[FederatedSolution]:
    """The minimum of a segment that arrived, or the search that goes on from it."""
    trace, done = segment.trace, int(segment.trace["round"][-1])
    certificate = _certificate(spec, search, start, segment, certificate_step(spec, start.L))
    if certificate.holds or done >= search.max_rounds:
        return FederatedSolution(
            trace.x.astype(float), certificate, certificate.holds, done, algorithm, trace, at=segment.at
        )
    x = start.x if segment.at is None else trace.x
    rest = replace(search, max_rounds=search.max_rounds - done)
    alone = yield from minimising_by_rounds(federation, spec, rest, replace(start, x=x))
    return replace(alone, rounds=done + alone.rounds, trace=trace.then(alone.trace))


def _certificate(spec: FederatedProblem, search: Search, start: Start, segment: Segment, step: float) -> Certificate:
    """Of the last model of a segment."""
    norm = float(segment.trace["gradient_mapping"][-1])
    if segment.at is None:
        return Certificate(norm, start.scale, search.tol)
    hides = hidden(segment.trace.x, 1.0 / step, segment.at.terms, float(np.sum(spec.sizes)))
    return Certificate(norm, start.scale, search.tol, rounding=hides)


@dataclass(frozen=True)
class _Change:
    said: str
    guard: _Guard | None  # None: nothing is left to try


@dataclass(frozen=True)
class _Guard:
    """The algorithm in use, and what to do when its step proves too long."""

    spec: FederatedProblem
    search: Search
    bounds: Bounds
    halvings: int
    algorithm: Algorithm

    @classmethod
    def at_start(cls, spec: FederatedProblem, search: Search, start: Start) -> _Guard:
        return cls._with(spec, search, bounds_of(spec, search, start), 0)

    @classmethod
    def _with(cls, spec: FederatedProblem, search: Search, bounds: Bounds, halvings: int) -> _Guard:
        asked = search.algorithm
        if isinstance(asked, Algorithm):
            eta = getattr(asked, "eta", 1.0) * 0.5**halvings
            algorithm = with_leaf(asked, "eta", eta) if halvings else asked
        else:
            first_order = asked in ("auto", FIRST_ORDER)
            method = of_first_order(bounds, spec.n) if first_order else named(asked)
            algorithm = method.from_bounds(bounds, 0.5**halvings)
        return cls(spec, search, bounds, halvings, algorithm)

    @property
    def follows_curvature(self) -> bool:
        """Does the curvature, and with it the step, change with the model?"""
        return self.spec.loss.curvature is None

    def patience(self, done: int) -> int:
        """Rounds until the next look: soon, at first, where the curvature changes with the model."""
        return SEGMENT if not self.follows_curvature or done >= SEGMENT else SEGMENT // 10

    def revised(self, verdict: Verdict, rounds: int, at: Evaluation | None) -> _Change | None:
        """Another guard if there is reason for one, and how to say it; None for no change."""
        if not verdict.is_trouble:
            return self._followed(at)
        trouble = f"{rounds} {verdict.value}" if verdict is Verdict.STALLED else verdict.value
        if self.algorithm.exact is False or self.halvings == HALVINGS or not has_leaf(self.algorithm, "eta"):
            return _Change(f"{trouble}; stopped", None)
        guard = self._with(self.spec, self.search, self.bounds, self.halvings + 1)
        eta = guard.algorithm.eta  # pyright: ignore[reportAttributeAccessIssue]  # has_leaf above
        said = f"{trouble}; step halved to eta={eta:.3g}, going on from the last good model"
        warnings.warn(f"{type(self.algorithm).__name__}: {said}.", StepSizeWarning, stacklevel=2)
        return _Change(said, guard)

    def _followed(self, at: Evaluation | None) -> _Change | None:
        """A new step where the curvature has changed."""
        old = self.bounds
        if (
            at is None
            or at.L is None
            or old.L / 1.5 < at.L < old.L * 1.5
            or isinstance(self.search.algorithm, Algorithm)
        ):
            return None
        bounds = replace(old, L=at.L, L_max=at.L_max)  # halvings were for the curvature of another place
        return _Change(
            f"the curvature at the model is now {at.L:.3g}; new step", self._with(self.spec, self.search, bounds, 0)
        )
