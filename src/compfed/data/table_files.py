"""One file or DataFrame as a `RawTable`: the only reader of CSV and Parquet, for Python, the commands and the sites.

Nothing is guessed about a value: a column holds numbers if all its cells are numbers, and words otherwise. About a CSV file
the separator, the decimal mark and the encoding are guessed, unless they are given, and a file that can be read in two ways is refused.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from compfed._utils.text import join_names
from compfed._utils.validation import is_missing
from compfed.data.columns import check_column_names, is_numeric
from compfed.data.compiled_csv import WHITESPACE, CompiledCells, split_compiled
from compfed.data.raw_table import RawColumn, RawTable, words_array
from compfed.data.table_problems import Problems, quoted
from compfed.errors import InputError, MissingExtra
from compfed.schema import number_text

if TYPE_CHECKING:
    import pandas as pd

Format = Literal["csv", "parquet"]
ENDINGS: dict[str, tuple[str, ...]] = {"csv": (".csv", ".csv.gz"), "parquet": (".parquet",)}
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "None", "?", ".", "-")  # cells without a value
NO_NUMBERS = frozenset(MISSING)  # none of which is a number to Python, but for nan
SEPARATORS = (",", ";", "\t", "|")
LINES_TRIED, CHARACTERS_TRIED = 50, 1_000_000  # to find the separator
UNREADABLE = (ValueError, TypeError, OSError, OverflowError, EOFError, MemoryError, zlib.error)
UNNAMED = re.compile(r"(Unnamed: \d+)?")  # pandas writes this name after it has read none
COMMA_NUMBER = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
POINT_NUMBER = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
TRUTHS = frozenset({"True", "False", "TRUE", "FALSE", "true", "false"})
LONG_INTEGER = re.compile(r"[+-]?\d{16,}")
FIRST_CELLS = 20  # that tell most columns of words from numbers
MANY_CELLS = 1000  # from which reading them in bulk is worth its start


# what may follow what in a column of numbers: kinds are digits, ".", "-", "+", "e" and the end of a line
KINDS = (b"0123456789", b".", b"-", b"+", b"e", b"\n")
FOLLOWING = {0: (0, 1, 4, 5), 1: (0,), 2: (0, 1), 3: (0,), 4: (0, 2, 3), 5: (0, 1, 2)}
KIND_OF_BYTE = bytes(next((k for k, kind in enumerate(KINDS) if byte in kind), len(KINDS)) for byte in range(256))
ALLOWED_PAIRS = bytes(first * (len(KINDS) + 1) + second for first, others in FOLLOWING.items() for second in others)


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
    """The first line of an error's message, or its type; of the operating system's errors without their number."""
    if isinstance(problem, OSError) and problem.strerror:
        return f"{problem.strerror}."
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
    content, problems = _decoded(path, encoding), Problems()
    try:
        sep = sep or _separator(content)
        lines, header, columns = (
            split_compiled(content, sep) or _split_plain(content, sep) or _split_quoted(path, content, sep, problems)
        )
    except csv.Error as problem:
        raise InputError(f"{path.name} cannot be read as CSV: {problem}. Is a quote not closed?") from None
    names = [name.strip() for name in header]
    _check_header(path, names, blanks, problems)
    problems.check()
    columns, names, notes = _without_row_numbers(path, names, columns, problems)
    check_column_names(path.name, names)
    mark = decimal or _decimal(
        path, content, sep, [c for name, c in zip(names, columns, strict=True) if name not in text]
    )
    found = {n: _column(c, blanks, mark, n in text) for n, c in zip(names, columns, strict=True)}
    return RawTable(path.name, found, np.array(lines, int), notes=notes)


Cells = tuple[Sequence[int], list[str], Sequence[Sequence[str]]]  # line of each row, counted from 1; header; columns


def _split_plain(content: str, sep: str) -> Cells | None:
    """The cells of a file without quotes whose lines all have as many fields; None for other files."""
    if '"' in content:
        return None
    if "\r" in content:
        content = content.replace("\r\n", "\n").replace("\r", "\n")
    blank = WHITESPACE + sep
    numbered = [(k, line) for k, line in enumerate(content.split("\n"), 1) if line.strip(blank)]
    if not numbered:
        return None
    width = numbered[0][1].count(sep) + 1
    if any(line.count(sep) + 1 != width for _, line in numbered):
        return None
    cells = sep.join([line for _, line in numbered]).split(sep)
    return [k for k, _ in numbered[1:]], cells[:width], [cells[width + j :: width] for j in range(width)]


def _split_quoted(path: Path, content: str, sep: str, problems: Problems) -> Cells:
    """The cells of any CSV file; notes lines that have another number of fields than the header."""
    records = list(_records(content, sep))
    if not records:
        raise InputError(f"{path.name} cannot be read as CSV: it is empty. It needs a header and rows.")
    if content.count('"') % 2 and any("\n" in cell for cell in records[-1][1]):
        raise InputError(f"{path.name}: a quote that opens on line {records[-1][0]} or before is not closed. Close it.")
    header, rows = records[0][1], records[1:]
    _check_widths(path, [name.strip() for name in header], rows, sep, problems)
    columns = list(zip(*(cells[: len(header)] for _, cells in rows), strict=not problems.found)) or [()] * len(header)
    return [line for line, _ in rows], header, columns


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


def _records(content: str, sep: str) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of every record that is not blank; the line is its first one, counted from 1."""
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=sep)
    line = 1
    for cells in reader:
        if any(map(str.strip, cells)):
            yield line, cells
        line = reader.line_num + 1


