"""Table 1: the columns of a federation over all rows and at each site, as a paper shows them. It holds no row."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from compfed._utils.plain import JsonObject
from compfed._utils.text import text_table
from compfed.errors import InputError
from compfed.federation.server.tabulation import (
    CategoricalSummary,
    ColumnSummary,
    Interval,
    NumericSummary,
    TableSummary,
)

if TYPE_CHECKING:
    import pandas as pd

    from compfed.federation.accounting import Communication

SHOWN_SITES = 8  # in the printed table
SUPPRESSED = "-"
EXACT = 1e-3  # of a standard deviation: a narrower interval is shown as one number


class TableLine(NamedTuple):
    """A line of the table: the column, what is shown of it, and a cell for all rows and for every site."""

    column: str
    shown: str
    cells: tuple[str, ...]
    difference: str


@dataclass(frozen=True)
class TableOne:
    """Table 1 of a federation; ``print`` shows it. Rows are counted, not weighted.

    Attributes
    ----------
    names : tuple of str
        The sites.
    overall : TableSummary
        Every column over all rows: ``overall.columns["age"].mean``.
    sites : tuple of TableSummary, or None
        The same of each site; None where sums are masked.
    differences : mapping of str to float
        By column the largest standardised difference of two sites. Of numbers |m_i - m_j| / sqrt((s_i^2 + s_j^2) / 2); of levels
        sqrt((p_i - p_j)' S^-1 (p_i - p_j)), with S the mean of the covariances of one row at the two sites. Above 0.1 it is
        commonly called an imbalance.
    labels : tuple of str
        The columns of labels.
    notes : tuple of str
        Columns that were left out, and what the table cannot show.
    communication : Communication
        Messages and bytes.

    References
    ----------
    Austin, "Balance diagnostics for comparing the distribution of baseline covariates", Statistics in Medicine, 2009.
    Yang, Dalton, "A unified approach to measuring the effect size between two groups using SAS", SAS Global Forum, 2012.
    """

    names: tuple[str, ...]
    overall: TableSummary
    sites: tuple[TableSummary, ...] | None
    differences: Mapping[str, float]
    labels: tuple[str, ...]
    notes: tuple[str, ...]
    communication: Communication

    def __repr__(self) -> str:
        return f"TableOne({len(self.names)} site(s), {self.overall.rows} rows, {len(self.overall.columns)} columns)"

    def __str__(self) -> str:
        shown = (self.sites or ())[:SHOWN_SITES]
        lines = self.lines(1 + len(shown))
        head = ["", "overall", *self.names[: len(shown)], *(["SMD"] if self.sites else [])]
        rows = [[_indent(line), *line.cells, *([line.difference] if self.sites else [])] for line in lines]
        more = len(self.names) - len(shown)
        left = [f"{more} more sites are not shown; to_dataframe() has them"] if self.sites and more else []
        notes = "".join(f"\nnote: {note}" for note in (*left, *self.notes))
        title = f"{len(self.names)} site(s), {self.overall.rows} rows, {len(self.overall.columns)} columns"
        return f"{title}\n\n{text_table(head, rows, numbers=True)}{notes}"

    def _repr_html_(self) -> str:
        cells = self.cells()
        header, *rows = ([html.escape(cell) for cell in row] for row in cells)
        head = "".join(f"<th>{cell}</th>" for cell in header)
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"

    def to_dataframe(self) -> pd.DataFrame:
        """The cells of the table as text, indexed by column and statistic (extra `pandas`)."""
        try:
            import pandas as pd
        except ImportError:
            raise InputError(
                "to_dataframe needs pandas: in a clone of compfed, run pip install '.[pandas]', or use to_dict()."
            ) from None
        header, *rows = self.cells()
        return pd.DataFrame(rows, columns=["column", "", *header[2:]]).set_index(["column", ""])

    def to_dict(self) -> JsonObject:
        """The numbers of the table as plain values, for JSON."""
        sites = {} if self.sites is None else dict(zip(self.names, map(_as_dict, self.sites), strict=True))
        rest = {"differences": dict(self.differences), "labels": list(self.labels), "notes": list(self.notes)}
        return {"overall": _as_dict(self.overall), "sites": sites, **rest}

    def cells(self) -> list[list[str]]:
        """The table as rows of text, the header first."""
        sites = self.names if self.sites else ()
        rows = [[line.column, line.shown, *line.cells, line.difference] for line in self.lines(1 + len(sites))]
        return [["column", "", "overall", *sites, "SMD"], *rows]

    def lines(self, tables: int) -> list[TableLine]:
        """The lines of the table, with a cell for all rows and for the first sites, so many in all."""
        of = (self.overall, *(self.sites or ()))[:tables]
        found = [TableLine("rows", "", tuple(str(table.rows) for table in of), "")]
        for name in self.overall.columns:
            columns = [table.columns[name] for table in of]
            head = f"{name} (label)" if name in self.labels else name
            difference = _difference_cell(self.differences[name]) if name in self.differences else ""
            found += _column_lines(head, columns, [table.rows for table in of], difference)
        return found


def standardised_difference(one: ColumnSummary, other: ColumnSummary) -> float:
    """The standardised difference of a column at two sites; NaN where it is withheld.

    >>> a, b = (NumericSummary((0, 0), 10, mean, 2.0, {}) for mean in (5.0, 6.0))
    >>> standardised_difference(a, b)
    0.5
    """
    if isinstance(one, NumericSummary) and isinstance(other, NumericSummary):
        apart, spread = abs(one.mean - other.mean), np.sqrt((one.sd**2 + other.sd**2) / 2)
        if spread > 0 or np.isnan(spread):  # the standard deviation of one value is not known
            return float(apart / spread)
        return float(np.nan if np.isnan(apart) else np.inf if apart else 0.0)
    assert isinstance(one, CategoricalSummary)
    assert isinstance(other, CategoricalSummary)
    p, q = _shares(one), _shares(other)
    if np.isnan(p).any() or np.isnan(q).any():
        return float("nan")
    covariance = sum((np.diag(v) - np.outer(v, v)) / 2 for v in (p, q))
    apart = p - q
    if not np.any(apart):
        return 0.0
    squared = apart @ np.linalg.pinv(covariance, rcond=1e-10, hermitian=True) @ apart
    outside = apart - covariance @ np.linalg.pinv(covariance, rcond=1e-10, hermitian=True) @ apart
    return float("inf") if np.linalg.norm(outside) > 1e-8 else float(np.sqrt(max(squared, 0.0)))


def largest_differences(tables: Sequence[TableSummary]) -> dict[str, float]:
    """By column the largest standardised difference of two sites."""
    found = {}
    for name in tables[0].columns if len(tables) > 1 else ():
        every = [standardised_difference(a.columns[name], b.columns[name]) for a, b in combinations(tables, 2)]
        known = [value for value in every if not np.isnan(value)]
        found[name] = max(known) if known else float("nan")
    return found


def _shares(column: CategoricalSummary) -> np.ndarray:
    """The share of every level and of other values among the rows that have a value; from the middle of the bounds."""
    counts = np.array([sum(pair) / 2 for pair in (*column.levels.values(), column.others)])
    exact = all(low == high for low, high in column.levels.values())
    counts[-1] = counts[-1] if exact or column.others[0] > 0 else 0.0
    return counts / counts.sum() if counts.sum() > 0 else np.full(len(counts), np.nan)


# --- cells ---


def _column_lines(head: str, columns: Sequence[ColumnSummary], rows: Sequence[int], difference: str) -> list[TableLine]:
    first = columns[0]
    if isinstance(first, NumericSummary):
        lines = [TableLine(head, "mean (SD)", _each(columns, _mean_cell), difference)]
        if first.quantiles:
            qs = list(first.quantiles)
            shown = "median [Q1, Q3]" if qs == [0.25, 0.5, 0.75] else f"quantiles {', '.join(f'{q:g}' for q in qs)}"
            lines.append(TableLine(head, shown, _each(columns, _quantile_cell), ""))
    else:
        lines = [TableLine(head, "n (%)", ("",) * len(columns), difference)]
        for level in first.levels:
            cells = [_count_cell(c.levels[level], n) for c, n in zip(columns, rows, strict=True)]  # pyright: ignore[reportAttributeAccessIssue]
            lines.append(TableLine(head, f"  {level}", tuple(cells), ""))
        if first.others[0] > 0 or (first.others[1] > 0 and all(low == high for low, high in first.levels.values())):
            lines.append(TableLine(head, "  other", tuple(
                _count_cell(c.others, n) for c, n in zip(columns, rows, strict=True)  # pyright: ignore[reportAttributeAccessIssue]
            ), ""))  # fmt: skip
    if any(column.missing[1] > 0 for column in columns):
        cells = [_count_cell(c.missing, n) for c, n in zip(columns, rows, strict=True)]
        lines.append(
            TableLine(
                head, "  missing" if isinstance(first, CategoricalSummary) else "missing, n (%)", tuple(cells), ""
            )
        )
    return lines


def _each(columns: Sequence[ColumnSummary], cell: Callable[[Any], str]) -> tuple[str, ...]:
    return tuple(cell(column) for column in columns)


def _mean_cell(column: NumericSummary) -> str:
    if np.isnan(column.mean) or column.values == 0:
        return SUPPRESSED
    return f"{_rounded(column.mean, column.sd)} ({_rounded(column.sd, column.sd)})"


def _quantile_cell(column: NumericSummary) -> str:
    if np.isnan(column.mean) or column.values == 0:
        return SUPPRESSED
    cells = [_interval_cell(interval, column.sd) for interval in column.quantiles.values()]
    if len(cells) == 3:
        return f"{cells[1]} [{cells[0]}, {cells[2]}]"
    return ", ".join(cells)


def _interval_cell(interval: Interval, sd: float) -> str:
    low, high = interval
    if high - low <= EXACT * sd or low == high:
        return _rounded((low + high) / 2, sd)
    return f"{_rounded(low, sd)} to {_rounded(high, sd)}"


def _count_cell(bounds: tuple[int, int], rows: int) -> str:
    low, high = bounds
    if low == high:
        return f"{low} ({100 * low / max(rows, 1):.1f})"
    if low == 0:
        return f"<{high + 1}"
    return f"{low}-{min(high, rows)} ({100 * (low + min(high, rows)) / 2 / max(rows, 1):.0f})"


def _rounded(value: float, sd: float) -> str:
    """A value with the digits that its standard deviation gives meaning to."""
    if not np.isfinite(value):
        return SUPPRESSED
    if not sd > 0:
        return f"{value:.6g}"
    digits = int(np.clip(2 - np.floor(np.log10(sd)), 0, 12))
    # a quantile is found to within a thousandth of a standard deviation: no "-0.000"
    return f"{round(value, digits) + 0.0:.{digits}f}" if abs(value) < 1e12 else f"{value:.6g}"


def _difference_cell(value: float) -> str:
    return f"{value:.2f}" if np.isfinite(value) else SUPPRESSED if np.isnan(value) else "inf"


def _indent(line: TableLine) -> str:
    return (
        line.column
        if not line.shown
        else f"{line.column}, {line.shown}"
        if line.shown[0] != " "
        else f"  {line.shown.strip()}"
    )


def _as_dict(table: TableSummary) -> JsonObject:
    columns = dict[str, Any]()
    for name, column in table.columns.items():
        columns[name] = {"missing": list(column.missing)}
        if isinstance(column, NumericSummary):
            quantiles = {f"{q:g}": list(interval) for q, interval in column.quantiles.items()}
            columns[name] |= {"values": column.values, "mean": column.mean, "sd": column.sd, "quantiles": quantiles}
        else:
            columns[name] |= {"levels": {level: list(pair) for level, pair in column.levels.items()}}
            columns[name] |= {"others": list(column.others)}
    return {"rows": table.rows, "columns": columns}
