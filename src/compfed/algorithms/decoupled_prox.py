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

Upload "auto" takes the second with all clients and the first otherwise.

Reference: Zhang, Hu, Johansson, "Composite federated learning with heterogeneous data", ICASSP 2024, Algorithm 1.
Deviations: the upload above; weights p_i instead of 1/n; sampling of clients, which the theory does not cover.
Under the ratio sum_S p_i z_i / sum_S p_i the corrections go on cancelling, sum_i p_i c_i = 0, whatever the sample and the
weights; it is biased on the way and exact at rest, where all clients agree. No unbiased scheme keeps that sum.
"""

from __future__ import annotations

from dataclasses import replace
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
    p: Array  # post-proximal global model of the round under way
    S: Array  # sum of the gradients of that round


class Update(NamedTuple):
    z: Array  # zhat_tau, or p - eta S


@record
class DecoupledProx(Algorithm[Global, Client, Global, Update]):
    citation = Citation(
        authors="Zhang, Hu, Johansson",
        year=2024,
        title="Composite federated learning with heterogeneous data",
        where="ICASSP, Algorithm 1",
    )
    composite = True
    exact = True
    exact_sampled = True
    sampling = "observed"
    schemes = ("self-normalised",)  # any other would move sum_i p_i c_i away from zero

    eta: float = positive()
    eta_g: float = positive(default=1.0)
    tau: int = count(default=5)
    upload: str = choice("auto", "model", "gradient-sum", default="auto")

    state_depends_on = ()

    @property
    def eta_tilde(self):
        return self.eta * self.eta_g * self.tau  # L2

    def init(self, x0):
        zero = jnp.zeros_like(x0)
        return Global(x=x0), Client(c=zero, p=x0, S=zero)  # L1, L3

    def broadcast(self, g, s):
        return s

    def client_update(self, f, g, d, c, key):
        p = g.prox(d.x, self.eta_tilde)  # L6

        def step(carry, t_key):
            zhat, z, S = carry
            t, key = t_key
            q = f.grad(z, key)  # L8-9
            zhat = zhat - self.eta * (q + c.c)  # L10
            z = g.prox(zhat, (t + 1) * self.eta)  # L11
            return (zhat, z, S + q), None

        steps = jnp.arange(self.tau), jax.random.split(key, self.tau)
        (zhat, z, S), _ = jax.lax.scan(step, (p, p, jnp.zeros_like(p)), steps)  # L7-12
        sent = zhat if self.upload == "model" else p - self.eta * S
        return Update(z=sent), Client(c=c.c, p=p, S=S), z  # L13

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
        return self.upload == "model"

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=b.corrected(scale), tau=b.tau)

    def bind(self, problem, participants):
        everyone = participants == problem.n
        if self.upload == "gradient-sum" and not everyone:
            raise InputError(
                f"DecoupledProx(upload='gradient-sum') needs every client in every round; got participants="
                f"{participants} of {problem.n}. Use upload='model' (or 'auto') when clients are sampled."
            )
        auto = "gradient-sum" if everyone else "model"
        return replace(self, upload=auto if self.upload == "auto" else self.upload)
