"""Rounds over more clients than fit in memory: only the rows and states of a round's participants are loaded.

Each round is a program of its own (`xla.round_of`, the round of `simulate`). While the device computes one round, the rows of
the next participants are read, which is possible because participation is a function of (seed, round).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from compfed import sampling as client_sampling
from compfed._utils.compilation import jit, precision
from compfed._utils.validation import check_callable, check_int
from compfed.algorithms.base import Algorithm, PyTree
from compfed.algorithms.costs import Counts
from compfed.algorithms.counting import KINDS
from compfed.errors import Divergence, InputError
from compfed.monitor import ClientSeconds, Metric, Monitor, Progress, RunOptions, Schedule
from compfed.problem.padded_dataset import PaddedDataset
from compfed.problem.problem import LazyProblem, Problem
from compfed.problem_spec import optimality_at
from compfed.sampling import InclusionProbabilities, Scheme
from compfed.simulation.clock import CostModel
from compfed.simulation.columns import evaluate_models
from compfed.simulation.options import check_options
from compfed.simulation.simulate import first_counts, mapping_step, static_options
from compfed.simulation.xla import Carry, Parameters, ProgramOptions, Sample, compiled, round_of, scheduled
from compfed.trace import Trace

DRAWN_TOGETHER = (
    64  # rounds whose participants are drawn in one call: a draw waits for the round that the device computes
)


def simulate_out_of_core(
    problem: LazyProblem, algorithm: Algorithm, rounds: int, *, participants: int, batch_size: int | None = None,
    sampling: Scheme | None = None, record_every: int = 1, seed: int = 0, x0: object = None,
    x_star: ArrayLike | None = None, tol: float | None = None, L: float | None = None, measure_on: Problem | None = None,
    resume: Trace | None = None, progress: Progress | None = None, columns: Iterable[object] | None = None,
    metrics: Mapping[str, Metric] | None = None, schedules: Mapping[str, Schedule] | None = None,
    clock: CostModel | str | None = None,
) -> Trace:  # fmt: skip
    """Simulate rounds with only the participants of a round in memory.

    The cost of a round does not depend on the number of clients, except under the sampling scheme "proportional" (for unequal
    weights). Models are those of `simulate` up to rounding. Objective and gradient mapping take a pass over all clients at every
    record, so they are recorded on request: columns=[..., "objective"], or "gradient_mapping" with L=....

    Parameters
    ----------
    problem : LazyProblem
        A problem that reads the rows of a client when they are needed.
    algorithm : Algorithm
    rounds : int
    participants : int
        Clients per round, drawn anew for each: so many are in memory at once.
    measure_on : Problem, optional
        A problem on which every recorded model is evaluated, such as `problem.subset(range(100))` or rows held out. Adds the
        columns "subset_objective" and "subset_gradient_mapping".
    resume : Trace, optional
        A trace of `simulate_out_of_core` to continue.
    batch_size, sampling, record_every, seed, x0, x_star, tol, L, progress, columns, metrics, schedules, clock
        As in `simulate`.

    Returns
    -------
    Trace

    Raises
    ------
    Divergence
        As in `simulate`.

    Examples
    --------
    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=50, samples=10, features=4)
    >>> problem = cf.LazyProblem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)
    >>> trace = cf.simulation.simulate_out_of_core(problem, cf.algorithms.FedDA(eta=0.5), 5, participants=10)
    >>> len(trace)
    6
    """
    check_int(participants, "participants", 1, " It is how many clients are in memory at once.")
    run = check_options(
        problem, algorithm, rounds, batch_size=batch_size, participants=participants, record_every=record_every,
        seed=seed, x0=x0, x_star=x_star, resume=resume, sampling=sampling, tol=tol, L=L, columns=columns, metrics=metrics,
        schedules=schedules, clock=clock, kind=LazyProblem,
    )  # fmt: skip
    check_callable(progress, "progress")
    if measure_on is not None and (not isinstance(measure_on, Problem) or measure_on.d != problem.d):
        needed = f"a compfed.Problem with {problem.d} coefficients, such as problem.subset(range(100))"
        raise InputError(f"measure_on must be {needed}; got {measure_on!r:.80}.")
    problem.members()  # reads a few clients: an error shows before the first round

    monitor = Monitor(run, "simulate_out_of_core", partial(_all_clients, problem, mapping_step(run)))
    monitor.provenance["measured_on"] = None if measure_on is None else measure_on.describe()
    with precision(problem.dtype):
        return _all_rounds(run, problem, monitor, progress, measure_on)


def _all_clients(problem: LazyProblem, step: float | None, X: np.ndarray) -> dict[str, np.ndarray]:
    """Objective, and with a step the norm of the gradient mapping, by passes over all clients."""
    found = {"objective": np.array([problem.objective(x) for x in X])}
    if step is not None:
        at = [optimality_at(problem.regulariser, x, 0.0, problem.gradient(x).astype(x.dtype), step) for x in X]
        found["gradient_mapping"] = np.array([each.norm for each in at])
    return found


def _subset_columns(problem: Problem, X: np.ndarray) -> dict[str, np.ndarray]:
    step = 1.0 / problem.lipschitz
    return {f"subset_{name}": values for name, values in evaluate_models(problem, X, step).items()}


def _all_rounds(
    run: RunOptions, problem: LazyProblem, monitor: Monitor, progress: Progress | None, measure_on: Problem | None
) -> Trace:
    """All rounds of a run: load the participants' states, start the round, read the next rows meanwhile, store the states."""
    cohorts = Cohorts(run, problem)
    params = Parameters(run.algorithm, problem.loss, problem.regulariser, cohorts.key)
    counts = _CohortCounts(run, monitor)
    server, first = run.algorithm.init(jnp.asarray(run.x0))
    states = ClientStates(first)
    if run.resume is not None and (saved := run.resume.state) is not None:
        server = jax.tree.unflatten(jax.tree.structure(server), map(jnp.asarray, saved.server))
        states = ClientStates(first, saved.of, saved.clients)
    carry = Carry(server, None, jnp.zeros((), problem.dtype), jnp.int32(run.start), jnp.int32(0))

    def record(r: int, seconds: float) -> None:
        at = scheduled(params.algorithm, run.schedules, jnp.int32(max(r - 1, 0)))
        x = np.asarray(_solution(params._replace(algorithm=at), carry.server))
        columns = {"drift": np.asarray(carry.drift)[None]}
        if measure_on is not None:
            columns |= _subset_columns(measure_on, x[None])
        monitor.record(np.array([r]), x[None], columns, seconds, int(carry.not_finite), counts.so_far())

    def started(cohort: Cohort) -> Carry:
        """The round of a cohort, which the device computes while this process goes on; `clients` are its participants."""
        options = static_options(run, cohort.rows.A.nbytes)._replace(takes=False)
        before = carry._replace(clients=states.load(cohort.clients), counts=counts.before(options))
        clock = counts.seconds_of(cohort.clients)
        return compiled(_round, "options")(params._replace(clock=clock), cohort.rows, options, before, cohort.sample)

    if run.resume is None:
        record(0, 0.0)
    cohort = cohorts.of_round(run.start) if run.rounds else None
    compiled_shapes: set[tuple[int, ...]] = set()
    seconds = 0.0
    for r in range(run.start, run.last):
        assert cohort is not None
        if cohort.rows.A.shape not in compiled_shapes:  # compiled outside the recorded time
            compiled_shapes.add(cohort.rows.A.shape)
            jax.block_until_ready(started(cohort))
        began = time.perf_counter()
        carry, participants = started(cohort), cohort.clients
        cohort = cohorts.of_round(r + 1) if r + 1 < run.last else None
        states.store(participants, carry.clients)
        counts.add(participants, carry.counts)
        if run.is_recorded(r + 1):  # a method without client states has not waited for the device yet
            jax.block_until_ready(carry)
        seconds += time.perf_counter() - began
        if run.is_recorded(r + 1):
            record(r + 1, seconds)
            seconds = 0.0
            if monitor.done:
                break
        if progress is not None:
            progress(r + 1 - run.start, run.rounds)
    of, leaves = states.saved()
    trace = monitor.trace(carry.server, leaves)
    if trace.state is None:
        raise Divergence(trace.provenance["diverged"], trace)
    return replace(trace, state=replace(trace.state, of=of))


