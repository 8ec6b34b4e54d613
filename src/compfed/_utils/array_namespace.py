"""Formulas written once for NumPy and JAX: the functions come from the library of their arrays."""

from __future__ import annotations

import functools
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
import scipy.special
from jax.scipy.special import logsumexp as jax_logsumexp

Numbers: TypeAlias = Any  # a NumPy or JAX array, or a number; a result is of the same library
ArrayT = TypeVar("ArrayT", np.ndarray, jax.Array)  # the library of the result is that of the argument


def is_jax(*values: object) -> bool:
    """Whether one of the values is a JAX array or a tracer."""
    # NumPy first: whether something is a JAX array takes ten times as long to find out
    return any(not isinstance(value, (np.ndarray, float)) and isinstance(value, jax.Array) for value in values)


def namespace(*values: object) -> Any:
    """jax.numpy if one of the values is a JAX array, numpy otherwise."""
    return jnp if is_jax(*values) else np


def cast_like(value: Numbers, x: Numbers) -> Numbers:
    """The value in the floating-point dtype of x, so that a double-precision parameter does not promote the model."""
    if is_jax(value, x):
        return jnp.asarray(value, jnp.result_type(x, float))
    return np.asarray(value, x.dtype if x.dtype.kind == "f" else float)


MIN_SPARSITY = 32  # below one non-zero in this many, reading the few columns is faster than reading all


def product(A: Numbers, x: Numbers) -> Numbers:
    """A @ x. For a sparse x in NumPy only the columns of A with a non-zero coefficient are read."""
    if isinstance(A, np.ndarray) and isinstance(x, np.ndarray):
        used = np.flatnonzero(x if x.ndim == 1 else x.any(axis=1))
        if MIN_SPARSITY * len(used) <= len(x):
            return A[:, used] @ x[used]
    return A @ x


def sigmoid(z: Numbers) -> Numbers:
    """1 / (1 + exp(-z))."""
    return jax.nn.sigmoid(z) if is_jax(z) else scipy.special.expit(z)


def log_gamma(x: Numbers) -> Numbers:
    """log Gamma(x)."""
    return jax.scipy.special.gammaln(x) if is_jax(x) else scipy.special.gammaln(x)


def softplus(z: Numbers) -> Numbers:
    """log(1 + exp(z)).

    In JAX this is max(z, 0) + log(1 + u) with u = exp(-|z|). The logarithm is 2 artanh(s) with s = u / (2 + u) <= 1/3,
    whose series is exact to rounding after 18 terms. XLA vectorises polynomials on a CPU, but not logarithms.
    """
    if not is_jax(z):
        return np.maximum(z, 0.0) + np.log1p(
            np.exp(-np.abs(z))
        )  # faster than logaddexp, which has no vector instructions
    u = jnp.exp(-jnp.abs(z))
    s = u / (2.0 + u)
    series = functools.reduce(lambda rest, k: rest * (s * s) + 2.0 / (2 * k + 1), range(17, -1, -1), jnp.zeros_like(s))
    # JAX differentiates the two terms at 0 to 1 and -1/2, which add up to the derivative 1/2.
    return jnp.where(z >= 0.0, z, 0.0) + s * series


def logsumexp(z: Numbers) -> Numbers:
    """log sum_k exp(z_k), over the last axis."""
    return jax_logsumexp(z, axis=-1) if is_jax(z) else np.logaddexp.reduce(z, axis=-1)


def softmax(z: Numbers) -> Numbers:
    """exp(z_k) / sum_j exp(z_j), over the last axis."""
    return jax.nn.softmax(z, axis=-1) if is_jax(z) else scipy.special.softmax(z, axis=-1)
