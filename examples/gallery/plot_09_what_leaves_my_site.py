"""
What leaves my site
===================

You learn to list what a fit takes from a site, to see a curious server refused, and to read what a table has revealed.

A site answers a short, closed list of queries, and every answer is a sum over rows. A sum over one row is that row. So a site has a
disclosure policy. In one process there is none unless it is given; over a network its rules hold unless the site switches them off.
"""

import tempfile
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import compfed as cf
from compfed.federation import (
    DisclosurePolicy,
    InProcess,
    Moments,
    Refusal,
    Rows,
    Site,
)
from compfed.federation.numbers import About, Table
from compfed.federation.site.ledger import HEADER, Ledger, Roster
from compfed.splits import Fold

table = cf.data.bundled.breast_cancer()
policy = DisclosurePolicy()  # the default one of a network

# %%
# An ordinary fit, counted
# ------------------------
# ``policy`` sets the rules of a network and ``exact`` its sums, so that this is a rehearsal. ``communication_`` counts all numbers
# that a site received and sent.

rehearsal = InProcess(table.federation(), policy=policy, exact=True)
model = cf.FederatedLogisticRegression(alpha=0.01)
cost = model.fit_federation(rehearsal).communication_

print(f"{cost.rounds} messages, {cost.bytes_up / 1e3:.0f} kB from a site")
for query, (models, _, up) in cost.by_query.items():
    print(f"{query:10} about {models:2} models: {up / 1e3:5.1f} kB")
numbers = table.X.size + table.y.size
kilobytes = numbers * 8 / 1e3 / 4  # of one site of four
print(f"the table of a site, for comparison: {kilobytes:.0f} kB")
assert cost.bytes_up / 1e3 > kilobytes

# %%
# The fit takes more bytes than the table has. Bytes tell what a network carries, not what is revealed. What is revealed depends on
# which numbers these are: here losses and gradients at a dozen models, and second derivatives at
# most of them, each summed over all rows.
#
# A curious server
# ----------------
# A server may ask for the means of a fold. If it asks for as many folds as there are rows, each mean is a row. This is the site with
# the smallest tumours, first without rules:

own = table.sites == 0
X, y = table.X[own], table.y[own]
n = len(y)


def means_of_folds(k):
    """Queries for the means of each of k folds."""
    options = {"seed": 0, "first": np.zeros(1, int), "by_class": False}
    folds = [Fold(i, k, held_out=True, **options) for i in range(k)]
    return [Moments(subset=fold) for fold in folds]


def as_set(rows):
    """Rows in any order."""
    return {tuple(row) for row in rows.round(9)}


open_site = Site(Rows(X, y, name="clinic", index=0), policy=None)
replies = open_site.reply(means_of_folds(n))
stolen = np.array([reply.mean for reply in replies])
print(f"{len(stolen)} replies, each the mean of one row")
assert as_set(stolen) == as_set(X)

# %%
# The same queries, with the default policy. The site deals its rows into ten buckets of at least ten rows, with a secret of its own, and
# folds are unions of buckets. A refusal names the rule, never a number of the site.

site = Site(Rows(X, y, name="clinic", index=0), policy=policy)
refused = site.reply(means_of_folds(n))
assert all(isinstance(reply, Refusal) for reply in refused)
print(textwrap.fill(refused[0].reason))

# %%
# The most folds that this site answers for are 10. Each mean is now that of ten rows or more.

refused = site.reply(means_of_folds(11))
assert all(isinstance(reply, Refusal) for reply in refused)
answered = site.reply(means_of_folds(10))
print("rows in each fold:", *[int(reply.weight) for reply in answered])

# %%
# In one picture
# --------------
# Two of the 30 columns, as the server can read them.

two = [
    table.feature_names.index(f"mean {c}") for c in ("radius", "texture")
]
means = np.array([reply.mean for reply in answered])

figure, axes = plt.subplots(
    1, 2, figsize=(8.4, 3.8), layout="constrained", sharex=True, sharey=True
)
titles = ("no rules: 143 folds", "default policy: 10 folds, and no more")
row = {"color": "#888888", "markersize": 7, "fillstyle": "none"}
reply = {"color": "#D55E00", "markersize": 4}
for ax, title, read in zip(axes, titles, (stolen, means), strict=True):
    ax.plot(*X[:, two].T, "o", **row, label="a row of the site")
    ax.plot(*read[:, two].T, "o", **reply, label="a reply to the server")
    ax.set_title(title)
    ax.set_xlabel("mean radius")
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("mean texture")
dots = axes[0].get_legend_handles_labels()
figure.legend(*dots, loc="outside lower center", ncols=2, frameon=False)
plt.show()

# %%
# The ledger
# ----------
# Two runs can reveal by their difference what neither reveals alone. The ledger of a table remembers every run, with keyed hashes of
# the rows, and counts the numbers that left about them. Over a network the site keeps it; here we open it by hand. One patient
# withdraws between two runs:

folder = tempfile.TemporaryDirectory()
ledger = Ledger(Path(folder.name), "tumours", key=b"a secret of the site")
roster = Roster("fingerprint of all keys", ("clinic", "second", "third"))

spring, summer = ledger.row_hashes(X, y), ledger.row_hashes(X[1:], y[1:])
ledger.open_run("spring", roster, spring, policy)
queries = {query: n for query, (n, _, _) in cost.by_query.items()}
counted_against = Table(rows=n, columns=X.shape[1], groups=10)
left = {About(counted_against.whole, X.shape[1]): int(cost.numbers)}
ledger.begin(
    "spring", "a lasso", "rule", sum(left.values()), counted_against
)
ledger.record("spring", 2, "its hash", queries, left, int(cost.bytes_up))
try:
    ledger.open_run("summer", roster, summer, policy)
except cf.InputError as error:
    print(textwrap.fill(str(error)), "\n")

for name, value in zip(HEADER, ledger.table()[0], strict=True):
    print(f"{name:12} {value}")
folder.cleanup()

# %%
# The policy stops queries about few rows. It does not stop a server that chooses its own models, hundreds of them: the count does, and
# a person at the site who approves what goes beyond it. :doc:`/explanation/what-leaves-a-site` has the attacks, with numbers.
