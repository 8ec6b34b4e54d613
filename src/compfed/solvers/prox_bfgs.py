r"""ProximalBFGS: quasi-Newton steps at the server. Its messages are those of proximal gradient, and the value of f.

The server asks for the value and the gradient of f at a trial point. It remembers the last pairs

    s = difference of two points,   y = difference of the gradients of f there

from every evaluation, rejected trials included. The matrix B of limited-memory BFGS is made of these pairs: a diagonal and
a few vectors, so that no d x d array exists. Then, as in ProximalNewton,

    u = argmin <grad f(x), u - x> + (u - x)^T B (u - x) / 2 + g(u),   trial = x + t (u - x)

with t halved while F(trial) > F(x) + t D / 10^4. Before the first pair B is I / eta.

Reference: ours in this form. The nearest published method is Lee, Lim, Wright, "A distributed quasi-Newton algorithm for
empirical risk minimization with nonsmooth regularization", KDD 2018: L-BFGS with a proximal step over data that lies on
several machines. Other relatives: Nocedal, Wright, "Numerical Optimization", Springer 2006, section 7.2 (limited memory,
unrolled); Lee, Sun, Saunders, "Proximal Newton-type methods for minimizing composite functions", SIAM J. Optimization 2014
(proximal quasi-Newton). Deviations: the step is computed at the server, from the sum of the gradients, and not shared out
over the machines; the diagonal that the updates start from; pairs from rejected trials.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    S: np.ndarray  # (memory, d), the newest pair last; zeros stand for missing pairs
    Y: np.ndarray
    trial: np.ndarray
    t: float
    D: float


@dataclass(frozen=True)
class ProximalBFGS:
    """Proximal L-BFGS steps; `eta` is the length of the first step, `memory` the number of pairs."""

    citation: ClassVar[Citation] = Citation(
        authors="Lee, Lim, Wright",
        year=2018,
        title="A distributed quasi-Newton algorithm for empirical risk minimization with nonsmooth regularization",
        where="KDD",
        ours=True,
    )
    eta: float
    memory: int = 30

    @classmethod
    def from_bounds(cls, bounds: Bounds) -> ProximalBFGS:
        """The first step has length 1 / L."""
        return cls(eta=1.0 / bounds.L)

    def init(self, x0: np.ndarray, at: Evaluation | None = None, kept: Mapping[str, np.ndarray] | None = None) -> State:
        """The state before the first trial, which is x0; with the pairs that another search kept."""
        none = np.zeros((self.memory, x0.size))
        pairs = kept or {"S": none, "Y": none}
        return State(Point(x0, OUTSIDE_DOMAIN, np.zeros_like(x0)), S=pairs["S"], Y=pairs["Y"], trial=x0, t=1.0, D=0.0)

    def kept(self, s: State) -> dict[str, np.ndarray]:
        """The part of the state that does not depend on g: the pairs."""
        return {"S": s.S, "Y": s.Y}

    def trial(self, s: State) -> Trial:
        """Where to evaluate f next."""
        return Trial(s.trial, None)

    def update(self, g: Regulariser, s: State, at_trial: Evaluation) -> State:
        """Accept or reject the trial, remember its pair, and propose the next one."""
        new = Point(s.trial, at_trial.value + penalty_value(g, s.trial), at_trial.gradient)
        accepted = sufficient_decrease(new.F, s.at.F, s.t * s.D)
        S, Y = with_pair(s.S, s.Y, new, s.at)
        at, t = (new, 1.0) if accepted else (s.at, s.t / 2)
        if t < 1e-6:  # the pairs mislead: forget them
            S, Y = np.zeros_like(S), np.zeros_like(Y)
        u = bfgs_step(g, at.x, at.gradient, S, Y, 1.0 / self.eta)
        D = float(at.gradient @ (u - at.x) + penalty_value(g, u) - penalty_value(g, at.x))
        return State(at, S, Y, u if t == 1.0 else at.x + t * (u - at.x), t, D)


def with_pair(S: np.ndarray, Y: np.ndarray, new: Point, old: Point) -> tuple[np.ndarray, np.ndarray]:
    """The pairs and the new one, unless its points are equal or f is flat between them, to rounding."""
    s, y = new.x - old.x, new.gradient - old.gradient
    norm = np.linalg.norm
    if s @ y > 1e-14 * norm(s) * norm(y) and norm(s) > 1e-12 * norm(old.x):
        return np.concatenate([S[1:], s[None]]), np.concatenate([Y[1:], y[None]])
    return S, Y
