"""Approval at a site: a run that no rule approves waits for a person; what that person decides is kept, spent and said."""

from __future__ import annotations

import datetime
import functools
import json
import stat
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="a federation across a network: pip install '.[flower]'")

from network.memory_link import furnish, remote
from network.processes import command

import compfed as cf
from compfed.cli import main
from compfed.federation import Moments
from compfed.federation.numbers import About, Table
from compfed.federation.sentence import RunSentence, Stated, decide
from compfed.federation.server.program import Request
from compfed.federation.site import ledger as ledger_module
from compfed.federation.site.disclosure import DisclosurePolicy
from compfed.federation.site.ledger import Ledger, Roster
from compfed.network import server
from compfed.network.approvals import MOST_WAITING, ApprovalRules, Approvals, Pending
from compfed.network.site_settings import SiteSettings, disclosure_text

NAMES, WIDTH = ("north", "east", "south", "west"), 4
LASSO = cf.FederatedLasso(alpha=0.05)
SENTENCE = RunSentence(
    Stated("FederatedLasso", "alpha=0.05", numbers=100, messages=9), "", ("age", "bmi"), (("north", "k"),), "1"
)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(server, "PENDING_PAUSE", 0.0)


def sites() -> cf.data.Sites:
    rng = np.random.default_rng(7)
    A = [rng.standard_normal((rows, WIDTH)) for rows in (60, 70, 64, 66)]
    return cf.data.from_arrays(
        A, [a @ [1.0, -1.0, 0.0, 0.0] + 0.1 * rng.standard_normal(len(a)) for a in A], list(NAMES)
    )


def asking(folder: Path, approval: str = "by_rule = false") -> list[Path]:
    """Four masked sites with the default policy; `approval` is what their [approval] says."""
    paths = furnish(folder, sites(), "", "", secure_sum=True)
    for path in paths:
        path.write_text(path.read_text().replace("by_rule = true", approval))
    return paths


def fit(paths: list[Path], meddle: Callable[..., Any] | None = None, folder: Path | None = None) -> tuple[Any, Any]:
    federation, link = remote(paths, folder)
    link.service = functools.cache(link.service)  # sites that go on, as real ones do
    if meddle is not None:
        link.meddle = meddle
    return LASSO.fit_federation(federation), federation


class Person:
    """Decides with a command, from another process's view of the disk, after a site said so many times that it waits."""

    def __init__(self, paths: list[Path], decide: Callable[[str, str], object], after: int = 3):
        self.paths = {SiteSettings.read(path).name: path for path in paths}
        self.decide, self.after, self.waited = decide, after, Counter[str]()

    def __call__(self, name: str, data: bytes, reply: Callable[[], bytes]) -> bytes:
        found = reply()
        if b'"pending"' in found:
            self.waited[name] += 1
            if self.waited[name] == self.after:
                waiting = [a.run for a in SiteSettings.read(self.paths[name]).approvals().all() if a.state == "waiting"]
                self.decide(str(self.paths[name]), waiting[0])
        return found


def approve(config: str, run: str) -> None:
    command("site", "approve", run, "--yes", "--config", config)


def test_a_run_waits_until_a_person_at_every_site_approves_it_and_has_the_bits_of_one_by_rule(tmp_path):
    by_rule, _ = fit(asking(tmp_path / "rule", "by_rule = true"))
    paths = asking(tmp_path / "person")
    person = Person(paths, approve)
    model, federation = fit(paths, person)
    np.testing.assert_array_equal(model.coef_, by_rule.coef_)
    assert model.intercept_ == by_rule.intercept_
    assert person.waited == dict.fromkeys(NAMES, 3)
    problems = {p["site"]: p["problem"] for p in federation.problems}
    assert sorted(problems) == sorted(NAMES)
    assert all("waits for a person at the site to approve this run" in text for text in problems.values()), problems
    for path in paths:
        settings = SiteSettings.read(path)
        (asked,) = settings.approvals().all()
        assert (asked.state, asked.run) == ("spent", federation.log.run)
        assert settings.ledger().runs[federation.log.run].by == "person"
        log = [json.loads(line) for line in (settings.state / "log.jsonl").read_text().splitlines()]
        assert sum(line.get("kind") == "pending" for line in log) == 1  # however often the operator asked
    approvals = SiteSettings.read(paths[0]).approvals()
    with pytest.raises(cf.InputError, match="has begun with an approval"):
        approvals.approve(approvals.find(federation.log.run))


