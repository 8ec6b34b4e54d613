"""The ledger of a table: what it remembers, what it refuses, and how it survives damage."""

from __future__ import annotations

import csv
import hashlib
import hmac
import io
from collections import Counter

import numpy as np
import pytest

import compfed as cf
from compfed.federation import DisclosurePolicy
from compfed.federation.numbers import About, Table
from compfed.federation.site.ledger import Ledger, Roster

POLICY = DisclosurePolicy()
ALL = Roster("f1", ("A", "B", "C", "D"))
FEWER = Roster("f2", ("A", "B", "C"))


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path, "patients", b"key")


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 3))


def test_a_row_hash_is_the_truncated_hmac_of_its_bytes(ledger):
    X = rows(4)
    expected = sorted(
        int.from_bytes(hmac.new(b"key", b"compfed/row/1" + x.tobytes() + b"ill", hashlib.sha256).digest()[:8], "big")
        for x in X
    )
    assert ledger.row_hashes(X, np.array(["ill"] * 4)).tolist() == expected
    assert (ledger.row_hashes(X[::-1], np.array(["ill"] * 4)) == expected).all()


@pytest.mark.parametrize(("changed", "refused"), [(0, False), (1, True), (4, True), (5, False), (9, False)])
def test_rows_differ_by_none_or_by_enough(ledger, changed, refused):
    """A changed row is two rows of the symmetric difference: the old one and the new one."""
    X, y = rows(40), np.zeros(40)
    ledger.open_run("one", ALL, ledger.row_hashes(X, y), POLICY)
    X[:changed] += 1
    again = Ledger(ledger.path.parent, "patients", b"key")
    hashes = again.row_hashes(X, y)
    if refused:
        with pytest.raises(cf.InputError, match=r"differ from those of an earlier run by fewer than its min_rows"):
            again.open_run("two", ALL, hashes, POLICY)
        assert list(again.runs) == ["one"]
    else:
        again.open_run("two", ALL, hashes, POLICY)
        assert list(again.runs) == ["one", "two"]


def test_a_row_left_out_or_repeated_counts_as_many_times_as_it_is_there(ledger):
    X, y = rows(40), np.zeros(40)
    ledger.open_run("one", ALL, ledger.row_hashes(X, y), POLICY)
    twice = np.concatenate([X, X[:1]])
    for table in (X[:-1], twice, np.concatenate([X, np.repeat(X[:1], 9, axis=0)])):
        with pytest.raises(cf.InputError, match="min_rows"):
            ledger.open_run("two", ALL, ledger.row_hashes(table, np.zeros(len(table))), POLICY)
    more = np.concatenate([X, rows(10, seed=1)])
    ledger.open_run("two", ALL, ledger.row_hashes(more, np.zeros(50)), POLICY)
    # and compared with every earlier version, not with the last one only
    with pytest.raises(cf.InputError, match="min_rows"):
        ledger.open_run("three", ALL, ledger.row_hashes(X[1:], np.zeros(39)), POLICY)


def test_another_roster_is_refused_until_it_is_allowed(ledger):
    hashes = ledger.row_hashes(rows(20), np.zeros(20))
    ledger.open_run("one", ALL, hashes, POLICY)
    with pytest.raises(cf.InputError, match=r"By subtraction the totals of D become known\. Allow it with"):
        ledger.open_run("two", FEWER, hashes, POLICY)
    assert ledger.allow(FEWER) == "By subtraction the totals of D become known."
    again = Ledger(ledger.path.parent, "patients", b"key")
    again.open_run("two", FEWER, hashes, POLICY)
    again.open_run("three", ALL, hashes, POLICY)
    with pytest.raises(cf.InputError, match="a site has another key than before"):
        again.open_run("four", Roster("f3", ALL.names), hashes, POLICY)


TABLE = Table(40, 5, 4)
WHOLE, FOLD = About(0b1111, 5), About(0b0001, 5)


def test_the_numbers_of_a_run_and_their_share(ledger):
    hashes = ledger.row_hashes(rows(20), np.zeros(20))
    ledger.open_run("one", ALL, hashes, POLICY)
    ledger.begin("one", "lasso", "rule", 60, TABLE)
    ledger.record("one", 2, "h2", {"Evaluate": 2, "Moments": 1}, {WHOLE: 30}, 1000)
    ledger.record("one", 3, "h3", {"Evaluate": 1}, {WHOLE: 10, FOLD: 5}, 500)
    ledger.record("one", 3, "h3", {"Evaluate": 1}, {WHOLE: 10, FOLD: 5}, 500)  # made again after a crash
    again = Ledger(ledger.path.parent, "patients", b"key")
    again.open_run("one", ALL, hashes, POLICY)  # the same run goes on
    assert (again.runs["one"].sentence, again.runs["one"].by, again.runs["one"].left) == ("lasso", "rule", 15)
    again.open_run("two", ALL, hashes, POLICY)
    again.begin("two", "", "person", 100, TABLE)
    again.record("two", 2, "h3", {"HeldOut": 1}, {FOLD: 8}, 8)
    assert again.runs["one"].queries == Counter(Evaluate=3, Moments=1)
    assert again.numbers == 53
    # about the fold, a quarter of the table: 13 of 50, and about the table 53 of 200
    assert again.share() == pytest.approx(max(13 / 50, 53 / 200))
    assert again.share((TABLE, {FOLD: 10})) == pytest.approx(23 / 50)
    (head, one, two) = csv.reader(io.StringIO(again.to_csv()))
    assert head == ["run", "began", "sites", "rows", "queries", "numbers", "bytes out", "share so far"]
    assert [one[0], *one[2:]] == ["one", "A, B, C, D", "20", "Evaluate 3, Moments 1", "45", "1500", "22.5%"]
    assert two[4:] == ["HeldOut 1", "8", "8", "26.5%"]
    with pytest.raises(cf.InputError, match="run 'three' is not in the ledger"):
        again.record("three", 2, "h", {}, {}, 0)


def test_damage_names_the_line_and_a_torn_last_line_is_dropped(ledger):
    hashes = ledger.row_hashes(rows(20), np.zeros(20))
    ledger.open_run("one", ALL, hashes, POLICY)
    for number, numbers in ((2, 7), (3, 8)):
        ledger.record("one", number, "h", {"Evaluate": 1}, {WHOLE: numbers}, 10)
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole[:-20])
    torn = Ledger(ledger.path.parent, "patients", b"key")
    assert torn.numbers == 7
    torn.record("one", 4, "h", {"Evaluate": 1}, {WHOLE: 9}, 10)
    assert Ledger(ledger.path.parent, "patients", b"key").numbers == 16
    ledger.path.write_bytes(whole.replace(b'"f/5": 7', b'"f/5": 1'))
    with pytest.raises(cf.InputError, match=r"patients\.ledger, line 2 is damaged\. Restore"):
        Ledger(ledger.path.parent, "patients", b"key")
    ledger.path.write_bytes(whole)
    (saved,) = ledger.path.parent.glob("*.rows")
    saved.unlink()
    with pytest.raises(cf.InputError, match=r"\.rows is missing or damaged"):
        Ledger(ledger.path.parent, "patients", b"key").open_run("two", ALL, hashes, POLICY)


@pytest.mark.parametrize("name", ["", "../x", ".hidden"])
def test_a_name_that_is_a_path_is_refused(tmp_path, name):
    with pytest.raises(cf.InputError, match="it names files"):
        Ledger(tmp_path, name, b"key")
