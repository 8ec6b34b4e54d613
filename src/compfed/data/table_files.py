"""One file or DataFrame as a `RawTable`: the only reader of CSV and Parquet, for Python, the commands and the sites.

Nothing is guessed about a value: a column holds numbers if all its cells are numbers, and words otherwise. About a CSV file
the separator, the decimal mark and the encoding are guessed, unless they are given, and a file that can be read in two ways is refused.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from compfed._utils.text import join_names
from compfed._utils.validation import is_missing
from compfed.data.columns import check_column_names, is_numeric
from compfed.data.raw_table import RawColumn, RawTable, number_text, words_array
from compfed.data.table_problems import Problems, quoted
from compfed.errors import InputError, MissingExtra

if TYPE_CHECKING:
    import pandas as pd

Format = Literal["csv", "parquet"]
ENDINGS: dict[str, tuple[str, ...]] = {"csv": (".csv", ".csv.gz"), "parquet": (".parquet",)}
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "None", "?", ".", "-")  # cells without a value
SEPARATORS = (",", ";", "\t", "|")
LINES_TRIED = 50  # to find the separator
UNREADABLE = (ValueError, TypeError, OSError, OverflowError, EOFError, MemoryError, zlib.error)
UNNAMED = re.compile(r"(Unnamed: \d+)?")  # pandas writes this name after it has read none
COMMA_NUMBER = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
POINT_NUMBER = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
TRUTHS = frozenset({"True", "False", "TRUE", "FALSE", "true", "false"})
LONG_INTEGER = re.compile(r"[+-]?\d{16,}")


def read_table(
    path: str | Path,
    *,
    missing: Sequence[str] = MISSING,
    sep: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    format: Format | None = None,
    text: Collection[str] = (),
) -> RawTable:
    """Read a CSV or Parquet file as it is: columns of numbers or of words, missing values included.

    Parameters
    ----------
    path : path
        The file: .csv, .csv.gz or .parquet.
    missing : sequence of str
        The cells that mean "no value"; by default empty ones, NA, N/A, NaN, nan, null, None, ?, . and -.
    sep : str, optional
        The separator of a CSV file; found among comma, semicolon, tab and | by default.
    decimal : {".", ","}, optional
        The decimal mark of a CSV file. By default a comma where all numbers have it and it is not the separator.
    encoding : str, optional
        The encoding of a CSV file; by default UTF-8, and Windows-1252 for a file that is not UTF-8.
    format : {"csv", "parquet"}, optional
        By the ending of the file by default.
    text : collection of str
        Columns that are kept as words even if they hold numbers, such as the names of sites: 01 is not 1.

    Returns
    -------
    RawTable

    Raises
    ------
    TableError
        With all problems of the file, by line (1 is the header) and column.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "north.csv")
    ...     _ = path.write_text("age;bmi;smoker\\n61;22,5;yes\\n57;;no\\n")
    ...     table = read_table(path)
    >>> {name: column.values.tolist() for name, column in table.columns.items()}
    {'age': [61.0, 57.0], 'bmi': [22.5, nan], 'smoker': ['yes', 'no']}
    """
    path = Path(path)
    blanks = check_reading(missing, sep, decimal, encoding)
    if (format or format_of(path)) == "parquet":
        return table_of_frame(_read_parquet(path), path.name, missing=missing, text=text)
    return _read_csv(path, blanks, sep, decimal, encoding, text)


def check_reading(missing: Sequence[str], sep: str | None, decimal: str | None, encoding: str | None) -> frozenset[str]:
    """The cells that mean "no value"; refuses arguments of `read_table` that cannot be used."""
    words = [missing] if isinstance(missing, str) else missing
    if not isinstance(words, (list, tuple, set, frozenset)) or not all(isinstance(word, str) for word in words):
        raise InputError(f"missing={missing!r} must list the cells that mean 'no value', such as ['', 'NA'].")
    if sep is not None and (not isinstance(sep, str) or len(sep) != 1 or sep in '"\r\n'):
        raise InputError(f"sep={sep!r} must be one character, such as ';'.")
    if decimal is not None and decimal not in (".", ","):
        raise InputError(f"decimal={decimal!r} must be '.' or ','.")
    if sep is not None and sep == decimal:
        raise InputError(f"sep={sep!r} and decimal={decimal!r} are the same; they must differ.")
    if encoding is not None:
        try:
            "".encode(encoding)
        except (LookupError, TypeError, ValueError):
            raise InputError(f"encoding={encoding!r} is not known; give 'utf-8' or 'cp1252', say.") from None
    return frozenset(word.strip() for word in words) | {""}


def format_of(path: Path) -> Format:
    """The format of a file, by its ending."""
    for format in get_args(Format):
        if ending_of(path, ENDINGS[format]):
            return format
    raise InputError(f"{path.name} ends neither in .csv nor in .parquet; say its format: csv, parquet or svmlight.")


def ending_of(path: Path, endings: Sequence[str]) -> str:
    """The one of the endings that a file name has, in capitals or not; "" for none."""
    return next((path.name[-len(ending) :] for ending in endings if path.name.lower().endswith(ending)), "")


def first_line(problem: BaseException) -> str:
    """The first line of an error's message, or its type."""
    if isinstance(problem, OverflowError):
        return "a feature index is too large; the largest there can be is 2147483647"
    return next(iter(str(problem).strip().splitlines()), type(problem).__name__)


