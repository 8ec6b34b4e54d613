r"""FedDR: randomised Douglas-Rachford splitting.

Solves min_x sum_i p_i f_i(x) + g(x). A participant moves its prox centre, takes a proximal step of its loss, and
reflects; the server keeps the mean of the reflected points and takes the proximal step of g:

    y_i += alpha (x - x_i),   x_i = prox_{lam f_i}(y_i),   xhat_i = 2 x_i - y_i
    xtilde = sum_i p_i xhat_i,   x = prox_{lam g}(xtilde)

    x     global model            y, x_i   prox centre and local model of a client
    lam   prox parameter (the paper's eta), often far above 1/L      alpha   relaxation, in (0, 2)

The proximal step of the loss is tau gradient steps on f_i(u) + ||u - y_i||^2 / (2 lam), with eta <= 1/(L + 1/lam):

- start "previous": started at the client's previous x_i. Exact for every tau, even tau = 1.
- start "centre": started at y_i, the literal reading of an approximate proximal step. Stalls at a floor that falls
  as tau grows; here to show that floor.

Reference: Tran-Dinh, Pham, Phan, Nguyen, "FedDR: Randomized Douglas-Rachford Splitting Algorithms for Nonconvex
Federated Composite Optimization", NeurIPS 2021. Lines carry no numbers: written from the authors' code.
Deviations: no preparatory round, x_i = y_i = xhat_i = xtilde = x^0 at the start; tau steps instead of an accuracy that
grows with the rounds, which the theorem about some of the clients asks for: with tau fixed, sampling is observed; weights p_i
instead of 1/n (every k clients equally likely, sum_S p_i delta_i: right for all weights); alpha = 2 is allowed, for the
identity with FedSplit.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import Array

from compfed._utils.records import choice, count, positive, record
from compfed.algorithms.base import Algorithm, Citation


class Server(NamedTuple):
    xtilde: Array


class Client(NamedTuple):
    x: Array
    y: Array


class Broadcast(NamedTuple):
    x: Array


class Update(NamedTuple):
    delta: Array  # change of xhat_i


@record
class FedDR(Algorithm[Server, Client, Broadcast, Update]):
    """Randomised Douglas-Rachford splitting.

        y_i += alpha (x - x_i),   x_i = prox_{lam f_i}(y_i),   x = prox_{lam g}(sum_i p_i (2 x_i - y_i))

    Parameters
    ----------
    eta : float
        Step size of the inner gradient steps, at most 1 / (L + 1/lam).
    lam : float
        Prox parameter.
    alpha : float, default=1.0
        Relaxation, in (0, 2).
    tau : int, default=5
        Local steps per round.
    start : {"previous", "centre"}, default="previous"
        Start of the inner steps: the previous x_i (exact), or y_i (leaves a floor).

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.FedDR(eta=0.1, lam=2.0)
    FedDR(eta=0.1, lam=2.0, alpha=1.0, tau=5, start='previous')
    """

    citation = Citation(
        "Tran-Dinh, Pham, Phan, Nguyen", 2021,
        "FedDR: Randomized Douglas-Rachford Splitting Algorithms for Nonconvex Federated Composite Optimization", "NeurIPS",
    )  # fmt: skip
    composite = True
    exact = True
    setting = "from our warm start, at a fixed tau; its theorem asks for local solves of rising accuracy"
    exact_sampled = True
    sampling = "observed"
    schemes = ("uniform", "self-normalised")  # the same: only weight * mean is used

    eta: float = positive()
    lam: float = positive()
    alpha: float = positive(default=1.0)
    tau: int = count(default=5)
    start: str = choice("previous", "centre", default="previous")

    state_depends_on = ()

    def init(self, x0):
        return Server(xtilde=x0), Client(x=x0, y=x0)

    def broadcast(self, g, s):
        return Broadcast(x=g.prox(s.xtilde, self.lam))

    def client_update(self, f, g, d, c, key):
        y = c.y + self.alpha * (d.x - c.x)

        def step(u, key):
            return u - self.eta * (f.grad(u, key) + (u - y) / self.lam), None

        start = c.x if self.start == "previous" else y
        x, _ = jax.lax.scan(step, start, jax.random.split(key, self.tau))
        # xhat_i need not be stored: it is 2 x_i - y_i, at the start too
        return Update(delta=(2.0 * x - y) - (2.0 * c.x - c.y)), Client(x=x, y=y), x

    def server_update(self, g, s, mean, weight):
        # absent clients keep their xhat_i: sum_S p_i delta_i = weight * mean
        return Server(xtilde=s.xtilde + weight * mean.delta)

    def solution(self, g, s):
        return g.prox(s.xtilde, self.lam)

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=b.inner_step(scale), lam=b.prox_parameter(scale), tau=b.tau)
