"""Step sizes from Lipschitz bounds, so that nobody has to tune; `scale` is the one knob left for those who do.

The rules are in terms of L (of f), L_max (of the worst f_i), mu (the ridge) and tau. For the methods whose local work
is a gradient step corrected for drift, the length of a whole round matters as well as that of a step: eta is the
smaller of 1/L_max and 4/(L_max tau), found stable on every problem tried. Methods that solve a local proximal problem
take its parameter a few times 1/L_max, and the inner step that this parameter allows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import compfed.algorithms as alg
from compfed.algorithms import fast_fedda, scaffnew
from compfed.errors import InputError
from compfed.problem.problem import Problem


@dataclass(frozen=True)
class Bounds:
    """What a rule may use."""

    L: float
    L_max: float
    mu: float
    tau: int
    d: int

    def corrected(self, k: float) -> float:
        """The local step of a drift-corrected method."""
        return k * min(1.0, 4.0 / self.tau) / self.L_max

    def prox(self, k: float) -> dict[str, float]:
        """(parameter, inner step) of a local proximal problem f_i + ||. - v||^2 / (2 parameter)."""
        parameter = 8.0 * k / self.L_max
        return {"parameter": parameter, "eta": 1.0 / (self.L_max + 1.0 / parameter)}


def _prox(make: Callable[..., alg.Algorithm]) -> Callable[[Bounds, float], alg.Algorithm]:
    return lambda b, k: make(b=b, **b.prox(k))


RULES: dict[type[alg.Algorithm], Callable[[Bounds, float], alg.Algorithm]] = {
    alg.DecoupledProx: lambda b, k: alg.DecoupledProx(eta=b.corrected(k), tau=b.tau),
    alg.AcceleratedDecoupledProx: lambda b, k: alg.AcceleratedDecoupledProx(eta=b.corrected(k), tau=b.tau),
    alg.CompressedDecoupledProx: lambda b, k: alg.CompressedDecoupledProx(
        eta=b.corrected(k) / 3,
        keep=int(np.ceil(0.05 * b.d)),
        tau=b.tau,  # the memory lags: shorter rounds
    ),
    alg.FedMid: lambda b, k: alg.FedMid(eta=k / b.L_max, tau=b.tau),
    alg.FedDA: lambda b, k: alg.FedDA(eta=k / b.L_max, tau=b.tau),
    alg.FastFedDA: lambda b, k: alg.FastFedDA(
        mu=max(b.mu, 1e-6 * b.L), schedule=fast_fedda.Constant(b.L_max / k), tau=b.tau
    ),
    alg.FedDR: _prox(lambda b, parameter, eta: alg.FedDR(eta=eta, lam=parameter, tau=b.tau)),
    alg.FedADMM: _prox(lambda b, parameter, eta: alg.FedADMM(eta=eta, rho=1.0 / parameter, tau=b.tau)),
    alg.FedPLT: _prox(lambda b, parameter, eta: alg.FedPLT(eta=eta, rho=parameter, tau=b.tau)),
    alg.Scaffnew: lambda b, k: alg.Scaffnew(eta=k / b.L_max, steps=scaffnew.Fixed(tau=b.tau)),
    alg.NormalMap: lambda b, k: alg.NormalMap(eta=0.8 * b.corrected(k), gamma=0.8 * b.corrected(k) * b.tau, tau=b.tau),
    alg.CoupledControlVariates: lambda b, k: alg.CoupledControlVariates(eta=b.corrected(k), tau=b.tau),
    alg.ServerProx: lambda b, k: alg.ServerProx(eta=b.corrected(k), tau=b.tau),
    alg.NaiveCoupled: lambda b, k: alg.NaiveCoupled(eta=b.corrected(k), tau=b.tau),
    alg.FedAvg: lambda b, k: alg.FedAvg(eta=k / b.L_max, tau=b.tau),
    alg.FedProx: lambda b, k: alg.FedProx(eta=k / (1.1 * b.L_max), mu=0.1 * b.L_max, tau=b.tau),
    alg.Scaffold: lambda b, k: alg.Scaffold(eta=b.corrected(k), tau=b.tau),
    alg.Mime: lambda b, k: alg.Mime(eta=k / (b.L_max * b.tau), tau=b.tau),
    alg.MimeLite: lambda b, k: alg.MimeLite(eta=k / (b.L_max * b.tau), tau=b.tau),
    alg.FedSplit: _prox(lambda b, parameter, eta: alg.FedSplit(eta=eta, s=parameter, tau=b.tau)),
    alg.FedPD: _prox(lambda b, parameter, eta: alg.FedPD(eta=eta, eta_pd=parameter, tau=b.tau)),
    alg.ProximalGradient: lambda b, k: alg.ProximalGradient(eta=k / b.L),
    alg.FISTA: lambda b, k: alg.FISTA(eta=k / b.L),
}


def automatic(problem: Problem, tau: int = 5, at: Any = None) -> type[alg.Algorithm]:
    """The method that takes the longer step per round: local steps are worth it unless one site is far steeper than f.

    A round of AcceleratedDecoupledProx is a step of length min(tau, 4) / L_max, one of FISTA of length 1 / L. With a
    single site there is no communication to save, and FISTA needs fewer gradients.
    """
    b = bounds(problem, tau, at)
    return alg.AcceleratedDecoupledProx if problem.n > 1 and b.corrected(1.0) * tau > 1.0 / b.L else alg.FISTA


def bounds(problem: Problem, tau: int, at: Any = None) -> Bounds:
    """L, L_i and mu as the sites report them: of the loss, or of its curvature `at` a model where that has no bound."""
    if at is not None and problem.loss.curvature is None:
        L, clients = problem.curvature_at(at)
    else:
        L, clients = problem.lipschitz, problem.client_lipschitz
    return Bounds(L=L, L_max=float(clients.max()), mu=problem.strong_convexity, tau=tau, d=problem.d)


def suggest(
    algorithm: str | type[alg.Algorithm], problem: Problem, tau: int = 5, scale: float = 1.0, at: Any = None
) -> Any:
    """The algorithm with step sizes that suit the problem; `scale` multiplies its main step.

    For a loss whose curvature has no bound (Poisson, `from_function`) the steps suit the neighbourhood of `at`.

    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)
    >>> trace = cf.simulate(problem, suggest("DecoupledProx", problem), 100, reference=cf.solve(problem))
    >>> bool(trace["optimality"][-1] < 1e-6)
    True
    """
    cls = alg.find(algorithm) if isinstance(algorithm, str) else algorithm
    if not isinstance(cls, type):
        raise InputError(f"algorithm must be a name such as 'DecoupledProx' or a class; got {cls!r}.")
    if cls not in RULES:
        raise InputError(
            f"there is no rule for the step sizes of {cls.__name__}; build it yourself: {cls.__name__}(eta=...)."
        )
    if not (np.isfinite(scale) and scale > 0):
        raise InputError(f"scale={scale!r} must be a finite number > 0.")
    return RULES[cls](bounds(problem, tau, at), scale)
