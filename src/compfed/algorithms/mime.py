r"""Mime and MimeLite: clients imitate a centralised method with momentum.

Solves min_x sum_i p_i f_i(x) (smooth only). A round has two exchanges. In the first the participants send their full
gradient at x, and the server forms the mean c. In the second they take tau steps

    y+ = y - eta ((1 - beta) v + beta m),      v = G_i(y; B) - G_i(x; B) + c

with the same mini-batch B in both gradients and the momentum m frozen, so that one client's steps cannot bias it.
Then m+ = (1 - beta) c + beta m. With all clients and full gradients it is exact. With some of them c is their mean only, and
the noise of the draws stays: it moves about the minimiser at a distance that falls with eta.

    x   global model      y   local model      m   momentum      c   mean gradient at x

MimeLite leaves the correction of local gradients out,

    y+ = y - eta ((1 - beta) G_i(y) + beta m)

and clients also send their full gradient at x, which only feeds the momentum: m+ = (1 - beta) c + beta m. One exchange per
round; but nothing corrects the drift of clients, so a floor remains when f_i differ. With beta = 0 it is FedAvg.

Reference: Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh, "Mime: Mimicking Centralized Stochastic Algorithms
in Federated Learning", 2020 (arXiv 2008.03606), with momentum SGD as base method. Written from public code: the
paper's own listing was not at hand, so lines carry no numbers. Deviations: a server step eta_g; unequal weights. These are
averaged without bias in each exchange; with tau > 1 the two means of a round are over one sample, which leaves a bias
of the order of eta^2 in x, with equal weights too. MimeLite: clients of unequal weight are drawn in proportion to it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from compfed._utils.records import count, nonnegative, positive, record
from compfed.algorithms.base import Algorithm, C, Citation, D, S, U


class Server(NamedTuple):
    x: Array
    m: Array
    c: Array  # of the current round


class Client(NamedTuple):
    x: Array  # global model of the current round, kept from the first exchange to the second


class Model(NamedTuple):
    x: Array


class Gradient(NamedTuple):
    gradient: Array


class Broadcast(NamedTuple):
    m: Array
    c: Array


class Update(NamedTuple):
    delta: Array  # y_tau - x


class MeanGradient:
    """The first exchange: c = the mean of grad f_i(x) over the participants, over all rows."""

    def broadcast(self, g, s: Server):
        return Model(x=s.x)

    def client_update(self, f, g, d: Model, c: Client, key):
        return Gradient(gradient=f.full_grad(d.x)), Client(x=d.x), d.x

    def server_update(self, g, s: Server, mean: Gradient, weight):
        return s._replace(c=mean.gradient)


@record
class FrozenMomentum(Algorithm[S, C, D, U]):
    """What Mime and MimeLite have in common: local steps with a momentum that does not change within a round."""

    citation = Citation(
        "Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh", 2020,
        "Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning", "arXiv 2008.03606",
    )  # fmt: skip
    composite = False
    sampling = "observed"
    schemes = ("proportional", "uniform", "self-normalised")
    state_depends_on = ()

    eta: float = positive()
    eta_g: float = positive(default=1.0)
    tau: int = count(default=5)
    beta: float = nonnegative(default=0.9)

    def local_model(self, gradient, x, m, key):
        def step(y, key):
            return y - self.eta * ((1.0 - self.beta) * gradient(y, key) + self.beta * m), None

        return jax.lax.scan(step, x, jax.random.split(key, self.tau))[0]

    def solution(self, g, s: Any):
        return s.x

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=scale / (b.L_max * b.tau), tau=b.tau)


@record
class Mime(FrozenMomentum[Server, Client, Broadcast, Update]):
    """Clients imitate a centralised method with momentum, in two exchanges a round; for smooth problems.

        y+ = y - eta ((1 - beta) (G_i(y; B) - G_i(x; B) + c) + beta m),   c = sum_i p_i grad f_i(x)

    Parameters
    ----------
    eta : float
        Local step size.
    eta_g : float, default=1.0
        Server step size.
    tau : int, default=5
        Local steps per round.
    beta : float, default=0.9
        Momentum.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.Mime(eta=0.1, tau=3)
    Mime(eta=0.1, eta_g=1.0, tau=3, beta=0.9)
    """

    citation = FrozenMomentum.citation
    exact = True
    exact_sampled = False

    def init(self, x0):
        zero = jnp.zeros_like(x0)
        return Server(x=x0, m=zero, c=zero), Client(x=x0)

    @property
    def exchanges(self):
        return MeanGradient(), self

    def broadcast(self, g, s):
        return Broadcast(m=s.m, c=s.c)

    def client_update(self, f, g, d, c, key):
        def corrected(y, key):
            return f.grad(y, key) - f.grad(c.x, key) + d.c  # one key: one mini-batch, used twice

        y = self.local_model(corrected, c.x, d.m, key)
        return Update(delta=y - c.x), c, y

    def server_update(self, g, s, mean, weight):
        m = (1.0 - self.beta) * s.c + self.beta * s.m
        return Server(x=s.x + self.eta_g * mean.delta, m=m, c=s.c)


class LiteState(NamedTuple):
    x: Array
    m: Array


class LiteUpdate(NamedTuple):
    delta: Array  # y_tau - x
    gradient: Array  # grad f_i(x) over all rows


@record
class MimeLite(FrozenMomentum[LiteState, None, LiteState, LiteUpdate]):
    """Mime without the correction of local gradients, in one exchange a round; for smooth problems.

        y+ = y - eta ((1 - beta) G_i(y; B) + beta m)

    Parameters
    ----------
    eta, eta_g, tau, beta
        Steps, number of local steps and momentum, as in `Mime`.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.MimeLite(eta=0.1, tau=3)
    MimeLite(eta=0.1, eta_g=1.0, tau=3, beta=0.9)
    """

    citation = FrozenMomentum.citation
    exact = False

    def init(self, x0):
        return LiteState(x=x0, m=jnp.zeros_like(x0)), None

    def broadcast(self, g, s):
        return s

    def client_update(self, f, g, d, c, key):
        y = self.local_model(f.grad, d.x, d.m, key)
        return LiteUpdate(delta=y - d.x, gradient=f.full_grad(d.x)), c, y

    def server_update(self, g, s, mean, weight):
        m = (1.0 - self.beta) * mean.gradient + self.beta * s.m
        return LiteState(x=s.x + self.eta_g * mean.delta, m=m)