# --- CSV ---


def _read_csv(
    path: Path,
    blanks: frozenset[str],
    sep: str | None,
    decimal: str | None,
    encoding: str | None,
    text: Collection[str],
) -> RawTable:
    content = _decoded(path, encoding)
    try:
        sep = sep or _separator(content)
        records = list(_records(content, sep))
    except csv.Error as problem:
        raise InputError(f"{path.name} cannot be read as CSV: {problem}. Is a quote not closed?") from None
    if not records:
        raise InputError(f"{path.name} cannot be read as CSV: it is empty. It needs a header and rows.")
    if content.count('"') % 2 and any("\n" in cell for cell in records[-1][1]):
        raise InputError(f"{path.name}: a quote that opens on line {records[-1][0]} or before is not closed. Close it.")
    (_, names), rows = records[0], records[1:]
    problems = Problems()
    _check_header(path, names, blanks, problems)
    _check_widths(path, names, rows, sep, problems)
    problems.check()
    columns = list(zip(*(cells[: len(names)] for _, cells in rows), strict=True)) or [()] * len(names)
    columns, names, notes = _without_row_numbers(path, names, columns, problems)
    check_column_names(path.name, names)
    mark = decimal or _decimal(
        path, sep, [(name, c) for name, c in zip(names, columns, strict=True) if name not in text]
    )
    found = {n: _column(c, blanks, mark, n in text) for n, c in zip(names, columns, strict=True)}
    return RawTable(path.name, found, np.array([line for line, _ in rows], int), notes=notes)


def _decoded(path: Path, encoding: str | None) -> str:
    try:
        data = path.read_bytes()
        if ending_of(path, (".gz",)):
            data = gzip.decompress(data)
    except UNREADABLE as problem:
        raise InputError(f"{path.name} cannot be read as CSV: {first_line(problem)}") from None
    guessed = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    if encoding is not None and encoding.lower().replace("_", "-") in ("utf-8", "utf8"):
        encoding = "utf-8-sig"  # with or without a byte order mark
    for codec in (encoding,) if encoding else (guessed, "cp1252", "latin-1"):
        try:
            content = data.decode(codec)
            break
        except UnicodeError:
            continue
    else:
        raise InputError(f"{path.name} is not text in the encoding {encoding}; give another one, or none.")
    if "\x00" in content:
        raise InputError(f"{path.name} cannot be read as CSV: it holds bytes that are no text. Export it as CSV.")
    return content


