r"""Scaffnew: local gradient steps with a stored subgradient, one prox per round, at the server. The composite form.

Solves min_x sum_i p_i f_i(x) + g(x), f_i strongly convex. It is ProxSkip with one copy of the model per client: the
non-smooth term is "all copies agree" plus g, and its prox, which is the communication, is skipped most of the time.
A round of k local steps, m of them expected, is

    xhat <- xhat - eta (grad f_i(xhat) - h)   k times, from x
    x+ = prox_{eta m g}(sum_i p_i (xhat_i - eta m h_i)),   h+ = h + (x+ - xhat) / (eta m)

and at the solution h_i = grad f_i(x*). So sum_i p_i h_i = grad f(x*), which is not zero when g is there: h must not be
centred. The number of steps is a choice:

- `Fixed(tau)`: tau in every round. Exact in practice; for g = 0 it is SCAFFOLD (option II, server step 1).
- `Random(p)`: geometric with mean 1/p, the same for all clients, drawn from the seed of the run (or from its own, if
  given). With eta <= 1/L the error shrinks like 1 - min(eta mu, p^2) per step; p = sqrt(mu/L) needs
  O(sqrt(L/mu) log 1/eps) rounds.

    x   global model, post-proximal     xhat   local model at the end of a round     h   state of a client

Reference: Mishchenko, Malinovsky, Stich, Richtarik, "ProxSkip: Yes! Local Gradient Steps Provably Lead to
Communication Acceleration! Finally!", ICML 2022, Algorithms 1 and 2 (eta is its gamma).
Deviations: g, by the prox above; weights p_i; a round is the stretch between two communications, so the coin tosses
become one geometric draw; `Fixed` is outside the theory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from compfed._utils.records import count, optional, part, positive, record, seed
from compfed.algorithms.base import Algorithm, Citation
from compfed.errors import InputError
from compfed.sampling import run_key, shared_key


@record
class Fixed:
    tau: int = count(default=5)

    def expected(self):
        return self.tau

    def drawn(self, r):
        return self.tau


@record
class Random:
    p: float = positive()
    seed: int | None = optional(seed(), default=None)  # that of the run unless given

    def check(self):
        if isinstance(self.p, float) and self.p > 1:
            raise InputError(f"Random(p={self.p!r}): p is a probability and must be <= 1.")

    def expected(self):
        return 1.0 / self.p

    def drawn(self, r):
        # in a run it is never None: see `with_seed`
        key = shared_key(run_key(0 if self.seed is None else self.seed), r)
        # p in single precision always: JAX draws in the precision of p, and lengths should not depend on the problem's
        return jax.random.geometric(key, jnp.asarray(self.p).astype(jnp.float32), dtype=jnp.int32)


class Global(NamedTuple):
    x: Array
    r: Array  # rounds done


class Client(NamedTuple):
    h: Array
    xhat: Array


class Update(NamedTuple):
    v: Array  # xhat - eta m h


@record
class Scaffnew(Algorithm[Global, Client, Global, Update]):
    """Local gradient steps with a subgradient kept by each client, and one prox per round at the server.

        xhat+ = xhat - eta (grad f_i(xhat) - h_i),   x = prox_{eta m g}(sum_i p_i (xhat_i - eta m h_i))
        h_i += (x - xhat_i) / (eta m),   m the expected number of local steps

    Parameters
    ----------
    eta : float
        Local step size.
    steps : Fixed or Random, default=Fixed()
        Number of local steps of a round, from `compfed.algorithms.scaffnew`.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.Scaffnew(eta=0.1)
    Scaffnew(eta=0.1, steps=Fixed(tau=5))
    """

    citation = Citation(
        "Mishchenko, Malinovsky, Stich, Richtarik", 2022,
        "ProxSkip: Yes! Local Gradient Steps Provably Lead to Communication Acceleration! Finally!", "ICML, Algorithms 1 and 2",
    )  # fmt: skip
    composite = True
    exact = True
    setting = "Fixed, the default, is outside its theory; with Random proved (its paper, eta <= 1/L)"

    eta: float = positive()
    steps: Fixed | Random = part(default=Fixed())

    state_depends_on = ()

    @property
    def length(self):
        return self.eta * self.steps.expected()  # eta m

    def init(self, x0):
        return Global(x=x0, r=jnp.zeros((), jnp.int32)), Client(h=jnp.zeros_like(x0), xhat=x0)

    def broadcast(self, g, s):
        return s

    def client_update(self, f, g, d, c, key):
        def step(t, x):
            return x - self.eta * (f.grad(x, jax.random.fold_in(key, t)) - c.h)

        xhat = jax.lax.fori_loop(0, self.steps.drawn(d.r), step, d.x)
        return Update(v=xhat - self.length * c.h), Client(h=c.h, xhat=xhat), xhat

    def server_update(self, g, s, mean, weight):
        return Global(x=g.prox(mean.v, self.length), r=s.r + 1)

    def finish_round(self, g, d, c):
        return c._replace(h=c.h + (d.x - c.xhat) / self.length)

    def solution(self, g, s):
        return s.x

    def with_seed(self, seed):
        if not isinstance(self.steps, Random) or self.steps.seed is not None:
            return self
        return replace(self, steps=replace(self.steps, seed=seed))

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=scale / b.L_max, steps=Fixed(tau=b.tau))
