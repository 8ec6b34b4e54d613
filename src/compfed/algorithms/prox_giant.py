r"""Prox-GIANT: the mean of the clients' proximal Newton steps, each with its own Hessian.

Solves min_x sum_i p_i f_i(x) + g(x). A round has three exchanges. In the first every client sends grad f_i(x), and the server forms
the mean c. In the second a client takes the proximal Newton step of the mean gradient and of its own Hessian H_i at x,

    P_i = argmin_p <c, p> + p^T H_i p / 2 + g(x + p),      P = sum_i p_i P_i

and in the third it sends f_i(x) and f_i(x + t P) for t = 1, 1/2, 1/4, ... The server takes the step with the least objective:

    x+ = x + t P

    x   global model      P_i, P   direction of a client, and their mean      t   length of the step      c   mean gradient at x

With equal Hessians it is the proximal Newton method. With different ones the mean of the inverses is not the inverse of the
mean: the rate is that of a linear method, better the more alike the H_i are. Near the solution the differences between
objectives are lost in rounding. From there on t is a harmonic mean of the lengths that they decided, the last one with a
weight of one half: the best lengths end in two values in turn, whose harmonic mean is the best constant one. With t < 1
zeros of the solution are approached, and reached only in the limit. The step of a client is `inner` accelerated
proximal steps on its quadratic model, which read no rows; the minimiser is a fixed point for every number of them.

Reference: ours, after Wang, Roosta-Khorasani, Xu, Mahoney, "GIANT: Globally Improved Approximate Newton Method for Distributed
Optimization", NeurIPS 2018, which is for smooth problems; its listing was not at hand, so lines carry no numbers. Deviations:
g, by the prox in the clients' quadratic models, for which nothing is proved; H_i is formed instead of applied in conjugate gradients;
the least of the objectives on the grid of lengths instead of the first that decreases enough; weights p_i instead of 1/n.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from compfed._utils.records import count, record
from compfed.algorithms.base import Algorithm, Citation
from compfed.algorithms.mean_gradient import Anchor, Mean, MeanGradient
from compfed.algorithms.quadratic_step import quadratic_prox

ROUNDING = 1000  # predicted decreases below so many units in the last place of the objective decide nothing


class Server(NamedTuple):
    x: Array
    c: Array  # of the current round
    P: Array  # of the current round
    inverse: Array  # mean of 1 / t over the rounds that objectives decided, the last one with a weight of one half


class Direction(NamedTuple):
    P: Array


class Values(NamedTuple):
    f: Array  # at x, then at x + t P for every t


class NewtonStep:
    """The second exchange: the mean of the clients' directions."""

    def __init__(self, inner: int):
        self.inner = inner

    def broadcast(self, g, s: Server):
        return Mean(c=s.c)

    def client_update(self, f, g, d: Mean, c: Anchor, key):
        u = quadratic_prox(d.c, f.hessian(c.x), c.x, g, self.inner)
        return Direction(P=u - c.x), c, u

    def server_update(self, g, s: Server, mean: Direction, weight):
        return s._replace(P=mean.P)


@record
class ProxGIANT(Algorithm[Server, Anchor, Direction, Values]):
    """The mean of the clients' proximal Newton steps, and a search along it, in three exchanges a round.

        P_i = argmin_p <c, p> + p^T H_i p / 2 + g(x + p),   c = sum_i p_i grad f_i(x),   H_i the Hessian of f_i at x
        x+ = x + t sum_i p_i P_i,   t of 1, 1/2, 1/4, ... with the least objective

    Parameters
    ----------
    inner : int, default=100
        Accelerated proximal steps on the quadratic model of a client. They read no rows.
    lengths : int, default=8
        Lengths 1, 1/2, 1/4, ... that are tried in a round.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.ProxGIANT()
    ProxGIANT(inner=100, lengths=8)
    """

    citation = Citation(
        "Wang, Roosta-Khorasani, Xu, Mahoney", 2018,
        "GIANT: Globally Improved Approximate Newton Method for Distributed Optimization", "NeurIPS", ours=True,
    )  # fmt: skip
    composite = True
    exact = True
    setting = "its paper is about smooth problems"

    inner: int = count(default=100)
    lengths: int = count(default=8)

    state_depends_on = ()

    @property
    def exchanges(self):
        return MeanGradient(), NewtonStep(self.inner), self

    def init(self, x0):
        zero = jnp.zeros_like(x0)
        return Server(x=x0, c=zero, P=zero, inverse=jnp.ones((), x0.dtype)), Anchor.at(x0)

    def _trials(self, x, P):
        """The lengths, 0 first, and the models that they lead to."""
        t = jnp.concatenate([jnp.zeros(1, x.dtype), 0.5 ** jnp.arange(self.lengths, dtype=x.dtype)])
        return t, x + t[:, None] * P

    def broadcast(self, g, s):
        return Direction(P=s.P)

    def client_update(self, f, g, d, c, key):
        _, models = self._trials(c.x, d.P)
        return Values(f=jax.vmap(f.value)(models)), c, models[1]

    def server_update(self, g, s, mean, weight):
        t, models = self._trials(s.x, s.P)
        objectives = mean.f + jax.vmap(g)(models)
        predicted = s.c @ s.P + g(models[1]) - g(s.x)  # of t = 1, without the curvature; below 0
        visible = -predicted > ROUNDING * jnp.finfo(s.x.dtype).eps * jnp.abs(objectives[0])
        # the longest of the best; not 0, where the method would stop for ever
        best = t[1 + jnp.argmin(objectives[1:])]
        inverse = jnp.where(visible, 0.5 * (s.inverse + 1.0 / best), s.inverse)
        return s._replace(x=s.x + jnp.where(visible, best, 1.0 / inverse) * s.P, inverse=inverse)

    def solution(self, g, s):
        return s.x

    @classmethod
    def from_bounds(cls, b, scale):
        return cls()
