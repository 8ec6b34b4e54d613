"""Rounds on a GPU: time and effective rate against a plain copy, and how far kernels are from the plain loop.

    python benchmarks/gpu.py [--out results/gpu.json]
    python benchmarks/gpu.py --participation [--turns 3] [--out results/gpu-participation.json]

Effective rate is (local steps) x (bytes of the rows) / time: a kernel that keeps rows on chip may exceed the bandwidth of
memory. Times are the least of several runs on the device, after compilation; the work of a run outside its rounds is taken
out by the difference of a long and a short run. Errors are relative, in single precision against the plain loop in double.

`--participation`: a round in which a tenth of the clients take part, beside a round of a federation of that tenth, in turns.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from machine import described

import compfed as cf
from compfed.algorithms import ALGORITHMS
from compfed.algorithms import default_steps as suggest

SHAPES: tuple[tuple[int, int, int], ...] = (
    (20000, 256, 64),
    (2000, 256, 64),
    (1000, 8192, 64),
    (256, 8192, 512),
    (30, 2000, 60),
)
TAU = 5


def copy_rate() -> float:
    """TB/s of reading and writing a gigabyte."""
    a = jnp.ones((2**28,), jnp.float32)
    copy = jax.jit(lambda a: a + 1.0)
    copy(a).block_until_ready()
    best = np.inf
    for _ in range(10):
        began = time.perf_counter()
        jax.block_until_ready([copy(a) for _ in range(10)])
        best = min(best, (time.perf_counter() - began) / 10)
    return 2 * a.nbytes / best / 1e12


def problem_of(n: int, m: int, d: int) -> cf.Problem:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((n, m, d), dtype=np.float32)
    y = np.sign(A @ rng.standard_normal(d, dtype=np.float32) + rng.standard_normal((n, m), dtype=np.float32))
    sites = cf.data.from_arrays(list(A), list(y))
    return cf.Problem(cf.losses.Logistic(ridge=0.01), cf.regularisers.L1(1e-3), sites, dtype="float32")


def round_time(problem: cf.Problem, turns: int = 4, **how: Any) -> tuple[float, dict[str, Any]]:
    """(seconds of a round, the kernel), by the difference of a long and a short run."""
    algorithm = cf.algorithms.DecoupledProx(tau=TAU, eta=0.5)

    def seconds(rounds: int) -> tuple[float, cf.Trace]:
        began = time.perf_counter()
        trace = cf.simulate(problem, algorithm, rounds, record_every=rounds, **how)
        return time.perf_counter() - began, trace

    few, many = 50, 850
    seconds(few)
    if seconds(many)[0] < 0.5:
        many = 8050
    seconds(many)
    short, long = (min(seconds(rounds)[0] for _ in range(turns)) for rounds in (few, many))
    return (long - short) / (many - few), seconds(few)[1].provenance["kernel"]


def errors() -> list[dict[str, Any]]:
    """Every method that has a kernel, on five losses and with mini-batches, on sites of unequal size."""
    rng = np.random.default_rng(1)
    X = [rng.standard_normal((m, 60)) for m in (200, 150, 100, 120, 90)]
    z = [a @ np.linspace(-0.5, 0.5, 60) + rng.standard_normal(len(a)) for a in X]
    signs, counts = [np.sign(v) for v in z], [np.floor(np.exp(np.clip(v, -2, 1))) for v in z]
    losses = [
        (cf.losses.Logistic(ridge=0.1), signs), (cf.losses.Squared(ridge=0.1), z), (cf.losses.Poisson(ridge=0.1), counts),
        (cf.losses.Huber(delta=1.0, ridge=0.1), z), (cf.losses.SquaredHinge(ridge=0.1), signs),
    ]  # fmt: skip
    groups = cf.regularisers.GroupL2(0.02, tuple((np.arange(60) // 4).tolist()))
    cases = [(loss, y, cf.regularisers.L1(1e-2), None) for loss, y in losses]
    cases += [(*losses[0], groups, None), (*losses[0], cf.regularisers.L1(1e-2), 20)]
    found = []
    for loss, y, g, batch in cases:
        for name, cls in ALGORITHMS.items():
            problem = cf.Problem(loss, g if cls.composite else cf.regularisers.Zero(), cf.data.from_arrays(X, y))
            bounded = problem.loss.curvature is not None  # others get steps that suit the start
            algorithm = suggest(name, problem, tau=3, at=None if bounded else problem.start)
            trace = cf.simulate(problem.astype("float32"), algorithm, 5, batch_size=batch)
            plain = cf.simulation.run_plain(problem, algorithm, 5, batch_size=batch).x
            error = float(np.linalg.norm(trace.x - plain) / (np.linalg.norm(plain) or 1.0))
            kernel = trace.provenance["kernel"]
            found.append(
                {"loss": type(loss).__name__, "g": type(g).__name__, "batch": batch, "method": name, "error": error}
            )
            found[-1] |= kernel
            print(
                f"{type(loss).__name__:<14}{type(g).__name__:<10}{batch or '':<4}{name:<30}{kernel['kind'] or '-':<14}{error:.1e}"
            )
    return found


def storage_errors() -> list[dict[str, Any]]:
    """What rounding the rows to 8 bits of precision does to the limit, at the paper's kind of problem."""
    found = []
    for d in (16, 64, 256):
        problem = problem_of(200, 512, d)
        algorithm = cf.algorithms.DecoupledProx(tau=TAU, eta=1.0)
        limits = [cf.simulate(problem, algorithm, 500, record_every=500, storage=s).x for s in ("float32", "bfloat16")]
        error = float(np.linalg.norm(limits[1] - limits[0]) / np.linalg.norm(limits[0]))
        found.append({"limit of rounded rows": error, "d": d})
        print(f"rows in bfloat16, d = {d}: the limit moves by {error:.1e}")
    return found


