"""Clients shared out over cores: the same rounds, whoever works them out."""

from __future__ import annotations

import os
import struct
import subprocess
import sys

import jax
import pytest

import compfed as cf
from compfed._utils import compilation as host_devices

# in a process of its own: how many devices there are is settled once in a process
SHARED_OUT = """
import importlib, sys
import numpy as np
import compfed as cf
from compfed.simulation import run_plain
from compfed._utils import compilation as host_devices
host_devices.CPU_LATENCY_FILE = sys.argv[1]
assert cf.use_all_cores(2) == 2
assert open(host_devices.CPU_LATENCY_FILE, "rb").read() == b""
simulator = importlib.import_module("compfed.simulation.simulate")
simulator.SMALL = 0
sites = cf.data.synthetic(clients=5, samples=[30, 6, 30, 6, 30], features=4, seed=0)  # two buckets, neither of them even
problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites, weights=sites.shares)
method = cf.algorithms.DecoupledProx(eta=1.0, tau=2)

def same(mine, other):
    for column in ("objective", "gradient_mapping", "drift"):
        np.testing.assert_allclose(mine[column], other[column], rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(mine.x, other.x, rtol=0, atol=1e-12)

for a, every in ((method, 1), (method, 3), (cf.algorithms.FedDA(eta=1.0, tau=2), 1)):
    mine, other = (run(problem, a, 4, record_every=every) for run in (cf.simulate, run_plain))
    same(mine, other)
    assert mine.provenance["mesh"] == {"devices": 2, "processes": 1}
assert open(host_devices.CPU_LATENCY_FILE, "rb").read() == b""  # power is the machine's own matter, unless the caller asks
assert cf.use_all_cores(2, awake=True) == 2
same(cf.simulate(problem, a, 4), other)
assert open(host_devices.CPU_LATENCY_FILE, "rb").read() == bytes(4)  # rounds on several cores keep them awake
open(host_devices.CPU_LATENCY_FILE, "wb").close()
assert cf.use_all_cores(2) == 2
cf.simulate(problem, a, 4)
assert open(host_devices.CPU_LATENCY_FILE, "rb").read() == b""
half = cf.simulate(problem, a, 2)
np.testing.assert_allclose(cf.simulate(problem, a, 2, resume=half).x, other.x, rtol=0, atol=1e-12)
"""
GRIDS_AND_BATCHES = """
members = cf.grid(problem, method, 4, {"eta": [0.5, 1.0], "lam": [1e-3, 1e-2], "seed": [0, 1]})
for member in members:
    values = member.provenance["grid"]
    assert member.provenance["mesh"]["devices"] == 2
    alone = problem.replace(problem.loss, cf.regularisers.L1(values["lam"]))
    other = run_plain(alone, cf.algorithms.DecoupledProx(eta=values["eta"], tau=2), 4)
    same(member, other)
    np.testing.assert_allclose(member.state.clients[0], other.state.clients[0], rtol=0, atol=1e-12)

arrived = cf.simulate(problem, method, 400, tol=1e-6)
assert arrived["gradient_mapping"][-1] <= 1e-6 < arrived["gradient_mapping"][-2] and arrived["round"][-1] < 400
assert arrived.provenance["mesh"]["devices"] == 2

# mini-batches: the rows that each client draws are the same wherever it is
for how in ({}, {"over": {"eta": [0.5, 1.0], "seed": [0, 1]}}):
    runs = cf.grid(problem, method, 4, batch_size=5, **how) if how else [cf.simulate(problem, method, 4, batch_size=5)]
    for run in runs:
        assert run.provenance["mesh"]["devices"] == 2
        values = {"eta": 1.0, "seed": 0} | run.provenance.get("grid", {})
        a = cf.algorithms.DecoupledProx(eta=values["eta"], tau=2)
        same(run, run_plain(problem, a, 4, batch_size=5, seed=values["seed"]))

# a core would have nothing to do, or lack what is to be measured, or wait too often
for how in ({"participants": 3}, {"measure": lambda *_: {"one": 1.0}}):
    assert "mesh" not in cf.simulate(problem, method, 2, **how).provenance
simulator.SMALL = 5 * 5 * 4 * 8 * 2 / 5  # bytes of the rows in a round of mini-batches, for each of its five sums
assert problem.dataset.A.nbytes > 2 * simulator.SMALL
assert "mesh" in cf.simulate(problem, method, 2).provenance
assert "mesh" not in cf.simulate(problem, method, 2, batch_size=5).provenance
assert "mesh" in cf.simulate(problem, method, 2, batch_size=5, record_every=2).provenance
assert "mesh" in cf.grid(problem, method, 2, {"eta": [0.5, 1.0]}, batch_size=5)[0].provenance
"""


@pytest.mark.parametrize(
    "more", ["", pytest.param(GRIDS_AND_BATCHES, marks=pytest.mark.thorough, id="grids and batches")]
)
def test_clients_shared_out_are_those_of_the_reference_engine(more, tmp_path):
    (tmp_path / "latency").touch()
    environment = {k: v for k, v in os.environ.items() if k != "JAX_NUM_CPU_DEVICES"}
    flags = environment.get("XLA_FLAGS", "").split()
    environment["XLA_FLAGS"] = " ".join(flag for flag in flags if "device_count" not in flag)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SHARED_OUT + more, str(tmp_path / "latency")],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_all_cores_are_asked_for_before_jax_has_started():
    there = jax.local_device_count("cpu")
    assert cf.use_all_cores(there) == there
    with pytest.raises(cf.InputError, match=f"JAX_NUM_CPU_DEVICES={there + 1}"):
        cf.use_all_cores(there + 1)
    with pytest.raises(cf.InputError, match="count"):
        cf.use_all_cores(0)
    with pytest.raises(cf.InputError, match="awake='yes' must be True or False"):
        cf.use_all_cores(there, awake="yes")  # pyright: ignore[reportArgumentType]


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="Linux says which files are open")
def test_cores_are_kept_awake_by_an_open_file_that_says_0_us(tmp_path, monkeypatch):
    """Linux reads four bytes, and forgets them when the file is closed (its documentation of PM QoS)."""
    there = tmp_path / "latency"
    monkeypatch.setattr(host_devices, "_awake", True)
    monkeypatch.setattr(host_devices, "CPU_LATENCY_FILE", str(there))
    with host_devices.keep_cores_awake():  # no such file: as it is for who may not write it
        assert not there.exists()
    monkeypatch.setattr(host_devices, "CPU_LATENCY_FILE", "/dev/full")  # opens, and takes nothing
    with host_devices.keep_cores_awake():
        pass
    monkeypatch.setattr(host_devices, "CPU_LATENCY_FILE", str(there))
    there.touch()

    def held() -> bool:
        return str(there) in {os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}

    def run_that_ends_badly() -> None:
        with host_devices.keep_cores_awake():
            assert there.read_bytes() == struct.pack("i", 0)
            assert held()
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        run_that_ends_badly()
    assert not held()
