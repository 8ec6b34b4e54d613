"""The service of a site: what it answers, what it keeps, and what never leaves."""

from __future__ import annotations

import itertools
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="a federation across a network: pip install 'compfed[flower]'")

from network.memory_link import furnish, key_of, remote

import compfed as cf
from compfed._utils import files
from compfed.federation import Describe, Evaluate, InProcess, LocalUpdate, Moments, Refusal
from compfed.federation.codec import digest, pack, to_bytes
from compfed.federation.site import answers
from compfed.federation.spec import ObjectiveSpec, RunSpec
from compfed.network import keys
from compfed.network import site as service_module
from compfed.network.envelope import PROTOCOL, QUERY, Header, message_bytes, query_hash, read_header, read_reply
from compfed.network.site import RunFiles, SiteService
from compfed.network.site_settings import SiteSettings

D = 3
OBJECTIVE = ObjectiveSpec(cf.losses.Squared())
NAMES = ("north", "south")


def table() -> cf.data.Sites:
    rng = np.random.default_rng(5)
    A = [rng.standard_normal((m, D)) for m in (12, 9)]
    y = [a @ [1.0, -1.0, 0.5] + 0.1 * rng.standard_normal(len(a)) for a in A]
    return cf.data.from_arrays(A, y, list(NAMES), columns=["age", "dose", "bmi"])


def site(folder: Path, more: str = "") -> Path:
    """The site.toml of north, alone in a folder."""
    return furnish(folder, table(), more)[0]


def service_of(path: Path) -> SiteService:
    return SiteService(SiteSettings.read(path), key_of(path))


def message(
    *queries: Any, run: str = "run", number: int = 1, after: int = 0, place: int = 0, again: Any = (), known: Any = ()
) -> bytes:
    header = Header(run, number, after, place, NAMES, query_hash(queries))
    return message_bytes(header, queries, again, known)


def answered(path: Path, data: bytes) -> dict[str, Any]:
    """The fields of the reply of a site that was just started; its signature is checked."""
    return read_reply(service_of(path).reply(data), key_of(path).public_key())


def reason(path: Path, data: bytes) -> str:
    fields = answered(path, data)
    assert fields["kind"] == "refused", fields
    assert "replies" not in fields
    return fields["reason"]


def log_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path.parent / "state" / "log.jsonl").read_text().splitlines()]


# --- replies ---


def test_a_reply_is_that_of_a_site_in_this_process(tmp_path):
    path, queries = site(tmp_path), (Describe(), Moments(), Evaluate(OBJECTIVE, np.ones((1, D))))
    fields = answered(path, message(*queries))
    here = InProcess(table()).send({0: queries})[0]
    assert to_bytes(pack(fields["replies"])) == to_bytes(pack(tuple(here)))
    assert (fields["run"], fields["number"], fields["site"]) == ("run", 1, "north")


