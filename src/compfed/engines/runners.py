"""Rounds until a certificate: models run side by side over a federation, looked at every few rounds.

A federation whose rounds are compiled brings its own runner (`engines.simulated_federation`); every other one is spoken to message
by message, here. Both give the same segments and count the same messages.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from compfed.algorithms.base import Algorithm
from compfed.engines.prepared_algorithm import ready
from compfed.engines.recorder import Progress, Recorder, Run
from compfed.federation.conversation import Federation, Request, Talk, in_parallel
from compfed.federation.questions import Steepness, ValueAndGradient
from compfed.federation.server import NotFinite, ServerLoop
from compfed.federation.task import Task
from compfed.federation.view import Job
from compfed.problem.gradient_mapping import at_point
from compfed.trace import Trace

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
