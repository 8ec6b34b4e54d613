"""The clients of a simulation shared out over the devices of a mesh, which may belong to several processes and hosts.

Every device runs the program of `simulate` on its own clients; what crosses is a round's sums. Where the clients of a bucket are
no multiple of the devices, places are left that nobody has: clients without weight, whose answers count nothing.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from compfed._utils.arrays import empty_aligned
from compfed._utils.compilation import jit, keep_cores_awake
from compfed._utils.precision import precision
from compfed.errors import Divergence, InputError
from compfed.monitor import Progress, Recorder, Run, first_state
from compfed.problem.local_dataset import PaddedDataset
from compfed.problem.problem import Problem
from compfed.sampling import run_key
from compfed.simulation.evaluation import measured
from compfed.simulation.simulate import Measured, Pace, drive, finished, half_a_second, planned, rows_of
from compfed.simulation.xla import (
    BUFFER,
    Carry,
    Layout,
    Measure,
    Plan,
    Setting,
    Stop,
    grid_rounds,
    options,
    single_rounds,
)
from compfed.trace import Trace

AXIS = "clients"
BY_CLIENT = PartitionSpec(AXIS)
EVERYWHERE: Any = PartitionSpec()
OF_CARRY = Carry(EVERYWHERE, PartitionSpec(None, AXIS), EVERYWHERE, EVERYWHERE, EVERYWHERE)


class Shared(NamedTuple):
    """The rows of a problem on a mesh."""

    store: PaddedDataset
    layout: Layout
    slots: np.ndarray  # position in the problem's store of the client in each place; -1 for nobody


def simulated_on(
    devices: Any, run: Run, stop: Stop | None, *, progress: Progress | None = None, measure: Measure | None = None
) -> Trace:
    """A checked run with its clients shared out over `devices`."""
    if measure is not None:
        raise InputError(
            "measure looks at all clients at once, which are on several devices here; leave measure or mesh out."
        )
    # measured by the devices together: no process need have all rows on one of them
    stop = Stop(-1.0, 1.0 / rows_of(run).lipschitz) if stop is None else stop
    return _simulated(_checked_mesh(devices), run, stop, progress, None, _steady)


def simulated_on_cores(run: Run, stop: Stop | None, *, progress: Progress | None = None) -> Trace:
    """The same on the CPU devices of this process, which has all rows and measures models beside the rounds."""
    problem = rows_of(run)
    with keep_cores_awake():
        return _simulated(
            cores_for(problem), run, stop, progress, lambda models: [measured(problem, *models)], half_a_second
        )


def cores_for(problem: Problem) -> Mesh:
    """The CPU devices of this process. One device uses several cores by splitting every single product among them, and waits
    for the last after each; on a mesh a core has its own clients, and waits once a round."""
    return Mesh(np.array(jax.devices()[: problem.n]), (AXIS,))


def _simulated(
    mesh: Mesh, run: Run, stop: Stop | None, progress: Progress | None, measure: Measured | None, pace: Pace
) -> Trace:
    problem, recorder = rows_of(run), Recorder(run, "simulate")
    plan, odds = planned(run, None)
    recorder.more["mesh"] = described(mesh)
    with precision(problem.dtype):
        setting = Setting(run.algorithm, problem.loss, problem.regulariser, run_key(run.seed), stop, odds)
        there = OnMesh(mesh, [run], setting, plan)
        carry = drive(there.rounds, there.first_carry(), [recorder], progress, measure, pace)
        trace = finished(recorder, there.collected(carry), 0)
    if recorder.blown:
        raise Divergence(trace.provenance["diverged"], trace)
    return trace


def described(mesh: Mesh) -> dict[str, int]:
    return {"devices": mesh.size, "processes": len({device.process_index for device in mesh.devices.flat})}


def _steady(batch: int, seconds: float) -> int:
    """Not by the clock, which is another in every process: all of them have to do the same rounds."""
    return min(2 * batch, BUFFER)


class OnMesh:
    """A run on a mesh, or the members of a grid, which `xla_program.grid_rounds` has told apart (`varies`, `shape`)."""

    def __init__(
        self,
        mesh: Mesh,
        runs: Sequence[Run],
        setting: Setting,
        plan: Plan,
        members: tuple[tuple[tuple[bool, bool], ...], tuple[int, int]] | None = None,
    ):
        self.mesh, self.runs = mesh, runs
        self.shared = _shared(rows_of(runs[0]), mesh)
        at_once = None if plan.at_once is None else max(1, (os.cpu_count() or 1) // len(mesh.local_devices))
        self.plan = plan._replace(axis=AXIS, at_once=at_once)
        key: Any = np.asarray(jax.random.key_data(setting.run))
        self.setting = _everywhere(mesh, setting._replace(run=key, layout=self.shared.layout))
        if members is not None:  # where clients are is the same for all of them
            varies, shape = members
            members = (*varies, *[(False, False)] * len(self.shared.layout)), shape
        self.program = functools.partial(_program(members is not None), members=members)

    def rounds(self, carry: Carry, records: int, every: int) -> Any:
        return self.program(self.setting, self.shared.dataset, self.plan, self.mesh, carry, records, every)

    def first_carry(self) -> Carry:
        """Where the runs start, with the member axis that `drive` expects."""
        mesh, slots = self.mesh, self.shared.slots
        order = rows_of(self.runs[0]).order[np.maximum(slots, 0)]  # who is nobody remembers what the first one does
        n = len(slots) // mesh.size
        server, clients = jax.tree.map(lambda *leaves: np.stack(leaves), *map(first_state, self.runs))

        def by_client(leaf: np.ndarray) -> jax.Array:
            def part(index: Any) -> np.ndarray:
                first = _start(index[1])
                return leaf[:, order[first : first + n]]

            shape = (len(leaf), len(order), *leaf.shape[2:])
            return jax.make_array_from_callback(shape, NamedSharding(mesh, PartitionSpec(None, AXIS)), part)

        count, first = len(self.runs), self.runs[0]
        numbers = (
            np.zeros(count, first.problem.dtype),
            np.full(count, first.start, np.int32),
            np.zeros(count, np.int32),
        )
        return Carry(_everywhere(mesh, server), jax.tree.map(by_client, clients), *_everywhere(mesh, numbers))

    def collected(self, carry: Carry) -> Carry:
        """With the memories of all clients in the order of the problem's store, known to every process."""
        everywhere = jax.jit(lambda tree: tree, out_shardings=NamedSharding(self.mesh, EVERYWHERE))(carry.clients)
        place = np.asarray(self.shared.layout.place)
        return carry._replace(clients=jax.tree.map(lambda leaf: np.asarray(leaf)[:, place], everywhere))


