"""`compare_methods` and `compfed compare`: one problem, many methods, one budget, fair tuning, and seeds.

Every method may try the same number of settings (`tuning.py`), each with the whole budget, on tuning seeds. The best one runs
anew on the reporting seeds, and that is what is reported. An instance is run with the steps it has. The second-order solvers
run once, through `solve_federated`, and share the axes.
"""

from __future__ import annotations

import inspect
import json
import re
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypedDict

import numpy as np
import numpy.typing as npt

import compfed.algorithms as alg
from compfed._utils.files import check_writable, write_text
from compfed._utils.text import NamedSteps, join_names, latex_table, markdown_table, text_table, versions
from compfed._utils.validation import check_int, is_int
from compfed.algorithms.costs import CumulativeCost, cost_of_a_round
from compfed.errors import InputError, MissingExtra
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
from compfed.simulation.clock import check_clock
from compfed.simulation.options import check_sampling
from compfed.solve import PooledSolution, check_reference, solve_federated, solve_pooled, why_stopped
from compfed.solvers import auto
from compfed.solvers.base import FederatedSolution, Method, SecondOrder
from compfed.solvers.second_order import SOLVERS
from compfed.studies.tuning import BATCH, Contender, Given, Tries, Values, contenders, run_settings, search
from compfed.trace import COLUMNS, Trace

if TYPE_CHECKING:
    import pandas

ACCURACIES = (1e-1, 1e-2, 1e-4, 1e-6, 1e-8)
MOST_CANDIDATES = 99
# By unit, the column of a trace: the units of a budget, and further ones in which costs are reported.
COSTS = {"rounds": "round", "bytes": "bytes_up", "gradients": "gradients", "rows": "rows"}
MORE = {"exchanges": "exchanges", "seconds of the clock": "clock"}


# --- the methods ---


def methods_for(problem: Problem) -> list[Method]:
    """All known methods that the problem allows.

    Methods for smooth problems need a problem without regulariser, solvers a convex one.
    """
    smooth = isinstance(problem.regulariser, Zero)
    found: list[Method] = [cls for cls in alg.known().values() if smooth or cls.composite is not False]
    allowed = auto.rounds_and_bytes(FederatedProblem.of(problem), alg.FISTA)
    return found + [solver for solver in SOLVERS.values() if solver in allowed]


