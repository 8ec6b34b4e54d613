"""Logistic regression over sites: two classes, or several at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets

from compfed._utils.validation import as_row_labels, is_number
from compfed.errors import InputError
from compfed.estimators.base import BoundedModel, estimator, first
from compfed.estimators.programs.fit import ElasticNetFamily, Family, Labels
from compfed.estimators.programs.likelihood import Likelihood
from compfed.estimators.table import Features, Offset, RowWeights
from compfed.losses import ClassWeightedLogistic, ClassWeightedSoftmax, Logistic, Loss, Softmax


@dataclass(frozen=True, eq=False)
class Classes(ElasticNetFamily):
    """The logistic or softmax loss with an elastic net."""

    class_weight: Mapping[Any, float] | str | None = None

    classifies = True

    def loss(self, labels: Labels) -> Loss:
        assert labels.classes is not None
        if len(labels.classes) < 2:
            raise InputError(
                "FederatedLogisticRegression needs at least 2 classes over all sites together; y has one class: "
                f"{labels.classes[0]}."
            )
        classes = len(labels.classes)
        if self.class_weight is None:
            return Logistic() if classes == 2 else Softmax(outputs=classes)
        weights = self.weights(labels)
        if classes == 2:
            return ClassWeightedLogistic(class_weights=weights)
        return ClassWeightedSoftmax(outputs=classes, class_weights=weights)

    def likelihood(self, labels: Labels) -> Likelihood:
        return Likelihood()

    def weights(self, labels: Labels) -> np.ndarray:
        """The weight of each class, scaled so that its mean over all rows is 1: sites then count their rows as ever."""
        classes, shares = labels.classes, labels.shares
        assert classes is not None
        assert shares is not None
        if isinstance(self.class_weight, str):  # "balanced"
            return 1.0 / (len(classes) * shares)
        given = dict(self.class_weight or {})
        found = np.array([float(given.pop(c, 1.0)) for c in classes.tolist()])
        if given:
            unknown, known = next(iter(given)), ", ".join(map(repr, classes.tolist()))
            raise InputError(
                f"class_weight has a weight for {unknown!r}, which is not a class. The classes are {known}."
            )
        return found / (shares @ found)

    def null_intercept(self, labels: Labels) -> np.ndarray:
        assert labels.shares is not None
        shares = labels.shares if self.class_weight is None else labels.shares * self.weights(labels)
        log = np.log(np.maximum(shares, np.finfo(float).tiny))
        return np.atleast_1d(log[1] - log[0]) if len(log) == 2 else log - log.mean()

    def representative(self, coef, refit=False):
        """Of a softmax: the sparsest coefficients with the l1 penalty alone, and mean zero where there is no penalty.

        Features with bounds stay as they are: no constant is free there.
        """
        width, classes = coef.shape
        if classes == 1:
            return coef
        free = np.ones(width, bool) if self.bounds is None else np.isinf(self.bounds).all(axis=0)
        if self.l1_ratio == 1 and classes % 2 == 0 and not refit:
            coef = np.where(free[:, None], sparsest(coef), coef)
        unpenalised = np.zeros(width, bool) if self.factors is None else self.factors == 0
        if refit:
            unpenalised |= (coef != 0).all(axis=1)
        return np.where((free & unpenalised)[:, None], coef - coef.mean(axis=1, keepdims=True), coef)

    def coef_and_intercept(self, coef, intercept):
        return coef.T, intercept - intercept.mean() if len(intercept) > 1 else intercept


@estimator
class FederatedLogisticRegression(ClassifierMixin, BoundedModel):
    """Logistic regression over sites, for two classes or more.

    Minimises over w and b::

        1 / n * sum_rows -log P(y | x) + alpha * (l1_ratio * ||w||_1 + (1 - l1_ratio) / 2 * ||w||**2)

    P is the logistic model for two classes and the softmax (multinomial) model for more. This is the objective of
    sklearn.linear_model.LogisticRegression(C=1 / (n * alpha), l1_ratio=l1_ratio). A site may hold a single class. Each
    site adds its row count, class counts, column moments, gradients and a block of its Hessian to sums, and the server
    sees the sums.

    Adding a constant to all classes of a softmax model changes no probability: intercepts have mean zero. With an even number
    of classes and l1_ratio=1 there may be many minimisers; the sparsest is given, and of two such the one of least norm.

    Parameters
    ----------
    alpha : float, default=0.01
        Weight of the penalty beside the mean loss: 1 / (C * n) in scikit-learn's terms.
    l1_ratio : float, default=1.0
        Share of the l1 norm in the penalty: 1 is the l1 norm alone, 0 the ridge alone.
    class_weight : dict, "balanced" or None, default=None
        How much the rows of each class count: {class: weight}, 1 for a class without one, or "balanced", n / (classes * rows of the
        class) over all sites. Weights are scaled to a mean of 1 over all rows, so that alpha keeps its meaning. In
        cross-validation they come from the rows to train with, and held-out losses have them too.

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
    class_weight: Mapping[Any, float] | str | None = None

    @property
    def ratio_name(self) -> str | None:
        """The statistician's word for exp(coef_), of two classes."""
        return "odds ratio" if len(getattr(self, "classes_", ())) == 2 else None

    def family(self) -> Family:
        return Classes(self.l1_ratio, False, self.penalty_factors, self.bounds, self._checked_class_weight())

    def _checked_class_weight(self) -> Mapping[Any, float] | str | None:
        given, need = self.class_weight, f"{type(self).__name__}: class_weight={self.class_weight!r}"
        if given is None or (isinstance(given, str) and given == "balanced"):
            return given
        if not isinstance(given, Mapping):
            raise InputError(f"{need} must be None, 'balanced', or a dict from classes to weights.")
        for weight in given.values():
            if not is_number(weight) or not 0 < float(weight) < np.inf:
                raise InputError(
                    f"{need}: {weight!r} must be a finite number > 0; leave out the rows of a class of weight 0."
                )
        return given

    def _unweighted_loss(self, labels: Labels) -> Loss:
        return Classes(self.l1_ratio).loss(labels)

    def _check_labels(self, y: np.ndarray) -> np.ndarray:
        as_row_labels(f"{type(self).__name__}: y must be the class of every row", y)
        check_classification_targets(y)
        return y

    def decision_function(self, X: Features, offset: Offset = None) -> np.ndarray:
        """Log-odds of the second class; one score per class, if there are more than two."""
        z = self.linear_predictor(X, offset)
        return z[:, 0] if z.shape[1] == 1 else z

    def predict(self, X: Features, offset: Offset = None) -> np.ndarray:
        """Predict the most likely class."""
        z = self.decision_function(X, offset)
        return self.classes_[(z > 0).astype(int) if z.ndim == 1 else z.argmax(axis=1)]

    def predict_proba(self, X: Features, offset: Offset = None) -> np.ndarray:
        """Predict P(class | row), one column per class in the order of `classes_`."""
        return np.exp(self.predict_log_proba(X, offset))

    def predict_log_proba(self, X: Features, offset: Offset = None) -> np.ndarray:
        """Predict log P(class | row)."""
        z = self.decision_function(X, offset)
        if z.ndim == 1:
            return np.column_stack([-np.logaddexp(0, z), -np.logaddexp(0, -z)])
        return log_softmax(z, axis=1)

    def score(
        self, X: Features, y: npt.ArrayLike | str, sample_weight: RowWeights = None, offset: Offset = None
    ) -> float:
        """Accuracy: the share of rows whose most likely class is theirs."""
        y = self._labels_to_score(X, y, sample_weight)
        return float(accuracy_score(y, self.predict(X, offset), sample_weight=sample_weight))


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