def test_a_denied_run_leaves_nothing_and_is_told_why(tmp_path):
    paths = asking(tmp_path)
    person = Person(
        paths, lambda config, run: command("site", "deny", run, "--why", "no agreement yet", "--config", config)
    )
    with pytest.raises(cf.InputError, match="denied this run: no agreement yet"):
        fit(paths, person)
    assert [SiteSettings.read(path).ledger().numbers for path in paths] == [0, 0, 0, 0]
    assert "denied: no agreement yet" in command("site", "runs", "--config", paths[0])
    with pytest.raises(cf.InputError, match="denied this run: no agreement yet"):
        fit(paths)  # another run of the same sentence
    for path in paths:
        (asked,) = SiteSettings.read(path).approvals().all()
        approve(str(path), asked.short)
    fit(paths)


def test_an_approval_is_spent_by_the_first_run_and_expires(tmp_path):
    paths = asking(tmp_path)
    fit(paths, Person(paths, approve, after=1))
    said = list[str]()

    def read_and_approve(config: str, run: str) -> None:
        said.append(approvals_of(Path(config))[0].why)
        approve(config, run)

    second = Person(paths, read_and_approve, after=2)
    fit(paths, second)  # another run of the same sentence: each site asks again
    assert second.waited == dict.fromkeys(NAMES, 2)
    assert said == ["an approval of this was used by an earlier run"] * 4

    approvals = Approvals(tmp_path / "expired")
    with pytest.raises(Pending):
        approvals.allows(SENTENCE, "run-1", ["words"], "a reason")
    path = approvals._path(approvals.approve(approvals.find("run-1")))
    late = json.loads(path.read_bytes()[32:]) | {"until": time.time() - 1}
    approvals._write(type(approvals.find("run-1"))(**late))
    with pytest.raises(Pending):
        approvals.allows(SENTENCE, "run-1", ["words"], "a reason")
    assert approvals.find("run-1").why == "an approval of this expired, or more has left since than the person read"


def approvals_of(path: Path) -> list[Any]:
    return SiteSettings.read(path).approvals().all()


def test_one_sentence_is_approved_and_no_other(tmp_path):
    approvals = Approvals(tmp_path)
    for stated in (Stated("FederatedLasso", numbers=100), Stated("FederatedLasso", numbers=101)):
        with pytest.raises(Pending):
            approvals.allows(RunSentence(stated, "", ("age",), (), "1"), f"run-{stated.numbers}", ["words"], "a reason")
    approvals.approve(approvals.find("run-100"))
    sentence = RunSentence(Stated("FederatedLasso", numbers=100), "", ("age",), (), "1")
    assert approvals.allows(sentence, "run-100", ["words"], "a reason")
    assert approvals.allows(sentence, "run-100", ["words"], "a reason")  # the same run, after a restart
    with pytest.raises(Pending):
        approvals.allows(
            RunSentence(Stated("FederatedLasso", numbers=101), "", ("age",), (), "1"), "run-101", ["w"], "r"
        )
    changed = approvals.changes(approvals.find("run-101"))
    assert changed == ["numbers: 100 -> 101"]


def test_two_runs_of_one_sentence_wait_side_by_side_and_each_needs_its_own_approval(tmp_path):
    told = tmp_path / "told"
    approvals = Approvals(tmp_path / "site", ApprovalRules(tell=["/bin/sh", "-c", f'echo "$0" >> {told}']))

    def asks(run: str) -> bool:
        try:
            return approvals.allows(SENTENCE, run, ["words"], "a reason")
        except Pending:
            return False

    for _ in range(3):  # both operators go on asking
        assert [asks("first"), asks("second")] == [False, False]
    assert sorted((asked.run, asked.state) for asked in approvals.all()) == [
        ("first", "waiting"),
        ("second", "waiting"),
    ]
    first = approvals.find("first")
    assert first.asked < approvals.find("second").asked
    approvals.approve(first)
    assert [asks("second"), asks("first"), asks("second"), asks("first")] == [False, True, False, True]
    approvals.deny(approvals.find("second"), "once is enough")
    with pytest.raises(cf.InputError, match="denied this run: once is enough"):
        asks("second")
    assert asks("first")  # it has begun
    assert len(list((tmp_path / "site").glob("*.json"))) == 2
    deadline = time.monotonic() + 10
    while not (told.exists() and len(told.read_text().split()) == 2) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sorted(told.read_text().split()) == ["first", "second"]  # each once


