"""Clients shared out over the cores of a CPU, each of which is a device of its own (`compfed.use_all_cores`).

One device uses several cores by splitting every single product among them, and waits for the last after each. Here a core has
its own clients and works through their rounds alone; what they answer is gathered once a round.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from compfed.engines.onchip.rows import Bucket
from compfed.problem.local_loss import FullGradient, LocalLoss, MiniBatch
from compfed.problem.padded_rows import Store
from compfed.problem.problem import Problem
from compfed.tools.memory import LARGEST
from compfed.tools.randomness import client_key

SMALL = 2**20  # bytes of rows below which waiting for each other costs more than is won


def cores_for(problem: Problem, participants: int) -> int:
    """How many cores share out the clients: 1 unless the CPU has several devices, and rows worth a second copy."""
    devices = jax.devices()
    if devices[0].platform != "cpu" or participants < problem.n or not SMALL < problem.store.A.nbytes <= LARGEST:
        return 1
    return min(len(jax.local_devices()), problem.n)


def rows_on_cores(problem: Problem, cores: int) -> list[Bucket]:
    """The rows of the clients, each where its core is; kept with the problem."""
    kept: dict[int, list[Bucket]] = vars(problem).setdefault("_rows_on_cores", {})
    if cores not in kept:
        place, data = NamedSharding(_mesh(cores), PartitionSpec("cores")), problem.store
        parts = zip(*(data.blocks(a) for a in (data.A, data.y, data.q)), strict=True)
        kept[cores] = [Bucket(*(jax.device_put(_filled(np.asarray(a), cores), place) for a in part)) for part in parts]
    return kept[cores]


def clients_on_cores(
    setting: Any, data: Store, plan: Any, buckets: list[Bucket], work: Any, clients: Any, who: Array, r: Array
) -> Any:
    """The work of all clients, in the order of the store. `buckets` are `rows_on_cores`."""
    capacity = max(rows for _, rows in data.buckets)
    leaves, form = jax.tree.flatten(clients)
    memories = list(zip(*map(data.parts, leaves), strict=True)) or [()] * len(data.buckets)

    def visit(A: Array, y: Array, q: Array, ids: Array, sizes: Array, c: Any) -> Any:
        """What one core does."""

        def answer(f: LocalLoss, i: Array, c: Any) -> Any:
            return work(f, c, client_key(setting.run, r, i))

        if plan.batch_size is None:
            own = jax.lax.map(lambda t: answer(FullGradient(setting.loss, *t[:3]), *t[3:]), (A, y, q, ids, c))
        else:
            rows = [a.reshape(-1, *a.shape[2:]) for a in (A, y, q)]
            batch = partial(MiniBatch, setting.loss, *rows)
            first = jnp.arange(len(ids), dtype=jnp.int32) * A.shape[1]
            own = jax.vmap(lambda o, m, i, c: answer(batch(o, m, capacity, plan.batch_size), i, c))(
                first, sizes, ids, c
            )
        return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, "cores", tiled=True), own)

    shared = jax.shard_map(
        visit, mesh=_mesh(plan.cores), in_specs=PartitionSpec("cores"), out_specs=PartitionSpec(), check_vma=False
    )
    done = []
    per_client = zip(data.parts(data.ids), data.parts(data.size.astype(jnp.int32)), memories, strict=True)
    for rows, (ids, sizes, memory) in zip(buckets, per_client, strict=True):
        mine = jax.tree.map(lambda a: _filled(a, plan.cores), (ids, sizes, jax.tree.unflatten(form, memory)))
        done.append(jax.tree.map(partial(_first, len(ids)), shared(*rows, *mine)))
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *done) if len(done) > 1 else done[0]


def _first(count: int, a: Array) -> Array:
    return a[:count]


def _filled(a: Any, cores: int) -> Any:
    """As many clients for every core: the last one again where they do not come out even."""
    count = -len(a) % cores
    if not count:
        return a
    xp = np if isinstance(a, np.ndarray) else jnp
    return xp.concatenate([a, xp.repeat(a[-1:], count, axis=0)])


def _mesh(cores: int) -> Mesh:
    return Mesh(np.array(jax.local_devices()[:cores]), ("cores",))
