"""Federated standardisation: the pooled mean and standard deviation of every column, from two sums over the sites."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from compfed.federation.conversation import Federation, Request, Talk, converse
from compfed.federation.questions import Describe, Moments
from compfed.federation.view import Part


class Scaling(NamedTuple):
    """Mean and standard deviation of each column; one that never varies has standard deviation 1."""

    mean: np.ndarray
    scale: np.ndarray


def standardisation(federation: Federation, weights: np.ndarray | None = None) -> Scaling:
    """mean = sum_i p_i sum_l q_il a_il, scale^2 = sum_i p_i sum_l q_il (a_il - mean)^2, rows weighted as in the loss.

    `weights` are the p_i; each site's share of the rows unless given. Two messages: a site first sends its own mean,
    hears the pooled one, and sends its mean square distance from that.

    >>> from compfed.data import from_arrays
    >>> from compfed.federation import InProcess
    >>> federation = InProcess(from_arrays([[[0.0], [2.0]], [[10.0]]], [[0, 0], [0]]))
    >>> [round(float(v[0]), 3) for v in standardisation(federation)]
    [4.0, 4.32]
    """

    def talk() -> Talk[Scaling]:
        (answers,) = yield [Request((Describe(), Moments()))]
        rows = np.array([described.weight for described, _ in answers])
        p = rows / rows.sum() if weights is None else np.asarray(weights, float)
        mean = pooled_mean(np.array([moments.mean for _, moments in answers]), p)
        return Scaling(mean, (yield from spread(mean, p)))

    return converse(federation, talk())[0]


def pooled_mean(means: np.ndarray, p: np.ndarray) -> np.ndarray:
    """sum_i p_i mean_i, around one of them: a constant column has exactly its value as mean."""
    return means[0] + p @ (means - means[0])


def spread(centre: np.ndarray, p: np.ndarray, part: Part | None = None) -> Talk[np.ndarray]:
    """The root mean square distance of every column from `centre`; 1 for a column that does not vary."""
    (answers,) = yield [Request((Moments(centre, part),))]
    variance = p @ np.array([answer.mean for (answer,) in answers])
    # values that differ by rounding only: what is far below the size of a column is no variation
    varies = variance > (10 * np.finfo(float).eps * np.abs(centre)) ** 2
    return np.where(varies, np.sqrt(variance), 1.0)
