"""The search of the second-order solvers: trial after trial, each one evaluation of f over the sites.

ProximalNewton and ProximalBFGS propose trial points. This server program evaluates them over any federation, in NumPy. The
working set is as wide as the model needs, and the evaluation of a point brings its certificate.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from compfed._utils.text import versions
from compfed.federation.codec import payload
from compfed.federation.queries import Query
from compfed.federation.server.evaluation import Evaluation, evaluate_request, evaluation
from compfed.federation.server.program import Program
from compfed.federation.spec import FederatedProblem
from compfed.losses import Logistic, Softmax
from compfed.losses.base import ignore_overflow
from compfed.problem_spec import optimality_at
from compfed.regularisers.coordinate_form import with_cached_form
from compfed.solvers.search import (
    OUT_OF_REACH,
    Certificate,
    FederatedSolution,
    SearchOptions,
    SecondOrder,
    Start,
    rounding_error,
    rounding_level,
)
from compfed.trace import Trace

MAX_IDLE = 40  # evaluations without progress, before a search stops
NO_MINIMISER = (
    "the loss is all but zero and the coefficients still grow: the classes are perfectly separable, and without a "
    "penalty there is no best model. Give a larger alpha"
)
STILL_GROWS = (
    "the gradient is as small as asked for and the coefficients still grow: a column, or a sum of some, tells one class from the "
    "others or has no counts but zero, and without a penalty there is no best model. Give a larger alpha"
)
LONG_STEP = 1e-3  # of the model's norm: where the certificate holds and steps are longer, there may be no minimiser
LONG_STEPS = 2  # long steps that are tried before the search says so: near a minimiser they would be short at once


def solve_by_trials(
    spec: FederatedProblem, search: SearchOptions, solver: SecondOrder, start: Start
) -> Program[FederatedSolution]:
    """Evaluate trial after trial until the gradient mapping is at most tol * scale, or nothing gets better.

    A start with an evaluation `at` is not evaluated again. Every evaluation counts as a round.
    """
    method: Any = solver  # each solver has its own type of state
    history = _History(spec, search, solver, start)
    spec, at = history.spec, start.at
    x0 = np.asarray(start.x if at is None else at.x, float)
    state = method.init(x0, at, start.kept)
    if at is not None and history.add(at) <= history.tol:
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
        converged = history.last_norm <= history.tol
        stop = None if converged else history.stop_without_convergence()
        if stop is None:
            state = ignore_overflow(method.update)(spec.regulariser, state, at)
            stop = history.stop_at_convergence(at, method.trial(state).x - at.x) if converged else None
        if stop is not None:
            return history.solution(method.kept(state), stop)
        at = None


def _covers(at: Evaluation, W: np.ndarray | None) -> bool:
    """Whether an evaluation has the Hessian on W."""
    return W is None or not len(W) or (at.H is not None and at.W is not None and np.array_equal(at.W, W))


class Stop(NamedTuple):
    """The end of a search: whether it converged, and a note for a person where it did not."""

    converged: bool
    note: str = ""


class _History:
    """The evaluations of a search, the best of them, and the decision to stop."""

    def __init__(self, spec: FederatedProblem, search: SearchOptions, solver: SecondOrder, start: Start):
        self.spec = spec.with_regulariser(with_cached_form(spec.regulariser, spec.d))
        self.search, self.solver, self.scale = search, solver, start.scale
        self.tol = search.tol * start.scale
        self.step = start.certificate_step(spec)
        self.notes = [start.refused] if start.refused else []
        self.described, self.began = spec.describe(), time.perf_counter()
        self.cached: set[str] = set()
        payload(spec.objective, self.cached)  # the objective travels once, before the search
        self.messages = 0
        self.up = self.down = 0.0  # bytes
        self.rows: list[dict[str, float]] = []
        self.best: Evaluation | None = None
        self.objective = self.norm = self.last_norm = np.inf  # of the best, the best and the last evaluation
        self.idle, self.idle_norm = 0, np.inf  # evaluations without progress, and the norm at the last progress
        self.slow, self.slow_norm = 0, np.inf  # evaluations since the norm last fell by a tenth, and that norm
        self.long_steps = 0

    def count_message(self, query: Query, summed: object) -> None:
        self.messages += 1
        self.down += payload(query, self.cached)
        self.up += payload(summed, set())

    @ignore_overflow
    def add(self, at: Evaluation) -> float:
        """Record an evaluation; return the norm of its gradient mapping."""
        point = optimality_at(self.spec.regulariser, at.x, at.value, at.gradient, self.step)
        objective, norm = point.objective, point.norm
        self.rows.append(
            {
                "round": self.messages,
                "objective": objective,
                "gradient_mapping": norm,
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
        rounding = 8 * np.finfo(float).eps * abs(objective)
        lower = objective < self.objective - rounding
        if lower or (objective <= self.objective + rounding and norm < self.norm) or self.best is None:
            self.best, self.objective, self.norm = at, objective, norm
        progress = lower or norm < 0.9 * self.idle_norm
        self.idle, self.idle_norm = (0, min(norm, self.idle_norm)) if progress else (self.idle + 1, self.idle_norm)
        closer = norm < 0.9 * self.slow_norm
        self.slow, self.slow_norm = (0, norm) if closer else (self.slow + 1, self.slow_norm)
        self.last_norm = norm
        return norm

    def stop_without_convergence(self) -> Stop | None:
        """Why the search should stop although the tolerance is not reached; None to go on."""
        assert self.best is not None
        x, L, terms = self.best.x, 1.0 / self.step, self.best.terms
        too_fine = rounding_error(self.spec, x, L, terms) > self.tol
        rounding = rounding_level(x, L, terms)
        if self.idle > 3 and self.norm <= rounding:
            if self.separates_classes:
                return Stop(False, NO_MINIMISER)
            moved = self.rows[0]["gradient_mapping"] > rounding
            return Stop(False, OUT_OF_REACH) if too_fine and moved else Stop(True)
        if self.slow > MAX_IDLE and too_fine:  # the tolerance is below the rounding errors: it could go on for ever
            return Stop(False, OUT_OF_REACH)
        if self.messages >= self.search.max_rounds:
            return Stop(False, f"stopped at max_rounds={self.search.max_rounds}")
        return Stop(False, f"{MAX_IDLE} evaluations brought nothing") if self.idle > MAX_IDLE else None

    def stop_at_convergence(self, at: Evaluation, step: np.ndarray) -> Stop | None:
        """Stop at a point whose certificate holds, unless the model still grows; None to try one more step.

        Where there is no minimiser a Newton step takes the gradient down by a factor, and is as long as the one before. A
        step along which rounding hides the gradient proves nothing.
        """
        self.best, self.norm = at, self.last_norm  # whatever rounding makes of objectives whose terms cancel
        length = float(np.linalg.norm(step))
        if self.separates_classes:
            return Stop(False, NO_MINIMISER)
        if getattr(self.spec.loss, "attained", False) or not length > LONG_STEP * np.linalg.norm(at.x):
            return Stop(True)
        if self.loss_vanished:
            return Stop(False, NO_MINIMISER)
        if abs(at.gradient @ step) <= 3 * length * rounding_error(self.spec, at.x, 1.0 / self.step, at.terms):
            return Stop(True)
        self.long_steps += 1
        return Stop(False, STILL_GROWS) if self.long_steps > LONG_STEPS else None

    @property
    def loss_vanished(self) -> bool:
        """Whether the loss is all but zero, for a loss that is zero nowhere."""
        assert self.best is not None
        below = self.best.value <= 1e-6 * self.rows[0]["objective"]
        return below and not getattr(self.spec.loss, "attained", False)

    @property
    def separates_classes(self) -> bool:
        """Whether the value proves that every row is classified correctly, and there is no penalty.

        A row in the wrong class, or between two classes, has a logistic loss of at least log 2.
        """
        assert self.best is not None
        of_a_row = float(np.min(self.spec.weights / self.spec.sizes))
        free = self.objective == self.best.value and isinstance(self.spec.loss, (Logistic, Softmax))
        return self.loss_vanished and free and self.best.value < np.log(2) * of_a_row

    def solution(self, kept: Mapping[str, np.ndarray], stop: Stop) -> FederatedSolution:
        """The best model, with its certificate and its trace."""
        assert self.best is not None
        at, columns = self.best, {name: np.array([row[name] for row in self.rows]) for name in self.rows[0]}
        provenance = {
            "engine": "queries", "algorithm": {"name": type(self.solver).__name__} | vars(self.solver),
            "problem": self.described, "rounds": self.messages, "batch_size": None, "participants": self.spec.n,
            "record_every": 1, "seed": None, "x_star": None, "dtype": "float64", "device": "cpu",
            "versions": dict(versions()),
        }  # fmt: skip
        certificate = Certificate(
            self.norm,
            self.scale,
            self.search.tol,
            minimiser_exists=stop.note not in (NO_MINIMISER, STILL_GROWS),
            rounding=rounding_error(self.spec, at.x, 1.0 / self.step, at.terms),
            convex=self.spec.convex,
        )
        if self.search.progress is not None:
            self.search.progress(self.messages, self.messages)
        return FederatedSolution(
            at.x, certificate, stop.converged, self.messages, self.solver, Trace(columns, at.x, provenance),
            [*self.notes, *([stop.note] if stop.note else [])], at, dict(kept),
        )  # fmt: skip
