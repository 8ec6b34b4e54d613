r"""Scaffold: local gradient steps corrected by control variates.

Solves min_x sum_i p_i f_i(x) (smooth only). A client steps along its gradient minus its own control variate plus the
global one,

    y+ = y - eta (grad f_i(y) - c_i + c),      c = sum_i p_i c_i

so that at the minimiser, where c_i = grad f_i(x*), every client stands still. The control variate of a participant is
renewed in one of two ways; both are exact with full gradients, on different paths:

- option "I": c_i = grad f_i(x) over all rows, at the global model; one more gradient.
- option "II": c_i = the mean of the tau gradients just used, read off the distance walked.

    x   global model      y   local model      c, c_i   control variates of the server and of client i

Reference: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning", ICML 2020. Written from public implementations: the paper's own listing was not at hand, so lines
carry no numbers. Deviations: weights p_i instead of 1/n; c_i = c = 0 at the start.
Sampling: Theorem III, for equal weights, uniform draws and steps up to 1/(81 L tau eta_g); longer steps and unequal weights
are observed. With unequal weights the mean of dy is sum_S p_i dy_i / sum_S p_i, biased on the way but not at the limit,
where all dy_i are 0; "uniform" is unbiased, with steps up to n max p_i times as long. c is right under both: its change is
weight * mean.dc = sum_S p_i dc_i.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from compfed._utils.records import choice, count, positive, record
from compfed.algorithms.base import Algorithm, Citation


class Global(NamedTuple):
    x: Array
    c: Array


class Client(NamedTuple):
    c_i: Array


class Update(NamedTuple):
    dy: Array  # y_tau - x
    dc: Array  # change of c_i


@record
class Scaffold(Algorithm[Global, Client, Global, Update]):
    """Local gradient steps corrected by control variates; for smooth problems.

        y+ = y - eta (grad f_i(y) - c_i + c),   c = sum_i p_i c_i

    Parameters
    ----------
    eta : float
        Local step size.
    eta_g : float, default=1.0
        Server step size.
    tau : int, default=5
        Local steps per round.
    option : {"I", "II"}, default="II"
        New c_i: a full gradient at x ("I"), or the mean of the local gradients ("II").

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.Scaffold(eta=0.1, tau=3)
    Scaffold(eta=0.1, eta_g=1.0, tau=3, option='II')
    """

    citation = Citation(
        "Karimireddy, Kale, Mohri, Reddi, Stich, Suresh", 2020,
        "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", "ICML",
    )  # fmt: skip
    composite = False
    exact = True
    exact_proof = "Karimireddy 2020, Theorem III, eta <= 1/(81 L tau eta_g)"
    setting = "default steps, up to 324 times longer, are observed"
    sampling = "proved"
    proof = "Karimireddy 2020, Theorem III, eta <= 1/(81 L tau eta_g)"
    exact_sampled = True
    schemes = ("self-normalised", "uniform")

    eta: float = positive()
    eta_g: float = positive(default=1.0)
    tau: int = count(default=5)
    option: str = choice("I", "II", default="II")

    state_depends_on = ()

    def init(self, x0):
        zero = jnp.zeros_like(x0)
        return Global(x=x0, c=zero), Client(c_i=zero)

    def broadcast(self, g, s):
        return s

    def client_update(self, f, g, d, c, key):
        def step(y, key):
            return y - self.eta * (f.grad(y, key) - c.c_i + d.c), None

        y, _ = jax.lax.scan(step, d.x, jax.random.split(key, self.tau))
        c_i = f.full_grad(d.x) if self.option == "I" else c.c_i - d.c + (d.x - y) / (self.tau * self.eta)
        return Update(dy=y - d.x, dc=c_i - c.c_i), Client(c_i=c_i), y

    def server_update(self, g, s, mean, weight):
        # absent clients keep their c_i, so only the participants' weight of the mean moves c
        return Global(x=s.x + self.eta_g * mean.dy, c=s.c + weight * mean.dc)

    def solution(self, g, s):
        return s.x

    def correction(self, s, c):
        return s.c - c.c_i

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=b.corrected(scale), tau=b.tau)
