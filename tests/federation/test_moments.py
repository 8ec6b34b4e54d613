"""Federated moments: those of scikit-learn's scaler on the pooled rows, digits included."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from compfed.data import Sites, from_arrays
from compfed.federation import InProcess, Moments
from compfed.federation.server.moments import ColumnScales, standardisation

SIZES = [40, 3, 11]


def moments(sites: Sites, weights: np.ndarray | None = None) -> ColumnScales:
    return standardisation(InProcess(sites), weights)


def tables() -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Features whose sites differ in mean and spread, labels (not used), and row weights."""
    rng = np.random.default_rng(2)
    A = [rng.normal(rng.normal(0, 3, 4), rng.uniform(0.1, 5, 4), (m, 4)) for m in SIZES]
    return A, [np.zeros(m) for m in SIZES], [rng.random(m) for m in SIZES]


def test_moments_are_those_of_the_pooled_rows():
    A, y, _ = tables()
    mean, scale = moments(from_arrays(A, y))
    scaler: Any = StandardScaler().fit(np.vstack(A))
    np.testing.assert_allclose(mean, scaler.mean_, rtol=1e-13)
    np.testing.assert_allclose(scale, scaler.scale_, rtol=1e-13)


def test_moments_with_row_weights_are_those_of_the_pooled_rows():
    A, y, w = tables()
    mean, scale = moments(from_arrays(A, y, sample_weight=w))
    scaler: Any = StandardScaler().fit(np.vstack(A), sample_weight=np.concatenate(w))
    np.testing.assert_allclose(mean, scaler.mean_, rtol=1e-13)
    np.testing.assert_allclose(scale, scaler.scale_, rtol=1e-13)


@pytest.mark.parametrize("p", [[1 / 3, 1 / 3, 1 / 3], [0.2, 0.7, 0.1], [0.0, 0.5, 0.5]])
@pytest.mark.parametrize("weighted", [False, True])
def test_moments_with_weights_of_the_sites(p, weighted):
    """A site counts p_i, however many rows it has; one of weight 0 does not count."""
    A, y, w = tables()
    sites = from_arrays(A, y, sample_weight=w if weighted else None)
    q = [v / v.sum() for v in w] if weighted else [np.full(m, 1 / m) for m in SIZES]
    weight = np.concatenate([p_i * q_i for p_i, q_i in zip(p, q, strict=True)])[:, None]
    rows = np.vstack(A)
    mean, scale = moments(sites, np.array(p))
    expected = (weight * rows).sum(axis=0)
    np.testing.assert_allclose(mean, expected, rtol=1e-13)
    np.testing.assert_allclose(scale**2, (weight * (rows - expected) ** 2).sum(axis=0), rtol=1e-12)


def test_a_large_mean_costs_no_digits():
    """Noise of size 1 on 1e8: sums of squares would have lost every digit of the spread."""
    A, y, _ = tables()
    # multiples of 2^-20 below 2^27 + 2^10: shifted and unshifted columns are the same numbers exactly
    plain = [np.round(a * 2**20) / 2**20 for a in A]
    near, far = (moments(from_arrays([a + shift for a in plain], y)) for shift in (0.0, 1e8))
    np.testing.assert_allclose(far.scale, near.scale, rtol=1e-12)
    np.testing.assert_allclose(far.mean - 1e8, near.mean, rtol=0, atol=2e-8)  # two units in the last place of 1e8


@pytest.mark.parametrize("value", [0.0, 0.1, 3.7, -1e8 - 0.1, 1e-60])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_constant_column_has_scale_one(value, weighted):
    """Also at sites of many rows, whose mean by plain summation would be off by more than a rounding error."""
    rng = np.random.default_rng(0)
    sizes = [100_000, 1, 7, *[3] * 40]
    A = [np.column_stack([np.full(m, value), rng.standard_normal(m)]) for m in sizes]
    w = [rng.random(m) for m in sizes] if weighted else None
    mean, scale = moments(from_arrays(A, [np.zeros(m) for m in sizes], sample_weight=w))
    assert (mean[0], scale[0]) == (value, 1.0)
    assert 0.9 < scale[1] < 1.1


