"""Regressors, with one outcome or several. n is the number of rows of all sites together, w the coefficients, b the intercept."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
from scipy.special import xlogy
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import mean_gamma_deviance, mean_poisson_deviance, r2_score
from sklearn.utils import Tags

from compfed._utils.text import join_names, shorten
from compfed._utils.validation import as_row_labels, check_unmasked, is_dataframe, is_int
from compfed.data.columns import as_floats
from compfed.errors import InputError
from compfed.estimators.base import BoundedModel, FederatedModel, RelaxedModel, estimator, first
from compfed.estimators.programs.dispersion import best_theta
from compfed.estimators.programs.fit import ElasticNetFamily, Family, Fitted, Labels
from compfed.estimators.programs.likelihood import GammaLikelihood, Likelihood
from compfed.estimators.programs.per_column import read_factors, read_group_weights
from compfed.estimators.table import Features, Offset, RowWeights
from compfed.federation.accounting import Communication
from compfed.federation.server.program import Federation, run_program
from compfed.losses import Gamma, Huber, MultiSquared, NegativeBinomial, Poisson
from compfed.regularisers import Box, GroupL2, Nuclear


class Regressor(RegressorMixin, FederatedModel):
    """Predictions are X w + b."""

    def predict(self, X: Features, offset: Offset = None) -> np.ndarray:
        """Predict X w + b, plus the offset of a model that has one."""
        return self.linear_predictor(X, offset)[:, 0]

    def score(
        self, X: Features, y: npt.ArrayLike | str, sample_weight: RowWeights = None, offset: Offset = None
    ) -> float:
        """R^2, the share of the variance explained: 1 is perfect, 0 is the mean. Of several outcomes, the mean over them."""
        y = self._labels_to_score(X, y, sample_weight)
        return float(r2_score(y, self.predict(X, offset), sample_weight=sample_weight))


# --- least squares ---


@estimator
class FederatedLasso(BoundedModel, Regressor):
    """Lasso over sites, with the coefficients of the pooled table.

    Minimises over w and b::

        1 / (2 n) * sum_rows (y - x @ w - b)**2 + alpha * ||w||_1

    This is the objective of sklearn.linear_model.Lasso. Each site adds its row count, column moments, gradients and a
    block of its Hessian to sums, and the server sees the sums.

    Parameters
    ----------
    alpha : float, default=1.0
        Weight of the penalty, on scikit-learn's scale.
    positive : bool, default=False
        Whether coefficients must be >= 0: bounds=(0, None).

    See Also
    --------
    FederatedLassoCV : chooses alpha by cross-validation.
    FederatedElasticNet : adds a ridge, which makes the minimiser unique.
    regularisation_path : the coefficients at many values of alpha.

    Examples
    --------
    >>> import numpy as np
    >>> import compfed as cf
    >>> rng = np.random.default_rng(0)
    >>> X, hospital = rng.standard_normal((60, 5)), rng.choice(["north", "south", "west"], 60)
    >>> y = 3 * X[:, 0] - 2 * X[:, 3] + 5
    >>> model = cf.FederatedLasso(alpha=0.1).fit(X, y, sites=hospital)
    >>> model.coef_.round(2)
    array([ 2.88,  0.  ,  0.  , -1.92,  0.  ])
    >>> model.certificate_.holds, model.n_rounds_
    (True, 4)
    """

    alpha: float = first(default=1.0)
    positive: bool = False

    def family(self) -> Family:
        return ElasticNetFamily(1.0, self.positive, self.penalty_factors, self.bounds)


@estimator
class FederatedElasticNet(BoundedModel, Regressor):
    """Elastic net over sites, with the coefficients of the pooled table.

    Minimises over w and b::

        1 / (2 n) * sum_rows (y - x @ w - b)**2 + alpha * (l1_ratio * ||w||_1 + (1 - l1_ratio) / 2 * ||w||**2)

    This is the objective of sklearn.linear_model.ElasticNet. Each site adds its row count, column moments, gradients
    and a block of its Hessian to sums, and the server sees the sums.

    Parameters
    ----------
    alpha : float, default=1.0
        Weight of the penalty, on scikit-learn's scale.
    l1_ratio : float, default=0.5
        Share of the l1 norm in the penalty: 1 is the lasso, 0 ridge regression.
    positive : bool, default=False
        Whether coefficients must be >= 0: bounds=(0, None).

    See Also
    --------
    FederatedElasticNetCV : chooses alpha by cross-validation.
    FederatedLasso : the l1 norm alone.

    Examples
    --------
    >>> import compfed as cf
    >>> table = cf.data.bundled.diabetes()
    >>> model = cf.FederatedElasticNet(alpha=0.5).fit(table.X, table.y, sites=table.sites)
    >>> model.certificate_.holds, int((model.coef_ != 0).sum())
    (True, 9)
    """

    alpha: float = first(default=1.0)
    l1_ratio: float = 0.5
    positive: bool = False

    def family(self) -> Family:
        return ElasticNetFamily(self.l1_ratio, self.positive, self.penalty_factors, self.bounds)


# --- groups of features ---


LISTS = (list, tuple, np.ndarray)


@dataclass(frozen=True, eq=False)
class Grouped(Family):
    """Least squares with a penalty on the norm of each group of coefficients."""

    groups: Any  # as the user gave them
    group_weights: npt.ArrayLike | Mapping[Any, float] | None
    factors: Any = None
    names: tuple[str, ...] = ()
    held: np.ndarray | None = None  # groups that are left out

    def with_columns(self, names, width):
        """Refuses the number of a feature that is the name of another one: columns may be called 0, 1, 2."""
        places: list[tuple[int, Any]] = []  # where a feature is, and what `groups` calls it
        if self._series_index is not None:
            places = list(enumerate(self._series_index))
        elif isinstance(self.groups, LISTS) and np.ndim(np.asarray(self.groups, object)):
            places = [(entry, entry) for group in self.groups if isinstance(group, LISTS) for entry in group]
        called = {name: j for j, name in enumerate(names or ())}
        for place, entry in places:
            if is_int(entry) and called.get(str(entry), place) != place:
                raise InputError(
                    f"groups names feature {entry}, which may be the column called {entry} (number {called[str(entry)]}) or "
                    f"column number {entry}. Give X.rename(columns=str) and names as text, '{entry}', to match by name; "
                    "give X.to_numpy() to match by place."
                )
        named = replace(self, names=names or ())
        sizes, labels = np.bincount(named.members(width)), named._group_names(width)
        weights = read_group_weights(self.group_weights, labels, sizes, by_place=labels is None)
        named = replace(named, group_weights=weights)
        factors = read_factors(self.factors, labels, sizes.size, "group", by_place=labels is None)
        if factors is None:
            return named
        return replace(named, factors=np.where(np.isinf(factors), 0.0, factors), held=np.isinf(factors))

    def _group_names(self, width: int) -> list[str] | None:
        """The labels of the groups; None where they are lists of features, which are known by their number."""
        if self.groups is None:
            return list(self.names) or None
        labels = self._listed()
        if isinstance(labels[0], LISTS):
            return None
        labels = np.unique(as_row_labels("groups: a label for every feature is needed", labels))
        return [str(label) for label in labels]

    @property
    def _series_index(self) -> list[Any] | None:
        """The index of `groups`, if it is a Series of pandas."""
        index: Any = getattr(self.groups, "index", None)
        return index.tolist() if hasattr(index, "tolist") else None

    def members(self, width: int) -> np.ndarray:
        """The number of each feature's group."""
        if self.groups is None:
            return np.arange(width)
        labels = self._listed()
        if not labels or not isinstance(labels[0], LISTS):
            if len(labels) != width:
                raise InputError(
                    f"groups has {len(labels)} labels; X has {width} features: give one label per feature."
                )
            labels = as_row_labels("groups: a label for every feature is needed, or lists of features", labels)
            return np.unique(labels, return_inverse=True)[1]
        names = list(self.names)
        listed = [names.index(entry) if entry in names else entry for group in labels for entry in group]
        if not all(map(is_int, listed)) or sorted(listed) != list(range(width)):
            by_name = f" or by name: {', '.join(names)}" if names else ""
            raise InputError(
                f"groups={self.groups!r} must list each of the {width} features exactly once, by position 0..{width - 1}{by_name}."
            )
        where = np.empty(width, int)
        where[listed] = np.repeat(np.arange(len(labels)), [len(group) for group in labels])
        return where

    def _listed(self) -> list[Any]:
        """`groups` as a list, if it has an order that says which feature is meant."""
        given, index, shown = self.groups, self._series_index, f"groups={shorten(repr(self.groups), 80)}"
        if isinstance(given, Mapping):
            raise InputError(
                f"{shown} may say the group of each feature, or the features of each group. Give "
                "[groups[name] for name in X.columns] for the first, list(groups.values()) for the second."
            )
        if is_dataframe(given):
            raise InputError("groups is a DataFrame. Give a list: one label per feature, or lists of features.")
        if index is not None and index not in (list(self.names), list(range(len(given)))):
            raise InputError(
                f"groups is a Series with the index {join_names([repr(i) for i in index])}, which is not that of the columns in "
                "their order. Give groups[X.columns].tolist() to match by name, groups.tolist() to match by place."
            )
        check_unmasked(given, "groups")
        if index is None and not (isinstance(given, LISTS) and np.ndim(np.asarray(given, object))):
            raise InputError(f"{shown} must be a list: one label per feature, or lists of features.")
        if len({isinstance(entry, LISTS) for entry in given}) > 1:
            raise InputError(
                f"{shown} has both lists and single entries. Give one label per feature, or a list of features for every group, "
                "groups of one included: [['a'], ['b', 'c']]."
            )
        if (
            empty := next((k for k, entry in enumerate(given) if isinstance(entry, LISTS) and not len(entry)), None)
        ) is not None:
            raise InputError(f"{shown}: group {empty} has no feature. Leave it out.")
        return list(given)

    def column_scale(self, scale, standardize):
        # the norm of a group treats its members alike, so a group has one scale
        member = self.members(scale.size)
        if standardize:
            return scale
        return np.sqrt(np.bincount(member, scale**2) / np.bincount(member))[member]

    def fits_scale(self, standardize):
        return not standardize  # the members of a group have one scale, or each its own

    def penalty(self, alpha, scale, outputs):
        member = self.members(scale.size)
        weights = np.asarray(self.group_weights) * (1.0 if self.factors is None else self.factors)
        first_of = np.unique(member, return_index=True)[1]
        return GroupL2(lam=alpha, groups=member, weights=weights / scale[first_of])  # pyright: ignore[reportArgumentType]  # an array will do

    def constraint(self, scale, outputs):
        return held_at_zero(self.held, self.members(scale.size))


