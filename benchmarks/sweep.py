"""What does a grid of 16 step sizes x 5 seeds cost, in runs? One program against one run, warm, in turns.

    python benchmarks/sweep.py [--quick] [--one-device] [--dtype float64] [--runs 3] [--out results/sweep.json]

The paper's size, on all cores or a GPU. With full gradients and every client nothing is drawn: seeds are worked out once, and 16 step sizes
share each pass over the rows as a product of matrices. With mini-batches of 20 the members of one seed share its rows.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import jax
import numpy as np
from machine import described

import compfed as cf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small problem, two turns")
    parser.add_argument("--out", type=Path, default=Path("results/sweep.json"))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--one-device", action="store_true", help="leave JAX with one CPU device")
    parser.add_argument("--dtype", default="float64", choices=["float64", "float32"])
    args = parser.parse_args()
    devices = 1 if args.one_device else cf.use_all_cores()
    sites = cf.data.synthetic(seed=0, clients=6 if args.quick else 30, samples=200 if args.quick else 2000)
    problem = cf.Problem(cf.losses.Logistic(ridge=0.01), cf.regularisers.L1(1e-4), sites, dtype=args.dtype)
    algorithm = cf.algorithms.DecoupledProx(eta=1.0, tau=5)
    steps, seeds = np.geomspace(0.05, 1.0, 16).tolist(), list(range(5))
    grids = {"16 step sizes": {"eta": steps}, "16 step sizes x 5 seeds": {"eta": steps, "seed": seeds}}
    results = []
    for batch, rounds in ((None, 10), (20, 100)):
        kind = "full gradients" if batch is None else f"b = {batch}"
        for name, over in grids.items():
            one, many = [], []
            for _ in range(1 if args.quick else args.runs):
                alone, together = [], []
                for _ in range(2 if args.quick else 5):  # turns; the fastest of each counts
                    run = cf.simulate(problem, algorithm, 5 * rounds, batch_size=batch, record_every=5 * rounds)
                    alone.append(float(run["seconds"][-1]) / (5 * rounds))
                    traces = cf.grid(problem, algorithm, rounds, over, batch_size=batch, record_every=rounds)
                    together.append(float(traces[0]["seconds"][-1]) / rounds)
                one.append(1e3 * min(alone))
                many.append(1e3 * min(together))
            ratios = [m / o for m, o in zip(many, one, strict=True)]
            results.append({"gradients": kind, "grid": name, "one_ms": one, "grid_ms": many, "ratios": ratios})
            print(
                f"{kind:<15}{name:<26}one {min(one):8.3f} to {max(one):8.3f} ms  grid {min(many):9.3f} to {max(many):9.3f} ms  "
                f"{min(ratios):6.2f} to {max(ratios):6.2f} runs",
                flush=True,
            )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    device = jax.devices()[0]
    where = {"devices": devices, "device": device.device_kind, "platform": device.platform}
    args.out.write_text(
        json.dumps({"machine": described() | where, "quick": args.quick, "results": results}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
