"""How fast is a round? One run, side by side: a hand-written NumPy loop, the reference engine and the simulator.

The problem has the paper's size (30 clients, 2000 rows each, 60 features, tau = 5, float64), once with full gradients
and once with mini-batches of 20 rows drawn without replacement by everyone. The contestants take turns; in a run each is scored by
its fastest of ten, so that a busy machine hurts them alike, and the range over runs is printed. Prints ratios to the
NumPy loop; writes JSON.

    python benchmarks/rounds.py [--quick] [--one-device] [--core-taken] [--asleep] [--runs 3] [--out results/rounds.json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from machine import described

import compfed as cf
from compfed._utils import compilation as host_devices

ETA, TAU, LAM, RIDGE, BATCH = 1.0, 5, 1e-4, 0.01, 20


def numpy_rounds(A: list[np.ndarray], y: list[np.ndarray], rounds: int, batch: int | None, seed: int = 0) -> np.ndarray:
    """Algorithm 1 as one would write it by hand: clients in a Python loop, each on its own rows."""
    rng = np.random.default_rng(seed)
    n, d = len(A), A[0].shape[1]
    x, c, S = np.zeros(d), np.zeros((n, d)), np.zeros((n, d))

    def soft(v: np.ndarray, t: float) -> np.ndarray:
        return np.sign(v) * np.maximum(np.abs(v) - t * LAM, 0.0)

    for _ in range(rounds):
        p = soft(x, ETA * TAU)
        total = np.zeros(d)
        for i in range(n):
            z_hat, z, S[i] = p, p, 0.0
            for t in range(TAU):
                a, b = A[i], y[i]
                if batch is not None:
                    rows = rng.choice(len(a), batch, replace=False)
                    a, b = a[rows], b[rows]
                q = a.T @ (-b / (1.0 + np.exp(b * (a @ z)))) / len(a) + RIDGE * z
                S[i] += q
                z_hat = z_hat - ETA * (q + c[i])
                z = soft(z_hat, (t + 1) * ETA)
            total += p - ETA * S[i]
        x = total / n
        c = (p - x) / (ETA * TAU) - S / TAU
    return soft(x, ETA * TAU)


def turns(contestants: dict[str, Callable[[int], float]], rounds: dict[str, int], count: int) -> dict[str, float]:
    """Seconds a round of each, in its fastest turn."""
    best = dict.fromkeys(contestants, np.inf)
    for _ in range(count):
        for name, run in contestants.items():
            best[name] = min(best[name], run(rounds[name]) / rounds[name])
    return best


def contest(problem: cf.Problem, batch: int | None, quick: bool, runs: int) -> list[dict[str, Any]]:
    """What each contestant took, run by run."""
    A, y = (list(part) for part in (problem.sites.features, problem.sites.labels))
    algorithm = cf.algorithms.DecoupledProx(eta=ETA, tau=TAU)
    rounds = {"numpy": 40, "reference": 4, "simulate": 80 if batch is None else 1600}
    if quick:
        rounds = {name: max(r // 4, 2) for name, r in rounds.items()}

    def by_hand(r: int) -> float:
        began = time.perf_counter()
        numpy_rounds(A, y, r, batch)
        return time.perf_counter() - began

    def engine(run: Callable[..., cf.Trace]) -> Callable[[int], float]:
        # the seconds column: rounds only, without compilation and measuring
        def timed(k: int) -> float:
            return float(run(problem, algorithm, k, batch_size=batch, record_every=k)["seconds"][-1])

        return timed

    contestants = {"numpy": by_hand, "reference": engine(cf.simulation.run_plain), "simulate": engine(cf.simulate)}
    found = [turns(contestants, rounds, 2 if quick else 10) for _ in range(runs)]
    rows = []
    for name in contestants:
        ratios = [seconds["numpy"] / seconds[name] for seconds in found]
        row = {"gradients": "full" if batch is None else f"b={batch}", "engine": name, "ratios": ratios}
        row |= {"ms_per_round": [1e3 * seconds[name] for seconds in found]}
        rows.append(row)
        low, high = min(row["ms_per_round"]), max(row["ms_per_round"])
        took = f"{row['gradients']:>5} {name:>10} {low:9.3f} to {high:7.3f} ms/round"
        print(f"{took} {min(ratios):8.2f} to {max(ratios):5.2f} x NumPy", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, turns and runs")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/rounds.json"))
    parser.add_argument(
        "--one-device", action="store_true", help="leave JAX with one CPU device, as a user who asks for nothing"
    )
    parser.add_argument("--core-taken", action="store_true", help="beside a process that keeps one core busy")
    parser.add_argument("--asleep", action="store_true", help="cores may sleep, as `use_all_cores()` leaves it")
    args = parser.parse_args()
    devices = 1 if args.one_device else cf.use_all_cores(awake=not args.asleep)
    problem = cf.Problem(cf.losses.Logistic(ridge=RIDGE), cf.regularisers.L1(LAM), cf.data.synthetic(seed=0))
    machine = described() | {
        "devices": devices,
        "a core taken": args.core_taken,
        "awake": not (args.asleep or args.one_device) and os.access(host_devices.CPU_LATENCY_FILE, os.W_OK),
    }
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if args.core_taken else None
    try:
        results = [
            row
            for batch in (None, BATCH)
            for row in contest(problem, batch, args.quick, 1 if args.quick else args.runs)
        ]
    finally:
        if other is not None:
            other.kill()
    A, y = (list(part) for part in (problem.sites.features, problem.sites.labels))
    apart = cf.simulate(problem, cf.algorithms.DecoupledProx(eta=ETA, tau=TAU), 20).x - numpy_rounds(A, y, 20, None)
    print(f"NumPy and simulate differ by {np.abs(apart).max():.1e} after 20 rounds of full gradients")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"machine": machine, "quick": args.quick, "results": results}, indent=2) + "\n")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
