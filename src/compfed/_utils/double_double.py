"""Double-double arithmetic: a number is an unevaluated sum of two doubles, with about 32 digits.

Reference: Dekker, "A floating-point technique for extending the available precision", Numerische Mathematik 1971.
"""

from __future__ import annotations

import numpy as np

Pair = tuple[np.ndarray, np.ndarray]  # (high, low)


def two_sum(a: np.ndarray, b: np.ndarray) -> Pair:
    """(s, e) with s = fl(a + b) and a + b = s + e exactly."""
    s = a + b
    other = s - a
    return s, (a - (s - other)) + (b - other)


def two_product(a: np.ndarray, b: np.ndarray) -> Pair:
    """(p, e) with p = fl(a b) and a b = p + e exactly, unless that overflows."""
    p = a * b
    (a1, a2), (b1, b2) = _split(a), _split(b)
    return p, ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2


def add(x: Pair, y: Pair) -> Pair:
    """x + y."""
    s, e = two_sum(x[0], y[0])
    return two_sum(s, e + (x[1] + y[1]))


def multiply(x: Pair, y: Pair) -> Pair:
    """x y."""
    p, e = two_product(x[0], y[0])
    return two_sum(p, e + (x[0] * y[1] + x[1] * y[0]))


def divide(x: Pair, by: Pair | float) -> Pair:
    """x / by."""
    y = by if isinstance(by, tuple) else (np.asarray(by, float), np.zeros(()))
    q = x[0] / y[0]
    p, e = multiply((q, np.zeros_like(q)), y)
    return two_sum(q, ((x[0] - p) + (x[1] - e)) / y[0])


def _split(a: np.ndarray) -> Pair:
    c = 134217729.0 * a  # 2^27 + 1
    high = c - (c - a)
    return high, a - high