def held_at_zero(held: np.ndarray | None, group: np.ndarray) -> Box | None:
    """Bounds of 0 for the coefficients of the groups that are left out; none for the others."""
    if held is None or not held.any():
        return None
    size = np.where(held[group], 0.0, np.inf)
    return Box(-size, size)


@estimator
class FederatedGroupLasso(RelaxedModel, Regressor):
    """Group lasso over sites: the coefficients of a group are all zero or all used.

    Minimises over w and b::

        1 / (2 n) * sum_rows (y - x @ w - b)**2 + alpha * sum_groups weight_g * ||w_g||

    w_g are the coefficients of group g. Each site adds its row count, column moments, gradients and a block of its
    Hessian to sums, and the server sees the sums.

    Parameters
    ----------
    alpha : float, default=1.0
        Weight of the penalty.
    groups : list or array, optional
        One label per feature (equal labels form a group), or a list of lists of feature positions or of column names. Without
        it every feature is a group, which is the lasso.
    group_weights : array of shape (n_groups,), Series or dict, optional
        Weight of each group, in the order of the sorted labels; or a dict or Series from the label of a group, or from its number
        where `groups` are lists. The square root of its size unless given.
    penalty_factors : array of shape (n_groups,) or dict, optional
        Factor of alpha for each group, in the order of `group_weights`, which it multiplies; a dict from the label of a group, or
        from its number where `groups` are lists, to factor, 1 for all others. 0: not penalised. inf: left out.

    See Also
    --------
    FederatedGroupLassoCV : chooses alpha by cross-validation.
    FederatedLasso : single coefficients instead of groups.

    Examples
    --------
    >>> import compfed as cf
    >>> table = cf.data.bundled.diabetes()
    >>> groups = [[0, 1], [2, 3], [4, 5, 6, 7, 8, 9]]
    >>> model = cf.FederatedGroupLasso(alpha=1, groups=groups).fit(table.X, table.y, sites=table.sites)
    >>> model.coef_ != 0
    array([False, False,  True,  True, False, False, False, False, False,
           False])
    """

    alpha: float = first(default=1.0)
    groups: Iterable[object] | None = None
    group_weights: npt.ArrayLike | Mapping[Any, float] | None = None

    def family(self) -> Family:
        return Grouped(self.groups, self.group_weights, self.penalty_factors)


