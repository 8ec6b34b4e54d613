"""Rounds over more clients than fit in memory: only the rows and states of a round's participants are loaded.

Each round is a program of its own (`xla.round_of`, the round of `simulate`). While the device computes one round, the rows of
the next participants are read, which is possible because participation is a function of (seed, round).
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from compfed._utils.compilation import jit, precision
from compfed._utils.validation import check_callable, check_int
from compfed.algorithms.base import Algorithm, PyTree
from compfed.errors import Divergence, InputError
from compfed.monitor import Monitor, Progress, RunOptions
from compfed.problem.padded_dataset import PaddedDataset
from compfed.problem.problem import LazyProblem, Problem
from compfed.sampling import (
    InclusionProbabilities,
    Scheme,
    few_of_many,
    inclusion_probabilities,
    participants,
    participation_ranks,
    run_key,
    sample_mean_weights,
    scheme_in_use,
)  # fmt: skip
from compfed.simulation.evaluation import evaluate_models
from compfed.simulation.options import check_options
from compfed.simulation.simulate import clients_at_once_for
from compfed.simulation.xla import Carry, Parameters, ProgramOptions, Sample, compiler_options, round_of
from compfed.trace import Trace

DRAWN_TOGETHER = 64  # rounds whose participants are drawn in one call


def simulate_out_of_core(
    problem: LazyProblem,
    algorithm: Algorithm,
    rounds: int,
    *,
    participants: int,
    batch_size: int | None = None,
    sampling: Scheme | None = None,
    record_every: int = 1,
    seed: int = 0,
    x0: ArrayLike | None = None,
    x_star: ArrayLike | None = None,
    measure_on: Problem | None = None,
    resume: Trace | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Simulate rounds with only the participants of a round in memory.

    The cost of a round does not depend on the number of clients, except under the sampling scheme "proportional" (for unequal
    weights). Models are those of `simulate` up to rounding. Objective and gradient mapping would take a pass over all clients,
    so the trace has none; `problem.objective(trace.x)` computes the objective.

    Parameters
    ----------
    problem : LazyProblem
        A problem that reads the rows of a client when they are needed.
    algorithm : Algorithm
    rounds : int
        Number of communication rounds.
    participants : int
        Clients per round, drawn anew for each.
    batch_size : int, optional
        Rows per local gradient; full gradients if left out.
    sampling : {"proportional", "uniform", "self-normalised"}, optional
        Estimator of the mean over all clients from a sample; by default the first of the method's own `schemes`.
    record_every : int, default=1
        Record every k-th round, and the last.
    seed : int, default=0
        Seed of mini-batches and participation.
    x0 : array of shape (d,), optional
        Start of the method's own variable; zero if left out.
    x_star : array of shape (d,), optional
        The minimiser; adds the column "optimality".
    measure_on : Problem, optional
        A problem on which every recorded model is evaluated, such as `problem.subset(range(100))` or rows held out. Adds the
        columns "subset_objective" and "subset_gradient_mapping".
    resume : Trace, optional
        A trace of `simulate_out_of_core` to continue.
    progress : callable, optional
        Called with (rounds done, rounds in all).

    Returns
    -------
    Trace

    Raises
    ------
    Divergence
        The model is no longer finite. The error has the trace so far.

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
        seed=seed, x0=x0, x_star=x_star, resume=resume, sampling=sampling, kind=LazyProblem,
    )  # fmt: skip
    check_callable(progress, "progress")
    if measure_on is not None and (not isinstance(measure_on, Problem) or measure_on.d != problem.d):
        raise InputError(
            f"measure_on must be a compfed.Problem with {problem.d} coefficients, such as problem.subset(range(100)); got "
            f"{measure_on!r:.80}."
        )
    problem.members()  # reads a few clients: an error shows before the first round
    evaluate = None if measure_on is None else partial(_subset_columns, measure_on)
    monitor = Monitor(run, "simulate_out_of_core", evaluate)
    monitor.provenance["measured_on"] = None if measure_on is None else measure_on.describe()
    with precision(problem.dtype):
        return _OutOfCore(run, problem, monitor).run_all(progress)


def _subset_columns(problem: Problem, X: np.ndarray) -> dict[str, np.ndarray]:
    return {f"subset_{name}": values for name, values in evaluate_models(problem, X).items()}


class Cohort(NamedTuple):
    """The participants of a round, the largest first, as in the data set of `simulate`."""

    who: np.ndarray
    data: PaddedDataset
    sample: Sample


class _OutOfCore:
    """One run: its server state, the stored client states, and the participants drawn ahead."""

    def __init__(self, run: RunOptions, problem: LazyProblem, monitor: Monitor):
        self.run, self.problem, self.monitor = run, problem, monitor
        k = run.participants
        self.scheme: Scheme = scheme_in_use(run.sampling, problem.weights, k)
        proportional = self.scheme == "proportional"
        self.probabilities = inclusion_probabilities(problem.weights, k) if proportional else None
        self.params = Parameters(run.algorithm, problem.loss, problem.regulariser, run_key(run.seed))
        self.server, first = run.algorithm.init(jnp.asarray(run.x0))
        saved = None if run.resume is None else run.resume.state
        if saved is None:
            self.states = ClientStates(problem.n, first)
        else:
            leaves = [jnp.asarray(leaf) for leaf in saved.server]
            self.server = jax.tree.unflatten(jax.tree.structure(self.server), leaves)
            self.states = ClientStates(problem.n, first, saved.of, saved.clients)
        self.drawn: np.ndarray = np.zeros((0, k), int)  # participants of the rounds from `drawn_from` on
        self.drawn_from = run.start

    def run_all(self, progress: Progress | None) -> Trace:
        run, monitor = self.run, self.monitor
        carry = Carry(self.server, None, jnp.zeros((), run.problem.dtype), jnp.int32(run.start), jnp.int32(0))
        if run.resume is None:
            self._record(carry, 0, 0.0)
        cohort = self._cohort(run.start) if run.rounds else None
        shapes: set[tuple[int, ...]] = set()
        seconds = 0.0
        for r in range(run.start, run.last):
            assert cohort is not None
            if cohort.data.A.shape not in shapes:  # compiled outside the recorded time
                shapes.add(cohort.data.A.shape)
                jax.block_until_ready(self._round(cohort, carry))
            began = time.perf_counter()
            carry, who = self._round(cohort, carry), cohort.who
            cohort = self._cohort(r + 1) if r + 1 < run.last else None  # while the device computes
            self.states.store(who, carry.clients)
            seconds += time.perf_counter() - began
            if run.is_recorded(r + 1):
                self._record(carry, r + 1, seconds)
                seconds = 0.0
                if monitor.done:
                    break
            if progress is not None:
                progress(r + 1 - run.start, run.rounds)
        return self._trace(carry)

    def _round(self, cohort: Cohort, carry: Carry) -> Carry:
        data, batch = cohort.data, self.run.batch_size
        at_once = clients_at_once_for(data.A.nbytes, batch)
        options = ProgramOptions(self.run.participants, batch, at_once, None, self.scheme)
        clients = self.states.load(cohort.who)
        return _program()(self.params, data, options, carry._replace(clients=clients), cohort.sample)

    def _cohort(self, r: int) -> Cohort:
        if r >= self.drawn_from + len(self.drawn):
            rounds = jnp.arange(r, r + DRAWN_TOGETHER, dtype=jnp.int32)
            static = (self.problem.n, self.run.participants, self.scheme)
            self.drawn = np.asarray(_draw(self.params.key, rounds, self.probabilities, *static))
            self.drawn_from = r
        who = self.drawn[r - self.drawn_from]
        who = who[np.argsort(-self.problem.sites.sizes[who], kind="stable")]
        data = self.problem.cohort(who, like_all=self.run.batch_size is not None)
        given = self.probabilities
        drawn_weight = None if given is None else given.weight[who].astype(self.problem.dtype)
        p: Any = self.problem.weights[who].astype(self.problem.dtype)
        weights, weight = sample_mean_weights(self.scheme, drawn_weight, p, self.problem.n)
        return Cohort(who, data, Sample(None, weights, p.dtype.type(weight), p))

    def _record(self, carry: Carry, r: int, seconds: float) -> None:
        x = np.asarray(_solution(self.params, carry.server))
        columns = {"drift": np.asarray(carry.drift)[None]}
        self.monitor.record(np.array([r]), x[None], columns, seconds, int(carry.not_finite))

    def _trace(self, carry: Carry) -> Trace:
        of, leaves = self.states.saved()
        trace = self.monitor.trace(carry.server, leaves)
        if self.monitor.diverged:
            raise Divergence(trace.provenance["diverged"], trace)
        assert trace.state is not None
        return replace(trace, state=replace(trace.state, of=of))


def _round_of(params: Parameters, data: PaddedDataset, options: ProgramOptions, carry: Carry, sample: Sample) -> Carry:
    return round_of(params, data, options, [], carry, sample)


@cache
def _program() -> Any:
    return jit(_round_of, static_argnames="options", compiler_options=compiler_options())


@jit
def _solution(params: Parameters, server: PyTree) -> Array:
    return params.algorithm.solution(params.g, server)


@jit(static_argnames=("n", "k", "scheme"))
def _draw(key: Array, rounds: Array, given: InclusionProbabilities | None, n: int, k: int, scheme: Scheme) -> Array:
    """The participants of each of the rounds, by number."""

    def one(r: Array) -> Array:
        if k == n:
            return jnp.arange(n)
        if scheme != "proportional" and few_of_many(n, k):
            return participation_ranks(key, r, n, k)
        return participants(scheme, given, key, r, jnp.arange(n), k)

    return jax.lax.map(one, rounds)


OTHERS = -1  # stands for all clients that have not taken part yet


class ClientStates:
    """The states of the clients that have taken part, one row each; those of all others are the initial state.

    Memory grows with the clients that took part; of n it needs one number per client.

    Parameters
    ----------
    n : int
        Number of clients.
    first : pytree
        The initial state of every client.
    of, leaves : arrays, optional
        The result of `saved`, to resume from.
    """

    def __init__(self, n: int, first: PyTree, of: np.ndarray | None = None, leaves: list[np.ndarray] | None = None):
        initial, self.structure = jax.tree.flatten(first)
        self.initial = [np.asarray(leaf) for leaf in initial] if leaves is None else [leaf[-1] for leaf in leaves]
        self.clients = np.zeros(0, np.int32) if of is None else of[:-1].astype(np.int32)
        self.used = len(self.clients)
        self.rows = [leaf[None] for leaf in self.initial] if leaves is None else [np.array(leaf) for leaf in leaves]
        self.place = np.full(n if self.initial else 0, -1, np.int32)  # the row of each client
        if self.initial:
            self.place[self.clients] = np.arange(self.used)

    def load(self, who: np.ndarray) -> PyTree:
        """The states of some clients, stacked."""
        if self.initial:
            self._add(who[self.place[who] < 0])
        return jax.tree.unflatten(self.structure, [rows[self.place[who]] for rows in self.rows])

    def store(self, who: np.ndarray, states: PyTree) -> None:
        """Replace the states of some clients."""
        for rows, leaf in zip(self.rows, jax.tree.leaves(states), strict=True):
            rows[self.place[who]] = np.asarray(leaf)

    def saved(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """The clients, and their rows; the last row is that of all others."""
        pairs = zip(self.rows, self.initial, strict=True)
        leaves = [np.concatenate([rows[: self.used], initial[None]]) for rows, initial in pairs]
        return np.append(self.clients[: self.used], OTHERS), leaves

    def _add(self, new: np.ndarray) -> None:
        last, self.used = self.used, self.used + len(new)
        if self.used > len(self.clients):
            room = max(2 * len(self.clients), self.used)
            self.clients = _grown(self.clients, room)
            self.rows = [_grown(rows, room) for rows in self.rows]
        self.clients[last : self.used] = new
        self.place[new] = np.arange(last, self.used)
        for rows, initial in zip(self.rows, self.initial, strict=True):
            rows[last : self.used] = initial


def _grown(rows: np.ndarray, room: int) -> np.ndarray:
    grown = np.empty((room, *rows.shape[1:]), rows.dtype)
    grown[: min(len(rows), room)] = rows[:room]
    return grown
