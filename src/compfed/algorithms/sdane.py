r"""S-DANE, stabilised DANE, with a regulariser: the centre of the local problems takes a step of its own.

Solves min_x sum_i p_i f_i(x) + g(x). A round has two exchanges. In the first every client sends grad f_i(v), and the server forms
the mean c. In the second a client minimises around v, and sends its model and its whole (sub)gradient there:

    x_i  ~  argmin_z f_i(z) + <c - grad f_i(v), z> + (lam/2) ||z - v||^2 + g(z)
    G_i  =  grad f_i(x_i) + s_i,   s_i in the subdifferential of g at x_i
    x    =  sum_i p_i x_i,     v+ = (v + a mu x - a sum_i p_i G_i) / (1 + a mu),    a = 1/lam

    v   centre of the local problems      x_i, x   local models and their mean, the model      lam   (a few) times the difference
    of the Hessians      mu   strong convexity of the f_i, or less

The minimisation is tau steps, implicit in the quadratic term, started at z = v:

    z+ = prox_{t g}(t (z/eta + lam v - grad f_i(z) - c + grad f_i(v))),    t = 1 / (1/eta + lam)

and the last of them gives s_i. With exact local solves sum_i p_i G_i = lam (v - x), so that v+ = x for every mu, and the
method is DANE with beta = lam, gamma = 1. What the step of v changes is the effect of local solves that are not exact.

Reference: ours, after Jiang, Rodomanov, Stich, "Stabilized Proximal-Point Methods for Federated Optimization", NeurIPS 2024
(arXiv 2407.07084), for smooth problems; written from the authors' code, so lines carry no numbers. Deviations: g, by the
prox in the local steps and s_i in G_i, for which nothing is proved; tau steps instead of a rule that ends them; no acceleration
and no search for lam; all clients in every round; weights p_i instead of 1/n.
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
    x: Array  # the centre v, at which the first exchange asks for gradients
    c: Array  # of the current round
    model: Array


class Update(NamedTuple):
    x: Array
    G: Array


@record
class SDANE(Algorithm[Server, Anchor, Mean, Update]):
    """Stabilised DANE with a regulariser: the centre v of the local problems takes a step of its own.

        x_i ~ argmin_z f_i(z) + <c - grad f_i(v), z> + (lam/2) ||z - v||^2 + g(z),   c = sum_i p_i grad f_i(v)
        x = sum_i p_i x_i,   v+ = (v + a mu x - a sum_i p_i G_i) / (1 + a mu),   a = 1/lam

    G_i is a subgradient of f_i + g at x_i.

    Parameters
    ----------
    eta : float
        Step size of the local steps, at most 1 / L.
    lam : float
        Weight of the term that holds local models near the centre.
    mu : float, default=0.0
        Strong convexity of the f_i, or less.
    tau : int, default=5
        Local steps per round.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.SDANE(eta=0.1, lam=0.5)
    SDANE(eta=0.1, lam=0.5, mu=0.0, tau=5)
    """

    citation = Citation(
        "Jiang, Rodomanov, Stich", 2024, "Stabilized Proximal-Point Methods for Federated Optimization", "NeurIPS", ours=True,
    )  # fmt: skip
    composite = True
    exact = True
    setting = "at a fixed tau; its paper is about smooth problems"

    eta: float = positive()
    lam: float = positive()
    mu: float = nonnegative(default=0.0, scalar=True)
    tau: int = count(default=5)

    state_depends_on = ()

    def init(self, x0):
        return Server(x=x0, c=jnp.zeros_like(x0), model=x0), Anchor.at(x0)

    @property
    def exchanges(self):
        return MeanGradient(), self

    def broadcast(self, g, s):
        return Mean(c=s.c)

    def client_update(self, f, g, d, c, key):
        t, tilt, v = 1.0 / (1.0 / self.eta + self.lam), d.c - c.gradient, c.x

        def step(carry, key):
            z, _ = carry
            forward = t * (z / self.eta + self.lam * v - f.grad(z, key) - tilt)
            new = g.prox(forward, t)
            return (new, (forward - new) / t), None  # the second is in the subdifferential of g at the first

        (x, s), _ = jax.lax.scan(step, (v, jnp.zeros_like(v)), jax.random.split(key, self.tau))
        return Update(x=x, G=f.full_grad(x) + s), c, x

    def server_update(self, g, s, mean, weight):
        a = 1.0 / self.lam
        v = (s.x + a * self.mu * mean.x - a * mean.G) / (1.0 + a * self.mu)
        return Server(x=v, c=s.c, model=mean.x)

    def solution(self, g, s):
        return s.model

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=1.0 / b.L_max, lam=1.0 / b.prox_parameter(scale), mu=b.mu, tau=b.tau)
