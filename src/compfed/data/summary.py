"""What was made of the tables of a fit: features, missing values, reference levels, and what was left out."""

from __future__ import annotations

from compfed._utils.plain import JsonObject
from compfed.data.encoding import DROPPED
from compfed.data.sites import Sites
from compfed.schema import CategoricalColumn


def summary_of(sites: Sites) -> JsonObject:
    """The table of a fit as plain data, for the screen and the report; the sentences are in `report.words`."""
    schema = sites.schema
    columns = {} if schema is None else schema.columns
    missing, references = [], {}
    for name, column in columns.items():
        count = sum(int(table.columns[name].missing.sum()) for table in sites.raw or () if name in table.columns)
        words = isinstance(column, CategoricalColumn)
        if count:
            missing.append({"column": name, "missing": count, "instead": column.missing if words else column.impute})
        if words:
            references[name] = column.levels[0]
    return {
        "rows": int(sites.sizes.sum()), "sites": dict(zip(sites.names, map(int, sites.sizes), strict=True)),
        "columns": len(columns) or sites.width, "features": sites.width, "missing": missing, "references": references,
        "dropped": [note for note in sites.notes if DROPPED in note], "notes": list(sites.notes),
    }  # fmt: skip
