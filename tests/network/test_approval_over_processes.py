"""A run that waits for persons at its sites, over real processes: approved from other shells, through restarts, or denied."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr", reason="a federation across a network: pip install '.[flower]'")

from network.processes import Processes, command

import compfed as cf
from compfed.cli.demo import end_process
from compfed.network.site_settings import SiteSettings

pytestmark = pytest.mark.thorough
NAMES, SECONDS = ("north", "south", "east"), 60.0


def rows(seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    found = pd.DataFrame(rng.standard_normal((120 + seed, 4)).round(4), columns=["age", "crp", "bmi", "dose"])
    found["y"] = (found["age"] - found["bmi"] + 0.5 * rng.standard_normal(len(found))).round(4)
    return found.to_csv(index=False).encode()


def clinics(home: Path) -> Processes:
    federation = Processes(home, {name: rows(k) for k, name in enumerate(NAMES)}, 'label = "y"')
    federation.rewrite('estimator = "FederatedLasso"\n[parameters]\nalpha = 0.05\n')
    return federation


def ask_persons(federation: Processes) -> None:
    for name in NAMES:
        toml = federation.site_folder(name) / "site.toml"
        toml.write_text(toml.read_text().replace("by_rule = true", "by_rule = false"))


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def waiting(federation: Processes, name: str) -> list[str]:
    """What a person at the site reads with `compfed site runs --json`, in a shell of their own."""
    config = federation.site_folder(name) / "site.toml"
    return [
        a["run"] for a in json.loads(command("site", "runs", "--json", "--config", config)) if a["state"] == "waiting"
    ]


def test_a_run_waits_is_approved_from_another_shell_and_ends_with_the_same_bits(tmp_path):
    """A site and the operator are killed and started again while it waits."""
    federation = clinics(tmp_path / "clinics")
    with federation:
        federation.start()
        by_rule = federation.start_run(tmp_path / "by-rule", tmp_path / "by-rule.log")
        assert by_rule.wait(SECONDS) == 0, (tmp_path / "by-rule.log").read_text()
        ask_persons(federation)
        for name in NAMES:
            end_process(federation.processes.pop(name))
            federation.start_site(name)
        operator = federation.start_run(tmp_path / "run", tmp_path / "run.log")
        until(lambda: all(waiting(federation, name) for name in NAMES))
        operator.kill()
        operator.wait()
        federation.processes["north"].kill()
        federation.processes.pop("north").wait()
        federation.start_site("north")
        operator = federation.start_run(tmp_path / "run", tmp_path / "run.log")
        until(lambda: "waits for a person at the site to approve this run" in (tmp_path / "run.log").read_text())
        for name in NAMES:
            (run,) = waiting(federation, name)
            assert operator.poll() is None
            command("site", "approve", run, "--yes", "--config", federation.site_folder(name) / "site.toml")
        assert operator.wait(SECONDS) == 0, (tmp_path / "run.log").read_text()
    one, other = (cf.load_model(str(tmp_path / folder)) for folder in ("by-rule", "run"))
    np.testing.assert_array_equal(one.coef_, other.coef_)
    assert one.intercept_ == other.intercept_


def test_a_denied_run_ends_and_nothing_left(tmp_path):
    federation = clinics(tmp_path / "clinics")
    ask_persons(federation)
    with federation:
        federation.start()
        operator = federation.start_run(tmp_path / "run", tmp_path / "run.log")
        until(lambda: all(waiting(federation, name) for name in NAMES))
        config = federation.site_folder("south") / "site.toml"
        command("site", "deny", waiting(federation, "south")[0], "--why", "no contract", "--config", config)
        assert operator.wait(SECONDS) == 2
    assert "denied this run: no contract" in (tmp_path / "run.log").read_text()
    for name in NAMES:
        assert SiteSettings.read(federation.site_folder(name) / "site.toml").ledger().numbers == 0
