"""The rounds of a simulation as one XLA program: for one run, for the members of a grid, or for each device of a mesh.

`round_of` drives the round of `algorithms.round` for all clients on a device at once. `single_rounds` and `grid_rounds` loop
over rounds, evaluate the recorded ones, and end where a run has converged or diverged.
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
from compfed._utils.records import with_leaf
from compfed.algorithms.base import Algorithm, Exchange, PyTree, dense
from compfed.algorithms.costs import Counts
from compfed.algorithms.counting import KINDS, OF_ALL, OF_BATCH, SmoothStandIn, counted
from compfed.algorithms.round import Message, Reply, array_bytes, drive_round, run_round
from compfed.losses import Loss
from compfed.monitor import ClientSeconds, Schedule
from compfed.problem.local_loss import FullGradient, LocalLoss, MiniBatch, objectives, objectives_and_mappings
from compfed.problem.padded_dataset import PaddedDataset, rows_from
from compfed.regularisers import Regulariser
from compfed.sampling import InclusionProbabilities, Scheme, client_key, mean_weights, participants
from compfed.simulation.columns import own_columns
from compfed.simulation.kernel_lowering import PaddedRows, for_kernels, in_buckets, in_one_piece, narrowed, widened
from compfed.simulation.kernels import (
    ClientRows,
    ClientUpdate,
    Kernel,
    OnePass,
    rounds_fetching_rows,
    rounds_of_clients,
)
from compfed.stopping import has_converged

Measure = Callable[[Loss, Regulariser, PaddedDataset, Algorithm, PyTree, PyTree], dict[str, Array]]
KernelRows = list[PaddedRows] | PaddedRows  # the rows as a kernel reads them; an empty list without kernels


class ProgramOptions(NamedTuple):
    """The static options of a program: another value compiles anew."""

    participants: int
    batch_size: int | None
    clients_at_once: int | None  # full gradients: clients computed side by side; None for all
    measure: Measure | None
    scheme: Scheme  # of sampling
    kernel: Kernel | None = None  # on a GPU
    axis: str | None = None  # of the mesh over which clients are sharded; None for one device
    evaluates: tuple[str, ...] = ()  # columns of the objective that the program itself works out
    schedules: tuple[tuple[str, Schedule], ...] = ()  # of step sizes: the value in round r
    ragged: bool = False  # whether some clients have fewer rows than a mini-batch
    mini_batches_at_once: int | None = None  # clients computed side by side; None for all
    everyone: bool = True  # whether all clients take part in every round
    takes: bool = False  # whether rounds are counted for each client
    calls: bool = False  # whether calls are counted, since they depend on data or a clock needs them
    drawn_together: int = 1  # rounds whose participants are drawn at once


class Parameters(NamedTuple):
    """The arrays of a program that may differ between the members of a grid."""

    algorithm: Algorithm
    loss: Loss
    g: Regulariser
    key: Array  # of the run
    tol: float | None = None  # stop when the gradient mapping with `step` is at most this
    step: float | None = None
    probabilities: InclusionProbabilities | None = None  # in the order of the data set
    layout: ClientPlaces | None = None  # of clients on a mesh
    clock: ClientSeconds | None = None  # in the order of the data set


class ClientPlaces(NamedTuple):
    """All clients of a problem, in the order of its data set, and their places on a mesh."""

    ids: Array
    weight: Array  # p_i
    place: Array  # counted device by device, padding included


class Carry(NamedTuple):
    """The state of a run after r rounds."""

    server: PyTree
    clients: PyTree  # stacked, in the order of the data set
    drift: Array
    r: Array
    not_finite: Array  # the first round whose server state was not finite; 0 for none
    counts: Counts = Counts()  # without the axis of records


class Sample(NamedTuple):
    """The participants of a round, and their weights."""

    who: Array | None  # positions in the data set; None for all clients there
    mean_weights: Array  # of their updates in the mean
    weight: Array  # the participation weight
    p: Array  # their p_i


# --- one round ---


class _Clients(NamedTuple):
    """The participants on this device in round r; maps a client update over them."""

    params: Parameters
    data: PaddedDataset
    options: ProgramOptions
    rows: KernelRows
    who: Array | None
    r: Array

    def map(
        self, exchange: Exchange, d: PyTree, states: PyTree
    ) -> tuple[tuple[PyTree, PyTree, Array], Array | np.ndarray | None]:
        """Updates, new states and local models of the participants, stacked, and their calls where these are counted.

        `states` are those of all clients.
        """
        g, kernel = self.params.g, self.options.kernel
        size = self.params.loss.size(self.data.A.shape[1])
        if kernel is not None and kernel.kind != "one pass":
            h, d = for_kernels(g, size), widened(d, size)
            update: ClientUpdate = lambda f, c, key: exchange.client_update(f, h, d, c, key)  # noqa: E731
            done = self._in_kernels if isinstance(self.rows, list) else self._in_fetching_kernel
            return narrowed(done(update, states, size), size), self._fixed_calls(exchange, d, states)
        visit = self._full_gradients if self.options.batch_size is None else self._mini_batches
        if not self.options.calls:
            update = lambda f, c, key: exchange.client_update(f, g, d, c, key)  # noqa: E731
            return visit(update, states), None
        count = counted(lambda f, g, c, key: exchange.client_update(f, g, d, c, key))
        counting: Any = lambda f, c, key: count(f, g, c, key)  # noqa: E731
        return visit(counting, states)

    def _fixed_calls(self, exchange: Exchange, d: PyTree, states: PyTree) -> np.ndarray | None:
        """The calls of an update that runs in a kernel, where all loops have a fixed length."""
        if not self.options.calls:
            return None
        c = jax.tree.map(lambda leaf: leaf[0], states)
        count = counted(lambda f, g, c, key: exchange.client_update(f, g, d, c, key))
        calls = count(SmoothStandIn(), self.params.g, c, self.params.key)[1]
        return np.broadcast_to(calls, (len(self.data.weight) if self.who is None else len(self.who), len(KINDS)))

    def finish(self, d: PyTree, states: PyTree) -> tuple[PyTree, Array | None]:
        """The participants' states once they have the result of their round, and their calls where these are counted."""
        a, g = self.params.algorithm, self.params.g
        if not self.options.calls:
            return jax.vmap(lambda c: a.finish_round(g, d, c))(states), None
        count = counted(lambda f, g, c: a.finish_round(g, d, c))
        found, calls = jax.vmap(lambda _, c: count(None, g, c))(self._positions(), states)
        return found, jnp.broadcast_to(calls, (len(self._positions()), len(KINDS)))

    def store(self, states: PyTree, new: PyTree) -> PyTree:
        """The states of all clients, with the participants' new ones."""
        return new if self.who is None else jax.tree.map(lambda old, leaf: old.at[self.who].set(leaf), states, new)

    def _key(self, id_: Array) -> Array:
        return client_key(self.params.key, self.r, id_)

    def _positions(self) -> Array:
        return jnp.arange(len(self.data.weight)) if self.who is None else self.who

    def _mini_batches(self, update: ClientUpdate, states: PyTree) -> PyTree:
        """All participants at once: rows are gathered by number, so no client's data is copied."""
        data, size, ragged, at_once = (
            self.data,
            self.options.batch_size,
            self.options.ragged,
            self.options.mini_batches_at_once,
        )
        capacity = max(rows for _, rows in data.buckets)
        assert size is not None

        def one(i: Array, c: PyTree) -> PyTree:
            m = data.size[i].astype(jnp.int32)
            f = MiniBatch(self.params.loss, data.A, data.y, data.q, data.offset[i], m, capacity, size, ragged)
            return update(f, c, self._key(data.ids[i]))

        who = self._positions()
        mine = who, jax.tree.map(lambda leaf: leaf[who], states)
        if at_once is None:
            return jax.vmap(one)(*mine)
        return jax.lax.map(lambda client: one(*client), mine, batch_size=None if at_once == 1 else at_once)

    def _full_gradients(self, update: ClientUpdate, states: PyTree) -> PyTree:
        """Bucket by bucket; the results of clients that do not take part are dropped at the end."""
        data, who, at_once = self.data, self.who, self.options.clients_at_once
        if who is not None and at_once is not None:
            return self._participants_in_turn(update, states, who)
        # With a single bucket a copy of the participants' rows costs less than the work of the others.
        chosen_first = who is not None and len(data.buckets) == 1
        in_turn = at_once == 1
        kernel = self.options.kernel
        if who is not None and chosen_first and kernel is not None:
            return self._where_they_are(update, states, kernel, who)

        def one(client: Any) -> PyTree:
            rows, y, q, id_, c = client
            A = rows_from(data.A, rows, len(q)) if in_turn else rows
            f: LocalLoss = FullGradient(self.params.loss, A, y, q)
            if kernel is not None:
                f = OnePass(self.params.loss, A, y, q, kernel.interpret)
            return update(f, c, self._key(id_))

        visit = jax.vmap(one) if at_once is None else partial(jax.lax.map, one, batch_size=None if in_turn else at_once)
        features = data.parts(data.offset) if in_turn else data.blocks(data.A)  # first rows, or the rows themselves
        rows = zip(*self.rows, strict=True) if self.rows else [features, data.blocks(data.y), data.blocks(data.q)]
        blocks: list[Any] = list(zip(*rows, data.parts(data.ids), _by_bucket(states, data), strict=True))
        if chosen_first:
            blocks = jax.tree.map(lambda leaf: leaf[who], blocks)
        result = _joined([visit(block) for block in blocks])
        return result if who is None or chosen_first else jax.tree.map(lambda leaf: leaf[who], result)

    def _where_they_are(self, update: ClientUpdate, states: PyTree, kernel: Kernel, who: Array) -> PyTree:
        """Full gradients of the participants, whose rows a kernel reads without a copy of them."""
        assert isinstance(self.rows, list)
        (rows,) = self.rows

        def one(client: Any) -> PyTree:
            i, c = client
            there = jnp.minimum(i, len(rows.A) - 1)  # on a mesh an unused place is after the last client
            f = OnePass(self.params.loss, *rows, kernel.interpret, there)
            return update(f, c, self._key(self.data.ids[i]))

        return jax.vmap(one)((who, jax.tree.map(lambda leaf: leaf[who], states)))

    def _participants_in_turn(self, update: ClientUpdate, states: PyTree, who: Array) -> PyTree:
        """Full gradients of one participant after another: the cost does not depend on the number of other clients."""
        data = self.data

        def with_rows(count: int) -> Callable[[Array, PyTree], PyTree]:
            def active(i: Array, c: PyTree) -> PyTree:
                first = data.offset[i]
                y, q = (jax.lax.dynamic_slice_in_dim(a, first, count) for a in (data.y, data.q))
                f = FullGradient(self.params.loss, rows_from(data.A, first, count), y, q)
                return update(f, c, self._key(data.ids[i]))

            return active

        def absent(i: Array, c: PyTree) -> PyTree:  # a participant that is on another device of the mesh
            return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(of_bucket[0], i, c))

        of_bucket = [with_rows(rows) for _, rows in data.buckets]
        ends = np.cumsum([k for k, _ in data.buckets])

        def one(client: tuple[Array, PyTree]) -> PyTree:
            i, c = client
            bucket = jnp.searchsorted(ends, i, side="right")
            return jax.lax.switch(bucket, of_bucket if self.options.axis is None else [*of_bucket, absent], i, c)

        return jax.lax.map(one, (who, jax.tree.map(lambda leaf: leaf[who], states)))

    def _in_kernels(self, update: ClientUpdate, states: PyTree, size: int) -> PyTree:
        """Full gradients of all clients, each client's round in one kernel. The choice of kernel ruled out random keys."""
        assert self.options.kernel is not None
        assert isinstance(self.rows, list)

        def client(f: LocalLoss, c: PyTree) -> tuple[PyTree, PyTree, Array]:
            return update(f, c, self.params.key)

        by_bucket = zip(self.rows, _by_bucket(widened(states, size), self.data), strict=True)
        loss, interpret = self.params.loss, self.options.kernel.interpret
        return _joined([rounds_of_clients(client, loss, *rows, c, interpret) for rows, c in by_bucket])

    def _in_fetching_kernel(self, update: ClientUpdate, states: PyTree, size: int) -> PyTree:
        """Each participant's round in one kernel, which fetches the rows of its mini-batches, or all of its rows."""
        data, who, options = self.data, self._positions(), self.options
        assert options.kernel is not None
        assert isinstance(self.rows, PaddedRows)
        keys = jax.vmap(self._key)(data.ids[who])
        c = widened(jax.tree.map(lambda leaf: leaf[who], states), size)
        where = ClientRows(keys, data.offset[who], data.size[who], max(rows for _, rows in data.buckets))
        loss, interpret = self.params.loss, options.kernel.interpret
        return rounds_fetching_rows(update, loss, self.rows, where, options.batch_size, c, interpret)