# --- robust regression ---


@dataclass(frozen=True, eq=False)
class Robust(ElasticNetFamily):
    """The Huber loss with an elastic net."""

    delta: float = 1.0

    def likelihood(self, labels):
        raise InputError(
            "FederatedHuber has no summary: with a given delta Huber's loss is no likelihood, and its second derivative jumps. Take "
            "FederatedLasso(alpha=0), with se='HC0' or se='HC1' for errors of unequal variance."
        )

    def loss(self, labels):
        return Huber(delta=self.delta)

    def null_intercept(self, labels):
        return None  # it has no formula


@estimator
class FederatedHuber(BoundedModel, Regressor):
    """Huber regression over sites: least squares that outliers cannot dominate.

    Minimises over w and b::

        1 / n * sum_rows h(y - x @ w - b) + alpha * (l1_ratio * ||w||_1 + (1 - l1_ratio) / 2 * ||w||**2)
        h(r) = r**2 / 2 where |r| <= delta,   delta * |r| - delta**2 / 2 elsewhere

    A row further than `delta` from its prediction has a constant influence. sklearn's HuberRegressor estimates that unit
    together with w; here it is given. Each site adds its row count, column moments, gradients and a block of its
    Hessian to sums, and the server sees the sums.

    Parameters
    ----------
    alpha : float, default=0.01
        Weight of the penalty beside the mean loss.
    delta : float, default=1.35
        Residual at which the loss becomes linear, in the units of y.
    l1_ratio : float, default=1.0
        Share of the l1 norm in the penalty: 1 is the l1 norm alone, 0 the ridge alone.

    See Also
    --------
    FederatedHuberCV : chooses alpha by cross-validation.
    FederatedLasso : squared errors.

    Examples
    --------
    >>> import compfed as cf
    >>> table = cf.data.bundled.diabetes()
    >>> model = cf.FederatedHuber(alpha=1.0, delta=50).fit(table.X, table.y, sites=table.sites)
    >>> model.certificate_.holds
    True
    """

    alpha: float = first(default=0.01)
    delta: float = 1.35
    l1_ratio: float = 1.0

    def family(self) -> Family:
        return Robust(self.l1_ratio, False, self.penalty_factors, self.bounds, delta=self.delta)


