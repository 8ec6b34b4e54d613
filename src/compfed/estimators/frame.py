"""The coordinates an estimator works in: features centred and scaled, the intercept last.

With z = (a - centre) / scale and u = scale * w the prediction a^T w + b is z^T u + b', b' = b + centre^T w. Centring and
scaling change neither the problem nor its solution: a penalty on w becomes one on u / scale. They change how fast it is
solved, from hopeless to quick where features are in different units.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Frame:
    centre: np.ndarray  # (width,), zero without an intercept
    scale: np.ndarray  # (width,)
    intercept: bool
    outputs: int = 1

    @property
    def penalised(self) -> int:
        """Number of coefficients before the intercept."""
        return self.centre.size * self.outputs

    def features(self, A: np.ndarray) -> np.ndarray:
        """Rows in these coordinates, with a last column of ones for the intercept."""
        Z = (A - self.centre) / self.scale
        return np.column_stack([Z, np.ones(len(Z))]) if self.intercept else Z

    def model(self, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        """The flat model of coefficients (width, outputs) and intercepts (outputs,)."""
        u = coef * self.scale[:, None]
        return np.concatenate([u.ravel(), intercept + self.centre @ coef]) if self.intercept else u.ravel()

    def coefficients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(coef, intercept) on the original scale of a flat model."""
        coef = x[: self.penalised].reshape(-1, self.outputs) / self.scale[:, None] + 0.0  # no -0.0
        return coef, (x[self.penalised :] - self.centre @ coef) if self.intercept else np.zeros(self.outputs)
