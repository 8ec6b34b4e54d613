"""Schema: what every column of a table is, so that all sites encode their rows alike. It holds no row.

A schema is written as TOML (`Schema.read`, `Schema.to_toml`):

    [columns.age]                      # numbers
    impute = "mean"
    [columns.sex]
    levels = ["female", "male"]        # the first is the reference
    [label]
    column = "died"
    classes = ["no", "yes"]
    [rows]
    weight = "w"

How rows are encoded with it is in `data.encoding`.
"""

from __future__ import annotations

import datetime
import difflib
import importlib
import json
import math
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from compfed._utils.plain import JsonObject, Record
from compfed._utils.text import join_names
from compfed._utils.validation import is_number
from compfed.errors import InputError

MISSING_LEVEL = "(missing)"  # the level of rows without a value, where that is a level of its own
OTHER_LEVEL = "(other)"  # the level of rows whose value is not among the levels
# of two levels with one of these words, it comes first
NEGATIVE_WORDS = frozenset({
    "no", "n", "false", "f", "nein", "nej", "non", "negative", "neg", "absent", "none", "never", "control", "normal", "healthy",
    "unexposed", "off", "without",
})  # fmt: skip
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
ROW_COLUMNS = ("weight", "offset", "stratum")


@dataclass(frozen=True)
class NumericColumn:
    """A column of numbers.

    Parameters
    ----------
    impute : "refuse", "mean" or float, default="refuse"
        The number that stands for a missing value. "mean" is the mean over all sites, which `Schema.agree` and
        ``schema="auto"`` replace by a number. "refuse" refuses a table with missing values.
    date : str, optional
        For a column of dates: "year", or a date such as "2019-03-01" to count the days from. The year, or the number of days, is
        the feature.
    """

    impute: Literal["refuse", "mean"] | float = "refuse"
    date: str | None = None


@dataclass(frozen=True)
class CategoricalColumn:
    """A column of words: one feature for each level but the first, the reference.

    Parameters
    ----------
    levels : sequence of str
        All levels, agreed between the sites. The first is the reference.
    missing : "refuse", "level", "impute" or a level, default="refuse"
        "level" makes missing values a level of their own. A level stands for them. "impute" is the most frequent level
        over all sites, which `Schema.agree` and ``schema="auto"`` replace by its name.
    other : "refuse", "level" or "reference", default="refuse"
        What a value that is not among the levels becomes: an error, a level of its own, or the reference.
    """

    levels: tuple[str, ...]
    missing: str = "refuse"
    other: Literal["refuse", "level", "reference"] = "refuse"

    @property
    def encoded_levels(self) -> tuple[str, ...]:
        """The levels that have a feature of their own."""
        more = (OTHER_LEVEL,) * (self.other == "level") + (MISSING_LEVEL,) * (self.missing == "level")
        return self.levels[1:] + more


Column: TypeAlias = NumericColumn | CategoricalColumn


@dataclass(frozen=True)
class Label:
    """The column of labels, or several for several outcomes; for a classifier also its classes, the last one the event.

    Of survival data, (time, event) or (entry, time, event), `events` may name the two values of the last column: no event, and the event.
    """

    column: str | tuple[str, ...]
    classes: tuple[Any, ...] | None = None  # words or numbers, as they are in the table
    events: tuple[Any, Any] | None = None


