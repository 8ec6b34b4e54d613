r"""FedADMM: the alternating direction method of multipliers with some of the clients in each round.

Solves min_x sum_i p_i f_i(x) + g(x). A participant minimises its augmented Lagrangian, then moves its dual variable;
the server keeps the mean of xhat_i and takes the proximal step of g:

    x_i    =  argmin_u f_i(u) + <z_i, u - x> + (rho/2) ||u - x||^2
    z_i    += rho (x_i - x),   xhat_i = x_i + z_i / rho
    xtilde =  sum_i p_i xhat_i,   x = prox_{g / rho}(xtilde)

The same sequence as FedDR with alpha = 1 and lam = 1/rho.

    x   global model      x_i   local model      z   dual variable of a client      rho   penalty (the paper's eta)

The minimisation is tau gradient steps started at the client's previous x_i, eta <= 1/(L + rho).

Reference: Wang, Marella, Anderson, "FedADMM: A Federated Primal-Dual Algorithm Allowing Partial Participation", IEEE
CDC 2022. Not the smooth methods of the same name. Reconstruction: only the abstract and a summary were at hand; the
identity with FedDR is what fixes the equations. Deviations: no preparatory round, x_i = xhat_i = xtilde = x^0 and
z_i = 0 at the start; tau steps instead of an accuracy that grows with the rounds, so that sampling is observed, not proved;
weights p_i instead of 1/n.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from compfed._utils.records import count, positive, record
from compfed.algorithms.base import Algorithm, Citation
from compfed.algorithms.feddr import FedDR


class Server(NamedTuple):
    xtilde: Array


class Client(NamedTuple):
    x: Array
    z: Array


class Broadcast(NamedTuple):
    x: Array


class Update(NamedTuple):
    delta: Array  # change of xhat_i


@record
class FedADMM(Algorithm[Server, Client, Broadcast, Update]):
    """The alternating direction method of multipliers with some of the clients in each round.

        x_i = argmin_u f_i(u) + <z_i, u - x> + (rho/2) ||u - x||^2,   z_i += rho (x_i - x)
        x = prox_{g / rho}(sum_i p_i (x_i + z_i / rho))

    Parameters
    ----------
    eta : float
        Step size of the inner gradient steps, at most 1 / (L + rho).
    rho : float
        Penalty of the augmented Lagrangian.
    tau : int, default=5
        Local steps per round.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.FedADMM(eta=0.1, rho=0.5)
    FedADMM(eta=0.1, rho=0.5, tau=5)
    """

    citation = Citation(
        "Wang, Marella, Anderson", 2022,
        "FedADMM: A Federated Primal-Dual Algorithm Allowing Partial Participation", "IEEE CDC", reconstructed=True,
    )  # fmt: skip
    composite = True
    exact = True
    setting = FedDR.setting
    same_as = "FedDR", "alpha = 1, lam = 1/rho"
    exact_sampled = True
    sampling = "observed"
    schemes = ("uniform", "self-normalised")  # the same: only weight * mean is used

    eta: float = positive()
    rho: float = positive()
    tau: int = count(default=5)

    state_depends_on = ("rho",)  # xtilde = sum_i p_i (x_i + z_i / rho) is kept up to date, never formed anew

    def init(self, x0):
        return Server(xtilde=x0), Client(x=x0, z=jnp.zeros_like(x0))

    def broadcast(self, g, s):
        return Broadcast(x=g.prox(s.xtilde, 1.0 / self.rho))

    def client_update(self, f, g, d, c, key):
        def step(u, key):
            return u - self.eta * (f.grad(u, key) + c.z + self.rho * (u - d.x)), None

        x, _ = jax.lax.scan(step, c.x, jax.random.split(key, self.tau))
        z = c.z + self.rho * (x - d.x)
        # xhat_i need not be stored: it is x_i + z_i / rho, at the start too
        return Update(delta=(x + z / self.rho) - (c.x + c.z / self.rho)), Client(x=x, z=z), x

    def server_update(self, g, s, mean, weight):
        # absent clients keep their xhat_i: sum_S p_i delta_i = weight * mean
        return Server(xtilde=s.xtilde + weight * mean.delta)

    def solution(self, g, s):
        return g.prox(s.xtilde, 1.0 / self.rho)

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=b.inner_step(scale), rho=1.0 / b.prox_parameter(scale), tau=b.tau)
