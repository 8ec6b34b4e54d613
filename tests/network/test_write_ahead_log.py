"""A run cannot be lost: operators killed, disks wiped, replies dropped and doubled; the model has the same bits."""

from __future__ import annotations

import base64
import errno
import hashlib
import itertools
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="a federation across a network: pip install '.[flower]'")

from network.memory_link import furnish, number_of, remote, wipe, without_framing

import compfed as cf
from compfed.federation import Describe, InProcess, Moments, ask, run_program
from compfed.federation.server.rounds import ServerLoop
from compfed.federation.spec import FederatedProblem, ObjectiveSpec, RunSpec
from compfed.network import FederationSettings, NoReply, operator
from compfed.network.run_folder import NAME, WriteAheadLog, is_alive
from compfed.solvers.second_order import SOLVERS

later = pytest.mark.thorough  # run by `make test-all`
METHODS = ("DecoupledProx", "FedDR", "FISTA", "ProximalNewton")
CASES = ("DecoupledProx", pytest.param("FedDR", marks=later), pytest.param("FISTA", marks=later), "ProximalNewton")
STATELESS = ("FISTA", "ProximalNewton")  # nothing is kept at a site


@pytest.fixture(scope="module")
def problem() -> cf.Problem:
    rng = np.random.default_rng(3)
    A = [rng.standard_normal((m, 4)) for m in (20, 6, 9)]
    y = [np.where(a @ [1.0, -1.0, 0.5, 0.0] + rng.standard_normal(len(a)) > 0, 1.0, -1.0) for a in A]
    return cf.Problem(cf.losses.Logistic(ridge=0.05), cf.regularisers.L1(2e-3), cf.data.from_arrays(A, y))


@pytest.fixture
def secure_sum() -> bool:
    """Are sums masked? Tests that are run both ways say so by `both`."""
    return False


both = pytest.mark.parametrize("secure_sum", [False, True], ids=["plain", "masked"])


@pytest.fixture
def paths(problem, tmp_path, secure_sum):
    return furnish(tmp_path / "sites", problem.sites, secure_sum=secure_sum)


def minimised(problem, federation, name="DecoupledProx") -> np.ndarray:
    return cf.solve_federated(problem, name, tol=1e-12, federation=federation, max_rounds=12).x


@pytest.fixture(scope="module")
def undisturbed(problem) -> Callable[[str], np.ndarray]:
    """The model of a method without a network, computed when it is first asked for."""
    found: dict[str, np.ndarray] = {}

    def model(name: str) -> np.ndarray:
        if name not in found:
            found[name] = minimised(problem, InProcess(problem.sites, exact=True), name)
            if name in SOLVERS:  # other methods know max_i L_i less well from exact sums, and take shorter steps
                in_doubles = minimised(problem, InProcess(problem.sites), name)
                np.testing.assert_allclose(found[name], in_doubles, rtol=0, atol=1e-12)
        return found[name]

    return model


class Killed(BaseException):
    """The operator's process ends here."""


def killed_at(paths, folder: Path, number: int, fit: Callable[[Any], Any], answered: bool = False) -> Any:
    """Run until message `number`, and be killed before or after the last site answered it."""
    federation, link = remote(paths, folder)

    def kill(name, data, reply):
        if number_of(data) == number and name == link_names[-1]:
            if answered:
                reply()
            raise Killed
        return reply()

    link_names = list(link.paths)
    link.meddle = kill
    with pytest.raises(Killed):
        fit(federation)
    return federation


# --- replies that do not arrive ---


@both
@pytest.mark.parametrize("name", CASES)
def test_replies_lost_after_the_site_wrote_its_state(name, problem, paths, undisturbed):
    federation, link = remote(paths)
    count = itertools.count()
    link.meddle = lambda name, data, reply: (reply(), None)[1] if next(count) % 3 == 1 else reply()
    np.testing.assert_array_equal(minimised(problem, federation, name), undisturbed(name))
    assert len(federation.problems) > 3
    assert {entry["problem"] for entry in federation.problems} == {"no reply in time"}


