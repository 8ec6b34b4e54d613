"""The round for XLA: the server loop's round (`federation.server`) for all clients of this process at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed.algorithms.base import Algorithm, Exchange, dense
from compfed.engines.onchip.choice import Kernel
from compfed.engines.onchip.fetched_rows import Clients, Flat, in_one_piece, rounds_fetching_rows
from compfed.engines.onchip.groups import for_kernels
from compfed.engines.onchip.rows import Bucket, OnePass, in_buckets, narrowed, widened
from compfed.engines.onchip.whole_round import rounds_of_clients
from compfed.engines.samples import Layout, Sample, drawn_sample, sample_here
from compfed.problem.local_loss import FullGradient, LocalLoss, MiniBatch
from compfed.problem.losses import Loss
from compfed.problem.padded_rows import Store, rows_from
from compfed.problem.regularisers import Regulariser
from compfed.tools.randomness import client_key
from compfed.tools.sampling import Odds, Scheme

Measure = Callable[[Loss, Regulariser, Store, Algorithm, Any, Any], dict[str, Array]]
Work = Callable[[LocalLoss, Any, Array], tuple[Any, Any, Array]]  # (f_i, c_i, key) -> (u_i, c_i, z_i)


class Plan(NamedTuple):
    """What shapes the program: changing one of these compiles anew."""

    participants: int
    batch_size: int | None
    at_once: int | None  # full gradients: clients worked on side by side; None for all
    measure: Measure | None
    scheme: Scheme  # of sampling
    kernel: Kernel | None = None  # on a GPU: how rows are read
    axis: str | None = None  # of the mesh over which clients are shared out; None for one device


class Stop(NamedTuple):
    """Stop at the first recorded round whose gradient mapping, with this step, is at most `tol`."""

    tol: float
    step: float


class Setting(NamedTuple):
    """What may differ between the members of a grid: all leaves."""

    algorithm: Algorithm
    loss: Loss
    g: Regulariser
    run: Array  # key
    stop: Stop | None = None
    odds: Odds | None = None  # of clients to be drawn, in the order of the store
    layout: Layout | None = None  # of clients on a mesh


class Carry(NamedTuple):
    server: Any
    clients: Any  # stacked, in the order of the store
    drift: Array
    r: Array  # rounds done
    bad: Array  # the first round whose server state was not finite; 0 while there is none


def total(plan: Plan, value: Any) -> Any:
    """A sum over the clients of this device, over those of all devices."""
    return value if plan.axis is None else jax.lax.psum(value, plan.axis)


# --- one round ---


def _mini_batch_clients(
    setting: Setting,
    data: Store,
    plan: Plan,
    buckets: list[Bucket],
    work: Work,
    clients: Any,
    who: Array | None,
    r: Array,
):
    """The participants' work, all at once: rows are gathered by number, so no client's data is copied."""
    who = jnp.arange(len(data.weight)) if who is None else who
    capacity = max(rows for _, rows in data.buckets)
    assert plan.batch_size is not None
    size = plan.batch_size

    def one(i, c):
        m = data.size[i].astype(jnp.int32)
        f = MiniBatch(setting.loss, data.A, data.y, data.q, data.offset[i], m, capacity, size)
        return work(f, c, client_key(setting.run, r, data.ids[i]))

    return jax.vmap(one)(who, jax.tree.map(lambda leaf: leaf[who], clients))


def _rounds_fetching_rows(
    setting: Setting, data: Store, plan: Plan, flat: Flat, work: Work, clients: Any, who: Array | None, r: Array
):
    """The same, and full gradients of participants: a client's whole round in one kernel, which fetches its rows."""
    who = jnp.arange(len(data.weight)) if who is None else who
    capacity = max(rows for _, rows in data.buckets)
    assert plan.kernel is not None
    size = setting.loss.size(data.A.shape[1])
    keys = jax.vmap(lambda i: client_key(setting.run, r, i))(data.ids[who])
    c = widened(jax.tree.map(lambda leaf: leaf[who], clients), size)
    where = Clients(keys, data.offset[who], data.size[who], capacity)
    client: Any = work  # it may ask for gradients only: the choice of kernel saw to that
    done = rounds_fetching_rows(client, setting.loss, flat, where, plan.batch_size, c, plan.kernel.interpret)
    return narrowed(done, size)


