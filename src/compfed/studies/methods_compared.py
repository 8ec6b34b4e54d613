"""`compfed compare`: one problem, many methods, one budget, and fair tuning.

Every method gets the same number of candidate step sizes (multiples of its own suggested one), each candidate the
whole budget, and all candidates of a method run as one program. The candidate that ends closest to x* is kept; the
candidates and the choice are in the trace's provenance.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

import compfed.algorithms as alg
from compfed.engines import grid
from compfed.engines.measures import cost_of_a_round
from compfed.errors import InputError
from compfed.problem.problem import Problem
from compfed.problem.regularisers import Zero
from compfed.report.figures import Line, Panel, draw, pyplot
from compfed.solvers.pooled import solve
from compfed.solvers.steps import RULES, suggest
from compfed.tools.progress import Steps
from compfed.tools.text import text_table
from compfed.trace import Trace

ACCURACIES = (1e-1, 1e-2, 1e-4, 1e-6, 1e-8)
COSTS = {"rounds": "round", "bytes": "bytes_up", "gradients": "gradients"}


@dataclass(frozen=True)
class Budget:
    """What every candidate may spend per client: rounds, bytes sent, or gradient evaluations."""

    unit: str
    amount: float

    def rounds(self, algorithm: alg.Algorithm, problem: Problem, participants: int) -> int:
        """How many rounds of `algorithm` the budget buys."""
        if self.unit == "rounds":
            return int(self.amount)
        cost = cost_of_a_round(algorithm, problem.d, problem.dtype, participants == problem.n)
        each = {"bytes": cost.bytes_up, "gradients": cost.gradients}[self.unit] * participants / problem.n
        rounds = int(self.amount // each)
        if rounds < 1:
            raise InputError(
                f"a budget of {self.amount:g} {self.unit} does not buy one round of {type(algorithm).__name__}, which "
                f"costs {each:g}; give more."
            )
        return rounds


def methods_for(problem: Problem, names: Sequence[str] | None) -> list[type[alg.Algorithm]]:
    """The named methods, or all that the problem allows (smooth-only ones only without a regulariser)."""
    if names:
        return [alg.find(name) for name in names]
    return [cls for cls in RULES if cls.composite or isinstance(problem.regulariser, Zero)]


def tuned(
    problem: Problem,
    method: type[alg.Algorithm],
    budget: Budget,
    x_star: Any,
    tau: int = 5,
    candidates: int = 7,
    batch_size: int | None = None,
    participants: int | None = None,
    seed: int = 0,
    progress: Any = None,
) -> Trace:
    """The best of `candidates` step sizes: factors 2^-k .. 2^k around the suggested one, each with the whole budget."""
    scales = 2.0 ** (np.arange(candidates) - candidates // 2)
    kinds = [suggest(method, problem, tau, scale) for scale in scales]
    k = problem.n if participants is None else participants
    rounds = budget.rounds(kinds[0].prepared(problem, k), problem, k)
    traces = grid(
        problem, kinds, rounds, batch_size=batch_size, participants=participants, seed=seed, reference=x_star,
        record_every=max(1, rounds // 1000), progress=progress,
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


def costs_to(trace: Trace, accuracies: Sequence[float]) -> dict[str, dict[str, float | None]]:
    """For each accuracy: rounds, bytes up and gradients per client when it is first reached; None if never."""
    found = {}
    for level in accuracies:
        hits = np.flatnonzero(trace["optimality"] <= level)
        found[f"{level:g}"] = {
            unit: (float(trace[column][hits[0]]) if hits.size else None) for unit, column in COSTS.items()
        }
    return found


def compare(
    problem: Problem,
    budget: Budget,
    out: Path,
    names: Sequence[str] | None = None,
    accuracies: Sequence[float] = ACCURACIES,
    stream: TextIO | None = None,
    **options: Any,
) -> dict[str, dict[str, Any]]:
    """Tune and run every method; write traces/, comparison.json and curves below `out`; returns the JSON's content."""
    pyplot()
    methods = methods_for(problem, names)
    k = problem.n if options.get("participants") is None else options["participants"]
    for method in methods:  # refuse what cannot run, or cannot be paid for, before anything has run
        budget.rounds(suggest(method, problem, options.get("tau", 5)).prepared(problem, k), problem, k)
    x_star = solve(problem)
    steps = Steps(len(methods), stream)
    results: dict[str, dict[str, Any]] = {}
    lines = []
    for i, method in enumerate(methods):
        name = method.__name__
        trace = tuned(problem, method, budget, x_star, progress=steps.start(name), **options)
        trace.save(out / "traces" / name)
        results[name] = {
            "to_accuracy": costs_to(trace, accuracies),
            "final_optimality": float(trace["optimality"][-1]),
            "rounds": int(trace["round"][-1]),
            "algorithm": trace.provenance["algorithm"],
            "tuning": trace.provenance["tuning"],
        }
        lines.append(Line(name, [trace], i))
    steps.finish()
    content = {
        "problem": problem.describe(),
        "x_star": {"gradient_mapping": x_star.gradient_mapping},
        "methods": results,
    }
    (out / "comparison.json").write_text(json.dumps(content, indent=2) + "\n")
    draw([Panel(f"Against {unit}", lines, x=column) for unit, column in COSTS.items()], out / "comparison")
    return results


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
