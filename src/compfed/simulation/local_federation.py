"""Federations in this process: message by message (`run_plain`), or with rounds that are one compiled program (`Simulated`).

`run_plain` is the server's loop over sites, one client at a time: short, slow, obviously right, and the reference for `simulate`.
`fit(X, y, sites=...)` runs on `Simulated`. Its queries are answered site by site; its rounds are not sent as messages, and the
bytes that a network would have carried follow from the shapes of the messages.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import jax
import numpy as np
from numpy.typing import ArrayLike

from compfed._utils.arrays import set_readonly
from compfed._utils.compilation import precision
from compfed._utils.validation import check_callable
from compfed.algorithms.base import Algorithm, PyTree
from compfed.algorithms.costs import Counts
from compfed.algorithms.round import message_shapes
from compfed.data import Sites
from compfed.errors import Divergence
from compfed.federation.accounting import Communication
from compfed.federation.codec import digest, named
from compfed.federation.queries import LocalUpdate
from compfed.federation.server.program import Federation, Program, Request, Spent, run_program
from compfed.federation.server.rounds import (
    NotFinite,
    Order,
    Rounds,
    Segment,
    ServerLoop,
    by_messages,
    evaluation_of,
    evaluation_request,
)
from compfed.federation.site.in_process import InProcess
from compfed.federation.site.memory import close, finite
from compfed.federation.site.rows import Rows
from compfed.federation.site.site import Site
from compfed.federation.spec import FederatedProblem, RunSpec
from compfed.monitor import Metric, Monitor, Progress, RunOptions, first_state
from compfed.problem.problem import Problem
from compfed.regularisers import Zero
from compfed.sampling import Scheme
from compfed.simulation.columns import evaluate_models
from compfed.simulation.grid import run_together
from compfed.simulation.options import check_options
from compfed.simulation.simulate import mapping_step, rows_of, run_compiled
from compfed.trace import Trace

# --- message by message ---


def run_plain(
    problem: Problem, algorithm: Algorithm, rounds: int, *, batch_size: int | None = None, participants: int | None = None,
    sampling: Scheme | None = None, record_every: int = 1, seed: int = 0, x0: object = None,
    x_star: ArrayLike | None = None, L: float | None = None, resume: Trace | None = None, progress: Progress | None = None,
    columns: Iterable[object] | None = None, metrics: Mapping[str, Metric] | None = None,
) -> Trace:  # fmt: skip
    """Run rounds message by message, over sites in this process.

    The reference for `simulate`: the same models up to rounding.

    Parameters
    ----------
    problem : Problem
    algorithm : Algorithm
    rounds : int
    batch_size, participants, sampling, record_every, seed, x0, x_star, L, resume, progress, columns, metrics
        As in `simulate`.

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
        seed=seed, x0=x0, x_star=x_star, resume=resume, sampling=sampling, L=L, columns=columns, metrics=metrics,
    )  # fmt: skip
    check_callable(progress, "progress")
    loop = _MessageLoop(run)
    with precision(problem.dtype):
        run_program(loop.federation, loop.rounds(progress))
        clients = jax.tree.map(lambda *leaves: np.stack(leaves), *loop.client_states())
        return loop.monitor.trace(loop.server.state, clients)


