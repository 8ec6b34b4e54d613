"""All samples of k clients that a scheme can draw, each with its probability."""

from __future__ import annotations

import itertools
import math

import numpy as np

WEIGHTS = np.array([0.45, 0.25, 0.15, 0.1, 0.05])


def samples(scheme: str, weights: np.ndarray, k: int) -> list[tuple[list[int], float]]:
    """Every sample of k clients, and how likely it is.

    "proportional" lays the chances pi_i = min(1, c p_i) end to end, in every order there is, and a comb with teeth at distance
    1 falls on them: worked out here from intervals of real numbers.
    """
    n = len(weights)
    if scheme != "proportional":
        return [(list(who), 1 / math.comb(n, k)) for who in itertools.combinations(range(n), k)]
    pi = _chances(weights, k)
    found: dict[tuple[int, ...], float] = {}
    for order in itertools.permutations(range(n)):
        ends = np.cumsum(pi[list(order)])
        cuts = np.unique(np.concatenate([[0.0, 1.0], ends % 1.0]))
        for a, b in itertools.pairwise(cuts):
            if b - a > 1e-12:
                teeth = 0.5 * (a + b) + np.arange(k)
                who = tuple(sorted(order[int(j)] for j in np.searchsorted(ends, teeth)))
                found[who] = found.get(who, 0.0) + (b - a) / math.factorial(n)
    return [(list(who), chance) for who, chance in found.items()]


def _chances(weights: np.ndarray, k: int) -> np.ndarray:
    """min(1, c p_i) with sum k, by bisection on c."""
    low, high = 0.0, 1e6
    for _ in range(200):
        c = 0.5 * (low + high)
        low, high = (c, high) if np.minimum(1.0, c * weights).sum() < k else (low, c)
    return np.minimum(1.0, high * weights)
