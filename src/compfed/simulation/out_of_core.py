"""Rounds over more clients than can be held: the rows and the memories of a round's participants, and no others', are there.

Each round is a program of its own (`xla_round.round_of`, the round of `simulate`). While the device works on one, the rows of
the next cohort are fetched: who takes part is a function of (seed, round).

What clients remember, for the few of many that ever took part: fetched before a round, written back after it.
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

from compfed._utils.compilation import jit
from compfed._utils.precision import precision
from compfed._utils.validation import check_callable, check_int
from compfed.algorithms.base import Algorithm
from compfed.errors import Divergence, InputError
from compfed.monitor import Progress, Recorder, Run
from compfed.problem.local_dataset import PaddedDataset
from compfed.problem.problem import LazyProblem, Problem
from compfed.sampling import (
    InclusionProbabilities,
    Scheme,
    averaging_of,
    few_of_many,
    odds,
    participants,
    participation_ranks,
    run_key,
    scheme_in_use,
)
from compfed.simulation.evaluation import measured
from compfed.simulation.run_spec import checked
from compfed.simulation.simulate import at_once_for
from compfed.simulation.xla import Carry, Plan, Sample, Setting, options, round_of
from compfed.trace import Trace

DRAWN = 64  # rounds whose participants are drawn together


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
    x0: Any = None,
    x_star: Any = None,
    measure_on: Problem | None = None,
    resume: Trace | None = None,
    progress: Progress | None = None,
) -> Trace:
    """`simulate` for a federation of any size: only what a round's participants have is in memory, at a cost that does
    not depend on how many others there are.

    Takes what `simulate` does; the models are the same to rounding. Objective and gradient mapping would cost a pass over
    all clients, so they are not in the trace: `problem.objective(trace.x)` gives the one when it is wanted, and

    - `measure_on`: a problem to measure every recorded model on, such as `problem.subset(range(100))` or rows held out;
      adds the columns `subset_objective` and `subset_gradient_mapping`, and `provenance["measured_on"]`.

    The sampling scheme "proportional" (of unequal weights) puts all clients in a new order in every round, which does cost
    in proportion to n.
    """
    check_int(participants, "participants", 1, " It is how many clients are in memory at once.")
    run = checked(
        problem, algorithm, rounds, batch_size=batch_size, participants=participants, record_every=record_every,
        seed=seed, x0=x0, x_star=x_star, resume=resume, sampling=sampling, kind=LazyProblem,
    )  # fmt: skip
    check_callable(progress, "progress")
    if measure_on is not None and (not isinstance(measure_on, Problem) or measure_on.d != problem.d):
        raise InputError(
            f"measure_on must be a compfed.Problem with {problem.d} coefficients, such as problem.subset(range(100)); got "
            f"{measure_on!r:.80}."
        )
    problem.members()  # it looks at a few clients: better now than after the last round
    recorder = Recorder(run, "simulate_out_of_core", None if measure_on is None else partial(_measured_on, measure_on))
    recorder.more["measured_on"] = None if measure_on is None else measure_on.describe()
    with precision(problem.dtype):
        return _Cohorts(run, problem, recorder).run_all(progress)


def _measured_on(problem: Problem, X: np.ndarray) -> dict[str, np.ndarray]:
    return {f"subset_{name}": values for name, values in measured(problem, X).items()}


class Cohort(NamedTuple):
    """The participants of a round, the largest first: as `simulate` has them."""

    who: np.ndarray
    data: PaddedDataset
    sample: Sample


class _Cohorts:
    def __init__(self, run: Run, problem: LazyProblem, recorder: Recorder):
        self.run, self.problem, self.recorder = run, problem, recorder
        k = run.participants
        self.scheme: Scheme = scheme_in_use(run.sampling, problem.weights, k)
        self.odds = odds(problem.weights, k) if self.scheme == "proportional" else None
        self.key = run_key(run.seed)
        self.setting = Setting(run.algorithm, problem.loss, problem.regulariser, self.key)
        self.server, first = run.algorithm.init(jnp.asarray(run.x0))
        saved = None if run.resume is None else run.resume.state
        if saved is None:
            self.memories = Memories(problem.n, first)
        else:
            leaves = [jnp.asarray(leaf) for leaf in saved.server]
            self.server = jax.tree.unflatten(jax.tree.structure(self.server), leaves)
            self.memories = Memories(problem.n, first, saved.of, saved.clients)
        self.drawn: np.ndarray = np.zeros((0, k), int)  # participants of the rounds from `drawn_from` on
        self.drawn_from = run.start

    def run_all(self, progress: Progress | None) -> Trace:
        run, recorder, marks = self.run, self.recorder, set(self.run.recorded())
        carry = Carry(self.server, None, jnp.zeros((), run.problem.dtype), jnp.int32(run.start), jnp.int32(0))
        if run.resume is None:
            self._record(carry, 0, 0.0)
        last = run.start + run.rounds
        cohort = self._cohort(run.start) if run.rounds else None
        shapes: set[Any] = set()
        worked = 0.0
        for r in range(run.start, last):
            assert cohort is not None
            if cohort.data.A.shape not in shapes:  # compiled outside the time that is noted
                shapes.add(cohort.data.A.shape)
                jax.block_until_ready(self._round(cohort, carry))
            began = time.perf_counter()
            carry, who = self._round(cohort, carry), cohort.who
            cohort = self._cohort(r + 1) if r + 1 < last else None  # while the device works
            self.memories.keep(who, carry.clients)
            worked += time.perf_counter() - began
            if r + 1 in marks:
                self._record(carry, r + 1, worked)
                worked = 0.0
                if recorder.blown:
                    break
            if progress is not None:
                progress(r + 1 - run.start, run.rounds)
        return self._trace(carry)

    def _round(self, cohort: Cohort, carry: Carry) -> Carry:
        data, batch = cohort.data, self.run.batch_size
        plan = Plan(self.run.participants, batch, at_once_for(data.A.nbytes, batch), None, self.scheme)
        clients = self.memories.fetch(cohort.who)
        return _program()(self.setting, data, plan, carry._replace(clients=clients), cohort.sample)

    def _cohort(self, r: int) -> Cohort:
        if r >= self.drawn_from + len(self.drawn):
            rounds = jnp.arange(r, r + DRAWN, dtype=jnp.int32)
            given = (self.problem.n, self.run.participants, self.scheme)
            self.drawn, self.drawn_from = np.asarray(_draws(self.key, rounds, self.odds, *given)), r
        who = self.drawn[r - self.drawn_from]
        who = who[np.argsort(-self.problem.sites.sizes[who], kind="stable")]
        data = self.problem.cohort(who, like_all=self.run.batch_size is not None)
        of_odds = None if self.odds is None else self.odds.weight[who].astype(self.problem.dtype)
        p: Any = self.problem.weights[who].astype(self.problem.dtype)
        weight, share = averaging_of(self.scheme, of_odds, p, self.problem.n)
        return Cohort(who, data, Sample(None, weight, p.dtype.type(share), p))

    def _record(self, carry: Carry, r: int, seconds: float) -> None:
        if bad := int(carry.bad):  # a bounded g can hide it: the model is finite where the server's state is not
            self.recorder.blown = bad
            return
        x = np.asarray(_solution(self.setting, carry.server))
        self.recorder.add(np.array([r]), x[None], {"drift": np.asarray(carry.drift)[None]}, seconds)

    def _trace(self, carry: Carry) -> Trace:
        of, leaves = self.memories.saved()
        trace = self.recorder.trace(carry.server, leaves)
        if self.recorder.blown:
            raise Divergence(trace.provenance["diverged"], trace)
        assert trace.state is not None
        return replace(trace, state=replace(trace.state, of=of))


def _round_of(setting: Setting, data: PaddedDataset, plan: Plan, carry: Carry, sample: Sample) -> Carry:
    return round_of(setting, data, plan, [], carry, sample)


@cache
def _program() -> Any:
    return jit(_round_of, static_argnames="plan", compiler_options=options())


@jit
def _solution(setting: Setting, server: Any) -> Array:
    return setting.algorithm.solution(setting.g, server)


@jit(static_argnames=("n", "k", "scheme"))
def _draws(key: Array, rounds: Array, given: InclusionProbabilities | None, n: int, k: int, scheme: Scheme) -> Array:
    """Who takes part in each of the rounds, by number."""

    def one(r: Array) -> Array:
        if k == n:
            return jnp.arange(n)
        if scheme != "proportional" and few_of_many(n, k):
            return participation_ranks(key, r, n, k)
        return participants(scheme, given, key, r, jnp.arange(n), k)

    return jax.lax.map(one, rounds)


ELSE = -1  # stands for everybody who has not taken part


class Memories:
    """One row per client that took part, in the order of their first rounds; the others are as at the start.

    Memory grows with the clients seen, not with n but for one number each.
    """

    def __init__(self, n: int, first: Any, of: np.ndarray | None = None, leaves: list[np.ndarray] | None = None):
        """`first` is what everybody remembers at the start; `of` and `leaves` are what `saved` returned."""
        blank, self.structure = jax.tree.flatten(first)
        self.blank = [np.asarray(leaf) for leaf in blank] if leaves is None else [leaf[-1] for leaf in leaves]
        self.seen = np.zeros(0, np.int32) if of is None else of[:-1].astype(np.int32)
        self.used = len(self.seen)
        self.rows = [leaf[None] for leaf in self.blank] if leaves is None else [np.array(leaf) for leaf in leaves]
        self.place = np.full(n if self.blank else 0, -1, np.int32)
        if self.blank:
            self.place[self.seen] = np.arange(self.used)

    def fetch(self, who: np.ndarray) -> Any:
        """The memories of some clients, stacked."""
        if self.blank:
            self._welcome(who[self.place[who] < 0])
        return jax.tree.unflatten(self.structure, [rows[self.place[who]] for rows in self.rows])

    def keep(self, who: np.ndarray, memories: Any) -> None:
        """What they remember from now on."""
        for rows, leaf in zip(self.rows, jax.tree.leaves(memories), strict=True):
            rows[self.place[who]] = np.asarray(leaf)

    def saved(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """Whose rows they are, and the rows; the last one is everybody else's."""
        leaves = [
            np.concatenate([rows[: self.used], blank[None]]) for rows, blank in zip(self.rows, self.blank, strict=True)
        ]
        return np.append(self.seen[: self.used], ELSE), leaves

    def _welcome(self, new: np.ndarray) -> None:
        last, self.used = self.used, self.used + len(new)
        if self.used > len(self.seen):
            room = max(2 * len(self.seen), self.used)
            self.seen = _longer(self.seen, room)
            self.rows = [_longer(rows, room) for rows in self.rows]
        self.seen[last : self.used] = new
        self.place[new] = np.arange(last, self.used)
        for rows, blank in zip(self.rows, self.blank, strict=True):
            rows[last : self.used] = blank


def _longer(rows: np.ndarray, room: int) -> np.ndarray:
    longer = np.empty((room, *rows.shape[1:]), rows.dtype)
    longer[: min(len(rows), room)] = rows[:room]
    return longer
