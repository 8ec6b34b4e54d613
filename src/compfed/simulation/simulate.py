"""`simulate`: all rounds of a run as one XLA program (`grid` runs many settings at once)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import ArrayLike

from compfed._utils.compilation import keep_cores_awake, precision
from compfed._utils.validation import MAX_DENSE_BYTES, check_callable
from compfed.algorithms.base import Algorithm
from compfed.algorithms.costs import Counts
from compfed.algorithms.counting import KINDS
from compfed.errors import Divergence, InputError
from compfed.losses.from_function import FromFunction
from compfed.monitor import (
    ClientSeconds,
    Columns,
    Metric,
    Monitor,
    Progress,
    RunOptions,
    Schedule,
    cost_of,
    first_state,
)  # fmt: skip
from compfed.problem.problem import Problem
from compfed.problem_spec import ProblemSpec
from compfed.sampling import InclusionProbabilities, Scheme, inclusion_probabilities, run_key, scheme_in_use
from compfed.simulation.clock import CostModel
from compfed.simulation.columns import evaluate_models
from compfed.simulation.kernels import Storage, choose_kernel, with_storage
from compfed.simulation.options import check_options
from compfed.simulation.sharding import GridMembers, ShardedRounds, check_mesh
from compfed.simulation.xla import (
    BUFFER,
    COUNTS,
    Carry,
    Measure,
    Parameters,
    ProgramOptions,
    compiled,
    grid_rounds,
    single_rounds,
)
from compfed.trace import Trace

SMALL = 2**20  # bytes of rows that fit a cache and are read in no time
Program = Callable[[Carry, int, int], tuple]  # (carry, records, every) -> (carry, buffers, evaluation of the carry)
Evaluate = Callable[[Sequence[np.ndarray]], Sequence[Columns]]  # models of each member -> their columns


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
    x0: object = None,
    x_star: ArrayLike | None = None,
    tol: float | None = None,
    L: float | None = None,
    resume: Trace | None = None,
    progress: Progress | None = None,
    columns: Iterable[object] | None = None,
    metrics: Mapping[str, Metric] | None = None,
    measure: Measure | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    clock: CostModel | str | None = None,
    budget: Mapping[str, float] | None = None,
    storage: Storage = "float32",
    mesh: Mesh | Sequence[object] | None = None,
) -> Trace:
    """Simulate communication rounds of an algorithm as one XLA program.

    Parameters
    ----------
    problem : Problem
        min over x of F(x) = sum_i p_i f_i(x) + g(x), with the rows of all sites in this process.
    algorithm : Algorithm
        For instance `cf.algorithms.DecoupledProx(eta=0.1)`, or `cf.algorithms.default_steps("DecoupledProx", problem)`.
    rounds : int
        Number of communication rounds.
    batch_size : int, optional
        Rows per local gradient, drawn without replacement: all rows of a client that has fewer. Full gradients if left out.
    participants : int, optional
        Clients per round, drawn anew for each; all of them if left out.
    sampling : {"proportional", "uniform", "self-normalised"}, optional
        Estimator of the mean over all clients from a sample (see `compfed.sampling`); by default the first of the method's
        own `schemes`.
    record_every : int, default=1
        Record every k-th round, and the last.
    seed : int, default=0
        Seed of mini-batches and participation.
    x0 : array of shape (d,), pytree or callable, optional
        Start of the method's own variable. If left out it is zero, or for `losses.from_function` the parameters that the loss
        was made with. A pytree has the form of these parameters; a callable gets the seed of the run and returns a start. The
        model of round 0 is x0, or prox_tg(x0) for a method that keeps the point before its prox, such as DecoupledProx.
    x_star : array of shape (d,), optional
        The minimiser, from `solve_pooled`; adds the column "optimality".
    tol : float, optional
        Stop at the first recorded round whose gradient mapping has norm at most `tol`.
    L : float, optional
        Lipschitz constant of the gradient of f, by which the gradient mapping is scaled: its step is 1/L. `problem.lipschitz` if
        left out.
    resume : Trace, optional
        A trace to continue; its rows are kept.
    progress : callable, optional
        Called with (rounds done, rounds in all).
    columns : list of str, optional
        The columns of the trace to record (`compfed.trace.COLUMNS`), with ... for the default: all but "participants", and but
        "gradient_mapping" for a loss whose curvature has no bound, such as a network, where L is estimated by many passes over
        the rows. It is worked out if it is named, or if `tol` or `L` is given.
    metrics : dict from names to callables, optional
        Further columns: functions of the model, in JAX, such as ``{"accuracy": lambda params: ...}`` on rows held out. The
        argument is the pytree of parameters for `losses.from_function`, else the vector of coefficients.
    measure : callable, optional
        ``measure(loss, g, data, algorithm, server_state, client_states)`` returns a dict of further columns, computed in
        JAX.
    schedules : dict from names to callables, optional
        Step sizes that change: ``{"eta": lambda r: 0.1 / (1 + r)}`` gives eta in round r = 0, 1, ..., as if the run were resumed
        with it.
    clock : {"hospital", "phone", "datacentre"} or CostModel, optional
        Adds the column "clock": the simulated seconds of `compfed.simulation.CostModel`.
    budget : dict from names to numbers, optional
        End before the first recorded round that costs more: ``{"rows": 1e6}``, by any of the costs of a trace.
    storage : {"float32", "bfloat16"}, default="float32"
        On a GPU in float32, "bfloat16" keeps a copy of the rows with 8 bits of precision: half the bytes to read, and a model
        that minimises over the rounded rows.
    mesh : sequence of devices or jax.sharding.Mesh, optional
        Devices over which the clients are sharded, such as `jax.devices()`, those of other processes included. Models
        are the same up to rounding.

    Returns
    -------
    Trace
        One row per recorded round, the model `x`, and the state from which the run can resume.

    Raises
    ------
    Divergence
        The model is no longer finite. The error has the trace so far.

    Examples
    --------
    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)
    >>> trace = cf.simulate(problem, cf.algorithms.DecoupledProx(eta=1.0), 20, record_every=10)
    >>> trace["round"].tolist()
    [0, 10, 20]
    """
    run = check_options(
        problem, algorithm, rounds, batch_size=batch_size, participants=participants, record_every=record_every,
        seed=seed, x0=x0, x_star=x_star, resume=resume, sampling=sampling, tol=tol, L=L, columns=columns, metrics=metrics,
        schedules=schedules, clock=clock, budget=budget,
    )  # fmt: skip
    check_callable(progress, "progress")
    check_callable(measure, "measure")
    if mesh is not None:
        if measure is not None or clock is not None:
            asked = "measure" if clock is None else "clock"
            raise InputError(f"{asked} needs all clients on one device; leave {asked} or mesh out.")
        mesh = check_mesh(mesh)
    elif measure is None and clock is None:
        mesh = core_mesh(run)
    return run_compiled(run, progress=progress, measure=measure, storage=storage, mesh=mesh)


def run_compiled(
    run: RunOptions,
    *,
    progress: Progress | None = None,
    measure: Measure | None = None,
    storage: Storage = "float32",
    mesh: Mesh | None = None,
) -> Trace:
    """Run checked options as one program. Raises `Divergence`, which carries the trace so far."""
    problem = rows_of(run)
    # the devices of a mesh evaluate models together: no process need have all rows
    options, probabilities = program_options(run, measure, in_program=mesh is not None)
    monitor = Monitor(run, "simulate")
    with precision(problem.dtype):
        kernel, why = None, "kernels are for one device, and clients are sharded over several"
        if mesh is None:
            kernel, why = choose_kernel(problem, run.algorithm, run.batch_size, run.participants)
        kernel = with_storage(kernel, why, storage)
        if kernel is not None:  # a kernel computes all clients at once
            options = options._replace(kernel=kernel, clients_at_once=None)
        if mesh is None and (jax.devices()[0].platform == "gpu" or kernel is not None):
            kind, stored = (None, None) if kernel is None else (kernel.kind, kernel.storage)
            monitor.provenance["kernel"] = {"kind": kind, "why": why, "storage": stored}

        def evaluate(models: Sequence[np.ndarray]) -> list[Columns]:
            return [evaluate_models(problem, models[0], mapping_step(run))]

        params = parameters(run, probabilities)
        carry = all_rounds([run], [monitor], params, options, evaluate, progress=progress, mesh=mesh)
        return finish(monitor, carry, 0)


def all_rounds(
    runs: Sequence[RunOptions],
    monitors: Sequence[Monitor],
    params: Parameters,
    options: ProgramOptions,
    evaluate: Evaluate,
    *,
    members: GridMembers | None = None,
    progress: Progress | None = None,
    mesh: Mesh | None = None,
) -> Carry:
    """All rounds of one run, or of the `members` of a grid, on this device or with the clients sharded over a mesh."""
    problem, start = rows_of(runs[0]), first_carry(runs, options)
    if mesh is None:
        more, rounds = ({}, single_rounds) if members is None else (members._asdict(), grid_rounds)
        program = compiled(rounds, "options", *more, grid=members is not None)
        on_device = partial(program, params, problem.dataset, options, **more)
        return drive(on_device, jax.device_put(start), monitors, progress, evaluate)
    sharded = ShardedRounds(mesh, problem, params, options, members)
    for monitor in monitors:
        monitor.provenance["mesh"] = {
            "devices": mesh.size, "processes": len({device.process_index for device in mesh.devices.flat}),
        }  # fmt: skip
    with keep_cores_awake() if mesh.devices.flat[0].platform == "cpu" else nullcontext():
        return sharded.collect(drive(sharded.rounds, sharded.placed(start), monitors, progress, evaluate))


def drive(
    program: Program, carry: Carry, monitors: Sequence[Monitor], progress: Progress | None, evaluate: Evaluate
) -> Carry:
    """Call a program until all rounds of all members are done, and record them.

    All outputs of the program have a leading member axis. `evaluate` gives the columns that the program does not compute.
    """
    run, done = monitors[0].run, 0
    start = jax.tree.map(np.asarray, program(carry, 0, 1)[2])  # compiles, and evaluates the start
    if run.resume is None:
        x, columns = jax.tree.map(lambda leaf: leaf[:, None], start)
        _record(monitors, np.zeros((len(x), 1), int), x, columns, 0.0, np.zeros(len(x), int), evaluate)
    whole, rest = divmod(run.rounds, run.record_every)
    for records, every in [(whole, run.record_every), (1, rest)] if rest else [(whole, run.record_every)]:
        batch = 1
        while records > 0 and not all(monitor.done for monitor in monitors):
            batch = min(batch, records)
            began, before = time.perf_counter(), carry
            carry, buffers, _ = jax.block_until_ready(program(before, batch, every))
            seconds = time.perf_counter() - began
            if run.budget and (paid := _paid_records(monitors[0], buffers, batch)) < batch:
                carry, buffers, _ = program(before, paid, every)  # the same rounds, up to the last that is paid for
                monitors[0].spent, seconds = True, seconds * paid / batch
            (rounds, models, columns), bad, reached = jax.tree.map(np.asarray, (buffers, carry.not_finite, carry.r))
            _record(monitors, rounds, models, columns, seconds, bad, evaluate)
            if monitors[0].spent:
                break
            records, done = records - batch, done + batch * every
            for monitor, r in zip(monitors, reached, strict=True):  # the program itself ends a run that has converged
                monitor.converged = monitor.converged or (not monitor.diverged and int(r) < run.start + done)
            # About half a second: progress and divergence show in time. Several processes must do the same rounds, and
            # their clocks differ.
            longer = 0.5 / max(seconds, 1e-9) if jax.process_count() == 1 else 2
            batch = int(np.clip(longer * batch, 1, BUFFER))
            if progress is not None:
                progress(done, run.rounds)
    return carry


def _record(
    monitors: Sequence[Monitor],
    rounds: np.ndarray,
    models: np.ndarray,
    columns: Columns,
    seconds: float,
    not_finite: np.ndarray,
    evaluate: Evaluate,
) -> None:
    """Record the models of every member, (members, rounds, d), after the rounds that are new to it."""
    new = [m.new_rounds(of, int(bad)) for m, of, bad in zip(monitors, rounds, not_finite, strict=True)]
    fresh = [of[k] for of, k in zip(models, new, strict=True)]
    columns = dict(columns)
    counts: Any = columns.pop(COUNTS)
    wanted = monitors[0].run.evaluates and "objective" not in columns
    more = evaluate(fresh) if wanted else [{}] * len(new)
    back = np.argsort(rows_of(monitors[0].run).order)
    for i, (monitor, k) in enumerate(zip(monitors, new, strict=True)):
        own = {name: values[i][k] for name, values in columns.items()}
        mine = _counts_of(counts, i, k, back)
        monitor.record(rounds[i][k], fresh[i], {**own, **more[i]}, seconds, int(not_finite[i]), mine)


def _paid_records(monitor: Monitor, buffers: Any, batch: int) -> int:
    """How many of the next records of a run its budget pays for."""
    rounds, _, columns = jax.tree.map(np.asarray, buffers)
    new = monitor.new_rounds(rounds[0][:batch])
    back = np.argsort(rows_of(monitor.run).order)
    paid = monitor.affordable(rounds[0][new], _counts_of(columns[COUNTS], 0, new, back))
    return batch if paid == len(new) else paid


def _counts_of(counts: Counts, member: int, records: np.ndarray, back: np.ndarray) -> Counts:
    """The counts of one member at some records, with clients in the order of the sites."""
    mine: Any = Counts(*(None if of is None else np.asarray(of)[member][records] for of in counts))
    taken, calls = (None if of is None else of[:, back] for of in (mine.taken, mine.calls))
    return Counts(taken, calls, mine.server, None if mine.clock is None else mine.clock.astype(float).sum(axis=-1))


def mapping_step(run: RunOptions) -> float | None:
    """The step of the gradient mapping, where it is recorded."""
    return run.step if run.records("gradient_mapping") else None


LARGE_MODEL = 2**8  # coefficients


def clients_at_once(problem: ProblemSpec, nbytes: int, batch_size: int | None) -> int | None:
    """How many clients to compute side by side, by the bytes of all rows; None for all.

    On a CPU one client per core, so that a client's rows stay in cache for its tau full-gradient steps; all of them on other
    devices, for data that fits the cache anyway, and for mini-batches. A large model of a function goes through one client at a
    time: side by side, each operation has the parameters of each client, which XLA computes slowly for a convolution.
    """
    if isinstance(problem.loss, FromFunction) and problem.d >= LARGE_MODEL and jax.devices()[0].platform == "cpu":
        return 1
    everyone = jax.devices()[0].platform != "cpu" or batch_size is not None or nbytes <= SMALL
    return None if everyone else os.cpu_count() or 1


def core_mesh(run: RunOptions, members: int = 1) -> Mesh | None:
    """The CPU devices of this process, if the clients are to be sharded over them.

    They are where each core is a device, all clients take part, their rows are worth a second copy, and a round (of so many
    members of a grid) takes much longer than the cores wait for each other after it. One device uses several cores by
    splitting every product among them, and waits for the last core after each; on a mesh each core waits once a round.
    """
    problem, devices = rows_of(run), jax.devices()
    several = devices[0].platform == "cpu" and jax.process_count() == 1 and len(devices) > 1
    stored = read = problem.dataset.A.nbytes
    if run.batch_size is not None:
        per_step = problem.n * run.batch_size * problem.sites.width * problem.dtype.itemsize
        waits = 1 + 4 / run.record_every  # a recorded round takes four more sums over all cores
        tau = getattr(run.algorithm, "tau", 1)  # in a user's method `tau` may be something else
        read = per_step * (tau if isinstance(tau, int) else 1) * members / waits
    if several and run.participants == problem.n > 1 and min(stored, read) > SMALL and stored <= MAX_DENSE_BYTES:
        return check_mesh(devices[: problem.n])
    return None


def program_options(
    run: RunOptions, measure: Measure | None, in_program: bool = False
) -> tuple[ProgramOptions, InclusionProbabilities | None]:
    """The static options of a run's program, and the inclusion probabilities where clients are drawn by weight.

    A program that ends a run by its gradient mapping evaluates models itself, and so does one for which `in_program` asks it.
    """
    problem = rows_of(run)
    options = static_options(run, problem.dataset.A.nbytes)._replace(measure=measure)
    if run.tol is not None or (in_program and run.evaluates):
        options = options._replace(evaluates=("objective", *["gradient_mapping"] * run.records("gradient_mapping")))
    scheme, k = options.scheme, options.participants
    if scheme != "proportional":
        return options, None
    found = inclusion_probabilities(problem.weights, k)
    found = found._replace(weight=found.weight.astype(problem.dtype))
    return options, InclusionProbabilities(*(each[problem.order] for each in found))


def static_options(run: RunOptions, nbytes: int) -> ProgramOptions:
    """The options of any program of a run, with so many bytes of rows on the device."""
    problem, cost, everyone = run.problem, cost_of(run), run.participants == run.problem.n
    batch = None if run.batch_size is None else min(run.batch_size, int(problem.sizes.max()))
    return ProgramOptions(
        run.participants, batch, clients_at_once(problem, nbytes, batch), None,
        scheme_in_use(run.sampling, problem.weights, run.participants),
        schedules=run.schedules, ragged=batch is not None and batch > int(problem.sizes.min()),
        mini_batches_at_once=clients_at_once(problem, nbytes, batch), everyone=everyone,
        takes=not everyone and (cost.needs_participants or run.counts_participants),
        calls=run.counts_calls and (cost.cost.depends_on_data or run.clock is not None),
        drawn_together=1 if everyone else rounds_drawn_together(problem.n, run.record_every),
    )  # fmt: skip


def rounds_drawn_together(n: int, every: int) -> int:
    """For how many rounds participants are drawn at once: on a GPU one sort of the clients takes as long as many."""
    most = 1 if jax.devices()[0].platform == "cpu" else min(32, every, max(2**22 // n, 1))
    return 2 ** (most.bit_length() - 1)  # few different numbers: each compiles a program


def first_counts(run: RunOptions, options: ProgramOptions, n: int) -> Counts:
    """The counts of n clients before the first round."""
    return Counts(
        taken=np.zeros(n, np.int32) if options.takes else None,
        calls=np.zeros((n, len(KINDS)), np.int32) if options.calls else None,
        server=np.zeros(len(KINDS), np.int32) if options.calls else None,
        clock=None if run.clock is None else np.zeros(2, run.problem.dtype),
    )


def parameters(run: RunOptions, probabilities: InclusionProbabilities | None) -> Parameters:
    """The arrays of a run's program."""
    problem, step = rows_of(run), mapping_step(run)
    clock = None if run.clock is None else ClientSeconds(*(v[problem.order].astype(problem.dtype) for v in run.clock))
    return Parameters(
        run.algorithm, problem.loss, problem.regulariser, run_key(run.seed), run.tol, step, probabilities, clock=clock
    )


