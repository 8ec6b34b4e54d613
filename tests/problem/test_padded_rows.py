"""The rows of all sites on the device: every row where it belongs, in blocks of any size, and few buckets."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import compfed as cf
from compfed.problem.padded_dataset import _buckets, pad_sites


@pytest.mark.parametrize("nbytes", [2**25, 700, 100], ids=["one block", "several", "a site each"])
def test_a_site_has_its_rows_and_then_its_last_one_without_weight(nbytes, monkeypatch):
    monkeypatch.setattr("compfed._utils.arrays.BLOCK_BYTES", nbytes)
    rng = np.random.default_rng(0)
    sizes = [4, 30, 1, 29, 4, 17]
    q = [rng.random(m) + 0.1 for m in sizes]
    sites = cf.data.from_arrays(
        [rng.standard_normal((m, 3)) for m in sizes], [rng.standard_normal(m) for m in sizes], sample_weight=q
    )
    p = np.array([0.1, 0.2, 0.3, 0.1, 0.2, 0.1])
    made, order = pad_sites(sites, np.concatenate(sites.labels), p, np.dtype(float))
    assert order.tolist() == [1, 3, 5, 0, 4, 2]
    ends = np.append(np.asarray(made.offset)[1:], len(made.A))
    for place, (start, end) in enumerate(zip(np.asarray(made.offset), ends, strict=True)):
        i, m = order[place], sizes[order[place]]
        np.testing.assert_array_equal(made.A[start : start + m], sites.features[i])
        np.testing.assert_array_equal(made.y[start : start + m], sites.labels[i])
        np.testing.assert_allclose(made.q[start : start + m], q[i] / q[i].sum(), rtol=1e-15)
        np.testing.assert_allclose(made.row_weight[start : start + m], p[i] * q[i] / q[i].sum(), rtol=1e-15)
        np.testing.assert_array_equal(made.A[start + m : end], np.tile(sites.features[i][-1], (end - start - m, 1)))
        assert not np.asarray(made.q[start + m : end]).any()
        assert not np.asarray(made.row_weight[start + m : end]).any()
    w, v = np.cos([1.0, 2.0, 3.0]), np.cos(4.0)
    fingerprints = [(a @ w + y * v) @ (r / r.sum()) for a, y, r in zip(sites.features, sites.labels, q, strict=True)]
    np.testing.assert_allclose(sites.fingerprints, fingerprints, rtol=1e-12)


def test_each_further_bucket_saves_the_most():
    def padded(sizes, cuts):
        return sum(int(sizes[a]) * (b - a) for a, b in pairwise(cuts))

    rng = np.random.default_rng(1)
    for _ in range(30):
        sizes = np.sort(np.exp(rng.normal(3, 1.5, 25)).astype(int) + 1)[::-1]
        cuts = [0, 25]
        while padded(sizes, cuts) > 1.5 * sizes.sum():
            cuts = min((sorted({*cuts, c}) for c in range(1, 25)), key=lambda cuts: padded(sizes, cuts))
        found = _buckets(sizes)
        assert sum(k * m for k, m in found) == padded(sizes, cuts)
        assert len(found) == len(cuts) - 1


def test_a_hundred_thousand_different_sizes_are_put_into_few_buckets():
    # one look at all cuts for each cut, for each bucket: a loop over them would not end
    sizes = np.arange(100_000, 0, -1)
    found = _buckets(sizes)
    assert len(found) < 5
    assert sum(k for k, _ in found) == len(sizes)
    assert sum(k * m for k, m in found) <= 1.5 * sizes.sum()


@pytest.mark.parametrize(("value", "said"), [(np.nan, "NaN"), (1e80, "1e\\+80"), (1e-80, "1e-80")])
def test_the_one_bad_number_of_a_block_is_found(value, said):
    X = [np.ones((2, 3)) for _ in range(50)]
    X[37][1, 2] = value
    if value == 1e-80:
        X[37][:, 2] = value  # the largest of its column
    with pytest.raises(cf.InputError, match=f"features of site '37'.*{said}"):
        cf.data.from_arrays(X, [np.ones(2)] * 50)
