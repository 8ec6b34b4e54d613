"""Rounds that cannot be lost: replies dropped, doubled and late, servers killed, disks wiped; the model is the same bits."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the messages of Flower: pip install 'compfed[flower]'")

from federation.flower.fake_grid import NOW, forget, remote, written
from problems import logistic

import compfed as cf
from compfed.engines.reference_engine import task_of
from compfed.federation import Describe, InProcess, Moments, ask, converse
from compfed.federation.flower import Unanswered
from compfed.federation.flower.records import from_records, to_records
from compfed.federation.flower.site_memory import RunFiles
from compfed.federation.messages import to_bytes
from compfed.federation.server import ServerLoop
from compfed.federation.view import Job, View

later = pytest.mark.thorough  # `make test-federation` and `make test-all`
METHODS = ("DecoupledProx", "FedDR", "FISTA", "ProximalNewton")
CASES = ("DecoupledProx", pytest.param("FedDR", marks=later), pytest.param("FISTA", marks=later), "ProximalNewton")
STATELESS = ("FISTA", "ProximalNewton")  # nothing is kept at a site


@pytest.fixture(scope="module")
def problem() -> cf.Problem:
    return logistic(samples=[20, 6], n=2, d=4)


@pytest.fixture
def settings(problem, tmp_path):
    return written(tmp_path / "sites", problem.sites)


def minimised(problem, federation, name="DecoupledProx") -> np.ndarray:
    return cf.minimise(problem, name, tol=1e-12, federation=federation, max_rounds=25).x


@pytest.fixture(scope="module")
def undisturbed(problem):
    return {name: minimised(problem, InProcess(problem.sites), name) for name in (*METHODS,)}


# --- replies that do not arrive ---


@pytest.mark.parametrize("name", CASES)
def test_replies_lost_after_the_site_has_moved_on(name, problem, settings, undisturbed):
    """Every third reply is lost when the site has already written its state."""
    federation, grid = remote(settings)
    count = itertools.count()
    grid.meddle = lambda site, records, reply: (reply(), None)[1] if next(count) % 3 == 1 else reply()
    np.testing.assert_array_equal(minimised(problem, federation, name), undisturbed[name])
    assert len(federation.events) > 3
    assert {event["what"] for event in federation.events} == {"no reply in time"}


def test_messages_lost_before_the_site_heard_them(problem, settings, undisturbed):
    federation, grid = remote(settings)
    count = itertools.count()
    grid.meddle = lambda site, records, reply: None if next(count) % 4 == 1 else reply()
    np.testing.assert_array_equal(minimised(problem, federation), undisturbed["DecoupledProx"])
    assert federation.events


def test_a_message_that_comes_twice_is_answered_identically_and_counts_once(problem, settings, undisturbed):
    federation, grid = remote(settings)

    def doubled(site, records, reply):
        first, second = reply(), reply()
        one, other = from_records(first)[1], from_records(second)[1]
        assert one is not None
        assert other is not None
        assert to_bytes(one) == to_bytes(other)
        return second

    grid.meddle = doubled
    np.testing.assert_array_equal(minimised(problem, federation), undisturbed["DecoupledProx"])
    assert federation.events == []
    log = [json.loads(line) for line in (settings[0].parent / "state" / "answered.jsonl").read_text().splitlines()]
    assert [line["repeated"] for line in log] == [False, True] * (len(log) // 2)
    assert log[0]["sha256_out"] == log[1]["sha256_out"]


def test_a_site_that_is_away_is_waited_for_longer_than_attempts_last(problem, settings, undisturbed, monkeypatch):
    federation, grid = remote(settings, patience=replace(NOW, attempts=2, wait=600.0))
    away = iter(range(30))  # looks for it

    def nodes(real=grid.get_node_ids):
        here = from_records(grid.sent[-1][1])[0]["number"] if grid.sent else 0
        return [node for node in real() if here < 3 or node == 100 or next(away, None) is None]

    monkeypatch.setattr(grid, "get_node_ids", nodes)
    np.testing.assert_array_equal(minimised(problem, federation), undisturbed["DecoupledProx"])
    assert next(away, None) is None
    assert [event["what"] for event in federation.events] == ["not connected"]  # said once


def test_a_late_reply_of_an_earlier_message_is_not_used(problem, settings, undisturbed):
    federation, grid = remote(settings)
    kept = {}

    def late(site, records, reply):
        new = reply()
        old, kept[site] = kept.get(site), new
        once = from_records(records)[0]["number"] == 6 and site == 1 and "done" not in kept
        if once:
            kept["done"] = True
        return old if once else new

    grid.meddle = late
    np.testing.assert_array_equal(minimised(problem, federation), undisturbed["DecoupledProx"])
    (event,) = federation.events
    assert event["what"] == "its reply is to number 5, not 6; it was not used"
    assert (event["site"], event["number"]) == ("1", 6)


def test_a_number_does_not_stand_for_two_questions(settings):
    federation, _ = remote(settings)
    ask(federation, Describe())
    other, _ = remote(settings, run=federation.journal.run)
    with pytest.raises(cf.InputError, match=r"site '0': message 1 of run .* came before with other questions"):
        ask(other, Moments())


# --- a site's disk ---


def test_a_site_keeps_the_last_two_messages(problem, settings):
    federation, _ = remote(settings)
    minimised(problem, federation)
    (run,) = (settings[0].parent / "state" / "runs").iterdir()
    kept = sorted(path.name for path in run.glob("*.answered"))
    assert kept == [f"{k:08d}.answered" for k in (federation.number - 1, federation.number)]
    assert [path for path in run.rglob("*") if path.name.startswith(".")] == []  # no half-written file


@pytest.mark.parametrize("name", CASES)
def test_a_site_that_lost_its_disk_says_so_and_is_told_again(name, problem, settings, undisturbed):
    """The rounds it forgot are done again there: the model has the same bits, and the events say what happened."""
    federation, grid = remote(settings)
    wiped = []

    def wipe(site, records, reply):
        number = from_records(records)[0]["number"]
        if number in (4, 9) and site == 1 and number not in wiped:
            wiped.append(number)
            forget(settings[1])
        return reply()

    grid.meddle = wipe
    np.testing.assert_array_equal(minimised(problem, federation, name), undisturbed[name])
    said = [event["what"] for event in federation.events]
    assert len(said) == len(wiped) >= 1
    assert "site '1' has lost what it was told" in said[0]
    healed = "no method under way remembers anything there" if name in STATELESS else "rounds are done again there"
    assert healed in said[0]


def test_a_site_that_is_asked_now_and_then_remembers_its_own_rounds(problem, settings):
    """With sampled sites nobody else would notice: a memory that starts afresh is another method."""
    algorithm = cf.algorithms.Scaffold(eta=0.3, tau=3)
    smooth = problem.replace(regulariser=cf.regularisers.Zero())
    job = Job(0, algorithm, smooth.regulariser, View(smooth.loss), np.zeros(smooth.d), 3, None, 20, everyone=False)
    ends, wiped = [], []
    federation, grid = remote(settings)
    for where in (InProcess(smooth.sites), federation):
        loop = ServerLoop(job, task_of(smooth), participants=1)
        for r in range(10):
            if where is federation and r == 7:
                for path in settings:
                    forget(path)
                    wiped.append(path)
            converse(where, loop.round())
        ends.append(loop.model())
    np.testing.assert_array_equal(*ends)
    assert len({site for site, _ in grid.sent}) == 2
    assert 1 <= len(federation.events) <= len(wiped)


def test_a_state_that_is_gone_alone_is_noticed(problem, settings, undisturbed):
    """Not all of the disk: what the site was told is there, its memory is not."""
    federation, grid = remote(settings)

    def wipe(site, records, reply):
        if from_records(records)[0]["number"] == 7 and site == 0 and not federation.events:
            for path in (settings[0].parent / "state").rglob("*.answered"):
                path.unlink()
        return reply()

    grid.meddle = wipe
    np.testing.assert_array_equal(minimised(problem, federation), undisturbed["DecoupledProx"])
    (event,) = federation.events
    assert "site '0' has no memory of message 6" in event["what"]


def test_a_site_killed_before_its_file_is_whole_answers_again(problem, settings, undisturbed, monkeypatch):
    """Killed between the temporary file and its name: the message was never answered, and the state is the one before."""
    federation, grid = remote(settings)
    kills = iter([3, 8])
    when = [next(kills)]
    real = os.replace

    def killed(source, target):
        if when and Path(target).name == f"{when[0]:08d}.answered":
            when[:] = [k for k in [next(kills, None)] if k]
            raise KeyboardInterrupt
        real(source, target)

    def process(site, records, reply):
        try:
            return reply()
        except KeyboardInterrupt:
            return None

    monkeypatch.setattr(os, "replace", killed)
    grid.meddle = process
    np.testing.assert_array_equal(minimised(problem, federation), undisturbed["DecoupledProx"])
    assert len(federation.events) == 2


# --- a server that is killed ---


class Killed(BaseException):
    pass


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("answered", [False, True])
def test_a_killed_server_goes_on_as_a_new_run(name, answered, problem, settings, tmp_path, undisturbed):
    """Killed before or after the sites answered; a new grid, a new process, the same folder."""
    federation, grid = remote(settings, tmp_path / "run")

    def kill(site, records, reply):
        if from_records(records)[0]["number"] == 4 and site == 1:
            if answered:
                reply()
            raise Killed
        return reply()

    grid.meddle = kill
    with pytest.raises(Killed):
        minimised(problem, federation, name)
    resumed, grid = remote(settings, tmp_path / "run")
    np.testing.assert_array_equal(minimised(problem, resumed, name), undisturbed[name])
    assert from_records(grid.sent[0][1])[0]["number"] == 4  # what was committed is not asked again
    assert resumed.events == []
    assert resumed.journal.run == federation.journal.run


def test_a_killed_cross_validation_goes_on(settings, problem, tmp_path):
    estimator = cf.FederatedLogisticRegressionCV(n_alphas=3, eps=0.3, cv=2, tol=1e-6)
    whole = estimator.fit_federation(InProcess(problem.sites))
    coef, alpha, cost = whole.coef_path_, whole.alpha_, whole.communication_
    for at in (2, 5, 7):  # killed again and again
        federation, grid = remote(settings, tmp_path / "run")

        def kill(site, records, reply, at=at):
            if from_records(records)[0]["number"] == at:
                raise Killed
            return reply()

        grid.meddle = kill
        with pytest.raises(Killed):
            estimator.fit_federation(federation)
    federation, _ = remote(settings, tmp_path / "run")
    again = estimator.fit_federation(federation)
    np.testing.assert_array_equal(again.coef_path_, coef)
    assert (again.alpha_, again.communication_) == (alpha, cost)


def test_a_run_that_gave_up_goes_on_later(problem, settings, tmp_path, undisturbed):
    federation, grid = remote(settings, tmp_path / "run")
    grid.meddle = lambda site, records, reply: None if site == 1 and from_records(records)[0]["number"] > 8 else reply()
    with pytest.raises(Unanswered, match=r"message 9 of run .* was sent 4 times .* site '1': no reply in time"):
        minimised(problem, federation)
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [event["number"] for event in events] == [9] * NOW.attempts
    resumed, _ = remote(settings, tmp_path / "run")
    np.testing.assert_array_equal(minimised(problem, resumed), undisturbed["DecoupledProx"])


def test_a_killed_server_and_a_wiped_site_together(problem, settings, tmp_path, undisturbed):
    federation, grid = remote(settings, tmp_path / "run")

    def kill(site, records, reply):
        if from_records(records)[0]["number"] == 9:
            raise Killed
        return reply()

    grid.meddle = kill
    with pytest.raises(Killed):
        minimised(problem, federation)
    forget(settings[0])
    resumed, _ = remote(settings, tmp_path / "run")
    np.testing.assert_array_equal(minimised(problem, resumed), undisturbed["DecoupledProx"])
    assert ["rounds are done again there" in event["what"] for event in resumed.events] == [True]


def test_a_folder_of_another_run_is_refused(problem, settings, tmp_path):
    federation, _ = remote(settings, tmp_path / "run")
    ask(federation, Describe())
    resumed, _ = remote(settings, tmp_path / "run")
    with pytest.raises(cf.InputError, match="whose message 1 asked something else"):
        ask(resumed, Moments())
    with pytest.raises(cf.InputError, match=r"holds run .* of the sites 0, 1; this is run .* of 0\."):
        remote(settings[:1], tmp_path / "run")


def test_the_audit_has_a_line_per_message_and_nothing_of_the_rows(problem, settings, tmp_path):
    federation, _ = remote(settings, tmp_path / "run")
    cf.minimise(problem, "ProximalNewton", federation=federation)
    lines = [json.loads(line) for line in (tmp_path / "run" / "messages.jsonl").read_text().splitlines()]
    assert len(lines) == 2 * federation.number
    site = [json.loads(line) for line in (settings[1].parent / "state" / "answered.jsonl").read_text().splitlines()]
    assert [line["sha256_up"] for line in lines if line["site"] == "1"] == [line["sha256_out"] for line in site]
    assert [line["bytes_up"] for line in lines if line["site"] == "1"] == [line["bytes_out"] for line in site]
    row = np.asarray(problem.sites.features[1][0]).tobytes()
    assert not any(row in path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())


def test_old_runs_are_forgotten_at_a_site(settings):
    for _ in range(23):
        ask(remote(settings[:1])[0], Describe())
    assert len(list((settings[0].parent / "state" / "runs").iterdir())) == 20


def test_a_message_from_nowhere_does_not_break_a_site(settings):
    federation, grid = remote(settings)
    ask(federation, Describe())
    grid.meddle = lambda site, records, reply: to_records({"run": federation.journal.run, "number": 2, "site": site})
    with pytest.raises(Unanswered):
        ask(federation, Describe())
    with pytest.raises(cf.InputError, match="a run is named"):
        RunFiles(settings[0].parent, ".")
