"""A schema that all sites agree on: their proposals merged, and one message for means and counts (`Schema.agree`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from compfed._utils.text import join_names
from compfed.errors import InputError
from compfed.federation.enrolment import EMPTY_COLUMN, RARE_LEVELS, Enrolment
from compfed.federation.queries import Tabulate, TabulateSum
from compfed.federation.server.program import Federation, Program, Request, state_query
from compfed.federation.server.tabulation import label_columns, moments_of
from compfed.schema import (
    MISSING_LEVEL,
    CategoricalColumn,
    Column,
    Label,
    NumericColumn,
    Schema,
    level_text,
    sorted_levels,
    toml_key,
)

SHOWN = 20  # disagreements in one error
RARE_CLASS = (
    "do not name all classes, as too few rows have one; rows of a class that no site names cannot be encoded: that site refuses its "
    "table until they are left out, or join another class"
)
RARE_NUMBER = (
    "have a value that too few rows have; a classifier may be refused there, a regression takes it as a number"
)
NEW_FILE = "Take the same schema file at every site, or take `schema` out of every site.toml and agree on a new one."


def agree_program(federation: Federation) -> Program[Schema]:
    """The schema of all sites, without unresolved columns. At most one message."""
    names, enrolments = federation.names, federation.enrolments
    schema = common_schema(names, enrolments)
    if schema is None:
        schema = _Merge(names, enrolments).schema()
    unresolved = [name for name in schema.columns if name in schema.unresolved]
    if not unresolved:
        return schema
    numeric = tuple(name for name in unresolved if isinstance(schema.columns[name], NumericColumn))
    words = tuple(name for name in unresolved if name not in numeric)
    levels = tuple(column.levels for name in words if isinstance(column := schema.columns[name], CategoricalColumn))
    query = Tabulate(numeric, (np.empty(0),) * len(numeric), words, levels)
    state_query(federation, "Schema.agree", query, times=2)
    ((found,),) = yield [Request((query,))]
    return _resolved(schema, query, found)


def common_schema(names: Sequence[str], enrolments: Sequence[Enrolment]) -> Schema | None:
    """The schema file that all sites have; None if no site has one. Refuses different ones, and names a difference."""
    given = [name for name, e in zip(names, enrolments, strict=True) if e.agreed]
    if not given:
        return None
    if len(given) < len(names):
        without = [name for name in names if name not in given]
        raise InputError(
            f"site(s) {join_names(given)} have a schema file, and site(s) {join_names(without)} have none. {NEW_FILE}"
        )
    first = enrolments[0].table_schema
    for name, e in zip(names[1:], enrolments[1:], strict=True):
        if e.table_schema != first or tuple(e.table_schema.columns) != tuple(first.columns):
            apart = first_difference(first, e.table_schema, names[0], name)
            raise InputError(f"the schema files of the sites differ: {apart}. {NEW_FILE}")
    return first


def first_difference(one: Schema, other: Schema, here: str, there: str) -> str:
    """In words, the first entry in which the schemas of two sites differ."""
    for name in one.columns:
        if name not in other.columns:
            return f"site {there!r} has no column {name!r}, which site {here!r} has"
        if one.columns[name] != other.columns[name]:
            return f"[columns.{toml_key(name)}] is {one.columns[name]} at site {here!r} and {other.columns[name]} at site {there!r}"
    for name in other.columns:
        if name not in one.columns:
            return f"site {here!r} has no column {name!r}, which site {there!r} has"
    for key in ("label", "weight", "offset", "stratum"):
        mine, theirs = getattr(one, key), getattr(other, key)
        if mine != theirs:
            return f"{key} is {mine} at site {here!r} and {theirs} at site {there!r}"
    return f"the columns are in another order at site {there!r} than at site {here!r}"


# --- the proposals of the sites ---


class _Merge:
    """Merges the proposals of the sites. Everything in which they differ is in one error."""

    def __init__(self, names: Sequence[str], enrolments: Sequence[Enrolment]):
        self.names, self.enrolments = names, enrolments
        self.proposals = [e.table_schema for e in enrolments]
        self.flagged = {
            field: [
                {name for name, flag in zip(e.table_columns, getattr(e, field), strict=False) if flag}
                for e in enrolments
            ]
            for field in ("has_missing", "has_rare")
        }
        self.problems: list[str] = []
        self.notes: list[str] = []

    def schema(self) -> Schema:
        columns = dict[str, Column]()
        first = self.proposals[0].columns
        for name in dict.fromkeys(name for schema in self.proposals for name in schema.columns):
            lacking = [self.names[k] for k, schema in enumerate(self.proposals) if name not in schema.columns]
            if lacking:
                having = next(self.names[k] for k, schema in enumerate(self.proposals) if name in schema.columns)
                self.problems.append(
                    f"site(s) {join_names(lacking)} have no column {name!r}, which site {having!r} has; leave it out there "
                    "(drop in site.toml), or add it"
                )
            elif name in first and (found := self._column(name)) is not None:
                columns[name] = found
        label = self._label()
        for key in ("weight", "offset", "stratum"):
            self._same(key, [getattr(schema, key) for schema in self.proposals])
        if self.problems:
            shown = "; ".join(self.problems[:SHOWN])
            more = f"; and {len(self.problems) - SHOWN} more" if len(self.problems) > SHOWN else ""
            raise InputError(f"the sites do not agree on a schema: {shown}{more}.")
        one = self.proposals[0]
        merged = Schema(columns, label, one.weight, one.offset, one.stratum, tuple(self.notes))
        merged.check()
        return merged

    def _flags(self, field: str, name: str) -> list[str]:
        """The sites whose enrolment says so of a column."""
        return [site for site, flagged in zip(self.names, self.flagged[field], strict=True) if name in flagged]

    def _column(self, name: str) -> Column | None:
        every = [(site, schema.columns[name]) for site, schema in zip(self.names, self.proposals, strict=True)]
        empty = CategoricalColumn((EMPTY_COLUMN,))
        known = [(site, column) for site, column in every if column != empty]
        missing = self._flags("has_missing", name)
        words = [site for site, column in known if isinstance(column, CategoricalColumn)]
        numbers = [site for site, column in known if isinstance(column, NumericColumn)]
        if not known:
            self.problems.append(f"column {name!r} has no value at any site; leave it out (drop)")
        elif words and numbers:
            self.problems.append(
                f"column {name!r} holds numbers at site(s) {join_names(numbers)} and words at site(s) {join_names(words)}; "
                "write it alike, or write down which words mean 'no value'"
            )
        elif numbers:
            return NumericColumn("mean" if missing else "refuse")
        else:
            return self._levels(name, [(s, c) for s, c in known if isinstance(c, CategoricalColumn)], bool(missing))
        return None

    def _levels(self, name: str, known: Sequence[tuple[str, CategoricalColumn]], missing: bool) -> Column | None:
        self._check_capitals(name, [(site, set(column.levels)) for site, column in known])
        levels = sorted_levels({level for _, column in known for level in column.levels} - {RARE_LEVELS})
        if not levels:
            self.problems.append(
                f"column {name!r} has no level that min_level_rows rows of a site have: it looks like free text or an "
                "identifier; leave it out (drop)"
            )
            return None
        rare = self._flags("has_rare", name)
        if rare:
            self.notes.append(
                f"{name}: site(s) {join_names(rare)} do not name all levels, as too few rows have one or there are too many; those "
                f'that no site names count as {levels[0]!r} (other = "reference"), and those that another site names as themselves'
            )
        if missing:
            self.notes.append(f"{name}: missing values become a level of their own, {MISSING_LEVEL!r}")
        return CategoricalColumn(tuple(levels), "level" if missing else "refuse", "reference" if rare else "refuse")

    def _check_capitals(self, name: str, every: Sequence[tuple[str, set[str]]]) -> None:
        seen = dict[str, tuple[str, str]]()
        for site, levels in every:
            for word in sorted(levels):
                other, there = seen.setdefault(word.casefold(), (word, site))
                if other != word and there != site and other not in levels:
                    self.problems.append(
                        f"column {name!r} has {other!r} at site {there!r} and {word!r} at site {site!r}: one level but for "
                        "capitals"
                    )

    def _same(self, what: str, values: Sequence[object]) -> None:
        for site, value in zip(self.names, values, strict=True):
            if value != values[0]:
                self.problems.append(
                    f"{what} is {values[0]!r} at site {self.names[0]!r} and {value!r} at site {site!r}"
                )
                return

    def _label(self) -> Label | None:
        columns = [None if schema.label is None else schema.label.column for schema in self.proposals]
        self._same("the column of labels", columns)
        if columns[0] is None or len(set(columns)) > 1:
            return None
        classes = self._classes()
        for name in label_columns(self.enrolments[0]):
            if missing := self._flags("has_missing", name):
                self.problems.append(f"site(s) {join_names(missing)} have rows without a label ({name!r}); drop them")
            if rare := self._flags("has_rare", name):
                self.notes.append(f"{name}: site(s) {join_names(rare)} {RARE_CLASS if classes else RARE_NUMBER}")
        return Label(columns[0], classes)

    def _classes(self) -> tuple[str, ...] | None:
        """The classes, where labels are words. Two classes at every site, and more of them together, are a mistake."""
        found = [e.found_classes for e in self.enrolments]
        every = [set() if classes is None else set(classes.tolist()) for classes in found]
        words = [classes is not None and classes.dtype.kind in "UO" for classes in found]
        if any(words) and not all(words):
            one, other = self.names[words.index(True)], self.names[words.index(False)]
            self.problems.append(f"labels are words at site {one!r} and numbers at site {other!r}; write them alike")
            return None
        union = set().union(*every)
        if all(len(classes) == 2 for classes in every) and len(union) > 2:
            shown = [
                f"{' and '.join(sorted_levels({level_text(c) for c in classes}))} at site {site!r}"
                for site, classes in zip(self.names, every, strict=True)
            ]
            self.problems.append(
                f"labels are {join_names(shown, '; ')}: two classes at each, {len(union)} together; write them alike"
            )
        if not all(words):
            return None
        self._check_capitals("the labels", list(zip(self.names, every, strict=True)))
        if len(union) < 2:
            self.problems.append("all sites together have fewer than two classes of min_level_rows rows")
            return None
        return tuple(sorted_levels(union))


# --- means and most frequent levels ---


def _resolved(schema: Schema, query: Tabulate, found: TabulateSum) -> Schema:
    """The schema with the mean, or the most frequent level, over all rows in place of "mean" and "impute"."""
    columns, notes, at = dict(schema.columns), list(schema.notes), 0
    means = moments_of(found)[0]
    for j, (name, mean) in enumerate(zip(query.numeric, means.tolist(), strict=True)):
        column = columns[name]
        assert isinstance(column, NumericColumn)
        if not np.isfinite(mean):
            raise InputError(
                f"column {name!r} has missing values, and a site withholds the mean of its few values, or there is none. Leave "
                f"the column out (drop), or write columns.{toml_key(name)}.impute = NUMBER into a schema file."
            )
        columns[name] = replace(column, impute=mean)
        missing = found.missing[j]
        notes.append(
            f"{name}: missing values ({_counted(missing)} rows) become {mean:.6g}, the mean of the others{_rounded(missing)}"
        )
    for name, levels in zip(query.categorical, query.levels, strict=True):
        column, counts = columns[name], found.levels[at : at + len(levels), 0]
        at += len(levels)
        assert isinstance(column, CategoricalColumn)
        most = levels[int(counts.argmax())]
        columns[name] = replace(column, missing=most)
        rounded = _rounded(found.levels[at - len(levels) : at])
        notes.append(f"{name}: missing values become {most!r}, the most frequent level{rounded}")
    return replace(schema, columns=columns, notes=tuple(notes))


def _rounded(bounds: np.ndarray) -> str:
    """What a mean, or the largest count, holds up to, where sites tell bounds of their counts."""
    low, high = np.reshape(bounds, (-1, 2)).T
    return "" if (low == high).all() else ", as far as the sites' rounded counts tell"


def _counted(bounds: np.ndarray) -> str:
    low, high = (round(float(value)) for value in bounds)
    return str(low) if low == high else f"{low} to {high}"
