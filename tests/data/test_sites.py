"""Federations: the synthetic generator against its recipe, and the ways to bring one's own data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from scipy import stats

import compfed as cf
from compfed.data import Sites, from_arrays, from_table, mapped_sites, synthetic
from compfed.losses import Logistic
from compfed.regularisers import Zero


def recipe(alpha, beta, sizes, d, seed, classes=1):
    """(raw rows, W, b) of each site, drawn as the recipe says: u, B, v, then site by site its model and its rows."""
    rng = np.random.default_rng(seed)
    n = len(sizes)
    u, B = rng.normal(0, alpha, n), rng.normal(0, beta, n)
    v = B[:, None] + rng.normal(0, 1, (n, d))
    for i, m in enumerate(sizes):
        W, b = u[i] + rng.normal(0, 1, (d, classes)), u[i] + rng.normal(0, 1, classes)
        yield v[i] + rng.normal(0, 1, (m, d)) * np.sqrt(np.arange(1.0, d + 1) ** -1.2), W, b


def same_data(a, b):
    return all(map(np.array_equal, a.features + a.labels, b.features + b.labels))


# --- synthetic ---


def test_synthetic_follows_the_recipe():
    sizes = [7, 3, 11]
    sites = synthetic(alpha=2.0, beta=0.5, clients=3, samples=sizes, features=5, seed=4)
    assert [a.shape for a in sites.features] == [(7, 5), (3, 5), (11, 5)]
    assert [y.shape for y in sites.labels] == [(7,), (3,), (11,)]
    for features, labels, (x, W, b) in zip(sites.features, sites.labels, recipe(2.0, 0.5, sizes, 5, 4), strict=True):
        np.testing.assert_allclose(features, x / np.linalg.norm(x, axis=1, keepdims=True), rtol=1e-12)
        np.testing.assert_array_equal(labels, np.sign(x @ W[:, 0] + b))


@pytest.mark.parametrize(("label_rule", "classes"), [("argmax", 2), ("parity", 10)])
def test_label_rules_follow_the_recipe(label_rule, classes):
    sites = synthetic(alpha=1.0, beta=0.0, clients=4, samples=30, features=5, seed=1, label_rule=label_rule)
    for labels, (x, W, b) in zip(sites.labels, recipe(1.0, 0.0, [30] * 4, 5, 1, classes), strict=True):
        np.testing.assert_array_equal(labels, np.where((x @ W + b).argmax(axis=1) % 2 == 0, 1, -1))
    assert {-1.0, 1.0} == set(np.concatenate(sites.labels))


def test_labels_are_made_before_normalising():
    settings: dict[str, Any] = {"alpha": 1.0, "beta": 1.0, "clients": 6, "samples": 40, "features": 8, "seed": 0}
    raw, rows, largest = (synthetic(**settings, normalise=n) for n in ("none", "rows", "largest"))
    top = max(np.linalg.norm(x, axis=1).max() for x in raw.features)
    for i in range(6):
        np.testing.assert_array_equal(raw.labels[i], rows.labels[i])
        np.testing.assert_array_equal(raw.labels[i], largest.labels[i])
        norms = np.linalg.norm(raw.features[i], axis=1, keepdims=True)
        np.testing.assert_allclose(np.linalg.norm(rows.features[i], axis=1), 1.0, rtol=1e-14)
        np.testing.assert_allclose(rows.features[i] * norms, raw.features[i], rtol=1e-13)
        np.testing.assert_allclose(largest.features[i] * top, raw.features[i], rtol=1e-13)
    # it matters: the same models, asked after normalising, would give other labels (the intercept does not shrink)
    models = [(W[:, 0], b) for _, W, b in recipe(1.0, 1.0, [40] * 6, 8, 0)]
    late = [np.sign(x @ w + b) for x, (w, b) in zip(rows.features, models, strict=True)]
    assert any((a != b).any() for a, b in zip(late, rows.labels, strict=True))


def test_alpha_and_beta_are_standard_deviations_unless_variances_are_asked_for():
    settings: dict[str, Any] = {"clients": 5, "samples": 10, "features": 4, "seed": 3}
    spreads = synthetic(alpha=5.0, beta=3.0, **settings)
    assert same_data(spreads, synthetic(alpha=25.0, beta=9.0, ab_as_variance=True, **settings))
    assert not same_data(spreads, synthetic(alpha=5.0, beta=3.0, ab_as_variance=True, **settings))


def test_spread_of_site_means_and_of_columns():
    """By its distribution: the mean of B_i + N(0,1) over d columns has variance beta^2 + 1/d (plus a little noise)."""
    n, d = 400, 16
    sites = synthetic(alpha=0.0, beta=3.0, clients=n, samples=50, features=d, seed=0, normalise="none")
    means = np.array([x.mean() for x in sites.features])
    ratio = (n - 1) * means.var(ddof=1) / (3.0**2 + 1 / d)
    assert 1e-4 < stats.chi2(n - 1).cdf(ratio) < 1 - 1e-4
    within = np.mean([x.var(axis=0, ddof=1) for x in sites.features], axis=0) * np.arange(1, d + 1) ** 1.2
    np.testing.assert_allclose(within, 1.0, atol=5 * np.sqrt(2 / (n * 49)))  # five standard errors


@pytest.mark.identity(31)
@pytest.mark.parametrize("label_rule", ["argmax", "parity"])
def test_alpha_is_inert_with_argmax_labels(label_rule):
    settings: dict[str, Any] = {
        "beta": 1.0,
        "clients": 5,
        "samples": 50,
        "features": 8,
        "seed": 2,
        "label_rule": label_rule,
    }
    zero, ten = synthetic(alpha=0.0, **settings), synthetic(alpha=10.0, **settings)
    assert same_data(zero, ten)
    assert len(np.unique(np.concatenate(zero.labels))) == 2  # equal, and not because all labels are the same


@pytest.mark.identity(31)
def test_alpha_acts_with_the_sign_rule():
    settings: dict[str, Any] = {"beta": 1.0, "clients": 10, "samples": 50, "features": 8, "seed": 2}
    zero, ten = synthetic(alpha=0.0, **settings), synthetic(alpha=10.0, **settings)
    assert all(map(np.array_equal, zero.features, ten.features))
    assert not all(map(np.array_equal, zero.labels, ten.labels))
    # a common shift u_i of all weights pushes a site towards one class
    purity = [np.mean([abs(y.mean()) for y in sites.labels]) for sites in (zero, ten)]
    assert purity[1] > purity[0]


def test_seed_decides_everything():
    settings: dict[str, Any] = {"clients": 3, "samples": 5, "features": 4}
    assert same_data(synthetic(seed=7, **settings), synthetic(seed=7, **settings))
    assert not same_data(synthetic(seed=7, **settings), synthetic(seed=8, **settings))


def test_synthetic_default_is_the_papers_federation():
    sites = synthetic(samples=2)
    assert (len(sites), sites.width) == (30, 60)
    assert sites.source["alpha"] == sites.source["beta"] == 10.0
    assert same_data(sites, synthetic(10, 10, 30, 2, 60, 0))


def test_source_rebuilds_the_federation():
    for samples in (6, [4, 5, 6]):
        sites = synthetic(1.0, 2.0, 3, samples, 4, 5, label_rule="parity", normalise="largest", ab_as_variance=True)
        settings: dict[str, Any] = {k: v for k, v in sites.source.items() if k != "name"}
        assert sites.source["name"] == "synthetic"
        assert settings["samples"] == samples
        assert same_data(sites, synthetic(**settings))


# --- one's own data ---


def tables():
    rng = np.random.default_rng(0)
    return [rng.standard_normal((m, 3)) for m in (4, 1, 6)], [np.arange(m) % 2 for m in (4, 1, 6)]


def test_from_arrays():
    X, Y = tables()
    sites = from_arrays(X, Y, names=["a", "b", "c"])
    assert (len(sites), sites.width, sites.names, sites.ids) == (3, 3, ("a", "b", "c"), (0, 1, 2))
    np.testing.assert_array_equal(sites.sizes, [4, 1, 6])
    np.testing.assert_allclose(sites.shares, [4 / 11, 1 / 11, 6 / 11], rtol=1e-15)
    for x, y, features, labels in zip(X, Y, sites.features, sites.labels, strict=True):
        assert features.dtype == labels.dtype == np.float64
        np.testing.assert_array_equal(features, x)
        np.testing.assert_array_equal(labels, y)
    assert from_arrays(X, Y).names == ("0", "1", "2")


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x.tolist(),
        lambda x: scipy.sparse.csr_matrix(x),
        lambda x: scipy.sparse.coo_array(x),
        lambda x: pd.DataFrame(x, columns=list("pqr")),
        lambda x: x.astype(np.float32),
    ],
    ids=["lists", "csr_matrix", "coo_array", "DataFrame", "float32"],
)
def test_from_arrays_takes_what_looks_like_a_matrix(convert):
    X = [np.array([[1.0, 0.0, 2.5], [0.0, 0.0, -1.0]]), np.array([[0.0, 4.0, 0.0]])]
    sites = from_arrays((convert(x) for x in X), [pd.Series([True, False]), [1]])
    assert all(map(np.array_equal, sites.features, X))
    assert [y.tolist() for y in sites.labels] == [[1.0, 0.0], [1.0]]


def test_from_table_splits_by_site():
    rng = np.random.default_rng(1)
    X, y, where = rng.standard_normal((8, 2)), rng.standard_normal(8), np.array(list("cabacaab"))
    sites = from_table(X, y, where)
    assert sites.names == ("a", "b", "c")
    np.testing.assert_array_equal(sites.sizes, [4, 2, 2])
    for name, features, labels in zip("abc", sites.features, sites.labels, strict=True):
        rows = [i for i in range(8) if where[i] == name]  # in the order of the table
        np.testing.assert_array_equal(features, X[rows])
        np.testing.assert_array_equal(labels, y[rows])


def test_from_table_with_numbered_sites():
    sites = from_table(np.eye(4), [0, 1, 0, 1], [10, 9, 10, 2])
    assert sites.names == ("2", "9", "10")  # sorted as numbers, not as words
    np.testing.assert_array_equal(sites.features[2], np.eye(4)[[0, 2]])


def test_from_table_with_a_data_frame():
    frame = pd.DataFrame(
        {
            "age": [50, 60, 70, 80],
            "ill": [0, 1, 1, 0],
            "dose": [0.1, 0.2, 0.3, 0.4],
            "hospital": ["south", "north", "south", "north"],
        }
    )
    by_name = from_table(frame, "ill", "hospital")
    assert by_name.names == ("north", "south")
    np.testing.assert_array_equal(by_name.features[0], [[60, 0.2], [80, 0.4]])
    np.testing.assert_array_equal(by_name.labels[1], [0, 1])
    series = from_table(frame[["age", "dose"]], frame["ill"], frame["hospital"])
    assert same_data(by_name, series)
    categories = from_table(frame.astype({"hospital": "category"}), "ill", "hospital")
    assert same_data(by_name, categories)
    # only the columns named are taken out: here the labels come from outside and "ill" is a feature
    assert from_table(frame, [1, 2, 3, 4], "hospital").width == 3


def test_from_table_sparse():
    X = np.array([[0, 1.0], [2, 0], [0, 0], [3, 4]])
    dense, sparse = (from_table(x, [0, 1, 0, 1], [0, 1, 1, 0]) for x in (X, scipy.sparse.csc_matrix(X)))
    assert same_data(dense, sparse)


def test_permuted_keeps_each_sites_identity():
    X, Y = tables()
    sites = from_arrays(X, Y, names=["a", "b", "c"])
    turned = sites.permuted([2, 0, 1])
    assert turned.names == ("c", "a", "b")
    assert turned.ids == (2, 0, 1)
    np.testing.assert_array_equal(turned.sizes, [6, 4, 1])
    for position, i in enumerate([2, 0, 1]):
        np.testing.assert_array_equal(turned.features[position], X[i])
        np.testing.assert_array_equal(turned.labels[position], Y[i])
    assert turned.source["order"] == [2, 0, 1]
    back = turned.permuted(np.array([1, 2, 0]))
    assert same_data(back, sites)
    assert back.ids == sites.ids


def test_pooled_is_all_rows_of_all_sites():
    X, Y = tables()
    features, labels = from_arrays(X, Y).pooled()
    np.testing.assert_array_equal(features, np.vstack(X))
    np.testing.assert_array_equal(labels, np.hstack(Y))
    # and from_table takes them apart again
    assert same_data(from_table(features, labels, np.repeat([0, 1, 2], [4, 1, 6])), from_arrays(X, Y))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint64, bool])
def test_small_integers_do_not_wrap(dtype):
    """A federation put together by hand, against NumPy on floats."""
    low, high = (0, 1) if dtype is bool else (np.iinfo(dtype).min, 127)
    X = np.array([[high, low], [low, high], [1, 0], [low, low]]).astype(dtype)
    y, w = np.array([0, 1, 1, 0]).astype(dtype), np.array([1, 1, 1, 1]).astype(dtype)
    sites = Sites((X, X[:2]), (y, y[:2]), ("north", "south"), (0, 1), sample_weight=(w, w[:2]))
    A, b = X.astype(float), y.astype(float)
    table: Any = cf.describe(sites)
    for j in range(2):
        apart, spread = A[:, j].mean() - A[:2, j].mean(), np.sqrt((A[:, j].var(ddof=1) + A[:2, j].var(ddof=1)) / 2)
        assert table.differences[str(j)] == pytest.approx(abs(apart) / spread, rel=1e-12)
        assert table.overall.columns[str(j)].mean == pytest.approx(np.concatenate([A, A[:2]])[:, j].mean(), rel=1e-12)
    np.testing.assert_array_equal(sites.features[0], A)
    x = np.array([0.01, -0.02])
    signs = 2 * b - 1
    losses = [np.logaddexp(0, -signs[:m] * (A[:m] @ x)).mean() for m in (4, 2)]
    problem = cf.Problem(Logistic(), Zero(), sites, weights=[0.5, 0.5])
    assert float(problem.objective(x)) == pytest.approx(np.mean(losses), rel=1e-9)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int8, bool])
def test_labels_of_fetched_rows_do_not_wrap(dtype):
    """Labels 0 and 1 are -1 and +1 to the logistic loss, whatever their type."""
    labels = np.array([0, 1, 0, 1, 1, 0])
    sites = mapped_sites(np.ones((6, 2)), labels.astype(dtype), [3, 3])
    encoded = np.concatenate([Logistic().encode(sites.rows(i)[1]) for i in range(2)])
    np.testing.assert_array_equal(encoded, [-1, 1, -1, 1, 1, -1])