def _by_bucket(tree: PyTree, data: PaddedDataset) -> list[PyTree]:
    leaves, structure = jax.tree.flatten(tree)
    parts = [data.parts(leaf) for leaf in leaves]
    return [jax.tree.unflatten(structure, [p[b] for p in parts]) for b in range(len(data.buckets))]


def _joined(parts: list[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts) if len(parts) > 1 else parts[0]


def kernel_rows(data: PaddedDataset, kernel: Kernel | None) -> KernelRows:
    """The rows as a kernel reads them."""
    if kernel is None:
        return []
    data = replace(data, A=data.A.astype(kernel.storage))
    return in_one_piece(data) if kernel.kind == "rows fetched" else in_buckets(data, kernel.kind == "whole round")


def round_of(
    params: Parameters, data: PaddedDataset, options: ProgramOptions, rows: KernelRows, carry: Carry, sample: Sample,
    recorded: Array | bool = True,
) -> Carry:  # fmt: skip
    """Run one round of the clients of a sample; the drift is needed only if the round is `recorded`."""
    params = params._replace(algorithm=scheduled(params.algorithm, options.schedules, carry.r))
    a, g = params.algorithm, params.g
    size = params.loss.size(data.A.shape[1])
    count = _Count(options, params, data, sample)
    here = _Clients(params, data, options, rows, sample.who, carry.r)
    clients: PyTree = carry.clients
    participants: PyTree = None  # their states
    local: PyTree = None  # their local models

    def reply_to(message: Message) -> Reply | None:
        nonlocal clients, participants, local
        exchange, d = message
        if exchange is None:
            participants, calls = here.finish(d, participants)
            count.exchange(calls, d, None)
            clients = here.store(clients, participants)
            return None
        (u, participants, local), calls = here.map(exchange, d, clients)
        count.exchange(calls, d, u)
        clients = here.store(clients, participants)
        full = jax.vmap(lambda u: dense(u, size))(u)
        mean = jax.tree.map(lambda leaf: jnp.tensordot(sample.mean_weights, leaf, 1), full)
        return _over_devices(options, mean), sample.weight

    stages: Any = _CountedServer(a, count.server) if options.calls else a
    server = drive_round(run_round(stages, g, carry.server), reply_to)
    finite = jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(server)]).all()
    not_finite = jnp.where((carry.not_finite == 0) & ~finite, carry.r + 1, carry.not_finite)
    drift = _drift(options, sample.p, local, recorded)
    return Carry(server, clients, drift, carry.r + 1, not_finite, count.added_to(carry.counts))