def _separator(content: str) -> str:
    """The separator that cuts the first lines into the same number of fields, the most fields if there are several."""

    head = "".join(content[:CHARACTERS_TRIED].splitlines(keepends=True)[:LINES_TRIED])
    cut = len(head) < len(content)  # perhaps inside a record

    def merit(sep: str) -> tuple[bool, int, int, bool]:
        cells = [list(map(str.strip, cells)) for _, cells in _records(head, sep)]
        cells = cells[:-1] if cut and len(cells) > 1 else cells
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
    odd = [(line, len(cells)) for line, cells in rows if len(cells) < width or any(map(str.strip, cells[width:]))]
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
    path: Path, names: list[str], columns: Sequence[Sequence[str]], problems: Problems
) -> tuple[list[Sequence[str]], list[str], tuple[str, ...]]:
    """Columns without those that have no name: empty ones, and a first one of row numbers; others are refused."""
    kept, notes = list[int](), tuple[str, ...]()
    for j, (name, cells) in enumerate(zip(names, columns, strict=True)):
        if not UNNAMED.fullmatch(name):
            kept.append(j)
        elif not name and not any(map(str.strip, cells)):
            continue  # every line ends with a delimiter
        elif (
            j == 0
            and len(names) > 1
            and all(cell.strip().isdecimal() for cell in cells)
            and len(set(cells)) == len(cells)
        ):
            notes = (f"{path.name}: the first column has no name and numbers the rows; it was left out.",)
        else:
            problems.add(
                f"{path.name}: column {j + 1} of {len(names)} has no name, and values such as {quoted(cells[:2])}",
                way_out="Give it a name in the header; drop= then leaves it out.",
            )
    problems.check()
    return [columns[j] for j in kept], [names[j] for j in kept], notes


def _decimal(path: Path, content: str, sep: str, columns: Sequence[Sequence[str]]) -> str:
    """The decimal mark: a comma if it is not the separator and all numbers with a fraction have it."""
    if sep == "," or "," not in content:
        return "."

    def numbers(pattern: re.Pattern[str], mark: str) -> Iterator[str]:
        chosen = (column.containing(mark) if isinstance(column, CompiledCells) else column for column in columns)
        return (cell for column in chosen for cell in map(str.strip, column) if pattern.fullmatch(cell))

    comma = next(numbers(COMMA_NUMBER, ","), None)
    if comma is None:
        return "."
    point = next(numbers(POINT_NUMBER, "."), None) if "." in content else None
    if point is not None:
        both = f"{path.name} has numbers with a decimal comma ({comma}) and with a decimal point ({point})"
        raise InputError(f"{both}. Say which it is, decimal=',' or decimal='.', and mend the others.")
    if all(THOUSANDS.fullmatch(cell) for cell in numbers(COMMA_NUMBER, ",")):
        raise InputError(
            f"{path.name}: is {comma} a fraction, or has it a comma between thousands? Say decimal=',' for a fraction; "
            "otherwise export the file without such commas."
        )
    return ","