def of_device() -> dict[str, str]:
    return {"device": jax.devices()[0].device_kind, "platform": jax.devices()[0].platform}


def participation(shape: tuple[int, int, int], turns: int) -> dict[str, Any]:
    """A round of a tenth of the clients, and one of a federation that has those alone: milliseconds and ratios, in turns."""
    n, m, d = shape
    some = max(n // 10, 1)
    among, alone = problem_of(n, m, d), problem_of(some, m, d)
    found, kinds = [], ("", "")
    for _ in range(turns):
        (sampled, kernel), (all_of_them, other) = round_time(among, participants=some), round_time(alone)
        kinds = kernel["kind"], other["kind"]
        found.append((1e3 * sampled, 1e3 * all_of_them, sampled / all_of_them))
        print(
            f"{n:>6} x {m} x {d:<5}{found[-1][0]:>9.4f}{found[-1][1]:>9.4f} ms{found[-1][2]:>7.2f}  {kinds[0]}",
            flush=True,
        )
    return {"shape": shape, "of all": [f[0] for f in found], "alone": [f[1] for f in found], "ratio": [f[2] for f in found]} | {
        "kernel": kinds[0], "kernel alone": kinds[1]
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/gpu.json"))
    parser.add_argument("--shapes", nargs="*", help="such as 30x2000x60; all unless given")
    parser.add_argument("--no-errors", action="store_true", help="times only")
    parser.add_argument("--participation", action="store_true", help="what a sample of the clients costs")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore", cf.RunWarning)
    copy = copy_rate()
    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}; a copy runs at {copy:.2f} TB/s")
    times = []
    shapes: list[Any] = [tuple(map(int, s.split("x"))) for s in options.shapes or []] or list(SHAPES)
    if options.participation:
        times = [participation(shape, options.turns) for shape in shapes if options.shapes or shape[0] >= 100]
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(
            json.dumps({"machine": described() | of_device(), "copy": copy, "participation": times}, indent=1)
        )
        return
    for n, m, d in shapes:
        problem = problem_of(n, m, d)
        some = max(n // 10, 1)
        ways: dict[str, dict[str, Any]] = {
            "all rows": {}, "all rows, bfloat16": {"storage": "bfloat16"},
            "a tenth of the clients": {"participants": some}, "b = 20": {"batch_size": 20},
        }  # fmt: skip
        for way, how in ways.items():
            try:
                seconds, kernel = round_time(problem, **how)
            except cf.InputError:  # no kernel, no choice of storage
                continue
            rows = {"participants": some * m, "batch_size": 20 * n}.get(next(iter(how), ""), n * m)
            rate = TAU * rows * d * 4 / seconds / 1e12
            times.append(
                {"shape": [n, m, d], "way": way, "ms": 1e3 * seconds, "rate": rate, "of copy": rate / copy} | kernel
            )
            print(
                f"{n:>6} x {m} x {d:<5}{way:<24}{1e3 * seconds:>9.4f} ms{rate:>7.2f} TB/s  {kernel['kind']}", flush=True
            )
    device = described() | of_device()
    wrong = [] if options.no_errors else [*errors(), *storage_errors()]
    found = {"machine": device, "copy": copy, "times": times, "errors": wrong}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
