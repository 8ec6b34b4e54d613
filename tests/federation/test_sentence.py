"""The sentence of a run: its name, its words, and who decides."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace

import pytest

import compfed as cf
from compfed.federation import DisclosurePolicy
from compfed.federation.numbers import Table
from compfed.federation.sentence import RunSentence, Stated, decide

STATED = Stated("FederatedLassoCV", "n_alphas=20", 20, "loo", 1728, 40)
SENTENCE = RunSentence(STATED, "abc", ("age", "crp"), (("north", "f1"), ("east", "f2")), "0.5")


def test_the_name_of_a_run_is_the_hash_of_all_that_it_says():
    text = json.dumps(asdict(SENTENCE), sort_keys=True).encode()
    assert SENTENCE.hash == hashlib.sha256(text).hexdigest()
    others = [
        replace(SENTENCE, schema="abd"), replace(SENTENCE, columns=("age",)), replace(SENTENCE, version="0.6"),
        replace(SENTENCE, roster=(("north", "f1"), ("east", "f3"))), replace(SENTENCE, extract="2"),
        *(replace(SENTENCE, stated=replace(STATED, **{name: value})) for name, value in (
            ("kind", "FederatedLasso"), ("parameters", ""), ("alphas", 21), ("folds", "5"), ("numbers", 1729), ("messages", 41),
            ("why", "x"),
        )),
    ]  # fmt: skip
    assert len({SENTENCE.hash, *(other.hash for other in others)}) == 1 + len(others)


def test_the_words_are_ten_lines_at_most_and_have_the_share_as_the_ledger_counts_it():
    lines = SENTENCE.words(Table(360, 15, 10), 0.09, masked=True)
    assert (
        "leaves: at most 1,728 numbers about 360 x 15 = 5,400 (all sites but the largest): 32%; 9% left before" in lines
    )
    assert "FederatedLassoCV(n_alphas=20), 20 values of alpha, approximate leave-one-out" in lines
    assert not any("could compute rows" in line for line in lines)
    more = replace(SENTENCE, stated=replace(STATED, numbers=9000, why="a table to compare with"))
    lines = more.words(Table(360, 15, 10), 0.09, masked=True)
    assert len(lines) <= 10
    assert any("1.8 times as many numbers will have left as the table holds" in line for line in lines)
    assert "the operator's reason: a table to compare with" in lines
    assert any("Not prevented" in line for line in lines)


@pytest.mark.parametrize(
    ("share", "approved", "by"),
    [(0.0, False, "rule"), (0.5, False, "rule"), (0.51, False, ""), (0.51, True, "person"), (10.0, True, "person"), (10.1, True, "")],
)  # fmt: skip
def test_a_rule_decides_up_to_half_a_person_up_to_the_end_and_nobody_beyond(share, approved, by):
    found = decide(share, DisclosurePolicy(), "", lambda reason: approved)
    assert found.by == by
    assert found.limit == {"rule": 0.5, "person": 10.0, "": 0.0}[by]
    assert bool(found.why) == (by == "")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"kind": 1}', '{"kind": "a", "numbers": -1}', '{"kind": "a", "numbers": 1.5}', '{"kind": "a", "more": 1}',
     json.dumps({"kind": "a" * 2000}), "[" * 5000],
)  # fmt: skip
def test_a_statement_that_cannot_be_read_is_refused(text):
    with pytest.raises(cf.InputError, match="the statement of a run"):
        Stated.read(text)


def test_a_statement_is_read_as_it_was_written_without_control_characters():
    assert Stated.read(STATED.text) == STATED
    assert "\x1b" not in Stated.read(replace(STATED, why="a\x1b[2J").text).why
    for text in (f" {STATED.text}", STATED.text.replace(" ", "  ", 1), replace(STATED, kind="a b").text):
        with pytest.raises(cf.InputError, match="not written as it should be"):
            Stated.read(text)  # the same sentence in another text would be allowed for twice
