"""Clients shared out over devices and over processes: the models of one device."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import compfed as cf
from compfed.algorithms import Scaffold
from compfed.simulation.sharding import _slots

# Seven clients in two buckets of one and of six: with two devices, one of them has a place that nobody fills.
SETUP = """
import json, sys
import jax
import numpy as np
import compfed as cf
from compfed.algorithms import DecoupledProx, Scaffold

rng = np.random.default_rng(3)
A = [rng.standard_normal((m, 5)) for m in (40, 5, 7, 5, 9, 6, 5)]
sites = cf.data.from_arrays(A, [a @ rng.standard_normal(5) + rng.standard_normal(len(a)) for a in A])
g = cf.regularisers.L1(0.01)
problem = cf.Problem(cf.losses.Squared(ridge=0.1), g, sites, sites.shares)
smooth = cf.Problem(problem.loss, cf.regularisers.Zero(), sites)
everyone = (problem, DecoupledProx(eta=0.05, tau=2)), {"record_every": 4}
sampled = (smooth, Scaffold(eta=0.05, tau=2)), {"participants": 4, "batch_size": 2, "record_every": 3, "seed": 5}
"""


def started(*command: str) -> subprocess.Popen:
    src = str(Path(cf.__file__).parents[1])
    env = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join([src, os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen(
        [sys.executable, *command], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def said(process: subprocess.Popen) -> str:
    try:
        out, err = process.communicate(timeout=500)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return out


def test_two_devices_have_the_models_of_one_and_what_nobody_has_counts_nothing(tmp_path):
    script = tmp_path / "two.py"
    script.write_text(
        "import jax\njax.config.update('jax_num_cpu_devices', 2)\n"
        + SETUP
        + """
from compfed.simulation import simulate as simulator
assert problem.dataset.buckets == ((1, 40), (6, 9))
off = {}
in_turn = sampled[0], sampled[1] | {"batch_size": None}  # one after another, where there are more rows than these
for name, (what, how) in (("in turn", in_turn), ("everyone", everyone), ("sampled", sampled)):
    alone = cf.simulate(*what, 9, **how)
    simulator.SMALL = 0 if name == "in turn" else 2**20
    shared = cf.simulate(*what, 9, **how, mesh=jax.devices())
    assert shared.provenance["mesh"] == {"devices": 2, "processes": 1}
    for column in alone:
        if column != "seconds":
            off[f"{name} {column}"] = float(np.abs(alone[column] - shared[column]).max())
    off[f"{name} x"] = float(np.abs(alone.x - shared.x).max())
    off[f"{name} memory"] = max(float(np.abs(a - b).max()) for a, b in zip(alone.state.clients, shared.state.clients))
part = cf.simulate(*what, 3, **how)
off["resumed"] = float(np.abs(alone.x - cf.simulate(*what, 6, **how, mesh=jax.devices(), resume=part).x).max())
print(json.dumps(off))
"""
    )
    off = json.loads(said(started(str(script))).splitlines()[-1])
    assert {
        "everyone objective",
        "everyone gradient_mapping",
        "everyone correction",
        "sampled drift",
        "in turn memory",
    } < set(off)
    assert max(off.values()) < 1e-12, off


@pytest.mark.thorough
def test_two_processes_have_the_trace_of_one(tmp_path):
    script = tmp_path / "shared.py"
    script.write_text(
        SETUP
        + """
trace = cf.simulate(*sampled[0], 9, **sampled[1], mesh=jax.devices())
trace.save(f"{sys.argv[1]}/{jax.process_index()}")
"""
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    how = ("-m", "compfed.cli", "worker", "--coordinator", f"127.0.0.1:{port}", "--processes", "2", "--wait", "200")
    both = [started(*how, "--process-id", str(i), str(script), str(tmp_path)) for i in (0, 1)]
    names: dict = {}
    exec(SETUP, names)  # meanwhile, here
    (problem, method), more = names["sampled"]
    alone = cf.simulate(problem, method, 9, **more)
    for process in both:
        said(process)
    for i in (0, 1):
        trace = cf.Trace.load(tmp_path / str(i))
        assert trace.provenance["mesh"] == {"devices": 2, "processes": 2}
        np.testing.assert_allclose(trace.x, alone.x, rtol=0, atol=1e-10)
        for column in ("objective", "gradient_mapping", "drift", "correction", "bytes_up"):
            np.testing.assert_allclose(trace[column], alone[column], rtol=0, atol=1e-10)
        assert trace.state is not None
        assert alone.state is not None
        np.testing.assert_allclose(trace.state.clients[0], alone.state.clients[0], rtol=0, atol=1e-10)


def test_every_client_has_one_place():
    slots, buckets = _slots(((5, 30), (1, 8), (4, 2)), 3)
    assert buckets == ((2, 30), (1, 8), (2, 2))
    assert sorted(slots[slots >= 0]) == list(range(10))
    assert (slots < 0).sum() == 5
    assert slots[:, :2].tolist() == [[0, 1], [2, 3], [4, -1]]


def test_what_is_no_mesh_is_refused():
    sites = cf.data.from_arrays([np.ones((2, 2))], [np.ones(2)])
    problem = cf.Problem(cf.losses.Squared(ridge=1.0), cf.regularisers.Zero(), sites)
    refused = [({"mesh": 2}, "jax.devices"), ({"mesh": []}, "jax.devices"), ({"mesh": "cpu"}, "jax.devices"),
               ({"mesh": 2 * jax.devices()[:1]}, "twice"),
               ({"mesh": jax.devices(), "measure": lambda *_: {}}, "leave measure or mesh out"),
               ({"mesh": jax.devices(), "storage": "bfloat16"}, "kernels are for one device"),
               ({"mesh": jax.devices(), "storage": "float16"}, "Use 'float32' or 'bfloat16'")]  # fmt: skip
    for how, message in refused:
        with pytest.raises(cf.InputError, match=message):
            cf.simulate(problem, Scaffold(eta=0.1), 1, **how)
