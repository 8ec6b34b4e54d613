r"""ProximalBFGS: quasi-Newton steps at the server; on the wire it is proximal gradient, and one number more.

The server asks for the value and the gradient of f at a trial point. It remembers the last pairs

    s = difference of two points,   y = difference of the gradients of f there

from every evaluation, refused trials included, and makes of them the matrix B of limited-memory BFGS, a diagonal and a
few vectors, so that no d x d array exists. Then, as in ProximalNewton,

    u = argmin <grad f(x), u - x> + (u - x)^T B (u - x) / 2 + g(u),   trial = x + t (u - x)

with t halved while F(trial) > F(x) + t D / 10^4. Before the first pair B is I / eta.

Reference: ours in this form. The nearest published method is Lee, Lim, Wright, "A distributed quasi-Newton algorithm for
empirical risk minimization with nonsmooth regularization", KDD 2018: L-BFGS with a proximal step over data that lies on
several machines. Other relatives: Nocedal, Wright, "Numerical Optimization", Springer 2006, section 7.2 (limited memory,
unrolled); Lee, Sun, Saunders, "Proximal Newton-type methods for minimizing composite functions", SIAM J. Optimization 2014
(proximal quasi-Newton). Deviations: the step is computed at the server, from the sum of the gradients, and not shared out
over the machines; the diagonal that the updates start from; pairs from refused trials.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from compfed.algorithms.base import Bounds, Citation
from compfed.federation.server.evaluation import Evaluation, Trial
from compfed.regularisers import Regulariser
from compfed.solvers.quadratic_model import OUTSIDE_DOMAIN, bfgs_step, penalty_value, sufficient_decrease


class Point(NamedTuple):
    """An accepted model, and f there."""

    x: np.ndarray
    F: float
    gradient: np.ndarray


class State(NamedTuple):
    at: Point
    S: np.ndarray  # (memory, d), the newest pair last; zero where there is none yet
    Y: np.ndarray
    trial: np.ndarray
    t: float
    D: float


@dataclass(frozen=True)
class ProximalBFGS:
    """`eta`: length of the first step; `memory`: pairs that are remembered."""

    citation: ClassVar[Citation] = Citation(
        authors="Lee, Lim, Wright",
        year=2018,
        title="A distributed quasi-Newton algorithm for empirical risk minimization with nonsmooth regularization",
        where="KDD",
        ours=True,
    )
    kept: ClassVar[tuple[str, ...]] = ("S", "Y")  # fields of the state that stay true when only g changes
    needs_hessian: ClassVar[bool] = False

    eta: float
    memory: int = 30

    @classmethod
    def from_bounds(cls, bounds: Bounds) -> ProximalBFGS:
        return cls(eta=1.0 / bounds.L)

    def init(self, x0: np.ndarray, known: Evaluation | None = None) -> State:
        none = np.zeros((self.memory, x0.size))
        return State(Point(x0, OUTSIDE_DOMAIN, np.zeros_like(x0)), S=none, Y=none, trial=x0, t=1.0, D=0.0)

    def trial(self, s: State) -> Trial:
        return Trial(s.trial, None)

    def update(self, g: Regulariser, s: State, at_trial: Evaluation) -> State:
        new = Point(s.trial, at_trial.value + penalty_value(g, s.trial), at_trial.gradient)
        accepted = sufficient_decrease(new.F, s.at.F, s.t * s.D)
        S, Y = with_pair(s.S, s.Y, new, s.at)
        at, t = (new, 1.0) if accepted else (s.at, s.t / 2)
        if t < 1e-6:  # the pairs mislead: begin anew
            S, Y = np.zeros_like(S), np.zeros_like(Y)
        u = bfgs_step(g, at.x, at.gradient, S, Y, 1.0 / self.eta)
        D = float(at.gradient @ (u - at.x) + penalty_value(g, u) - penalty_value(g, at.x))
        return State(at, S, Y, u if t == 1.0 else at.x + t * (u - at.x), t, D)


def with_pair(S: np.ndarray, Y: np.ndarray, new: Point, old: Point) -> tuple[np.ndarray, np.ndarray]:
    """The pairs with one more, if its points are apart and f curves upwards between them, both to more than rounding."""
    s, y = new.x - old.x, new.gradient - old.gradient
    norm = np.linalg.norm
    if s @ y > 1e-14 * norm(s) * norm(y) and norm(s) > 1e-12 * norm(old.x):
        return np.concatenate([S[1:], s[None]]), np.concatenate([Y[1:], y[None]])
    return S, Y