# --- counts ---


@dataclass(frozen=True, eq=False)
class Counts(ElasticNetFamily):
    """The Poisson loss with an elastic net."""

    def loss(self, labels):
        if labels.mean is not None and not labels.mean.any():
            raise InputError("FederatedPoissonRegressor: all labels are zero; y must be >= 0 and not all zero.")
        return Poisson()

    def likelihood(self, labels):
        return Likelihood()

    def null_intercept(self, labels: Labels) -> np.ndarray:
        assert labels.mean is not None
        return np.log(labels.mean)


class LogLink(BoundedModel, Regressor):
    """Predictions are exp(X w + b)."""

    @property
    def ratio_name(self) -> str | None:
        """The statistician's word for exp(coef_)."""
        return "rate ratio"

    def predict(self, X: Features, offset: Offset = None) -> np.ndarray:
        """Predict the expected outcome, exp(X w + b), or exp(X w + b + offset) of a model that has one."""
        return np.exp(self.linear_predictor(X, offset)[:, 0])

    def _deviance(self, y: npt.ArrayLike, predicted: np.ndarray, sample_weight: RowWeights) -> float:
        """The mean deviance."""
        raise NotImplementedError

    def score(
        self, X: Features, y: npt.ArrayLike | str, sample_weight: RowWeights = None, offset: Offset = None
    ) -> float:
        """D^2, the share of the deviance explained: 1 is perfect, 0 is the mean."""
        y = self._labels_to_score(X, y, sample_weight)
        outcome = as_floats(np.asarray(y), f"{type(self).__name__}: y")
        found = self._deviance(outcome, self.predict(X, offset), sample_weight)
        mean = np.full(len(outcome), np.average(outcome, weights=cast(Any, sample_weight)))
        whole = self._deviance(outcome, mean, sample_weight)
        if whole <= 0:  # labels that are all the same have no deviance to explain: 1 or 0, as in r2_score
            return float(found == 0)
        return float(1.0 - found / whole)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


