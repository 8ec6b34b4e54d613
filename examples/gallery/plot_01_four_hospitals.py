"""
Four hospitals in twenty lines
==============================

You learn to fit one sparse model over four hospitals, and to check that it is the model of the pooled table, zeros included.

The table is the breast cancer table of scikit-learn: 569 tumours, 30 measurements, and whether the tumour is benign. The four
sites are simulated: each has tumours of another size, as if the hospitals saw different stages. In this example all rows are
in one process. Over a network they stay at their sites, and sums leave.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression

import compfed as cf

table = cf.data.bundled.breast_cancer()
sites = np.unique(table.sites)
for site in sites:
    y = table.y[table.sites == site]
    print(f"hospital {site}: {len(y)} tumours, {y.mean():.0%} benign")

# %%
# Fit over the sites
# ------------------
# ``sites`` says which rows belong together. No step size is asked for. ``standardize=True`` penalises coefficients per standard
# deviation, so that the units of a measurement do not matter.

lasso = cf.FederatedLogisticRegression(alpha=0.02, standardize=True)
model = lasso.fit(table.X, table.y, sites=table.sites)

used = np.count_nonzero(model.coef_)
kilobytes = model.communication_.bytes_up / 1e3
print(f"{used} of {model.coef_.size} measurements are used")
print(f"{model.n_rounds_} messages, {kilobytes:.0f} kB from a hospital")
print("certified:", model.certificate_.holds)

# %%
# The same coefficients as on the pooled table
# --------------------------------------------
# scikit-learn gets all rows at once. Its ``C`` is 1 / (alpha n) with n rows.

spread = table.X.std(axis=0)
standardised = (table.X - table.X.mean(axis=0)) / spread
C = 1 / (0.02 * len(table.y))
pooled = LogisticRegression(
    C=C, l1_ratio=1, solver="saga", tol=1e-10, max_iter=100_000
)
pooled_coef = pooled.fit(standardised, table.y).coef_[0] / spread

error = np.abs(model.coef_[0] - pooled_coef) * spread
assert error.max() < 1e-6
assert np.array_equal(model.coef_[0] != 0, pooled_coef != 0)  # the zeros

# %%
# What each hospital would find alone
# -----------------------------------
# A local model uses the rows of one hospital only.

local = []
for site in sites:
    own = table.sites == site
    alone = cf.FederatedLogisticRegression(alpha=0.02, standardize=True)
    alone.fit(table.X[own], table.y[own], sites=None)
    local.append(alone.coef_[0] * spread)

federated, pooled = model.coef_[0] * spread, pooled_coef * spread
size = np.abs([federated, *local])
shown = np.lexsort([size.max(axis=0), size[0]])  # the largest come last
shown = shown[size.max(axis=0)[shown] > 0]
names = [table.feature_names[j] for j in shown]

figure, ax = plt.subplots(figsize=(7.2, 5), layout="constrained")
ax.axvline(0, color="#BBBBBB", linewidth=1)
for k, (own, marker) in enumerate(zip(local, "^v<>", strict=True)):
    label = f"hospital {k} alone"
    ax.plot(own[shown], names, marker, color="#888888", label=label)
ax.plot(federated[shown], names, "o", color="#0072B2", label="federated")
ring = {"markersize": 10, "fillstyle": "none", "color": "black"}
ax.plot(pooled[shown], names, "o", **ring, label="pooled (scikit-learn)")
ax.set_xlabel("coefficient per standard deviation (positive: benign)")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(loc="upper left", frameon=False)
plt.show()

# %%
# Every federated dot lies in its pooled ring, zeros included. The hospitals do not agree with each other: alone, each has few
# tumours of the other stages, and picks other measurements.
