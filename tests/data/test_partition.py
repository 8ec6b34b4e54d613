"""Made and recorded splits: every row once, the promised sizes and skews; and tables with known sites."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from places import SHARED

import compfed as cf
from compfed.data import bundled, from_arrays, from_table, partition

DATA = SHARED
Y = np.repeat([0, 1, 2, 3], [400, 300, 200, 100])


def class_counts(y: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Rows per (site, class), by counting one by one."""
    table: dict[tuple[Any, Any], int] = {}
    for key in zip(where.tolist(), y.tolist(), strict=True):
        table[key] = table.get(key, 0) + 1
    return np.array([[table.get((s, c), 0) for c in sorted(set(y.tolist()))] for s in sorted(set(where.tolist()))])


# --- made splits ---

MADE = {
    "iid": lambda seed: partition.iid(Y, 7, seed),
    "size_skewed": lambda seed: partition.size_skewed(len(Y), 7, 1.5, seed, min_rows=5),
    "dirichlet": lambda seed: partition.dirichlet(Y, 7, 0.1, seed, min_rows=5),
    "shards": lambda seed: partition.shards(Y, 7, 2, seed),
}


@pytest.mark.parametrize("name", MADE)
def test_every_row_is_at_exactly_one_site_and_the_seed_decides(name):
    where = MADE[name](0)
    assert where.shape == Y.shape
    assert set(where.tolist()) == set(range(7))
    rows = np.arange(len(Y), dtype=float)[:, None]  # a feature that names the row
    sites = from_table(rows, Y, where)
    features, labels = sites.pooled()
    np.testing.assert_array_equal(np.sort(features[:, 0]), rows[:, 0])
    np.testing.assert_array_equal(labels, Y[features[:, 0].astype(int)])
    np.testing.assert_array_equal(where, MADE[name](0))
    assert (where != MADE[name](1)).any()


@pytest.mark.parametrize(("rows", "sites"), [(10, 3), (12, 4), (5, 5), (7, 1)])
def test_iid_sizes_differ_by_at_most_one(rows, sites):
    sizes = np.bincount(partition.iid(rows, sites, seed=3), minlength=sites)
    assert sizes.sum() == rows
    assert sizes.max() - sizes.min() <= 1


def test_iid_has_the_pooled_shares():
    """Class counts at a site are hypergeometric: five standard deviations."""
    y = np.repeat([0, 1], [3000, 7000])
    counts = class_counts(y, partition.iid(y, 10, seed=0))
    sd = np.sqrt(1000 * 0.3 * 0.7 * (1 - 1000 / 10_000))
    assert np.abs(counts[:, 0] - 300).max() < 5 * sd
    assert counts[:, 0].std() > sd / 3  # dealt at random, not by class


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_sizes_follow_the_power_law(exponent):
    sizes = np.bincount(partition.size_skewed(5000, 8, exponent, seed=1))
    law = np.array([1 / (i + 1) ** exponent for i in range(8)])
    assert sizes.sum() == 5000
    assert np.abs(sizes - 5000 * law / law.sum()).max() < 1
    # 10 rows by 1 : 1/2 : 1/3 are 5.45, 2.73, 1.82: the two rows left over go to the largest remainders
    assert np.bincount(partition.size_skewed(10, 3, 1.0)).tolist() == [5, 3, 2]


def test_min_rows_are_taken_from_the_largest_sites_only():
    free, least = (np.bincount(partition.size_skewed(1000, 10, 3.0, 0, m), minlength=10) for m in (1, 20))
    assert least.min() == 20
    assert least.sum() == 1000
    # the law's 832, 104 and 31 rows: the largest alone gives, all that were short have exactly 20
    assert free[1] == least[1]
    assert (least[free < 20] == 20).all()
    assert free[0] - least[0] == (20 - free[free < 20]).sum()


def test_dirichlet_with_large_alpha_has_the_pooled_shares():
    counts = class_counts(Y, partition.dirichlet(Y, 5, alpha=1e6, seed=0))
    np.testing.assert_allclose(counts, np.tile([80, 60, 40, 20], (5, 1)), atol=2)


def test_dirichlet_with_small_alpha_puts_a_class_at_one_site():
    counts = class_counts(Y, partition.dirichlet(Y, 4, alpha=1e-3, seed=0))
    largest = counts.max(axis=0) / counts.sum(axis=0)
    assert largest.min() > 0.95