def scheduled(algorithm: Algorithm, schedules: tuple[tuple[str, Schedule], ...], r: Array) -> Algorithm:
    """The algorithm with the step sizes of round r."""
    for name, value in schedules:
        algorithm = with_leaf(algorithm, name, value(r))
    return algorithm


class _Count:
    """What is counted in one round."""

    def __init__(self, options: ProgramOptions, params: Parameters, data: PaddedDataset, sample: Sample):
        self.options, self.params, self.data, self.who = options, params, data, sample.who
        n = len(data.weight) if sample.who is None else len(sample.who)
        self.calls: Array = jnp.zeros((n, len(KINDS)), jnp.int32)
        self.server: list[Any] = []
        self.seconds: Any = 0.0

    def exchange(self, calls: Any, d: PyTree, u: PyTree | None) -> None:
        """One exchange: the participants' calls, what they received, and what they sent, stacked (None for nothing)."""
        if not self.options.calls:
            return
        assert calls is not None
        self.calls = self.calls + jnp.asarray(calls, jnp.int32)
        clock = self.params.clock
        if clock is None or (u is None and self.options.everyone):  # the broadcast of the next round ends this one
            return
        mine = jax.tree.map(lambda leaf: jnp.asarray(leaf) if self.who is None else jnp.asarray(leaf)[self.who], clock)
        size = self.data.size if self.who is None else self.data.size[self.who]
        batch = size if self.options.batch_size is None else jnp.minimum(size, self.options.batch_size)
        up = 0 if u is None else array_bytes([u]) // len(size)
        calls = jnp.asarray(calls)
        # as floating-point numbers: a client's gradients of a round times its rows may be more than 32 bits hold
        rows = calls[:, OF_BATCH].sum(1) * jnp.asarray(batch, float) + calls[:, OF_ALL].sum(1) * jnp.asarray(
            size, float
        )
        each = mine.latency + array_bytes([d]) * mine.byte_down + up * mine.byte_up + rows * mine.row
        self.seconds = self.seconds + each.max()  # the server waits for the slowest

    def added_to(self, counts: Counts) -> Counts:
        """The counts with those of this round."""

        def of_clients(total: Any, more: Any) -> Any:
            return total + more if self.who is None else total.at[self.who].add(more)

        if counts.taken is not None:
            counts = counts._replace(taken=of_clients(counts.taken, 1))
        if counts.calls is not None:
            counts = counts._replace(calls=of_clients(counts.calls, self.calls))
        if counts.server is not None:
            counts = counts._replace(server=counts.server + sum(jnp.asarray(calls, jnp.int32) for calls in self.server))
        if counts.clock is not None:
            counts = counts._replace(clock=_added(counts.clock, self.seconds))
        return counts