@both
def test_messages_lost_on_their_way_to_a_site(problem, paths, undisturbed):
    federation, link = remote(paths)
    count = itertools.count()
    link.meddle = lambda name, data, reply: None if next(count) % 4 == 1 else reply()
    np.testing.assert_array_equal(minimised(problem, federation), undisturbed("DecoupledProx"))
    assert federation.problems


@both
def test_a_message_that_comes_twice_counts_once(problem, paths, undisturbed):
    federation, link = remote(paths)
    link.meddle = lambda name, data, reply: (reply(), reply())[1]
    np.testing.assert_array_equal(minimised(problem, federation), undisturbed("DecoupledProx"))
    assert federation.problems == []


@both
def test_a_late_reply_to_an_earlier_message_is_not_used(problem, paths, undisturbed):
    federation, link = remote(paths)
    kept: dict[str, bytes] = {}
    once = iter([True])

    def late(name, data, reply):
        new = reply()
        old, kept[name] = kept.get(name), new
        return old if number_of(data) == 6 and name == "1" and next(once, False) else new

    link.meddle = late
    np.testing.assert_array_equal(minimised(problem, federation), undisturbed("DecoupledProx"))
    (entry,) = federation.problems
    assert entry["problem"] == "its reply is for number '5', not 6; it was not used"
    assert (entry["site"], entry["number"]) == ("1", 6)


# --- a site's disk ---


@pytest.mark.parametrize("name", CASES)
def test_a_site_whose_disk_was_wiped_is_sent_everything_again(name, problem, paths, undisturbed):
    """The rounds whose state was lost are done again there: the model has the same bits, and the log says so."""
    federation, link = remote(paths)
    wiped: list[int] = []

    def lose(site, data, reply):
        number = number_of(data)
        if number in (4, 9) and site == "1" and number not in wiped:
            wiped.append(number)
            wipe(paths[1])
        return reply()

    link.meddle = lose
    np.testing.assert_array_equal(minimised(problem, federation, name), undisturbed(name))
    said = [entry["problem"] for entry in federation.problems]
    assert len(said) == len(wiped) >= 1
    assert "Everything is sent to it again" in said[0]
    redone = "no method under way keeps state there" if name in STATELESS else "rounds are done again there"
    assert redone in said[0]


def test_a_site_that_masks_its_sums_cannot_go_on_without_its_session(problem, tmp_path, undisturbed):
    """Its key and the number of its last reply were on the disk: a mask could be used twice. A new run has new keys."""
    paths = furnish(tmp_path / "sites", problem.sites, secure_sum=True)
    federation, link = remote(paths, tmp_path / "run")

    def lose(site, data, reply):
        if number_of(data) == 4 and site == "1":
            wipe(paths[1])
        return reply()

    link.meddle = lose
    with pytest.raises(cf.InputError, match=r"^site '1': the session of run .* at this site is lost. Start a new run"):
        minimised(problem, federation)
    link.meddle = lambda name, data, reply: reply()
    resumed, _ = remote(paths, tmp_path / "run")
    with pytest.raises(cf.InputError, match=r"site '1': the session of run .* is lost"):
        minimised(problem, resumed)
    anew, _ = remote(paths, tmp_path / "another")
    np.testing.assert_array_equal(minimised(problem, anew), undisturbed("DecoupledProx"))


def test_a_site_that_is_asked_now_and_then_has_its_own_rounds_done_again(problem, paths):
    """With sampled sites nobody else would notice: a state that starts afresh is another method."""
    algorithm = cf.algorithms.Scaffold(eta=0.3, tau=3)
    smooth = problem.replace(regulariser=cf.regularisers.Zero())
    run_spec = RunSpec(
        0, algorithm, smooth.regulariser, ObjectiveSpec(smooth.loss), np.zeros(smooth.d), 3, None, 20, everyone=False
    )
    ends = []
    federation, link = remote(paths)
    for where in (InProcess(smooth.sites, exact=True), federation):
        loop = ServerLoop(run_spec, FederatedProblem.of(smooth), participants=1)
        for r in range(10):
            if where is federation and r == 7:
                for path in paths:
                    wipe(path)
            run_program(where, loop.round())
        ends.append(loop.model())
    np.testing.assert_array_equal(*ends)
    assert len({site for site, _ in link.sent}) == 3
    assert 1 <= len(federation.problems) <= 3


