"""`compare_methods` and `compfed compare`: one problem, many methods, one budget, and fair tuning.

Every local-update method gets the same number of candidate step sizes, multiples of its own default one. Each candidate has
the whole budget, and all candidates of a method run as one program. The candidate that ends closest to x* is kept. The
second-order solvers have nothing to tune: they run once, through `solve_federated`, and share the axes.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TextIO, TypedDict

import numpy as np
import numpy.typing as npt

import compfed.algorithms as alg
from compfed._utils.files import check_writable, write_text
from compfed._utils.text import NamedSteps, text_table, versions
from compfed._utils.validation import check_int
from compfed.algorithms import default_steps
from compfed.algorithms.costs import cost_of_a_round
from compfed.errors import InputError
from compfed.federation.accounting import Communication
from compfed.federation.enrolment import Enrolment
from compfed.federation.queries import Evaluate
from compfed.federation.server.program import Federation, Request, Summed
from compfed.federation.site.in_process import InProcess
from compfed.federation.spec import FederatedProblem
from compfed.problem.problem import Problem
from compfed.regularisers import Zero
from compfed.report.figures import Curve, Panel, draw
from compfed.report.page import write_run_report
from compfed.report.run_result import write_result
from compfed.report.style import check_matplotlib
from compfed.sampling import Scheme
from compfed.schema import Schema
from compfed.simulation import grid
from compfed.simulation.options import check_sampling
from compfed.solve import solve_federated, solve_pooled
from compfed.solvers import auto
from compfed.solvers.auto import find_method
from compfed.solvers.base import Method, SecondOrder
from compfed.solvers.second_order import SOLVERS
from compfed.trace import Trace

if TYPE_CHECKING:
    from typing_extensions import TypeIs

ACCURACIES = (1e-1, 1e-2, 1e-4, 1e-6, 1e-8)
MOST_CANDIDATES = 99
COSTS = {"rounds": "round", "bytes": "bytes_up", "gradients": "gradients"}  # by unit, the column of a trace


# --- the methods ---


def is_solver(method: Method) -> TypeIs[type[SecondOrder]]:
    """Is this one of the second-order solvers?"""
    return method in SOLVERS.values()


def methods_for(problem: Problem, methods: Sequence[str | Method] | None = None) -> list[Method]:
    """The methods asked for, or all known ones that the problem allows.

    Methods for smooth problems need a problem without regulariser, solvers a convex one.
    """
    if methods is None:
        smooth = isinstance(problem.regulariser, Zero)
        found: list[Method] = [cls for cls in alg.known().values() if smooth or cls.composite is not False]
        allowed = auto.rounds_and_bytes(FederatedProblem.of(problem), alg.FISTA)
        return found + [solver for solver in SOLVERS.values() if solver in allowed]
    if isinstance(methods, (str, type)):
        raise InputError(f"methods={methods!r}: give a list of names or classes, such as ['FedDA', MyMethod].")
    found = [find_method(method) for method in methods]
    names = Counter(method.__name__ for method in found)
    if not found or len(names) < len(found):
        what = f"{names.most_common(1)[0][0]} is asked for twice" if found else "the list is empty"
        raise InputError(f"methods: {what}; results are kept by the names of the classes.")
    return found


@dataclass(frozen=True)
class Budget:
    """The cost per client that every candidate may use: rounds, bytes sent, or gradient evaluations."""

    unit: str
    amount: float

    def rounds(self, method: alg.Algorithm | type[SecondOrder], problem: Problem, participants: int) -> int:
        """How many rounds of a method the budget buys; of a solver at most, as it may send more than a gradient."""
        if isinstance(method, type):
            name, costs = method.__name__, {"rounds": 1.0, "gradients": 1.0, "bytes": 8.0 * problem.d}
        else:
            name, share = type(method).__name__, participants / problem.n
            cost = cost_of_a_round(method, problem.d, problem.dtype, participants == problem.n)
            costs = {"rounds": 1.0, "gradients": cost.gradients * share, "bytes": cost.bytes_up * share}
        self._check_pays(costs[self.unit], name)
        rounds = int(self.amount // costs[self.unit])
        if rounds >= 2**31:
            raise InputError(f"{self.unit}={self.amount:g} buys {rounds:.3g} rounds, more than can be counted.")
        return rounds

    def cut(self, trace: Trace) -> Trace:
        """The rows of a trace that the budget pays for."""
        spent = trace[COSTS[self.unit]]
        self._check_pays(spent[0], trace.provenance["algorithm"]["name"])
        return replace(trace, columns={name: column[spent <= self.amount] for name, column in trace.columns.items()})

    def _check_pays(self, each: float, name: str) -> None:
        if self.amount < each:
            budget = f"{self.unit}={self.amount:g}"
            raise InputError(f"{budget} does not buy one round of {name}, which costs {each:g}; give more.")


def _budget(**given: float | None) -> Budget:
    """The one budget that is given, or 300 rounds."""
    chosen = {unit: amount for unit, amount in given.items() if amount is not None} or {"rounds": 300.0}
    if len(chosen) > 1:
        raise InputError(f"give one budget: {' or '.join(chosen)}.")
    unit, amount = next(iter(chosen.items()))
    if not 1 <= amount < np.inf:
        raise InputError(f"{unit}={amount:g} must be at least 1, and finite.")
    return Budget(unit, float(amount))


# --- runs ---


def affordable_rounds(problem: Problem, method: Method, budget: Budget, tau: int, options: dict[str, Any]) -> int:
    """The rounds that the budget buys. Refuses a method that cannot run, before anything has run."""
    k = problem.n if options["participants"] is None else options["participants"]
    if not is_solver(method):
        check_sampling(options["sampling"], method, problem.weights, k)
        return budget.rounds(default_steps(method, problem, tau).bind(problem, k), problem, k)
    if options["batch_size"] is not None or k != problem.n:
        raise InputError(
            f"{method.__name__} needs every client and full gradients in every round. Leave batch_size and participants out, "
            "or the solver."
        )
    return budget.rounds(method, problem, k)


def tuned(
    problem: Problem,
    method: type[alg.Algorithm],
    budget: Budget,
    rounds: int,
    tau: int,
    candidates: int,
    **options: Any,
) -> Trace:
    """The best of `candidates` step sizes: factors 2^-k .. 2^k around the default one, each with the whole budget."""
    scales = 2.0 ** (np.arange(candidates) - candidates // 2)
    algorithms = [default_steps(method, problem, tau, scale) for scale in scales]
    traces = grid(problem, algorithms, rounds, record_every=max(1, rounds // 1000), **options)
    final = [np.inf if "diverged" in t.provenance else _score(t) for t in traces]
    best = int(np.argmin(final))
    tuning = {
        **vars(budget),  # unit and amount
        "scales": scales.tolist(),
        "final_optimality": [float(v) if np.isfinite(v) else None for v in final],
        "chosen_scale": float(scales[best]),
        "at_edge": best in (0, len(scales) - 1),
    }
    return replace(traces[best], provenance={**traces[best].provenance, "tuning": tuning})


def _score(trace: Trace) -> float:
    """Optimality at the end of the budget; below 1e-10 the candidate that is there first wins."""
    first = trace.first("optimality", 1e-10)
    return float(trace["optimality"][-1]) if first is None else 1e-10 * first / max(int(trace["round"][-1]), 1)


@dataclass(eq=False)
class _Watched:
    """A federation with a record of its messages: the models that they asked about, and what they cost."""

    inner: Federation
    models: list[np.ndarray] = field(default_factory=list)
    costs: list[Communication] = field(default_factory=list)

    @property
    def names(self) -> tuple[str, ...]:
        return self.inner.names

    @property
    def schema(self) -> Schema | None:
        return self.inner.schema

    @property
    def enrolments(self) -> tuple[Enrolment, ...]:
        return self.inner.enrolments

    @property
    def problems(self) -> Sequence[Mapping[str, Any]]:
        return self.inner.problems

    def exchange(self, requests: Sequence[Request]) -> tuple[Sequence[Summed], Communication]:
        sums, cost = self.inner.exchange(requests)
        self.costs.append(cost)
        self.models += [q.x[0] for request in requests for q in request.queries if isinstance(q, Evaluate)]
        return sums, cost


def solver_trace(problem: Problem, solver: type[SecondOrder], x_star: npt.ArrayLike, rounds: int) -> Trace:
    """The run of a second-order solver with at most `rounds` messages, one row per message: the best model so far."""
    sites, target = _Watched(InProcess(problem.sites)), np.asarray(x_star)
    minimum = solve_federated(problem, solver.__name__, max_rounds=max(1, rounds - 1), federation=sites)
    x, F, distances = sites.models[0], np.inf, []
    for trial in sites.models:
        value = problem.objective(trial)
        if value <= F + 8 * np.finfo(float).eps * abs(value):
            x, F = trial, min(F, value)
        distances.append(np.linalg.norm(x - target))
    messages = np.arange(1, len(sites.models) + 1)
    columns = {
        "round": messages,
        "optimality": np.array(distances) / (np.linalg.norm(target) or 1.0),
        "bytes_up": np.cumsum([cost.bytes_up for cost in sites.costs]),
        "bytes_down": np.cumsum([cost.bytes_down for cost in sites.costs]),
        "gradients": messages,
    }
    return Trace(columns, x, minimum.trace.provenance)


# --- the comparison ---


class MethodResult(TypedDict):
    """The accuracy and the costs of one method, as plain data."""

    to_accuracy: dict[str, dict[str, float | None]]  # accuracy -> unit -> cost per client; None if never reached
    final_optimality: float
    rounds: int
    algorithm: dict[str, object]
    tuning: NotRequired[dict[str, object] | None]  # the candidates and the choice; None for a solver


@dataclass(frozen=True)
class MethodComparison:
    """Costs of several methods on one problem. `str` gives the table in the unit of the budget.

    Attributes
    ----------
    problem : dict
        The problem in plain values.
    unit : str
        Unit of the budget: "rounds", "bytes" or "gradients".
    certificate : float
        Norm of the gradient mapping at x*.
    results : dict of str to dict
        By method: `to_accuracy` (cost per client to each accuracy), `final_optimality`, `rounds`, `algorithm`, `tuning`.
    traces : dict of str to Trace
        By method: the run with the chosen step.
    """

    problem: dict[str, object]
    unit: str
    certificate: float
    results: dict[str, MethodResult]
    traces: dict[str, Trace]

    def __str__(self) -> str:
        return self.table(self.unit)

    def table(self, unit: str) -> str:
        """Cost per client to each accuracy, in rounds, bytes or gradients, the methods that get furthest first."""
        rows = []
        for name, result in self.results.items():
            paid = [costs[unit] for costs in result["to_accuracy"].values()]
            tuning, scale = result.get("tuning"), "-"
            if tuning:
                scale = f"{tuning['chosen_scale']:g}" + (" (edge of the grid)" if tuning["at_edge"] else "")
            cells = ["-" if cost is None else f"{cost:g}" for cost in paid]
            furthest = [np.inf if cost is None else cost for cost in reversed(paid)]
            rows.append((furthest, [name, *cells, f"{result['final_optimality']:.1e}", scale]))
        levels = [f"to {level}" for level in next(iter(self.results.values()))["to_accuracy"]]
        return text_table(
            ["method", *levels, "final", "step scale"], [row for _, row in sorted(rows, key=itemgetter(0))]
        )

    def to_result(self) -> dict[str, Any]:
        """The comparison as plain data: what a run folder keeps, and `cf.write_report` reads."""
        lead = f"{len(self.results)} methods on one problem, each with the same budget of {self.unit} and its own best step size."
        return methods_result({"": self.results}, {"": self.traces}, self.problem, "Methods compared", lead)

    def save(self, out: Path) -> None:
        """Write traces/, comparison.json, the curves, result.json and report.html below `out`."""
        for name, trace in self.traces.items():
            trace.save(out / "traces" / name)
        x_star = {"gradient_mapping": self.certificate}
        content = {"problem": self.problem, "x_star": x_star, "methods": self.results}
        write_text(out / "comparison.json", json.dumps(content, indent=2) + "\n")
        lines = [Curve(name, [trace], i, dots=len(trace) < 15) for i, (name, trace) in enumerate(self.traces.items())]
        last = len(COSTS) - 1  # its legend serves all
        draw(
            [
                Panel(f"Against {unit}", lines, x=column, legend="upper right" if k == last else None)
                for k, (unit, column) in enumerate(COSTS.items())
            ],
            out / "comparison",
        )
        write_result(out, self.to_result())
        write_run_report(out)


def methods_result(
    results: Mapping[str, Mapping[str, Any]],
    traces: Mapping[str, Mapping[str, Trace]],
    problem: object,
    title: str,
    lead: str,
) -> dict[str, Any]:
    """Results and traces by problem and method, as plain data for a run folder."""
    runs = {
        group: {name: {c: v for c, v in trace.columns.items() if v.ndim == 1} for name, trace in each.items()}
        for group, each in traces.items()
    }
    about = {"kind": "methods", "created": time.strftime("%Y-%m-%d %H:%M:%S %z"), "versions": versions()}
    return about | {"title": title, "lead": lead, "problem": problem, "results": results, "runs": runs}


def compare_methods(
    problem: Problem,
    methods: Sequence[str | Method] | None = None,
    *,
    rounds: float | None = None,
    bytes: float | None = None,
    gradients: float | None = None,
    tau: int = 5,
    candidates: int = 7,
    batch_size: int | None = None,
    participants: int | None = None,
    sampling: Scheme | None = None,
    seed: int = 0,
    accuracies: Sequence[float] = ACCURACIES,
    out: str | Path | None = None,
    stream: TextIO | None = None,
) -> MethodComparison:
    """Tune and run every method with the same budget, and measure ||x - x*|| / ||x*|| against its cost.

    Parameters
    ----------
    problem : Problem
    methods : sequence of str or class, optional
        Local-update methods and the solvers "ProximalNewton" and "ProximalBFGS", by name or class. All that the problem
        allows, unless given.
    rounds, bytes, gradients : float, optional
        The budget of every candidate, per client: communication rounds, bytes sent, or gradient evaluations. Give one of
        them; 300 rounds unless given. A message of a solver is a round and counts as one gradient evaluation.
    tau : int
        Local steps per round.
    candidates : int
        Step sizes tried per method: powers of two around its default one. Solvers have none to try.
    batch_size : int, optional
        Mini-batch size; full gradients unless given.
    participants : int, optional
        Clients per round; all unless given.
    sampling : str, optional
        How a sample of clients stands for all (see `simulate`); each method's own scheme unless given.
    seed : int
        Seed of mini-batches and samples.
    accuracies : sequence of float
        Levels of ||x - x*|| / ||x*|| whose costs are reported.
    out : path, optional
        A folder for traces, JSON and curves. Nothing is written without it.
    stream : text file, optional
        Where progress is shown; standard error unless given.

    Returns
    -------
    MethodComparison

    Raises
    ------
    InputError
        If a method is unknown, does not suit the problem, or costs more than the budget.

    Examples
    --------
    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)
    >>> compared = cf.compare_methods(problem, ["DecoupledProx", "FedDA", "ProximalNewton"], rounds=60, candidates=3)
    >>> compared.results["DecoupledProx"]["final_optimality"] < compared.results["FedDA"]["final_optimality"]
    True
    >>> compared.results["ProximalNewton"]["to_accuracy"]["1e-08"]["rounds"] < 10
    True
    """
    budget = _budget(rounds=rounds, bytes=bytes, gradients=gradients)
    candidates = check_int(candidates, "candidates", 1)
    if candidates > MOST_CANDIDATES:
        raise InputError(f"candidates={candidates} must be at most {MOST_CANDIDATES}: they are powers of two.")
    if out is not None:
        check_matplotlib()
        check_writable(Path(out), f"out={str(out)!r}")
    options = {"batch_size": batch_size, "participants": participants, "sampling": sampling, "seed": seed}
    chosen = methods_for(problem, methods)
    if methods is None and (batch_size is not None or participants not in (None, problem.n)):
        chosen = [method for method in chosen if not is_solver(method)]
    rounds_of = {method: affordable_rounds(problem, method, budget, tau, options) for method in chosen}
    x_star, steps = solve_pooled(problem), NamedSteps(len(chosen), stream)
    traces: dict[str, Trace] = {}
    results: dict[str, MethodResult] = {}
    for method, most in rounds_of.items():
        options |= {"x_star": x_star, "progress": steps.start(method.__name__)}
        if is_solver(method):
            trace = budget.cut(solver_trace(problem, method, x_star, most))
        else:
            trace = tuned(problem, method, budget, most, tau, candidates, **options)
        traces[method.__name__] = trace
        results[method.__name__] = {**costs_of(trace, accuracies), "tuning": trace.provenance.get("tuning")}
    steps.finish()
    compared = MethodComparison(problem.describe(), budget.unit, x_star.gradient_mapping, results, traces)
    if out is not None:
        compared.save(Path(out))
    return compared


def costs_of(trace: Trace, accuracies: Sequence[float], costs: Mapping[str, str] = COSTS) -> MethodResult:
    """The cost per client (`costs`: unit, column) at which a run first reaches each accuracy, and where it ends."""
    to_accuracy: dict[str, dict[str, float | None]] = {}
    for level in accuracies:
        row = next(iter(np.flatnonzero(trace["optimality"] <= level)), None)
        paid = {unit: None if row is None else float(trace[column][row]) for unit, column in costs.items()}
        to_accuracy[f"{level:g}"] = paid
    return {
        "to_accuracy": to_accuracy,
        "final_optimality": float(trace["optimality"][-1]),
        "rounds": int(trace["round"][-1]),
        "algorithm": trace.provenance["algorithm"],
    }
