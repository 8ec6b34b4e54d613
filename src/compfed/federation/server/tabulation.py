"""Table 1 at the server: the summary of every column, from sums over the sites. A server program (`program.py`).

Mean and standard deviation bound every quantile (`_order_bounds`). Counts of the values below thresholds in there, and again in
the part that is left, close in on it. Where counts are bounds, under a policy, they stop at an interval that holds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from compfed._utils.arrays import add_pairs, divide_pairs, multiply_pairs, two_product
from compfed.federation.enrolment import EMPTY_COLUMN, RARE_LEVELS, Enrolment
from compfed.federation.queries import Tabulate, TabulateSum
from compfed.federation.server.program import Program, Request
from compfed.schema import CategoricalColumn, level_text, sorted_levels

REFINEMENTS = 4  # messages with thresholds
THRESHOLDS = 96  # of a column in one message
FEW_REFINEMENTS, FEW_THRESHOLDS = 2, 12  # the same where sites count what leaves


@dataclass(frozen=True)
class NumericSummary:
    """A column of numbers over all rows, or those of one site.

    Attributes
    ----------
    missing : tuple of int
        Lower and upper bound of the number of missing values; equal without a policy.
    values : int
        The number of values; under a policy the number of rows less the lower bound of `missing`.
    mean, sd : float
        NaN where a site withholds them. The standard deviation has n - 1 in its denominator.
    quantiles : mapping of float to (float, float)
        An interval that holds each quantile.
    """

    missing: tuple[int, int]
    values: int
    mean: float
    sd: float
    quantiles: Mapping[float, tuple[float, float]]


@dataclass(frozen=True)
class CategoricalSummary:
    """A column of words over all rows, or those of one site: bounds of the number of rows of every level."""

    missing: tuple[int, int]
    levels: Mapping[str, tuple[int, int]]
    others: tuple[int, int]  # rows with a value that is none of these levels


Interval: TypeAlias = tuple[float, float]
ColumnSummary: TypeAlias = NumericSummary | CategoricalSummary


@dataclass(frozen=True)
class TableSummary:
    """Every column over all rows, or those of one site."""

    rows: int
    columns: Mapping[str, ColumnSummary]


@dataclass(frozen=True)
class TableLayout:
    """Which columns a table has: those of numbers, and the levels of the others."""

    numeric: tuple[str, ...]
    levels: Mapping[str, tuple[str, ...]]
    order: tuple[str, ...]

    def query(self, thresholds: Mapping[str, np.ndarray] | None = None, levels: bool = True) -> Tabulate:
        given = tuple((thresholds or {}).get(name, np.empty(0)) for name in self.numeric)
        words = (tuple(self.levels), tuple(self.levels.values())) if levels else ((), ())
        return Tabulate(self.numeric, given, *words)


def layout_of(enrolments: Sequence[Enrolment]) -> tuple[TableLayout, list[str]]:
    """The columns that all sites have, of one kind, with the union of their levels; and notes about those left out."""
    first = enrolments[0].table_columns
    numeric, levels, notes = dict[str, None](), dict[str, tuple[str, ...]](), list[str]()
    shared = dict.fromkeys(name for name in first if all(name in e.bits_by_column for e in enrolments))
    everything = dict.fromkeys(name for e in enrolments for name in e.table_columns)
    if left := [name for name in everything if name not in shared]:
        notes.append(f"left out, as a site has no such column: {', '.join(left)}")
    for name in shared:
        kinds = [levels_of(e, name) for e in enrolments]
        kinds = [kind for kind in kinds if kind != (EMPTY_COLUMN,)] or [()]
        if all(kind is None for kind in kinds):
            if all(e.label_kind not in "UO" or e.schema or name in e.table_schema.columns for e in enrolments):
                numeric[name] = None
        elif any(kind is None for kind in kinds) and name not in label_columns(enrolments[0]):
            notes.append(f"left out, as it holds numbers at one site and words at another: {name}")
        else:
            found = {level for kind in kinds for level in kind or ()} - {RARE_LEVELS}
            levels[name] = tuple(sorted_levels(found))
    flagged = set[str]().union(*(e.rare_columns for e in enrolments))
    rare = [name for name in levels if name in flagged]
    unnamed = "a site does not name all levels, as too few rows have one; those that no site names are not listed"
    notes += [f"{unnamed}: {', '.join(rare)}"] if rare else []
    order = tuple(name for name in shared if name in numeric or name in levels)
    return TableLayout(tuple(numeric), levels, order), notes


def label_columns(enrolment: Enrolment) -> tuple[str, ...]:
    """The columns of labels."""
    label = enrolment.table_schema.label
    return () if label is None else (label.column,) if isinstance(label.column, str) else label.column


def levels_of(enrolment: Enrolment, name: str) -> tuple[str, ...] | None:
    """The levels that a site names of a column, or the classes of its labels; None for a column of numbers."""
    if name in label_columns(enrolment):
        classes = enrolment.found_classes
        return None if classes is None else tuple(level_text(value) for value in classes.tolist())
    column = enrolment.table_schema.columns[name]
    return column.levels if isinstance(column, CategoricalColumn) else None


# --- the program ---


def summarise(layout: TableLayout, quantiles: Sequence[float], few: bool = False) -> Program[TableSummary]:
    """The summary of all columns: one message, and `REFINEMENTS` more for the quantiles; with `few` thresholds, two."""
    ((found,),) = yield [Request((layout.query(),))]
    summaries = first_summaries(layout, found)
    intervals = yield from _quantile_intervals(layout, summaries, quantiles, few)
    for name, found_here in intervals.items():
        summaries[name] = replace(summaries[name], quantiles=found_here)
    return TableSummary(found.rows, {name: summaries[name] for name in layout.order})


def first_summaries(layout: TableLayout, found: TabulateSum) -> dict[str, ColumnSummary]:
    """Everything but the quantiles, from the first message."""
    mean, variance = moments_of(found)
    summaries, at = dict[str, ColumnSummary](), 0
    for j, name in enumerate(layout.numeric):
        n = float(found.values[j])
        sd = np.sqrt(variance[j] * n / (n - 1)) if n > 1 else np.nan
        summaries[name] = NumericSummary(_bounds(found.missing[j]), round(n), float(mean[j]), float(sd), {})
    for j, (name, levels) in enumerate(layout.levels.items(), len(layout.numeric)):
        counts = {level: _bounds(found.levels[at + k]) for k, level in enumerate(levels)}
        at += len(levels)
        missing, named = _bounds(found.missing[j]), [sum(pair[k] for pair in counts.values()) for k in (0, 1)]
        others = tuple(max(found.rows - missing[1 - k] - named[1 - k], 0) for k in (0, 1))
        summaries[name] = CategoricalSummary(missing, counts, (others[0], others[1]))
    return summaries


def moments_of(found: TabulateSum) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance (with n in the denominator) of every column of numbers, in double-double arithmetic."""
    n = np.where(found.values > 0, found.values, np.nan), np.zeros(found.values.shape)
    mean, square = divide_pairs(found.mean, n), divide_pairs(found.square, n)
    centre = mean[0]
    cross = multiply_pairs((-2 * centre, np.zeros(centre.shape)), mean)
    variance = add_pairs(add_pairs(square, cross), two_product(centre, centre))[0]
    varies = variance > (10 * np.finfo(float).eps * np.abs(centre)) ** 2
    return centre, np.where(varies | np.isnan(variance), variance, 0.0)


