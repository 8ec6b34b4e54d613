"""
Rounds against bytes against local work
=======================================

You learn to compare methods fairly, and why the best method depends on what your network and your sites charge for.

A method pays in three currencies: rounds (a message to every site and its reply), bytes, and gradients at the sites. A federation
of hospitals pays for rounds, because each takes seconds, whatever its size. A phone pays for bytes. A small machine pays for gradients.
"""

import io

import matplotlib.pyplot as plt

import compfed as cf

sites = cf.data.synthetic(1, 1, clients=10, samples=200, features=40)
logistic = cf.losses.Logistic(ridge=0.01)
problem = cf.Problem(logistic, cf.regularisers.L1(1e-3), sites)

# %%
# One budget, fair tuning
# -----------------------
# Every method gets the same number of candidate step sizes: powers of two around its own default one. Each candidate has the whole
# budget, and the one that ends closest to x* is kept. While that is the longest or the shortest tried, others beyond it are tried.
# ``ProximalNewton`` and ``ProximalBFGS`` have no step size.

exact = ["ProximalNewton", "ProximalBFGS", "FISTA", "DecoupledProx"]
compared = cf.compare_methods(
    problem,
    [*exact, "FedDA"],
    rounds=300,
    candidates=5,
    accuracies=[1e-2, 1e-4, 1e-8],
    stream=io.StringIO(),
)
print("rounds to an error ‖x - x*‖ / ‖x*‖ of ...\n")
print(compared.table("rounds"))

# %%
# ``ProximalNewton`` needs the fewest rounds. ``FedDA`` does not reach an error of 0.01 with any of the step sizes tried: it has a
# floor, which depends on the step. Another currency, another winner:

print("bytes sent by a client to an error of ...\n")
print(compared.table("bytes"))

# %%
# ``ProximalBFGS`` sends no second derivatives, and needs the fewest bytes.

print("gradients at a client to an error of ...\n")
print(compared.table("gradients"))

# %%
# In this table a message of ``ProximalNewton`` or ``ProximalBFGS`` counts as one gradient, and second derivatives count nothing: at a
# site they cost more than that. The code checks what the text says:


def cheapest(unit):
    """The method that reaches an error of 1e-8 at the least cost."""
    cost = {m: compared.results[m]["to_accuracy"]["1e-08"] for m in exact}
    return min(exact, key=lambda m: cost[m][unit])


assert cheapest("rounds") == "ProximalNewton"
assert cheapest("bytes") == "ProximalBFGS"
assert compared.results["FedDA"]["to_accuracy"]["0.01"]["rounds"] is None

# %%
# The same runs, three axes
# -------------------------

figure, axes = plt.subplots(
    1, 3, figsize=(9.2, 3.9), layout="constrained", sharey=True
)
for ax, x in zip(axes, ("round", "bytes_up", "gradients"), strict=True):
    cf.plot_convergence(compared, x=x, ax=ax)
    ax.set_xscale("log")
    ax.set_ylim(1e-10, 2)
    ax.get_legend().remove()
    ax.label_outer()
    ax.spines[["top", "right"]].set_visible(False)
lines = axes[0].get_legend_handles_labels()
figure.legend(*lines, loc="outside lower center", ncols=5, frameon=False)
plt.show()

# %%
# ``DecoupledProx`` takes five gradients in every round. With full gradients they do not save rounds against ``FISTA``, which takes
# one. Local steps pay with mini-batches, where each of them reads few rows. More on this: :doc:`/explanation/few-rounds`.
