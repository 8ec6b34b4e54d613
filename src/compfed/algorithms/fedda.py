r"""FedDA: federated dual averaging (FedDualAvg) with the Euclidean mirror map.

Solves min_x sum_i p_i f_i(x) + g(x). Clients add up gradients in the dual variable z; the regulariser acts only when
a primal point is read off, w = prox_{a g}(z), with a the step length spent so far. No primal averaging, but client
drift leaves a floor.

    z   dual model      a   step length spent, eta eta_g tau r after r rounds      w   primal model

Reference: Yuan, Zaheer, Reddi, "Federated Composite Optimization", ICML 2021, Algorithm 2.
Deviations: none (Euclidean mirror map, last iterate as output, as in the authors' code). Rounds and steps count from 0,
so the first prox parameter of a run is 0. Some of the clients: observed; the paper's listing samples clients, and no
theorem known to us covers that. Of unequal weight, they are drawn in proportion to it.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from compfed._utils.records import count, positive, record
from compfed.algorithms.base import Algorithm, Citation


class Global(NamedTuple):
    z: Array
    a: Array


class Update(NamedTuple):
    delta: Array  # z_tau - z


@record
class FedDA(Algorithm[Global, None, Global, Update]):
    """Federated dual averaging with the Euclidean mirror map.

        w = prox_{a g}(z),   z+ = z - eta grad f_i(w),   a the step length spent so far

    Parameters
    ----------
    eta : float
        Local step size.
    eta_g : float, default=1.0
        Server step size.
    tau : int, default=5
        Local steps per round.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.FedDA(eta=0.1, tau=3)
    FedDA(eta=0.1, eta_g=1.0, tau=3)
    """

    citation = Citation("Yuan, Zaheer, Reddi", 2021, "Federated Composite Optimization", "ICML, Algorithm 2")
    composite = True
    exact = False
    sampling = "observed"
    schemes = ("proportional", "uniform", "self-normalised")

    eta: float = positive()
    eta_g: float = positive(default=1.0)
    tau: int = count(default=5)

    state_depends_on = ()

    def init(self, x0):
        return Global(z=x0, a=jnp.zeros((), x0.dtype)), None

    def broadcast(self, g, s):
        return s

    def client_update(self, f, g, d, c, key):
        def step(z, k_key):
            k, key = k_key
            w = g.prox(z, d.a + k * self.eta)
            return z - self.eta * f.grad(w, key), None

        z, _ = jax.lax.scan(step, d.z, (jnp.arange(self.tau), jax.random.split(key, self.tau)))
        return Update(delta=z - d.z), c, g.prox(z, d.a + self.tau * self.eta)

    def server_update(self, g, s, mean, weight):
        return Global(z=s.z + self.eta_g * mean.delta, a=s.a + self.eta_g * self.eta * self.tau)

    def solution(self, g, s):
        return g.prox(s.z, s.a)

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=scale / b.L_max, tau=b.tau)
