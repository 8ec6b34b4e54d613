"""Lipschitz constants of gradients: largest eigenvalues of Gram matrices, and of any Hessian by products with vectors."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.sparse.linalg import LinearOperator, eigsh

from compfed._utils.array_namespace import Numbers
from compfed._utils.arrays import block_ranges
from compfed._utils.threads import map_in_order

Rows: TypeAlias = Numbers  # an array, or `SparseRows`, which has products with vectors
Part: TypeAlias = tuple[Rows, np.ndarray]  # rows and their weights

# Up to this many columns, or rows, A^T A or A A^T is formed; beyond, products with vectors are cheaper.
GRAM_WIDTH = 300
# With this many times more rows than columns A^T A is formed up to a larger width: it reads A once, products read it often.
TALL, TALL_GRAM_WIDTH = 20, 1000
CHUNK = 2**14  # rows multiplied at a time
GRAM_ROWS = 2**12  # of a scaled copy, which stays in the cache
GRAM_CHUNK = 2**15  # rows whose sum a core forms by itself


def gram(A: Numbers, q: Numbers) -> Numbers:
    """A^T diag(q) A for NumPy or JAX arrays; q >= 0."""
    if not (isinstance(A, np.ndarray) and isinstance(q, np.ndarray)):
        return (A.T * q) @ A
    return _gram(A, np.sqrt(q), np.result_type(A, q))


def single_gram(A: np.ndarray, q: np.ndarray) -> np.ndarray:
    """A^T diag(q) A with products in single precision, unless they leave its range."""
    root = np.sqrt(q)
    largest = float(root.max(initial=0.0))
    if not 0 < largest < np.inf:
        return gram(A, q)
    with np.errstate(over="ignore", invalid="ignore"):
        found = _gram(A, root / largest, np.dtype(np.float32)).astype(float) * largest**2
    return found if np.isfinite(found).all() else gram(A, q)


def _gram(A: np.ndarray, root: np.ndarray, dtype: np.dtype) -> np.ndarray:
    def of_chunk(first: int) -> np.ndarray:
        last, total = min(first + GRAM_CHUNK, len(A)), np.zeros((A.shape[1],) * 2, dtype)
        for k in range(first, last, GRAM_ROWS):
            rows = slice(k, min(k + GRAM_ROWS, last))
            if root[rows].any():
                scaled = np.multiply(A[rows], root[rows, None], dtype=dtype, casting="same_kind")
                total += scaled.T @ scaled  # of equal factors, BLAS computes half of the product
        return total

    return functools.reduce(np.add, map_in_order(of_chunk, range(0, max(len(A), 1), GRAM_CHUNK)))


def largest_eigenvalue(features: Sequence[Rows], weights: Sequence[np.ndarray]) -> float:
    """The largest eigenvalue of sum_i A_i^T diag(w_i) A_i, w_i >= 0, in float64; infinite where it overflows.

    The A_i are arrays, or know products with vectors and `largest` (`SparseRows`).
    """
    parts = _joined([(A, np.asarray(w, float)) for A, w in zip(features, weights, strict=True)])
    width, rows = parts[0][0].shape[1], sum(len(w) for _, w in parts)
    small = min(rows, width) <= GRAM_WIDTH or (width <= TALL_GRAM_WIDTH and rows >= TALL * width)
    with np.errstate(over="ignore", invalid="ignore"):  # the caller reports an overflow
        if small and all(isinstance(A, np.ndarray) for A, _ in parts):
            smaller = _smaller_gram(parts, rows < width)
            return float(np.linalg.eigvalsh(smaller)[-1]) if np.isfinite(smaller).all() else np.inf
        parts = [(_double(A), w) for A, w in parts]
        largest = max(_largest(A) * np.sqrt(w.max(initial=0.0)) for A, w in parts)
        if not 0 < largest < np.inf:  # Lanczos needs a start that A does not map to zero
            return 0.0 if largest == 0 else np.inf
        scale = np.ldexp(1.0, np.frexp(largest)[1])  # a power of two, so that dividing by it rounds nothing
        roots = [np.sqrt(w) / scale for _, w in parts]
        return float(scale**2 * _lanczos([A for A, _ in parts], roots))


def largest_eigenvalues(features: Sequence[Rows], weights: Sequence[np.ndarray]) -> np.ndarray:
    """The largest eigenvalue of A_i^T diag(w_i) A_i for each i: small matrices of similar size are stacked."""
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
    """The largest eigenvalues for arrays of at most `room` rows, padded with zeros, which change nothing."""
    A, w = np.concatenate(features).astype(float), np.concatenate(weights).astype(float)
    R = np.zeros((len(rows), room, A.shape[1]))
    with np.errstate(over="ignore", invalid="ignore"):
        R[np.arange(room) < rows[:, None]] = A * np.sqrt(w)[:, None]
        across = R.transpose(0, 2, 1)
        G = R @ across if room < A.shape[1] else across @ R
    finite = np.isfinite(G).all(axis=(1, 2))
    G[~finite] = 0.0
    return np.where(finite, np.linalg.eigvalsh(G)[:, -1], np.inf)


def _joined(parts: list[Part]) -> list[Part]:
    """The same rows in fewer parts: small parts are joined, so that many tiny sites do not cost many products."""
    large, small = list[Part](), list[Part]()
    for A, w in parts:
        (small if isinstance(A, np.ndarray) and len(w) < GRAM_WIDTH else large).append((A, w))
    before = np.cumsum([0, *(len(w) for _, w in small)])[:-1]
    for _, group in itertools.groupby(zip(before // GRAM_WIDTH, small, strict=True), key=lambda entry: entry[0]):
        features, weights = zip(*(part for _, part in group), strict=True)
        large.append((np.concatenate(features), np.concatenate(weights)))
    return large


def _smaller_gram(parts: Sequence[tuple[np.ndarray, np.ndarray]], few_rows: bool) -> np.ndarray:
    """R R^T if there are few rows, else R^T R, for R = diag(sqrt(w)) A over all parts: both have the same largest eigenvalue."""
    if not few_rows:
        chunks = ((A[k : k + CHUNK], w[k : k + CHUNK]) for A, w in parts for k in range(0, len(w), CHUNK))
        return functools.reduce(np.add, (gram(_double(A), w) for A, w in chunks))
    R = np.concatenate([_double(A) * np.sqrt(w)[:, None] for A, w in parts])
    return R @ R.T


def _lanczos(features: Sequence[Rows], roots: Sequence[np.ndarray]) -> float:
    """The largest eigenvalue of R R^T, R = diag(roots) A over all parts, or of R^T R, whichever is smaller."""
    ends = np.cumsum([0, *map(len, roots)])
    rows, width = int(ends[-1]), features[0].shape[1]

    def transposed(v: np.ndarray) -> np.ndarray:  # R^T v
        parts = zip(features, roots, ends[:-1], ends[1:], strict=True)
        return functools.reduce(np.add, ((v[a:b] * r) @ A for A, r, a, b in parts))

    def forward(v: np.ndarray) -> np.ndarray:  # R v
        return np.concatenate([r * (A @ v) for A, r in zip(features, roots, strict=True)])

    size, product = (
        (rows, lambda v: forward(transposed(v))) if rows < width else (width, lambda v: transposed(forward(v)))
    )
    if size == 1:
        return float(product(np.ones(1))[0])
    operator = LinearOperator((size, size), matvec=lambda v: product(v.ravel()), dtype=float)  # pyright: ignore[reportCallIssue]  # its stub
    start = np.random.default_rng(0).standard_normal(size)
    # The error of the eigenvalue is the square of the tolerance.
    return float(eigsh(operator, k=1, which="LA", v0=start, return_eigenvectors=False, tol=1e-7)[0])  # pyright: ignore[reportArgumentType]


def _double(A: Rows) -> Rows:
    return np.asarray(A, float) if isinstance(A, np.ndarray) else A


def _largest(A: Rows) -> float:
    return float(max(A.max(), -A.min())) if isinstance(A, np.ndarray) else A.largest()


def largest_hessian_eigenvalue(gradient: Callable[[Array], Array], x: Array) -> Array:
    """The eigenvalue of largest size of the Hessian at x of a function with this gradient, by power iteration to 1e-10."""
    v = jax.random.normal(jax.random.key(0), (x.size,), x.dtype)
    tol = jnp.maximum(1e-10, 4 * jnp.finfo(v.dtype).eps)

    def step(carry):
        v, top, _, k = carry
        w = jax.jvp(gradient, (x,), (v,))[1]
        new = jnp.linalg.norm(w)
        return w / jnp.where(new > 0, new, 1.0), new, jnp.abs(new - top) > tol * new, k + 1

    start = (v / jnp.linalg.norm(v), jnp.zeros((), v.dtype), True, 0)
    return jax.lax.while_loop(lambda c: c[2] & (c[3] < 5000), step, start)[1]
