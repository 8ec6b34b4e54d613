"""One file as a table, and the columns of tables that shall be one: read, agreed on, and turned into numbers."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from compfed.data.csv_files import read_table
from compfed.data.reading import as_float, check_names, check_no_category
from compfed.errors import InputError, MissingExtra
from compfed.tools.text import some

Format = Literal["csv", "parquet"]
Names = str | Sequence[str]

ENDINGS: dict[str, tuple[str, ...]] = {"csv": (".csv", ".csv.gz"), "parquet": (".parquet",)}
# What readers of files raise, their decompressors included, when a file is not what its name says.
UNREADABLE = (ValueError, TypeError, OSError, OverflowError, EOFError, MemoryError, zlib.error, lzma.LZMAError)


def read_frame(path: Path, format: Format, read: dict[str, Any]) -> Any:
    """The file as a pandas DataFrame whose columns have words for names."""
    extra, what = ("pandas", "CSV") if format == "csv" else ("parquet", "Parquet")
    try:
        import pandas as pd

        frame = pd.read_parquet(path, **read) if format == "parquet" else read_table(path, read)
    except ImportError:
        raise MissingExtra(
            "pandas" + (" with pyarrow" if extra == "parquet" else ""), extra, f"Reading {what}"
        ) from None
    except InputError:
        raise
    except UNREADABLE as problem:
        raise InputError(f"{path.name} cannot be read as {what}: {first_line(problem)}") from None
    check_names(path.name, frame.columns)
    return frame.set_axis([str(c) for c in frame.columns], axis=1)


def agreed(
    frames: dict[Path, Any], aside: Sequence[str], chosen: Sequence[str] | None, drop: Sequence[str]
) -> list[str]:
    """The feature columns that every file has, in the order of the first; refuses a file that differs."""
    first, frame = next(iter(frames.items()))
    for name in drop:
        if not any(name in other.columns for other in frames.values()):
            raise InputError(f"drop={name!r}: no file has this column; {first.name} has {_some(frame.columns)}.")
    left_out = {*aside, *drop}
    columns = [c for c in frame.columns if c not in left_out] if chosen is None else list(chosen)
    if not columns or left_out.intersection(columns):
        raise InputError(
            f"features={_some(columns) or 'none'}: {first.name} needs at least one feature column, and none of them "
            f"may be the label, the site or dropped ({_some(sorted(left_out))})."
        )
    nameless = [c for c in columns if c.startswith("Unnamed: ")]
    if nameless and chosen is None:
        raise InputError(
            f"{first.name} has a column without a name, {nameless[0]!r}, as a table has that was written with its row "
            f"numbers. Leave it out with drop={nameless[0]!r}, or read it as row numbers with index_col=0."
        )
    for path, other in frames.items():
        missing = [c for c in [*aside, *columns] if c not in other.columns]
        if missing:
            spaced = [c for c in other.columns if c.strip() == missing[0].strip()]
            hint = (
                f" Or is {spaced[0]!r} meant? Read with skipinitialspace=True, or give the name as it is."
                if spaced
                else ""
            )
            raise InputError(f"{path.name} has no column {missing[0]!r}; it has {_some(other.columns)}.{hint}")
        extra = [c for c in other.columns if c not in left_out and c not in columns]
        if extra and chosen is None:
            raise InputError(
                f"{path.name} has a column {extra[0]!r} that {first.name} has not; all files need the same columns. "
                f"Leave it out with drop={extra[0]!r}, or name the columns to use with features=."
            )
    return columns


def numbers(path: Path, column: Any, feature: bool) -> np.ndarray:
    """One column as floats; refuses words and holes, naming the first."""
    way_out = f", or leave the column out with drop={column.name!r}." if feature else "."
    check_no_category(column, path.name, column.name)
    empty = column.isna().to_numpy()
    values = np.full(len(column), np.nan)
    if is_numeric(column):
        values = column.to_numpy(float, na_value=np.nan)
    else:
        for i in np.flatnonzero(~empty):
            value = column.iloc[i]
            number = as_float(value)
            if number is None:
                raise InputError(
                    f"{path.name}: column {column.name!r} has {value!r} in row {i} (the first is 0), which is not a "
                    f"number. Encode it as numbers{way_out}"
                )
            values[i] = number
    bad = ~np.isfinite(values)
    if bad.any():
        raise InputError(
            f"{path.name}: column {column.name!r} has {bad.sum()} missing or infinite value(s), the first in row "
            f"{bad.argmax()} (the first is 0). Drop these rows, impute them{way_out}"
        )
    return values


def is_numeric(column: Any) -> bool:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return is_numeric_dtype(column) or is_bool_dtype(column)


def listed(names: Names) -> list[str]:
    listed = in_list(names)
    for name in listed:
        if not isinstance(name, str):
            raise InputError(f"{name!r} is no name of a column; give its name as in the header, or a list of names.")
    return listed


def in_list(given: Any) -> list[Any]:
    return [given] if isinstance(given, (str, Path)) or not np.ndim(given) else list(given)


def format_of(path: Path) -> Format:
    if ending_of(path, ENDINGS["csv"]):
        return "csv"
    if ending_of(path, ENDINGS["parquet"]):
        return "parquet"
    raise InputError(f"{path.name} ends neither in .csv nor in .parquet; say its format: csv, parquet or svmlight.")


def ending_of(path: Path, endings: Sequence[str]) -> str:
    """The ending that the name of the file has, in capitals or not; "" for none of them."""
    return next((path.name[-len(ending) :] for ending in endings if path.name.lower().endswith(ending)), "")


def first_line(problem: BaseException) -> str:
    if isinstance(problem, OverflowError):
        return "a feature index is too large; the largest there can be is 2147483647"
    return next(iter(str(problem).strip().splitlines()), type(problem).__name__)


def _some(names: Iterable[Any]) -> str:
    return some([str(name) for name in names], most=12)
