"""Tables as hospitals have them, from files or DataFrames to a model: the coefficients of the pooled, encoded table."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from places import SHARED
from sklearn.linear_model import Lasso, LogisticRegression

import compfed as cf
from compfed.schema import CategoricalColumn, Label, NumericColumn, Schema

ALPHA = 0.01


def clinic(seed: int, rows: int = 80) -> pd.DataFrame:
    """A table with words, blanks and yes/no labels."""
    rng = np.random.default_rng(seed)
    age, bmi = rng.normal(60, 10, rows).round(1), rng.normal(25, 3, rows).round(2)
    sex, smoker = rng.choice(["female", "male"], rows), rng.choice(["no", "yes", ""], rows)
    ward = rng.choice(["müde", "intensive", "day, short"], rows)
    risk = 0.08 * (age - 60) + (sex == "male") - 0.5 * (smoker == "yes") + (ward == "müde")
    died = np.where(rng.random(rows) < 1 / (1 + np.exp(-risk)), "yes", "no")
    table = pd.DataFrame({"age": age, "sex": sex, "bmi": bmi, "smoker": smoker, "ward": ward, "died": died})
    return table.mask(pd.DataFrame({"bmi": rng.random(rows) < 0.1}).reindex(columns=table.columns, fill_value=False))


FRAMES = {name: clinic(seed) for seed, name in enumerate(["bonn", "oslo", "rome"])}
ALL = pd.concat([frame.assign(town=name) for name, frame in FRAMES.items()], ignore_index=True)


def dummies(frame: pd.DataFrame) -> pd.DataFrame:
    """The features as a statistician would encode them by hand."""
    bmi = frame["bmi"].fillna(ALL["bmi"].mean())
    smoker = pd.Categorical(frame["smoker"].replace("", "(missing)"), ["no", "yes", "(missing)"])
    return pd.get_dummies(
        frame[["age", "sex", "bmi", "ward"]].assign(bmi=bmi, smoker=smoker), prefix_sep="=", drop_first=True
    ).astype(float)


def oracle() -> LogisticRegression:
    X = dummies(ALL)
    return LogisticRegression(C=1 / (ALPHA * len(X)), tol=1e-12, solver="newton-cholesky").fit(
        X.to_numpy(), ALL["died"]
    )


def model(**given: Any) -> cf.FederatedLogisticRegression:
    return cf.FederatedLogisticRegression(alpha=ALPHA, l1_ratio=0.0, **given)


def assert_is_oracle(fitted: Any, rows: pd.DataFrame = ALL) -> None:
    """The coefficients of scikit-learn on the pooled table, and its predictions of raw rows."""
    pooled = oracle()
    place = [list(fitted.feature_names_in_).index(name) for name in dummies(ALL).columns]
    np.testing.assert_allclose(fitted.coef_[0][place], pooled.coef_[0], rtol=1e-8)
    assert fitted.classes_.tolist() == ["no", "yes"]
    expected = pooled.predict_proba(dummies(ALL).to_numpy())
    np.testing.assert_allclose(fitted.predict_proba(rows), expected, rtol=1e-8)
    assert (fitted.predict(rows) == pooled.predict(dummies(ALL).to_numpy())).all()


# --- one process ---


def test_a_frame_with_words_and_blanks_is_fitted_as_its_dummies():
    fitted = model().fit(ALL, "died", sites="town", schema="auto")
    assert_is_oracle(fitted)
    again = model().fit(ALL.drop(columns="died"), ALL["died"], sites="town", schema="auto")
    np.testing.assert_array_equal(again.coef_, fitted.coef_)
    assert fitted.n_features_in_ == len(fitted.feature_names_in_) == 7
    assert fitted.schema_.columns["smoker"] == CategoricalColumn(("no", "yes"), "level")
    assert (
        fitted.score(ALL, "died")
        == fitted.score(ALL, ALL["died"])
        == oracle().score(dummies(ALL).to_numpy(), ALL["died"])
    )
    sites = cf.data.from_table(ALL, "died", "town", schema="auto")
    assert sites.schema == fitted.schema_
    np.testing.assert_allclose(model().fit_sites(sites).coef_, fitted.coef_, rtol=1e-12)


def test_predictions_are_by_name_in_any_order_and_an_array_is_encoded():
    fitted = model().fit(ALL, "died", sites="town", schema="auto")
    shuffled = ALL[["ward", "smoker", "bmi", "sex", "age"]].assign(more="words")
    np.testing.assert_array_equal(fitted.predict_proba(shuffled), fitted.predict_proba(ALL))
    encoded = dummies(ALL)[list(fitted.feature_names_in_)]
    np.testing.assert_allclose(fitted.decision_function(encoded), fitted.decision_function(ALL), rtol=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's, of an array without names
        np.testing.assert_allclose(fitted.decision_function(encoded.to_numpy()), fitted.decision_function(ALL))


def test_rows_that_cannot_be_predicted_are_named():
    fitted = model().fit(ALL, "died", sites="town", schema="auto")
    odd = ALL.head(4).assign(sex=["male", "unknown", "male", "x"], age=[1.0, 2.0, None, 4.0]).drop(columns="bmi")
    with pytest.raises(cf.InputError) as error:
        fitted.predict(odd)
    for part in ("has no column 'bmi'", "column 'age' has 1 missing value(s), on row 2", "'unknown', 'x' on rows 1, 3"):
        assert part in str(error.value)


def test_regression_and_cross_validation_with_a_schema():
    fitted = cf.FederatedLasso(alpha=0.05).fit(ALL.drop(columns="died"), "age", sites="town", schema="auto")
    X = dummies(ALL).drop(columns="age")
    pooled = Lasso(alpha=0.05, tol=1e-12, max_iter=100_000).fit(X.to_numpy(), ALL["age"])
    place = [list(fitted.feature_names_in_).index(name) for name in X.columns]
    np.testing.assert_allclose(fitted.coef_[place], pooled.coef_, rtol=1e-6, atol=1e-9)
    assert fitted.score(ALL, "age") == pytest.approx(pooled.score(X.to_numpy(), ALL["age"]), rel=1e-9)
    chosen = cf.FederatedLogisticRegressionCV(n_alphas=3, cv=2, l1_ratio=0.5)
    chosen.fit(ALL, "died", sites="town", schema="auto")
    assert chosen.schema_ == model().fit(ALL, "died", sites="town", schema="auto").schema_
    assert chosen.predict(ALL).dtype.kind == "U"
    path = cf.regularisation_path(model(), ALL, "died", "town", schema="auto", alphas=[0.1, 0.01, 1e-3])
    assert path.coefs.shape == (3, 1, 7)
    with pytest.raises(
        cf.InputError, match="FederatedLasso predicts numbers, and the label 'died' has classes: 'no', 'yes'"
    ):
        cf.FederatedLasso().fit(ALL, "died", sites="town", schema="auto")
    with pytest.raises(cf.InputError, match="predicts numbers"):
        cf.FederatedLasso().fit_sites(cf.data.from_table(ALL, "died", "town", schema="auto"))


def test_a_schema_of_ones_own_orders_the_classes_and_levels(tmp_path):
    schema = Schema(
        {"age": NumericColumn(), "sex": CategoricalColumn(("male", "female"))}, Label("died", ("yes", "no"))
    )
    fitted = model().fit(ALL, "died", sites="town", schema=schema)
    X = np.column_stack([ALL["age"], ALL["sex"] == "female"])
    pooled = LogisticRegression(C=1 / (ALPHA * len(X)), tol=1e-12, solver="newton-cholesky").fit(X, ALL["died"])
    assert fitted.classes_.tolist() == ["yes", "no"]
    np.testing.assert_allclose(fitted.coef_, -pooled.coef_, rtol=1e-8)
    np.testing.assert_allclose(fitted.predict_proba(ALL), pooled.predict_proba(X)[:, ::-1], rtol=1e-8)
    assert fitted.score(ALL, "died") == pooled.score(X, ALL["died"])
    (tmp_path / "schema.toml").write_text(schema.to_toml())
    again = model().fit(ALL, "died", sites="town", schema=tmp_path / "schema.toml")
    np.testing.assert_array_equal(again.coef_, fitted.coef_)


def test_classes_that_are_numbers_keep_their_values():
    for labels in ((0, 1), (1, 2), (-1, 1)):
        frame = ALL.assign(died=np.where(ALL["died"] == "yes", labels[1], labels[0]))
        fitted = model().fit(frame, "died", sites="town", schema="auto")
        assert fitted.classes_.tolist() == list(labels)
        assert fitted.classes_.dtype.kind == "i"
        assert set(fitted.predict(frame)) == set(labels)
        assert fitted.score(frame, "died") == oracle().score(dummies(ALL).to_numpy(), ALL["died"])


def test_without_a_schema_the_error_says_the_way_out():
    with pytest.raises(cf.InputError, match=r"column 'sex' has 'f?e?male' in row 0.*schema=\"auto\".*column 'smoker'"):
        model().fit(ALL.drop(columns="died"), ALL["died"], sites="town")
    with pytest.raises(cf.InputError, match=r"X contains NaN in column 'bmi', the first in row \d+ .*schema=\"auto\""):
        model().fit(ALL[["age", "bmi"]], ALL["died"], sites=ALL["town"])
    with pytest.raises(cf.InputError, match="y='dead' names a column, and X has none of that name"):
        model().fit(ALL, "dead", sites="town")
    with pytest.raises(cf.InputError, match="schema= is for a DataFrame"):
        model().fit(dummies(ALL).to_numpy(), ALL["died"], sites=ALL["town"], schema="auto")
    with pytest.raises(cf.InputError, match="schema=3 must be 'auto', a Schema, or the path"):
        model().fit(ALL, "died", sites="town", schema=3)  # pyright: ignore[reportArgumentType]


def test_y_may_name_a_column_without_a_schema():
    numbers = ALL[["age", "town"]].assign(died=(ALL["died"] == "yes").astype(int))
    fitted = model().fit(numbers, "died", sites="town")
    plain = model().fit(numbers[["age"]], numbers["died"], sites=numbers["town"])
    np.testing.assert_array_equal(fitted.coef_, plain.coef_)
    np.testing.assert_array_equal(fitted.predict(numbers), plain.predict(numbers[["age"]]))
    assert fitted.score(numbers, "died") == plain.score(numbers[["age"]], numbers["died"])
    assert not hasattr(fitted, "schema_")


def test_a_failed_fit_leaves_the_model_as_it_was():
    fitted = model().fit(ALL, "died", sites="town", schema="auto")
    before = dict(vars(fitted))
    with pytest.raises(cf.InputError):
        fitted.fit(ALL.assign(age="x"), "nothing", sites="town", schema="auto")
    assert all(vars(fitted)[name] is value for name, value in before.items())


# --- classes that differ between the sites ---


def test_0_and_1_at_one_site_and_1_and_2_at_another():
    frame = ALL.assign(died=(ALL["died"] == "yes") + np.where(ALL["town"] == "rome", 1, 0))
    with pytest.warns(cf.ClassesDifferWarning, match=r"together they have 3: .* \(site 'oslo'\); .*\(site 'rome'\)"):
        model().fit(frame[["age"]], frame["died"], sites=frame["town"])
    with pytest.raises(cf.InputError, match="two classes in each, and 3 together"):
        model().fit(frame[["age", "died"]], "died", sites=frame["town"], schema="auto")
    three = Schema({"age": NumericColumn()}, Label("died", (0, 1, 2)))
    assert model().fit(frame, "died", sites="town", schema=three).classes_.tolist() == [0, 1, 2]  # meant


# --- files, each with its own dirt ---


def write_dirty(folder: Path) -> None:
    """Semicolons, decimal commas and Latin-1; another order of columns and a BOM; row numbers and quoted line breaks."""
    bonn = FRAMES["bonn"].to_csv(sep=";", decimal=",", index=False)
    (folder / "bonn.csv").write_bytes(bonn.encode("latin-1"))
    oslo = FRAMES["oslo"][["died", "ward", "smoker", "bmi", "sex", "age"]].replace({"smoker": {"": "N/A"}})
    oslo.to_csv(folder / "oslo.csv", index=False, encoding="utf-8-sig", na_rep="?")
    rome = FRAMES["rome"].assign(note='said "no",\nthen yes')
    rome.to_csv(folder / "rome.csv", na_rep=".")


def test_dirty_files_are_the_pooled_table(tmp_path):
    write_dirty(tmp_path)
    sites = cf.data.from_files(tmp_path, "died", drop="note", schema="auto")
    assert sites.names == ("bonn", "oslo", "rome")
    fitted = model().fit_sites(sites)
    assert_is_oracle(fitted)
    frame = model().fit(ALL, "died", sites="town", schema="auto")
    assert sites.schema == frame.schema_
    np.testing.assert_allclose(fitted.coef_, frame.coef_, rtol=1e-12)
    with pytest.raises(cf.InputError, match=r"(?s)bonn.csv: column 'sex' must be numbers.*rome\.csv.*schema=\"auto\""):
        cf.data.from_files(tmp_path, "died", features=["age", "bmi", "sex"])


def test_the_rows_before_the_encoding_are_kept_site_by_site(tmp_path):
    write_dirty(tmp_path)
    sites = cf.data.from_files(tmp_path, "died", drop="note", schema="auto").permuted([2, 0, 1])
    assert sites.raw is not None
    for name, table in zip(sites.names, sites.raw, strict=True):
        assert table.columns["ward"].values.tolist() == FRAMES[name]["ward"].tolist()
    ALL.to_csv(tmp_path / "all.csv", index=False)
    one = cf.data.from_csv(tmp_path / "all.csv", "died", "town", schema="auto")
    assert one.raw is not None
    assert [table.columns["ward"].values.tolist() for table in one.raw] == [
        FRAMES[name]["ward"].tolist() for name in one.names
    ]
    federation = cf.federation.InProcess(one)
    assert federation.schema == one.schema
    assert federation.sites[1].rows.file.raw is one.raw[1]


def test_weights_and_offsets_of_a_schema_reach_the_sites(tmp_path):
    frame = ALL[["age", "died", "town"]].assign(w=np.arange(len(ALL)) % 3, o=0.5)
    frame.to_csv(tmp_path / "all.csv", index=False)
    sites = cf.data.from_csv(tmp_path / "all.csv", "died", "town", schema="auto", weight="w", offset="o")
    assert (sites.columns, sites.schema and sites.schema.weight) == (("age",), "w")
    assert sites.offsets is not None
    assert all((o == 0.5).all() for o in sites.offsets)
    assert sites.sample_weight is not None
    np.testing.assert_array_equal(sites.sample_weight[0], frame[frame["town"] == "bonn"]["w"])
    schema = Schema({"age": NumericColumn()}, Label("died", ("no", "yes")), weight="w")
    fitted = model().fit(frame, "died", sites="town", schema=schema)
    pooled = LogisticRegression(C=1 / (ALPHA * float(np.sum(frame["w"]))), tol=1e-12, solver="newton-cholesky")
    pooled.fit(frame[["age"]].to_numpy(), frame["died"], sample_weight=frame["w"])
    np.testing.assert_allclose(fitted.coef_, pooled.coef_, rtol=1e-8)


def test_a_model_file_keeps_the_schema(tmp_path):
    fitted = model().fit(ALL, "died", sites="town", schema="auto")
    again: Any = cf.load_model(cf.save_model(fitted, tmp_path))
    assert again.schema_ == fitted.schema_
    np.testing.assert_array_equal(again.predict_proba(ALL), fitted.predict_proba(ALL))
    assert again.predict(ALL).tolist() == fitted.predict(ALL).tolist()
    with pytest.raises(cf.InputError, match="'x' on row 0"):
        again.predict(ALL.head(1).assign(sex="x"))


# --- real tables ---


@pytest.mark.skipif(not (SHARED / "mushrooms").exists(), reason="the mushrooms of UCI are not here")
def test_mushrooms():
    """All columns are letters, and one has '?' for missing values."""
    names = [
        "edible", "cap-shape", "cap-surface", "cap-color", "bruises", "odor", "gill-attachment", "gill-spacing", "gill-size",
        "gill-color", "stalk-shape", "stalk-root", "above", "below", "color-above", "color-below", "veil-type", "veil-color",
        "ring-number", "ring-type", "spore", "population", "habitat",
    ]  # fmt: skip
    frame = pd.read_csv(SHARED / "mushrooms" / "agaricus-lepiota.data", header=None, names=names).drop(columns="odor")
    frame = frame.iloc[::8].reset_index(drop=True)
    fitted = cf.FederatedLogisticRegression(alpha=0.01, l1_ratio=0.0).fit(
        frame, "edible", sites=frame["habitat"].where(frame["habitat"].isin(["d", "g", "p"]), "other"), schema="auto"
    )
    X = pd.get_dummies(frame.drop(columns="edible").replace("?", "~"), prefix_sep="=", drop_first=True).astype(float)
    pooled = LogisticRegression(C=1 / (0.01 * len(X)), tol=1e-10, max_iter=10_000).fit(X, frame["edible"])
    np.testing.assert_allclose(fitted.predict_proba(frame), pooled.predict_proba(X), atol=1e-6)
    assert fitted.classes_.tolist() == ["e", "p"]
    assert fitted.n_features_in_ == X.shape[1]


@pytest.mark.skipif(not (SHARED / "heart").exists(), reason="the heart disease tables of UCI are not here")
def test_heart_as_it_is_published(tmp_path):
    """Four hospitals with '?' for missing values: without a header refused, with one fitted."""
    names = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num"
    for town in ("cleveland", "hungarian", "switzerland", "va"):
        text = (SHARED / "heart" / f"processed.{town}.data").read_text()
        (tmp_path / f"{town}.csv").write_text(text)
        with pytest.raises(cf.InputError, match="seems to have no header"):
            cf.data.from_files(tmp_path, "num", schema="auto")
        (tmp_path / f"{town}.csv").write_text(f"{names}\n{text}")
    sites = cf.data.from_files(tmp_path, "num", drop=["slope", "ca", "thal"], schema="auto")
    frames = [pd.read_csv(tmp_path / f"{name}.csv", na_values="?") for name in sites.names]
    pooled = pd.concat(frames)[list(sites.columns or ())]
    np.testing.assert_allclose(sites.pooled()[0], pooled.fillna(pooled.mean()), rtol=1e-12)
    assert sites.sizes.sum() == 920


def test_the_name_of_a_column_of_words_stands_for_all_its_levels():
    """penalty_factors and bounds by the column of the file: those of its levels, one by one."""
    levels = [name for name in dummies(ALL).columns if name.startswith("ward=")]
    assert len(levels) == 2
    by_column = model(penalty_factors={"ward": 0}, bounds={"smoker": (0, None)})
    by_level = model(
        penalty_factors=dict.fromkeys(levels, 0), bounds=dict.fromkeys(["smoker=yes", "smoker=(missing)"], (0, None))
    )
    found, same = (m.fit(ALL, "died", sites="town", schema="auto") for m in (by_column, by_level))
    np.testing.assert_array_equal(found.coef_, same.coef_)
    free = model().fit(ALL, "died", sites="town", schema="auto")
    smoker = list(found.feature_names_in_).index("smoker=yes")
    assert free.coef_[0][smoker] < 0 == found.coef_[0][smoker]
    with pytest.raises(cf.InputError, match="there is no column 'war'"):
        model(penalty_factors={"war": 0}).fit(ALL, "died", sites="town", schema="auto")
