"""All randomness of a run: a function of (seed, round, client), never of the order in which clients are visited."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

# Separate streams, so that who takes part never depends on what the participants draw.
_BATCHES, _PARTICIPATION, _SERVER = 0, 1, 2


def run_key(seed: Array | int) -> Array:
    """The root of a run's randomness."""
    return jax.random.key(seed)


def client_key(run: Array, r: Array | int, client: Array | int) -> Array:
    """The key of client `client` in round r: the same in every engine."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(run, _BATCHES), r), client)


def participation_scores(run: Array, r: Array | int, clients: Array) -> Array:
    """One uniform number per client; the k smallest take part in round r."""
    key = jax.random.fold_in(jax.random.fold_in(run, _PARTICIPATION), r)
    return jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(key, i), dtype=jnp.float32))(clients)


def sample_rows(key: Array, rows: Array | int, capacity: int, size: int) -> Array:
    """`size` distinct rows of 0..rows-1, uniformly: every subset has the same probability.

    `rows` may be traced; `capacity` is its static upper bound. Small batches use Floyd's algorithm, O(size^2) and
    free of the number of rows; larger ones take the `size` smallest of one random number per row.
    """
    if size * size > 8 * capacity:
        score = jax.random.uniform(key, (capacity,), dtype=jnp.float32)
        # ties among 2^-23 grid points are broken by position: a bias below 1e-7 per row
        return jax.lax.top_k(jnp.where(jnp.arange(capacity) < rows, -score, -2.0), size)[1]

    last = (rows - size + jnp.arange(size)).astype(jnp.int32)  # Floyd: step k draws from 0..last[k]
    draw = jax.random.randint(key, (size,), 0, last + 1, dtype=jnp.int32)

    def place(k, chosen):
        taken = (chosen == draw[k]).any()
        return chosen.at[k].set(jnp.where(taken, last[k], draw[k]))

    return jax.lax.fori_loop(0, size, place, jnp.full(size, -1, dtype=jnp.int32))
