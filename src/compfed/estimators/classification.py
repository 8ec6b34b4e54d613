"""Logistic regression over sites: two classes, or several at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import log_softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from compfed.data.columns import as_row_labels
from compfed.errors import InputError
from compfed.estimators.base import FederatedModel, checked_ratio, estimator, first
from compfed.estimators.programs.fit import Family, Labels, elastic_net
from compfed.losses import Logistic, Loss, Softmax


@dataclass(frozen=True)
class Classes(Family):
    of_classes = True

    l1_ratio: float

    def loss(self, labels: Labels) -> Loss:
        assert labels.classes is not None
        if len(labels.classes) < 2:
            raise InputError(
                "FederatedLogisticRegression needs at least 2 classes over all sites together; y has one class: "
                f"{labels.classes[0]}."
            )
        return Logistic() if len(labels.classes) == 2 else Softmax(outputs=len(labels.classes))

    def penalty(self, alpha, scale, outputs):
        return elastic_net(alpha, self.l1_ratio, scale, outputs)

    def null_intercept(self, labels: Labels) -> np.ndarray:
        assert labels.shares is not None
        log = np.log(np.maximum(labels.shares, np.finfo(float).tiny))
        return np.atleast_1d(log[1] - log[0]) if len(log) == 2 else log - log.mean()

    def published(self, coef, intercept):
        if self.l1_ratio == 1 and len(intercept) > 1 and len(intercept) % 2 == 0:
            coef = sparsest(coef)
        return coef.T, intercept - intercept.mean() if len(intercept) > 1 else intercept


@estimator
class LogisticModel(ClassifierMixin, FederatedModel):
    """Logistic regression, whatever its alpha."""

    l1_ratio: float = 1.0

    def family(self) -> Family:
        return Classes(checked_ratio(type(self).__name__, self.l1_ratio))

    def _checked_labels(self, y: np.ndarray) -> np.ndarray:
        as_row_labels(f"{type(self).__name__}: y must be the class of every row", y)
        check_classification_targets(y)
        return y

    def decision_function(self, X: Any) -> np.ndarray:
        """Log-odds of the second class, or one score per class."""
        z = self.linear_predictor(X)
        return z[:, 0] if z.shape[1] == 1 else z

    def predict(self, X: Any) -> np.ndarray:
        """The most likely class."""
        z = self.decision_function(X)
        return self.classes_[(z > 0).astype(int) if z.ndim == 1 else z.argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """P(class | row), one column per class in the order of classes_."""
        z = self.decision_function(X)
        return np.exp(self._log_proba(z))

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """log P(class | row)."""
        return self._log_proba(self.decision_function(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of rows whose most likely class is theirs."""
        self._check_scored(X, y, sample_weight)
        return float(super().score(X, y, sample_weight=sample_weight))

    def _log_proba(self, z: np.ndarray) -> np.ndarray:
        if z.ndim == 1:
            return np.column_stack([-np.logaddexp(0, z), -np.logaddexp(0, -z)])
        return log_softmax(z, axis=1)


@estimator
class FederatedLogisticRegression(LogisticModel):
    """min_{w, b} 1/n sum_l -log P(y_l | x_l) + alpha (l1_ratio ||w||_1 + (1 - l1_ratio)/2 ||w||^2), over sites.

    P is the logistic model for two classes and the softmax (multinomial) model for more. The objective is that of
    sklearn.linear_model.LogisticRegression(C=1 / (n * alpha), l1_ratio=l1_ratio). A site may hold a single class.
    Adding a constant to all classes of a softmax model changes no probability. Intercepts are given with mean zero. With
    an even number of classes and l1_ratio=1 a constant may also be added to a feature's coefficients at no cost, so
    that there are many minimisers: the sparsest is given, and of two such the one of least norm.
    Other parameters as in FederatedLasso.
    """

    alpha: float = first(default=0.01)


def sparsest(coef: np.ndarray) -> np.ndarray:
    """Of coefficients (features, classes) and all those with the same probabilities and l1 norm, the ones given.

    Subtracting c from an even number of coefficients leaves the sum of their absolute values as it is while c stays
    between the two in the middle. Where those differ, one end of the interval is taken: a coefficient becomes zero.
    """
    half = coef.shape[1] // 2
    low, high = np.sort(coef, axis=1)[:, [half - 1, half]].T[:, :, None]
    rounding = 1e-9 * np.abs(coef).max(axis=1, keepdims=True)
    ends = [np.where(np.abs(coef - end) <= rounding, 0.0, coef - end) for end in (low, high)]
    (zeros_low, zeros_high), (norm_low, norm_high) = [(e == 0).sum(1) for e in ends], [(e**2).sum(1) for e in ends]
    take_low = (zeros_low > zeros_high) | ((zeros_low == zeros_high) & (norm_low <= norm_high))
    return np.where(high - low <= rounding, coef, np.where(take_low[:, None], *ends))
