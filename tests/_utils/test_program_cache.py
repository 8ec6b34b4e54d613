"""Programs kept on disk: found again by the next process, and never in the way."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import pytest

from compfed._utils import compilation as program_cache

SMALL_RUN = """
import numpy as np
import compfed as cf
from compfed._utils import compilation as program_cache
program_cache.MIN_COMPILE_SECONDS = 0.0
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
def told(monkeypatch) -> dict[str, object]:
    """What JAX is told, which is not done here: it would hold for the whole process."""
    said: dict[str, object] = {}
    monkeypatch.setattr(program_cache, "_asked", False)
    monkeypatch.setattr(jax.config, "update", said.__setitem__)
    monkeypatch.setattr(warnings, "filterwarnings", lambda *args, **kwargs: None)
    return said


def test_where_programs_are_kept(monkeypatch, tmp_path, told):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("COMPFED_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    place = program_cache.disk_cache_folder()
    assert place is not None
    assert place.parent == tmp_path / "compfed"
    program_cache.enable_disk_cache()
    assert told["jax_compilation_cache_dir"] == str(place)
    assert place.stat().st_mode & 0o077 == 0, "nobody else may put programs there"
    told.clear()
    program_cache.enable_disk_cache()
    assert not told, "once in a process"


@pytest.mark.parametrize("case", ["off", "the user's own", "no cache wanted", "cannot be written"])
def test_when_none_are_kept(case, monkeypatch, tmp_path, told):
    (tmp_path / "file").write_text("")
    place = {"off": "off", "cannot be written": str(tmp_path / "file" / "below")}.get(case, str(tmp_path / "kept"))
    monkeypatch.setenv("COMPFED_CACHE", place)
    if case == "the user's own":
        monkeypatch.setattr(type(jax.config), "jax_compilation_cache_dir", "/elsewhere", raising=False)
    if case == "no cache wanted":
        monkeypatch.setattr(type(jax.config), "jax_enable_compilation_cache", False, raising=False)
    program_cache.enable_disk_cache()
    assert not told


def test_the_oldest_go_when_there_are_too_many(tmp_path):
    for k in range(6):
        (tmp_path / str(k)).write_bytes(bytes(100))
        os.utime(tmp_path / str(k), (k, k))
    program_cache._limit_disk_cache(tmp_path, most=600)
    assert len(list(tmp_path.iterdir())) == 6
    program_cache._limit_disk_cache(tmp_path, most=599)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4", "5"]