@both
@pytest.mark.parametrize("damage", ["gone", "flipped bit", "empty"])
def test_a_state_file_that_is_gone_or_damaged_is_noticed(damage, problem, paths, undisturbed):
    """Not all of the disk: the records are there, the state is not."""
    federation, link = remote(paths)

    def lose(name, data, reply):
        if number_of(data) == 7 and name == "0" and not federation.problems:
            for path in (paths[0].parent / "state").rglob("*.reply"):
                content = path.read_bytes()
                path.unlink()
                if damage == "flipped bit":
                    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
                elif damage == "empty":
                    path.touch()
        return reply()

    link.meddle = lose
    np.testing.assert_array_equal(minimised(problem, federation), undisturbed("DecoupledProx"))
    (entry,) = federation.problems
    assert "It has no state after message 6 of this run." in entry["problem"]


@both
def test_a_site_killed_before_its_file_is_whole_answers_again(problem, paths, undisturbed, monkeypatch):
    """Killed between the temporary file and its name: the message was never answered, the state is the one before."""
    federation, link = remote(paths)
    kills = [3, 8]
    real = os.replace

    def killed(source, target):
        if kills and Path(target).name == f"{kills[0]:08d}.reply":
            kills.pop(0)
            raise KeyboardInterrupt
        real(source, target)

    def process(name, data, reply):
        try:
            return reply()
        except KeyboardInterrupt:
            return None

    monkeypatch.setattr(os, "replace", killed)
    link.meddle = process
    np.testing.assert_array_equal(minimised(problem, federation), undisturbed("DecoupledProx"))
    assert len(federation.problems) == 2


def test_a_power_cut_at_a_site_that_masks_its_sums(problem, tmp_path, undisturbed):
    """The file of its session is an older one; that of its last reply tells which number is taken."""
    paths = furnish(tmp_path / "sites", problem.sites, secure_sum=True)
    federation, link = remote(paths)
    old: dict[str, bytes] = {}

    def cut(name, data, reply):
        session = next((paths[1].parent / "state").rglob("session"), paths[1])
        if name == "1" and number_of(data) == 5:
            old["session"], old["message"] = session.read_bytes(), data
        if name == "1" and number_of(data) == 8:
            session.write_bytes(old["session"])  # the last number it knows is 4
            assert b"the last message that this site answered is 7" in link.service("1").reply(old["message"])
        return reply()

    link.meddle = cut
    np.testing.assert_array_equal(minimised(problem, federation), undisturbed("DecoupledProx"))
    assert federation.problems == []


# --- an operator's process that is killed ---


@both
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("answered", [False, True])
def test_a_killed_operator_continues_in_another_process(name, answered, problem, paths, tmp_path, undisturbed):
    folder = tmp_path / "run"
    federation = killed_at(paths, folder, 4, lambda f: minimised(problem, f, name), answered)
    resumed, link = remote(paths, folder)
    np.testing.assert_array_equal(minimised(problem, resumed, name), undisturbed(name))
    assert number_of(link.sent[0][1]) == 4  # no reply on disk is asked for again
    assert resumed.problems == []
    assert resumed.log.run == federation.log.run


@both
def test_a_kill_at_any_message_leaves_the_same_bits(problem, paths, tmp_path, undisturbed):
    """One run, killed at every single message in turn."""
    folder = tmp_path / "run"
    whole, link = remote(paths)
    np.testing.assert_array_equal(minimised(problem, whole), undisturbed("DecoupledProx"))
    for number in range(1, whole.number + 1):
        killed_at(paths, folder, number, lambda f: minimised(problem, f), answered=number % 2 == 0)
    resumed, link = remote(paths, folder)
    with resumed:
        np.testing.assert_array_equal(minimised(problem, resumed), undisturbed("DecoupledProx"))
    assert {number_of(data) for _, data in link.sent} == {whole.number}
    silent, link = remote(paths, folder)  # everything is in the log: no site is asked
    np.testing.assert_array_equal(minimised(problem, silent), undisturbed("DecoupledProx"))
    assert link.sent == []


