"""
A federation on this laptop
===========================

You learn to start a real federation on one machine, an operator and four sites as processes, and to read the logs of both sides.

Four clinics share the breast cancer table of scikit-learn. Each is a process with its own folder, its own rows, its own key and its
own disclosure policy. The processes speak over TLS, and the replies of the sites are masked: the operator reads totals only.
This example needs the extra ``flower`` and takes about half a minute.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

folder = tempfile.TemporaryDirectory(prefix="compfed-")
home = Path(folder.name)

# %%
# Start it
# --------
# In a terminal the command is ``compfed federation demo``. It makes folders and keys, starts the processes, runs a
# cross-validated sparse logistic regression, stops the processes, and compares the model with two others.

command = [
    sys.executable,
    "-m",
    "compfed.cli",
    "federation",
    "demo",
    "--out",
    str(home),
]
finished = subprocess.run(
    command, capture_output=True, text=True, timeout=600
)
print(finished.stdout.replace(str(home), "HOME"))
assert finished.returncode == 0, finished.stderr

# %%
# The line "bit for bit" says that the network changed nothing: the masks cancel exactly, and sums are rounded once.
#
# What the operator has
# ---------------------
# A run folder has the model, and a log with a line for every reply. Who was not there yet was asked again.

log = [
    json.loads(line)
    for line in (home / "run" / "log.jsonl").read_text().splitlines()
]
replies = [entry for entry in log if "bytes_up" in entry]
print(json.dumps(replies[0], indent=1))

# %%
# What a site has
# ---------------
# The site wrote every reply to its own log before the reply left. The hashes in both logs are the same: the operator received
# exactly what the site says that it sent.

own = [
    json.loads(line)
    for line in (home / "sites" / "clinic-0" / "state" / "log.jsonl")
    .read_text()
    .splitlines()
]
received = {
    entry["sha256_up"] for entry in replies if entry["site"] == "clinic-0"
}
assert received == {entry["sha256_out"] for entry in own}

# %%
# Bytes of each message
# ---------------------

messages = [entry for entry in replies if entry["site"] == "clinic-0"]
kinds = {
    "Enrol": "#999999",
    "Describe": "#56B4E9",
    "Lipschitz": "#E69F00",
    "Evaluate": "#0072B2",
    "HeldOut": "#D55E00",
}
texts = {
    "Enrol": "enrolment",
    "Describe": "rows, classes, means and spreads",
    "Lipschitz": "first gradients, Lipschitz bounds",
    "Evaluate": "losses, gradients, second derivatives",
    "HeldOut": "losses on rows held out",
}

figure, ax = plt.subplots(figsize=(7.6, 4.4), layout="constrained")
for kind, colour in kinds.items():
    some = [
        m
        for m in messages
        if next(k for k in kinds if k in m["queries"]) == kind
    ]
    ax.plot(
        [m["number"] for m in some],
        [m["bytes_up"] / 1e3 for m in some],
        "o",
        color=colour,
        label=f"from it: {texts[kind]}",
    )
ax.plot(
    [m["number"] for m in messages],
    [m["bytes_down"] / 1e3 for m in messages],
    "_",
    color="black",
    label="to it",
)
ax.set_yscale("log")
ax.set_xticks(range(1, len(messages) + 1))
ax.set_xlabel("message")
ax.set_ylabel("kB, clinic-0 (log scale)")
ax.grid(alpha=0.25)
ax.spines[["top", "right"]].set_visible(False)
figure.legend(loc="outside lower center", ncols=2, frameon=False)
plt.show()
folder.cleanup()

# %%
# Most bytes are second derivatives, of all models of the cross-validation together. A site that sets ``max_hessian_share = 0`` in
# its ``site.toml`` sends none; the fit then takes more messages. ``compfed site ledger`` prints, at the site, what its table has
# revealed over all runs. :doc:`/howto/deploy` has the steps for sites on different machines.
