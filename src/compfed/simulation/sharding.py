"""The clients of a simulation sharded over the devices of a mesh, which may belong to several processes and hosts.

Every device runs the program of `simulate` on its own clients; only the sums of a round cross. Where the clients of a bucket
are not a multiple of the devices, padding clients with weight 0 fill the mesh.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from compfed._utils.arrays import empty_aligned
from compfed._utils.text import join_names
from compfed._utils.validation import check_int
from compfed.algorithms.base import PyTree
from compfed.algorithms.costs import Counts
from compfed.errors import InputError
from compfed.problem.padded_dataset import PaddedDataset
from compfed.problem.problem import Problem
from compfed.simulation.xla import Carry, ClientPlaces, Parameters, ProgramOptions, compiled, grid_rounds, single_rounds

AXIS = "clients"
BY_CLIENT = PartitionSpec(AXIS)
REPLICATED: Any = PartitionSpec()
OF_CLIENTS: Any = PartitionSpec(None, AXIS)  # behind the axis of members
OF_COUNTS = Counts(OF_CLIENTS, OF_CLIENTS, REPLICATED, REPLICATED)
OF_CARRY = Carry(REPLICATED, OF_CLIENTS, REPLICATED, REPLICATED, REPLICATED, OF_COUNTS)
WAIT = 300  # seconds for all processes to join


class ShardedData(NamedTuple):
    """The rows of a problem on a mesh."""

    store: PaddedDataset
    layout: ClientPlaces
    slots: np.ndarray  # position in the problem's data set of the client in each place; -1 for padding


class GridMembers(NamedTuple):
    """The members of a grid, as `xla.grid_rounds` takes them."""

    varies: tuple[tuple[bool, bool], ...]  # of each number: along the seeds, along the members of a seed
    shape: tuple[int, int]  # seeds, members of each seed


class ShardedRounds:
    """The rounds of a run on a mesh, or of the members of a grid."""

    def __init__(
        self, mesh: Mesh, problem: Problem, params: Parameters, options: ProgramOptions, members: GridMembers | None
    ):
        self.mesh, self.data = mesh, _sharded(problem, mesh)
        at_once = None if options.clients_at_once is None else max(1, (os.cpu_count() or 1) // len(mesh.local_devices))
        key: Any = np.asarray(jax.random.key_data(params.key))
        if members is not None:  # the layout of the clients is the same for all of them
            members = members._replace(varies=(*members.varies, *[(False, False)] * len(self.data.layout)))
        program = compiled(_mesh_rounds, "options", "mesh", "members", grid=members is not None)
        params = _replicated(mesh, params._replace(key=key, layout=self.data.layout))
        options = options._replace(axis=AXIS, clients_at_once=at_once)
        self.rounds = partial(program, params, self.data.store, options, mesh, members)

    def placed(self, start: Carry) -> Carry:
        """The start of the runs, whose clients are in the order of the problem's data set, on the mesh."""
        client = np.maximum(self.data.slots, 0)  # padding clients get a copy of client 0's state

        def by_client(leaf: np.ndarray) -> jax.Array:
            def part(index: Any) -> np.ndarray:
                return leaf[:, client[index[1]]]

            sharding = NamedSharding(self.mesh, PartitionSpec(None, AXIS))
            return jax.make_array_from_callback((len(leaf), len(client), *leaf.shape[2:]), sharding, part)

        clients, counts = jax.tree.map(by_client, start.clients), start.counts
        taken, calls = jax.tree.map(by_client, (counts.taken, counts.calls))
        rest = _replicated(self.mesh, start._replace(clients=None, counts=counts._replace(taken=None, calls=None)))
        return rest._replace(clients=clients, counts=rest.counts._replace(taken=taken, calls=calls))

    def collect(self, carry: Carry) -> Carry:
        """The carry with the states of all clients in the order of the problem's data set, in every process."""
        everywhere = jax.jit(lambda tree: tree, out_shardings=NamedSharding(self.mesh, REPLICATED))(carry.clients)
        place = np.asarray(self.data.layout.place)
        clients = jax.tree.map(lambda leaf: np.asarray(leaf)[:, place], everywhere)
        return carry._replace(clients=clients, counts=Counts())  # the counts are recorded already