@both
def test_a_killed_cross_validation_continues(paths, problem, tmp_path):
    estimator = cf.FederatedLogisticRegressionCV(n_alphas=2, eps=0.3, cv=2, tol=1e-6)
    whole = estimator.fit_federation(InProcess(problem.sites, exact=True))
    coef, alpha, cost = whole.coef_path_, whole.alpha_, whole.communication_
    for number in (2, 5, 7):  # killed again and again
        killed_at(paths, tmp_path / "run", number, estimator.fit_federation)
    federation, _ = remote(paths, tmp_path / "run")
    again = estimator.fit_federation(federation)
    np.testing.assert_array_equal(again.coef_path_, coef)
    assert (again.alpha_, without_framing(again.communication_)) == (alpha, without_framing(cost))


@both
def test_a_run_that_gave_up_continues_later(problem, paths, tmp_path, undisturbed):
    federation, link = remote(paths, tmp_path / "run")
    link.meddle = lambda name, data, reply: None if name == "1" and number_of(data) > 8 else reply()
    with pytest.raises(NoReply, match=r"message 9 of run .* was sent to site '1' 4 times .* no reply in time"):
        minimised(problem, federation)
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["number"] for line in lines if "problem" in line] == [9]  # said once
    resumed, _ = remote(paths, tmp_path / "run")
    np.testing.assert_array_equal(minimised(problem, resumed), undisturbed("DecoupledProx"))


def test_a_killed_operator_and_a_wiped_site_together(problem, paths, tmp_path, undisturbed):
    killed_at(paths, tmp_path / "run", 9, lambda f: minimised(problem, f))
    wipe(paths[0])
    resumed, _ = remote(paths, tmp_path / "run")
    np.testing.assert_array_equal(minimised(problem, resumed), undisturbed("DecoupledProx"))
    assert ["rounds are done again there" in entry["problem"] for entry in resumed.problems] == [True]


# --- the file ---


def lines_of(folder: Path) -> list[bytes]:
    return (folder / NAME).read_bytes().splitlines(keepends=True)


@pytest.fixture(scope="module")
def written(problem, tmp_path_factory) -> tuple[list[Path], bytes]:
    """Sites and the log of a run of four messages with them."""
    folder = tmp_path_factory.mktemp("written")
    paths = furnish(folder / "sites", problem.sites)
    federation, _ = remote(paths, folder / "run")
    with federation:
        for query in (Describe(), Moments(), Moments()):  # after the enrolment, which is message 1
            ask(federation, query)
    return paths, (folder / "run" / NAME).read_bytes()


def test_the_log_can_be_checked_with_other_tools(written):
    """A checksum over the line before and this one, and JSON; the sums of a site are in its message."""
    paths, data = written
    last = ""
    entries = []
    for line in data.splitlines():
        checksum, _, text = line.decode().partition(" ")
        assert checksum == hashlib.sha256(f"{last} {text}".encode()).hexdigest()[:32]
        last = checksum
        entries.append(json.loads(text))
    assert list(entries[0]) == ["run", "sites"]
    assert [entry["number"] for entry in entries[1:]] == [1, 2, 3, 4]
    means = np.loadtxt(paths[0].parent / "rows.csv", delimiter=",", skiprows=1)[:, :4].mean(axis=0)
    logged = base64.b64decode(entries[3]["replies"]["0"])[-16 * (2 + 1 + 2 * 4) :]  # the words are at its end
    words = [int.from_bytes(logged[k : k + 16], "little", signed=True) for k in range(0, len(logged), 16)]
    assert words[:2] == [1, 0]
    weight, *sums = words[2:7]
    np.testing.assert_allclose([2.0**16 * (word / weight) for word in sums], means, rtol=1e-12)  # columns below 2**16


