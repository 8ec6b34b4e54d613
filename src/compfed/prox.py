"""Elementary proximal operators and projections, each written once for NumPy and JAX arrays.

    prox_{t g}(x) = argmin_u  t g(u) + ||u - x||^2 / 2

The regularisers are built from these functions, and so are the solvers that take a penalty coordinate by coordinate. A
result belongs to the library of the arguments: NumPy arrays give NumPy arrays, and nothing is compiled for them, except by
`total_variation_prox`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.optimize import isotonic_regression

from compfed._utils.array_namespace import Numbers, cast_like, is_jax, namespace
from compfed._utils.compilation import jit, precision
from compfed.errors import InputError


def soft_threshold(x: Numbers, threshold: Numbers) -> Numbers:
    """sign(x) max(|x| - threshold, 0): the prox of threshold * ||.||_1.

    Parameters
    ----------
    x : array
    threshold : number or array of the shape of x
        At least 0.

    Returns
    -------
    array of the library and the dtype of x

    Examples
    --------
    >>> soft_threshold(np.array([-2.0, 0.5, 1.5]), 1.0)
    array([-1. ,  0. ,  0.5])
    """
    xp = namespace(x, threshold)
    return xp.sign(x) * xp.maximum(xp.abs(x) - cast_like(threshold, x), 0.0)


def soft_threshold_number(x: float, threshold: float) -> float:
    """soft_threshold of a single number, without the overhead of NumPy: for loops over coordinates."""
    return x - min(max(x, -threshold), threshold)


def group_norms(x: Numbers, group: np.ndarray, n_groups: int) -> Numbers:
    """||x_(group k)|| for k = 0, ..., n_groups - 1; `group` is the group of each coefficient, -1 (NumPy only) for none."""
    if is_jax(x):
        return jnp.sqrt(jax.ops.segment_sum(x * x, group, num_segments=n_groups))
    grouped = group >= 0
    squares = np.bincount(group[grouped], x[grouped] ** 2, minlength=n_groups)
    return np.sqrt(squares).astype(x.dtype if x.dtype.kind == "f" else float, copy=False)


def group_shrinkage(norm: Numbers, threshold: Numbers) -> Numbers:
    """(1 - threshold / norm)_+: the factor by which the prox of threshold * ||.|| shortens a vector of this norm."""
    xp = namespace(norm, threshold)
    return xp.where(norm > threshold, 1.0 - threshold / xp.where(norm > 0, norm, 1.0), 0.0)


def group_soft_threshold(x: Numbers, threshold: Numbers, group: np.ndarray, n_groups: int) -> Numbers:
    """Each group of coefficients times (1 - threshold_k / ||x_(group k)||)_+: the prox of sum_k threshold_k ||x_(group k)||.

    >>> group_soft_threshold(np.array([3.0, 4.0, 1.0]), np.array([1.0, 2.0]), np.array([0, 0, 1]), 2)
    array([2.4, 3.2, 0. ])
    """
    return x * group_shrinkage(group_norms(x, group, n_groups), threshold)[group]


def simplex_threshold(v: Numbers, radius: Numbers) -> Numbers:
    """The number w with sum_j max(v_j - w, 0) = radius; the largest v_j if radius = 0."""
    xp = namespace(v, radius)
    falling = -xp.sort(-v)
    k = xp.arange(1, v.size + 1, dtype=v.dtype)
    candidates = (xp.cumsum(falling) - radius) / k  # the threshold, if exactly the k largest entries exceed it
    exceeding = xp.maximum((falling > candidates).sum(), 1)
    return candidates[exceeding - 1]


def project_simplex(v: Numbers, radius: Numbers) -> Numbers:
    """The projection on {u >= 0, sum_j u_j = radius}.

    >>> project_simplex(np.array([2.0, 1.0, 0.0]), 2.0)
    array([1.5, 0.5, 0. ])
    """
    # A constant added to v does not change the projection. Subtracting the threshold first keeps the digits of entries
    # that exceed it by little.
    v = v - simplex_threshold(v, radius)
    return namespace(v).maximum(v - simplex_threshold(v, radius), 0.0)


def project_l1_ball(x: Numbers, radius: Numbers) -> Numbers:
    """The projection on {sum_j |u_j| <= radius}."""
    xp = namespace(x, radius)
    size = xp.abs(x)
    return xp.where(size.sum() > radius, xp.sign(x) * project_simplex(size, radius), x)


def project_l2_ball(x: Numbers, radius: Numbers) -> Numbers:
    """The projection on {||u|| <= radius}."""
    xp = namespace(x, radius)
    norm = xp.linalg.norm(x)
    return xp.where(norm > radius, x * (radius / xp.where(norm > 0, norm, 1.0)), x)


def max_norm_prox(x: Numbers, t: Numbers) -> Numbers:
    """The prox of t max_j |x_j|: by Moreau's identity x minus its projection on the L1 ball of radius t."""
    xp = namespace(x, t)
    level = xp.maximum(simplex_threshold(xp.abs(x), t), 0.0)
    return xp.clip(x, -level, level)


