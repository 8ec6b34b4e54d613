"""Numbers released: how many numbers about which rows have left a site, and which share of the numbers in those rows they are.

A number is a word of a reply, whatever it says: an entry of a gradient or a Hessian (of a symmetric one its distinct entries), a
moment, a loss, a cell of a table, a flag. The frame of a reply is not counted. So nothing can leave without being counted.

A number is about a set of rows: the rows of its query. Let N(S) be the numbers about S. A sum over A less the same sum over
B, B a part of A, is one over the rows of A outside of B. So about a set T there are

    sum of N(S) over the sets S in T  +  sum of min(N(A), N(B)) over the pairs with A outside of B in T, A not in T,

and their share is that over rows of T x columns. `largest_share` is the largest of these, over the table and all sets and
differences that were asked for. Combinations of three sums or more are not looked for: they are counted about the table, which
counts every number.

The rows are those of the sites whose sum is seen. Where sums are masked these are all sites but the largest other one, so that
one site that works together with the operator is allowed for; otherwise the rows of the site itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from compfed.federation.enrolment import Agreement, Enrolment
from compfed.federation.query import Weighted

if TYPE_CHECKING:
    from compfed.federation.site.rows import Rows


class About(NamedTuple):
    """What a number is about: rows, as bits of the groups that the site dealt them into, and how many columns."""

    rows: int
    columns: int

    @property
    def text(self) -> str:
        return f"{self.rows:x}/{self.columns}"

    @classmethod
    def parse(cls, text: str) -> About:
        rows, columns = text.split("/")
        return cls(int(rows, 16), int(columns))


Released = Mapping[About, int]


class Table(NamedTuple):
    """What numbers are counted against: the rows whose sums are seen, the columns, and the groups that rows are dealt into."""

    rows: int
    columns: int
    groups: int

    @property
    def cells(self) -> int:
        return self.rows * self.columns

    @property
    def whole(self) -> int:
        """All groups, as bits."""
        return (1 << self.groups) - 1


# --- at a site ---


def rows_seen(sizes: Sequence[int], place: int, masked: bool) -> int:
    """The rows whose sum is seen: under masks those of all sites but the largest other one."""
    if not masked:
        return sizes[place]
    return sum(sizes) - max((rows for i, rows in enumerate(sizes) if i != place), default=0)


def table_of(rows: Rows, agreement: Agreement | None = None, masked: bool = False) -> Table:
    """What the numbers of a site are counted against."""
    # without masks its own rows, whatever the enrolments say that came with a message
    together = agreement if masked else None
    sizes = [rows.count] if together is None else [e.rows for e in together.enrolments]
    place = 0 if together is None else rows.index
    columns = rows.width or len(rows.table.columns)  # a table that is not encoded yet
    return Table(rows_seen(sizes, place, masked), max(columns, 1), _groups(rows))


def released(asked: Iterable[Weighted], rows: Rows, agreement: Agreement) -> Counter[About]:
    """The numbers that leave with the replies to these queries, by what they are about."""
    found = Counter[About]()
    for weighted in asked:
        found[_about(weighted, rows)] += weighted.layout(agreement).words
    return found


def _groups(rows: Rows) -> int:
    return 1 if rows.buckets_of_rows is None else rows.buckets


def _about(weighted: Weighted, rows: Rows) -> About:
    subsets, columns = weighted.query.told_of
    groups, bits = rows.buckets_of_rows, 0
    if groups is not None and None not in subsets:
        for subset in subsets:
            for group in np.unique(groups[rows.weights_of(subset) > 0]).tolist():
                bits |= 1 << group
    # words about no row of this site are counted about all of them
    return About(bits or (1 << _groups(rows)) - 1, columns or table_of(rows).columns)


# --- shares ---


def largest_share(runs: Iterable[tuple[Table, Released]]) -> float:
    """The largest share of the numbers in a set of rows that has been released about it, over these runs.

    Runs over tables that are dealt in another way are added about the table alone.
    """
    by_dealing: dict[int, defaultdict[int, float]] = {}
    for table, numbers in runs:
        shares = by_dealing.setdefault(table.groups, defaultdict(float))
        for about, count in numbers.items():
            shares[about.rows] += count / (table.rows * about.columns)
    found, total = 0.0, sum(sum(shares.values()) for shares in by_dealing.values())
    for groups, shares in by_dealing.items():
        sets, whole = np.array(list(shares), np.int64), (1 << groups) - 1
        each = np.array(list(shares.values()))
        pairs = _within(sets, sets).T & (sets[:, None] != sets)  # a set, and one within
        smaller = np.where(pairs, np.minimum.outer(each, each), 0.0)
        apart, at = np.unique(sets[:, None] & ~sets, return_inverse=True)
        of_difference = np.bincount(at.ravel(), smaller.ravel(), len(apart))
        some = apart[np.bincount(at.ravel(), pairs.ravel(), len(apart)) > 0]
        asked = np.setdiff1d(np.concatenate([sets, whole & ~sets, some]), [0, whole])
        if not asked.size:
            continue
        # sums over sets, and over differences but for those of two sets within
        known = _within(sets, asked).T @ (each - smaller.sum(axis=1)) + _within(apart, asked).T @ of_difference
        found = max(found, float((known * groups / np.bitwise_count(asked)).max()))
    return max(found, total)


def _within(inner: np.ndarray, outer: np.ndarray) -> np.ndarray:
    """Whether each set is part of each other one."""
    return (inner[:, None] & ~outer) == 0


# --- before a run, at the operator ---


NEEDS_A_PERSON = "a person at a site has to approve this"


class Left(NamedTuple):
    """The table of the site that allows least, what has left of it, and how many numbers a rule may still approve, or a person."""

    table: Table
    before: float
    by_rule: float
    by_person: float

    @classmethod
    def of(cls, enrolments: Sequence[Enrolment], spent: float = 0.0) -> Left:
        """What is left before a run, and after `spent` numbers of it."""
        sizes, masked = [e.rows for e in enrolments], enrolments[0].secure_sum
        found = list[Left]()
        for place, e in enumerate(enrolments):
            columns = max(e.width or len(e.table_columns), 1)
            table = Table(rows_seen(sizes, place, masked), columns, 1)
            before = e.share_used + spent / table.cells
            # a little less: sites add shares in another order
            left = [max(most - before, 0.0) * table.cells * (1 - 1e-9) for most in (e.share_by_rule, e.max_share)]
            found.append(cls(table, before, *(n if np.isinf(n) else float(np.floor(n)) for n in left)))
        return min(found, key=lambda left: (left.by_rule, left.by_person, left.table.cells))


def left_text(numbers: int, enrolments: Sequence[Enrolment], spent: float = 0.0) -> str:
    """What a run releases at most, for the operator."""
    left = Left.of(enrolments, spent)
    beyond = "" if numbers <= left.by_rule else f"; {NEEDS_A_PERSON}"
    return share_text(numbers, left.table, left.before, enrolments[0].secure_sum) + beyond


# --- in words ---


def percent(share: float) -> str:
    """A limit on a share."""
    return "any share" if np.isinf(share) else f"{share:.0%}"


def share_text(numbers: int, table: Table, before: float, masked: bool, verb: str = "at most ") -> str:
    """Numbers, what they are counted against, and what left before: for the site, the operator and a report."""
    whose = " (all sites but the largest)" if masked else ""
    share = f"{numbers / max(table.cells, 1):.0%}"
    return (
        f"{verb}{numbers:,} numbers about {table.rows:,} x {table.columns:,} = {table.cells:,}{whose}: {share}; "
        f"{before:.0%} left before"
    )
