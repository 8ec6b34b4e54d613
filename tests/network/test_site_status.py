"""`compfed site status` and the dated logs. Oracles: a clock that the test holds, other parsers, and the files themselves."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_site import answered, first, log_of, site

from compfed.cli import main
from compfed.federation.queries import Describe, Moments
from compfed.network import keys
from compfed.network.run_folder import is_alive
from compfed.network.site import alone, turn_log
from compfed.network.site_log import SiteLog
from compfed.network.site_settings import SiteSettings
from compfed.network.site_status import Health, site_status, status_text

DAY = 86_400.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return site(tmp_path)


@pytest.fixture
def running(path: Path) -> Iterator[Path]:
    """A site whose service holds the lock and is connected."""
    settings = SiteSettings.read(path)
    keys.make_keys(path.parent / "authority", "127.0.0.1")
    settings.ca.write_bytes((path.parent / "authority" / "ca.crt").read_bytes())
    with alone(settings):
        Health(settings.state).connected()
        yield path


def status(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    capsys.readouterr()
    return main(["site", "status", "--config", str(path), *options]), capsys.readouterr().out


def test_a_service_that_runs_and_is_connected_is_healthy(running, capsys):
    code, text = status(running, capsys, "--json")
    found = json.loads(text)
    assert (code, found["healthy"], found["connected"], found["process"]) == (0, True, True, os.getpid())
    code, text = status(running, capsys)
    assert code == 0
    assert f"Site 'north' runs as process {os.getpid()}, connected" in text
    assert "PROBLEM" not in text


def test_a_service_that_does_not_run_is_a_problem(path, capsys):
    Health(path.parent / "state").connected()  # what it wrote last does not count
    code, text = status(path, capsys, "--json")
    found = json.loads(text)
    assert (code, found["healthy"], found["connected"], found["process"]) == (1, False, False, None)
    assert found["problems"] == ["the service does not run; start it with `compfed site run`"]
    assert is_alive(path.parent / "state") is None


def test_a_service_without_connection_says_why(running, capsys):
    Health(running.parent / "state").lost("the operator has not admitted the key\x1b[2J")
    code, text = status(running, capsys)
    assert code == 1
    assert "PROBLEM  not connected: the operator has not admitted the key\\x1b[2J." in text


@pytest.mark.parametrize(
    ("working", "after", "problem"), [(False, 60, False), (False, 200, True), (True, 200, False), (True, 800, True)]
)
def test_silence_is_a_problem_unless_a_message_is_under_way(working, after, problem, running):
    """120 s without a word; 600 s more (max_seconds) while the site computes a reply."""
    settings = SiteSettings.read(running)
    health = Health(settings.state)
    health.connected()
    if working:
        health.working()
    found = site_status(settings, time.time() + after)
    assert (found.healthy, found.connected) == (not problem, not problem)
    assert all(re.match(r"no word from the SuperLink for \d+ s", text) for text in found.problems)


def test_a_certificate_that_ends_is_a_problem(running):
    settings = SiteSettings.read(running)
    expires = site_status(settings).ca_expires
    assert expires is not None
    for days, said in ((15, ""), (13, "ca.crt is valid until"), (-1, "ca.crt was valid until")):
        problems = [text for text in site_status(settings, expires - days * DAY).problems if "valid" in text]
        assert all(said in text for text in problems)
        assert len(problems) == bool(said)


def test_what_was_replied_and_what_is_left_are_counted(running, capsys):
    health = Health(running.parent / "state")
    for k, refused in enumerate(["", "", "too few rows"]):
        health.working()
        health.replied("study", refused, 100 + k)
    health.connected()
    first_reply = len(bytes(answered(running, first(running, Describe(), Moments()))["words"]))
    assert first_reply
    found = site_status(SiteSettings.read(running))
    assert (found.replies, found.refused, found.bytes_out, found.run) == (3, 1, 303, "study")
    assert found.state_bytes > first_reply
    assert found.log_bytes == (running.parent / "state" / "log.jsonl").stat().st_size
    assert "3 replies, 1 refused; the last run is study." in status_text(found)


def test_metrics_are_in_the_form_of_prometheus(running, tmp_path, capsys):
    """Oracle: the grammar of the text format (prometheus.io, exposition formats), line by line."""
    target = tmp_path / "compfed.prom"
    code, text = status(running, capsys, "--json", "--prometheus", str(target))
    found, content = json.loads(text), target.read_text()
    assert code == 0
    assert content.endswith("\n")
    values, kinds = dict[str, float](), dict[str, str]()
    for line in content.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kinds[name] = line.split()
        elif not line.startswith("# HELP "):
            parsed = re.fullmatch(r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{site="((?:[^"\\\n]|\\.)*)"\} ([-+0-9.e]+)', line)
            assert parsed, line
            assert (parsed[2], parsed[1] in kinds) == ("north", True)
            values[parsed[1]] = float(parsed[3])
    assert set(values) == set(kinds)
    assert {kinds[name] for name in kinds if name.endswith("_total")} == {"counter"}
    assert (values["compfed_site_up"], values["compfed_site_healthy"]) == (1, 1)
    assert values["compfed_site_ca_expiry_timestamp_seconds"] == found["ca_expires"]
    assert values["compfed_site_share_released"] == found["share"]
    assert target.stat().st_mode & 0o777 == 0o644  # the collector is another user
    assert main(["site", "status", "--config", str(running), "--prometheus", str(tmp_path / "x.txt")]) == 2
    assert "end in .prom" in capsys.readouterr().err


def test_a_disk_that_is_full_does_not_end_the_service(path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("compfed._utils.files.write_private", full)
    Health(path.parent / "state").connected()


# --- logs ---


def set_back(path: Path, days: float) -> None:
    moment = path.stat().st_mtime - days * DAY
    os.utime(path, (moment, moment))


def test_a_day_s_log_is_put_aside_under_its_day_and_read_in_order(path):
    state = path.parent / "state"
    answered(path, first(path, Describe()))
    lines = len(log_of(path))
    set_back(state / "log.jsonl", 2)
    day = time.strftime("%Y-%m-%d", time.gmtime((state / "log.jsonl").stat().st_mtime))
    before = (state / "log.jsonl").read_bytes()
    answered(path, first(path, Moments(), run="later"))
    assert (state / f"log-{day}.jsonl").read_bytes() == before
    assert len(log_of(path)) == lines
    runs = [line.run for line in SiteLog(state)]
    assert runs == sorted(runs, key=["run", "later"].index)
    assert set(runs) == {"run", "later"}


def test_logs_are_kept_for_the_days_that_site_toml_says(tmp_path):
    path = site(tmp_path, "log_days = 30\n")
    state, days = path.parent / "state", SiteSettings.read(path).log_days
    state.mkdir(exist_ok=True)
    assert days == 30
    for age in (29, 31, 400):
        (state / f"log-{age}.jsonl").write_text("{}\n")
        set_back(state / f"log-{age}.jsonl", age)
    (state / "log.jsonl").write_text("{}\n")
    turn_log(state / "log.jsonl", days)  # of today: nothing happens
    assert len(list(state.glob("log*"))) == 4
    set_back(state / "log.jsonl", 1)
    turn_log(state / "log.jsonl", days)
    left = sorted(file.name for file in state.glob("log*"))
    assert len(left) == 2
    assert "log-29.jsonl" in left


def test_a_long_log_is_put_aside_on_the_same_day_and_stays_in_order(path, monkeypatch):
    monkeypatch.setattr("compfed.network.site.LONGEST_LOG", 10)
    log = path.parent / "state" / "log.jsonl"
    log.parent.mkdir(exist_ok=True)
    for k in range(4):
        turn_log(log, 730)
        log.write_text(json.dumps({"run": f"run-{k}", "number": 1, "bytes_out": 1}) + "\n")
    assert [line.run for line in SiteLog(log.parent)] == [f"run-{k}" for k in range(4)]


# --- what a site and an operator read ---


def test_the_columns_of_a_table_that_needs_a_schema_are_listed(path, capsys):
    """A dot in the name of a column ends no sentence."""
    (path.parent / "rows.csv").write_text("bmi. kg,sex,y0\n" + "1.5,f,0\n2.5,m,1\n" * 20)
    main(["site", "check", "--config", str(path)])
    text = capsys.readouterr().out
    assert "40 rows, 2 columns: bmi. kg, sex." in text
    (path.parent / "rows.csv").write_text("age,sex. at birth,y0\n" + "1.5,f,0\n2.5,m,1\n" * 20)
    main(["site", "check", "--config", str(path)])
    assert "'sex. at birth'. Agree on a schema" in capsys.readouterr().out
