r"""ProximalGradient: the centralised method, one gradient per client and round.

    x+ = prox_{eta g}(x - eta sum_i p_i grad f_i(x))

Exact for eta < 2/L; with eta = 1/L, ||x_k - x*||^2 <= (1 - mu/L)^k ||x_0 - x*||^2.

Reference: Beck, "First-Order Methods in Optimization", SIAM 2017, chapter 10. Deviations: none.
"""

from __future__ import annotations

from typing import NamedTuple

from jax import Array

from compfed._utils.records import positive, record
from compfed.algorithms.base import Algorithm, Citation


class Global(NamedTuple):
    x: Array


class Update(NamedTuple):
    gradient: Array


@record
class ProximalGradient(Algorithm[Global, None, Global, Update]):
    """The centralised proximal gradient method: one gradient per client and round.

        x+ = prox_{eta g}(x - eta sum_i p_i grad f_i(x))

    Parameters
    ----------
    eta : float
        Step size, below 2/L.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.ProximalGradient(eta=0.1)
    ProximalGradient(eta=0.1)
    """

    citation = Citation("Beck", 2017, "First-Order Methods in Optimization", "SIAM, chapter 10")
    composite = True
    exact = True
    exact_proof = "Beck 2017, chapter 10, eta <= 1/L"

    eta: float = positive()

    state_depends_on = ()

    def init(self, x0):
        return Global(x=x0), None

    def broadcast(self, g, s):
        return s

    def client_update(self, f, g, d, c, key):
        return Update(gradient=f.grad(d.x, key)), c, d.x

    def server_update(self, g, s, mean, weight):
        return Global(x=g.prox(s.x - self.eta * mean.gradient, self.eta))

    def solution(self, g, s):
        return s.x

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=scale / b.L)
