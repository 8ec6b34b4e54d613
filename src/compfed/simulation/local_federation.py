"""Federations in this process: message by message (`run_plain`), or with rounds that are one compiled program (`Simulated`).

`run_plain` is the server's loop over sites, one client at a time: short, slow, obviously right, and the reference for `simulate`.
`fit(X, y, sites=...)` runs on `Simulated`. Its queries are answered site by site; its rounds are not sent as messages, and the
bytes that a network would have carried follow from the shapes of the messages.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import jax
import numpy as np
from numpy.typing import ArrayLike

from compfed._utils.arrays import set_readonly
from compfed._utils.compilation import precision
from compfed._utils.validation import check_callable
from compfed.algorithms.base import Algorithm, PyTree
from compfed.algorithms.round import array_bytes, message_shapes
from compfed.data import Sites
from compfed.errors import Divergence
from compfed.federation.accounting import Communication, payload, query_cost
from compfed.federation.codec import digest
from compfed.federation.server.program import Program, Spent, run_program
from compfed.federation.server.rounds import NotFinite, Order, Segment, ServerLoop, evaluation_of, evaluation_request
from compfed.federation.site.in_process import InProcess
from compfed.federation.site.site import Site, close
from compfed.federation.spec import FederatedProblem, ObjectiveSpec, RunSpec
from compfed.monitor import Monitor, Progress, RunOptions, first_state
from compfed.problem.problem import Problem
from compfed.regularisers import Zero
from compfed.sampling import Scheme
from compfed.simulation.evaluation import evaluate_models
from compfed.simulation.grid import run_together
from compfed.simulation.options import check_options
from compfed.simulation.simulate import rows_of, run_compiled
from compfed.trace import Trace

# --- message by message ---


def run_plain(
    problem: Problem, algorithm: Algorithm, rounds: int, *, batch_size: int | None = None, participants: int | None = None,
    sampling: Scheme | None = None, record_every: int = 1, seed: int = 0, x0: ArrayLike | None = None,
    x_star: ArrayLike | None = None, resume: Trace | None = None, progress: Progress | None = None,
) -> Trace:  # fmt: skip
    """Run rounds message by message, over sites in this process.

    The reference for `simulate`: the same models up to rounding. `provenance["carried"]` has the bytes of the messages.

    Parameters
    ----------
    problem : Problem
    algorithm : Algorithm
    rounds : int
    batch_size, participants, sampling, record_every, seed, x0, x_star, resume, progress
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
        seed=seed, x0=x0, x_star=x_star, resume=resume, sampling=sampling,
    )  # fmt: skip
    check_callable(progress, "progress")
    loop = _MessageLoop(run)
    with precision(problem.dtype):
        _, cost = run_program(loop.federation, loop.rounds(progress))
        loop.monitor.provenance["carried"] = loop.carried(cost)
        clients = jax.tree.map(lambda *leaves: np.stack(leaves), *loop.client_states())
        return loop.monitor.trace(loop.server.state, clients)