def _column(cells: Sequence[str], blanks: frozenset[str], decimal: str, text: bool) -> RawColumn:
    """A column of numbers if all cells are numbers or missing, otherwise of words."""
    if isinstance(cells, CompiledCells):
        numbers = None if text else _compiled_numbers(cells, blanks, decimal)
        if numbers is not None:
            return RawColumn(numbers)
        distinct, codes = cells.distinct()
        return RawColumn(_column(distinct, blanks, decimal, text).values[codes])
    if not text and blanks <= NO_NUMBERS:
        numbers = as_numbers(cells, decimal)  # which needs no look at single cells where none is missing
        if numbers is not None:
            return RawColumn(numbers)
    cells = list(map(str.strip, cells))
    missing = list(map(blanks.__contains__, cells))
    if not text:
        present = np.logical_not(missing)
        numbers = as_numbers(list(itertools.compress(cells, present)), decimal)
        if numbers is not None:
            values = np.full(len(cells), np.nan)
            values[present] = numbers
            return RawColumn(values)
    words = words_array(cells)
    words[missing] = None
    return RawColumn(words)


def _compiled_numbers(cells: CompiledCells, blanks: frozenset[str], decimal: str) -> np.ndarray | None:
    """A column as floats, NaN for a missing value; None where it is one of words, or its cells have to be looked at."""
    first = list(map(str.strip, cells.first(FIRST_CELLS)))
    present = [cell for cell in first if cell not in blanks]
    if not all(_is_number(cell, decimal) for cell in present):
        return None
    found = cells.numbers(decimal) if len(present) == len(first) and blanks <= NO_NUMBERS else None
    return cells.numbers(decimal, blanks) if found is None else found


def as_numbers(cells: Sequence[str], decimal: str = ".") -> np.ndarray | None:
    """Cells as floats; None if one is not a number, or is a whole number that a float cannot hold.

    Truth values are 1 and 0 where there is nothing else.

    >>> as_numbers(["1", "2.5"]), as_numbers(["1", "no"]), as_numbers(["9007199254740993"])
    (array([1. , 2.5]), None, None)
    """
    if cells and TRUTHS.issuperset(cells):
        return np.array([cell.lower() == "true" for cell in cells], float)
    text = "\n" + "\n".join(cells) + "\n"
    if "_" in text or not text.isascii():  # Python reads 1_000, and digits of other scripts
        return None
    if decimal == ",":
        if "." in text:
            return None
        text = text.replace(",", ".")
    found = _plain_decimals(text, len(cells)) if len(cells) >= MANY_CELLS else None
    if found is None:
        plain = cells if decimal == "." else (cell.replace(",", ".") for cell in cells)
        try:
            found = np.fromiter(map(float, plain), float, len(cells))
        except ValueError:
            return None
    if np.isnan(found).any():  # the word "nan" where it is not one for a missing value
        return None
    large = np.flatnonzero(np.abs(found) >= 2.0**53).tolist()
    return None if any(_is_inexact(cells[i], found[i]) for i in large) else found


def _is_inexact(cell: str, value: float) -> bool:
    """Whether a cell is a whole number that a float cannot hold."""
    return bool(LONG_INTEGER.fullmatch(cell.strip())) and bool(np.isfinite(value)) and int(value) != int(cell)


def _plain_decimals(text: str, rows: int) -> np.ndarray | None:
    """The lines of a text as floats if all are numbers such as -12.5 or 1.5e-05, without spaces; None otherwise.

    SciPy's reader of Matrix Market files rounds as `float` does and is five times as fast. It may accept what is no number, so
    the form is checked before, over the whole text at once. The text begins and ends with the end of a line.
    """
    data = text.encode()
    kinds = np.frombuffer(data.translate(KIND_OF_BYTE), np.uint8)
    pairs = kinds[:-1] * np.uint8(len(KINDS) + 1) + kinds[1:]
    if pairs.tobytes().translate(None, ALLOWED_PAIRS) or text.count("\n") != rows + 1:
        return None
    marks = data.translate(None, b"0123456789-+")
    if any(wrong in marks for wrong in (b"..", b"ee", b"e.")):
        return None
    from scipy.io import mmread

    head = b"%%%%MatrixMarket matrix array real general\n%d 1" % rows
    try:
        return np.asarray(mmread(io.BytesIO(head + data)), float).reshape(-1)
    except (ValueError, OverflowError):  # beyond the largest float
        return None


def _is_number(cell: str, decimal: str = ".") -> bool:
    """Whether one cell, without spaces around it, is a number to `as_numbers`."""
    if not cell or "_" in cell or not cell.isascii() or (decimal == "," and "." in cell):
        return False
    try:
        value = float(cell.replace(",", ".") if decimal == "," else cell)
    except ValueError:
        return cell in TRUTHS
    return value == value and not _is_inexact(cell, value)


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
