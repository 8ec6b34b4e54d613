"""`compfed compare --few-rounds`: what five methods pay, in rounds and in bytes, for an accuracy, with nothing tuned.

Three problems: the paper's, a table in raw units, and more columns than rows. Accuracy is ||x - x*|| / ||x*||: x* is unique
in all three (a ridge; more rows than columns; columns in general position, Tibshirani, "The lasso problem and uniqueness",
Electronic J. Statistics 2013), and it is what `compare` and the paper's figures measure.

Every method is run as `solve_federated` runs it: second-order methods ask plain questions, about as wide a working set as they need,
and the others do rounds with the steps of `suggest`, which the engine compiles. A round is a message to every site and its
reply; the first, in which the sites say how steep their loss is, counts too. Bytes are those of the numbers in both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

import compfed.algorithms as alg
from compfed._utils.files import check_writable, write_text
from compfed._utils.progress import Steps
from compfed._utils.text import number_table
from compfed._utils.validation import check_int
from compfed.algorithms import default_steps
from compfed.data import from_table
from compfed.data.bundled import breast_cancer
from compfed.federation.codec import payload
from compfed.federation.queries import Evaluate, Query
from compfed.federation.server.program import run_program
from compfed.federation.site.in_process import InProcess
from compfed.losses import Logistic
from compfed.problem.problem import Problem
from compfed.regularisers import L1, OnBlock, Zero
from compfed.report.figures import Line, Panel, draw_rows, pyplot
from compfed.simulation import simulate
from compfed.simulation.plain import spec_of
from compfed.solve import solve_federated
from compfed.solvers.auto import starting
from compfed.solvers.method_choice import Method
from compfed.solvers.search import Search
from compfed.solvers.second_order import SOLVERS, ProximalBFGS, ProximalNewton, SecondOrder
from compfed.studies.methods_compared import costs_to
from compfed.studies.paper.setting import paper_problem
from compfed.trace import Trace

METHODS: tuple[Method, ...] = (ProximalNewton, ProximalBFGS, alg.AcceleratedDecoupledProx, alg.FISTA, alg.DecoupledProx)
STYLES = {"DecoupledProx": 0, "ProximalNewton": 1, "ProximalBFGS": 2, "AcceleratedDecoupledProx": 5, "FISTA": 6}
ACCURACIES = (1e-2, 1e-4, 1e-6, 1e-8)
COSTS = {"rounds": "round", "bytes": "bytes"}
ROUNDS = {False: 5000, True: 500}  # at most, at full size and with --quick
FLOOR = 1e-10  # where curves end
PIECE = 500  # rounds between two looks at the accuracy


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


class Overheard(InProcess):
    """The sites of a problem, and what every message cost and asked about."""

    def __init__(self, problem: Problem):
        super().__init__(problem.sites)
        self.models: list[np.ndarray] = []
        self.down: list[float] = []  # bytes of a message to a site
        self.up: list[float] = []  # and of the replies, on average

    def send(self, messages: Mapping[int, Sequence[Query]]) -> dict[int, tuple[Any, ...]]:
        replies = super().send(messages)
        known, questions = set(self.cached), messages[0]  # every site is asked the same
        self.down.append(sum(payload(question, known) for question in questions))
        self.up.append(sum(payload(reply, set()) for reply in replies.values()) / len(replies))
        self.models += [question.x[0] for question in questions if isinstance(question, Evaluate)]
        return replies


def by_trials(problem: Problem, method: type[SecondOrder], x_star: np.ndarray, rounds: int) -> Trace:
    """A second-order search, one row per message: the best model asked about so far."""
    sites = Overheard(problem)
    minimum = solve_federated(problem, method.__name__, max_rounds=rounds - 1, federation=sites)
    x, F, optimality = sites.models[0], np.inf, []
    for trial in sites.models:
        value = problem.objective(trial)
        if value <= F + 8 * np.finfo(float).eps * abs(value):
            x, F = trial, min(F, value)
        optimality.append(np.linalg.norm(x - x_star) / np.linalg.norm(x_star))
    columns = {
        "round": np.arange(1, len(sites.models) + 1),
        "optimality": np.array(optimality),
        "bytes_up": np.cumsum(sites.up),
        "bytes_down": np.cumsum(sites.down),
    }
    return Trace(columns, x, minimum.trace.provenance)


def by_rounds(problem: Problem, method: type[alg.Algorithm], x_star: np.ndarray, rounds: int) -> Trace:
    """Rounds with the suggested steps until the last accuracy is reached, after the message that a search begins with."""
    _, first = run_program(InProcess(problem.sites), starting(spec_of(problem), Search(method), problem.start))
    algorithm, trace = default_steps(method, problem), None
    while trace is None or (trace["optimality"].min() > ACCURACIES[-1] and trace["round"][-1] < rounds - 1):
        done = 0 if trace is None else int(trace["round"][-1])
        trace = simulate(problem, algorithm, min(PIECE, rounds - 1 - done), x_star=x_star, resume=trace)
    return trace.after(round=first.rounds, bytes_up=first.bytes_up, bytes_down=first.bytes_down)


def run(problem: Problem, method: Method, x_star: np.ndarray, rounds: int) -> Trace:
    """The trace of one method, with a column of the bytes both ways."""
    trace = (
        by_trials(problem, method, x_star, rounds)
        if method in SOLVERS.values()
        else by_rounds(problem, method, x_star, rounds)
    )
    return replace(trace, columns=trace.columns | {"bytes": trace["bytes_up"] + trace["bytes_down"]})


def _until(trace: Trace, level: float) -> Trace:
    """Its rows up to the first that is so accurate."""
    hits = np.flatnonzero(trace["optimality"] <= level)
    end = hits[0] + 1 if hits.size else len(trace)
    return replace(trace, columns={name: values[:end] for name, values in trace.columns.items()})


# --- result ---


@dataclass(frozen=True)
class FewRounds:
    """`results[problem]["methods"][method]` is plain data, `traces[problem][method]` a run; `str` gives the tables."""

    results: dict[str, dict[str, Any]]
    traces: dict[str, dict[str, Trace]]

    def __str__(self) -> str:
        heads = {"rounds": "messages to every site and back", "bytes": "bytes per site, both ways"}
        return "\n\n".join(
            f"{name}: {head} to reach ||x - x*|| / ||x*||\n\n{table(found['methods'], unit)}"
            for name, found in self.results.items()
            for unit, head in heads.items()
        )

    def save(self, out: Path) -> None:
        """Write traces/, few-rounds.json and the curves below `out`."""
        for problem, traces in self.traces.items():
            for method, trace in traces.items():
                trace.save(out / "traces" / problem.replace(" ", "-") / method)
        write_text(out / "few-rounds.json", json.dumps(self.results, indent=1) + "\n")
        draw_rows([[self._panel(name, x) for name in self.traces] for x in COSTS.values()], out / "few-rounds")

    def _panel(self, name: str, x: str) -> Panel:
        of = self.results[name]
        title = f"{name}: {of['rows']:,} rows x {of['columns']:,}, {of['sites']} sites" if x == "round" else ""
        widths = {"DecoupledProx": 3.2, "FISTA": 2.2}  # where they lie on each other, all show
        lines = [
            Line(method, [_until(trace, FLOOR)], STYLES[method], width=widths.get(method, 1.6), dots=len(trace) < 15)
            for method, trace in reversed(self.traces[name].items())
        ]
        return Panel(title, lines, x=x, floor=FLOOR, log_x=True)


def few_rounds(
    quick: bool = False, rounds: int | None = None, out: str | Path | None = None, stream: TextIO | None = None
) -> FewRounds:
    """Run the five methods on the three problems; print the result, or read `results` and `traces`.

    - `quick`: smaller problems and fewer rounds.
    - `rounds`: messages after which a method that has not arrived is stopped (5,000 unless given; quick: 500).
    - `out`: a folder for traces, JSON and curves; nothing is written without it.
    """
    limit = ROUNDS[quick] if rounds is None else check_int(rounds, "rounds", 2)
    if out is not None:
        pyplot()  # refuses before anything has run, where figures cannot be drawn ...
        check_writable(Path(out), f"out={str(out)!r}")  # ... or nothing can be written
    cases = problems(quick)
    steps = Steps(len(cases) * len(METHODS), stream)
    results, traces = {}, {}
    for name, problem in cases.items():
        best = solve_federated(problem, "ProximalNewton", tol=1e-15)  # as close as rounding lets it come
        traces[name] = _runs(problem, best.x, limit, lambda method, name=name: steps.start(f"{name}: {method}"))
        results[name] = {
            "rows": sum(map(len, problem.sites.labels)),
            "columns": problem.d,
            "sites": problem.n,
            "problem": problem.describe(),
            "x_star": {
                "relative_gradient_mapping": best.certificate.relative,
                "nonzeros": int(np.count_nonzero(best.x)),
            },
            "methods": {method: _result(trace) for method, trace in traces[name].items()},
        }
    steps.finish()
    found = FewRounds(results, traces)
    if out is not None:
        found.save(Path(out))
    return found


def _runs(problem: Problem, x_star: np.ndarray, rounds: int, begin: Callable[[str], Any]) -> dict[str, Trace]:
    traces = {}
    for method in METHODS:
        begin(method.__name__)
        traces[method.__name__] = run(problem, method, x_star, rounds)
    return traces


def _result(trace: Trace) -> dict[str, Any]:
    return {
        "to_accuracy": costs_to(trace, ACCURACIES, COSTS),
        "final_optimality": float(trace["optimality"][-1]),
        "rounds": int(trace["round"][-1]),
        "algorithm": trace.provenance["algorithm"],
    }


def cell(method: Mapping[str, Any], level: str, unit: str) -> str:
    """What a method paid for an accuracy, or the rounds after which it had not arrived.

    >>> cell({"to_accuracy": {"0.01": {"rounds": 12.0, "bytes": 23456.0}}, "rounds": 40}, "0.01", "bytes")
    '23.5 kB'
    >>> cell({"to_accuracy": {"0.01": {"rounds": None, "bytes": None}}, "rounds": 5000}, "0.01", "rounds")
    '> 5,000'
    """
    paid = method["to_accuracy"][level][unit]
    if paid is None:
        return f"> {method['rounds']:,}" if unit == "rounds" else "-"
    if unit == "rounds":
        return f"{paid:,.0f}"
    return f"{paid / 1e6:,.2f} MB" if paid >= 999_500 else f"{paid / 1e3:.3g} kB"


def table(methods: Mapping[str, Any], unit: str) -> str:
    """Rounds or bytes to each accuracy."""
    levels = [f"{level:g}" for level in ACCURACIES]
    rows = [[name, *(cell(found, level, unit) for level in levels)] for name, found in methods.items()]
    return number_table(["method", *(f"to {level}" for level in levels)], rows)