class _MessageLoop:
    """The server's loop of a run, with access to the states of its sites, which only sites in this process allow."""

    def __init__(self, run: RunOptions):
        problem = rows_of(run)
        self.run, self.monitor = run, Monitor(run, "plain", partial(evaluate_models, problem))
        self.federation = InProcess(problem.sites)
        self.everyone = run.participants == problem.n
        spec = FederatedProblem.of(problem)
        run_spec = RunSpec(
            0, run.algorithm, spec.regulariser, spec.objective, run.x0, run.seed, run.batch_size, int(spec.sizes.max()),
            self.everyone,
        )  # fmt: skip
        self.server = ServerLoop(run_spec, spec, run.participants, sampling=run.sampling)
        if run.resume is not None and run.resume.state is not None:
            self.server.restore(run.resume.state)
            with precision(problem.dtype):
                _, clients = first_state(run)
                for i, site in enumerate(self.federation.sites):
                    site.remember(run_spec, jax.tree.map(lambda leaf, i=i: leaf[i], clients))

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
        spec = payload(self.server.run_spec, set()) if costs else 0
        first = spec * self.run.participants / self.run.problem.n
        return {"bytes_down": sum(down for _, down, _ in costs) - first, "bytes_up": sum(up for _, _, up in costs)}

    def client_states(self) -> list[PyTree]:
        """The state of each site once it has received the result of its round."""
        a, run_spec = self.run.algorithm, self.server.run_spec
        states = [site.recall(run_spec) for site in self.federation.sites]
        if not (self.everyone and a.finishes_rounds()):
            return [state.c for state in states]
        g = run_spec.regulariser
        result = a.exchanges[0].broadcast(g, self.server.state)
        return [close(a, g, result, state.c) if state.pending else state.c for state in states]

    def _drift(self, r: int) -> float:
        """Weighted mean distance of the participants' local models from their mean."""
        who = range(self.run.problem.n) if self.everyone else self.server.chosen(r)
        p = self.run.problem.weights[list(who)]
        z = np.array([self.federation.sites[i].recall(self.server.run_spec).local for i in who])
        weight = p / p.sum()
        return float(weight @ np.linalg.norm(z - weight @ z, axis=1))

    def _record(self, r: int, drift: float, seconds: float) -> None:
        a, state = self.run.algorithm, self.server.state
        columns = {"drift": np.array([drift])}
        c = [a.correction(state, client) for client in self.client_states()]
        if c[0] is not None:
            columns["correction"] = np.array([np.linalg.norm(self.run.problem.weights @ np.array(c))])
        self.monitor.record(np.array([r]), self.server.model()[None], columns, seconds)
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

    def runner(self, order: Order) -> Compiled:
        return Compiled(self, order)

    def alone(self, site: int) -> Simulated:
        """A federation of one of the sites."""
        one = Simulated([self.sites[site]])
        one.cached = self.cached  # records that the site has already received
        return one

    def problem(self, spec: FederatedProblem) -> Problem:
        """The rows of all sites as an objective scales and encodes them, laid out for the device."""
        objective = spec.objective
        plain = objective.scaling is None and objective.subset is None and objective.classes is None
        if self._given is not None and plain:
            return self._given.replace(regulariser=spec.regulariser)
        key = digest(objective)
        if key not in self._laid_out:
            self._laid_out = {key: self._lay_out(objective, spec.weights)}  # one copy of the rows at a time
        return self._laid_out[key].replace(regulariser=spec.regulariser)

    def _lay_out(self, objective: ObjectiveSpec, weights: np.ndarray) -> Problem:
        datasets = [site.dense(objective) for site in self.sites]
        sites = Sites(
            features=tuple(_own_copy(data.A, site) for data, site in zip(datasets, self.sites, strict=True)),
            labels=tuple(data.y for data in datasets),
            names=self.names,
            ids=tuple(site.number for site in self.sites),
            row_weights=tuple(data.q for data in datasets),
        )
        return Problem(objective.loss, Zero(), sites, weights, objective.dtype)


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
        """The cost of one model over a network; the last evaluation is a query, and counted there."""
        done = int(trace["round"][-1]) - before
        evaluations = len(trace) - rows - 1
        # the evaluation that finds a model converged travels with the message that opens one more round
        opened = done + int(done < rounds and "diverged" not in trace.provenance)
        shapes = message_shapes(run_spec.algorithm, run_spec.regulariser, run_spec.x0.size, run_spec.x0.dtype)
        down, up = array_bytes(s.broadcast for s in shapes), array_bytes(s.update for s in shapes)
        spec = payload(run_spec, self.federation.cached)
        model = run_spec.x0.nbytes
        updates = query_cost("LocalUpdate", spec + opened * down, opened * up, opened * len(shapes))
        sent, received = evaluations * model, evaluations * (model + 16)
        messages = opened * len(shapes) - (opened - done)
        evaluated = query_cost("Evaluate", sent, received, evaluations, counts=False)
        return Communication(messages).beside(updates.beside(evaluated))


def _own_copy(A: np.ndarray, site: Site) -> np.ndarray:
    """The rows, marked as made here unless they are the site's own array."""
    same = isinstance(site.features, np.ndarray) and np.may_share_memory(A, site.features)
    return A if same else set_readonly(A)
