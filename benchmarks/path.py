"""What does a regularisation path cost? One run, side by side: a warm-started path and a cold fit for every alpha.

Fifty values of alpha from the one at which all coefficients are zero down to a thousandth of it, on tables that come
with scikit-learn, over their sites. Both routes end at the same tolerance (the default) and are called the way a
user calls them; both have run once before, so that nothing is compiled while the clock runs. They take turns, and each
is scored by its fastest turn. Prints seconds, communication rounds and the ratios; writes JSON.

    python benchmarks/path.py [--quick] [--out results/path.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import compfed as cf
from compfed.data import bundled
from compfed.data.bundled import BundledTable

TABLES: dict[str, tuple[Any, Callable[[], BundledTable]]] = {
    "logistic, breast cancer": (cf.FederatedLogisticRegression(), bundled.breast_cancer),
    "lasso, breast cancer": (cf.FederatedLasso(), bundled.breast_cancer),
    "lasso, diabetes": (cf.FederatedLasso(), bundled.diabetes),
    "elastic net, digits": (cf.FederatedElasticNet(), bundled.digits),
}


def cold(model: Any, table: BundledTable, alphas: np.ndarray) -> tuple[np.ndarray, int]:
    """Every alpha on its own, from zero."""
    fits = [type(model)(alpha=a).fit(table.X, table.y, sites=table.sites) for a in alphas]
    return np.array([fit.coef_ for fit in fits]), sum(fit.n_rounds_ for fit in fits)


def warm(model: Any, table: BundledTable, alphas: np.ndarray) -> tuple[np.ndarray, int]:
    path = cf.regularisation_path(model, table.X, table.y, table.sites, alphas=alphas)
    return path.coefs, path.rounds


def compare(name: str, n_alphas: int, turns: int) -> dict[str, Any]:
    model, make = TABLES[name]
    table = make()
    alphas = cf.regularisation_path(model, table.X, table.y, table.sites, n_alphas=n_alphas).alphas
    routes: dict[str, Callable] = {"cold": cold, "path": warm}
    seconds, rounds, coefs = {route: np.inf for route in routes}, {}, {}
    for turn in range(turns + 1):
        for route, run in routes.items():
            began = time.perf_counter()
            coefs[route], rounds[route] = run(model, table, alphas)
            if turn > 0:  # the first turn compiles
                seconds[route] = min(seconds[route], time.perf_counter() - began)
    size = table.X.std(axis=0)
    worst = max(
        np.linalg.norm((a - b) * size) / max(np.linalg.norm(b * size), 1e-300)
        for a, b in zip(coefs["path"], coefs["cold"], strict=True)
    )
    return {
        "table": name, "alphas": n_alphas, "seconds": seconds, "rounds": rounds,
        "seconds ratio": seconds["path"] / seconds["cold"], "rounds ratio": rounds["path"] / rounds["cold"],
        "largest difference": float(worst),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="A warm-started path against a cold fit for every alpha.")
    parser.add_argument("--quick", action="store_true", help="10 alphas, one turn, one table")
    parser.add_argument("--out", type=Path, default=Path("results/path.json"), metavar="FILE")
    args = parser.parse_args()
    names = ["lasso, diabetes"] if args.quick else list(TABLES)
    results = []
    for name in names:
        result = compare(name, 10 if args.quick else 50, 1 if args.quick else 3)
        results.append(result)
        s, r = result["seconds"], result["rounds"]
        print(
            f"{name:<26} cold {s['cold']:6.2f} s, {r['cold']:>6} rounds   path {s['path']:6.2f} s, {r['path']:>5} rounds   "
            f"ratio {result['seconds ratio']:.2f} in time, {result['rounds ratio']:.2f} in rounds   "
            f"difference {result['largest difference']:.0e}",
            flush=True,
        )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "machine": platform.machine()}
    args.out.write_text(json.dumps({"machine": machine, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