def _mesh_rounds(
    params: Parameters, data: PaddedDataset, options: ProgramOptions, mesh: Mesh, members: GridMembers | None, carry: Carry,
    records: int, every: int,
) -> PyTree:  # fmt: skip
    def on_device(params: Parameters, data: PaddedDataset, carry: Carry, records: int, every: int) -> PyTree:
        params = params._replace(key=jax.random.wrap_key_data(params.key, impl="threefry2x32"))
        if members is None:
            return single_rounds(params, data, options, carry, records, every)
        return grid_rounds(params, data, options, carry, records, every, *members)

    return jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(REPLICATED, BY_CLIENT, OF_CARRY, REPLICATED, REPLICATED),
        out_specs=(OF_CARRY, REPLICATED, REPLICATED),
        check_vma=False,  # JAX cannot see that loops over sums of all devices are the same on all of them
    )(params, data, carry, records, every)


def check_mesh(devices: object) -> Mesh:
    """A mesh of one axis over the devices given."""
    found = devices.devices.ravel() if isinstance(devices, Mesh) else devices
    found: Any = np.array(found, object) if isinstance(found, (list, tuple, np.ndarray)) else np.zeros(0)
    if not found.size or not all(isinstance(device, jax.Device) for device in found):
        raise InputError(f"mesh={devices!r:.80} must be devices, such as jax.devices(), or a jax.sharding.Mesh.")
    if len(set(found)) < found.size:
        raise InputError("mesh names a device twice; each of them can have one share of the clients.")
    if not any(device.process_index == jax.process_index() for device in found):
        raise InputError("mesh has no device of this process; every process that calls simulate needs one in it.")
    return Mesh(found, (AXIS,))


# --- placement of clients and rows ---


