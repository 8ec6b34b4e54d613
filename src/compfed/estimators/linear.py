"""Regressors with one outcome. n is the number of rows of all sites together, w the coefficients, b the intercept.

With `site_weights="equal"` the mean over rows is instead the mean over sites of each site's own mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import root_scalar
from sklearn.base import RegressorMixin
from sklearn.metrics import d2_tweedie_score

from compfed.algorithms import Algorithm
from compfed.errors import InputError
from compfed.estimators.base import FederatedModel
from compfed.problem.losses import Huber, Loss, Poisson, Squared
from compfed.problem.regularisers import ElasticNet, GroupL2, NonNegative, Regulariser, SumOf


class _Regressor(RegressorMixin, FederatedModel):
    def predict(self, X: Any) -> np.ndarray:
        """X w + b."""
        return self._decision(X)[:, 0]


def elastic_net(alpha: float, l1_ratio: float, scale: np.ndarray, outputs: int) -> ElasticNet:
    """alpha (l1_ratio ||w||_1 + (1 - l1_ratio) / 2 ||w||^2) as a penalty of u = scale * w."""
    s = np.repeat(scale, outputs)
    return ElasticNet(l1=alpha * l1_ratio / s, l2=alpha * (1.0 - l1_ratio) / s**2)


class FederatedLasso(_Regressor):
    """min_{w, b} 1/(2n) ||y - X w - b||^2 + alpha ||w||_1, as sklearn.linear_model.Lasso has it, over sites.

    - `positive`: coefficients >= 0.
    - `standardize`: penalise the coefficients of standardised features (pooled mean and standard deviation, from
      two aggregated sums); `coef_` is on the original scale either way.
    - `site_weights`: "rows" for the objective of the pooled table, "equal" if every site is to count the same.
    - `algorithm`: "auto", the name of a method (`compfed list algorithms`) or one with steps of your own; `tau` local
      steps per round. Steps come from the data.
    - `tol`: rounds end when the gradient mapping is this share of the gradient without features; `max_rounds` at most.

    After `fit`: `coef_`, `intercept_`, `n_rounds_`, `certificate_`, `trace_`, `algorithm_`, `site_names_`.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, hospital = rng.standard_normal((60, 5)), rng.choice(["north", "south", "west"], 60)
    >>> y = 3 * X[:, 0] - 2 * X[:, 3] + 5
    >>> FederatedLasso(alpha=0.1).fit(X, y, sites=hospital).coef_.round(2)
    array([ 2.88,  0.  ,  0.  , -1.92,  0.  ])
    """

    def __init__(
        self, alpha: float = 1.0, *, positive: bool = False, fit_intercept: bool = True, standardize: bool = False,
        site_weights: str = "rows", algorithm: str | Algorithm = "auto", tau: int = 5, tol: float = 1e-12,
        max_rounds: int = 20_000, verbose: bool = False,
    ):  # fmt: skip
        self.alpha = alpha
        self.positive = positive
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.site_weights = site_weights
        self.algorithm = algorithm
        self.tau = tau
        self.tol = tol
        self.max_rounds = max_rounds
        self.verbose = verbose

    def _loss(self, y: np.ndarray) -> Loss:
        return Squared()

    def _penalty(self, scale: np.ndarray, outputs: int) -> Regulariser:
        penalty = elastic_net(self.alpha, 1.0, scale, outputs)
        return SumOf(penalty, NonNegative()) if self.positive else penalty


class FederatedElasticNet(_Regressor):
    """min_{w, b} 1/(2n) ||y - X w - b||^2 + alpha (l1_ratio ||w||_1 + (1 - l1_ratio)/2 ||w||^2), over sites.

    The objective of sklearn.linear_model.ElasticNet; parameters as in FederatedLasso.
    """

    def __init__(
        self, alpha: float = 1.0, *, l1_ratio: float = 0.5, positive: bool = False, fit_intercept: bool = True,
        standardize: bool = False, site_weights: str = "rows", algorithm: str | Algorithm = "auto", tau: int = 5,
        tol: float = 1e-12, max_rounds: int = 20_000, verbose: bool = False,
    ):  # fmt: skip
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.positive = positive
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.site_weights = site_weights
        self.algorithm = algorithm
        self.tau = tau
        self.tol = tol
        self.max_rounds = max_rounds
        self.verbose = verbose

    def _loss(self, y: np.ndarray) -> Loss:
        return Squared()

    def _penalty(self, scale: np.ndarray, outputs: int) -> Regulariser:
        penalty = elastic_net(self.alpha, self.l1_ratio, scale, outputs)
        return SumOf(penalty, NonNegative()) if self.positive else penalty


class FederatedHuber(_Regressor):
    """min_{w, b} 1/n sum_l h(y_l - x_l^T w - b) + alpha (l1_ratio ||w||_1 + (1 - l1_ratio)/2 ||w||^2), over sites.

    h(r) = r^2/2 for |r| <= delta, delta |r| - delta^2/2 beyond: rows further than `delta` (in the units of y) from their
    prediction pull with constant force. sklearn's HuberRegressor estimates that unit together with w; here it is given.
    Other parameters as in FederatedLasso.
    """

    def __init__(
        self, alpha: float = 0.01, *, delta: float = 1.35, l1_ratio: float = 1.0, fit_intercept: bool = True,
        standardize: bool = False, site_weights: str = "rows", algorithm: str | Algorithm = "auto", tau: int = 5,
        tol: float = 1e-12, max_rounds: int = 20_000, verbose: bool = False,
    ):  # fmt: skip
        self.alpha = alpha
        self.delta = delta
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.site_weights = site_weights
        self.algorithm = algorithm
        self.tau = tau
        self.tol = tol
        self.max_rounds = max_rounds
        self.verbose = verbose

    def _loss(self, y: np.ndarray) -> Loss:
        return Huber(delta=self.delta)

    def _penalty(self, scale: np.ndarray, outputs: int) -> Regulariser:
        return elastic_net(self.alpha, self.l1_ratio, scale, outputs)

    def _null_intercept(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        def force(b: float) -> float:  # one number from every site
            return float(weight @ np.clip(y - b, -self.delta, self.delta))

        low, high = float(y.min()), float(y.max())
        if not force(low) > 0 > force(high):  # all y alike
            return np.array([low])
        return np.array([root_scalar(force, bracket=(low, high), xtol=1e-300).root])


class FederatedPoissonRegressor(_Regressor):
    """min_{w, b} 1/n sum_l (exp(z_l) - y_l z_l) + alpha (l1_ratio ||w||_1 + (1 - l1_ratio)/2 ||w||^2), z = X w + b.

    With l1_ratio = 0, the default, the objective of sklearn.linear_model.PoissonRegressor. Other parameters as in
    FederatedLasso.
    """

    def __init__(
        self, alpha: float = 1.0, *, l1_ratio: float = 0.0, fit_intercept: bool = True, standardize: bool = False,
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
        if (y < 0).any() or not y.any():
            raise InputError(
                f"FederatedPoissonRegressor: some value(s) of y are out of the valid range of the Poisson loss; y must be "
                f">= 0 and not all zero. The smallest is {y.min():g}, the largest {y.max():g}."
            )
        return y

    def _loss(self, y: np.ndarray) -> Loss:
        return Poisson()

    def _penalty(self, scale: np.ndarray, outputs: int) -> Regulariser:
        return elastic_net(self.alpha, self.l1_ratio, scale, outputs)

    def _null_intercept(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return np.atleast_1d(np.log(weight @ y))

    def predict(self, X: Any) -> np.ndarray:
        """exp(X w + b): the expected count."""
        return np.exp(self._decision(X)[:, 0])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """D^2, the share of the deviance explained; 1 is perfect, 0 is the mean."""
        return float(d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=1))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


class FederatedGroupLasso(_Regressor):
    """min_{w, b} 1/(2n) ||y - X w - b||^2 + alpha sum_g weight_g ||w_g||, over sites: whole groups are zero or not.

    - `groups`: one label per feature (any values; equal labels form a group), a list of lists of feature positions or
      of names of a DataFrame's columns, or None for a group per feature, which is the lasso.
    - `group_weights`: one per group in the order of the sorted labels; the square root of its size unless given.

    Other parameters as in FederatedLasso.
    """

    def __init__(
        self, alpha: float = 1.0, *, groups: Any = None, group_weights: Any = None, fit_intercept: bool = True,
        standardize: bool = False, site_weights: str = "rows", algorithm: str | Algorithm = "auto", tau: int = 5,
        tol: float = 1e-12, max_rounds: int = 20_000, verbose: bool = False,
    ):  # fmt: skip
        self.alpha = alpha
        self.groups = groups
        self.group_weights = group_weights
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.site_weights = site_weights
        self.algorithm = algorithm
        self.tau = tau
        self.tol = tol
        self.max_rounds = max_rounds
        self.verbose = verbose

    def _loss(self, y: np.ndarray) -> Loss:
        return Squared()

    def _members(self, width: int) -> np.ndarray:
        """The number of each feature's group."""
        if self.groups is None:
            return np.arange(width)
        labels = list(self.groups)
        if labels and all(isinstance(group, (list, tuple, np.ndarray)) for group in labels):
            names = list(getattr(self, "feature_names_in_", ()))
            listed = [names.index(entry) if entry in names else entry for group in labels for entry in group]
            if any(isinstance(entry, str) for entry in listed) or sorted(listed) != list(range(width)):
                raise InputError(
                    f"groups={self.groups!r} must list each of the {width} features exactly once, by position 0..{width - 1}"
                    + (f" or by name: {', '.join(names)}." if names else ".")
                )
            where = np.empty(width, int)
            where[listed] = np.repeat(np.arange(len(labels)), [len(group) for group in labels])
            return where
        if len(labels) != width:
            raise InputError(f"groups has {len(labels)} labels; X has {width} features: give one label per feature.")
        return np.unique(np.asarray(labels), return_inverse=True)[1]

    def _column_scale(self, scale: np.ndarray) -> np.ndarray:
        # the norm of a group is the same in all directions, so a group has one scale
        member = self._members(scale.size)
        if self.standardize:
            return scale
        return np.sqrt(np.bincount(member, scale**2) / np.bincount(member))[member]

    def _penalty(self, scale: np.ndarray, outputs: int) -> Regulariser:
        member = self._members(scale.size)
        sizes = np.bincount(member)
        weights = np.sqrt(sizes) if self.group_weights is None else np.asarray(self.group_weights, float)
        if weights.shape != sizes.shape or not (np.isfinite(weights) & (weights >= 0)).all():
            raise InputError(
                f"group_weights={self.group_weights!r} must be {sizes.size} finite numbers >= 0, one for each group."
            )
        first = np.unique(member, return_index=True)[1]
        return GroupL2(lam=self.alpha, groups=tuple(member.tolist()), weights=weights / scale[first])
