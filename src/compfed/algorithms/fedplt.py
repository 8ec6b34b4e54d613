r"""FedPLT: Peaceman-Rachford splitting with a fixed number of local gradient steps in place of the exact prox.

Solves min_x sum_i p_i f_i(x) + g(x), f_i strongly convex. In a round

    y = prox_{rho g}(sum_i p_i z_i)                                                    server
    x+ ~ argmin_w f_i(w) + ||w - v||^2 / (2 rho),   v = 2 y - z,   z+ = z + 2 (x+ - y)   participants

where ~ is tau steps of w <- w - eta (grad f_i(w) + (w - v) / rho) from the client's last x. That warm start makes the
limit exact for every tau, 1 included. Stable for eta <= 1 / (L + 1/rho).

    y   global model, post-proximal     z   state of the splitting; the server keeps sum_i p_i z_i     x   local model

Reference: Bastianello, Liu, Johansson, "Enhancing Privacy in Federated Learning through Local Training",
2024, arXiv 2403.17572. Written from the abstract and from public code of the smooth case.
Deviations: f is the weighted mean of the f_i rather than their sum, so the server's prox parameter is rho, not rho/n;
clients send z+ - z, which lets the others keep their share of the mean; no noise for privacy. Some of the clients: the paper
claims it, for draws that we could not check ours against; observed here.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import Array

from compfed._utils.records import count, positive, record
from compfed.algorithms.base import Algorithm, Citation


class Server(NamedTuple):
    z: Array  # sum_i p_i z_i


class Client(NamedTuple):
    z: Array
    x: Array


class Broadcast(NamedTuple):
    y: Array


class Update(NamedTuple):
    dz: Array


@record
class FedPLT(Algorithm[Server, Client, Broadcast, Update]):
    """Peaceman-Rachford splitting with a fixed number of local gradient steps.

        y = prox_{rho g}(sum_i p_i z_i),   x+ ~ prox_{rho f_i}(2 y - z),   z+ = z + 2 (x+ - y)

    Parameters
    ----------
    eta : float
        Step size of the inner gradient steps, at most 1 / (L + 1/rho).
    rho : float
        Prox parameter.
    tau : int, default=5
        Local steps per round.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.FedPLT(eta=0.1, rho=2.0)
    FedPLT(eta=0.1, rho=2.0, tau=5)
    """

    citation = Citation(
        "Bastianello, Liu, Johansson", 2024,
        "Enhancing Privacy in Federated Learning through Local Training", "arXiv 2403.17572",
    )  # fmt: skip
    composite = True
    exact = True
    setting = "the warm start is the method's own; its abstract claims the limit for strongly convex f_i"
    exact_sampled = True
    sampling = "observed"
    schemes = ("uniform", "self-normalised")  # the same: only weight * mean is used

    eta: float = positive()
    rho: float = positive()
    tau: int = count(default=5)

    state_depends_on = ()

    def init(self, x0):
        return Server(z=x0), Client(z=x0, x=x0)

    def broadcast(self, g, s):
        return Broadcast(y=g.prox(s.z, self.rho))

    def client_update(self, f, g, d, c, key):
        v = 2.0 * d.y - c.z

        def step(w, key):
            return w - self.eta * (f.grad(w, key) + (w - v) / self.rho), None

        x, _ = jax.lax.scan(step, c.x, jax.random.split(key, self.tau))
        dz = 2.0 * (x - d.y)
        return Update(dz=dz), Client(z=c.z + dz, x=x), x

    def server_update(self, g, s, mean, weight):
        return Server(z=s.z + weight * mean.dz)

    def solution(self, g, s):
        return g.prox(s.z, self.rho)

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=b.inner_step(scale), rho=b.prox_parameter(scale), tau=b.tau)
