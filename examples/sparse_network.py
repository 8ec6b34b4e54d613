"""A network that says which pixels it needs, trained over sites that hold different digits.

    min_w  sum_i p_i (mean cross-entropy of site i at w) + lam sum_j sqrt(32) ||w_j||

w_j are the 32 weights that leave input pixel j: the regulariser switches whole pixels off, exactly. The network has one
hidden layer (pixels -> 32 tanh -> 10); ten sites have Dirichlet(0.3) shares of each digit. `DecoupledProx` solves this;
FedAvg, which has no place for a regulariser, trains the same network without one. Both take mini-batches of 32.

    python examples/sparse_network.py                                 # scikit-learn's digits, 64 pixels
    python examples/sparse_network.py --quick                         # the same, a few seconds after compilation
    python examples/sparse_network.py --mnist mnist_5k.csv.gz         # 784 pixels; the label is the last column

What it measures: docs/howto/sparse-network.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import compfed as cf
from compfed._utils.text import text_table
from compfed.data import held_out

HIDDEN, CLASSES = 32, 10
ETA, TAU, BATCH = 0.5, 5, 32
LAM = 5e-4


def network(w: dict[str, Any], a: Any) -> Any:
    """Scores of the ten digits. Names sort so that W_in comes first in the flat model."""
    return jnp.tanh(a @ w["W_in"] + w["b_hidden"]) @ w["W_out"] + w["b_out"]


def cross_entropy(w: dict[str, Any], a: Any, y: Any) -> Any:
    z = network(w, a)
    return jax.nn.logsumexp(z) - z[y.astype(int)]


def first_weights(pixels: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "W_in": rng.standard_normal((pixels, HIDDEN)) / np.sqrt(pixels),
        "W_out": rng.standard_normal((HIDDEN, CLASSES)) / np.sqrt(HIDDEN),
        "b_hidden": np.zeros(HIDDEN),
        "b_out": np.zeros(CLASSES),
    }


@dataclass(frozen=True)
class Digits:
    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]


def load(mnist: Path | None, seed: int = 0) -> Digits:
    """Pixels from 0 to 1 less their mean over the training rows; a quarter of each digit is held out."""
    if mnist is None:
        from sklearn.datasets import load_digits

        loaded: Any = load_digits()
        X, y = loaded.data / 16, loaded.target
    else:
        table = np.loadtxt(mnist, delimiter=",")
        X, y = table[:, :-1] / 255, table[:, -1].astype(int)
    out = held_out(np.zeros(len(y)), 0.25, seed, classes=y)
    X = X - X[~out].mean(axis=0)
    return Digits((X[~out], y[~out]), (X[out], y[out]))


@dataclass(frozen=True)
class Trained:
    method: str
    accuracy: float
    zeros: float  # share of all weights that are exactly zero
    used: np.ndarray  # is any weight of a pixel not zero?
    rounds: int
    megabytes: float  # sent by a client

    def cells(self) -> list[str]:
        pixels = f"{self.used.sum()} of {self.used.size}"
        return [
            self.method,
            f"{self.accuracy:.1%}",
            f"{self.zeros:.1%}",
            pixels,
            str(self.rounds),
            f"{self.megabytes:.1f}",
        ]


def train(digits: Digits, rounds: int, sites: int = 10, seed: int = 0) -> list[Trained]:
    """The network by FedAvg without a regulariser, then by DecoupledProx with one."""
    X, y = digits.train
    where = cf.data.partition.dirichlet(y, sites, alpha=0.3, seed=seed, min_rows=20)
    federation = cf.data.from_table(X, y, where)
    loss = cf.losses.from_function(cross_entropy, first_weights(X.shape[1]))
    inputs = X.shape[1] * HIDDEN
    pixel_of_weight = np.repeat(np.arange(X.shape[1]), HIDDEN)
    few_pixels = cf.regularisers.OnBlock(cf.regularisers.GroupL2(LAM, tuple(pixel_of_weight.tolist())), 0, inputs)
    smooth = cf.Problem(loss, cf.regularisers.Zero(), federation, weights=federation.shares, dtype="float32")
    runs = [
        ("FedAvg", smooth, cf.algorithms.FedAvg(eta=ETA, tau=TAU)),
        ("DecoupledProx", smooth.replace(regulariser=few_pixels), cf.algorithms.DecoupledProx(eta=ETA, tau=TAU)),
    ]
    trained = []
    for name, problem, algorithm in runs:
        trace = cf.simulate(problem, algorithm, rounds, batch_size=BATCH, record_every=rounds, seed=seed)
        w = loss.unravel(trace.x)
        hits = np.asarray(network(w, digits.test[0])).argmax(axis=1) == digits.test[1]
        used = (w["W_in"] != 0).any(axis=1)
        megabytes = float(trace["bytes_up"][-1]) / 1e6
        trained.append(Trained(name, float(hits.mean()), float(np.mean(trace.x == 0)), used, rounds, megabytes))
    return trained


def picture(used: np.ndarray) -> str:
    """The pixels that are used, as the image has them."""
    side = int(np.sqrt(used.size))
    return "\n".join(" ".join("#" if pixel else "." for pixel in row) for row in used.reshape(side, side))


def main(argv: Sequence[str] | None = None) -> list[Trained]:
    parser = argparse.ArgumentParser(description="A sparse network over sites.")
    parser.add_argument("--quick", action="store_true", help="150 rounds instead of 1000")
    parser.add_argument("--mnist", type=Path, metavar="CSV", help="rows of 784 pixels and a label, instead of digits")
    parser.add_argument("--seed", type=int, default=0, help="of the split, the sites and the mini-batches")
    args = parser.parse_args(argv)
    trained = train(load(args.mnist, args.seed), rounds=150 if args.quick else 1000, seed=args.seed)
    header = ["method", "test accuracy", "zero weights", "pixels used", "rounds", "MB per client"]
    print(text_table(header, [t.cells() for t in trained], numbers=True))
    print(f"\npixels that {trained[-1].method} uses:\n\n{picture(trained[-1].used)}")
    return trained


if __name__ == "__main__":
    main()
