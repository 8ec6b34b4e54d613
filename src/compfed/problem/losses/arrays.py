"""One formula for NumPy and for JAX: the functions that a formula needs, from the library its arrays come from."""

from __future__ import annotations

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.scipy.special import logsumexp as jax_logsumexp

Numbers: TypeAlias = Any  # an array of NumPy or of JAX; a result is of the same kind


def is_jax(*values: Any) -> bool:
    """Is one of the values an array of JAX, or one to be (a tracer)?"""
    return any(isinstance(value, jax.Array) for value in values)


def namespace(*values: Any) -> Any:
    """jax.numpy where one of the values is an array of JAX, numpy otherwise."""
    return jnp if is_jax(*values) else np


FEW = 32  # columns: one in so many is read faster alone than with the others


def product(A: Numbers, x: Numbers) -> Numbers:
    """A @ x. Of a sparse model in NumPy only the columns that count are read."""
    if isinstance(A, np.ndarray) and isinstance(x, np.ndarray):
        used = np.flatnonzero(x if x.ndim == 1 else x.any(axis=1))
        if FEW * len(used) <= len(x):
            return A[:, used] @ x[used]
    return A @ x


def sigmoid(z: Numbers) -> Numbers:
    """1 / (1 + exp(-z))."""
    return jax.nn.sigmoid(z) if is_jax(z) else scipy.special.expit(z)


def logsumexp(z: Numbers) -> Numbers:
    """log sum_k exp(z_k), over the last axis."""
    return jax_logsumexp(z, axis=-1) if is_jax(z) else np.logaddexp.reduce(z, axis=-1)


def softmax(z: Numbers) -> Numbers:
    """exp(z_k) / sum_j exp(z_j), over the last axis."""
    return jax.nn.softmax(z, axis=-1) if is_jax(z) else scipy.special.softmax(z, axis=-1)
