"""What does it cost to choose alpha? A path of 50 alphas with 5 folds by compfed, glum, skglm and scikit-learn, side by side.

    python benchmarks/cv.py [--quick] [--install] [--turns 3] [--only "50,000 x 60"] [--models logistic] [--add]

Everybody gets the same table, alphas, folds and objective (the l1 norm, an intercept), in a process of its own, once on one core
with one thread and once with all cores. A warm-up on 400 rows comes before; reading the CSV files and fitting are timed apart;
seconds of the processor are those of all threads. compfed has its default tolerance. The others have one at which their coefficients
are within 0.0001 of compfed's largest one (benchmarks/peers/path_with_folds.py): `difference` says how near they come, and whoever is
further away, there or in the losses on the rows held out (0.001), is marked, with an error at the end. scikit-learn: saga for logistic
regression, lasso_path for the lasso; it has no Poisson regression with an l1 norm. Who has used --limit seconds of the processor begins
no further path: the cost is extrapolated from the rows done, and marked. A process that takes 20 times as long is stopped.
Columns are an AR(1) process of correlation 0.5; 15 of the coefficients are not zero; eight sites of equal size.
glum and skglm live in benchmarks/.environments/cv (--install); who is not installed is left out.
At the end: how compfed's own seconds grow with rows, columns, alphas, folds and sites. --only leaves out the other tables; --add keeps
the turns that are in the file. --quick: one small table, one turn, one core.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from against_peers import ENVIRONMENTS, HERE, ONE_THREAD, PEERS, install
from machine import described
from threadpoolctl import threadpool_limits

import compfed as cf
from compfed.errors import EdgeOfGridWarning
from compfed.splits import cv_splits

SCRIPT, SITES, NEAR, LOSSES = PEERS / "path_with_folds.py", 8, 1e-4, 1e-3
SIZES = {
    "2,000 x 30": False,
    "50,000 x 60": False,
    "200,000 x 60": True,
    "2,000 x 2,000": False,
}  # whether in CSV files
MODELS = ("logistic", "lasso", "poisson")
CORES = ("one", "all")
ENGINES = ("compfed", "glum", "skglm", "scikit-learn")
GROWTH = (0.5, 1, 2, 4)  # times the base
BASE = {"rows": 25_000, "columns": 30, "alphas": 25, "folds": 5, "sites": 8}


def made(model: str, n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    for j in range(1, d):
        X[:, j] = 0.5 * X[:, j - 1] + 0.75**0.5 * X[:, j]
    X, w = X.round(6), np.zeros(d)
    w[rng.choice(d, min(15, d), replace=False)] = rng.normal(0, 0.5, min(15, d))
    z = X @ w
    if model == "lasso":
        return X, z + rng.standard_normal(n)
    return X, rng.poisson(np.exp(z / 4)) if model == "poisson" else (rng.random(n) < 1 / (1 + np.exp(0.3 - z))).astype(
        int
    )


def grid(X: np.ndarray, y: np.ndarray, alphas: int) -> np.ndarray:
    """From the least alpha at which all coefficients are zero to a thousandth of it: the gradient is the same in all models."""
    largest = np.abs(X.T @ (y - y.mean())).max() / len(y)
    return np.geomspace(largest, largest / 1000, alphas)


def write(folder: Path, X: np.ndarray, y: np.ndarray, by_class: bool, alphas: int, folds: int, in_files: bool) -> None:
    """Grid, folds and rows, for everybody."""
    fold = np.empty(len(y), int)
    parts = np.array_split(np.arange(len(y)), SITES)
    split: Any = cv_splits(folds, 0, [len(rows) for rows in parts], by_class)[0]
    for site, rows in enumerate(parts):  # as the sites assign them
        facts = SimpleNamespace(index=site, number=site, labels=y[rows], buckets_of_rows=None)
        fold[rows] = split.assign_folds(facts)
    few = slice(0, 400)
    np.savez(folder / "grid.npz", alphas=grid(X, y, alphas), fold=fold, few_X=X[few], few_y=y[few])
    if not in_files:
        np.savez(folder / "rows.npz", X=X, y=y)
        return
    import pandas as pd

    table = pd.DataFrame(X).add_prefix("x").assign(label=y)
    for site, rows in enumerate(parts):
        table.iloc[rows].to_csv(folder / f"site{site}.csv", index=False)


def turn(engine: str, model: str, folder: Path, limit: float, one_core: bool, out: Path | None) -> dict[str, Any]:
    """What an engine says of one run, or why it says nothing."""
    apart = engine in ("glum", "skglm")
    python = ENVIRONMENTS / "cv" / "bin" / "python" if apart else Path(sys.executable)
    if not python.exists():
        return {"engine": engine, "failed": "not installed (--install)"}
    paths = [str(PEERS)] if apart else [str(HERE.parent / "src"), str(PEERS)]
    alone = {**ONE_THREAD, "ONE_CORE": "1"} if one_core else {}
    environment = {**os.environ, **alone, "PYTHONPATH": os.pathsep.join(paths)}
    command = [str(python), str(SCRIPT), engine, model, str(folder), str(limit), *([str(out)] if out else [])]

    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20 * limit)
    except subprocess.TimeoutExpired:
        return {"engine": engine, "failed": f"no path within {20 * limit:g} s"}
    said = [line for line in done.stdout.splitlines() if line.startswith('{"engine"')]
    failed = (done.stderr.strip().splitlines() or ["no output"])[-1][:200]
    return json.loads(said[-1]) if said else {"engine": engine, "failed": failed}


def compared(
    folder: Path, engines: Sequence[str], model: str, limit: float, cores: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Every engine once on one core and once on all, and how far its coefficients are from compfed's."""
    reference = None
    for used in cores:
        for engine in engines:
            if engine == "scikit-learn" and model == "poisson":
                continue
            out = folder / "model.npz"
            said = turn(engine, model, folder, limit, used == "one", out)
            if "failed" not in said:
                with np.load(out) as model_of:
                    got = dict(model_of)
                reference = got if reference is None and engine == "compfed" else reference
                if reference is not None:
                    coefs, losses = reference["coefs"], reference["losses"]
                    said["difference"] = float(np.abs(got["coefs"] - coefs).max() / np.abs(coefs).max())
                    if said["part"] == 1:
                        said["losses differ"] = float(np.abs(got["losses"] - losses).max() / np.abs(losses).max())
                        best = [each.mean(axis=0).argmin() for each in (got["losses"], losses)]
                        said["same alpha"] = bool(best[0] == best[1])
            yield {"cores": used, "model": model} | said


