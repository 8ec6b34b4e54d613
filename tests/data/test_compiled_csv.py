"""What pyarrow cuts is what Python's csv module cuts, and its numbers are Python's; what it would cut otherwise is left to the module."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from compfed.data import compiled_csv, table_files
from compfed.data.compiled_csv import CompiledCells, split_compiled
from compfed.data.table_files import MISSING, read_table
from compfed.data.table_problems import Problems

pa = pytest.importorskip("pyarrow", reason="these tests are about pyarrow's tokenizer")


@pytest.fixture(autouse=True, scope="module")
def _small_files():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_csv, "COMPILED_FROM", 0)
        yield


def cut_by_the_csv_module(content: str, sep: str = ","):
    problems = Problems()
    lines, header, columns = table_files._split_quoted(Path("t.csv"), content, sep, problems)
    problems.check()
    return list(lines), header, [list(column) for column in columns]


# --- cells ---


@given(st.text('ab1, \t\n\r\x0b\x85."', max_size=60), st.sampled_from([6, 9, 13, 1 << 22]))
@example('x,y\n1,"u\n2,v"\n', 8)  # a block that ends inside a cell
@example('x,y\n1,"u\n', 1 << 22)
@example('x,y\n1,"u', 1 << 22)
@example('x,y\n1,"a"b\n2,"a"b"c"\n3,a"b\n4,"a""b"\n5,"a"",b"\n6, "a"\n', 1 << 22)
@example('"x\n",y\n1,2\n', 1 << 22)
@example("\nx,y\n1,2\n", 1 << 22)
@example("x,y\n1,2\n\n , \n3,4\n\n\n", 1 << 22)
def test_cells_and_lines_are_those_of_the_csv_module(content, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_csv, "BLOCK", block)
        cut = split_compiled(content, ",")
    if cut is not None:
        lines, header, columns = cut
        assert (lines.tolist(), header, [list(column) for column in columns]) == cut_by_the_csv_module(content)


USUAL_FILES = {
    "plain": "x,y\n1,a\n2,b\n",
    "quotes": '"x","y"\n1,"a ""b"", c"\n"2",b\n',
    "CRLF": "x,y\r\n1,a\r\n2,b\r\n",
    "CR": "x,y\r1,a\r2,b\r",
    "no end of the last line": "x,y\n1,a\n2,b",
    "semicolons": "x;y\n1,5;a\n2,5;b\n",
    "tabs": "x\ty\n1\ta\n2\tb\n",
    "blank lines": "x,y\n\n1,a\n,\n2,b\n\n\n",
    "other scripts": "größe,y\n1,東京\n2,ü\n",
    "one column": "x\n1\n2\n",
}


@pytest.mark.parametrize("name", USUAL_FILES)
def test_usual_files_are_cut_by_pyarrow(name):
    content = USUAL_FILES[name]
    sep = next((mark for mark in ";\t" if mark in content), ",")
    cut = split_compiled(content, sep)
    assert cut is not None
    assert cut_by_the_csv_module(content, sep) == (cut[0].tolist(), cut[1], [list(column) for column in cut[2]])


@pytest.mark.parametrize("rest", ["3,c,d\n", "3\n", '3,"a\nb"\n', '"a\nb",3\n', '3,"c\n', "   \n"])
def test_a_file_that_is_cut_otherwise_is_left_to_the_csv_module(rest):
    assert split_compiled("x,y\n1,a\n", ",") is not None
    assert split_compiled(f"x,y\n1,a\n{rest}", ",") is None


def test_a_cell_too_long_for_the_csv_module_is_left_to_it():
    longest = csv.field_size_limit()
    for length, is_cut in ((longest, True), (longest + 1, False)):
        assert (split_compiled(f'"x"\n{"w" * length}\n', ",") is not None) == is_cut
    assert split_compiled(f"x\n{'w' * (longest + 1)}\n", ",") is not None  # without quotes that module is not asked


def test_large_files_alone_are_cut_by_pyarrow(monkeypatch):
    monkeypatch.setattr(compiled_csv, "COMPILED_FROM", 10)
    assert split_compiled("x,y\n1,2\n", ",") is None
    assert split_compiled("x,y\n1,2\n3,4\n", ",") is not None


def test_without_pyarrow_the_csv_module_cuts(monkeypatch, tmp_path):
    (tmp_path / "a.csv").write_text('x,"y"\n1,a\n2,b\n')
    with_pyarrow = read_table(tmp_path / "a.csv")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert split_compiled("x,y\n1,2\n", ",") is None
    without = read_table(tmp_path / "a.csv")
    for name, column in with_pyarrow.columns.items():
        assert column.values.tolist() == without.columns[name].values.tolist()


# --- numbers ---

TOKENS = st.lists(
    st.sampled_from([*"0123456789.-+e,_ ", "inf", "nan", "nan(1)", "\u00a0", "٣", "True", "E"]), max_size=6
).map("".join)


def as_compiled(cells: list[str]) -> CompiledCells:
    half = len(cells) // 2
    return CompiledCells(pa.chunked_array([pa.array(part, pa.string()) for part in (cells[:half], cells[half:])]))


@given(
    st.lists(st.one_of(TOKENS, st.floats().map(repr), st.integers().map(str), st.sampled_from(MISSING)), min_size=1, max_size=4),
    st.sampled_from([MISSING, ("NA",), ("-999", "1")]),
    st.sampled_from([".", ","]),
)  # fmt: skip
@example(["nan(1)"], MISSING, ".")
@example(["nan", "1"], ("NA",), ".")
@example(["9007199254740993", ""], MISSING, ".")
@example(["1.5", "."], MISSING, ",")
@example(["1,5", "."], MISSING, ",")
@example(["-999", "7"], ("-999",), ".")
@example([" 1", "\u00a02 ", " NA"], MISSING, ".")
@example(["True", "False", ""], MISSING, ".")
@example(["inf", ""], MISSING, ".")
@pytest.mark.parametrize("before", [0, table_files.FIRST_CELLS])
def test_columns_are_those_of_the_cells_one_by_one(before, cells, missing, decimal):
    cells = ["7"] * before + cells  # the first cells are looked at before the others
    blanks = table_files.check_reading(missing, None, None, None)
    found = table_files._column(as_compiled(cells), blanks, decimal, False)
    by_hand = table_files._column(cells, blanks, decimal, False)
    assert found.is_numeric == by_hand.is_numeric
    np.testing.assert_array_equal(found.values, by_hand.values)
    numbers = as_compiled(cells).numbers(decimal, blanks)
    if numbers is not None:  # every cell to the last bit as Python reads it
        assert decimal == "." or not any("." in cell for cell in cells if cell.strip() not in blanks)
        for cell, value in zip(cells, numbers, strict=True):
            assert (
                np.isnan(value)
                if cell.strip() in blanks
                else repr(float(cell.replace(decimal, "."))) == repr(float(value))
            )
    words = table_files._column(as_compiled(cells), blanks, decimal, True).values
    assert words.tolist() == [None if cell.strip() in blanks else cell.strip() for cell in cells]


@pytest.mark.parametrize("cells", [["1", "-2.5", "1e-05"], ["1", "", "NA"], [" 1", "2 "]])
def test_usual_numbers_are_read_by_pyarrow(cells):
    expected = [float(cell) if cell.strip(" NA") else np.nan for cell in cells]
    blanks = frozenset({"", "NA"})
    np.testing.assert_array_equal(table_files._compiled_numbers(as_compiled(cells), blanks, "."), expected)
    commas = as_compiled([cell.replace(".", ",") for cell in cells])
    np.testing.assert_array_equal(table_files._compiled_numbers(commas, blanks, ","), expected)
