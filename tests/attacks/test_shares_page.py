"""The page says what the results of the attacks on shares say, and the rule's line is one at which nothing was read."""

from __future__ import annotations

from attacks import by_held_out
from attacks.shares_figure import kept, markdown
from places import ROOT

from compfed.federation import DisclosurePolicy


def test_the_page_has_the_table_of_the_results():
    assert markdown(kept()) in (ROOT / "docs" / "explanation" / "attacks.md").read_text(encoding="utf-8")


def test_where_a_rule_may_approve_no_row_was_read_to_three_digits():
    below = [each for each in kept() if each["share"] <= DisclosurePolicy().share_by_rule]
    assert len(below) > 40
    assert max(each["three_digits"] for each in below) == 0
    assert sum(each["tenth"] for each in below) == 1  # the page names it
    assert all(each["share_used"] <= each["share"] + 1e-9 for each in kept())


def test_losses_held_out_of_models_of_two_columns_read_no_row_to_three_digits():
    """Exact ones did, with fewer numbers than a rule may approve."""
    without, now = by_held_out.read([0, 1], 0.29, None, starts=4), by_held_out.read([0, 1], 0.29, starts=4)
    assert without.three_digits >= 20
    assert now.three_digits == 0
    assert now.share <= 0.5
