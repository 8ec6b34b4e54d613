"""Attacks by `Tabulate`: each works on a site without a policy, and says nothing about a row under the default one."""

from __future__ import annotations

import numpy as np
from attacks import by_tables
from attacks.target import POLICY, Target

import compfed as cf
from compfed.data.raw_table import RawColumn, RawTable, words_array
from compfed.federation import DisclosurePolicy, Site, Tabulate
from compfed.federation.site.rows import Rows

ROWS = 143
RNG = np.random.default_rng(0)
AGE = RNG.normal(60, 12, ROWS)
NAMES = words_array(["Meier", "Huber", *RNG.choice(["a", "b", "c"], ROWS - 2).tolist()])


def target(policy: DisclosurePolicy | None, ages: np.ndarray = AGE, names: np.ndarray = NAMES) -> Target:
    raw = RawTable("north", {"age": RawColumn(ages), "name": RawColumn(names)}, np.arange(len(ages)))
    proposal = cf.Schema({"age": cf.NumericColumn(), "name": cf.NumericColumn()})
    return Target(Site(Rows.to_agree(raw, proposal, "has no schema.", name="north", index=0), policy=policy))


def test_bisection_by_thresholds():
    low, high = by_tables.largest_value(target(None), "age", ROWS)
    assert low <= AGE.max() <= high
    assert high - low < 1e-6
    low, high = by_tables.largest_value(target(POLICY), "age", ROWS)
    assert (low < AGE).sum() >= POLICY.min_rows  # what is left are the last rows together
    assert high - AGE.max() > AGE.std()


def test_counts_move_at_a_coarse_grid_only():
    """However many thresholds: bounds move by min_rows, at multiples of a power of two that is an eighth of the spread."""
    exact = by_tables.steps_of_counts(target(None), "age", 20, 100)
    assert len({jump for _, jump in exact}) > 0
    assert min(jump for _, jump in exact) == 1
    rounded = by_tables.steps_of_counts(target(POLICY), "age", 20, 100)
    assert min(jump for _, jump in rounded if jump > 0) >= POLICY.min_rows
    grid = 2.0 ** np.ceil(np.log2(AGE.std() / 8))
    step = 80 / 40 / (by_tables.POINTS - 1)
    assert all(min(t % grid, grid - t % grid) <= 1.01 * step for t, _ in rounded)


def test_one_row_more_below_a_threshold_shows_nowhere():
    """The largest value moved within its bucket: not one bound is another, at any threshold."""
    moved = AGE.copy()
    moved[AGE.argmax()] = AGE.max() - 1e-3
    for points in np.linspace(20, 120, 1000).reshape(10, 100):
        (one,), (other,) = (target(POLICY, ages).ask(Tabulate(("age",), (points,))) for ages in (AGE, moved))
        np.testing.assert_array_equal(one.below, other.below)


def test_levels_by_subtraction():
    known = ("a", "b", "c")
    assert by_tables.rows_of_level(target(None), "name", known, "Meier") == 1
    assert by_tables.rows_of_level(target(None), "name", known, "Schmid") == 0
    assert by_tables.rows_of_level(target(POLICY), "name", known, "Meier") is None
    absent = words_array(["Huber", "Huber", *NAMES[2:]])
    for guess in ("Meier", "Schmid", "Huber"):  # there once, never, and twice: the same reply
        replies = [
            target(POLICY, names=names).ask(Tabulate((), (), ("name",), ((*known, guess),)))[0]
            for names in (NAMES, absent)
        ]
        np.testing.assert_array_equal(replies[0].levels, replies[1].levels)
        np.testing.assert_array_equal(replies[0].levels[-1], [0, POLICY.min_level_rows - 1])


def test_names_of_rare_levels_do_not_leave():
    site = target(POLICY)._site
    assert "Meier" not in site.enrol().schema
    free = words_array([f"person {k % 40}" for k in range(ROWS)])  # three visits each: names, not levels
    assert "person" not in target(POLICY, names=free)._site.enrol().schema