def test_values_equal_up_to_rounding_are_constant():
    column = np.array([0.1 + 0.2, 0.3, 0.3, 0.1 + 0.2])[:, None]
    assert column.std() > 0
    assert moments(from_arrays([column, column], [np.zeros(4)] * 2)).scale[0] == 1.0


def test_a_column_that_differs_between_sites_only_is_not_constant():
    mean, scale = moments(from_arrays([np.full((4, 1), 2.0), np.full((4, 1), 6.0)], [np.zeros(4)] * 2))
    assert (mean[0], scale[0]) == (4.0, 2.0)


def test_a_site_sends_pairs_of_doubles():
    """Mean and mean square of its own rows, to 28 digits: the oracle is exact rational arithmetic."""
    A, y, w = tables()
    A = [a + np.array([0.0, 1e8, 0.0, -3.7e5]) for a in A]
    federation = InProcess(from_arrays(A, y, sample_weight=w))
    for i, site in enumerate(federation.sites):
        reply: Any = site.reply([Moments()])[0]
        assert reply.weight == pytest.approx(math.fsum(w[i]), rel=1e-15)
        shares = [Fraction(v) for v in w[i] / w[i].sum()]
        for j in range(4):
            column = [Fraction(v) for v in A[i][:, j]]
            exact_mean = sum(q * a for q, a in zip(shares, column, strict=True))
            exact_square = sum(q * a * a for q, a in zip(shares, column, strict=True))
            # the shares add up to 1 within a rounding error e; the site's sums are around its mean, so e times the mean is lost
            lost = abs(1 - sum(shares))
            mean = Fraction(reply.mean[j]) + Fraction(reply.mean_low[j])
            square = Fraction(reply.square[j]) + Fraction(reply.square_low[j])
            assert abs(mean - exact_mean) <= lost * abs(exact_mean) * 2 + Fraction(1e-15) * A[i][:, j].std()
            assert abs(square - exact_square) <= lost * abs(exact_square) * 2 + Fraction(1e-14) * (
                Fraction(A[i][:, j].var()) + abs(exact_mean) * Fraction(A[i][:, j].std())
            )


def test_a_column_of_mean_1e8_and_spread_1_keeps_its_digits():
    """The pooled standard deviation against math.fsum around the exact mean: 12 digits, from mean and mean square alone."""
    rng = np.random.default_rng(11)
    A = [rng.normal(1e8 + shift, 1.0, (m, 1)) for shift, m in ((-0.5, 200), (0.0, 31), (2.0, 90))]
    column = np.concatenate(A)[:, 0].tolist()
    exact = sum(map(Fraction, column)) / len(column)
    variance = math.fsum(float((Fraction(a) - exact) ** 2) for a in column) / len(column)
    mean, scale = moments(from_arrays(A, [np.zeros(len(a)) for a in A]))
    assert mean[0] == float(exact)
    assert scale[0] == pytest.approx(math.sqrt(variance), rel=1e-12)


def test_equal_site_weights_count_every_site_once():
    """With p_i = 1/n the mean is the mean of the sites' means, however many rows they have."""
    A, y, _ = tables()
    mean, scale = moments(from_arrays(A, y), np.full(3, 1 / 3))
    exact = [math.fsum(math.fsum(a[:, j]) / len(a) for a in A) / 3 for j in range(4)]
    np.testing.assert_allclose(mean, exact, rtol=1e-14)
    square = [math.fsum(math.fsum((a[:, j] - exact[j]) ** 2) / len(a) for a in A) / 3 for j in range(4)]
    np.testing.assert_allclose(scale**2, square, rtol=1e-13)
