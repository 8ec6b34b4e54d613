"""DataFrames with words and missing values: encode one with a schema, to fit or to predict."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from compfed._utils.arrays import group_rows
from compfed._utils.text import shapes_shown
from compfed.data.adapter import Column, Frame, as_column, column_of_values
from compfed.data.columns import read_frame
from compfed.data.encoding import LEFT_OUT, Encoded, encode, label_classes, propose, resolve
from compfed.data.raw_table import RawColumn, RawTable
from compfed.data.table_files import MISSING, _cell, _column
from compfed.data.table_problems import TableError
from compfed.errors import InputError, LeftOutWarning
from compfed.schema import CategoricalColumn, Label, Schema

BLANKS = frozenset(MISSING)


@dataclass(frozen=True, eq=False, repr=False)
class EncodedFrame:
    """The rows of a DataFrame: as they are, the schema, and encoded with it."""

    raw: RawTable
    schema: Schema
    encoded: Encoded
    __repr__ = shapes_shown


def _frame_note(note: str) -> str:
    """The note of a column that is left out, for a frame: its owner makes a number of it, or writes a schema."""
    head, _, _ = note.partition(";")
    what = (
        "make a number of it, such as its year or the days since a date"
        if ": dates (" in head
        else "name it in a Schema"
    )
    return f"{head}; {what}, to use it"


def as_schema(given: Schema | str | Path) -> Schema:
    """A schema, or that of a TOML file."""
    if isinstance(given, Schema):
        return given
    if not isinstance(given, (str, Path)) or not str(given):
        raise InputError(f"schema={given!r} must be 'auto', a Schema, or the path of one in TOML.")
    return Schema.read(given)


def text_columns(schema: Schema | None) -> tuple[str, ...]:
    """The columns that a schema compares as words."""
    if schema is None:
        return ()
    return tuple(name for name, column in schema.columns.items() if isinstance(column, CategoricalColumn))


def encode_frame(
    X: Any,
    y: Any,
    where: np.ndarray | None,
    schema: Schema | str | Path,
    *,
    classifies: bool | None = None,
    name: str = "X",
) -> EncodedFrame:
    """Encode a DataFrame and its labels.

    Parameters
    ----------
    X : DataFrame
    y : array-like, Series, DataFrame or str
        The labels, or the name of a column of X.
    where : array of shape (rows,), optional
        The site of every row: sites that differ are named.
    schema : "auto", Schema or path
    classifies : bool, optional
        Whether labels are classes; by default words are, and numbers are not.
    name : str
        The table, for messages.
    """
    frame = read_frame(X, name)
    if frame is None:
        raise InputError(f"{name}: schema= is for a DataFrame, whose columns have names; got {type(X).__name__}.")
    given = None if isinstance(schema, str) and schema == "auto" else as_schema(schema)
    raw = raw_table(frame, name, text_columns(given))
    raw, label = _with_labels(raw, y, None if given is None else given.label)
    parts = [raw] if where is None else _by_site(raw, where)
    if given is None:
        used = _proposed(parts, label, classifies)
        if some := [_frame_note(note) for note in used.notes if LEFT_OUT in note]:
            warnings.warn(" ".join(f"{note}." for note in some), LeftOutWarning, stacklevel=6)
    else:
        used = resolve(replace(given, label=_label(given, label, parts, classifies)), parts)
    return EncodedFrame(raw, used, encode(raw, used))


def _proposed(parts: Sequence[RawTable], label: str | tuple[str, ...], classifies: bool | None) -> Schema:
    """The schema for the parts of a DataFrame; errors that name an argument of a reader say what to do with a DataFrame."""
    try:
        return propose(parts, label, classifies=classifies, leaves_out=True)
    except TableError as problem:
        raise TableError(*map(_of_a_frame, (str(problem), problem.public_reason))) from None


def _of_a_frame(text: str) -> str:
    return re.sub(r"\bdrop=('[^']*'|\"[^\"]*\")", r"X.drop(columns=\1)", text)


def encode_to_predict(frame: Frame, schema: Schema, name: str) -> Encoded:
    """Encode rows without labels; columns are found by name, and others ignored."""
    used = [c for c in frame.columns if str(c).strip() in (*schema.columns, schema.offset)]
    return encode(raw_table(frame.select(used), name, text_columns(schema)), schema, label=False)


def raw_table(frame: Frame, name: str, text: Sequence[str] = ()) -> RawTable:
    """A frame as a `RawTable`: the same columns as in a CSV file with these values."""
    columns = {str(c).strip(): raw_column(frame[c], str(c).strip() in text) for c in frame.columns}
    return RawTable(name, columns, np.arange(len(frame)), "row")


def raw_column(column: Column, text: bool = False) -> RawColumn:
    """A column of a frame as a `RawColumn`; categories are words."""
    values = column.values
    if column.is_numeric and not text:
        large = values.dtype.kind in "iu" and np.abs(values.astype(float)).max(initial=0.0) >= 2.0**53
        if not large or all(int(float(value)) == int(value) for value in values):
            return RawColumn(values.astype(float))
    found = _column([_cell(value) for value in values.tolist()], BLANKS, ".", text or column.categorical)
    return replace(found, levels=column.levels)


def labels_as_encoded(y: Any, schema: Schema, name: str) -> np.ndarray:
    """Labels as the schema encodes them: codes of its classes, or numbers."""
    assert schema.label is not None
    rows = len(next(iter(_label_columns(y).values())).values)
    raw, label = _with_labels(RawTable(name, {}, np.arange(rows), "row"), y, schema.label)
    found = encode(raw, Schema({}, replace(schema.label, column=label if isinstance(label, str) else tuple(label)))).y
    assert found is not None
    return found


def _with_labels(raw: RawTable, y: Any, label: Label | None) -> tuple[RawTable, str | tuple[str, ...]]:
    """The table with its labels as columns, and the names of these."""
    said = None if label is None else label.column
    if isinstance(y, str):
        if said is not None and said != y:
            raise InputError(f"y={y!r}, and the schema has the label {said!r}; give one of the two.")
        if y not in raw.columns:
            raise InputError(f"y={y!r} names a column, and {raw.name} has none of that name.")
        return raw, y
    series = _label_columns(y)
    if any(len(column.values) != len(raw.lines) for column in series.values()):
        raise InputError(f"y has {len(next(iter(series.values())).values)} rows, and {raw.name} {len(raw.lines)}.")
    given = list(series) if said is None else [said] if isinstance(said, str) else list(said)
    if len(given) != len(series):
        raise InputError(f"y has {len(series)} column(s), and the schema {len(given)} label(s): {given}.")
    if said is None:
        while set(given) & set(raw.columns):  # a column of X that has the name of y is a feature
            given = [f"label {name}" for name in given]
    columns = {**raw.columns, **dict(zip(given, series.values(), strict=True))}
    one = isinstance(said, str) or (said is None and (as_column(y) is not None or np.ndim(y) == 1))
    return replace(raw, columns=columns), given[0] if one else tuple(given)


def _label_columns(y: Any) -> dict[str, RawColumn]:
    column = as_column(y)
    if column is None and (frame := read_frame(y, "y")) is not None:
        return dict(raw_table(frame, "y").columns)
    if column is None:
        values = np.asarray(y, object if isinstance(y, (list, tuple)) else None)
        if values.ndim == 2:
            return {f"y{k}": raw_column(column_of_values(values[:, k])) for k in range(values.shape[1])}
        if values.ndim != 1:
            raise InputError(f"y must have one label for each row; got shape {np.shape(values)}.")
        column = column_of_values(values)
    return {"y" if column.name is None else str(column.name): raw_column(column)}


def _by_site(raw: RawTable, where: np.ndarray) -> Sequence[RawTable]:
    names, rows = group_rows(where)
    return [raw.take(r, f"site {str(name)!r}") for name, r in zip(names, rows, strict=True)]


def _label(schema: Schema, label: str | tuple[str, ...], parts: Sequence[RawTable], classifies: bool | None) -> Label:
    """The label of a schema, with the classes of the tables where it has none."""
    if schema.label is not None and schema.label.classes is not None:
        return schema.label
    return Label(label, label_classes(parts, label, classifies) if isinstance(label, str) else None)
