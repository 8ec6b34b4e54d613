"""What `fit` is given: read as it is meant, refused where it could be meant in two ways, and what it says of itself."""

from __future__ import annotations

import inspect
import io
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso, LogisticRegression

import compfed as cf
from compfed._utils.text import progress_bar
from compfed.estimators.base import INSTEAD

masked: Any = np.ma.masked_array
RNG = np.random.default_rng(0)
X = RNG.standard_normal((12, 3))
Y = X[:, 0] + 0.1 * RNG.standard_normal(12)
SITES = np.arange(12) % 2
FRAME = pd.DataFrame(X, columns=["age", "dose", "bmi"])
NUMBERED: Any = pd.DataFrame(X)  # its columns are called 0, 1, 2
MASK = np.arange(12) == 3
LASSO: Any = cf.FederatedLasso


def wrong(value: Any) -> Any:
    """A value of a type that a type checker would refuse."""
    return value


def fit(X: Any = X, y: Any = Y, model: Any = None, **given: Any) -> Any:
    arguments: Any = {"sites": SITES} | given
    return (cf.FederatedLasso(0.01) if model is None else model).fit(X, y, **arguments)


REFUSED: dict[str, tuple[Any, str]] = {
    "masked X": (lambda: fit(masked(X, X > 1)), r"FederatedLasso: X has \d+ masked value"),
    "masked y": (lambda: fit(y=masked(Y, MASK)), r"y has 1 masked"),
    "masked weights": (lambda: fit(sample_weight=masked(np.ones(12), MASK)), r"sample_weight has 1 masked"),
    "masked sites": (lambda: fit(sites=masked(SITES, MASK)), r"1 row\(s\) have none, the first is row 3"),
    "masked folds": (lambda: fit(model=cf.FederatedLassoCV(cv=masked(SITES, MASK))), r"cv has 1 masked"),
    "masked alphas": (lambda: fit(model=cf.FederatedLassoCV(masked([1, 0.1], [0, 1]))), r"alphas has 1 masked"),
    "masked X to predict": (lambda: fit().predict(masked(X, X > 1)), r"X has \d+ masked"),
    "dates to predict": (lambda: fit().predict(np.full((2, 3), "2020-01-01", "datetime64[D]")), r"row 0, column 0 has"),
    "dates": (lambda: fit(np.full((12, 3), "2020-01-01", "datetime64[D]")), r"X must be numbers: row 0, column 0 has"),
    "a date in a frame": (
        lambda: fit(FRAME.assign(seen=pd.Timestamp("2020-01-01"))),
        r"X: column 'seen' has Timestamp\('2020-01-01 00:00:00'\) in row 0, which is not a number",
    ),
    "a word in a frame": (
        lambda: fit(FRAME.assign(sex=["1"] * 5 + ["m"] * 7)),
        r"X: column 'sex' has 'm' in row 5, which is not a number",
    ),
    "a word in an array": (lambda: fit(np.array([["1", "2", "m"]] * 12)), r"row 0, column 2 has .*'m'\)?, which is not"),
    "categories": (lambda: fit(FRAME.assign(stage=pd.Categorical(SITES))), r"column 'stage' is categorical"),
    "two columns of one name": (lambda: fit(FRAME.set_axis(["a", "b", "a"], axis=1)), r"X has two columns 'a'"),
    "one name but for a space": (lambda: fit(FRAME.set_axis(["a", "b", "a "], axis=1)), r"columns 'a' and 'a '"),
    "the label as offset": (lambda: fit(FRAME, "age", offset="age"), r"y='age' and offset='age' name one column, which can be"),
    "the label as site": (lambda: fit(FRAME, "age", sites="age"), r"y='age' and sites='age' name one column"),
    "the site as offset": (lambda: fit(FRAME, sites="age", offset="age", schema="auto"), r"sites='age' and offset='age' name"),
    "the site column twice": (
        lambda: fit(pd.DataFrame(np.c_[X, SITES], columns=["a", "b", "s", "s"]), sites="s"),
        r"X has two columns 's'",
    ),
    "dates for y": (lambda: fit(y=pd.date_range("2020", periods=12)), r"y holds dates or times"),
    "complex y": (lambda: fit(y=Y + 1j), r"Complex data not supported: y has complex numbers"),
    "sparse y": (
        lambda: fit(y=csr_matrix(np.c_[Y, Y]), model=cf.FederatedMultiTaskLasso()),
        r"y is a sparse matrix; give labels as an array",
    ),
    "words for weights": (lambda: fit(sample_weight=["1"] * 12), r"sample_weight must be numbers, not text"),
    "y in another order": (lambda: fit(FRAME, pd.Series(Y, index=range(11, -1, -1))), r"y has the index of X in another"),
    "weights in another order": (
        lambda: fit(FRAME, sample_weight=pd.Series(np.ones(12), index=range(11, -1, -1))),
        r"sample_weight has the index of X in another order",
    ),
    "y with a shifted index": (
        lambda: fit(FRAME, pd.Series(Y, index=range(1, 13))),
        r"y has another index than X: row 0 is 0 in X and 1 in y\..*Give y\.to_numpy\(\) to match by place",
    ),
    "y with a repeated label": (
        lambda: fit(FRAME, pd.Series(Y, index=[0, 0, *range(2, 12)])),
        r"row 1 is 1 in X and 0 in y",
    ),
    "sites in another order than y": (
        lambda: fit(y=pd.Series(Y), sites=pd.Series(SITES, index=range(11, -1, -1))),
        r"sites has the index of y in another order.*Give sites\.loc\[y\.index\]",
    ),
    "folds in another order": (
        lambda: fit(FRAME, model=cf.FederatedLassoCV([0.1], cv=pd.Series(SITES, index=range(11, -1, -1)))),
        r"cv has the index of X in another order.*cv\.loc\[X\.index\].*or cv\.to_numpy\(\)",
    ),
    "folds in another order than y": (
        lambda: fit(y=pd.Series(Y), model=cf.FederatedLassoCV([0.1], cv=pd.Series(SITES, index=range(11, -1, -1)))),
        r"cv has the index of X in another order",
    ),
    "a mask in another order": (
        lambda: fit(FRAME, model=cf.FederatedLassoCV([0.1], cv=[(pd.Series(MASK, index=range(11, -1, -1)), ~MASK)])),
        r"mask has the index of X in another order",
    ),
    "folds by name": (
        lambda: fit(FRAME, model=cf.FederatedLassoCV([0.1], cv={row: row % 2 for row in range(12)})),
        r"cv is a dict, whose entries are in no order of the rows\. Give .*\[cv\[row\] for row in X\.index\]",
    ),
    "y to score with in another order": (
        lambda: fit(FRAME).score(FRAME, pd.Series(Y, index=range(11, -1, -1))),
        r"y has the index of X in another order",
    ),
    "classes to score with in another order": (
        lambda: fit(FRAME, Y > 0, cf.FederatedLogisticRegression()).score(FRAME, pd.Series(Y > 0, index=range(1, 13))),
        r"y has another index than X",
    ),
    "other numbered columns": (
        lambda: fit(NUMBERED, model=cf.FederatedLasso(0.0)).predict(NUMBERED.set_axis([0, 1, 7], axis=1)),
        r"X has no column 2, which the model needs; it has 0, 1, 7\. Columns are found by .*give X\.to_numpy\(\) to match by place",
    ),
    "numbered columns after a fit to an array": (
        lambda: fit().predict(NUMBERED[[0, 2, 1]]),
        r"column 1 of X is 2 and was 1 at fit",
    ),
    "groups of numbered columns": (
        lambda: fit(NUMBERED[[2, 1, 0]], model=cf.FederatedGroupLasso(groups=[[0, 1], [2]])),
        r"feature 0, which may be the column called 0 \(number 2\) or column number 0\. Give X\.rename\(columns=str\)",
    ),
    "groups of numbered columns in a series": (
        lambda: fit(NUMBERED[[2, 1, 0]], model=cf.FederatedGroupLasso(groups=pd.Series([0, 0, 1]))),
        r"groups names feature 0, which may be the column called 0",
    ),
    "weights for sites": (lambda: fit(sites=np.abs(Y)), r"row 0 has 0\.\d+\. This looks like a row weight"),
    "sites but for a space": (lambda: fit(sites=["n", " n"] * 6), r"' n' and 'n' are one name but for spaces"),
    "a class but for a space": (
        lambda: fit(y=np.array(["ill", "ill ", "well"] * 4), model=cf.FederatedLogisticRegression()),
        r"'ill' and 'ill ' are one name but for spaces",
    ),
    "no class": (
        lambda: fit(y=np.array(["ill", None] * 6, object), model=cf.FederatedLogisticRegression()),
        r"y must have a label in every row; 6 row\(s\) have none, the first is row 1",
    ),
    "no class in a list, where NumPy makes a word of NaN": (
        lambda: fit(y=["ill", np.nan, "well"] * 4, model=cf.FederatedLogisticRegression()),
        r"y must have a label in every row; 4 row\(s\) have none, the first is row 1",
    ),
    "pandas.NA among words": (
        lambda: fit(y=pd.Series(["ill", pd.NA, "well"] * 4, dtype="string"), model=cf.FederatedLogisticRegression()),
        r"y must have a label in every row; 4 row\(s\) have none, the first is row 1",
    ),
    "pandas.NA among numbers": (
        lambda: fit(y=np.array([1.0, pd.NA] * 6, object)),
        r"y must have a label in every row; 6 row\(s\) have none",
    ),
    "pandas.NA to score with": (
        lambda: fit().score(X, np.array([1.0, pd.NA] * 6, object)),
        r"y must have a label in every row; 6 row\(s\) have none",
    ),
    "words and numbers for classes": (
        lambda: fit(y=np.array(["a", 1] * 6, object), model=cf.FederatedLogisticRegression()),
        r"y has words and numbers, such as 'a' and 1\. Give all as text",
    ),
    "words and numbers in a list": (
        lambda: fit(y=["a", 1] * 6, model=cf.FederatedLogisticRegression()),
        r"y has words and numbers, such as 'a' and 1\. Give all as text",
    ),
    **{
        f"pandas.NA in a column of {dtype}": (
            lambda dtype=dtype: fit(FRAME.assign(dose=pd.Series([True, pd.NA] * 6, dtype=dtype))),
            r"X contains NaN in column 'dose', the first in row 1 .*schema=\"auto\"",
        )
        for dtype in ("Float64", "Int64", "boolean", "bool[pyarrow]", "object")
    },
    "pandas.NA to predict": (
        lambda: fit(FRAME, model=cf.FederatedLasso(0.0)).predict(FRAME.assign(dose=pd.Series([1, pd.NA] * 6, dtype="Float64"))),
        r"X contains NaN in column 'dose', the first in row 1 .*Drop these rows, or impute as at the fit",
    ),
    "a frame without columns": (lambda: fit(FRAME[[]]), r"X has 0 feature\(s\) \(shape=\(12, 0\)\)"),
    "a list of dicts": (lambda: fit(FRAME.to_dict("records")), r"X is a list with names; give pandas\.DataFrame\(X\)"),
    "a dict of columns": (lambda: fit(FRAME.to_dict("list")), r"X is a dict with names; give pandas\.DataFrame\(X\)"),
    "a blank column of a frame": (
        lambda: fit(FRAME.assign(seen=None), schema="auto"),
        r"column 'seen' has no value at all\. Leave it out with X\.drop\(columns='seen'\)",
    ),
    "a hole in the folds": (lambda: fit(model=cf.FederatedLassoCV(cv=[0.0, np.nan] * 6)), r"6 row\(s\) have none"),
    "truth values for alphas": (lambda: fit(model=cf.FederatedLassoCV([True, 0.1])), r"alphas=\[True, 0\.1\] cannot be read"),
    "a row twice in a pair": (
        lambda: fit(model=cf.FederatedLassoCV([0.1], cv=[([0, 1, 2, 3, 3, 3], [4, 5, 6])])),
        r"row 3 3 times; a row may be in a part once\. Give np\.unique\(part\)",
    ),
    "a row twice, from either end": (
        lambda: fit(model=cf.FederatedLassoCV([0.1], cv=[([0, 1, 2, 3], [11, -1])])),
        r"row 11 2 times; a row may be in a part once",
    ),
    "a splitter that draws with replacement": (
        lambda: fit(model=cf.FederatedLassoCV([0.1], cv=wrong(SimpleNamespace(split=lambda X, y: [([5, 5, 6, 7], [8, 9])])))),
        r"row 5 2 times",
    ),
    "a mask of whole numbers": (
        lambda: fit(model=cf.FederatedLassoCV([0.1], cv=[(SITES, 1 - SITES)])),
        r"12 whole numbers 0 and 1 for 12 rows: a mask or row numbers\? Give np\.asarray\(part, dtype=bool\)",
    ),
    "a mask of bytes": (
        lambda: fit(model=cf.FederatedLassoCV([0.1], cv=[(SITES == 0, (SITES == 1).astype(np.uint8))])),
        r"a mask or row numbers\?",
    ),
    # groups
    "groups by name": (
        lambda: fit(FRAME, model=cf.FederatedGroupLasso(groups={"age": 0, "dose": 0, "bmi": 1})),
        r"may say the group of each feature, or the features of each group\. Give \[groups\[name\] .* list\(groups\.values",
    ),
    "groups in a string": (lambda: fit(model=cf.FederatedGroupLasso(groups="aab")), r"groups='aab' must be a list"),
    "groups in a set": (lambda: fit(model=cf.FederatedGroupLasso(groups={0, 1, 2})), r"groups=\{0, 1, 2\} must be a list"),
    "groups in a series": (
        lambda: fit(FRAME, model=cf.FederatedGroupLasso(groups=pd.Series({"bmi": 1, "age": 0, "dose": 0}))),
        r"a Series with the index 'bmi', 'age', 'dose', which is not that of the columns",
    ),
    "groups of both kinds": (lambda: fit(model=cf.FederatedGroupLasso(groups=["a", ["b"], "c"])), r"both lists and single"),
    "groups with a hole": (lambda: fit(model=cf.FederatedGroupLasso(groups=[0, None, 1])), r"1 row\(s\) have none"),
    "truth values for features": (lambda: fit(model=cf.FederatedGroupLasso(groups=[[True, 2], [0]])), r"exactly once"),
    "weights of groups by name": (
        lambda: fit(model=cf.FederatedGroupLasso(groups=[0, 0, 1], group_weights=wrong({0: 1, 2: 2}))),
        r"group_weights: there is no group 2\. It is one of '0', '1'",
    ),
    "weights of groups that X does not have": (
        lambda: fit(model=cf.FederatedGroupLasso(groups=["a", "a", "b"], group_weights=pd.Series({"x": 1.0, "b": 2.0}))),
        r"group_weights: there is no group 'x'",
    ),
    "a group twice": (
        lambda: fit(model=cf.FederatedGroupLasso(groups=[0, 0, 1], penalty_factors={0: 1, "0": 2})),
        r"penalty_factors has 0 and '0', which are both group '0'",
    ),
    "groups in a frame": (lambda: fit(FRAME, model=cf.FederatedGroupLasso(groups=FRAME)), r"groups is a DataFrame\. Give a list"),
    "a group without a feature": (
        lambda: fit(model=cf.FederatedGroupLasso(groups=[[0, 1], [], [2]])), r"group 1 has no feature\. Leave it out",
    ),
    "no groups, with factors": (
        lambda: fit(model=cf.FederatedGroupLasso(groups=[], penalty_factors=[1])), r"groups has 0 labels; X has 3 features",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    act, message = REFUSED[case]
    with pytest.raises(cf.InputError, match=message):
        act()


@pytest.mark.parametrize("name", ["fit_intercept", "standardize", "positive", "verbose"])
@pytest.mark.parametrize("value", ["False", "no", "", None, 2, 0.0, np.array([True])])
def test_a_truth_value_is_true_or_false(name, value):
    with pytest.raises(cf.InputError, match=rf"FederatedElasticNet: {name}=.* must be True or False"):
        fit(model=cf.FederatedElasticNet(**{name: value}))


def test_numpy_truth_values_are_truth_values():
    yes: Any
    for yes in (np.True_, 1):
        np.testing.assert_array_equal(fit(model=cf.FederatedLasso(0.01, positive=yes)).coef_, fit(
            model=cf.FederatedLasso(0.01, positive=True)).coef_)  # fmt: skip


# --- arguments ---


@pytest.mark.parametrize("model", [cf.FederatedLasso(), cf.FederatedLassoCV()])
def test_a_third_argument_by_position_is_refused(model):
    """scikit-learn's would be weights, and they were taken for sites."""
    with pytest.raises(TypeError, match=r"sites=.* the site of every row, sample_weight=.* how much") as refusal:
        model.fit(X, Y, np.ones(12))
    assert isinstance(refusal.value, cf.InputError)
    taken = inspect.signature(model.fit).parameters
    assert [taken[name].kind for name in ("sites", "sample_weight")] == [inspect.Parameter.KEYWORD_ONLY] * 2


HINTS = {
    "C": r"alpha = 1 / \(C \* n\)", "penalty": "l1_ratio=1 for 'l1'", "lambda": "Give alpha", "max_iter": "max_rounds",
    "solver": "algorithm, 'auto'", "n_jobs": "nothing", "l1_ratio": "FederatedElasticNet", "sites": r"fit\(\.\.\., sites=",
    "cv": "CV at the end of its name", "standardise": "standardize", "max_round": "Did you mean max_rounds", "xyz": "It takes al",
}  # fmt: skip


@pytest.mark.parametrize("name", HINTS)
def test_an_argument_of_scikit_learn_gets_a_hint(name):
    for act in (lambda: LASSO(**{name: 1}), lambda: cf.FederatedLasso().set_params(**{name: 1})):
        with pytest.raises(TypeError, match=rf"FederatedLasso has no parameter '{name}'\. .*{HINTS[name]}"):
            act()


def test_every_hint_that_names_a_parameter_names_one_that_exists():
    known = {name for model in (cf.FederatedElasticNet, cf.FederatedLassoCV, cf.FederatedHuber)
             for name in model().get_params()}  # fmt: skip
    for text in (
        "max_rounds",
        "algorithm",
        "standardize",
        "delta",
        "alphas",
        "alpha",
        "seed",
        "l1_ratio",
        "fit_intercept",
    ):
        assert text in known
        assert any(text in hint.format(alpha="alpha") for hint in INSTEAD.values())


def test_the_conversion_of_C_is_right():
    """The hint's formula against scikit-learn itself."""
    y, C = Y > 0, 0.7
    expected = LogisticRegression(C=C, l1_ratio=0.0, tol=1e-12, max_iter=10_000).fit(X, y)
    model = fit(y=y, model=cf.FederatedLogisticRegression(1 / (C * len(y)), l1_ratio=0.0))
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-5)


def test_parameters_are_still_those_of_the_constructor():
    model = cf.FederatedLasso(0.3, positive=True)
    copy: Any = clone(model)
    assert copy.get_params() == model.get_params()
    assert list(inspect.signature(cf.FederatedLasso).parameters)[:1] == ["alpha"]
    with pytest.raises(TypeError, match="positional"):
        cf.FederatedLasso(0.3, True)  # pyright: ignore[reportCallIssue]  # the mistake


# --- one site ---


@pytest.mark.parametrize("model", [cf.FederatedLasso(0.1), cf.FederatedLassoCV([0.1, 0.01], cv=2)])
def test_a_fit_without_sites_says_that_it_took_one(model):
    with pytest.warns(
        cf.OneSiteWarning, match=r"fitted as those of one site.*sites=\.\.\..*sites=None says that one"
    ) as caught:
        model.fit(X, Y)
    assert caught[0].filename == __file__
    assert model.site_names_.tolist() == ["0"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, Y, sites=None)
        fit(model=model)


def test_so_does_a_path():
    with pytest.warns(cf.OneSiteWarning, match="regularisation_path"):
        cf.regularisation_path(cf.FederatedLasso(), X, Y, n_alphas=2)


# --- given folds ---


def test_the_ways_out_of_a_mask_of_whole_numbers_hold_out_its_rows():
    """The loss of the held-out rows against a lasso of scikit-learn on the others."""
    reference = Lasso(0.1, tol=1e-14, max_iter=100_000).fit(X[SITES == 1], Y[SITES == 1])
    expected = np.mean((Y - reference.predict(X))[SITES == 0] ** 2) / 2
    for way in (lambda part: np.asarray(part, dtype=bool), np.flatnonzero):
        model = fit(model=cf.FederatedLassoCV([0.1], cv=[(way(SITES), way(1 - SITES))]))
        assert model.cv_loss_.item() == pytest.approx(expected, rel=1e-8)


# --- names and places ---


def test_the_ways_out_of_an_index_and_of_numbered_columns():
    """Fits and predictions against scikit-learn on arrays in the right order."""
    shuffled: Any = pd.Series(Y[::-1], index=range(11, -1, -1))
    by_index, by_place = (Lasso(0.01, tol=1e-14, max_iter=100_000).fit(X, y) for y in (Y, Y[::-1]))
    np.testing.assert_allclose(fit(FRAME, shuffled.loc[FRAME.index]).coef_, by_index.coef_, rtol=1e-8)
    np.testing.assert_allclose(fit(FRAME, shuffled.to_numpy()).coef_, by_place.coef_, rtol=1e-8)
    for rows in (X, NUMBERED, NUMBERED.rename(columns=str)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of scikit-learn: names at fit that are not words
            predicted = fit(rows).predict(NUMBERED[[2, 1, 0]][[0, 1, 2]])
            if rows is not X:
                np.testing.assert_array_equal(fit(rows).predict(NUMBERED[[2, 1, 0]]), predicted)
        np.testing.assert_allclose(predicted, by_index.predict(X), rtol=1e-7)
    groups = fit(
        NUMBERED[[2, 1, 0]].rename(columns=str), model=cf.FederatedGroupLasso(0.01, groups=[["0", "1"], ["2"]])
    )
    same = fit(model=cf.FederatedGroupLasso(0.01, groups=[[0, 1], [2]]))
    np.testing.assert_allclose(groups.coef_[::-1], same.coef_, rtol=1e-8)


def test_equal_indices_are_no_mistake():
    later = FRAME.set_axis(range(5, 17), axis=0)
    series = pd.Series(Y, index=range(5, 17))
    expected = fit().coef_
    np.testing.assert_array_equal(fit(later, series, sites=pd.Series(SITES, index=later.index)).coef_, expected)
    np.testing.assert_array_equal(fit(later, Y).coef_, expected)
    twice = FRAME.set_axis([0] * 12, axis=0)
    np.testing.assert_array_equal(fit(twice, pd.Series(Y, index=twice.index)).coef_, expected)


# --- a fit that fails ---

RENAMED = FRAME.set_axis(["bmi", "dose", "age"], axis=1)


@pytest.mark.parametrize(
    "refit",
    [
        lambda model: model.fit(RENAMED, Y, sites=SITES[:5]),
        lambda model: model.fit(RENAMED, Y, sites=SITES, sample_weight=np.zeros(12)),
        lambda model: model.fit(X[:, :2], Y, sites=SITES[:5]),
        lambda model: model.set_params(tol=0.0, max_rounds=1).fit(RENAMED.assign(site=SITES), Y, sites="site"),
    ],
)
@pytest.mark.parametrize("model", [cf.FederatedLasso(0.01), cf.FederatedLassoCV([0.1, 0.01], cv=2)])
def test_a_refit_that_fails_leaves_the_model_of_the_fit_before(model, refit):
    """Predictions against X w + b in NumPy, with the coefficients by name as the first fit had them."""
    model = fit(FRAME, model=clone(model))
    fitted = {name: value for name, value in vars(model).items() if name.endswith("_")}
    coef, intercept = dict(zip(FRAME.columns, model.coef_, strict=True)), model.intercept_
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        with pytest.raises((ValueError, ConvergenceWarning)):
            refit(model)
    after = {name: value for name, value in vars(model).items() if name.endswith("_")}
    assert after.keys() == fitted.keys()
    assert all(after[name] is fitted[name] for name in fitted)
    expected = sum(coef[name] * FRAME[name].to_numpy() for name in FRAME.columns) + intercept
    np.testing.assert_allclose(model.predict(FRAME), expected, rtol=1e-12)


def test_a_path_changes_nothing_of_its_model():
    model = fit(FRAME)
    before = dict(vars(model))
    cf.regularisation_path(model, RENAMED, Y, sites=SITES, n_alphas=2)
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is before[name] for name in before)
    assert model.feature_names_in_.tolist() == ["age", "dose", "bmi"]


# --- progress ---


@pytest.mark.parametrize(
    "model", [cf.FederatedLasso(0.1, verbose=True), cf.FederatedLassoCV([0.1, 0.01], cv=2, verbose=True)]
)
def test_verbose_prints_plain_lines_in_a_pipe(model, monkeypatch):
    """However short the fit: how far it came, and whether it converged."""
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    fit(model=model)
    *progress, last = pipe.getvalue().splitlines()
    assert progress
    name = type(model).__name__
    assert last.startswith(f"{name}: tol=1e-12 reached; {model.n_rounds_} messages to each of 2 site(s)")
    assert all(line.startswith(f"{name}: ") and "\r" not in line and "#" not in line for line in progress)


def test_on_a_terminal_it_is_a_bar(monkeypatch):
    monkeypatch.setattr("compfed._utils.text.time", SimpleNamespace(monotonic=lambda: 7.0))  # no time passes

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, pipe, quiet = Terminal(), io.StringIO(), io.StringIO()
    for out, seconds in ((terminal, 0.0), (pipe, 0.0), (quiet, 60.0)):
        show = progress_bar("work", out, quiet=seconds)
        for done in range(1, 4):
            show(done, 3)
    assert "\r" in terminal.getvalue()
    assert pipe.getvalue().splitlines()[0] == "work: 1/3, 0 s"
    assert pipe.getvalue().splitlines()[-1] == "work: 3/3, 0 s"
    assert quiet.getvalue() == ""