def _full_gradient_clients(
    setting: Setting,
    data: Store,
    plan: Plan,
    buckets: list[Bucket],
    work: Work,
    clients: Any,
    who: Array | None,
    r: Array,
):
    """The same with full gradients, bucket by bucket; who does not take part is dropped at the end."""
    if who is not None and plan.at_once is not None:
        return _participants_in_turn(setting, data, plan, work, clients, who, r)
    # a copy of the participants' rows costs less than the others' work; in one bucket it has a shape
    chosen_first = who is not None and len(data.buckets) == 1
    in_turn = plan.at_once == 1

    def one(client):
        rows, y, q, i, c = client
        A = rows_from(data.A, rows, len(q)) if in_turn else rows
        f: LocalLoss = FullGradient(setting.loss, A, y, q)
        if plan.kernel is not None:
            f = OnePass(setting.loss, A, y, q, plan.kernel.interpret)
        return work(f, c, client_key(setting.run, r, i))

    at_once = None if in_turn else plan.at_once
    visit = jax.vmap(one) if plan.at_once is None else partial(jax.lax.map, one, batch_size=at_once)
    features = data.parts(data.offset) if in_turn else data.blocks(data.A)  # where they begin, or themselves
    rows = zip(*buckets, strict=True) if buckets else [features, data.blocks(data.y), data.blocks(data.q)]
    blocks: list[Any] = list(zip(*rows, data.parts(data.ids), _split_tree(clients, data), strict=True))
    if chosen_first:
        blocks = jax.tree.map(lambda leaf: leaf[who], blocks)
    done = [visit(block) for block in blocks]
    result = jax.tree.map(lambda *parts: jnp.concatenate(parts), *done) if len(done) > 1 else done[0]
    return result if who is None or chosen_first else jax.tree.map(lambda leaf: leaf[who], result)


def _participants_in_turn(
    setting: Setting, data: Store, plan: Plan, work: Work, clients: Any, who: Array, r: Array
) -> Any:
    """Full gradients of those who take part, one after another: a round costs what they do, however many others there are."""

    def with_rows(count: int) -> Callable[[Array, Any], Any]:
        def active(i: Array, c: Any) -> Any:
            first = data.offset[i]
            y, q = (jax.lax.dynamic_slice_in_dim(a, first, count) for a in (data.y, data.q))
            f = FullGradient(setting.loss, rows_from(data.A, first, count), y, q)
            return work(f, c, client_key(setting.run, r, data.ids[i]))

        return active

    def nobody(i: Array, c: Any) -> Any:  # a place of a mesh for who is on another device
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(of_bucket[0], i, c))

    of_bucket = [with_rows(rows) for _, rows in data.buckets]
    ends = np.cumsum([k for k, _ in data.buckets])

    def one(client: tuple[Array, Any]) -> Any:
        i, c = client
        bucket = jnp.searchsorted(ends, i, side="right")
        return jax.lax.switch(bucket, of_bucket if plan.axis is None else [*of_bucket, nobody], i, c)

    return jax.lax.map(one, (who, jax.tree.map(lambda leaf: leaf[who], clients)))


def _whole_rounds(
    setting: Setting,
    data: Store,
    plan: Plan,
    buckets: list[Bucket],
    work: Work,
    clients: Any,
    who: Array | None,
    r: Array,
):
    """Full gradients of everybody, a client's whole round in one kernel. No key is used: the choice of kernel saw to that."""
    assert plan.kernel is not None
    size, done = setting.loss.size(data.A.shape[1]), []
    for bucket, c in zip(buckets, _split_tree(widened(clients, size), data), strict=True):
        client = partial(_with_key, work, setting.run)
        done.append(rounds_of_clients(client, setting.loss, *bucket, c, plan.kernel.interpret))
    result = jax.tree.map(lambda *parts: jnp.concatenate(parts), *done) if len(done) > 1 else done[0]
    return narrowed(result, size)


