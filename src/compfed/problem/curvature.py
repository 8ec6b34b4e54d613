"""Largest eigenvalues of second derivatives: of a Gram matrix, and of any function by products with its Hessian."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.sparse.linalg import svds

GRAM_WIDTH = 300  # up to this many rows or columns A^T A is formed; beyond, products with vectors are cheaper


def gram(A: Any, weight: Any) -> Any:
    """A^T diag(weight) A, of NumPy or of JAX."""
    return (A.T * weight) @ A


def largest_eigenvalue(features: Sequence[np.ndarray], weights: Sequence[np.ndarray]) -> float:
    """The largest eigenvalue of sum_i A_i^T diag(w_i) A_i, w_i >= 0, in float64; infinite where it overflows."""
    parts = [(np.asarray(A, float), np.asarray(w, float)) for A, w in zip(features, weights, strict=True)]
    rows, width = sum(len(A) for A, _ in parts), parts[0][0].shape[1]
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow is named by who asks for the constant
        if width <= min(rows, GRAM_WIDTH):
            return _top(np.sum([gram(A, w) for A, w in parts], axis=0))
        root = np.concatenate([A * np.sqrt(w)[:, None] for A, w in parts])
        if rows <= GRAM_WIDTH:
            return _top(root @ root.T)
        largest = np.abs(root).max()
        if not 0 < largest < np.inf:  # the search needs a start that A does not map to zero
            return 0.0 if largest == 0 else np.inf
        scale = np.ldexp(1.0, np.frexp(largest)[1])  # a power of two, so that dividing by it rounds nothing
        return float((scale * svds(root / scale, k=1, return_singular_vectors=False, rng=0)[0]) ** 2)


def _top(matrix: np.ndarray) -> float:
    return float(np.linalg.eigvalsh(matrix)[-1]) if np.isfinite(matrix).all() else np.inf


def steepest(gradient: Callable[[Array], Array], x: Array) -> Array:
    """The largest eigenvalue, in size, of the derivative at x of a gradient."""
    start = jax.random.normal(jax.random.key(0), (x.size,), x.dtype)
    return _power_iteration(lambda v: jax.jvp(gradient, (x,), (v,))[1], start)


def _power_iteration(apply: Callable[[Array], Array], v: Array) -> Array:
    """The eigenvalue of largest size of a symmetric linear map, to a relative change of 1e-10."""
    tol = jnp.maximum(1e-10, 4 * jnp.finfo(v.dtype).eps)

    def step(carry):
        v, top, _, k = carry
        w = apply(v)
        new = jnp.linalg.norm(w)
        return w / jnp.where(new > 0, new, 1.0), new, jnp.abs(new - top) > tol * new, k + 1

    start = (v / jnp.linalg.norm(v), jnp.zeros((), v.dtype), True, 0)
    return jax.lax.while_loop(lambda c: c[2] & (c[3] < 5000), step, start)[1]
