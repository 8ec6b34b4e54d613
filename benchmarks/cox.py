"""How long does a Cox model of 100,000 rows and 100 columns take? compfed and scikit-survival's Newton, in turns.

    python benchmarks/cox.py [--quick] [--install] [--turns 3] [--out results/cox.json]

Both get the same rows of one site, no penalty and Efron's ties, in a process of its own; reading and a warm-up are not timed. The
ratio is that of the two in the same turn. Coefficients must agree to 1e-4 of the largest: both search with their default tolerance.
scikit-survival lives in benchmarks/.environments/survival (--install); if it is not installed, it is left out, and a line says so.
--quick: 1,000 rows and 10 columns, one turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from against_peers import ENVIRONMENTS, HERE, PEERS, install
from machine import described

NEAR = 1e-4  # of the largest coefficient
ENGINES = ("compfed", "scikit-survival")


def make(path: Path, n: int, d: int) -> None:
    """Survival times with ties and a third of the rows censored."""
    rng = np.random.default_rng(0)
    X, beta = rng.standard_normal((n, d)), np.where(np.arange(d) % 3 == 0, 0.1, 0.0)
    time, followed = rng.exponential(np.exp(-X @ beta)), 2.0 * rng.exponential(size=n)
    observed = np.ceil(1000 * np.minimum(time, followed)) / 1000
    np.savez(path, X=X, time=observed, event=time <= followed)


def turn(engine: str, data: Path) -> dict[str, Any]:
    """What an engine took, or why it says nothing."""
    here = engine == "compfed"
    python = Path(sys.executable) if here else ENVIRONMENTS / "survival" / "bin" / "python"
    if not python.exists():
        return {"engine": engine, "failed": "not installed (--install)"}
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "src") if here else ""}
    command = [str(python), str(PEERS / "cox_newton.py"), engine, str(data)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    said = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if said:
        return json.loads(said[-1])
    return {"engine": engine, "failed": (done.stderr.strip().splitlines() or ["no output"])[-1][:200]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--install", action="store_true", help="make the environment of scikit-survival first")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/cox.json"))
    args = parser.parse_args()
    if args.install:
        install("survival")
    n, d, turns = (1_000, 10, 1) if args.quick else (100_000, 100, args.turns)
    found: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "rows.npz"
        make(data, n, d)
        for _ in range(turns):
            for engine in ENGINES:
                found[engine].append(turn(engine, data))
    print(f"Cox, {n:,} rows x {d} columns, Efron, no penalty; {turns} turns")
    apart, ratios = 0.0, []
    for ours, theirs in zip(*found.values(), strict=True):
        if "failed" in ours or "failed" in theirs:
            continue
        a, b = np.array(ours["coef"]), np.array(theirs["coef"])
        apart = max(apart, float(np.abs(a - b).max() / np.abs(b).max()))
        ratios.append(theirs["seconds"] / ours["seconds"])
    for engine, each in found.items():
        good = [t["seconds"] for t in each if "seconds" in t]
        if good:
            print(f"{engine:<18}{np.median(good):8.2f} s ({min(good):.2f} to {max(good):.2f}), {each[0]['version']}")
        else:
            print(f"{engine:<18}{each[-1]['failed']}")
    if ratios:
        print(f"compfed is {np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) times as fast")
        print(f"coefficients differ by {apart:.0e} of the largest")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    size = {"rows": n, "columns": d, "quick": args.quick}
    args.out.write_text(json.dumps({"machine": described(), "size": size, "turns": found, "ratios": ratios}) + "\n")
    failed = any("failed" in t for t in found["compfed"])
    return int(failed or apart > NEAR)


if __name__ == "__main__" and main():
    sys.exit(1)
