"""A convolutional network of over 100,000 weights on scikit-learn's digits: the first round, and a round against plain JAX.

    python benchmarks/network_rounds.py            # 20 clients, Dirichlet(0.3), three of 5 rows; mini-batches of 20, float32
    python benchmarks/network_rounds.py --smallest

Times the first call of `simulate` (two rounds, test accuracy in the trace) from problem to trace, and rounds of FedAvg against the
same rounds written as `jax.lax.map` over the clients inside one `lax.scan` over the rounds, in turns in one process. The models
agree: both draw their mini-batches from the same keys.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import compfed as cf
from compfed.data import bundled, partition
from compfed.sampling import client_key, run_key, sample_rows

ETA, TAU, SEED = 0.05, 5, 0


def first_weights(channels: int, hidden: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {
        "k1": (3, 3, 1, channels),
        "k2": (3, 3, channels, channels),
        "w": (16 * channels, hidden),
        "v": (hidden, 10),
    }
    drawn = {name: rng.normal(size=shape) / np.sqrt(np.prod(shape[:-1])) for name, shape in shapes.items()}
    return drawn | {"b": np.zeros(hidden), "c": np.zeros(10)}


def scores(p: Any, A: Any) -> Any:
    """Two convolutions, a pooling, a hidden layer: scores of the ten digits for images in the rows of A."""

    def convolved(images: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    images = jax.nn.relu(convolved(A.reshape(-1, 8, 8, 1), p["k1"]))
    images = jax.nn.relu(convolved(images, p["k2"]))
    pooled = lax.reduce_window(images, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return jax.nn.relu(pooled.reshape(len(A), -1) @ p["w"] + p["b"]) @ p["v"] + p["c"]


def cross_entropy(p: Any, a: Any, y: Any) -> Any:
    z = scores(p, a[None])[0]
    return jax.nn.logsumexp(z) - z[y.astype(int)]


def plain(problem: cf.Problem, rounds: int, batch: int):
    """FedAvg in plain JAX: clients one after another, mini-batches drawn as the library draws them."""
    data = problem.dataset
    loss: Any = problem.loss
    capacity = max(rows for _, rows in data.buckets)
    key, n = run_key(SEED), problem.n

    def gradient(x: Any, i: Any, step_key: Any) -> Any:
        m = data.size[i].astype(jnp.int32)
        few = m < batch
        drawn = sample_rows(step_key, jnp.maximum(m, batch), capacity, batch)
        row = data.offset[i] + jnp.where(few, jnp.minimum(jnp.arange(batch), m - 1), drawn)
        weight = jnp.where(few, jnp.arange(batch) < m, m / batch) * data.q[row]
        A, y = data.A[row], data.y[row]

        def value(x: Any) -> Any:
            return weight @ jax.vmap(cross_entropy, (None, 0, 0))(loss.unravel(x), A, y)

        return jax.grad(value)(x)

    def round_(x: Any, r: Any) -> tuple[Any, None]:
        def client(i: Any) -> Any:
            keys = jax.random.split(client_key(key, r, data.ids[i]), TAU)
            return lax.scan(lambda z, k: (z - ETA * gradient(z, i, k), None), x, keys)[0] - x

        return x + jnp.tensordot(data.weight, lax.map(client, jnp.arange(n)), 1), None

    return jax.jit(lambda x: lax.scan(round_, x, jnp.arange(rounds))[0])


def measure(channels: int, hidden: int, clients: int, rounds: int, turns: int) -> dict[str, Any]:
    table = bundled.digits(sites=1)
    X, y = np.asarray(table.X, float), np.asarray(table.y, float)
    X = X / X.max()
    where = partition.dirichlet(y, sites=clients, alpha=0.3, min_rows=5)
    held = np.random.default_rng(0).random(len(y)) < 0.2
    sites = [np.flatnonzero((where == i) & ~held) for i in range(clients)]
    sites = [rows[:5] if i % 7 == 0 else rows for i, rows in enumerate(sites)]  # some have very few
    began = time.perf_counter()
    loss = cf.losses.from_function(cross_entropy, first_weights(channels, hidden))
    problem = cf.Problem(
        loss, cf.regularisers.Zero(), cf.data.from_arrays([X[i] for i in sites], [y[i] for i in sites]), dtype="float32"
    )
    method, batch = cf.algorithms.FedAvg(eta=ETA, tau=TAU), 20

    def accuracy(p: Any) -> Any:
        return (scores(p, jnp.asarray(X[held], jnp.float32)).argmax(axis=1) == y[held]).mean()

    options: Any = {"batch_size": batch, "seed": SEED}
    first = cf.simulate(problem, method, 2, metrics={"accuracy": accuracy}, **options)
    first_call = time.perf_counter() - began

    ours: list[float] = []
    theirs: list[float] = []
    run = plain(problem, rounds, batch)
    x0 = jnp.asarray(problem.start)
    expected = np.asarray(jax.block_until_ready(run(x0)))
    trace = first
    for _ in range(turns):
        trace = cf.simulate(problem, method, rounds, record_every=rounds, metrics={"accuracy": accuracy}, **options)
        ours.append(trace["seconds"][-1] / rounds)
        start = time.perf_counter()
        jax.block_until_ready(run(x0))
        theirs.append((time.perf_counter() - start) / rounds)
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {
        "weights": problem.d, "clients": clients, "smallest": int(problem.sizes.min()), "first_call_seconds": round(first_call, 2),
        "ms_per_round": [round(1000 * t, 1) for t in sorted(ours)], "plain_ms": [round(1000 * t, 1) for t in sorted(theirs)],
        "ratio": round(float(np.median(ratios)), 3), "accuracy": [round(float(a), 3) for a in trace["accuracy"]],
        "apart": float(np.abs(trace.x - expected).max() / np.abs(expected).max()),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--smallest", action="store_true", help="a tiny network and two rounds, to see that it runs")
    arguments = parser.parse_args()
    sizes = (2, 8, 4, 2, 1) if arguments.smallest else (16, 400, 20, 10, 5)
    print(json.dumps(measure(*sizes), indent=2))


if __name__ == "__main__":
    main()