def test_an_operator_cannot_fill_the_disk_of_a_site(tmp_path):
    approvals = Approvals(tmp_path)
    for k in range(MOST_WAITING):
        with pytest.raises(Pending):
            approvals.allows(RunSentence(Stated("a", numbers=k), "", (), (), "1"), f"run-{k}", ["words"], "a reason")
    with pytest.raises(cf.InputError, match="50 runs wait for a person at this site already"):
        approvals.allows(SENTENCE, "run", ["words"], "a reason")
    assert len(list(tmp_path.glob("*.json"))) == MOST_WAITING


def month(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """A run that began 31 days ago by rule, released 200 numbers 29 days ago, and since a person let it go on many more."""
    ledger = Ledger(folder, "table", b"key")

    def days_ago(days: int) -> None:
        then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days)
        monkeypatch.setattr(ledger_module, "_now", then.isoformat)

    days_ago(31)
    ledger.open_run("run", Roster("f", ("a", "b")), np.arange(20, dtype=np.uint64), DisclosurePolicy())
    ledger.begin("run", "fit", "rule", 2000, Table(20, 2, 1))
    ledger.record("run", 2, "h2", {}, {About(1, 2): 1000}, 0)
    days_ago(29)
    ledger.record("run", 3, "h3", {}, {About(1, 2): 200}, 0)
    ledger.begin("run", "more", "person", 9000, Table(20, 2, 1))
    ledger.record("run", 4, "h4", {}, {About(1, 2): 5000}, 0)
    monkeypatch.undo()
    return Ledger(folder, "table", b"key")


@pytest.mark.parametrize(
    ("rules", "stated", "reason"),
    [
        (ApprovalRules(), {}, "by_rule = false"),
        (ApprovalRules(by_rule=True), {}, ""),
        (ApprovalRules(by_rule=True, kinds=["FederatedLasso"]), {}, ""),
        (ApprovalRules(by_rule=True, kinds=["describe"]), {}, "FederatedLasso is not among the kinds"),
        (ApprovalRules(by_rule=True, columns=["age", "bmi", "sex"]), {}, ""),
        (ApprovalRules(by_rule=True, columns=["age"]), {}, "'bmi' may not be used by rule"),
        (ApprovalRules(by_rule=True), {"parameters": "bounds={'age': (0, 1)}"}, "bounds hold numbers"),
        (ApprovalRules(by_rule=True, numbers_per_month=300), {}, ""),
        (
            ApprovalRules(by_rule=True, numbers_per_month=299),
            {},
            "200 numbers left by rule in thirty days, and 100 more",
        ),
    ],
)
def test_rules_stand_in_for_a_person(rules, stated, reason, tmp_path, monkeypatch):
    sentence = RunSentence(Stated("FederatedLasso", numbers=100, **stated), "", ("age", "bmi"), (), "1")
    found = rules.objection(sentence, month(tmp_path, monkeypatch))
    assert reason in found
    assert bool(found) == bool(reason)


def test_runs_that_began_at_once_release_no_more_by_rule_in_a_month_than_one(tmp_path):
    """Each fits into the month when it begins; together they do not."""
    paths = asking(tmp_path, "by_rule = true\nnumbers_per_month = 400")
    begun = [remote(paths)[0] for _ in range(3)]
    for federation in begun:
        federation.state(Stated("FederatedLasso", numbers=300, messages=60))
        federation.exchange([Request((Moments(),), weighting="rows")])
    with pytest.raises(cf.InputError, match="numbers left by rule in thirty days"):
        all(federation.exchange([Request((Moments(),), weighting="rows")]) for _ in range(40) for federation in begun)
    assert 380 < SiteSettings.read(paths[0]).ledger().numbers <= 400


def test_a_person_is_not_asked_beyond_the_end():
    class Limits:
        share_by_rule, max_share = 0.5, 2.0

    asked: list[str] = []

    def yes(reason: str) -> bool:
        asked.append(reason)
        return True

    assert decide(0.5, Limits(), "", yes).by == "rule"
    assert not asked
    assert decide(0.51, Limits(), "", yes).by == "person"
    assert decide(0.1, Limits(), "a rule of the site", yes).by == "person"
    assert decide(2.01, Limits(), "", yes).by == ""
    assert len(asked) == 2
    assert decide(100.0, None).by == "rule"  # no policy: a trial with public data
    assert decide(100.0, None, "every run").by == ""  # and still a site that asks
    assert decide(100.0, None, "every run", yes) == ("person", float("inf"), "")


