"""The cells of a CSV file from pyarrow's tokenizer, and columns of numbers without a Python object for each cell.

A file whose rows are its lines, all with as many fields as the header, is cut as Python's csv module cuts it. For any other file, and
where pyarrow is not installed, the answer is None, and the reader in `table_files` cuts it itself.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

COMPILED_FROM = 1_000_000  # characters: fewer are read before pyarrow is imported
BLOCK = 1 << 22  # bytes that pyarrow cuts at once; no line may be longer
WHITESPACE = "".join(character for character in map(chr, range(0x3001)) if character.isspace())  # as str.strip has it
POINTS = bytes.maketrans(b",.", b".,")


def _compute() -> Any:
    """pyarrow's functions of columns, which it makes when it is imported, so that a checker of types does not know them."""
    import pyarrow.compute

    return pyarrow.compute


class CompiledCells(Sequence[str]):
    """The cells of one column. A list of them is made once one is looked at."""

    def __init__(self, cells: pa.ChunkedArray):
        self._cells = cells

    @cached_property
    def _listed(self) -> list[str]:
        return self._cells.to_pylist()  # pyright: ignore[reportReturnType]

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed)

    def __getitem__(self, place: Any) -> Any:
        return self._listed[place]

    def containing(self, mark: str) -> list[str]:
        """The cells that contain a mark, in their order."""
        pc = _compute()

        return self._cells.filter(pc.match_substring(self._cells, mark)).to_pylist()  # pyright: ignore[reportReturnType]

    def distinct(self) -> tuple[list[str], np.ndarray]:
        """The different cells, in the order in which they appear first, and the place of every cell among them."""
        encoded: Any = self._cells.dictionary_encode().unify_dictionaries()
        codes = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])
        return encoded.chunk(0).dictionary.to_pylist(), codes

    def first(self, number: int) -> list[str]:
        """The first cells."""
        return self._cells.slice(0, number).to_pylist()  # pyright: ignore[reportReturnType]

    def numbers(self, decimal: str, blanks: Collection[str] = ()) -> np.ndarray | None:
        """All cells as floats, blank ones as NaN; None where one is not a number, or has to be looked at.

        What pyarrow reads as a number is one to Python too, with the same float, but for "nan(...)". Infinite numbers and those of
        2**53 or more have to be looked at.
        """
        import pyarrow as pa

        pc = _compute()

        cells: Any = self._cells
        if blanks:
            cells = pc.utf8_trim(cells, WHITESPACE)
            blank = pc.is_in(cells, value_set=pa.array(sorted(blanks), pa.string()))
            cells = pc.if_else(blank, pa.scalar(None, pa.string()), cells)
        try:
            found = [chunk.cast(pa.float64()) for chunk in (cells.chunks if decimal == "." else _with_points(cells))]
        except pa.ArrowInvalid:
            return None
        values = np.concatenate([chunk.to_numpy(zero_copy_only=False) for chunk in found])
        nan_words = np.count_nonzero(np.isnan(values)) > cells.null_count
        return None if nan_words or np.fmax.reduce(np.abs(values), initial=0.0) >= 2.0**53 else values


def _with_points(cells: pa.ChunkedArray) -> Iterator[pa.StringArray]:
    """Cells with a decimal comma as cells with a decimal point; those with a point become what is no number."""
    import pyarrow as pa

    for chunk in cells.chunks:
        missing, ends, text = chunk.buffers()
        plain = text.to_pybytes().translate(POINTS) if text is not None else b""
        yield pa.StringArray.from_buffers(
            len(chunk), ends, pa.py_buffer(plain), missing, chunk.null_count, chunk.offset
        )


def split_compiled(content: str, sep: str) -> tuple[np.ndarray, list[str], list[CompiledCells]] | None:
    """(line of each row, header, columns) of a large file; None for a file that is not cut here."""
    if len(content) < COMPILED_FROM or not sep.isascii():
        return None
    try:
        import pyarrow as pa
        from pyarrow import csv as pyarrow_csv
    except ImportError:
        return None
    if "\r" in content:  # inside quotes too: a row is more than a line there, and the file is not cut here
        content = content.replace("\r\n", "\n").replace("\r", "\n")
    first = content[: content.find("\n") + 1]
    try:
        header = next(csv.reader([first], delimiter=sep), [])
        data = content.encode()
    except (csv.Error, UnicodeEncodeError):
        return None
    if not any(map(str.strip, header)) or "\n" in header[-1]:  # a blank line, or a quote that goes on
        return None
    names = [str(j) for j in range(len(header))]
    body = pa.py_buffer(data).slice(len(first.encode()))
    try:
        table = pyarrow_csv.read_csv(
            pa.BufferReader(body),
            read_options=pyarrow_csv.ReadOptions(use_threads=False, block_size=BLOCK, column_names=names),
            parse_options=pyarrow_csv.ParseOptions(delimiter=sep, ignore_empty_lines=False),
            convert_options=pyarrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid:  # among others: a line with another number of fields
        return None
    if table.num_rows != data.count(b"\n") - data.endswith(b"\n"):  # a cell holds the end of a line
        return None
    if '"' in content and not _is_cut_alike(table):
        return None
    lines, blank = np.arange(2, table.num_rows + 2), _blank_rows(table)
    if len(blank) == table.num_rows:
        return None
    if len(blank):
        kept = np.ones(table.num_rows, bool)
        kept[blank] = False
        table, lines = table.filter(pa.array(kept)), lines[kept]
    return lines, header, [CompiledCells(column) for column in table.columns]


def _is_cut_alike(table: pa.Table) -> bool:
    """Whether the cells of a file with quotes are those of the csv module, if every row is a line.

    A quote that is open at the end of a block closes there for pyarrow, with the end of the line in its cell, which is the last of a row.
    The csv module refuses long cells.
    """
    pc = _compute()

    if pc.any(pc.match_substring(table.column(table.num_columns - 1), "\n")).as_py():
        return False
    longest = (pc.max(pc.binary_length(column)).as_py() for column in table.columns)
    return max(longest, default=0) <= csv.field_size_limit()


def _blank_rows(table: pa.Table) -> np.ndarray:
    """The rows that hold nothing but whitespace."""
    import pyarrow as pa

    pc = _compute()

    rows = np.arange(table.num_rows)
    for column in table.columns:
        cells: Any = column if len(rows) == table.num_rows else column.take(pa.array(rows))
        rows = rows[pc.equal(pc.utf8_trim(cells, WHITESPACE), "").to_numpy()]
        if not len(rows):
            break
    return rows
