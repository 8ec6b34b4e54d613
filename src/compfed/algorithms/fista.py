r"""FISTA: accelerated proximal gradient, one gradient per client and round, at the extrapolated point y.

    x+ = prox_{eta g}(y - eta sum_i p_i grad f_i(y)),   y+ = x+ + beta (x+ - x)

The momentum beta is a choice:

- `Plain`: t+ = (1 + sqrt(1 + 4 t^2)) / 2, beta = (t - 1) / t+; F(x_k) - F* <= 2 L ||x_0 - x*||^2 / (k + 1)^2.
- `StronglyConvex(q)`: beta = (1 - sqrt(q)) / (1 + sqrt(q)), q = mu / L; rate 1 - sqrt(mu / L).
- `Restart`: as Plain, but t+ = 1, beta = 0 whenever <y - x+, x+ - x> > 0; needs no mu.

Reference: Beck, Teboulle, "A Fast Iterative Shrinkage-Thresholding Algorithm for Linear Inverse Problems", SIAM J. Imaging
Sciences 2009; O'Donoghue, Candes, "Adaptive Restart for Accelerated Gradient Schemes", Foundations of Computational
Mathematics 2015 (the gradient test). Deviations: none.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from compfed._utils.records import part, positive, record
from compfed.algorithms.base import Algorithm, Citation


def _next(t):
    return 0.5 * (1.0 + jnp.sqrt(1.0 + 4.0 * t * t))


@record
class Plain:
    def __call__(self, t, y, x, x_new):
        return _next(t), (t - 1.0) / _next(t)  # t+, beta


@record
class StronglyConvex:
    q: float = positive()

    def __call__(self, t, y, x, x_new):
        return t, (1.0 - jnp.sqrt(self.q)) / (1.0 + jnp.sqrt(self.q))


@record
class Restart:
    def __call__(self, t, y, x, x_new):
        overshot = (y - x_new) @ (x_new - x) > 0
        return jnp.where(overshot, 1.0, _next(t)), jnp.where(overshot, 0.0, (t - 1.0) / _next(t))


class Server(NamedTuple):
    x: Array
    y: Array
    t: Array


class Broadcast(NamedTuple):
    y: Array


class Update(NamedTuple):
    gradient: Array


@record
class FISTA(Algorithm[Server, None, Broadcast, Update]):
    """Accelerated proximal gradient: one gradient per client and round.

        x+ = prox_{eta g}(y - eta sum_i p_i grad f_i(y)),   y+ = x+ + beta (x+ - x)

    Parameters
    ----------
    eta : float
        Step size, at most 1/L.
    momentum : Plain, StronglyConvex or Restart, default=Restart()
        Rule for beta, from `compfed.algorithms.fista`.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.FISTA(eta=0.1)
    FISTA(eta=0.1, momentum=Restart())
    """

    citation = Citation(
        "Beck, Teboulle", 2009,
        "A Fast Iterative Shrinkage-Thresholding Algorithm for Linear Inverse Problems", "SIAM J. Imaging Sciences",
    )  # fmt: skip
    composite = True
    exact = True
    setting = "with Restart, the default; for Plain proved (Beck, Teboulle 2009, Theorem 4.4, eta <= 1/L)"

    eta: float = positive()
    momentum: Plain | StronglyConvex | Restart = part(default=Restart())

    state_depends_on = ()

    def init(self, x0):
        return Server(x=x0, y=x0, t=jnp.ones((), x0.dtype)), None

    def broadcast(self, g, s):
        return Broadcast(y=s.y)

    def client_update(self, f, g, d, c, key):
        return Update(gradient=f.grad(d.y, key)), c, d.y

    def server_update(self, g, s, mean, weight):
        x = g.prox(s.y - self.eta * mean.gradient, self.eta)
        t, beta = self.momentum(s.t, s.y, s.x, x)
        return Server(x=x, y=x + beta * (x - s.x), t=t)

    def solution(self, g, s):
        return s.x

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=scale / b.L)
