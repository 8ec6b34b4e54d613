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
    """The rows of a client: the same ones whenever it takes part. Reading them from a file would do as well."""
    rng = np.random.default_rng(client)
    A = rng.standard_normal((20, 50))
    shift = 0.3 * rng.standard_normal(
        50
    )  # clients differ: each has a model of its own
    return A, A @ (truth + shift) + rng.standard_normal(20)


def problem_of(clients):
    """Least squares with an l1 penalty over so many clients."""
    sites = cf.data.lazy_sites(rows_of, sizes=np.full(clients, 20))
    return cf.LazyProblem(
        cf.losses.Squared(), cf.regularisers.L1(0.2), sites
    )


# %%
# Run it
# ------
# The objective over all clients would need all rows. ``measure_on`` names a problem to measure models on instead: here one client in
# 5,000. Step sizes are chosen for these clients too.

problem = problem_of(1_000_000)
some = problem.subset(range(0, 1_000_000, 5_000))
method = cf.algorithms.default_steps("DecoupledProx", some, tau=5)
trace = cf.simulate_out_of_core(
    problem,
    method,
    rounds=30,
    participants=100,
    record_every=1,
    measure_on=some,
)

print(
    f"{trace['subset_objective'][0]:.2f} -> {trace['subset_objective'][-1]:.2f}, the objective on 200 clients"
)
print("coefficients that are not zero:", np.flatnonzero(trace.x).tolist())
assert np.array_equal(trace.x != 0, truth != 0)

# %%
# The objective does not go to zero: labels have noise, and every client has a model of its own. The zeros are those of the model that
# all clients vary around, although only one client in 300 took part.

# %%
# What it costs
# -------------
# The same rounds with fewer clients. A run compiles first, so the best of three is shown.


def milliseconds(clients, rounds=40):
    """The best of three: milliseconds per round."""
    problem, best = problem_of(clients), np.inf
    for _ in range(3):
        began = time.perf_counter()
        cf.simulate_out_of_core(
            problem,
            method,
            rounds=rounds,
            participants=100,
            record_every=rounds,
        )
        best = min(best, time.perf_counter() - began)
    return 1e3 * best / rounds


numbers = [1_000, 10_000, 100_000, 1_000_000]
times = [milliseconds(n) for n in numbers]
for n, ms in zip(numbers, times, strict=True):
    print(f"{n:9,} clients: {ms:4.0f} ms per round")

figure, (left, right) = plt.subplots(
    1, 2, figsize=(8.4, 3.4), layout="constrained"
)
left.plot(trace["round"], trace["subset_objective"], color="#0072B2")
left.set_xlabel("communication rounds")
left.set_ylabel("objective on 200 of a million clients")
left.set_ylim(bottom=0)
right.semilogx(numbers, times, "o-", color="#0072B2")
right.set_xlabel("clients (log scale)")
right.set_ylabel("milliseconds per round of 100 clients")
right.set_ylim(0, 2 * max(times))
for ax in (left, right):
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# The line on the right is flat. Rows in files, several devices and several hosts: :doc:`/howto/scale`.
