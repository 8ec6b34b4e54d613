"""Sparse rows give what the same rows written out give: products, columns, moments, Lipschitz constants, and whole fits."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import compfed as cf
from compfed._utils import validation as memory
from compfed.estimators import table
from compfed.federation.site.rows import scaled_rows
from compfed.federation.spec import FeatureScaling
from compfed.losses import lipschitz as curvature
from compfed.losses.lipschitz import largest_eigenvalue, largest_eigenvalues
from compfed.problem.padded_dataset import SparseRows, sparse_moments

N, D = 40, 13


def matrix(n: int = N, d: int = D, seed: int = 0) -> sp.csr_matrix:
    rng = np.random.default_rng(seed)
    A = np.where(rng.random((n, d)) < 0.3, rng.normal(2.0, 1.0, (n, d)), 0.0)
    A[:, 3], A[:, 4] = 7.1, 0.0  # columns that do not vary
    return sp.csr_matrix(A)


@pytest.fixture(scope="module", params=[True, False], ids=["intercept", "no intercept"])
def pair(request):
    """(sparse rows, the same written out)."""
    A, rng = matrix(), np.random.default_rng(1)
    frame = FeatureScaling(rng.standard_normal(D), rng.uniform(0.5, 2.0, D), intercept=request.param)
    return scaled_rows(frame, A), scaled_rows(frame, A.toarray())


@pytest.mark.parametrize("columns", [None, 3])
def test_products(pair, columns):
    Z, dense = pair
    rng = np.random.default_rng(2)
    assert isinstance(Z, SparseRows)
    assert Z.shape == dense.shape
    x, r = (rng.standard_normal(size if columns is None else (size, columns)) for size in dense.shape[::-1])
    np.testing.assert_allclose(Z @ x, dense @ x, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(Z.T @ r, dense.T @ r, rtol=1e-12, atol=1e-12)
    if columns is None:
        np.testing.assert_allclose(r @ Z, r @ dense, rtol=1e-12, atol=1e-12)


def test_columns_and_lengths(pair):
    Z, dense = pair
    W = np.array([0, 5, 5, dense.shape[1] - 1, 3])
    np.testing.assert_allclose(Z[:, W], dense[:, W], rtol=1e-14)
    np.testing.assert_allclose(Z.row_norms(), np.linalg.norm(dense, axis=1), rtol=1e-12)
    assert Z.largest() >= np.abs(dense).max()


def test_the_largest_eigenvalue(pair):
    Z, dense = pair
    q = np.random.default_rng(3).random(N)
    expected = np.linalg.eigvalsh((dense.T * q) @ dense)[-1]
    np.testing.assert_allclose(largest_eigenvalue([Z], [q]), expected, rtol=1e-10)
    np.testing.assert_allclose(largest_eigenvalue([Z, dense], [q, q]), 2 * expected, rtol=1e-10)


@pytest.mark.parametrize("width", [1, 5, 40])
def test_the_largest_eigenvalues_of_many_small_arrays(width, monkeypatch):
    """Each is the square of the largest singular value of its own weighted rows; three to a block."""
    monkeypatch.setattr(
        curvature, "block_ranges", lambda sizes, _: ((a, min(a + 3, len(sizes))) for a in range(0, len(sizes), 3))
    )
    rng = np.random.default_rng(1)
    rows = [1, 7, 8, 9, 300, 301, 5, 6, 8, 7, 1]
    features, weights = [rng.standard_normal((m, width)) for m in rows], [rng.uniform(0.1, 1, m) for m in rows]
    features[2] = features[2].astype("float32")
    expected = np.array(
        [np.linalg.norm(A * np.sqrt(w)[:, None], 2) ** 2 for A, w in zip(features, weights, strict=True)]
    )
    features[6], expected[6] = features[6] * 1e200, np.inf
    np.testing.assert_allclose(largest_eigenvalues(features, weights), expected, rtol=1e-10)


@pytest.mark.parametrize("shape", [(30, 400), (500, 320), (1, 400), (400, 301), (6400, 310)])
def test_the_largest_eigenvalue_of_wide_and_tall_arrays(shape, monkeypatch):
    """Beyond a few hundred columns no Gram matrix is formed, unless of many more rows; the singular values are those of LAPACK."""
    monkeypatch.setattr(curvature, "CHUNK", 1000)
    rng = np.random.default_rng(4)
    A, w = rng.standard_normal(shape), rng.random(shape[0])
    expected = np.linalg.svd(A * np.sqrt(w)[:, None], compute_uv=False)[0] ** 2
    np.testing.assert_allclose(largest_eigenvalue([A], [w]), expected, rtol=1e-10)
    np.testing.assert_allclose(largest_eigenvalue([A * 1e150], [w]), expected * 1e300, rtol=1e-10)
    assert largest_eigenvalue([A * 1e200], [w]) == np.inf
    assert largest_eigenvalue([A * 0], [w]) == 0


def test_moments_are_those_of_the_rows_written_out():
    A, w = matrix(), np.random.default_rng(5).random(N)
    q, dense = w / w.sum(), A.toarray().astype(np.longdouble)
    mean, rest, square = sparse_moments(A, q)
    np.testing.assert_allclose(mean, np.asarray(q @ dense, float), rtol=1e-14, atol=1e-16)
    np.testing.assert_allclose(rest, np.asarray(q @ (dense - mean), float), rtol=0, atol=1e-15)
    np.testing.assert_allclose(square[:3], np.asarray(q @ (dense - mean) ** 2, float)[:3], rtol=1e-12)
    assert mean[4] == square[4] == 0.0
    assert square[3] <= (1e-15 * 7.1) ** 2  # all entries are there and equal


MODELS = {
    "lasso": (cf.FederatedLasso(alpha=0.02), 1),
    "lasso through the origin": (cf.FederatedLasso(alpha=0.02, fit_intercept=False), 1),
    "logistic": (cf.FederatedLogisticRegression(alpha=0.02), 2),
    "softmax": (cf.FederatedLogisticRegression(alpha=0.02), 3),
    "multi-task": (cf.FederatedMultiTaskLasso(alpha=0.05), 0),
    "first-order": (cf.FederatedLasso(alpha=0.1, algorithm="FISTA", tol=1e-9), 1),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_fit_to_sparse_rows(monkeypatch, name):
    model, kind = MODELS[name]
    A, rng = matrix(90, 20), np.random.default_rng(6)
    signal = A @ rng.standard_normal(20)
    cuts = np.quantile(signal, np.linspace(0, 1, max(kind, 1) + 1)[1:-1])
    y = {0: np.column_stack([signal, -signal]), 1: signal}.get(kind, np.digitize(signal, cuts))
    y = y + 0.1 * rng.standard_normal(y.shape) if kind < 2 else y
    sites = np.arange(90) % 4
    written = model.fit(A, y, sites=sites).coef_.copy()  # small: written out at once
    monkeypatch.setattr(table, "DENSE_BYTES", 0)
    seen = []
    original = SparseRows.__matmul__
    monkeypatch.setattr(SparseRows, "__matmul__", lambda self, x: seen.append(1) or original(self, x))
    sparse = model.fit(A, y, sites=sites).coef_
    assert seen, "the rows stayed sparse"
    np.testing.assert_allclose(sparse, written, rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(sparse == 0, written == 0)


def test_rows_too_large_to_be_written_out_are_refused_with_their_size(monkeypatch):
    monkeypatch.setattr(table, "DENSE_BYTES", 0)
    monkeypatch.setattr(memory, "MAX_DENSE_BYTES", 1000)
    A = matrix()
    model = cf.FederatedLasso(alpha=0.1, algorithm="FISTA")
    with pytest.raises(cf.InputError, match=r"site '0': its sparse rows take too much memory written out.*'auto'"):
        model.fit(A, np.arange(N, dtype=float), sites=None)
    cf.FederatedLasso(alpha=0.1).fit(A, np.arange(N, dtype=float), sites=None)  # needs no more than its working set
