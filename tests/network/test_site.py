"""The service of a site: what it answers, what it keeps, and what never leaves."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="a federation across a network: pip install '.[flower]'")

from network.memory_link import approve_all, furnish, key_of, logged, remote

import compfed as cf
from compfed._utils import files
from compfed.federation import Describe, Evaluate, InProcess, LocalUpdate, Moments, ask
from compfed.federation.codec import digest, pack, to_bytes
from compfed.federation.query import Weighted
from compfed.federation.sentence import Stated
from compfed.federation.site import answers
from compfed.federation.site import ledger as ledger_module
from compfed.federation.spec import ObjectiveSpec, RunSpec
from compfed.network import keys
from compfed.network import site as service_module
from compfed.network.envelope import (
    ENROL,
    PROTOCOL,
    QUERY,
    Body,
    Header,
    message_bytes,
    query_hash,
    read_header,
    read_reply,
)
from compfed.network.site import RUN_FOLDERS_KEPT, Ended, RunFiles, SiteService
from compfed.network.site_settings import SiteSettings

D = 3
OBJECTIVE = ObjectiveSpec(cf.losses.Squared())
NAMES = ("north", "south")


def table() -> cf.data.Sites:
    rng = np.random.default_rng(5)
    A = [rng.standard_normal((m, D)) for m in (12, 14)]
    y = [a @ [1.0, -1.0, 0.5] + 0.1 * rng.standard_normal(len(a)) for a in A]
    return cf.data.from_arrays(A, y, list(NAMES), columns=["age", "dose", "bmi"])


def site(folder: Path, more: str = "", disclosure: str = "enforce = false") -> Path:
    """The site.toml of north; south has a folder beside it."""
    return furnish(folder, table(), more, disclosure)[0]


def service_of(path: Path) -> SiteService:
    return SiteService(SiteSettings.read(path), key_of(path))


def enrol(run: str = "run", number: int = 1, after: int = 0, place: int = 0) -> bytes:
    """The message that asks a site to enrol."""
    return message_bytes(Header(run, number, after, place, NAMES, ENROL), Body(()))


def begun(path: Path, run: str = "run") -> tuple[np.ndarray, ...]:
    """The signed enrolments of both sites in a run."""
    other = path.parent.with_name("south") / "site.toml"
    replies = [service_of(one).reply(enrol(run, place=place)) for place, one in enumerate((path, other))]
    for one, data in zip((path, other), replies, strict=True):
        fields = read_reply(data, key_of(one).public_key())
        assert fields["kind"] == "enrolled", fields
    return tuple(np.frombuffer(data, np.uint8) for data in replies)


def weighted(queries: Any) -> tuple[Any, ...]:
    return tuple(query if isinstance(query, Weighted) else Weighted(query, "once") for query in queries)


def message(
    *queries: Any, run: str = "run", number: int = 2, after: int = 1, place: int = 0, again: Any = (), known: Any = (),
    enrolments: Any = (), sentence: str = "",
) -> bytes:  # fmt: skip
    asked = weighted(queries)
    header = Header(run, number, after, place, NAMES, query_hash(asked, sentence))
    return message_bytes(header, Body(asked, again, enrolments, sentence), known)


def first(path: Path, *queries: Any, run: str = "run", **options: Any) -> bytes:
    """The first message of queries in a run, which has the enrolments of all sites."""
    return message(*queries, run=run, enrolments=begun(path, run), **options)


def answered(path: Path, data: bytes) -> dict[str, Any]:
    """The fields of the reply of a site that was just started; its signature is checked."""
    return read_reply(service_of(path).reply(data), key_of(path).public_key())


def reason(path: Path, data: bytes) -> str:
    fields = answered(path, data)
    assert fields["kind"] == "refused", fields
    assert not {"words", "enrolment", "session_key"} & set(fields)
    return fields["reason"]


def log_of(path: Path) -> list[dict[str, Any]]:
    """The lines of the log of a site, without its enrolments."""
    lines = [json.loads(line) for line in (path.parent / "state" / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line.get("queries") != {"Enrol": 1}]


def integers(words: np.ndarray) -> list[int]:
    """Words of 128 bits as whole numbers, in two's complement."""
    found = [int(low) + (int(high) << 64) for low, high in words]
    return [number - (1 << 128) if number >> 127 else number for number in found]


# --- replies ---


def test_a_reply_is_that_of_a_site_in_this_process(tmp_path):
    path, queries = site(tmp_path), weighted((Describe(), Moments(), Evaluate(OBJECTIVE, np.ones((1, D)))))
    fields = answered(path, first(path, *queries))
    here = InProcess(table(), exact=True).messages.carry({0: queries}).parts[0]
    np.testing.assert_array_equal(fields["words"], here)
    assert (fields["run"], fields["number"], fields["site"], fields["kind"]) == ("run", 2, "north", "words")


