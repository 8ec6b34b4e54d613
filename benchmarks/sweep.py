"""What does a grid of 16 step sizes x 5 seeds cost, in runs? One program against one run, warm, in turns.

    python benchmarks/sweep.py [--quick] [--one-device] [--dtype float64] [--runs 3] [--out results/sweep.json]

The paper's size, on all cores or a GPU. With full gradients and every client nothing is drawn: seeds are worked out once, and 16 step sizes
share each pass over the rows as a product of matrices. With mini-batches of 20 the members of one seed share its rows. Rounds alone are
timed, and whole calls with every round recorded, of which objectives and gradient mappings of all members are a large part.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from machine import described

import compfed as cf


def turn(problem: cf.Problem, over: dict[str, list], batch: int | None, rounds: int) -> dict[str, float]:
    """Milliseconds: a round of one run and of the grid, and whole calls of both with every round recorded."""
    method = cf.algorithms.DecoupledProx(eta=1.0, tau=5)
    one = cf.simulate(problem, method, 5 * rounds, batch_size=batch, record_every=5 * rounds)
    many = cf.grid(problem, method, rounds, over, batch_size=batch, record_every=rounds)
    began = time.perf_counter()
    cf.simulate(problem, method, rounds, batch_size=batch)
    between = time.perf_counter()
    cf.grid(problem, method, rounds, over, batch_size=batch)
    ended = time.perf_counter()
    return {
        "one_ms": 1e3 * float(one["seconds"][-1]) / (5 * rounds),
        "grid_ms": 1e3 * float(many[0]["seconds"][-1]) / rounds,
        "one_call_ms": 1e3 * (between - began),
        "grid_call_ms": 1e3 * (ended - between),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small problem, two turns")
    parser.add_argument("--out", type=Path, default=Path("results/sweep.json"))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--one-device", action="store_true", help="leave JAX with one CPU device")
    parser.add_argument("--dtype", default="float64", choices=["float64", "float32"])
    args = parser.parse_args()
    devices = 1 if args.one_device else cf.use_all_cores(awake=True)
    sites = cf.data.synthetic(seed=0, clients=6 if args.quick else 30, samples=200 if args.quick else 2000)
    problem = cf.Problem(cf.losses.Logistic(ridge=0.01), cf.regularisers.L1(1e-4), sites, dtype=args.dtype)
    steps, seeds = np.geomspace(0.05, 1.0, 16).tolist(), list(range(5))
    grids = {"16 step sizes": {"eta": steps}, "16 step sizes x 5 seeds": {"eta": steps, "seed": seeds}}
    results = []
    for batch, rounds in ((None, 10), (20, 100)):
        kind = "full gradients" if batch is None else f"b = {batch}"
        for name, over in grids.items():
            row: dict[str, Any] = {"gradients": kind, "grid": name}
            for _ in range(1 if args.quick else args.runs):  # of several turns; the fastest of each counts
                turns = [turn(problem, over, batch, rounds) for _ in range(2 if args.quick else 5)]
                for what in turns[0]:
                    row.setdefault(what, []).append(min(t[what] for t in turns))
            for ratios, many, one in (("ratios", "grid_ms", "one_ms"), ("call_ratios", "grid_call_ms", "one_call_ms")):
                row[ratios] = [m / o for m, o in zip(row[many], row[one], strict=True)]
            results.append(row)
            said = "  ".join(f"{what} {min(v):.4g} to {max(v):.4g}" for what, v in row.items() if isinstance(v, list))
            print(f"{kind:<15}{name:<26}{said}", flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    device = jax.devices()[0]
    where = {"devices": devices, "device": device.device_kind, "platform": device.platform}
    args.out.write_text(
        json.dumps({"machine": described() | where, "quick": args.quick, "results": results}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