def _with_key(work: Work, key: Array, f: Any, c: Any) -> Any:
    return work(f, c, key)


def _split_tree(tree: Any, data: Store) -> list[Any]:
    leaves, structure = jax.tree.flatten(tree)
    parts = [data.parts(leaf) for leaf in leaves]
    return [jax.tree.unflatten(structure, [p[b] for p in parts]) for b in range(len(data.buckets))]


def kernel_rows(data: Store, kernel: Kernel | None) -> list[Bucket] | Flat:
    if kernel is None:
        return []
    fetched = kernel.kind == "rows fetched"
    data = replace(data, A=data.A.astype(kernel.storage))
    return in_one_piece(data) if fetched else in_buckets(data, rows_too=kernel.kind == "whole round")


def one_round(
    setting: Setting, data: Store, plan: Plan, buckets: list[Bucket] | Flat, carry: Carry, seen: Array | bool = True
) -> Carry:
    """Draw who takes part, and do the round. `buckets` are the rows as a kernel wants them (`kernel_rows`), if one is used."""
    drawing = (plan.scheme, setting.odds, setting.run, carry.r, data, plan.participants)
    sample = drawn_sample(*drawing) if plan.axis is None else sample_here(_laid_out(setting), *drawing, plan.axis)
    return round_of(setting, data, plan, buckets, carry, sample, seen)


def _laid_out(setting: Setting) -> Layout:
    assert setting.layout is not None
    return setting.layout


def round_of(
    setting: Setting,
    data: Store,
    plan: Plan,
    buckets: list[Bucket] | Flat,
    carry: Carry,
    sample: Sample,
    seen: Array | bool = True,
) -> Carry:
    """One round of the clients of a sample; somebody may look at the drift after it only if `seen`."""
    a, g, r, server, clients = setting.algorithm, setting.g, carry.r, carry.server, carry.clients
    who, weight, share, p = sample
    size = setting.loss.size(data.A.shape[1])
    whole = plan.kernel is not None and plan.kernel.kind != "one pass"
    visit: Any = _full_gradient_clients if plan.batch_size is None else _mini_batch_clients
    if whole:
        visit = _whole_rounds if isinstance(buckets, list) else _rounds_fetching_rows

    def work_of(exchange: Exchange, d: Any) -> Work:
        h, d = (for_kernels(g, size), widened(d, size)) if whole else (g, d)
        return lambda f, c, key: exchange.client(f, h, d, c, key)

    def stored(clients: Any, c: Any) -> Any:
        return c if who is None else jax.tree.map(lambda old, new: old.at[who].set(new), clients, c)

    def mean(u: Any) -> Any:
        full = jax.vmap(lambda u: dense(u, size))(u)
        return total(plan, jax.tree.map(lambda leaf: jnp.tensordot(weight, leaf, 1), full))

    c: Any = None  # what the participants remember
    z: Any = None  # their local models
    for exchange in a.exchanges:
        work = work_of(exchange, exchange.down(g, server))
        u, c, z = visit(setting, data, plan, buckets, work, clients, who, r)
        server, clients = exchange.server(g, server, mean(u), share), stored(clients, c)
    drift = _drift(plan, p, z, seen)
    if a.closes():
        result = a.exchanges[0].down(g, server)
        clients = stored(clients, jax.vmap(lambda c: a.close(g, result, c))(c))
    finite = jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(server)]).all()
    bad = jnp.where((carry.bad == 0) & ~finite, r + 1, carry.bad)
    return Carry(server, clients, drift, r + 1, bad)


def _drift(plan: Plan, p: Array, z: Array, seen: Array | bool) -> Array:
    """The weighted mean distance of local models from their mean. On a mesh two sums of all devices, who wait for each other:
    only for a round that is seen. On one device it costs less than to ask."""

    def measured() -> Array:
        mine = p / total(plan, p.sum())
        return total(plan, mine @ jnp.linalg.norm(z - total(plan, mine @ z), axis=1))

    if plan.axis is None:
        return measured()
    return jax.lax.cond(seen, measured, lambda: jnp.zeros((), z.dtype))
