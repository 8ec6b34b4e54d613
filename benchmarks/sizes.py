"""Do fits of awkward sizes finish, and in how much memory? Each case is a process of its own.

    python benchmarks/sizes.py [--limit 60] [--memory 4] [--only tiny]

`tiny`: 20,000 sites of one row, 20 columns. `unequal`: 300 sites of 1 to 3,000 rows (each size so many percent above the
last), 2,000 columns, 1.7 GiB of numbers; `mixed`: the same with the rows of all sites shuffled, which costs a second copy.
`sparse`: 300 sites of 1 to 3,000 rows, all sizes as likely, 2,000 columns, 1 % of the entries there. Estimators have nothing
set. Seconds are those of `fit`, by the clock and of all cores together; the peak is that of the whole process, the caller's
table included. Exit status 1 where a case takes longer than the limit, by the clock, or more memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

CASES = ("tiny", "unequal", "mixed", "sparse")
MODELS = ("lasso", "logistic")


def one_fit(case: str, model: str) -> None:
    """Fit, and print seconds and memory as JSON."""
    import numpy as np
    import scipy.sparse as sp

    import compfed as cf

    rng = np.random.default_rng(0)
    sizes = {
        "tiny": np.ones(20_000, int),
        "sparse": rng.integers(1, 3001, 300),
    }.get(case, np.rint(np.geomspace(1, 3000, 300)).astype(int))
    sites, columns = np.repeat(np.arange(len(sizes)), sizes), 20 if case == "tiny" else 2000
    sites = rng.permutation(sites) if case == "mixed" else sites
    if case == "sparse":
        X = 10.0 * sp.random(len(sites), columns, 0.01, format="csr", rng=rng, data_rvs=rng.standard_normal)
    else:
        X = rng.standard_normal((len(sites), columns))
    w = np.zeros(columns)
    w[:2] = 3.0, -2.0
    y = X @ w + 0.1 * rng.standard_normal(len(sites))
    estimator = cf.FederatedLasso() if model == "lasso" else cf.FederatedLogisticRegression()
    began, working = time.perf_counter(), time.process_time()
    estimator.fit(X, y if model == "lasso" else y > 0, sites=sites)
    seconds, peak = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    worked = time.process_time() - working
    print(json.dumps({"seconds": seconds, "cpu": worked, "GiB": peak, "holds": bool(estimator.certificate_.holds)}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--memory", type=float, default=4.0, metavar="GIB")
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--fit", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.fit:
        one_fit(*args.fit)
        return 0
    good = True
    for case in args.only:
        for model in MODELS:
            done = subprocess.run([sys.executable, __file__, "--fit", case, model], capture_output=True, text=True)
            if done.returncode:
                print(f"{case:<8} {model:<9} failed: {done.stderr.strip().splitlines()[-1]}")
                good = False
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            fits = found["seconds"] < args.limit and found["GiB"] < args.memory and found["holds"]
            good = good and fits
            print(
                f"{case:<8} {model:<9} {found['seconds']:6.1f} s  {found['cpu']:6.1f} s of CPU  {found['GiB']:5.2f} GiB  certificate "
                f"{'holds' if found['holds'] else 'does not hold'}{'' if fits else '  TOO MUCH'}",
                flush=True,
            )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