def _bounds(pair: np.ndarray) -> tuple[int, int]:
    return round(float(pair[0])), round(float(pair[1]))


@dataclass(frozen=True)
class _Quantile:
    """The q-quantile of n values: between the values number `first` and `last` of the sorted column, counted from 0.

    Where n is known it is (1 - share) value_first + share value_last, as in NumPy and pandas.
    """

    first: int
    last: int
    share: float | None

    @classmethod
    def of(cls, column: NumericSummary, q: float) -> _Quantile:
        least, most = column.values - (column.missing[1] - column.missing[0]), column.values
        at = (most - 1) * q
        if least == most:
            return cls(int(np.floor(at)), int(np.ceil(at)), at - np.floor(at))
        return cls(int(np.floor((max(least, 1) - 1) * q)), int(np.ceil(at)), None)

    def interval(self, first: Interval, last: Interval) -> Interval:
        if self.share is None or first == last:
            return first[0], last[1]
        low, high = ((1 - self.share) * a + self.share * b for a, b in zip(first, last, strict=True))
        return low, high


def _quantile_intervals(
    layout: TableLayout, summaries: Mapping[str, ColumnSummary], quantiles: Sequence[float], few: bool
) -> Program[dict[str, dict[float, Interval]]]:
    """Intervals of the quantiles of every column; NaN where a site withholds the moments."""
    wanted, brackets = dict[tuple[str, float], _Quantile](), dict[str, dict[int, Interval]]()
    for name in layout.numeric:
        column = summaries[name]
        assert isinstance(column, NumericSummary)
        if quantiles and column.values > 0 and np.isfinite(column.mean):
            found = {q: _Quantile.of(column, q) for q in quantiles}
            wanted |= {(name, q): quantile for q, quantile in found.items()}
            ranks = {rank for quantile in found.values() for rank in (quantile.first, quantile.last)}
            brackets[name] = {rank: _order_bounds(column, rank) for rank in sorted(ranks)}
    for _ in range((FEW_REFINEMENTS if few else REFINEMENTS) if brackets else 0):
        before = brackets
        brackets = yield from _refined(layout, brackets, FEW_THRESHOLDS if few else THRESHOLDS)
        widths = [(np.ptp(before[name][k]), np.ptp(b)) for name, each in brackets.items() for k, b in each.items()]
        if all(old < 1.5 * new or old == 0 for old, new in widths):
            break
    unknown = np.nan, np.nan
    return {
        name: {
            q: wanted[name, q].interval(
                *(brackets[name][rank] for rank in (wanted[name, q].first, wanted[name, q].last))
            )
            if (name, q) in wanted
            else unknown
            for q in quantiles
        }
        for name in layout.numeric
    }


