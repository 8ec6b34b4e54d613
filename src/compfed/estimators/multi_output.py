"""Regressors with several outcomes per row, which share their features or a few directions of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.base import MultiOutputMixin, RegressorMixin

from compfed.estimators.base import FederatedModel, estimator, first
from compfed.estimators.programs.fit import Family, Labels
from compfed.estimators.table import Features, RowWeights
from compfed.losses import MultiSquared
from compfed.regularisers import GroupL2, Nuclear


class _ManyOutcomes(Family):
    """Least squares with several outcomes."""

    def loss(self, labels: Labels) -> MultiSquared:
        assert labels.mean is not None
        return MultiSquared(outputs=len(labels.mean))

    def coef_and_intercept(self, coef, intercept):
        return coef.T, intercept


@dataclass(frozen=True)
class SharedFeatures(_ManyOutcomes):
    """A penalty on the norm of each feature's coefficients."""

    def penalty(self, alpha, scale, outputs):
        groups = np.repeat(np.arange(scale.size), outputs)
        return GroupL2(lam=alpha, groups=groups, weights=1.0 / scale)  # pyright: ignore[reportArgumentType]  # an array will do


@dataclass(frozen=True)
class SharedDirections(_ManyOutcomes):
    """A penalty on the singular values of the coefficients."""

    def column_scale(self, scale, standardize):
        # singular values mix the features: one scale for all, unless the penalty is on the scaled ones
        return scale if standardize else np.full_like(scale, np.sqrt(np.mean(scale**2)))

    def penalty(self, alpha, scale, outputs):
        return Nuclear(lam=alpha / scale[0], columns=outputs)


class MultiRegressor(MultiOutputMixin, RegressorMixin, FederatedModel):
    """Predictions are X W^T + b.

    Attributes
    ----------
    coef_ : ndarray of shape (n_outcomes, n_features)
        Coefficients, on the original scale of the features.
    intercept_ : ndarray of shape (n_outcomes,)
        The intercepts; zeros without them.
    """

    def predict(self, X: Features) -> np.ndarray:
        """Predict X W^T + b, one column per outcome."""
        z = self.linear_predictor(X)
        return z[:, 0] if self.one_outcome_ else z

    def score(self, X: Features, y: npt.ArrayLike, sample_weight: RowWeights = None) -> float:
        """R^2, the share of the variance explained: the mean over the outcomes."""
        self._check_same_rows(X, y, sample_weight)
        return float(super().score(X, y, sample_weight=sample_weight))


@estimator
class FederatedMultiTaskLasso(MultiRegressor):
    """Multi-task lasso over sites: a feature is used for all outcomes or for none.

    Minimises over W and b::

        1 / (2 n) * sum_rows ||y - W @ x - b||**2 + alpha * sum_features ||W_j||

    W_j are the coefficients of feature j. This is the objective of sklearn.linear_model.MultiTaskLasso. Rows stay at their
    sites: each site adds its row count, column moments, gradients and a block of its Hessian to sums, and the server sees the
    sums.

    Parameters
    ----------
    alpha : float, default=1.0
        Weight of the penalty, on scikit-learn's scale.

    See Also
    --------
    FederatedMultiTaskLassoCV : chooses alpha by cross-validation.
    FederatedNuclearRegressor : outcomes share directions instead of features.

    Examples
    --------
    >>> import numpy as np
    >>> import compfed as cf
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((60, 4))
    >>> Y = np.column_stack([X[:, 0] + X[:, 1], X[:, 0] - X[:, 1]])
    >>> model = cf.FederatedMultiTaskLasso(alpha=0.1).fit(X, Y, sites=np.arange(60) % 3)
    >>> (model.coef_ != 0).all(axis=0)
    array([ True,  True, False, False])
    """

    alpha: float = first(default=1.0)

    def family(self) -> Family:
        return SharedFeatures()


@estimator
class FederatedNuclearRegressor(MultiRegressor):
    """Low-rank regression over sites: the outcomes share a few directions of the features.

    Minimises over W and b::

        1 / (2 n) * sum_rows ||y - W @ x - b||**2 + alpha * ||W||_*

    ||W||_* is the nuclear norm, the sum of the singular values. Rows stay at their sites: each site adds its row count, column
    moments, gradients and a block of its Hessian to sums, and the server sees the sums.

    Parameters
    ----------
    alpha : float, default=1.0
        Weight of the penalty.

    See Also
    --------
    FederatedNuclearRegressorCV : chooses alpha by cross-validation.
    FederatedMultiTaskLasso : outcomes share features instead of directions.

    Examples
    --------
    >>> import numpy as np
    >>> import compfed as cf
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((60, 4))
    >>> Y = np.outer(X @ [1.0, -1.0, 2.0, 0.5], [1.0, 2.0, 3.0]) + 0.1 * rng.standard_normal((60, 3))
    >>> model = cf.FederatedNuclearRegressor(alpha=0.2).fit(X, Y, sites=np.arange(60) % 3)
    >>> int(np.linalg.matrix_rank(model.coef_, tol=1e-8))
    1
    """

    alpha: float = first(default=1.0)

    def family(self) -> Family:
        return SharedDirections()