@estimator
class FederatedPoissonRegressor(LogLink):
    """Poisson regression of counts over sites, with the coefficients of the pooled table.

    Minimises over w and b, with z = x @ w + b::

        1 / n * sum_rows (exp(z) - y * z) + alpha * (l1_ratio * ||w||_1 + (1 - l1_ratio) / 2 * ||w||**2)

    With l1_ratio = 0 this is the objective of sklearn.linear_model.PoissonRegressor. Each site adds its row count,
    column moments, gradients and a block of its Hessian to sums, and the server sees the sums.

    Parameters
    ----------
    alpha : float, default=1.0
        Weight of the penalty, on scikit-learn's scale.
    l1_ratio : float, default=0.0
        Share of the l1 norm in the penalty: 1 is the l1 norm alone, 0 the ridge alone.

    See Also
    --------
    FederatedPoissonRegressorCV : chooses alpha by cross-validation.

    Examples
    --------
    >>> import numpy as np
    >>> import compfed as cf
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((90, 3))
    >>> y = rng.poisson(np.exp(0.5 * X[:, 0] + 1))
    >>> model = cf.FederatedPoissonRegressor(alpha=0.1).fit(X, y, sites=np.arange(90) % 3)
    >>> model.coef_.round(2)
    array([ 0.41,  0.06, -0.05])
    """

    alpha: float = first(default=1.0)
    l1_ratio: float = 0.0

    def family(self) -> Family:
        return Counts(self.l1_ratio, False, self.penalty_factors, self.bounds)

    def _check_labels(self, y: np.ndarray) -> np.ndarray:
        return _counts(type(self).__name__, y, "Poisson loss")

    def _deviance(self, y: npt.ArrayLike, predicted: np.ndarray, sample_weight: RowWeights) -> float:
        return float(mean_poisson_deviance(y, predicted, sample_weight=sample_weight))


def _counts(name: str, y: np.ndarray, loss: str) -> np.ndarray:
    """Labels that are counts, checked at once; the sites check their own again."""
    y = as_floats(y, f"{name}: y")
    if (y < 0).any() or not y.any():
        raise InputError(
            f"{name}: some value(s) of y are out of the valid range of the {loss}; y must be >= 0 and not all zero. The smallest "
            f"is {y.min():g}, the largest {y.max():g}."
        )
    return y


@dataclass(frozen=True, eq=False)
class Overdispersed(ElasticNetFamily):
    """The negative binomial loss with an elastic net."""

    theta: float = 1.0

    def loss(self, labels):
        if labels.mean is not None and not labels.mean.any():
            raise InputError(
                "FederatedNegativeBinomialRegressor: all labels are zero; y must be >= 0 and not all zero."
            )
        return NegativeBinomial(theta=self.theta)

    def likelihood(self, labels):
        return Likelihood()

    def null_intercept(self, labels: Labels) -> np.ndarray:
        assert labels.mean is not None
        return np.log(labels.mean)