def _added(total: Array, more: Array) -> Array:
    """A sum of two numbers that keeps what rounding takes away: (sum, rest)."""
    s = total[0] + (more + total[1])
    return jnp.stack([s, (more + total[1]) - (s - total[0])])


class _CountedServer:
    """An algorithm, or one exchange of it, whose server counts its calls: all but those of the message that ends a round."""

    def __init__(self, algorithm: Algorithm, calls: list[Any], exchange: Any = None):
        self._algorithm, self._calls, self._exchange = algorithm, calls, algorithm if exchange is None else exchange

    @property
    def exchanges(self) -> tuple[_CountedServer, ...]:
        return tuple(_CountedServer(self._algorithm, self._calls, exchange) for exchange in self._algorithm.exchanges)

    def finishes_rounds(self) -> bool:
        return self._algorithm.finishes_rounds()

    def client_update(self, *args: Any) -> Any:
        return self._exchange.client_update(*args)

    def broadcast(self, g: Regulariser, s: PyTree) -> PyTree:
        found, calls = counted(lambda f, g, s: self._exchange.broadcast(g, s))(None, g, s)
        if len(self._calls) < 2 * len(self._algorithm.exchanges):  # else it ends the round, and opens the next one
            self._calls.append(calls)
        return found

    def server_update(self, g: Regulariser, s: PyTree, mean: PyTree, weight: Array) -> PyTree:
        stage = counted(lambda f, g, s, mean, weight: self._exchange.server_update(g, s, mean, weight))
        found, calls = stage(None, g, s, mean, weight)
        self._calls.append(calls)
        return found


