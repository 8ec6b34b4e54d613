"""Small problems that tests share, so that equal shapes compile once."""

from __future__ import annotations

import numpy as np

import compfed as cf
from compfed.regularisers import Regulariser


def quadratics(
    seed: int = 0, n: int = 5, d: int = 8, rows: int = 12, g: Regulariser | None = None, ridge: float = 0.1
) -> cf.Problem:
    """Strongly heterogeneous quadratics: every site has its own curvature and its own minimiser."""
    rng = np.random.default_rng(seed)
    A = [rng.standard_normal((rows, d)) * (0.4 + rng.random(d)) for _ in range(n)]
    y = [a @ (2.0 * rng.standard_normal(d)) + rng.standard_normal(rows) for a in A]
    regulariser = cf.regularisers.L1(1.0) if g is None else g
    return cf.Problem(cf.losses.Squared(ridge=ridge), regulariser, cf.data.from_arrays(A, y))


def quadratic_oracle(problem: cf.Problem):
    """(H, b) in NumPy with grad f_i(x) = H_i x - b_i, for a problem with squared loss."""
    H, b = [], []
    for A, y in zip(problem.sites.features, problem.sites.labels, strict=True):
        H.append(A.T @ A / len(A) + float(problem.loss.ridge) * np.eye(problem.d))
        b.append(A.T @ y / len(A))
    return np.array(H), np.array(b)


def soft(v: np.ndarray, t: float) -> np.ndarray:
    return np.sign(v) * np.maximum(np.abs(v) - t, 0.0)


def logistic(seed: int = 0, samples: int | list[int] = 20, n: int = 5, d: int = 8, weights: bool = False) -> cf.Problem:
    """A small copy of the paper's problem; `weights` gives sites their share of the rows."""
    sites = cf.data.synthetic(clients=n, samples=samples, features=d, seed=seed)
    return cf.Problem(
        cf.losses.Logistic(ridge=0.05), cf.regularisers.L1(2e-3), sites, weights=sites.shares if weights else None
    )
