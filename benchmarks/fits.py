"""How long does a fit take? The first in a new process, a warm one, before and after, and other solvers on the pooled rows.

    python benchmarks/fits.py [--other PATH/TO/OTHER/src] [--turns 3] [--limit 30] [--only logistic lasso] [--out results/fits.json]

Every estimator on breast cancer (569 x 30), digits (1,797 x 61), a correlated 2,000 x 500 and a correlated 100 x 20,000
problem, over four sites; alpha is a tenth of the least at which all coefficients are zero. Each turn is a process of its
own; the import is not counted. scikit-learn and skglm get the pooled rows and a tight tolerance; `error` is how far the
coefficients are from optimal, worked out in the same way for all (benchmarks/one_fit.py). The solvers take turns and the
table has the range over the turns. A process that runs past the limit is cut off, and shown as such.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

PROBLEMS = ("cancer", "digits", "2000 x 500", "100 x 20000")
MODELS = ("lasso", "elastic net", "logistic", "poisson", "huber", "group lasso", "multi-task lasso", "nuclear")
HERE = Path(__file__).parent


def turn(model: str, problem: str, solver: str, source: Path | None, limit: float) -> dict[str, Any] | None:
    """What one process says; None where a solver does not have the model."""
    environment = {**os.environ, **({} if source is None else {"PYTHONPATH": str(source)})}
    command = [sys.executable, str(HERE / "one_fit.py"), model, problem, solver]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        return {"cut": limit, **(json.loads(out.splitlines()[-1]) if out else {})}
    if process.returncode:
        return {"failed": err.strip().splitlines()[-1][:300]}
    return json.loads(out.splitlines()[-1])


def shown(turns: list[dict[str, Any]], key: str) -> str:
    """A range over turns, in seconds."""
    values = [t[key] for t in turns if t.get(key) is not None]
    if not values:
        last = turns[-1]
        return f"> {last['cut']:g}" if "cut" in last else "failed"
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def line(model: str, problem: str, who: str, turns: list[dict[str, Any]]) -> str:
    last = turns[-1]
    error = "" if last.get("error") is None else f"{last['error']:.0e}"
    rounds = "" if last.get("rounds") is None else str(last["rounds"])
    return (
        f"{model:<18}{problem:<13}{who:<14}{shown(turns, 'first'):>18}{shown(turns, 'warm'):>20}{error:>9}{rounds:>8}"
    )


def measured(model: str, problem: str, who: dict[str, tuple[str, Path | None]], turns: int, limit: float) -> Any:
    """The turns of everybody; who was cut off, failed, or does not have the model gets no further one."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in who}
    left = list(who)
    for k in range(turns):
        for name in left[:: -1 if k % 2 else 1]:
            done = turn(model, problem, *who[name], limit)
            found[name] += [] if done is None else [done]
            # skglm compiles for ten seconds in every process: the other solvers have one turn of three warm fits
            if done is None or "cut" in done or "failed" in done or who[name][0] != "compfed":
                left = [other for other in left if other != name]
    return {name: results for name, results in found.items() if results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, metavar="SRC", help="the src folder of another checkout: 'before'")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--limit", type=float, default=30.0, help="seconds a process may take")
    parser.add_argument("--only", nargs="*", default=MODELS, choices=MODELS, metavar="MODEL")
    parser.add_argument("--problems", nargs="*", default=PROBLEMS, metavar="PROBLEM")
    parser.add_argument("--out", type=Path, default=Path("results/fits.json"))
    args = parser.parse_args()
    who: dict[str, tuple[str, Path | None]] = {"compfed": ("compfed", HERE.parent / "src")}
    if args.other is not None:
        who["before"] = ("compfed", args.other.resolve())
    who |= {solver: (solver, None) for solver in ("scikit-learn", "skglm")}
    print(f"{'seconds':<45}{'first fit':>18}{'warm fit':>20}{'error':>9}{'rounds':>8}")
    fits = []
    for model in args.only:
        for problem in args.problems:
            for name, turns in measured(model, problem, who, args.turns, args.limit).items():
                print(line(model, problem, name, turns), flush=True)
                fits.append({"model": model, "problem": problem, "who": name, "turns": turns})
    args.out.parent.mkdir(parents=True, exist_ok=True)
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    args.out.write_text(json.dumps({"machine": machine, "fits": fits}, indent=1))


if __name__ == "__main__":
    main()
