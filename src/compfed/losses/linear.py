"""Losses of one prediction z = a^T x per row.

Losses of K predictions z = X^T a per row.
"""

from __future__ import annotations

import numpy as np
from scipy.special import xlogy

from compfed._utils.array_namespace import Numbers, is_jax, logsumexp, namespace, sigmoid, softmax, softplus
from compfed._utils.records import count, nonnegative, positive, record
from compfed._utils.triangle import square, upper
from compfed.errors import InputError
from compfed.losses.base import ManyOutputs, OneOutput, unwarned
from compfed.losses.labels import counts, numbered_classes, several_columns, two_classes
from compfed.losses.lipschitz import gram


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


@record
class Softmax(ManyOutputs):
    """loss(z, y) = log sum_k exp(z_k) - z_y, labels y in {0, ..., outputs - 1}."""

    outputs: int = count()
    ridge: float = nonnegative(default=0.0)

    @property
    def curvature(self) -> float:
        return 0.5

    def value(self, z: Numbers, y: Numbers) -> Numbers:
        return logsumexp(z) - (z * self._one_hot(z, y)).sum(axis=-1)

    def slope(self, z: Numbers, y: Numbers) -> Numbers:
        return softmax(z) - self._one_hot(z, y)

    def weight_parts(self, z: Numbers, y: Numbers) -> tuple[Numbers, Numbers]:
        """diag(p) - p p^T with p = softmax(z)."""
        p = softmax(z)
        return p, p

    def _one_hot(self, z: Numbers, y: Numbers) -> Numbers:
        return (y[..., None] == namespace(z, y).arange(self.outputs)).astype(z.dtype)

    def encode(self, labels: np.ndarray) -> np.ndarray:
        return numbered_classes(labels, self)


@record
class MultiSquared(ManyOutputs):
    """loss(z, y) = ||z - y||^2 / 2 with `outputs` outcomes per row."""

    attained = True

    outputs: int = count()
    ridge: float = nonnegative(default=0.0)

    @property
    def curvature(self) -> float:
        return 1.0

    def value(self, z: Numbers, y: Numbers) -> Numbers:
        return 0.5 * ((z - y) ** 2).sum(axis=-1)

    def slope(self, z: Numbers, y: Numbers) -> Numbers:
        return z - y

    def weight_parts(self, z: Numbers, y: Numbers) -> tuple[Numbers, Numbers]:
        """The identity."""
        xp = namespace(z)
        return xp.ones_like(z), xp.zeros_like(z)

    @unwarned
    def hessian(self, x: Numbers, A: Numbers, y: Numbers, weight: Numbers, W: Numbers | None = None) -> Numbers:
        """sum_l weight_l a_lj a_lj' [k = k'] at the entries (j, k), (j', k'): one matrix serves all outputs."""
        j, k = divmod(np.arange(x.size) if W is None else W, self.outputs)
        # each feature once, where W is known: under jit it may not be
        used, where = (j, np.arange(j.size)) if is_jax(j) else np.unique(j, return_inverse=True)
        return gram(A[:, used], weight)[where[:, None], where] * (k[:, None] == k)

    def model_triangle(self, x: Numbers, A: Numbers, y: Numbers, weight: Numbers, W: Numbers) -> Numbers:
        """Of one output alone: all have the same matrix, on the features that W speaks of."""
        return upper(gram(A[:, np.unique(W // self.outputs)], weight))

    def model_matrix(self, triangle: Numbers, W: Numbers) -> Numbers:
        used, where = np.unique(W // self.outputs, return_inverse=True)
        k = W % self.outputs
        return square(triangle, len(used))[where[:, None], where] * (k[:, None] == k)

    def model_numbers(self, w: int) -> int:
        features = -(-w // self.outputs)
        return features * (features + 1) // 2

    def encode(self, labels: np.ndarray) -> np.ndarray:
        return several_columns(labels, self)
