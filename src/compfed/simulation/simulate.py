"""`simulate`: all rounds of a run as one XLA program (`grid` runs many settings at once)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import ArrayLike

from compfed._utils.compilation import precision
from compfed._utils.validation import MAX_DENSE_BYTES, check_callable
from compfed.algorithms.base import Algorithm
from compfed.errors import Divergence
from compfed.monitor import Columns, Monitor, Progress, RunOptions, first_state
from compfed.problem.problem import Problem
from compfed.sampling import InclusionProbabilities, Scheme, inclusion_probabilities, run_key, scheme_in_use
from compfed.simulation.evaluation import evaluate_models
from compfed.simulation.options import check_options, check_tol
from compfed.simulation.pallas.choice import Storage, choose_kernel, with_storage
from compfed.simulation.xla import BUFFER, Carry, Measure, Parameters, ProgramOptions, single_program
from compfed.trace import Trace

SMALL = 2**20  # bytes of rows that fit a cache and are read in no time
Program = Callable[[Carry, int, int], tuple]  # (carry, records, every) -> (carry, buffers, evaluation of the carry)
Evaluate = Callable[[Sequence[np.ndarray]], Sequence[Columns]]  # models of each member -> their columns
Pace = Callable[[int, float], int]  # (records of the last call, its seconds) -> records of the next


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
    x0: ArrayLike | None = None,
    x_star: ArrayLike | None = None,
    tol: float | None = None,
    resume: Trace | None = None,
    progress: Progress | None = None,
    measure: Measure | None = None,
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
        Rows per local gradient, drawn without replacement; full gradients if left out.
    participants : int, optional
        Clients per round, drawn anew for each; all of them if left out.
    sampling : {"proportional", "uniform", "self-normalised"}, optional
        Estimator of the mean over all clients from a sample (see `compfed.sampling`); by default the first of the method's
        own `schemes`.
    record_every : int, default=1
        Record every k-th round, and the last.
    seed : int, default=0
        Seed of mini-batches and participation.
    x0 : array of shape (d,), optional
        Start of the method's own variable; zero if left out. The model of round 0 is x0, or prox_tg(x0) for a method that
        keeps the point before its prox, such as DecoupledProx.
    x_star : array of shape (d,), optional
        The minimiser, from `solve_pooled`; adds the column "optimality".
    tol : float, optional
        Stop at the first recorded round whose gradient mapping has norm at most `tol`.
    resume : Trace, optional
        A trace to continue; its rows are kept.
    progress : callable, optional
        Called with (rounds done, rounds in all).
    measure : callable, optional
        ``measure(loss, g, data, algorithm, server_state, client_states)`` returns a dict of further columns, computed in
        JAX.
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
        seed=seed, x0=x0, x_star=x_star, resume=resume, sampling=sampling, tol=None if tol is None else check_tol(tol),
    )  # fmt: skip
    check_callable(progress, "progress")
    check_callable(measure, "measure")
    if mesh is not None or (measure is None and uses_all_cores(run)):
        with_storage(None, "kernels are for one device, and clients are sharded over several", storage)
        from compfed.simulation.sharding import simulate_on_cores, simulate_on_mesh  # built on this module

        if mesh is None:
            return simulate_on_cores(run, progress)
        return simulate_on_mesh(mesh, run, progress, measure)
    return run_compiled(run, progress=progress, measure=measure, storage=storage)


def run_compiled(
    run: RunOptions, *, progress: Progress | None = None, measure: Measure | None = None, storage: Storage = "float32"
) -> Trace:
    """Run checked options as one program on one device. Raises `Divergence`, which carries the trace so far."""
    problem = rows_of(run)
    options, probabilities = program_options(run, measure)
    monitor = Monitor(run, "simulate")
    with precision(problem.dtype):
        kernel, why = choose_kernel(problem, run.algorithm, run.batch_size, run.participants)
        kernel = with_storage(kernel, why, storage)
        if kernel is not None:  # a kernel computes all clients at once
            options = options._replace(kernel=kernel, clients_at_once=None)
        if jax.devices()[0].platform == "gpu" or kernel is not None:
            monitor.provenance["kernel"] = {
                "kind": kernel and kernel.kind, "why": why, "storage": kernel and kernel.storage,
            }  # fmt: skip
        params = parameters(run, probabilities)

        def program(carry: Carry, records: int, every: int) -> tuple:
            return single_program()(params, problem.dataset, options, carry, records, every)

        carry = drive(program, first_carry([run]), [monitor], progress, lambda x: [evaluate_models(problem, *x)])
        return finish(monitor, carry, 0)


def drive(
    program: Program,
    carry: Carry,
    monitors: Sequence[Monitor],
    progress: Progress | None,
    evaluate: Evaluate | None,
    pace: Pace | None = None,
) -> Carry:
    """Call a program until all rounds of all members are done, and record them.

    All outputs of the program have a leading member axis. `evaluate` gives the columns that the program does not compute.
    """
    run, done = monitors[0].run, 0
    pace = half_a_second if pace is None else pace
    start = jax.tree.map(np.asarray, program(carry, 0, 1)[2])  # compiles, and evaluates the start
    if run.resume is None:
        x, columns = jax.tree.map(lambda leaf: leaf[:, None], start)
        _record(monitors, np.zeros((len(x), 1), int), x, columns, 0.0, np.zeros(len(x), int), evaluate)
    whole, rest = divmod(run.rounds, run.record_every)
    for records, every in [(whole, run.record_every), (1, rest)] if rest else [(whole, run.record_every)]:
        batch = 1
        while records > 0 and not all(monitor.done for monitor in monitors):
            batch = min(batch, records)
            began = time.perf_counter()
            carry, buffers, _ = jax.block_until_ready(program(carry, batch, every))
            seconds = time.perf_counter() - began
            (rounds, models, columns), bad, reached = jax.tree.map(np.asarray, (buffers, carry.not_finite, carry.r))
            _record(monitors, rounds, models, columns, seconds, bad, evaluate)
            records, done = records - batch, done + batch * every
            for monitor, r in zip(monitors, reached, strict=True):  # the program itself ends a run that has converged
                monitor.converged = monitor.converged or (not monitor.diverged and int(r) < run.start + done)
            batch = pace(batch, seconds)
            if progress is not None:
                progress(done, run.rounds)
    return carry


def half_a_second(batch: int, seconds: float) -> int:
    """Records of the next call, so that it takes about half a second: progress and divergence show in time."""
    return int(np.clip(0.5 / max(seconds, 1e-9) * batch, 1, BUFFER))


def _record(
    monitors: Sequence[Monitor],
    rounds: np.ndarray,
    models: np.ndarray,
    columns: Columns,
    seconds: float,
    not_finite: np.ndarray,
    evaluate: Evaluate | None,
) -> None:
    """Record the models of every member, (members, rounds, d), after the rounds that are new to it."""
    new = [m.new_rounds(of, int(bad)) for m, of, bad in zip(monitors, rounds, not_finite, strict=True)]
    fresh = [of[k] for of, k in zip(models, new, strict=True)]
    more: Sequence[Columns] = [{}] * len(new)
    if evaluate is not None and "gradient_mapping" not in columns:
        more = evaluate(fresh)
    for i, (monitor, k) in enumerate(zip(monitors, new, strict=True)):
        own = {name: values[i][k] for name, values in columns.items()}
        monitor.record(rounds[i][k], fresh[i], {**own, **more[i]}, seconds, int(not_finite[i]))


def clients_at_once(problem: Problem, batch_size: int | None) -> int | None:
    """How many clients to compute side by side; None for all."""
    return clients_at_once_for(problem.dataset.A.nbytes, batch_size)


def clients_at_once_for(nbytes: int, batch_size: int | None) -> int | None:
    """How many clients to compute side by side, by the bytes of all rows.

    On a CPU one client per core, so that a client's rows stay in cache for its tau full-gradient steps; all of them on other
    devices, for data that fits the cache anyway, and for mini-batches.
    """
    everyone = jax.devices()[0].platform != "cpu" or batch_size is not None or nbytes <= SMALL
    return None if everyone else os.cpu_count() or 1


def uses_all_cores(run: RunOptions, members: int = 1) -> bool:
    """Whether the clients are sharded over the CPU cores.

    They are where each core is a device, all clients take part, their rows are worth a second copy, and a round (of so many
    members of a grid) takes much longer than the cores wait for each other after it.
    """
    problem, devices = rows_of(run), jax.devices()
    several = devices[0].platform == "cpu" and jax.process_count() == 1 and len(devices) > 1
    stored = read = problem.dataset.A.nbytes
    if run.batch_size is not None:
        per_step = problem.n * run.batch_size * problem.sites.width * problem.dtype.itemsize
        waits = 1 + 4 / run.record_every  # a recorded round takes four more sums over all cores
        tau = getattr(run.algorithm, "tau", 1)  # in a user's method `tau` may be something else
        read = per_step * (tau if isinstance(tau, int) else 1) * members / waits
    return several and run.participants == problem.n > 1 and min(stored, read) > SMALL and stored <= MAX_DENSE_BYTES


def program_options(run: RunOptions, measure: Measure | None) -> tuple[ProgramOptions, InclusionProbabilities | None]:
    """The static options of a run's program, and the inclusion probabilities where clients are drawn by weight."""
    problem, k = rows_of(run), run.participants
    scheme = scheme_in_use(run.sampling, problem.weights, k)
    options = ProgramOptions(k, run.batch_size, clients_at_once(problem, run.batch_size), measure, scheme)
    if scheme != "proportional":
        return options, None
    found = inclusion_probabilities(problem.weights, k)
    found = found._replace(weight=found.weight.astype(problem.dtype))
    return options, InclusionProbabilities(*(each[problem.order] for each in found))


def parameters(
    run: RunOptions, probabilities: InclusionProbabilities | None, key: jax.Array | None = None
) -> Parameters:
    """The arrays of a run's program."""
    key = run_key(run.seed) if key is None else key
    step = None if run.tol is None else run.step
    return Parameters(run.algorithm, rows_of(run).loss, run.problem.regulariser, key, run.tol, step, probabilities)


def first_carry(runs: Sequence[RunOptions]) -> Carry:
    """The start of some runs, stacked along a member axis. In NumPy: each small array moves to the device once."""

    def one(run: RunOptions) -> Carry:
        server, clients = first_state(run)
        order = rows_of(run).order
        numbers: tuple = (np.zeros((), run.problem.dtype), np.int32(run.start), np.int32(0))
        return Carry(server, jax.tree.map(lambda leaf: leaf[order], clients), *numbers)

    return jax.device_put(jax.tree.map(lambda *leaves: np.stack(leaves), *map(one, runs)))


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