def as_matrix(x: Numbers, columns: int) -> Numbers:
    """The model matrix X = x.reshape(-1, columns)."""
    if x.size % columns:
        raise InputError(f"a model of {x.size} coefficients is not a matrix with columns={columns}: give a divisor.")
    return x.reshape(-1, columns)


def singular_values(x: Numbers, columns: int) -> Numbers:
    """The singular values of X = x.reshape(-1, columns)."""
    return namespace(x).linalg.svd(as_matrix(x, columns), compute_uv=False)


def map_singular_values(x: Numbers, columns: int, change: Callable[[Numbers], Numbers]) -> Numbers:
    """U diag(change(s)) V^T for X = U diag(s) V^T, as a vector. With a soft threshold it is the prox of the nuclear norm."""
    U, s, Vt = namespace(x).linalg.svd(as_matrix(x, columns), full_matrices=False)
    left = U * change(s)
    # By default some GPUs multiply float32 matrices with 10 bits.
    product = jnp.matmul(left, Vt, precision="highest") if is_jax(left) else left @ Vt
    return product.reshape(x.shape)


def sorted_l1_prox(x: Numbers, weights: Numbers) -> Numbers:
    """The prox of sum_k weights_k |x|_(k), with |x|_(1) >= |x|_(2) >= ... and weights that do not increase.

    The prox keeps the order of the sizes, so it is an isotonic regression of the sizes less their weights.
    """
    xp = namespace(x, weights)
    size = xp.abs(x)
    order = xp.argsort(-size)
    sizes = xp.maximum(isotonic_nonincreasing(size[order] - weights), 0.0)
    if xp is np:
        unsorted = np.empty_like(sizes)
        unsorted[order] = sizes
    else:
        unsorted = jnp.zeros_like(sizes).at[order].set(sizes)
    return xp.sign(x) * unsorted


def _sequential_on_cpu(f: Callable[..., Array]) -> Callable[..., Array]:
    """f with long data-dependent loops: on a CPU a `vmap` of it runs its members one after the other.

    In lockstep, as on a GPU, each iteration gathers from and scatters to every member. On a CPU that costs ten times the
    loops themselves.
    """
    one_by_one = jax.custom_batching.sequential_vmap(f)
    return functools.wraps(f)(lambda *args: jax.lax.platform_dependent(*args, cpu=one_by_one, default=f))


def isotonic_nonincreasing(v: Numbers) -> Numbers:
    """argmin over u_1 >= u_2 >= ... of ||u - v||^2, by pooling adjacent violators: O(d)."""
    if is_jax(v):
        return _pool_adjacent_violators(v)
    return isotonic_regression(v, increasing=False).x.astype(v.dtype, copy=False)


@_sequential_on_cpu
def _pool_adjacent_violators(v: Array) -> Array:
    """A stack holds the sum and the size of each block of equal entries.

    A new entry absorbs the blocks below it whose mean is not larger than its own.
    """
    # Sizes in the dtype of v, not int32, so that both stacks are one array.
    stack, top = jnp.zeros((v.size, 2), v.dtype), jnp.zeros((), jnp.int32)

    def push(carry: tuple[Array, Array], entry: Array) -> tuple[tuple[Array, Array], None]:
        stack, top = carry

        def violates(state: tuple[Array, Array]) -> Array:
            block, top = state
            below = stack[top - 1]
            return (top > 0) & (below[0] * block[1] <= block[0] * below[1])

        def absorb(state: tuple[Array, Array]) -> tuple[Array, Array]:
            block, top = state
            return block + stack[top - 1], top - 1

        block, top = jax.lax.while_loop(violates, absorb, (jnp.stack([entry, jnp.ones_like(entry)]), top))
        return (stack.at[top].set(block), top + 1), None

    (stack, top), _ = jax.lax.scan(push, (stack, top), v)
    used = jnp.arange(v.size) < top
    sizes = jnp.where(used, stack[:, 1], 0.0).astype(jnp.int32)
    means = stack[:, 0] / jnp.where(used, stack[:, 1], 1.0)
    return jnp.repeat(means, sizes, total_repeat_length=v.size)


