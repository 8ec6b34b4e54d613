"""The server loop: who takes part, what they are asked, the mean of their answers, the server's step.

This is the round written plainly. Over sites in this process it is the `reference` engine; over a network it is the real
federation. `engines.simulator` has the same round for XLA.

Rounds until a certificate: models run side by side over a federation, looked at every few rounds.

A federation whose rounds are compiled brings its own runner (`engines.simulated_federation`); every other one is spoken to message
by message, here. Both give the same segments and count the same messages.

An algorithm as it will run on a problem, or one clear error before the first round. Reads no row.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from compfed._utils.compilation import compiled
from compfed._utils.precision import precision
from compfed.algorithms.base import Algorithm, dense
from compfed.algorithms.contract import check_contract, message_shapes
from compfed.errors import InputError, RunWarning
from compfed.federation.codec import named, unnamed
from compfed.federation.queries import Result, Round, Steepness, ValueAndGradient
from compfed.federation.server.program import Federation, Request, Talk, in_parallel
from compfed.federation.spec import Job, Task
from compfed.monitor import Described, Progress, Recorder, Run, largest_prox_step
from compfed.problem_spec import at_point
from compfed.regularisers import largest_step
from compfed.sampling import Scheme, averaging, odds, participants, run_key, scheme_in_use
from compfed.trace import State, Trace

# Each stage of a round at the server, compiled on its own.
_down = compiled(lambda a, g, s, k: a.exchanges[k].down(g, s), static_argnums=3)
_server = compiled(lambda a, g, s, mean, share, k: a.exchanges[k].server(g, s, mean, share), static_argnums=5)
_dense = compiled(dense, static_argnums=1)
_solution = compiled(lambda a, g, s: a.solution(g, s))


class NotFinite(ArithmeticError):
    """A stage gave a number that is not finite."""

    def __init__(self, r: int, where: str):
        super().__init__(f"round {r}{where}")
        self.r, self.where = r, where


class ServerLoop:
    """The server's half of one job: its state, and the rounds done.

    `checkpoint` is called with the state after every round, before the next message leaves: a server that is killed goes
    on from there with `restore`.
    """

    def __init__(
        self,
        job: Job,
        task: Task,
        participants: int | None = None,
        checkpoint: Callable[[State], None] | None = None,
        sampling: Scheme | None = None,
    ):
        self.job, self.task = job, task
        self.participants = task.n if participants is None else participants
        self.scheme: Scheme = scheme_in_use(sampling, task.weights, self.participants)
        self.odds = odds(task.weights, self.participants) if self.scheme == "proportional" else None
        self.checkpoint = checkpoint
        self.shapes = message_shapes(job.algorithm, job.regulariser, job.x0.size, job.x0.dtype)
        self.r = 0  # rounds done
        with precision(task.dtype):
            self.state, _ = job.algorithm.init(jnp.asarray(job.x0))

    def restore(self, saved: State) -> None:
        """Go on after the rounds of a checkpoint."""
        with precision(self.task.dtype):
            leaves = [jnp.asarray(leaf) for leaf in saved.server]
            self.state = jax.tree.unflatten(jax.tree.structure(self.state), leaves)
        self.r = saved.rounds

    def model(self) -> np.ndarray:
        """The model after the rounds done."""
        with precision(self.task.dtype):
            return np.asarray(_solution(self.job.algorithm, self.job.regulariser, self.state))

    def chosen(self, r: int) -> list[int]:
        """Who takes part in round r, in the order of the sites."""
        with precision(self.task.dtype):
            numbers = jnp.asarray(self.task.numbers)
            who = participants(self.scheme, self.odds, run_key(self.job.seed), r, numbers, self.participants)
        return [int(i) for i in who]

    def round(self, beside: Sequence[Request] = ()) -> Talk[list[Any]]:
        """One round. What is asked `beside` it travels in its first message; those answers are returned."""
        a, g, task, r = self.job.algorithm, self.job.regulariser, self.task, self.r
        everyone = self.participants == task.n
        who = list(range(task.n)) if everyone else self.chosen(r)
        weight, share = averaging(self.scheme, self.odds, task.weights, who)
        of = None if everyone else tuple(who)
        others: list[Any] = []
        for k, _ in enumerate(a.exchanges):
            question = Round(self.job, r, k, self._message(k))
            answers, *more = yield [Request((question,), of), *(beside if k == 0 else ())]
            others += more
            ups = [self._checked(answer, i, k) for i, (answer,) in zip(who, answers, strict=True)]
            with precision(task.dtype):
                mean = weighted_mean(weight, [_dense(u, task.d) for u in ups])
                self.state = _server(a, g, self.state, mean, jnp.asarray(share, task.dtype), k)
                if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(self.state)):
                    raise NotFinite(r + 1, ", stage server")
        if a.closes() and not everyone:  # else they hear the result with the message that opens the next round
            yield [Request((Result(self.job, r, self._message(0)),), of)]
        self.r += 1
        if self.checkpoint is not None:
            self.checkpoint(State(self.r, [np.asarray(leaf) for leaf in jax.tree.leaves(self.state)], []))
        return others

    def _message(self, k: int) -> dict[str, np.ndarray]:
        with precision(self.task.dtype):
            return named(_down(self.job.algorithm, self.job.regulariser, self.state, k))

    def _checked(self, answer: Round.Answer, site: int, k: int) -> Any:
        u = unnamed(answer.u, self.shapes[k].up)
        if not answer.finite or not all(np.isfinite(leaf).all() for leaf in answer.u.values()):
            raise NotFinite(self.r + 1, f", client {self.task.names[site]!r}, stage client")
        return u


def weighted_mean(weight: np.ndarray, trees: Sequence[Any]) -> Any:
    """sum_i weight_i tree_i, in the order given: the same sum over any transport, to the last bit."""

    def leaf_mean(*leaves):
        return sum(w * leaf for w, leaf in zip(weight.astype(leaves[0].dtype), leaves, strict=True))

    return jax.tree.map(leaf_mean, *trees)


CHECK = 10  # rounds between two looks at the certificate
_numbers = itertools.count()  # of the jobs of this process


@dataclass(frozen=True)
class Order:
    """What to run: the tasks share their view, the algorithm and the start, and differ in their regularisers."""

    tasks: Sequence[Task]
    algorithm: Algorithm
    x0: np.ndarray
    tol: float  # on the norm of the gradient mapping
    step: float  # of that mapping
    seed: int = 0
    progress: Progress | None = None
    numbers: Iterator[int] = _numbers  # of the jobs

    @property
    def view(self):
        return self.tasks[0].view

    def job(self, task: Task) -> Job:
        return Job(
            number=next(self.numbers),
            algorithm=ready(self.algorithm, task, task.n, self.seed),
            regulariser=task.regulariser,
            view=task.view,
            x0=np.asarray(self.x0, task.dtype),
            seed=self.seed,
            batch_size=None,
            capacity=int(task.sizes.max()),
        )

    def run(self, task: Task, rounds: int, resume: Trace | None = None) -> Run:
        return Run(
            task, ready(self.algorithm, task, task.n, self.seed), rounds, None, task.n, CHECK, self.seed,
            np.asarray(self.x0, task.dtype), None, resume,
        )  # fmt: skip


class Answered(NamedTuple):
    """What the sites said of a model: sums over all of them, weighted."""

    value: float
    gradient: np.ndarray
    terms: float  # size of the terms of the gradient, before they cancel
    L: float | None  # curvature there, where the loss has no bound: sum_i p_i L_i
    L_max: float | None  # and the largest L_i


class Segment(NamedTuple):
    """One model after some rounds: everything recorded so far, and what the sites say of it now."""

    trace: Trace
    at: Answered | None  # None if the model blew up


class Runner(Protocol):
    def advance(self, rounds: int) -> Talk[list[Segment]]:
        """So many rounds more for every model; each stops by itself when its certificate holds."""
        ...


def runner(federation: Federation, order: Order) -> Runner:
    """Who runs the rounds over this federation. One that can be resumed numbers its own jobs, from 0 in every process."""
    order = replace(order, numbers=getattr(federation, "numbers", order.numbers))
    own = getattr(federation, "runner", None)
    return own(order) if own is not None else ByMessages(order)


def look_question(task: Task, X: np.ndarray, last: bool) -> Request:
    """Value and gradient at the models in X; in the last look, the curvature too where the step depends on it."""
    questions: tuple[Any, ...] = (ValueAndGradient(task.view, X),)
    if last and task.loss.curvature is None and len(X) == 1:
        questions += (Steepness(task.view, X[0]),)
    return Request(questions, models=len(X), counts=False)  # it mostly travels with a round


def looked(task: Task, answers: Sequence[Any], model: int = 0) -> Answered:
    """The answers to `look_question`, summed in the order of the sites."""
    p = task.weights
    steep = [a[1].L for a in answers] if len(answers[0]) > 1 else None
    return Answered(
        value=float(p @ [a[0].value[model] for a in answers]),
        gradient=p @ np.array([a[0].gradient[model] for a in answers]),
        terms=float(p @ [a[0].terms[model] for a in answers]),
        L=None if steep is None else float(p @ steep),
        L_max=None if steep is None else max(steep),
    )


class ByMessages:
    """Round by round, over any federation. A look travels with the message that opens the next round."""

    def __init__(self, order: Order):
        self.order = order
        self.models = [_Model(order, task) for task in order.tasks]

    def advance(self, rounds: int) -> Talk[list[Segment]]:
        return (yield from in_parallel([model.advance(rounds) for model in self.models]))


class _Model:
    def __init__(self, order: Order, task: Task):
        self.order, self.task = order, task
        self.loop = ServerLoop(order.job(task), task)
        self.recorder = Recorder(order.run(task, 0), "messages")

    def advance(self, rounds: int) -> Talk[Segment]:
        loop, last = self.loop, self.loop.r + rounds
        looked_at = self.recorder.last_round
        began = time.perf_counter()
        while True:
            r, x = loop.r, loop.model()
            due = r > looked_at and (r == last or r % CHECK == 0)
            question = [look_question(self.task, x[None], r == last)] if due else []
            try:
                answers = (yield from loop.round(question)) if r < last else (yield question)
            except NotFinite as problem:
                return Segment(self.recorder.diverged(problem.r, problem.where).trace, None)
            if due:
                at, looked_at = looked(self.task, answers[0]), r
                arrived = self._record(r, x, at, time.perf_counter() - began)
                began = time.perf_counter()
                if self.recorder.blown:
                    return Segment(self.recorder.diverged(r).trace, None)
                if arrived or r == last:
                    return Segment(self.recorder.trace(loop.state, None), at)
            if self.order.progress is not None:
                self.order.progress(r, last)

    def _record(self, r: int, x: np.ndarray, at: Answered, seconds: float) -> bool:
        """Note the model after round r; has it arrived?"""
        found = at_point(self.task.regulariser, x, at.value, at.gradient.astype(x.dtype), self.order.step)
        seen = {"objective": np.array([found.objective]), "gradient_mapping": np.array([found.norm])}
        self.recorder.add(np.array([r]), x[None], seen, seconds)
        return found.norm <= self.order.tol


def ready(algorithm: Any, problem: Described, participants: int, seed: int = 0) -> Algorithm:
    """The algorithm with its choices made for this run; its stages fit together, and its steps suit the prox."""
    if not isinstance(algorithm, Algorithm):
        got = f"{algorithm.__name__} (the class)" if isinstance(algorithm, type) else repr(algorithm)
        raise InputError(f"algorithm must be an instance such as cf.algorithms.DecoupledProx(eta=1.0); got {got}.")
    prepared = algorithm.seeded(seed).prepared(problem, participants)
    check_contract(prepared, problem.d, problem.dtype, problem.regulariser)
    limit = float(largest_step(problem.regulariser))
    if limit < np.inf and (used := largest_prox_step(prepared)) >= limit:
        raise InputError(
            f"{type(algorithm).__name__} takes the prox of {type(problem.regulariser).__name__} with steps up to "
            f"{used:.3g}; a weakly convex regulariser needs steps below {limit:.3g}. Reduce eta (or tau, eta_g), or "
            "enlarge its gamma."
        )
    if problem.dtype == np.float32 and prepared.integrates_rounding():
        said = _drifts(type(algorithm).__name__, participants < problem.n)
        warnings.warn(said, RunWarning, stacklevel=4)  # where simulate was called
    return prepared


def _drifts(name: str, sampled: bool) -> str:
    way_out = "let every client take part (participants=None)" if sampled else "leave upload out"
    return (
        f"{name} in float32 with the upload 'model': rounding errors of the corrections are kept and add up, and the model "
        f"drifts away from the minimiser (up to 1e-3 after 20,000 rounds). Use problem.astype('float64'), or {way_out}."
    )
