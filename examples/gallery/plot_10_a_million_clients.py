"""
A million clients
=================

You learn to simulate more clients than memory holds: rows are made, or read, when a client takes part.

A client here is a small device with 20 rows. A round asks 100 of a million clients. The cost of a round is that of its 100
participants, whatever the number of clients.
"""

import time

import matplotlib.pyplot as plt
import numpy as np

import compfed as cf

truth = np.zeros(50)
truth[:5] = [3.0, -2.0, 1.5, -1.0, 0.5]


def rows_of(client):
    """The rows of a client: the same ones whenever it takes part."""
    rng = np.random.default_rng(client)
    A = rng.standard_normal((20, 50))
    own = truth + 0.3 * rng.standard_normal(50)  # clients differ
    return A, A @ own + rng.standard_normal(20)


def problem_of(clients):
    """Least squares with an l1 penalty over so many clients."""
    sites = cf.data.lazy_sites(rows_of, sizes=np.full(clients, 20))
    l1 = cf.regularisers.L1(0.2)
    return cf.LazyProblem(cf.losses.Squared(), l1, sites)


# %%
# Run it
# ------
# The objective over all clients would need all rows. ``measure_on`` names a problem to measure models on instead: here one client in
# 5,000. Step sizes are chosen for these clients too.

problem = problem_of(1_000_000)
some = problem.subset(range(0, 1_000_000, 5_000))
method = cf.algorithms.default_steps("DecoupledProx", some, tau=5)
trace = cf.simulate_out_of_core(
    problem, method, rounds=30, participants=100, measure_on=some
)

objective = trace["subset_objective"]
print(f"objective on 200 clients: {objective[0]:.2f}, {objective[-1]:.2f}")
print("coefficients that are not zero:", *np.flatnonzero(trace.x))
assert np.array_equal(trace.x != 0, truth != 0)

# %%
# The objective does not go to zero: labels have noise, and every client has a model of its own. The zeros are those of the model that
# all clients vary around, although at most one client in 300 took part.
#
# What it costs
# -------------
# The same rounds with fewer clients. A run compiles first, so the best of three is shown.


def milliseconds(clients, rounds=40):
    """Milliseconds per round, the best of three runs."""
    problem, seconds = problem_of(clients), []
    options = {"participants": 100, "record_every": rounds}
    for _ in range(3):
        began = time.perf_counter()
        cf.simulate_out_of_core(problem, method, rounds, **options)
        seconds.append(time.perf_counter() - began)
    return 1e3 * min(seconds) / rounds


numbers = [1_000, 10_000, 100_000, 1_000_000]
times = [milliseconds(n) for n in numbers]
for n, ms in zip(numbers, times, strict=True):
    print(f"{n:9,} clients: {ms:4.0f} ms per round")

figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
axes[0].plot(trace["round"], objective, color="#0072B2")
axes[0].set_xlabel("communication rounds")
axes[0].set_ylabel("objective on 200 of a million clients")
axes[0].set_ylim(bottom=0)
axes[1].semilogx(numbers, times, "o-", color="#0072B2")
axes[1].set_xlabel("clients (log scale)")
axes[1].set_ylabel("milliseconds per round of 100 clients")
axes[1].set_ylim(0, 2 * max(times))
for ax in axes:
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# The line on the right is flat, but for the noise of the clock. Rows in files, several devices and several hosts: :doc:`/howto/scale`.
