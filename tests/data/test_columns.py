"""What is given as numbers, names or sites: read as it is meant, or refused where it could be meant in two ways."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix

import compfed as cf
from compfed.data import from_arrays, from_table, partition
from compfed.federation.site.rows import Rows
from compfed.federation.site.site import Site
from compfed.federation.spec import ObjectiveSpec
from compfed.problem.local_loss import FullGradient
from compfed.splits import held_out

masked: Any = np.ma.masked_array
X = np.arange(8.0).reshape(4, 2)
Y = np.array([0.0, 1.0, 0.0, 1.0])
WHERE = ["a", "b", "a", "b"]
HIDDEN = np.array([False, False, True, False])
MASKED = masked(Y, HIDDEN)
FRAME = pd.DataFrame({"age": [50.0, 61.0, 70.0, 44.0], "dose": [1, 2, 3, 4]})
DATES = np.array(["2020-01-01"] * 4, "datetime64[D]")


def problem(**given: Any) -> cf.Problem:
    return cf.Problem(cf.losses.Squared(), cf.regularisers.L1(0.1), from_table(X, Y, WHERE), **given)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    # behind a mask, wherever arrays enter
    "masked features": (lambda: from_arrays([masked(X, X > 5)], [Y]), r"features of site '0' has 2 masked"),
    "masked rows in a list": (
        lambda: from_table([masked(x, x > 6) for x in X], Y, WHERE),
        r"features has 1 masked value\(s\).*filled",
    ),
    "masked labels": (lambda: from_table(X, MASKED, WHERE), r"labels has 1 masked"),
    "masked row weights": (lambda: from_table(X, Y, WHERE, sample_weight=MASKED), r"row weights has 1 masked"),
    "masked sites": (lambda: from_table(X, Y, masked([1, 2, 1, 2], HIDDEN)), r"1 row\(s\) have none, .* row 2"),
    "masked column to split by": (lambda: partition.by_column(MASKED), r"1 row\(s\) have none, the first is row 2"),
    "masked sites to hold out of": (lambda: held_out(MASKED), r"1 row\(s\) have none"),
    "masked weights": (lambda: problem(weights=masked([0.5, 0.5], [0, 1])), r"weights has 1 masked"),
    "masked start": (lambda: cf.solve_federated(problem(), x0=masked([0, 0], [0, 1])), r"x0 has 1 masked"),
    "masked lambda": (lambda: cf.regularisers.L1(masked([1.0, 2.0], [0, 1])), r"lam must be finite and >= 0"),
    "masked groups": (
        lambda: cf.regularisers.GroupL2(1.0, masked([0, 1], [0, 1])),  # pyright: ignore[reportArgumentType]
        r"groups must be .* none of them masked",
    ),
    "masked rows of a site": (
        lambda: Site(Rows(masked(X, X > 5), Y, name='n', index=0)),
        r"site 'n': features has 2 masked",
    ),
    # no numbers, though NumPy would make them so
    "dates": (lambda: from_arrays([np.column_stack([DATES, DATES])], [Y]), r"row 0, column 0 has .*2020-01-01.*not a number"),
    "dates in a frame": (
        lambda: from_table(FRAME.assign(seen=pd.to_datetime(DATES)), Y, WHERE),
        r"column 'seen' has Timestamp\('2020-01-01 00:00:00'\) in row 0, which is not a number",
    ),
    "times": (lambda: from_table(X, DATES - DATES[0], WHERE), r"labels must be numbers: row 0 has"),
    "complex features": (lambda: from_arrays([X + 1j], [Y]), r"row 0, column 0 has np\.complex128\(1j\), which is not"),
    "complex dates at a site": (
        lambda: Site(Rows(X + 1j, Y, name='n', index=0)),
        r"site 'n': features must be numbers; they are complex128",
    ),
    "a word in a frame": (
        lambda: from_table(FRAME.assign(sex=["f", "1", "m", "f"]), Y, WHERE),
        r"features: column 'sex' has 'f' in row 0, which is not a number\. Encode words",
    ),
    "a categorical column": (
        lambda: from_table(FRAME.assign(stage=pd.Categorical([1, 2, 3, 1])), Y, WHERE),
        r"column 'stage' is categorical; .*convert it to numbers, or make one column per level",
    ),
    "an underscore in a number": (lambda: from_arrays([[["1_000", "2"]]], [[1.0]]), r"column 0 has .*'1_000'.*, which is not"),
    "a number beyond floats": (lambda: from_arrays([[[10**400, 1]]], [[1.0]]), r"row 0, column 0 has 10+\.\.\., which is not"),
    "rows of different length": (lambda: from_arrays([[[1, 2], [1]]], [[0, 1]]), r"the rows given differ in length"),
    "pandas.NA": (
        lambda: from_table(FRAME.assign(n=pd.array([1, 2, None, 4], dtype="Int64")), Y, WHERE),
        r"1 value\(s\) that are NaN or infinite",
    ),
    "words for weights of sites": (lambda: problem(weights=["0.5", "0.5"]), r"weights=\['0\.5', '0\.5'\] cannot be read"),
    "truth values for weights of sites": (lambda: problem(weights=[True, False]), r"weights=\[True, False\] cannot be read"),
    "truth values for lambda": (lambda: cf.regularisers.L1(np.array([True, False])), r"lam must be finite and >= 0"),
    "words for lambda": (lambda: cf.regularisers.L1(["0.1"]), r"lam must be finite and >= 0"),  # pyright: ignore[reportArgumentType]
    "a word for a truth value": (
        lambda: cf.data.synthetic(ab_as_variance="no"),  # pyright: ignore[reportArgumentType]
        r"ab_as_variance='no' must be True or False",
    ),
    # two readings
    "the label as site": (
        lambda: from_table(FRAME, "dose", "dose"),
        r"y='dose' and sites='dose' name one column, which can be only one of the two\. Name another column",
    ),
    "two columns of one name": (
        lambda: from_table(pd.DataFrame(np.c_[X, Y], columns=["a", "y", "y"]), "y", WHERE),
        r"the table has two columns 'y'; which one is meant is not clear\. Rename or drop",
    ),
    "two names but for a space": (
        lambda: from_table(pd.DataFrame(X, columns=["a", " a"]), Y, WHERE),
        r"columns 'a' and ' a', which read as one name",
    ),
    "a name and a number": (lambda: from_table(pd.DataFrame(X, columns=[1, "1"]), Y, WHERE), r"columns 1 and '1', which read"),
    "sites but for a space": (
        lambda: from_table(X, Y, ["a", "b", " a", "b"]),
        r"' a' and 'a' are one name but for spaces\. Strip them, or rename",
    ),
    "weights for sites": (
        lambda: from_table(X, Y, [1.0, 0.5, 2.0, 1.0]),
        r"row 1 has 0\.5\. This looks like a row weight.*sample_weight=.*sample_weight=.* give all as text",
    ),
    "labels in another order": (
        lambda: from_table(FRAME, pd.Series(Y, index=[3, 2, 1, 0]), WHERE),
        r"y has the index of X in another order\. Give y\.loc\[X\.index\] .* y\.to_numpy\(\)",
    ),
    "sites in another order": (lambda: from_table(FRAME, Y, pd.Series(WHERE, index=[3, 2, 1, 0])), r"sites has the index of X"),
    "sites beyond a float": (
        lambda: from_table(X, Y, [2**53, 2**53 + 1, 2.0, 2.0]),
        r"9007199254740992 and 9007199254740993 are different values and would both be read as 9007199254740992\.0\. Give all",
    ),
    "sites as floats that are no whole number": (
        lambda: from_table(X, Y, np.array([2**53, 2**53 + 1, 2, 2], float)),
        r"row 0 has 9007199254740992\.0\. A float of this size .* as text, .* or as whole numbers \(dtype int64\)",
    ),
    "sites in bytes and in text": (
        lambda: from_table(X, Y, ["a", b"a", "b", "b"]),
        r"'a' and b'a' are different values and would both be read as 'a'",
    ),
    "sites in numbers and in text": (
        lambda: from_table(X, Y, np.array([1, "1", "b", "b"], object)),
        r"1 and '1' are different values and would both be read as '1'",
    ),
    "sites in a series of both": (
        lambda: from_table(X, Y, pd.Series(["a", b"a", "b", "b"])),
        r"'a' and b'a' are different values",
    ),
    "sites that end in a zero byte": (lambda: from_table(X, Y, ["a", "a\0", "b", "b"]), r"'a' and 'a\\x00' are different"),
    "values in bytes and in text": (lambda: partition.by_column(["a", b"a"]), r"'a' and b'a' are different values"),
    "rows to hold out by both": (lambda: held_out(["a", b"a"]), r"'a' and b'a' are different values"),
    "groups in bytes and in text": (
        lambda: cf.FederatedGroupLasso(groups=["a", b"a"]).fit(X, Y, sites=WHERE),
        r"'a' and b'a' are different values",
    ),
    "groups beyond a float": (
        lambda: cf.FederatedGroupLasso(groups=[2**53 + 1, float(2**53)]).fit(X, Y, sites=WHERE),
        r"9007199254740993 and 9007199254740992\.0 are different values",
    ),
    "groups of NumPy beyond a float": (
        lambda: cf.FederatedGroupLasso(groups=[np.int64(2**53 + 1), np.float64(2**53)]).fit(X, Y, sites=WHERE),
        r"9007199254740993 and 9007199254740992\.0 are different values",
    ),
    "folds beyond a float": (
        lambda: cf.FederatedLassoCV([0.1], cv=[2**53, 2**53 + 1, 2.0, 2.0]).fit(X, Y, sites=WHERE),
        r"are different values and would both be read as",
    ),
    "labels with an index of their own": (
        lambda: from_table(FRAME, pd.Series(Y, index=list("wxyz")), WHERE),
        r"y has another index than X: row 0 is 0 in X and 'w' in y\..* Give y\.to_numpy\(\) to match by place",
    ),
    "weights in another order": (
        lambda: from_table(FRAME, Y, WHERE, sample_weight=pd.Series(Y + 1, index=[3, 2, 1, 0])),
        r"sample_weight has the index of X in another order",
    ),
    "labels of a site in another order": (
        lambda: from_arrays([FRAME], [pd.Series(Y, index=[3, 2, 1, 0])], names=["north"]),
        r"site 'north': labels has the index of features in another order",
    ),
    "weights of a site with a shifted index": (
        lambda: from_arrays([FRAME], [Y], sample_weight=[pd.Series(Y + 1, index=[1, 2, 3, 4])]),
        r"site '0': sample_weight has another index than features: row 0 is 0 in features and 1 in sample_weight",
    ),
    "classes in another order": (
        lambda: held_out(pd.Series(WHERE), classes=pd.Series(Y, index=[3, 2, 1, 0])),
        r"classes has the index of sites in another order",
    ),
    "weights a little off": (
        lambda: problem(weights=[0.5, 0.5 + 1e-7]),
        r"weights sum to 1\.\d+; they must sum to 1 within 1e-8, and are 1e-07 off",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    act, message = REFUSED[case]
    with pytest.raises(cf.InputError, match=message):
        act()


@pytest.mark.parametrize(
    "given",
    [
        X.astype(str),
        X.astype(object),
        X.astype(np.float32),
        X.astype(int).astype(object),
        masked(X, False),
        X.view(np.matrix),
        csr_matrix(X),
        [[Decimal(int(v)) for v in row] for row in X],
        pd.DataFrame(X).astype("Int64"),
        pd.DataFrame(X).astype(str),
        pd.DataFrame(X).astype({0: "Float64"}),
    ],
    ids=lambda given: type(given).__name__,
)
@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_numbers_however_they_are_written(given):
    np.testing.assert_array_equal(from_arrays([given], [Y]).features[0], X)


def test_truth_values_are_zero_and_one():
    np.testing.assert_array_equal(from_arrays([X > 3], [Y > 0]).features[0], [[0, 0], [0, 0], [1, 1], [1, 1]])


def test_sites_that_differ_stay_apart():
    """Names against Python's own, which compares whole numbers exactly."""
    for given in ([2**53, 2**53 + 1] * 2, np.array([2**53, 2**53 + 1] * 2), pd.Series([2**53, 2**53 + 1] * 2, dtype="Int64"),
                  [2**64, 2**64 + 1] * 2, [1, 1.0, True, 2], ["a", np.str_("a"), "b", "b"]):  # fmt: skip
        assert len(from_table(X, Y, given)) == len(set(list(given)))