def _records(content: str, sep: str, most: int | None = None) -> Iterator[tuple[int, list[str]]]:
    """(line, stripped cells) of every record that is not blank; the line is its first one, counted from 1."""
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=sep)
    line = 1
    for number, cells in enumerate(reader):
        if most is not None and number >= most:
            return
        cells = [cell.strip() for cell in cells]
        if any(cells):
            yield line, cells
        line = reader.line_num + 1


def _separator(content: str) -> str:
    """The separator that cuts the first lines into the same number of fields, the most fields if there are several."""

    def merit(sep: str) -> tuple[bool, int, int, bool]:
        cells = [cells for _, cells in _records(content, sep, LINES_TRIED)]
        width = len(cells[0]) if cells else 0
        alike = width > 1 and all(len(row) == width or not any(row[width:]) for row in cells if len(row) >= width)
        alike = alike and all(len(row) >= width for row in cells)
        numbers = sum(_is_number(cell.replace(",", ".")) for row in cells[1:] for cell in row)
        return alike, width, numbers, sep == ","

    return max(SEPARATORS, key=merit)


def _check_header(path: Path, names: Sequence[str], blanks: frozenset[str], problems: Problems) -> None:
    given = [name for name in names if name]
    if given and all(_is_number(name.replace(",", ".")) or name in blanks for name in given):
        problems.add(
            f"{path.name}: the first line has numbers only ({join_names(list(names), most=5)}), so the file seems to have no header",
            way_out="Write a first line with the names of the columns.",
        )


def _check_widths(
    path: Path, names: Sequence[str], rows: Sequence[tuple[int, list[str]]], sep: str, problems: Problems
) -> None:
    """Note the lines that have another number of fields than the header."""
    width = len(names)
    # a delimiter at the end of a line adds no field
    odd = [(line, len(cells)) for line, cells in rows if len(cells) < width or any(cells[width:])]
    if not odd:
        return
    lines = join_names([f"line {line} has {fields} field(s)" for line, fields in odd])
    top = f"the header {width} ({join_names(list(names), most=8)})"
    row_names = " If the first field of each line is a row name, give it a name in the header."
    problems.add(
        f"{path.name}: {lines}, {top}: which column each value belongs to is not clear",
        way_out=f"Mend the line; a value that holds {sep!r} itself needs quotes around it."
        + row_names * (len(odd) == len(rows) and all(fields == width + 1 for _, fields in odd)),
    )


def _without_row_numbers(
    path: Path, names: list[str], columns: list[tuple[str, ...]], problems: Problems
) -> tuple[list[tuple[str, ...]], list[str], tuple[str, ...]]:
    """Columns without those that have no name: empty ones, and a first one of row numbers; others are refused."""
    kept, notes = [], ()
    for j, (name, cells) in enumerate(zip(names, columns, strict=True)):
        if not UNNAMED.fullmatch(name):
            kept.append(j)
        elif not name and not any(cells):
            continue  # every line ends with a delimiter
        elif j == 0 and len(names) > 1 and all(cell.isdecimal() for cell in cells) and len(set(cells)) == len(cells):
            notes = (f"{path.name}: the first column has no name and numbers the rows; it was left out.",)
        else:
            problems.add(
                f"{path.name}: column {j + 1} of {len(names)} has no name, and values such as {quoted(cells[:2])}",
                way_out="Give it a name in the header; drop= then leaves it out.",
            )
    problems.check()
    return [columns[j] for j in kept], [names[j] for j in kept], notes


def _decimal(path: Path, sep: str, columns: Sequence[tuple[str, Sequence[str]]]) -> str:
    """The decimal mark: a comma if it is not the separator and all numbers with a fraction have it."""
    if sep == ",":
        return "."
    cells = [cell for _, column in columns for cell in column if "," in cell or "." in cell]
    commas = [cell for cell in cells if COMMA_NUMBER.fullmatch(cell)]
    points = [cell for cell in cells if POINT_NUMBER.fullmatch(cell)]
    if not commas:
        return "."
    if points:
        both = f"{path.name} has numbers with a decimal comma ({commas[0]}) and with a decimal point ({points[0]})"
        raise InputError(f"{both}. Say which it is, decimal=',' or decimal='.', and mend the others.")
    if all(THOUSANDS.fullmatch(cell) for cell in commas):
        raise InputError(
            f"{path.name}: is {commas[0]} a fraction, or has it a comma between thousands? Say decimal=',' for a fraction; "
            "otherwise export the file without such commas."
        )
    return ","


