"""The search of the second-order solvers: trial after trial, each one evaluation of f over the sites.

ProximalNewton and ProximalBFGS only evaluate f where they propose a trial. Here they run over any federation: nothing is
compiled, the working set is as wide as the model needs, and the certificate of a point comes with its evaluation.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

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
from compfed.solvers.certificate import OUT_OF_REACH, hidden, rounding_level
from compfed.solvers.prox_bfgs import ProximalBFGS
from compfed.solvers.prox_newton import ProximalNewton
from compfed.trace import Trace

SecondOrder = ProximalNewton | ProximalBFGS
SOLVERS: dict[str, type[SecondOrder]] = {"ProximalNewton": ProximalNewton, "ProximalBFGS": ProximalBFGS}

PATIENCE = 40  # evaluations that bring nothing, before a search is called stuck
NO_MINIMISER = (
    "the loss is all but zero and the coefficients still grow: the labels can be told apart without error, and without a "
    "penalty there is no best model. Give a larger alpha"
)
STILL_GROWS = (
    "the gradient is as small as asked for and the coefficients still grow: a column, or a sum of some, tells one class from the "
    "others or has no counts but zero, and without a penalty there is no best model. Give a larger alpha"
)
GROWING = 1e-3  # steps this long, relative to the model, where the certificate holds: there is no minimiser
SECOND_LOOKS = 2  # steps more, where they are long: near a minimiser they would be short at once


@dataclass(frozen=True)
class Reached:
    """Where a search ended."""

    at: Evaluation
    kept: dict[str, np.ndarray]  # of the solver's state, what is true of f whatever g is
    mapping: float
    good: bool  # does the certificate hold, or is it at the level of rounding?
    messages: int
    trace: Trace
    notes: list[str] = field(default_factory=list)


def search_trials(
    spec: FederatedProblem,
    solver: SecondOrder,
    start: Evaluation | np.ndarray,
    *,
    tol: float,
    step: float,
    max_rounds: int,
    kept: dict[str, np.ndarray] | None = None,
) -> Program[Reached]:
    """Evaluate trial after trial until the gradient mapping is at most `tol`, or nothing gets better.

    `start` is a point, or an evaluation that is known already; `kept` is from a search with another g.
    """
    described = spec.describe()
    spec = spec.with_regulariser(with_cached_form(spec.regulariser, spec.d))
    g, at = spec.regulariser, start if isinstance(start, Evaluation) else None
    x0 = np.asarray(start if at is None else at.x, float)
    state: Any = solver.init(x0, at)._replace(**(kept or {}))
    log, norm = _Log(spec, solver, described), np.inf
    if at is not None:
        norm = log.add(at, step)
        if norm <= tol:
            return log.reached(state, True, "")
    while True:
        trial = solver.trial(state)
        if at is None or not _covers(at, trial.W):
            request = evaluate_request(spec, trial)
            ((summed,),) = yield [request]
            at = evaluation(spec, trial, summed)
            log.message(request.queries[0], summed)
            del summed  # it may be large, and the next one comes while this program waits
            norm = log.add(at, step)
        end = log.reason_to_end(max_rounds, 1.0 / step, tol) if norm > tol or np.isnan(norm) else None
        if end is not None:
            return log.reached(state, *end)
        state = ignore_overflow(solver.update)(g, state, at)
        if norm <= tol:
            log.best, log.norm = at, norm  # whatever rounding makes of objectives whose terms cancel
            end = log.reason_to_accept(state.trial - at.x, 1.0 / step)
            if end is not None:
                return log.reached(state, *end)
        at = None


def _covers(at: Evaluation, W: np.ndarray | None) -> bool:
    """Is everything known that a solver asks for?"""
    return W is None or not len(W) or (at.H is not None and at.W is not None and np.array_equal(at.W, W))


class _Log:
    """Every evaluation of a search, and the best of them."""

    def __init__(self, spec: FederatedProblem, solver: SecondOrder, described: dict[str, Any]):
        self.spec, self.solver, self.described, self.began = spec, solver, described, time.perf_counter()
        self.cached: set[str] = set()
        payload(spec.objective, self.cached)  # which travels once, before the search
        self.messages = self.idle = self.long = 0
        self.up = self.down = 0.0  # bytes
        self.rows: list[dict[str, float]] = []
        self.best: Evaluation | None = None
        self.objective = self.norm = np.inf  # of the best
        self.mark = np.inf  # the norm when something was last gained
        self.closest, self.slow = np.inf, 0  # the norm when it last fell by a tenth, and evaluations since

    def message(self, query: Query, summed: object) -> None:
        self.messages += 1
        self.down += payload(query, self.cached)
        self.up += payload(summed, set())

    @ignore_overflow
    def add(self, seen: Evaluation, step: float) -> float:
        """Note an evaluation; the norm of its gradient mapping."""
        x, g = seen.x, self.spec.regulariser
        point = optimality_at(g, x, seen.value, seen.gradient, step)
        objective, norm = point.objective, point.norm
        self.rows.append(
            {
                "round": self.messages,
                "objective": objective,
                "gradient_mapping": norm,
                "nonzeros": int(np.count_nonzero(x)),
                "vectors_up": self.up / 8 / x.size,
                "vectors_down": self.down / 8 / x.size,
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
            self.best, self.objective, self.norm = seen, objective, norm
        gained = lower or norm < 0.9 * self.mark
        self.idle, self.mark = (0, min(norm, self.mark)) if gained else (self.idle + 1, self.mark)
        closer = norm < 0.9 * self.closest
        self.closest, self.slow = (norm, 0) if closer else (self.closest, self.slow + 1)
        return norm

    def reason_to_end(self, max_rounds: int, L: float, tol: float) -> tuple[bool, str] | None:
        """(is it good enough, why) if the search should end although the tolerance is not reached."""
        assert self.best is not None
        finer = hidden(self.best.x, L, self.best.terms, float(np.sum(self.spec.sizes))) > tol
        rounding = rounding_level(self.best.x, L, self.best.terms)
        if self.idle > 3 and self.norm <= rounding:
            if self.told_apart:
                return False, NO_MINIMISER
            return (False, OUT_OF_REACH) if finer and self.rows[0]["gradient_mapping"] > rounding else (True, "")
        if self.slow > PATIENCE and finer:  # what is asked for is finer than the numbers are: it could go on for ever
            return False, OUT_OF_REACH
        if self.messages >= max_rounds:
            return False, f"stopped at max_rounds={max_rounds}"
        return (False, f"{PATIENCE} evaluations brought nothing") if self.idle > PATIENCE else None

    def reason_to_accept(self, step: np.ndarray, L: float) -> tuple[bool, str] | None:
        """A point whose certificate holds is good, unless the model still grows; None to try one more step.

        Where there is no minimiser a Newton step takes the gradient down by a factor, and is as long as the one before.
        A step along which rounding hides the gradient says nothing.
        """
        assert self.best is not None
        x, at, length = self.best.x, self.best, float(np.linalg.norm(step))
        if self.told_apart:
            return False, NO_MINIMISER
        if getattr(self.spec.loss, "attained", False) or not length > GROWING * np.linalg.norm(x):
            return True, ""
        if self.gone:
            return False, NO_MINIMISER
        if abs(at.gradient @ step) <= 3 * length * hidden(x, L, at.terms, float(np.sum(self.spec.sizes))):
            return True, ""
        self.long += 1
        return (False, STILL_GROWS) if self.long > SECOND_LOOKS else None

    @property
    def gone(self) -> bool:
        """Is the loss all but zero, for a loss that is zero nowhere?"""
        assert self.best is not None
        below = self.best.value <= 1e-6 * self.rows[0]["objective"]
        return below and not getattr(self.spec.loss, "attained", False)

    @property
    def told_apart(self) -> bool:
        """Does the value itself say that no row is on the wrong side, and nothing hold the model back?

        A row on the wrong side, or between two classes, has a logistic loss of log 2 at least.
        """
        assert self.best is not None
        of_a_row = float(np.min(self.spec.weights / self.spec.sizes))
        free = self.objective == self.best.value and isinstance(self.spec.loss, (Logistic, Softmax))
        return self.gone and free and self.best.value < np.log(2) * of_a_row

    def reached(self, state: Any, good: bool, why: str) -> Reached:
        assert self.best is not None
        names = self.rows[0]
        columns = {name: np.array([row[name] for row in self.rows]) for name in names}
        provenance = {
            "engine": "queries", "algorithm": solver_record(self.solver), "problem": self.described,
            "rounds": self.messages, "batch_size": None, "participants": self.spec.n, "record_every": 1, "seed": None,
            "x_star": None, "dtype": "float64", "device": "cpu", "versions": dict(versions()),
        }  # fmt: skip
        kept = {name: getattr(state, name) for name in self.solver.kept}
        trace = Trace(columns, self.best.x, provenance)
        return Reached(self.best, kept, self.norm, good, self.messages, trace, [why] if why else [])


def solver_record(solver: SecondOrder) -> dict[str, Any]:
    """The name and parameters of a solver, for provenance."""
    return {"name": type(solver).__name__} | vars(solver)
