"""The step of a second-order solver: the minimiser of a quadratic model of f plus g, whatever the regulariser.

    u = argmin  <gradient, u - x> + (u - x)^T B (u - x) / 2 + g(u)

Where g has a coordinate form, everything is NumPy. A g that is known by its prox alone takes restarted FISTA, compiled.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse.linalg import eigsh

from compfed._utils.compilation import jit
from compfed._utils.precision import precision
from compfed.losses.lipschitz import GRAM_WIDTH
from compfed.regularisers import Regulariser
from compfed.regularisers.coordinate_form import coordinate_form
from compfed.regularisers.matrices import turned
from compfed.solvers.bfgs_matrix import Compact
from compfed.solvers.quadratic_model import minimiser
from compfed.solvers.working_set import working_set

PROX_STEPS = 20_000  # of FISTA, at most
INEXACT = 1e-4  # of the first step, where the matrix is a guess and its minimiser need not be known to the last digit
FAR = 1e30  # stands for the value of g outside its domain: the solver's state is finite


def value_of(g: Regulariser, x: np.ndarray) -> float:
    """g(x), or FAR."""
    form = coordinate_form(g, x.size)
    if form is not None:
        return min(form.value(x), FAR)
    with precision(x.dtype):
        return min(float(_value(g, x)), FAR)


_value = jit(lambda g, x: g(x))


def descends(new: float, old: float, hoped: float) -> bool:
    """Is F lower by a share of the model's decrease, or the same to rounding? False for a NaN."""
    return bool(new <= old + 1e-4 * hoped + 50 * np.finfo(float).eps * abs(old))


def on_working_set(g: Regulariser, x: np.ndarray, gradient: np.ndarray, H: np.ndarray, W: np.ndarray) -> np.ndarray:
    """u, of which only the coordinates W may differ from x; H is the matrix on W."""
    form = coordinate_form(g, x.size)
    if form is None:  # W is everything
        return by_prox(g, x, gradient, H, largest(H))
    u = x.copy()
    u[W] = minimiser(form.at(W), x[W], gradient[W], H)
    return u


def foreseen(gradient: np.ndarray, H: np.ndarray, W: np.ndarray, change: np.ndarray) -> np.ndarray:
    """The gradient after a change of x, as far as H knows: on the coordinates W."""
    return gradient + np.bincount(W, H @ change[W], minlength=len(gradient))


def next_working_set(g: Regulariser, x: np.ndarray, gradient: np.ndarray, width: int) -> np.ndarray:
    """The coordinates to ask about at x: at least `width` of them."""
    form = coordinate_form(g, x.size)
    if form is None or width >= x.size:
        return np.arange(x.size, dtype=np.int32)
    return working_set(form, x, gradient, width).astype(np.int32)


def in_metric(
    g: Regulariser, x: np.ndarray, gradient: np.ndarray, S: np.ndarray, Y: np.ndarray, first: float, even: bool = False
) -> np.ndarray:
    """u over all coordinates, with the matrix of limited-memory BFGS of the pairs (S, Y), which is never formed."""
    form = coordinate_form(g, x.size)
    if form is not None:
        return minimiser(form, x, gradient, Compact.of_pairs(S, Y, first))
    few = turned(g, np.concatenate([x[None], gradient[None], S, Y]))
    if few is not None:
        x, gradient, S, Y = few.given[0], few.given[1], few.given[2 : len(S) + 2], few.given[len(S) + 2 :]
        return few.back(in_metric(few.g, x, gradient, S, Y, first, even=True))  # in a basis no axis means anything
    B = Compact.of_pairs(S, Y, first, even=even)
    R = np.linalg.qr(B.Q, mode="r")
    return by_prox(g, x, gradient, B, B.diagonal.max() + abs(largest((-R * B.signs) @ R.T)), INEXACT)


def largest(B: np.ndarray) -> float:
    """The largest eigenvalue of a symmetric matrix; of a large one a little more, and never much less."""
    if len(B) <= GRAM_WIDTH:
        return float(np.linalg.eigvalsh(B)[-1])
    rough: Any = {"tol": 1e-3}
    start = np.random.default_rng(0).standard_normal(len(B))
    return 1.001 * float(eigsh(B, k=1, which="LA", v0=start, return_eigenvectors=False, **rough)[0])


def by_prox(
    g: Regulariser, x: np.ndarray, gradient: np.ndarray, B: np.ndarray | Compact, L: float, share: float = 0.0
) -> np.ndarray:
    """u by FISTA with restarts, for a g that is known by its prox alone; L bounds the eigenvalues of B.

    It ends when a step is at the level of rounding, or this `share` of the first one.
    """
    with precision(x.dtype):
        return np.asarray(_fista(g, x, gradient, B, L, share))


@jit
def _fista(g: Regulariser, x: Any, gradient: Any, B: Any, L: Any, share: float) -> Any:
    def apply(v: Any) -> Any:
        return B.apply(v) if isinstance(B, Compact) else B @ v

    eps = jnp.finfo(x.dtype).eps
    L = jnp.where(L > 0, L, 1.0)
    first = jnp.linalg.norm(g.prox(x - gradient / L, 1.0 / L) - x)
    small = share * first + eps * (jnp.linalg.norm(x) + jnp.linalg.norm(gradient) / L)

    def step(carry):
        u, y, t, _, k = carry
        new = g.prox(y - (gradient + apply(y - x)) / L, 1.0 / L)
        over = (y - new) @ (new - u) > 0
        following = jnp.where(over, 1.0, 0.5 * (1.0 + jnp.sqrt(1.0 + 4.0 * t * t)))
        beta = jnp.where(over, 0.0, (t - 1.0) / following)
        return new, new + beta * (new - u), following, jnp.linalg.norm(new - y), k + 1

    def going_on(carry):
        u, _, _, moved, k = carry
        return (moved > small + eps * jnp.linalg.norm(u)) & (k < PROX_STEPS)

    start = (x, x, jnp.ones((), x.dtype), jnp.full((), jnp.inf, x.dtype), 0)
    return jax.lax.while_loop(going_on, step, start)[0]
