r"""ProximalBFGS: a quasi-Newton step at the server; on the wire it is proximal gradient, and one number more.

Clients send the value and the gradient of f_i at a trial point. The server remembers the last pairs

    s = difference of two points,   y = difference of the gradients of f there

from every evaluation, refused trials included, and makes of them the matrix B of limited-memory BFGS, a diagonal and a
few vectors, so that no d x d array exists. Then, as in ProximalNewton,

    u = argmin <grad f(x), u - x> + (u - x)^T B (u - x) / 2 + g(u),   trial = x + t (u - x)

with t halved while F(trial) > F(x) + t D / 10^4. Before the first pair B is I / eta.

Reference: ours in this form. The nearest published method is Lee, Lim, Wright, "A distributed quasi-Newton algorithm for empirical
risk minimization with nonsmooth regularization", KDD 2018: L-BFGS with a proximal step over data that lies on several machines.
Other relatives: Nocedal, Wright, "Numerical Optimization", Springer 2006, section 7.2 (limited memory, unrolled); Lee, Sun,
Saunders, "Proximal Newton-type methods for minimizing composite functions", SIAM J. Optimization 2014 (proximal quasi-Newton).
Deviations: the step is computed at the server, from the sum of the gradients, and not shared out over the machines;
the diagonal that the updates start from; pairs from refused trials.
"""

from __future__ import annotations

from typing import NamedTuple

from jax import Array

from compfed._utils.array_namespace import namespace
from compfed._utils.records import count, positive, record
from compfed.algorithms.base import Algorithm, Citation
from compfed.problem.model_step import FAR, descends, either, in_metric, value_of


class Point(NamedTuple):
    x: Array
    F: Array
    gradient: Array


class Server(NamedTuple):
    at: Point
    S: Array  # (memory, d), the newest pair last; zero where there is none yet
    Y: Array
    trial: Array
    t: Array
    D: Array


class Broadcast(NamedTuple):
    x: Array


class Update(NamedTuple):
    value: Array
    gradient: Array


@record
class ProximalBFGS(Algorithm[Server, None, Broadcast, Update]):
    citation = Citation(
        authors="Lee, Lim, Wright",
        year=2018,
        title="A distributed quasi-Newton algorithm for empirical risk minimization with nonsmooth regularization",
        where="KDD",
        ours=True,
    )
    composite = True
    exact = True
    by_questions = True
    true_of_f = ("S", "Y")
    scalars = ("value",)

    eta: float = positive()
    memory: int = count(default=30)

    state_depends_on = ("memory",)

    def init(self, x0):
        xp, zero = namespace(x0), namespace(x0).zeros((), x0.dtype)
        none = xp.zeros((self.memory, x0.size), x0.dtype)
        nothing = Point(x0, zero + FAR, xp.zeros_like(x0))
        return Server(at=nothing, S=none, Y=none, trial=x0, t=zero + 1.0, D=zero), None

    def broadcast(self, g, s):
        return Broadcast(x=s.trial)

    def client_update(self, f, g, d, c, key):
        return Update(f.value(d.x), f.full_grad(d.x)), c, d.x

    def server_update(self, g, s, mean, share):
        new = Point(s.trial, mean.value + value_of(g, s.trial), mean.gradient)
        accepted = descends(new.F, s.at.F, s.t * s.D)
        S, Y = remembered(s.S, s.Y, new, s.at)
        at = either(accepted, new, s.at)
        t = either(accepted, s.t * 0 + 1.0, s.t / 2)
        S, Y = either(t < 1e-6, (S * 0, Y * 0), (S, Y))  # what it remembers misleads: begin anew
        u = in_metric(g, at.x, at.gradient, S, Y, 1.0 / self.eta)
        D = at.gradient @ (u - at.x) + value_of(g, u) - value_of(g, at.x)
        trial = either(t == 1.0, u, at.x + t * (u - at.x))
        return Server(at, S, Y, trial, t, D)

    def solution(self, g, s):
        return s.at.x

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=scale / b.L)


def remembered(S, Y, new, old):
    """The pairs with one more, if its points are apart and f curves upwards between them, both to more than rounding."""
    s, y = new.x - old.x, new.gradient - old.gradient
    xp, norm = namespace(s), namespace(s).linalg.norm
    curved = (s @ y > 1e-14 * norm(s) * norm(y)) & (norm(s) > 1e-12 * norm(old.x))
    return either(curved, (xp.concatenate([S[1:], s[None]]), xp.concatenate([Y[1:], y[None]])), (S, Y))