@pytest.mark.parametrize("cut", [1, 5, 40, 200])
def test_a_torn_last_line_is_dropped(cut, written, tmp_path):
    paths, data = written
    (tmp_path / NAME).write_bytes(data[:-cut])
    federation, link = remote(paths, tmp_path)
    assert sorted(federation.log.messages) == [1, 2, 3]
    assert (tmp_path / NAME).read_bytes() == b"".join(data.splitlines(keepends=True)[:-1])
    with federation:
        for query in (Describe(), Moments(), Moments()):
            ask(federation, query)
    assert {number_of(sent) for _, sent in link.sent} == {4}
    first, again = (
        [json.loads(line.partition(b" ")[2]) for line in log] for log in (data.splitlines(), lines_of(tmp_path))
    )
    sizes = [np.array([entry.pop("bytes") for entry in log[1:]]) for log in (first, again)]
    assert again == first  # the same bits again
    assert np.abs(sizes[0] - sizes[1]).max() < 3 * 8  # a signature takes a few bytes more or less


def test_a_log_torn_in_its_first_line_begins_again(written, tmp_path):
    paths, data = written
    (tmp_path / NAME).write_bytes(data[:20])
    federation, link = remote(paths, tmp_path)
    with federation:
        ask(federation, Describe())
    assert {number_of(sent) for _, sent in link.sent} == {1, 2}
    assert len(lines_of(tmp_path)) == 3


def _flip(at_line: int) -> Callable[[list[bytes]], list[bytes]]:
    def flip(lines: list[bytes]) -> list[bytes]:
        line = lines[at_line]
        at = next(k for k in range(len(line) - 30, 0, -1) if chr(line[k]).isalnum())
        other = b"1" if line[at : at + 1] != b"1" else b"2"
        return [*lines[:at_line], line[:at] + other + line[at + 1 :], *lines[at_line + 1 :]]

    return flip


