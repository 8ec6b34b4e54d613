"""Double-double arithmetic against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from compfed._utils import arrays as dd

A, B = np.random.default_rng(0).standard_normal((2, 200)) * np.exp(np.random.default_rng(1).uniform(-30, 30, (2, 200)))


def exact(pair: dd.Pair) -> list[Fraction]:
    return [Fraction(float(high)) + Fraction(float(low)) for high, low in zip(*pair, strict=True)]


def fractions(a: np.ndarray) -> list[Fraction]:
    return [Fraction(float(v)) for v in a]


def test_a_sum_and_a_product_of_two_doubles_are_exact():
    assert exact(dd.two_sum(A, B)) == [a + b for a, b in zip(fractions(A), fractions(B), strict=True)]
    assert exact(dd.two_product(A, B)) == [a * b for a, b in zip(fractions(A), fractions(B), strict=True)]


@pytest.mark.parametrize("operation", ["add", "multiply"])
def test_pairs_keep_thirty_digits(operation):
    x, y = dd.two_product(A, B), dd.two_product(B, B)  # of one sign or not: sums may cancel
    found = exact(getattr(dd, f"{operation}_pairs")(x, y))
    for got, p, q in zip(found, exact(x), exact(y), strict=True):
        right = p + q if operation == "add" else p * q
        size = abs(p) + abs(q) if operation == "add" else abs(right)
        assert abs(got - right) <= Fraction(1, 10**30) * size


def test_a_quotient_rounds_to_the_nearest_double():
    """So that the mean of n equal numbers is that number, whatever n and the number are."""
    for n in (3, 7, 191, 10**6 + 3):
        total = dd.multiply_pairs((A, np.zeros_like(A)), (np.full_like(A, n), np.zeros_like(A)))
        np.testing.assert_array_equal(dd.divide_pairs(total, n)[0], A)
