"""Federations from files: what was written comes back, and what cannot be used is named."""

from __future__ import annotations

import gzip
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.datasets import dump_svmlight_file

import compfed as cf
from compfed.data import compiled_csv, from_csv, from_files, from_svmlight, table_files
from compfed.data.table_files import read_table
from compfed.data.table_problems import Problems
from compfed.errors import MissingExtra
from compfed.schema import Label, NumericColumn


@pytest.fixture(autouse=True, scope="module", params=["without pyarrow", "with pyarrow"])
def tokenizer(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test reads its files both ways: as where pyarrow is not installed, and as large files are read where it is."""
    if request.param == "with pyarrow":
        pytest.importorskip("pyarrow", reason="one of the two ways needs pyarrow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_csv, "COMPILED_FROM", 0 if request.param == "with pyarrow" else math.inf)
        yield


def frame(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    spread = 10.0 ** rng.integers(-30, 30, (rows, 2))
    numbers = pd.DataFrame(rng.standard_normal((rows, 2)) * spread, columns=["a", "b"])
    return numbers.assign(n=rng.integers(-9, 9, rows), ill=rng.integers(0, 2, rows), flag=rng.random(rows) < 0.5)


FRAMES = {"oslo": frame(5, 0), "bonn": frame(1, 1), "rome": frame(40, 2)}
FEATURES = ["a", "b", "n", "flag"]


def write(folder: Path, format: str = "csv", **frames: pd.DataFrame) -> list[Path]:
    paths = []
    for name, table in (frames or FRAMES).items():
        paths.append(folder / f"{name}.{format}")
        if format == "csv":
            table.to_csv(paths[-1], index=False)
        else:
            table.to_parquet(paths[-1])
    return paths


def assert_same(sites: cf.data.Sites, names: list[str], columns: list[str] = FEATURES) -> None:
    assert sites.names == tuple(names)
    assert sites.columns == tuple(columns)
    for name, X, y in zip(names, sites.features, sites.labels, strict=True):
        np.testing.assert_array_equal(X, FRAMES[name][columns].to_numpy(float))  # to the last bit
        np.testing.assert_array_equal(y, FRAMES[name]["ill"].to_numpy(float))


# --- what was written comes back ---


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_one_file_per_site(tmp_path, format):
    if format == "parquet":
        pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    paths = write(tmp_path, format)
    assert_same(from_files(paths, label="ill"), ["oslo", "bonn", "rome"])  # in the order given
    assert_same(from_files(str(tmp_path), label="ill"), ["bonn", "oslo", "rome"])  # a folder: by name
    assert_same(from_files(paths[2], "ill"), ["rome"])
    renamed = [path.rename(path.with_suffix(".txt")) for path in paths]
    sites = from_files(renamed, "ill", format=format)
    assert sites.names == ("oslo.txt", "bonn.txt", "rome.txt")
    assert sites.source == {"name": "from_files", "files": list(sites.names), "label": "ill", "site": None}


def test_columns_are_chosen_dropped_and_put_in_order(tmp_path):
    paths = write(tmp_path, oslo=FRAMES["oslo"], rome=FRAMES["rome"][["flag", "ill", "n", "b", "a"]].assign(id="x"))
    assert_same(from_files(paths, "ill", drop="id"), ["oslo", "rome"])
    assert_same(from_files(paths, "ill", ["n", "a"]), ["oslo", "rome"], ["n", "a"])
    assert_same(from_files(paths, "ill", features="b"), ["oslo", "rome"], ["b"])
    assert_same(from_files(paths, "ill", drop=["id", "flag", "n"]), ["oslo", "rome"], ["a", "b"])


def test_several_labels_are_several_outputs(tmp_path):
    sites = from_files(write(tmp_path), label=["ill", "n"], features=["a", "b"])
    for table, y in zip(FRAMES.values(), sites.labels, strict=True):
        np.testing.assert_array_equal(y, table[["ill", "n"]])


def test_one_file_with_a_site_column(tmp_path):
    town = np.repeat(list(FRAMES), [len(table) for table in FRAMES.values()])
    table = pd.concat(FRAMES.values()).assign(town=town).sample(frac=1, random_state=0)
    assert (table["town"].to_numpy() != town).any()  # the rows of a site are scattered
    table.to_csv(tmp_path / "all.csv", index=False)
    sites = from_csv(tmp_path / "all.csv", "ill", site="town")
    assert sites.names == ("bonn", "oslo", "rome")
    assert sites.columns == tuple(FEATURES)
    for name, X, y in zip(sites.names, sites.features, sites.labels, strict=True):
        mine: Any = table[table["town"] == name]
        np.testing.assert_array_equal(X, mine[FEATURES].to_numpy(float))
        np.testing.assert_array_equal(y, mine["ill"])


def test_numbered_sites_in_several_files_are_sorted_as_numbers(tmp_path):
    for name, rows in {"one": "1,0,10\n2,1,9\n", "two": "3,0,10\n"}.items():
        (tmp_path / f"{name}.csv").write_text("x,y,site\n" + rows)
    sites = from_files(tmp_path, "y", site="site")
    assert sites.names == ("9", "10")
    np.testing.assert_array_equal(sites.features[1], [[1], [3]])
    (tmp_path / "two.csv").write_text("x,y,site\n3,0,10\n4,1,north\n")
    assert from_files(tmp_path, "y", site="site").names == ("10", "9", "north")  # words: sorted as words


def test_capitals_and_compression_in_names(tmp_path):
    (tmp_path / "north.csv").write_text("x,y\n1,0\n")
    (tmp_path / "west.CSV").write_text(",x,y\n0,2,1\n")
    with gzip.open(tmp_path / "south.csv.gz", "wt") as file:
        file.write("x,y\n3,1\n")
    sites = from_files(tmp_path, "y")
    assert sites.names == ("north", "south", "west")
    assert [x.item() for x in sites.features] == [1.0, 3.0, 2.0]


def test_numbers_in_other_clothes(tmp_path):
    pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    table = pd.DataFrame(
        {"y": [1, 0], "whole": pd.array([1, 2], "Int64"), "kind": pd.Categorical([3, 4]), "word": ["5", "6e1"]}
    )
    table.to_parquet(tmp_path / "a.parquet")
    np.testing.assert_array_equal(from_files(tmp_path, "y").features[0], [[1, 3, 5], [2, 4, 60]])


# --- svmlight ---


def matrices() -> list[tuple[scipy.sparse.csr_matrix, np.ndarray]]:
    rng = np.random.default_rng(0)
    # scikit-learn writes 16 digits, which hold multiples of 1/1024 exactly
    X = [rng.integers(-2048, 2048, (m, 6)) / 1024 * (rng.random((m, 6)) < 0.4) for m in (4, 9)]
    return [(scipy.sparse.csr_matrix(x), rng.choice([-1.0, 1.0], len(x))) for x in X]


@pytest.mark.parametrize("zero_based", [True, False])
def test_svmlight_is_the_sparse_matrix(tmp_path, zero_based):
    for name, (x, y) in zip("ab", matrices(), strict=True):
        dump_svmlight_file(x, y, str(tmp_path / f"{name}.svm"), zero_based=zero_based)
    dump = [tmp_path / "a.svm", tmp_path / "b.svm"]
    separate, folder = from_svmlight(dump, features=6), from_svmlight(tmp_path, features=6)
    together = from_svmlight(dump, sites=["x"] * 4 + ["y"] * 9, features=6)
    assert separate.names == folder.names == ("a", "b")
    assert together.names == ("x", "y")
    for sites in (separate, folder, together):
        for (x, y), X, Y in zip(matrices(), sites.features, sites.labels, strict=True):
            np.testing.assert_array_equal(X, x.toarray())
            np.testing.assert_array_equal(Y, y)


def test_svmlight_files_agree_on_the_columns(tmp_path):
    (tmp_path / "a").write_text("1 1:2\n-1 2:3\n")
    (tmp_path / "a.t").write_text("1 4:5\n")
    sites = from_svmlight([tmp_path / "a", tmp_path / "a.t"])
    assert sites.names == ("a", "a.t")
    np.testing.assert_array_equal(sites.features[0], [[2, 0, 0, 0], [0, 3, 0, 0]])
    np.testing.assert_array_equal(sites.features[1], [[0, 0, 0, 5]])
    one = from_svmlight(tmp_path / "a", sites=[7, 7])
    assert (one.names, one.sizes.tolist()) == (("7",), [2])


# --- mistakes ---

A = "x,y\n1,0\n2,1\n"
W = "x,w,y\n1,1,0\n2,3,1\n"
# what the files hold, how they are read, what the message must say
MISTAKES: dict[str, tuple[dict[str, str], dict[str, Any], str]] = {
    "no label": ({"a": A}, {"label": None}, r"label=None: name the column of labels"),
    "a column too few": ({"a": A, "b": "y\n1\n"}, {}, r"b\.csv has no column 'x'; it has y\.$"),
    "a column too many": ({"a": A, "b": "x,y,z\n1,1,1\n"}, {}, r"b\.csv has a column 'z' that a\.csv has not.*drop='z'"),
    "label not there": ({"a": A}, {"label": "ill"}, r"a\.csv has no column 'ill'; it has x, y"),
    "site not there": ({"a": A}, {"site": "town"}, r"a\.csv has no column 'town'; it has x, y"),
    "feature not there": ({"a": A}, {"features": ["z"]}, r"a\.csv has no column 'z'; it has x, y"),
    "the label as a feature": ({"a": A}, {"features": ["x", "y"]}, r"features=x, y: .* none may be the label"),
    "no feature": ({"a": "y\n1\n"}, {}, r"features=none: a\.csv needs at least one feature column"),
    "dropped what is not there": ({"a": A}, {"drop": "z"}, r"drop='z': no file has this column; a\.csv has x, y"),
    "words in a feature": (
        {"a": A, "b": "x,y\n1,0\nred,1\n"},
        {},
        r"b\.csv: column 'x' must be numbers, and has 'red' on line 3\. Give schema=\"auto\".* drop=\.$",
    ),
    "words for labels": (
        {"a": "x,y\n1,no\n"}, {}, r"a\.csv: column 'y' must be numbers, and has 'no' on line 2.*schema=\"auto\".*words are classes"
    ),
    "a hole": (
        {"a": "x,y\n1,0\n,1\n3,1\n,0\n"}, {}, r"a\.csv: column 'x' has 2 missing value\(s\), on lines 3, 5\. Give schema=\"auto\""
    ),
    "a hole with a mark": ({"a": "x,y\n,0\n?,1\n"}, {}, r"column 'x' has 2 missing value\(s\), on lines 2, 3"),
    "a mark that is none": ({"a": "x,y\n1,0\n?,1\n"}, {"missing": ["NA"]}, r"column 'x' must be numbers, and has '\?' on line 3"),
    "nan as a word": ({"a": "x,y\n1,0\nnan,1\n"}, {"missing": ["NA"]}, r"must be numbers, and has 'nan' on line 3"),
    "infinity": ({"a": "x,y\n1,0\ninf,1\n"}, {}, r"column 'x' is infinite on line 3"),
    "a label missing": ({"a": "x,y\n1,\n2,1\n"}, {}, r"column 'y' has 1 missing value\(s\), on line 2\. Drop rows without a label"),
    "a row without a site": ({"a": "x,y,t\n1,0,n\n2,1,\n"}, {"site": "t"}, r"a\.csv: column 't' names no site on line 3"),
    "no rows": ({"a": A, "b": "x,y\n"}, {}, r"b.csv has a header and no rows"),
    "an empty file": ({"a": ""}, {}, r"a\.csv cannot be read as CSV: it is empty"),
    "bytes": ({"a": "x,y\n\0,1\n"}, {}, r"a\.csv cannot be read as CSV: it holds bytes that are no text"),
    "a broken file": ({"a": "x,y\n1,0\n1,2,3,4\n"}, {}, r"a\.csv: line 3 has 4 field\(s\), the header 2 \(x, y\): which column"),
    "a field more in every line": ({"a": "x,z,y\n1,2,0,5\n2,3,1,6\n"}, {}, r"line 2 has 4 field\(s\), line 3 .* row name"),
    "a field more in the first line": ({"a": "x,y\n1,0,5\n2,1\n"}, {}, r"line 2 has 3 field\(s\), the header 2"),
    "a field too few": ({"a": "x,z,y\n1,2,0\n\n2,1\n"}, {}, r"line 4 has 2 field\(s\), the header 3 .* which column"),
    "a field too few beside a column left out": ({"a": "x,y,z\n2,1\n1,0,7\n"}, {"drop": "z"}, r"line 2 has 2 field\(s\)"),
    "a comma without quotes": ({"a": 'x;y\n"1;5";0\n1;5;0\n'}, {"sep": ";"}, r"line 3 has 3 field.* holds ';' itself needs quotes"),
    "a quote not closed": ({"a": 'x,t,y\n1,u,0\n2,"v,1\n'}, {"drop": "t"}, r"line 3"),
    "a quote not closed at the end": ({"a": 'x,y,t\n1,0,"u\n2,1,v\n'}, {"drop": "t"}, r"a quote that opens on line 2 or before"),
    "the label twice": ({"a": "x,y,y\n1,0,1\n"}, {}, r"a\.csv has two columns 'y'; which one is meant is not clear"),
    "the label twice but for a space": ({"a": "x,y, y\n1,0,1\n"}, {}, r"a\.csv has two columns 'y'; which one is meant"),
    "a number with an underscore": ({"a": "x,y\n1_000,0\n"}, {}, r"column 'x' must be numbers, and has '1_000' on line 2"),
    "digits of another script": ({"a": "x,y\n\u0663,0\n"}, {}, r"column 'x' must be numbers"),
    "no header": ({"a": "5,1.5,0\n6,2.5,1\n"}, {}, r"the first line has numbers only \(5, 1\.5, 0\).* no header\. Write a first line"),
    "no header and a hole": ({"a": "5,?,0\n6,2.5,1\n"}, {}, r"the first line has numbers only"),
    "a column without a name": ({"a": "x,,y\n1,2,0\n"}, {}, r"column 2 of 3 has no name, and values such as '2'"),
    "row names without a name": ({"a": ",x,y\nann,1,0\n"}, {}, r"column 1 of 3 has no name, and values such as 'ann'"),
    "a whole number too long": ({"a": "x,y\n9007199254740993,0\n2,1\n"}, {}, r"column 'x' must be numbers, and has '9007199254740993'"),
    "a comma and a point": ({"a": "x;z;y\n1,5;2.5;0\n"}, {}, r"a decimal comma \(1,5\) and with a decimal point \(2\.5\)"),
    "thousands or a fraction": ({"a": "x;y\n1,500;0\n2,750;1\n"}, {}, r"is 1,500 a fraction, or has it a comma between thousands"),
    "a feature twice": ({"a": A}, {"features": ["x", "x"]}, r"features=\['x', 'x'\] names the column 'x' twice"),
    "a label twice": ({"a": A}, {"label": ["y", "y"]}, r"label=\['y', 'y'\] names the column 'y' twice"),
    "the label as weight": ({"a": W}, {"weight": "y"}, r"label='y' and weight='y' name one column, which can be only one of the"),
    "the label as offset": ({"a": W}, {"offset": "y"}, r"label='y' and offset='y' name one column"),
    "weight and offset": ({"a": W}, {"weight": "w", "offset": "w"}, r"weight='w' and offset='w' name one column"),
    "the site as label": ({"a": W}, {"site": "y"}, r"label='y' and site='y' name one column"),
    "the site as weight": ({"a": W}, {"site": "w", "weight": "w", "schema": "auto"}, r"site='w' and weight='w' name one column"),
    "the label left out": ({"a": W}, {"drop": "y"}, r"label='y' and drop='y' name one column"),
    "the site as weight of a schema": (
        {"a": W}, {"site": "w", "schema": cf.Schema({"x": NumericColumn()}, Label("y"), weight="w")}, r"site='w' and weight='w'",
    ),
    "two characters between": ({"a": A}, {"sep": "::"}, r"sep='::' must be one character"),
    "another decimal mark": ({"a": A}, {"decimal": "'"}, r"decimal=\"'\" must be '\.' or ','"),
    "an unknown encoding": ({"a": A}, {"encoding": "klingon"}, r"encoding='klingon' is not known"),
    "a number for a missing mark": ({"a": A}, {"missing": 9}, r"missing=9 must list the cells"),
    "an unknown format": ({"a": A}, {"format": "svmlight"}, r"format='svmlight' must be one of 'csv', 'parquet'.*from_svmlight"),
    "an empty folder": ({}, {}, r"the folder .* has no \.csv, \.csv\.gz or \.parquet file; name the files"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_clear_error(mistake, tmp_path):
    files, how, message = MISTAKES[mistake]
    given: dict[str, Any] = {"label": "y"} | how
    for name, text in files.items():
        (tmp_path / f"{name}.csv").write_text(text)
    with pytest.raises(cf.InputError, match=message) as error:
        from_files(tmp_path, **given)
    assert "\n" not in str(error.value)  # one problem is one line


@pytest.mark.parametrize(
    "text",
    [
        "x,y\n1,0,\n2,1,\n",  # lines that end with a delimiter, and the same with the header
        "x,y,\n1,0,\n2,1,\n",
        'x,y\n\n"1",0\n   \n2,"1"\n\n',
        '"x" ,y\n1 ,0\n2,1\n',
        "x, y\n1, 0\n2, 1\n,\n",  # spaces, and a line of nothing but delimiters
        ",x,y\n0,1,0\n1,2,1\n",  # row numbers, as pandas and R write them
        '"","x","y"\n"1",1,0\n"2",2,1\n',
        "Unnamed: 0,x,y\n7,1,0\n3,2,1\n",
        "x;y\n1;0\n2;1\n",
        "x\ty\n1\t0\n2\t1\n",
        "x|y\n1|0\n2|1\n",
        "\ufeffx,y\r\n1,0\r\n2,1\r\n",
        "x;y\n1,0;0\n2,0;1,0\n",
        "x,y\n1.,0\n+2e0,1\n",
    ],
)
def test_what_adds_no_field_is_read_as_it_is_meant(text, tmp_path):
    (tmp_path / "a.csv").write_text(text)
    sites = from_files(tmp_path, "y")
    np.testing.assert_array_equal(sites.features[0], [[1], [2]])
    np.testing.assert_array_equal(sites.labels[0], [0, 1])


def test_all_problems_of_all_files_are_in_one_message(tmp_path):
    (tmp_path / "a.csv").write_text("x,z,y\n1,red,0\n,2,1\n")
    (tmp_path / "b.csv").write_text("x,z,y\n1,2,no\nfour,blue,\n")
    with pytest.raises(cf.InputError) as error:
        from_files(tmp_path, "y")
    said = str(error.value)
    assert said.startswith("5 problems:\n")
    for place in (
        "a.csv: column 'z' must be numbers, and has 'red' on line 2",
        "a.csv: column 'x' has 1 missing value(s), on line 3",
        "b.csv: column 'x' must be numbers, and has 'four' on line 3",
        "b.csv: column 'z' must be numbers, and has 'blue' on line 3",
        "b.csv: column 'y' must be numbers, and has 'no' on line 2",
    ):
        assert place in said
    for k in range(12):
        (tmp_path / f"c{k}.csv").write_text("x,z,y\n1,red,0\n")
    with pytest.raises(cf.InputError, match=r"And 7 more\."):
        from_files(tmp_path, "y")


def test_files_that_cannot_be_read_are_all_named(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1\n")
    (tmp_path / "b.csv").write_text("")
    with pytest.raises(cf.InputError, match=r"(?s)a\.csv: line 2 has 1 field.*b\.csv cannot be read as CSV"):
        from_files(tmp_path, "y")


def test_lines_are_those_of_the_file(tmp_path):
    """Also after blank lines, and after values with line breaks inside quotes."""
    (tmp_path / "a.csv").write_text('x,t,y\n\n1,"a\nb\nc",0\n\nred,d,1\n')
    with pytest.raises(cf.InputError, match="has 'red' on line 7"):
        from_files(tmp_path, "y", drop="t")
    lines = (tmp_path / "a.csv").read_text().split("\n")
    assert lines[6].startswith("red")


def test_semicolons_decimal_commas_and_latin_1(tmp_path):
    (tmp_path / "a.csv").write_bytes("größe;y\n1,5;0\n2,25;1\n".encode("latin-1"))
    sites = from_files(tmp_path, "y")
    assert sites.columns == ("größe",)
    np.testing.assert_array_equal(sites.features[0], [[1.5], [2.25]])
    said = from_files(tmp_path, "y", sep=";", decimal=",", encoding="latin-1")
    np.testing.assert_array_equal(said.features[0], sites.features[0])
    with pytest.raises(cf.InputError, match=r"a\.csv is not text in the encoding utf-8"):
        from_files(tmp_path, "y", encoding="utf-8")
    (tmp_path / "a.csv").write_text("x;y\n1,500;0\n")
    assert from_files(tmp_path, "y", decimal=",").features[0].tolist() == [[1.5]]
    (tmp_path / "a.csv").write_text("x,y\n1,0\n", encoding="utf-16")
    assert from_files(tmp_path, "y").features[0].tolist() == [[1.0]]


SITES = [("01", "1"), ("1.0", "1"), ("1e2", "100"), ("7", "07"), ("9007199254740993", "9007199254740992")]


@pytest.mark.parametrize("pair", SITES)
def test_names_of_sites_are_text(pair, tmp_path):
    (tmp_path / "a.csv").write_text("x,y,t\n" + "".join(f"{k},0,{name}\n" for k, name in enumerate(pair)))
    sites = from_files(tmp_path, "y", site="t")
    assert sites.names == tuple(sorted(pair))
    assert {name: X.item() for name, X in zip(sites.names, sites.features, strict=True)} == {pair[0]: 0, pair[1]: 1}


def test_hidden_files_are_no_sites(tmp_path):
    (tmp_path / "a.csv").write_text(A)
    (tmp_path / ".a.csv").write_text("junk")
    (tmp_path / "._a.csv").write_bytes(b"\x00\x05")
    assert from_files(tmp_path, "y").names == ("a",)


def test_a_named_index_of_parquet_is_a_column(tmp_path):
    pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    table = pd.DataFrame({"x": [1.0, 2.0], "y": [0, 1]})
    table.to_parquet(tmp_path / "a.parquet")
    assert from_files(tmp_path, "y").columns == ("x",)
    table.set_index(pd.Index([50, 61], name="age")).to_parquet(tmp_path / "a.parquet")
    sites = from_files(tmp_path, "y")
    assert sites.columns == ("age", "x")
    np.testing.assert_array_equal(sites.features[0], [[50, 1], [61, 2]])
    table.set_index(["x", "y"]).assign(z=3).to_parquet(tmp_path / "a.parquet")
    assert from_files(tmp_path, "y").columns == ("x", "z")
    table.assign(x=[2**53 + 1, 5]).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(cf.InputError, match="must be numbers, and has '9007199254740993' on row 0"):
        from_files(tmp_path, "y")


def test_numbers_are_read_to_the_last_bit(tmp_path):
    rng = np.random.default_rng(0)
    values = rng.standard_normal(200) * 10.0 ** rng.integers(-60, 60, 200)
    text = "x;y\n" + "".join(f"{float(v)!r};1\n".replace(".", ",") for v in values)
    (tmp_path / "a.csv").write_text(text)
    np.testing.assert_array_equal(from_files(tmp_path, "y").features[0][:, 0], values)


def test_row_numbers_left_out_are_noted(tmp_path):
    (tmp_path / "a.csv").write_text(",x,y\n0,1,0\n1,2,1\n")
    (note,) = read_table(tmp_path / "a.csv").notes
    assert note == "a.csv: the first column has no name and numbers the rows; it was left out."


def test_mistakes_with_paths(tmp_path):
    with pytest.raises(cf.InputError, match=r"there is no file .*no\.csv; correct the name"):
        from_files(tmp_path / "no.csv", "y")
    with pytest.raises(cf.InputError, match="no file was given"):
        from_files([], "y")
    for nothing in ("", " ", [""]):
        with pytest.raises(cf.InputError, match="is not a path; give the name of a file or of a folder"):
            from_files(nothing, "y")
    (tmp_path / "table.txt").write_text(A)
    with pytest.raises(cf.InputError, match=r"table\.txt ends neither in \.csv nor in \.parquet; say its format"):
        from_files(tmp_path / "table.txt", "y")
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.csv").write_text(A)
    with pytest.raises(cf.InputError, match=r"one/a\.csv and .*two/a\.csv would both be site 'a'; rename"):
        from_files([tmp_path / "one", tmp_path / "two"], "y")


def test_a_large_index_asks_for_no_more_memory_than_there_is(tmp_path):
    """One line can say that there are a billion columns: refused with the size before anything is allocated."""
    (tmp_path / "a.svm").write_text("1 3:1\n")
    (tmp_path / "b.svm").write_text("0 1000000000:1\n")
    with pytest.raises(
        cf.InputError, match=r"^b\.svm has the largest feature index, so there are 1000000000 columns: 2 x"
    ):
        from_svmlight(tmp_path)
    with pytest.raises(cf.InputError, match=r"^features=1000000000: 1 x .* GB written out"):
        from_svmlight(tmp_path / "a.svm", features=10**9)
    (tmp_path / "b.svm").write_text("0 99999999999:1\n")
    with pytest.raises(cf.InputError, match=r"^b\.svm cannot be read as svmlight: a feature index is too large"):
        from_svmlight(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "a byte changed", "no gzip at all"])
@pytest.mark.parametrize("kind", ["csv", "svmlight"])
def test_a_damaged_gzip_is_named(damage, kind, tmp_path):
    whole = gzip.compress((b"1 1:2\n" if kind == "svmlight" else b"a,y\n1,0\n") * 50)
    flipped = bytes([*whole[:12], whole[12] ^ 0xFF, *whole[13:]])
    path = tmp_path / ("a.csv.gz" if kind == "csv" else "a.svm.gz")
    path.write_bytes({"cut": whole[:-12], "a byte changed": flipped}.get(damage, b"hello"))
    with pytest.raises(cf.InputError, match=rf"^a\.\w+\.gz cannot be read as {'CSV' if kind == 'csv' else 'svmlight'}"):
        from_files([path], "y") if kind == "csv" else from_svmlight(path)


def test_mistakes_with_svmlight(tmp_path):
    (tmp_path / "a.svm").write_text("1 1:2\n")
    (tmp_path / "b.svm").write_text("1 3:x\n")
    with pytest.raises(cf.InputError, match=r"^b\.svm cannot be read as svmlight"):
        from_svmlight(tmp_path)
    (tmp_path / "b.svm").write_text("1 3:1\n")
    with pytest.raises(cf.InputError, match=r"b\.svm .*n_features was set to 2, but input file contains 3"):
        from_svmlight(tmp_path, features=2)
    with pytest.raises(cf.InputError, match=r"features=0 must be a whole number >= 1"):
        from_svmlight(tmp_path, features=0)
    with pytest.raises(cf.InputError, match=r"got shapes \(2, 3\), \(2,\) and \(1,\)"):
        from_svmlight(tmp_path, sites=["a"])
    with pytest.raises(cf.InputError, match=r"has no \.svmlight, \.libsvm or \.svm file"):
        from_svmlight(Path(__file__).parent)


@pytest.mark.parametrize("absent", ["pandas", "pyarrow"])
def test_what_is_not_installed_is_named(absent, tmp_path, monkeypatch):
    """Parquet needs pandas and pyarrow; CSV needs neither."""
    monkeypatch.setitem(sys.modules, "fastparquet", None)  # pandas would try it next
    monkeypatch.setitem(sys.modules, absent, None)
    (tmp_path / "a.csv").write_text(A)
    assert from_files(tmp_path, "y").names == ("a",)
    (tmp_path / "a.csv").rename(tmp_path / "a.parquet")
    with pytest.raises(MissingExtra, match=r"needs pandas with pyarrow.*pip install '\.\[parquet\]'"):
        from_files(tmp_path, "y")


# --- reading in bulk ---

NUMBER_CHARACTERS = st.text("0123456789.-+e", min_size=1, max_size=6)


@given(st.lists(st.one_of(NUMBER_CHARACTERS, st.floats().map(repr), st.integers().map(str)), min_size=1, max_size=4))
@example(["1e400"])
@example(["1e-400", "4.9e-324"])
@example(["-.5", "00012", "-0.0"])
@example(["1e5.3"])
@example(["1e-.5"])
@example(["1.2.3"])
@example(["1e2e3"])
@example(["1-2"])
@example(["1\n2", "3"])
@example(["123456789012345678901234567890.5"])
def test_numbers_read_in_bulk_are_those_that_python_reads(cells):
    found = table_files._plain_decimals("\n".join(("", *cells, "")), len(cells))
    if found is not None:  # None: the cells are read one by one
        np.testing.assert_array_equal(found, [float(cell) for cell in cells])  # to the last bit, but for -0.0


@given(
    st.one_of(st.text("0123456789.,-+e_nafi", min_size=1, max_size=20), st.sampled_from(["True", "false", "\u0663"])),
    st.sampled_from([".", ","]),
)
@example("nan", ".")
@example("9007199254740993", ".")
@example("TRUE", ".")
@example("1.5", ",")
@example("1,5", ",")
def test_a_cell_is_a_number_where_a_column_of_it_is(cell, decimal):
    assert table_files._is_number(cell, decimal) == (table_files.as_numbers([cell], decimal) is not None)


def test_usual_numbers_are_read_in_bulk():
    cells = ["1", "-2.5", "1e-05", "1.5e+300", "0.1"]
    found = table_files._plain_decimals("\n".join(("", *cells, "")), len(cells))
    np.testing.assert_array_equal(found, [1, -2.5, 1e-5, 1.5e300, 0.1])


@given(st.text("ab1, \t\n\r\x0b\x85.", max_size=40))
def test_a_file_without_quotes_is_read_as_by_the_csv_module(content):
    plain = table_files._split_plain(content, ",")
    if plain is not None:
        problems = Problems()
        lines, header, columns = table_files._split_quoted(Path("t.csv"), content, ",", problems)
        problems.check()
        assert (plain[0], plain[1], [list(c) for c in plain[2]]) == (lines, header, [list(c) for c in columns])


def test_a_large_file_is_read_as_pandas_reads_it(tmp_path):
    rng = np.random.default_rng(0)
    written = pd.DataFrame(
        {"x": rng.normal(size=3000), "n": rng.integers(-9, 9, 3000), "w": rng.choice(["a", "b"], 3000)}
    )
    written.loc[::7, ["x", "w"]] = None
    several: Any = ({}, {"sep": ";", "decimal": ","})
    for marks in several:
        written.to_csv(tmp_path / "t.csv", index=False, **marks)
        table = read_table(tmp_path / "t.csv")
        np.testing.assert_array_equal(table.columns["x"].values, written["x"])
        np.testing.assert_array_equal(table.columns["n"].values, written["n"])
        assert [w if w is not None else "" for w in table.columns["w"].values] == written["w"].fillna("").tolist()
