r"""VarianceReducedDecoupledProx: DecoupledProx that stays exact with mini-batches and constant steps.

Solves min_x sum_i p_i f_i(x) + g(x). One change in the client of DecoupledProx: a full gradient at the start of the
round corrects every mini-batch gradient of it,

    q = grad f_B(z) - grad f_B(p) + grad f_i(p),      the same mini-batch B in both

At the fixed point every local iterate stays at p = x*, so the two mini-batch gradients cancel and with them the noise,
which leaves DecoupledProx with a floor. A round costs one full gradient and 2 tau of mini-batches; messages, prox rule
and correction are those of DecoupledProx. With mini-batches of all rows, and with tau = 1 for any mini-batches, it is
DecoupledProx with full gradients.

    x   pre-proximal global model                      p   post-proximal, prox_{eta~ g}(x), eta~ = eta eta_g tau
    c   drift correction of a client; sum_i p_i c_i = 0      S   sum of the client's tau corrected gradients

Upload "auto" sends p - eta S with all clients, where errors in c heal, and zhat_tau ("model") when clients are sampled,
where their corrections do not cancel in the mean; see `decoupled_prox`, also for the reason of the self-normalised mean.

Reference: ours, DecoupledProx after the variance reduction of Johnson, Zhang, "Accelerating stochastic gradient descent
using predictive variance reduction", NeurIPS 2013.
Deviations: none. There is no theory.
"""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp

from compfed._utils.records import choice, count, positive, record
from compfed.algorithms.base import Algorithm, Citation
from compfed.algorithms.decoupled_prox import Client, Global, Update, local_dual_averaging


@record
class VarianceReducedDecoupledProx(Algorithm[Global, Client, Global, Update]):
    """DecoupledProx that is exact with mini-batches and constant steps.

        q = grad f_B(z) - grad f_B(p) + grad f_i(p)      takes the place of the local gradient

    Parameters
    ----------
    eta : float
        Local step size.
    eta_g : float, default=1.0
        Server step size.
    tau : int, default=5
        Local steps per round.
    upload : {"auto", "model"}, default="auto"
        What a client sends: p - eta S with all clients, zhat_tau when clients are sampled; "model" for zhat_tau
        always.

    References
    ----------
    Ours, after Johnson, Zhang, "Accelerating stochastic gradient descent using predictive variance reduction",
    NeurIPS, 2013.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.VarianceReducedDecoupledProx(eta=0.1, tau=3)
    VarianceReducedDecoupledProx(eta=0.1, eta_g=1.0, tau=3, upload='auto')
    """

    citation = Citation(
        "Johnson, Zhang",
        2013,
        "Accelerating stochastic gradient descent using predictive variance reduction",
        "NeurIPS",
        ours=True,
    )
    composite = True
    exact = True
    exact_sampled = True
    sampling = "observed"
    schemes = ("self-normalised",)  # any other would move sum_i p_i c_i away from zero

    eta: float = positive()
    eta_g: float = positive(default=1.0)
    tau: int = count(default=5)
    upload: str = choice("auto", "model", default="auto")

    state_depends_on = ()

    @property
    def eta_tilde(self):
        return self.eta * self.eta_g * self.tau

    def init(self, x0):
        zero = jnp.zeros_like(x0)
        return Global(x=x0), Client(c=zero, p=x0, S=zero)

    def broadcast(self, g, s):
        return s

    def client_update(self, f, g, d, c, key):
        p = g.prox(d.x, self.eta_tilde)
        full = f.full_grad(p)

        def grad(z, key):
            return f.grad(z, key) - f.grad(p, key) + full  # one key: one mini-batch, used twice

        zhat, z, S = local_dual_averaging(
            grad, lambda zhat, t: g.prox(zhat, t * self.eta), p, c.c, self.eta, self.tau, key
        )
        sent = zhat if self.upload == "model" else p - self.eta * S
        return Update(z=sent), Client(c=c.c, p=p, S=S), z

    def server_update(self, g, s, mean, weight):
        p = g.prox(s.x, self.eta_tilde)
        return Global(x=p + self.eta_g * (mean.z - p))

    def finish_round(self, g, d, c):
        return c._replace(c=(c.p - d.x) / self.eta_tilde - c.S / self.tau)

    def solution(self, g, s):
        return g.prox(s.x, self.eta_tilde)

    def correction(self, s, c):
        return c.c

    def integrates_rounding(self):
        return self.upload == "model"

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=b.corrected(scale), tau=b.tau)

    def bind(self, problem, participants):
        return self if participants == problem.n else replace(self, upload="model")
