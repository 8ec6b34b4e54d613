"""The simulator: all rounds as one XLA program (see `grid` for many settings at once)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed.algorithms.base import Algorithm
from compfed.engines.columns import measured, own_columns
from compfed.engines.onchip.choice import Storage, chosen, stored_as
from compfed.engines.recorder import Progress, Recorder, Run, first_state
from compfed.engines.request import checked
from compfed.engines.xla_round import Carry, Measure, Plan, Setting, Stop, kernel_rows, one_round, total
from compfed.errors import Divergence, InputError
from compfed.problem.measures import objectives_and_mappings
from compfed.problem.padded_rows import Store
from compfed.problem.problem import Problem
from compfed.tools.checks import a_function, is_number
from compfed.tools.precision import precision
from compfed.tools.programs import compiled
from compfed.tools.randomness import run_key
from compfed.tools.sampling import Odds, Scheme, odds, scheme_in_use
from compfed.trace import Trace

BUFFER = 64  # recorded rounds a program holds before it hands them back
Pace = Callable[[int, float], int]  # (records of the last call, its seconds) -> records of the next


# --- many rounds ---


def _seen(setting: Setting, data: Store, plan: Plan, carry: Carry) -> dict[str, Array]:
    seen, server = {"drift": carry.drift}, carry.server
    # the weights say how many clients there are, where these remember nothing
    c = jax.vmap(lambda _, c: setting.algorithm.correction(server, c))(data.weight, carry.clients)
    if c is not None:
        seen["correction"] = jnp.linalg.norm(total(plan, data.weight @ c))
    if plan.measure is not None:
        seen |= own_columns(plan.measure(setting.loss, setting.g, data, setting.algorithm, carry.server, carry.clients))
    return seen


def _rounds(setting: Setting, data: Store, plan: Plan, carry: Carry, records: int, every: int):
    """`records` times: `every` rounds, then note the model. Returns what was noted, in buffers of BUFFER rows."""

    def look(carry: Carry) -> tuple[Array, dict[str, Array]]:
        x = setting.algorithm.solution(setting.g, carry.server)
        return x, _seen(setting, data, plan, carry) | _certified(setting, data, plan, x)

    def over(carry: Carry, noted: tuple[Array, dict[str, Array]]) -> Array:
        arrived = False if setting.stop is None else noted[1]["gradient_mapping"] <= setting.stop.tol
        return (carry.bad > 0) | arrived

    def record(loop):
        k, _, carry, buffers = loop
        carry = jax.lax.fori_loop(0, every, lambda _, c: one_round(setting, data, plan, rows, c), carry)
        noted = look(carry)
        buffers = jax.tree.map(lambda buffer, value: buffer.at[k].set(value), buffers, (carry.r, *noted))
        return k + 1, over(carry, noted), carry, buffers

    rows = kernel_rows(data, plan.kernel)
    blank = jax.tree.map(lambda s: jnp.zeros((BUFFER, *s.shape), s.dtype), jax.eval_shape(look, carry))
    buffers = (jnp.zeros(BUFFER, carry.r.dtype), *blank)
    already = carry.bad > 0 if setting.stop is None else over(carry, look(carry))
    start = (0, already, carry, buffers)
    _, _, carry, buffers = jax.lax.while_loop(lambda loop: (loop[0] < records) & ~loop[1], record, start)
    return carry, buffers, look(carry)


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


def _grid_rounds(
    setting: Setting, data: Store, plan: Plan, carry: Carry, records: int, every: int, varies: tuple[bool, ...]
):
    """`_rounds` for every member of a grid; leaves of `setting` that do not vary are shared."""
    axes = jax.tree.unflatten(jax.tree.structure(setting), [0 if v else None for v in varies])
    member = partial(_rounds, plan=plan, records=records, every=every)
    return jax.vmap(lambda setting, carry: member(setting, data, carry=carry), in_axes=(axes, 0))(setting, carry)


# On a CPU, loops over mini-batches and small data are short: LLVM at level 1 compiles them in half the time and they
# run faster (1.7 times, for the paper's problem with b = 20) than at its default level, which suits long rows only.
# One piece, because splitting a program of this size for several threads makes it 1.4 times the work.
SHORT_LOOPS = {"xla_backend_optimization_level": 1, "xla_cpu_parallel_codegen_split_count": 1}
_PROGRAMS = {
    (grid, short): compiled(
        _grid_rounds if grid else single_rounds,
        static_argnames=("plan", "varies") if grid else "plan",
        compiler_options=SHORT_LOOPS if short else None,
    )
    for grid in (False, True)
    for short in (False, True)
}


def program_for(plan: Plan, grid: bool) -> Callable[..., Any]:
    return _PROGRAMS[grid, plan.at_once is None and jax.devices()[0].platform == "cpu"]


def programs_compiled() -> int:
    """How many programs this process has compiled so far."""
    return sum(program._cache_size() for program in _PROGRAMS.values())  # pyright: ignore  # jax has no public count


def _half_a_second(batch: int, seconds: float) -> int:
    """About so much work between two looks, so that progress and divergence show in time."""
    return int(np.clip(0.5 / max(seconds, 1e-9) * batch, 1, BUFFER))


def drive(
    program: Callable,
    carry: Carry,
    recorders: Sequence[Recorder],
    progress: Progress | None,
    pace: Pace = _half_a_second,
) -> Carry:
    """Call `program(carry, records, every)` until all rounds are done. All its outputs have a leading member axis."""
    run, done = recorders[0].run, 0
    x, seen = jax.tree.map(np.asarray, program(carry, 0, 1)[2])  # compiles, and looks at the start
    if run.resume is None:
        for i, recorder in enumerate(recorders):
            recorder.add(np.array([0]), x[i : i + 1], {k: v[i : i + 1] for k, v in seen.items()}, 0.0)
    whole, rest = divmod(run.rounds, run.record_every)
    todo = [(whole, run.record_every), (1, rest)] if rest else [(whole, run.record_every)]
    for records, every in todo:
        batch = 1
        while records > 0 and not all(recorder.blown or recorder.arrived for recorder in recorders):
            batch = min(batch, records)
            began = time.perf_counter()
            carry, buffers, _ = jax.block_until_ready(program(carry, batch, every))
            seconds = time.perf_counter() - began
            (rounds, models, seen), blown, reached = jax.tree.map(np.asarray, (buffers, carry.bad, carry.r))
            for i, recorder in enumerate(recorders):
                bad = int(blown[i])  # a bounded g can hide it: the model is finite where the server's state is not
                noted = np.flatnonzero((rounds[i] > recorder.last_round) & ((bad == 0) | (rounds[i] < bad)))
                columns = {k: v[i][noted] for k, v in seen.items()}
                recorder.add(rounds[i][noted], models[i][noted], columns, seconds)
                recorder.blown = recorder.blown or bad or None
                recorder.arrived = int(reached[i]) < run.start + done + batch * every
            records, done = records - batch, done + batch * every
            batch = pace(batch, seconds)
            if progress is not None:
                progress(done, run.rounds)
    return carry


def clients_at_once(problem: Problem, batch_size: int | None) -> int | None:
    """How many clients to work on side by side.

    On a CPU one client per core, so that a client's rows stay in cache for its tau full-gradient steps; everyone at
    once on other devices, for data that fits the cache anyway, and for mini-batches.
    """
    return at_once_for(problem.store.A.nbytes, batch_size)


def at_once_for(nbytes: int, batch_size: int | None) -> int | None:
    """The same for so many bytes of rows."""
    everyone = jax.devices()[0].platform != "cpu" or batch_size is not None or nbytes <= 2**20
    return None if everyone else os.cpu_count() or 1


def first_carry(runs: Sequence[Run]) -> Carry:
    """Where the runs start, stacked along a member axis. In NumPy: many small arrays, each moved to the device once."""

    def one(run: Run) -> Carry:
        server, clients = first_state(run)
        order = rows_of(run).order
        numbers: Any = (np.zeros((), run.problem.dtype), np.int32(run.start), np.int32(0))
        return Carry(server, jax.tree.map(lambda leaf: leaf[order], clients), *numbers)

    return jax.device_put(jax.tree.map(lambda *leaves: np.stack(leaves), *map(one, runs)))


def simulate(
    problem: Problem,
    algorithm: Algorithm,
    rounds: int,
    *,
    batch_size: int | None = None,
    participants: int | None = None,
    sampling: Scheme | None = None,
    record_every: int = 1,
    seed: int = 0,
    x0: Any = None,
    reference: Any = None,
    tol: float | None = None,
    resume: Trace | None = None,
    progress: Progress | None = None,
    measure: Measure | None = None,
    storage: Storage = "float32",
    mesh: Any = None,
) -> Trace:
    """Run `rounds` communication rounds of `algorithm` on `problem` and return the trace.

    - `batch_size`: rows per local gradient, drawn without replacement; None for full gradients.
    - `participants`: clients per round, drawn anew for each; None for all.
    - `sampling`: how a sample stands for all where weights differ: "proportional", "uniform" or "ratio" (see
      `compfed.tools.sampling`); None for the first of the method's own `schemes`.
    - `record_every`: measure every k-th round (and the last).
    - `seed`: of mini-batches and participation; the data has its own.
    - `x0`: the start of the method's own variable (zero unless given): the model of round 0 is x0, or prox_tg(x0) for a
      method that keeps the point before its prox, such as DecoupledProx. `resume`: a trace to go on from; its rows are kept.
    - `reference`: x*, from `solve`; adds the optimality column.
    - `tol`: stop at the first recorded round whose gradient mapping has norm at most this.
    - `progress`: called with (rounds done, rounds in all).
    - `measure(loss, g, store, algorithm, server, clients)`: extra columns, as a dict of scalars or vectors
      (JAX code).
    - `storage`: on a GPU in float32, "bfloat16" keeps a copy of the rows with 8 bits of precision for the rounds (sums stay
      in float32): half the bytes to read, and a model that minimises over the rounded rows, see docs/performance.md.
    - `mesh`: devices to share the clients out over, such as `jax.devices()`, those of other processes included, or a
      `jax.sharding.Mesh`; the same models to rounding. See docs/scale.md.

    Raises `Divergence`, which carries the trace so far, when the model stops being finite.
    """
    run = checked(
        problem, algorithm, rounds, batch_size=batch_size, participants=participants, record_every=record_every,
        seed=seed, x0=x0, reference=reference, resume=resume, sampling=sampling,
    )  # fmt: skip
    a_function(progress, "progress")
    a_function(measure, "measure")
    stop = None if tol is None else Stop(checked_tol(tol), 1.0 / problem.lipschitz)
    if mesh is not None:
        from compfed.engines.mesh import simulated_on  # which is built on this module

        return simulated_on(mesh, run, stop, progress=progress, measure=measure)
    return simulated(run, stop, progress=progress, measure=measure, storage=storage)


def simulated(
    run: Run, stop: Stop | None = None, *, progress: Progress | None = None, measure: Measure | None = None,
    storage: Storage = "float32",
) -> Trace:  # fmt: skip
    """A checked run as one program. Raises `Divergence`, which carries the trace so far."""
    problem = rows_of(run)
    plan, odds = planned(run, measure)
    recorder = Recorder(run, "simulate", partial(measured, problem))
    with precision(problem.dtype):
        kernel, why = stored_as(chosen(problem, run.algorithm, run.batch_size, run.participants), storage)
        plan = plan._replace(kernel=kernel)
        if jax.devices()[0].platform == "gpu" or kernel is not None:
            recorder.more["kernel"] = {"kind": kernel and kernel.kind, "why": why, "storage": kernel and kernel.storage}
        setting = Setting(run.algorithm, problem.loss, problem.regulariser, run_key(run.seed), stop, odds)

        def program(carry: Carry, records: int, every: int):
            return program_for(plan, grid=False)(setting, problem.store, plan, carry, records, every)

        carry = drive(program, first_carry([run]), [recorder], progress)
        trace = finished(recorder, carry, 0)
    if recorder.blown:
        raise Divergence(trace.provenance["diverged"], trace)
    return trace


def planned(run: Run, measure: Measure | None) -> tuple[Plan, Odds | None]:
    """The shape of a run's program, and the odds of its clients to be drawn, where these are not all the same."""
    problem, k = rows_of(run), run.participants
    scheme = scheme_in_use(run.sampling, problem.weights, k)
    plan = Plan(k, run.batch_size, clients_at_once(problem, run.batch_size), measure, scheme)
    if scheme != "proportional":
        return plan, None
    found = odds(problem.weights, k)
    weight = found.weight.astype(problem.dtype)
    return plan, Odds(*(each[problem.order] for each in found._replace(weight=weight)))


def rows_of(run: Run) -> Problem:
    """The problem of a run, whose rows must be in this process."""
    assert isinstance(run.problem, Problem), "only a Problem has rows to compile a program for"
    return run.problem


def checked_tol(tol: float) -> float:
    if not is_number(tol) or not tol >= 0:
        raise InputError(f"tol={tol!r} must be a number >= 0, or None to run all rounds.")
    return float(tol)


def finished(recorder: Recorder, carry: Carry, member: int) -> Trace:
    back = np.argsort(rows_of(recorder.run).order)
    server = jax.tree.map(lambda leaf: np.asarray(leaf)[member], carry.server)
    clients = jax.tree.map(lambda leaf: np.asarray(leaf)[member][back], carry.clients)
    return recorder.trace(server, clients)
