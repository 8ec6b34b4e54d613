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
import numpy as np

folder = tempfile.TemporaryDirectory(prefix="compfed-")
home = Path(folder.name)

# %%
# Start it
# --------
# In a terminal the command is ``compfed federation demo``. It makes folders and keys, starts the processes, runs a
# cross-validated sparse logistic regression, and stops the processes.

demo = ["federation", "demo", "--out", str(home)]
command = [sys.executable, "-m", "compfed.cli", *demo]
done = subprocess.run(command, capture_output=True, text=True, timeout=600)
assert done.returncode == 0, done.stderr
messages, _, result = done.stdout.replace(str(home), "HOME").partition(
    "\n\n"
)
print(messages)

# %%
# Every line is one message to all sites and their replies. A site that is not connected yet is asked again. At the end the model is
# compared with others:

print(result)

# %%
# The last line, "bit for bit", says that the network changed nothing: the masks cancel exactly, and sums are rounded once.
#
# What the operator has
# ---------------------
# A run folder has the model, and a log with a line for every reply.


def read(path):
    """The lines of a log."""
    return [json.loads(line) for line in path.read_text().splitlines()]


log = read(home / "run" / "log.jsonl")
replies = [line for line in log if line["site"] == "clinic-0"]
replies = [line for line in replies if "bytes_up" in line]
print(json.dumps(replies[0], indent=1))

# %%
# What a site has
# ---------------
# The site wrote every reply to its own log before the reply left. The hashes in both logs are the same: the operator received
# exactly what the site says that it sent.

sent = read(home / "sites" / "clinic-0" / "state" / "log.jsonl")
hashes = {line["sha256_out"] for line in sent}
assert hashes == {line["sha256_up"] for line in replies}

# %%
# Bytes of each message
# ---------------------

kinds = {
    "Enrol": ("#888888", "enrolment"),
    "Describe": ("#56B4E9", "rows, classes, means and spreads"),
    "Lipschitz": ("#E69F00", "first gradients, Lipschitz bounds"),
    "Evaluate": ("#0072B2", "losses, gradients, second derivatives"),
    "HeldOut": ("#D55E00", "losses on rows held out"),
    "Score": ("#009E73", "counts below thresholds, to evaluate the model"),
}
first = [next(k for k in kinds if k in m["queries"]) for m in replies]
number = np.array([m["number"] for m in replies])
up = np.array([m["bytes_up"] / 1e3 for m in replies])
down = np.array([m["bytes_down"] / 1e3 for m in replies])

figure, ax = plt.subplots(figsize=(7.6, 5.2), layout="constrained")
for kind, (colour, text) in kinds.items():
    some = np.array(first) == kind
    label = f"from it: {text}"
    ax.plot(number[some], up[some], "o", color=colour, label=label)
ax.plot(number, down, "_", color="black", label="to it")
ax.set_yscale("log")
ax.set_xticks(number[::2])
ax.set_xlabel("message")
ax.set_ylabel("kB, clinic-0 (log scale)")
ax.grid(alpha=0.25)
ax.spines[["top", "right"]].set_visible(False)
figure.legend(loc="outside lower center", ncols=1, frameon=False)
plt.show()
folder.cleanup()

# %%
# Most bytes are second derivatives, of some of the models of the cross-validation. A site that sets ``max_hessian_share = 0`` in
# its ``site.toml`` sends none; the fit then takes more messages. ``compfed site ledger`` prints, at the site, what its table has
# revealed over all runs. :doc:`/howto/deploy` has the steps for sites on different machines.