def _order_bounds(column: NumericSummary, rank: int) -> Interval:
    """An interval that holds the value number `rank` of n sorted ones, from their mean and standard deviation.

    With s the standard deviation (n in its denominator), from mean - s sqrt((n - rank - 1) / (rank + 1)) to
    mean + s sqrt(rank / (n - rank)). Widened: under a policy n, and the weights of the mean, are a little off.
    """
    n, mean = column.values, column.mean
    sd = column.sd if np.isfinite(column.sd) else 0.0
    if sd == 0:
        return mean, mean
    low, high = mean - sd * np.sqrt((n - rank - 1) / (rank + 1)), mean + sd * np.sqrt(rank / (n - rank))
    slack = 0.05 * (high - low) + 0.1 * sd
    return float(low - slack), float(high + slack)


def _refined(
    layout: TableLayout, brackets: Mapping[str, Mapping[int, Interval]], count: int
) -> Program[dict[str, dict[int, Interval]]]:
    """One message with thresholds in every interval; the part of each that the counts leave."""
    thresholds = dict[str, np.ndarray]()
    for name, each in brackets.items():
        different = set(each.values())
        per = max(count // len(different), 2)
        # the ends are known
        inside = [np.linspace(*bracket, per + 2)[1:-1] for bracket in different]
        thresholds[name] = np.unique(
            np.concatenate([np.linspace(*bracket, per) for bracket in different] if count > 12 else inside)
        )
    ((found,),) = yield [Request((layout.query(thresholds, levels=False),))]
    at, closer = 0, dict[str, dict[int, Interval]]()
    for name in layout.numeric:
        t = thresholds.get(name, np.empty(0))
        below, at = found.below[at : at + len(t)], at + len(t)
        if name in brackets:
            closer[name] = {rank: _closer(bracket, rank, t, below) for rank, bracket in brackets[name].items()}
    return closer


def _closer(bracket: Interval, rank: int, t: np.ndarray, below: np.ndarray) -> Interval:
    """Value number `rank` is above t if at most `rank` values are at most t, and at most t if `rank` + 1 are."""
    above, within = t[below[:, 1] <= rank], t[below[:, 0] >= rank + 1]
    low = max(bracket[0], float(above[-1])) if len(above) else bracket[0]
    high = min(bracket[1], float(within[0])) if len(within) else bracket[1]
    return (low, high) if low <= high else bracket
