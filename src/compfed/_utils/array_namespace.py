"""One formula for NumPy and for JAX: the functions that a formula needs, from the library its arrays come from."""

from __future__ import annotations

import functools
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


def softplus(z: Numbers) -> Numbers:
    """log(1 + exp(z)).

    In JAX as max(z, 0) + log(1 + u) with u = exp(-|z|), and log(1 + u) = 2 artanh(s) with s = u / (2 + u) <= 1/3 as its series, whose
    18 terms are exact to rounding: XLA works out logarithms one by one on a CPU, and polynomials eight at a time.
    """
    if not is_jax(z):
        return np.logaddexp(0.0, z)
    u = jnp.exp(-jnp.abs(z))
    s = u / (2.0 + u)
    series = functools.reduce(lambda rest, k: rest * (s * s) + 2.0 / (2 * k + 1), range(17, -1, -1), jnp.zeros_like(s))
    return (
        jnp.where(z >= 0.0, z, 0.0) + s * series
    )  # of whose two parts the slopes at 0 are 1 and -1/2, as JAX has them


def logsumexp(z: Numbers) -> Numbers:
    """log sum_k exp(z_k), over the last axis."""
    return jax_logsumexp(z, axis=-1) if is_jax(z) else np.logaddexp.reduce(z, axis=-1)


def softmax(z: Numbers) -> Numbers:
    """exp(z_k) / sum_j exp(z_j), over the last axis."""
    return jax.nn.softmax(z, axis=-1) if is_jax(z) else scipy.special.softmax(z, axis=-1)