def test_dirichlet_shares_have_the_law_s_mean_and_spread():
    """A share of Dirichlet(alpha 1_n) has mean 1/n and variance (1/n)(1 - 1/n) / (n alpha + 1)."""
    n, alpha, draws = 4, 0.5, 400
    y = np.zeros(1000, int)
    shares = np.array([np.bincount(partition.dirichlet(y, n, alpha, s), minlength=n) / 1000 for s in range(draws)])
    variance = (1 / n) * (1 - 1 / n) / (n * alpha + 1)
    np.testing.assert_allclose(shares.mean(axis=0), 1 / n, atol=5 * np.sqrt(variance / draws))
    np.testing.assert_allclose(shares.var(axis=0), variance, rtol=0.35)


@pytest.mark.parametrize("alpha", [1e-300, 0.05])
def test_dirichlet_keeps_min_rows(alpha):
    for seed in range(5):
        sizes = np.bincount(partition.dirichlet(Y, 20, alpha, seed, min_rows=30), minlength=20)
        assert sizes.min() >= 30
        assert sizes.sum() == 1000
    exact = np.bincount(partition.dirichlet(Y, 20, alpha, 0, min_rows=50))
    assert (exact == 50).all()  # the only sizes left


@pytest.mark.parametrize(("sites", "k"), [(4, 1), (10, 1), (5, 2), (30, 3), (2, 2), (500, 2)])
def test_shards_bound_the_classes_of_a_site(sites, k):
    counts = class_counts(Y, partition.shards(Y, sites, k, seed=2))
    assert len(counts) == sites
    assert (counts > 0).sum(axis=1).max() <= k
    np.testing.assert_array_equal(counts.sum(axis=0), [400, 300, 200, 100])


def test_shards_are_those_of_mcmahan_with_equal_classes():
    """100 sites of two shards of 300 rows from ten classes of 6,000, as the paper cuts MNIST."""
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 6000))
    counts = class_counts(y, partition.shards(y, 100, 2, seed=0))
    assert set(counts.ravel().tolist()) == {0, 300, 600}
    assert (counts.sum(axis=1) == 600).all()


def test_one_class_sites():
    counts = class_counts(Y, partition.shards(Y, 8, shards_per_site=1, seed=0))
    assert ((counts > 0).sum(axis=1) == 1).all()
    words = np.array(["cat", "dog"])[Y % 2]
    assert ((class_counts(words, partition.shards(words, 6, 1)) > 0).sum(axis=1) == 1).all()


# --- recorded splits ---


def test_by_column_is_the_column():
    town = pd.Series(["rome", "oslo", "rome", "bonn"])
    assert partition.by_column(town).tolist() == ["rome", "oslo", "rome", "bonn"]
    assert partition.by_column(np.array([10, 9, 10])).tolist() == [10, 9, 10]
    merged = partition.by_column(town, min_rows=2, rest="elsewhere")
    assert from_table(np.eye(4), np.ones(4), merged).names == ("elsewhere", "rome")


def test_bins_are_quantiles_and_keep_equal_values_together():
    values = np.random.default_rng(0).standard_normal(1000)
    where = partition.by_column(values, bins=4)
    assert np.bincount(where).tolist() == [250] * 4
    for low, high in ((0, 1), (1, 2), (2, 3)):
        assert values[where == low].max() < values[where == high].min()
    ages = np.random.default_rng(0).integers(20, 40, 500)
    bands = partition.by_column(ages, bins=3)
    assert all(len(set(bands[ages == age])) == 1 for age in ages)


# --- mistakes ---

