"""A bound on F(x) - F(x*) that needs no x*: the duality gap of a linear model with an l1 or elastic-net penalty.

    min_x sum_l p_l loss(a_l^T x, y_l) + g(x)  =  max_theta - sum_l p_l loss*(theta_l, y_l) - g*(-A^T (p theta))

theta is the slope of the loss at x, centred so that the free intercept is optimal and scaled into the domain of g*. A
site contributes sums: of the losses, of their conjugates, and of the rows weighted by theta.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit, xlogy

from compfed.estimators.frame import Frame
from compfed.problem.losses import Logistic, Squared
from compfed.problem.problem import Problem
from compfed.problem.regularisers import ElasticNet, OnBlock


def duality_gap(problem: Problem, frame: Frame, x: np.ndarray) -> float | None:
    """F(x) minus a dual value, so that F(x) - F(x*) is at most this; None where no dual point is at hand."""
    g: Any = problem.regulariser.g if isinstance(problem.regulariser, OnBlock) else problem.regulariser
    if not isinstance(g, ElasticNet) or not isinstance(problem.loss, (Squared, Logistic)):
        return None
    A = np.concatenate(problem.sites.features)
    y = problem.loss.encode(np.concatenate(problem.sites.labels))
    p = np.concatenate([w * q for w, q in zip(problem.weights, problem.sites.row_shares, strict=True)])
    squared = isinstance(problem.loss, Squared)
    z = A @ x
    theta = z - y if squared else -y * expit(-y * z)
    if frame.intercept:
        theta = theta - p @ theta
    v = (p * theta) @ A[:, : frame.penalised]
    l1, l2 = np.broadcast_to(g.l1, v.shape), np.broadcast_to(g.l2, v.shape)
    hard = l2 == 0  # where g* is an indicator
    if (l1[hard] == 0).any():  # of zero alone: scaling finds no other dual point than zero
        return None
    excess = np.abs(v[hard]) > l1[hard]
    scale = np.min(l1[hard][excess] / np.abs(v[hard][excess]), initial=1.0)
    theta, v = scale * theta, scale * v
    conjugate = theta**2 / 2 + y * theta if squared else _entropy(-y * theta)
    over = np.maximum(np.abs(v[~hard]) - l1[~hard], 0.0)
    dual = -p @ conjugate - np.sum(over**2 / (2 * l2[~hard]))
    return float(problem.objective(x) - dual)


def _entropy(s: np.ndarray) -> np.ndarray:
    """s log s + (1 - s) log(1 - s), the conjugate of the logistic loss; infinite outside [0, 1]."""
    inside = (s >= 0) & (s <= 1)
    s = np.where(inside, s, 0.5)
    return np.where(inside, xlogy(s, s) + xlogy(1 - s, 1 - s), np.inf)
