"""How close to the memory's limit is a round, and how does its cost grow with n, m, d and tau?

    python benchmarks/roofline.py [--quick] [--out results/roofline-cpu.json]

Full gradients, DecoupledProx, logistic loss: float64 on a CPU (on all its cores), float32 on a GPU. The bandwidth is measured in the same
run: on a GPU a copy (read and write), on a CPU reading an array of the size of the rows with all cores. A local step must
read the rows once, so `effective` = tau * bytes of the rows / time of a round, and `fraction` is that over the bandwidth; a method that
reads rows twice in a step cannot pass one half where they do not stay in a cache, and one that keeps them on chip for
all steps of a round can pass 1. Exponents are slopes of log time over log size, one size varied at a time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from machine import described

import compfed as cf

ETA, TAU = 0.1, 5
SIZES = {
    "cpu": [(30, 2000, 60), (300, 2000, 60), (30, 20_000, 60), (2000, 256, 64), (30, 2000, 600)],
    "gpu": [(30, 2000, 60), (2000, 256, 64), (20_000, 256, 64), (1000, 8192, 64), (256, 8192, 512)],
}
QUICK = [(6, 400, 60), (60, 400, 60)]
GROWTH = {"n": [15, 30, 60, 120], "m": [1000, 2000, 4000, 8000], "d": [30, 60, 120, 240], "tau": [2, 5, 10, 20]}
BASE = {"n": 30, "m": 2000, "d": 60, "tau": TAU}
SMALL_BASE = {"n": 6, "m": 400, "d": 60, "tau": TAU}


def fastest(run: Callable[[], Any], turns: int) -> float:
    run()
    took = []
    for _ in range(turns):
        began = time.perf_counter()
        run()
        took.append(time.perf_counter() - began)
    return min(took)


def bandwidth(platform: str, nbytes: int) -> float:
    """Bytes a second, of an array of about `nbytes`."""
    if platform == "cpu":
        a = np.ones(max(nbytes, 2**20) // 8)
        return a.nbytes / fastest(lambda: np.dot(a, a), 10)  # BLAS reads with all cores
    import jax
    import jax.numpy as jnp

    a = jnp.ones(max(nbytes, 2**30) // 4, jnp.float32)
    copy = jax.jit(lambda a, k: jax.lax.fori_loop(0, k, lambda _, b: b + 1.0, a))
    spent = [fastest(lambda k=k: jax.block_until_ready(copy(a, k)), 5) for k in (1, 11)]
    return 2 * a.nbytes * 10 / (spent[1] - spent[0])


def seconds_per_round(n: int, m: int, d: int, tau: int, dtype: str, turns: int) -> float:
    rng = np.random.default_rng(0)
    # the same rows for everybody: what they say does not change the work
    one = rng.standard_normal((m, d)).astype(dtype)
    y = np.sign(one @ np.ones(d, dtype))
    sites = cf.data.from_arrays([one] * n, [y] * n)
    problem = cf.Problem(cf.losses.Logistic(ridge=0.01), cf.regularisers.L1(1e-4), sites, dtype=dtype)
    algorithm = cf.algorithms.DecoupledProx(eta=ETA, tau=tau)

    def rounds(k: int) -> float:
        return float(cf.simulate(problem, algorithm, k, record_every=k)["seconds"][-1]) / k

    k = int(np.clip(0.3 / max(rounds(2), 1e-6), 2, 400))  # about a third of a second
    return min(rounds(k) for _ in range(turns))


def measured(size: dict[str, int], dtype: str, platform: str, turns: int) -> dict[str, Any]:
    seconds = seconds_per_round(**size, dtype=dtype, turns=turns)
    nbytes = size["n"] * size["m"] * size["d"] * np.dtype(dtype).itemsize
    speed = bandwidth(platform, nbytes)
    effective = size["tau"] * nbytes / seconds
    row = {**size, "bytes": nbytes, "ms_per_round": 1e3 * seconds, "effective_GB_s": effective / 1e9}
    return {**row, "bandwidth_GB_s": speed / 1e9, "fraction": effective / speed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, for trying the script out")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    cores = cf.use_all_cores(awake=True)
    import jax

    platform = "cpu" if jax.devices()[0].platform == "cpu" else "gpu"
    dtype, turns = ("float64" if platform == "cpu" else "float32"), 2 if args.quick else 4
    results = []
    for n, m, d in QUICK if args.quick else SIZES[platform]:
        row = measured({"n": n, "m": m, "d": d, "tau": TAU}, dtype, platform, turns)
        results.append(row)
        print(
            f"{n:>6} x {m:>6} x {d:>4}  {row['ms_per_round']:9.3f} ms  {row['effective_GB_s']:8.1f} GB/s of "
            f"{row['bandwidth_GB_s']:8.1f}  fraction {row['fraction']:.2f}",
            flush=True,
        )
    base, growth = (SMALL_BASE if args.quick else BASE), []
    for name, values in GROWTH.items():
        values = [v * base[name] // BASE[name] for v in values]
        values = values[:2] if args.quick else values
        took = [seconds_per_round(**{**base, name: v}, dtype=dtype, turns=turns) for v in values]
        slope = float(np.polyfit(np.log(values), np.log(took), 1)[0])
        growth.append({"varied": name, "values": values, "ms_per_round": [1e3 * t for t in took], "exponent": slope})
        print(f"time grows like {name}^{slope:.2f} ({values[0]} to {values[-1]})", flush=True)
    machine = described() | {
        "device": str(jax.devices()[0].device_kind),
        "platform": platform,
        "dtype": dtype,
        "devices": cores,
    }
    out = args.out or Path(f"results/roofline-{platform}.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(
        json.dumps({"machine": machine, "quick": args.quick, "results": results, "growth": growth}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