def test_rows_without_their_own_index_are_matched_by_place():
    elsewhere = pd.Series(Y, index=list("wxyz"))
    for sites in (
        from_table(FRAME, elsewhere.to_numpy(), WHERE),
        from_table(X, elsewhere, WHERE),
        from_table(FRAME, pd.Series(Y), pd.Series(WHERE)),
    ):
        np.testing.assert_array_equal(np.concatenate(sites.labels), Y[[0, 2, 1, 3]])
    classes = pd.Series([0, 0, 0, 1, 1, 1], index=[5, 4, 3, 2, 1, 0])
    out = held_out(["a"] * 6, share=0.4, classes=classes)  # by place: one or more of each class
    assert set(classes.to_numpy()[out]) == {0, 1}


# --- what is printed ---


def numbers_of(text: str) -> set[str]:
    return set(re.findall(r"\d+\.\d{3,}", text))


def test_no_record_of_rows_prints_a_row():
    """The rows are irrational: a number with three digits after the point would be one of theirs."""
    rows = np.sqrt(np.arange(2.0, 14.0)).reshape(6, 2)
    labels = np.sqrt(np.arange(20.0, 26.0))
    sites = from_table(rows, labels, list("aabbba"))
    made = cf.Problem(cf.losses.Squared(), cf.regularisers.L1(0.1), sites)
    site = Site(Rows(rows, labels, name="n", index=0))
    dataset: Any = site.rows.dataset(ObjectiveSpec(cf.losses.Squared()))
    table = cf.FederatedLasso().make_table(rows, labels, None, None)
    loss = FullGradient(made.loss, *dataset[:3])
    bundled = cf.data.bundled.BundledTable(rows, labels, labels, ("a", "b"), "text")
    shown = [
        repr(sites),
        str(sites),
        f"{sites}",
        *map(repr, (made, made.dataset, site, dataset, table, loss, bundled, [dataset])),
    ]
    for text in shown:
        assert not numbers_of(text), text
    assert repr(sites) == "Sites(2 site(s), 6 rows, 2 columns: 'a' (3), 'b' (3))"
    assert repr(made) == f"Problem(Squared, L1, {sites!r}, 2 coefficients, float64)"


def test_a_refusal_that_leaves_a_site_tells_no_label():
    """Six labels that are no classes are six people's own numbers."""
    labels = np.sqrt(np.arange(20.0, 26.0))
    with pytest.raises(cf.InputError, match=r"Logistic needs labels in .*; there are others\.") as refusal:
        cf.Problem(cf.losses.Logistic(), cf.regularisers.L1(0.1), from_arrays([np.ones((6, 1))], [labels]))
    assert not numbers_of(str(refusal.value))
