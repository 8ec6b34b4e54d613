"""`compfed compare --few-rounds`: rounds and bytes of five methods to reach an accuracy, with nothing tuned.

Three problems: the paper's, a table in raw units, and more columns than rows. Accuracy is ||x - x*|| / ||x*||: x* is unique
in all three (a ridge; more rows than columns; columns in general position, Tibshirani, "The lasso problem and uniqueness",
Electronic J. Statistics 2013), and `compare` and the paper's figures measure the same distance.

Every method runs as `solve_federated` runs it. Second-order solvers send queries, with as wide a working set as they need.
The others do rounds with their default step sizes, which are compiled. A round is a message to every site and its reply; the
first one, with the Lipschitz constants, counts too. Bytes are those of the numbers, both ways.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import compfed.algorithms as alg
from compfed._utils.files import check_writable, write_text
from compfed._utils.text import NamedSteps, text_table
from compfed._utils.validation import check_int
from compfed.algorithms import default_steps
from compfed.data import from_table
from compfed.data.bundled import breast_cancer
from compfed.federation.server.program import run_program
from compfed.federation.site.in_process import InProcess
from compfed.federation.spec import FederatedProblem
from compfed.losses import Logistic
from compfed.problem.problem import Problem
from compfed.regularisers import L1, OnBlock, Zero
from compfed.report.figures import Curve, Panel, draw
from compfed.report.page import write_run_report
from compfed.report.run_result import write_result
from compfed.report.style import check_matplotlib
from compfed.simulation import simulate
from compfed.solve import solve_federated
from compfed.solvers.auto import evaluate_start
from compfed.solvers.base import Method, SearchOptions, SecondOrder
from compfed.solvers.second_order import ProximalBFGS, ProximalNewton
from compfed.studies.compare_methods import Criterion, MethodResult, costs_of, methods_result, solver_trace
from compfed.studies.paper.experiments import paper_problem
from compfed.trace import Trace

METHODS: tuple[Method, ...] = (ProximalNewton, ProximalBFGS, alg.AcceleratedDecoupledProx, alg.FISTA, alg.DecoupledProx)
STYLES = {"DecoupledProx": 0, "ProximalNewton": 1, "ProximalBFGS": 2, "AcceleratedDecoupledProx": 5, "FISTA": 6}
ACCURACIES = (1e-2, 1e-4, 1e-6, 1e-8)
DISTANCE = Criterion("optimality", "||x - x*|| / ||x*||", ACCURACIES)
COSTS = {"rounds": "round", "bytes": "bytes"}
ROUNDS = {False: 5000, True: 500}  # at most, at full size and with --quick
FLOOR = 1e-10  # where curves end
PIECE = 500  # rounds between two checks of the accuracy


# --- problems ---


def raw_columns() -> Problem:
    """Breast cancer in the units it was published in, which differ by five orders of magnitude, with an intercept."""
    table = breast_cancer()
    X = np.column_stack([table.X, np.ones(len(table.X))])
    sites = from_table(X, table.y, table.sites)
    return Problem(Logistic(), OnBlock(L1(0.01), 0, table.X.shape[1]), sites, weights=sites.shares)


def wide(rows: int = 200, columns: int = 2000, seed: int = 0) -> Problem:
    """Columns that resemble their neighbours (AR(1), 0.5), 20 of which matter; lambda is a tenth of the largest useful.

    Four sites have 5/10, 2/10, 2/10 and 1/10 of the rows; the smallest has one class only.
    """
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, columns))
    for j in range(1, columns):
        X[:, j] = 0.5 * X[:, j - 1] + np.sqrt(0.75) * X[:, j]
    w = np.zeros(columns)
    w[rng.choice(columns, 20, replace=False)] = rng.standard_normal(20)
    y = (rng.random(rows) < 1.0 / (1.0 + np.exp(-X @ w))).astype(int)
    site = np.empty(rows, int)
    site[np.argsort(-y, kind="stable")] = np.repeat([3, 0, 1, 2], np.array([1, 5, 2, 2]) * rows // 10)
    rest = site != 3
    site[rest] = rng.permutation(site[rest])
    sites = from_table(X, y, site)
    smooth = Problem(Logistic(), Zero(), sites, weights=sites.shares)
    return smooth.replace(regulariser=L1(0.1 * np.abs(smooth.gradient(np.zeros(columns))).max()))


def problems(quick: bool = False) -> dict[str, Problem]:
    """The three problems, by name."""
    paper = paper_problem(100, clients=10) if quick else paper_problem(500)
    return {"paper": paper, "raw columns": raw_columns(), "wide": wide(100, 400) if quick else wide()}


# --- runs ---


def algorithm_trace(problem: Problem, method: type[alg.Algorithm], x_star: np.ndarray, rounds: int) -> Trace:
    """Rounds with default steps until the last accuracy is reached, after the first message of `solve_federated`."""
    start = evaluate_start(FederatedProblem.of(problem), SearchOptions(method), problem.start)
    _, first = run_program(InProcess(problem.sites), start)
    algorithm, trace = default_steps(method, problem), None
    while trace is None or (trace["optimality"].min() > ACCURACIES[-1] and trace["round"][-1] < rounds - 1):
        done = 0 if trace is None else int(trace["round"][-1])
        trace = simulate(problem, algorithm, min(PIECE, rounds - 1 - done), x_star=x_star, resume=trace)
    return trace.after(round=first.rounds, bytes_up=first.bytes_up, bytes_down=first.bytes_down)


def run(problem: Problem, method: Method, x_star: np.ndarray, rounds: int) -> Trace:
    """The trace of one method, with a column of the bytes both ways."""
    run_of = solver_trace if issubclass(method, SecondOrder) else algorithm_trace
    trace = run_of(problem, method, x_star, rounds)  # pyright: ignore[reportArgumentType]  # each takes its own kind
    return replace(trace, columns=trace.columns | {"bytes": trace["bytes_up"] + trace["bytes_down"]})


# --- result ---


@dataclass(frozen=True)
class FewRounds:
    """Rounds and bytes of five methods on three problems; `str` gives the tables.

    Attributes
    ----------
    results : dict of str to dict
        By problem: its size, x* and, under "methods", the costs of each method.
    traces : dict of str to dict of str to Trace
        By problem and method.
    """

    results: dict[str, dict[str, Any]]
    traces: dict[str, dict[str, Trace]]

    def __str__(self) -> str:
        heads = {"rounds": "messages to every site and back", "bytes": "bytes per site, both ways"}
        levels, tables = [f"{level:g}" for level in ACCURACIES], []
        for name, found in self.results.items():
            for unit, head in heads.items():
                rows = [[method, *(cell(of, x, unit) for x in levels)] for method, of in found["methods"].items()]
                table = text_table(["method", *(f"to {level}" for level in levels)], rows, numbers=True)
                tables.append(f"{name}: {head} to reach ||x - x*|| / ||x*||\n\n{table}")
        return "\n\n".join(tables)

    def save(self, out: Path) -> None:
        """Write traces/, few-rounds.json, the curves, result.json and report.html below `out`."""
        for problem, traces in self.traces.items():
            for method, trace in traces.items():
                trace.save(out / "traces" / problem.replace(" ", "-") / method)
        write_text(out / "few-rounds.json", json.dumps(self.results, indent=1) + "\n")
        panels = [self._panel(name, x) for x in COSTS.values() for name in self.traces]
        draw(panels, out / "few-rounds", rows=len(COSTS))
        write_result(out, self.to_result())
        write_run_report(out)

    def to_result(self) -> dict[str, Any]:
        """The comparison as plain data: what a run folder keeps, and `cf.write_report` reads."""
        problems = {name: {k: v for k, v in found.items() if k != "methods"} for name, found in self.results.items()}
        lead = "Five methods as they come, with nothing tuned: rounds and bytes to reach an accuracy."
        methods = {name: found["methods"] for name, found in self.results.items()}
        return methods_result(methods, self.traces, problems, "Few rounds", lead)

    def _panel(self, name: str, x: str) -> Panel:
        of, lines = self.results[name], []
        title = f"{name}: {of['rows']:,} rows x {of['columns']:,}, {of['sites']} sites" if x == "round" else ""
        widths = {"DecoupledProx": 3.2, "FISTA": 2.2}  # so that curves on top of each other all show
        for method, trace in reversed(self.traces[name].items()):
            first = next(iter(np.flatnonzero(trace["optimality"] <= FLOOR)), len(trace))
            shown = replace(trace, columns={c: values[: first + 1] for c, values in trace.columns.items()})
            width = widths.get(method, 1.6)
            lines.append(Curve(method, [shown], STYLES[method], width=width, dots=len(trace) < 15))
        return Panel(title, lines, x=x, floor=FLOOR, log_x=True)


def few_rounds(quick: bool = False, rounds: int | None = None, out: str | Path | None = None) -> FewRounds:
    """Run five methods on three problems, with nothing tuned.

    Parameters
    ----------
    quick : bool
        Smaller problems and fewer rounds.
    rounds : int, optional
        Messages after which a method stops at the latest: 5,000 unless given, 500 with `quick`.
    out : path, optional
        A folder for traces, JSON and curves. Nothing is written without it.

    Returns
    -------
    FewRounds
    """
    limit = ROUNDS[quick] if rounds is None else check_int(rounds, "rounds", 2)
    if out is not None:
        check_matplotlib()
        check_writable(Path(out), f"out={str(out)!r}")
    cases, found = problems(quick), FewRounds({}, {})
    steps = NamedSteps(len(cases) * len(METHODS))
    for name, problem in cases.items():
        best = solve_federated(problem, "ProximalNewton", tol=1e-15)  # as close as rounding allows
        traces = found.traces[name] = {}
        for method in METHODS:
            steps.start(f"{name}: {method.__name__}")
            traces[method.__name__] = run(problem, method, best.x, limit)
        size = {"rows": sum(map(len, problem.sites.labels)), "columns": problem.d, "sites": problem.n}
        certificate, nonzeros = best.certificate.relative, int(np.count_nonzero(best.x))
        found.results[name] = size | {
            "problem": problem.describe(),
            "x_star": {"relative_gradient_mapping": certificate, "nonzeros": nonzeros},
            "methods": {method: costs_of([trace], DISTANCE, COSTS) for method, trace in traces.items()},
        }
    steps.finish()
    if out is not None:
        found.save(Path(out))
    return found


def cell(method: MethodResult, level: str, unit: str) -> str:
    """The cost of an accuracy, or the rounds after which the method had not reached it."""
    paid = method["to_accuracy"][level][unit]
    if paid is None:
        return f"> {method['rounds']:,}" if unit == "rounds" else "-"
    if unit == "rounds":
        return f"{paid:,.0f}"
    return f"{paid / 1e6:,.2f} MB" if paid >= 999_500 else f"{paid / 1e3:.3g} kB"