MOST_TURNS, USUAL_TURNS = 40, 6  # of theta and the coefficients
THETA_TOL = 1e-9  # of log(theta) from one turn to the next


@estimator
class FederatedNegativeBinomialRegressor(LogLink):
    """Negative binomial regression of counts over sites, with the coefficients of the pooled table.

    Minimises over w and b, with z = x @ w + b::

        1 / n * sum_rows ((y + theta) * log(theta + exp(z)) - y * z)
            + alpha * (l1_ratio * ||w||_1 + (1 - l1_ratio) / 2 * ||w||**2)

    Counts have mean m = exp(z) and variance m + m**2 / theta: more than Poisson's. `theta` is given, or with "ml" estimated by
    maximum likelihood in turns with the coefficients, as by glm.nb of R's MASS. It is 1 / alpha of statsmodels. Each site adds its
    row count, column moments, gradients and a block of its Hessian to sums, and the server sees the sums.

    Parameters
    ----------
    alpha : float, default=1.0
        Weight of the penalty beside the mean loss.
    theta : float or "ml", default=1.0
        Size of the distribution. "ml" minimises the negative log-likelihood plus the penalty over theta, too. With cross-validation
        theta is estimated at the alpha that is chosen, and alpha chosen anew, until it is the same again.
    l1_ratio : float, default=0.0
        Share of the l1 norm in the penalty: 1 is the l1 norm alone, 0 the ridge alone.

    Attributes
    ----------
    theta_ : float
        The theta of the model: as given, or estimated. 1e5 stands for counts that are no more dispersed than Poisson's.

    See Also
    --------
    FederatedNegativeBinomialRegressorCV : chooses alpha by cross-validation.
    FederatedPoissonRegressor : the variance is the mean.

    Examples
    --------
    >>> import numpy as np
    >>> import compfed as cf
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((90, 3))
    >>> y = rng.poisson(rng.gamma(2.0, np.exp(0.5 * X[:, 0] + 1) / 2.0))
    >>> model = cf.FederatedNegativeBinomialRegressor(alpha=0.1, theta=2.0).fit(X, y, sites=np.arange(90) % 3)
    >>> model.certificate_.holds
    True
    """

    alpha: float = first(default=1.0)
    theta: float | str = 1.0
    l1_ratio: float = 0.0

    _theta = cast(float | None, None)  # that of a fit under way

    def family(self) -> Family:
        theta = self._theta
        if theta is None:
            theta = getattr(self, "theta_", 1.0) if self._estimates_theta else self.theta
        return Overdispersed(self.l1_ratio, False, self.penalty_factors, self.bounds, theta=cast(float, theta))

    @property
    def _estimates_theta(self) -> bool:
        if isinstance(self.theta, str) and self.theta != "ml":
            raise InputError(
                f"{type(self).__name__}: theta={self.theta!r} must be a number > 0, or 'ml' to estimate it."
            )
        return isinstance(self.theta, str)

    @property
    def _turns(self) -> int:
        return USUAL_TURNS if self._estimates_theta else 1

    def fit_federation(self, federation: Federation) -> Self:
        with self._restored_on_failure():
            if self._estimates_theta:
                self._fit_in_turns(federation)
            else:
                super().fit_federation(federation)
                self.theta_ = float(self.theta)
        return self

    def _fit_in_turns(self, federation: Federation) -> None:
        """Fit the coefficients and theta in turns, until theta stays."""
        total, theta, found = Communication(), 1.0, np.nan
        try:
            for turn in range(MOST_TURNS):
                theta = found if turn else theta
                self._theta, self._is_stated = theta, turn > 0
                super().fit_federation(federation)
                prepared, x = self._minimum
                found, cost = run_program(federation, best_theta(prepared, x, theta if turn else None))
                total = total.then(self.communication_).then(cost)
                if abs(np.log(found / theta)) <= THETA_TOL:
                    break
        finally:
            self._theta = None
            for name in ("_minimum", "_is_stated"):
                vars(self).pop(name, None)
        self.theta_ = float(theta)
        self._set_cost(total)
        if abs(np.log(found / theta)) > 100 * THETA_TOL:
            warnings.warn(
                f"{type(self).__name__}: theta still moved after {MOST_TURNS} turns, from {theta:.6g} to {found:.6g}. Give theta a "
                "number.",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _set_attributes(self, federation: Federation, fitted: Fitted, cost: Communication) -> None:
        super()._set_attributes(federation, fitted, cost)
        if self._theta is not None:
            self._minimum = fitted.prepared, fitted.model.x

    def _check_labels(self, y: np.ndarray) -> np.ndarray:
        return _counts(type(self).__name__, y, "negative binomial loss")

    def _deviance(self, y: npt.ArrayLike, predicted: np.ndarray, sample_weight: RowWeights) -> float:
        y, theta = np.asarray(y, float), float(self.theta_)
        each = xlogy(y, y) - xlogy(y, predicted) - (y + theta) * (np.log(y + theta) - np.log(predicted + theta))
        return float(np.average(2 * each, weights=cast(Any, sample_weight)))


# --- amounts ---


@dataclass(frozen=True, eq=False)
class Amounts(ElasticNetFamily):
    """The Gamma loss with an elastic net."""

    def loss(self, labels):
        return Gamma()

    def likelihood(self, labels):
        return GammaLikelihood()

    def null_intercept(self, labels: Labels) -> np.ndarray:
        assert labels.mean is not None
        return np.log(np.maximum(labels.mean, np.finfo(float).tiny))  # the sites refuse labels that are not > 0


@estimator
class FederatedGammaRegressor(LogLink):
    """Gamma regression of amounts over sites, with the coefficients of the pooled table.

    Minimises over w and b, with z = x @ w + b::

        1 / n * sum_rows (y * exp(-z) + z) + alpha * (l1_ratio * ||w||_1 + (1 - l1_ratio) / 2 * ||w||**2)

    Amounts y > 0, such as costs or times, have mean exp(z). With l1_ratio = 0 this is the objective of
    sklearn.linear_model.GammaRegressor. Each site adds its row count, column moments, gradients and a block of its
    Hessian to sums, and the server sees the sums.

    Parameters
    ----------
    alpha : float, default=1.0
        Weight of the penalty, on scikit-learn's scale.
    l1_ratio : float, default=0.0
        Share of the l1 norm in the penalty: 1 is the l1 norm alone, 0 the ridge alone.

    See Also
    --------
    FederatedGammaRegressorCV : chooses alpha by cross-validation.

    Examples
    --------
    >>> import compfed as cf
    >>> table = cf.data.bundled.diabetes()
    >>> model = cf.FederatedGammaRegressor(alpha=0.01).fit(table.X, table.y, sites=table.sites)
    >>> model.certificate_.holds
    True
    """

    alpha: float = first(default=1.0)
    l1_ratio: float = 0.0

    def family(self) -> Family:
        return Amounts(self.l1_ratio, False, self.penalty_factors, self.bounds)

    @property
    def ratio_name(self) -> str | None:
        """The statistician's word for exp(coef_)."""
        return "ratio of means"

    def _check_labels(self, y: np.ndarray) -> np.ndarray:
        y = as_floats(y, f"{type(self).__name__}: y")
        if not (y > 0).all():
            raise InputError(
                f"{type(self).__name__}: some value(s) of y are out of the valid range of the Gamma loss; y must be > 0. The "
                f"smallest is {y.min():g}."
            )
        return y

    def _deviance(self, y: npt.ArrayLike, predicted: np.ndarray, sample_weight: RowWeights) -> float:
        return float(mean_gamma_deviance(y, predicted, sample_weight=sample_weight))


# --- several outcomes, which share their features or a few directions of them ---


class _ManyOutcomes(Family):
    """Least squares with several outcomes."""

    def loss(self, labels: Labels) -> MultiSquared:
        assert labels.mean is not None
        return MultiSquared(outputs=len(labels.mean))

    def likelihood(self, labels):
        raise InputError(
            "an estimator of several outcomes (multi-task, nuclear) has no summary: its loss is no likelihood where outcomes of a row are "
            "correlated. Fit one outcome at a time with FederatedLasso(alpha=0)."
        )

    def coef_and_intercept(self, coef, intercept):
        return coef.T, intercept


@dataclass(frozen=True, eq=False)
class SharedFeatures(_ManyOutcomes):
    """A penalty on the norm of each feature's coefficients."""

    factors: Any = None
    held: np.ndarray | None = None  # features that are left out

    def with_columns(self, names, width):
        factors = read_factors(self.factors, names, width)
        return (
            self
            if factors is None
            else replace(self, factors=np.where(np.isinf(factors), 0.0, factors), held=np.isinf(factors))
        )

    def constraint(self, scale, outputs):
        return held_at_zero(self.held, np.repeat(np.arange(scale.size), outputs))

    def penalty(self, alpha, scale, outputs):
        groups, factors = np.repeat(np.arange(scale.size), outputs), 1.0 if self.factors is None else self.factors
        return GroupL2(lam=alpha, groups=groups, weights=factors / scale)  # pyright: ignore[reportArgumentType]  # an array will do


@dataclass(frozen=True)
class SharedDirections(_ManyOutcomes):
    """A penalty on the singular values of the coefficients."""

    def column_scale(self, scale, standardize):
        # singular values mix the features: one scale for all, unless the penalty is on the scaled ones
        return scale if standardize else np.full_like(scale, np.sqrt(np.mean(scale**2)))

    def fits_scale(self, standardize):
        return not standardize

    def penalty(self, alpha, scale, outputs):
        return Nuclear(lam=alpha / scale[0], columns=outputs)


class MultiRegressor(MultiOutputMixin, Regressor):
    """Predictions are X W^T + b.

    Attributes
    ----------
    coef_ : ndarray of shape (n_outcomes, n_features)
        Coefficients, on the original scale of the features.
    intercept_ : ndarray of shape (n_outcomes,)
        The intercepts; zeros without them.
    """

    def predict(self, X: Features, offset: Offset = None) -> np.ndarray:
        """Predict X W^T + b, one column per outcome."""
        z = self.linear_predictor(X, offset)
        return z[:, 0] if self.one_outcome_ else z


@estimator
class FederatedMultiTaskLasso(RelaxedModel, MultiRegressor):
    """Multi-task lasso over sites: a feature is used for all outcomes or for none.

    Minimises over W and b::

        1 / (2 n) * sum_rows ||y - W @ x - b||**2 + alpha * sum_features ||W_j||

    W_j are the coefficients of feature j. This is the objective of sklearn.linear_model.MultiTaskLasso. Each site adds
    its row count, column moments, gradients and a block of its Hessian to sums, and the server sees the sums.

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
        return SharedFeatures(self.penalty_factors)


@estimator
class FederatedNuclearRegressor(MultiRegressor):
    """Low-rank regression over sites: the outcomes share a few directions of the features.

    Minimises over W and b::

        1 / (2 n) * sum_rows ||y - W @ x - b||**2 + alpha * ||W||_*

    ||W||_* is the nuclear norm, the sum of the singular values. Each site adds its row count, column moments, gradients
    and a block of its Hessian to sums, and the server sees the sums.

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
    >>> X, noise = rng.standard_normal((60, 4)), 0.1 * rng.standard_normal((60, 3))
    >>> Y = np.outer(X @ [1.0, -1.0, 2.0, 0.5], [1.0, 2.0, 3.0]) + noise
    >>> model = cf.FederatedNuclearRegressor(alpha=0.2).fit(X, Y, sites=np.arange(60) % 3)
    >>> int(np.linalg.matrix_rank(model.coef_, tol=1e-8))
    1
    """

    alpha: float = first(default=1.0)

    def family(self) -> Family:
        return SharedDirections()
