"""
Which variables? Path, cross-validation and the one-standard-error rule
=======================================================================

You learn to choose the variables of a model: by its path, by cross-validation inside the sites, and by the rule of one standard
error.

The penalty weight alpha decides how many coefficients are zero. A large alpha leaves none, a small one nearly all. The table
has 442 patients with diabetes and ten measurements; the sites are age bands.
"""

import matplotlib.pyplot as plt
import numpy as np

import compfed as cf

table = cf.data.bundled.diabetes()
names = np.array(
    [
        "age",
        "sex",
        "body mass index",
        "blood pressure",
        "total cholesterol",
        "LDL",
        "HDL",
        "cholesterol / HDL",
        "log triglycerides",
        "glucose",
    ]
)
assert table.feature_names[:4] == ("age", "sex", "bmi", "bp")
assert len(table.feature_names) == len(names)  # then s1 to s6

# %%
# The path
# --------
# A path is one fit for each alpha. It starts at ``alpha_max``, the least alpha at which all coefficients are zero. All fits
# share their messages.

path = cf.regularisation_path(
    cf.FederatedLasso(standardize=True),
    *(table.X, table.y, table.sites),
    n_alphas=30,
)
print(f"{len(path.alphas)} models in {path.communication.rounds} messages")
assert (path.coefs[0] == 0).all()
assert (path.coefs[-1] != 0).all()

entry = (path.coefs != 0).argmax(axis=0)  # the first alpha with it
print("they enter in this order:")
print("\n".join(names[np.argsort(entry, kind="stable")]))

# %%
# Cross-validation
# ----------------
# Every site deals its own rows into five folds. A model is fitted to four of them and its loss is measured on the fifth; both are
# sums over rows, which is all that a site sends over a network.

best = cf.FederatedLassoCV(n_alphas=30, cv=5, standardize=True)
best.fit(table.X, table.y, sites=table.sites)
print(f"{best.n_fits_} fits in {best.n_rounds_} messages")
print(f"least held-out loss at alpha = {best.alpha_best_:.3g}")
print(np.count_nonzero(best.coef_), "variables")

# %%
# One standard error
# ------------------
# The held-out loss is an estimate, and it is nearly flat around its minimum. The rule takes the largest alpha whose loss is
# within one standard error of the least one: a smaller model that cannot be told from the best one.

small = cf.FederatedLassoCV(
    n_alphas=30, cv=5, standardize=True, rule="one_standard_error"
)
small.fit(table.X, table.y, sites=table.sites)
kept = names[small.coef_ != 0]
print(f"alpha = {small.alpha_:.3g}: {len(kept)} variables")
assert set(kept) < set(names[best.coef_ != 0])  # some of the same ones

plt.figure(cf.plot_path(small, names=names))
plt.show()

# %%
# Above: each coefficient against alpha, and how many are not zero. Below: the held-out loss, with its standard error over the
# folds. The vertical lines mark both choices. The curve says how much loss a smaller model costs; the decision is yours. More:
# :doc:`/howto/choose-alpha`.
