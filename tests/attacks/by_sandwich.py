"""Attacks by what a robust covariance adds: the products of row gradients, sum_l r_l^2 a_l a_l^T, at models that the server chooses."""

from __future__ import annotations

import numpy as np
from attacks.by_models import bisected, direction, random_models, rank_ones
from attacks.target import Target, distinct, unscaled

from compfed.federation import Inference, Refusal
from compfed.federation.spec import FeatureScaling, ObjectiveSpec
from compfed.losses import Logistic, Loss, Poisson, Squared
from compfed.losses.base import symmetric_matrix


def products(target: Target, objective: ObjectiveSpec, X: np.ndarray) -> np.ndarray:
    """The products at every row of X, over all coordinates; NaN where the site refuses."""
    d = X.shape[1]
    replies = target.ask(*[Inference(objective, x, np.arange(d, dtype=np.int32)) for x in X])
    none = np.full((d, d), np.nan)
    return np.array([none if isinstance(r, Refusal) else symmetric_matrix(r.products, d) for r in replies])


def half_space_products(target: Target) -> np.ndarray:
    """Logistic models at 1e8 u: residuals are 1 for rows on the wrong side, and moving the intercept moves one row at a time."""

    def last_columns(objective: ObjectiveSpec, X: np.ndarray) -> np.ndarray:
        return products(target, objective, X)[:, :, -1]

    return bisected(target, Logistic(), 1e8, last_columns)


def span_of_products(target: Target, matrices: int = 200) -> np.ndarray:
    """Products at ordinary models, as many as there are rows, span the a_l a_l^T of the rows: least squares needs no other curvature."""
    known, d = target.scaling(), target.width
    for columns in (d, d // 2, 13, 8):
        j = np.arange(columns)
        scaling = FeatureScaling(known.centre[j], known.scale[j], intercept=True)
        M = products(target, ObjectiveSpec(Squared(), scaling, columns=j), random_models(matrices, columns + 1, 0))
        M = M[np.isfinite(M).all(axis=(1, 2))]
        if len(M):
            found = np.full((target.rows, d), np.nan)
            rows = rank_ones(M, target.rows)[:, :-1]
            found[: len(rows), :columns] = unscaled(scaling, rows)
            return found[: len(rows)]
    return np.empty((0, d))


def largest_residuals(
    target: Target, loss: Loss | None = None, steep: float = 300.0, directions: int = 60
) -> np.ndarray:
    """Poisson models as steep as exp allows: one row has nearly all of the squared residuals, and is the leading eigenvector."""
    scaling, d = target.scaling(), target.width
    X = np.array([np.append(steep / 4 * direction(d, seed), -steep / 8) for seed in range(directions)])
    found = []
    for M in products(target, target.objective(loss or Poisson(), scaling), X):
        if np.isfinite(M).all() and M.any():
            v = np.linalg.eigh(M / np.abs(M).max())[1][:, -1]
            found.append(unscaled(scaling, v[:-1] / v[-1]))
    return distinct(np.array(found).reshape(-1, d), target)


def scores_of_two_sites(total: np.ndarray, mine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The gradients s, t of two sites from C = m m^T + s s^T + t t^T of three sites, whose gradients add up to 0, and from m.

    s + t = -m, and (s - t)(s - t)^T = 2 (C - m m^T) - m m^T has rank one.
    """
    w, V = np.linalg.eigh(2 * (total - np.outer(mine, mine)) - np.outer(mine, mine))
    apart = np.sqrt(max(w[-1], 0.0)) * V[:, -1]
    return (-mine + apart) / 2, (-mine - apart) / 2
