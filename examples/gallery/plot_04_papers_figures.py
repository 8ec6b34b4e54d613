"""
The paper's figures
===================

You learn to run the experiments behind Figures 1 and 2 of the paper at a small size, and to read what they say.

The paper is Zhang, Hu and Johansson, *Composite federated learning with heterogeneous data*, ICASSP 2024. Its Algorithm 1 is
``DecoupledProx`` here. The problem is logistic regression with an l1 penalty, over clients whose data differ strongly. The
size below takes seconds: ten clients with 200 rows each. ``make reproduce`` runs the paper's own size, with every claim checked.
"""

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np

import compfed as cf
from compfed.studies.paper.experiments import (
    QUICK,
    Group,
    Key,
    Solved,
    methods_compared,
    paper_problem,
    steps_varied,
)

size = replace(
    QUICK,
    rounds=400,
    stochastic_rounds=150,
    long_rounds=1200,
    slowest_rounds=1200,
)
problem = paper_problem(size.samples, size.clients)
paper = Solved(
    problem, cf.solve_pooled(problem)
)  # x*, the minimiser of the pooled rows, with a certificate

traces = {}
for experiment in (
    *methods_compared(paper, size),
    *steps_varied(paper, size),
):
    traces |= experiment.run(lambda done, total: None)
print(len(traces), "lines,", sum(map(len, traces.values())), "runs")


# %%
# Figure 1: four methods
# ----------------------
# The error is ‖x - x*‖ / ‖x*‖. All methods take five local steps in a round, and their clients send one vector, those of
# Fast-FedDA two. A line is the median over the seeds, and the band is their range.


def draw(ax, lines):
    """Draw the error of each line, given as label and key, against rounds."""
    colours, dashes = (
        ("#0072B2", "#D55E00", "#009E73", "#CC79A7"),
        ("-", "--", "-.", ":"),
    )
    for (label, key), colour, dash in zip(
        lines.items(), colours, dashes, strict=False
    ):
        rounds, errors = (
            traces[key][0]["round"],
            np.array([run["optimality"] for run in traces[key]]),
        )
        ax.plot(
            rounds,
            np.median(errors, axis=0),
            color=colour,
            linestyle=dash,
            label=label,
        )
        ax.fill_between(
            rounds,
            errors.min(axis=0),
            errors.max(axis=0),
            color=colour,
            alpha=0.2,
            linewidth=0,
        )
    ax.set_yscale("log")
    ax.set_xlabel("communication rounds")
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)


methods = {
    "Algorithm 1": "DecoupledProx",
    "FedMid": "FedMid",
    "FedDA": "FedDA",
    "Fast-FedDA": "FastFedDA (quadratic)",
}
figure, (left, right) = plt.subplots(
    1, 2, figsize=(8.4, 3.6), layout="constrained"
)
draw(
    left, {label: Key(Group.FULL, name) for label, name in methods.items()}
)
draw(
    right,
    {label: Key(Group.STOCHASTIC, name) for label, name in methods.items()},
)
left.set_title("full gradients")
right.set_title("mini-batches of 20 rows")
left.set_ylabel("error  ‖x - x*‖ / ‖x*‖")
figure.legend(
    *left.get_legend_handles_labels(),
    loc="outside lower center",
    ncols=4,
    frameon=False,
)
plt.show()

# %%
# Left: the error of Algorithm 1 falls at a constant rate. FedMid and FedDA stop at a floor, because the local models of clients
# with different data drift apart. Fast-FedDA has no floor, and its error falls slowly, as 1/t. Right: with mini-batches Algorithm 1
# has a floor too, that of the noise of its gradients.


def last(key):
    """The error of the last round, the median over the seeds."""
    return float(np.median([run["optimality"][-1] for run in traces[key]]))


for label, name in methods.items():
    print(
        f"{label:12} full gradients {last(Key(Group.FULL, name)):.0e}, mini-batches {last(Key(Group.STOCHASTIC, name)):.0e}"
    )

# %%
# Figure 2: step size and local steps
# -----------------------------------
# Algorithm 1 with mini-batches of 50 rows. A smaller step is slower and ends at a lower floor (the smallest has not reached its
# floor here). More local steps need fewer rounds.

etas = {f"η = {eta:g}": Key(Group.ETA, "eta", eta) for eta in size.etas}
assert last(etas["η = 0.2"]) < last(etas["η = 1"])
taus = {
    "τ = 2": Key(Group.TAU, "tau", 2),
    "τ = 10": Key(Group.ETA, "eta", 0.2),
}

figure, (left, right) = plt.subplots(
    1, 2, figsize=(8.4, 3.4), layout="constrained", sharey=True
)
draw(left, etas)
draw(right, taus)
left.set_title("step size η, with τ = 10 local steps")
right.set_title("local steps τ, with η = 0.2")
left.set_ylabel("error  ‖x - x*‖ / ‖x*‖")
for ax in (left, right):
    ax.legend(frameon=False)
plt.show()