DAMAGE: dict[str, tuple[Callable[[list[bytes]], list[bytes]], int]] = {
    "a digit of the first line": (_flip(0), 1),
    "a digit of a message": (_flip(2), 3),
    "a digit of the last message": (_flip(4), 5),
    "a line deleted": (lambda lines: [lines[0], *lines[2:]], 2),
    "the first line deleted": (lambda lines: lines[1:], 1),
    "two lines swapped": (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 2),
    "a line twice": (lambda lines: [*lines[:2], lines[1], *lines[2:]], 3),
    "an empty first line": (lambda lines: [b"\n", *lines], 1),
    "an empty line": (lambda lines: [*lines[:2], b"\n", *lines[2:]], 3),
    "bytes that are no text": (lambda lines: [b"\xff\xfe\x00\n", *lines[1:]], 1),
    "a line of its own": (lambda lines: [*lines, b"0" * 32 + b" {}\n"], 6),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_elsewhere_is_an_error_that_names_file_and_line(what, written, tmp_path):
    paths, data = written
    damage, line = DAMAGE[what]
    (tmp_path / NAME).write_bytes(b"".join(damage(data.splitlines(keepends=True))))
    before = (tmp_path / NAME).read_bytes()
    with pytest.raises(cf.InputError, match=rf"{tmp_path / NAME}, line {line}, is damaged"):
        remote(paths, tmp_path)
    assert (tmp_path / NAME).read_bytes() == before  # nobody mends it silently


def test_other_queries_under_a_number_are_refused(written, tmp_path):
    paths, data = written
    (tmp_path / NAME).write_bytes(data)
    resumed, link = remote(paths, tmp_path)
    with pytest.raises(cf.InputError, match=r"whose message 2 had other queries. A run is resumed with the settings"):
        ask(resumed, Moments())
    assert link.sent == []


def test_other_sites_and_other_keys_are_refused(written, tmp_path, problem):
    paths, data = written
    (tmp_path / NAME).write_bytes(data)
    with pytest.raises(cf.InputError, match=r"holds run .* of other sites or keys \(1, 2\)"):
        remote(paths[:1], tmp_path)
    strangers = furnish(tmp_path / "strangers", problem.sites)  # the same names, other keys
    with pytest.raises(cf.InputError, match=r"of other sites or keys \(0, 1, 2\)"):
        remote(strangers, tmp_path)


def test_only_its_owner_can_read_the_log(paths, tmp_path):
    before = os.umask(0o022)
    try:
        federation, _ = remote(paths, tmp_path / "a" / "run")
        with federation:
            ask(federation, Describe())
    finally:
        os.umask(before)
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a").rglob("*")}
    assert {mode for path, mode in found.items() if path.is_file()} == {0o600}
    assert {mode for path, mode in found.items() if path.is_dir()} == {0o700}


def test_without_a_folder_nothing_is_written(paths, tmp_path):
    federation, _ = remote(paths)
    with federation:
        ask(federation, Describe())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sites"]


# --- nothing is logged until the sites agree ---


def test_a_mistake_that_the_first_replies_show_can_be_mended_in_the_same_folder(problem, paths, tmp_path):
    rows = paths[1].parent / "rows.csv"
    good = rows.read_text()
    head, *lines = good.splitlines()
    names = head.split(",")
    names[0], names[1] = names[1], names[0]
    rows.write_text("\n".join([",".join(names), *lines]) + "\n")
    estimator = cf.FederatedLogisticRegression(alpha=0.05)
    federation, _ = remote(paths, tmp_path / "run")
    with pytest.raises(cf.InputError, match="column 0 is 'a1' at site '1' and 'a0' at site '0'"), federation:
        estimator.fit_federation(federation)
    assert not (tmp_path / "run" / NAME).exists()
    rows.write_text(good)
    federation, _ = remote(paths, tmp_path / "run")
    with federation:
        mended = estimator.fit_federation(federation).coef_
    clean, _ = remote(furnish(tmp_path / "clean", problem.sites))
    np.testing.assert_array_equal(mended, estimator.fit_federation(clean).coef_)


# --- a disk that is full ---


@both
@pytest.mark.parametrize("part", [0, 10])
def test_a_full_disk_leaves_a_log_that_can_be_used(part, problem, paths, tmp_path, undisturbed, monkeypatch):
    """The disk takes some bytes of a line and no more."""
    federation, _ = remote(paths, tmp_path / "run")
    real, calls = os.pwrite, itertools.count()

    def full(handle, data, at):
        if not os.readlink(f"/proc/self/fd/{handle}").endswith(NAME):
            return real(handle, data, at)  # another file
        number = next(calls)
        if number < 5:
            return real(handle, data, at)
        if number == 5 and part:
            return real(handle, data[:part], at)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(cf.InputError, match=rf"{NAME}: No space left on device. The message was not used. Make room"):
        minimised(problem, federation)
    monkeypatch.setattr(os, "pwrite", real)
    assert len(lines_of(tmp_path / "run")) == 5
    assert lines_of(tmp_path / "run")[-1].endswith(b"\n")
    resumed, link = remote(paths, tmp_path / "run")
    np.testing.assert_array_equal(minimised(problem, resumed), undisturbed("DecoupledProx"))
    assert number_of(link.sent[0][1]) == 5


def test_writes_that_take_a_few_bytes_at_a_time_are_completed(paths, tmp_path, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, data, at: real(handle, data[:7], at))
    federation, _ = remote(paths, tmp_path / "run")
    with federation:
        ask(federation, Describe())
    assert sorted(WriteAheadLog(tmp_path / "run", federation.log.sites).messages) == [1, 2]


# --- a table that changes during a run ---


def change_one_number(path: Path) -> None:
    rows = path.parent / "rows.csv"
    head, first, *rest = rows.read_text().splitlines()
    value, _, others = first.partition(",")
    rows.write_text("\n".join([head, f"{float(np.nextafter(float(value), np.inf))!r},{others}", *rest]) + "\n")


def test_a_table_that_changed_is_refused_by_the_site(problem, paths, tmp_path):
    """One number, by the last bit."""
    killed_at(paths, tmp_path / "run", 4, lambda f: minimised(problem, f))
    change_one_number(paths[1])
    resumed, _ = remote(paths, tmp_path / "run")
    with pytest.raises(cf.InputError, match=r"site '1': its table has changed since run .* Restore the table"):
        minimised(problem, resumed)
    with pytest.raises(cf.InputError, match="site '1': its table has changed"):
        minimised(problem, resumed)


def test_a_table_that_changed_is_refused_where_the_site_forgot_its_state(problem, paths, tmp_path):
    """The operator sends it its own enrolment, which names the table that the run began with."""
    killed_at(paths, tmp_path / "run", 4, lambda f: minimised(problem, f))
    change_one_number(paths[1])
    wipe(paths[1])
    resumed, _ = remote(paths, tmp_path / "run")
    with pytest.raises(cf.InputError, match=r"site '1': its table has changed since run .* began"):
        minimised(problem, resumed)


@both
def test_a_table_that_is_restored_can_be_used(problem, paths, tmp_path, undisturbed):
    rows = paths[1].parent / "rows.csv"
    good = rows.read_text()
    killed_at(paths, tmp_path / "run", 4, lambda f: minimised(problem, f))
    change_one_number(paths[1])
    rows.write_text(good)
    resumed, _ = remote(paths, tmp_path / "run")
    np.testing.assert_array_equal(minimised(problem, resumed), undisturbed("DecoupledProx"))


# --- the log of a run ---


def test_both_logs_have_a_line_per_reply_and_nothing_of_the_rows(problem, paths, tmp_path):
    federation, _ = remote(paths, tmp_path / "run")
    cf.solve_federated(problem, "ProximalNewton", federation=federation)
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert len(lines) == 3 * federation.number
    site = [json.loads(line) for line in (paths[1].parent / "state" / "log.jsonl").read_text().splitlines()]
    mine = [line for line in lines if line["site"] == "1"]
    assert [line["sha256_up"] for line in mine] == [line["sha256_out"] for line in site]
    for there, here in (("bytes_up", "bytes_out"), ("bytes_down", "bytes_in"), ("queries", "queries")):
        assert [line[there] for line in mine] == [line[here] for line in site]
    row = np.asarray(problem.sites.features[1][0])
    files = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not any(row.tobytes() in data or repr(float(row[0])).encode() in data for data in files)


def test_two_writers_do_not_destroy_a_log(tmp_path):
    """Each would write at its own place: the second is refused, and the log of the first can be read."""
    first, second = WriteAheadLog(tmp_path, {"north": "a"}), WriteAheadLog(tmp_path, {"north": "a"})
    for number in (1, 2):
        first.stage(number, {0: "hash"}, {0: (1.0,)}, (5, number))
        first.commit()
    second.stage(1, {0: "hash"}, {0: (2.0,)}, (5, 1))
    with pytest.raises(cf.InputError, match=r"was changed by another process. Use a folder of its own for every run"):
        second.commit()
    assert WriteAheadLog(tmp_path, {"north": "a"}).replies(2, {0: "hash"}) == ({0: (1.0,)}, (5, 2))


def test_a_script_has_its_folder_alone(tmp_path, monkeypatch):
    paths = furnish(tmp_path / "sites", cf.data.from_arrays([[[1.0], [2.0]]], [[0.0, 1.0]], ["north"]))
    monkeypatch.setattr(FederationSettings, "read", lambda *_, **__: None)
    monkeypatch.setattr(operator, "_connect", lambda settings, folder: remote(paths, Path(folder))[0])
    with operator.connect("federation.toml", folder=tmp_path / "run", progress=False):
        with pytest.raises(cf.InputError, match=f"a run is going on in .* .process {os.getpid()}."):
            operator.connect("federation.toml", folder=tmp_path / "run", progress=False)
        assert is_alive(tmp_path / "run") == os.getpid()
    assert is_alive(tmp_path / "run") is None
    operator.connect("federation.toml", folder=tmp_path / "run", progress=False).close()
