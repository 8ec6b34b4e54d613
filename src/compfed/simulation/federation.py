"""A federation in this process whose rounds are one compiled program; `fit(X, y, sites=...)` runs on it.

Queries are answered site by site, as in `InProcess`. Rounds are not sent as messages: the program of `simulate` runs them for
all sites at once, and the bytes that a network would have carried follow from the shapes of the messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from compfed._utils.arrays import set_readonly
from compfed.algorithms.round import array_bytes, message_shapes
from compfed.data import Sites
from compfed.errors import Divergence
from compfed.federation.accounting import Communication, query_cost
from compfed.federation.codec import digest, payload
from compfed.federation.server.program import Program, Spent
from compfed.federation.server.rounds import Order, Segment, evaluation_of, evaluation_request
from compfed.federation.site.in_process import InProcess
from compfed.federation.site.site import Site
from compfed.federation.spec import FederatedProblem, ObjectiveSpec, RunSpec
from compfed.problem import Problem
from compfed.regularisers import Zero
from compfed.simulation.grid import run_together
from compfed.simulation.simulate import run_compiled
from compfed.trace import Trace


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
        cost = query_cost("LocalUpdate", spec + opened * down, opened * up, opened * len(shapes))
        cost = cost.beside(
            query_cost("Evaluate", evaluations * model, evaluations * (model + 16), evaluations, counts=False)
        )
        messages = opened * len(shapes) - (opened - done)
        return Communication(messages).beside(cost)


def _own_copy(A: np.ndarray, site: Site) -> np.ndarray:
    """The rows, marked as made here unless they are the site's own array."""
    same = isinstance(site.features, np.ndarray) and np.may_share_memory(A, site.features)
    return A if same else set_readonly(A)
