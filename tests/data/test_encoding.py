"""Schemas proposed from raw tables, and rows encoded with them: as pandas' dummies, and every problem in one message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import compfed as cf
from compfed.data.encoding import encode, propose, resolve
from compfed.data.raw_table import RawTable
from compfed.data.table_files import table_of_frame
from compfed.schema import CategoricalColumn, Label, NumericColumn, Schema


def raw(name: str = "a.csv", **columns: Any) -> RawTable:
    return table_of_frame(pd.DataFrame(columns), name)


def clinic(seed: int, rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({
        "age": rng.normal(60, 10, rows), "ward": rng.choice(["north", "south", "west"], rows), "dose": rng.integers(0, 3, rows),
        "smoker": rng.choice(np.array(["yes", "no", None], object), rows), "one": 1.0, "same": "x", "died": rng.choice(["no", "yes"], rows),
    })  # fmt: skip
    return table.mask(pd.DataFrame({"age": rng.random(rows) < 0.2}).reindex(columns=table.columns, fill_value=False))


# --- propose and encode ---


def test_encoded_features_are_the_dummies_of_the_pooled_table():
    frames = [clinic(0), clinic(1)]
    tables = [table_of_frame(frame, name) for frame, name in zip(frames, "ab", strict=True)]
    schema = propose(tables, "died")
    pooled = pd.concat(frames).drop(columns="died")
    pooled["age"] = pooled["age"].fillna(pooled["age"].mean())
    pooled["smoker"] = pd.Categorical(pooled["smoker"].fillna("(missing)"), ["no", "yes", "(missing)"])
    dummies = pd.get_dummies(pooled, prefix_sep="=", drop_first=True)
    A = np.concatenate([encode(table, schema).A for table in tables])
    assert set(schema.feature_names) == set(dummies.columns)
    np.testing.assert_allclose(A, dummies[list(schema.feature_names)].to_numpy(float), rtol=1e-14)
    assert schema.label == Label("died", ("no", "yes"))
    labels: Any = [encode(table, schema).y for table in tables]
    np.testing.assert_array_equal(np.concatenate(labels), pd.concat(frames)["died"] == "yes")
    assert schema.unresolved == ()
    assert Schema.from_toml(schema.to_toml()) == schema


def test_levels_are_in_a_sensible_order():
    table = raw(
        a=["yes", "no"] * 30,
        b=["ja", "nein"] * 30,
        c=["10 mg", "9 mg"] * 30,
        d=["case", "control"] * 30,
        y=["1", "2"] * 30,
    )
    columns: Any = propose([table], "y").columns
    assert {name: column.levels for name, column in columns.items()} == {
        "a": ("no", "yes"), "b": ("nein", "ja"), "c": ("10 mg", "9 mg"), "d": ("control", "case"),
    }  # fmt: skip


def test_numbers_are_classes_where_the_model_classifies():
    tables = [raw(x=[1.0, 2.0], y=[1, 2])]
    assert propose(tables, "y").label == Label("y", None)
    assert propose(tables, "y", classifies=True).label == Label("y", (1, 2))
    assert encode(tables[0], propose(tables, "y", classifies=True)).y.tolist() == [0, 1]  # pyright: ignore[reportOptionalMemberAccess]
    assert propose(tables, "y", classifies=False).label == Label("y", None)


def test_another_order_of_columns_is_the_same_table():
    one, other = raw(x=[1, 2], z=["a", "b"], y=[0, 1]), raw("b", y=[0, 1], z=["b", "a"], x=[3, 4])
    schema = propose([one, other], "y")
    assert encode(other, schema).A.tolist() == [[3, 1], [4, 0]]


def test_a_column_without_any_value_takes_the_kind_of_the_other_sites():
    words, numbers = raw(x=[None, None], z=["a", "b"], y=[0, 1]), raw("b", x=["u", "v"], z=[None, None], y=[0, 1])
    schema = propose([words, numbers], "y")
    assert schema.columns == {
        "x": CategoricalColumn(("u", "v"), "level"), "z": CategoricalColumn(("a", "b"), "level")
    }  # fmt: skip


def test_disagreements_are_named_in_one_error():
    one = raw("a.csv", age=[50, 61], sex=["m", "f"], dose=[1, 2], ward=["North", "south"], y=["no", "yes"])
    other = raw("b.csv", age=["50", "old"], dose=[1, 2], ward=["north", "south"], more=[1, 2], y=["nein", "ja"])
    with pytest.raises(cf.InputError) as error:
        propose([one, other], "y")
    said = str(error.value)
    assert said.startswith("5 problems:")
    for part in (
        "column 'age' is numbers in a.csv and words in b.csv ('old', row 1 (the first is 0) of b.csv)",
        "b.csv has no column 'sex'",
        "b.csv has a column 'more' that a.csv has not",
        "column 'ward' has 'North' in a.csv and 'north' in b.csv: one level but for capitals",
        "the labels 'y' are 'no' and 'yes' in a.csv; 'nein' and 'ja' in b.csv: two classes in each, and 4 together",
    ):
        assert part in said


def test_labels_0_and_1_at_one_site_and_1_and_2_at_another_are_refused():
    tables = [raw("a", x=[1, 2], y=[0, 1]), raw("b", x=[1, 2], y=[1, 2])]
    for classifies in (True, None):
        with pytest.raises(
            cf.InputError, match="the labels 'y' are 0 and 1 in a; 1 and 2 in b: two classes in each, and 3"
        ):
            propose(tables, "y", classifies=classifies)
    assert propose(tables, "y", classifies=False).label == Label("y", None)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "free text": (
        {"x": [f"note {k}" for k in range(50)]},
        r"column 'x' has 50 different values in 50 rows, .*drop='x'",
    ),
    "long numbers": ({"x": [str(2**60 + 1 + k) for k in range(50)]}, r"whole numbers beyond 2\*\*53"),
    "a word among numbers": ({"x": [*map(str, range(49)), "<5"]}, r"'x' has numbers, and '<5' on row 49 .*missing="),
    "nothing": ({"x": [None] * 50}, r"column 'x' has no value at all\. Leave it out with drop='x'"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_columns_that_cannot_be_encoded(what):
    columns, message = REFUSED[what]
    with pytest.raises(cf.InputError, match=message):
        propose([raw(**columns, z=range(50), y=[0, 1] * 25)], "y")
    schema = propose([raw(**columns, z=range(50), y=[0, 1] * 25)], "y", drop=["x"])
    assert schema.feature_names == ("z",)


def test_a_few_numbers_with_a_word_are_levels():
    schema = propose([raw(stage=["1", "2", "3", "3a"] * 20, y=[0, 1] * 40)], "y")
    assert schema.columns["stage"] == CategoricalColumn(("1", "2", "3", "3a"))


# --- encode with a schema of one's own ---

SCHEMA = Schema({
    "age": NumericColumn(50.0),
    "sex": CategoricalColumn(("f", "m"), missing="m", other="reference"),
    "ward": CategoricalColumn(("1", "2"), missing="level", other="level"),
}, Label("y", ("no", "yes")), weight="w", offset="o", stratum="s")  # fmt: skip


def test_every_rule_of_a_schema():
    table = raw(
        w=[1, 2, 0, 3], y=["no", "yes", "no", "yes"], age=[None, 1, 2, 3], sex=["f", None, "x", "m"], ward=[1.0, 2.0, None, 7.0],
        o=[0.5, 0, 0, 1], s=["u", "v", "u", "v"], other=range(4),
    )  # fmt: skip
    found = encode(table, SCHEMA)
    assert found.columns == ("age", "sex=m", "ward=2", "ward=(other)", "ward=(missing)")
    assert found.A.tolist() == [[50, 0, 0, 0, 0], [1, 1, 1, 0, 0], [2, 0, 0, 0, 1], [3, 1, 0, 1, 0]]
    assert found.y is not None
    assert found.weights is not None
    assert found.offset is not None
    assert found.strata is not None
    assert (found.y.tolist(), found.weights.tolist()) == ([0, 1, 0, 1], [1, 2, 0, 3])
    assert (found.offset.tolist(), found.strata.tolist()) == ([0.5, 0, 0, 1], ["u", "v", "u", "v"])


def test_levels_that_are_numbers_are_found_by_text_and_by_value():
    schema = Schema({"x": CategoricalColumn(("01", "1", "2"))})
    table = table_of_frame(pd.DataFrame({"x": ["01", "1", "2.0"]}), "a", text=["x"])
    assert encode(table, schema).A.tolist() == [[0, 0], [1, 0], [0, 1]]


def test_all_problems_of_a_table_in_one_message():
    schema = Schema(
        {"a": NumericColumn(), "b": NumericColumn(), "c": CategoricalColumn(("u", "v")), "d": NumericColumn()}
    )
    table = raw(a=[1, None, 3], b=["1", "x", "y"], c=["u", "w", None])
    with pytest.raises(cf.InputError) as error:
        encode(table, schema)
    said = str(error.value)
    assert said.startswith("5 problems:")
    for part in (
        "column 'a' has 1 missing value(s), on row 1", "column 'b' must be numbers, and has 'x', 'y' on rows 1, 2",
        "column 'c' has 'w' on row 1 (the first is 0), not one of its levels ('u', 'v')", "column 'c' has 1 missing",
        "a.csv has no column 'd'; it has a, b, c",
    ):  # fmt: skip
        assert part in said


def test_means_and_most_frequent_levels_are_those_of_all_tables():
    schema = Schema({"a": NumericColumn("mean"), "b": CategoricalColumn(("u", "v"), missing="impute")})
    tables = [raw(a=[1, None], b=["u", None]), raw(a=[2, 6], b=["v", "v"])]
    assert resolve(schema, tables).columns == {"a": NumericColumn(3.0), "b": CategoricalColumn(("u", "v"), missing="v")}
    with pytest.raises(cf.InputError, match="no number or level yet for missing values of a, b"):
        encode(tables[0], schema)
    with pytest.raises(cf.InputError, match="column 'a' has no number to take the mean of"):
        resolve(schema, [raw(a=[None], b=["u"])])