def _over_devices(options: ProgramOptions, value: PyTree) -> PyTree:
    """The sum over all devices of a mesh of a sum over the clients of this one."""
    return value if options.axis is None else jax.lax.psum(value, options.axis)


def _drift(options: ProgramOptions, p: Array, z: Array, recorded: Array | bool) -> Array:
    """The weighted mean distance of local models from their mean.

    On a mesh this takes two sums over all devices, so it is computed for recorded rounds only.
    """

    def distance() -> Array:
        mine = p / _over_devices(options, p.sum())
        return _over_devices(options, mine @ jnp.linalg.norm(z - _over_devices(options, mine @ z), axis=1))

    return distance() if options.axis is None else jax.lax.cond(recorded, distance, lambda: jnp.zeros((), z.dtype))


def one_round(
    params: Parameters, data: PaddedDataset, options: ProgramOptions, rows: KernelRows, carry: Carry, who: Array | None,
    recorded: Array | bool = True,
) -> Carry:  # fmt: skip
    """Run a round with its participants (`drawn`)."""
    of = _sample if options.axis is None else _sample_on_device
    return round_of(params, data, options, rows, carry, of(params, data, options, who), recorded)


def drawn(params: Parameters, data: PaddedDataset, options: ProgramOptions, r: Array) -> Array | None:
    """The participants of round r, by their positions among all clients; None for everybody."""
    ids = data.ids if params.layout is None else params.layout.ids
    if options.participants == len(ids):
        return None
    return participants(options.scheme, params.probabilities, params.key, r, ids, options.participants)


