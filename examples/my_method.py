r"""LocalProx: a skeleton to copy. Local proximal gradient steps, then a relaxed average.

Solves min_x sum_i p_i f_i(x) + g(x) approximately: w+ = w + eta_g (mean_i z_i - w), z_i after tau proximal steps.

    w   global model      z   local model

Reference: none; this is an example. Deviations: none.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import Array

from compfed.algorithms import Algorithm, count, positive, record


class Global(NamedTuple):  # the server state, which is also the broadcast
    w: Array


class Update(NamedTuple):  # the update of a client
    z: Array


@record
class LocalProx(Algorithm[Global, None, Global, Update]):
    composite = True
    exact = False  # the local models differ, and their mean is not where they would all stay

    eta: float = positive()
    eta_g: float = positive(default=1.0)
    tau: int = count(default=5)

    def init(self, x0):
        return Global(w=x0), None  # clients have no state

    def broadcast(self, g, s):
        return s

    def client_update(self, f, g, d, c, key):
        def step(z, key):
            return g.prox(z - self.eta * f.grad(z, key), self.eta), None

        z, _ = jax.lax.scan(step, d.w, jax.random.split(key, self.tau))
        return Update(z=z), c, z  # the update, the client state, the local model

    def server_update(self, g, s, mean, weight):
        return Global(w=s.w + self.eta_g * (mean.z - s.w))

    def solution(self, g, s):
        return s.w

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=scale / b.L_max, tau=b.tau)
