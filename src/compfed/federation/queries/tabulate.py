"""`Tabulate`: counts and sums of columns as they are in the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from compfed._utils.arrays import Pair, multiply_pairs
from compfed._utils.text import printable
from compfed.errors import InputError
from compfed.federation.enrolment import Agreement, Enrolment
from compfed.federation.limits import MAX_CLASSES, MAX_NAME, QueryChecks, check_finite_array
from compfed.federation.query import NEW_RUN, Field, FieldValues, Query, Weighting, flag
from compfed.splits import RowSubset

MAX_THRESHOLDS = 128  # of a column in one query


class TabulateSum(NamedTuple):
    """The sum of the replies to `Tabulate`; NaN in the moments of a column that a site withholds."""

    rows: int
    missing: np.ndarray  # (numeric + categorical, 2): lower and upper bound
    values: np.ndarray  # (numeric,)
    mean: Pair  # (numeric,): sum of the values, as a pair of doubles
    square: Pair  # (numeric,): sum of their squares
    below: np.ndarray  # (thresholds of all columns, 2)
    levels: np.ndarray  # (levels of all columns, 2)


@dataclass(frozen=True, eq=False)
class Tabulate(Query):
    """Sums and counts of columns of the table as it is in its file, missing values included (Table 1, `Schema.agree`).

    Counts are pairs, a lower and an upper bound: equal without a policy, rounded at the site under one (`disclosure`). A column
    of words is counted at the levels given, each with all rows that have it; of a column of numbers are counted the values
    that are at most a threshold. The mean and the mean square of the values are pairs of doubles, as in `Moments`, and NaN
    where the policy withholds them. Rows are counted, not weighted.
    """

    numeric: tuple[str, ...] = ()  # names of columns
    thresholds: tuple[np.ndarray, ...] = ()  # of each of them, sorted
    categorical: tuple[str, ...] = ()
    levels: tuple[tuple[str, ...], ...] = ()  # of each of them

    leaves = (
        "of columns of its file: rounded counts of missing values, of levels and of values below thresholds, the mean and the "
        "mean square"
    )

    is_encoded = False

    class Reply(NamedTuple):
        rows: int
        missing: np.ndarray  # (numeric + categorical, 2)
        values: np.ndarray  # (numeric,): the weight of the means, at least the number of values
        mean: np.ndarray  # (numeric,)
        mean_low: np.ndarray
        square: np.ndarray
        square_low: np.ndarray
        below: np.ndarray  # (thresholds of all columns, 2)
        levels: np.ndarray  # (levels of all columns, 2)

    def weighed_by(self, weighting: Weighting) -> str:
        return "rows"

    @property
    def rows(self) -> RowSubset | None:
        return None

    @property
    def told_of(self) -> tuple[tuple[RowSubset | None, ...], int]:
        return (None,), len(self.numeric) + len(self.categorical)

    def check(self, checks: QueryChecks) -> None:
        """Columns by name, each once; a few thresholds, or levels, of each."""
        known = checks.site.table.columns
        for names, each in ((self.numeric, self.thresholds), (self.categorical, self.levels)):
            if type(names) is not tuple or type(each) is not tuple or len(names) != len(each):
                raise InputError("a query names columns, and lists thresholds or levels of each")
            if len(names) > len(known) or not all(type(name) is str for name in names) or len(set(names)) < len(names):
                raise InputError("it names columns that the site has, each once")
            for name in names:
                if name not in known:
                    raise InputError(f"the site has no column {printable(name, 60)!r}")
        for given in self.thresholds:
            if not isinstance(given, np.ndarray) or given.ndim != 1 or given.size > MAX_THRESHOLDS:
                raise InputError(f"thresholds are an array of at most {MAX_THRESHOLDS} numbers")
            check_finite_array("thresholds", given, given.shape)
            if (given[1:] <= given[:-1]).any():
                raise InputError("thresholds must be sorted, each once")
        for given in self.levels:
            if type(given) is not tuple or len(given) > MAX_CLASSES or len(set(given)) < len(given):
                raise InputError(f"levels are at most {MAX_CLASSES} words, each once")
            if not all(type(level) is str and len(level) <= MAX_NAME for level in given):
                raise InputError(f"a level is a word of at most {MAX_NAME} characters")

    def layout(self, agreement: Agreement, weighting: Weighting) -> dict[str, Field]:
        rows, width = agreement.row_bits, (len(self.numeric),)
        bits = agreement.table_bits(self.numeric)
        counts = {"missing": (len(self.numeric) + len(self.categorical), 2), "values": width}
        counts |= {"below": (sum(map(len, self.thresholds)), 2), "levels": (sum(map(len, self.levels)), 2)}
        return {
            "rows": Field((), rows, bounded=True),
            **{name: Field(shape, rows + 1, bounded=True) for name, shape in counts.items()},
            "withheld": Field(width, agreement.site_bits, bounded=True),
            "mean": Field(width, rows + bits, pair=True, bounded=True),
            "square": Field(width, rows + 2 * bits, pair=True, bounded=True),
        }

    def contribution(self, reply: Reply, factor: float, agreement: Agreement) -> FieldValues:
        """Sums of the values. A site that withholds a column sends noise for it: with zeros, the total would be that of the others."""
        r = reply
        counts = {"rows": r.rows, "missing": r.missing, "values": r.values, "below": r.below, "levels": r.levels}
        found = {name: np.asarray(value, float) for name, value in counts.items()}
        found["withheld"] = flag(np.isnan(r.mean))
        scaled = r.values, np.zeros(r.values.shape)
        for name, pair in (("mean", (r.mean, r.mean_low)), ("square", (r.square, r.square_low))):
            found[name], low = multiply_pairs(scaled, pair)
            found[f"{name}_low"] = np.nan_to_num(low)
        return found

    def assemble(
        self, totals: FieldValues, divisor: float, enrolments: Sequence[Enrolment], agreement: Agreement
    ) -> TabulateSum:
        """The sums of a table; refuses counts that honest sites cannot give."""
        t, rows, most = totals, float(totals["rows"]), float(sum(e.rows for e in enrolments))
        slack = sum(max(e.min_rows, e.rows) for e in enrolments)  # a bound is at most so far above a count
        for name in ("missing", "values", "below", "levels"):
            value = t[name]
            bounds = name == "values" or not (value[:, 0] > value[:, 1]).any()
            if rows != most or not bounds or ((value < 0) | (value > most + slack) | (value != np.rint(value))).any():
                raise InputError(
                    f"Tabulate: the field {name} does not count rows; a site sent a wrong reply. {NEW_RUN}"
                )
        shown = np.where(t["withheld"] != 0, np.nan, 1.0)
        mean, square = ((shown * t[name], shown * t[f"{name}_low"]) for name in ("mean", "square"))
        return TabulateSum(round(rows), t["missing"], t["values"], mean, square, t["below"], t["levels"])
