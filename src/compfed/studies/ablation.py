r"""AblatedProx: Algorithm 1 with another parameter in the local prox. Why line 11 of the paper grows with the step.

    zhat+ = zhat - eta (grad f_i(z) + c),   z+ = prox_{rule g}(zhat+)

The paper's parameter after t local steps is t eta, because zhat then carries t steps of length eta. The rules here are
"eta", "eta-tilde" (eta~ = eta eta_g tau) and "none" (z+ = zhat+). With any of them the minimiser is not a fixed point,
unless g is an indicator, whose prox does not depend on its parameter. Everything else is Algorithm 1, with the upload
p - eta S; `DecoupledProx` names the symbols.

Reference: ours; DecoupledProx with line 11 changed. Deviations: none.
"""

from __future__ import annotations

import jax.numpy as jnp

from compfed._utils.records import choice, count, positive, record
from compfed.algorithms.base import Algorithm, Citation
from compfed.algorithms.decoupled_prox import Client, Global, Update, local_dual_averaging


@record
class AblatedProx(Algorithm[Global, Client, Global, Update]):
    citation = Citation("ours")
    composite = True
    exact = False

    eta: float = positive()
    rule: str = choice("eta", "eta-tilde", "none")
    eta_g: float = positive(default=1.0)
    tau: int = count(default=5)

    state_depends_on = ()

    @property
    def eta_tilde(self):
        return self.eta * self.eta_g * self.tau

    def init(self, x0):
        zero = jnp.zeros_like(x0)
        return Global(x=x0), Client(c=zero, p=x0, S=zero)

    def broadcast(self, g, s):
        return s

    def local_prox(self, g, zhat):
        if self.rule == "none":
            return zhat
        return g.prox(zhat, self.eta if self.rule == "eta" else self.eta_tilde)

    def client_update(self, f, g, d, c, key):
        p = g.prox(d.x, self.eta_tilde)
        _, z, S = local_dual_averaging(
            f.grad, lambda zhat, t: self.local_prox(g, zhat), p, c.c, self.eta, self.tau, key
        )
        return Update(z=p - self.eta * S), Client(c=c.c, p=p, S=S), z

    def server_update(self, g, s, mean, weight):
        p = g.prox(s.x, self.eta_tilde)
        return Global(x=p + self.eta_g * (mean.z - p))

    def finish_round(self, g, d, c):
        return c._replace(c=(c.p - d.x) / self.eta_tilde - c.S / self.tau)

    def solution(self, g, s):
        return g.prox(s.x, self.eta_tilde)

    def correction(self, s, c):
        return c.c

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=b.corrected(scale), rule="eta", tau=b.tau)
