"""
Write your own method in forty lines
====================================

You learn to write a local-update method, to check what it claims, and to compare it with Algorithm 1 of the paper.

The method is the simplest one that comes to mind: every client takes a few proximal gradient steps, and the server averages the
local models. It looks right, and its limit is not the minimiser. The comparison below shows this.
"""

import io
from typing import NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np
from jax import Array

import compfed as cf
from compfed.algorithms import Algorithm, count, positive, record

# %%
# The method
# ----------
# A method is a frozen record of hyper-parameters with a few pure functions. What the server and a client keep between rounds, and
# what travels between them, are types. ``f`` is the loss of a client, ``g`` the penalty.


class Global(NamedTuple):  # the server state, which is also the broadcast
    w: Array


class Update(NamedTuple):  # the update of a client
    z: Array


@record
class LocalProx(Algorithm[Global, None, Global, Update]):
    composite = True  # handles a penalty that is not smooth
    exact = False  # its limit is not the minimiser

    eta: float = positive()
    tau: int = count(default=5)

    def init(self, x0):
        return Global(w=x0), None  # clients have no state

    def broadcast(self, g, s):
        return s

    def client_update(self, f, g, d, c, key):
        def step(z, key):
            return g.prox(z - self.eta * f.grad(z, key), self.eta), None

        z, _ = jax.lax.scan(step, d.w, jax.random.split(key, self.tau))
        return (
            Update(z=z),
            c,
            z,
        )  # the update, the client state, the local model

    def server_update(self, g, s, mean, weight):
        return Global(w=mean.z)

    def solution(self, g, s):
        return s.w

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=scale / b.L_max, tau=b.tau)


# %%
# Is it what it claims to be?
# ---------------------------
# ``cf.testing.check`` runs it message by message and compiled, with full gradients and mini-batches, in both precisions, and to its
# limit.

report = cf.testing.check(LocalProx)
assert report.ok

# %%
# Beside the paper's method
# -------------------------
# A class can be given wherever a name can.

sites = cf.data.synthetic(
    alpha=10, beta=10, clients=10, samples=100, features=30, seed=0
)
problem = cf.Problem(
    cf.losses.Logistic(ridge=0.01), cf.regularisers.L1(3e-3), sites
)
x_star = cf.solve_pooled(problem).x

compared = cf.compare_methods(
    problem,
    ["DecoupledProx", LocalProx],
    rounds=120,
    candidates=5,
    stream=io.StringIO(),
)
print(compared)
assert compared.results["DecoupledProx"]["final_optimality"] < 1e-10
assert (
    compared.results["LocalProx"]["final_optimality"] > 0.1
)  # with the best of five step sizes

# %%
# Why averaging breaks sparsity
# -----------------------------
# The mean of local models is zero only where all of them are zero. Algorithm 1 averages before its prox, and so has the zeros of
# the minimiser.

figure, (left, right) = plt.subplots(
    1, 2, figsize=(8.4, 3.6), layout="constrained"
)
styles = {
    "DecoupledProx": ("#0072B2", "-", "Algorithm 1 (DecoupledProx)"),
    "LocalProx": ("#D55E00", "--", "LocalProx (this page)"),
}
for name, (colour, dash, label) in styles.items():
    trace = compared.traces[name]
    left.plot(
        trace["round"],
        trace["optimality"],
        color=colour,
        linestyle=dash,
        label=label,
    )
    right.plot(
        trace["round"], trace["nonzeros"], color=colour, linestyle=dash
    )
left.set_yscale("log")
left.set_ylabel("error  ‖x - x*‖ / ‖x*‖")
right.axhline(
    np.count_nonzero(x_star),
    color="black",
    linewidth=0.8,
    linestyle=":",
    label="minimiser",
)
right.set_ylabel(f"coefficients that are not zero, of {len(x_star)}")
right.set_ylim(0, len(x_star) + 1)
for ax in (left, right):
    ax.set_xlabel("communication rounds")
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
figure.legend(loc="outside lower center", ncols=3, frameon=False)
plt.show()

# %%
# ``examples/my_method.py`` is this method as a file to copy. :doc:`/howto/new-method` explains every part.
