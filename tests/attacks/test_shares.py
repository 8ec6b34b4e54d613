"""What the attackers of `shares` know and spend: their formulas give the replies at the true rows, and no share is exceeded.

Whether they read rows takes hours; `python -m attacks.shares` says so, and its results are in README.md.
"""

from __future__ import annotations

import numpy as np
import pytest
from attacks import shares

TABLE = "narrow, 36 x 4"
HESSIANS = 2.0**-19  # where second derivatives are told: they are rounded to 20 bits
DIGITS = {"Hessians": HESSIANS, "a site that lies": HESSIANS, "honest runs": HESSIANS, "local steps": 1e-11}
LONG = ("Hessians", "a site that lies", "local steps", "honest runs")  # programs to compile


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(name, marks=pytest.mark.thorough) if name in LONG else name
        for name in shares.ATTACKS
        if name != "four columns"  # the table has no more
    ],
)
def test_the_numbers_are_those_of_the_true_rows_and_no_more_than_the_share(attack):
    table = shares._answered(TABLE, 0)
    for share in (0.25, 0.5):
        seen, said = shares.ATTACKS[attack](table, share, 0)
        assert said["share_used"] <= share
    assert said["share_used"] > 0.3  # it spends what it may, as far as whole replies allow
    assert len(seen.x) == said["models"] > 0
    # what the attacker holds was counted
    held = shares.equations(seen, 10**9, np.random.default_rng(0))[-1]
    assert held <= said["share_used"] * len(table.rows) * len(seen.columns) * (1 + 1e-12)
    assert shares._agreement(seen, table.rows[:, seen.columns], table.labels) < DIGITS.get(attack, 1e-12)
    # of other rows the same formulas give other numbers
    others = table.others[: len(table.rows), seen.columns]
    assert shares._agreement(seen, others, table.labels) > 1e-2
