"""Table 1 of a federation (`describe`), and a schema that all of its sites agree on (`Schema.agree`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from compfed._utils.plain import JsonObject
from compfed._utils.text import join_names, shorten
from compfed._utils.validation import is_number
from compfed.data import LazySites, Sites
from compfed.data.raw_table import RawTable
from compfed.errors import InputError
from compfed.federation.sentence import Stated
from compfed.federation.server.agreement import agree_program
from compfed.federation.server.program import Federation, counts, for_site, gather, is_federation, run_program, state
from compfed.federation.server.tabulation import (
    FEW_REFINEMENTS,
    FEW_THRESHOLDS,
    NumericSummary,
    TableLayout,
    label_columns,
    layout_of,
    summarise,
)
from compfed.federation.site.in_process import InProcess
from compfed.federation.site.rows import Rows
from compfed.federation.site.site import Site
from compfed.federation.table_one import TableOne, largest_differences
from compfed.schema import Label, NumericColumn, Schema

MAX_COMPARED = 100  # sites with a table of their own
MASKED = "the sums are masked: there is no table of single sites, and no difference between them"


def describe(federation: Federation | Sites, *, quantiles: Sequence[float] = (0.25, 0.5, 0.75)) -> TableOne:
    """Table 1: counts, missing values, mean, SD, quantiles and levels of every column, over all rows and at each site.

    Columns are summarised as they are in the files, before they are encoded. Every number is a sum or a count over the rows of
    a site. Quantiles take a few messages with counts below thresholds. Under a disclosure policy counts are rounded at the
    sites, and quantiles are intervals; where sums are masked there is no table of single sites.

    Parameters
    ----------
    federation : Sites, InProcess, or what `cf.network.connect` returns
    quantiles : sequence of float, default=(0.25, 0.5, 0.75)
        Between 0 and 1; () for none.

    Returns
    -------
    TableOne
        ``print`` shows it; `to_dataframe` and `to_dict` give it to other programs.

    Examples
    --------
    >>> import compfed as cf
    >>> table = cf.data.from_arrays([[[1.0], [2.0], [3.0]], [[4.0], [5.0]]], [[0, 1, 1], [0, 1]], ["north", "south"])
    >>> print(cf.describe(table))
    2 site(s), 5 rows, 2 columns
    <BLANKLINE>
                                    overall              north                 south   SMD
    --------------------  -----------------  -----------------  --------------------  ----
    rows                                  5                  3                     2
    0, mean (SD)                3.00 (1.58)        2.00 (1.00)         4.500 (0.707)  2.89
    0, median [Q1, Q3]    3.00 [2.00, 4.00]  2.00 [1.50, 2.50]  4.500 [4.250, 4.750]
    label (label), n (%)                                                              0.34
      0                            2 (40.0)           1 (33.3)              1 (50.0)
      1                            3 (60.0)           2 (66.7)              1 (50.0)
    """
    asked = _quantiles(quantiles)
    federation = as_federation(federation, "describe")
    enrolments, n = federation.enrolments, len(federation.names)
    layout, notes = layout_of(enrolments)
    masked = enrolments[0].secure_sum and n > 1
    alone = not masked and 1 < n <= MAX_COMPARED
    few = tell_table(federation, layout, alone)
    programs = [summarise(layout, asked, few)]
    programs += [for_site(i, n, summarise(layout, asked, few)) for i in range(n if alone else 0)]
    (overall, *each), cost = run_program(federation, gather(programs))
    notes += [MASKED] if masked else []
    notes += [f"there are more than {MAX_COMPARED} sites: no table of single sites"] if n > MAX_COMPARED else []
    withheld = [name for name, column in overall.columns.items() if np.isnan(getattr(column, "mean", 0.0))]
    notes += [f"a site withholds its sums, as they would show few rows: {', '.join(withheld)}"] if withheld else []
    constant = [name for name, column in overall.columns.items() if getattr(column, "sd", 1.0) == 0]
    notes += [f"one value in all rows that have one: {', '.join(constant)}"] if constant else []
    sites = tuple(each) if alone else (overall,) if n == 1 else None
    differences = largest_differences(each) if alone else {}
    return TableOne(federation.names, overall, sites, differences, label_columns(enrolments[0]), tuple(notes), cost)


MOST_COLUMNS = 100  # of a table whose Table 1 a report shows


def table_one_record(sites: Sites) -> JsonObject | None:
    """Table 1 of rows in this process as a report shows it; None of a table with more columns than a reader looks at."""
    raw = sites.raw
    if (sites.width if raw is None else len(raw[0].columns)) > MOST_COLUMNS:
        return None
    found = describe(sites)
    header, *rows = found.cells()
    return {"header": header, "rows": rows, "notes": constant_at_sites(found)}


FEW = 10  # values: so few may well be the same


def constant_at_sites(found: TableOne) -> list[str]:
    """Columns of numbers that have one value at a whole site and others elsewhere, in a sentence: a missing value may be written so."""
    said = []
    for name, overall in found.overall.columns.items():
        if name in found.labels or not isinstance(overall, NumericSummary) or not overall.sd > 0:
            continue
        for site, table in zip(found.names, found.sites or (), strict=False):
            column = table.columns[name]
            if isinstance(column, NumericSummary) and column.sd == 0 and column.values >= FEW:
                said.append(f"{shorten(name, 40)} is {column.mean:.6g} at {shorten(site, 40)}")
    if not said:
        return []
    way_out = "if this stands for a missing value, leave those cells empty"
    return [f"One value wherever it is known at a site: {join_names(said, '; ', most=12)}; {way_out}"]


def tell_table(federation: Federation, layout: TableLayout, alone: bool) -> bool:
    """State a Table 1 to sites that count what leaves; whether they do, so that few thresholds are asked for."""
    if not counts(federation):
        return False
    columns, levels = len(layout.numeric) + len(layout.levels), sum(map(len, layout.levels.values()))
    each = 1 + 10 * columns + 4 * levels
    numbers = (1 + alone) * (each + FEW_REFINEMENTS * (each + 2 * len(layout.numeric) * (FEW_THRESHOLDS + 6)))
    stated = Stated("describe", numbers=numbers, messages=1 + FEW_REFINEMENTS)
    state(federation, stated)
    return True


def describe_tables(tables: Sequence[RawTable], label: str | None = None) -> TableOne:
    """Table 1 of tables as they are in their files, one for each site; nothing needs to be encoded."""
    first = tables[0]
    for table in tables if label is not None else ():
        if label not in table.columns:
            has = join_names(list(table.columns), most=12)
            raise InputError(f"{table.name} has no column {label!r}; it has {has}. Give another --label.")
    sites = []
    for i, table in enumerate(tables):
        columns = {name: NumericColumn() for name in table.columns if name != label}
        proposal = Schema(columns, None if label is None else Label(label))
        rows = Rows.to_agree(table, proposal, "has no schema.", name=table.name, index=i)
        sites.append(Site(rows, limits=None))
    if not first.columns or not all(table.rows for table in tables):
        raise InputError("a table without rows or columns has no Table 1. Leave out that file.")
    found = describe(InProcess(sites))
    return replace(found, notes=(*(note for table in tables for note in table.notes), *found.notes))


def agree_schema(federation: Federation | Sites) -> Schema:
    """A schema that all sites of a federation agree on (`Schema.agree`)."""
    federation = as_federation(federation, "Schema.agree")
    return run_program(federation, agree_program(federation))[0]


def as_federation(federation: Any, what: str) -> Federation:
    """The federation of sites in this process, or as it is given."""
    if isinstance(federation, Sites):
        return InProcess(federation)
    if isinstance(federation, LazySites) or not is_federation(federation):
        raise InputError(
            f"{what} takes Sites (cf.data.from_files, ...), an InProcess, or what cf.network.connect returns; got "
            f"{type(federation).__name__}."
        )
    return federation


def _quantiles(given: Any) -> tuple[float, ...]:
    values = list(given) if not isinstance(given, (str, bytes)) and hasattr(given, "__iter__") else [given]
    if not all(is_number(q) and 0 <= q <= 1 for q in values) or len(values) > 10 or len(set(values)) < len(values):
        raise InputError(f"quantiles={given!r}: quantiles are up to 10 numbers from 0 to 1, such as (0.25, 0.5, 0.75).")
    return tuple(sorted(float(q) for q in values))
