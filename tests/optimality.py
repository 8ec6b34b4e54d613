"""How far a linear model is from optimal, in NumPy's longest precision: an oracle that shares nothing with the library."""

from __future__ import annotations

from dataclasses import dataclass
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


# --- the same for every estimator: the gradient mapping, which the certificate is about ---


@dataclass(frozen=True)
class Objective:
    """sum_l q_l loss(z_l, y_l) + penalty(W), z = X W + b: what an estimator with these parameters says it minimises.

    `loss` is squared, logistic (y is 0 or 1), softmax (y is the number of the class), poisson or huber. The penalty is alpha times
    l1_ratio ||W||_1 + (1 - l1_ratio) / 2 ||W||^2, or the sum of the norms of groups of rows of W, or of W's singular values.
    """

    loss: str
    alpha: float
    l1_ratio: float = 1.0
    positive: bool = False
    groups: Any = None  # the group of every row of W, numbered from 0
    group_weights: Any = None
    nuclear: bool = False
    delta: float = 1.35
    fit_intercept: bool = True
    standardize: bool = False

    def prox(self, U: Any, t: Any, scale: Any) -> Any:
        """Of the penalty of W = U / scale, or of U itself where features are standardised."""
        s = np.ones_like(scale) if self.standardize else scale
        if self.nuclear:
            return _soft_singular(U, t * LONG(self.alpha) / s[0])
        if self.groups is not None:
            out = np.zeros_like(U)
            for g in np.unique(self.groups):
                of = self.groups == g
                size, pull = np.sqrt((U[of] ** 2).sum()), t * LONG(self.alpha) * LONG(self.group_weights[g]) / s[of][0]
                out[of] = U[of] * (1 - pull / size) if size > pull else 0
            return out
        l1, l2 = LONG(self.alpha) * LONG(self.l1_ratio) / s, LONG(self.alpha) * (1 - LONG(self.l1_ratio)) / s**2
        kept = np.maximum(np.abs(U) - t * l1[:, None], 0) * np.sign(U)
        return (np.maximum(U - t * l1[:, None], 0) if self.positive else kept) / (1 + t * l2[:, None])

    def column_scale(self, spread: Any) -> Any:
        """The unit of every column that leaves the penalty what it is: one per group, one for all with singular values."""
        if self.standardize or (self.groups is None and not self.nuclear):
            return spread
        groups: Any = np.zeros(len(spread), int) if self.nuclear else self.groups
        mean = np.bincount(groups, np.asarray(spread**2, float)) / np.bincount(groups)
        return np.sqrt(mean.astype(LONG))[groups]

    def slopes(self, Z: Any, y: Any) -> Any:
        if self.loss == "softmax":
            P = np.exp(Z - Z.max(axis=1, keepdims=True))
            return P / P.sum(axis=1, keepdims=True) - (y[:, None] == np.arange(Z.shape[1]))
        return slopes(self.loss, Z, y.reshape(len(Z), -1), self.delta)

    def curvature(self, Z: Any) -> Any:
        """A bound on the loss's second derivative at each row."""
        if self.loss == "poisson":
            return np.exp(Z[:, 0])
        return np.full(len(Z), LONG({"logistic": 0.25, "softmax": 0.5}.get(self.loss, 1.0)))

    def null(self, y: Any, q: Any, outputs: int) -> Any:
        """The best intercepts of a model without features."""
        if not self.fit_intercept:
            return np.zeros(outputs, LONG)
        if self.loss == "softmax":
            return np.log(np.array([q[y == k].sum() for k in range(outputs)]))
        mean = q @ y.reshape(len(q), -1)
        if self.loss == "huber":
            low, high = y.min(), y.max()
            for _ in range(300):
                middle = (low + high) / 2
                low, high = (low, middle) if q @ slopes("huber", middle, y, self.delta) > 0 else (middle, high)
            return np.array([low])
        return {"logistic": lambda m: np.log(m / (1 - m)), "poisson": np.log}.get(self.loss, lambda m: m)(mean)


def gradient_mapping(of: Objective, X: Any, y: Any, q: Any, coef: Any, intercept: Any) -> float:
    """L ||u - prox(u - grad / L)|| as a share of ||grad|| of the null model, with columns centred (if there is an intercept) and
    in units of their spread, and L the smallest bound there is: what `certificate_` says is at most `tol`, worked out anew.

    `q` are the shares of the rows. A column that varies by rounding alone is in its own unit, as the library says.
    """
    with np.errstate(all="ignore"):
        A, y, q = X.astype(LONG), np.asarray(y, LONG), np.asarray(q, LONG)
        q = q / q.sum()
        W, b = np.atleast_2d(np.asarray(coef, LONG)).T, np.atleast_1d(np.asarray(intercept, LONG))
        mean = A[0] + q @ (A - A[0])
        centre = mean if of.fit_intercept else np.zeros(A.shape[1], LONG)
        about = mean if of.standardize else centre
        spread = np.sqrt(q @ (A - about) ** 2)
        spread = np.where(spread > 10 * np.finfo(float).eps * np.abs(about), spread, 1)
        scale = of.column_scale(spread)
        C, U = (A - centre) / scale, W * scale[:, None]
        Z = C @ U + b + (centre @ W if of.fit_intercept else 0)
        D = q[:, None] * of.slopes(Z, y)
        null = q[:, None] * of.slopes(np.zeros_like(Z) + of.null(y, q, Z.shape[1]), y)
        ones = np.ones((len(q), int(of.fit_intercept)), LONG)
        rows = np.column_stack([C, ones]) * np.sqrt(q * of.curvature(Z))[:, None]
        L = LONG(np.linalg.norm(np.asarray(rows, float), 2)) ** 2
        L = L if L > 0 else LONG(1)
        moved = (U - of.prox(U - C.T @ D / L, 1 / L, scale)) * L
        left = np.sqrt((moved**2).sum() + ((ones.T @ D) ** 2).sum())
        size = np.sqrt(((C.T @ null) ** 2).sum() + ((ones.T @ null) ** 2).sum())
        return float(left / size) if size > 0 else float(left)


def _soft_singular(M: Any, pull: Any) -> Any:
    """Singular values less `pull`, by one-sided Jacobi rotations: NumPy has no svd of long numbers."""
    tall = M if M.shape[0] >= M.shape[1] else M.T
    B, V = tall.copy(), np.eye(tall.shape[1], dtype=LONG)
    for _ in range(60):
        for i in range(B.shape[1]):
            for j in range(i):
                a, c, d = B[:, i] @ B[:, i], B[:, i] @ B[:, j], B[:, j] @ B[:, j]
                if abs(c) > np.finfo(LONG).eps * np.sqrt(a * d):
                    zeta = (d - a) / (2 * c)
                    t = (1 if zeta >= 0 else -1) / (abs(zeta) + np.sqrt(1 + zeta**2))
                    turn = np.array([[1, t], [-t, 1]], LONG) / np.sqrt(1 + t**2)
                    B[:, [i, j]], V[:, [i, j]] = B[:, [i, j]] @ turn, V[:, [i, j]] @ turn
    sizes = np.sqrt((B**2).sum(axis=0))
    out = (B * np.where(sizes > pull, 1 - pull / np.where(sizes > 0, sizes, 1), 0)) @ V.T
    return out if M.shape[0] >= M.shape[1] else out.T