@dataclass(frozen=True)
class Budget:
    """The cost per client that every candidate may use: rounds, bytes sent, gradient evaluations, or rows read."""

    unit: str
    amount: float

    def rounds(
        self,
        method: alg.Algorithm | type[SecondOrder],
        problem: Problem,
        participants: int,
        batch_size: int | None = None,
    ) -> int:
        """How many rounds of a method the budget buys, on average over samples; of a solver at most, as it may send more."""
        if isinstance(method, type):
            mean_rows = float(problem.sizes.mean())
            name, costs = (
                method.__name__,
                {"rounds": 1.0, "gradients": 1.0, "bytes": 8.0 * problem.d, "rows": mean_rows},
            )
        else:
            name, everyone = type(method).__name__, participants == problem.n
            bound = method.bind(problem, participants)
            cost = cost_of_a_round(bound, problem.d, problem.dtype, everyone, problem.regulariser)
            after = CumulativeCost(cost, problem.sizes, batch_size, participants, 0).after(np.array([1]))
            costs = {unit: float(after[column][0]) for unit, column in COSTS.items() if column in after} | {
                "rounds": 1.0
            }
        if not np.isfinite(costs.get(self.unit, np.nan)):
            raise InputError(
                f"{self.unit}={self.amount:g} is no budget for {name}: how many it takes depends on the data. Give rounds= or "
                "bytes=; the traces count the rest."
            )
        self._check_pays(costs[self.unit], name)
        rounds = int(self.amount // costs[self.unit]) if costs[self.unit] else 2**31
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


# --- what methods are ranked by ---


@dataclass(frozen=True)
class Criterion:
    """The column of a trace that methods are ranked by, and its levels whose costs are reported.

    A level is one of (column - low) / scale, or of the column itself where larger is better.
    """

    column: str
    words: str
    levels: tuple[float, ...]
    rises: bool = False
    low: float = 0.0
    scale: float = 1.0

    def score(self, trace: Trace) -> float:
        """The end of a run, the less the better: inf if it diverged. Of runs to within 1e-10 of x* the first counts."""
        last = float(trace[self.column][-1])
        if "diverged" in trace.provenance or not np.isfinite(last):
            return np.inf
        first = trace.first(self.column, 1e-10) if self.column == "optimality" else None
        if first is not None:
            return 1e-10 * first / max(int(trace["round"][-1]), 1)
        return -last if self.rises else last

    def reaches(self, trace: Trace, level: float) -> np.ndarray:
        """In which rows of a trace a level is reached."""
        values = trace[self.column]
        return values >= level if self.rises else (values - self.low) / self.scale <= level

    def fitted(self, traces: Sequence[Trace], given: Sequence[float] | None, lowest: float | None) -> Criterion:
        """The criterion with what is known once the runs are done: scale, lowest objective, and levels of a metric."""
        starts = [trace[self.column][0] for trace in traces]
        ends = [trace[self.column][-1] for trace in traces if "diverged" not in trace.provenance]
        levels = tuple(float(v) for v in given) if given is not None else self.levels
        if self.column == "objective":
            low = min([float(np.nanmin(trace["objective"])) for trace in traces]) if lowest is None else lowest
            return replace(self, low=low, scale=max(max(starts) - low, 1e-300), levels=levels)
        if self.column == "gradient_mapping":
            return replace(self, scale=float(max(starts)) or 1.0, levels=levels)
        if not levels:
            best = (max if self.rises else min)(ends, default=0.0)
            shares = (0.9, 0.95, 0.99) if (best > 0) == self.rises else (1 / 0.9, 1 / 0.95, 1 / 0.99)
            levels = tuple(float(f"{share * best:.3g}") for share in shares)
        return replace(self, levels=levels)


def criterion_of(
    problem: Problem, asked: str, x_star: Any, larger_is_better: bool | None
) -> tuple[Criterion, PooledSolution | FederatedSolution | np.ndarray | None, list[str]]:
    """The criterion, the certified x* where there is one, and what a reader should know about the choice."""
    if not isinstance(asked, str):
        raise InputError(f"criterion={asked!r} must be 'auto' or the name of a column, such as 'objective'.")
    star, notes = x_star, []
    if x_star is not None:
        check_reference(problem, x_star)
    elif problem.convex and asked in ("auto", "optimality"):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "solve_pooled stopped")  # said below, with what follows from it
            found = solve_pooled(problem)
        star = found if found.converged else None
        if star is None and asked == "optimality":
            raise InputError(f"criterion='optimality' needs a certified x*. {_refused(problem, found)}, or {_RANK_BY}.")
        if star is None:
            notes.append(f"Ranked by the objective, not by the distance to x*. {_refused(problem, found)}.")
            warnings.warn(f"compare_methods: {notes[-1]}", stacklevel=3)
    elif asked == "auto":
        known = "not convex" if problem.convex is False else "not known to be convex"
        notes.append(f"Ranked by the objective: the problem is {known}, and has no certified x*.")
    if asked == "auto":
        asked = "objective" if star is None else "optimality"
    if asked == "optimality" and star is None:
        raise InputError(
            f"criterion='optimality' needs a certified x*, and the problem is not known to be convex. Give x_star=, or {_RANK_BY}."
        )
    words, levels = _CRITERIA.get(asked, (asked, ()))
    if asked in COLUMNS and asked not in _CRITERIA:
        raise InputError(f"criterion={asked!r} is no measure of a model; take one of {join_names(list(_CRITERIA))}.")
    rises = asked not in _CRITERIA if larger_is_better is None else bool(larger_is_better)
    return Criterion(asked, words, levels, rises), star, notes


_RANK_BY = "rank by criterion='objective' or 'gradient_mapping'"


def _refused(problem: Problem, found: PooledSolution) -> str:
    """Why the end of `solve_pooled` is no reference point, and the way out."""
    return (
        f"An uncertified reference point is refused as x_star: cf.solve_pooled stopped after {found.iterations} iterations with "
        f"gradient mapping {found.gradient_mapping:.1e}. {why_stopped(problem, found)} Or give a certified x_star="
    )


_CRITERIA = {
    "optimality": ("||x - x*|| / ||x*||", ACCURACIES),
    "objective": ("objective above the lowest, as a share of that at the start", (1e-1, 1e-2, 1e-3, 1e-4)),
    "gradient_mapping": ("norm of the gradient mapping, as a share of that at the start", (1e-1, 1e-2, 1e-3, 1e-4)),
}


# --- runs ---


