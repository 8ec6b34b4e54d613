"""Sizes: what many tiny sites and large tables cost, counted in comparisons, eigenproblems and bytes."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp

import compfed as cf
from compfed.federation.site import rows
from compfed.federation.site.in_process import InProcess
from compfed.losses import lipschitz as curvature
from compfed.losses.lipschitz import largest_eigenvalue


def peak(work) -> int:
    """Bytes that were held at most during some work, beyond those before it."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def regression(rows: int, columns: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, columns))
    return X, X[:, 0] - X[:, 1] + 0.1 * rng.standard_normal(rows)


class Name:
    """The name of a site, which counts how often it is compared."""

    compared = 0

    def __init__(self, number: int):
        self.number = number

    def __lt__(self, other):
        Name.compared += 1
        return self.number < other.number

    def __eq__(self, other):
        Name.compared += 1
        return self.number == other.number

    def __hash__(self):
        return self.number

    def __str__(self):
        return str(self.number)


@pytest.mark.parametrize("cut", ["fit", "from_table"])
def test_as_many_sites_as_rows_are_sorted_not_searched_for_one_by_one(cut):
    X, y = regression(400, 2)
    names = np.array([Name(i) for i in range(400)], dtype=object)
    Name.compared = 0
    if cut == "fit":
        found = [str(name) for name in cf.FederatedLasso(alpha=0.1).fit(X, y, sites=names).site_names_]
    else:
        sites = cf.data.from_table(X, y, names)
        found = list(sites.names)
        np.testing.assert_array_equal(np.concatenate(sites.features), X)
    assert found == [str(i) for i in range(400)]
    assert Name.compared < 40 * 400  # log2(400) is 9; one look at all rows for every site would be 160,000


def test_rows_of_a_site_keep_their_order():
    rng = np.random.default_rng(3)
    where = rng.integers(0, 7, 60).astype(str)
    X = np.arange(60.0)[:, None]
    sites = cf.data.from_table(X, X[:, 0], where)
    for name, features in zip(sites.names, sites.features, strict=True):
        np.testing.assert_array_equal(features, X[where == name])


@pytest.mark.parametrize(("rows", "columns"), [(1, 1500), (44, 500), (3, 40), (350, 20), (301, 400)])
def test_the_smaller_of_the_two_gram_matrices_or_none(rows, columns, monkeypatch):
    solved = []
    original = np.linalg.eigvalsh
    monkeypatch.setattr(np.linalg, "eigvalsh", lambda M: solved.append(len(M)) or original(M))
    rng = np.random.default_rng(0)
    A, q = rng.standard_normal((rows, columns)), rng.random(rows)
    expected = np.linalg.norm(np.sqrt(q)[:, None] * A, 2) ** 2
    np.testing.assert_allclose(largest_eigenvalue([A], [q]), expected, rtol=1e-9)
    assert solved == ([min(rows, columns)] if min(rows, columns) <= 300 else [])
    assert largest_eigenvalue([np.zeros((rows, columns))], [q]) == 0.0


def test_many_tiny_sites_are_few_products(monkeypatch):
    products = []
    original = curvature.gram
    monkeypatch.setattr(curvature, "gram", lambda A, w: products.append(1) or original(A, w))
    X, _ = regression(2000, 12)
    q = np.random.default_rng(1).random(2000)
    found = largest_eigenvalue(list(X[:, None]), list(q[:, None]))
    np.testing.assert_allclose(found, np.linalg.norm(np.sqrt(q)[:, None] * X, 2) ** 2, rtol=1e-12)
    assert len(products) <= 8


def test_one_row_and_all_zero_sites_fit_whatever_the_width():
    X, y = regression(12, 1200)
    X[3] = 0.0
    sites = np.array([0, 1, 1, 2, *[3] * 8])  # site 0 has one row, site 2 one row of zeros
    model = cf.FederatedLasso(alpha=0.3, fit_intercept=False).fit(X, y, sites=sites)
    gradient = X.T @ (X @ model.coef_ - y) / len(y)
    np.testing.assert_array_less(np.abs(gradient), 0.3 * (1 + 1e-7))
    support = model.coef_ != 0
    np.testing.assert_allclose(gradient[support], -0.3 * np.sign(model.coef_[support]), rtol=1e-7)


@pytest.mark.parametrize("together", [True, False], ids=["rows of a site together", "mixed"])
def test_a_table_larger_than_the_room_for_views_is_not_copied_per_view(together, monkeypatch):
    X, y = regression(4000, 60)  # 1.9 MB
    sites = np.repeat(np.arange(40), 100)
    sites = sites if together else np.random.default_rng(0).permutation(sites)
    model = cf.FederatedLasso(alpha=0.1)
    kept = model.fit(X, y, sites=sites).coef_.copy()
    monkeypatch.setattr(rows, "ROOM", 0)
    most = peak(lambda: model.fit(X, y, sites=sites))
    np.testing.assert_array_equal(model.coef_, kept)
    assert most < (0.9 if together else 1.9) * X.nbytes  # all copies together; the answers of 40 sites are 0.6 MB


def test_sites_of_one_process_share_the_room_for_views():
    sites = InProcess(cf.data.from_table(*regression(60, 4), np.repeat([0, 1], [20, 40]))).sites
    np.testing.assert_allclose([site.rows.room for site in sites], [rows.ROOM / 3, rows.ROOM * 2 / 3])


def test_answers_to_one_message_are_gone_when_the_next_are_made():
    n, d = 150, 120
    X, y = regression(n, d)
    triangles = n * 8 * (d + 1) * (d + 2) // 2  # of one message: 8.9 MB
    most = peak(lambda: cf.FederatedLogisticRegression(alpha=0.01).fit(X, y > 0, sites=np.arange(n)))
    assert most < 1.6 * triangles


def test_sparse_rows_are_not_written_out_without_a_word():
    A = sp.csr_matrix((np.ones(3), ([0, 1, 2], [5, 6, 10**9])), shape=(3, 10**9 + 1))
    for build in (
        lambda: cf.data.from_arrays([A], [[0.0, 1.0, 1.0]]),
        lambda: cf.data.from_table(A, [0.0, 1.0, 1.0], ["a", "a", "b"]),
    ):
        with pytest.raises(cf.InputError, match=r"3 x 1000000001 sparse rows would take 24 GB.*fit\(X, y, sites"):
            build()
