"""Losses of K predictions z = X^T a per row."""

from __future__ import annotations

import numpy as np

from compfed.problem.curvature import gram
from compfed.problem.losses.arrays import Numbers, is_jax, logsumexp, namespace, softmax
from compfed.problem.losses.base import ManyOutputs, unwarned
from compfed.problem.losses.labels import numbered_classes, several_columns
from compfed.problem.triangle import square, upper
from compfed.tools.records import count, nonnegative, record


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
