"""Largest eigenvalues of second derivatives: of a Gram matrix, and of any function by products with its Hessian."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.sparse.linalg import LinearOperator, eigsh

from compfed._utils.arrays import block_ranges

# Up to this many columns, or rows, A^T A or A A^T is formed; beyond, products with vectors are cheaper,
GRAM_WIDTH = 300
# unless there are so many more rows than columns that finding its eigenvalue costs little beside reading A again and again.
GRAM_OF_MANY, TIMES = 1000, 20
CHUNK = 2**14  # rows of which a product is made at a time


def gram(A: Any, weight: Any) -> Any:
    """A^T diag(weight) A, of NumPy or of JAX; weight >= 0."""
    if isinstance(A, np.ndarray) and isinstance(weight, np.ndarray):
        root = A * np.sqrt(weight)[:, None]
        return root.T @ root  # BLAS sees that both factors are one, and does half the work
    return (A.T * weight) @ A


def largest_eigenvalue(features: Sequence[Any], weights: Sequence[np.ndarray]) -> float:
    """The largest eigenvalue of sum_i A_i^T diag(w_i) A_i, w_i >= 0, in float64; infinite where it overflows.

    The A_i are arrays, or know products with vectors and `largest` (`SparseRows`).
    """
    parts = _joined([(A, np.asarray(w, float)) for A, w in zip(features, weights, strict=True)])
    width, rows = parts[0][0].shape[1], sum(len(w) for _, w in parts)
    small = min(rows, width) <= GRAM_WIDTH or (width <= GRAM_OF_MANY and rows >= TIMES * width)
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow is named by who asks for the constant
        if small and all(isinstance(A, np.ndarray) for A, _ in parts):
            return _top(_smaller_gram(parts, rows < width))
        parts = [(_double(A), w) for A, w in parts]
        largest = max(_largest(A) * np.sqrt(w.max(initial=0.0)) for A, w in parts)
        if not 0 < largest < np.inf:  # the search needs a start that A does not map to zero
            return 0.0 if largest == 0 else np.inf
        scale = np.ldexp(1.0, np.frexp(largest)[1])  # a power of two, so that dividing by it rounds nothing
        roots = [np.sqrt(w) / scale for _, w in parts]
        return float(scale**2 * _lanczos([A for A, _ in parts], roots))


def largest_eigenvalues(features: Sequence[Any], weights: Sequence[np.ndarray]) -> np.ndarray:
    """The largest eigenvalue of A_i^T diag(w_i) A_i, one for each i: small ones of about one size many at a time."""
    rows = np.array([len(w) for w in weights])
    dense = np.array([isinstance(A, np.ndarray) for A in features])
    room = np.where(dense & (rows <= GRAM_WIDTH), np.exp2(np.ceil(np.log2(rows))), 0).astype(int)  # with padding
    tops = np.empty(len(rows))
    for i in np.flatnonzero(room == 0).tolist():
        tops[i] = largest_eigenvalue([features[i]], [weights[i]])
    for size in np.unique(room[room > 0]).tolist():
        members = np.flatnonzero(room == size)
        for a, b in block_ranges(np.full(len(members), size), features[0].shape[1]):
            who = members[a:b]
            tops[who] = _tops([features[i] for i in who], [weights[i] for i in who], rows[who], size)
    return tops


def _tops(features: Sequence[np.ndarray], weights: Sequence[np.ndarray], rows: np.ndarray, room: int) -> np.ndarray:
    """The same of arrays of at most `room` rows, filled up with rows of zeros, which change nothing."""
    A, w = np.concatenate(features).astype(float), np.concatenate(weights).astype(float)
    R = np.zeros((len(rows), room, A.shape[1]))
    with np.errstate(over="ignore", invalid="ignore"):
        R[np.arange(room) < rows[:, None]] = A * np.sqrt(w)[:, None]
        across = R.transpose(0, 2, 1)
        G = R @ across if room < A.shape[1] else across @ R
    finite = np.isfinite(G).all(axis=(1, 2))
    G[~finite] = 0.0
    return np.where(finite, np.linalg.eigvalsh(G)[:, -1], np.inf)


def _joined(parts: list[tuple[Any, np.ndarray]]) -> list[tuple[Any, np.ndarray]]:
    """The same rows in fewer parts: small ones are put together, so that many tiny sites are no many products."""
    large: list[Any] = []
    small: list[Any] = []
    for A, w in parts:
        (small if isinstance(A, np.ndarray) and len(w) < GRAM_WIDTH else large).append((A, w))
    before = np.cumsum([0, *(len(w) for _, w in small)])[:-1]
    for _, group in itertools.groupby(zip(before // GRAM_WIDTH, small, strict=True), key=lambda entry: entry[0]):
        members = [part for _, part in group]
        large.append(
            tuple(np.concatenate(arrays) for arrays in zip(*members, strict=True)) if members[1:] else members[0]
        )
    return large


def _smaller_gram(parts: Sequence[tuple[np.ndarray, np.ndarray]], few_rows: bool) -> np.ndarray:
    """R R^T, R = diag(sqrt(w)) A over all parts, where the rows are few, or R^T R: the eigenvalues that count are the same."""
    if not few_rows:
        chunks = ((A[k : k + CHUNK], w[k : k + CHUNK]) for A, w in parts for k in range(0, len(w), CHUNK))
        return functools.reduce(np.add, (gram(_double(A), w) for A, w in chunks))
    R = np.concatenate([_double(A) * np.sqrt(w)[:, None] for A, w in parts])
    return R @ R.T


def _lanczos(features: Sequence[Any], roots: Sequence[np.ndarray]) -> float:
    """The largest eigenvalue of R R^T, R = diag(roots) A over all parts, or of R^T R, whichever is smaller."""
    ends = np.cumsum([0, *map(len, roots)])
    rows, width = int(ends[-1]), features[0].shape[1]

    def down(v: np.ndarray) -> Any:  # R^T v
        return sum((v[a:b] * r) @ A for A, r, a, b in zip(features, roots, ends[:-1], ends[1:], strict=True))

    def up(v: np.ndarray) -> np.ndarray:  # R v
        return np.concatenate([r * (A @ v) for A, r in zip(features, roots, strict=True)])

    size, product = (rows, lambda v: up(down(v))) if rows < width else (width, lambda v: down(up(v)))
    if size == 1:
        return float(product(np.ones(1))[0])
    operator: Any = LinearOperator
    operator = operator((size, size), matvec=lambda v: product(v.ravel()), dtype=float)
    start = np.random.default_rng(0).standard_normal(size)
    accurate: Any = {"tol": 1e-7}  # the eigenvalue, to the square of this
    return float(eigsh(operator, k=1, which="LA", v0=start, return_eigenvectors=False, **accurate)[0])


def _double(A: Any) -> Any:
    return np.asarray(A, float) if isinstance(A, np.ndarray) else A


def _largest(A: Any) -> float:
    return float(max(A.max(), -A.min())) if isinstance(A, np.ndarray) else A.largest()


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