def affordable_rounds(
    problem: Problem, method: alg.Algorithm | Method, budget: Budget, options: Mapping[str, Any]
) -> int:
    """The rounds that the budget buys. Refuses a method that cannot run, before anything has run."""
    k = problem.n if options.get("participants") is None else options["participants"]
    if isinstance(method, alg.Algorithm):
        check_sampling(options.get("sampling"), type(method), problem.weights, k)
        return budget.rounds(method, problem, k, options.get("batch_size"))
    if options.get("batch_size") is not None or k != problem.n:
        raise InputError(
            f"{method.__name__} needs every client and full gradients in every round. Leave batch_size and participants out, "
            "or the solver."
        )
    assert issubclass(method, SecondOrder)
    return budget.rounds(method, problem, k)


@dataclass(eq=False)
class _Watched:
    """A federation with a record of its messages: the models that they asked about, and what they cost."""

    inner: Federation
    models: list[np.ndarray] = field(default_factory=list)
    costs: list[Communication] = field(default_factory=list)
    hessians: list[bool] = field(default_factory=list)  # whether a message asked for a Hessian

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
        asked = [q for request in requests for q in request.queries if isinstance(q, Evaluate)]
        self.models += [q.x[0] for q in asked]
        self.hessians += [q.coords is not None for q in asked]
        return sums, cost


def solver_trace(
    problem: Problem,
    solver: type[SecondOrder] | SecondOrder,
    x_star: npt.ArrayLike | None,
    rounds: int,
    metrics: Mapping[str, Any] | None = None,
    clock: Any = None,
) -> Trace:
    """The run of a second-order solver with at most `rounds` messages, one row per message: the best model so far.

    Rows are counted as those of a method are: a message reads each row for a value, for a gradient, and for a Hessian where it
    asks for one.
    """
    sites, target = _Watched(InProcess(problem.sites)), None if x_star is None else np.asarray(x_star)
    asked = solver.__name__ if isinstance(solver, type) else solver
    minimum = solve_federated(problem, asked, max_rounds=max(1, rounds - 1), federation=sites)
    x, F, distances, objectives, mappings, found = sites.models[0], np.inf, [], [], [], []
    for trial in sites.models:
        value = problem.objective(trial)
        better = value <= F + 8 * np.finfo(float).eps * abs(value)
        if better:
            x, F = trial, min(F, value)
        objectives.append(F)
        mappings.append(np.linalg.norm(problem.gradient_mapping(x)) if better else mappings[-1])
        found.append([float(metric(_parameters(problem, x))) for metric in (metrics or {}).values()])
        if target is not None:
            distances.append(np.linalg.norm(x - target))
    messages = np.arange(1, len(sites.models) + 1)
    hessians = np.cumsum(sites.hessians)
    passes, seconds = 2 * messages + hessians, check_clock(clock, problem.sizes, problem.numbers)
    columns = {
        "round": messages,
        "exchanges": messages,
        **({} if target is None else {"optimality": np.array(distances) / (np.linalg.norm(target) or 1.0)}),
        "objective": np.array(objectives),
        "gradient_mapping": np.array(mappings),
        **{name: np.array([row[k] for row in found]) for k, name in enumerate(metrics or {})},
        "bytes_up": np.cumsum([cost.bytes_up for cost in sites.costs]),
        "bytes_down": np.cumsum([cost.bytes_down for cost in sites.costs]),
        "gradients": messages,
        "values": messages,
        "hessians": hessians,
        "rows": passes * float(problem.sizes.mean()),
    }
    if seconds is not None:
        each = np.diff(np.stack([columns["bytes_down"], columns["bytes_up"], passes]), axis=1, prepend=0.0)
        latency, down, up, row = (np.asarray(of)[:, None] for of in seconds)
        taken = latency + down * each[0] + up * each[1] + row * problem.sizes[:, None] * each[2]  # (clients, messages)
        columns["clock"] = np.cumsum(taken.max(axis=0))  # the server waits for the slowest
    return Trace(columns, x, minimum.trace.provenance)


def _parameters(problem: Problem, x: np.ndarray) -> Any:
    """What a metric takes: the parameters of a loss made of a function, else the coefficients."""
    unravel = getattr(problem.loss, "unravel", None)
    return x if unravel is None else unravel(x)


# --- the comparison ---


