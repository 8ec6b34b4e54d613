"""Compiled programs: their number in memory, their cache on disk, calls back to NumPy, and forked processes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import compfed as cf
from compfed._utils import compilation

# --- programs in memory ---


def live_executables() -> int:
    """Programs that the compiler holds for this process, ours and others."""
    gc.collect()
    return len(jax.devices()[0].client.live_executables())


def run(rows: int) -> None:
    sites = cf.data.synthetic(clients=2, samples=rows, features=3)
    problem = cf.Problem(cf.losses.Squared(), cf.regularisers.L1(0.1), sites)
    cf.simulate(problem, cf.algorithms.ProximalGradient(eta=0.1), 2)


@pytest.mark.thorough
def test_a_loop_over_new_shapes_keeps_no_more_programs_than_the_bound(monkeypatch):
    limit_programs = compilation.limit_programs
    monkeypatch.setattr(compilation, "limit_programs", lambda: limit_programs(3))
    run(10)
    before = live_executables()
    for rows in (11, 12, 13, 14):
        run(rows)
        assert compilation.count_programs() <= 3 + 3  # the bound, and those of one run
    assert live_executables() <= before + 3


def test_programs_of_the_same_shape_stay():
    compilation.limit_programs(0)  # or the second run might drop what other tests left
    run(10)
    kept = compilation.count_programs()
    assert kept > 0
    run(10)
    assert compilation.count_programs() == kept


# --- programs on disk ---

SMALL_RUN = """
import numpy as np
import compfed as cf
from compfed._utils import compilation
compilation.MIN_COMPILE_SECONDS = 0.0
sites = cf.data.from_arrays(np.ones((2, 4, 3)), np.arange(8.0).reshape(2, 4))
problem = cf.Problem(cf.losses.Squared(ridge=1.0), cf.regularisers.L1(0.1), sites)
print(cf.simulate(problem, cf.algorithms.FedDA(eta=0.1, tau=2), 5).x.tobytes().hex())
"""


def small_run(place: Path) -> str:
    environment = {**os.environ, "COMPFED_CACHE": str(place)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SMALL_RUN], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.thorough
def test_the_next_process_finds_the_programs_and_damage_does_no_harm(tmp_path):
    first = small_run(tmp_path)
    (place,) = tmp_path.iterdir()
    kept = {path.name: path.stat().st_mtime_ns for path in place.iterdir()}
    rounds = [path for path in place.iterdir() if path.name.startswith("jit_single_rounds")]
    assert rounds
    damaged = next(path for path in place.iterdir() if path not in rounds)
    damaged.write_bytes(damaged.read_bytes()[:20])  # as a process leaves it that dies while it writes
    assert small_run(tmp_path) == first
    assert kept.keys() == {path.name for path in place.iterdir()}, "the second process compiled nothing new"
    assert all(path.stat().st_mtime_ns == kept[path.name] for path in rounds), "and wrote nothing"


@pytest.fixture
def updates(monkeypatch) -> dict[str, object]:
    """The updates of JAX's configuration, recorded and not made: they would hold for the whole process."""
    updates: dict[str, object] = {}
    compilation.enable_disk_cache.cache_clear()
    monkeypatch.setattr(jax.config, "update", updates.__setitem__)
    monkeypatch.setattr(warnings, "filterwarnings", lambda *args, **kwargs: None)
    return updates


def test_where_programs_are_cached(monkeypatch, tmp_path, updates):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("COMPFED_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    folder = compilation.disk_cache_folder()
    assert folder is not None
    assert folder.parent == tmp_path / "compfed"
    compilation.enable_disk_cache()
    assert updates["jax_compilation_cache_dir"] == str(folder)
    assert folder.stat().st_mode & 0o077 == 0, "nobody else may put programs there"
    updates.clear()
    compilation.enable_disk_cache()
    assert not updates, "once in a process"


@pytest.mark.parametrize("case", ["off", "the user's own", "no cache wanted", "cannot be written"])
def test_when_none_are_cached(case, monkeypatch, tmp_path, updates):
    (tmp_path / "file").write_text("")
    place = {"off": "off", "cannot be written": str(tmp_path / "file" / "below")}.get(case, str(tmp_path / "kept"))
    monkeypatch.setenv("COMPFED_CACHE", place)
    if case == "the user's own":
        monkeypatch.setattr(type(jax.config), "jax_compilation_cache_dir", "/elsewhere", raising=False)
    if case == "no cache wanted":
        monkeypatch.setattr(type(jax.config), "jax_enable_compilation_cache", False, raising=False)
    compilation.enable_disk_cache()
    assert not updates


def test_the_oldest_go_when_there_are_too_many(tmp_path):
    for k in range(6):
        (tmp_path / str(k)).write_bytes(bytes(100))
        os.utime(tmp_path / str(k), (k, k))
    compilation._limit_disk_cache(tmp_path, most=600)
    assert len(list(tmp_path.iterdir())) == 6
    compilation._limit_disk_cache(tmp_path, most=599)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4", "5"]


# --- forked processes ---

FORK = """
import os, warnings
warnings.simplefilter("ignore")  # JAX warns of the fork itself, and goes on
import compfed as cf
sites = cf.data.synthetic(clients=2, samples=9, features=3)

def run():
    problem = cf.Problem(cf.losses.Squared(), cf.regularisers.L1(0.1), sites)
    return cf.simulate(problem, cf.algorithms.ProximalGradient(eta=0.1), 2)

def in_child():
    child = os.fork()
    if child == 0:
        try:
            run()
        except cf.errors.ForkError as error:
            assert "get_context('spawn')" in str(error)
            os._exit(3)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

assert in_child() == 0  # JAX has not started: the child may start its own
run()
assert in_child() == 3
run()  # nothing has changed for the parent
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on Windows")
def test_a_run_in_a_child_forked_after_jax_has_started_is_refused():
    """It would hang: a mutex that another thread held at the time of the fork is never released in the child."""
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


# --- calls back to NumPy ---

A = np.array([[4.0, 1.0], [1.0, 3.0]])


def solve_scaled(b: np.ndarray, t: float) -> np.ndarray:
    """A system solved by NumPy."""
    assert type(b) is np.ndarray
    assert type(t) is float
    return np.linalg.solve(A, b) * t


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_call_back_to_numpy_is_the_call(dtype):
    b = np.array([1.0, 1.0 + 1e-12], dtype)  # all bits of a double travel
    with jax.enable_x64(dtype == "float64"):
        found = jax.jit(lambda b, t: compilation.numpy_callback(solve_scaled, (2,), b, t))(b, 0.1)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, solve_scaled(b, float(np.asarray(0.1, dtype))).astype(dtype))


def test_a_call_back_to_numpy_under_vmap_is_one_call_for_each():
    b = np.arange(6.0).reshape(3, 2)
    each = jax.vmap(lambda b: compilation.numpy_callback(solve_scaled, (2,), b, 1.0))
    with jax.enable_x64(True):
        found = jax.jit(each)(jnp.asarray(b))
    np.testing.assert_allclose(found, np.linalg.solve(A, b.T).T, rtol=1e-14)
