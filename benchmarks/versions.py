"""Is this version slower than another one? Both on the same machine, in turns, each scored by its fastest turn.

    python benchmarks/versions.py --other PATH/TO/OTHER/src [--turns 5]

Times the first fit and the first simulation of a process (import and compilation included, nothing cached), warm fits of
three estimators, a path, 50 rounds of the paper's problem, and a grid of 16 runs. Each turn is a process of its own that imports
one of the versions; prints the ratio of this one to the other for every case, and the range over the turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

CASES = """
import json, time, warnings
began = time.perf_counter()
import numpy as np
import compfed as cf
warnings.simplefilter("ignore")
out = {}
diabetes = cf.data.bundled.diabetes()
cf.FederatedLasso().fit(diabetes.X, diabetes.y, sites=diabetes.sites)
out["first fit, lasso"] = time.perf_counter() - began
began = time.perf_counter()
small = cf.Problem(cf.losses.Logistic(ridge=0.01), cf.regularisers.L1(1e-4), cf.data.synthetic(clients=5, samples=50, features=10))
cf.simulate(small, cf.algorithms.DecoupledProx(eta=0.1, tau=5), 20)
out["first simulation"] = time.perf_counter() - began
diabetes, cancer = cf.data.bundled.diabetes(), cf.data.bundled.breast_cancer()
sites = cf.data.synthetic(alpha=10, beta=10, clients=30, samples=2000, features=60, seed=0)
problem = cf.Problem(cf.losses.Logistic(ridge=0.01), cf.regularisers.L1(1e-4), sites)
A1 = cf.algorithms.DecoupledProx(eta=1.0, tau=5)
def fit(model, table):
    return lambda: model.fit(table.X, table.y, sites=table.sites)
cases = {
    "lasso, diabetes": fit(cf.FederatedLasso(), diabetes),
    "elastic net, diabetes": fit(cf.FederatedElasticNet(), diabetes),
    "logistic (alpha 0.1), cancer": fit(cf.FederatedLogisticRegression(alpha=0.1), cancer),
    "path of 20, diabetes": lambda: cf.regularisation_path(
        cf.FederatedLasso(), diabetes.X, diabetes.y, diabetes.sites, n_alphas=20, eps=0.1
    ),
    "simulate, full gradients": lambda: cf.simulate(problem, A1, 50, record_every=50),
    "simulate, b = 20": lambda: cf.simulate(problem, A1, 50, record_every=50, batch_size=20),
    "simulate, 10 of 30 clients": lambda: cf.simulate(problem, A1, 50, record_every=50, participants=10),
    "grid of 16, full gradients": lambda: cf.grid(problem, A1, 10, {"eta": list(np.geomspace(0.1, 1, 16))}, record_every=10),
}
for name, run in cases.items():
    run()
    best = np.inf
    for _ in range(4 if "grid" in name else 12):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    out[name] = best
print(json.dumps(out))
"""


def turn(source: Path) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(source), "COMPFED_CACHE": "off"}
    done = subprocess.run([sys.executable, "-c", CASES], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, metavar="SRC", help="the src folder of another checkout")
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    mine = Path(__file__).parents[1] / "src"
    ratios: dict[str, list[float]] = {}
    for k in range(args.turns):
        pair = [turn(source) for source in ((args.other, mine) if k % 2 else (mine, args.other))]
        new, old = pair[::-1] if k % 2 else pair
        for name in new:
            ratios.setdefault(name, []).append(new[name] / old[name])
        print(f"turn {k + 1} of {args.turns}", file=sys.stderr, flush=True)
    for name, found in ratios.items():
        print(f"{name:<32} {min(found):.2f} to {max(found):.2f}")


if __name__ == "__main__":
    main()
