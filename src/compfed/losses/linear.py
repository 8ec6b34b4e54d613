"""Losses of linear models: one prediction z = a^T x per row, or K predictions z = X^T a."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import digamma, xlogy

from compfed._utils.array_namespace import (
    Numbers,
    cast_like,
    is_jax,
    log_gamma,
    logsumexp,
    namespace,
    sigmoid,
    softmax,
    softplus,
)
from compfed._utils.records import count, nonnegative, positive, record
from compfed.errors import InputError
from compfed.losses.base import (
    ManyOutputs,
    OneOutput,
    column_shape,
    ignore_overflow,
    one_column,
    symmetric_matrix,
    upper_triangle,
)
from compfed.losses.lipschitz import gram


def _with_majoriser(loss: OneOutput, z: Numbers, y: Numbers) -> Numbers:
    """0.9 times the second derivative plus 0.1 times derivative / (z - y).

    The second term is the curvature of the parabola with vertex y that touches the loss at z; for Huber's loss it is a
    majoriser. These losses are straight far from y: most rows have no curvature, and Newton steps would be far too long.
    The shares were found by trial.
    """
    r = z - y
    away = r != 0
    xp, inside = namespace(z, y), loss.second_derivative(z, y)
    return 0.9 * inside + 0.1 * xp.where(away, loss.derivative(z, y) / xp.where(away, r, 1.0), inside)


def two_classes(self: OneOutput, labels: np.ndarray) -> np.ndarray:
    """Labels in {0, 1} or {-1, +1}, as {-1, +1}: the `encode` of losses of two classes."""
    found = np.unique(one_column(self, labels))
    if np.isin(found, (-1, 1)).all():
        return labels
    if np.isin(found, (0, 1)).all():
        return 2.0 * np.asarray(labels, float) - 1.0  # unsigned zeros would wrap
    way_out = "Recode the two classes, or use losses.Squared for a numeric outcome, losses.Softmax for more classes."
    raise InputError(f"{type(self).__name__} needs labels in {{-1, +1}} or {{0, 1}}; there are others. {way_out}")


def counts(self: OneOutput, labels: np.ndarray) -> np.ndarray:
    """Labels >= 0, as they are: the `encode` of losses of counts."""
    if one_column(self, labels).min() < 0:
        way_out = "Correct those rows or leave them out, or use losses.Squared."
        raise InputError(f"{type(self).__name__} needs labels >= 0 (counts or rates); some are below 0. {way_out}")
    return labels


@record
class Squared(OneOutput):
    """loss(z, y) = (z - y)^2 / 2: linear regression.

    Parameters
    ----------
    ridge : float, default=0.0
        Adds (ridge / 2) ||x||^2 to the loss of every site.

    Examples
    --------
    >>> Squared().derivative(np.array([1.0, 2.0]), np.array([0.5, 2.5]))
    array([ 0.5, -0.5])
    """

    attained = True
    quadratic = True

    ridge: float = nonnegative(default=0.0)

    curvature = 1.0

    def value(self, z: Numbers, y: Numbers) -> Numbers:
        return 0.5 * (z - y) ** 2

    def derivative(self, z: Numbers, y: Numbers) -> Numbers:
        return z - y

    def second_derivative(self, z: Numbers, y: Numbers) -> Numbers:
        return namespace(z).ones_like(z)

    def conjugate(self, theta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """max_z theta z - loss(z, y) = theta^2 / 2 + y theta."""
        return theta**2 / 2 + y * theta

    def conjugate_margin(self, z: float) -> float:
        """The distance of the derivative at z from the end of the conjugate's domain, for the worst label."""
        return np.inf


