"""Tables, files, partitions and traces, whole and damaged: refused, or read as an independent reader reads them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from oracles import answered, fuzz
from sklearn.datasets import load_svmlight_file
from strategies import DAMAGES, Rows, damaged, mostly, odd, spoiled, tables

import compfed as cf
from compfed.trace import Members, RunState

HERE = Path(tempfile.mkdtemp(prefix="compfed-fuzz-"))


# --- tables ---


@fuzz(3, rows=tables(), layout=st.sampled_from(["arrays", "table"]))
def test_tables(rows: Rows, layout: str):
    """Every row is at its site, once, and says what was given."""
    if layout == "table":
        sites, _ = answered(
            lambda: cf.data.from_table(rows.given_X, rows.signal, rows.where, sample_weight=rows.given_weights)
        )
    else:
        parts = [rows.where == i for i in np.unique(rows.where)]
        sites, _ = answered(lambda: cf.data.from_arrays([rows.X[p] for p in parts], [rows.signal[p] for p in parts]))
    for features, y, i in zip(sites.features, sites.labels, np.unique(rows.where), strict=True):
        np.testing.assert_array_equal(features, rows.X[rows.where == i])
        np.testing.assert_array_equal(y, rows.signal[rows.where == i])


@fuzz(3, rows=tables(rows=st.sampled_from([5, 12]), columns=st.integers(1, 3)), damage=st.sampled_from(DAMAGES))
def test_damaged_tables(rows: Rows, damage: str):
    given, named = damaged(damage, rows, rows.signal)
    sites, _ = answered(
        lambda: cf.data.from_table(given[0], given[1], named["sites"], sample_weight=named["sample_weight"])
    )
    assert all(np.isfinite(features).all() for features in sites.features)
    assert damage not in ("nan", "inf", "word", "complex", "3-D", "1-D", "short y", "short sites", "negative weight")


# --- files ---

CSV = b"age,dose,ill,town\n50,1.5,1,oslo\n61,-2e-3,0,rome\n70,0,1,oslo\n"
SVM = b"1 1:0.5 3:2\n0 2:1.5 # note\n1 1:-1 2:1e-3 3:4\n"


@fuzz(5, content=spoiled(CSV), zipped=mostly(False, True, of=4), site=mostly("town", None, of=3), damage=st.data())
def test_csv(content: bytes, zipped: bool, site: str | None, damage: Any):
    """What is accepted says what Python's own reader says, column by column."""
    path = HERE / ("rows.csv.gz" if zipped else "rows.csv")
    packed = damage.draw(spoiled(gzip.compress(content, mtime=0))) if zipped else content
    path.write_bytes(packed)
    drop = () if site else ("town",)
    sites, _ = answered(lambda: cf.data.from_files([path], "ill", drop=drop, site=site, sep=",", encoding="utf-8"))
    text = (gzip.decompress(packed) if zipped else content).decode("utf-8-sig")
    stripped = ([cell.strip() for cell in line] for line in csv.reader(io.StringIO(text, newline="")))
    header, *lines = [line for line in stripped if any(line)]
    table = [dict(zip(header, line, strict=True)) for line in lines]
    columns = [c for c in header if c not in ("ill", "town")]
    assert list(sites.columns or ()) == [c for c in columns]
    told = sorted(
        [*row, y]
        for X, Y in zip(sites.features, sites.labels, strict=True)
        for *row, y in np.column_stack([X, Y]).tolist()
    )
    assert told == sorted([*(float(row[c]) for c in columns), float(row["ill"])] for row in table)


@fuzz(3, content=spoiled(SVM), features=mostly(None, 3, 0, 2, -1, "3", of=3))
def test_svmlight(content: bytes, features: Any):
    path = HERE / "rows.svm"
    path.write_bytes(content)
    sites, _ = answered(lambda: cf.data.from_svmlight([path], features=features))
    X, y = load_svmlight_file(str(path))
    np.testing.assert_array_equal(sites.features[0][:, : X.shape[1]], X.toarray())
    np.testing.assert_array_equal(sites.labels[0], y)


