"""The benchmarks of the network at their smallest size: real processes, and light sites whose sums are known."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="a federation across a network: pip install '.[flower]'")

from places import ROOT

pytestmark = pytest.mark.thorough  # run by `make test-federation`


def said(*arguments: str) -> str:
    """What a benchmark prints; it ends well, and says nothing of problems."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT / "benchmarks", capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "problems" not in done.stdout
    return done.stdout


def test_the_default_policy_lets_the_fits_of_the_benchmark_through():
    """`make bench-federation` measures what users run, under the rules that they have."""
    first, second = said("network.py", "--quick").splitlines()
    assert re.fullmatch(r"compfed, small messages, 3 sites +[5-9] rounds  mean +\d+\.\d\d s  by turn .*", first)
    assert re.fullmatch(r" +SuperLink \d+ ms of processor a message, \d+\.\d ms a site", second)


def test_light_sites_answer_as_sites_do():
    """The benchmark compares every total with the exact one."""
    head, line = said("network_clients.py", "--sites", "3", "--kilobytes", "300", "--messages", "2").splitlines()
    assert head.split()[:2] == ["sites", "reply"]
    assert line.split()[:2] == ["3", "300"]
