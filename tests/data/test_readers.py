"""Federations from files: what was written comes back, and what cannot be used is named."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.datasets import dump_svmlight_file

import compfed as cf
from compfed.data import from_csv, from_files, from_svmlight
from compfed.errors import MissingExtra


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
    with pytest.raises(cf.InputError, match=r"west\.CSV has a column 'Unnamed: 0' that north\.csv has not"):
        from_files(tmp_path, "y")
    sites = from_files(tmp_path, "y", drop="Unnamed: 0")
    assert sites.names == ("north", "south", "west")
    assert [x.item() for x in sites.features] == [1.0, 3.0, 2.0]


def test_reading_options_reach_pandas(tmp_path):
    (tmp_path / "a.csv").write_text("x;y\n1,5;0\n2,5;1\n")
    sites = from_files(tmp_path, "y", sep=";", decimal=",")
    np.testing.assert_array_equal(sites.features[0], [[1.5], [2.5]])
    bare = from_files(tmp_path, "1", sep=";", decimal=",", header=None, skiprows=1, engine="python")
    assert bare.columns == ("0",)


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
# what the files hold, how they are read, what the message must say
MISTAKES: dict[str, tuple[dict[str, str], dict[str, Any], str]] = {
    "no label": ({"a": A}, {"label": None}, r"label=None: name the column of labels"),
    "row numbers": (
        {"a": ",x,y\n0,1,0\n1,2,1\n"},
        {},
        r"a\.csv has a column without a name, 'Unnamed: 0': .* drop='Unnamed: 0', .*index_col=0",
    ),
    "a column too few": ({"a": A, "b": "z,y\n1,1\n"}, {}, r"b\.csv has no column 'x'; it has z, y"),
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
        r"b\.csv: column 'x' has 'red' in row 1 \(the first is 0\), which is not a number\. Encode .* drop='x'\.",
    ),
    "words for labels": ({"a": "x,y\n1,no\n"}, {}, r"a\.csv: column 'y' has 'no' in row 0 .* Encode it as numbers\.$"),
    "a hole": (
        {"a": "x,y\n1,0\n,1\n3,1\n,0\n"},
        {},
        r"a\.csv: column 'x' has 2 missing or infinite value\(s\), the first in row 1 .*Drop these rows.*drop='x'\.",
    ),
    "a hole among words": ({"a": "x,y\n,0\n?,1\n"}, {}, r"column 'x' has '\?' in row 1"),
    "infinity": ({"a": "x,y\n1,0\ninf,1\n"}, {}, r"column 'x' has 1 missing or infinite value\(s\), the first in row 1"),
    "a label missing": ({"a": "x,y\n1,\n2,1\n"}, {}, r"column 'y' has 1 missing .* row 0 .*impute them\.$"),
    "a row without a site": ({"a": "x,y,t\n1,0,n\n2,1,\n"}, {"site": "t"}, r"1 row\(s\) have none, the first is row 1"),
    "a date": ({"a": "x,y\n2020-01-01,1\n"}, {"parse_dates": ["x"]}, r"column 'x' has Timestamp\('2020-01-01.* not a number"),
    "no rows": ({"a": A, "b": "x,y\n"}, {}, r"site 'b' is empty"),
    "an empty file": ({"a": ""}, {}, r"a\.csv cannot be read as CSV: No columns to parse"),
    "a broken file": ({"a": "x,y\n1,0\n1,2,3,4\n"}, {}, r"a\.csv: line 3 has 4 field\(s\), the header 2 \(x, y\): which column"),
    "a field more in every line": ({"a": "x,z,y\n1,2,0,5\n2,3,1,6\n"}, {}, r"line 2 has 4 field\(s\), the header 3 \(x, z, y\)"),
    "a field more in the first line": ({"a": "x,y\n1,0,5\n2,1\n"}, {}, r"line 2 has 3 field\(s\), the header 2"),
    "a field too few": ({"a": "x,z,y\n1,2,0\n\n2,1\n"}, {}, r"line 4 has 2 field\(s\), the header 3 .* which column"),
    "a field too few beside a column left out": ({"a": "x,y,z\n2,1\n1,0,7\n"}, {"drop": "z"}, r"line 2 has 2 field\(s\)"),
    "a comma without quotes": ({"a": 'x;y\n"1;5";0\n1;5;0\n'}, {"sep": ";"}, r"line 3 has 3 field.* holds ';' itself needs quotes"),
    "a field more than the names": ({"a": "1,0,5\n2,1,6\n"}, {"names": ["x", "y"]}, r"more fields than its header"),
    "the label twice": ({"a": "x,y,y\n1,0,1\n"}, {}, r"a\.csv has two columns 'y'; which one is meant is not clear"),
    "the label twice but for a space": ({"a": "x,y, y\n1,0,1\n"}, {}, r"a\.csv has columns 'y' and ' y', which read as one name"),
    "a name with a space": ({"a": "x, y\n1,0\n"}, {}, r"no column 'y'; .* is ' y' meant\? Read with skipinitialspace"),
    "a number with an underscore": ({"a": "x,y\n1_000,0\n"}, {}, r"column 'x' has '1_000' in row 0"),
    "a category": ({"a": A}, {"dtype": {"x": "category"}}, r"a\.csv: column 'x' is categorical; .* Say which"),
    "an option pandas has not": ({"a": A}, {"seperator": ";"}, r"a\.csv cannot be read as CSV: .*seperator"),
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
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "x,y\n1,0,\n2,1,\n",  # lines that end with a delimiter, and the same with the header
        "x,y,\n1,0,\n2,1,\n",
        'x,y\n\n"1",0\n   \n2,"1"\n\n',
        '"x" ,y\n1 ,0\n2,1\n',
    ],
)
def test_what_adds_no_field_is_read_as_it_is_meant(text, tmp_path):
    (tmp_path / "a.csv").write_text(text)
    sites = from_files(tmp_path, "y")
    np.testing.assert_array_equal(sites.features[0], [[1], [2]])
    np.testing.assert_array_equal(sites.labels[0], [0, 1])


def test_row_names_are_read_where_they_are_asked_for(tmp_path):
    """Also as R writes them: with no name above them."""
    for header in ("id,x,y", "x,y"):
        (tmp_path / "a.csv").write_text(f"{header}\nann,1,0\nbob,2,1\n")
        np.testing.assert_array_equal(from_files(tmp_path, "y", index_col=0).features[0], [[1], [2]])


def test_mistakes_with_paths(tmp_path):
    with pytest.raises(cf.InputError, match=r"there is no file .*no\.csv; correct the name"):
        from_files(tmp_path / "no.csv", "y")
    with pytest.raises(cf.InputError, match="no file was given"):
        from_files([], "y")
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


@pytest.mark.parametrize(
    ("absent", "format", "extra"), [("pandas", "csv", "pandas"), ("pyarrow", "parquet", "parquet")]
)
def test_what_is_not_installed_is_named(absent, format, extra, tmp_path, monkeypatch):
    if format == "parquet":
        monkeypatch.setitem(sys.modules, "fastparquet", None)  # pandas would try it next
    monkeypatch.setitem(sys.modules, absent, None)
    (tmp_path / f"a.{format}").write_text(A)
    with pytest.raises(MissingExtra, match=rf"needs pandas.*pip install 'compfed\[{extra}\]'"):
        from_files(tmp_path, "y")
