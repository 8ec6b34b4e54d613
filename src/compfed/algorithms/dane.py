r"""DANE with a regulariser, which is SONATA on a star: local problems corrected with the mean gradient.

Solves min_x sum_i p_i f_i(x) + g(x). A round has two exchanges. In the first every client sends grad f_i(x), and the server
forms the mean c. In the second a client minimises its own loss, tilted so that its gradient at x is c, and the server averages:

    z_i  ~  argmin_z f_i(z) + <c - grad f_i(x), z> + (beta/2) ||z - x||^2 + g(z)
    x+   =  x + gamma (sum_i p_i z_i - x)

    x   global model      z_i   local model      c   mean gradient at x      beta   weight of the term that holds z_i near x

The minimisation is tau proximal gradient steps of length eta, started at x. The minimiser is a fixed point for every tau. With
exact local solves the error of a quadratic is multiplied by I - gamma sum_i p_i (H_i + beta I)^-1 H, so that beta must be of the
order of the differences between the Hessians: beta = 0 diverges when they differ much. With few local steps their total
length eta tau has the same effect. The mean of sparse z_i is sparse only where all of them have their zeros.

Reference: Sun, Daneshmand, Scutari, "Distributed Optimization Based on Gradient Tracking Revisited: Enhancing Convergence Rate via
Surrogation", 2022 (arXiv 1905.02637), in its form for a star; smooth: Shamir, Srebro, Zhang,
"Communication-Efficient Distributed Optimization using an Approximate Newton-type Method", ICML 2014. Reconstruction: the
papers were not at hand, so lines carry no numbers. Deviations: tau local steps instead of exact solves, so that theorems about
exact solves do not cover it; weights p_i instead of 1/n. Mini-batches are used in the local steps only.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from compfed._utils.records import count, nonnegative, positive, record
from compfed.algorithms.base import Algorithm, Citation
from compfed.algorithms.mean_gradient import Anchor, Mean, MeanGradient


class Server(NamedTuple):
    x: Array
    c: Array  # of the current round


class Update(NamedTuple):
    z: Array


@record
class DANE(Algorithm[Server, Anchor, Mean, Update]):
    """Local problems corrected with the mean gradient, in two exchanges a round; with g it is SONATA on a star.

        z_i ~ argmin_z f_i(z) + <c - grad f_i(x), z> + (beta/2) ||z - x||^2 + g(z),   c = sum_i p_i grad f_i(x)
        x+ = x + gamma (sum_i p_i z_i - x)

    Parameters
    ----------
    eta : float
        Step size of the local proximal gradient steps, at most 1 / (L + beta).
    beta : float, default=0.0
        Weight of the term that holds local models near the global one.
    gamma : float, default=1.0
        Step of the server towards the mean of the local models.
    tau : int, default=5
        Local steps per round.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.DANE(eta=0.1, beta=0.5)
    DANE(eta=0.1, beta=0.5, gamma=1.0, tau=5)
    """

    citation = Citation(
        "Sun, Daneshmand, Scutari", 2022,
        "Distributed Optimization Based on Gradient Tracking Revisited: Enhancing Convergence Rate via Surrogation",
        "arXiv 1905.02637", reconstructed=True,
    )  # fmt: skip
    composite = True
    exact = True
    setting = "at a fixed tau; its papers solve local problems exactly"

    eta: float = positive()
    beta: float = nonnegative(default=0.0, scalar=True)
    gamma: float = positive(default=1.0)
    tau: int = count(default=5)

    state_depends_on = ()

    def init(self, x0):
        return Server(x=x0, c=jnp.zeros_like(x0)), Anchor.at(x0)

    @property
    def exchanges(self):
        return MeanGradient(), self

    def broadcast(self, g, s):
        return Mean(c=s.c)

    def client_update(self, f, g, d, c, key):
        tilt = d.c - c.gradient

        def step(z, key):
            return g.prox(z - self.eta * (f.grad(z, key) + tilt + self.beta * (z - c.x)), self.eta), None

        z, _ = jax.lax.scan(step, c.x, jax.random.split(key, self.tau))
        return Update(z=z), c, z

    def server_update(self, g, s, mean, weight):
        return s._replace(x=(1.0 - self.gamma) * s.x + self.gamma * mean.z)

    def solution(self, g, s):
        return s.x

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=b.corrected(scale), tau=b.tau)
