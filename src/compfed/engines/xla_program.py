"""All rounds as one XLA program: rounds, looks, and when to end; for one run, or for the members of a grid."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from compfed.engines.columns import own_columns
from compfed.engines.xla_round import Carry, Plan, Setting, kernel_rows, one_round, total
from compfed.problem.measures import objectives_and_mappings
from compfed.problem.padded_rows import Store
from compfed.tools.programs import compiled

Each = Callable[
    [Callable[..., Any]], Callable[..., Any]
]  # of functions of (setting, what a member has, what all share)
BUFFER = 64  # recorded rounds a program holds before it hands them back


def _seen(setting: Setting, data: Store, plan: Plan, carry: Carry) -> dict[str, Array]:
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
    data: Store,
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


def _certified(setting: Setting, data: Store, plan: Plan, x: Array) -> dict[str, Array]:
    """What `columns.measured` would say of x, where the program itself has to know it."""
    if setting.stop is None:
        return {}
    F, mapping = objectives_and_mappings(setting.loss, setting.g, data, x[None], setting.stop.step, plan.axis)
    return {"objective": F[0], "gradient_mapping": jnp.linalg.norm(mapping[0])}


def single_rounds(setting: Setting, data: Store, plan: Plan, carry: Carry, records: int, every: int):
    """`_rounds` with the member axis of a grid of one: added and removed inside the program, where it costs nothing."""
    one = jax.tree.map(lambda leaf: leaf[0], carry)
    return jax.tree.map(lambda leaf: leaf[None], _rounds(setting, data, plan, one, records, every))


def grid_rounds(
    setting: Setting,
    data: Store,
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
    return compiled(single_rounds, static_argnames="plan", compiler_options=options())


@functools.cache
def grid_program() -> Any:
    return compiled(grid_rounds, static_argnames=("plan", "varies", "shape"), compiler_options=options(grid=True))


def programs_compiled() -> int:
    """How many programs this process has compiled so far."""
    return single_program()._cache_size() + grid_program()._cache_size()  # jax has no public count
