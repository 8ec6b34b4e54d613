r"""FedDyn: a linear term in every local loss, which aligns the local minimisers with the global one.

Solves min_x sum_i p_i f_i(x) (smooth only). A participant minimises and moves its linear term; the server keeps the sum of
these terms and corrects the mean of the local models with it:

    z_i  ~  argmin_z f_i(z) - <q_i, z> + (alpha/2) ||z - x||^2,    q_i <- q_i - alpha (z_i - x)
    h    <-  h - alpha sum_S p_i (z_i - x),     x <- mean_S z_i - h / alpha

    x   global model      z_i   local model      q_i   linear term of a client, grad f_i at its model if the solve is exact
    h   sum_i p_i q_i     S   the participants, mean_S their weighted mean

The minimisation is tau gradient steps started at x, eta <= 1/(L + alpha). With all clients and exact local solves the models
are those of FedPD with eta_pd = 1/alpha, and of FedADMM with rho = alpha, whose dual variable is -q_i. With a few steps they are
not: those two start at the client's previous model.

Reference: Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, "Federated Learning Based on Dynamic Regularization", ICLR 2021.
Written from the authors' code, where q_i / alpha is kept, so lines carry no numbers. Deviations: tau steps instead of
epochs; weights p_i instead of 1/n: mean_S weighs the participants by p_i.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from compfed._utils.records import count, positive, record
from compfed.algorithms.base import Algorithm, Citation


class Server(NamedTuple):
    x: Array
    h: Array  # sum_i p_i q_i


class Client(NamedTuple):
    q: Array


class Broadcast(NamedTuple):
    x: Array


class Update(NamedTuple):
    z: Array


@record
class FedDyn(Algorithm[Server, Client, Broadcast, Update]):
    """A linear term in every local loss aligns the local minimisers with the global one; for smooth problems.

        z_i ~ argmin_z f_i(z) - <q_i, z> + (alpha/2) ||z - x||^2,   q_i -= alpha (z_i - x)
        h -= alpha sum_S p_i (z_i - x),   x = mean_S z_i - h / alpha

    Parameters
    ----------
    eta : float
        Step size of the local gradient steps, at most 1 / (L + alpha).
    alpha : float
        Weight of the quadratic term.
    tau : int, default=5
        Local steps per round.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.FedDyn(eta=0.1, alpha=0.5)
    FedDyn(eta=0.1, alpha=0.5, tau=5)
    """

    citation = Citation(
        "Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama", 2021,
        "Federated Learning Based on Dynamic Regularization", "ICLR",
    )  # fmt: skip
    composite = False
    exact = True
    setting = "at a fixed tau"
    exact_sampled = True
    sampling = "observed"
    schemes = ("self-normalised",)  # x is the mean of the participants' models: with other weights it would not be one

    eta: float = positive()
    alpha: float = positive()
    tau: int = count(default=5)

    state_depends_on = ()

    def init(self, x0):
        zero = jnp.zeros_like(x0)
        return Server(x=x0, h=zero), Client(q=zero)

    def broadcast(self, g, s):
        return Broadcast(x=s.x)

    def client_update(self, f, g, d, c, key):
        def step(z, key):
            return z - self.eta * (f.grad(z, key) - c.q + self.alpha * (z - d.x)), None

        z, _ = jax.lax.scan(step, d.x, jax.random.split(key, self.tau))
        return Update(z=z), Client(q=c.q - self.alpha * (z - d.x)), z

    def server_update(self, g, s, mean, weight):
        # absent clients keep their q_i: sum_S p_i (z_i - x) = weight * (mean - x)
        h = s.h - self.alpha * weight * (mean.z - s.x)
        return Server(x=mean.z - h / self.alpha, h=h)

    def solution(self, g, s):
        return s.x

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=b.inner_step(scale), alpha=1.0 / b.prox_parameter(scale), tau=b.tau)
