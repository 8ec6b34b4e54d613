"""Regressors with several outcomes per row, which share their features (rows of W) or their directions (rank of W)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin

from compfed.estimators.base import FederatedModel, estimator, first
from compfed.estimators.programs.fit import Family, Labels
from compfed.losses import MultiSquared
from compfed.regularisers import GroupL2, Nuclear


class _ManyOutcomes(Family):
    def loss(self, labels: Labels) -> MultiSquared:
        assert labels.mean is not None
        return MultiSquared(outputs=len(labels.mean))

    def published(self, coef, intercept):
        return coef.T, intercept


@dataclass(frozen=True)
class SharedFeatures(_ManyOutcomes):
    def penalty(self, alpha, scale, outputs):
        groups: Any = np.repeat(np.arange(scale.size), outputs)
        return GroupL2(lam=alpha, groups=groups, weights=1.0 / scale)


@dataclass(frozen=True)
class SharedDirections(_ManyOutcomes):
    def column_scale(self, scale, standardize):
        # singular values mix the features: one scale for all, unless the penalty is on the scaled ones
        return scale if standardize else np.full_like(scale, np.sqrt(np.mean(scale**2)))

    def penalty(self, alpha, scale, outputs):
        return Nuclear(lam=alpha / scale[0], columns=outputs)


class MultiRegressor(MultiOutputMixin, RegressorMixin, FederatedModel):
    """Predictions are X W^T + b."""

    def predict(self, X: Any) -> np.ndarray:
        """X W^T + b, one column per outcome."""
        z = self.linear_predictor(X)
        return z[:, 0] if self.one_outcome_ else z

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R^2, the mean over the outcomes."""
        self._check_scored(X, y, sample_weight)
        return float(super().score(X, y, sample_weight=sample_weight))


class MultiTaskModel(MultiRegressor):
    """The multi-task lasso, whatever its alpha."""

    def family(self) -> Family:
        return SharedFeatures()


@estimator
class FederatedMultiTaskLasso(MultiTaskModel):
    """min_{W, b} 1/(2n) ||Y - X W - b||_F^2 + alpha sum_j ||W_j||, W_j the coefficients of feature j, over sites.

    The objective of sklearn.linear_model.MultiTaskLasso: a feature is used for all outcomes or for none. `coef_` has
    shape (outcomes, features). Parameters as in FederatedLasso.
    """

    alpha: float = first(default=1.0)


class NuclearModel(MultiRegressor):
    """Low-rank regression, whatever its alpha."""

    def family(self) -> Family:
        return SharedDirections()


@estimator
class FederatedNuclearRegressor(NuclearModel):
    """min_{W, b} 1/(2n) ||Y - X W - b||_F^2 + alpha ||W||_*, the sum of the singular values, over sites.

    The outcomes share a few directions of the features: W has low rank. `coef_` has shape (outcomes, features).
    Parameters as in FederatedLasso.
    """

    alpha: float = first(default=1.0)
