"""Regressors with several outcomes per row, which share their features (rows of W) or their directions (rank of W)."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin

from compfed.algorithms import Algorithm
from compfed.estimators.base import FederatedModel
from compfed.problem.losses import Loss, MultiSquared
from compfed.problem.regularisers import GroupL2, Nuclear, Regulariser


class _MultiRegressor(MultiOutputMixin, RegressorMixin, FederatedModel):
    def __init__(
        self, alpha: float = 1.0, *, fit_intercept: bool = True, standardize: bool = False, site_weights: str = "rows",
        algorithm: str | Algorithm = "auto", tau: int = 5, tol: float = 1e-12, max_rounds: int = 20_000,
        verbose: bool = False,
    ):  # fmt: skip
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.site_weights = site_weights
        self.algorithm = algorithm
        self.tau = tau
        self.tol = tol
        self.max_rounds = max_rounds
        self.verbose = verbose

    def _targets(self, y: np.ndarray) -> np.ndarray:
        self._one_outcome = y.ndim == 1
        return y.reshape(len(y), -1)

    def _loss(self, y: np.ndarray) -> Loss:
        return MultiSquared(outputs=y.shape[1])

    def _publish(self, coef: np.ndarray, intercept: np.ndarray) -> None:
        self.coef_, self.intercept_ = coef.T, intercept

    def predict(self, X: Any) -> np.ndarray:
        """X W^T + b, one column per outcome."""
        z = self._decision(X)
        return z[:, 0] if self._one_outcome else z


class FederatedMultiTaskLasso(_MultiRegressor):
    """min_{W, b} 1/(2n) ||Y - X W - b||_F^2 + alpha sum_j ||W_j||, W_j the coefficients of feature j, over sites.

    The objective of sklearn.linear_model.MultiTaskLasso: a feature is used for all outcomes or for none. `coef_` has
    shape (outcomes, features). Parameters as in FederatedLasso.
    """

    def _penalty(self, scale: np.ndarray, outputs: int) -> Regulariser:
        groups = tuple(np.repeat(np.arange(scale.size), outputs).tolist())
        return GroupL2(lam=self.alpha, groups=groups, weights=1.0 / scale)


class FederatedNuclearRegressor(_MultiRegressor):
    """min_{W, b} 1/(2n) ||Y - X W - b||_F^2 + alpha ||W||_*, the sum of the singular values, over sites.

    The outcomes share a few directions of the features: W has low rank. `coef_` has shape (outcomes, features).
    Parameters as in FederatedLasso.
    """

    def _column_scale(self, scale: np.ndarray) -> np.ndarray:
        # singular values mix the features: one scale for all, unless the penalty is on the scaled ones
        return scale if self.standardize else np.full_like(scale, np.sqrt(np.mean(scale**2)))

    def _penalty(self, scale: np.ndarray, outputs: int) -> Regulariser:
        return Nuclear(lam=self.alpha / scale[0], columns=outputs)
