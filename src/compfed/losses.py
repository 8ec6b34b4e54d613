"""Losses of a linear model: site i has f_i(x) = (1/m_i) sum_l loss(a_il^T x, y_il) + (ridge / 2) ||x||^2.

A loss is the function of one prediction z = a^T x and one label y, its derivative in z, and a bound on its second
derivative. The ridge belongs to f_i, because the theory asks every f_i to be strongly convex.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed.errors import InputError
from compfed.records import nonnegative, record


class Loss(Protocol):
    """What a problem needs to know of a loss."""

    curvature: ClassVar[float]

    @property
    def ridge(self) -> float: ...
    def value(self, z: Array, y: Array) -> Array: ...
    def slope(self, z: Array, y: Array) -> Array: ...
    def encode(self, labels: np.ndarray) -> np.ndarray: ...


@record
class Logistic:
    """loss(z, y) = log(1 + exp(-y z)), labels y in {-1, +1}; labels in {0, 1} are read as {-1, +1}."""

    ridge: float = nonnegative(default=0.0)
    curvature: ClassVar[float] = 0.25

    def value(self, z: Array, y: Array) -> Array:
        return jnp.logaddexp(0.0, -y * z)

    def slope(self, z: Array, y: Array) -> Array:
        return -y * jax.nn.sigmoid(-y * z)

    def encode(self, labels: np.ndarray) -> np.ndarray:
        found = np.unique(labels)
        if np.isin(found, (-1, 1)).all():
            return labels
        if np.isin(found, (0, 1)).all():
            return 2 * labels - 1
        shown = ", ".join(f"{v:g}" for v in found[:6]) + (", ..." if found.size > 6 else "")
        raise InputError(
            f"Logistic needs labels in {{-1, +1}} or {{0, 1}}; found {shown}. "
            "Recode the two classes, or use losses.Squared for a numeric outcome."
        )


@record
class Squared:
    """loss(z, y) = (z - y)^2 / 2."""

    ridge: float = nonnegative(default=0.0)
    curvature: ClassVar[float] = 1.0

    def value(self, z: Array, y: Array) -> Array:
        return 0.5 * (z - y) ** 2

    def slope(self, z: Array, y: Array) -> Array:
        return z - y

    def encode(self, labels: np.ndarray) -> np.ndarray:
        return labels
