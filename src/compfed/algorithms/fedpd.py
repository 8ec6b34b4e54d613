r"""FedPD: primal-dual updates on the augmented Lagrangian of every client.

Solves min_x sum_i p_i f_i(x) (smooth only). One primal-dual update of a client around its copy x0 of the global model:

    x_i   =  argmin_u f_i(u) + <lam_i, u - x0> + ||u - x0||^2 / (2 eta_pd)
    lam_i += (x_i - x0) / eta_pd
    x0    =  x_i + eta_pd lam_i

After `updates` of them the clients send x0 and the server averages. More than one update without communication is
sound for nearly equal f_i only: on heterogeneous data the method then no longer converges to the minimiser.

    x0   global model, and a client's copy of it      x   local model      lam   dual variable of a client

The minimisation is tau gradient steps started at the client's previous x_i, eta <= 1/(L + 1/eta_pd).

Reference: Zhang, Hong, Dhople, Yin, Liu, "FedPD: A Federated Learning Framework with Adaptivity to Non-IID Data",
IEEE Transactions on Signal Processing 2021, with its Oracle I. Written from public implementations: the paper's
own listing was not at hand, so lines carry no numbers. Deviations: the paper skips communication by a random coin of
probability p; here the number of updates per communication is fixed, so that the bytes counted are those sent.
updates=1 is p = 0. Weights p_i instead of 1/n.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from compfed._utils.records import count, positive, record
from compfed.algorithms.base import Algorithm, Citation


class Global(NamedTuple):
    x0: Array


class Client(NamedTuple):
    x: Array
    lam: Array


@record
class FedPD(Algorithm[Global, Client, Global, Global]):
    """Primal-dual updates on the augmented Lagrangian of every client; for smooth problems.

        x_i = argmin_u f_i(u) + <lam_i, u - x0> + ||u - x0||^2 / (2 eta_pd)
        lam_i += (x_i - x0) / eta_pd,   x0 = x_i + eta_pd lam_i

    Parameters
    ----------
    eta : float
        Step size of the inner gradient steps, at most 1 / (L + 1/eta_pd).
    eta_pd : float
        Primal-dual step.
    tau : int, default=5
        Local steps per round.
    updates : int, default=1
        Primal-dual updates per communication.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.FedPD(eta=0.1, eta_pd=2.0)
    FedPD(eta=0.1, eta_pd=2.0, tau=5, updates=1)
    """

    citation = Citation(
        "Zhang, Hong, Dhople, Yin, Liu", 2021,
        "FedPD: A Federated Learning Framework with Adaptivity to Non-IID Data", "IEEE Transactions on Signal Processing",
    )  # fmt: skip
    composite = False
    exact = True
    setting = "from a warm start, at a fixed tau and updates = 1"

    eta: float = positive()
    eta_pd: float = positive()
    tau: int = count(default=5)
    updates: int = count(default=1)

    state_depends_on = ()

    def init(self, x0):
        return Global(x0=x0), Client(x=x0, lam=jnp.zeros_like(x0))

    def broadcast(self, g, s):
        return s

    def client_update(self, f, g, d, c, key):
        def update(carry, keys):
            x, lam, x0 = carry

            def step(u, key):
                return u - self.eta * (f.grad(u, key) + lam + (u - x0) / self.eta_pd), None

            x, _ = jax.lax.scan(step, x, keys)
            lam = lam + (x - x0) / self.eta_pd
            return (x, lam, x + self.eta_pd * lam), None

        keys = jax.random.split(key, (self.updates, self.tau))
        (x, lam, x0), _ = jax.lax.scan(update, (c.x, c.lam, d.x0), keys)
        return Global(x0=x0), Client(x=x, lam=lam), x

    def server_update(self, g, s, mean, weight):
        return mean

    def solution(self, g, s):
        return s.x0

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=b.inner_step(scale), eta_pd=b.prox_parameter(scale), tau=b.tau)
