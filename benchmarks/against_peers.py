"""compfed against a NumPy loop, Flower's simulation engine, pfl-research and fluke: the same rows and local steps, warm.

    python benchmarks/against_peers.py [--quick] [--turns 5] [--install] [--out results/peers.json]

30 clients x 2,000 rows x 60 features, logistic loss, five full-gradient steps a round, every client in every round. Each peer runs in
an environment of its own under benchmarks/.environments, made by --install; a peer that is not installed is left out,
and a line says so. The NumPy
loop, pfl with a NumPy model and Flower run Algorithm 1 in float64 and must end at compfed's model; fluke and pfl with
PyTorch run FedAvg, which does less per step, in float32, and are set against compfed in float32. All take turns; a
contestant's figure is the mean round of a turn; of the turns, and of the ratios in them, median and range are printed. Flower's
simulation looks for replies ten times a second, so that a round takes one or two tenths; a second row has it look all the time.
--quick: 6 clients x 200 rows, for trying the script out.
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
from machine import described

HERE = Path(__file__).parent
PEERS, ENVIRONMENTS = HERE / "peers", HERE / ".environments"
NEEDS = {
    "pfl": ["pfl", "torch"],
    "flower": ["flwr[simulation]"],
    "fluke": ["fluke-fl"],
    "cv": ["glum>=3.4", "skglm>=0.5", "pandas"],  # of cv.py
    "survival": ["scikit-survival"],  # of cox.py
}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# name: (environment, script and arguments, settings, what it is compared with)
CONTESTANTS: dict[str, tuple[str | None, list[str], dict[str, str], str]] = {
    "compfed, float64": (None, ["compfed_rounds.py", "float64"], {}, ""),
    "pfl, NumPy model": ("pfl", ["pfl_numpy.py"], ONE_THREAD, "float64"),
    "compfed, float32": (None, ["compfed_rounds.py", "float32"], {}, ""),
    "NumPy loop, all threads": (None, ["numpy_loop.py"], {}, "float64"),
    "NumPy loop, one thread": (None, ["numpy_loop.py"], ONE_THREAD, "float64"),
    "Flower simulation": ("flower", ["flower_simulation.py"], ONE_THREAD, "float64"),
    "Flower simulation, looking all the time": (
        "flower",
        ["flower_simulation.py"],
        ONE_THREAD | {"PEERS_WAIT": "0.001"},
        "float64",
    ),
    "pfl, PyTorch": ("pfl", ["pfl_torch.py"], {}, "float32"),
    "pfl, PyTorch, one thread": ("pfl", ["pfl_torch.py"], ONE_THREAD, "float32"),
    "fluke": ("fluke", ["fluke_fedavg.py"], {}, "float32"),
    "fluke, one thread": ("fluke", ["fluke_fedavg.py"], ONE_THREAD, "float32"),
}
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def install(*names: str) -> None:
    """An environment for each peer, where there is none yet."""
    for name in names:
        packages = NEEDS[name]
        place = ENVIRONMENTS / name
        if not (place / "bin" / "python").exists():
            print(f"installing {', '.join(packages)}", flush=True)
            subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
            subprocess.run([str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages], check=False)


def turn(name: str, data: Path, rounds: int) -> dict[str, Any]:
    """What a contestant says of its rounds, or why it says nothing."""
    where, script, settings, _ = CONTESTANTS[name]
    python = sys.executable if where is None else str(ENVIRONMENTS / where / "bin" / "python")
    if not Path(python).exists():
        return {"failed": "not installed (--install)"}
    environment = {**os.environ, **QUIET, **settings, "PEERS_DATA": str(data), "PEERS_ROUNDS": str(rounds)}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(HERE.parent / "src"), str(PEERS)] if where is None else [str(PEERS)]
    )
    environment["FLWR_HOME"] = str(data.parent / "flower")
    command = [python, str(PEERS / script[0]), *script[1:]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    said = [line for line in done.stdout.splitlines() if line.startswith('{"name"')]
    return json.loads(said[-1]) if said else {"failed": (done.stderr.strip().splitlines() or ["no output"])[-1][:200]}


def row_of(name: str, found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """What a contestant took, turn by turn, and how often that is what compfed took in the same turn."""
    turns, against = found[name], CONTESTANTS[name][3]
    good = [t for t in turns if "mean" in t]
    row: dict[str, Any] = {"name": name, "against": against}
    if not good:
        return row | {"version": None, "note": None, "failed": turns[-1]["failed"]}
    row |= {"version": good[0]["version"], "note": good[0]["note"], "ms_per_round": [1e3 * t["mean"] for t in good]}
    pairs = [
        (t, m) for t, m in zip(turns, found.get(f"compfed, {against}", []), strict=False) if "mean" in t and "mean" in m
    ]
    if pairs:
        row["ratios"] = [t["mean"] / m["mean"] for t, m in pairs]
    if pairs and against == "float64" and pairs[0][0]["x"] is not None:
        row["difference"] = float(np.abs(np.subtract(pairs[0][0]["x"], pairs[0][1]["x"])).max())
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--install", action="store_true", help="make the peers' environments first (12 GB)")
    parser.add_argument("--out", type=Path, default=Path("results/peers.json"))
    args = parser.parse_args()
    if args.install:
        install("pfl", "flower", "fluke")
    n, m, d = (6, 200, 60) if args.quick else (30, 2000, 60)
    rng = np.random.default_rng(0)
    A = rng.standard_normal((n, m, d))
    y = np.sign(A @ rng.standard_normal(d) + rng.standard_normal((n, m)))
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTESTANTS}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "rows.npz"
        np.savez(data, A=A, y=y)
        for _ in range(1 if args.quick else args.turns):
            for name in CONTESTANTS:
                found[name].append(turn(name, data, 4 if args.quick else 20))
    rows = [row_of(name, found) for name in CONTESTANTS]
    for row in rows:
        took = row.get("ms_per_round", [np.nan])
        shown = (
            f"failed: {row['failed']}"
            if "failed" in row
            else f"{np.median(took):9.2f} ({min(took):.2f} to {max(took):.2f}) ms/round"
        )
        ratios = row.get("ratios", [])
        ratio = (
            f"   compfed is {np.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f}) times as fast"
            if ratios
            else ""
        )
        same = f"   models differ by {row['difference']:.0e}" if "difference" in row else ""
        print(f"{row['name']:<40}{shown}{ratio}{same}", flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    size = {"clients": n, "rows": m, "features": d, "quick": args.quick}
    args.out.write_text(json.dumps({"machine": described(), "size": size, "results": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
