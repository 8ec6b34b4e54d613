"""
A table with words and blanks
=============================

You learn to fit a model to a table as a clinic has it: with words, with blanks, and with the hospital as a column.

The patients are made up below, so that the example runs anywhere: 900 patients of three hospitals, whether they died within a year,
and four things known of them.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression

import compfed as cf

rng = np.random.default_rng(1)
n = 900
hospitals, smoking = (
    ["Ash", "Birch", "Cedar"],
    ["never", "former", "current"],
)
frame = pd.DataFrame(
    {
        "hospital": rng.choice(hospitals, n, p=[0.5, 0.3, 0.2]),
        "age": rng.normal(68, 10, n).round(),
        "sex": rng.choice(["female", "male"], n),
        "smoking": rng.choice(smoking, n, p=[0.5, 0.3, 0.2]),
        "creatinine": rng.lognormal(0.1, 0.3, n).round(2),
    }
)
score = (
    0.06 * (frame["age"] - 68)
    + 0.9 * (frame["smoking"] == "current")
    + 1.2 * (frame["creatinine"] - 1.1)
    - 1.2
)
died = rng.random(n) < 1 / (1 + np.exp(-score))
frame["died"] = np.where(died, "yes", "no")
frame.loc[rng.random(n) < 0.1, "creatinine"] = np.nan  # not measured
frame.loc[rng.random(n) < 0.05, "smoking"] = None  # not asked
print(frame.head(6).to_string(index=False))

# %%
# One line
# --------
# ``schema="auto"`` looks at the table and decides how its columns become numbers. A word becomes one feature for each level but the
# first. A missing number becomes the mean over all hospitals. A missing word becomes a level of its own.

first = cf.FederatedLogisticRegression(alpha=0.02, standardize=True)
first.fit(frame, "died", sites="hospital", schema="auto")
print(first.schema_.to_toml())

# %%
# Change what was decided
# -----------------------
# The schema is text that people can read and change, and it holds no row. The first level of a column is the reference that the
# others are compared with. Current smokers were taken, by the alphabet; we want those who never smoked.

before = '["current", "former", "never"]'
after = '["never", "former", "current"]'
text = first.schema_.to_toml().replace(before, after)
schema = cf.Schema.from_toml(text)

model = cf.FederatedLogisticRegression(alpha=0.02, standardize=True)
model.fit(frame, "died", sites="hospital", schema=schema)
names = list(model.feature_names_in_)
for name, coefficient in zip(names, model.coef_[0], strict=True):
    print(f"{name:20}", f"{coefficient:.3f}" if coefficient else "zero")

# %%
# The same by hand
# ----------------
# pandas and scikit-learn, with all rows in one place, give the same model.

means = {"creatinine": frame["creatinine"].mean()}
filled = frame.fillna(means | {"smoking": "(missing)"})
columns = ["age", "sex", "smoking", "creatinine"]
encoded = pd.get_dummies(filled[columns], prefix_sep="=", dtype=float)
encoded = encoded[names]  # without the reference levels
spread = encoded.std(ddof=0)
pooled = LogisticRegression(
    C=1 / (0.02 * n), l1_ratio=1, solver="saga", tol=1e-10, max_iter=100_000
)
pooled.fit((encoded - encoded.mean()) / spread, frame["died"])
assert np.allclose(model.coef_[0] * spread, pooled.coef_[0], atol=1e-6)

# %%
# New patients come as they are
# -----------------------------
# ``predict_proba`` reads a table with the same columns, words and blanks included.

new = pd.DataFrame(
    {
        "age": [55.0, 82.0],
        "sex": ["female", "male"],
        "smoking": ["never", "current"],
        "creatinine": [0.9, np.nan],
    }
)
risk = model.predict_proba(new)[:, list(model.classes_).index("yes")]
print([f"{r:.0%}" for r in risk])

# %%
# Odds ratios
# -----------
# The odds ratio of a feature is e to the power of its coefficient: for a number per unit, for a level against the first level. They
# are shrunk towards 1 by the penalty; a feature at exactly 1 is not used.

per = np.where(np.array(names) == "age", 10, 1)
ratio = np.exp(model.coef_[0] * per)
units = {"age": "age, per 10 years", "creatinine": "creatinine, per mg/dl"}
labels = [units.get(name, name.replace("=", ": ")) for name in names]
place = np.arange(len(ratio))[::-1]

figure, ax = plt.subplots(figsize=(7.2, 3.0), layout="constrained")
ax.axvline(1, color="#BBBBBB", linewidth=1)
used, out = ratio != 1, ratio == 1
dots = {"color": "#0072B2", "markersize": 7}
ax.hlines(place[used], 1, ratio[used], color="#0072B2", linewidth=2)
ax.plot(ratio[used], place[used], "o", **dots, label="used")
dots["fillstyle"] = "none"
ax.plot(ratio[out], place[out], "o", **dots, label="exactly 1: not used")
ax.set_xscale("log")
ax.set_xticks([1, 1.5, 2, 3], ["1", "1.5", "2", "3"])
ax.set_xticks([], minor=True)
ax.set_yticks(place, labels)
ax.set_xlabel("odds ratio of death within a year (log scale)")
ax.spines[["top", "right"]].set_visible(False)
ax.margins(y=0.1)
ax.legend(frameon=False, loc="upper right")
plt.show()
