"""Schemas: written as TOML and read back the same, by Python's own reader of TOML too; every mistake is named."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compfed as cf
from compfed.schema import CategoricalColumn, Label, NumericColumn, Schema

words = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=8)
levels = st.lists(words, min_size=1, max_size=4, unique=True).map(tuple)
columns = st.one_of(
    st.builds(NumericColumn, st.sampled_from(["refuse", "mean"]) | st.floats(allow_nan=False, allow_infinity=False)),
    st.builds(
        CategoricalColumn, levels, st.sampled_from(["refuse", "level", "impute"]), st.sampled_from(["refuse", "level"])
    ),
)
labels = st.none() | st.builds(
    Label,
    words.map(lambda w: f"label of {w}"),
    st.none() | st.lists(words, min_size=2, max_size=4, unique=True).map(tuple),
)


@settings(max_examples=40, deadline=None)
@given(
    columns=st.dictionaries(words, columns, max_size=4),
    label=labels,
    weight=st.none() | words.map("weight of {}".format),
)
def test_toml_and_back(columns, label, weight):
    schema = Schema(columns, label, weight=weight)
    text = schema.to_toml()
    assert set(tomllib.loads(text).get("columns", {})) == set(columns)
    try:
        again = Schema.from_toml(text)
    except cf.InputError as problem:
        assert "twice" in str(problem)  # noqa: PT017  # "a=b" may be a column and a level
        return
    assert again == schema
    assert list(again.columns) == list(columns)  # in order


def test_numbers_of_numpy_are_written_as_numbers():
    schema = Schema({"a": NumericColumn(np.float64(0.1))}, Label("y", (np.int64(1), np.int64(2))))
    assert Schema.from_toml(schema.to_toml()) == schema


def test_a_file_is_read_and_mistakes_name_it(tmp_path):
    path = tmp_path / "schema.toml"
    path.write_text('[columns.age]\n[columns.sex]\nlevels = ["f", "m"]\n', encoding="utf-8")
    schema = Schema.read(path)
    assert (schema.feature_names, schema.source_columns) == (("age", "sex=m"), ("age", "sex"))
    for text, message in (
        ("[columns", "is not TOML"),
        ("[column.age]", "'column' is not a key. Did you mean 'columns'"),
        ('[columns.age]\nimpute = "median"', r"impute = 'median' must be a number, 'mean' or 'refuse'"),
        ("[columns.sex]\nlevels = []", r"levels = \[\] must be a list of words"),
        ('[columns.sex]\nlevels = ["a", "a"]', "must differ"),
        ('[columns.y]\n[label]\ncolumn = "y"', "uses the column 'y' twice"),
        ('[columns.x]\n[label]\ncolumn = "y"\n[rows]\nweight = "w"\nstratum = "w"', "uses the column 'w' twice"),
        ('[label]\ncolumn = "y"\nclasses = [1, "2"]', "must be two or more words, or two or more numbers"),
    ):
        path.write_text(text)
        with pytest.raises(cf.InputError, match=message) as error:
            Schema.read(path)
        assert "schema.toml" in str(error.value)
    with pytest.raises(cf.InputError, match="Give the path of a schema in TOML"):
        Schema.read(tmp_path / "no.toml")