def test_a_reply_is_signed_as_other_tools_check_it(tmp_path):
    """ECDSA on P-384 with SHA-384 over a label and the body: verified with the library that OpenSSL is behind."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    path = site(tmp_path)
    reply = service_of(path).reply(message(Moments()))
    line, rest = reply.split(b"\n", 1)
    assert line == f"compfed reply {PROTOCOL}".encode()
    length = int.from_bytes(rest[:2], "little")
    signature, body = rest[2 : 2 + length], rest[2 + length :]
    public = key_of(path).public_key()
    public.verify(signature, b"compfed/reply/1\0" + body, ec.ECDSA(hashes.SHA384()))
    with pytest.raises(InvalidSignature):
        public.verify(signature, b"compfed/reply/1\0" + body + b" ", ec.ECDSA(hashes.SHA384()))


def test_a_repeated_message_is_answered_identically(tmp_path):
    path, data = site(tmp_path), message(Moments(), Describe())
    first, second = answered(path, data), answered(path, data)
    assert to_bytes(pack(first)) == to_bytes(pack(second))
    assert [line["repeated"] for line in log_of(path)] == [False, True]


def test_a_number_does_not_stand_for_two_messages(tmp_path):
    path = site(tmp_path)
    answered(path, message(Describe()))
    assert reason(path, message(Moments())) == "message 1 of run run came before with other queries."


def test_the_replies_to_the_last_two_messages_are_kept(tmp_path):
    path = site(tmp_path)
    for number in range(1, 6):
        answered(path, message(Moments(), number=number, after=number - 1))
    run = path.parent / "state" / "runs" / "run"
    assert sorted(file.name for file in run.glob("*.reply")) == ["00000004.reply", "00000005.reply"]
    assert [file for file in run.rglob("*") if file.name.startswith(".")] == []  # no half-written file
    assert answered(path, message(Moments(), number=4, after=3))["kind"] == "replies"
    assert answered(path, message(Moments(), number=6, after=5))["kind"] == "replies"
    assert answered(path, message(Moments(), number=9, after=2))["kind"] == "lost"


def test_a_damaged_state_file_is_lost_state(tmp_path):
    path = site(tmp_path)
    answered(path, message(Moments()))
    (file,) = (path.parent / "state").rglob("*.reply")
    content = file.read_bytes()
    for at in (0, 40, len(content) - 1):
        file.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        fields = answered(path, message(Moments(), number=2, after=1))
        assert (fields["kind"], fields["reason"]) == ("lost", "It has no state after message 1 of this run.")
    file.write_bytes(content)
    assert answered(path, message(Moments(), number=2, after=1))["kind"] == "replies"


# --- records ---


def test_a_record_travels_once_and_is_kept_once_its_message_was_answered(tmp_path):
    path = site(tmp_path)
    query = Evaluate(OBJECTIVE, np.zeros((1, D)))
    by_hash = message(query, known={digest(OBJECTIVE)})
    assert len(by_hash) < len(message(query))
    fields = answered(path, by_hash)
    assert (fields["kind"], fields["reason"]) == ("lost", "It does not have a record that the message refers to.")
    full = answered(path, message(query))
    assert full["kind"] == "replies"
    records = path.parent / "state" / "runs" / "run" / "records"
    assert {file.name for file in records.iterdir()} == {digest(OBJECTIVE)}
    again = answered(path, message(query, number=2, after=1, known={digest(OBJECTIVE)}))
    assert to_bytes(pack(again["replies"])) == to_bytes(pack(full["replies"]))


@pytest.mark.parametrize("restarted", [True, False])
def test_records_of_a_message_that_was_refused_are_forgotten(restarted, tmp_path):
    path = site(tmp_path)
    service = service_of(path)
    query = Evaluate(OBJECTIVE, np.zeros((1, D)))
    header = Header("run", 1, 0, 0, NAMES, query_hash((Moments(),)))  # names other queries
    assert read_reply(service.reply(message_bytes(header, (query,))), key_of(path).public_key())["kind"] == "refused"
    assert not (path.parent / "state" / "runs").exists()
    service = service_of(path) if restarted else service
    reply = service.reply(message(query, known={digest(OBJECTIVE)}))
    assert read_reply(reply, key_of(path).public_key())["kind"] == "lost"


def test_a_damaged_record_is_sent_again(tmp_path):
    path, query = site(tmp_path), Evaluate(OBJECTIVE, np.zeros((1, D)))
    answered(path, message(query))
    (file,) = (path.parent / "state" / "runs" / "run" / "records").iterdir()
    other = ObjectiveSpec(cf.losses.Logistic())
    files.write_checked(file, to_bytes(pack(other)))  # a record under the name of another
    assert answered(path, message(query, number=2, after=1, known={digest(OBJECTIVE)}))["kind"] == "lost"
    file.write_bytes(b"")
    assert answered(path, message(query, number=2, after=1, known={digest(OBJECTIVE)}))["kind"] == "lost"
    assert answered(path, message(query, number=2, after=1))["kind"] == "replies"


# --- refusals ---


def test_a_message_above_the_limit_is_refused_under_its_own_number(tmp_path):
    path = site(tmp_path, "[limits]\nmax_message_bytes = 1000\n")
    query = Evaluate(OBJECTIVE, np.zeros((50, D)))
    fields = answered(path, message(query))
    assert fields["kind"] == "refused"
    assert fields["reason"] == "a message has more than the 1000 bytes that it reads (max_message_bytes)."
    assert (fields["run"], fields["number"]) == ("run", 1)  # so that the operator knows what it is about
    federation, _ = remote([path])
    federation.names = NAMES
    with pytest.raises(cf.InputError, match=r"site 'north': a message has more than the 1000 bytes"):
        federation.send({0: (query,)})


BAD_NAMES = ("../x", "..", ".", "", "a/b", "/etc", "a\x00b", "a" * 101, "run\n", "-x", "ä")


@pytest.mark.parametrize("run", BAD_NAMES)
def test_a_run_that_is_no_plain_name_is_refused(run, tmp_path):
    path = site(tmp_path)
    assert "the name of a run may have letters, digits" in reason(path, message(Moments(), run=run))
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
    ours = "compfed.federation.queries:Moments"
    for other in ("builtins:eval", "os:system", "compfed.network.site:SiteService", "subprocess:Popen"):
        body = {"tuple": [{"tuple": []}, {"tuple": [{"record": other, "fields": {}}]}]}
        data = _raw(Header("run", 1, 0, 0, NAMES, "0" * 64), body)
        assert f"a message names {other}, which is not of compfed" in reason(path, data)
    data = _with_head(ours, "compfed.federation.queries:Momentz")
    assert "compfed.federation.queries:Momentz, which is not of compfed" in reason(path, data)


def _raw(header: Header, body: Any) -> bytes:
    head = to_bytes(pack(header._asdict()))
    text = json.dumps({"head": body, "arrays": []}).encode()
    return QUERY + len(head).to_bytes(4, "little") + head + len(text).to_bytes(8, "little") + text


def test_a_record_that_is_no_query_is_refused(tmp_path):
    path = site(tmp_path)
    (reply,) = answered(path, message(OBJECTIVE))["replies"]
    assert isinstance(reply, Refusal)
    assert reply.reason == "site 'north' refuses ObjectiveSpec: ObjectiveSpec is not a query it knows."


def test_a_header_of_other_queries_is_refused(tmp_path):
    path = site(tmp_path)
    header = Header("run", 1, 0, 0, NAMES, query_hash((Moments(),)))
    assert reason(path, message_bytes(header, (Describe(),))) == (
        "message 1 does not hold the queries that its header names."
    )


def test_a_message_for_another_site_is_refused(tmp_path):
    path = site(tmp_path)
    assert reason(path, message(Moments(), place=1)) == "a message is for the site 'south'; this is 'north'."


def test_other_sites_in_the_same_run_are_refused(tmp_path):
    """The place of a site decides its random draws: it does not change within a run."""
    path = site(tmp_path)
    answered(path, message(Moments()))
    queries = (Moments(),)
    header = Header("run", 2, 1, 1, ("west", "north"), query_hash(queries))
    assert reason(path, message_bytes(header, queries)) == "the sites of run run are not those that it began with."


BROKEN = {
    "nothing": b"",
    "another protocol": message(Moments()).replace(b"query 3", b"query 2", 1),
    "a reply": b"compfed reply 3\n" + message(Moments()),
    "a header beyond the end": QUERY + (2**31).to_bytes(4, "little") + b"x" * 100,
    "an empty header": QUERY + (0).to_bytes(4, "little"),
    "half a message": message(Moments())[:-20],
    "no queries": message(Moments())[: len(QUERY) + 4],
    "number 0": message_bytes(Header("run", 0, 0, 0, NAMES, query_hash(())), ()),
    "after itself": message(Moments(), number=1, after=1),
    "a place that is not there": message(Moments(), place=2),
    "noise": np.random.default_rng(0).bytes(1000),
    "noise behind a header": message(Moments())[:300] + np.random.default_rng(0).bytes(1000),
}


@pytest.mark.parametrize("what", BROKEN)
def test_bytes_that_are_no_message_get_a_signed_refusal_and_leave_nothing(what, tmp_path):
    path = site(tmp_path)
    assert reason(path, BROKEN[what])
    assert not list((path.parent / "state").rglob("*.reply"))
    assert answered(path, message(Moments()))["kind"] == "replies"  # the service goes on


def test_a_failure_is_reported_without_its_words(tmp_path, monkeypatch):
    path = site(tmp_path)

    def failing(query, site):
        raise RuntimeError("the value of Mrs Miller is 42.42")

    monkeypatch.setattr(answers, "_moments", failing)
    fields = answered(path, message(Moments()))
    assert (fields["kind"], fields["reason"]) == ("failed", "it failed with RuntimeError; its log says where.")
    where, line = log_of(path)
    assert where["failed"] == "RuntimeError"
    assert where["at"][-1].startswith("test_site.py:")
    assert line["kind"] == "failed"
    assert "Miller" not in (path.parent / "state" / "log.jsonl").read_text()


def test_a_reply_that_the_operator_could_not_use_is_not_kept(tmp_path, monkeypatch):
    """A broken installation computes NaN: once it is mended, the same message is answered."""
    path, real = site(tmp_path), answers._moments
    monkeypatch.setattr(answers, "_moments", lambda query, site: real(query, site)._replace(mean=np.full(D, np.nan)))
    assert "it computed a reply that cannot be used: Moments: mean" in reason(path, message(Moments()))
    assert not list((path.parent / "state").rglob("*.reply"))
    monkeypatch.undo()
    assert answered(path, message(Moments()))["kind"] == "replies"


def test_a_refusal_of_one_query_does_not_affect_the_others(tmp_path):
    path = site(tmp_path, "[disclosure]\nmax_hessian_share = 0\n")
    moments, refused = answered(path, message(Moments(), Evaluate(OBJECTIVE, np.zeros((1, D)), np.arange(2))))[
        "replies"
    ]
    np.testing.assert_allclose(moments.mean, table().features[0].mean(axis=0), rtol=1e-12)
    assert isinstance(refused, Refusal)
    assert refused.reason.startswith(
        "site 'north' refuses Evaluate: 2 coordinates are more than 0 of the number of its rows"
    )
    assert log_of(path)[0]["refused"] == {"count": 1, "first": [refused.reason]}


# --- limits of time and space ---


def test_a_message_that_took_too_long_is_refused_when_it_comes_again(tmp_path, monkeypatch):
    path = site(tmp_path, "[limits]\nmax_seconds = 5\n")
    service = service_of(path)
    seen: list[bool] = []
    real = answers._moments

    def slow(query, site):
        seen.append(service.is_overdue())
        began = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: began + 6)
        seen.append(service.is_overdue())
        service.mark_overdue()
        monkeypatch.setattr(time, "monotonic", time.perf_counter)
        return real(query, site)

    monkeypatch.setattr(answers, "_moments", slow)
    service.reply(message(Moments()))
    monkeypatch.undo()
    assert seen == [False, True]
    assert not service.is_overdue()  # nothing is being answered
    assert reason(path, message(Moments())) == "message 1 takes more than the 5 s that it allows (max_seconds)."
    assert answered(path, message(Moments(), number=2))["kind"] == "replies"  # only this message
    assert answered(path, message(Moments(), run="other"))["kind"] == "replies"
    path.write_text(path.read_text().replace("max_seconds = 5", "max_seconds = 50"))
    assert answered(path, message(Moments()))["kind"] == "replies"  # the site allows more now


def test_the_reply_to_one_message_is_bounded(tmp_path):
    path = site(tmp_path, "[limits]\nmax_reply_bytes = 1000\n")
    x = np.zeros((20, D))
    replies = answered(path, message(*[Evaluate(OBJECTIVE, x)] * 50))["replies"]
    used = [reply for reply in replies if not isinstance(reply, Refusal)]
    assert len(used) == 2  # 20 values, gradients and sizes of terms: 800 bytes each
    assert all("at most 1000 bytes (max_reply_bytes)" in reply.reason for reply in replies[2:])


def test_a_log_line_does_not_grow_with_the_refusals_of_a_message(tmp_path):
    path = site(tmp_path, '[disclosure]\nqueries = ["Describe"]\n')
    answered(path, message(*[Describe()] * 500))
    (line,) = log_of(path)
    assert line["refused"]["count"] == 500
    assert len(json.dumps(line)) < 1500


def test_a_refusal_that_was_lifted_is_not_repeated(tmp_path):
    path = site(tmp_path, '[disclosure]\nqueries = ["Moments"]\n')
    (first,) = answered(path, message(Moments()))["replies"]
    assert isinstance(first, Refusal)
    path.write_text(path.read_text().replace('"Moments"', '"HeldOut"'))
    (second,) = answered(path, message(Moments()))["replies"]
    np.testing.assert_allclose(second.mean, table().features[0].mean(axis=0), rtol=1e-12)


def test_a_site_that_answers_nothing_does_not_tell_how_many_rows_it_has(tmp_path):
    """No query is refused in another way for another number of rows: a bisection would find it."""
    path = site(tmp_path, "[disclosure]\nmin_rows = 50\n")
    algorithm = cf.algorithms.FedAvg(eta=0.1, tau=2)
    reasons = set()
    for batch in (1, 5, 12, 13, 40):
        run_spec = RunSpec(0, algorithm, cf.regularisers.Zero(), OBJECTIVE, np.zeros(D), 0, batch, 12, True)
        (reply,) = answered(path, message(LocalUpdate(run_spec, 0, 0, {"x": np.zeros(D)}), run=f"run{batch}"))[
            "replies"
        ]
        reasons.add(reply.reason)
    assert reasons == {"site 'north' refuses LocalUpdate: it has fewer rows than its min_rows."}


def test_a_number_of_the_rows_is_in_no_refusal(tmp_path):
    path = site(tmp_path)
    rows = (path.parent / "rows.csv").read_text().splitlines()
    (path.parent / "rows.csv").write_text("\n".join([rows[0], "1.23e+300,1,1,1", *rows[1:]]) + "\n")
    words = reason(path, message(Moments()))
    assert "its rows cannot be used" in words
    assert "1.23" not in words
    assert "e+" not in words


def test_old_runs_are_forgotten(tmp_path):
    path = site(tmp_path)
    service = service_of(path)
    for k in range(23):
        service.reply(message(Moments(), run=f"run-{k:02d}"))
        os.utime(path.parent / "state" / "runs" / f"run-{k:02d}", (1000 + k, 1000 + k))
    kept = sorted(folder.name for folder in (path.parent / "state" / "runs").iterdir())
    assert kept == [f"run-{k:02d}" for k in range(3, 23)]


def test_the_state_of_a_run_stays_within_its_limit(tmp_path):
    path = site(tmp_path, "[limits]\nmax_state_bytes = 4000\n")
    state = path.parent / "state" / "runs"
    small = Evaluate(OBJECTIVE, np.zeros((1, D)))
    for k in range(6):
        assert answered(path, message(small, run=f"run-{k}"))["kind"] == "replies"
        os.utime(state / f"run-{k}", (1000 + k, 1000 + k))
        assert sum(file.stat().st_size for file in state.rglob("*") if file.is_file()) <= 4000 + 32 * 3  # checksums
    assert 1 <= len(list(state.iterdir())) < 6  # older runs made room
    assert (state / "run-5").exists()
    large = Evaluate(OBJECTIVE, np.zeros((200, D)))
    assert reason(path, message(large, run="large")) == (
        "this run needs more than the 4000 bytes of state that the site allows (max_state_bytes)."
    )
    assert not list(state.glob("large/*.reply"))


def test_a_disk_that_is_full_is_a_failure_that_passes(tmp_path, monkeypatch):
    path = site(tmp_path)
    real = files.write_checked

    def full(target, data):
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(files, "write_checked", full)
    fields = answered(path, message(Moments()))
    assert fields["kind"] == "failed"
    assert fields["reason"].endswith("(No space left on device).")
    assert str(tmp_path) not in fields["reason"]
    monkeypatch.setattr(files, "write_checked", real)
    assert answered(path, message(Moments()))["kind"] == "replies"


def test_a_reply_that_cannot_be_logged_does_not_leave(tmp_path, monkeypatch):
    path = site(tmp_path)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "append_line", full)
    assert answered(path, message(Moments()))["kind"] == "failed"


def test_a_long_log_is_renamed(tmp_path, monkeypatch):
    path = site(tmp_path)
    monkeypatch.setattr(service_module, "LONGEST_LOG", 500)
    for number in range(1, 6):
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
    path = site(tmp_path)
    rows = path.parent / "rows.csv"
    head, *lines = rows.read_text().splitlines()
    rows.write_text("\n".join([f"patient,{head}", *(f"Erika Mustermann,{line}" for line in lines)]) + "\n")
    first = [float(value) for value in lines[0].split(",")]
    secrets = [b"Mustermann", *(repr(value).encode() for value in first), *(np.float64(v).tobytes() for v in first)]
    replies = [service_of(path).reply(message(Moments(), Describe(detail=True)))]  # refused: words in a column
    assert b"words in column 'patient'" in replies[0]
    path.write_text('drop = ["patient"]\n' + path.read_text())
    queries = (
        Describe(),
        Moments(),
        Evaluate(OBJECTIVE, np.ones((2, D))),
        Evaluate(OBJECTIVE, np.ones((1, D)), np.arange(3)),
    )
    replies.append(service_of(path).reply(message(*queries, run="dropped")))
    for data in (*replies, *(file.read_bytes() for file in files_under(path.parent / "state"))):
        assert not [secret for secret in secrets if secret in data]
    assert any(secret in rows.read_bytes() for secret in secrets)  # they are where they belong


def test_the_hash_of_a_table_says_nothing_without_the_key(tmp_path):
    """Two sites with the same rows have other hashes: nobody can confirm a guess of a table."""
    one, other = site(tmp_path / "one"), site(tmp_path / "other")
    assert (one.parent / "rows.csv").read_text() == (other.parent / "rows.csv").read_text()
    hashes = [answered(path, message(Moments()))["table"] for path in (one, other, one)]
    assert hashes[0] != hashes[1]
    assert hashes[0] == hashes[2]
    (one.parent / "node.key").unlink()
    keys.write_identity(one.parent / "node.key", keys.new_identity())
    assert answered(one, message(Moments(), run="new"))["table"] not in hashes


def test_files_are_for_their_owner_only_whatever_the_umask(tmp_path):
    before = os.umask(0o022)
    try:
        path = site(tmp_path)
        for number in (1, 2):
            answered(path, message(Evaluate(OBJECTIVE, np.zeros((1, D))), number=number, after=number - 1))
        service = service_of(path)
        service.began = time.monotonic(), read_header(message(Moments()))[0]
        service.mark_overdue()
    finally:
        os.umask(before)
    state = path.parent / "state"
    found = {file: stat.S_IMODE(file.stat().st_mode) for file in (state, *state.rglob("*"))}
    assert {mode for file, mode in found.items() if file.is_file()} == {0o600}
    assert {mode for file, mode in found.items() if file.is_dir()} == {0o700}
    assert {"run.json", "log.jsonl", "overdue.json", "00000002.reply", digest(OBJECTIVE)} <= {
        file.name for file in found
    }
    assert stat.S_IMODE((path.parent / "node.key").stat().st_mode) == 0o600


def test_every_reply_is_logged_with_its_hash_before_it_leaves(tmp_path):
    import hashlib

    path = site(tmp_path)
    data = message(Moments())
    reply = service_of(path).reply(data)
    (line,) = log_of(path)
    assert line["sha256_out"] == hashlib.sha256(reply).hexdigest()
    assert (line["bytes_in"], line["bytes_out"]) == (len(data), len(reply))
    assert (line["run"], line["number"]) == ("run", 1)


def test_words_of_the_operator_reach_the_log_without_control_characters(tmp_path):
    path = site(tmp_path)
    service_of(path).reply(message(Moments(), run="\x1b]52;c;ZXZpbA==\x07"))
    service_of(path).reply(message_bytes(Header("r", 1, 0, 0, ("\x1b[2J", "b"), query_hash(())), ()))
    for line in log_of(path):
        assert not any(ord(c) < 32 for value in line.values() for c in str(value))


# --- rows ---


def test_rows_are_read_again_when_their_file_changes(tmp_path):
    path = site(tmp_path)
    service = service_of(path)
    assert service.open() is service.open()
    rows = path.parent / "rows.csv"
    rows.write_text("\n".join(rows.read_text().splitlines()[:-1]) + "\n")
    fields = read_reply(service.reply(message(Describe())), key_of(path).public_key())
    assert fields["replies"][0].rows == len(table().labels[0]) - 1


def test_a_missing_table_is_named_and_the_service_recovers(tmp_path):
    path = site(tmp_path)
    rows = path.parent / "rows.csv"
    rows.rename(rows.with_name("hidden.csv"))
    service = service_of(path)
    first = read_reply(service.reply(message(Describe())), key_of(path).public_key())
    assert (first["kind"], "its rows cannot be used" in first["reason"]) == ("refused", True)
    assert str(tmp_path) not in first["reason"]
    rows.with_name("hidden.csv").rename(rows)
    assert read_reply(service.reply(message(Describe())), key_of(path).public_key())["kind"] == "replies"


def test_messages_of_two_runs_do_not_mix(tmp_path):
    """The same number in two runs has two files; either run goes on after the other."""
    path = site(tmp_path)
    for number, run in itertools.product((1, 2, 3), ("a", "b")):
        query = Moments() if run == "a" else Describe()
        fields = answered(path, message(query, run=run, number=number, after=number - 1))
        assert fields["kind"] == "replies"
        assert type(fields["replies"][0]) is type(query).Reply
