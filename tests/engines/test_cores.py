"""Clients shared out over cores: the same rounds, whoever works them out."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import pytest

import compfed as cf

# in a process of its own: how many devices there are is settled once in a process
SHARED_OUT = """
import numpy as np
import compfed as cf
from compfed.engines import cores, reference
assert cf.use_all_cores(2) == 2
cores.SMALL = 0
seen = []
original = cores.rows_on_cores
import importlib
simulator = importlib.import_module("compfed.engines.simulator")
simulator.rows_on_cores = lambda problem, count: seen.append(count) or original(problem, count)
sites = cf.data.synthetic(clients=5, samples=[30, 6, 30, 6, 30], features=4, seed=0)  # two buckets, neither of them even
problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites, weights=sites.shares)
for method, batch in ((cf.algorithms.DecoupledProx(eta=1.0, tau=2), None), (cf.algorithms.DecoupledProx(eta=1.0, tau=2), 5),
                      (cf.algorithms.FedDA(eta=1.0, tau=2), None)):
    mine, other = (run(problem, method, 4, batch_size=batch, seed=3) for run in (cf.simulate, reference))
    for column in ("objective", "drift"):
        np.testing.assert_allclose(mine[column], other[column], rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(mine.x, other.x, rtol=0, atol=1e-12)
    on = cf.simulate(problem, method, 2, batch_size=batch, seed=3, resume=cf.simulate(problem, method, 2, batch_size=batch, seed=3))
    np.testing.assert_allclose(on.x, other.x, rtol=0, atol=1e-12)
assert seen == [2] * 9, seen
cf.simulate(problem, method, 2, participants=3)  # who is absent would leave a core without work
cf.simulate(problem, method, 2, tol=1e-3)
assert seen == [2] * 9, seen
"""


def test_clients_shared_out_are_those_of_the_reference_engine():
    environment = {k: v for k, v in os.environ.items() if k not in ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SHARED_OUT], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_all_cores_are_asked_for_before_jax_has_started():
    there = jax.local_device_count("cpu")
    assert cf.use_all_cores(there) == there
    with pytest.raises(cf.InputError, match=f"JAX_NUM_CPU_DEVICES={there + 1}"):
        cf.use_all_cores(there + 1)
    with pytest.raises(cf.InputError, match="count"):
        cf.use_all_cores(0)
