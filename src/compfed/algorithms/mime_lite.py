r"""MimeLite: Mime without the correction of local gradients.

Solves min_x sum_i p_i f_i(x) (smooth only). A client takes tau steps with the momentum m frozen,

    y+ = y - eta ((1 - beta) G_i(y) + beta m)

and also sends its full gradient at x, which only feeds the momentum: m+ = (1 - beta) c + beta m, c the mean of these
gradients. One exchange per round; but nothing corrects the drift of clients, so a floor remains when f_i differ.
With beta = 0 it is FedAvg.

    x   global model      y   local model      m   momentum      c   mean gradient at x

Reference: Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh, "Mime: Mimicking Centralized Stochastic Algorithms
in Federated Learning", 2020 (arXiv 2008.03606), with momentum SGD as base method. Written from public code: the
paper's own listing was not at hand, so lines carry no numbers. Deviations: a server step eta_g; clients of unequal weight
are drawn in proportion to it.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from compfed._utils.records import count, nonnegative, positive, record
from compfed.algorithms.base import Algorithm, Citation


class Global(NamedTuple):
    x: Array
    m: Array


class Update(NamedTuple):
    delta: Array  # y_tau - x
    gradient: Array  # grad f_i(x) over all rows


@record
class MimeLite(Algorithm[Global, None, Global, Update]):
    citation = Citation(
        authors="Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh",
        year=2020,
        title="Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning",
        where="arXiv 2008.03606",
    )
    composite = False
    exact = False
    sampling = "observed"
    schemes = ("proportional", "uniform", "self-normalised")

    eta: float = positive()
    eta_g: float = positive(default=1.0)
    tau: int = count(default=5)
    beta: float = nonnegative(default=0.9)

    state_depends_on = ()

    def init(self, x0):
        return Global(x=x0, m=jnp.zeros_like(x0)), None

    def broadcast(self, g, s):
        return s

    def client_update(self, f, g, d, c, key):
        def step(y, key):
            return y - self.eta * ((1.0 - self.beta) * f.grad(y, key) + self.beta * d.m), None

        y, _ = jax.lax.scan(step, d.x, jax.random.split(key, self.tau))
        return Update(delta=y - d.x, gradient=f.full_grad(d.x)), c, y

    def server_update(self, g, s, mean, weight):
        m = (1.0 - self.beta) * mean.gradient + self.beta * s.m
        return Global(x=s.x + self.eta_g * mean.delta, m=m)

    def solution(self, g, s):
        return s.x

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=scale / (b.L_max * b.tau), tau=b.tau)