class _CohortCounts:
    """The counts of all clients, from those of one cohort after another."""

    def __init__(self, run: RunOptions, monitor: Monitor):
        n = run.problem.n
        self.run = run
        takes = run.counts_participants or monitor.cost.needs_participants
        calls = run.counts_calls and (monitor.cost.cost.depends_on_data or run.clock is not None)
        self.taken = np.zeros(n, np.int64) if takes else None
        self.calls = np.zeros((n, len(KINDS)), np.int64) if calls else None
        self.server, self.seconds = np.zeros(len(KINDS), np.int64), 0.0

    def before(self, options: ProgramOptions) -> Counts:
        """The counts with which the program of one round begins."""
        return first_counts(self.run, options, self.run.participants)

    def seconds_of(self, clients: np.ndarray) -> ClientSeconds | None:
        """The cost model's seconds of a cohort."""
        if self.run.clock is None:
            return None
        return ClientSeconds(*(of[clients].astype(self.run.problem.dtype) for of in self.run.clock))

    def add(self, clients: np.ndarray, round_: Counts) -> None:
        """Add the counts of one round of these clients."""
        if self.taken is not None:
            self.taken[clients] += 1
        if self.calls is not None:
            self.calls[clients] += np.asarray(round_.calls)
            self.server += np.asarray(round_.server)
        if self.run.clock is not None:
            self.seconds += float(np.asarray(round_.clock, float).sum())

    def so_far(self) -> Counts:
        """The counts as of one record."""
        server = None if self.calls is None else self.server[None].copy()
        taken, calls = (None if of is None else of[None].copy() for of in (self.taken, self.calls))
        return Counts(taken, calls, server, None if self.run.clock is None else np.array([self.seconds]))