def _sample(params: Parameters, data: PaddedDataset, options: ProgramOptions, who: Array | None) -> Sample:
    """The participants with their weights."""
    everyone = jnp.arange(options.participants) if who is None else who
    weights, weight = mean_weights(options.scheme, params.probabilities, data.weight, everyone)
    return Sample(who, weights, jnp.asarray(weight, weights.dtype), data.weight[everyone])


def _sample_on_device(params: Parameters, data: PaddedDataset, options: ProgramOptions, who: Array | None) -> Sample:
    """The participants that are on this device; all devices draw the same ones.

    The arrays have room for as many as could be here. Unused places have the position after the last client, weight 0, and
    a state that is dropped.
    """
    layout, axis, k, n = params.layout, options.axis, options.participants, len(data.weight)
    assert layout is not None
    assert axis is not None
    if who is None:
        weight = layout.weight.sum()
        return Sample(None, data.weight / weight, weight, data.weight)
    weights, weight = mean_weights(options.scheme, params.probabilities, layout.weight, who)
    place = layout.place[who] - jax.lax.axis_index(axis) * n
    here = jnp.nonzero((place >= 0) & (place < n), size=min(k, n), fill_value=k)[0]

    def filled(values: Array, fill: float) -> Array:
        return values.at[here].get(mode="fill", fill_value=fill)

    p = filled(layout.weight[who], 0.0)
    return Sample(filled(place, n), filled(weights, 0.0), jnp.asarray(weight, weights.dtype), p)


# --- all rounds ---

Evaluated = tuple[Array, dict[str, Any]]  # the model, and its columns
COUNTS = "counts"  # beside the columns, the `Counts` so far
ForAll = Callable[[Callable[..., Any]], Callable[..., Any]]  # from one member to all; see `_rounds`
BUFFER = 64  # recorded rounds that a program holds before it returns them


