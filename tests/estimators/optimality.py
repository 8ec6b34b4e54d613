"""How far a linear model is from optimal, in NumPy's longest precision: an oracle that shares nothing with the library."""

from __future__ import annotations

from typing import Any

import numpy as np

LONG: Any = np.longdouble


def slopes(kind: str, z: Any, y: Any, delta: float) -> Any:
    if kind == "squared":
        return z - y
    if kind == "logistic":  # y is 0 or 1
        return 1 / (1 + np.exp(-z)) - y
    return np.exp(z) - y if kind == "poisson" else np.clip(z - y, -LONG(delta), LONG(delta))


def violation(
    kind: str,
    X: np.ndarray,
    y: np.ndarray,
    coef: Any,
    intercept: Any,
    l1: Any,
    l2: Any = 0.0,
    *,
    weights: Any = None,
    delta: float = 1.0,
    fit_intercept: bool = True,
) -> float:
    """The least subgradient of mean loss + l1 ||w||_1 + l2 ||w||^2 / 2, as a share of what it is for the null model.

    Every column counts in units of its spread, so that no choice of units hides an error. Nothing for columns without one.
    """
    A, labels = X.astype(LONG), y.astype(LONG)
    q = np.ones(len(y), LONG) if weights is None else np.asarray(weights, LONG)
    q = q / q.max()
    q = q / q.sum()
    w, b = np.ravel(coef).astype(LONG), LONG(np.ravel(intercept)[0])
    centred = A - q @ A if fit_intercept else A
    spread = np.sqrt(q @ centred**2)
    slope = slopes(kind, A @ w + b, labels, delta)
    null = slopes(kind, 0 * labels, labels, delta)
    if fit_intercept:
        null = np.clip(q @ labels - labels, -LONG(delta), LONG(delta)) if kind == "huber" else q @ labels - labels
    scale = np.sqrt(q @ null**2)
    if scale == 0:
        return 0.0 if not w.any() else float("inf")
    G = centred.T @ (q * slope)  # with the best intercept; that it is the best is asked for below
    left = np.where(w != 0, G + l1 * np.sign(w) + l2 * w, np.sign(G) * np.maximum(np.abs(G) - l1, 0))
    real = spread > 0
    errors = np.abs(left[real]) / (spread[real] * scale)
    errors = np.append(errors, np.abs(q @ slope) / scale) if fit_intercept else errors
    return float(errors.max(initial=0.0))