def _round(params: Parameters, rows: PaddedDataset, options: ProgramOptions, carry: Carry, sample: Sample) -> Carry:
    return round_of(params, rows, options, [], carry, sample)


@jit
def _solution(params: Parameters, server: PyTree) -> Array:
    return params.algorithm.solution(params.g, server)


# --- participants ---


class Cohort(NamedTuple):
    """The participants of a round, the largest first, as in the data set of `simulate`."""

    clients: np.ndarray  # their numbers
    rows: PaddedDataset
    sample: Sample  # their weights


class Cohorts:
    """The participants of every round, drawn ahead for some rounds together."""

    def __init__(self, run: RunOptions, problem: LazyProblem):
        self.problem, self.k, self.batch_size = problem, run.participants, run.batch_size
        self.key = client_sampling.run_key(run.seed)
        self.scheme: Scheme = client_sampling.scheme_in_use(run.sampling, problem.weights, self.k)
        self.probabilities = None
        if self.scheme == "proportional":
            self.probabilities = client_sampling.inclusion_probabilities(problem.weights, self.k)
        self.drawn: dict[int, np.ndarray] = {}  # by round

    def of_round(self, r: int) -> Cohort:
        """The participants of round r, with their rows."""
        if r not in self.drawn:
            rounds = jnp.arange(r, r + DRAWN_TOGETHER, dtype=jnp.int32)
            drawn = _draw(self.key, rounds, self.probabilities, self.problem.n, self.k, self.scheme)
            self.drawn = dict(enumerate(np.asarray(drawn), start=r))
        problem, clients = self.problem, self.drawn[r]
        clients = clients[np.argsort(-problem.sites.sizes[clients], kind="stable")]
        rows = problem.cohort(clients, like_all=self.batch_size is not None)
        p = problem.weights[clients].astype(problem.dtype)
        inverse_probability_weight = None
        if self.probabilities is not None:
            inverse_probability_weight = self.probabilities.weight[clients].astype(problem.dtype)
        weights, weight = client_sampling.sample_mean_weights(self.scheme, inverse_probability_weight, p, problem.n)
        return Cohort(clients, rows, Sample(None, weights, p.dtype.type(weight), p))  # pyright: ignore[reportArgumentType]  # NumPy's


@jit(static_argnames=("n", "k", "scheme"))
def _draw(key: Array, rounds: Array, given: InclusionProbabilities | None, n: int, k: int, scheme: Scheme) -> Array:
    """The participants of each of the rounds, by number."""

    def one(r: Array) -> Array:
        if k == n:
            return jnp.arange(n)
        if scheme != "proportional" and client_sampling.few_of_many(n, k):
            return client_sampling.participation_ranks(key, r, n, k)
        return client_sampling.participants(scheme, given, key, r, jnp.arange(n), k)

    return jax.lax.map(one, rounds)


OTHERS = -1  # stands for all clients that have not taken part yet


class ClientStates:
    """The states of the clients that have taken part; those of all others are the initial state."""

    def __init__(self, first: PyTree, of: np.ndarray | None = None, leaves: Sequence[np.ndarray] = ()):
        initial, self.structure = jax.tree.flatten(first)
        self.initial = [np.array(leaf) for leaf in initial]  # copies, to write to: JAX's arrays are read-only
        self.row_of: dict[int, int] = {}  # of each client that has taken part
        self.rows = [leaf[None] for leaf in self.initial]  # rows that nobody has yet are the initial state
        if of is not None:  # the result of `saved`
            self.initial, self.rows = [leaf[-1] for leaf in leaves], [np.array(leaf) for leaf in leaves]
            self.row_of = {client: k for k, client in enumerate(of[:-1].tolist())}

    def load(self, clients: np.ndarray) -> PyTree:
        """The states of some clients, stacked."""
        chosen = [self.row_of.setdefault(client, len(self.row_of)) for client in clients.tolist() if self.initial]
        if self.initial and len(self.row_of) > len(self.rows[0]):  # room for twice as many
            new = [np.broadcast_to(leaf, (len(self.row_of), *leaf.shape)) for leaf in self.initial]
            self.rows = [np.concatenate(pair) for pair in zip(self.rows, new, strict=True)]
        return jax.tree.unflatten(self.structure, [rows[chosen] for rows in self.rows])

    def store(self, clients: np.ndarray, states: PyTree) -> None:
        """Replace the states of some clients that were loaded."""
        for rows, leaf in zip(self.rows, jax.tree.leaves(states), strict=True):
            rows[[self.row_of[client] for client in clients.tolist()]] = np.asarray(leaf)

    def saved(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """The clients, and their states stacked; the last is that of all others."""
        pairs = zip(self.rows, self.initial, strict=True)
        leaves = [np.concatenate([rows[: len(self.row_of)], initial[None]]) for rows, initial in pairs]
        return np.array([*self.row_of, OTHERS], np.int32), leaves
