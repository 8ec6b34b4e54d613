"""The search of the second-order solvers: trial after trial, each one evaluation of f over the sites.

ProximalNewton and ProximalBFGS propose trial points. This server program evaluates them over any federation, in NumPy. The
working set is as wide as the model needs, and the evaluation of a point brings its certificate.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from compfed._utils.text import versions
from compfed.federation.codec import payload
from compfed.federation.queries import Query
from compfed.federation.server.evaluation import Evaluation, evaluate_request, evaluation
from compfed.federation.server.program import Program
from compfed.federation.spec import FederatedProblem
from compfed.losses.base import ignore_overflow
from compfed.problem_spec import optimality_at
from compfed.regularisers.coordinate_form import with_cached_form
from compfed.solvers.base import FederatedSolution, SearchOptions, SecondOrder, Start
from compfed.stopping import NO_MINIMISER, STILL_GROWS, Certificate, Stop, StoppingRule
from compfed.trace import Trace


def solve_by_trials(
    spec: FederatedProblem, search: SearchOptions, solver: SecondOrder, start: Start
) -> Program[FederatedSolution]:
    """Evaluate trial after trial until the gradient mapping is at most tol * scale, or nothing gets better.

    A start with an evaluation `at` is not evaluated again. Every evaluation counts as a round.
    """
    method: Any = solver  # each solver has its own type of state
    history = _History(spec, search, solver, start)
    spec, rule, at = history.spec, history.rule, start.at
    x0 = np.asarray(start.x if at is None else at.x, float)
    state = method.init(x0, at, start.kept)
    if at is not None:
        history.add(at)
        if rule.converged:
            return history.solution(method.kept(state), Stop(True))
    while True:
        trial = method.trial(state)
        if at is None or not _covers(at, trial.W):
            request = evaluate_request(spec, trial)
            ((summed,),) = yield [request]
            at = evaluation(spec, trial, summed)
            history.count_message(request.queries[0], summed)
            del summed  # it may be large, and the next one comes while this program waits
            history.add(at)
        converged = rule.converged
        stop = None if converged else rule.without_convergence()
        if stop is None and not converged and history.messages >= search.max_rounds:
            stop = Stop(False, f"stopped at max_rounds={search.max_rounds}")
        if stop is None:
            state = ignore_overflow(method.update)(spec.regulariser, state, at)
            stop = rule.at_convergence(at, method.trial(state).x - at.x) if converged else None
        if stop is not None:
            return history.solution(method.kept(state), stop)
        at = None


def _covers(at: Evaluation, W: np.ndarray | None) -> bool:
    """Whether an evaluation has the Hessian on W."""
    return W is None or not len(W) or (at.H is not None and at.W is not None and np.array_equal(at.W, W))


class _History:
    """The evaluations of a search, what they cost, and the trace of them."""

    def __init__(self, spec: FederatedProblem, search: SearchOptions, solver: SecondOrder, start: Start):
        self.spec = spec.with_regulariser(with_cached_form(spec.regulariser, spec.d))
        self.search, self.solver, self.scale = search, solver, start.scale
        self.step = start.certificate_step(spec)
        self.rule = StoppingRule(self.spec, search.tol * start.scale, self.step)
        self.notes = [start.refused] if start.refused else []
        self.described, self.began = spec.describe(), time.perf_counter()
        self.cached: set[str] = set()
        payload(spec.objective, self.cached)  # the objective travels once, before the search
        self.messages = 0
        self.up = self.down = 0.0  # bytes
        self.rows: list[dict[str, float]] = []

    def count_message(self, query: Query, summed: object) -> None:
        self.messages += 1
        self.down += payload(query, self.cached)
        self.up += payload(summed, set())

    @ignore_overflow
    def add(self, at: Evaluation) -> None:
        """Record an evaluation."""
        point = optimality_at(self.spec.regulariser, at.x, at.value, at.gradient, self.step)
        self.rule.observe(at, point.objective, point.norm)
        self.rows.append(
            {
                "round": self.messages,
                "objective": point.objective,
                "gradient_mapping": point.norm,
                "nonzeros": int(np.count_nonzero(at.x)),
                "vectors_up": self.up / 8 / at.x.size,
                "vectors_down": self.down / 8 / at.x.size,
                "bytes_up": self.up,
                "bytes_down": self.down,
                "gradients": self.messages,
                "gradient_rows": self.messages * float(np.mean(self.spec.sizes)),
                "client_proxes": 0,
                "server_proxes": 0,
                "seconds": time.perf_counter() - self.began,
            }
        )

    def solution(self, kept: Mapping[str, np.ndarray], stop: Stop) -> FederatedSolution:
        """The best model, with its certificate and its trace."""
        at = self.rule.best
        assert at is not None
        columns = {name: np.array([row[name] for row in self.rows]) for name in self.rows[0]}
        provenance = {
            "engine": "queries", "algorithm": {"name": type(self.solver).__name__} | vars(self.solver),
            "problem": self.described, "rounds": self.messages, "batch_size": None, "participants": self.spec.n,
            "record_every": 1, "seed": None, "x_star": None, "dtype": "float64", "device": "cpu",
            "versions": dict(versions()),
        }  # fmt: skip
        certificate = Certificate(
            self.rule.norm,
            self.scale,
            self.search.tol,
            minimiser_exists=stop.note not in (NO_MINIMISER, STILL_GROWS),
            rounding=self.rule.rounding_at(at),
            convex=self.spec.convex,
        )
        if self.search.progress is not None:
            self.search.progress(self.messages, self.messages)
        return FederatedSolution(
            at.x, certificate, stop.converged, self.messages, self.solver, Trace(columns, at.x, provenance),
            [*self.notes, *([stop.note] if stop.note else [])], at, dict(kept),
        )  # fmt: skip