def test_the_words_of_a_reply_are_sums_over_the_rows(tmp_path):
    """As whole numbers, without the code that decodes them: quotients of words do not depend on their unit."""
    path, A = site(tmp_path), table().features[0]
    words = integers(answered(path, first(path, Describe(), Weighted(Moments(), "rows")))["words"])
    check, outside, weight, rows, sites, _, factor, *moments = words
    assert (check, outside) == (1, 0)
    assert weight == rows == factor
    assert 8 * weight == 12 * sites  # 12 is below 2**4, and 1 site below 2**1: three bits between the units
    size = 2.0**16  # of every column: its unit is that many times that of the weights
    np.testing.assert_allclose(np.array([m / factor for m in moments[:D]]) * size, A.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(np.array([m / factor for m in moments[D:]]) * size**2, (A**2).mean(axis=0), rtol=1e-12)


def test_an_enrolment_has_the_facts_of_the_site_and_a_key_of_this_run(tmp_path):
    path, A = site(tmp_path), table().features[0]
    one, again, other = (answered(path, enrol(run)) for run in ("run", "run", "other"))
    found = one["enrolment"]
    assert (found.rows, found.weight, found.width, found.columns) == (12, 12.0, D, ("age", "dose", "bmi"))
    assert found.column_bits.tolist() == [16] * D
    assert np.abs(A).max() < 2.0**16
    assert (found.classes, found.label_kind, found.label_shape) == (None, "f", ())
    assert found.table == one["table"]
    np.testing.assert_array_equal(one["session_key"], again["session_key"])
    assert (one["session_key"] != other["session_key"]).any()


def test_a_site_enrols_in_the_first_message_only(tmp_path):
    path = site(tmp_path)
    assert reason(path, enrol(number=2, after=1)) == (
        "message 2 asks this site to enrol; the first message of a run does."
    )


def test_a_reply_is_signed_as_other_tools_check_it(tmp_path):
    """ECDSA on P-384 with SHA-384 over a label and the body: verified with the library that OpenSSL is behind."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    path = site(tmp_path)
    reply = service_of(path).reply(first(path, Moments()))
    line, rest = reply.split(b"\n", 1)
    assert line == f"compfed reply {PROTOCOL}".encode()
    length = int.from_bytes(rest[:2], "little")
    signature, body = rest[2 : 2 + length], rest[2 + length :]
    public = key_of(path).public_key()
    public.verify(signature, b"compfed/reply/1\0" + body, ec.ECDSA(hashes.SHA384()))
    with pytest.raises(InvalidSignature):
        public.verify(signature, b"compfed/reply/1\0" + body + b" ", ec.ECDSA(hashes.SHA384()))


def test_a_repeated_message_is_answered_identically(tmp_path):
    path = site(tmp_path)
    data = first(path, Moments(), Describe())
    once, twice = answered(path, data), answered(path, data)
    assert to_bytes(pack(once)) == to_bytes(pack(twice))
    assert [line["repeated"] for line in log_of(path)] == [False, True]


def test_a_number_does_not_stand_for_two_messages(tmp_path):
    path = site(tmp_path)
    answered(path, first(path, Describe()))
    assert reason(path, message(Moments())) == "message 2 of run run came before with other queries."


def test_the_replies_to_the_last_two_messages_are_kept(tmp_path):
    path = site(tmp_path)
    answered(path, first(path, Moments()))
    for number in range(3, 7):
        answered(path, message(Moments(), number=number, after=number - 1))
    run = path.parent / "state" / "runs" / "run"
    assert sorted(file.name for file in run.glob("*.reply")) == ["00000005.reply", "00000006.reply"]
    assert [file for file in run.rglob("*") if file.name.startswith(".")] == []  # no half-written file
    assert answered(path, message(Moments(), number=5, after=4))["kind"] == "words"
    assert answered(path, message(Moments(), number=7, after=6))["kind"] == "words"
    assert answered(path, message(Moments(), number=10, after=3))["kind"] == "lost"


def test_a_damaged_state_file_is_lost_state(tmp_path):
    path = site(tmp_path)
    answered(path, first(path, Moments()))
    (file,) = (path.parent / "state").rglob("*.reply")
    content = file.read_bytes()
    for at in (0, 40, len(content) - 1):
        file.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        fields = answered(path, message(Moments(), number=3, after=2))
        assert (fields["kind"], fields["reason"]) == ("lost", "It has no state after message 2 of this run.")
    file.write_bytes(content)
    assert answered(path, message(Moments(), number=3, after=2))["kind"] == "words"


def test_enrolments_that_a_site_does_not_have_are_lost_state(tmp_path):
    path = site(tmp_path)
    given = begun(path)
    fields = answered(path, message(Moments()))
    assert (fields["kind"], fields["reason"]) == ("lost", "It does not have the enrolments of the sites.")
    assert answered(path, message(Moments(), enrolments=given))["kind"] == "words"


# --- records ---


def test_a_record_travels_once_and_is_kept_once_its_message_was_answered(tmp_path):
    path = site(tmp_path)
    query, given = Evaluate(OBJECTIVE, np.zeros((1, D))), begun(path)
    by_hash = message(query, known={digest(OBJECTIVE)}, enrolments=given)
    assert len(by_hash) < len(message(query, enrolments=given))
    fields = answered(path, by_hash)
    assert (fields["kind"], fields["reason"]) == ("lost", "It does not have a record that the message refers to.")
    full = answered(path, message(query, enrolments=given))
    assert full["kind"] == "words"
    records = path.parent / "state" / "runs" / "run" / "records"
    assert {file.name for file in records.iterdir()} == {digest(OBJECTIVE)}
    again = answered(path, message(query, number=3, after=2, known={digest(OBJECTIVE)}))
    np.testing.assert_array_equal(again["words"], full["words"])


@pytest.mark.parametrize("restarted", [True, False])
def test_records_of_a_message_that_was_refused_are_forgotten(restarted, tmp_path):
    path = site(tmp_path)
    service, given = service_of(path), begun(path)
    query = Evaluate(OBJECTIVE, np.zeros((1, D)))
    header = Header("run", 2, 1, 0, NAMES, query_hash(weighted((Moments(),))))  # names other queries
    data = message_bytes(header, Body(weighted((query,)), (), given))
    assert read_reply(service.reply(data), key_of(path).public_key())["kind"] == "refused"
    assert not (path.parent / "state" / "runs" / "run" / "records").exists()
    service = service_of(path) if restarted else service
    reply = service.reply(message(query, known={digest(OBJECTIVE)}, enrolments=given))
    assert read_reply(reply, key_of(path).public_key())["kind"] == "lost"


def test_a_damaged_record_is_sent_again(tmp_path):
    path, query = site(tmp_path), Evaluate(OBJECTIVE, np.zeros((1, D)))
    answered(path, first(path, query))
    (file,) = (path.parent / "state" / "runs" / "run" / "records").iterdir()
    other = ObjectiveSpec(cf.losses.Logistic())
    files.write_checked(file, to_bytes(pack(other)))  # a record under the name of another
    assert answered(path, message(query, number=3, after=2, known={digest(OBJECTIVE)}))["kind"] == "lost"
    file.write_bytes(b"")
    assert answered(path, message(query, number=3, after=2, known={digest(OBJECTIVE)}))["kind"] == "lost"
    assert answered(path, message(query, number=3, after=2))["kind"] == "words"


# --- refusals ---


def test_a_message_above_the_limit_is_refused_under_its_own_number(tmp_path):
    path = site(tmp_path, "[limits]\nmax_message_bytes = 10000\n")
    query = Evaluate(OBJECTIVE, np.zeros((500, D)))
    fields = answered(path, first(path, query))
    assert fields["kind"] == "refused"
    assert fields["reason"] == "a message has more than the 10000 bytes that it reads (max_message_bytes)."
    assert (fields["run"], fields["number"]) == ("run", 2)  # so that the operator knows what it is about
    federation, _ = remote([path, path.parent.with_name("south") / "site.toml"])
    with pytest.raises(cf.InputError, match=r"site 'north': a message has more than the 10000 bytes"):
        ask(federation, query)


BAD_NAMES = ("../x", "..", ".", "", "a/b", "/etc", "a\x00b", "a" * 101, "run\n", "-x", "ä")


@pytest.mark.parametrize("run", BAD_NAMES)
def test_a_run_that_is_no_plain_name_is_refused(run, tmp_path):
    path = site(tmp_path)
    assert "the name of a run may have letters, digits" in reason(path, enrol(run))
    assert {file.name for file in (path.parent / "state").iterdir()} == {"log.jsonl"}
    assert {file.name for file in tmp_path.iterdir()} == set(NAMES)
    with pytest.raises(cf.InputError, match="the name of a run"):
        RunFiles(SiteSettings.read(path), run)


def _with_head(old: str, new: str) -> bytes:
    """A message with other words in its queries, of the same length."""
    assert len(old) == len(new)
    data = message(Moments())
    assert old.encode() in data
    return data.replace(old.encode(), new.encode())


def test_classes_that_are_not_of_compfed_are_refused(tmp_path):
    path = site(tmp_path)
    ours = "compfed.federation.queries.moments:Moments"
    for other in ("builtins:eval", "os:system", "compfed.network.site:SiteService", "subprocess:Popen"):
        fields = {
            "queries": {"tuple": [{"record": other, "fields": {}}]},
            "again": {"tuple": []},
            "enrolments": {"tuple": []},
        }
        data = _raw(Header("run", 1, 0, 0, NAMES, "0" * 64), {"dict": fields})
        assert f"a message names {other}, which is not of compfed" in reason(path, data)
    data = _with_head(ours, "compfed.federation.queries.moments:Momentz")
    assert "compfed.federation.queries.moments:Momentz, which is not of compfed" in reason(path, data)


def _raw(header: Header, body: Any) -> bytes:
    head = to_bytes(pack(header._asdict()))
    text = json.dumps({"head": body, "arrays": []}).encode()
    return QUERY + len(head).to_bytes(4, "little") + head + len(text).to_bytes(8, "little") + text


NO_QUERY: dict[str, tuple[Any, str]] = {
    "another record": (Weighted(OBJECTIVE, "once"), "ObjectiveSpec, which is not a query it knows"),  # pyright: ignore
    "a weighting of its own": (Weighted(Moments(), "north"), "a weighting that is unknown"),  # pyright: ignore
    "no weighting": (Weighted(Moments(), None), "a weighting that is unknown"),  # pyright: ignore
    "an array": (Weighted(Moments(), np.ones(2)), "a weighting that is unknown"),  # pyright: ignore
    "a small lift": (Weighted(Moments(), "rows", 1), "fields of a size that is not used"),
    "a large lift": (Weighted(Moments(), "rows", 4096), "fields of a size that is not used"),
    "a lift below": (Weighted(Moments(), "rows", -32), "fields of a size that is not used"),
    "half a lift": (Weighted(Moments(), "rows", 32.0), "fields of a size that is not used"),  # pyright: ignore
    "no factor": (Weighted(Moments(), "given", 0, np.nan), "a factor that is not a finite number"),
    "a long factor": (Weighted(Moments(), "given", 0, np.inf), "a factor that is not a finite number"),
    "words": (Weighted(Moments(), "given", 0, "one"), "a factor that is not a finite number"),  # pyright: ignore
}


@pytest.mark.parametrize("what", NO_QUERY)
def test_a_record_that_is_no_query_is_refused(what, tmp_path):
    path = site(tmp_path)
    query, message = NO_QUERY[what]
    assert message in reason(path, first(path, query))
    assert not list((path.parent / "state").rglob("*.reply"))


def test_a_query_without_a_weighting_is_refused(tmp_path):
    path, query = site(tmp_path), (Moments(),)
    given = begun(path)
    data = message_bytes(Header("run", 2, 1, 0, NAMES, "0" * 64), Body(query, (), given))  # pyright: ignore
    assert reason(path, data) == "a message whose queries have no weighting."


def test_a_header_of_other_queries_is_refused(tmp_path):
    path = site(tmp_path)
    given = begun(path)
    header = Header("run", 2, 1, 0, NAMES, query_hash(weighted((Moments(),))))
    assert reason(path, message_bytes(header, Body(weighted((Describe(),)), (), given))) == (
        "message 2 does not hold the queries that its header names."
    )


def test_a_message_of_a_run_without_this_site_is_refused(tmp_path):
    path = site(tmp_path)
    for names in (("south", "west"), (), ("\x1b[2J",)):
        wrong = reason(path, message_bytes(Header("run", 1, 0, 0, names, ENROL), Body(())))
        assert wrong.startswith("a message for a run without this site, 'north'; its sites are ")
        assert "\x1b" not in wrong
    twice = message_bytes(Header("run", 1, 0, 0, ("north", "south", "north"), ENROL), Body(()))
    assert reason(path, twice) == "a message whose header does not name each site once."


def test_all_sites_get_the_same_bytes_and_each_knows_its_place():
    assert enrol(place=1) == enrol(place=0)
    assert [read_header(enrol(), name)[0].place for name in NAMES] == [0, 1]


def test_other_sites_in_the_same_run_are_refused(tmp_path):
    """The place of a site decides its random draws: it does not change within a run."""
    path = site(tmp_path)
    answered(path, first(path, Moments()))
    queries = weighted((Moments(),))
    header = Header("run", 3, 2, 1, ("west", "north"), query_hash(queries))
    assert reason(path, message_bytes(header, Body(queries))) == (
        "the sites of run run are not those that it began with."
    )


def test_enrolments_of_others_are_those_of_the_run_and_of_this_table(tmp_path):
    path = site(tmp_path / "one")
    north, south = begun(path)
    other = begun(path, run="other")
    every = (north, south, *other, *begun(site(tmp_path / "two")))
    for places, words in {
        (0,): "run run has 2 sites; 1 enrolments came",
        (1, 0): "the enrolment of site 'north' is not one of run run",
        (0, 3): "the enrolment of site 'south' is not one of run run",
        (4, 1): "its table has changed since run run began",
    }.items():
        assert words in reason(path, message(Moments(), enrolments=tuple(every[k] for k in places)))
    data = message(Moments(), enrolments=(np.zeros(3),))
    assert reason(path, data) == "a message whose enrolments are not bytes."
    assert answered(path, message(Moments(), enrolments=(north, south)))["kind"] == "words"


BROKEN = {
    "nothing": b"",
    "another protocol": enrol().replace(b"query 6", b"query 3", 1),
    "a reply": b"compfed reply 6\n" + enrol(),
    "a header beyond the end": QUERY + (2**31).to_bytes(4, "little") + b"x" * 100,
    "an empty header": QUERY + (0).to_bytes(4, "little"),
    "half a message": message(Moments())[:-20],
    "no queries": enrol()[: len(QUERY) + 4],
    "number 0": enrol(number=0),
    "after itself": enrol(number=1, after=1),
    "noise": np.random.default_rng(0).bytes(1000),
    "noise behind a header": message(Moments())[:300] + np.random.default_rng(0).bytes(1000),
}


@pytest.mark.parametrize("what", BROKEN)
def test_bytes_that_are_no_message_get_a_signed_refusal_and_leave_nothing(what, tmp_path):
    path = site(tmp_path)
    assert reason(path, BROKEN[what])
    assert not list((path.parent / "state").rglob("*.reply"))
    assert not list((path.parent / "state").rglob("session"))
    assert answered(path, first(path, Moments()))["kind"] == "words"  # the service goes on


def test_a_failure_is_reported_without_its_words(tmp_path, monkeypatch):
    path = site(tmp_path)

    def failing(query, site):
        raise RuntimeError("the value of Mrs Miller is 42.42")

    monkeypatch.setitem(answers.ANSWERS, Moments, failing)
    fields = answered(path, first(path, Moments()))
    assert (fields["kind"], fields["reason"]) == ("failed", "it failed with RuntimeError; its log says where.")
    where, line = log_of(path)
    assert where["failed"] == "RuntimeError"
    assert where["at"][-1].startswith("test_site.py:")
    assert line["kind"] == "failed"
    assert "Miller" not in (path.parent / "state" / "log.jsonl").read_text()


def test_under_a_policy_a_failure_ends_the_run_and_tells_no_more_than_a_refusal(tmp_path, monkeypatch):
    path = site(tmp_path, "", "")
    data, real = first(path, Moments()), answers.ANSWERS[Moments]

    def failing(query, site):
        raise ZeroDivisionError("the value of Mrs Miller is 42.42")

    monkeypatch.setitem(answers.ANSWERS, Moments, failing)
    assert reason(path, data) == str(Ended("run"))
    where, line = log_of(path)
    assert (where["failed"], line["reason"]) == ("ZeroDivisionError", "it failed with ZeroDivisionError")
    monkeypatch.setitem(answers.ANSWERS, Moments, real)
    assert reason(path, data) == str(Ended("run"))  # not a question that is asked again until it succeeds


def test_a_reply_that_the_operator_could_not_use_is_not_kept(tmp_path, monkeypatch):
    """A broken installation computes NaN: once it is mended, the same message is answered."""
    path = site(tmp_path)
    real: Any = answers.ANSWERS[Moments]
    monkeypatch.setitem(
        answers.ANSWERS, Moments, lambda query, site: real(query, site)._replace(mean=np.full(D, np.nan))
    )
    data = first(path, Moments())
    assert "it computed a reply to Moments whose mean is not finite" in reason(path, data)
    assert not list((path.parent / "state").rglob("*.reply"))
    monkeypatch.undo()
    assert answered(path, data)["kind"] == "words"


def test_a_refusal_of_one_query_refuses_the_message(tmp_path):
    """A sum without one site would not be the sum: nothing of the other queries leaves either."""
    path = site(tmp_path, "", "max_hessian_share = 0")
    query = Evaluate(OBJECTIVE, np.zeros((1, D)), np.arange(2))
    said = reason(path, first(path, Moments(), query))
    assert "ends the run here" in said
    assert not list((path.parent / "state").rglob("*.reply"))
    (line,) = log_of(path)
    assert line["kind"] == "refused"
    assert line["reason"].startswith(
        "site 'north' refuses Evaluate: 2 coordinates are more than 0 of the number of its rows"
    )
    assert reason(path, first(path, Moments())) == said  # whatever is asked for from now on
    assert answered(path, first(path, Moments(), run="another"))["kind"] == "words"


# --- limits of time and space ---


def test_a_message_that_took_too_long_is_refused_when_it_comes_again(tmp_path, monkeypatch):
    path = site(tmp_path, "[limits]\nmax_seconds = 5\n")
    service = service_of(path)
    seen: list[bool] = []
    real = answers.ANSWERS[Moments]

    def slow(query, site):
        seen.append(service.is_overdue())
        began = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: began + 6)
        seen.append(service.is_overdue())
        service.mark_overdue()
        monkeypatch.setattr(time, "monotonic", time.perf_counter)
        return real(query, site)

    monkeypatch.setitem(answers.ANSWERS, Moments, slow)
    data = first(path, Moments())
    service.reply(data)
    monkeypatch.undo()
    assert seen == [False, True]
    assert not service.is_overdue()  # nothing is being answered
    assert reason(path, data) == "message 2 takes more than the 5 s that it allows (max_seconds)."
    assert answered(path, message(Moments(), number=3))["kind"] == "words"  # only this message
    assert answered(path, first(path, Moments(), run="other"))["kind"] == "words"
    path.write_text(path.read_text().replace("max_seconds = 5", "max_seconds = 50"))
    assert answered(path, data)["kind"] == "words"  # the site allows more now


def test_the_reply_to_one_message_is_bounded(tmp_path):
    path = site(tmp_path, "[limits]\nmax_reply_bytes = 1000\n")
    x = np.zeros((20, D))
    assert "at most 1000 bytes (max_reply_bytes)" in reason(path, first(path, *[Evaluate(OBJECTIVE, x)] * 3))
    # 20 values, gradients and sizes of terms: 800 bytes each
    assert answered(path, first(path, *[Evaluate(OBJECTIVE, x)] * 2))["kind"] == "words"


def test_a_log_line_does_not_grow_with_the_refusals_of_a_message(tmp_path):
    path = site(tmp_path, "", 'queries = ["Describe"]')
    answered(path, first(path, *[Describe()] * 500))
    (line,) = log_of(path)
    assert line["reason"] == "site 'north' refuses Describe: it does not answer Describe."
    assert len(json.dumps(line)) < 1500


def test_a_refusal_that_was_lifted_is_not_repeated(tmp_path):
    path = site(tmp_path, "", 'queries = ["Moments"]')
    data = first(path, Moments())
    said = reason(path, data)
    assert logged(path) == "site 'north' refuses Moments: it does not answer Moments."
    path.write_text(path.read_text().replace('"Moments"', '"HeldOut"'))
    assert reason(path, data) == said  # this run has ended
    assert answered(path, first(path, Moments(), run="another"))["kind"] == "words"


def test_a_site_that_answers_nothing_does_not_tell_how_many_rows_it_has(tmp_path):
    """No query is refused in another way for another number of rows: a bisection would find it."""
    path = site(tmp_path)
    given = begun(path)
    answered(path, message(Describe(), enrolments=given))  # it takes part in a run, and gets another policy
    path.write_text(path.read_text().replace("enforce = false", "min_rows = 50"))
    algorithm = cf.algorithms.FedAvg(eta=0.1, tau=2)
    reasons = {reason(path, enrol("fresh"))}
    for batch in (1, 5, 12, 13, 40):
        run_spec = RunSpec(0, algorithm, cf.regularisers.Zero(), OBJECTIVE, np.zeros(D), 0, batch, 12, True)
        update = LocalUpdate(run_spec, 0, 0, {"x": np.zeros(D)})
        reasons.add(reason(path, message(update, number=3)))
    assert reasons == {
        "the table has fewer rows than its min_rows. It takes part in no run.",
        str(Ended("run")),
    }


def test_a_number_of_the_rows_is_in_no_refusal(tmp_path):
    path = site(tmp_path)
    rows = (path.parent / "rows.csv").read_text().splitlines()
    (path.parent / "rows.csv").write_text("\n".join([rows[0], "1.23e+300,1,1,1", *rows[1:]]) + "\n")
    words = reason(path, enrol())
    assert "its rows cannot be used" in words
    assert "1.23" not in words
    assert "e+" not in words


def test_old_runs_are_forgotten(tmp_path):
    path = site(tmp_path)
    service = service_of(path)
    for k in range(23):
        service.reply(enrol(f"run-{k:02d}"))
        os.utime(path.parent / "state" / "runs" / f"run-{k:02d}", (1000 + k, 1000 + k))
    kept = sorted(folder.name for folder in (path.parent / "state" / "runs").iterdir())
    assert kept == [f"run-{k:02d}" for k in range(3, 23)]


def test_enrolments_in_many_runs_leave_no_line_in_the_ledger_and_drop_no_run_under_way(tmp_path):
    path = site(tmp_path, "", "")
    small = Evaluate(OBJECTIVE, np.zeros((1, D)))
    assert answered(path, first(path, small, run="answered"))["kind"] == "words"
    config = path.read_text()
    path.write_text(config.replace("by_rule = true", "by_rule = false"))
    state, ledger = path.parent / "state" / "runs", SiteSettings.read(path).ledger().path
    waits = message(
        small, run="waits", enrolments=begun(path, "waits"), sentence=Stated("fit", numbers=9, messages=2).text
    )
    assert answered(path, waits)["kind"] == "pending"
    for run in ("answered", "waits"):
        os.utime(state / run, (time.time() - 3600, time.time() - 3600))  # the oldest
    size = ledger.stat().st_size
    for k in range(3 * RUN_FOLDERS_KEPT):
        assert answered(path, enrol(f"flood-{k}"))["kind"] == "enrolled"
    assert ledger.stat().st_size == size
    assert list(SiteSettings.read(path).ledger().runs) == ["answered"]
    kept = {folder.name for folder in state.iterdir()}
    assert {"answered", "waits"} <= kept
    assert len(kept) <= RUN_FOLDERS_KEPT + 2
    approve_all(path)
    assert answered(path, waits)["kind"] == "words"  # with its own key
    shutil.rmtree(state / "answered")
    assert "the session of run answered at this site is lost" in reason(path, enrol("answered"))  # no other key


def test_two_runs_that_enrol_at_once_after_many_others_today_both_go_on(tmp_path):
    path = site(tmp_path)
    small = Evaluate(OBJECTIVE, np.zeros((1, D)))
    for k in range(RUN_FOLDERS_KEPT + 3):
        assert answered(path, first(path, small, run=f"run-{k}"))["kind"] == "words"
    one, other = (first(path, small, run=run) for run in ("one", "other"))  # both enrol before either is asked
    assert all((path.parent / "state" / "runs" / run / "session").exists() for run in ("one", "other"))  # their keys
    assert [answered(path, data)["kind"] for data in (one, other)] == ["words", "words"]


def test_the_state_of_a_run_stays_within_its_limit(tmp_path):
    path = site(tmp_path, "[limits]\nmax_state_bytes = 12000\n")
    state = path.parent / "state" / "runs"
    small = Evaluate(OBJECTIVE, np.zeros((1, D)))
    for k in range(6):
        assert answered(path, first(path, small, run=f"run-{k}"))["kind"] == "words"
        os.utime(state / f"run-{k}", (1000 + k, 1000 + k))
        assert sum(file.stat().st_size for file in state.rglob("*") if file.is_file()) <= 12000 + 32 * 3  # checksums
    assert 1 <= len(list(state.iterdir())) < 6  # older runs made room
    assert (state / "run-5").exists()
    large = Evaluate(OBJECTIVE, np.zeros((200, D)))
    assert reason(path, first(path, large, run="large")) == (
        "this run needs more than the 12000 bytes of state that the site allows (max_state_bytes)."
    )
    assert not list(state.glob("large/*.reply"))


def test_a_disk_that_is_full_is_a_failure_that_passes(tmp_path, monkeypatch):
    path = site(tmp_path)
    real = files.write_checked

    def full(target, data, **_):
        raise OSError(28, "No space left on device", str(target))

    data = first(path, Moments())
    monkeypatch.setattr(files, "write_checked", full)
    for each in (data, enrol("another")):
        fields = answered(path, each)
        assert fields["kind"] == "failed"
        assert fields["reason"].endswith("(No space left on device).")
        assert str(tmp_path) not in fields["reason"]
    monkeypatch.setattr(files, "write_checked", real)
    assert answered(path, data)["kind"] == "words"
    assert answered(path, enrol("another"))["kind"] == "enrolled"


def test_a_reply_that_is_not_in_the_ledger_is_not_kept(tmp_path, monkeypatch):
    """The disk is full for the ledger alone: a reply that is kept would leave when the message comes again."""
    path, real = site(tmp_path), files.append_line
    data = first(path, Evaluate(OBJECTIVE, np.zeros((4, D))))

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ledger_module, "append_line", full)
    assert answered(path, data)["kind"] == "failed"
    assert not list((path.parent / "state").rglob("*.reply"))
    monkeypatch.setattr(ledger_module, "append_line", real)
    assert answered(path, data)["kind"] == "words"
    entry = SiteSettings.read(path).ledger().runs["run"]
    assert (dict(entry.queries), entry.bytes_out) == ({"Evaluate": 1}, 16 * (2 + 1 + 4 + 4 + 4 + 4 * D + 4))


def test_a_reply_that_cannot_be_logged_does_not_leave(tmp_path, monkeypatch):
    path = site(tmp_path)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    data = first(path, Moments())
    monkeypatch.setattr(files, "append_line", full)
    for each in (data, enrol("another")):
        fields = answered(path, each)
        assert fields["kind"] == "failed"
        assert not {"words", "enrolment"} & set(fields)


def test_a_long_log_is_renamed(tmp_path, monkeypatch):
    path = site(tmp_path)
    monkeypatch.setattr(service_module, "LONGEST_LOG", 300)
    answered(path, first(path, Moments()))
    for number in range(3, 6):
        answered(path, message(Moments(), number=number, after=number - 1))
    logs = list((path.parent / "state").glob("log*.jsonl"))
    assert len(logs) > 2  # none is written over: the log is the record of what left
    lines = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    assert sorted(line["number"] for line in lines) == [1, 2, 3, 4, 5]
    assert (path.parent / "state" / "log.jsonl").stat().st_size < 1500


# --- what never leaves ---


def files_under(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_no_value_of_a_row_is_in_a_reply_or_in_the_state(tmp_path):
    """A name in a text column, and the numbers of a row, as text and as bytes."""
    path = site(tmp_path, disclosure="min_rows = 2\nmax_hessian_share = 1.0")
    rows = path.parent / "rows.csv"
    head, *lines = rows.read_text().splitlines()
    named = [f"Erika Mustermann {k // 2},{line}" for k, line in enumerate(lines)]  # twice each: too few to be levels
    rows.write_text("\n".join([f"patient,{head}", *named]) + "\n")
    first = [float(value) for value in lines[0].split(",")]
    secrets = [b"Mustermann", *(repr(value).encode() for value in first), *(np.float64(v).tobytes() for v in first)]
    replies = [service_of(path).reply(enrol())]  # words in a column: it answers Tabulate alone
    assert b"words in column 'patient'" in replies[0]
    path.write_text('drop = ["patient"]\n' + path.read_text())
    queries = (
        Describe(),
        Moments(),
        Evaluate(OBJECTIVE, np.ones((2, D))),
        Evaluate(OBJECTIVE, np.ones((1, D)), np.arange(3)),
    )
    given = begun(path, "dropped")
    replies += [each.tobytes() for each in given]
    replies.append(service_of(path).reply(message(*queries, run="dropped", enrolments=given)))
    assert read_reply(replies[-1], key_of(path).public_key())["kind"] == "words"
    extracts = path.parent / "state" / "extracts"
    kept = [file for file in files_under(path.parent / "state") if extracts not in file.parents]
    assert len(kept) > 3
    for data in (*replies, *(file.read_bytes() for file in kept)):
        assert not [secret for secret in secrets if secret in data]
    (extract,) = files_under(extracts)  # the copy of the table, for the eyes of its owner
    assert extract.read_bytes() == rows.read_bytes()
    assert extract.stat().st_mode & 0o077 == 0
    assert any(secret in rows.read_bytes() for secret in secrets)  # they are where they belong


def test_the_hash_of_a_table_says_nothing_without_the_key(tmp_path):
    """Two sites with the same rows have other hashes: nobody can confirm a guess of a table."""
    one, other = site(tmp_path / "one"), site(tmp_path / "other")
    assert (one.parent / "rows.csv").read_text() == (other.parent / "rows.csv").read_text()
    hashes = [answered(path, enrol())["table"] for path in (one, other, one)]
    assert hashes[0] != hashes[1]
    assert hashes[0] == hashes[2]
    (one.parent / "node.key").unlink()
    keys.write_identity(one.parent / "node.key", keys.new_identity())
    assert answered(one, enrol("new"))["table"] not in hashes


def test_files_are_for_their_owner_only_whatever_the_umask(tmp_path):
    before = os.umask(0o022)
    try:
        path = site(tmp_path)
        answered(path, first(path, Evaluate(OBJECTIVE, np.zeros((1, D)))))
        service = service_of(path)
        service.began = time.monotonic(), read_header(message(Moments()), "north")[0]
        service.mark_overdue()
    finally:
        os.umask(before)
    state = path.parent / "state"
    found = {file: stat.S_IMODE(file.stat().st_mode) for file in (state, *state.rglob("*"))}
    assert {mode for file, mode in found.items() if file.is_file()} == {0o600}
    assert {mode for file, mode in found.items() if file.is_dir()} == {0o700}
    assert {"run.json", "log.jsonl", "overdue.json", "00000002.reply", "session", "rows.ledger", digest(OBJECTIVE)} <= {
        file.name for file in found
    }
    assert stat.S_IMODE((path.parent / "node.key").stat().st_mode) == 0o600


def test_every_reply_is_logged_with_its_hash_before_it_leaves(tmp_path):
    import hashlib

    path = site(tmp_path)
    data = first(path, Moments())
    reply = service_of(path).reply(data)
    (line,) = log_of(path)
    assert line["sha256_out"] == hashlib.sha256(reply).hexdigest()
    assert (line["bytes_in"], line["bytes_out"]) == (len(data), len(reply))
    assert (line["run"], line["number"]) == ("run", 2)


def test_words_of_the_operator_reach_the_log_without_control_characters(tmp_path):
    path = site(tmp_path)
    service_of(path).reply(enrol("\x1b]52;c;ZXZpbA==\x07"))
    service_of(path).reply(message_bytes(Header("r", 1, 0, 0, ("\x1b[2J", "b"), ENROL), Body(())))
    assert len(log_of(path)) == 2
    for line in log_of(path):
        assert not any(ord(c) < 32 for value in line.values() for c in str(value))


# --- rows ---


def test_rows_are_read_again_when_their_file_changes(tmp_path):
    path = site(tmp_path)
    service = service_of(path)
    assert service.open() is service.open()
    rows = path.parent / "rows.csv"
    rows.write_text("\n".join(rows.read_text().splitlines()[:-1]) + "\n")
    fields = read_reply(service.reply(enrol()), key_of(path).public_key())
    assert fields["enrolment"].rows == len(table().labels[0]) - 1


def test_a_missing_table_is_named_and_the_service_recovers(tmp_path):
    path = site(tmp_path)
    rows = path.parent / "rows.csv"
    rows.rename(rows.with_name("hidden.csv"))
    service = service_of(path)
    fields = read_reply(service.reply(enrol()), key_of(path).public_key())
    assert (fields["kind"], "its rows cannot be used" in fields["reason"]) == ("refused", True)
    assert str(tmp_path) not in fields["reason"]
    rows.with_name("hidden.csv").rename(rows)
    assert read_reply(service.reply(enrol()), key_of(path).public_key())["kind"] == "enrolled"


def test_messages_of_two_runs_do_not_mix(tmp_path):
    """The same number in two runs has two files; either run goes on after the other."""
    path = site(tmp_path)
    given = {run: begun(path, run) for run in ("a", "b")}
    for number, run in itertools.product((2, 3, 4), ("a", "b")):
        query = Moments() if run == "a" else Describe()
        data = message(query, run=run, number=number, after=number - 1, enrolments=given[run] if number == 2 else ())
        fields = answered(path, data)
        assert fields["kind"] == "words"
        assert len(fields["words"]) == 2 + (1 + 2 * D if run == "a" else 4)
