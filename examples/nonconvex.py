"""Composite federated learning with a loss that is not convex: six methods, five seeds, twenty rounds, one figure.

    min_w  sum_i p_i (mean cross-entropy of site i at w) + lam ||w||_1

w are the weights of a network with one hidden layer (64 pixels -> 16 tanh -> 10 digits), over ten sites with Dirichlet(0.3) shares
of each digit. It is the kind of experiment of Zhang, Hu, Johansson, "Non-convex composite federated learning with heterogeneous
data" (arXiv 2502.03958), whose iteration is Algorithm 1, `DecoupledProx`. It reproduces nothing of that paper: data, network, steps and
rounds are ours.

Every method may try six settings on one tuning seed, and is reported on five other seeds, of mini-batches; all start from the same
weights. They are ranked by the objective, since there is no x* to measure a distance from. A quarter of the rows is held out for the
test accuracy.

    python examples/nonconvex.py            # a table, and nonconvex.svg, .png and .pdf
    python examples/nonconvex.py --quick    # two seeds, five rounds, three settings
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import compfed as cf
from compfed.data import held_out
from compfed.report.figures import plot_convergence
from compfed.report.style import save_figure

HIDDEN, CLASSES, SITES = 16, 10, 10
TAU, BATCH, LAM = 10, 20, 1e-4
ETAS = [0.03, 0.1, 0.3, 1.0, 3.0, 10.0]
PANELS = {"objective": "F(x)", "gradient_mapping": "norm of the gradient mapping", "accuracy": "test accuracy"}


def network(w: dict[str, Any], a: Any) -> Any:
    """Scores of the ten digits."""
    return jnp.tanh(a @ w["W_in"] + w["b_in"]) @ w["W_out"] + w["b_out"]


def cross_entropy(w: dict[str, Any], a: Any, y: Any) -> Any:
    scores = network(w, a)
    return jax.nn.logsumexp(scores) - scores[y.astype(int)]


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pixels from -1/2 to 1/2, the digits, and the rows held out."""
    loaded: Any = load_digits()
    return loaded.data / 16 - 0.5, loaded.target, held_out(np.zeros(len(loaded.target)), 0.25, 0, classes=loaded.target)


def problem_of(X: np.ndarray, y: np.ndarray) -> cf.Problem:
    """The network with its penalty over ten sites that hold other digits than each other."""
    rng = np.random.default_rng(0)
    start = {
        "W_in": rng.standard_normal((X.shape[1], HIDDEN)) / np.sqrt(X.shape[1]),
        "W_out": rng.standard_normal((HIDDEN, CLASSES)) / np.sqrt(HIDDEN),
        "b_in": np.zeros(HIDDEN),
        "b_out": np.zeros(CLASSES),
    }
    loss = cf.losses.from_function(cross_entropy, start, convex=False)
    where = cf.data.partition.dirichlet(y, SITES, alpha=0.3, seed=0, min_rows=BATCH)
    sites = cf.data.from_table(X, y, where)
    return cf.Problem(loss, cf.regularisers.L1(LAM), sites, weights=sites.shares, dtype="float32")


def main(argv: Sequence[str] | None = None) -> Any:
    parser = argparse.ArgumentParser(description="Six methods on a loss that is not convex.")
    parser.add_argument("--quick", action="store_true", help="two seeds, five rounds, three settings")
    parser.add_argument("--out", type=Path, default=Path("nonconvex"), help="the figure, without its suffix")
    args = parser.parse_args(argv)
    X, y, out = digits()
    problem = problem_of(X[~out], y[~out])

    def accuracy(w: dict[str, Any]) -> Any:
        """The share of the rows held out whose digit has the largest score."""
        return (network(w, jnp.asarray(X[out], jnp.float32)).argmax(axis=1) == y[out]).mean()

    methods = ["DecoupledProx", "FedMid", "FedDA", "FedDR", "Scaffnew", "NormalMap"]
    tune = {
        "eta": ETAS[2:5] if args.quick else ETAS,
        # two numbers each, and no more settings than the others: six are drawn
        "FedDR": {"lam": [0.3, 3.0, 30.0]},
        "NormalMap": {"gamma": [1.0, 10.0]},
        "Scaffnew": {"steps": [cf.algorithms.scaffnew.Fixed(TAU)]},
    }
    compared = cf.compare_methods(
        problem, methods, rounds=5 if args.quick else 20, tau=TAU, batch_size=BATCH, tune=tune, candidates=3 if args.quick else 6,
        seeds=2 if args.quick else 5, criterion="objective", accuracies=[0.5, 0.2, 0.1], metrics={"accuracy": accuracy},
        columns=[..., "gradient_mapping"],
    )  # fmt: skip
    print(compared)
    for label, traces in compared.traces.items():
        ends = [100 * float(trace["accuracy"][-1]) for trace in traces]
        print(f"{label:<14} test accuracy {np.median(ends):.1f} % ({min(ends):.1f} to {max(ends):.1f})")
    draw(compared, args.out)
    return compared


def draw(compared: Any, path: Path) -> None:
    """Objective, stationarity and test accuracy against rounds: the median over seeds, and a band from 10 % to 90 %."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 3.6), layout="constrained")
    axes = figure.subplots(1, len(PANELS))
    for ax, (column, title) in zip(axes, PANELS.items(), strict=True):
        plot_convergence(compared, y=column, ax=ax)
        ax.set_title(title)
        ax.set_ylabel("")
        ax.spines[["top", "right"]].set_visible(False)
        ax.get_legend().remove()
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(compared.traces), frameon=False
    )
    save_figure(figure, path)


if __name__ == "__main__":
    main()
