"""Tables, and the conditions of a minimiser on the pooled rows: what the tests of penalties share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from compfed.data import bundled

EXACT: dict[str, Any] = {"tol": 1e-15, "max_iter": 1_000_000}


def diabetes():
    table = bundled.diabetes()
    return 20 * table.X, table.y / 50, table.sites


def cancer():
    table = bundled.breast_cancer()
    return StandardScaler().fit_transform(table.X)[:, [0, 1, 4, 6, 8, 11, 14, 18]], table.y.astype(float), table.sites


def units():
    """Columns in units that differ by 10^6, unequal sites, and noise."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((150, 6)) * np.array([1e3, 1.0, 1e-3, 5.0, 1.0, 0.1]) + np.array([1e3, 0, 0, 2, 0, 0])
    y = X @ np.array([1e-3, 0.5, -800.0, 0.0, 0.3, -4.0]) + rng.standard_normal(150)
    return X, y, rng.choice(["a", "b", "c"], 150, p=[0.6, 0.3, 0.1])


TABLES = [diabetes, cancer, units]
tables = pytest.mark.parametrize("table", TABLES)


def counts(table):
    """Counts and classes that depend on the rows of a table."""
    X, y, sites = table()
    z = (y - y.mean()) / y.std()
    return X, np.floor(np.exp(0.5 * z + 1)), (z + np.cos(7 * np.arange(len(z))) > 0).astype(int), sites


def factors_for(X: np.ndarray) -> np.ndarray:
    return np.array([0.0, 2.0, 0.5, 1.0, np.inf, 1.0, 3.0, 1.0, 0.2, 1.0])[: X.shape[1]]


def assert_same(model: Any, coef: np.ndarray, intercept: Any, X: np.ndarray, tol: float = 1e-8) -> None:
    """Coefficients in units of the columns' spread, to 1e-8 of the largest, with the same zeros."""
    scale = X.std(axis=0)
    mine, other = np.atleast_2d(model.coef_) * scale, np.atleast_2d(coef) * scale
    np.testing.assert_allclose(mine, other, rtol=0, atol=tol * max(np.abs(other).max(), 1.0))
    np.testing.assert_allclose(X.mean(axis=0) @ np.atleast_2d(model.coef_).T + model.intercept_,
                               X.mean(axis=0) @ np.atleast_2d(coef).T + intercept, rtol=0, atol=tol * 10)  # fmt: skip


# --- an oracle for every loss: projected Newton on the pooled rows, from first principles, and its KKT conditions ---


def losses(name: str, delta: float = 1.0) -> Any:
    """(value, derivative, second derivative) of each row, as functions of z and y."""
    return {
        "squared": (lambda z, y: (z - y) ** 2 / 2, lambda z, y: z - y, lambda z, y: np.ones_like(z)),
        "logistic": (
            lambda z, y: np.logaddexp(0, z) - y * z,
            lambda z, y: 1 / (1 + np.exp(-z)) - y,
            lambda z, y: 1 / (2 + np.exp(z) + np.exp(-z)),
        ),
        "poisson": (lambda z, y: np.exp(z) - y * z, lambda z, y: np.exp(z) - y, lambda z, y: np.exp(z)),
        "huber": (
            lambda z, y: np.where(abs(z - y) <= delta, (z - y) ** 2 / 2, delta * abs(z - y) - delta**2 / 2),
            lambda z, y: np.clip(z - y, -delta, delta),
            lambda z, y: (abs(z - y) <= delta).astype(float),
        ),
    }[name]


def assert_optimal(model: Any, loss: str, X, y, l1, l2, lower, upper, weight=None, delta: float = 1.0) -> None:
    """The KKT conditions on the original scale: a test of the minimiser that needs no solver."""
    w, b = np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])
    weight = np.full(len(y), 1 / len(y)) if weight is None else weight / weight.sum()
    scale = X.std(axis=0)
    slope = losses(loss, delta)[1](X @ w + b, y) * weight
    gradient = (X.T @ slope - slope.sum() * X.mean(axis=0) + l2 * w) / scale
    size = (np.abs(X - X.mean(axis=0)).T @ np.abs(weight)) / scale + 1
    tol = 1e-9 * size
    l1 = np.broadcast_to(l1, w.shape) / scale
    assert abs(slope.sum()) <= 1e-10
    assert (w >= lower).all()
    assert (w <= upper).all()
    inside = (w > lower) & (w < upper)
    nonzero = inside & (w != 0)
    assert (np.abs(gradient + l1 * np.sign(w))[nonzero] <= tol[nonzero]).all()
    zero = inside & (w == 0)
    assert (np.abs(gradient)[zero] <= l1[zero] + tol[zero]).all()
    at_upper, at_lower = (w == upper) & (lower < upper), (w == lower) & (lower < upper)
    assert (gradient + l1 * np.where(w > 0, 1.0, -1.0) <= tol)[at_upper & (w != 0)].all()
    assert (gradient + l1 * np.where(w < 0, -1.0, 1.0) >= -tol)[at_lower & (w != 0)].all()
    assert (gradient - l1 <= tol)[at_upper & (w == 0)].all()
    assert (gradient + l1 >= -tol)[at_lower & (w == 0)].all()
