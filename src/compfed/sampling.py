"""Client sampling and mini-batches: who takes part in a round, and which rows a gradient uses (`sample_rows`).

k of n clients take part, S is the sample, p_i are the weights and u_i the updates. The mean sum_i p_i u_i is estimated by

- "proportional": client i is drawn with inclusion probability pi_i = min(1, c p_i), with c such that k are drawn; the mean is
  sum_S (p_i / pi_i) u_i: the plain mean of the draws where no pi_i is 1. Unbiased. Its weights always sum to 1, so no
  step is longer than with all clients, and u_i may be a model or a change of one.
- "uniform": all samples of k clients are equally likely, and the mean is (n/k) sum_S p_i u_i. Unbiased. Its weights sum to 1
  only on average: a sample of large sites takes a step up to n max p_i times as long, and u_i has to be a change.
- "self-normalised": all samples of k clients are equally likely, and the mean is sum_S p_i u_i / sum_S p_i. Its weights sum to
  1, but small sites count for more than their weight: biased, unless all u_i agree at the limit of the method.

With equal weights, and with all clients, the three are the same.

All randomness of a run is a function of (seed, round, client), never of the order in which clients are visited.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Scheme = Literal["proportional", "uniform", "self-normalised"]
SCHEMES: tuple[Scheme, ...] = ("proportional", "uniform", "self-normalised")
# Probabilities are whole multiples of 1 / _UNIT: their sums are exact, so every loop draws the same clients.
_UNIT = 2**32
MANY = 1024  # from so many clients on, a small sample is drawn without a random number for each of them


class InclusionProbabilities(NamedTuple):
    """The inclusion probabilities pi_i of the scheme "proportional"; one entry per client."""

    always: Any  # whether pi_i = 1
    chance: Any  # pi_i of the others, in units of 2^-32
    weight: Any  # p_i / pi_i: of the update in the mean


def scheme_in_use(scheme: Scheme | None, weights: np.ndarray, k: int) -> Scheme:
    """The scheme of a run: "self-normalised" where all three are the same."""
    return "self-normalised" if scheme is None or k == len(weights) or np.ptp(weights) == 0 else scheme


def inclusion_probabilities(weights: np.ndarray, k: int) -> InclusionProbabilities:
    """pi_i = min(1, c p_i) with sum_i pi_i = k, to 2^-32."""
    p = np.asarray(weights, float)
    always = np.zeros(len(p), bool)
    while True:  # a client with pi_i = 1 leaves fewer draws for the others, which may raise another to 1
        rest, left = p[~always].sum(), k - int(always.sum())
        pi = np.where(always, 0.0, left * p / rest)
        certain = pi > 1.0 - 2.0 / _UNIT
        if not certain.any():
            break
        always |= certain
    ends = np.rint(np.cumsum(pi) * _UNIT).astype(np.int64)
    ends[np.flatnonzero(~always)[-1] :] = left * _UNIT
    chance = np.diff(ends, prepend=0).astype(np.uint32)
    return InclusionProbabilities(always, chance, np.where(always, p, rest / max(left, 1)))


def is_drawn(given: InclusionProbabilities, order: Array, start: Array) -> Array:
    """Whether each client is drawn, by systematic sampling: exactly k are, each with its own probability, in any order.

    The probabilities lie end to end in `order`; a client whose interval contains one of start, start + 1, ... is drawn.
    Numbers are integers modulo 1 (2^32 units), so nothing is rounded.
    """
    chance = jnp.asarray(given.chance)[order]
    before = jnp.cumsum(chance, dtype=jnp.uint32) - chance
    return given.always | jnp.zeros(len(order), bool).at[order].set(start - before < chance)


def few_of_many(n: int, k: int) -> bool:
    """Whether the k of n clients are drawn by rank, at a cost that does not grow with n."""
    return n >= MANY and 64 * k <= n


def participants(
    scheme: Scheme, given: InclusionProbabilities | None, run: Array, r: Array | int, clients: Array, k: int
) -> Array:
    """Positions in `clients` of the k participants of round r, rising."""
    if scheme != "proportional" and few_of_many(len(clients), k):
        # ranks among the sorted numbers of the clients: another order of the sites draws the same clients
        return jnp.sort(jnp.argsort(clients)[participation_ranks(run, r, len(clients), k)])
    # A new order in every round, so that no two clients always or never meet. Of equal scores the smaller number is first.
    order = jnp.lexsort((clients, participation_scores(run, r, clients)))
    if scheme != "proportional":
        return jnp.sort(order[:k])
    assert given is not None
    return jnp.nonzero(is_drawn(given, order, participation_start(run, r)), size=k)[0]


def mean_weights(scheme: Scheme, given: InclusionProbabilities | None, p: Any, who: Any) -> tuple[Any, Any]:
    """(weights of the participants' updates in the mean, participation weight); `p` has the weights of all clients.

    Under "uniform" and "self-normalised", weight * mean = sum_S p_i u_i.
    """
    return sample_mean_weights(scheme, None if given is None else given.weight[who], p[who], len(p))


def sample_mean_weights(scheme: Scheme, inverse_probability_weight: Any, p: Any, n: int) -> tuple[Any, Any]:
    """(weights of the updates in the mean, participation weight) from the participants' own p_i.

    `inverse_probability_weight` is p_i / pi_i of each participant, for the scheme "proportional".
    The participation weight is the share of the federation that took part: k/n under "uniform", else sum_S p_i.
    """
    if scheme == "uniform":
        return p * (n / len(p)), len(p) / n
    participation = p.sum()
    if scheme == "proportional":
        assert inverse_probability_weight is not None
        return inverse_probability_weight, participation
    return p / participation, participation  # "self-normalised"


# Separate streams, so that the sample never depends on the draws of the participants.
_BATCHES, _PARTICIPATION, _SHARED, _START = 0, 1, 2, 3


def run_key(seed: Array | int) -> Array:
    """The root of a run's randomness."""
    return jax.random.key(seed, impl="threefry2x32")


def client_key(run: Array, r: Array | int, client: Array | int) -> Array:
    """The key of client `client` in round r."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(run, _BATCHES), r), client)


def shared_key(run: Array, r: Array | int) -> Array:
    """The key of a draw that all clients share in round r."""
    return jax.random.fold_in(jax.random.fold_in(run, _SHARED), r)


def participation_scores(run: Array, r: Array | int, clients: Array) -> Array:
    """One uniform number per client; the k smallest take part in round r."""
    key = jax.random.fold_in(jax.random.fold_in(run, _PARTICIPATION), r)
    return jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(key, i), dtype=jnp.float32))(clients)


@partial(jax.jit, static_argnums=(2, 3))  # outside a program its loops would compile anew in every call
def participation_ranks(run: Array, r: Array | int, n: int, k: int) -> Array:
    """The k ranks of 0..n-1 that take part in round r, rising; for small k the work does not grow with n."""
    return jnp.sort(sample_rows(jax.random.fold_in(jax.random.fold_in(run, _PARTICIPATION), r), n, n, k))


def participation_start(run: Array, r: Array | int) -> Array:
    """The start of systematic sampling in round r, uniform in 0..2^32 - 1."""
    return jax.random.bits(jax.random.fold_in(jax.random.fold_in(run, _START), r), dtype=jnp.uint32)


def sample_rows(key: Array, rows: Array | int, capacity: int, size: int) -> Array:
    """Draw a mini-batch (minibatch): `size` distinct rows of 0..rows-1, uniformly, so that every subset has the same probability.

    `rows` may be traced; `capacity` is its static upper bound. Small batches use Floyd's algorithm, whose work does
    not depend on the number of rows; batches that are large both in themselves and relative to the rows take the
    `size` smallest of one random number per row.
    """
    if size > 64 and size * size > 8 * capacity:
        score = jax.random.uniform(key, (capacity,), dtype=jnp.float32)
        # ties among 2^-23 grid points are broken by position: a bias below 1e-7 per row
        return jax.lax.top_k(jnp.where(jnp.arange(capacity) < rows, -score, -2.0), size)[1]

    # Floyd: step k draws t_k from 0..last_k and takes it, or last_k if t_k is taken already. A draw is taken if it was
    # drawn before, or if it is the last_j of an earlier step j that fell back. The second kind is rare, so instead of
    # `size` steps one after another: mark the first kind, then repeat for the second until nothing changes.
    last = (rows - size + jnp.arange(size)).astype(jnp.int32)
    draw = _integers(key, last + 1, capacity)

    repeated = _equals_an_earlier(draw, draw)
    if jax.default_backend() != "cpu":  # where loops cost more than the work in them
        return jnp.where(_settled(repeated, draw - last[0]), last, draw)

    # The rows themselves go through the loop: worked out after it, XLA would work them out again in every consumer.
    def settle(state):
        taken, row, _ = state
        more = taken | _equals_an_earlier(row, jnp.where(taken, last, -1))
        return more, jnp.where(more, last, row), (more != taken).any()

    possible = repeated.any() & (draw >= last[0]).any()
    start = repeated, jnp.where(repeated, last, draw), possible
    return jax.lax.while_loop(lambda state: state[2], settle, start)[1]


def _settled(taken: Array, earlier: Array) -> Array:
    """Which draws are taken, without a loop, by pointer doubling.

    Draw k can equal last_j for one step j = earlier_k only, so it is taken if any draw on the path k, j, earlier_j, ... is.
    """
    size = len(taken)
    step = jnp.arange(size)
    to = jnp.where((earlier >= 0) & (earlier < step), earlier, step)  # itself: the end of the path
    for _ in range(max(size - 1, 1).bit_length()):
        at = to[:, None] == step[None, :]
        taken, to = taken | (at & taken[None, :]).any(axis=1), jnp.where(at, to[None, :], 0).sum(axis=1)
    return taken


def _equals_an_earlier(value: Array, candidate: Array) -> Array:
    """For each k: is value_k = candidate_j for some j < k?"""
    size = len(value)
    if jax.default_backend() != "cpu":
        earlier = jnp.arange(size)[None, :] < jnp.arange(size)[:, None]
        return (earlier & (value[:, None] == candidate[None, :])).any(axis=1)
    padded = jnp.concatenate([jnp.full(size, -2, candidate.dtype), candidate])

    def compare(shift, found):  # one flat comparison per distance: faster on a CPU than a square one
        return found | (jax.lax.dynamic_slice(padded, (size - shift,), (size,)) == value)

    few = size <= 32  # written out, they are one loop for XLA
    return jax.lax.fori_loop(1, size, compare, jnp.zeros(size, bool), unroll=few or None)


def _integers(key: Array, limit: Array, capacity: int) -> Array:
    """One integer in 0..limit_j - 1 for each j, uniform up to 2^-16 relative.

    JAX's own generator takes three passes of threefry here, which on a CPU cost more than the gradient of the batch.
    The key is a threefry key already; two rounds of the MurmurHash3 finaliser spread it over the entries.
    """
    if capacity >= 2**16:  # the two-limb product below would overflow
        return jax.random.randint(key, limit.shape, 0, limit, dtype=jnp.int32)
    high, low = jax.random.key_data(key)
    position = jnp.arange(len(limit), dtype=jnp.uint32) * jnp.uint32(0x9E3779B9)
    word = _mix(_mix(position ^ high) + low)
    n = limit.astype(jnp.uint32)
    return (((word >> 16) * n + (((word & 0xFFFF) * n) >> 16)) >> 16).astype(jnp.int32)  # floor(word * n / 2^32)


def _mix(x: Array) -> Array:
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
