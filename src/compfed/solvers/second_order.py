"""A search whose rounds are plain questions: value, gradient and curvature of f at a point.

The second-order methods of the registry only evaluate f where they are told. Here they run on arrays of NumPy, over any
federation: nothing is compiled, the working set is as wide as the model needs, and the certificate of a point comes with
its evaluation. In the engines the same methods are compiled, with a working set of fixed width.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from compfed._utils.records import describe
from compfed._utils.text import versions
from compfed.algorithms import Algorithm
from compfed.federation.queries import Curvature, ValueAndGradient
from compfed.federation.server.program import Program, Request
from compfed.federation.server.rounds import Evaluation
from compfed.federation.spec import ProblemSpec
from compfed.losses import Logistic, Softmax
from compfed.losses.base import unwarned
from compfed.problem.triangle import upper
from compfed.problem_spec import at_point
from compfed.regularisers.coordinate_form import remembering
from compfed.solvers.certificate import OUT_OF_REACH, hidden, rounding_level
from compfed.trace import Trace

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


class Seen(NamedTuple):
    """What the sites say of f at x: sums over all of them, weighted."""

    x: np.ndarray
    at: Evaluation
    W: np.ndarray | None = None  # where the curvature is known
    H: np.ndarray | None = None

    def without_curvature(self) -> Seen:
        return self._replace(W=None, H=None)


@dataclass(frozen=True)
class Reached:
    """Where a search ended."""

    seen: Seen
    kept: dict[str, np.ndarray]  # of the method's memory, what is true of f whatever g is
    mapping: float
    good: bool  # does the certificate hold, or is it at the level of rounding?
    messages: int
    trace: Trace
    notes: list[str] = field(default_factory=list)


def questions_at(spec: ProblemSpec, x: np.ndarray, W: np.ndarray | None) -> tuple[Any, ...]:
    """What to ask at a point: value and gradient, and the curvature on W unless that is empty."""
    asked: tuple[Any, ...] = (ValueAndGradient(spec.objective, x[None]),)
    return asked if W is None or not len(W) else (*asked, Curvature(spec.objective, x, W))


@unwarned
def read(spec: ProblemSpec, x: np.ndarray, W: np.ndarray | None, answers: Any) -> Seen:
    """The answers to `questions_at`, summed in the order of the sites."""
    p = spec.weights
    said = [answer[0] for answer in answers]
    at = Evaluation(
        value=float(p @ [a.value[0] for a in said]),
        gradient=p @ np.array([a.gradient[0] for a in said]),
        terms=float(p @ [a.terms[0] for a in said]),
        L=None,
        L_max=None,
    )
    if W is None or len(answers[0]) == 1:
        empty = np.zeros((0, 0))
        return Seen(x, at, W, empty if W is not None and not len(W) else None)
    triangle = sum(w * answer[1].triangle for w, answer in zip(p, answers, strict=True))
    return Seen(x, at, W, spec.loss.model_matrix(triangle, W) + float(spec.loss.ridge) * np.eye(len(W)))


def asking(
    spec: ProblemSpec,
    algorithm: Algorithm,
    start: Seen | np.ndarray,
    *,
    tol: float,
    step: float,
    max_rounds: int,
    kept: dict[str, np.ndarray] | None = None,
) -> Program[Reached]:
    """Trial after trial until the gradient mapping is at most `tol`, or nothing gets better.

    `start` is a point, or what the sites have already said of one; `kept` is the memory of a search with another g.
    """
    described = spec.describe()
    spec = spec.with_regulariser(remembering(spec.regulariser, spec.d))
    g, seen = spec.regulariser, start if isinstance(start, Seen) else None
    x0: Any = np.asarray(start if seen is None else seen.x, float)
    state: Any = algorithm.init(x0)[0]._replace(**(kept or {}))
    if seen is not None and seen.H is not None and hasattr(state, "W"):
        state = state._replace(W=seen.W)
    log, norm = _Log(spec, algorithm, described), np.inf
    if seen is not None:
        norm = log.add(seen, step)
        if norm <= tol:
            return log.reached(state, True, "")
    while True:
        down = algorithm.broadcast(g, state)
        W = getattr(down, "W", None)
        if seen is None or not _covers(seen, W):
            (answers,) = yield [Request(questions_at(spec, down.x, W))]
            seen = read(spec, down.x, W, answers)
            del answers  # they may be large, and the next ones come while this talk waits
            log.message(down.x.size, 0 if W is None else len(W))
            norm = log.add(seen, step)
        end = log.reason_to_end(max_rounds, 1.0 / step, tol) if norm > tol or np.isnan(norm) else None
        if end is not None:
            return log.reached(state, *end)
        state = _after(algorithm, g, state, seen)
        if norm <= tol:
            log.best, log.norm = seen, norm  # whatever rounding makes of objectives whose terms cancel
            verdict = log.judged(state.trial - seen.x, 1.0 / step)
            if verdict is not None:
                return log.reached(state, *verdict)
        seen = None


@unwarned
def _after(algorithm: Algorithm, g: Any, state: Any, seen: Seen) -> Any:
    """The server's step on what the sites said."""
    curved = np.empty(0) if seen.H is None else upper(seen.H)
    return algorithm.server_update(g, state, _Up(seen.at.value, seen.at.gradient, curved), np.ones(()))  # pyright: ignore[reportArgumentType]  # arrays of NumPy