def _of_all_clients(counts: Counts, params: Parameters, options: ProgramOptions) -> Counts:
    """The counts with those of the clients of all devices, in the order of the data set."""
    if options.axis is None:
        return counts
    layout = params.layout
    assert layout is not None

    def gathered(mine: Array | None) -> Array | None:
        return None if mine is None else jax.lax.all_gather(mine, options.axis, tiled=True)[layout.place]

    return counts._replace(taken=gathered(counts.taken), calls=gathered(counts.calls))


def _evaluate(params: Parameters, data: PaddedDataset, options: ProgramOptions, carry: Carry) -> Evaluated:
    """The model of a run, and the columns that only the program can compute."""
    server = carry.server
    algorithm = scheduled(params.algorithm, options.schedules, jnp.maximum(carry.r - 1, 0))  # that of the last round
    x, columns = algorithm.solution(params.g, server), dict[str, Any](drift=carry.drift)
    # the weights give the number of clients, where these have no state
    c = jax.vmap(lambda _, c: algorithm.correction(server, c))(data.weight, carry.clients)
    if c is not None:
        columns["correction"] = jnp.linalg.norm(_over_devices(options, data.weight @ c))
    if options.measure is not None:
        found = options.measure(params.loss, params.g, data, algorithm, server, carry.clients)
        columns |= {name: jnp.asarray(value) for name, value in own_columns(found).items()}
    if "gradient_mapping" in options.evaluates:
        F, mapping = objectives_and_mappings(params.loss, params.g, data, x[None], params.step, options.axis)
        columns |= {"objective": F[0], "gradient_mapping": jnp.linalg.norm(mapping[0])}
    elif options.evaluates:
        columns["objective"] = objectives(params.loss, params.g, data, x[None], options.axis)[0]
    columns[COUNTS] = _of_all_clients(carry.counts, params, options)
    return x, columns


