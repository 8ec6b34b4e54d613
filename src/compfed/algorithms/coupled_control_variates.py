r"""CoupledControlVariates: the prox inside the local recursion, made exact by a second vector each way.

Solves min_x sum_i p_i f_i(x) + g(x). A client takes corrected proximal gradient steps,

    z+ = prox_{eta g}(z - eta (grad f_i(z) + c)),   c = v - S / tau,   v = sum_j p_j S_j / tau

and the server averages the z_tau with no further prox. The mean gradient v cannot be read off post-proximal points, so
clients send S beside z_tau and receive v beside x. At x* with c_i = grad f(x*) - grad f_i(x*) nothing moves. The average
of sparse points is not sparse until the clients agree.

    x   global model    c   drift correction, sum_i p_i c_i = 0    S   sum of the client's tau gradients

Reference: ours, the repair of `NaiveCoupled`, after the control variates of Karimireddy, Kale, Mohri, Reddi, Stich, Suresh,
"SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020.
Deviations: none.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from compfed._utils.records import count, positive, record
from compfed.algorithms.base import Algorithm, Citation


class Global(NamedTuple):
    x: Array
    v: Array  # mean gradient of the last round


class Client(NamedTuple):
    c: Array
    S: Array


class Update(NamedTuple):
    z: Array  # z_tau
    S: Array


@record
class CoupledControlVariates(Algorithm[Global, Client, Global, Update]):
    """The prox inside the local steps, made exact by a second vector each way.

        z+ = prox_{eta g}(z - eta (grad f_i(z) + c)),   c = v - S / tau,   v = sum_j p_j S_j / tau

    Parameters
    ----------
    eta : float
        Local step size.
    tau : int, default=5
        Local steps per round.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.CoupledControlVariates(eta=0.1)
    CoupledControlVariates(eta=0.1, tau=5)
    """

    citation = Citation(
        "Karimireddy, Kale, Mohri, Reddi, Stich, Suresh", 2020,
        "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", "ICML", ours=True,
    )  # fmt: skip
    composite = True
    exact = True

    eta: float = positive()
    tau: int = count(default=5)

    state_depends_on = ()

    def init(self, x0):
        zero = jnp.zeros_like(x0)
        return Global(x=x0, v=zero), Client(c=zero, S=zero)

    def broadcast(self, g, s):
        return s

    def client_update(self, f, g, d, c, key):
        def step(carry, key):
            z, S = carry
            q = f.grad(z, key)
            return (g.prox(z - self.eta * (q + c.c), self.eta), S + q), None

        (z, S), _ = jax.lax.scan(step, (d.x, jnp.zeros_like(d.x)), jax.random.split(key, self.tau))
        return Update(z=z, S=S), Client(c=c.c, S=S), z

    def server_update(self, g, s, mean, weight):
        return Global(x=mean.z, v=mean.S / self.tau)

    def finish_round(self, g, d, c):
        return c._replace(c=d.v - c.S / self.tau)

    def solution(self, g, s):
        return s.x

    def correction(self, s, c):
        return c.c

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=b.corrected(scale), tau=b.tau)
