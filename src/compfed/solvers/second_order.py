r"""The second-order solvers ProximalNewton and ProximalBFGS, and their search: one evaluation of f over the sites per trial.

**ProximalNewton** asks for the value, the gradient, and rows and columns W of the Hessian of f at a trial point. Its step is

    u = argmin <grad f(x), u - x> + (u - x)^T H (u - x) / 2 + g(u),   u = x outside W

W holds every coordinate that is not at a kink of g, then those nearest to leaving their kink; all coordinates where g couples
them. Iterates do not depend on how rows are split over sites.

Reference: ours in this form. Relatives: Lee, Sun, Saunders, "Proximal Newton-type methods for minimizing composite
functions", SIAM J. Optimization 2014 (one machine); FedNL, Safaryan, Islamov, Qian, Richtarik, ICML 2022 (federated, no
prox); the working sets of glmnet, celer and skglm (one machine). Deviations: federated, composite and working set together.

**ProximalBFGS** asks for the value and the gradient, the messages of proximal gradient and a number. It remembers the last pairs

    s = difference of two points,   y = difference of the gradients of f there

from every evaluation, rejected trials included. The matrix B of limited-memory BFGS is made of these pairs: a diagonal and
a few vectors, so that no d x d array exists. It takes the place of H; before the first pair B is I / eta.

Reference: ours in this form. The nearest published method is Lee, Lim, Wright, "A distributed quasi-Newton algorithm for
empirical risk minimization with nonsmooth regularization", KDD 2018: L-BFGS with a proximal step over data that lies on
several machines. Other relatives: Nocedal, Wright, "Numerical Optimization", Springer 2006, section 7.2 (limited memory,
unrolled); Lee, Sun, Saunders, as above (proximal quasi-Newton). Deviations: the step is computed at the server, from the
sum of the gradients, and not shared out over the machines; the diagonal that the updates start from; pairs from rejected trials.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from compfed._utils.text import versions
from compfed.algorithms.base import Bounds, Citation
from compfed.federation.accounting import Communication
from compfed.federation.server.program import Program
from compfed.federation.server.trial import Evaluated, evaluate_request, evaluation
from compfed.federation.spec import FederatedProblem
from compfed.losses.base import ignore_overflow
from compfed.problem_spec import optimality_at
from compfed.regularisers import Regulariser
from compfed.regularisers.coordinate_form import with_cached_form
from compfed.solvers.base import FederatedSolution, SearchOptions, SecondOrder, SolverState, Start, first_state
from compfed.solvers.quadratic_model import bfgs_step, newton_step, next_working_set
from compfed.stopping import NO_MINIMISER, STILL_GROWS, Certificate, Stop, StoppingRule
from compfed.trace import Trace

WIDTH = 512  # coordinates of the working set unless given: numbers sent grow with its square, to a megabyte


@dataclass(frozen=True)
class ProximalNewton(SecondOrder):
    """Proximal Newton steps on a working set of at least `width` coordinates (512 unless given)."""

    citation = Citation(
        "Lee, Sun, Saunders", 2014, "Proximal Newton-type methods for minimizing composite functions", "SIAM J. Optimization",
        ours=True,
    )  # fmt: skip
    width: int | None = None

    @classmethod
    def from_bounds(cls, bounds: Bounds) -> ProximalNewton:
        """The solver has no step size."""
        return cls()

    def init(
        self, x0: np.ndarray, at: Evaluated | None = None, kept: Mapping[str, np.ndarray] | None = None
    ) -> SolverState:
        if at is not None and at.H is not None:
            return first_state(x0, at.W)
        d = x0.size  # a working set that is narrower than d waits for the gradient at the start
        return first_state(x0, np.arange(d if (self.width or WIDTH) >= d else 0, dtype=np.int32))

    def minimise_model(self, g: Regulariser, at: Evaluated, kept: Mapping[str, np.ndarray]) -> np.ndarray:
        return newton_step(g, at.x, at.gradient, *_hessian(at))

    def hessian_coordinates(self, g: Regulariser, at: Evaluated, x: np.ndarray) -> np.ndarray:
        H, W = _hessian(at)
        predicted = at.gradient + np.bincount(W, H @ (x - at.x)[W], minlength=x.size)  # exact on W only
        return next_working_set(g, x, predicted, self.width or WIDTH)


def _hessian(at: Evaluated) -> tuple[np.ndarray, np.ndarray]:
    """H and W; empty where no Hessian was asked for."""
    return (np.zeros((0, 0)), np.zeros(0, int)) if at.H is None or at.W is None else (at.H, at.W)


@dataclass(frozen=True)
class ProximalBFGS(SecondOrder):
    """Proximal L-BFGS steps; `eta` is the length of the first step, `memory` the number of pairs.

    `longest` bounds the change of a coefficient in one step. Sites with a disclosure policy refuse models far out, at which all
    rows are classified with certainty; early steps of BFGS would go there, and back.
    """

    citation = Citation(
        "Lee, Lim, Wright", 2018, "A distributed quasi-Newton algorithm for empirical risk minimization with nonsmooth "
        "regularization", "KDD", ours=True,
    )  # fmt: skip
    eta: float
    memory: int = 30
    longest: float = np.inf

    @classmethod
    def from_bounds(cls, bounds: Bounds) -> ProximalBFGS:
        """The first step has length 1 / L."""
        return cls(eta=1.0 / bounds.L)

    def init(
        self, x0: np.ndarray, at: Evaluated | None = None, kept: Mapping[str, np.ndarray] | None = None
    ) -> SolverState:
        missing = np.zeros((self.memory, x0.size))  # zeros stand for missing pairs, and the newest pair is the last
        return first_state(x0, kept=kept or {"S": missing, "Y": missing})

    def minimise_model(self, g: Regulariser, at: Evaluated, kept: Mapping[str, np.ndarray]) -> np.ndarray:
        return bfgs_step(g, at.x, at.gradient, kept["S"], kept["Y"], 1.0 / self.eta)

    def keep(self, s: SolverState, at_trial: Evaluated, t: float) -> Mapping[str, np.ndarray]:
        """The pairs with the new one, unless its points are equal or f is flat between them, to rounding."""
        if t < 1e-6:  # the pairs mislead: forget them
            return {name: np.zeros_like(pairs) for name, pairs in s.kept.items()}
        S, Y, norm = at_trial.x - s.at.x, at_trial.gradient - s.at.gradient, np.linalg.norm
        if 1e-14 * norm(S) * norm(Y) < S @ Y and norm(S) > 1e-12 * norm(s.at.x):
            return {name: np.concatenate([s.kept[name][1:], pair[None]]) for name, pair in (("S", S), ("Y", Y))}
        return s.kept


SOLVERS: dict[str, type[SecondOrder]] = {"ProximalNewton": ProximalNewton, "ProximalBFGS": ProximalBFGS}


# --- the search ---


def solve_by_trials(
    spec: FederatedProblem, search: SearchOptions, solver: SecondOrder, start: Start
) -> Program[FederatedSolution]:
    """Evaluate trial after trial until the gradient mapping is at most tol * scale, or nothing gets better.

    A start with an evaluation `at` is not evaluated again. Every evaluation counts as a round.
    """
    history = _History(spec, search, solver, start)
    spec, rule, at = history.spec, history.rule, start.at
    state = solver.init(np.asarray(start.x if at is None else at.x, float), at, start.kept)
    if at is not None:
        history.add(at)
        if rule.converged:
            return history.solution(state, Stop(True))
    while True:
        if at is None or not _covers(at, state.trial.W):
            request = evaluate_request(spec, state.trial)
            (sums,) = yield [request]
            (summed,) = sums
            at = evaluation(spec, state.trial, summed)
            history.cost = history.cost.then(sums.cost)
            del sums, summed  # they may be large, and the next one comes while this program waits
            history.add(at)
        converged = rule.converged
        stop = None if converged else rule.without_convergence()
        if stop is None and not converged and history.messages >= search.max_rounds:
            stop = Stop(False, f"stopped at max_rounds={search.max_rounds}")
        if stop is None:
            state = ignore_overflow(solver.update)(spec.regulariser, state, at)
            stop = rule.at_convergence(at, state.trial.x - at.x) if converged else None
        if stop is not None:
            return history.solution(state, stop)
        at = None


def _covers(at: Evaluated, W: np.ndarray | None) -> bool:
    """Whether an evaluation has the Hessian on W."""
    return W is None or not len(W) or (at.H is not None and at.W is not None and np.array_equal(at.W, W))


class _History:
    """The evaluations of a search, what they cost, and the trace of them."""

    def __init__(self, spec: FederatedProblem, search: SearchOptions, solver: SecondOrder, start: Start):
        self.spec = spec.with_regulariser(with_cached_form(spec.regulariser, spec.d))
        self.search, self.solver, self.start = search, solver, start
        self.step = start.certificate_step(spec)
        self.rule = StoppingRule(self.spec, search.tol * start.scale, self.step)
        self.described, self.began = spec.describe(), time.perf_counter()
        self.cost = Communication()
        self.rows: list[dict[str, float]] = []

    @property
    def messages(self) -> int:
        return self.cost.rounds

    @ignore_overflow
    def add(self, at: Evaluated) -> None:
        """Record an evaluation."""
        point, vector = optimality_at(self.spec.regulariser, at.x, at.value, at.gradient, self.step), 8 * at.x.size
        self.rule.observe(at, point.objective, point.norm)
        row = {"round": self.messages, "objective": point.objective, "gradient_mapping": point.norm}
        row |= {"nonzeros": np.count_nonzero(at.x), "vectors_up": self.cost.bytes_up / vector}
        row |= {"vectors_down": self.cost.bytes_down / vector, "gradients": self.messages}
        row |= {"bytes_up": self.cost.bytes_up, "bytes_down": self.cost.bytes_down}
        row |= {
            "gradient_rows": self.messages * float(np.mean(self.spec.sizes)),
            "client_proxes": 0,
            "server_proxes": 0,
        }
        self.rows.append(row | {"seconds": time.perf_counter() - self.began})

    def solution(self, state: SolverState, stop: Stop) -> FederatedSolution:
        """The best model, with its certificate and its trace."""
        at, rule = self.rule.best, self.rule
        assert at is not None
        columns = {name: np.array([row[name] for row in self.rows]) for name in self.rows[0]}
        provenance = {
            "engine": "queries", "algorithm": {"name": type(self.solver).__name__} | vars(self.solver),
            "problem": self.described, "rounds": self.messages, "batch_size": None, "participants": self.spec.n,
            "record_every": 1, "seed": None, "x_star": None, "dtype": "float64", "device": "cpu",
            "versions": dict(versions()),
        }  # fmt: skip
        certificate = Certificate(
            rule.norm, self.start.scale, self.search.tol, minimiser_exists=stop.note not in (NO_MINIMISER, STILL_GROWS),
            rounding=rule.rounding_at(at), convex=self.spec.convex,
        )  # fmt: skip
        if self.search.progress is not None:
            self.search.progress(self.messages, self.messages)
        return FederatedSolution(
            at.x, certificate, stop.converged, self.messages, self.solver, Trace(columns, at.x, provenance),
            [note for note in (self.start.refused, stop.note) if note], at, state.kept,
        )  # fmt: skip
