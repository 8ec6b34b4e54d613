"""A run on the operator's screen: lines, a table on a terminal, and no long silence in a pipe."""

from __future__ import annotations

import io
import json
import re
import time
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="a federation across a network: pip install '.[flower]'")

from network.memory_link import NOW, furnish, remote

import compfed as cf
from compfed.cli.result_text import result_text
from compfed.estimators.base import FederatedModel
from compfed.federation import Describe, InProcess, Moments, ask
from compfed.network import operator, run_folder
from compfed.network.operator import Display, happening, site_table, states_text
from compfed.network.run_folder import RunLog
from compfed.stopping import Certificate

SITES = ("north", "south")
FACTS = {"queries": {"Moments": 1}, "bytes_down": 2500, "bytes_up": 1500, "sha256_up": "0"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def answered(log: RunLog, number: int = 1) -> None:
    log.begin(number, ["Describe", "Moments", "Moments"], SITES)
    for site in SITES:
        log.reply(site, seconds=0.25, **FACTS)
    log.settle()


# --- lines ---


def test_a_pipe_gets_a_line_per_message_and_per_problem(monkeypatch):
    monkeypatch.setattr(operator, "REFRESH", 0.01)
    log, out = RunLog(None, SITES), io.StringIO()
    with Display(log, out):
        answered(log, 1)
        log.begin(2, ["LocalUpdate"], SITES)
        log.problem("south", "not connected")
        log.reply("north", seconds=0.1, **FACTS)
        log.reply("south", seconds=0.1, **FACTS)
        log.settle()
        time.sleep(0.05)
        log.problem("", "the SuperLink cannot be used: it is away")
    first, second, third, last = out.getvalue().splitlines()
    assert re.fullmatch(r"message   1 +0\.0 s +5\.0 kB down +3\.0 kB up  Describe, Moments", first)
    assert second == "  ! message 2, site south: not connected"
    assert re.match(r"message   2 .* LocalUpdate", third)
    assert last == "  ! the SuperLink cannot be used: it is away"
    assert "\x1b" not in out.getvalue()


def test_the_last_lines_are_shown_when_the_run_ends():
    log, out = RunLog(None, SITES), io.StringIO()
    with Display(log, out):  # ends before the first look
        answered(log)
    assert out.getvalue().count("\n") == 1


def test_a_display_writes_to_the_screen_by_default(capsys):
    log = RunLog(None, SITES)
    with Display(log):
        answered(log)
    assert "message   1" in capsys.readouterr().out


def test_a_fit_shows_every_message_and_every_problem(tmp_path):
    rng = np.random.default_rng(0)
    A = [rng.standard_normal((9, 2)) for _ in SITES]
    sites = cf.data.from_arrays(A, [a[:, 0] for a in A], list(SITES), columns=["age", "dose"])
    federation, link = remote(furnish(tmp_path, sites), tmp_path / "run", retry=NOW)
    dropped = iter([True])
    link.meddle = lambda name, data, reply: None if name == "south" and next(dropped, False) else reply()
    out = io.StringIO()
    with federation, Display(federation.run_log, out):
        cf.FederatedLasso(alpha=0.1).fit_federation(federation)
    lines = out.getvalue().splitlines()
    assert [line for line in lines if "!" in line] == ["  ! message 1, site south: no reply in time"]
    (stated,) = [line for line in lines if "FederatedLasso: at most " in line]
    assert lines.index(stated) == 2  # before the first numbers leave
    lines.remove(stated)
    assert len(lines) == federation.number + 1
    assert lines[1].endswith("  Enrol")


# --- silence ---


def test_a_pipe_hears_something_at_least_every_ten_seconds(monkeypatch):
    """With a clock of our own: a minute in which nobody replies."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    log, out = RunLog(None, SITES), io.StringIO()
    shown = Display(log, out)
    log.begin(3, ["Moments"], SITES)
    log.connected(["north"])
    said: list[float] = []
    for _ in range(120):
        before = len(out.getvalue())
        shown._refresh()
        if len(out.getvalue()) > before:
            said.append(clock[0])
        clock[0] += operator.REFRESH
    assert len(said) >= 6
    assert max(b - a for a, b in zip([1000.0, *said], [*said, clock[0]], strict=True)) < 10
    assert operator.SILENCE + 2 * operator.REFRESH <= 10
    line = out.getvalue().splitlines()[0]
    assert re.fullmatch(r"Message 3 \(Moments\): waiting for south, north since \d+ s; not connected: south\.", line)


def test_a_line_breaks_the_silence(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    log, out = RunLog(None, SITES), io.StringIO()
    shown = Display(log, out)
    for number in range(1, 5):
        clock[0] += operator.SILENCE - 1
        answered(log, number)
        shown._refresh()
    assert out.getvalue().count("\n") == 4  # the lines alone


# --- a terminal ---


def test_a_terminal_redraws_one_table_below_the_lines(monkeypatch):
    monkeypatch.setattr(operator, "REFRESH", 0.01)
    log, out = RunLog(None, SITES), Terminal()
    with Display(log, out):
        answered(log)
        log.begin(2, ["LocalUpdate"], SITES)
        log.connected(["north"])
        log.reply("north", seconds=4.25, **FACTS)
        log.settle()
        time.sleep(0.08)
    drawn = out.getvalue()
    frames = re.split(r"\x1b\[(\d+)F\x1b\[J", drawn)
    assert len(frames) > 3
    for table, up in zip(frames[:-1:2], frames[1::2], strict=True):
        heading = table.index("site  ")
        assert table[heading:].count("\n") == int(up)  # exactly the table is taken back, no line above it
    assert "".join(frames[::2]).count("message   1") == 1
    assert "site  " not in frames[-1]  # no table is left when the run has ended


def test_the_table_has_a_line_per_site():
    log = RunLog(None, SITES)
    answered(log)
    log.begin(2, ["LocalUpdate"], SITES)
    log.connected(["north"])
    log.reply("north", seconds=4.25, **FACTS)
    log.settle()
    rows = [re.split(r"  +", line.strip()) for line in site_table(log.state, SITES).splitlines()]
    assert rows[0] == ["site", "connected", "last reply", "took", "now"]
    assert rows[2] == ["north", "yes", "0 s ago", "4.2 s", "replied"]
    assert rows[3] == ["south", "NO", "0 s ago", "0.2 s", "awaited since 0 s"]
    assert rows[4][0] == "Message 2 (LocalUpdate): waiting for south since 0 s; not connected: south."
    fresh = site_table(RunLog(None, SITES).state, SITES).splitlines()
    assert re.split(r"  +", fresh[2].strip()) == ["north", "?", "-", "-", "-"]


# --- a hundred sites ---

MANY = tuple(f"clinic-{k:02d}" for k in range(100))


def of_a_hundred() -> RunLog:
    """Message 2 of a run: 60 sites have replied, 38 are awaited, and two more of them are not connected."""
    log = RunLog(None, MANY)
    log.begin(1, ["Enrol"], MANY)
    for k, name in enumerate(MANY):
        log.reply(name, seconds=k / 10, **FACTS)
    log.settle()
    log.begin(2, ["Evaluate"], MANY)
    log.connected([name for name in MANY if name not in ("clinic-70", "clinic-90")])
    for name in MANY[:60]:
        log.reply(name, seconds=0.5, **FACTS)
    log.settle()
    return log


def test_the_table_of_many_sites_fits_the_screen_and_begins_with_those_that_hold_the_run_up(monkeypatch):
    monkeypatch.setenv("LINES", "24")
    log = of_a_hundred()
    rows = [re.split(r"  +", line.strip()) for line in site_table(log.state, MANY, most=10).splitlines()]
    assert len(rows) == 2 + 9 + 2
    assert [row[0] for row in rows[2:5]] == [
        "clinic-90",
        "clinic-70",
        "clinic-99",
    ]  # absent, then awaited, the slowest first
    assert [row[1] for row in rows[2:5]] == ["NO", "NO", "yes"]
    assert rows[11] == ["and 91 more sites, 31 of them awaited"]
    out = Terminal()
    shown = Display(log, out)
    shown._refresh()
    assert 0 < shown._drawn <= 23
    assert [re.split(r"  +", line)[0] for line in site_table(log.state, MANY).splitlines()[2:102]] == list(MANY)


def test_what_happens_names_a_few_of_many_sites_and_counts_the_others():
    assert happening(of_a_hundred().state) == (
        "Message 2 (Evaluate): waiting for 40 sites: clinic-70, clinic-90, clinic-60, clinic-61, clinic-62 and 35 more since 0 s; "
        "not connected: clinic-70, clinic-90."
    )


def test_the_same_problem_of_many_sites_is_one_line():
    log = of_a_hundred()
    log.take_lines()
    for name in MANY[60:]:
        log.problem(name, "no reply in time")
    log.problem("clinic-07", "it signed in again")
    assert log.take_lines() == [
        "  ! message 2, 40 sites (clinic-60, clinic-61, clinic-62, clinic-63, clinic-64 and 35 more): no reply in time",
        "  ! message 2, site clinic-07: it signed in again",
    ]
    assert [each["site"] for each in log.problems] == [*MANY[60:], "clinic-07"]  # the log names every one


def test_the_status_of_a_run_is_written_once_for_replies_that_come_together(tmp_path, monkeypatch):
    written: list[object] = []
    monkeypatch.setattr(run_folder, "write_private", lambda *args, **_: written.append(args))
    log = RunLog(tmp_path, MANY)
    log.begin(1, ["Enrol"], MANY)
    for name in MANY:
        log.reply(name, seconds=0.1, **FACTS)
    log.settle()
    assert len(written) == 2
    assert log.state["waiting"] == {}
    assert set(log.state["last"]) == set(MANY)


def test_the_states_of_many_sites_are_grouped_the_worst_first():
    states = dict.fromkeys(MANY, "connected since 10:00:00 UTC") | {
        "clinic-03": "never connected", "clinic-05": "signed out at 09:00:00 UTC", "clinic-04": "signed out at 09:01:00 UTC"
    }  # fmt: skip
    rows = [re.split(r"  +", line.strip()) for line in states_text(states).splitlines()]
    assert [row[:2] for row in rows[2:]] == [["never connected", "1"], ["signed out", "2"], ["connected", "97"]]
    assert rows[3][2] == "clinic-04, clinic-05"
    assert rows[4][2].endswith("and 85 more")
    few = {"north": "never connected", "south": "connected since 10:00:00 UTC"}
    assert states_text(few).splitlines()[3].endswith("connected since 10:00:00 UTC")


# --- what happens now ---


def test_what_happens_now_in_one_sentence():
    log = RunLog(None, SITES)
    assert happening(log.state) == "Connecting to the SuperLink."
    log.begin(1, ["Moments"], SITES)
    assert happening(log.state) == "Message 1 (Moments): waiting for north, south since 0 s."
    log.link("nothing listens at 127.0.0.1:8443")
    assert happening(log.state) == "Waiting for the SuperLink: nothing listens at 127.0.0.1:8443."
    log.link("")
    for site in SITES:
        log.reply(site, seconds=0.0, **FACTS)
    log.settle()
    assert happening(log.state) == "Message 1 is complete; the fit computes the next one."


def test_the_state_of_a_run_can_be_read_from_another_process(tmp_path):
    log = RunLog(tmp_path, SITES)
    log.begin(4, ["Moments"], SITES)
    state = json.loads((tmp_path / "status.json").read_text())
    assert happening(state) == happening(log.state)
    assert (state["state"], state["message"]) == ("running", 4)
    log.end("failed", reason="a reason")
    state = json.loads((tmp_path / "status.json").read_text())
    assert (state["state"], state["reason"], state["waiting"]) == ("failed", "a reason", {})


def test_trouble_with_the_superlink_is_said_once():
    log = RunLog(None, SITES)
    for _ in range(5):
        log.link("it is away")
    log.link("")
    log.link("it is away")
    assert [line for line in log.lines] == ["  ! the SuperLink cannot be used: it is away"] * 2


def test_a_long_run_keeps_a_bounded_number_of_lines(tmp_path):
    log = RunLog(None, SITES)
    for number in range(1, 3000):
        log.begin(number, ["LocalUpdate"], ("north",))
        log.reply("north", seconds=0.0, **FACTS)
        log.settle()
        log.problem("north", "x")
    assert len(log.lines) <= 1000
    assert len(log.problems) <= 1000


# --- the result ---


def table(classes: bool = False) -> cf.data.Sites:
    rng = np.random.default_rng(2)
    A = [rng.standard_normal((25, 4)) for _ in SITES]
    z = [a @ [2.0, 0.0, -1.0, 0.0] + 0.1 * rng.standard_normal(len(a)) for a in A]
    y = [np.digitize(v, [-1, 1]).astype(float) for v in z] if classes else z
    return cf.data.from_arrays(A, y, list(SITES), columns=["age", "dose", "rate", "bmi"])


def test_the_result_has_alpha_the_coefficients_that_are_not_zero_and_the_certificate():
    model = cf.FederatedLasso(alpha=0.3).fit_federation(InProcess(table()))
    text = result_text(model)
    used = [name for name, value in zip(model.feature_names_in_, model.coef_, strict=True) if value]
    assert used == ["age", "rate"]  # those that the labels were made of
    assert text.splitlines()[0] == "alpha = 0.3"
    assert "2 of 4 coefficients are not zero:" in text
    found = dict(re.findall(r"^(age|dose|rate|bmi) +(-?[\d.]+)$", text, re.MULTILINE))
    assert {name: float(value) for name, value in found.items()} == pytest.approx(
        {name: float(f"{model.coef_[j]:.6g}") for j, name in enumerate(model.feature_names_in_) if model.coef_[j]}
    )
    assert f"intercept: {model.intercept_:.6g}" in text
    certificate = model.certificate_
    assert certificate.holds
    assert text.endswith(
        f"Certified: the objective is within {certificate.duality_gap:.1e} of its minimum; no other model reaches it."
    )


def test_a_certificate_that_does_not_hold_says_so():
    model = cf.FederatedLasso(alpha=0.3).fit_federation(InProcess(table()))
    assert replace(model.certificate_, gradient_mapping=1.0).words.startswith("NOT certified: ")


def test_the_result_of_a_model_without_coefficients():
    model = cf.FederatedLasso(alpha=1e3).fit_federation(InProcess(table()))
    assert "All coefficients are zero." in result_text(model)


def test_the_result_of_several_classes_has_a_column_for_each():
    model = cf.FederatedLogisticRegression(alpha=0.05).fit_federation(InProcess(table(classes=True)))
    lines = result_text(model).splitlines()
    head = next(line for line in lines if line.startswith("column"))
    assert head.split() == ["column", "0.0", "1.0", "2.0"]
    (age,) = [line.split() for line in lines if line.startswith("age")]
    np.testing.assert_allclose([float(value) for value in age[1:]], model.coef_[:, 0], rtol=1e-5)


def test_the_result_of_a_wide_model_is_cut_and_column_names_are_safe():
    class Model(FederatedModel):
        coef_, alpha_ = np.ones(500), 0.5
        feature_names_in_ = np.array(["\x1b[2J" + "x" * 100, *(f"c{j}" for j in range(499))])
        certificate_ = Certificate(0.0, 1.0, 1e-6)

    text = result_text(Model())
    assert "... and 300 more" in text
    assert "\x1b" not in text
    assert len(text.splitlines()) < 210


def test_a_model_without_names_numbers_its_columns():
    class Model(FederatedModel):
        coef_, alpha, certificate_ = np.array([0.0, 2.0]), 0.5, Certificate(0.0, 1.0, 1e-6)

    assert re.search(r"^column 1 +2$", result_text(Model()), re.MULTILINE)


def test_nothing_of_a_site_reaches_a_terminal_as_a_command(tmp_path):
    federation, link = remote(furnish(tmp_path, table()))
    from compfed.network.flower import Reply

    link.meddle = lambda name, data, reply: Reply(None, "\x1b]0;evil\x07") if name == "south" else reply()
    out = io.StringIO()
    with Display(federation.run_log, out), pytest.raises(cf.InputError):
        ask(federation, Describe(), Moments())
    assert "evil" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_a_narrow_terminal_has_no_line_that_wraps(monkeypatch):
    """A wrapped line counts as two on the screen, and the table would not be drawn over itself."""
    monkeypatch.setenv("COLUMNS", "40")
    log, out = RunLog(None, SITES), Terminal()
    log.begin(1, ["Describe", "Moments"], SITES)
    log.connected([])
    shown = Display(log, out)
    shown._refresh()
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) == 39
    shown._refresh()
    assert f"\x1b[{len(lines)}F" in out.getvalue()