class MethodResult(TypedDict):
    """The accuracy and the costs of one method over its seeds, as plain data. A cost or an end is None if never reached."""

    to_accuracy: dict[str, dict[str, float | None]]  # level -> unit -> cost per client, the median over seeds
    range: dict[str, dict[str, list[float | None]]]  # the same, least and largest over seeds
    final: float | None  # the criterion at the end, the median over seeds
    finals: list[float | None]  # by seed; None where the run diverged
    rounds: int
    algorithm: dict[str, object]
    tuning: dict[str, Any] | None  # the settings tried, their scores and the choice; None where nothing was tuned


@dataclass(frozen=True, repr=False)
class MethodComparison:
    """Costs of several methods on one problem. `str` gives the table in the unit of the budget.

    Attributes
    ----------
    problem : dict
        The problem in plain values.
    unit : str
        Unit of the budget: "rounds", "bytes", "gradients" or "rows".
    criterion : Criterion
        What methods are ranked by: a column of the traces, in words, and its levels.
    certificate : float or None
        Norm of the gradient mapping at x*; None without x*.
    seeds : tuple of int
        The reporting seeds.
    results : dict of str to dict
        By label: `to_accuracy` (cost per client to each level, the median over seeds) and its `range`, `final` and `finals`,
        `rounds`, `algorithm`, `tuning`.
    traces : dict of str to list of Trace
        By label: the chosen setting, one trace per reporting seed.
    notes : tuple of str
        What a reader should know: why the criterion, divergences, edges of grids.
    """

    problem: dict[str, object]
    unit: str
    criterion: Criterion
    certificate: float | None
    seeds: tuple[int, ...]
    results: dict[str, MethodResult]
    traces: dict[str, list[Trace]]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        first = self._rows(self.unit)[0][0]
        seeds = f"{len(self.seeds)} seed{'s' * (len(self.seeds) > 1)}"
        return f"MethodComparison({len(self.results)} methods, {seeds}, by {self.criterion.column}; first: {first})"

    def __str__(self) -> str:
        return "\n".join([self.table(self.unit), *(f"{note}" for note in self.notes)])

    @property
    def units(self) -> list[str]:
        """The units in which costs are known for all methods."""
        return list(next(iter(next(iter(self.results.values()))["to_accuracy"].values())))

    def table(self, unit: str | None = None) -> str:
        """Cost per client to each level, in one unit, the best method first."""
        return text_table(*self._cells(unit))

    def to_markdown(self, unit: str | None = None) -> str:
        """The table in Markdown."""
        return markdown_table(*self._cells(unit))

    def to_latex(self, unit: str | None = None) -> str:
        """The table as a LaTeX tabular; needs the package booktabs."""
        return latex_table(*self._cells(unit))

    def to_pandas(self) -> pandas.DataFrame:
        """One row per method: costs in every unit to each level with their range over seeds, the end, and the setting."""
        try:
            import pandas
        except ImportError:
            raise MissingExtra("pandas", "pandas", "MethodComparison.to_pandas()") from None
        rows = {}
        for label, result in self.results.items():
            row: dict[str, Any] = {}
            for level, costs in result["to_accuracy"].items():
                for unit, cost in costs.items():
                    low, high = result["range"][level][unit]
                    row |= {
                        f"{unit} to {level}": cost,
                        f"{unit} to {level}, low": low,
                        f"{unit} to {level}, high": high,
                    }
            ends = _numbers(result["finals"])
            row |= {"final": result["final"], "final, low": ends.min(), "final, high": ends.max()}
            row |= {"rounds": result["rounds"], "diverged": int(np.isinf(ends).sum())}
            rows[label] = row | {"setting": _setting(result)}
        return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("method")

    def to_result(self) -> dict[str, Any]:
        """The comparison as plain data: what a run folder keeps, and `cf.write_report` reads."""
        tuned = any(result["tuning"] for result in self.results.values())
        lead = f"{len(self.results)} methods on one problem, each with the same budget of {self.unit}" + (
            " and its own best setting." if tuned else "."
        )
        if len(self.seeds) > 1:
            lead += f" Costs are medians over {len(self.seeds)} seeds; curves are of the seed whose end is the median."
        lead = " ".join([lead, *self.notes])
        shown = {label: self._typical(label) for label in self.traces}
        return methods_result({"": self.results}, {"": shown}, self.problem, "Methods compared", lead, self.criterion)

    def save(self, out: Path) -> None:
        """Write traces/, comparison.json, the curves, result.json and report.html below `out`."""
        for label, traces in self.traces.items():
            for seed, trace in zip(self.seeds, traces, strict=False):
                name = re.sub(r"[^\w.+-]+", "-", label).strip("-")
                trace.save(out / "traces" / (name if len(self.seeds) == 1 else f"{name}-seed-{seed}"))
        content = {
            "problem": self.problem,
            "x_star": None if self.certificate is None else {"gradient_mapping": self.certificate},
            "criterion": vars(self.criterion),
            "seeds": self.seeds,
            "notes": self.notes,
            "methods": self.results,
        }
        write_text(out / "comparison.json", json.dumps(content, indent=2) + "\n")
        lines = [Curve(label, of, i, dots=len(of[0]) < 15) for i, (label, of) in enumerate(self.traces.items())]
        shown = {unit: x for unit, x in COSTS.items() if all(x in trace for of in self.traces.values() for trace in of)}
        last, column = len(shown) - 1, self.criterion.column  # the last legend serves all
        log = column in ("optimality", "gradient_mapping")
        draw(
            [
                Panel(f"Against {unit}", lines, x=x, y=column, log=log, legend="upper right" if k == last else None)
                for k, (unit, x) in enumerate(shown.items())
            ],
            out / "comparison",
        )
        write_result(out, self.to_result())
        write_run_report(out)

    def _cells(self, unit: str | None) -> tuple[list[str], list[list[str]]]:
        """Header and rows; without the settings where all methods run as they were given."""
        header = ["method", *(f"to {level:g}" for level in self.criterion.levels), "final", "setting"]
        rows = self._rows(unit)
        if all(result["tuning"] is None for result in self.results.values()):
            return header[:-1], [row[:-1] for row in rows]
        return header, rows

    def _rows(self, unit: str | None) -> list[list[str]]:
        """The cells of the table, the best method first."""
        unit = self.unit if unit is None else unit
        if unit not in self.units:
            raise InputError(f"unit={unit!r} must be one of {join_names(self.units)}.")
        rows = []
        for label, result in self.results.items():
            paid = [costs[unit] for costs in result["to_accuracy"].values()]
            spread = [ranges[unit] for ranges in result["range"].values()]
            furthest = [np.inf if cost is None else cost for cost in reversed(paid)]
            end = np.inf if result["final"] is None else result["final"]
            cells = [_cell(cost, least_most, "g") for cost, least_most in zip(paid, spread, strict=True)]
            finals = _numbers(result["finals"])
            digits = ".1e" if self.criterion.column in ("optimality", "gradient_mapping") else ".4g"
            final = _cell(result["final"], [finals.min(), finals.max()], digits) if np.isfinite(end) else "diverged"
            # what is near x* to rounding is ranked by its cost; everything else by where it ends
            ends = -end if self.criterion.rises and np.isfinite(end) else end
            order = [*furthest, ends] if self.criterion.column == "optimality" else [ends, *furthest]
            rows.append((order, [label, *cells, final, _setting(result)]))
        return [row for _, row in sorted(rows, key=itemgetter(0))]

    def _typical(self, label: str) -> Trace:
        """The trace of the seed whose end is the median."""
        order = np.argsort(_numbers(self.results[label]["finals"]), kind="stable")
        return self.traces[label][int(order[(len(order) - 1) // 2])]


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    """Numbers, with inf for what was never reached."""
    return np.array([np.inf if value is None else value for value in values])


def _cell(value: float | None, ends: Sequence[float | None], digits: str) -> str:
    """A median, with its range where seeds differ; "-" where it was not reached, in words where some seeds did not."""
    low, high = _numbers(ends)
    if value is None:
        return "-"
    shown, least = f"{value:{digits}}", f"{low:{digits}}"
    most = "-" if np.isinf(high) else f"{high:{digits}}"
    return shown if least == most else f"{shown} ({least} to {most})"


def _setting(result: MethodResult) -> str:
    """What was chosen, and where that is an edge of what was tried."""
    tuning = result["tuning"]
    if tuning is None or not tuning["chosen"]:
        return "-" if result["algorithm"]["name"] in SOLVERS else "as given" if tuning is None else "nothing to tune"
    at = ", ".join(f"{k} = {v:g}" if isinstance(v, float) else f"{k} = {v}" for k, v in tuning["chosen"].items())
    return at + (f" (edge of {', '.join(tuning['at_edge'])})" if tuning["at_edge"] else "")


def methods_result(
    results: Mapping[str, Mapping[str, Any]],
    traces: Mapping[str, Mapping[str, Trace]],
    problem: object,
    title: str,
    lead: str,
    criterion: Criterion | None = None,
) -> dict[str, Any]:
    """Results and traces by problem and method, as plain data for a run folder."""
    runs = {
        group: {name: {c: v for c, v in trace.columns.items() if v.ndim == 1} for name, trace in each.items()}
        for group, each in traces.items()
    }
    about = {"kind": "methods", "created": time.strftime("%Y-%m-%d %H:%M:%S %z"), "versions": versions()}
    about |= {} if criterion is None else {"criterion": vars(criterion)}
    return about | {"title": title, "lead": lead, "problem": problem, "results": results, "runs": runs}


def compare_methods(
    problem: Problem,
    methods: Sequence[Given] | Mapping[str, Given] | None = None,
    *,
    rounds: float | None = None,
    bytes: float | None = None,
    gradients: float | None = None,
    rows: float | None = None,
    tau: int = 5,
    candidates: int = 7,
    tune: Mapping[str, Any] | None = None,
    seeds: int | Sequence[int] = 1,
    tuning_seeds: int | Sequence[int] = 1,
    criterion: str = "auto",
    larger_is_better: bool | None = None,
    accuracies: Sequence[float] | None = None,
    x_star: npt.ArrayLike | None = None,
    batch_size: int | None = None,
    participants: int | None = None,
    sampling: Scheme | None = None,
    out: str | Path | None = None,
    stream: TextIO | None = None,
    **options: Any,
) -> MethodComparison:
    """Tune and run every method with the same budget, and measure its accuracy against its cost.

    Parameters
    ----------
    problem : Problem
    methods : sequence or dict, optional
        Names, classes and instances of local-update methods and of the solvers "ProximalNewton" and "ProximalBFGS"; a dict
        gives them labels. An instance runs with the steps it has, a name or a class is tuned. All that the problem allows,
        unless given.
    rounds, bytes, gradients, rows : float, optional
        The budget of every candidate, per client: communication rounds, bytes sent, gradient evaluations, or rows read. Give one
        of them; 300 rounds unless given. A message of a solver is a round and counts as one gradient evaluation.
    tau : int, default=5
        Local steps per round, of methods that are tuned.
    candidates : int, default=7
        Settings that every method may try: multiples of its default steps, powers of two, or those of `tune`. While the best
        one is at an edge, settings beyond it are tried, up to as many again. A method without steps runs once, and so does
        every one with ``candidates=1``.
    tune : dict, optional
        Values to try: ``{"eta": [0.1, 1.0]}`` for every method with that field, ``{"FedDR": {"lam": [1.0, 10.0], "alpha":
        [1.0, 1.9]}}`` for one, by its label. "scale" stands for a multiple of the default steps, "batch_size" for that of the
        run. Of more combinations than `candidates`, so many are drawn.
    seeds : int or sequence of int, default=1
        Reporting seeds, of mini-batches and samples: how many, or which. Tables have medians and ranges.
    tuning_seeds : int or sequence of int, default=1
        Seeds on which settings are compared: how many, after the reporting ones, or which. A setting that diverges on one of
        them is not taken.
    criterion : str, default="auto"
        What methods are tuned and ranked by, at the end of the budget: "optimality" (the distance to x*), "objective",
        "gradient_mapping" (stationarity), or a column of your own `metrics` or `measure`. "auto" takes the distance where the
        problem is convex and x* certified, and the objective otherwise, with a note, and a warning if the problem is convex.
    larger_is_better : bool, optional
        Of a column of your own: True unless given.
    accuracies : sequence of float, optional
        Levels of the criterion whose costs are reported: of ||x - x*|| / ||x*||, of the objective above the lowest, or of the
        gradient mapping, both as a share of those at the start, or values of your own column.
    x_star : array of shape (d,) or solution, optional
        The minimiser, which is checked: that of `solve_pooled` unless given.
    batch_size : int, optional
        Mini-batch size; full gradients unless given.
    participants : int, optional
        Clients per round; all unless given.
    sampling : str, optional
        How a sample of clients stands for all (see `simulate`); each method's own scheme unless given.
    out : path, optional
        A folder for traces, JSON and curves. Nothing is written without it.
    stream : text file, optional
        Where progress is shown; standard error unless given.
    **options
        Further options of `cf.grid`, such as `x0`, `metrics`, `columns` and `clock`.

    Returns
    -------
    MethodComparison

    Raises
    ------
    InputError
        If a method is unknown, does not suit the problem, or costs more than the budget; if x_star is no certified minimum.

    Examples
    --------
    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)
    >>> methods = ["DecoupledProx", cf.algorithms.FedDA(eta=1.0), "ProximalNewton"]
    >>> compared = cf.compare_methods(problem, methods, rounds=60, candidates=3)
    >>> compared.results["DecoupledProx"]["final"] < compared.results["FedDA"]["final"]
    True
    >>> compared.results["ProximalNewton"]["to_accuracy"]["1e-08"]["rounds"] < 10
    True
    """
    budget = _budget(rounds=rounds, bytes=bytes, gradients=gradients, rows=rows)
    candidates = check_int(candidates, "candidates", 1)
    if candidates > MOST_CANDIDATES:
        raise InputError(f"candidates={candidates} must be at most {MOST_CANDIDATES}: they are powers of two.")
    if not isinstance(problem, Problem):
        raise InputError(f"compare_methods needs a compfed.Problem; got {type(problem).__name__}.")
    _check_options(options)
    reported, tuned_on = _seeds(seeds, tuning_seeds)
    if out is not None:
        check_matplotlib()
        check_writable(Path(out), f"out={str(out)!r}")
    options |= {"batch_size": batch_size, "participants": participants, "sampling": sampling}
    chosen = contenders(methods_for(problem) if methods is None else methods, tune or {})
    if methods is None and (batch_size is not None or participants not in (None, problem.n)):
        chosen = [each for each in chosen if not each.is_solver]
    comparison = Comparison(problem, budget, tau, Tries(candidates), reported, tuned_on, options)
    for each in chosen:
        comparison.check(each)
    by, star, notes = criterion_of(problem, criterion, x_star, larger_is_better)
    steps = NamedSteps(len(chosen), stream)
    traces: dict[str, list[Trace]] = {}
    tunings: dict[str, dict[str, Any] | None] = {}
    for each in chosen:
        traces[each.label], tunings[each.label] = comparison.run(each, by, star, steps.start(each.label))
    steps.finish()
    lowest = None if star is None or not problem.convex else problem.objective(np.asarray(star))
    every = [trace for each in traces.values() for trace in each]
    costs = {unit: column for unit, column in (COSTS | MORE).items() if all(column in trace for trace in every)}
    by = by.fitted(every, accuracies, lowest)
    results: dict[str, MethodResult] = {
        label: {**costs_of(each, by, costs), "tuning": tunings[label]} for label, each in traces.items()
    }
    certificate = None if star is None else float(np.linalg.norm(problem.gradient_mapping(np.asarray(star))))
    notes += _diverged(traces)
    compared = MethodComparison(
        problem.describe(), budget.unit, by, certificate, reported, results, traces, tuple(notes)
    )
    if out is not None:
        compared.save(Path(out))
    return compared


def _check_options(options: Mapping[str, Any]) -> None:
    """Refuse an option that `grid` does not take, or that the comparison sets itself."""
    own = {"problem", "algorithm", "rounds", "over", "seed", "record_every", "progress"}
    known = [name for name in inspect.signature(grid).parameters if name not in own]
    for name in options:
        if name not in known:
            hint = " Give seeds= (a number of seeds, or which)." if name == "seed" else ""
            raise InputError(
                f"compare_methods takes no {name!r}; beside its own options it takes {join_names(known)}.{hint}"
            )


def _seeds(reporting: int | Sequence[int], tuning: int | Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The reporting seeds 0, 1, ... and the tuning seeds after them, or those that are given."""
    found: list[tuple[int, ...]] = []
    for name, asked in (("seeds", reporting), ("tuning_seeds", tuning)):
        if is_int(asked):
            first = max(found[0]) + 1 if found else 0
            found.append(tuple(range(first, first + check_int(asked, name, 1))))
        elif isinstance(asked, (str, float)) or not hasattr(asked, "__len__") or not len(asked):  # pyright: ignore[reportArgumentType]  # a sequence
            raise InputError(f"{name}={asked!r} must be a number of seeds, or a list of seeds.")
        else:
            found.append(tuple(check_int(seed, f"a seed of {name}", 0) for seed in asked))  # pyright: ignore[reportGeneralTypeIssues]  # a sequence
    return found[0], found[1]


@dataclass(frozen=True)
class Comparison:
    """What all methods of a comparison share: `check` refuses a method that cannot run, `run` tunes and runs one."""

    problem: Problem
    budget: Budget
    tau: int
    tries: Tries
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]
    options: dict[str, Any]

    @property
    def L(self) -> Any:
        """The Lipschitz constant that is given, for default steps."""
        return self.options.get("L")

    def rounds(self, algorithm: alg.Algorithm, batch_size: int | None) -> int:
        return affordable_rounds(self.problem, algorithm, self.budget, self.options | {"batch_size": batch_size})

    def check(self, each: Contender) -> None:
        """Refuse a method that cannot be built, run or paid."""
        if each.is_solver:
            affordable_rounds(self.problem, each.method, self.budget, self.options)
        else:
            first = {name: values[0] for name, values in each.axes.items()}
            self.rounds(
                each.algorithm(self.problem, self.tau, first, self.L), first.get(BATCH, self.options["batch_size"])
            )

    def run(
        self, each: Contender, by: Criterion, star: Any, progress: Any
    ) -> tuple[list[Trace], dict[str, Any] | None]:
        """The traces of a method on the reporting seeds, and how its setting was found."""
        problem = self.problem
        if each.is_solver:
            most = affordable_rounds(problem, each.method, self.budget, self.options)
            solver = each.method if each.given is None else each.given
            run = solver_trace(problem, solver, star, most, self.options.get("metrics"), self.options.get("clock"))  # pyright: ignore[reportArgumentType]  # a solver
            trace = self.budget.cut(run)
            if by.column not in trace:
                raise InputError(f"{each.label} records no {by.column!r}; leave it out, or take another criterion.")
            return [trace], None
        options = self.options | {"progress": progress} | ({} if star is None else {"x_star": star})
        if by.column == "gradient_mapping" and options.get("columns") is None:
            options["columns"] = [..., "gradient_mapping"]

        def runs(chosen: Sequence[Values], seeds: Sequence[int]) -> list[list[Trace]]:
            return run_settings(each, problem, self.tau, chosen, seeds, self.rounds, **options)

        def scores(chosen: Sequence[Values]) -> list[float]:
            return [float(np.mean([by.score(t) for t in traces])) for traces in runs(chosen, self.tuning_seeds)]

        if each.given is not None and not each.axes:
            return runs([{}], self.seeds)[0], None
        found = search(each, problem, self.tau, self.tries, self.tuning_seeds[0], scores, self.L)
        traces = runs([found.values], self.seeds)[0]
        tuning = {**vars(self.budget), **found.describe(self.tuning_seeds)}
        return [replace(t, provenance={**t.provenance, "tuning": tuning}) for t in traces], tuning


def _diverged(traces: Mapping[str, Sequence[Trace]]) -> list[str]:
    """A line for every method of which a reported run diverged."""
    found = {label: sum("diverged" in t.provenance for t in each) for label, each in traces.items()}
    return [f"{label} diverged on {k} of {len(traces[label])} seeds." for label, k in found.items() if k]


def costs_of(traces: Sequence[Trace], by: Criterion, costs: Mapping[str, str] = COSTS) -> MethodResult:
    """The cost per client (`costs`: unit, column) at which runs first reach each level, and where they end, over seeds."""
    to_accuracy: dict[str, dict[str, float | None]] = {}
    ranges: dict[str, dict[str, list[float | None]]] = {}
    for level in by.levels:
        rows = [next(iter(np.flatnonzero(by.reaches(trace, level))), None) for trace in traces]
        paid = {
            unit: [np.inf if row is None else float(t[column][row]) for t, row in zip(traces, rows, strict=True)]
            for unit, column in costs.items()
        }
        to_accuracy[f"{level:g}"] = {unit: _plain(_median(each)) for unit, each in paid.items()}
        ranges[f"{level:g}"] = {unit: [_plain(min(each)), _plain(max(each))] for unit, each in paid.items()}
    ends = [np.inf if "diverged" in trace.provenance else float(trace[by.column][-1]) for trace in traces]
    return {
        "to_accuracy": to_accuracy,
        "range": ranges,
        "final": _plain(_median(ends)),
        "finals": [_plain(end) for end in ends],
        "rounds": max(int(trace["round"][-1]) for trace in traces),
        "algorithm": traces[0].provenance["algorithm"],
        "tuning": None,
    }


def _median(values: Sequence[float]) -> float:
    """The median; of an even number of values, some of them infinite, the larger of the two in the middle."""
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return 0.5 * (low + high) if np.isfinite(high) else high


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
