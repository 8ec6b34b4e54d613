"""Mean and standard deviation of the pooled columns, from sums over the sites."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from compfed._utils.arrays import add_pairs, divide_pairs, multiply_pairs, two_product
from compfed.federation.queries import Moments, MomentsSum
from compfed.federation.server.program import Federation, ask


class ColumnScales(NamedTuple):
    """Mean and standard deviation of each column; one that never varies has standard deviation 1."""

    mean: np.ndarray
    scale: np.ndarray


def standardisation(federation: Federation, weights: np.ndarray | None = None) -> ColumnScales:
    """mean = sum_i p_i sum_l q_il a_il, scale^2 = sum_i p_i sum_l q_il (a_il - mean)^2, rows weighted as in the loss.

    `weights` are the p_i; each site's share of the rows unless given. One message.

    >>> from compfed.data import from_arrays
    >>> from compfed.federation import InProcess
    >>> federation = InProcess(from_arrays([[[0.0], [2.0]], [[10.0]]], [[0, 0], [0]]))
    >>> [round(float(v[0]), 3) for v in standardisation(federation)]
    [4.0, 4.32]
    """
    (moments,) = ask(federation, Moments(), weights=weights)
    mean = pooled_mean(moments)
    return ColumnScales(mean, spread(moments, mean))


def pooled_mean(moments: MomentsSum) -> np.ndarray:
    """The mean of every column; a constant column has exactly its value as mean."""
    return divide_pairs(moments.mean, moments.weight)[0]


def spread(moments: MomentsSum, centre: np.ndarray) -> np.ndarray:
    """The root mean square distance of every column from `centre`; 1 for a column that does not vary.

    E (a - c)^2 = E a^2 - 2 c E a + c^2 in double-double arithmetic: in doubles the terms of a column whose mean is large
    would cancel to nothing.
    """
    zero = np.zeros_like(centre)
    square = divide_pairs(moments.square, moments.weight)
    mean = divide_pairs(moments.mean, moments.weight)
    cross = multiply_pairs((-2 * centre, zero), mean)
    variance = add_pairs(add_pairs(square, cross), two_product(centre, centre))[0]
    # values that differ by rounding only: far below the size of a column there is no variation
    varies = variance > (10 * np.finfo(float).eps * np.abs(centre)) ** 2
    return np.sqrt(np.where(varies, variance, 1.0))
