"""The measure of the attacks, on candidates whose worth is known."""

from __future__ import annotations

import numpy as np
import pytest
from attacks.measure import Totals, recovered

import compfed as cf

TABLE = cf.data.bundled.breast_cancer()
ROWS = TABLE.X[TABLE.sites == 0]
RNG = np.random.default_rng(7)
PERFECT = RNG.permutation(ROWS)


@pytest.mark.parametrize("n", [143, 40])
def test_perfect_candidates_recover_all_rows_and_noise_of_a_thousandth_too(n):
    rows = ROWS[:n]
    candidates = RNG.permutation(rows)
    assert recovered(candidates, rows) == n
    assert recovered(candidates + 1e-3 * np.ptp(rows, axis=0) * RNG.uniform(-1, 1, rows.shape), rows) == n
    assert recovered(candidates[:7], rows) == 7


def test_a_candidate_counts_once_and_so_does_a_row():
    assert recovered(np.repeat(ROWS[:1], 143, axis=0), ROWS) == 1
    assert recovered(np.vstack([ROWS[:5], ROWS[:5]]), ROWS) == 5


def test_a_few_columns_suffice_if_luck_does_not_know_them_and_two_never_do():
    for columns, least, most in ((6, 143, 143), (5, 100, 143), (2, 0, 0)):
        some = np.full_like(ROWS, np.nan)
        some[:, 10 : 10 + columns] = PERFECT[:, 10 : 10 + columns]
        assert least <= recovered(some, ROWS) <= most


def test_what_follows_from_the_totals_recovers_nothing():
    totals = Totals.of(ROWS)
    draws = [recovered(totals.draw(np.random.default_rng(100 + s), 143), ROWS) for s in range(30)]
    assert sum(count > 0 for count in draws) <= 2  # one in a hundred tables at each of three tolerances
    assert recovered(np.repeat(totals.mean[None], 143, axis=0), ROWS) == 0
    shuffled = np.column_stack([RNG.permutation(a) for a in ROWS.T])
    assert recovered(shuffled, ROWS) == 0  # every column is known, and no row
    buckets = np.array([PERFECT[i : i + 10].mean(axis=0) for i in range(0, 140, 10)])
    assert recovered(buckets, ROWS) == 0


def test_one_row_is_measured_by_the_spread_of_a_larger_table():
    assert recovered(ROWS[:1], ROWS[:1], Totals.of(TABLE.X)) == 1
    assert recovered(ROWS[1:2], ROWS[:1], Totals.of(TABLE.X)) == 0


def test_more_candidates_than_rows_are_refused():
    with pytest.raises(ValueError, match="at most one for each row"):
        recovered(ROWS, ROWS[:100])
