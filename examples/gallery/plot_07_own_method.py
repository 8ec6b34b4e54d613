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

sites = cf.data.synthetic(10, 10, clients=10, samples=100, features=30)
logistic = cf.losses.Logistic(ridge=0.01)
problem = cf.Problem(logistic, cf.regularisers.L1(3e-3), sites)
x_star = cf.solve_pooled(problem).x

methods = ["DecoupledProx", LocalProx]
compared = cf.compare_methods(
    problem, methods, rounds=120, candidates=5, stream=io.StringIO()
)
print(compared)
error = {m: r["final"] for m, r in compared.results.items()}
assert error["DecoupledProx"] < 1e-10
assert error["LocalProx"] > 0.1  # with the best of five step sizes

# %%
# Why averaging breaks sparsity
# -----------------------------
# The mean of local models is zero only where all of them are zero. Algorithm 1 averages before its prox, and so has the zeros of
# the minimiser.

figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.6), layout="constrained")
cf.plot_convergence(compared, ax=axes[0])
cf.plot_convergence(compared, y="nonzeros", ax=axes[1])
axes[1].set_yscale("linear")
axes[1].set_ylim(0, len(x_star) + 1)
goal = np.count_nonzero(x_star)
axes[1].axhline(goal, color="#888888", zorder=0, label=f"minimiser: {goal}")
axes[0].get_legend().remove()
axes[1].legend(loc="lower right", frameon=False)
for ax in axes:
    ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# ``examples/my_method.py`` is this method as a file to copy. :doc:`/howto/new-method` explains every part.
