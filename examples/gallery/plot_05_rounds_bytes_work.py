"""
Rounds against bytes against local work
=======================================

You learn to compare methods fairly, and why the best method depends on what your network and your sites charge for.

A method pays in three currencies: rounds (a message to every site and its reply), bytes, and gradients at the sites. A federation
of hospitals pays for rounds, because each takes seconds, whatever its size. A phone pays for bytes. A small machine pays for gradients.
"""

import io

import matplotlib.pyplot as plt
import numpy as np

import compfed as cf

sites = cf.data.synthetic(
    alpha=1, beta=1, clients=10, samples=200, features=40, seed=0
)
problem = cf.Problem(
    cf.losses.Logistic(ridge=0.01), cf.regularisers.L1(1e-3), sites
)

# %%
# One budget, fair tuning
# -----------------------
# Every method gets the same number of candidate step sizes: powers of two around its own default one. Each candidate has the whole
# budget, and the one that ends closest to x* is kept. ``ProximalNewton`` and ``ProximalBFGS`` have no step size.

methods = [
    "ProximalNewton",
    "ProximalBFGS",
    "FISTA",
    "DecoupledProx",
    "FedDA",
]
quiet = io.StringIO()  # instead of progress on the error stream
compared = cf.compare_methods(
    problem,
    methods,
    rounds=300,
    candidates=5,
    accuracies=[1e-2, 1e-4, 1e-8],
    stream=quiet,
)
for unit in ("rounds", "bytes", "gradients"):
    print(
        f"{unit} per client to an error ‖x - x*‖ / ‖x*‖ of ...\n{compared.table(unit)}\n"
    )

# %%
# Which method is first changes with the currency. ``ProximalNewton`` needs the fewest rounds. ``ProximalBFGS``, which sends no
# second derivatives, needs the fewest bytes. In this table a message of these two counts as one gradient, and second
# derivatives count nothing: at a site they cost more than that. ``FedDA`` does not reach an error of 0.01
# with any of its five step sizes: it has a floor, which depends on the step.

cost = {
    name: result["to_accuracy"]["1e-08"]
    for name, result in compared.results.items()
}
assert (
    min(methods[:4], key=lambda name: cost[name]["rounds"])
    == "ProximalNewton"
)
assert (
    min(methods[:4], key=lambda name: cost[name]["bytes"]) == "ProximalBFGS"
)
assert compared.results["FedDA"]["to_accuracy"]["0.01"]["rounds"] is None

# %%
# The same runs, three axes
# -------------------------

colours = dict(
    zip(
        methods,
        ["#000000", "#E69F00", "#009E73", "#0072B2", "#D55E00"],
        strict=True,
    )
)
dashes = dict(
    zip(methods, ["-", "--", "-.", (0, (7, 2)), ":"], strict=True)
)
axes_of = {
    "round": "rounds",
    "bytes_up": "bytes sent by a client",
    "gradients": "gradients at a client",
}

figure, axes = plt.subplots(
    1, 3, figsize=(9.2, 3.9), layout="constrained", sharey=True
)
for ax, (column, label) in zip(axes, axes_of.items(), strict=True):
    for name, trace in compared.traces.items():
        keep = (trace["round"] > 0) & (
            np.minimum.accumulate(trace["optimality"]) > 1e-10
        )
        dots = (
            "o" if keep.sum() < 20 else ""
        )  # mark every round of a run of few rounds
        ax.plot(
            trace[column][keep],
            trace["optimality"][keep],
            color=colours[name],
            linestyle=dashes[name],
            marker=dots,
            label=name,
        )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel(f"{label} (log scale)")
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("error  ‖x - x*‖ / ‖x*‖")
figure.legend(
    *axes[0].get_legend_handles_labels(),
    loc="outside lower center",
    ncols=5,
    frameon=False,
)
plt.show()

# %%
# ``DecoupledProx`` takes five gradients in every round. With full gradients they do not save rounds against ``FISTA``, which takes
# one. Local steps pay with mini-batches, where each of them reads few rows. More on this: :doc:`/explanation/few-rounds`.