def _rounds(
    params: Parameters, data: PaddedDataset, options: ProgramOptions, carry: Carry, records: int, every: int,
    for_all: ForAll | None = None,
) -> Any:  # fmt: skip
    """`records` times: `every` rounds, then record the model. Returns the records in buffers of BUFFER rows.

    For the members of a grid, `for_all` turns a function of (params, values of one member, values all share) into a
    function of all members. They share the round number, so that a draw that depends on it and the seed alone is made once
    for all members of one seed.
    """
    mapped = for_all or (lambda f: f)

    @mapped
    def evaluate(params: Parameters, carry: Carry, _: Any) -> Evaluated:
        return _evaluate(params, data, options, carry)

    @mapped
    def ends(params: Parameters, after: tuple[Carry, Evaluated], _: Any) -> Array:
        carry, (_, columns) = after
        converged = False if params.tol is None else has_converged(columns["gradient_mapping"], params.tol)
        return (carry.not_finite > 0) | converged

    @mapped
    def one(params: Parameters, carry: Carry, when: tuple[Array, Array]) -> Carry:
        r, recorded = when
        who = drawn(params, data, options, r)
        return one_round(params, data, options, rows, carry._replace(r=r), who, recorded)

    def block(b: Array, carry: Carry) -> Carry:
        """Rounds whose participants are drawn at once: a GPU sorts many draws in the time of one."""
        start = b * together
        who = jax.vmap(lambda r: drawn(params, data, options, r))(carry.r + jnp.arange(together))

        def step(j: Array, carry: Carry) -> Carry:
            mine = None if who is None else who[j]
            return one_round(params, data, options, rows, carry, mine, start + j == every - 1)

        return jax.lax.fori_loop(0, jnp.minimum(together, every - start), step, carry)

    def until_record(carry: Carry, r: Array) -> Carry:
        """`every` rounds from r on."""
        if for_all is None and together > 1:  # in a grid the members of a seed share its draw
            return jax.lax.fori_loop(0, (every + together - 1) // together, block, carry)
        return jax.lax.fori_loop(0, every, lambda j, c: one(params, c, (r + j, j == every - 1)), carry)

    @mapped
    def unless_ended(_: Parameters, states: tuple[Array, Carry, Carry], __: Any) -> Carry:
        ended, before, after = states
        return jax.tree.map(lambda old, new: jnp.where(ended, old, new), before, after)

    def record(loop: Any) -> Any:
        k, ended, before, buffers = loop
        r = first + k * every
        carry = until_record(before, r)
        if for_all is not None:  # a single run ends with the loop
            carry = unless_ended(params, (ended, before, carry), None)
        found = evaluate(params, carry, None)
        r = jnp.where(ended, 0, carry.r)  # members that ended before have no record of this round
        buffers = jax.tree.map(lambda buffer, value: buffer.at[k].set(value), buffers, (r, *found))
        return k + 1, ends(params, (carry, found), None), carry, buffers

    together = options.drawn_together
    rows = kernel_rows(data, options.kernel)
    first = carry.r.max()  # members that have ended stay behind
    found = evaluate(params, carry, None)
    buffers = jax.tree.map(lambda value: jnp.zeros((BUFFER, *value.shape), value.dtype), (carry.r, *found))
    start = (jnp.int32(0), ends(params, (carry, found), None), carry, buffers)
    _, _, carry, buffers = jax.lax.while_loop(lambda loop: (loop[0] < records) & ~loop[1].all(), record, start)
    return carry, buffers, evaluate(params, carry, None)


def single_rounds(
    params: Parameters, data: PaddedDataset, options: ProgramOptions, carry: Carry, records: int, every: int
) -> Any:
    """`_rounds` with the member axis of a grid of one, added and removed inside the program, where it costs nothing."""
    one = jax.tree.map(lambda leaf: leaf[0], carry)
    return jax.tree.map(lambda leaf: leaf[None], _rounds(params, data, options, one, records, every))


def grid_rounds(
    params: Parameters, data: PaddedDataset, options: ProgramOptions, carry: Carry, records: int, every: int,
    varies: tuple[tuple[bool, bool], ...], shape: tuple[int, int],
) -> Any:  # fmt: skip
    """`_rounds` for every member of a grid with shape = (seeds, members of each seed).

    `varies` says of each leaf of `params` along which of the two axes it differs. Along the other it is shared, and so is
    everything computed from it: members of one seed draw the same rows, and their gradients are products of matrices.
    """
    structure = jax.tree.structure(params)
    axes = [jax.tree.unflatten(structure, [0 if v[k] else None for v in varies]) for k in (0, 1)]

    def for_all(f: Callable[..., Any]) -> Callable[..., Any]:
        return jax.vmap(jax.vmap(f, in_axes=(axes[1], 0, None)), in_axes=(axes[0], 0, None))

    folded = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), carry)
    carry, buffers, last = _rounds(params, data, options, folded, records, every, for_all)
    buffers = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 2), buffers)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (carry, buffers, last))


# On a CPU, LLVM at level 1 compiles rounds sooner than at its default level (mini-batches in half the time), and they run as fast
# or faster (1.7 times for the paper's problem with b = 20). Splitting a program of this size for several threads makes it 1.4
# times the work, so it stays in one piece.
CPU_OPTIONS = {"xla_backend_optimization_level": 1, "xla_cpu_parallel_codegen_split_count": 1}
# Members of a grid are products of matrices: up to a tenth faster in registers that make a single product slower.
CPU_GRID_OPTIONS = CPU_OPTIONS | {"xla_cpu_prefer_vector_width": 512}


def compiler_options(grid: bool = False) -> dict[str, Any] | None:
    """The options of XLA for the program of one run, or of a grid."""
    if jax.devices()[0].platform != "cpu":
        return None
    return CPU_GRID_OPTIONS if grid else CPU_OPTIONS


@functools.cache
def compiled(function: Callable[..., Any], *static: str, grid: bool = False) -> Any:
    """A function of rounds as a program, with the names of its static arguments."""
    return jit(function, static_argnames=static, compiler_options=compiler_options(grid))
