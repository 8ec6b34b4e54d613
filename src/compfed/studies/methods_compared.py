"""`compare_methods` and `compfed compare`: one problem, many methods, one budget, and fair tuning.

Every method gets the same number of candidate step sizes (multiples of its own suggested one), each candidate the
whole budget, and all candidates of a method run as one program. The candidate that ends closest to x* is kept; the
candidates and the choice are in the trace's provenance.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

import compfed.algorithms as alg
from compfed._utils.files import check_writable, write_text
from compfed._utils.progress import Steps
from compfed._utils.text import text_table
from compfed._utils.validation import check_int
from compfed.algorithms import default_steps
from compfed.errors import InputError
from compfed.monitor import cost_of_a_round
from compfed.problem.problem import Problem
from compfed.regularisers import Zero
from compfed.report.figures import Line, Panel, draw, pyplot
from compfed.sampling import Scheme
from compfed.simulation import grid
from compfed.simulation.run_spec import checked_sampling
from compfed.solve import solve_pooled
from compfed.trace import Trace

ACCURACIES = (1e-1, 1e-2, 1e-4, 1e-6, 1e-8)
MOST_CANDIDATES = 99
COSTS = {"rounds": "round", "bytes": "bytes_up", "gradients": "gradients"}


@dataclass(frozen=True)
class Budget:
    """What every candidate may spend per client: rounds, bytes sent, or gradient evaluations."""

    unit: str
    amount: float

    def rounds(self, algorithm: alg.Algorithm, problem: Problem, participants: int) -> int:
        """How many rounds of `algorithm` the budget buys."""
        if self.unit == "rounds":
            return self._countable(int(self.amount))
        cost = cost_of_a_round(algorithm, problem.d, problem.dtype, participants == problem.n)
        each = {"bytes": cost.bytes_up, "gradients": cost.gradients}[self.unit] * participants / problem.n
        rounds = int(self.amount // each)
        if rounds < 1:
            raise InputError(
                f"a budget of {self.amount:g} {self.unit} does not buy one round of {type(algorithm).__name__}, which "
                f"costs {each:g}; give more."
            )
        return self._countable(rounds)

    def _countable(self, rounds: int) -> int:
        if rounds >= 2**31:
            raise InputError(
                f"a budget of {self.amount:g} {self.unit} buys {rounds:.3g} rounds, more than can be counted."
            )
        return rounds


def methods_for(
    problem: Problem, methods: Sequence[str | type[alg.Algorithm]] | None = None
) -> list[type[alg.Algorithm]]:
    """The methods asked for, or all known ones that the problem allows (smooth-only ones only without a regulariser)."""
    if methods is None:
        smooth = isinstance(problem.regulariser, Zero)
        return [cls for cls in alg.known().values() if smooth or cls.composite is not False]
    if isinstance(methods, (str, type)):
        raise InputError(f"methods={methods!r}: give a list of names or classes, such as ['FedDA', MyMethod].")
    found = [alg.find(m) if isinstance(m, str) else m for m in methods]
    for cls in found:
        if not (isinstance(cls, type) and issubclass(cls, alg.Algorithm)):
            raise InputError(f"methods: {cls!r} is no algorithm; give names, or classes with a rule for their steps.")
    names = [cls.__name__ for cls in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None or not found:
        what = f"{twice} is asked for twice" if twice else "the list is empty"
        raise InputError(f"methods: {what}; results are kept by the names of the classes.")
    return found


def tuned(
    problem: Problem,
    method: type[alg.Algorithm],
    budget: Budget,
    x_star: Any,
    tau: int = 5,
    candidates: int = 7,
    batch_size: int | None = None,
    participants: int | None = None,
    sampling: Scheme | None = None,
    seed: int = 0,
    progress: Any = None,
) -> Trace:
    """The best of `candidates` step sizes: factors 2^-k .. 2^k around the suggested one, each with the whole budget."""
    scales = 2.0 ** (np.arange(candidates) - candidates // 2)
    kinds = [default_steps(method, problem, tau, scale) for scale in scales]
    k = problem.n if participants is None else participants
    rounds = budget.rounds(kinds[0].bind(problem, k), problem, k)
    traces = grid(
        problem, kinds, rounds, batch_size=batch_size, participants=participants, sampling=sampling, seed=seed,
        x_star=x_star, record_every=max(1, rounds // 1000), progress=progress,
    )  # fmt: skip
    final = [np.inf if "diverged" in t.provenance else _score(t) for t in traces]
    best = int(np.argmin(final))
    tuning = {
        "unit": budget.unit,
        "amount": budget.amount,
        "scales": scales.tolist(),
        "final_optimality": [float(v) if np.isfinite(v) else None for v in final],
        "chosen_scale": float(scales[best]),
        "at_edge": bool(best in (0, candidates - 1)),
    }
    return replace(traces[best], provenance={**traces[best].provenance, "tuning": tuning})


def _score(trace: Trace) -> float:
    """Optimality at the end of the budget; below 1e-10 the candidate that got there first wins."""
    first = trace.first("optimality", 1e-10)
    if first is None:
        return float(trace["optimality"][-1])
    return 1e-10 * first / max(int(trace["round"][-1]), 1)


def costs_to(
    trace: Trace, accuracies: Sequence[float], costs: Mapping[str, str] = COSTS
) -> dict[str, dict[str, float | None]]:
    """For each accuracy: what was spent per client (`costs`: unit, column) when it is first reached; None if never."""
    found = {}
    for level in accuracies:
        hits = np.flatnonzero(trace["optimality"] <= level)
        found[f"{level:g}"] = {
            unit: (float(trace[column][hits[0]]) if hits.size else None) for unit, column in costs.items()
        }
    return found


@dataclass(frozen=True)
class MethodsCompared:
    """What came out: `results[name]` is plain data, `traces[name]` the run of the chosen step."""

    problem: dict[str, Any]
    unit: str  # of the budget
    certificate: float  # the gradient mapping at x*
    results: dict[str, dict[str, Any]]
    traces: dict[str, Trace]

    def __str__(self) -> str:
        return comparison_table(self.results, self.unit)

    def table(self, unit: str) -> str:
        """Cost per client to each accuracy, in rounds, bytes or gradients."""
        return comparison_table(self.results, unit)

    def save(self, out: Path) -> None:
        """Write traces/, comparison.json and the curves below `out`."""
        for name, trace in self.traces.items():
            trace.save(out / "traces" / name)
        content = {
            "problem": self.problem,
            "x_star": {"gradient_mapping": self.certificate},
            "methods": self.results,
        }
        write_text(out / "comparison.json", json.dumps(content, indent=2) + "\n")
        lines = [Line(name, [trace], i) for i, (name, trace) in enumerate(self.traces.items())]
        draw([Panel(f"Against {unit}", lines, x=column) for unit, column in COSTS.items()], out / "comparison")


def compare_methods(
    problem: Problem,
    methods: Sequence[str | type[alg.Algorithm]] | None = None,
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
) -> MethodsCompared:
    """Tune and run every method with the same budget; print the result, or read `results` and `traces`.

    - `methods`: names or classes, registered or not; None for all that the problem allows.
    - `rounds`, `bytes` or `gradients`: the budget of every candidate, per client (300 rounds unless given).
    - `candidates`: step sizes tried per method, powers of two around the suggested one.
    - `sampling`: one scheme for all methods (see `simulate`); None for each method's own.
    - `out`: a folder for traces, JSON and curves; nothing is written without it.

    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)
    >>> compared = cf.compare_methods(problem, ["DecoupledProx", "FedDA"], rounds=60, candidates=3)
    >>> compared.results["DecoupledProx"]["final_optimality"] < compared.results["FedDA"]["final_optimality"]
    True
    """
    budget = _budget(rounds, bytes, gradients)
    candidates = check_int(candidates, "candidates", 1)
    if candidates > MOST_CANDIDATES:
        raise InputError(f"candidates={candidates} must be at most {MOST_CANDIDATES}: they are powers of two.")
    if out is not None:
        pyplot()  # refuses before anything has run, where figures cannot be drawn ...
        check_writable(Path(out), f"out={str(out)!r}")  # ... or nothing can be written
    chosen = methods_for(problem, methods)
    k = problem.n if participants is None else participants
    for method in chosen:  # refuse what cannot run, or cannot be paid for, before anything has run
        budget.rounds(default_steps(method, problem, tau).bind(problem, k), problem, k)
        checked_sampling(sampling, method, problem.weights, k)
    x_star = solve_pooled(problem)
    steps = Steps(len(chosen), stream)
    traces = {
        method.__name__: tuned(
            problem, method, budget, x_star, tau=tau, candidates=candidates, batch_size=batch_size,
            participants=participants, sampling=sampling, seed=seed, progress=steps.start(method.__name__),
        )
        for method in chosen
    }  # fmt: skip
    steps.finish()
    results = {name: _result(trace, accuracies) for name, trace in traces.items()}
    compared = MethodsCompared(problem.describe(), budget.unit, x_star.gradient_mapping, results, traces)
    if out is not None:
        compared.save(Path(out))
    return compared


def _result(trace: Trace, accuracies: Sequence[float]) -> dict[str, Any]:
    return {
        "to_accuracy": costs_to(trace, accuracies),
        "final_optimality": float(trace["optimality"][-1]),
        "rounds": int(trace["round"][-1]),
        "algorithm": trace.provenance["algorithm"],
        "tuning": trace.provenance["tuning"],
    }


def _budget(rounds: float | None, bytes: float | None, gradients: float | None) -> Budget:
    given = {"rounds": rounds, "bytes": bytes, "gradients": gradients}
    named = {unit: amount for unit, amount in given.items() if amount is not None} or {"rounds": 300.0}
    if len(named) > 1:
        raise InputError(f"give one budget: {' or '.join(named)}.")
    unit, amount = next(iter(named.items()))
    if not 1 <= amount < np.inf:
        raise InputError(f"{unit}={amount:g} must be at least 1, and finite.")
    return Budget(unit, float(amount))


def comparison_table(results: dict[str, dict[str, Any]], unit: str) -> str:
    """Cost in `unit` to each accuracy, the methods that get furthest first."""
    levels = list(next(iter(results.values()))["to_accuracy"])

    def cost(name: str, level: str) -> float:
        value = results[name]["to_accuracy"][level][unit]
        return np.inf if value is None else value

    order = sorted(results, key=lambda name: [cost(name, level) for level in reversed(levels)])
    rows = []
    for name in order:
        cells = [f"{cost(name, level):g}" if np.isfinite(cost(name, level)) else "-" for level in levels]
        tuning = results[name]["tuning"]
        edge = " (edge of the grid)" if tuning["at_edge"] else ""
        rows.append([name, *cells, f"{results[name]['final_optimality']:.1e}", f"{tuning['chosen_scale']:g}{edge}"])
    return text_table(["method", *(f"to {level}" for level in levels), "final", "step scale"], rows)
