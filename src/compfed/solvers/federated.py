"""The minimiser over sites, with nothing to tune: steps from the sites' bounds, a certificate, and a guard."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from numbers import Real
from typing import Any

import numpy as np

from compfed.algorithms import Algorithm
from compfed.engines.grids import side_by_side
from compfed.engines.run import Progress, checked, whole
from compfed.engines.simulator import checked_tol, simulate
from compfed.errors import Divergence, InputError, StepSizeWarning
from compfed.problem.problem import Problem
from compfed.solvers import steps
from compfed.tools.records import has_leaf, with_leaf
from compfed.trace import Trace

CHECK = 10  # rounds between two looks at the certificate
SEGMENT = 500  # rounds between two looks at the step
TOGETHER = 3000  # rounds side by side, before the last ones go on alone
HALVINGS = 12  # of the step, before giving up: a factor of 4096


@dataclass(frozen=True)
class Certificate:
    """How far a model is from the minimiser, computed without knowing it."""

    gradient_mapping: float  # norm of (x - prox(x - grad f(x) / L)) L
    scale: float  # what it is compared with
    tol: float
    duality_gap: float | None = None  # F(x) - F(x*) is at most this, where a dual point is known

    @property
    def relative(self) -> float:
        """The gradient mapping as a share of `scale`."""
        return self.gradient_mapping / self.scale if self.scale > 0 else self.gradient_mapping

    @property
    def holds(self) -> bool:
        return self.relative <= self.tol


@dataclass(frozen=True)
class Minimum:
    """What `minimise` found; np.asarray(minimum) is x."""

    x: np.ndarray
    certificate: Certificate
    converged: bool
    rounds: int
    algorithm: Algorithm
    trace: Trace
    notes: list[str] = field(default_factory=list)  # what the guard did

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.x, dtype=dtype) if copy or dtype else self.x


def minimise(
    problem: Problem,
    algorithm: str | Algorithm = "auto",
    *,
    tau: int = 5,
    tol: float = 1e-12,
    max_rounds: int = 20_000,
    x0: Any = None,
    scale: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Minimum:
    """Run rounds until the gradient mapping is at most `tol` times `scale`; no step size is asked for.

    - `algorithm`: "auto", the name of a method, or an instance with steps of your own.
    - `scale`: the norm of grad f at the start of the problem, unless given.

    A step that turns out too long (the model blows up, or 500 rounds bring the objective no lower) is halved, and the
    run goes on from the best model so far; `notes` and a `StepSizeWarning` say so.

    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)
    >>> minimum = cf.minimise(problem)
    >>> minimum.converged, bool(np.allclose(minimum.x, cf.solve(problem).x, atol=1e-8))
    (True, True)
    """
    if not isinstance(problem, Problem):
        raise InputError(f"minimise needs a compfed.Problem; got {type(problem).__name__}.")
    if scale is not None and not (isinstance(scale, Real) and 0 <= scale < np.inf):
        raise InputError(f"scale={scale!r} must be a finite number >= 0.")
    max_rounds, tol = whole(max_rounds, "max_rounds", 1), checked_tol(tol)
    good = problem.start if x0 is None else problem.point(x0, "x0")  # the model to go back to
    scale = float(np.linalg.norm(problem.gradient(problem.start))) if scale is None else float(scale)
    method = _Method(problem, algorithm, whole(tau, "tau", 1), good)
    pieces: list[Trace] = []  # one for each step size that was given up
    piece: Trace | None = None  # with the present one
    spent, notes = 0, []
    while True:
        done = spent + (0 if piece is None else int(piece["round"][-1]))
        start: dict[str, Any] = {"x0": good} if piece is None else {"resume": piece}
        rounds = min(method.patience(done), max_rounds - done)
        try:
            piece = simulate(
                problem, method.algorithm, rounds, record_every=CHECK, seed=seed, tol=tol * scale, progress=progress,
                **start,
            )  # fmt: skip
            trouble = _stalled(piece, rounds)
        except Divergence as divergence:
            piece, trouble = divergence.trace, "the model blew up"
        before, done = done, spent + int(piece["round"][-1])
        certificate = Certificate(float(piece["gradient_mapping"][-1]), scale, tol)
        # a run that took no round has arrived, even where the certificate, in other precision, misses by the last bit
        arrived = certificate.holds or (done == before and not trouble)
        if arrived or done >= max_rounds or (trouble and _at_rounding_level(problem, piece)):
            break
        good = good if trouble else piece.x
        change = method.revise(trouble, good)
        if change is None:
            continue
        notes.append(f"round {done}: {change}")
        if not method.goes_on:
            break
        pieces, piece, spent = [*pieces, piece], None, done
    trace = reduce(Trace.then, [*pieces, piece])
    converged = arrived or _at_rounding_level(problem, trace)
    x = good if "diverged" in piece.provenance else trace.x
    return Minimum(x.astype(float), certificate, converged, done, method.algorithm, trace, notes)


def minimise_all(
    problems: Sequence[Problem],
    x0: np.ndarray,
    *,
    algorithm: str | Algorithm,
    tau: int,
    tol: float,
    max_rounds: int,
    scale: float,
) -> list[Minimum]:
    """`minimise` for problems that differ in the numbers of their regulariser, all from x0, side by side.

    They share their rounds: a message holds one vector per problem. Whoever does not arrive this way goes on alone.
    """
    options = {"algorithm": algorithm, "tau": tau, "tol": tol, "scale": scale}
    first = problems[0]
    if first.loss.curvature is None:  # the step follows the model, and each has its own
        return [minimise(p, x0=x0, max_rounds=max_rounds, **options) for p in problems]
    method = _Method(first, algorithm, tau, x0)
    together = min(max_rounds, TOGETHER)
    runs = [
        checked(
            p, method.algorithm, together, batch_size=None, participants=None, record_every=CHECK, seed=0, x0=x0,
            reference=None, resume=None,
        )
        for p in problems
    ]  # fmt: skip
    found = []
    for problem, trace in zip(problems, side_by_side(runs, [{}] * len(runs), tol=tol * scale), strict=True):
        certificate = Certificate(float(trace["gradient_mapping"][-1]), scale, tol)
        done = int(trace["round"][-1])
        if certificate.holds or done >= max_rounds:
            found.append(Minimum(trace.x.astype(float), certificate, certificate.holds, done, method.algorithm, trace))
            continue
        start = x0 if "diverged" in trace.provenance else trace.x
        alone = minimise(problem, x0=start, max_rounds=max_rounds - done, **options)
        found.append(replace(alone, rounds=done + alone.rounds, trace=trace.then(alone.trace)))
    return found


def _at_rounding_level(problem: Problem, trace: Trace) -> bool:
    """Is the gradient mapping as small as rounding in its terms lets it be?"""
    return bool(trace["gradient_mapping"][-1] <= problem.rounding(trace.x))


def _stalled(piece: Trace, rounds: int) -> str | None:
    """Did the last `rounds` rounds bring nothing: neither a lower objective nor a smaller gradient mapping?"""
    rows = rounds // CHECK + 1
    F, mapping = piece["objective"], piece["gradient_mapping"]
    if len(F) <= rows or F[-1] < F[-rows] - 1e-12 * abs(F[-1]) or mapping[-rows:].min() < mapping[:-rows].min():
        return None
    return f"{rounds} rounds brought the objective no lower"


class _Method:
    """The algorithm in use, and what to do when its step proves too long."""

    def __init__(self, problem: Problem, asked: str | type[Algorithm] | Algorithm, tau: int, x: np.ndarray):
        self.problem, self.asked, self.tau = problem, asked, tau
        self.halvings, self.goes_on = 0, True
        self.algorithm = self._build(x)

    def _build(self, x: np.ndarray) -> Algorithm:
        self.L = self._curvature(x)
        if isinstance(self.asked, Algorithm):
            eta = getattr(self.asked, "eta", 1.0) * 0.5**self.halvings
            return with_leaf(self.asked, "eta", eta) if self.halvings else self.asked
        cls = steps.automatic(self.problem, self.tau, x) if self.asked == "auto" else self.asked
        return steps.suggest(cls, self.problem, self.tau, 0.5**self.halvings, x)

    def _curvature(self, x: np.ndarray) -> float | None:
        return None if self.problem.loss.curvature is not None else self.problem.curvature_at(x)[0]

    def patience(self, done: int) -> int:
        """Rounds until the next look: soon, at first, where the curvature changes with the model."""
        return SEGMENT if self.L is None or done >= SEGMENT else SEGMENT // 10

    def revise(self, trouble: str | None, x: np.ndarray) -> str | None:
        """Change the algorithm if there is reason to, and say how; None for no change."""
        if trouble is None:
            L = self._curvature(x)
            if L is None or self.L is None or self.L / 1.5 < L < self.L * 1.5 or isinstance(self.asked, Algorithm):
                return None
            self.halvings = 0  # they were for the curvature of another place
            self.algorithm = self._build(x)
            return f"the curvature at the model is now {L:.3g}; new step"
        if not self.algorithm.exact or self.halvings == HALVINGS or not has_leaf(self.algorithm, "eta"):
            self.goes_on = False
            return f"{trouble}; stopped"
        self.halvings += 1
        self.algorithm = self._build(x)
        eta = self.algorithm.eta  # pyright: ignore[reportAttributeAccessIssue]  # has_leaf above
        said = f"{trouble}; step halved to eta={eta:.3g}, going on from the last good model"
        warnings.warn(f"{type(self.algorithm).__name__}: {said}.", StepSizeWarning, stacklevel=3)
        return said
