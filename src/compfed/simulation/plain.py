"""The reference engine: the server loop over sites in this process, one client at a time. Short, slow, obviously right."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import jax
import numpy as np

from compfed._utils.precision import precision
from compfed._utils.validation import check_callable
from compfed.algorithms.base import Algorithm
from compfed.federation.accounting import Communication
from compfed.federation.codec import payload
from compfed.federation.server.program import Program, run_program
from compfed.federation.server.rounds import NotFinite, ServerLoop
from compfed.federation.site.in_process import InProcess
from compfed.federation.site.site import close
from compfed.federation.spec import FederatedProblem, ObjectiveSpec, RunSpec
from compfed.monitor import Progress, Recorder, Run, first_state
from compfed.problem.problem import Problem
from compfed.sampling import Scheme
from compfed.simulation.evaluation import measured
from compfed.simulation.run_spec import checked
from compfed.simulation.simulate import rows_of
from compfed.trace import Trace


def run_plain(
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
    resume: Trace | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Run `rounds` rounds message by message. Takes and returns what `simulate` does.

    A stage that yields a number that is not finite stops the run and names round, client and stage.
    """
    run = checked(
        problem, algorithm, rounds, batch_size=batch_size, participants=participants, record_every=record_every,
        seed=seed, x0=x0, x_star=x_star, resume=resume, sampling=sampling,
    )  # fmt: skip
    check_callable(progress, "progress")
    engine = _Engine(run)
    with precision(problem.dtype):
        _, cost = run_program(engine.federation, engine.rounds(progress))
        engine.recorder.more["carried"] = engine.carried(cost)
        return engine.recorder.trace(engine.loop.state, engine.memories())


class _Engine:
    """The loop of a run, and a look into its sites that only sites in this process allow."""

    def __init__(self, run: Run):
        problem = rows_of(run)
        self.run, self.recorder = run, Recorder(run, "plain", partial(measured, problem))
        self.federation = InProcess(problem.sites)
        run_spec = RunSpec(
            0, run.algorithm, problem.regulariser, ObjectiveSpec(problem.loss, dtype=problem.dtype.name), run.x0, run.seed,
            run.batch_size, int(problem.sites.sizes.max()), run.participants == problem.n,
        )  # fmt: skip
        self.loop = ServerLoop(run_spec, spec_of(problem), run.participants, sampling=run.sampling)
        if run.resume is not None and run.resume.state is not None:
            self.loop.restore(run.resume.state)
            with precision(problem.dtype):
                _, clients = first_state(run)
                for i, site in enumerate(self.federation.sites):
                    site.remember(run_spec, jax.tree.map(lambda leaf, i=i: leaf[i], clients))

    def rounds(self, progress: Progress | None) -> Program[None]:
        run, loop, marks = self.run, self.loop, set(self.run.recorded())
        if run.resume is None:
            self._record(0, 0.0, 0.0)
        worked = 0.0
        for r in range(run.start, run.start + run.rounds):
            began = time.perf_counter()
            try:
                yield from loop.round()
            except NotFinite as problem:
                raise self.recorder.diverged(problem.r, problem.where) from None
            worked += time.perf_counter() - began
            if r + 1 in marks:
                self._record(r + 1, self._drift(r), worked)
                worked = 0.0
            if progress is not None:
                progress(r + 1 - run.start, run.rounds)

    def carried(self, cost: Communication) -> dict[str, float]:
        """Bytes of the messages of all rounds, per site on average, without what a site is told of the job at first."""
        said = [cost.by_query[kind] for kind in ("LocalUpdate", "FinishRound") if kind in cost.by_query]
        cached = payload(self.loop.run_spec, set()) if said else 0
        first = cached * self.run.participants / self.run.problem.n
        return {"bytes_down": sum(down for _, down, _ in said) - first, "bytes_up": sum(up for _, _, up in said)}

    def _clients(self) -> list[Any]:
        """What each site will remember once it has heard the result of its round."""
        a, run_spec = self.run.algorithm, self.loop.run_spec
        heard = []
        for site in self.federation.sites:
            memory = site.recall(run_spec)
            waits = memory.pending and a.finishes_rounds() and self.run.participants == self.run.problem.n
            result = a.exchanges[0].broadcast(run_spec.regulariser, self.loop.state) if waits else None
            heard.append(close(a, run_spec.regulariser, result, memory.c) if waits else memory.c)
        return heard

    def memories(self) -> Any:
        """The memories of all sites, stacked."""
        return jax.tree.map(lambda *leaves: np.stack(leaves), *self._clients())

    def _drift(self, r: int) -> float:
        """Weighted mean distance of the participants' local models from their mean."""
        who = range(self.run.problem.n) if self.run.participants == self.run.problem.n else self.loop.chosen(r)
        p = self.run.problem.weights[list(who)]
        z = np.array([self.federation.sites[i].recall(self.loop.run_spec).local for i in who])
        weight = p / p.sum()
        return float(weight @ np.linalg.norm(z - weight @ z, axis=1))

    def _record(self, r: int, drift: float, seconds: float) -> None:
        a, state = self.run.algorithm, self.loop.state
        seen = {"drift": np.array([drift])}
        c = [a.correction(state, client) for client in self._clients()]
        if c[0] is not None:
            seen["correction"] = np.array([np.linalg.norm(self.run.problem.weights @ np.array(c))])
        self.recorder.add(np.array([r]), self.loop.model()[None], seen, seconds)
        if self.recorder.blown:
            raise self.recorder.diverged(r)


def spec_of(problem: Problem) -> FederatedProblem:
    """The problem as a server would know it."""
    sites = problem.sites
    return FederatedProblem(
        objective=ObjectiveSpec(problem.loss, dtype=problem.dtype.name),
        regulariser=problem.regulariser,
        weights=problem.weights,
        names=sites.names,
        numbers=sites.ids,
        sizes=sites.sizes,
        width=sites.width,
        source=sites.source,
    )
