"""A CSV file as a pandas DataFrame, if it is a table: one name per column, and as many fields in every line.

pandas alone takes a line with one field more than the header for a line that begins with a row's name, fills up a shorter
one with holes, and calls a second column `y` "y.1". Each of these puts numbers under the wrong name.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compfed.data.reading import check_names
from compfed.errors import InputError

# Options of pandas.read_csv that say how lines are cut into fields, and so what the header says.
CUTTING = (
    "comment", "compression", "delimiter", "doublequote", "encoding", "encoding_errors", "engine", "escapechar",
    "quotechar", "quoting", "sep", "skip_blank_lines", "skipinitialspace", "skiprows",
)  # fmt: skip


def read_table(path: Path, read: dict[str, Any]) -> Any:
    """The DataFrame of a CSV file; `read` are options of pandas.read_csv."""
    import pandas as pd

    # before 3.1 pandas' default may be off by the last bit, and only its C reader can be asked for more
    old = tuple(int(part) for part in pd.__version__.split(".")[:2]) < (3, 1)
    exact = {"float_precision": "round_trip"} if old and "engine" not in read else {}
    given: dict[str, Any] = {"index_col": False} | exact | read  # no column is the rows' names unless somebody says so
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            frame = pd.read_csv(path, **given)
        except pd.errors.ParserError:
            _check_lines(path, read)
            raise
    lost = any(issubclass(w.category, pd.errors.ParserWarning) and "loss of data" in str(w.message) for w in caught)
    hole = frame.shape[1] and frame.iloc[:, -1].isna().any()  # a line that is too short lacks its last field
    if lost or hole or "usecols" in read:
        _check_lines(path, read)
    if lost:
        raise InputError(f"{path.name} has lines with more fields than its header; mend them, or name all columns.")
    for w in caught:
        warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
    _check_header(path, read)
    ended = [c for c in frame.columns[-1:] if str(c).startswith("Unnamed: ") and frame[c].isna().all()]
    return frame.drop(columns=ended)  # every line, the header too, ends with a delimiter: there is no such column


def _check_header(path: Path, read: dict[str, Any]) -> None:
    """Refuse a name that stands twice in the file: pandas gives the second one another name."""
    import pandas as pd

    row = read.get("header", 0)
    if "names" in read or not (row == "infer" or isinstance(row, int)):
        return
    row = 0 if row == "infer" else int(row)
    cutting = {name: value for name, value in read.items() if name in CUTTING}
    top = pd.read_csv(path, header=None, nrows=row + 1, dtype=str, keep_default_na=False, **cutting)
    check_names(path.name, [name for name in top.iloc[row] if isinstance(name, str) and name.strip()])


def _check_lines(path: Path, read: dict[str, Any]) -> None:
    """Refuse the first line whose number of fields is not that of the first one, where that can be told."""
    header = "names" not in read and read.get("header", 0) is not None
    names_of_rows = read.get("index_col") not in (None, False)
    try:
        lines = _lines(path, read)
        _, first = next(lines, (0, []))
        width = len(first)
        for place, (number, fields) in enumerate(lines):
            if place == 0 and header and names_of_rows and len(fields) == width + 1:
                width += 1  # the column of row names has no name itself
            fits = len(fields) == width or (len(fields) > width and not any(f.strip() for f in fields[width:]))
            if not fits:  # a delimiter at the end of a line adds nothing; all else does
                raise InputError(
                    f"{path.name}: line {number} has {len(fields)} field(s), {'the header' if header else 'the first line'} "
                    f"{len(first)} ({', '.join(first[:8])}{', ...' if len(first) > 8 else ''}): which column each value belongs "
                    f"to cannot be told. Mend the line; a value that holds {_separator(read)!r} itself needs quotes around it."
                )
    except (csv.Error, UnicodeError, OSError):  # pandas reads more than this does, and says itself what is wrong
        return


def _separator(read: dict[str, Any]) -> Any:
    return read.get("sep", read.get("delimiter", ","))


def _lines(path: Path, read: dict[str, Any]) -> Iterator[tuple[int, list[str]]]:
    """The lines of the file, numbered from 1 and cut into fields; none where the options are beyond this."""
    from pandas.io.common import get_handle

    sep, skipped = _separator(read), read.get("skiprows", 0)
    if not (isinstance(sep, str) and len(sep) == 1 and isinstance(skipped, int)) or set(read) & {
        "comment", "on_bad_lines", "skipfooter", "nrows", "dialect", "lineterminator",
    }:  # fmt: skip
        return
    quotes = {
        name: read[name] for name in ("quotechar", "doublequote", "escapechar", "skipinitialspace") if name in read
    }
    compression, encoding = read.get("compression", "infer"), read.get("encoding") or "utf-8"
    with get_handle(path, "r", encoding=encoding, compression=compression) as handles:
        reader = csv.reader(handles.handle, delimiter=sep, **quotes)  # pyright: ignore[reportArgumentType]  # text, opened as such
        for fields in reader:
            if reader.line_num > skipped and any(f.strip() for f in fields):
                yield reader.line_num, fields
