"""
Write your own penalty
======================

You learn to use a penalty that compfed does not have: two methods, its value and its proximal operator.

Suppose that a negative coefficient needs stronger evidence than a positive one, because known risk factors raise the risk. An l1
penalty with two slopes says this::

    g(x) = sum_j  a max(x_j, 0) + b max(-x_j, 0)
"""

import textwrap
from dataclasses import dataclass

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import minimize

import compfed as cf


@dataclass(frozen=True)
class TwoSlopes:
    """The l1 penalty with slope a above zero and slope b below."""

    a: float
    b: float

    def __call__(self, x):
        above, below = jnp.maximum(x, 0), jnp.maximum(-x, 0)
        return jnp.sum(self.a * above + self.b * below)

    def prox(self, x, t):
        """argmin_u  t g(u) + ||u - x||^2 / 2, for each coefficient."""
        above = jnp.maximum(x - t * self.a, 0)
        below = jnp.maximum(-x - t * self.b, 0)
        return above - below


# %%
# Use it
# ------
# A ``Problem`` takes any object with these two methods. The table has 442 patients with diabetes at four sites; the outcome is the
# progression of the disease after a year.

table = cf.data.bundled.diabetes()
X = table.X / table.X.std(axis=0)
y = (table.y - table.y.mean()) / table.y.std()
sites = cf.data.from_table(X, y, table.sites)
squared, g = cf.losses.Squared(), TwoSlopes(0.05, 0.15)
problem = cf.Problem(squared, g, sites, weights=sites.shares)

skewed = cf.solve_federated(problem)
usual = problem.replace(regulariser=cf.regularisers.L1(0.05))
plain = cf.solve_federated(usual)
print("certified:", skewed.certificate.holds)

names = np.array(table.feature_names)
print("l1 uses        ", *names[plain.x != 0])
print("two slopes use ", *names[skewed.x != 0])
assert (plain.x < 0).sum() == 2
assert (skewed.x >= 0).all()

# %%
# Is it right?
# ------------
# Two checks. The first is another solver, on the pooled rows: with x = u - v and u, v >= 0 the penalty is a linear function.


def objective(uv):
    """The objective and its gradient, at u and v in one vector."""
    u, v = np.split(uv, 2)
    residual = X @ (u - v) - y
    gradient = X.T @ residual / len(y)
    loss = residual @ residual / (2 * len(y))
    value = loss + 0.05 * u.sum() + 0.15 * v.sum()
    return value, np.concatenate([gradient + 0.05, -gradient + 0.15])


bounds = [(0, None)] * 20
found = minimize(
    objective, np.zeros(20), jac=True, bounds=bounds, tol=1e-14
)
u, v = np.split(found.x, 2)
assert np.allclose(u - v, skewed.x, atol=1e-5)

# %%
# The second check is made for you. For a convex g, p = prox(z, t) exactly when t (g(u) - g(p)) >= <z - p, u - p> for all u. compfed
# tests this inequality at random points before it uses a penalty that it does not know. A prox with a wrong factor is refused:


class WrongFactor(TwoSlopes):
    def prox(self, x, t):
        return super().prox(x, 2 * t)


try:
    wrong = problem.replace(regulariser=WrongFactor(0.05, 0.15))
    cf.solve_federated(wrong)
except cf.InputError as error:
    print(textwrap.fill(str(error)))

# %%
# What it does
# ------------

figure, (left, right) = plt.subplots(
    1, 2, figsize=(8.4, 3.6), layout="constrained", width_ratios=[2, 3]
)
z, place = np.linspace(-0.4, 0.4, 401), np.arange(len(names))
for label, g, x, colour, dash, shift in (
    ("l1", usual.regulariser, plain.x, "#888888", "--", -0.2),
    ("two slopes", problem.regulariser, skewed.x, "#0072B2", "-", 0.2),
):
    left.plot(z, g.prox(z, 1.0), color=colour, linestyle=dash, label=label)
    right.bar(place + shift, x, 0.38, color=colour)
    zero = place[x == 0] + shift
    ring = {"color": "white", "markeredgecolor": colour, "markersize": 5}
    right.plot(zero, np.zeros(len(zero)), "o", **ring)
left.set_xlabel("z")
left.set_ylabel("prox of g at z, with t = 1")
left.legend(frameon=False)
right.axhline(0, color="black", linewidth=0.8, zorder=0)
right.set_xticks(place, names)
right.set_ylabel("coefficient per standard deviation\n(ring: exactly zero)")
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# With l1 two coefficients are negative. With two slopes their evidence does not suffice, and they are exactly zero. Penalties of
# your own can be added, multiplied and put on some of the coefficients, as in
# ``cf.regularisers.OnBlock(TwoSlopes(0.05, 0.15), 0, 5)``. Losses of your own: :doc:`/howto/problems`.
