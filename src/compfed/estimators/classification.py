"""Logistic regression over sites: two classes, or several at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from compfed._utils.validation import as_row_labels
from compfed.errors import InputError
from compfed.estimators.base import FederatedModel, estimator, first
from compfed.estimators.programs.fit import ElasticNetFamily, Family, Labels
from compfed.estimators.table import Features, RowWeights
from compfed.losses import Logistic, Loss, Softmax


@dataclass(frozen=True)
class Classes(ElasticNetFamily):
    """The logistic or softmax loss with an elastic net."""

    classifies = True

    def loss(self, labels: Labels) -> Loss:
        assert labels.classes is not None
        if len(labels.classes) < 2:
            raise InputError(
                "FederatedLogisticRegression needs at least 2 classes over all sites together; y has one class: "
                f"{labels.classes[0]}."
            )
        return Logistic() if len(labels.classes) == 2 else Softmax(outputs=len(labels.classes))

    def null_intercept(self, labels: Labels) -> np.ndarray:
        assert labels.shares is not None
        log = np.log(np.maximum(labels.shares, np.finfo(float).tiny))
        return np.atleast_1d(log[1] - log[0]) if len(log) == 2 else log - log.mean()

    def coef_and_intercept(self, coef, intercept):
        if self.l1_ratio == 1 and len(intercept) > 1 and len(intercept) % 2 == 0:
            coef = sparsest(coef)
        return coef.T, intercept - intercept.mean() if len(intercept) > 1 else intercept


@estimator
class FederatedLogisticRegression(ClassifierMixin, FederatedModel):
    """Logistic regression over sites, for two classes or more.

    Minimises over w and b::

        1 / n * sum_rows -log P(y | x) + alpha * (l1_ratio * ||w||_1 + (1 - l1_ratio) / 2 * ||w||**2)

    P is the logistic model for two classes and the softmax (multinomial) model for more. This is the objective of
    sklearn.linear_model.LogisticRegression(C=1 / (n * alpha), l1_ratio=l1_ratio). A site may hold a single class. Rows stay
    at their sites: each site adds its row count, class counts, column moments, gradients and a block of its Hessian to sums,
    and the server sees the sums.

    Adding a constant to all classes of a softmax model changes no probability: intercepts have mean zero. With an even number
    of classes and l1_ratio=1 there may be many minimisers; the sparsest is given, and of two such the one of least norm.

    Parameters
    ----------
    alpha : float, default=0.01
        Weight of the penalty beside the mean loss: 1 / (C * n) in scikit-learn's terms.
    l1_ratio : float, default=1.0
        Share of the l1 norm in the penalty: 1 is the l1 norm alone, 0 the ridge alone.

    Attributes
    ----------
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients, on the original scale of the features.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        The intercepts; zeros without them.
    classes_ : ndarray of shape (n_classes,)
        The classes of all sites, sorted.

    See Also
    --------
    FederatedLogisticRegressionCV : chooses alpha by cross-validation.

    Examples
    --------
    >>> import compfed as cf
    >>> table = cf.data.bundled.breast_cancer()
    >>> model = cf.FederatedLogisticRegression(alpha=0.01).fit(table.X, table.y, sites=table.sites)
    >>> model.certificate_.holds, int((model.coef_ != 0).sum())
    (True, 6)
    >>> model.predict_proba(table.X[:2]).shape
    (2, 2)
    """

    alpha: float = first(default=0.01)
    l1_ratio: float = 1.0

    def family(self) -> Family:
        return Classes(self.l1_ratio)

    def _check_labels(self, y: np.ndarray) -> np.ndarray:
        as_row_labels(f"{type(self).__name__}: y must be the class of every row", y)
        check_classification_targets(y)
        return y

    def decision_function(self, X: Features) -> np.ndarray:
        """Log-odds of the second class; one score per class, if there are more than two."""
        z = self.linear_predictor(X)
        return z[:, 0] if z.shape[1] == 1 else z

    def predict(self, X: Features) -> np.ndarray:
        """Predict the most likely class."""
        z = self.decision_function(X)
        return self.classes_[(z > 0).astype(int) if z.ndim == 1 else z.argmax(axis=1)]

    def predict_proba(self, X: Features) -> np.ndarray:
        """Predict P(class | row), one column per class in the order of `classes_`."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Features) -> np.ndarray:
        """Predict log P(class | row)."""
        z = self.decision_function(X)
        if z.ndim == 1:
            return np.column_stack([-np.logaddexp(0, z), -np.logaddexp(0, -z)])
        return log_softmax(z, axis=1)

    def score(self, X: Features, y: npt.ArrayLike | str, sample_weight: RowWeights = None) -> float:
        """Accuracy: the share of rows whose most likely class is theirs."""
        y = self._labels_to_score(X, y, sample_weight)
        return float(super().score(X, y, sample_weight=sample_weight))


def sparsest(coef: np.ndarray) -> np.ndarray:
    """The sparsest coefficients (features, classes) with the same probabilities and l1 norm as the given ones.

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