def _mesh_rounds(
    setting: Setting, data: PaddedDataset, plan: Plan, mesh: Mesh, carry: Carry, records: int, every: int, members: Any
) -> Any:
    def on_one(setting: Setting, data: PaddedDataset, carry: Carry, records: int, every: int) -> Any:
        setting = setting._replace(run=jax.random.wrap_key_data(setting.run, impl="threefry2x32"))
        if members is None:
            return single_rounds(setting, data, plan, carry, records, every)
        return grid_rounds(setting, data, plan, carry, records, every, *members)

    return jax.shard_map(
        on_one,
        mesh=mesh,
        in_specs=(EVERYWHERE, BY_CLIENT, OF_CARRY, EVERYWHERE, EVERYWHERE),
        out_specs=(OF_CARRY, EVERYWHERE, EVERYWHERE),
        check_vma=False,  # loops over sums of all devices are alike on all of them, which JAX cannot see
    )(setting, data, carry, records, every)


@functools.cache
def _program(grid: bool) -> Any:
    return jit(_mesh_rounds, static_argnames=("plan", "mesh", "members"), compiler_options=options(grid))


def _checked_mesh(devices: Any) -> Mesh:
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


# --- where clients and rows go ---


def _slots(buckets: tuple[tuple[int, int], ...], devices: int) -> tuple[np.ndarray, tuple[tuple[int, int], ...]]:
    """(devices, places each): the positions of clients, -1 for nobody; and the buckets of one device."""
    parts, mine, start = [], [], 0
    for k, rows in buckets:
        each = -(-k // devices)
        part = np.full(devices * each, -1)
        part[:k] = np.arange(start, start + k)
        parts.append(part.reshape(devices, each))
        mine.append((each, rows))
        start += k
    return np.concatenate(parts, axis=1), tuple(mine)


def _shared(problem: Problem, mesh: Mesh) -> Shared:
    """The rows on the mesh; made once for a problem, whose copies with another regulariser share them."""
    kept = problem.cache.setdefault("on a mesh", {})
    if mesh not in kept:
        kept.clear()
        kept[mesh] = _share_out(problem.dataset, mesh)
    return kept[mesh]


def _share_out(store: PaddedDataset, mesh: Mesh) -> Shared:
    slots, buckets = _slots(store.buckets, mesh.size)
    whole: Any = jax.tree.map(np.asarray, store)
    room = np.repeat([rows for _, rows in buckets], [each for each, _ in buckets])  # of each place of a device
    begin = np.cumsum(room) - room

    def clients(values: np.ndarray, none: float | None = None) -> Callable[[int], np.ndarray]:
        """What the clients of a device have; for nobody, `none`, or what the first client has."""
        fill = values[0] if none is None else values.dtype.type(none)
        return lambda j: np.where(slots[j] < 0, fill, values[slots[j]])

    def rows(values: np.ndarray, none: float | None = None) -> Callable[[int], np.ndarray]:
        """Their rows; for nobody, rows of the first client of all, whose numbers a loss can deal with."""

        def of_device(j: int) -> np.ndarray:
            there = np.repeat(slots[j] >= 0, room)
            within = np.arange(room.sum()) - np.repeat(begin, room)
            number = np.where(there, np.repeat(whole.offset[slots[j]], room) + within, 0)
            mine = empty_aligned((len(number), *values.shape[1:]), values.dtype)
            np.take(values, number, axis=0, out=mine, mode="clip")  # all are in range; "raise" makes a second copy
            if none is not None:
                mine[~there] = none
            return mine

        return of_device

    parts = {
        "A": rows(whole.A),
        "y": rows(whole.y),
        "q": rows(whole.q, 0.0),
        "row_weight": rows(whole.row_weight, 0.0),
        "offset": lambda j: begin.astype(np.int32),
        "size": clients(whole.size),
        "weight": clients(whole.weight, 0.0),
        "ids": clients(whole.ids),
    }
    made = PaddedDataset(**{name: _by_device(mesh, part) for name, part in parts.items()}, buckets=buckets)
    place: Any = np.empty(len(whole.weight), np.int32)
    place[slots[slots >= 0]] = np.flatnonzero(slots.ravel() >= 0)
    return Shared(made, Layout(whole.ids, whole.weight, place), slots.ravel())


def _by_device(mesh: Mesh, part: Callable[[int], np.ndarray]) -> jax.Array:
    """One array of which device j has part(j); each process makes the parts of its own devices."""
    like = part(0)
    shape = (mesh.size * len(like), *like.shape[1:])

    def of_index(index: Any) -> np.ndarray:
        return part(_start(index[0]) // len(like))

    return jax.make_array_from_callback(shape, NamedSharding(mesh, BY_CLIENT), of_index)


def _start(index: Any) -> int:
    """Where a slice begins; that of a single device says nothing."""
    return index.start or 0


def _everywhere(mesh: Mesh, tree: Any) -> Any:
    """Arrays on every device; plain numbers stay what they are."""

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, (np.ndarray, np.generic, jax.Array)):
            return leaf
        values = np.asarray(leaf)
        return jax.make_array_from_callback(values.shape, NamedSharding(mesh, EVERYWHERE), lambda index: values[index])

    return jax.tree.map(one, tree)