@fuzz(2, name=st.sampled_from(["label", "features", "drop", "site", "format", "paths"]), value=odd)
def test_odd_arguments_of_from_files(name: str, value: Any):
    path = HERE / "whole.csv"
    path.write_bytes(CSV)
    given = {"paths": [path], "label": "ill", "drop": "town"} | {name: value}
    sites, _ = answered(lambda: cf.data.from_files(**given))
    assert set(sites.columns or ()) <= {"age", "dose"}


# --- traces ---


def a_trace() -> bytes:
    members = Members(("a", "b"), np.array([3, 4]), np.array([0.5, 0.5]), np.array([1.0, 2.0]))
    state = RunState(3, [np.arange(2.0)], [np.arange(4.0).reshape(2, 2)], members)
    trace = cf.Trace(
        {"round": np.arange(4.0), "objective": np.array([3.0, 2.0, 1.5, 1.2])}, np.array([1.0, 2.0]), {"seed": 0}, state
    )
    return trace.save(HERE / "whole").read_bytes()


TRACE = a_trace()


@fuzz(3, content=spoiled(TRACE))
def test_damaged_traces(content: bytes):
    """A trace that loads is the one that was saved: checksums see to that."""
    path = HERE / "damaged.npz"
    path.write_bytes(content)
    trace, _ = answered(lambda: cf.Trace.load(path))
    np.testing.assert_array_equal(trace.x, [1.0, 2.0])
    np.testing.assert_array_equal(trace["objective"], [3.0, 2.0, 1.5, 1.2])
    assert trace.state is not None
    assert trace.state.members is not None
    np.testing.assert_array_equal(trace.state.clients[0], np.arange(4.0).reshape(2, 2))


@fuzz(
    2,
    field=st.sampled_from(["provenance", "columns", "rounds", "leaves", "names"]),
    value=st.sampled_from([None, 0, -1, 7, "x", [], [1], ["x"], {}, [0, 9], 1e300]),
)
def test_traces_with_another_head(field: str, value: Any):
    with np.load(io.BytesIO(TRACE)) as stored:
        arrays = {name: stored[name] for name in stored.files}
    arrays["head"] = np.array(json.dumps(json.loads(str(arrays["head"])) | {field: value}))
    with (HERE / "other.npz").open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    trace, _ = answered(lambda: cf.Trace.load(HERE / "other.npz"))
    assert isinstance(trace.provenance, dict)
    answered(lambda: (len(trace), trace["round"]))
    if trace.state is not None:
        assert trace.state.rounds >= 0
        assert trace.state.members is None or len(trace.state.members.names) == 2


# --- partitions ---

PARTS = {
    "iid": (cf.data.partition.iid, ["rows", "sites", "seed"]),
    "size_skewed": (cf.data.partition.size_skewed, ["rows", "sites", "exponent", "seed", "min_rows"]),
    "dirichlet": (cf.data.partition.dirichlet, ["y", "sites", "alpha", "seed", "min_rows"]),
    "shards": (cf.data.partition.shards, ["y", "sites", "shards_per_site", "seed"]),
    "by_column": (cf.data.partition.by_column, ["column", "bins", "min_rows", "rest"]),
}
USUAL: dict[str, Any] = {
    "rows": 20,
    "sites": 3,
    "seed": 0,
    "exponent": 1.0,
    "min_rows": 1,
    "alpha": 0.5,
    "shards_per_site": 2,
    "bins": 3,
}
USUAL |= {"y": [0, 1, 2, 1] * 5, "column": list(range(20)), "rest": None}


@fuzz(
    4,
    kind=st.sampled_from(list(PARTS)),
    choice=st.integers(0, 4),
    value=odd | st.sampled_from([19, 20, 21, 1e-6, 1e6, 1e-300, [0] * 20, ["a"] * 20]),
)
def test_partitions(kind: str, choice: int, value: Any):
    """Every row has a site, every site as many rows as were asked for, and the same seed gives the same."""
    make, names = PARTS[kind]
    given = {name: USUAL[name] for name in names} | {names[choice % len(names)]: value}
    where, _ = answered(lambda: make(**given))
    np.testing.assert_array_equal(where, make(**given))
    column: Any = given.get("y", given.get("column", given.get("rows")))
    assert len(where) == (int(column) if np.ndim(column) == 0 else len(column))
    if kind != "by_column":
        assert set(np.unique(where)) == set(range(int(given["sites"])))
        assert np.bincount(where).min() >= given.get("min_rows", 1)
