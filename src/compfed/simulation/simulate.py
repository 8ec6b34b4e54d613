"""The simulator: all rounds as one XLA program (see `grid` for many settings at once)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from compfed._utils.precision import precision
from compfed._utils.validation import MAX_DENSE_BYTES, check_callable, is_number
from compfed.algorithms.base import Algorithm
from compfed.errors import Divergence, InputError
from compfed.monitor import Progress, Recorder, Run, first_state
from compfed.problem.problem import Problem
from compfed.sampling import InclusionProbabilities, Scheme, odds, run_key, scheme_in_use
from compfed.simulation.evaluation import measured
from compfed.simulation.pallas.choice import Choice, Storage, chosen, stored_as
from compfed.simulation.run_spec import checked
from compfed.simulation.xla import BUFFER, Carry, Measure, Plan, Setting, Stop, single_program
from compfed.trace import Trace

SMALL = 2**20  # bytes of rows: that stay in a cache, whoever works on them, and that are read in no time
Measured = Callable[[Sequence[np.ndarray]], Sequence[dict[str, np.ndarray]]]  # models of each member -> their columns
Pace = Callable[[int, float], int]  # (records of the last call, its seconds) -> records of the next


def half_a_second(batch: int, seconds: float) -> int:
    """About so much work between two looks, so that progress and divergence show in time."""
    return int(np.clip(0.5 / max(seconds, 1e-9) * batch, 1, BUFFER))


def drive(
    program: Callable,
    carry: Carry,
    recorders: Sequence[Recorder],
    progress: Progress | None,
    measure: Measured | None,
    pace: Pace = half_a_second,
) -> Carry:
    """Call `program(carry, records, every)` until all rounds are done. All its outputs have a leading member axis.

    `measure` says of the models of every member what the program itself has not seen.
    """
    run, done = recorders[0].run, 0
    start = jax.tree.map(np.asarray, program(carry, 0, 1)[2])  # compiles, and looks at the start
    if run.resume is None:
        x, seen = jax.tree.map(lambda leaf: leaf[:, None], start)
        _record(recorders, np.zeros((len(x), 1), int), x, seen, 0.0, measure)
    whole, rest = divmod(run.rounds, run.record_every)
    todo = [(whole, run.record_every), (1, rest)] if rest else [(whole, run.record_every)]
    for records, every in todo:
        batch = 1
        while records > 0 and not all(recorder.blown or recorder.arrived for recorder in recorders):
            batch = min(batch, records)
            began = time.perf_counter()
            carry, buffers, _ = jax.block_until_ready(program(carry, batch, every))
            seconds = time.perf_counter() - began
            (rounds, models, seen), bad, reached = jax.tree.map(np.asarray, (buffers, carry.bad, carry.r))
            # what follows a server's state that is not finite is no model, even if it is finite: a bounded g can hide it
            rounds = np.where((bad[:, None] > 0) & (rounds >= bad[:, None]), -1, rounds)
            _record(recorders, rounds, models, seen, seconds, measure)
            for i, recorder in enumerate(recorders):
                recorder.blown = recorder.blown or int(bad[i]) or None
                recorder.arrived = int(reached[i]) < run.start + done + batch * every
            records, done = records - batch, done + batch * every
            batch = pace(batch, seconds)
            if progress is not None:
                progress(done, run.rounds)
    return carry


def _record(
    recorders: Sequence[Recorder],
    rounds: np.ndarray,
    models: np.ndarray,
    seen: dict[str, np.ndarray],
    seconds: float,
    measure: Measured | None,
) -> None:
    """Note the models of every member, (members, rounds, d), after those rounds that are new to it."""
    new = [
        np.zeros(0, int) if r.blown else np.flatnonzero(of > r.last_round)
        for r, of in zip(recorders, rounds, strict=True)
    ]
    fresh = [of[k] for of, k in zip(models, new, strict=True)]
    more: Sequence[dict[str, np.ndarray]] = [{}] * len(new)
    if measure is not None and "gradient_mapping" not in seen:
        more = measure(fresh)
    for i, (recorder, k) in enumerate(zip(recorders, new, strict=True)):
        columns = {name: values[i][k] for name, values in seen.items()}
        recorder.add(rounds[i][k], fresh[i], columns | more[i], seconds)


def clients_at_once(problem: Problem, batch_size: int | None) -> int | None:
    """How many clients to work on side by side.

    On a CPU one client per core, so that a client's rows stay in cache for its tau full-gradient steps; everyone at
    once on other devices, for data that fits the cache anyway, and for mini-batches.
    """
    return at_once_for(problem.dataset.A.nbytes, batch_size)


def at_once_for(nbytes: int, batch_size: int | None) -> int | None:
    """The same for so many bytes of rows."""
    everyone = jax.devices()[0].platform != "cpu" or batch_size is not None or nbytes <= SMALL
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
    x_star: Any = None,
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
    - `sampling`: how a sample stands for all where weights differ: "proportional", "uniform" or "self-normalised" (see
      `compfed.sampling`); None for the first of the method's own `schemes`.
    - `record_every`: measure every k-th round (and the last).
    - `seed`: of mini-batches and participation; the data has its own.
    - `x0`: the start of the method's own variable (zero unless given): the model of round 0 is x0, or prox_tg(x0) for a
      method that keeps the point before its prox, such as DecoupledProx. `resume`: a trace to go on from; its rows are kept.
    - `x_star`: x*, from `solve_pooled`; adds the optimality column.
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
        seed=seed, x0=x0, x_star=x_star, resume=resume, sampling=sampling,
    )  # fmt: skip
    check_callable(progress, "progress")
    check_callable(measure, "measure")
    stop = None if tol is None else Stop(checked_tol(tol), 1.0 / problem.lipschitz)
    shared = mesh is not None or (measure is None and shares_cores(run))
    if shared:
        stored_as(Choice(None, "kernels are for one device, and clients are shared out over several"), storage)
        from compfed.simulation.sharding import simulated_on, simulated_on_cores  # which are built on this module

        if mesh is None:
            return simulated_on_cores(run, stop, progress=progress)
        return simulated_on(mesh, run, stop, progress=progress, measure=measure)
    return simulated(run, stop, progress=progress, measure=measure, storage=storage)


def simulated(
    run: Run, stop: Stop | None = None, *, progress: Progress | None = None, measure: Measure | None = None,
    storage: Storage = "float32",
) -> Trace:  # fmt: skip
    """A checked run as one program. Raises `Divergence`, which carries the trace so far."""
    problem = rows_of(run)
    plan, odds = planned(run, measure)
    recorder = Recorder(run, "simulate")
    with precision(problem.dtype):
        kernel, why = stored_as(chosen(problem, run.algorithm, run.batch_size, run.participants), storage)
        if kernel is not None:  # which works on everybody at once
            plan = plan._replace(kernel=kernel, at_once=None)
        if jax.devices()[0].platform == "gpu" or kernel is not None:
            recorder.more["kernel"] = {"kind": kernel and kernel.kind, "why": why, "storage": kernel and kernel.storage}
        setting = Setting(run.algorithm, problem.loss, problem.regulariser, run_key(run.seed), stop, odds)

        def program(carry: Carry, records: int, every: int):
            return single_program()(setting, problem.dataset, plan, carry, records, every)

        carry = drive(program, first_carry([run]), [recorder], progress, lambda models: [measured(problem, *models)])
        trace = finished(recorder, carry, 0)
    if recorder.blown:
        raise Divergence(trace.provenance["diverged"], trace)
    return trace


def shares_cores(run: Run, members: int = 1) -> bool:
    """Are the clients shared out over the cores? Where each core is a device, all clients take part, their rows are worth a
    second copy, and a round, of so many members of a grid, is long enough for the cores to wait for each other after it."""
    problem, devices = rows_of(run), jax.devices()
    several = devices[0].platform == "cpu" and jax.process_count() == 1 and len(devices) > 1
    stored = read = problem.dataset.A.nbytes
    if run.batch_size is not None:
        of_a_step = problem.n * run.batch_size * problem.sites.width * problem.dtype.itemsize
        waits = 1 + 4 / run.record_every  # what is recorded of a round takes four more sums over all cores
        tau = getattr(run.algorithm, "tau", 1)  # a method of one's own may mean something else by it
        read = of_a_step * (tau if isinstance(tau, int) else 1) * members / waits
    return several and run.participants == problem.n > 1 and min(stored, read) > SMALL and stored <= MAX_DENSE_BYTES


def planned(run: Run, measure: Measure | None) -> tuple[Plan, InclusionProbabilities | None]:
    """The shape of a run's program, and the odds of its clients to be drawn, where these are not all the same."""
    problem, k = rows_of(run), run.participants
    scheme = scheme_in_use(run.sampling, problem.weights, k)
    plan = Plan(k, run.batch_size, clients_at_once(problem, run.batch_size), measure, scheme)
    if scheme != "proportional":
        return plan, None
    found = odds(problem.weights, k)
    weight = found.weight.astype(problem.dtype)
    return plan, InclusionProbabilities(*(each[problem.order] for each in found._replace(weight=weight)))


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
