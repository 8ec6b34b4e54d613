"""Federated standardisation: the pooled mean and standard deviation of every feature, from two aggregated sums."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from compfed.data.sites import Sites


class Moments(NamedTuple):
    """Mean and standard deviation of each feature; a feature that never varies has standard deviation 1."""

    mean: np.ndarray
    scale: np.ndarray


def moments(sites: Sites, weights: np.ndarray | None = None) -> Moments:
    """mean = sum_i p_i sum_l q_il a_il, scale^2 = sum_i p_i sum_l q_il (a_il - mean)^2, rows weighted as in the loss.

    `weights` are the p_i; each site's share of the rows unless given. Two exchanges of one vector each: a site first
    sends its own mean, hears the pooled one, and sends its mean square distance from that. (One exchange of sums and
    sums of squares would do, and lose all digits of a feature whose mean is large.)

    >>> from compfed.data import from_arrays
    >>> sites = from_arrays([[[0.0], [2.0]], [[10.0]]], [[0, 0], [0]])
    >>> [round(float(v[0]), 3) for v in moments(sites)]
    [4.0, 4.32]
    """
    p = sites.shares if weights is None else np.asarray(weights, float)
    means = np.array([local_mean(sites, i) for i in range(len(sites))])
    mean = means[0] + p @ (means - means[0])  # around one of them: a constant column has exactly its value as mean
    variance = p @ [local_mean(sites, i, around=mean) for i in range(len(sites))]
    # values that differ by rounding only: what is far below the size of a column is no variation
    varies = variance > (10 * np.finfo(float).eps * np.abs(mean)) ** 2
    return Moments(mean, np.where(varies, np.sqrt(variance), 1.0))


def root_mean_square(sites: Sites, weights: np.ndarray | None = None) -> np.ndarray:
    """The size of each feature around zero, from one aggregated sum; 1 for a feature that is zero throughout."""
    p = sites.shares if weights is None else np.asarray(weights, float)
    square = p @ [local_mean(sites, i, around=np.zeros(sites.width)) for i in range(len(sites))]
    return np.where(square > 0, np.sqrt(square), 1.0)


def local_mean(sites: Sites, i: int, around: np.ndarray | None = None) -> np.ndarray:
    """What site i sends: the mean of its rows, or of their squared distances from `around`."""
    A, q = sites.features[i], sites.row_shares[i]
    return A[0] + q @ (A - A[0]) if around is None else q @ (A - around) ** 2
