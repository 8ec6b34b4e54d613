"""Logistic regression over sites: two classes, or several at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import log_softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from compfed.algorithms import Algorithm
from compfed.errors import InputError
from compfed.estimators.base import FederatedModel
from compfed.estimators.linear import elastic_net
from compfed.problem.losses import Logistic, Loss, Softmax
from compfed.problem.regularisers import Regulariser


class FederatedLogisticRegression(ClassifierMixin, FederatedModel):
    """min_{w, b} 1/n sum_l -log P(y_l | x_l) + alpha (l1_ratio ||w||_1 + (1 - l1_ratio)/2 ||w||^2), over sites.

    P is the logistic model for two classes and the softmax (multinomial) model for more. The objective is that of
    sklearn.linear_model.LogisticRegression(C=1 / (n * alpha), l1_ratio=l1_ratio). A site may hold a single class.
    Adding a constant to all classes of a softmax model changes no probability. Intercepts are given with mean zero. With
    an even number of classes and l1_ratio=1 a constant may also be added to a feature's coefficients at no cost, so
    that there are many minimisers: the sparsest is given, and of two such the one of least norm.
    Other parameters as in FederatedLasso.
    """

    def __init__(
        self, alpha: float = 0.01, *, l1_ratio: float = 1.0, fit_intercept: bool = True, standardize: bool = False,
        site_weights: str = "rows", algorithm: str | Algorithm = "auto", tau: int = 5, tol: float = 1e-12,
        max_rounds: int = 20_000, verbose: bool = False,
    ):  # fmt: skip
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.site_weights = site_weights
        self.algorithm = algorithm
        self.tau = tau
        self.tol = tol
        self.max_rounds = max_rounds
        self.verbose = verbose

    def _targets(self, y: np.ndarray) -> np.ndarray:
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(
                "FederatedLogisticRegression needs at least 2 classes over all sites together; y has one class: "
                f"{self.classes_[0]}."
            )
        return codes.astype(float)

    def _loss(self, y: np.ndarray) -> Loss:
        return Logistic() if len(self.classes_) == 2 else Softmax(outputs=len(self.classes_))

    def _penalty(self, scale: np.ndarray, outputs: int) -> Regulariser:
        return elastic_net(self.alpha, self.l1_ratio, scale, outputs)

    def _null_intercept(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        shares = np.bincount(y.astype(int), weight, minlength=len(self.classes_))
        log = np.log(np.maximum(shares, np.finfo(float).tiny))
        return np.atleast_1d(log[1] - log[0]) if len(log) == 2 else log - log.mean()

    def _publish(self, coef: np.ndarray, intercept: np.ndarray) -> None:
        if self.l1_ratio == 1 and len(intercept) > 1 and len(intercept) % 2 == 0:
            coef = sparsest(coef)
        self.coef_ = coef.T
        self.intercept_ = intercept - intercept.mean() if len(intercept) > 1 else intercept

    def decision_function(self, X: Any) -> np.ndarray:
        """Log-odds of the second class, or one score per class."""
        z = self._decision(X)
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

    def _log_proba(self, z: np.ndarray) -> np.ndarray:
        if z.ndim == 1:
            return np.column_stack([-np.logaddexp(0, z), -np.logaddexp(0, -z)])
        return log_softmax(z, axis=1)


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
