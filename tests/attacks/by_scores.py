"""Attacks by `Score` with few models: sums of absolute errors, the largest prediction, the extreme scores of columns."""

from __future__ import annotations

import numpy as np
from attacks.target import Target, unscaled

from compfed.federation import Refusal, Score
from compfed.federation.spec import ObjectiveSpec
from compfed.losses import Logistic, NegativeBinomial, Squared

LARGE = 1e7  # so large that labels are lost beside predictions
COLUMNS = 5  # of a row: more than luck knows
NO_LINES = np.empty((0, 2))


def absolute_errors(target: Target, rows: int = 8) -> np.ndarray:
    """sum |u| + sum u is twice the sum over the rows above a threshold; between the two largest it is one row.

    The same for directions u + 0.01 e_j gives its columns. About eight scores of a linear model for each row.
    """
    scaling = target.scaling()
    objective, rng = ObjectiveSpec(Squared(), scaling), np.random.default_rng(1)

    def above(w: np.ndarray, t: float) -> float:
        """The sum of w^T a - t over the rows where it is positive."""
        x = LARGE * np.append(w, -t)
        (reply,) = target.ask(Score(objective, x, np.zeros((0, 0)), np.zeros(1), NO_LINES))
        if isinstance(reply, Refusal):
            return np.nan
        return float(reply.moments[6, 0] + reply.moments[0, 0] - reply.moments[1, 0]) / 2 / LARGE

    found = []
    for _ in range(rows):
        u, t = rng.normal(size=target.width) / np.sqrt(target.width), 2.0
        for _ in range(6):
            first, second = above(u, t), above(u, t + 0.01)
            if not np.isfinite(first + second):
                return np.reshape(found, (-1, target.width))
            slope = (first - second) / 0.01
            if abs(slope - 1) < 1e-3:
                break
            t += 0.4 if slope > 1 else -0.3
        else:
            continue
        row = np.full(target.width, np.nan)
        for j in range(COLUMNS):
            row[j] = (above(u + 0.01 * np.eye(target.width)[j], t) - first) / 0.01
        if np.isnan(row[:COLUMNS]).any():
            break
        found.append(unscaled(scaling, row))
    return np.reshape(found, (-1, target.width))


def largest_prediction(target: Target, rows: int = 8) -> np.ndarray:
    """sum u^2 / sum u of predictions u = exp(z) is the largest of them, where the curvature of the loss rests on all rows.

    The same for directions w + 0.05 e_j gives the columns of that row: six scores for each.
    """
    scaling = target.scaling()
    objective, rng, found = ObjectiveSpec(NegativeBinomial(1.0), scaling), np.random.default_rng(2), []

    def largest(w: np.ndarray) -> float:
        (reply,) = target.ask(Score(objective, np.append(w, 0.0), np.zeros((0, 0)), np.zeros(1), NO_LINES))
        return np.nan if isinstance(reply, Refusal) else float(np.log(reply.moments[2, 0] / reply.moments[0, 0]))

    for _ in range(rows):
        w = 10 * rng.normal(size=target.width) / np.sqrt(target.width)
        first, row = largest(w), np.full(target.width, np.nan)
        for j in range(COLUMNS):
            row[j] = (largest(w + 0.05 * np.eye(target.width)[j]) - first) / 0.05
        found.append(unscaled(scaling, row))
    return np.reshape([row for row in found if np.isfinite(row).any()], (-1, target.width))


def extreme_scores(target: Target) -> np.ndarray:
    """The least and the largest value of every column in each class, one score a column: often of one and the same row."""
    scaling = target.scaling()
    objective, found = ObjectiveSpec(Logistic(), scaling, np.array([0, 1])), np.full((4, target.width), np.nan)
    t = np.linspace(-4, 12, 100)
    for j in range(target.width):
        (reply,) = target.ask(Score(objective, np.eye(target.width + 1)[j], t[None], np.empty(0), NO_LINES))
        if isinstance(reply, Refusal):
            break
        none, every = reply.high[0, :, 0] == 0, reply.low[0, :, 0] == reply.class_weights[:, None]
        for k in (0, 1):
            if none[k].any() and not none[k].all():
                found[k, j] = t[none[k]][-1] + (t[1] - t[0]) / 2
            if every[k].any() and not every[k].all():
                found[2 + k, j] = t[every[k]][0] - (t[1] - t[0]) / 2
    return unscaled(scaling, found[np.isfinite(found).any(axis=1)])
