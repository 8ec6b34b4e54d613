"""The matrix of limited-memory BFGS: a diagonal and a few vectors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Compact(NamedTuple):
    """B = diag(diagonal) - Q diag(signs) Q^T, with Q of few columns: a matrix that is never formed."""

    diagonal: np.ndarray  # (d,)
    Q: np.ndarray  # (d, k)
    signs: np.ndarray  # (k,)

    def apply(self, v: Any) -> Any:
        return self.diagonal * v - self.Q @ (self.signs * (v @ self.Q))

    def block(self, W: np.ndarray) -> np.ndarray:
        return np.diag(self.diagonal[W]) - (self.Q[W] * self.signs) @ self.Q[W].T

    @classmethod
    def of_pairs(cls, S: np.ndarray, Y: np.ndarray, first: Any, even: bool = False) -> Compact:
        """The matrix of BFGS after the pairs (s, y) in the rows of S and Y; rows of zeros stand for none.

        It starts from a diagonal: for each column the largest y_j^2 / <s, y> of all pairs, which grows with the scale of
        the column as its curvature does, so that columns in different units do not matter much; all of it times the
        least <y, y / w> / <s, y>. `even` takes all columns alike. Without a pair it is `first`. Then
        B <- B - a a^T + b b^T, one pair after another, with a = B s / sqrt(s^T B s) and b = y / sqrt(<s, y>).
        """
        a, curved = np.zeros_like(S), np.sum(S * Y, axis=1)
        known = np.flatnonzero(curved > 0)
        b = np.where(curved > 0, 1.0, 0.0)[:, None] * Y / np.sqrt(np.where(curved > 0, curved, 1.0))[:, None]
        diagonal = np.full(S.shape[1], float(first))
        if known.size:
            w = np.max(b**2, axis=0)
            w = np.ones_like(w) if even else np.maximum(w, 1e-10 * w.max())
            diagonal = np.min((b[known] ** 2) @ (1.0 / w)) * w
        for k in known:
            Bs = diagonal * S[k] + (b[:k] @ S[k]) @ b[:k] - (a[:k] @ S[k]) @ a[:k]
            a[k] = Bs / np.sqrt(max(S[k] @ Bs, np.finfo(float).tiny))
        return cls(diagonal, np.concatenate([a, b]).T, np.repeat([1.0, -1.0], len(S)))
