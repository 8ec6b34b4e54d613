"""From a new process to the first result, and a second fit: the README's first two examples, and the diabetes table.

    python benchmarks/first_call.py [--turns 3] [--out results/first_call.json]

Each turn is a process of its own; seconds are from its start, imports included. The cache of compiled programs is empty for the turn
called "cold", and what that left for the others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import described

FIT = """
import compfed as cf
table = cf.data.bundled.breast_cancer()
cf.FederatedLogisticRegression(alpha=0.01).fit(table.X, table.y, sites=table.sites)
"""
SIMULATE = """
import compfed as cf
sites = cf.data.synthetic(alpha=10, beta=10, clients=30, samples=200, features=60, seed=0)
problem = cf.Problem(cf.losses.Logistic(ridge=0.01), cf.regularisers.L1(1e-3), sites)
x_star = cf.solve_pooled(problem)
cf.simulate(problem, cf.algorithms.DecoupledProx(eta=1.0, eta_g=1.0, tau=5), rounds=600, x_star=x_star)
"""
SECOND = """
import time
import compfed as cf
table = cf.data.bundled.diabetes()
took = []
for _ in range(6):
    began = time.perf_counter()
    cf.FederatedLasso().fit(table.X, table.y, sites=table.sites)
    took.append(time.perf_counter() - began)
print(min(took[1:]), took[0])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one warm turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/first_call.json"))
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "COMPFED_CACHE": cache}

        def run(code: str) -> tuple[float, str]:
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
            )
            return time.perf_counter() - began, done.stdout

        for name, code in (("first fit (README)", FIT), ("first simulation (README)", SIMULATE)):
            cold = run(code)[0]
            warm = [run(code)[0] for _ in range(1 if args.quick else args.turns)]
            results.append({"what": name, "cold_s": cold, "warm_s": min(warm)})
            print(f"{name:<28}cold cache {cold:.2f} s   warm cache {min(warm):.2f} s", flush=True)
        second, first = map(float, run(SECOND)[1].split())
        results.append({"what": "lasso, diabetes: second fit in a process", "cold_s": first, "warm_s": second})
        print(f"lasso on the diabetes table: first fit {1e3 * first:.0f} ms, second {1e3 * second:.1f} ms")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"machine": described(), "quick": args.quick, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
