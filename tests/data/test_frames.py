"""Frames of pandas, polars, Arrow, DuckDB and narwhals: every use gives NumPy's result to the bit, or is refused by name."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import compfed as cf
from compfed.data.adapter import as_column, as_frame

pl = pytest.importorskip("polars", reason="polars is in the extra dev")
pa = pytest.importorskip("pyarrow", reason="Arrow tables need pyarrow")
duckdb = pytest.importorskip("duckdb", reason="duckdb is in the extra dev")
nw = pytest.importorskip("narwhals")

RNG = np.random.default_rng(5)
N = 60
A = RNG.normal(size=(N, 3)).round(3)
Y = (A @ [1.0, -2.0, 0.5] + RNG.normal(size=N)).round(3)
ILL = RNG.random(N) < 1 / (1 + np.exp(-A[:, 0]))
TOWN = np.array(["bonn", "oslo", "rome"])[np.arange(N) % 3]
STAGE = np.array(["low", "mid", "high"])[RNG.integers(0, 3, N)]
COLUMNS: dict[str, Any] = {
    "a": A[:, 0], "b": A[:, 1], "c": A[:, 2], "dose": RNG.integers(0, 5, N), "y": Y, "ill": ILL, "town": TOWN,
}  # fmt: skip
X = np.column_stack([COLUMNS[name] for name in ("a", "b", "c", "dose")]).astype(float)
FEATURES = ["a", "b", "c", "dose"]


def arrow_backed(columns: dict[str, Any]) -> Any:
    return pd.DataFrame(columns).convert_dtypes(dtype_backend="pyarrow")


def relation(columns: dict[str, Any]) -> Any:
    return duckdb.connect().from_arrow(pa.table(columns))


KINDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "pandas": pd.DataFrame,
    "pandas nullable": lambda columns: pd.DataFrame(columns).convert_dtypes(),
    "pandas pyarrow": arrow_backed,
    "polars": pl.DataFrame,
    "Arrow": pa.table,
    "DuckDB": relation,
    "narwhals": lambda columns: nw.from_native(pl.DataFrame(columns)),
}


def column(kind: str, frame: Any, name: str) -> Any:
    """One column, as the library gives it."""
    return frame.select(name) if kind == "DuckDB" else frame[name]


def only(kind: str, names: list[str], columns: dict[str, Any] = COLUMNS) -> Any:
    return KINDS[kind]({name: columns[name] for name in names})


def lasso() -> cf.FederatedLasso:
    return cf.FederatedLasso(alpha=0.01)


ORACLE = lasso().fit(X, Y, sites=TOWN)
RISK = cf.FederatedLogisticRegression(alpha=0.01).fit(X, ILL, sites=TOWN)


def same(model: Any, oracle: Any = ORACLE) -> None:
    np.testing.assert_array_equal(model.coef_, oracle.coef_)
    np.testing.assert_array_equal(model.intercept_, oracle.intercept_)
    assert model.feature_names_in_.tolist() == FEATURES


@pytest.mark.parametrize("kind", KINDS)
def test_sites_named(kind):
    frame = only(kind, [*FEATURES, "y", "town"])
    model = lasso().fit(frame, "y", sites="town")
    same(model)
    np.testing.assert_array_equal(model.predict(frame), ORACLE.predict(X))
    assert model.score(frame, "y") == ORACLE.score(X, Y)
    assert model.site_names_.tolist() == ["bonn", "oslo", "rome"]
    same(lasso().fit_sites(cf.data.from_table(frame, "y", "town")))
    found = model.evaluate(frame, "y")  # pyright: ignore[reportArgumentType]
    assert found.r2 == ORACLE.evaluate(X, Y, sites=TOWN).r2


@pytest.mark.parametrize("kind", KINDS)
def test_features_and_labels_apart(kind):
    frame = KINDS[kind](COLUMNS)
    features = only(kind, FEATURES)
    town = column(kind, frame, "town")
    same(lasso().fit(features, column(kind, frame, "y"), sites=town))
    model = cf.FederatedLogisticRegression(alpha=0.01).fit(features, column(kind, frame, "ill"), sites=town)
    same(model, RISK)
    assert model.classes_.dtype == RISK.classes_.dtype == bool
    assert model.predict(features).dtype == bool
    assert model.score(features, column(kind, frame, "ill")) == RISK.score(X, ILL)
    named = cf.FederatedLogisticRegression(alpha=0.01).fit(features, town, sites=town)
    assert named.classes_.tolist() == ["bonn", "oslo", "rome"]
    weights = column(kind, only(kind, ["w"], {"w": 1.0 + np.arange(N) % 2}), "w")
    weighted = lasso().fit(features, column(kind, frame, "y"), sites=town, sample_weight=weights)
    same(weighted, lasso().fit(X, Y, sites=TOWN, sample_weight=1.0 + np.arange(N) % 2))


@pytest.mark.parametrize("kind", KINDS)
def test_whole_numbers_stay_whole(kind):
    frame = only(kind, [*FEATURES, "dose"])
    model = cf.FederatedLogisticRegression(alpha=0.1).fit(
        only(kind, ["a", "b"]), column(kind, frame, "dose"), sites=TOWN
    )
    assert model.classes_.dtype.kind == "i"
    assert model.classes_.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", KINDS)
def test_a_reordered_frame_is_found_by_name(kind):
    model = lasso().fit(only(kind, FEATURES), Y, sites=TOWN)
    np.testing.assert_array_equal(model.predict(only(kind, FEATURES[::-1])), ORACLE.predict(X))


@pytest.mark.parametrize("kind", KINDS)
def test_more_columns_are_left_alone(kind):
    model = lasso().fit(only(kind, FEATURES), Y, sites=TOWN)
    more = only(kind, ["town", "c", "b", "ill", "a", "dose"])
    np.testing.assert_array_equal(model.predict(more), ORACLE.predict(X))
    with pytest.raises(cf.InputError, match="X has no column 'b', which the model needs; it has 'a', 'c', 'dose'"):
        model.predict(only(kind, ["a", "c", "dose"]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_with_a_zero_coefficient_is_not_needed(kind):
    model = cf.FederatedLasso(alpha=0.3).fit(only(kind, FEATURES), Y, sites=TOWN)
    oracle = cf.FederatedLasso(alpha=0.3).fit(X, Y, sites=TOWN)
    zero = [name for name, value in zip(FEATURES, oracle.coef_, strict=True) if value == 0]
    assert zero == ["dose"]
    np.testing.assert_array_equal(model.predict(only(kind, ["c", "a", "b"])), oracle.predict(X))
    words = {**COLUMNS, "dose": TOWN}
    np.testing.assert_array_equal(model.predict(only(kind, FEATURES, words)), oracle.predict(X))


GAPS: dict[str, Any] = {**COLUMNS, "b": [None if k in (3, 7) else v for k, v in enumerate(A[:, 1].tolist())]}
GAPS["dose"] = [None if k == 4 else v for k, v in enumerate(COLUMNS["dose"].tolist())]


@pytest.mark.parametrize("kind", KINDS)
def test_missing_values_have_our_message_or_are_imputed(kind):
    frame = only(kind, [*FEATURES, "y", "town"], GAPS)
    with pytest.raises(
        cf.InputError, match=r"X contains NaN in column 'b', 'dose', the first in row 3 .*schema=\"auto\""
    ):
        lasso().fit(frame, "y", sites="town")
    found = lasso().fit(frame, "y", sites="town", schema="auto")
    filled = X.copy()
    for j, name in ((1, "b"), (3, "dose")):
        gap = np.array([value is None for value in GAPS[name]])
        mean: Any = found.schema_.columns[name]
        assert mean.impute == pytest.approx(np.mean([value for value in GAPS[name] if value is not None]), rel=1e-14)
        filled[gap, j] = mean.impute
    same(found, lasso().fit(filled, Y, sites=TOWN))
    np.testing.assert_array_equal(found.predict(frame), lasso().fit(filled, Y, sites=TOWN).predict(filled))
    with pytest.raises(cf.InputError, match=r"X contains NaN in column 'b', 'dose', the first in row 3"):
        lasso().fit(only(kind, FEATURES), Y, sites=TOWN).predict(frame)


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_label_has_our_message(kind):
    for name, value in (("y", 1.5), ("ill", True), ("dose", 2), ("town", "rome")):
        gaps = {"label": [None if k in (2, 5) else value for k in range(N)]}
        with pytest.raises(
            cf.InputError, match=r"y must have a label in every row; 2 row\(s\) have none, the first is row 2\. Drop"
        ):
            lasso().fit(only(kind, FEATURES), column(kind, only(kind, ["label"], gaps), "label"), sites=TOWN)
        assert name in COLUMNS
    gaps = {**COLUMNS, "town": [None if k == 2 else town for k, town in enumerate(TOWN.tolist())]}
    with pytest.raises(
        cf.InputError, match=r"sites must be the site of every row; 1 row\(s\) have none, the first is row 2"
    ):
        lasso().fit(only(kind, [*FEATURES, "y", "town"], gaps), "y", sites="town")


CATEGORIES: dict[str, Callable[[], Any]] = {
    "pandas": lambda: pd.Categorical(STAGE, ["none", "low", "mid", "high"], ordered=True),
    "polars": lambda: pl.Series(STAGE, dtype=pl.Enum(["none", "low", "mid", "high"])),
    "Arrow": lambda: pa.array(pd.Categorical(STAGE, ["none", "low", "mid", "high"], ordered=True)),
    "DuckDB": lambda: STAGE,
}


@pytest.mark.parametrize("kind", CATEGORIES)
def test_the_order_of_an_ordered_category_is_kept(kind):
    frame = KINDS[kind]({"stage": CATEGORIES[kind](), "a": A[:, 0], "y": Y, "town": TOWN})
    if kind == "DuckDB":
        con = duckdb.connect()
        con.register("t", pa.table({"stage": STAGE, "a": A[:, 0], "y": Y, "town": TOWN}))
        con.execute("CREATE TYPE stages AS ENUM ('none', 'low', 'mid', 'high')")
        frame = con.sql("SELECT stage::stages AS stage, a, y, town FROM t")
    model = lasso().fit(frame, "y", sites="town", schema="auto")
    assert model.feature_names_in_.tolist() == [
        "stage=mid",
        "stage=high",
        "a",
    ]  # low is the reference; no row has "none"
    oracle = lasso().fit(np.column_stack([STAGE == "mid", STAGE == "high", A[:, 0]]).astype(float), Y, sites=TOWN)
    np.testing.assert_array_equal(model.coef_, oracle.coef_)
    with pytest.raises(cf.InputError, match="column 'stage' is categorical"):
        lasso().fit(frame, "y", sites="town")


def test_sites_may_be_a_category():
    for sites in (pd.Categorical(TOWN), pd.Series(TOWN, dtype="category"), pl.Series(TOWN, dtype=pl.Categorical),
                  pa.array(TOWN).dictionary_encode(), pd.Series(TOWN, dtype="string")):  # fmt: skip
        np.testing.assert_array_equal(lasso().fit(X, Y, sites=sites).coef_, ORACLE.coef_)


@pytest.mark.parametrize("kind", KINDS)
def test_words_and_dates_are_refused_by_name(kind):
    words = {**COLUMNS, "b": STAGE}
    with pytest.raises(
        cf.InputError, match=r"X: column 'b' has '\w+' in row 0, which is not a number.*schema=\"auto\""
    ):
        lasso().fit(only(kind, FEATURES, words), Y, sites=TOWN)
    days = {"y": [datetime.datetime(2020, 1, 1) + datetime.timedelta(days=k) for k in range(N)]}
    with pytest.raises(cf.InputError, match="y holds dates or times"):
        lasso().fit(only(kind, FEATURES), column(kind, only(kind, ["y"], days), "y"), sites=TOWN)


class Dataset:
    """What xarray calls its tables."""


Dataset.__module__ = "xarray.core.dataset"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pl.LazyFrame(COLUMNS), r"X is a polars\.LazyFrame, .*Give X\.collect\(\)"),
        (nw.from_native(pl.LazyFrame(COLUMNS)), r"X is a polars\.LazyFrame, .*Give X\.collect\(\)"),
        (Dataset(), r"X is a xarray\.Dataset, .*Give an array, X\.to_numpy\(\), or a frame, X\.to_dataframe\(\)"),
    ],
    ids=["polars", "narwhals", "xarray"],
)
def test_frames_that_are_refused_by_name(table, message):
    with pytest.raises(cf.InputError, match=message):
        lasso().fit(table, "y", sites="town")
    with pytest.raises(cf.InputError, match=message):
        ORACLE.predict(table)


def test_whole_numbers_that_a_float_cannot_hold_and_decimals():
    large = pa.table({"id": [2**60 + 1, None], "cost": pa.array([1, 2], pa.decimal128(10, 2))})
    frame: Any = as_frame(large)
    assert frame["id"].values.tolist() == [2**60 + 1, None]
    assert list(map(float, frame["cost"].values)) == [1.0, 2.0]
    assert as_column(pa.array([1, 2])).values.tolist() == [1, 2]  # pyright: ignore[reportOptionalMemberAccess]
    assert as_frame(np.ones(3)) is as_column([1, 2]) is None
