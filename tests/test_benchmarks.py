"""Every benchmark runs, at its smallest size: what it prints is not looked at, but that it checks and prints it.

Those that start processes of their own take longer: `make test-all`.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys

import pytest
from places import ROOT

BENCHMARKS = ROOT / "benchmarks"
LATER = ("cv.py", "rounds.py")  # twenty seconds and more
HERE = {  # in this process
    "rounds.py": "--quick --one-device --out OUT",
    "cv.py": "--quick --engines compfed scikit-learn --out OUT",  # each engine in its own
    "coverage.py": "--quick",
    "evaluation_widths.py": "",
}
APART = {
    "against_peers.py": "--quick --turns 1 --out OUT",
    "roofline.py": "--quick --out OUT",
    "cox.py": "--quick --out OUT",
    "first_call.py": "--quick --out OUT",
    "fits.py": "--turns 1 --only lasso --problems cancer --out OUT",
    "many_clients.py": "--runs 1 --rounds 2 --limit 100",
    "network.py": "--soak 1",
    "network_rounds.py": "--smallest",
    "read_table.py": "--quick",
    "same_answers.py": "save OUT --only nothing",
    "secure_sum.py": "--turns 1 --sites 4",
    "sweep.py": "--quick --one-device --out OUT",
    "sizes.py": "--only tiny --limit 1000",
    "versions.py": f"--turns 1 --other {ROOT / 'src'}",
}
NOT_TRIED = {
    "gpu.py": "needs a GPU",
    "machine.py": "of the others",
    "network_clients.py": "tests/network/test_network_benchmarks.py",
    "network_usage.py": "of network.py",
    "one_fit.py": "of fits.py",
    "page.py": "reads what the others wrote, and writes a page of the documentation",
}


def options(name: str, out: object) -> list[str]:
    return (HERE | APART)[name].replace("OUT", str(out)).split()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough) if name in LATER else name for name in HERE]
)
def test_a_benchmark_runs(name, tmp_path, monkeypatch, capsys):
    path = BENCHMARKS / name
    monkeypatch.setattr(sys, "argv", [str(path), *options(name, tmp_path / "out.json")])
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
    if (tmp_path / "out.json").exists():
        assert json.loads((tmp_path / "out.json").read_text())


@pytest.mark.thorough
@pytest.mark.parametrize("name", APART)
def test_a_benchmark_of_several_processes_runs(name, tmp_path):
    if name in ("network.py", "secure_sum.py"):
        pytest.importorskip("flwr", reason="a federation across a network: pip install '.[flower]'")
    command = [sys.executable, str(BENCHMARKS / name), *options(name, tmp_path / "out.npz")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_benchmark_is_here():
    assert {path.name for path in BENCHMARKS.glob("*.py")} == HERE.keys() | APART.keys() | NOT_TRIED.keys()