class _MessageLoop:
    """The server's loop of a run, with access to the states of its sites, which only sites in this process allow."""

    def __init__(self, run: RunOptions):
        problem = rows_of(run)
        self.run, self.monitor = run, Monitor(run, "plain", partial(evaluate_models, problem, step=mapping_step(run)))
        self.federation = InProcess(problem.sites)
        self.everyone = run.participants == problem.n
        spec = FederatedProblem.of(problem)
        largest = int(spec.sizes.max())
        batch_size = None if run.batch_size is None else min(run.batch_size, largest)
        run_spec = RunSpec(
            0, run.algorithm, spec.regulariser, spec.objective, run.x0, run.seed, batch_size, largest, self.everyone
        )
        self.taken = np.zeros(problem.n, np.int64)
        self.server = ServerLoop(run_spec, spec, run.participants, sampling=run.sampling)
        if run.resume is not None and run.resume.state is not None:
            self.server.restore(run.resume.state)
            with precision(problem.dtype):
                _, clients = first_state(run)
                for i, site in enumerate(self.federation.sites):
                    site.memory.remember(run_spec, jax.tree.map(lambda leaf, i=i: leaf[i], clients))

    def rounds(self, progress: Progress | None) -> Program[None]:
        run = self.run
        if run.resume is None:
            self._record(0, 0.0, 0.0)
        seconds = 0.0
        for r in range(run.start, run.last):
            began = time.perf_counter()
            try:
                yield from self.server.round()
            except NotFinite as problem:
                raise self.monitor.divergence(problem.r, self._where(problem, r)) from None
            seconds += time.perf_counter() - began
            self.taken[slice(None) if self.everyone else self.server.chosen(r)] += 1
            if run.is_recorded(r + 1):
                self._record(r + 1, self._drift(r), seconds)
                seconds = 0.0
            if progress is not None:
                progress(r + 1 - run.start, run.rounds)

    def _where(self, problem: NotFinite, r: int) -> str:
        """Where a number is not finite. A sum does not say at which client; here its state does."""
        for i in range(self.run.problem.n) if self.everyone and problem.client else ():
            state = self.federation.sites[i].memory.recall(self.server.run_spec)
            if not finite((state.c, state.local)):
                return f", client {self.federation.names[i]!r}, stage client_update"
        return problem.where

    def client_states(self) -> list[PyTree]:
        """The state of each site once it has received the result of its round."""
        a, run_spec = self.run.algorithm, self.server.run_spec
        states = [site.memory.recall(run_spec) for site in self.federation.sites]
        if not (self.everyone and a.finishes_rounds()):
            return [state.c for state in states]
        g = run_spec.regulariser
        result = a.exchanges[0].broadcast(g, self.server.state)
        return [close(a, g, result, state.c) if state.pending else state.c for state in states]

    def _drift(self, r: int) -> float:
        """Weighted mean distance of the participants' local models from their mean."""
        who = range(self.run.problem.n) if self.everyone else self.server.chosen(r)
        p = self.run.problem.weights[list(who)]
        z = np.array([self.federation.sites[i].memory.recall(self.server.run_spec).local for i in who])
        weight = p / p.sum()
        return float(weight @ np.linalg.norm(z - weight @ z, axis=1))

    def _counts(self) -> Counts:
        """What the sites have counted. They keep it to themselves over a network; in this process it can be read."""
        counts = Counts(taken=self.taken[None].copy())
        if not (self.run.counts_calls and self.monitor.cost.cost.depends_on_data):
            return counts
        calls = [site.memory.recall(self.server.run_spec).calls for site in self.federation.sites]
        return counts._replace(calls=np.array(calls, np.int64)[None])

    def _record(self, r: int, drift: float, seconds: float) -> None:
        a, state = self.run.algorithm, self.server.state
        columns = {"drift": np.array([drift])}
        c = [a.correction(state, client) for client in self.client_states()]
        if c[0] is not None:
            columns["correction"] = np.array([np.linalg.norm(self.run.problem.weights @ np.array(c))])
        self.monitor.record(np.array([r]), self.server.model()[None], columns, seconds, counts=self._counts())
        if self.monitor.diverged:
            raise self.monitor.divergence(r)


# --- compiled rounds ---


class Simulated(InProcess):
    """Sites in this process, with rounds compiled into one program.

    Parameters
    ----------
    sites : Sites or sequence of Site
    problem : Problem, optional
        A problem over these sites, whose rows are laid out already.
    """

    def __init__(self, sites: Sites | Sequence[Site], problem: Problem | None = None):
        super().__init__(sites)
        self._laid_out: dict[str, Problem] = {}
        self._given = problem

    @classmethod
    def of(cls, problem: Problem) -> Simulated:
        """The federation of a problem that is in this process."""
        return cls(problem.sites, problem)

    def alone(self, site: int) -> Simulated:
        """A federation of one of the sites."""
        one = Simulated([self.sites[site]])
        one.messages.sent |= self.messages.sent
        return one

    def problem(self, spec: FederatedProblem) -> Problem:
        """The rows of all sites as an objective scales and encodes them, laid out for the device."""
        objective = spec.objective
        plain = objective.scaling is None and objective.subset is None and objective.classes is None
        if self._given is not None and plain:
            return self._given.replace(regulariser=spec.regulariser)
        key = digest(objective)
        if key not in self._laid_out:
            self._laid_out = {key: self._lay_out(spec)}  # one copy of the rows at a time
        return self._laid_out[key].replace(regulariser=spec.regulariser)

    def _lay_out(self, spec: FederatedProblem) -> Problem:
        rows = [site.rows for site in self.sites]
        datasets = [mine.dense(spec.objective) for mine in rows]
        weights = spec.weights
        if spec.weighting is not None:
            # each site finds its own weight, as in the reply to a message
            own = np.array([mine.weights_of(spec.objective.subset).sum() for mine in rows])
            own = own if spec.weighting == "rows" else (own > 0).astype(float)
            weights = own / own.sum()
        sites = Sites(
            features=tuple(_own_copy(data.A, mine) for data, mine in zip(datasets, rows, strict=True)),
            labels=tuple(data.y for data in datasets),
            names=self.names,
            ids=tuple(mine.number for mine in rows),
            sample_weight=tuple(data.q for data in datasets),
        )
        return Problem(spec.objective.loss, Zero(), sites, weights, spec.objective.dtype)