def is_far(r: dict[str, Any]) -> bool:
    """Whether coefficients, or the losses on the rows held out, are not compfed's: other folds show in the losses."""
    return r.get("difference", 0.0) > NEAR or r.get("losses differ", 0.0) > LOSSES


def line(r: dict[str, Any]) -> str:
    head = f"{r['table']:<14} {r['model']:<9} {r['cores']:<4} {r['engine']:<13}"
    if "failed" in r:
        return f"{head} failed: {r['failed']}"
    took = r["fitting"]
    read = f"   read {r['reading']['cpu']:6.2f} CPU s" if r["reading"] else ""
    share = f"   extrapolated from {r['part']:.0%} of the rows" if r["part"] < 1 else ""
    far = "  FURTHER AWAY" if is_far(r) else ""
    return (
        f"{head} {took['cpu'] / r['part']:8.2f} CPU s {took['wall'] / r['part']:8.2f} s   peak {r['peak'] or 0:6.0f} MB{read}   "
        f"difference {r.get('difference', np.nan):.0e}{far}{share}"
    )


def growth(base: dict[str, int], turns: int) -> list[dict[str, Any]]:
    """compfed's seconds of the processor, in this process on one BLAS thread, where one number is changed at a time."""
    found = []
    X, y = made("logistic", int(GROWTH[-1] * base["rows"]), int(GROWTH[-1] * base["columns"]))
    for varied in base:
        values, seconds = [int(factor * base[varied]) for factor in GROWTH], []
        for value in values:
            s = base | {varied: value}
            A, b = X[: s["rows"], : s["columns"]].copy(), y[: s["rows"]]
            alphas, sites = grid(A, b, s["alphas"]), np.sort(np.arange(len(b)) % s["sites"])
            took = []
            for _ in range(turns + 1):  # the first warms up
                began = time.process_time()
                with threadpool_limits(1), warnings.catch_warnings():
                    warnings.simplefilter("ignore", EdgeOfGridWarning)  # the grid is given, and alpha does not matter
                    cf.FederatedLogisticRegressionCV(alphas, cv=s["folds"]).fit(A, b, sites=sites)
                took.append(time.process_time() - began)
            seconds.append(took[1:])
        slope = float(np.polyfit(np.log(values), np.log([min(t) for t in seconds]), 1)[0])
        found.append({"varied": varied, "base": base, "values": values, "cpu": seconds, "exponent": slope})
        shown = ", ".join(f"{v}: {min(t):.2f}" for v, t in zip(values, seconds, strict=True))
        print(f"{varied:<8} {shown}   (CPU s, grows like {varied}^{slope:.2f})", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--install", action="store_true", help="make the environment of glum and skglm first")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--limit", type=float, default=60.0, metavar="SECONDS", help="of the processor")
    tables = [*SIZES, "growth"]
    parser.add_argument("--only", nargs="*", default=tables, choices=tables, metavar="TABLE")
    parser.add_argument("--models", nargs="*", default=MODELS, choices=MODELS)
    parser.add_argument("--engines", nargs="*", default=ENGINES, choices=ENGINES)
    parser.add_argument("--cores", nargs="*", default=CORES, choices=CORES)
    parser.add_argument("--add", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("results/cv.json"))
    args = parser.parse_args()
    if args.install:
        install("cv")
    found: dict[str, Any] = {"machine": described(), "quick": args.quick, "results": [], "growth": []}
    if args.add and args.out.exists():
        found |= {name: json.loads(args.out.read_text())[name] for name in ("results", "growth")}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    results = found["results"]
    sizes = {"600 x 10": True} if args.quick else {name: SIZES[name] for name in args.only if name in SIZES}
    alphas, folds, cores = (10, 3, CORES[:1]) if args.quick else (50, 5, args.cores)
    for table, in_files in sizes.items():
        for model in args.models[:1] if args.quick else args.models:
            with tempfile.TemporaryDirectory() as name:
                n, d = (int(number.replace(",", "")) for number in table.split(" x "))
                write(Path(name), *made(model, n, d), model == "logistic", alphas, folds, in_files)
                for _ in range(1 if args.quick else args.turns):
                    began = {"table": table, "load": round(os.getloadavg()[0], 1)}
                    for r in compared(Path(name), args.engines, model, args.limit, cores):
                        results.append(began | r)
                        args.out.write_text(json.dumps(found, indent=1) + "\n")
                        print(line(results[-1]), flush=True)
    if "growth" in args.only:
        base = {"rows": 400, "columns": 4, "alphas": 4, "folds": 4, "sites": 4} if args.quick else BASE
        found["growth"] = growth(base, 1 if args.quick else args.turns)
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    wrong = [r for r in results if is_far(r)]
    if wrong:
        raise SystemExit("other coefficients or losses than compfed's:\n" + "\n".join(map(line, wrong)))


if __name__ == "__main__":
    main()
