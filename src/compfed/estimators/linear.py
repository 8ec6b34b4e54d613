"""Regressors with one outcome. n is the number of rows of all sites together, w the coefficients, b the intercept.

With `site_weights="equal"` the mean over rows is instead the mean over sites of each site's own mean. Each model comes with
a given alpha here, and with one chosen by cross-validation in `cross_validation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import d2_tweedie_score, mean_poisson_deviance

from compfed.data.columns import as_floats
from compfed.errors import InputError
from compfed.estimators.base import FederatedModel, checked_ratio, estimator, first
from compfed.estimators.programs.fit import Family, Labels, elastic_net
from compfed.losses import Huber, Poisson, Squared
from compfed.regularisers import NonNegative, SumOf


class Regressor(RegressorMixin, FederatedModel):
    """Predictions are X w + b."""

    scored_by_squares = True

    def predict(self, X: Any) -> np.ndarray:
        """X w + b."""
        return self.linear_predictor(X)[:, 0]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R^2, the share of the variance explained; 1 is perfect, 0 is the mean."""
        self._check_scored(X, y, sample_weight)
        return float(super().score(X, y, sample_weight=sample_weight))


# --- least squares ---


@dataclass(frozen=True)
class LeastSquares(Family):
    l1_ratio: float
    positive: bool

    def loss(self, labels):
        return Squared()

    def penalty(self, alpha, scale, outputs):
        penalty = elastic_net(alpha, self.l1_ratio, scale, outputs)
        return SumOf(penalty, NonNegative()) if self.positive else penalty


@estimator
class LassoModel(Regressor):
    """The lasso, whatever its alpha."""

    positive: bool = False

    def family(self) -> Family:
        return LeastSquares(1.0, self.positive)


@estimator
class FederatedLasso(LassoModel):
    """min_{w, b} 1/(2n) ||y - X w - b||^2 + alpha ||w||_1, as sklearn.linear_model.Lasso has it, over sites.

    - `positive`: coefficients >= 0.
    - `standardize`: penalise the coefficients of standardised features (pooled mean and standard deviation, from
      two aggregated sums); `coef_` is on the original scale either way.
    - `site_weights`: "rows" for the objective of the pooled table, "equal" if every site is to count the same.
    - `algorithm`: "auto", the name of a method (`compfed list algorithms`) or one with steps of your own; `tau` local
      steps per round. Steps come from the data. "auto" takes the method whose rounds and bytes are expected to cost the
      least, at `seconds_per_round` for a message beside its bytes; `trace_.provenance["choice"]` says why.
    - `verbose`: tell on the error stream how far it has come: a bar on a terminal, plain lines elsewhere.
    - `tol`: rounds end when the gradient mapping is this share of the gradient without features; `max_rounds` at most.

    After `fit`: `coef_`, `intercept_`, `certificate_`, `n_rounds_` (all messages a network would have carried, set-up
    included), `communication_` (their bytes, by question), `trace_`, `algorithm_`, `site_names_`.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, hospital = rng.standard_normal((60, 5)), rng.choice(["north", "south", "west"], 60)
    >>> y = 3 * X[:, 0] - 2 * X[:, 3] + 5
    >>> FederatedLasso(alpha=0.1).fit(X, y, sites=hospital).coef_.round(2)
    array([ 2.88,  0.  ,  0.  , -1.92,  0.  ])
    """

    alpha: float = first(default=1.0)


@estimator
class ElasticNetModel(Regressor):
    """The elastic net, whatever its alpha."""

    l1_ratio: float = 0.5
    positive: bool = False

    def family(self) -> Family:
        return LeastSquares(checked_ratio(type(self).__name__, self.l1_ratio), self.positive)


@estimator
class FederatedElasticNet(ElasticNetModel):
    """min_{w, b} 1/(2n) ||y - X w - b||^2 + alpha (l1_ratio ||w||_1 + (1 - l1_ratio)/2 ||w||^2), over sites.

    The objective of sklearn.linear_model.ElasticNet; parameters as in FederatedLasso.
    """

    alpha: float = first(default=1.0)


# --- robust ---


@dataclass(frozen=True)
class Robust(Family):
    delta: float
    l1_ratio: float

    def loss(self, labels):
        return Huber(delta=self.delta)

    def penalty(self, alpha, scale, outputs):
        return elastic_net(alpha, self.l1_ratio, scale, outputs)

    def null_intercept(self, labels):
        return None  # the point between two forces: has no formula


@estimator
class HuberModel(Regressor):
    """Robust regression, whatever its alpha."""

    delta: float = 1.35
    l1_ratio: float = 1.0

    def family(self) -> Family:
        return Robust(self.delta, checked_ratio(type(self).__name__, self.l1_ratio))


@estimator
class FederatedHuber(HuberModel):
    """min_{w, b} 1/n sum_l h(y_l - x_l^T w - b) + alpha (l1_ratio ||w||_1 + (1 - l1_ratio)/2 ||w||^2), over sites.

    h(r) = r^2/2 for |r| <= delta, delta |r| - delta^2/2 beyond: rows further than `delta` (in the units of y) from their
    prediction pull with constant force. sklearn's HuberRegressor estimates that unit together with w; here it is given.
    Other parameters as in FederatedLasso.
    """

    alpha: float = first(default=0.01)


# --- counts ---


@dataclass(frozen=True)
class Counts(Family):
    l1_ratio: float

    def loss(self, labels):
        if labels.mean is not None and not labels.mean.any():
            raise InputError("FederatedPoissonRegressor: all labels are zero; y must be >= 0 and not all zero.")
        return Poisson()

    def penalty(self, alpha, scale, outputs):
        return elastic_net(alpha, self.l1_ratio, scale, outputs)

    def null_intercept(self, labels: Labels) -> np.ndarray:
        assert labels.mean is not None
        return np.log(labels.mean)


@estimator
class PoissonModel(Regressor):
    """Regression of counts, whatever its alpha."""

    l1_ratio: float = 0.0

    scored_by_squares = False

    def family(self) -> Family:
        return Counts(checked_ratio(type(self).__name__, self.l1_ratio))

    def _checked_labels(self, y: np.ndarray) -> np.ndarray:
        y = as_floats(y, f"{type(self).__name__}: y")
        if (y < 0).any() or not y.any():
            raise InputError(
                f"{type(self).__name__}: some value(s) of y are out of the valid range of the Poisson loss; y must be "
                f">= 0 and not all zero. The smallest is {y.min():g}, the largest {y.max():g}."
            )
        return y

    def predict(self, X: Any) -> np.ndarray:
        """exp(X w + b): the expected count."""
        return np.exp(self.linear_predictor(X)[:, 0])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """D^2, the share of the deviance explained; 1 is perfect, 0 is the mean. Of labels that are all the same: 0, or 1."""
        self._check_scored(X, y, sample_weight)
        predicted = self.predict(X)
        try:
            return float(d2_tweedie_score(y, predicted, sample_weight=sample_weight, power=1))
        except ZeroDivisionError:  # no deviance to explain: as r2_score has it
            return float(mean_poisson_deviance(y, predicted, sample_weight=sample_weight) == 0)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


@estimator
class FederatedPoissonRegressor(PoissonModel):
    """min_{w, b} 1/n sum_l (exp(z_l) - y_l z_l) + alpha (l1_ratio ||w||_1 + (1 - l1_ratio)/2 ||w||^2), z = X w + b.

    With l1_ratio = 0, the default, the objective of sklearn.linear_model.PoissonRegressor. Other parameters as in
    FederatedLasso.
    """

    alpha: float = first(default=1.0)