def _slots(buckets: tuple[tuple[int, int], ...], devices: int) -> tuple[np.ndarray, tuple[tuple[int, int], ...]]:
    """(devices, places each): the positions of clients, -1 for padding; and the buckets of one device."""
    parts, mine, start = [], [], 0
    for k, rows in buckets:
        each = -(-k // devices)
        part = np.pad(np.arange(start, start + k), (0, devices * each - k), constant_values=-1)
        parts.append(part.reshape(devices, each))
        mine.append((each, rows))
        start += k
    return np.concatenate(parts, axis=1), tuple(mine)


def _sharded(problem: Problem, mesh: Mesh) -> ShardedData:
    """The rows on the mesh; made once for a problem, and shared by its copies with another regulariser."""
    kept = problem.cache.setdefault("on a mesh", {})
    if mesh not in kept:
        kept.clear()
        kept[mesh] = _shard(problem.dataset, mesh)
    return kept[mesh]


def _shard(store: PaddedDataset, mesh: Mesh) -> ShardedData:
    slots, buckets = _slots(store.buckets, mesh.size)
    whole: Any = jax.tree.map(np.asarray, store)
    slot_rows = np.repeat([rows for _, rows in buckets], [each for each, _ in buckets])  # rows of each slot of a device
    slot_start = np.cumsum(slot_rows) - slot_rows

    def clients(values: np.ndarray, padding: float | None = None) -> Callable[[int], np.ndarray]:
        """The values of the clients of a device; an empty slot has `padding`, or the value of client 0."""
        fill = values[0] if padding is None else values.dtype.type(padding)
        return lambda device: np.where(slots[device] < 0, fill, values[slots[device]])

    def rows(values: np.ndarray, padding: float | None = None) -> Callable[[int], np.ndarray]:
        """The rows of the clients of a device; an empty slot has `padding`, or rows of client 0, at which a loss is finite."""

        def rows_of_device(device: int) -> np.ndarray:
            occupied = np.repeat(slots[device] >= 0, slot_rows)
            within_slot = np.arange(slot_rows.sum()) - np.repeat(slot_start, slot_rows)
            row = np.where(occupied, np.repeat(whole.offset[slots[device]], slot_rows) + within_slot, 0)
            found = empty_aligned((len(row), *values.shape[1:]), values.dtype)
            # in range: a client is already padded to the rows of its slot; mode="raise" would make a second copy
            np.take(values, row, axis=0, out=found, mode="clip")
            if padding is not None:
                found[~occupied] = padding
            return found

        return rows_of_device

    parts = [
        rows(whole.A), rows(whole.y), rows(whole.q, 0.0), rows(whole.row_weight, 0.0), lambda j: slot_start.astype(np.int32),
        clients(whole.size), clients(whole.weight, 0.0), clients(whole.ids),
    ]  # fmt: skip
    made = PaddedDataset(*(_by_device(mesh, part) for part in parts), buckets=buckets)
    place: Any = np.empty(len(whole.weight), np.int32)
    place[slots[slots >= 0]] = np.flatnonzero(slots.ravel() >= 0)
    return ShardedData(made, ClientPlaces(whole.ids, whole.weight, place), slots.ravel())


def _by_device(mesh: Mesh, part: Callable[[int], np.ndarray]) -> jax.Array:
    """One array of which device j has part(j); each process makes the parts of its own devices."""
    like = part(0)
    shape = (mesh.size * len(like), *like.shape[1:])

    def of_index(index: Any) -> np.ndarray:
        return part((index[0].start or 0) // len(like))  # the slice of a single device has no start

    return jax.make_array_from_callback(shape, NamedSharding(mesh, BY_CLIENT), of_index)


def _replicated(mesh: Mesh, tree: PyTree) -> PyTree:
    """The arrays on every device; plain numbers stay as they are."""

    def one(leaf: object) -> object:
        if not isinstance(leaf, (np.ndarray, np.generic, jax.Array)):
            return leaf
        values = np.asarray(leaf)
        return jax.make_array_from_callback(values.shape, NamedSharding(mesh, REPLICATED), lambda index: values[index])

    return jax.tree.map(one, tree)


# --- several processes ---


def run_script(
    script: Path, arguments: Sequence[str], *, coordinator: str, process_id: int, processes: int, wait: int = WAIT
) -> None:
    """Join the other processes and run a script, with the devices of all processes in `jax.devices()`.

    `coordinator` is the address of process 0. Sums cross by gloo between CPUs and by NCCL between GPUs.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InputError(f"--coordinator {coordinator} must be HOST:PORT, the address of process 0.")
    processes, process_id = check_int(processes, "--processes ", 1), check_int(process_id, "--process-id ", 0)
    if process_id >= processes:
        raise InputError(
            f"--process-id {process_id} must be one of 0 to {processes - 1}: there are --processes {processes}."
        )
    if not script.is_file():
        raise InputError(f"{script}: there is no such script.")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    others = [f"{i}" for i in range(processes) if i != process_id] if process_id == 0 else ["0"]
    awaited = f"process{'es' * (len(others) > 1)} {join_names(others, most=8)}"
    me = f"process {process_id} of {processes}"
    if processes > 1:
        sys.stderr.write(f"compfed worker: {me} waits for {awaited} at {coordinator}, at most {wait} s.\n")
        sys.stderr.flush()
    try:
        jax.distributed.initialize(coordinator, processes, process_id, initialization_timeout=wait)
    except RuntimeError as problem:
        raise InputError(
            f"{me} could not meet the others at {coordinator} within {wait} s. Start all of "
            f"them with the same --coordinator and --processes, each with its own --process-id. ({problem!s:.200})"
        ) from None
    if processes > 1:
        sys.stderr.write(f"compfed worker: all {processes} processes are there; {me} runs {script}.\n")
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))  # as `python SCRIPT` does
    runpy.run_path(str(script), run_name="__main__")