@record
class Logistic(OneOutput):
    """loss(z, y) = log(1 + exp(-y z)): logistic regression.

    Labels are in {-1, +1}; labels in {0, 1} are read as {-1, +1}.

    Parameters
    ----------
    ridge : float, default=0.0
        Adds (ridge / 2) ||x||^2 to the loss of every site.

    Examples
    --------
    >>> Logistic().derivative(np.array([0.0, 0.0]), np.array([1.0, -1.0]))
    array([-0.5,  0.5])
    """

    ridge: float = nonnegative(default=0.0)

    curvature = 0.25

    def value(self, z: Numbers, y: Numbers) -> Numbers:
        return softplus(-y * z)

    def inverse_link(self, z: Numbers) -> Numbers:
        """P(y = +1)."""
        return sigmoid(z)

    def derivative(self, z: Numbers, y: Numbers) -> Numbers:
        return -y * sigmoid(-y * z)

    def value_and_derivative(self, z: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        t = y * z
        e = np.abs(t)
        np.exp(np.negative(e, out=e), out=e)  # exp(-|t|)
        value = np.log1p(e)
        value -= np.minimum(t, 0.0)
        slope = np.maximum(e, t < 0)  # exp(-max(t, 0))
        slope /= np.add(e, 1.0, out=e)  # sigmoid(-t)
        slope *= -y
        return value, slope

    def second_derivative(self, z: Numbers, y: Numbers) -> Numbers:
        """sigmoid(z) sigmoid(-z), as y^2 = 1 and the product is even in z."""
        if is_jax(z):
            return sigmoid(z) * sigmoid(-z)
        e = np.exp(-np.abs(z))
        return e / (1.0 + e) ** 2

    def conjugate(self, theta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """max_z theta z - loss(z, y) = s log s + (1 - s) log(1 - s) with s = -y theta; infinite outside [0, 1]."""
        inside = (-y * theta >= 0) & (-y * theta <= 1)
        s = np.where(inside, -y * theta, 0.5)
        return np.where(inside, xlogy(s, s) + xlogy(1 - s, 1 - s), np.inf)

    def conjugate_margin(self, z: float) -> float:
        return float(sigmoid(-abs(z)))

    encode = two_classes


@record
class ClassWeightedLogistic(Logistic):
    """loss(z, y) = w_y log(1 + exp(-y z)): logistic regression in which a row counts by the weight of its class.

    Parameters
    ----------
    ridge : float, default=0.0
        Adds (ridge / 2) ||x||^2 to the loss of every site.
    class_weights : array of shape (2,), default=(1.0, 1.0)
        Weights > 0 of the labels -1 and +1.

    Examples
    --------
    >>> ClassWeightedLogistic(class_weights=[1.0, 3.0]).derivative(np.array([0.0, 0.0]), np.array([1.0, -1.0]))
    array([-1.5,  0.5])
    """

    class_weights: Numbers = nonnegative(default=(1.0, 1.0))

    def check(self) -> None:
        _check_class_weights(self, 2)

    @property
    def curvature(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return 0.25 * float(np.max(self.class_weights))

    def value(self, z: Numbers, y: Numbers) -> Numbers:
        return self._weight(y) * softplus(-y * z)

    def derivative(self, z: Numbers, y: Numbers) -> Numbers:
        return self._weight(y) * (-y * sigmoid(-y * z))

    def value_and_derivative(self, z: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        (value, slope), w = super().value_and_derivative(z, y), self._weight(y)
        return w * value, w * slope

    def second_derivative(self, z: Numbers, y: Numbers) -> Numbers:
        return self._weight(y) * (sigmoid(z) * sigmoid(-z))

    def conjugate(self, theta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """max_z theta z - w loss(z, y) = w loss*(theta / w, y), with rounding at the end of the domain forgiven."""
        w = self._weight(y)
        s = -y * theta / w
        return w * super().conjugate(-y * np.where(np.abs(s - 1) <= 4 * np.finfo(float).eps, 1.0, s), y)

    def conjugate_margin(self, z: float) -> float:
        return float(np.min(self.class_weights)) * super().conjugate_margin(z)

    def _weight(self, y: Numbers) -> Numbers:
        return (
            namespace(y, self.class_weights).where(y > 0, self.class_weights[1], self.class_weights[0]).astype(y.dtype)
        )


@record
class SquaredHinge(OneOutput):
    """loss(z, y) = max(0, 1 - y z)^2: a smooth support vector machine.

    Labels are in {-1, +1}; labels in {0, 1} are read as {-1, +1}.

    Parameters
    ----------
    ridge : float, default=0.0
        Adds (ridge / 2) ||x||^2 to the loss of every site.

    Examples
    --------
    >>> SquaredHinge().value(np.array([0.0, 2.0]), np.array([1.0, 1.0]))
    array([1., 0.])
    """

    attained = True
    jumps = True

    ridge: float = nonnegative(default=0.0)

    curvature = 2.0

    def value(self, z: Numbers, y: Numbers) -> Numbers:
        return namespace(z, y).maximum(0.0, 1.0 - y * z) ** 2

    def derivative(self, z: Numbers, y: Numbers) -> Numbers:
        return -2.0 * y * namespace(z, y).maximum(0.0, 1.0 - y * z)

    def second_derivative(self, z: Numbers, y: Numbers) -> Numbers:
        return 2.0 * (y * z < 1.0).astype(z.dtype)  # y^2 = 1

    encode = two_classes


@record
class Huber(OneOutput):
    """loss(z, y) = r^2 / 2 if |r| <= delta else delta |r| - delta^2 / 2, with r = z - y: robust regression.

    Parameters
    ----------
    delta : float, default=1.35
        Residuals beyond this count linearly.
    ridge : float, default=0.0
        Adds (ridge / 2) ||x||^2 to the loss of every site.

    Examples
    --------
    >>> Huber(delta=1.0).derivative(np.array([0.5, 5.0]), np.zeros(2))
    array([0.5, 1. ])
    """

    attained = True
    jumps = True

    delta: float = positive(default=1.35)
    ridge: float = nonnegative(default=0.0)

    curvature = 1.0

    def value(self, z: Numbers, y: Numbers) -> Numbers:
        inner = self.derivative(z, y)
        return inner * (z - y - 0.5 * inner)

    def derivative(self, z: Numbers, y: Numbers) -> Numbers:
        return namespace(z, y, self.delta).clip(z - y, -self.delta, self.delta)

    def second_derivative(self, z: Numbers, y: Numbers) -> Numbers:
        return (abs(z - y) <= self.delta).astype(z.dtype)

    def model_second_derivative(self, z: Numbers, y: Numbers) -> Numbers:
        return _with_majoriser(self, z, y)


@record
class SmoothedQuantile(OneOutput):
    """loss(z, y) = max over u in [quantile - 1, quantile] of u r - smoothing u^2 / 2, with r = y - z.

    For smoothing -> 0 this is the pinball loss max(quantile r, (quantile - 1) r), whose minimiser is the quantile.

    Parameters
    ----------
    quantile : float, default=0.5
        Between 0 and 1.
    smoothing : float, default=0.1
        Width of the smooth part of the loss; the second derivative is at most 1 / smoothing.
    ridge : float, default=0.0
        Adds (ridge / 2) ||x||^2 to the loss of every site.

    Examples
    --------
    >>> SmoothedQuantile(quantile=0.9).derivative(np.array([-1.0, 1.0]), np.zeros(2)).round(12)
    array([-0.9,  0.1])
    """

    attained = True
    jumps = True

    quantile: float = positive(default=0.5)
    smoothing: float = positive(default=0.1)
    ridge: float = nonnegative(default=0.0)

    def check(self) -> None:
        if isinstance(self.quantile, float) and not self.quantile < 1:
            raise InputError(f"SmoothedQuantile(quantile={self.quantile}): quantile must be between 0 and 1.")

    @property
    def curvature(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]  # a number of the record
        return 1.0 / self.smoothing

    def value(self, z: Numbers, y: Numbers) -> Numbers:
        u = self._dual(z, y)
        return u * (y - z - 0.5 * self.smoothing * u)

    def derivative(self, z: Numbers, y: Numbers) -> Numbers:
        return -self._dual(z, y)

    def second_derivative(self, z: Numbers, y: Numbers) -> Numbers:
        u = (y - z) / self.smoothing
        return ((u >= self.quantile - 1.0) & (u <= self.quantile)).astype(z.dtype) / self.smoothing

    def model_second_derivative(self, z: Numbers, y: Numbers) -> Numbers:
        return _with_majoriser(self, z, y)

    def _dual(self, z: Numbers, y: Numbers) -> Numbers:
        """The u of the maximum."""
        xp = namespace(z, y, self.quantile, self.smoothing)
        return xp.clip((y - z) / self.smoothing, self.quantile - 1.0, self.quantile)


@record
class Poisson(OneOutput):
    """loss(z, y) = exp(z) - y z: Poisson regression of counts y >= 0 with mean exp(z).

    Parameters
    ----------
    ridge : float, default=0.0
        Adds (ridge / 2) ||x||^2 to the loss of every site.

    Examples
    --------
    >>> Poisson().derivative(np.zeros(2), np.array([1.0, 3.0]))
    array([ 0., -2.])
    """

    ridge: float = nonnegative(default=0.0)

    curvature = None  # exp has no bound: steps come from the curvature at the current model

    def value(self, z: Numbers, y: Numbers) -> Numbers:
        return namespace(z).exp(z) - y * z

    def value_and_derivative(self, z: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slope = np.exp(z)
        value = slope - y * z
        slope -= y
        return value, slope

    def inverse_link(self, z: Numbers) -> Numbers:
        """The mean count, exp(z)."""
        return namespace(z).exp(z)

    def saturated(self, y: Numbers) -> Numbers:
        """y - y log y, the loss at z = log y."""
        return y - xlogy(y, y)

    def of_label(self, y: Numbers) -> Numbers:
        """log(y!)."""
        return log_gamma(y + 1.0)

    def derivative(self, z: Numbers, y: Numbers) -> Numbers:
        return namespace(z).exp(z) - y

    def second_derivative(self, z: Numbers, y: Numbers) -> Numbers:
        return namespace(z).exp(z)

    encode = counts


@record
class Gamma(OneOutput):
    """loss(z, y) = y exp(-z) + z: Gamma regression of amounts y > 0 with mean exp(z).

    Parameters
    ----------
    ridge : float, default=0.0
        Adds (ridge / 2) ||x||^2 to the loss of every site.

    Examples
    --------
    >>> Gamma().derivative(np.zeros(2), np.array([1.0, 3.0]))
    array([ 0., -2.])
    """

    attained = True

    ridge: float = nonnegative(default=0.0)

    curvature = None  # exp has no bound

    def value(self, z: Numbers, y: Numbers) -> Numbers:
        return y * namespace(z).exp(-z) + z

    def value_and_derivative(self, z: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        relative = y * np.exp(-z)
        return relative + z, 1.0 - relative

    def derivative(self, z: Numbers, y: Numbers) -> Numbers:
        return 1.0 - y * namespace(z).exp(-z)

    def second_derivative(self, z: Numbers, y: Numbers) -> Numbers:
        return y * namespace(z).exp(-z)

    def usual_curvature(self, y: Numbers, share: Numbers) -> float:
        return 1.0  # at the model of an intercept alone

    def inverse_link(self, z: Numbers) -> Numbers:
        """The mean amount, exp(z)."""
        return namespace(z).exp(z)

    def saturated(self, y: Numbers) -> Numbers:
        """1 + log y, the loss at z = log y."""
        return 1.0 + namespace(y).log(y)

    def of_label(self, y: Numbers) -> Numbers:
        """log y, which the likelihood has a multiple of that depends on the dispersion."""
        return namespace(y).log(y)

    def encode(self, labels: np.ndarray) -> np.ndarray:
        """Labels > 0, as they are."""
        if not one_column(self, labels).min() > 0:
            way_out = "Correct those rows or leave them out, or use losses.Poisson, which takes zeros."
            raise InputError(f"Gamma needs labels > 0 (amounts); some are not. {way_out}")
        return labels


@record
class NegativeBinomial(OneOutput):
    """loss(z, y) = (y + theta) log(theta + exp(z)) - y z: counts with mean m = exp(z) and variance m + m^2 / theta.

    Stated without the terms that depend on y alone: (y + theta) log(1 + exp(z) / theta) - y z.

    Parameters
    ----------
    theta : float, default=1.0
        Size of the distribution: for theta -> inf it is Poisson's.
    ridge : float, default=0.0
        Adds (ridge / 2) ||x||^2 to the loss of every site.

    Examples
    --------
    >>> NegativeBinomial(theta=1.0).derivative(np.zeros(2), np.array([1.0, 3.0]))
    array([ 0., -1.])
    """

    theta: float = positive(default=1.0)
    ridge: float = nonnegative(default=0.0)

    curvature = None  # (y + theta) / 4, for the largest y

    def value(self, z: Numbers, y: Numbers) -> Numbers:
        return (y + self.theta) * softplus(self._relative(z)) - y * z

    def derivative(self, z: Numbers, y: Numbers) -> Numbers:
        return (y + self.theta) * sigmoid(self._relative(z)) - y

    def second_derivative(self, z: Numbers, y: Numbers) -> Numbers:
        r = self._relative(z)
        return (y + self.theta) * (sigmoid(r) * sigmoid(-r))

    def usual_curvature(self, y: Numbers, share: Numbers) -> float:
        mean, theta = float(share @ y), float(self.theta)
        return min(mean * theta / (mean + theta), 1.0)  # at the model of an intercept alone

    def inverse_link(self, z: Numbers) -> Numbers:
        """The mean count, exp(z)."""
        return namespace(z).exp(z)

    def saturated(self, y: Numbers) -> Numbers:
        """(y + theta) log(1 + y / theta) - y log y, the loss at z = log y."""
        return (y + self.theta) * np.log1p(y / self.theta) - xlogy(y, y)

    def _relative(self, z: Numbers) -> Numbers:
        """log(exp(z) / theta), in the precision of z."""
        return z - cast_like(namespace(z, self.theta).log(self.theta), z)

    encode = counts


@record
class NegativeBinomialLikelihood(NegativeBinomial):
    """loss(z, y) = the negative log-likelihood of NegativeBinomial, with its terms in theta: to compare values of theta.

    -log P(y) without log(y!), which is (y + theta) log(1 + exp(z) / theta) - y z + y log(theta) + log Gamma(theta) - log Gamma(y + theta).

    Parameters
    ----------
    theta : float, default=1.0
        Size of the distribution.
    ridge : float, default=0.0
        Adds (ridge / 2) ||x||^2 to the loss of every site.

    Examples
    --------
    >>> NegativeBinomialLikelihood(theta=1.0).value(np.zeros(2), np.array([0.0, 1.0])).round(4)
    array([0.6931, 1.3863])
    """

    def value(self, z: Numbers, y: Numbers) -> Numbers:
        theta = cast_like(self.theta, z)
        of_theta = y * namespace(theta).log(theta) + log_gamma(theta) - log_gamma(y + theta)
        return super().value(z, y) + of_theta

    def saturated(self, y: Numbers) -> Numbers:
        """The loss at z = log y."""
        theta = float(self.theta)
        return super().saturated(y) + y * np.log(theta) + log_gamma(np.asarray(theta)) - log_gamma(y + theta)

    def of_label(self, y: Numbers) -> Numbers:
        """log(y!)."""
        return log_gamma(y + 1.0)

    def shape_derivative(self, z: Numbers, y: Numbers) -> Numbers:
        """The derivative of the loss in log(theta), in NumPy."""
        theta, r = float(self.theta), self._relative(z)
        of_theta = softplus(r) + digamma(theta) - digamma(y + theta)
        return theta * of_theta - (y + theta) * sigmoid(r) + y


@record
class Softmax(ManyOutputs):
    """loss(z, y) = log sum_k exp(z_k) - z_y: multinomial logistic regression, labels y in {0, ..., outputs - 1}.

    Parameters
    ----------
    outputs : int
        Number of classes.
    ridge : float, default=0.0
        Adds (ridge / 2) ||x||^2 to the loss of every site.

    Examples
    --------
    >>> Softmax(outputs=2).derivative(np.zeros((1, 2)), np.array([1]))
    array([[ 0.5, -0.5]])
    """

    outputs: int = count()
    ridge: float = nonnegative(default=0.0)

    curvature = 0.5

    def value(self, z: Numbers, y: Numbers) -> Numbers:
        return logsumexp(z) - (z * self._one_hot(z, y)).sum(axis=-1)

    def inverse_link(self, z: Numbers) -> Numbers:
        """The probability of every class."""
        return softmax(z)

    def derivative(self, z: Numbers, y: Numbers) -> Numbers:
        return softmax(z) - self._one_hot(z, y)

    def second_derivative_parts(self, z: Numbers, y: Numbers) -> tuple[Numbers, Numbers]:
        """diag(p) - p p^T with p = softmax(z)."""
        p = softmax(z)
        return p, p

    def _one_hot(self, z: Numbers, y: Numbers) -> Numbers:
        return (y[..., None] == namespace(z, y).arange(self.outputs)).astype(z.dtype)

    def encode(self, labels: np.ndarray) -> np.ndarray:
        """Labels in {0, ..., outputs - 1}, as they are."""
        if not np.isin(np.unique(one_column(self, labels)), np.arange(self.outputs)).all():
            need = f"Softmax(outputs={self.outputs}) needs labels in 0..{self.outputs - 1}; there are others"
            raise InputError(f"{need}. Number the classes from 0 (sklearn's LabelEncoder), or give more outputs.")
        return labels


@record
class ClassWeightedSoftmax(Softmax):
    """loss(z, y) = w_y (log sum_k exp(z_k) - z_y): multinomial regression in which a row counts by the weight of its class.

    Parameters
    ----------
    outputs : int
        Number of classes.
    ridge : float, default=0.0
        Adds (ridge / 2) ||x||^2 to the loss of every site.
    class_weights : array of shape (outputs,)
        Weights > 0 of the classes.

    Examples
    --------
    >>> ClassWeightedSoftmax(outputs=2, class_weights=[1.0, 3.0]).derivative(np.zeros((1, 2)), np.array([1]))
    array([[ 1.5, -1.5]])
    """

    class_weights: Numbers = nonnegative(default=1.0)

    def check(self) -> None:
        _check_class_weights(self, self.outputs)

    @property
    def curvature(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return 0.5 * float(np.max(self.class_weights))

    def value(self, z: Numbers, y: Numbers) -> Numbers:
        return self._weight(z, y) * super().value(z, y)

    def derivative(self, z: Numbers, y: Numbers) -> Numbers:
        return self._weight(z, y)[..., None] * super().derivative(z, y)

    def second_derivative_parts(self, z: Numbers, y: Numbers) -> tuple[Numbers, Numbers]:
        """w (diag(p) - p p^T) with p = softmax(z)."""
        p, w = softmax(z), self._weight(z, y)[..., None]
        return w * p, namespace(z, w).sqrt(w) * p

    def _weight(self, z: Numbers, y: Numbers) -> Numbers:
        return (self._one_hot(z, y) * self.class_weights).sum(axis=-1).astype(z.dtype)


def _check_class_weights(loss: Logistic | Softmax, classes: int) -> None:
    weights: Any = loss.class_weights  # pyright: ignore[reportAttributeAccessIssue]  # of the two losses above
    if isinstance(weights, (np.ndarray, float)) and (np.shape(weights) != (classes,) or not np.min(weights) > 0):
        name = type(loss).__name__
        raise InputError(
            f"{name}(class_weights={weights!r}): class_weights must be {classes} numbers > 0, one per class."
        )


@record
class MultiSquared(ManyOutputs):
    """loss(z, y) = ||z - y||^2 / 2: linear regression of several outcomes per row.

    Parameters
    ----------
    outputs : int
        Number of outcomes.
    ridge : float, default=0.0
        Adds (ridge / 2) ||x||^2 to the loss of every site.

    Examples
    --------
    >>> MultiSquared(outputs=2).value(np.array([[1.0, 2.0]]), np.array([[0.0, 0.0]]))
    array([2.5])
    """

    attained = True
    quadratic = True

    outputs: int = count()
    ridge: float = nonnegative(default=0.0)

    curvature = 1.0

    def value(self, z: Numbers, y: Numbers) -> Numbers:
        return 0.5 * ((z - y) ** 2).sum(axis=-1)

    def derivative(self, z: Numbers, y: Numbers) -> Numbers:
        return z - y

    def second_derivative_parts(self, z: Numbers, y: Numbers) -> tuple[Numbers, Numbers]:
        """The identity."""
        xp = namespace(z)
        return xp.ones_like(z), xp.zeros_like(z)

    @ignore_overflow
    def hessian(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers, W: Numbers | None = None) -> Numbers:
        """sum_l q_l a_lj a_lj' [k = k'] at the entries (j, k), (j', k'): one matrix serves all outputs."""
        j, k = divmod(np.arange(x.size) if W is None else W, self.outputs)
        # Each feature once, if W is known; it may be traced.
        used, where = (j, np.arange(j.size)) if is_jax(j) else np.unique(j, return_inverse=True)
        return gram(A[:, used], q)[where[:, None], where] * (k[:, None] == k)

    def packed_hessian(
        self, x: Numbers, A: Numbers, y: Numbers, q: Numbers, W: Numbers, single: bool = False
    ) -> Numbers:
        """The upper triangle for one output, on the features of W: all outputs have the same matrix."""
        return upper_triangle(gram(A[:, np.unique(W // self.outputs)], q))

    def unpack_hessian(self, packed: Numbers, W: Numbers) -> Numbers:
        used, where = np.unique(W // self.outputs, return_inverse=True)
        k = W % self.outputs
        return symmetric_matrix(packed, len(used))[where[:, None], where] * (k[:, None] == k)

    def packed_size(self, w: int) -> int:
        features = -(-w // self.outputs)
        return features * (features + 1) // 2

    def encode(self, labels: np.ndarray) -> np.ndarray:
        """`outputs` labels per row, as they are; a column of numbers is one label per row."""
        if labels.ndim == 1 and self.outputs == 1:
            return labels[:, None]
        if labels.ndim != 2 or labels.shape[1] != self.outputs:
            need = f"MultiSquared(outputs={self.outputs}) needs labels of shape (rows, {self.outputs})"
            raise InputError(f"{need}; got {column_shape(labels)}.")
        return labels
