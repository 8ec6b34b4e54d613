"""A bound on F(x) - F(x*) that needs no x*: the duality gap of a linear model with an l1 or elastic-net penalty.

    min_x sum_l p_l loss(a_l^T x, y_l) + g(x)  =  max_theta - sum_l p_l loss*(theta_l, y_l) - g*(-A^T (p theta))

theta is the slope of the loss at x, shifted so that the free intercept is optimal and stretched into the domain of g*.
A slope at the end of the domain of loss* would be shifted out of it: a little of the slopes of the null model, which are
far from the end and need no shift, keeps it inside. The gradient at x is A^T (p theta), so the server knows shift, mixture
and stretch; one more question gives the sum of the conjugates there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compfed.federation.conversation import Request, Talk
from compfed.federation.questions import ValueAndGradient
from compfed.federation.task import Task
from compfed.federation.view import Frame
from compfed.problem.gradient_mapping import at_point
from compfed.problem.regularisers import ElasticNet, OnBlock
from compfed.solvers.search import Minimum, Start


def duality_gap(task: Task, frame: Frame, minimum: Minimum, null: Start | None = None) -> Talk[float | None]:
    """F(x) minus a dual value, and what rounding may hide: F(x) - F(x*) is at most this. None where no dual point is at hand.

    `null` is the model without features, and what the sites said of it.
    """
    g: Any = task.regulariser.g if isinstance(task.regulariser, OnBlock) else task.regulariser
    loss: Any = task.loss
    if not isinstance(g, ElasticNet) or not hasattr(loss, "conjugate") or minimum.at is None:
        return None
    gradient = minimum.at.gradient
    shift = float(gradient[-1]) if frame.intercept else 0.0  # sum_l p_l theta_l
    mix, at_null, v = 0.0, 0.0, gradient[: frame.penalised]  # columns are centred: the shift does not change it
    if shift != 0 and null is not None and null.seen is not None:
        at_null = float(null.x[-1])
        mix = 2 * abs(shift) / (2 * abs(shift) + loss.room(at_null))
        v = (1 - mix) * v + mix * null.seen.at.gradient[: frame.penalised]
    l1, l2 = np.broadcast_to(g.l1, v.shape), np.broadcast_to(g.l2, v.shape)
    hard = l2 == 0  # where g* is an indicator
    if (l1[hard] == 0).any():  # of zero alone: stretching finds no other dual point than zero
        return None
    excess = np.abs(v[hard]) > l1[hard]
    stretch = float(np.min(l1[hard][excess] / np.abs(v[hard][excess]), initial=1.0))
    dual_point = np.array([[shift, stretch, mix, at_null]])
    (answers,) = yield [Request((ValueAndGradient(task.view, minimum.x[None], dual_point),))]
    said = [answer for (answer,) in answers]
    value = float(task.weights @ [answer.value[0] for answer in said])
    conjugate = float(task.weights @ [answer.conjugate[0] for answer in said])
    over = np.maximum(np.abs(stretch * v[~hard]) - l1[~hard], 0.0)
    dual = -conjugate - float(np.sum(over**2 / (2 * l2[~hard])))
    primal = at_point(task.regulariser, minimum.x, value, gradient, 1.0).objective
    size = minimum.at.terms * (1.0 + float(np.abs(minimum.x).sum()))  # of the terms of both, before they cancel
    gap = max(primal - dual, 0.0) + 4 * np.finfo(float).eps * (abs(primal) + abs(dual) + size)
    return float(gap) if np.isfinite(gap) else None
