"""Sums and counts of the table of a site as it is in its file (`Tabulate`), and the facts about it that an enrolment has.

Under a policy the reply about a column or a level never depends on what else is asked: it is the same however often, and
beside whatever, a server asks for it. So nothing is learnt from the difference of two replies.

    missing values    to multiples of `min_level_rows`
    a level           the same; a level of fewer rows looks like one that no row has. Nothing (0 to all rows) of a column of
                      numbers, or of one that looks like free text: a guessed name would be confirmed
    values <= t       to multiples of `min_rows`, at the two points of a grid around t. The step of the grid is a power of two
                      that is at least an eighth of the standard deviation of the column at the site
    mean, square      withheld (NaN) of fewer than `min_rows` values, of a column with one value in all but a few rows, and of
                      one that has over 83 % of its variance from one row
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from compfed._utils.arrays import two_product, two_sum
from compfed._utils.validation import MAX_MAGNITUDE
from compfed.data.encoding import FEW_LEVELS
from compfed.data.raw_table import RawColumn
from compfed.errors import InputError
from compfed.federation.enrolment import EMPTY_COLUMN, MAX_COUNTED, RARE_LEVELS, magnitude_bits
from compfed.federation.queries import Tabulate
from compfed.federation.site.disclosure import DOMINANT, DisclosurePolicy
from compfed.schema import CategoricalColumn, Column, Label, NumericColumn, Schema

if TYPE_CHECKING:
    from compfed.federation.site.site import Site

GRID_SHARE = 8  # the grid of thresholds has at most so many steps in a standard deviation
FREE_TEXT = 0.1  # of the values are different ones, and more than `FEW_LEVELS`: names rather than levels
MAX_NAMED_LEVELS = 100  # of a column in an enrolment; the others are rare


# --- the reply ---


def tabulated(query: Tabulate, site: Site) -> Tabulate.Reply:
    """The sums and counts of the columns that a query names."""
    used, policy = site.rows.used, site.policy
    rows = int(np.count_nonzero(used))
    missing, moments, below, levels = [], [], [np.zeros((0, 2))], [np.zeros((0, 2))]
    for name, thresholds in zip(query.numeric, query.thresholds, strict=True):
        present = _present(site, name)
        missing.append(_missing_bounds(rows - len(present), policy))
        weight = rows - int(missing[-1][0])
        moments.append((weight, *_moments(present, policy)))
        below.append(_below(present, np.asarray(thresholds, float), weight, policy))
    for name, asked in zip(query.categorical, query.levels, strict=True):
        counts = _counted(site, name)
        missing.append(_missing_bounds(rows - counts.total(), policy))
        told = policy is None or _has_levels(site, name, counts)
        bounds = [_level_bounds(counts[level], policy) if told else (0, rows) for level in asked]
        levels.append(np.reshape(bounds, (-1, 2)))
    values, mean, mean_low, square, square_low = np.reshape(moments, (-1, 5)).T.astype(float)
    bounds, counts = np.reshape(missing, (-1, 2)).astype(float), np.concatenate(levels).astype(float)
    return query.Reply(rows, bounds, values, mean, mean_low, square, square_low, np.concatenate(below), counts)


def _column(site: Site, name: str) -> RawColumn:
    column = site.rows.table.columns.get(name)
    if column is None:
        raise InputError(f"site {site.name!r} has no column {name!r}. Its enrolment names those that it has.")
    return column


def _counted(site: Site, name: str) -> Counter[str]:
    words = _column(site, name).words()[site.rows.used]
    return Counter(word for word in words if word is not None)


def _has_levels(site: Site, name: str, counts: Counter[str]) -> bool:
    """Whether the values of a column are levels or classes, of which counts are told, and not numbers or free text."""
    column, given = _column(site, name), site.rows.file.proposed
    if _free_text(counts, FREE_TEXT):
        return False
    if not column.is_numeric or isinstance(given and given.columns.get(name), CategoricalColumn):
        return True
    labels = label_names(given) if given is not None else tuple(site.rows.table.columns)[site.rows.width :]
    return name in labels and _public_classes(column, site.rows.used, 1)[0] is not None


def label_names(schema: Schema) -> tuple[str, ...]:
    """The columns of labels."""
    labels = () if schema.label is None else schema.label.column
    return (labels,) if isinstance(labels, str) else labels


def _free_text(counts: Counter[str], share: float) -> bool:
    """Whether so many values are different ones that they are names rather than levels."""
    return len(counts) > max(FEW_LEVELS, share * counts.total())


def _present(site: Site, name: str) -> np.ndarray:
    """The values of a column of numbers, sorted once for all messages."""
    if name not in site.rows.sorted_columns:
        values = _numbers(_column(site, name), name)[site.rows.used]
        found = np.sort(values[~np.isnan(values)])
        if len(found) and max(-found[0], found[-1]) > MAX_MAGNITUDE:
            raise InputError(f"column {name!r} has numbers that are infinite, or too large for a square. Mend them.")
        site.rows.sorted_columns[name] = found
    return site.rows.sorted_columns[name]


def _numbers(column: RawColumn, name: str) -> np.ndarray:
    if not column.is_numeric and column.missing.all():
        return np.full(len(column.values), np.nan)
    if not column.is_numeric:
        raise InputError(f"column {name!r} holds words, not numbers. Ask for its levels.")
    return column.values


def _moments(present: np.ndarray, policy: DisclosurePolicy | None) -> tuple[float, float, float, float]:
    """Mean and mean square of sorted values, each as a pair of doubles."""
    if _withheld(present, policy):
        return np.nan, np.nan, np.nan, np.nan
    if not len(present):
        return 0.0, 0.0, 0.0, 0.0
    mean = present[0] + (present - present[0]).mean()  # of a constant, exactly its value
    low, spread = (present - mean).mean(), ((present - mean) ** 2).mean()
    square, square_low = two_product(mean, mean)
    pair = two_sum(square, square_low + (2 * mean * low + spread))
    return float(mean), float(low), float(pair[0]), float(pair[1])


def _withheld(present: np.ndarray, policy: DisclosurePolicy | None) -> bool:
    """Whether the moments of these values would be those of a few rows."""
    if policy is None:
        return False
    if len(present) < policy.min_rows:
        return True
    off = int((present != present[len(present) // 2]).sum())
    spread = (present - present.mean()) ** 2
    dominated = off > 0 and spread.max() > DOMINANT * spread.sum()
    return 0 < off < policy.min_level_rows or (dominated and policy.min_level_rows > 1)


def _missing_bounds(count: int, policy: DisclosurePolicy | None) -> tuple[int, int]:
    """Whether a column has missing values is public, how few is not."""
    return (count, count) if policy is None or count == 0 else _level_bounds(count, policy)


def _level_bounds(count: int, policy: DisclosurePolicy | None) -> tuple[int, int]:
    step = 1 if policy is None else policy.min_level_rows
    return count // step * step, count // step * step + step - 1


def _below(present: np.ndarray, thresholds: np.ndarray, rows: int, policy: DisclosurePolicy | None) -> np.ndarray:
    """Bounds of the number of values that are at most each threshold."""
    if policy is None:
        return np.repeat(np.searchsorted(present, thresholds, side="right")[:, None], 2, axis=1).astype(float)
    if _withheld(present, policy):
        return np.tile([0.0, float(rows)], (len(thresholds), 1))
    grid = threshold_grid(float(present.std()))
    counts = [np.searchsorted(present, point(thresholds / grid) * grid, side="right") for point in (np.floor, np.ceil)]
    m, last = policy.min_rows, max(rows // policy.min_rows - 1, 0)
    # every bucket has min_rows rows, the last one more
    first, second = (np.minimum(count // m, last) for count in counts)
    return np.stack([first * m, np.where(second == last, rows, second * m + m - 1)], axis=1).astype(float)


def threshold_grid(spread: float) -> float:
    """The least power of two that is at least an eighth of the standard deviation; 1 where nothing varies."""
    return float(2.0 ** np.ceil(np.log2(spread / GRID_SHARE))) if spread > 0 else 1.0


# --- the facts of an enrolment ---


class TableFacts(NamedTuple):
    """The public facts of a table, as the enrolment of its site has them."""

    schema: str
    label_classes: np.ndarray | None
    table_bits: np.ndarray
    has_missing: np.ndarray
    has_rare: np.ndarray


def table_facts(site: Site) -> TableFacts:
    """What an enrolment says about the table as it is in its file; nothing of a site that has its encoded rows alone."""
    if site.rows.file.raw is None or site.rows.file.proposed is None:
        return TableFacts("", None, np.empty(0, np.int32), np.empty(0, bool), np.empty(0, bool))
    schema, classes, rare = public_schema(site)
    names = [*schema.columns, *label_names(schema)]
    columns = [site.rows.table.columns[name] for name in names]
    used = site.rows.used
    largest = [float(np.nanmax(np.abs(c.values[used]), initial=0.0)) if c.is_numeric else 0.0 for c in columns]
    missing = np.array([bool(c.missing[used].any()) for c in columns], bool)
    flags = np.array([name in rare for name in names], bool)
    return TableFacts(schema.to_toml(), classes, magnitude_bits(np.array(largest)), missing, flags)


def public_schema(site: Site) -> tuple[Schema, np.ndarray | None, set[str]]:
    """The schema of the site as others may see it, its classes, and the columns with levels that too few rows have.

    With a schema that the site was given this is that schema: all sites have it.
    """
    given, raw = site.rows.file.proposed, site.rows.table
    assert given is not None
    used, k = site.rows.used, 1 if site.policy is None else site.policy.min_level_rows
    if site.rows.file.agreed:
        classes = None if given.label is None or given.label.classes is None else np.unique(given.label.classes)
        return given, classes, set()
    rare, columns, classes = set[str](), dict[str, Column](), None
    for name, kind in given.columns.items():
        column = raw.columns[name]
        columns[name] = NumericColumn()
        if column.missing[used].all():
            columns[name] = CategoricalColumn((EMPTY_COLUMN,))
        elif not column.is_numeric or isinstance(kind, CategoricalColumn):
            named, more = _named_levels(column.words()[used], site.policy)
            columns[name] = CategoricalColumn(named or (RARE_LEVELS,))
            rare |= {name} if more else set()
    label = None if given.label is None else Label(given.label.column)
    if label is not None and isinstance(label.column, str):
        classes, more = _public_classes(raw.columns[label.column], used, k)
        rare |= {label.column} if more else set()
    return Schema(columns, label, given.weight, given.offset, given.stratum), classes, rare


def _named_levels(words: Iterable[str | None], policy: DisclosurePolicy | None) -> tuple[tuple[str, ...], bool]:
    """The levels that enough rows have, sorted; and whether there are others. Free text, such as names, has none."""
    counts = Counter(word for word in words if word is not None)
    least, share = (1, 0.5) if policy is None else (policy.min_level_rows, FREE_TEXT)
    if _free_text(counts, share):
        return (), True
    named = sorted(word for word, count in counts.items() if count >= least)[:MAX_NAMED_LEVELS]
    return tuple(named), len(named) < len(counts)


def _public_classes(column: RawColumn, used: np.ndarray, least: int) -> tuple[np.ndarray | None, bool]:
    """The classes that enough rows have, and whether there are others; None where labels are numbers of many values."""
    values = column.values[used & ~column.missing]
    found, counts = np.unique(values.astype(str) if not column.is_numeric else values, return_counts=True)
    if column.is_numeric and (len(found) > MAX_COUNTED or (found != np.rint(found)).any()):
        return None, False
    named = found[counts >= least][:MAX_NAMED_LEVELS]
    return named, len(named) < len(found)
