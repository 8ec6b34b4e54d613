"""The round for XLA: the server loop's round (`federation.server`) for all clients of this process at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from compfed.algorithms.base import Algorithm, Exchange, dense
from compfed.engines.cores import clients_on_cores
from compfed.engines.onchip.choice import Kernel
from compfed.engines.onchip.rows import Bucket, OnePass, narrowed, widened
from compfed.engines.onchip.whole_round import rounds_of_clients
from compfed.problem.local_loss import FullGradient, LocalLoss, MiniBatch
from compfed.problem.losses import Loss
from compfed.problem.padded_rows import Store
from compfed.problem.regularisers import Regulariser
from compfed.tools.randomness import client_key
from compfed.tools.sampling import Odds, Scheme, averaging, participants

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
    cores: int = 1  # on a CPU: how many share out the clients


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


class Carry(NamedTuple):
    server: Any
    clients: Any  # stacked, in the order of the store
    drift: Array
    r: Array  # rounds done
    bad: Array  # the first round whose server state was not finite; 0 while there is none


# --- one round ---


def _mini_batch_clients(
    setting: Setting, data: Store, plan: Plan, buckets: list[Bucket], work: Work, clients: Any, who: Array, r: Array
):
    """The participants' work, all at once: rows are gathered by number, so no client's data is copied."""
    capacity = max(rows for _, rows in data.buckets)
    assert plan.batch_size is not None
    size = plan.batch_size

    def one(i, c):
        m = data.size[i].astype(jnp.int32)
        f = MiniBatch(setting.loss, data.A, data.y, data.q, data.offset[i], m, capacity, size)
        return work(f, c, client_key(setting.run, r, data.ids[i]))

    return jax.vmap(one)(who, jax.tree.map(lambda leaf: leaf[who], clients))


def _full_gradient_clients(
    setting: Setting, data: Store, plan: Plan, buckets: list[Bucket], work: Work, clients: Any, who: Array, r: Array
):
    """The same with full gradients, bucket by bucket; who does not take part is skipped, or dropped at the end."""
    n = len(data.weight)
    everyone = plan.participants == n
    skips = not everyone and plan.at_once is not None
    takes_part = jnp.zeros(n, bool).at[who].set(True)

    def one(client):
        A, y, q, i, on, c = client

        def active():
            f: LocalLoss = FullGradient(setting.loss, A, y, q)
            if plan.kernel is not None:
                f = OnePass(setting.loss, A, y, q, plan.kernel.interpret)
            return work(f, c, client_key(setting.run, r, i))

        if not skips:
            return active()
        idle = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(active))
        return jax.lax.cond(on, active, lambda: idle)

    # side by side, `cond` would work on everyone: to skip the absent, visit one after another
    at_once = None if skips else plan.at_once
    visit = jax.vmap(one) if plan.at_once is None else partial(jax.lax.map, one, batch_size=at_once)
    rows = zip(*buckets, strict=True) if buckets else [data.blocks(a) for a in (data.A, data.y, data.q)]
    per_client = [data.parts(a) for a in (data.ids, takes_part)]
    done = [visit(bucket) for bucket in zip(*rows, *per_client, _split_tree(clients, data), strict=True)]
    result = jax.tree.map(lambda *parts: jnp.concatenate(parts), *done) if len(done) > 1 else done[0]
    return result if everyone else jax.tree.map(lambda leaf: leaf[who], result)


def _whole_rounds(
    setting: Setting, data: Store, plan: Plan, buckets: list[Bucket], work: Work, clients: Any, who: Array, r: Array
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


def one_round(setting: Setting, data: Store, plan: Plan, buckets: list[Bucket], carry: Carry) -> Carry:
    """`buckets` are the rows as a kernel wants them, or as they lie on the cores, if either is used."""
    a, g, r, server, clients = setting.algorithm, setting.g, carry.r, carry.server, carry.clients
    n, size = len(data.weight), setting.loss.size(data.A.shape[1])
    everyone = plan.participants == n
    who = jnp.arange(n)
    if not everyone:
        who = participants(plan.scheme, setting.odds, setting.run, r, data.ids, plan.participants)
    weight, share = averaging(plan.scheme, setting.odds, data.weight, who)
    share = jnp.asarray(share, weight.dtype)
    whole = plan.kernel is not None and plan.kernel.kind == "whole round"
    visit = _full_gradient_clients if plan.batch_size is None else _mini_batch_clients
    visit = _whole_rounds if whole else clients_on_cores if plan.cores > 1 else visit

    def work_of(exchange: Exchange, d: Any) -> Work:
        h, d = (widened(g, size), widened(d, size)) if whole else (g, d)
        return lambda f, c, key: exchange.client(f, h, d, c, key)

    def stored(clients: Any, c: Any) -> Any:
        return c if everyone else jax.tree.map(lambda old, new: old.at[who].set(new), clients, c)

    def mean(u: Any) -> Any:
        full = jax.vmap(lambda u: dense(u, size))(u)
        return jax.tree.map(lambda leaf: jnp.tensordot(weight, leaf, 1), full)

    c: Any = None  # what the participants remember
    z: Any = None  # their local models
    for exchange in a.exchanges:
        work = work_of(exchange, exchange.down(g, server))
        u, c, z = visit(setting, data, plan, buckets, work, clients, who, r)
        server, clients = exchange.server(g, server, mean(u), share), stored(clients, c)
    p = data.weight[who] / data.weight[who].sum()
    drift = p @ jnp.linalg.norm(z - p @ z, axis=1)
    if a.closes():
        result = a.exchanges[0].down(g, server)
        clients = stored(clients, jax.vmap(lambda c: a.close(g, result, c))(c))
    finite = jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(server)]).all()
    bad = jnp.where((carry.bad == 0) & ~finite, r + 1, carry.bad)
    return Carry(server, clients, drift, r + 1, bad)
