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
sites, rows = np.unique(table.sites, return_counts=True)
for site, n in zip(sites, rows, strict=True):
    print(
        f"hospital {site}: {n} tumours, {table.y[table.sites == site].mean():.0%} benign"
    )

# %%
# Fit over the sites
# ------------------
# ``sites`` says which rows belong together. No step size is asked for. ``standardize=True`` penalises coefficients per standard
# deviation, so that the units of a measurement do not matter.

model = cf.FederatedLogisticRegression(alpha=0.02, standardize=True).fit(
    table.X, table.y, sites=table.sites
)

print(
    f"{np.count_nonzero(model.coef_)} of {model.coef_.size} measurements are used"
)
print(
    f"{model.n_rounds_} messages to each hospital and back, {model.communication_.bytes_up / 1e3:.0f} kB from each"
)
print("certified:", model.certificate_.holds)

# %%
# The same coefficients as on the pooled table
# --------------------------------------------
# scikit-learn gets all rows at once. Its ``C`` is 1 / (alpha n) with n rows.

spread = table.X.std(axis=0)
standardised = (table.X - table.X.mean(axis=0)) / spread
pooled = LogisticRegression(
    C=1 / (0.02 * len(table.y)),
    l1_ratio=1,
    solver="saga",
    tol=1e-10,
    max_iter=100_000,
)
pooled.fit(standardised, table.y)

federated = (
    model.coef_[0] * spread
)  # per standard deviation, as scikit-learn has them here
assert np.abs(federated - pooled.coef_[0]).max() < 1e-6
assert np.array_equal(
    federated != 0, pooled.coef_[0] != 0
)  # the zeros, too

# %%
# What each hospital would find alone
# -----------------------------------
# A local model uses the rows of one hospital only.

local = []
for site in sites:
    own = table.sites == site
    alone = cf.FederatedLogisticRegression(
        alpha=0.02, standardize=True
    ).fit(table.X[own], table.y[own], sites=None)
    local.append(alone.coef_[0] * spread)

shown = np.flatnonzero(np.any([federated, *local], axis=0))
shown = shown[
    np.lexsort(
        (
            np.abs(np.array(local)[:, shown]).max(axis=0),
            np.abs(federated[shown]),
        )
    )
]
place = np.arange(len(shown))

figure, ax = plt.subplots(
    figsize=(7.2, 0.24 * len(shown) + 1.6), layout="constrained"
)
ax.axvline(0, color="#BBBBBB", linewidth=1)
for k, (coefficients, marker) in enumerate(zip(local, "^v<>", strict=True)):
    ax.plot(
        coefficients[shown],
        place,
        marker,
        color="#999999",
        markersize=5,
        label=f"hospital {k} alone",
    )
ax.plot(
    federated[shown],
    place,
    "o",
    color="#0072B2",
    markersize=6,
    label="federated",
)
ax.plot(
    pooled.coef_[0][shown],
    place,
    "o",
    markersize=10,
    fillstyle="none",
    color="black",
    label="pooled (scikit-learn)",
)
ax.set_yticks(place, [table.feature_names[j] for j in shown])
ax.set_xlabel("coefficient per standard deviation (positive: benign)")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(loc="upper left", frameon=False, fontsize=9)
plt.show()

# %%
# Every federated dot lies in its pooled ring. The grey marks do not agree with each other: a hospital alone has few tumours of
# the other stages, and picks other measurements.
