"""The round for XLA: the server loop's round (`federation.server`) for all clients of this process at once.

The participants of a round, as the round for XLA needs them: on one device, or on each device of a mesh.

All rounds as one XLA program: rounds, looks, and when to end; for one run, or for the members of a grid.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed._utils.compilation import jit
from compfed.algorithms.base import Algorithm, Exchange, dense
from compfed.losses import Loss
from compfed.problem.evaluation import objectives_and_mappings
from compfed.problem.local_dataset import PaddedDataset, rows_from
from compfed.problem.local_loss import FullGradient, LocalLoss, MiniBatch
from compfed.regularisers import Regulariser
from compfed.sampling import InclusionProbabilities, Scheme, averaging, client_key, participants
from compfed.simulation.evaluation import own_columns
from compfed.simulation.pallas.choice import Kernel
from compfed.simulation.pallas.fetched_rows import Clients, Flat, in_one_piece, rounds_fetching_rows
from compfed.simulation.pallas.groups import for_kernels
from compfed.simulation.pallas.rows import Bucket, OnePass, in_buckets, narrowed, widened
from compfed.simulation.pallas.whole_round import rounds_of_clients

Measure = Callable[[Loss, Regulariser, PaddedDataset, Algorithm, Any, Any], dict[str, Array]]
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
    odds: InclusionProbabilities | None = None  # of clients to be drawn, in the order of the store
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
    data: PaddedDataset,
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
    setting: Setting, data: PaddedDataset, plan: Plan, flat: Flat, work: Work, clients: Any, who: Array | None, r: Array
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
    data: PaddedDataset,
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
    setting: Setting, data: PaddedDataset, plan: Plan, work: Work, clients: Any, who: Array, r: Array
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
    data: PaddedDataset,
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


def _split_tree(tree: Any, data: PaddedDataset) -> list[Any]:
    leaves, structure = jax.tree.flatten(tree)
    parts = [data.parts(leaf) for leaf in leaves]
    return [jax.tree.unflatten(structure, [p[b] for p in parts]) for b in range(len(data.buckets))]


def kernel_rows(data: PaddedDataset, kernel: Kernel | None) -> list[Bucket] | Flat:
    if kernel is None:
        return []
    fetched = kernel.kind == "rows fetched"
    data = replace(data, A=data.A.astype(kernel.storage))
    return in_one_piece(data) if fetched else in_buckets(data, rows_too=kernel.kind == "whole round")


def one_round(
    setting: Setting,
    data: PaddedDataset,
    plan: Plan,
    buckets: list[Bucket] | Flat,
    carry: Carry,
    seen: Array | bool = True,
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
    data: PaddedDataset,
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
        return lambda f, c, key: exchange.client_update(f, h, d, c, key)

    def stored(clients: Any, c: Any) -> Any:
        return c if who is None else jax.tree.map(lambda old, new: old.at[who].set(new), clients, c)

    def mean(u: Any) -> Any:
        full = jax.vmap(lambda u: dense(u, size))(u)
        return total(plan, jax.tree.map(lambda leaf: jnp.tensordot(weight, leaf, 1), full))

    c: Any = None  # what the participants remember
    z: Any = None  # their local models
    for exchange in a.exchanges:
        work = work_of(exchange, exchange.broadcast(g, server))
        u, c, z = visit(setting, data, plan, buckets, work, clients, who, r)
        server, clients = exchange.server_update(g, server, mean(u), share), stored(clients, c)
    drift = _drift(plan, p, z, seen)
    if a.finishes_rounds():
        result = a.exchanges[0].broadcast(g, server)
        clients = stored(clients, jax.vmap(lambda c: a.finish_round(g, result, c))(c))
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


def drawn_sample(
    scheme: Scheme, given: InclusionProbabilities | None, run: Array, r: Array, data: PaddedDataset, k: int
) -> Sample:
    """k of the clients in the store."""
    everyone = k == len(data.weight)
    who = jnp.arange(k) if everyone else participants(scheme, given, run, r, data.ids, k)
    weight, share = averaging(scheme, given, data.weight, who)
    return Sample(None if everyone else who, weight, jnp.asarray(share, weight.dtype), data.weight[who])


def sample_here(
    layout: Layout,
    scheme: Scheme,
    given: InclusionProbabilities | None,
    run: Array,
    r: Array,
    data: PaddedDataset,
    k: int,
    axis: str,
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


Each = Callable[
    [Callable[..., Any]], Callable[..., Any]
]  # of functions of (setting, what a member has, what all share)
BUFFER = 64  # recorded rounds a program holds before it hands them back


def _seen(setting: Setting, data: PaddedDataset, plan: Plan, carry: Carry) -> dict[str, Array]:
    seen, server = {"drift": carry.drift}, carry.server
    # the weights say how many clients there are, where these remember nothing
    c = jax.vmap(lambda _, c: setting.algorithm.correction(server, c))(data.weight, carry.clients)
    if c is not None:
        seen["correction"] = jnp.linalg.norm(total(plan, data.weight @ c))
    if plan.measure is not None:
        found = plan.measure(setting.loss, setting.g, data, setting.algorithm, carry.server, carry.clients)
        seen |= {name: jnp.asarray(value) for name, value in own_columns(found).items()}
    return seen


def _rounds(
    setting: Setting,
    data: PaddedDataset,
    plan: Plan,
    carry: Carry,
    records: int,
    every: int,
    each: Each | None = None,
):
    """`records` times: `every` rounds, then note the model. Returns what was noted, in buffers of BUFFER rows.

    For the members of a grid, `each` makes of a function of one of them a function of all. What round it is they share, so
    that what follows from it alone, such as a draw, is worked out once for those that share their seed too.
    """
    of_all = each or (lambda f: f)

    @of_all
    def look(setting: Setting, carry: Carry, _: Any) -> tuple[Array, dict[str, Array]]:
        x = setting.algorithm.solution(setting.g, carry.server)
        return x, _seen(setting, data, plan, carry) | _certified(setting, data, plan, x)

    @of_all
    def over(setting: Setting, seen: tuple[Carry, tuple[Array, dict[str, Array]]], _: Any) -> Array:
        carry, noted = seen
        arrived = False if setting.stop is None else noted[1]["gradient_mapping"] <= setting.stop.tol
        return (carry.bad > 0) | arrived

    @of_all
    def one(setting: Setting, carry: Carry, when: tuple[Array, Array]) -> Carry:
        r, seen = when
        return one_round(setting, data, plan, rows, carry._replace(r=r), seen)

    @of_all
    def going_on(_: Setting, seen: tuple[Array, Carry, Carry], __: Any) -> Carry:
        ended, before, after = seen
        return jax.tree.map(lambda old, new: jnp.where(ended, old, new), before, after)

    def record(loop):
        k, ended, before, buffers = loop
        r = first + k * every
        carry = jax.lax.fori_loop(0, every, lambda j, c: one(setting, c, (r + j, j == every - 1)), before)
        if each is not None:  # a single run ends with the loop
            carry = going_on(setting, (ended, before, carry), None)
        noted = look(setting, carry, None)
        r = jnp.where(ended, 0, carry.r)  # who had ended before has nothing to say of this round
        buffers = jax.tree.map(lambda buffer, value: buffer.at[k].set(value), buffers, (r, *noted))
        return k + 1, over(setting, (carry, noted), None), carry, buffers

    rows = kernel_rows(data, plan.kernel)
    first = carry.r.max()  # who has ended stays behind
    noted = (carry.r, *look(setting, carry, None))
    buffers = jax.tree.map(lambda value: jnp.zeros((BUFFER, *value.shape), value.dtype), noted)
    start = (jnp.int32(0), over(setting, (carry, noted[1:]), None), carry, buffers)
    _, _, carry, buffers = jax.lax.while_loop(lambda loop: (loop[0] < records) & ~loop[1].all(), record, start)
    return carry, buffers, look(setting, carry, None)


def _certified(setting: Setting, data: PaddedDataset, plan: Plan, x: Array) -> dict[str, Array]:
    """What `columns.measured` would say of x, where the program itself has to know it."""
    if setting.stop is None:
        return {}
    F, mapping = objectives_and_mappings(setting.loss, setting.g, data, x[None], setting.stop.step, plan.axis)
    return {"objective": F[0], "gradient_mapping": jnp.linalg.norm(mapping[0])}


def single_rounds(setting: Setting, data: PaddedDataset, plan: Plan, carry: Carry, records: int, every: int):
    """`_rounds` with the member axis of a grid of one: added and removed inside the program, where it costs nothing."""
    one = jax.tree.map(lambda leaf: leaf[0], carry)
    return jax.tree.map(lambda leaf: leaf[None], _rounds(setting, data, plan, one, records, every))


def grid_rounds(
    setting: Setting,
    data: PaddedDataset,
    plan: Plan,
    carry: Carry,
    records: int,
    every: int,
    varies: tuple[tuple[bool, bool], ...],
    shape: tuple[int, int],
):
    """`_rounds` for every member of a grid, which has so many seeds and so many members of each.

    `varies` says of each leaf of `setting` along which of the two it differs; along the other it is shared, and so is all
    that follows from it: members of one seed draw the same rows, and their gradients are products of matrices.
    """
    structure = jax.tree.structure(setting)
    axes = [jax.tree.unflatten(structure, [0 if v[k] else None for v in varies]) for k in (0, 1)]

    def each(f: Callable[..., Any]) -> Callable[..., Any]:
        return jax.vmap(jax.vmap(f, in_axes=(axes[1], 0, None)), in_axes=(axes[0], 0, None))

    folded = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), carry)
    carry, buffers, last = _rounds(setting, data, plan, folded, records, every, each)
    buffers = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 2), buffers)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (carry, buffers, last))


# On a CPU, LLVM at level 1 compiles rounds sooner than at its default level (mini-batches in half the time), and they run as fast,
# or faster (1.7 times, for the paper's problem with b = 20). One piece, because splitting a program of this size for several threads
# makes it 1.4 times the work.
QUICK = {"xla_backend_optimization_level": 1, "xla_cpu_parallel_codegen_split_count": 1}
# Members of a grid are products of matrices: up to a tenth faster in registers that a single product is slower in.
WIDE = {"xla_cpu_prefer_vector_width": 512}


def options(grid: bool = False) -> dict[str, Any] | None:
    """For XLA: of a program for one run or a grid."""
    if jax.devices()[0].platform != "cpu":
        return None
    return QUICK | WIDE if grid else QUICK


@functools.cache
def single_program() -> Any:
    return jit(single_rounds, static_argnames="plan", compiler_options=options())


@functools.cache
def grid_program() -> Any:
    return jit(grid_rounds, static_argnames=("plan", "varies", "shape"), compiler_options=options(grid=True))


def programs_compiled() -> int:
    """How many programs this process has compiled so far."""
    return single_program()._cache_size() + grid_program()._cache_size()  # jax has no public count
