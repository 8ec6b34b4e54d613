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
from compfed.studies.paper import experiments
from compfed.studies.paper.experiments import QUICK, Group, Key

plt.rcParams |= {"axes.spines.top": False, "axes.spines.right": False}

size = replace(QUICK, rounds=400, stochastic_rounds=150)
size = replace(size, long_rounds=1200, slowest_rounds=1200)
problem = experiments.paper_problem(size.samples, size.clients)
x_star = cf.solve_pooled(problem)  # of the pooled rows, certified
paper = experiments.Solved(problem, x_star)

traces = {}
for figure in (experiments.methods_compared, experiments.steps_varied):
    for experiment in figure(paper, size):
        traces |= experiment.run(lambda done, total: None)
print(len(traces), "lines,", sum(map(len, traces.values())), "runs")

# %%
# Figure 1: four methods
# ----------------------
# The error is ‖x - x*‖ / ‖x*‖. All methods take five local steps in a round, and their clients send one vector, those of
# Fast-FedDA two. Where there are several seeds, a line is their median.

methods = {
    "Algorithm 1": "DecoupledProx",
    "FedMid": "FedMid",
    "FedDA": "FedDA",
    "Fast-FedDA": "FastFedDA (constant)",
}


def figure_1(group):
    """The traces of the four methods, by label."""
    return {label: traces[Key(group, m)] for label, m in methods.items()}


full, batches = figure_1(Group.FULL), figure_1(Group.STOCHASTIC)
figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.6), layout="constrained")
cf.plot_convergence(full, ax=axes[0])
cf.plot_convergence(batches, ax=axes[1])
axes[0].set_title("full gradients")
axes[1].set_title("mini-batches of 20 rows")
axes[1].get_legend().remove()  # that of the left panel
plt.show()

# %%
# Left: the error of Algorithm 1 falls at a constant rate. FedMid and FedDA stop at a floor, because the local models of clients
# with different data drift apart. Fast-FedDA has no floor, and its error falls slowly, as 1/t. Right: with mini-batches Algorithm 1
# has a floor too, that of the noise of its gradients.


def last(runs):
    """The error of the last round, the median over the seeds."""
    return float(np.median([run["optimality"][-1] for run in runs]))


for m in methods:
    print(
        f"{m:12} full {last(full[m]):.0e}, batches {last(batches[m]):.0e}"
    )

# %%
# Figure 2: step size and local steps
# -----------------------------------
# Algorithm 1 with mini-batches of 50 rows. A smaller step is slower and ends at a lower floor (the smallest has not reached its
# floor here). More local steps need fewer rounds.

steps = {eta: traces[Key(Group.ETA, "eta", eta)] for eta in size.etas}
assert last(steps[0.2]) < last(steps[1.0])
local_steps = {2: traces[Key(Group.TAU, "tau", 2)], 10: steps[0.2]}

figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
etas = {f"η = {eta:g}": runs for eta, runs in steps.items()}
taus = {f"τ = {tau}": runs for tau, runs in local_steps.items()}
cf.plot_convergence(etas, ax=axes[0])
cf.plot_convergence(taus, ax=axes[1])
axes[0].set_title("step size η, with τ = 10 local steps")
axes[1].set_title("local steps τ, with η = 0.2")
plt.show()