def test_a_site_without_a_policy_asks_a_person_all_the_same(tmp_path):
    paths = asking(tmp_path)
    for path in paths:
        path.write_text(path.read_text().replace("[disclosure]", "[disclosure]\nenforce = false"))
    person = Person(paths, approve)
    fit(paths, person)
    assert person.waited == dict.fromkeys(NAMES, 3)
    assert "A person here approves each run (by_rule = false)." in disclosure_text(SiteSettings.read(paths[0]))


def test_an_approval_is_of_one_extract(tmp_path):
    """Another extract of the table is another sentence: what a person read was about the first."""
    paths = asking(tmp_path)
    fit(paths, Person(paths, approve, after=1))
    (first,) = approvals_of(paths[0])
    assert first.sentence["extract"] == "0001.csv"
    assert any(line.endswith("; extract 0001.csv") for line in first.words)
    kept = SiteSettings.read(paths[0]).extracts()[-1]
    lines = paths[0].with_name("rows.csv").read_text().splitlines(keepends=True)
    kept.with_name("0002.csv").write_text("".join(lines[:-20]))
    with pytest.raises(cf.InputError, match="waits for a person"):
        fit(paths, Person(paths, lambda config, run: config != str(paths[0]) and approve(config, run), after=1))
    second = approvals_of(paths[0])[0]
    assert second.sentence["extract"] == "0002.csv"
    assert "extract: another one" in Approvals(SiteSettings.read(paths[0]).state / "approvals").changes(second)


def test_a_run_that_states_nothing_needs_rules_that_cover_everything(tmp_path):
    paths = asking(tmp_path, 'by_rule = true\nkinds = ["FederatedLasso"]')
    fit(paths)
    federation, _ = remote(paths)
    federation.state = lambda stated: None  # type: ignore[method-assign]  # a server that leaves the sentence out
    with pytest.raises(cf.InputError, match="a run that states nothing cannot be approved"):
        LASSO.fit_federation(federation)


def test_the_steward_reads_ten_lines_and_types_what_is_free(tmp_path, capsys, monkeypatch):
    paths = asking(tmp_path)
    federation, _ = remote(paths)
    model = cf.FederatedLasso(alpha=0.0, bounds=[(0.0, 0.5)] * WIDTH)
    tried = Counter[str]()

    def stop(name: str, data: bytes, reply: Callable[[], bytes]) -> bytes:
        found = reply()
        tried["pending"] += b'"pending"' in found
        if tried["pending"] == len(NAMES):
            raise KeyboardInterrupt
        return found

    federation.link.meddle = stop  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        model.fit_federation(federation)
    config, run = str(paths[0]), federation.log.run
    assert main(["site", "runs", "--config", config]) == 0
    said = capsys.readouterr().out
    assert f"compfed site approve {run}" in said
    (asked,) = approvals_of(paths[0])
    assert len(asked.words) <= 10
    assert any(line.startswith("leaves: at most") for line in asked.words)
    assert any(line.startswith("Not prevented:") for line in asked.words)
    assert main(["site", "approve", run, "--yes", "--config", config]) == 2
    assert "nothing was approved: bounds was not typed (--free bounds)" in capsys.readouterr().err
    answers = iter(["bounds", "yes"])
    monkeypatch.setattr("builtins.input", lambda question: next(answers))
    assert main(["site", "approve", run, "--config", config]) == 0
    assert approvals_of(paths[0])[0].state == "approved"
    assert main(["site", "approve", "nobody", "--config", config]) == 2
    assert "'nobody' names no run that asked this site. Waiting: none." in capsys.readouterr().err


def test_the_steward_is_told_once_by_a_command_of_the_site(tmp_path):
    told, script = tmp_path / "told", tmp_path / "tell.sh"
    script.write_text(f'#!/bin/sh\necho "$1" >> {told}\ncat >> {told}\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    approvals = Approvals(tmp_path / "approvals", ApprovalRules(tell=[str(script)]))
    for _ in range(3):
        with pytest.raises(Pending):
            approvals.allows(SENTENCE, "run-1", ["what leaves"], "a reason")
    deadline = time.monotonic() + 10
    while not (told.exists() and "what leaves" in told.read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    assert told.read_text().split("\n") == ["run-1", "what leaves"]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('by_rule = "yes"', "by_rule"),
        ("days = 0", "days"),
        ("tell = []", "must be a command as a list of words"),
        ('kind = "x"', "'kind'"),
    ],
)
def test_a_wrong_rule_is_refused(tmp_path, text, wrong):
    path = asking(tmp_path)[0]
    path.write_text(path.read_text().replace("by_rule = false", text))
    with pytest.raises(cf.InputError, match=wrong):
        SiteSettings.read(path)
