r"""ProximalNewton: exact second-order steps on a working set of coordinates. One evaluation per site and message.

The server asks for the value, the gradient, and rows and columns W of the Hessian of f at a trial point. It accepts the
trial or not, and proposes the next one:

    u = argmin <grad f(x), u - x> + (u - x)^T H (u - x) / 2 + g(u),   u = x outside W
    trial = x + t (u - x),   t = 1 after an acceptance, halved while F(trial) > F(x) + t D / 10^4
    D = <grad f(x), u - x> + g(u) - g(x)   (how much lower a linear model hopes to be)

W holds every coordinate at no kink of g, then those nearest to leaving theirs; everything where g couples all
coordinates. Iterates do not depend on how rows are split over sites.

Reference: ours in this form. Relatives: Lee, Sun, Saunders, "Proximal Newton-type methods for minimizing composite
functions", SIAM J. Optimization 2014 (one machine); FedNL, Safaryan, Islamov, Qian, Richtarik, ICML 2022 (federated, no
prox); the working sets of glmnet, celer and skglm (one machine). Deviations: federated, composite and working set together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from compfed.algorithms.base import Bounds, Citation
from compfed.federation.server.evaluation import Evaluation, Trial
from compfed.regularisers import Regulariser
from compfed.solvers.quadratic_model import (
    OUTSIDE_DOMAIN,
    newton_step,
    next_working_set,
    penalty_value,
    predicted_gradient,
    sufficient_decrease,
)

WIDTH = 512  # coordinates of the working set unless given: numbers sent grow with its square, to a megabyte


class Point(NamedTuple):
    """An accepted model, and f there."""

    x: np.ndarray
    F: float
    gradient: np.ndarray
    H: np.ndarray  # rows and columns W of the Hessian
    W: np.ndarray


class State(NamedTuple):
    at: Point
    trial: np.ndarray
    W: np.ndarray  # coordinates to ask about at the trial
    t: float
    D: float


@dataclass(frozen=True)
class ProximalNewton:
    """`width`: least number of coordinates in the working set, all of a model that has no more; 512 unless given."""

    citation: ClassVar[Citation] = Citation(
        "Lee, Sun, Saunders", 2014, "Proximal Newton-type methods for minimizing composite functions", "SIAM J. Optimization",
        ours=True,
    )  # fmt: skip
    kept: ClassVar[tuple[str, ...]] = ()  # fields of the state that stay true when only g changes
    needs_hessian: ClassVar[bool] = True

    width: int | None = None

    @classmethod
    def from_bounds(cls, bounds: Bounds) -> ProximalNewton:
        return cls()

    def init(self, x0: np.ndarray, known: Evaluation | None = None) -> State:
        w = min(self.width or WIDTH, x0.size)
        W = np.arange(w if w == x0.size else 0, dtype=np.int32)  # of fewer, W waits for the gradient at the start
        if known is not None and known.H is not None and known.W is not None:
            W = known.W
        return State(
            Point(x0, OUTSIDE_DOMAIN, np.zeros_like(x0), np.zeros((len(W), len(W))), W), trial=x0, W=W, t=1.0, D=0.0
        )

    def trial(self, s: State) -> Trial:
        return Trial(s.trial, s.W)

    def update(self, g: Regulariser, s: State, at_trial: Evaluation) -> State:
        H = np.zeros((len(s.W), len(s.W))) if at_trial.H is None else at_trial.H
        new = Point(s.trial, at_trial.value + penalty_value(g, s.trial), at_trial.gradient, H, s.W)
        accepted = sufficient_decrease(new.F, s.at.F, s.t * s.D)
        at, t = (new, 1.0) if accepted else (s.at, s.t / 2)
        u = newton_step(g, at.x, at.gradient, at.H, at.W)
        D = float(at.gradient @ (u - at.x) + penalty_value(g, u) - penalty_value(g, at.x))
        trial = u if t == 1.0 else at.x + t * (u - at.x)
        if not accepted:
            return State(at, trial, s.W, t, D)
        gradient = predicted_gradient(at.gradient, at.H, at.W, trial - at.x)
        return State(at, trial, next_working_set(g, trial, gradient, self.width or WIDTH), t, D)

    def with_width(self, width: int) -> ProximalNewton:
        return self if self.width is not None else replace(self, width=width)
