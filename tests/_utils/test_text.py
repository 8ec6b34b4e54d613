"""Words from outside on a terminal: no control character gets through, whatever the length."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compfed._utils.text import is_printable, printable


def controls(text: str) -> list[str]:
    """Characters that steer a terminal, by their Unicode classes: an oracle beside the regular expression."""
    steer = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    return [
        c
        for c in text
        if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")
        or unicodedata.bidirectional(c) in steer
        or c in "\u200e\u200f"
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, caf\u00e9 \u4f60\u597d \U0001f600", "plain, caf\u00e9 \u4f60\u597d \U0001f600"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\x1b]52;c;ZXZpbA==\x07", r"\x1b]52;c;ZXZpbA==\x07"),  # OSC 52 writes the clipboard
        ("a\nb\rc\td\x00", r"a\x0ab\x0dc\x09d\x00"),
        ("\x7f\x9b31m", r"\x7f\x9b31m"),
        ("user\u202etxt.exe", r"user\u202etxt.exe"),
        ("a\u2028b\u2029c\u2066d", r"a\u2028b\u2029c\u2066d"),
        ("\ud800", r"\ud800"),
        ("", ""),
    ],
)
def test_control_characters_are_shown_as_escapes(text, shown):
    assert printable(text) == shown
    assert is_printable(text) == (text == shown)


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(), max_size=60), st.integers(10, 70))
def test_nothing_that_steers_a_terminal_is_left(text, most):
    shown = printable(text, most)
    assert not controls(shown)
    assert len(shown) <= most
    assert is_printable(text) == (not controls(text))
    if not controls(text) and len(text) <= most:
        assert shown == text


def test_long_text_is_cut_before_it_is_looked_at():
    assert printable("a" * 500) == "a" * 500
    assert printable("a" * 501) == "a" * 497 + "..."
    assert printable("\x1b" * 10**7, most=12) == r"\x1b\x1b..."