def _column(cells: Sequence[str], blanks: frozenset[str], decimal: str, text: bool) -> RawColumn:
    present = [cell for cell in cells if cell not in blanks]
    if not text:
        numbers = as_numbers(present, decimal)
        if numbers is not None:
            values = np.full(len(cells), np.nan)
            values[[cell not in blanks for cell in cells]] = numbers
            return RawColumn(values)
    return RawColumn(words_array([None if cell in blanks else cell for cell in cells]))


def as_numbers(cells: Sequence[str], decimal: str = ".") -> np.ndarray | None:
    """Cells as floats; None if one is not a number, or is a whole number that a float cannot hold.

    Truth values are 1 and 0 where there is nothing else.

    >>> as_numbers(["1", "2.5"]), as_numbers(["1", "no"]), as_numbers(["9007199254740993"])
    (array([1. , 2.5]), None, None)
    """
    if cells and TRUTHS.issuperset(cells):
        return np.array([cell.lower() == "true" for cell in cells], float)
    everything = "".join(cells)
    if "_" in everything or not everything.isascii():  # Python reads 1_000, and digits of other scripts
        return None
    if decimal == ",":
        if "." in everything:
            return None
        cells = [cell.replace(",", ".") for cell in cells]
    try:
        found = np.array([float(cell) for cell in cells], float)
    except ValueError:
        return None
    if np.isnan(found).any():  # the word "nan" where it is not one for a missing value
        return None
    large = np.flatnonzero(np.abs(found) >= 2.0**53)
    inexact = any(
        LONG_INTEGER.fullmatch(cells[i]) and np.isfinite(found[i]) and int(found[i]) != int(cells[i]) for i in large
    )
    return None if inexact else found


def _is_number(cell: str) -> bool:
    return cell != "" and as_numbers([cell]) is not None


# --- Parquet and DataFrames ---


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        import pandas as pd

        frame = pd.read_parquet(path)
    except ImportError:
        raise MissingExtra("pandas with pyarrow", "parquet", "Reading Parquet") from None
    except UNREADABLE as problem:
        raise InputError(f"{path.name} cannot be read as Parquet: {first_line(problem)}") from None
    named = [name for name in frame.index.names if name is not None]
    return frame.reset_index(level=named) if named else frame


def table_of_frame(
    frame: pd.DataFrame, name: str, *, missing: Sequence[str] = MISSING, text: Collection[str] = ()
) -> RawTable:
    """A DataFrame as a `RawTable`: the same columns as in a CSV file with these values."""
    check_column_names(name, frame.columns)
    blanks = check_reading(missing, None, None, None)
    columns = {
        str(c).strip(): column_of_series(frame.iloc[:, j], blanks, str(c).strip() in text)
        for j, c in enumerate(frame.columns)
    }
    return RawTable(name, columns, np.arange(len(frame)), "row")


def column_of_series(column: Any, blanks: frozenset[str] = frozenset(MISSING), text: bool = False) -> RawColumn:
    """A Series as a `RawColumn`; categories are words."""
    if is_numeric(column) and not text:
        values = column.to_numpy(float, na_value=np.nan)
        large = column.dtype.kind in "iu" and np.nanmax(np.abs(values), initial=0.0) >= 2.0**53
        if not large or all(int(float(value)) == int(value) for value in column.dropna()):
            return RawColumn(values)
    cells = [_cell(value) for value in column.tolist()]
    return _column(cells, blanks, ".", text or str(column.dtype) == "category")


def _cell(value: object) -> str:
    if isinstance(value, str):
        return value.strip()
    if is_missing(value):
        return ""
    if isinstance(value, (float, np.floating)):
        return number_text(float(value))
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