def rounds_over(federation: Federation) -> Rounds:
    """How rounds are run over a federation: compiled, where its sites are simulated; otherwise message by message."""
    return partial(Compiled, federation) if isinstance(federation, Simulated) else by_messages(federation)


class Compiled:
    """The runner of a simulated federation: one model, or several as one program."""

    def __init__(self, federation: Simulated, order: Order):
        self.federation, self.order = federation, order
        self.run_specs = [order.run_spec(spec) for spec in order.specs]
        self.traces: list[Trace | None] = [None] * len(order.specs)

    def advance(self, rounds: int) -> Program[list[Segment]]:
        before = [0 if t is None else int(t["round"][-1]) for t in self.traces]
        rows = [0 if t is None else len(t) for t in self.traces]
        traces = self._run(rounds)
        self.traces = list(traces)
        cost = Communication()
        for run_spec, trace, r, recorded in zip(self.run_specs, traces, before, rows, strict=True):
            cost = cost.beside(self._cost(run_spec, trace, rounds, r, recorded))
        yield Spent(cost)
        last = int(traces[0]["round"][-1]) == before[0] + rounds
        (sums,) = yield [evaluation_request(self.order.specs[0], np.array([t.x for t in traces]), last)]
        return [
            Segment(trace, None if "diverged" in trace.provenance else evaluation_of(spec, sums, trace.x, k))
            for k, (spec, trace) in enumerate(zip(self.order.specs, traces, strict=True))
        ]

    def _run(self, rounds: int) -> Sequence[Trace]:
        order = self.order
        problems = [self.federation.problem(spec) for spec in order.specs]
        runs = [
            replace(order.run(spec, rounds, trace), problem=problem)
            for spec, problem, trace in zip(order.specs, problems, self.traces, strict=True)
        ]
        if len(runs) > 1:
            return run_together(runs, [{}] * len(runs))
        try:
            return [run_compiled(runs[0], progress=order.progress)]
        except Divergence as divergence:
            return [divergence.trace]

    def _cost(self, run_spec: RunSpec, trace: Trace, rounds: int, before: int, rows: int) -> Communication:
        """The cost over a network of one model: `done` rounds, each of one message per exchange. `beside` adds costs up.

        The last evaluation is a query, and counted there.
        """
        done = int(trace["round"][-1]) - before
        evaluations = len(trace) - rows - 1
        # the evaluation that finds a model converged travels with the message that opens one more round
        opened = done + int(done < rounds and "diverged" not in trace.provenance)
        shapes = message_shapes(run_spec.algorithm, run_spec.regulariser, run_spec.x0.size, run_spec.x0.dtype)
        spec, price = self.order.specs[0], self.federation.messages.cost
        cost = Communication(opened * len(shapes) - (opened - done))
        for k, shape in enumerate(shapes):
            broadcast = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shape.broadcast)
            query = LocalUpdate(run_spec, 0, k, named(broadcast))
            request = Request((query,), weights=spec.weights, weighting=spec.weighting)
            first = price(request)  # with the records that travel once
            # times(0): an exchange that was never opened costs nothing, but its sites are listed
            cost = cost.beside(first if opened else first.times(0)).beside(price(request).times(max(opened - 1, 0)))
        asked = evaluation_request(spec, run_spec.x0[None], last=False)
        return cost.beside(price(asked).times(evaluations))


def _own_copy(A: np.ndarray, rows: Rows) -> np.ndarray:
    """The rows, marked as made here unless they are the site's own array."""
    same = isinstance(rows.features, np.ndarray) and np.may_share_memory(A, rows.features)
    return A if same else set_readonly(A)
