r"""DecoupledProx: Algorithm 1 of the paper, composite federated learning with drift correction.

Solves min_x sum_i p_i f_i(x) + g(x). Within a round a client runs dual averaging on corrected gradients: the
recursion lives on the pre-proximal zhat, gradients are taken at the post-proximal z, and since zhat_t carries t steps
of length eta, its prox parameter is t eta. Across rounds the server takes a proximal gradient step of length
eta~ = eta eta_g tau along the mean of all local gradients.

    x      pre-proximal global model (the paper's x-bar)    p   post-proximal, prox_{eta~ g}(x)
    c      drift correction of a client; sum_i p_i c_i = 0  S   sum of the client's tau gradients

Two uploads give the same sequence in exact arithmetic with all clients, because the corrections cancel in the mean:

- "model": the paper's zhat_tau. Errors in mean c are conserved for ever; right when clients are sampled.
- "gradient-sum": p - eta S. c is rebuilt each round from that round's gradients alone, so lost states, dropped
  messages and rounding heal by themselves; wrong when clients are sampled (the sampling noise stays).

Upload "auto" takes the second with all clients and the first otherwise, and the first for a variant with a correction of its own.

Reference: Zhang, Hu, Johansson, "Composite federated learning with heterogeneous data", ICASSP 2024, Algorithm 1.
Deviations: the upload above; weights p_i instead of 1/n; sampling of clients, which the theory does not cover.
Under the self-normalised mean sum_S p_i z_i / sum_S p_i the corrections go on cancelling, sum_i p_i c_i = 0, whatever the sample
and the weights; it is biased on the way and exact at the limit, where all clients agree. No unbiased scheme keeps that sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from compfed._utils.records import choice, count, positive, record
from compfed.algorithms.base import Algorithm, Citation
from compfed.errors import InputError


class Global(NamedTuple):
    x: Array  # pre-proximal global model


class Client(NamedTuple):
    c: Array  # correction
    p: Array  # post-proximal global model of the current round
    S: Array  # sum of the gradients of that round


class Update(NamedTuple):
    z: Array  # zhat_tau, or p - eta S


def local_dual_averaging(
    grad: Callable[[Array, Array], Array],
    prox: Callable[[Array, Array], Array],
    p: Array,
    c: Array,
    eta: float,
    tau: int,
    key: Array,
) -> tuple[Array, Array, Array]:
    """The local steps of Algorithm 1, shared by its variants: (zhat_tau, z_tau, sum of the gradients).

    `grad(z, key)` is the local gradient and `prox(zhat, t)` the proximal step after t local steps.
    """

    def step(carry: tuple[Array, Array, Array], t_key: tuple[Array, Array]) -> tuple[tuple[Array, Array, Array], None]:
        zhat, z, S = carry
        t, key = t_key
        q = grad(z, key)  # L8-9
        zhat = zhat - eta * (q + c)  # L10
        z = prox(zhat, t + 1)  # L11
        return (zhat, z, S + q), None

    steps = jnp.arange(tau), jax.random.split(key, tau)
    return jax.lax.scan(step, (p, p, jnp.zeros_like(p)), steps)[0]  # L7-12


@record
class DriftCorrected(Algorithm[Global, Client, Global, Update]):
    """Algorithm 1, line by line. A variant replaces the local gradient (9), the local prox (11) or the correction (19).

    `finish_round` is the correction. The upload "gradient-sum" leaves the mean of the corrections out, sum_i p_i c_i, so it is
    another method wherever that is not zero. "auto" therefore takes it only where the lines that make the mean vanish
    are inherited (`corrections_cancel`), and sends the paper's zhat_tau otherwise. A class may state `upload` itself;
    `cf.testing.check` compares the two.
    """

    composite = True
    state_depends_on = ()
    upload = "auto"

    eta: float = positive()
    eta_g: float = positive(default=1.0)
    tau: int = count(default=5)

    @property
    def eta_tilde(self):
        return self.eta * self.eta_g * self.tau  # L2

    @classmethod
    def corrections_cancel(cls) -> bool:
        """Whether sum_i p_i c_i = 0 with all clients: shown for lines 1-3, 15 and 18-19 as they are here."""
        return all(
            getattr(cls, line) is getattr(DriftCorrected, line)
            for line in ("init", "eta_tilde", "server_update", "finish_round")
        )

    @property
    def sends_model(self) -> bool:
        """Whether a client sends zhat_tau, and not p - eta S."""
        return self.upload == "model" or (self.upload == "auto" and not self.corrections_cancel())

    def init(self, x0):
        zero = jnp.zeros_like(x0)
        return Global(x=x0), Client(c=zero, p=x0, S=zero)  # L1, L3

    def broadcast(self, g, s):
        return s

    def client_update(self, f, g, d, c, key):
        p = g.prox(d.x, self.eta_tilde)  # L6
        grad, prox = self.local_gradient(f, p), partial(self.local_prox, g)
        zhat, z, S = local_dual_averaging(grad, prox, p, c.c, self.eta, self.tau, key)  # L7-12
        sent = zhat if self.sends_model else p - self.eta * S
        return Update(z=sent), Client(c=c.c, p=p, S=S), z  # L13

    def local_gradient(self, f, p):
        return f.grad  # L9

    def local_prox(self, g, zhat, t):
        return g.prox(zhat, t * self.eta)  # L11

    def server_update(self, g, s, mean, weight):
        p = g.prox(s.x, self.eta_tilde)
        return Global(x=p + self.eta_g * (mean.z - p))  # L15

    def finish_round(self, g, d, c):
        return c._replace(c=(c.p - d.x) / self.eta_tilde - c.S / self.tau)  # L18-19

    def solution(self, g, s):
        return g.prox(s.x, self.eta_tilde)  # L21

    def correction(self, s, c):
        return c.c

    def integrates_rounding(self):
        return self.sends_model

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=b.corrected(scale), tau=b.tau)


@record
class DecoupledProx(DriftCorrected):
    """Algorithm 1: local dual averaging with drift correction, and a proximal gradient step at the server.

    One local step and the server's step, with eta~ = eta eta_g tau, are

        zhat+ = zhat - eta (grad f_i(z) + c_i),   z+ = prox_{t eta g}(zhat+)
        x+ = p - eta~ sum_i p_i S_i / tau,        p = prox_{eta~ g}(x)

    Parameters
    ----------
    eta : float
        Local step size.
    eta_g : float, default=1.0
        Server step size.
    tau : int, default=5
        Local steps per round.
    upload : {"auto", "model", "gradient-sum"}, default="auto"
        What a client sends: zhat_tau, or p - eta S; "auto" takes the second where all clients take part.

    Examples
    --------
    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)
    >>> trace = cf.simulate(problem, cf.algorithms.DecoupledProx(eta=1.0), 100, x_star=cf.solve_pooled(problem))
    >>> bool(trace["optimality"][-1] < 1e-6)
    True
    """

    citation = Citation(
        "Zhang, Hu, Johansson", 2024, "Composite federated learning with heterogeneous data", "ICASSP, Algorithm 1"
    )
    exact = True
    setting = "its paper proves a neighbourhood (Theorem 1: eta~ <= mu/(150 L^2), eta_g = sqrt(n)); the fixed point is our argument"
    exact_sampled = True
    sampling = "observed"
    schemes = ("self-normalised",)  # any other would move sum_i p_i c_i away from zero

    upload: str = choice("auto", "model", "gradient-sum", default="auto")

    def bind(self, problem, participants):
        everyone = participants == problem.n
        if self.upload == "gradient-sum" and not everyone:
            raise InputError(
                f"DecoupledProx(upload='gradient-sum') needs every client in every round; got participants="
                f"{participants} of {problem.n}. Use upload='model' (or 'auto') when clients are sampled."
            )
        # a client rebuilds its correction from the mean of all clients' gradients, so none may be missing
        auto = "gradient-sum" if everyone and self.corrections_cancel() else "model"
        return replace(self, upload=auto if self.upload == "auto" else self.upload)
