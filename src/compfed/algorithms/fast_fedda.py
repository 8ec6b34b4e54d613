r"""FastFedDA: dual averaging with weighted sums of past gradients and past models.

Solves min_x sum_i p_i f_i(x) + g(x), f_i mu-strongly convex. With t = r tau + k counting all local steps, weights
alpha_t, A_t = alpha_0 + ... + alpha_t, G_t = sum alpha_j grad_j and W_t = sum alpha_j w_j, the next point minimises

    <G_t, w> + (mu/4) sum_j alpha_j ||w - w_j||^2 + (gamma_t/2) ||w - w_0||^2 + A_t g(w)

that is w = prox_{(A_t/q) g}(((mu/2) W_t + gamma_t w_0 - G_t) / q) with q = (mu/2) A_t + gamma_t. The effective step
decays like 1/t, and so does the error: there is no floor, however far the clients are apart. With some of the clients the
noise of the draws falls like 1/sqrt(t).

Reference: Bao, Crawshaw, Luo, Liu, "Fast Composite Optimization and Statistical Recovery in Federated Learning",
ICML 2022. Deviations: public implementations disagree on alpha_t and gamma_t, so the schedule is a parameter; each
point enters W once (the authors' script adds the server point as well, which moves the limit).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from compfed._utils.records import count, part, positive, record
from compfed.algorithms.base import Algorithm, Citation


@record
class Constant:
    """alpha_t = 1, gamma_t = gamma."""

    gamma: float = positive()

    def __call__(self, t):
        return 1.0, t + 1.0, self.gamma  # alpha_t, A_t, gamma_t


@record
class Linear:
    """alpha_t = t + 1, gamma_t = L alpha_t."""

    L: float = positive()

    def __call__(self, t):
        return t + 1.0, 0.5 * (t + 1.0) * (t + 2.0), self.L * (t + 1.0)


@record
class Quadratic:
    """alpha_t = (t + a)^2, gamma_t = L alpha_t."""

    L: float = positive()
    a: float = positive(default=1.0)

    def __call__(self, t):
        alpha, a = (t + self.a) ** 2, self.a
        return alpha, (t + 1.0) * (a * a + a * t + t * (2.0 * t + 1.0) / 6.0), self.L * alpha


class Server(NamedTuple):
    G: Array
    W: Array
    w0: Array
    r: Array  # rounds done


class Broadcast(NamedTuple):
    G: Array
    W: Array
    r: Array


class Sums(NamedTuple):
    G: Array
    W: Array


@record
class FastFedDA(Algorithm[Server, Array, Broadcast, Sums]):
    """Dual averaging with weighted sums of past gradients and past models.

        w = prox_{(A_t/q) g}(((mu/2) W_t + gamma_t w_0 - G_t) / q),   q = (mu/2) A_t + gamma_t

    Parameters
    ----------
    mu : float
        Strong convexity of the f_i.
    schedule : Constant, Linear or Quadratic
        Weights alpha_t and gamma_t, from `compfed.algorithms.fast_fedda`.
    tau : int, default=5
        Local steps per round.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.FastFedDA(mu=0.1, schedule=cf.algorithms.fast_fedda.Constant(2.0))
    FastFedDA(mu=0.1, schedule=Constant(gamma=2.0), tau=5)
    """

    citation = Citation(
        "Bao, Crawshaw, Luo, Liu", 2022,
        "Fast Composite Optimization and Statistical Recovery in Federated Learning", "ICML",
    )  # fmt: skip
    composite = True
    exact = True
    setting = "its paper states O(1/t); the schedules are those of public code"
    slow = True
    exact_sampled = True
    sampling = "observed"
    schemes = ("proportional", "self-normalised")  # not "uniform": sums are sent, not changes of them

    mu: float = positive()
    schedule: Constant | Linear | Quadratic = part()
    tau: int = count(default=5)

    state_depends_on = ("tau", "schedule")  # the weights of the sums follow from them

    def init(self, x0):
        zero = jnp.zeros_like(x0)
        return Server(G=zero, W=zero, w0=x0, r=jnp.zeros((), x0.dtype)), x0

    def point(self, g, G, W, w0, t):
        _, A, gamma = self.schedule(t)
        q = 0.5 * self.mu * A + gamma
        w = g.prox((0.5 * self.mu * W + gamma * w0 - G) / q, A / q)
        return jnp.where(t < 0, w0, w)  # before the first gradient

    def broadcast(self, g, s):
        return Broadcast(G=s.G, W=s.W, r=s.r)

    def client_update(self, f, g, d, c, key):
        def step(sums, k_key):
            k, key = k_key
            t = d.r * self.tau + k
            alpha, _, _ = self.schedule(t)
            w = self.point(g, sums.G, sums.W, c, t - 1)
            return Sums(G=sums.G + alpha * f.grad(w, key), W=sums.W + alpha * w), None

        steps = jnp.arange(self.tau), jax.random.split(key, self.tau)
        sums, _ = jax.lax.scan(step, Sums(G=d.G, W=d.W), steps)
        return sums, c, self.point(g, sums.G, sums.W, c, (d.r + 1) * self.tau - 1)

    def server_update(self, g, s, mean, weight):
        return Server(G=mean.G, W=mean.W, w0=s.w0, r=s.r + 1)

    def solution(self, g, s):
        return self.point(g, s.G, s.W, s.w0, s.r * self.tau - 1)

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(mu=max(b.mu, 1e-6 * b.L), schedule=Constant(b.L_max / scale), tau=b.tau)
