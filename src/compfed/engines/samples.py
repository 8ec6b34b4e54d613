"""The participants of a round, as the round for XLA needs them: on one device, or on each device of a mesh."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from compfed.problem.padded_rows import Store
from compfed.tools.sampling import Odds, Scheme, averaging, participants


class Sample(NamedTuple):
    """Who takes part in a round, and how their answers stand for those of all (`tools.sampling`)."""

    who: Array | None  # positions in the store; None for everybody there
    weight: Array  # of their answers in the mean
    share: Array
    p: Array  # their p_i


class Layout(NamedTuple):
    """All clients of a problem, in the order of its store, and where they are on a mesh."""

    ids: Array
    weight: Array  # p_i
    place: Array  # device by device, with the places that nobody has


def drawn_sample(scheme: Scheme, given: Odds | None, run: Array, r: Array, data: Store, k: int) -> Sample:
    """k of the clients in the store."""
    everyone = k == len(data.weight)
    who = jnp.arange(k) if everyone else participants(scheme, given, run, r, data.ids, k)
    weight, share = averaging(scheme, given, data.weight, who)
    return Sample(None if everyone else who, weight, jnp.asarray(share, weight.dtype), data.weight[who])


def sample_here(
    layout: Layout, scheme: Scheme, given: Odds | None, run: Array, r: Array, data: Store, k: int, axis: str
) -> Sample:
    """Those of k clients that are on this device of a mesh; all devices draw the same ones.

    There is room for as many as could be here. Who is not has the position after the last one, whose answer counts nothing
    and whose memory is dropped.
    """
    if k == len(layout.ids):
        share = layout.weight.sum()
        return Sample(None, data.weight / share, share, data.weight)
    who = participants(scheme, given, run, r, layout.ids, k)
    weight, share = averaging(scheme, given, layout.weight, who)
    n = len(data.weight)
    place = layout.place[who] - jax.lax.axis_index(axis) * n
    mine = jnp.nonzero((place >= 0) & (place < n), size=min(k, n), fill_value=k)[0]

    def of_mine(values: Array, none: float) -> Array:
        return values.at[mine].get(mode="fill", fill_value=none)

    p = of_mine(layout.weight[who], 0.0)
    return Sample(of_mine(place, n), of_mine(weight, 0.0), jnp.asarray(share, weight.dtype), p)