def first_carry(runs: Sequence[RunOptions], options: ProgramOptions) -> Carry:
    """The start of some runs, stacked along a member axis. In NumPy: each small array moves to the device once."""
    server, clients = jax.tree.map(lambda *leaves: np.stack(leaves), *map(first_state, runs))
    problem, count = rows_of(runs[0]), len(runs)
    clients = jax.tree.map(lambda leaf: leaf[:, problem.order], clients)
    drift, r = np.zeros(count, problem.dtype), np.full(count, runs[0].start, np.int32)
    counts = jax.tree.map(lambda leaf: np.stack([leaf] * count), first_counts(runs[0], options, problem.n))
    return Carry(server, clients, drift, r, np.zeros(count, np.int32), counts)  # pyright: ignore[reportArgumentType]  # NumPy's


def rows_of(run: RunOptions) -> Problem:
    """The problem of a run, whose rows must be in this process."""
    assert isinstance(run.problem, Problem), "only a Problem has rows to compile a program for"
    return run.problem


def finish(monitor: Monitor, carry: Carry, member: int, raise_divergence: bool = True) -> Trace:
    """The trace of one member, with client states in the order of the sites."""
    back = np.argsort(rows_of(monitor.run).order)
    server = jax.tree.map(lambda leaf: np.asarray(leaf)[member], carry.server)
    clients = jax.tree.map(lambda leaf: np.asarray(leaf)[member][back], carry.clients)
    trace = monitor.trace(server, clients)
    if monitor.diverged and raise_divergence:
        raise Divergence(trace.provenance["diverged"], trace)
    return trace
