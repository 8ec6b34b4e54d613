"""A federation in this process whose rounds are one compiled program; what `fit(X, y, sites=...)` runs on.

Questions are answered site by site, as in `InProcess`. Rounds are not sent as messages: the program of `simulator` does
them for all sites at once, and says what a network would have carried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
import numpy as np

from compfed._utils.arrays import set_readonly
from compfed.algorithms.contract import message_shapes
from compfed.data import Sites
from compfed.errors import Divergence
from compfed.federation.accounting import Communication, query_cost
from compfed.federation.codec import digest, payload
from compfed.federation.server.program import Program, Spent
from compfed.federation.server.rounds import Order, Segment, evaluation_of, evaluation_request
from compfed.federation.site.in_process import InProcess
from compfed.federation.site.site import Site
from compfed.federation.spec import FederatedProblem, ObjectiveSpec
from compfed.monitor import Run
from compfed.problem import Problem
from compfed.regularisers import Zero
from compfed.simulation.grid import side_by_side
from compfed.simulation.simulate import simulated
from compfed.simulation.xla import Stop
from compfed.trace import Trace


class Simulated(InProcess):
    """Sites in this process, with rounds compiled into one program."""

    def __init__(self, sites: Sites | Sequence[Site], problem: Problem | None = None):
        super().__init__(sites)
        self._laid_out: dict[str, Problem] = {}
        self._given = problem  # its rows are laid out already

    @classmethod
    def of(cls, problem: Problem) -> Simulated:
        """The federation of a problem that is in this process."""
        return cls(problem.sites, problem)

    def runner(self, order: Order) -> Compiled:
        return Compiled(self, order)

    def alone(self, site: int) -> Simulated:
        """One of the sites, as if there were no other."""
        one = Simulated([self.sites[site]])
        one.cached = self.cached  # what it was told as one of many it knows
        return one

    def problem(self, spec: FederatedProblem) -> Problem:
        """The rows of all sites as the task's view has them, laid out for the device."""
        objective = spec.objective
        if (
            self._given is not None
            and objective.scaling is None
            and objective.subset is None
            and objective.classes is None
        ):
            return self._given.replace(regulariser=spec.regulariser)
        key = digest(objective)
        if key not in self._laid_out:
            self._laid_out = {key: self._lay_out(objective, spec.weights)}  # one copy of the rows at a time
        return self._laid_out[key].replace(regulariser=spec.regulariser)

    def _lay_out(self, objective: ObjectiveSpec, weights: np.ndarray) -> Problem:
        seen = [site.dense(objective) for site in self.sites]
        sites = Sites(
            features=tuple(_kept(look.A, site) for look, site in zip(seen, self.sites, strict=True)),
            labels=tuple(look.y for look in seen),
            names=self.names,
            ids=tuple(site.number for site in self.sites),
            row_weights=tuple(look.q for look in seen),
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
        for run_spec, trace, r, seen in zip(self.run_specs, traces, before, rows, strict=True):
            cost = cost.beside(self._cost(run_spec, trace, rounds, r, seen))
        yield Spent(cost)
        last = int(traces[0]["round"][-1]) == before[0] + rounds
        (sums,) = yield [evaluation_request(self.order.specs[0], np.array([t.x for t in traces]), last)]
        return [
            Segment(trace, None if "diverged" in trace.provenance else evaluation_of(spec, sums, trace.x, k))
            for k, (spec, trace) in enumerate(zip(self.order.specs, traces, strict=True))
        ]

    def _run(self, rounds: int) -> Sequence[Trace]:
        order = self.order
        stop = Stop(order.tol, order.step)
        problems = [self.federation.problem(spec) for spec in order.specs]
        runs = [
            _on(order.run(spec, rounds, trace), problem)
            for spec, problem, trace in zip(order.specs, problems, self.traces, strict=True)
        ]
        if len(runs) > 1:
            return side_by_side(runs, [{}] * len(runs), stop=stop)
        try:
            return [simulated(runs[0], stop, progress=order.progress)]
        except Divergence as divergence:
            return [divergence.trace]

    def _cost(self, run_spec, trace: Trace, rounds: int, before: int, rows: int) -> Communication:
        """What a network would have carried for one model; the last look is asked by message and counted there."""
        done = int(trace["round"][-1]) - before
        looks = len(trace) - rows - 1
        # the look that finds a model arrived travels with the message that opens one more round
        opened = done + int(done < rounds and "diverged" not in trace.provenance)
        shapes = message_shapes(run_spec.algorithm, run_spec.regulariser, run_spec.x0.size, run_spec.x0.dtype)
        down = sum(leaf.size * leaf.dtype.itemsize for s in shapes for leaf in jax.tree.leaves(s.broadcast))
        up = sum(leaf.size * leaf.dtype.itemsize for s in shapes for leaf in jax.tree.leaves(s.update))
        cached = payload(run_spec, self.federation.cached)
        model = run_spec.x0.nbytes
        cost = query_cost("LocalUpdate", cached + opened * down, opened * up, opened * len(shapes))
        cost = cost.beside(query_cost("Evaluate", looks * model, looks * (model + 16), looks, counts=False))
        messages = opened * len(shapes) - (opened - done)
        return Communication(messages).beside(cost)


def _kept(A: np.ndarray, site: Site) -> np.ndarray:
    """Rows in the coordinates of a view, which are an array of their own unless it is the plain one."""
    same = isinstance(site.features, np.ndarray) and np.may_share_memory(A, site.features)
    return A if same else set_readonly(A)


def _on(run: Run, problem: Problem) -> Run:
    """The run on rows that are laid out."""
    return replace(run, problem=problem)
