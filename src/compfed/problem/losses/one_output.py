"""Losses of one prediction z = a^T x per row."""

from __future__ import annotations

import numpy as np
from scipy.special import xlogy

from compfed.errors import InputError
from compfed.problem.losses.arrays import Numbers, namespace, sigmoid, softplus
from compfed.problem.losses.base import OneOutput
from compfed.problem.losses.labels import counts, two_classes
from compfed.tools.records import nonnegative, positive, record


def _with_majoriser(loss: OneOutput, z: Numbers, y: Numbers) -> Numbers:
    """0.9 of the second derivative and 0.1 of slope / (z - y), the curvature of the parabola around y that touches at z.

    Far out these losses are straight: most rows have no curvature at all, and Newton's steps would be wild. For Huber's loss
    that parabola lies above it. The shares were found by trial.
    """
    r = z - y
    away = r != 0
    xp, inside = namespace(z, y), loss.weight(z, y)
    return 0.9 * inside + 0.1 * xp.where(away, loss.slope(z, y) / xp.where(away, r, 1.0), inside)


@record
class Squared(OneOutput):
    """loss(z, y) = (z - y)^2 / 2."""

    attained = True

    ridge: float = nonnegative(default=0.0)

    @property
    def curvature(self) -> float:
        return 1.0

    def value(self, z: Numbers, y: Numbers) -> Numbers:
        return 0.5 * (z - y) ** 2

    def slope(self, z: Numbers, y: Numbers) -> Numbers:
        return z - y

    def weight(self, z: Numbers, y: Numbers) -> Numbers:
        return namespace(z).ones_like(z)

    def conjugate(self, theta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """max_z theta z - loss(z, y) = theta^2 / 2 + y theta."""
        return theta**2 / 2 + y * theta

    def room(self, z: float) -> float:
        """How far the slopes at z are from the end of where the conjugate is finite, whatever the label."""
        return np.inf


@record
class Logistic(OneOutput):
    """loss(z, y) = log(1 + exp(-y z)), labels y in {-1, +1}; labels in {0, 1} are read as {-1, +1}."""

    ridge: float = nonnegative(default=0.0)

    @property
    def curvature(self) -> float:
        return 0.25

    def value(self, z: Numbers, y: Numbers) -> Numbers:
        return softplus(-y * z)

    def slope(self, z: Numbers, y: Numbers) -> Numbers:
        return -y * sigmoid(-y * z)

    def weight(self, z: Numbers, y: Numbers) -> Numbers:
        return sigmoid(z) * sigmoid(-z)  # y^2 = 1, and the product is even in z

    def conjugate(self, theta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """max_z theta z - loss(z, y) = s log s + (1 - s) log(1 - s) with s = -y theta; infinite outside [0, 1]."""
        inside = (-y * theta >= 0) & (-y * theta <= 1)
        s = np.where(inside, -y * theta, 0.5)
        return np.where(inside, xlogy(s, s) + xlogy(1 - s, 1 - s), np.inf)

    def room(self, z: float) -> float:
        return float(sigmoid(-abs(z)))

    def encode(self, labels: np.ndarray) -> np.ndarray:
        return two_classes(labels, self)


@record
class SquaredHinge(OneOutput):
    """loss(z, y) = max(0, 1 - y z)^2, labels y in {-1, +1}; labels in {0, 1} are read as {-1, +1}."""

    attained = True

    ridge: float = nonnegative(default=0.0)

    @property
    def curvature(self) -> float:
        return 2.0

    def value(self, z: Numbers, y: Numbers) -> Numbers:
        return namespace(z, y).maximum(0.0, 1.0 - y * z) ** 2

    def slope(self, z: Numbers, y: Numbers) -> Numbers:
        return -2.0 * y * namespace(z, y).maximum(0.0, 1.0 - y * z)

    def weight(self, z: Numbers, y: Numbers) -> Numbers:
        return 2.0 * (y * z < 1.0).astype(z.dtype)  # y^2 = 1

    def encode(self, labels: np.ndarray) -> np.ndarray:
        return two_classes(labels, self)


@record
class Huber(OneOutput):
    """loss(z, y) = r^2 / 2 if |r| <= delta else delta |r| - delta^2 / 2, with r = z - y."""

    attained = True

    delta: float = positive(default=1.35)
    ridge: float = nonnegative(default=0.0)

    @property
    def curvature(self) -> float:
        return 1.0

    def value(self, z: Numbers, y: Numbers) -> Numbers:
        inner = self.slope(z, y)
        return inner * (z - y - 0.5 * inner)

    def slope(self, z: Numbers, y: Numbers) -> Numbers:
        return namespace(z, y, self.delta).clip(z - y, -self.delta, self.delta)

    def weight(self, z: Numbers, y: Numbers) -> Numbers:
        return (abs(z - y) <= self.delta).astype(z.dtype)

    def model_weight(self, z: Numbers, y: Numbers) -> Numbers:
        return _with_majoriser(self, z, y)


@record
class SmoothedQuantile(OneOutput):
    """loss(z, y) = max over u in [quantile - 1, quantile] of u r - smoothing u^2 / 2, with r = y - z.

    For smoothing -> 0 this is the pinball loss max(quantile r, (quantile - 1) r), whose minimiser is the quantile.
    """

    attained = True

    quantile: float = positive(default=0.5)
    smoothing: float = positive(default=0.1)
    ridge: float = nonnegative(default=0.0)

    def check(self) -> None:
        if isinstance(self.quantile, float) and not self.quantile < 1:
            raise InputError(f"SmoothedQuantile(quantile={self.quantile}): quantile must be between 0 and 1.")

    @property
    def curvature(self) -> float:
        return 1.0 / self.smoothing

    def value(self, z: Numbers, y: Numbers) -> Numbers:
        u = self._dual(z, y)
        return u * (y - z - 0.5 * self.smoothing * u)

    def slope(self, z: Numbers, y: Numbers) -> Numbers:
        return -self._dual(z, y)

    def weight(self, z: Numbers, y: Numbers) -> Numbers:
        u = (y - z) / self.smoothing
        return ((u >= self.quantile - 1.0) & (u <= self.quantile)).astype(z.dtype) / self.smoothing

    def model_weight(self, z: Numbers, y: Numbers) -> Numbers:
        return _with_majoriser(self, z, y)

    def _dual(self, z: Numbers, y: Numbers) -> Numbers:
        """The u of the maximum."""
        xp = namespace(z, y, self.quantile, self.smoothing)
        return xp.clip((y - z) / self.smoothing, self.quantile - 1.0, self.quantile)


@record
class Poisson(OneOutput):
    """loss(z, y) = exp(z) - y z, counts y >= 0 with mean exp(z)."""

    ridge: float = nonnegative(default=0.0)

    @property
    def curvature(self) -> None:  # exp has no bound: steps come from the curvature where the model is
        return None

    def value(self, z: Numbers, y: Numbers) -> Numbers:
        return namespace(z).exp(z) - y * z

    def slope(self, z: Numbers, y: Numbers) -> Numbers:
        return namespace(z).exp(z) - y

    def weight(self, z: Numbers, y: Numbers) -> Numbers:
        return namespace(z).exp(z)

    def encode(self, labels: np.ndarray) -> np.ndarray:
        return counts(labels, self)