def total_variation_prox(x: Numbers, t: Numbers) -> Numbers:
    """argmin_u ||u - x||^2 / 2 + t sum_j |u_{j+1} - u_j|, exactly and in O(d) (Johnson 2013).

    Reference: Johnson, "A dynamic programming algorithm for the fused lasso and L0-segmentation", 2013. NumPy arrays are
    compiled too: the recursion has no vectorised form.
    """
    if x.size < 2:
        return x
    if is_jax(x, t):
        return _total_variation(x, t)
    # Numbers now, even while something else is traced.
    with precision(x.dtype), jax.ensure_compile_time_eval():
        return np.asarray(_compiled_total_variation(x, cast_like(t, x)))


def _total_variation(x: Array, t: Array) -> Array:
    # From this strength on the answer is the mean; a larger one would only cost digits.
    enough = jnp.abs(jnp.cumsum(x - x.mean())).max()
    return fused_lasso_signal(x, jnp.minimum(cast_like(t, x), enough))


_compiled_total_variation = jit(_total_variation)


@_sequential_on_cpu
def fused_lasso_signal(y: Array, lam: Array) -> Array:
    """argmin_u ||u - y||^2 / 2 + lam sum_j |u_{j+1} - u_j|, by dynamic programming.

    With F_j(b) the least cost of u_1, ..., u_j given u_j = b, the recursion is
    F_{j+1}'(b) = (b - y_{j+1}) + clip(F_j'(b), -lam, lam), and backwards u_j = u_{j+1} clipped to [low_j, high_j],
    where F_j'(low_j) = -lam and F_j'(high_j) = lam. The clipped derivative is piecewise linear and increasing. It is
    kept as a list of knots (position, change of slope, change of intercept): left of all it is -lam, right of all
    +lam. Each step removes knots at the two ends and adds one at each end, so that 2 d knots are touched in all.
    """
    d = y.size
    knots = jnp.zeros((2 * d, 3), y.dtype)
    knots = knots.at[d - 1].set(jnp.stack([y[0] - lam, jnp.ones_like(lam), lam - y[0]]))
    knots = knots.at[d].set(jnp.stack([y[0] + lam, -jnp.ones_like(lam), lam + y[0]]))

    def ends(knots: Array, first: Array, last: Array, offset: Array) -> tuple[Array, Array, Array, Array]:
        """The lines (slope, intercept) on which b - offset + (knots passed) is 0, from the left and from the right.

        Without the -lam and +lam at the two ends, "reaches -lam" and "reaches +lam" both read "is 0". One loop serves
        both ends: with a loop for each, XLA copies all knots at every step and the work is no longer O(d). A few more
        operations here or in `forward` cost a factor of ten, because XLA then schedules them one by one.
        """

        def passing(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
            rising, i, falling, k = state
            left = (i <= k) & (rising[0] * knots[i, 0] + rising[1] <= 0)
            right = (i + left <= k) & (falling[0] * knots[k, 0] + falling[1] >= 0)  # no knot is passed from both ends
            return left, right

        def step(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
            (rising, i, falling, k), (left, right) = state, passing(state)
            rising = jnp.where(left, rising + knots[i, 1:], rising)
            falling = jnp.where(right, falling - knots[k, 1:], falling)
            return rising, i + left, falling, k - right

        line = jnp.stack([jnp.ones_like(offset), -offset])
        return jax.lax.while_loop(lambda state: jnp.any(jnp.stack(passing(state))), step, (line, first, line, last))

    def forward(
        carry: tuple[Array, Array, Array], y_j: Array
    ) -> tuple[tuple[Array, Array, Array], tuple[Array, Array]]:
        knots, first, last = carry
        rising, first, falling, last = ends(knots, first, last, y_j)
        low, high = -rising[1] / rising[0], -falling[1] / falling[0]
        knots = knots.at[first - 1].set(jnp.concatenate([low[None], rising]))
        knots = knots.at[last + 1].set(jnp.concatenate([high[None], -falling]))
        return (knots, first - 1, last + 1), (low, high)

    start = knots, jnp.asarray(d - 1, jnp.int32), jnp.asarray(d, jnp.int32)
    (knots, first, last), (low, high) = jax.lax.scan(forward, start, y[1:-1])
    line, *_ = ends(knots, first, last, y[-1] + lam)  # from the left, with -lam included: where F_d' is 0
    end = -line[1] / line[0]

    def backward(after: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        here = jnp.clip(after, *bounds)
        return here, here

    low, high = jnp.append(y[0] - lam, low), jnp.append(y[0] + lam, high)
    _, u = jax.lax.scan(backward, end, (low, high), reverse=True)
    return jnp.append(u, end)
