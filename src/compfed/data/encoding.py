"""Schemas of raw tables: propose one, fill in its means and most frequent levels, and encode rows with it.

A column of numbers keeps its place. A column of words gives one feature, 0 or 1, for each level but the first::

    sex = "male"  ->  sex=male: 1
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from compfed._utils.text import join_names, shapes_shown
from compfed.data.raw_table import RawColumn, RawTable
from compfed.data.recognise import are_names, date_numbers, is_identifier, span
from compfed.data.table_files import LONG_INTEGER, as_numbers
from compfed.data.table_problems import Problems, quoted
from compfed.errors import InputError
from compfed.schema import (
    MISSING_LEVEL,
    NEGATIVE_WORDS,
    CategoricalColumn,
    Column,
    Label,
    NumericColumn,
    Schema,
    number_text,
    sorted_levels,
)

# kinds of problems, which may leave a site; the column follows
ABSENT = "it has no column"
WORDS = "words in column"
BLANKS = "values missing in column"
INFINITE = "infinite values in column"
UNKNOWN = "a level that the schema does not have in column"
FREE_TEXT = "free text in column"
NEGATIVE_WEIGHT = "negative weights in column"
DIFFERENT = "sites differ in column"

FEW_LEVELS = 20  # a column of words with more levels, and more than half as many as rows, is free text
AUTO = 'Give schema="auto", which makes levels of words and imputes missing numbers, or a Schema'


LEFT_OUT = ", left out"  # in the note of a column that a proposed schema does not have
DROPPED = "rows without a label dropped"  # in the note that counts them
DROP = "Drop rows without a label."
WORD_LABELS = 'with schema="auto", or a Schema, words are classes'


# --- encode ---


@dataclass(frozen=True, eq=False, repr=False)
class Encoded:
    """The rows of a table as arrays."""

    A: np.ndarray  # (rows, features)
    y: np.ndarray | None  # (rows,) or (rows, outcomes): numbers, codes of classes, or words
    columns: tuple[str, ...]
    weights: np.ndarray | None = None
    offset: np.ndarray | None = None
    strata: np.ndarray | None = None  # words
    __repr__ = shapes_shown

    def take(self, rows: np.ndarray) -> Encoded:
        """Some of the rows."""
        found: Any = {name: getattr(self, name) for name in ("A", "y", "weights", "offset", "strata")}
        return replace(self, **{name: values[rows] for name, values in found.items() if values is not None})


def encode(
    table: RawTable,
    schema: Schema,
    *,
    label: bool = True,
    word_labels: bool = False,
    way_out: str | None = None,
    unlabelled: str = DROP,
) -> Encoded:
    """Encode the rows of a table with a schema.

    Parameters
    ----------
    table : RawTable
    schema : Schema
        Without unresolved columns: `resolve` fills them in.
    label : bool, default=True
        Whether to encode labels and weights too; False for rows to predict.
    word_labels : bool, default=False
        Whether a label without classes may be words, which are then kept.
    way_out : str, optional
        What to do about words and missing values; by default to mend the table or the schema.
    unlabelled : str
        What to do about rows without a label.

    Returns
    -------
    Encoded

    Raises
    ------
    TableError
        With all problems, by line, column and table.
    """
    problems, A = Problems(), np.empty((table.rows, len(schema.feature_names)))
    if schema.unresolved:
        raise InputError(
            f"the schema has no number or level yet for missing values of {join_names(schema.unresolved)}."
        )
    at = 0
    for name, column in schema.columns.items():
        raw, width = _raw(table, name, problems), 1
        if isinstance(column, CategoricalColumn):
            width = len(column.encoded_levels)
            if raw is not None:
                A[:, at : at + width] = _levels(table, name, raw, column, problems)
        elif raw is not None:
            A[:, at] = _numbers(
                table, name, dated(table, name, raw, column, problems), column.impute, problems, way_out
            )
        at += width
    y = None
    if label and schema.label is not None:
        y = _labels(table, schema.label, word_labels, problems, way_out, unlabelled)
    weights = _row_numbers(table, schema.weight, problems) if label else None
    if weights is not None and (weights < 0).any():
        rows = np.flatnonzero(weights < 0)
        problems.add(
            f"{table.name}: the weight {schema.weight!r} is negative on {table.place(rows)}",
            NEGATIVE_WEIGHT,
            str(schema.weight),
        )
    offset = _row_numbers(table, schema.offset, problems)
    strata = None if not label or schema.stratum is None else _raw(table, schema.stratum, problems)
    problems.check()
    return Encoded(A, y, schema.feature_names, weights, offset, None if strata is None else strata.words())


def numeric_schema(
    columns: Sequence[str], label: str | tuple[str, ...], weight: str | None = None, offset: str | None = None,
    stratum: str | None = None,
) -> Schema:  # fmt: skip
    """The schema of a table of numbers without missing values."""
    return Schema({name: NumericColumn() for name in columns}, Label(label), weight, offset, stratum)


def _raw(table: RawTable, name: str, problems: Problems) -> RawColumn | None:
    found = table.columns.get(name)
    if found is None:
        has = join_names(list(table.columns), most=12)
        problems.add(f"{table.name} has no column {name!r}; it has {has}", ABSENT, name)
    return found


def dated(table: RawTable, name: str, raw: RawColumn, column: NumericColumn, problems: Problems) -> RawColumn:
    """A column of dates as numbers, where the schema says that it is one; any other as it is."""
    if column.date is None:
        return raw
    found = date_numbers(raw.words(), column.date)
    if isinstance(found, str):
        problems.add(f"{table.name}: column {name!r} {found}", WORDS, name, "Mend the values, or leave the column out.")
        found = np.where(raw.missing, np.nan, 0.0)
    return RawColumn(found)


def _numbers(
    table: RawTable, name: str, raw: RawColumn, impute: str | float, problems: Problems, way_out: str | None = None
) -> np.ndarray:
    """A column of numbers, its missing values imputed; NaN where there is a problem."""
    if not raw.is_numeric:
        rows = np.flatnonzero([value is not None and as_numbers([value]) is None for value in raw.values])
        rows = rows if len(rows) else np.flatnonzero(~raw.missing)
        values = quoted(list(dict.fromkeys(raw.values[rows])))
        problems.add(
            f"{table.name}: column {name!r} must be numbers, and has {values} on {table.place(rows)}", WORDS, name,
            way_out or "Mend the table, say with missing= which cells have no value, or make it a column with levels in the schema.",
        )  # fmt: skip
        return np.full(table.rows, np.nan)
    values, missing = raw.values, raw.missing
    if missing.any() and impute == "refuse":
        rows = np.flatnonzero(missing)
        problems.add(
            f"{table.name}: column {name!r} has {len(rows)} missing value(s), on {table.place(rows)}", BLANKS, name,
            way_out or "Give missing numbers an impute = in the schema, or drop these rows.",
        )  # fmt: skip
    elif missing.any():
        values = np.where(missing, float(impute), values)
    if np.isinf(values).any():
        rows = np.flatnonzero(np.isinf(values))
        problems.add(f"{table.name}: column {name!r} is infinite on {table.place(rows)}", INFINITE, name)
    return values


def _levels(table: RawTable, name: str, raw: RawColumn, column: CategoricalColumn, problems: Problems) -> np.ndarray:
    """One column of 0 and 1 for each level that has a feature."""
    words, encoded = raw.words(), column.encoded_levels
    missing, codes = raw.missing, codes_of(words, column.levels)
    unknown = (codes < 0) & ~missing
    place = {level: k + 1 for k, level in enumerate(encoded)} | {column.levels[0]: 0}  # 0 is the reference
    if unknown.any() and column.other == "refuse":
        rows = np.flatnonzero(unknown)
        levels = join_names([repr(level) for level in column.levels], most=8)
        problems.add(
            f"{table.name}: column {name!r} has {quoted(list(dict.fromkeys(words[rows])))} on {table.place(rows)}, not one of "
            f"its levels ({levels})", UNKNOWN, name, "Mend the value, or add the level to the schema.",
        )  # fmt: skip
    elif unknown.any():
        codes[unknown] = 0 if column.other == "reference" else len(column.levels)
    if missing.any() and column.missing == "refuse":
        rows = np.flatnonzero(missing)
        problems.add(
            f"{table.name}: column {name!r} has {len(rows)} missing value(s), on {table.place(rows)}", BLANKS, name,
            "Give missing words a missing = in the schema, or drop these rows.",
        )  # fmt: skip
    elif missing.any():
        codes[missing] = place[MISSING_LEVEL if column.missing == "level" else column.missing]
    return (codes[:, None] == np.arange(1, len(encoded) + 1)).astype(float)


def codes_of(words: np.ndarray, levels: Sequence[object]) -> np.ndarray:
    """The place of every word among the levels, -1 for none; a number is found by its value too: 1.0 is "1".

    >>> codes_of(np.array(["b", "a", None, "c"], object), ["a", "b"]).tolist()
    [1, 0, -1, -1]
    """
    names = [level if isinstance(level, str) else number_text(float(level)) for level in levels]  # pyright: ignore[reportArgumentType]
    place = {name: k for k, name in enumerate(names)}
    by_value = {found: k for name, k in reversed(place.items()) if (found := _value(name)) is not None}
    listed = words.tolist()
    codes: dict[str | None, int] = {None: -1, **place}
    for word in set(listed).difference(codes):
        found = _value(word)
        codes[word] = -1 if found is None else by_value.get(found, -1)
    return np.fromiter(map(codes.__getitem__, listed), int, len(listed))


def _value(word: str) -> float | None:
    found = as_numbers([word])
    return None if found is None else float(found[0])


def _labels(
    table: RawTable, label: Label, word_labels: bool, problems: Problems, way_out: str | None, unlabelled: str
) -> np.ndarray | None:
    names = (label.column,) if isinstance(label.column, str) else label.column
    parts = [(name, raw) for name in names if (raw := _raw(table, name, problems)) is not None]
    if len(parts) < len(names):
        return None
    if label.classes is None and (len(parts) > 1 or parts[0][1].is_numeric or not word_labels):
        out = f"{unlabelled} Mend labels that are no numbers" + (
            f"; {WORD_LABELS}."
            if way_out
            else ", or name the classes in the schema."
            if isinstance(label.column, str)
            else ". Of survival data the schema may name the two values of the last column: events = ['no', 'yes'] under [label]."
        )
        found = [
            _numbers(table, name, raw, "refuse", problems, out)
            for name, raw in parts[: len(parts) - bool(label.events)]
        ]
        if label.events is not None:
            found.append(_codes(table, *parts[-1], label.events, problems, unlabelled))
        return found[0] if isinstance(label.column, str) else np.column_stack(found)
    name, raw = parts[0]
    if label.classes is None:
        words, missing = raw.words(), raw.missing
        _check_labelled(table, name, missing, problems, unlabelled)
        return words[~missing].astype(str) if missing.any() else words.astype(str)
    return _codes(table, name, raw, label.classes, problems, unlabelled)


def _check_labelled(table: RawTable, name: str, missing: np.ndarray, problems: Problems, unlabelled: str) -> None:
    if missing.any():
        problems.add(
            f"{table.name}: column {name!r} has no label on {table.place(np.flatnonzero(missing))}", BLANKS, name,
            unlabelled,
        )  # fmt: skip


def _codes(
    table: RawTable, name: str, raw: RawColumn, classes: Sequence[Any], problems: Problems, unlabelled: str
) -> np.ndarray:
    """The number of the class of each label."""
    words, missing = raw.words(), raw.missing
    _check_labelled(table, name, missing, problems, unlabelled)
    codes = codes_of(words, classes)
    if (unknown := (codes < 0) & ~missing).any():
        rows, known = np.flatnonzero(unknown), join_names([repr(c) for c in classes], most=8)
        problems.add(
            f"{table.name}: column {name!r} has {quoted(list(dict.fromkeys(words[rows])))} on {table.place(rows)}, not one of the "
            f"classes ({known})", UNKNOWN, name, "Write the classes alike at every site.",
        )  # fmt: skip
    return codes.astype(float)


def _row_numbers(table: RawTable, name: str | None, problems: Problems) -> np.ndarray | None:
    """The column of weights or offsets, which has a number in every row."""
    raw = None if name is None else _raw(table, name, problems)
    return None if name is None or raw is None else _numbers(table, name, raw, "refuse", problems, "Mend these rows.")


# --- propose ---


def propose(
    tables: Sequence[RawTable],
    label: str | Sequence[str] | None = None,
    *,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    leave_out: Sequence[str] = (),
    weight: str | None = None,
    offset: str | None = None,
    stratum: str | None = None,
    classifies: bool | None = None,
    dates: Mapping[str, str] | None = None,
    keep: Sequence[str] = (),
    leaves_out: bool = False,
) -> Schema:
    """Propose a schema for the tables of several sites.

    A column of numbers with missing values is imputed with the mean over all rows; missing words are a level. Levels are
    sorted; of two levels such as "yes" and "no" the negative one is the reference.

    Parameters
    ----------
    tables : sequence of RawTable
        One for each site.
    label : str or sequence of str, optional
        The column of labels; several are several outcomes.
    features : sequence of str, optional
        The columns to use; all others by default.
    drop : sequence of str
        Columns to leave out, which some table must have.
    leave_out : sequence of str
        Columns to leave out where they are, such as that of the sites.
    weight, offset, stratum : str, optional
        Columns of row weights, offsets and strata.
    classifies : bool, optional
        Whether labels are classes: also numbers then. By default words are classes and numbers are numbers.
    dates : mapping of str to str, optional
        Columns of dates to use: "year", or a date to count the days from.
    keep : sequence of str
        Columns to use although they look like identifiers or names.
    leaves_out : bool, default=False
        Whether dates, identifiers, names and free text are left out, with a note for each. Otherwise free text is refused, and the
        others are columns like any.

    Returns
    -------
    Schema
        Without unresolved columns; `notes` say what was left out.

    Raises
    ------
    TableError
        With everything in which the tables differ, and every column that cannot be encoded.
    """
    problems = Problems()
    labels: list[str] = [label] if isinstance(label, str) else list(label or ())
    rows = [name for name in (weight, offset, stratum) if name is not None]
    names = select_columns(tables, [*labels, *rows], features, drop, leave_out, problems)
    columns: dict[str, Column] = {}
    left_out: list[str] = []
    known = {name: parts for name in names if (parts := [(t, t.columns[name]) for t in tables if name in t.columns])}
    _check_named(known, dates or {}, "dates")
    _check_named(known, keep, "keep")
    for name, parts in known.items():
        if dates and name in dates:
            missing = any(raw.missing.any() for _, raw in parts)
            columns[name] = NumericColumn("mean" if missing else "refuse", dates[name])
            continue
        if leaves_out and name not in keep and (why := _why_left_out(name, [raw for _, raw in parts])):
            if features is None:
                left_out.append(why)
                continue
            if ": dates (" in why:  # which are asked for, and have to become numbers
                problems.add(why.replace(f"{LEFT_OUT};", "; which number do they stand for?"), WORDS, name)
                continue
        if (found := _proposed(name, parts, problems, name in keep)) is not None:
            columns[name] = found
    made = None
    if label is not None:
        parts = [(table, table.columns[labels[0]]) for table in tables if labels[0] in table.columns]
        several = len(labels) > 1 or not isinstance(label, str)
        classes = None if several or not parts else _classes(labels[0], parts, classifies, problems)
        made = Label(label if isinstance(label, str) else tuple(labels), classes)
    if left_out and not columns:
        problems.add(f"no column is left: {'; '.join(left_out)}", FREE_TEXT)
    problems.check()
    notes = tuple(note for table in tables for note in table.notes)
    schema = Schema(columns, made, weight, offset, stratum, (*notes, *left_out))
    schema.check()
    return resolve(schema, tables)


def select_columns(
    tables: Sequence[RawTable],
    reserved: Sequence[str],
    features: Sequence[str] | None,
    drop: Sequence[str],
    leave_out: Sequence[str],
    problems: Problems,
) -> list[str]:
    """The columns of features, in the order of the first table; every table must have them and the `reserved` ones."""
    first, left_out = tables[0], {*reserved, *drop, *leave_out}
    for name in drop:
        if not any(name in table.columns for table in tables):
            has = join_names(list(first.columns), most=12)
            problems.add(f"drop={name!r}: no file has this column; {first.name} has {has}", ABSENT, name)
    names = [c for c in first.columns if c not in left_out] if features is None else list(features)
    if not names or left_out.intersection(names):
        need = "at least one feature column, and none may be the label, the site or dropped"
        problems.add(
            f"features={join_names(names, most=12) or 'none'}: {first.name} needs {need} ({', '.join(sorted(left_out))})",
            ABSENT,
        )
    for table in tables:
        for name in dict.fromkeys([*reserved, *leave_out, *names]):
            if name not in table.columns and not (name in leave_out and table is not first):
                _raw(table, name, problems)
        extra = [c for c in table.columns if c not in left_out and c not in names] if features is None else []
        for name in extra:
            problems.add(
                f"{table.name} has a column {name!r} that {first.name} has not", DIFFERENT, name,
                f"Leave it out with drop={name!r}, or name the columns to use with features=.",
            )  # fmt: skip
    return names


Parts = Sequence[tuple[RawTable, RawColumn]]


def _check_named(known: Mapping[str, Parts], names: Iterable[str], option: str) -> None:
    """Refuse a name in an option that is no column of features."""
    for name in names:
        if name not in known:
            has = join_names([repr(c) for c in known], most=12)
            raise InputError(f"{option}={name!r} is not a column of features; there are {has}.")


def _why_left_out(name: str, parts: Sequence[RawColumn]) -> str:
    """Why a column is no variable as it is, and how to use it all the same; "" for one that is."""
    parts = [raw for raw in parts if not raw.missing.all()]  # what has no value is refused elsewhere
    if not parts:
        return ""
    if dates := span(parts):
        first = dates.partition(" ")[0]
        use = f"dates={{{name!r}: 'year'}} uses the year, dates={{{name!r}: {first!r}}} the days since {first}"
        return f"{name}: dates ({dates}){LEFT_OUT}; {use}"
    use = f"keep={name!r} uses it all the same"
    if all(raw.is_numeric for raw in parts):
        return f"{name}: numbers its rows{LEFT_OUT} as an identifier; {use}" if is_identifier(name, parts) else ""
    if any(raw.is_numeric for raw in parts):
        return ""  # words at one site, numbers at another: which is refused
    values = [value for raw in parts for value in raw.values if value is not None]
    if _mostly_numbers(values):
        return ""
    levels = len(set(values))
    if levels > max(FEW_LEVELS, len(values) / 2) or are_names(parts):
        return f"{name}: {levels} different values in {len(values)} rows{LEFT_OUT} as names, codes or free text; {use}"
    return ""


def _mostly_numbers(values: Sequence[str]) -> bool:
    """Whether words are many different numbers for the most part: a mistake in the file rather than names."""
    numbers = {value for value in set(values) if as_numbers([value]) is not None}
    return len(numbers) > FEW_LEVELS and sum(value in numbers for value in values) > len(values) / 2


def _proposed(name: str, parts: Parts, problems: Problems, kept: bool = False) -> Column | None:
    missing = any(raw.missing.any() for _, raw in parts)
    parts = [(table, raw) for table, raw in parts if not raw.missing.all()]  # no value: neither numbers nor words
    if not parts:
        problems.add(f"column {name!r} has no value at all", BLANKS, name, f"Leave it out with drop={name!r}.")
        return None
    if not _alike(name, parts, problems):
        return None
    if parts[0][1].is_numeric:
        return NumericColumn("mean" if missing else "refuse")
    if _is_free_text(name, parts, problems, kept):
        return None
    _check_capitals(name, parts, problems)
    levels = ordered_levels(parts)
    return CategoricalColumn(tuple(levels), "level" if missing else "refuse")


def ordered_levels(parts: Parts) -> list[str]:
    """The levels of a column of words that some row has: in the order of its category, where it has one, or sorted."""
    found = {word for _, raw in parts for word in raw.words() if word is not None}
    order = parts[0][1].levels
    if order is None or any(raw.levels != order for _, raw in parts):
        return sorted_levels(found)
    return [level for level in order if level in found]


def _alike(name: str, parts: Parts, problems: Problems) -> bool:
    """Whether a column is one of numbers in all tables, or one of words in all of them; notes a problem if not."""
    words = [(table, raw) for table, raw in parts if not raw.is_numeric]
    numbers = [table for table, raw in parts if raw.is_numeric]
    if not words or not numbers:
        return True
    table, raw = words[0]
    row = next((i for i, v in enumerate(raw.values) if v is not None and as_numbers([v]) is None), 0)
    problems.add(
        f"column {name!r} is numbers in {join_names([t.name for t in numbers])} and words in "
        f"{join_names([t.name for t, _ in words])} ({quoted([raw.values[row]])}, {table.place([row])} of {table.name})",
        DIFFERENT, name, "Write a column alike at every site, or say with missing= which words mean 'no value'.",
    )  # fmt: skip
    return False


def _is_free_text(name: str, parts: Parts, problems: Problems, kept: bool) -> bool:
    """Whether a column of words has too many to be levels; notes the problem."""
    values = [value for _, raw in parts for value in raw.values if value is not None]
    levels = set(values)
    numbers = {value for value in levels if as_numbers([value]) is not None}
    table, raw = parts[0]
    if len(numbers) > FEW_LEVELS and numbers == levels:
        problems.add(
            f"{table.name}: column {name!r} has numbers with a decimal point, such as {quoted([raw.values[~raw.missing][0]])}, and "
            "was read with a decimal comma", WORDS, name, "Say decimal='.', or mend these values.",
        )  # fmt: skip
    elif len(numbers) > FEW_LEVELS and sum(v in numbers for v in values) > len(values) / 2:
        table, raw = next((t, r) for t, r in parts if any(v is not None and v not in numbers for v in r.values))
        rows = np.flatnonzero([v is not None and v not in numbers for v in raw.values])
        problems.add(
            f"{table.name}: column {name!r} has numbers, and {quoted(list(dict.fromkeys(raw.values[rows])))} on {table.place(rows)}",
            WORDS, name, "Mend these values, or say with missing= which of them mean 'no value'.",
        )  # fmt: skip
    elif len(levels) > max(FEW_LEVELS, len(values) / 2) and not kept:
        ids = all(LONG_INTEGER.fullmatch(v) or v in numbers for v in levels)
        what = "whole numbers beyond 2**53, which a float cannot hold" if ids else "free text or an identifier"
        found = (
            f"column {name!r} has {len(levels)} different values in {len(values)} rows, such as {quoted([values[0]])}"
        )
        problems.add(
            f"{join_names([t.name for t, _ in parts])}: {found}: {what}",
            FREE_TEXT,
            name,
            f"Leave it out with drop={name!r}, or give its levels in a schema.",
        )
    else:
        return False
    return True


def _check_capitals(name: str, parts: Parts, problems: Problems) -> None:
    """Note a level that one table has in capitals, and another one not."""
    seen: dict[str, tuple[str, RawTable]] = {}
    for table, raw in parts:
        mine = {word for word in raw.values if word is not None}
        for word in sorted(mine):
            other, there = seen.setdefault(word.casefold(), (word, table))
            if other != word and there is not table and other not in mine:
                problems.add(
                    f"column {name!r} has {other!r} in {there.name} and {word!r} in {table.name}: one level but for capitals",
                    DIFFERENT, name, "Write a level alike at every site.",
                )  # fmt: skip


def _classes(name: str, parts: Parts, classifies: bool | None, problems: Problems) -> tuple[Any, ...] | None:
    """The classes of labels: words, and numbers if they are classes."""
    parts = [(table, raw) for table, raw in parts if not raw.missing.all()]
    if not parts or not _alike(name, parts, problems):
        return None
    each = [set(raw.values[~raw.missing].tolist()) for _, raw in parts]
    numeric, union = parts[0][1].is_numeric, set().union(*each)
    whole = numeric and all(float(v).is_integer() for v in union)
    if numeric and (classifies is False or not whole):
        return None
    if not numeric:
        _check_capitals(name, parts, problems)
        if len(union) > max(FEW_LEVELS, sum(raw.values.size for _, raw in parts) / 2):
            problems.add(f"column {name!r} has {len(union)} different labels: they are no classes", FREE_TEXT, name)
            return None
    two = [classes for classes in each if len(classes) == 2]
    if len(parts) > 1 and len(two) == len(each) and len(union) > 2:
        shown = [
            f"{' and '.join(map(_shown, sorted_labels(c)))} in {t.name}" for (t, _), c in zip(parts, each, strict=True)
        ]
        problems.add(
            f"the labels {name!r} are {join_names(shown, '; ')}: two classes in each, and {len(union)} together", DIFFERENT, name,
            "Write the classes alike at every site, or name all of them in a schema.",
        )  # fmt: skip
    if numeric and not classifies:
        return None
    return tuple(int(v) for v in sorted(union)) if numeric else tuple(sorted_levels(union))


def label_classes(tables: Sequence[RawTable], label: str, classifies: bool | None) -> tuple[Any, ...] | None:
    """The classes of the labels of several tables; None where labels are numbers and no classes."""
    problems = Problems()
    parts = [(table, table.columns[label]) for table in tables if label in table.columns]
    found = _classes(label, parts, classifies, problems) if parts else None
    problems.check()
    return found


def with_positive_class(schema: Schema, event: object) -> Schema:
    """The schema with one of its two classes as the last one, which is the event."""
    assert schema.label is not None
    classes = schema.label.classes
    if classes is None or len(classes) != 2:
        found = "no classes" if classes is None else f"{len(classes)} classes"
        raise InputError(
            f"positive_class={event!r}: the label {schema.label.column!r} has {found}; an event is one of two."
        )
    at = int(codes_of(np.array([str(event)], object), classes)[0])
    if at < 0:
        raise InputError(
            f"positive_class={event!r} is not a class of {schema.label.column!r}. Give {join_names(list(map(_shown, classes)), ' or ')}."
        )
    return replace(schema, label=replace(schema.label, classes=(classes[1 - at], classes[at])))


def with_events(schema: Schema, tables: Sequence[RawTable], event: object) -> Schema:
    """The schema with the two values of the last column of labels as 0 and 1: survival data.

    `event` is the value that means that the event happened; None for 1, or for the other one of no, false or the like.
    """
    assert schema.label is not None
    name = schema.label.column[-1]
    parts = [raw for table in tables if (raw := table.columns.get(name)) is not None]
    found = sorted_levels(set().union(*(raw.words()[~raw.missing].tolist() for raw in parts)))
    if event is None and {_value(word) for word in found} <= {0.0, 1.0}:
        return schema
    shown = join_names([repr(word) for word in found], " and ", most=8)
    if len(found) > 2:
        raise InputError(
            f"the column {name!r} says whether the event happened, and has {len(found)} values: {shown}. Give a column of two: 1 where it "
            "happened and 0 where not."
        )
    if event is None and [word.casefold() in NEGATIVE_WORDS for word in found] != [True, False]:
        raise InputError(
            f"the column {name!r} says whether the event happened, and has {shown}. Say which is the event, such as "
            f"positive_class={found[-1]!r}."
        )
    at = len(found) - 1 if event is None else int(codes_of(np.array([str(event)], object), found)[0])
    if at < 0:
        raise InputError(
            f"positive_class={event!r} is not a value of the column {name!r} of events, which has {shown}."
        )
    other = found[1 - at] if len(found) > 1 else f"not {found[at]}"
    return replace(schema, label=replace(schema.label, events=(other, found[at])))


def events_as_numbers(table: RawTable, schema: Schema) -> RawTable:
    """The table with 0 and 1 in the column of events, whatever words are there: its schema names both."""
    if schema.label is None or schema.label.events is None:
        return table
    name = schema.label.column[-1]
    raw = table.columns[name]
    codes = codes_of(raw.words(), schema.label.events).astype(float)
    return replace(table, columns={**table.columns, name: RawColumn(np.where(codes < 0, np.nan, codes))})


def _shown(label: object) -> str:
    return repr(label) if isinstance(label, str) else number_text(float(label))  # pyright: ignore[reportArgumentType]


def sorted_labels(labels: set[Any]) -> list[Any]:
    """Labels of one kind in order."""
    return sorted_levels(labels) if all(isinstance(v, str) for v in labels) else sorted(labels)


# --- missing values ---


def resolve(schema: Schema, tables: Sequence[RawTable]) -> Schema:
    """The schema with the mean, or the most frequent level, over all rows in place of "mean" and "impute"."""
    columns = dict(schema.columns)
    for name in schema.unresolved:
        column, parts = columns[name], [table.columns[name] for table in tables if name in table.columns]
        fill: Callable[..., Any] = _mean if isinstance(column, NumericColumn) else _most_frequent
        columns[name] = fill(name, column, parts)
    return replace(schema, columns=columns)


def _mean(name: str, column: NumericColumn, parts: Sequence[RawColumn]) -> NumericColumn:
    if column.date is not None:
        read = [date_numbers(raw.words(), column.date) for raw in parts if not raw.missing.all()]
        values = [found[~np.isnan(found)] for found in read if not isinstance(found, str)]
    else:
        values = [raw.values[~raw.missing] for raw in parts if raw.is_numeric]
    pooled = np.concatenate(values or [np.empty(0)])
    if not len(pooled):
        raise InputError(
            f"column {name!r} has no number to take the mean of. Give impute= a number, or drop the column."
        )
    return replace(column, impute=float(pooled.mean()))


def _most_frequent(name: str, column: CategoricalColumn, parts: Sequence[RawColumn]) -> CategoricalColumn:
    counts = Counter(code for raw in parts for code in codes_of(raw.words(), column.levels).tolist() if code >= 0)
    if not counts:
        raise InputError(f"column {name!r} has none of its levels. Give missing= a level, or drop the column.")
    return replace(column, missing=column.levels[max(counts, key=lambda k: (counts[k], -k))])


# --- all tables at once ---


def encode_all(tables: Sequence[RawTable], schema: Schema, **options: Any) -> list[Encoded]:
    """Every table encoded; the problems of all of them in one error."""
    problems, found = Problems(), []
    for table in tables:
        try:
            found.append(encode(table, schema, **options))
        except InputError as problem:
            problems.extend(problem)
    problems.check()
    return found
