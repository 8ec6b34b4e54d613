"""The paper's problem, and how large the reproduction is.

The paper does not state the dimension, the label rule or the scaling of the rows; `compfed.data.synthetic` says what
was inferred and why.
"""

from __future__ import annotations

from dataclasses import dataclass

from compfed import regularisers
from compfed.data import synthetic
from compfed.losses import Logistic
from compfed.problem.problem import Problem

RIDGE, L1, SPARSE_L1 = 0.01, 1e-4, 1e-3


@dataclass(frozen=True)
class Size:
    """How large the reproduction is. The full size is the paper's."""

    clients: int = 30
    samples: int = 2000
    rounds: int = 600  # full gradients, for what converges; what stops at a floor gets half
    stochastic_rounds: int = 400  # Figure 1, right
    etas: tuple[float, float, float] = (1.0, 0.2, 0.02)  # Figure 2, left
    long_rounds: int = 2000  # Figure 2: until the slower settings reach their floor
    slowest_rounds: int = 4000  # Figure 2, left, the smallest eta
    draws: int = 5  # of the data, for claims that depend on it
    theory_rounds: int = 3000
    seeds: int = 5
    everything: bool = True  # also the runs that repeat a point in another setting


QUICK = Size(
    clients=10, samples=200, stochastic_rounds=200, etas=(1.0, 0.2, 0.05), long_rounds=1800, slowest_rounds=1600, draws=1,
    theory_rounds=600, seeds=2, everything=False,
)  # fmt: skip


def paper_problem(samples: int, clients: int = 30, lam: float = L1, seed: int = 0) -> Problem:
    """(alpha, beta) = (10, 10), d = 60, ridge 0.01 inside every f_i; n = 30 in the paper."""
    sites = synthetic(alpha=10, beta=10, clients=clients, samples=samples, features=60, seed=seed)
    return Problem(Logistic(ridge=RIDGE), regularisers.L1(lam), sites)
