"""Who takes part in a round, and how the answers of a sample stand for those of all: three schemes, by name.

k of n clients take part, S is who they are, p_i their weights and u_i their answers. The mean over all, sum_i p_i u_i,
is estimated by

- "proportional": client i is drawn with probability pi_i = min(1, c p_i), with c such that k are drawn, and the mean is
  sum_S (p_i / pi_i) u_i: the plain mean of the draws where nobody is certain to be drawn. Unbiased. Its weights always
  sum to 1, so no step is longer than with all clients, and it does not matter whether u_i is a model or a change of one.
- "uniform": any k clients are equally likely and the mean is (n/k) sum_S p_i u_i. Unbiased. Its weights sum to 1 only on
  average: a sample of large sites takes a step up to n max p_i times as long, and u_i has to be a change.
- "ratio": any k clients are equally likely and the mean is sum_S p_i u_i / sum_S p_i. Its weights sum to 1, but small sites
  count for more than their weight: biased, unless all u_i agree where the method comes to rest.

With equal weights, and with all clients, the three are one and the same.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed.tools.randomness import participation_ranks, participation_scores, participation_start

Scheme = Literal["proportional", "uniform", "ratio"]
SCHEMES: tuple[Scheme, ...] = ("proportional", "uniform", "ratio")
_UNIT = (
    2**32
)  # chances are whole multiples of 1 / _UNIT: sums of them are exact, so every engine draws the same clients
MANY = 1024  # clients from which on a small sample is drawn without a number for each of them


class Odds(NamedTuple):
    """The scheme "proportional" for given weights; one entry per client."""

    always: Any  # is in every sample
    chance: Any  # of the others to be drawn, in units of 2^-32
    weight: Any  # p_i / pi_i: of the answer in the mean


def scheme_in_use(scheme: Scheme | None, weights: np.ndarray, k: int) -> Scheme:
    """Where all schemes are the same one is as good as another: "ratio", which divides by what was drawn."""
    return "ratio" if scheme is None or k == len(weights) or np.ptp(weights) == 0 else scheme


def odds(weights: np.ndarray, k: int) -> Odds:
    """pi_i = min(1, c p_i) with sum_i pi_i = k, to 2^-32."""
    p = np.asarray(weights, float)
    always = np.zeros(len(p), bool)
    while True:  # who is certain leaves fewer draws for the others, which may make another one certain
        rest, left = p[~always].sum(), k - int(always.sum())
        pi = np.where(always, 0.0, left * p / rest)
        certain = pi > 1.0 - 2.0 / _UNIT
        if not certain.any():
            break
        always |= certain
    ends = np.rint(np.cumsum(pi) * _UNIT).astype(np.int64)
    ends[np.flatnonzero(~always)[-1] :] = left * _UNIT
    chance = np.diff(ends, prepend=0).astype(np.uint32)
    return Odds(always, chance, np.where(always, p, rest / max(left, 1)))


def drawn(given: Odds, order: Array, start: Array) -> Array:
    """Is each client drawn? Systematic sampling: exactly k are, each with its own probability, in any order.

    The chances lie end to end in `order`; who has one of the points start, start + 1, start + 2, ... is drawn. Numbers are
    whole and modulo 1 (2^32 units), so nothing is rounded.
    """
    chance = jnp.asarray(given.chance)[order]
    before = jnp.cumsum(chance, dtype=jnp.uint32) - chance
    return given.always | jnp.zeros(len(order), bool).at[order].set(start - before < chance)


def few_of_many(n: int, k: int) -> bool:
    """Are the k of n drawn by their ranks, at a cost that does not grow with n? Else every client draws a number."""
    return n >= MANY and 64 * k <= n


def participants(scheme: Scheme, given: Odds | None, run: Array, r: Array | int, clients: Array, k: int) -> Array:
    """Positions of the k participants of round r in `clients`, in their order: a function of (seed, round, client)."""
    if scheme != "proportional" and few_of_many(len(clients), k):
        # a rank among the sorted numbers of the clients: another order of the sites draws the same ones
        return jnp.sort(jnp.argsort(clients)[participation_ranks(run, r, len(clients), k)])
    # a new order in every round, so that no two clients always or never meet; of equal scores the smaller number is first
    order = jnp.lexsort((clients, participation_scores(run, r, clients)))
    if scheme != "proportional":
        return jnp.sort(order[:k])
    assert given is not None
    return jnp.nonzero(drawn(given, order, participation_start(run, r)), size=k)[0]


def averaging(scheme: Scheme, given: Odds | None, p: Any, who: Any) -> tuple[Any, Any]:
    """(weights of the participants' answers in the mean, share), p being all weights.

    Under "uniform" and "ratio", share * mean = sum_S p_i u_i.
    """
    return averaging_of(scheme, None if given is None else given.weight[who], p[who], len(p))


def averaging_of(scheme: Scheme, drawn_weight: Any, mine: Any, n: int) -> tuple[Any, Any]:
    """The same from the participants' own weights: `mine` of p, `drawn_weight` of the odds."""
    if scheme == "uniform":
        return mine * (n / len(mine)), len(mine) / n
    share = mine.sum()
    if scheme == "proportional":
        assert drawn_weight is not None
        return drawn_weight, share
    return mine / share, share