P = partition
MISTAKES: dict[str, tuple[Any, str]] = {
    "more sites than rows": (lambda: P.iid(3, 4), r"sites=4 with at least 1 row\(s\) each need 4 rows; there are 3\. Use fewer"),
    "more min_rows than rows": (lambda: P.dirichlet(Y, 7, 1.0, min_rows=200), r"need 1400 rows; there are 1000\. .* smaller min_rows"),
    "no rows": (lambda: P.iid([], 1), r"rows=\[\] must be a number of rows >= 1"),
    "negative rows": (lambda: P.iid(-3, 1), r"rows=-3 must be a whole number >= 1"),
    "no site": (lambda: P.iid(3, 0), r"sites=0 must be a whole number >= 1"),
    "half a site": (lambda: P.iid(3, 1.5), r"sites=1\.5 must be a whole number >= 1"),  # pyright: ignore[reportArgumentType]  # the mistake
    "negative seed": (lambda: P.iid(3, 1, -1), r"seed=-1 must be a whole number >= 0"),
    "alpha 0": (lambda: P.dirichlet(Y, 2, 0.0), r"alpha=0\.0 must be a finite number > 0\. 0\.1 is for strong"),
    "alpha infinite": (lambda: P.dirichlet(Y, 2, np.inf), r"alpha=inf must be a finite number"),
    "alpha NaN": (lambda: P.dirichlet(Y, 2, np.nan), r"alpha=nan must be a finite number"),
    "negative exponent": (lambda: P.size_skewed(9, 2, -1.0), r"exponent=-1\.0 must be a finite number >= 0"),
    "min_rows 0": (lambda: P.size_skewed(9, 2, min_rows=0), r"min_rows=0 must be a whole number >= 1"),
    "numbers for classes": (lambda: P.dirichlet([1.0, 2.5], 2, 1.0), r"class labels; got 2\.5 in row 1\..*by_column\(y, bins=5\)"),
    "a matrix for classes": (lambda: P.shards(np.eye(3), 2), r"one class label per row; got shape \(3, 3\)"),
    "a missing class": (lambda: P.shards([0.0, np.nan], 2), r"1 row\(s\) have none, the first is row 1\. Drop"),
    "fewer shards than classes": (lambda: P.shards(Y, 3, 1), r"3 sites of 1 shard.*, 4 classes and 1000 rows: .*Change sites"),
    "more shards than rows": (lambda: P.shards([0, 1], 2, 2), r"2 sites of 2 shard.*, 2 classes and 2 rows"),
    "no shards": (lambda: P.shards(Y, 4, 0), r"shards_per_site=0 must be a whole number >= 1"),
    "a small site": (lambda: P.by_column(list("aab"), min_rows=2), r"min_rows=2: b \(1\)\. Lower .*rest='other'"),
    "a small rest": (lambda: P.by_column(list("aab"), min_rows=2, rest="c"), r"min_rows=2: c \(1\)\. Lower min_rows, or drop"),
    "a row without a value": (lambda: P.by_column(["a", None]), r"one value per row; 1 row\(s\) have none, the first is row 1"),
    "bins of words": (lambda: P.by_column(["a", "b"], bins=2), r"bins=2 needs finite numbers; row 0 has a\. Leave bins out"),
    "bins of infinity": (lambda: P.by_column([1.0, np.inf], bins=2), r"row 1 has inf"),
    "too many bins": (lambda: P.by_column([1, 1, 2, 2], bins=3), r"bins=3 leaves 1 bin\(s\) empty.*2 distinct.*fewer bins"),
    "no bins": (lambda: P.by_column([1, 2], bins=0), r"bins=0 must be a whole number"),
    "unknown split of diabetes": (lambda: bundled.diabetes("bmi"), r"sites='bmi' must be one of 'age', 'sex'"),  # pyright: ignore[reportArgumentType]  # the mistake
    "unknown split of a9a": (lambda: bundled.a9a(DATA, "race"), r"sites='race' must be one of 'occupation'"),  # pyright: ignore[reportArgumentType]  # the mistake
    "a9a not there": (lambda: bundled.a9a("nowhere"), r"no file nowhere.a9a; it is part of a9a, https://www\.csie.*Download"),
    "heart not there": (lambda: bundled.heart("nowhere"), r"processed\.cleveland\.data; .*10\.24432/C52P4X\. Download"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_clear_error(mistake):
    do, message = MISTAKES[mistake]
    with pytest.raises(cf.InputError, match=message):
        do()


# --- tables with sites ---


@pytest.mark.parametrize(
    ("table", "shape", "sizes"),
    [
        (bundled.breast_cancer(), (569, 30), [143, 142, 142, 142]),
        (bundled.diabetes("sex"), (442, 10), [235, 207]),
        (bundled.digits(), (1797, 64), None),
    ],
    ids=["breast_cancer", "diabetes", "digits"],
)
def test_bundled_tables(table, shape, sizes):
    sites = table.federation()
    assert table.X.shape == shape
    assert sites.columns == table.feature_names
    assert len(set(table.feature_names)) == shape[1]
    assert sites.sizes.sum() == shape[0]
    assert sizes is None or sites.sizes.tolist() == sizes


def test_diabetes_age_bands_hold_their_ages():
    from sklearn.datasets import load_diabetes

    raw: Any = load_diabetes(scaled=False)
    table = bundled.diabetes()
    for age, band in zip(raw.data[:, 0], table.sites, strict=True):
        low, high = band.split("-")
        assert int(low) <= age <= int(high)


@pytest.mark.skipif(not DATA.exists(), reason="the heart disease data are not part of the repository")
def test_heart_has_flamby_s_rows():
    table = bundled.heart(DATA / "heart")
    sites = table.federation()
    assert sites.names == ("cleveland", "hungary", "switzerland", "va")
    assert sites.sizes.tolist() == [303, 261, 46, 130]
    np.testing.assert_allclose([y.mean() for y in sites.labels], [0.46, 0.38, 0.98, 0.78], atol=0.005)
    assert table.X.shape == (740, 13)
    raw = pd.read_csv(DATA / "heart" / "processed.va.data", header=None, na_values="?")
    raw = raw.drop(columns=[10, 11, 12]).dropna()
    columns = [
        raw[0], raw[1], raw[2] == 2, raw[2] == 3, raw[2] == 4, raw[3], raw[4], raw[5], raw[6] == 1, raw[6] == 2,
        raw[7], raw[8], raw[9],
    ]  # fmt: skip
    np.testing.assert_array_equal(sites.features[3], np.column_stack(columns).astype(float))
    assert table.feature_names[2:6] == ("cp=2", "cp=3", "cp=4", "trestbps")
    np.testing.assert_array_equal(sites.labels[3], raw[13] > 0)


@pytest.mark.skipif(not DATA.exists(), reason="the heart disease data are not part of the repository")
def test_an_altered_copy_of_heart_is_refused(tmp_path):
    for path in (DATA / "heart").glob("*.data"):
        (tmp_path / path.name).write_text(path.read_text().replace("?", "0"))
    with pytest.raises(cf.InputError, match=r"hungarian\.data has 294 complete rows where UCI's has 261.*altered copy"):
        bundled.heart(tmp_path)


@pytest.mark.skipif(not DATA.exists(), reason="the a9a data set is not part of the repository")
def test_a9a_by_occupation():
    table = bundled.a9a(DATA / "adult_a9a")
    assert table.X.shape == (32561, 123)
    counts = {str(name): int((table.sites == name).sum()) for name in np.unique(table.sites)}
    assert counts == {
        "Tech-support": 928, "Craft-repair": 4099, "Other-service": 3295, "Sales": 3650, "Exec-managerial": 4066,
        "Prof-specialty": 4140, "Handlers-cleaners": 1370, "Machine-op-inspct": 2002, "Adm-clerical": 3770,
        "Farming-fishing": 994, "Transport-moving": 1597, "Priv-house-serv": 149, "Protective-serv": 649,
        "Armed-Forces": 9, "missing": 1843,
    }  # fmt: skip
    # UCI's Adult: 8 of 9 in the armed forces, and 2098 of 4066 executives, earn 50,000 or less
    poor = {name: int((table.y[table.sites == name] < 0).sum()) for name in ("Armed-Forces", "Exec-managerial")}
    assert poor == {"Armed-Forces": 8, "Exec-managerial": 2098}
    without = bundled.a9a(DATA / "adult_a9a", drop_site_columns=True)
    np.testing.assert_array_equal(without.X, np.delete(table.X, slice(46, 60), axis=1))
    assert without.feature_names == table.feature_names[:46] + table.feature_names[60:]
    by_class = bundled.a9a(DATA / "adult_a9a", "workclass")
    assert (by_class.sites == "missing").sum() == 1836


# --- describe ---


def test_table_one_of_classes_by_hand():
    X = np.array([[1.0, 0.0], [1.0, 2.0], [1.0, 4.0], [1.0, 6.0], [1.0, 8.0]])
    sites = from_table(pd.DataFrame(X, columns=["one", "dose"]), [0, 0, 1, 1, 1], list("aabbb"))
    found: Any = cf.describe(sites)
    assert [table.rows for table in (found.overall, *found.sites)] == [5, 2, 3]
    assert [table.columns["label"].levels for table in found.sites] == [
        {"0": (2, 2), "1": (0, 0)},
        {"0": (0, 0), "1": (3, 3)},
    ]
    # means 1 and 6, variances 2 and 4
    assert found.differences == {"one": 0.0, "dose": pytest.approx(5 / np.sqrt(3), rel=1e-14), "label": np.inf}
    assert str(found).endswith("note: one value in all rows that have one: one")
    assert len({len(line) for line in str(found).splitlines()[2:-2]}) <= 2  # aligned, but for an empty last cell


def test_table_one_of_several_outcomes():
    sites = from_arrays([np.eye(2), np.eye(2)], [[[0.5, 0], [1.5, 1]], [[2.5, 1], [3.5, 2]]])
    found: Any = cf.describe(sites)
    assert found.labels == ("label 1", "label 2")
    assert [table.columns["label 1"].mean for table in found.sites] == [1.0, 3.0]
    assert found.differences["label 2"] == pytest.approx(1 / np.sqrt(0.5), rel=1e-12)


def test_table_one_of_equal_sites_has_no_difference_and_of_many_is_short():
    found = cf.describe(from_arrays([np.eye(3)] * 20, [[0, 1, 1]] * 20), quantiles=())
    assert set(found.differences.values()) == {0.0}
    assert "12 more sites are not shown" in str(found)
    assert len(found.sites or ()) == 20
