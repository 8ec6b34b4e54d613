r"""FedAvg: local gradient steps, then an average.

Solves min_x sum_i p_i f_i(x) (smooth only). With tau > 1 and different f_i it stops at a point away from the minimiser.

    w   global model      z   local model

Reference: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
Deviations: a server step eta_g (1 in the paper); with some of the clients and unequal weights these are drawn in
proportion to p_i, where the paper draws uniformly and takes the self-normalised mean sum_S p_i u_i / sum_S p_i: that is biased, and with
tau = 1 and one client a round it minimises the mean of the f_i in which all count alike. sampling="self-normalised" runs it.
Sampling: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD", ICML 2020, Theorem I, for equal weights, uniform draws,
gradients of bounded dissimilarity and small steps: to a neighbourhood that shrinks with the steps. Unequal weights: observed.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import Array

from compfed._utils.records import count, optional, positive, record
from compfed.algorithms.base import Algorithm, Citation


class Global(NamedTuple):
    w: Array


class Update(NamedTuple):
    delta: Array  # z_tau - w


class AveragedLocalSteps(Algorithm[Global, None, Global, Update]):
    """tau local steps from w, then an average. FedAvg, FedProx and FedMid say what one local step is."""

    exact = False
    schemes = ("proportional", "uniform", "self-normalised")
    state_depends_on = ()
    eta_g: float
    tau: int
    epochs: int | None = None

    def init(self, x0):
        return Global(w=x0), None

    def broadcast(self, g, s):
        return s

    def client_update(self, f, g, d, c, key):
        def step(z, key):
            return self.local_step(f, g, d.w, z, key), None

        if self.epochs is None:
            z, _ = jax.lax.scan(step, d.w, jax.random.split(key, self.tau))
        else:  # as many steps as the client has mini-batches, epochs times
            steps = self.epochs * f.steps_per_epoch
            z = jax.lax.fori_loop(0, steps, lambda t, z: step(z, jax.random.fold_in(key, t))[0], d.w)
        return Update(delta=z - d.w), c, z

    def local_step(self, f, g, w, z, key) -> Array:
        raise NotImplementedError

    def server_update(self, g, s, mean, weight):
        return Global(w=s.w + self.eta_g * mean.delta)

    def solution(self, g, s):
        return s.w


@record
class FedAvg(AveragedLocalSteps):
    """Local gradient steps, then an average; for smooth problems.

        z+ = z - eta grad f_i(z),   w+ = w + eta_g sum_i p_i (z_i - w)

    Parameters
    ----------
    eta : float
        Local step size.
    eta_g : float, default=1.0
        Server step size.
    tau : int, default=5
        Local steps per round.
    epochs : int, optional
        Local epochs per round, in place of `tau`: a client with n_i rows takes ceil(n_i / batch_size) steps in each.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.FedAvg(eta=0.1, tau=3)
    FedAvg(eta=0.1, eta_g=1.0, tau=3, epochs=None)
    """

    citation = Citation(
        "McMahan, Moore, Ramage, Hampson, Aguera y Arcas", 2017,
        "Communication-Efficient Learning of Deep Networks from Decentralized Data", "AISTATS",
    )  # fmt: skip
    composite = False
    sampling = "proved"
    proof = "Karimireddy 2020, Theorem I, small steps and bounded dissimilarity: to a neighbourhood"

    eta: float = positive()
    eta_g: float = positive(default=1.0)
    tau: int = count(default=5)
    epochs: int | None = optional(count(), default=None)

    def local_step(self, f, g, w, z, key):
        return z - self.eta * f.grad(z, key)

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=scale / b.L_max, tau=b.tau)
