r"""ProximalNewton: the exact second-order step, on a working set of coordinates. One full evaluation per client and round.

The server sends a trial point and the coordinates W it wants to know the curvature of; a client answers the value, the
gradient, and rows and columns W of the Hessian of its f_i there. From their means the server accepts the trial or not,
and proposes the next one:

    u = argmin <grad f(x), u - x> + (u - x)^T H (u - x) / 2 + g(u),   u = x outside W
    trial = x + t (u - x),   t = 1 after an acceptance, halved while F(trial) > F(x) + t D / 10^4
    D = <grad f(x), u - x> + g(u) - g(x)   (how much lower a linear model hopes to be)

W holds every coordinate at no kink of g, then those nearest to leaving theirs; everything where g couples all
coordinates. Clients remember nothing, and iterates do not depend on how rows are split over sites.

Reference: ours in this form. Relatives: Lee, Sun, Saunders, "Proximal Newton-type methods for minimizing composite
functions", SIAM J. Optimization 2014 (one machine); FedNL, Safaryan, Islamov, Qian, Richtarik, ICML 2022 (federated, no
prox); the working sets of glmnet, celer and skglm (one machine). Deviations: federated, composite and working set together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jax import Array

from compfed._utils.array_namespace import is_jax, namespace
from compfed._utils.records import count, optional, record
from compfed.algorithms.base import Algorithm, Citation
from compfed.problem.model_step import FAR, descends, either, foreseen, next_working_set, on_working_set, value_of
from compfed.problem.triangle import square, upper
from compfed.regularisers.coordinate_form import coordinate_form

WIDTH = 512  # numbers sent grow with its square: a megabyte


class Point(NamedTuple):
    """What is known of an accepted model."""

    x: Array
    F: Array
    gradient: Array
    H: Array  # rows and columns W of the Hessian
    W: Array


class Server(NamedTuple):
    at: Point
    trial: Array
    W: Array  # what to ask about at the trial
    t: Array
    D: Array


class Broadcast(NamedTuple):
    x: Array
    W: Array


class Update(NamedTuple):
    value: Array
    gradient: Array
    H: Array  # its upper triangle


@record
class ProximalNewton(Algorithm[Server, None, Broadcast, Update]):
    """`width`: coordinates in the working set, all of a model that has no more; 512 unless given."""

    citation = Citation(
        "Lee, Sun, Saunders", 2014, "Proximal Newton-type methods for minimizing composite functions", "SIAM J. Optimization",
        ours=True,
    )  # fmt: skip
    composite = True
    exact = True
    by_questions = True
    scalars = ("value", "H")

    width: int | None = optional(count(), default=None)

    state_depends_on = ("width",)

    def init(self, x0):
        xp, zero = namespace(x0), namespace(x0).zeros((), x0.dtype)
        w = min(self.width or WIDTH, x0.size)
        # the first question is about the start; where shapes are free, W waits for the gradient there
        W = xp.arange(w if is_jax(x0) or w == x0.size else 0, dtype=np.int32)
        nothing = Point(x0, zero + FAR, xp.zeros_like(x0), xp.zeros((len(W), len(W)), x0.dtype), W)
        return Server(at=nothing, trial=x0, W=W, t=zero + 1.0, D=zero), None

    def broadcast(self, g, s):
        return Broadcast(x=s.trial, W=s.W)

    def client_update(self, f, g, d, c, key):
        return Update(f.value(d.x), f.full_grad(d.x), upper(f.model_hessian(d.x, d.W))), c, d.x

    def server_update(self, g, s, mean, share):
        new = Point(s.trial, mean.value + value_of(g, s.trial), mean.gradient, square(mean.H, len(s.W)), s.W)
        accepted = descends(new.F, s.at.F, s.t * s.D)
        at = either(accepted, new, s.at)
        t = either(accepted, s.t * 0 + 1.0, s.t / 2)
        u = on_working_set(g, at.x, at.gradient, at.H, at.W)
        D = at.gradient @ (u - at.x) + value_of(g, u) - value_of(g, at.x)
        trial = either(t == 1.0, u, at.x + t * (u - at.x))
        gradient = foreseen(at.gradient, at.H, at.W, trial - at.x)
        W = either(accepted, next_working_set(g, trial, gradient, self.width or WIDTH), s.W)
        return Server(at, trial, W, t, D)

    def solution(self, g, s):
        return s.at.x

    @classmethod
    def from_bounds(cls, b, scale):
        return cls()

    def bind(self, problem, participants):
        form = coordinate_form(problem.regulariser, problem.d)
        whole = form is None or not form.separable  # in a program a group cannot be taken as a whole
        return replace(super().bind(problem, participants), width=problem.d if whole else self.width or WIDTH)
