"""`run_plain`: the server loop over sites in this process, one client at a time. Short, slow, obviously right."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from compfed._utils.compilation import precision
from compfed._utils.validation import check_callable
from compfed.algorithms.base import Algorithm
from compfed.federation.accounting import Communication
from compfed.federation.codec import payload
from compfed.federation.server.program import Program, run_program
from compfed.federation.server.rounds import NotFinite, ServerLoop
from compfed.federation.site.in_process import InProcess
from compfed.federation.site.site import close
from compfed.federation.spec import FederatedProblem, ObjectiveSpec, RunSpec
from compfed.monitor import Monitor, Progress, RunOptions, first_state
from compfed.problem.problem import Problem
from compfed.sampling import Scheme
from compfed.simulation.evaluation import evaluate_models
from compfed.simulation.options import check_options
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
    x0: ArrayLike | None = None,
    x_star: ArrayLike | None = None,
    resume: Trace | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Run rounds message by message, over sites in this process.

    The reference for `simulate`: the same models up to rounding. `provenance["carried"]` has the bytes of the messages.

    Parameters
    ----------
    problem : Problem
    algorithm : Algorithm
    rounds : int
        Number of communication rounds.
    batch_size : int, optional
        Rows per local gradient; full gradients if left out.
    participants : int, optional
        Clients per round; all of them if left out.
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
    resume : Trace, optional
        A trace to continue.
    progress : callable, optional
        Called with (rounds done, rounds in all).

    Returns
    -------
    Trace

    Raises
    ------
    Divergence
        A stage gave a number that is not finite; the message names round, client and stage.

    Examples
    --------
    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)
    >>> method = cf.algorithms.DecoupledProx(eta=1.0)
    >>> plain, fast = cf.simulation.run_plain(problem, method, 5), cf.simulate(problem, method, 5)
    >>> bool(abs(plain.x - fast.x).max() < 1e-12)
    True
    """
    run = check_options(
        problem, algorithm, rounds, batch_size=batch_size, participants=participants, record_every=record_every,
        seed=seed, x0=x0, x_star=x_star, resume=resume, sampling=sampling,
    )  # fmt: skip
    check_callable(progress, "progress")
    plain = _PlainRun(run)
    with precision(problem.dtype):
        _, cost = run_program(plain.federation, plain.rounds(progress))
        plain.monitor.provenance["carried"] = plain.carried(cost)
        clients = jax.tree.map(lambda *leaves: np.stack(leaves), *plain.client_states())
        return plain.monitor.trace(plain.loop.state, clients)


class _PlainRun:
    """The server loop of a run, with access to the states of its sites, which only sites in this process allow."""

    def __init__(self, run: RunOptions):
        problem = rows_of(run)
        self.run, self.monitor = run, Monitor(run, "plain", partial(evaluate_models, problem))
        self.federation = InProcess(problem.sites)
        self.everyone = run.participants == problem.n
        run_spec = RunSpec(
            0, run.algorithm, problem.regulariser, ObjectiveSpec(problem.loss, dtype=problem.dtype.name), run.x0, run.seed,
            run.batch_size, int(problem.sites.sizes.max()), self.everyone,
        )  # fmt: skip
        self.loop = ServerLoop(run_spec, spec_of(problem), run.participants, sampling=run.sampling)
        if run.resume is not None and run.resume.state is not None:
            self.loop.restore(run.resume.state)
            with precision(problem.dtype):
                _, clients = first_state(run)
                for i, site in enumerate(self.federation.sites):
                    site.remember(run_spec, jax.tree.map(lambda leaf, i=i: leaf[i], clients))

    def rounds(self, progress: Progress | None) -> Program[None]:
        run, loop = self.run, self.loop
        if run.resume is None:
            self._record(0, 0.0, 0.0)
        seconds = 0.0
        for r in range(run.start, run.last):
            began = time.perf_counter()
            try:
                yield from loop.round()
            except NotFinite as problem:
                raise self.monitor.divergence(problem.r, problem.where) from None
            seconds += time.perf_counter() - began
            if run.is_recorded(r + 1):
                self._record(r + 1, self._drift(r), seconds)
                seconds = 0.0
            if progress is not None:
                progress(r + 1 - run.start, run.rounds)

    def carried(self, cost: Communication) -> dict[str, float]:
        """Bytes of the messages of all rounds, per site on average, without the specification of the run."""
        costs = [cost.by_query[kind] for kind in ("LocalUpdate", "FinishRound") if kind in cost.by_query]
        spec = payload(self.loop.run_spec, set()) if costs else 0
        first = spec * self.run.participants / self.run.problem.n
        return {"bytes_down": sum(down for _, down, _ in costs) - first, "bytes_up": sum(up for _, _, up in costs)}

    def client_states(self) -> list[Any]:
        """The state of each site once it has received the result of its round."""
        a, run_spec = self.run.algorithm, self.loop.run_spec
        states = []
        for site in self.federation.sites:
            state = site.recall(run_spec)
            pending = state.pending and a.finishes_rounds() and self.everyone
            result = a.exchanges[0].broadcast(run_spec.regulariser, self.loop.state) if pending else None
            states.append(close(a, run_spec.regulariser, result, state.c) if pending else state.c)
        return states

    def _drift(self, r: int) -> float:
        """Weighted mean distance of the participants' local models from their mean."""
        who = range(self.run.problem.n) if self.everyone else self.loop.chosen(r)
        p = self.run.problem.weights[list(who)]
        z = np.array([self.federation.sites[i].recall(self.loop.run_spec).local for i in who])
        weight = p / p.sum()
        return float(weight @ np.linalg.norm(z - weight @ z, axis=1))

    def _record(self, r: int, drift: float, seconds: float) -> None:
        a, state = self.run.algorithm, self.loop.state
        columns = {"drift": np.array([drift])}
        c = [a.correction(state, client) for client in self.client_states()]
        if c[0] is not None:
            columns["correction"] = np.array([np.linalg.norm(self.run.problem.weights @ np.array(c))])
        self.monitor.record(np.array([r]), self.loop.model()[None], columns, seconds)
        if self.monitor.diverged:
            raise self.monitor.divergence(r)


def spec_of(problem: Problem) -> FederatedProblem:
    """The problem as a server knows it, without rows."""
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