@dataclass(frozen=True)
class Schema:
    """What every column of a table is.

    Parameters
    ----------
    columns : mapping of str to NumericColumn or CategoricalColumn
        The features, in their order.
    label : Label, optional
    weight, offset, stratum : str, optional
        Columns with the weight, the offset and the stratum of a row.

    Examples
    --------
    >>> schema = Schema.from_toml('''
    ... [columns.age]
    ... [columns.sex]
    ... levels = ["female", "male"]
    ... [label]
    ... column = "died"
    ... classes = ["no", "yes"]
    ... ''')
    >>> schema.feature_names
    ('age', 'sex=male')
    """

    columns: Mapping[str, Column]
    label: Label | None = None
    weight: str | None = None
    offset: str | None = None
    stratum: str | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)  # remarks of the agreement, for a person

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the encoded features: a column of numbers keeps its name, a level is "column=level"."""
        found = []
        for name, column in self.columns.items():
            levels = column.encoded_levels if isinstance(column, CategoricalColumn) else None
            found += [name] if levels is None else [f"{name}={level}" for level in levels]
        return tuple(found)

    @property
    def source_columns(self) -> tuple[str, ...]:
        """The column that each encoded feature comes from."""
        found = []
        for name, column in self.columns.items():
            found += [name] * (len(column.encoded_levels) if isinstance(column, CategoricalColumn) else 1)
        return tuple(found)

    @property
    def comparisons(self) -> tuple[str, ...]:
        """What the coefficient of each encoded feature compares: a unit, or a level with the reference."""
        found = []
        for column in self.columns.values():
            if isinstance(column, CategoricalColumn):
                found += [f"against {column.levels[0]}"] * len(column.encoded_levels)
            else:
                found.append({None: "per unit", "year": "per year"}.get(column.date, "per day"))
        return tuple(found)

    @property
    def unresolved(self) -> tuple[str, ...]:
        """Columns whose missing values stand for a mean or a most frequent level that is not known yet."""
        return tuple(
            name
            for name, column in self.columns.items()
            if (isinstance(column, NumericColumn) and column.impute == "mean")
            or (isinstance(column, CategoricalColumn) and column.missing == "impute")
        )

    @classmethod
    def agree(cls, federation: Any) -> Schema:
        """A schema that all sites of a federation agree on. One message after the enrolments.

        The sites' own proposals are merged: kinds, the union of the levels, classes. Missing numbers become the mean over all
        sites. Under a disclosure policy a site names levels and classes that at least `min_level_rows` of its rows have. A level
        that no site names becomes the reference; one that some site names is a level at every site.

        Parameters
        ----------
        federation : Sites, InProcess, or what `cf.network.connect` returns

        Returns
        -------
        Schema
            Without unresolved columns; `notes` say what was decided. `to_toml` writes the file that every site needs.

        Raises
        ------
        InputError
            With everything in which the sites differ.
        """
        tables = importlib.import_module("compfed.federation.tables")  # a layer above
        return tables.agree_schema(federation)

    # --- TOML ---

    @classmethod
    def read(cls, path: str | Path) -> Schema:
        """Read a schema from a TOML file."""
        path = Path(path)
        try:
            return cls.from_toml(path.read_text(encoding="utf-8"), str(path))
        except OSError as problem:
            raise InputError(f"{path}: {problem.strerror}. Give the path of a schema in TOML.") from None
        except UnicodeDecodeError:
            raise InputError(f"{path} is not UTF-8 text. Save the schema as UTF-8.") from None

    @classmethod
    def from_toml(cls, text: str, where: str = "the schema") -> Schema:
        """The schema of a TOML text; every problem names the table and the key."""
        try:
            given = tomllib.loads(text)
        except tomllib.TOMLDecodeError as problem:
            raise InputError(f"{where} is not TOML: {problem}.") from None
        _check_keys(given, ("columns", "label", "rows"), where)
        columns = {name: _column(name, table, where) for name, table in _table(given, "columns", where).items()}
        rows = _table(given, "rows", where)
        _check_keys(rows, ROW_COLUMNS, f"{where}, [rows]")
        for name, value in rows.items():
            _check_text(value, f"{where}, [rows]: {name}")
        schema = cls(columns, _label(_table(given, "label", where), where), **rows)
        schema.check(where)
        return schema

    def to_toml(self) -> str:
        """The schema as TOML."""
        lines = [f"# {note}" for note in self.notes]
        for name, column in self.columns.items():
            lines.append(f"[columns.{_text(name)}]")
            if isinstance(column, NumericColumn):
                lines += [] if column.impute == "refuse" else [f"impute = {_value(column.impute)}"]
                lines += [] if column.date is None else [f"date = {_value(column.date)}"]
            else:
                lines.append(f"levels = {_value(column.levels)}")
                lines += [] if column.missing == "refuse" else [f"missing = {_value(column.missing)}"]
                lines += [] if column.other == "refuse" else [f"other = {_value(column.other)}"]
        if self.label is not None:
            lines += ["[label]", f"column = {_value(self.label.column)}"]
            lines += [] if self.label.classes is None else [f"classes = {_value(self.label.classes)}"]
            lines += [] if self.label.events is None else [f"events = {_value(self.label.events)}"]
        rows = {name: value for name in ROW_COLUMNS if (value := getattr(self, name)) is not None}
        lines += ["[rows]"] * bool(rows) + [f"{name} = {_value(value)}" for name, value in rows.items()]
        return "\n".join(lines) + "\n"

    def check(self, where: str = "the schema") -> None:
        """Refuse a schema that uses a column twice or makes two features of one name."""
        labels = () if self.label is None else self.label.column
        labels = (labels,) if isinstance(labels, str) else labels
        rows = [name for role in ROW_COLUMNS if (name := getattr(self, role)) is not None]
        used = [*self.columns, *labels, *rows]
        for names, what in ((used, "column"), (self.feature_names, "feature")):
            seen = set[str]()
            twice = next((name for name in names if name in seen or seen.add(name)), None)
            if twice is not None:
                raise InputError(f"{where} uses the {what} {twice!r} twice. Leave one of them out, or rename it.")


def sorted_levels(levels: Collection[str]) -> list[str]:
    """Levels in order: numbers by value, words by letter, and of two the negative one first.

    >>> sorted_levels({"yes", "no"}), sorted_levels({"10", "9"})
    (['no', 'yes'], ['9', '10'])
    """
    found = sorted(levels)
    if found and all(NUMBER.fullmatch(level) for level in found):
        return sorted(found, key=lambda level: (float(level), level))
    negative = [level.casefold() in NEGATIVE_WORDS for level in found]
    return found[::-1] if negative == [False, True] else found


def level_text(value: float | str) -> str:
    """A number as the word of a level, a whole number without a decimal point; a word as it is.

    >>> level_text(2.0), level_text(0.5), level_text("2.0")
    ('2', '0.5', '2.0')
    """
    return value if isinstance(value, str) else number_text(float(value))


def number_text(value: float) -> str:
    """A number as a word: 1.0 is "1".

    >>> number_text(1.0), number_text(0.5)
    ('1', '0.5')
    """
    return str(int(value)) if math.isfinite(value) and value == int(value) and abs(value) < 1e15 else repr(float(value))


def check_date_meaning(meaning: object, what: str) -> None:
    """Refuse what is neither "year" nor a date to count days from."""
    try:
        if meaning != "year":
            datetime.date.fromisoformat(str(meaning))
    except ValueError:
        raise InputError(
            f"{what} = {meaning!r} must be 'year', or a date such as '2019-03-01' to count days from."
        ) from None


def toml_key(name: str) -> str:
    """A name as a key of TOML: quoted, unless it is of letters, digits, hyphens and underscores alone.

    >>> toml_key("age"), toml_key("b.m.i")
    ('age', '"b.m.i"')
    """
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


# --- reading ---


def _column(name: str, table: object, where: str) -> Column:
    here = f"{where}, [columns.{toml_key(name)}]"
    given = _check_keys(table, ("impute", "date", "levels", "missing", "other"), here)
    if "levels" not in given:
        for key in ("missing", "other"):
            if key in given:
                raise InputError(f"{here}: {key} is for a column with levels. Give levels, or impute for numbers.")
        impute = given.get("impute", "refuse")
        if impute not in ("refuse", "mean") and not is_number(impute):
            raise InputError(f"{here}: impute = {impute!r} must be a number, 'mean' or 'refuse'.")
        date = given.get("date")
        if date is not None:
            check_date_meaning(date, f"{here}: date")
        return NumericColumn(impute if isinstance(impute, str) else float(impute), None if date is None else str(date))
    if "date" in given:
        raise InputError(f"{here}: date is for a column of dates, which has no levels. Leave one of the two out.")
    if "impute" in given:
        raise InputError(f"{here}: impute is for a column of numbers. Give missing = 'impute' for levels.")
    levels, missing, other = given["levels"], given.get("missing", "refuse"), given.get("other", "refuse")
    if not isinstance(levels, (list, tuple)) or len(levels) < 1 or not all(isinstance(v, str) for v in levels):
        raise InputError(f"{here}: levels = {levels!r} must be a list of words, such as ['no', 'yes'].")
    if len(set(levels)) < len(levels) or {MISSING_LEVEL, OTHER_LEVEL} & set(levels):
        raise InputError(f"{here}: levels = {levels!r} must differ, and be neither {MISSING_LEVEL} nor {OTHER_LEVEL}.")
    if missing not in ("refuse", "level", "impute", *levels):
        raise InputError(f"{here}: missing = {missing!r} must be 'refuse', 'level', 'impute' or one of the levels.")
    if other not in ("refuse", "level", "reference"):
        raise InputError(f"{here}: other = {other!r} must be 'refuse', 'level' or 'reference'.")
    return CategoricalColumn(tuple(levels), missing, other)


def _label(given: Record, where: str) -> Label | None:
    if not given:
        return None
    here = f"{where}, [label]"
    _check_keys(given, ("column", "classes", "events"), here)
    column, classes, events = (given.get(name) for name in ("column", "classes", "events"))
    if isinstance(column, list) and column and all(isinstance(name, str) for name in column):
        column = tuple(column)
    elif not isinstance(column, str) or not column:
        raise InputError(f"{here}: column = {column!r} must name the column of labels.")
    if events is not None:
        if classes is not None or not isinstance(column, tuple) or not _are_classes(events) or len(events) != 2:
            raise InputError(
                f"{here}: events = {events!r} must be two words or two numbers, no event and the event, as they are in the last of the "
                "columns of time and event."
            )
        return Label(column, None, (events[0], events[1]))
    if classes is None:
        return Label(column)
    if not _are_classes(classes):
        raise InputError(f"{here}: classes = {classes!r} must be two or more words, or two or more numbers, each once.")
    return Label(column, tuple(classes))


def _are_classes(given: Any) -> bool:
    alike = isinstance(given, list) and (all(isinstance(c, str) for c in given) or all(map(is_number, given)))
    return alike and len(given) >= 2 and len(set(given)) == len(given)


def _table(given: Record, name: str, where: str) -> JsonObject:
    table = given.get(name, {})
    if not isinstance(table, dict):
        raise InputError(f"{where}: {name} must be a table, [{name}]; got {table!r}.")
    return table


def _check_keys(given: object, known: Sequence[str], where: str) -> JsonObject:
    if not isinstance(given, dict):
        raise InputError(f"{where} must be a table with the keys {join_names(list(known))}; got {given!r}.")
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            raise InputError(f"{where}: {name!r} is not a key. {hint}There are {join_names(list(known))}.")
    return given


def _check_text(value: object, where: str) -> None:
    if not isinstance(value, str) or not value:
        raise InputError(f"{where} = {value!r} must be the name of a column.")


def _text(text: str) -> str:
    """A basic string of TOML, which escapes as JSON does."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    value = value.item() if isinstance(value, np.generic) else value
    return _text(value) if isinstance(value, str) else repr(value)