class _Up(NamedTuple):
    value: float
    gradient: np.ndarray
    H: Any


def _covers(seen: Seen, W: np.ndarray | None) -> bool:
    """Is everything known that a method asks for?"""
    return W is None or not len(W) or (seen.H is not None and seen.W is not None and np.array_equal(seen.W, W))


class _Log:
    """Every evaluation of a search, and the best of them."""

    def __init__(self, spec: ProblemSpec, algorithm: Algorithm, described: dict[str, Any]):
        self.spec, self.algorithm, self.described, self.began = spec, algorithm, described, time.perf_counter()
        self.messages = self.idle = self.long = 0
        self.up = self.down = 0.0  # bytes
        self.rows: list[dict[str, float]] = []
        self.best: Seen | None = None
        self.objective = self.norm = np.inf  # of the best
        self.mark = np.inf  # the norm when something was last gained
        self.closest, self.slow = np.inf, 0  # the norm when it last fell by a tenth, and evaluations since

    def message(self, d: int, w: int) -> None:
        self.messages += 1
        self.down += 8 * d + (8 * d + 4 * w if w else 0)  # a question about curvature has its own copy of x
        self.up += 8 * (d + 2 + self.spec.loss.model_numbers(w))

    @unwarned
    def add(self, seen: Seen, step: float) -> float:
        """Note an evaluation; the norm of its gradient mapping."""
        x, g = seen.x, self.spec.regulariser
        point = at_point(g, x, seen.at.value, seen.at.gradient, step)
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
        finer = hidden(self.best.x, L, self.best.at.terms, float(np.sum(self.spec.sizes))) > tol
        rounding = rounding_level(self.best.x, L, self.best.at.terms)
        if self.idle > 3 and self.norm <= rounding:
            if self.told_apart:
                return False, NO_MINIMISER
            return (False, OUT_OF_REACH) if finer and self.rows[0]["gradient_mapping"] > rounding else (True, "")
        if self.slow > PATIENCE and finer:  # what is asked for is finer than the numbers are: it could go on for ever
            return False, OUT_OF_REACH
        if self.messages >= max_rounds:
            return False, f"stopped at max_rounds={max_rounds}"
        return (False, f"{PATIENCE} evaluations brought nothing") if self.idle > PATIENCE else None

    def judged(self, step: np.ndarray, L: float) -> tuple[bool, str] | None:
        """A point whose certificate holds is good, unless the model still grows; None to look again after this step.

        Where there is no minimiser a Newton step takes the gradient down by a factor, and is as long as the one before.
        A step along which rounding hides the gradient says nothing.
        """
        assert self.best is not None
        x, at, length = self.best.x, self.best.at, float(np.linalg.norm(step))
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
        below = self.best.at.value <= 1e-6 * self.rows[0]["objective"]
        return below and not getattr(self.spec.loss, "attained", False)

    @property
    def told_apart(self) -> bool:
        """Does the value itself say that no row is on the wrong side, and nothing hold the model back?

        A row on the wrong side, or between two classes, has a logistic loss of log 2 at least.
        """
        assert self.best is not None
        of_a_row = float(np.min(self.spec.weights / self.spec.sizes))
        free = self.objective == self.best.at.value and isinstance(self.spec.loss, (Logistic, Softmax))
        return self.gone and free and self.best.at.value < np.log(2) * of_a_row

    def reached(self, state: Any, good: bool, why: str) -> Reached:
        assert self.best is not None
        names = self.rows[0]
        columns = {name: np.array([row[name] for row in self.rows]) for name in names}
        provenance = {
            "engine": "questions", "algorithm": describe(self.algorithm), "problem": self.described,
            "rounds": self.messages, "batch_size": None, "participants": self.spec.n, "record_every": 1, "seed": None,
            "x_star": None, "dtype": "float64", "device": "cpu", "versions": dict(versions()),
        }  # fmt: skip
        kept = {name: getattr(state, name) for name in self.algorithm.true_of_f}
        trace = Trace(columns, self.best.x, provenance)
        return Reached(self.best, kept, self.norm, good, self.messages, trace, [why] if why else [])
