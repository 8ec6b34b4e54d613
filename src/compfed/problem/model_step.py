"""The step of a second-order method at the server, whatever the regulariser and whoever asks.

    u = argmin  <gradient, u - x> + (u - x)^T B (u - x) / 2 + g(u)

Given arrays of NumPy nothing is compiled, unless g is known by its prox alone. Inside a compiled program the search for u
is a call back to NumPy: it is a search with many turns, and the server does it once per round.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse.linalg import eigsh

from compfed._utils.array_namespace import Numbers, is_jax, namespace
from compfed._utils.compilation import compiled, hosted
from compfed._utils.precision import precision
from compfed.losses.lipschitz import GRAM_WIDTH
from compfed.problem.bfgs_matrix import Compact
from compfed.problem.quadratic_model import minimiser
from compfed.problem.working_set import ranked, working_set
from compfed.regularisers import Regulariser
from compfed.regularisers.coordinate_form import CoordinateForm, coordinate_form
from compfed.regularisers.matrices import turned

PROX_STEPS = 20_000  # of FISTA, at most
INEXACT = 1e-4  # of the first step, where the matrix is a guess and its minimiser need not be known to the last digit
FAR = 1e30  # stands for the value of g outside its domain: a state of the server is finite


# --- a trial, and whether to take it ---


def value_of(g: Regulariser, x: Numbers) -> Numbers:
    """g(x), or FAR."""
    form = None if is_jax(x) else coordinate_form(g, x.size)
    if form is not None and not is_jax(*form[:6]):
        return min(form.value(x), FAR)
    if is_jax(x):
        return jnp.minimum(g(x), jnp.asarray(FAR, x.dtype))
    with precision(x.dtype):
        return min(float(_value(g, x)), FAR)


_value = compiled(lambda g, x: g(x))


def descends(new: Numbers, old: Numbers, hoped: Numbers) -> Numbers:
    """Is F lower by a share of what the model hoped for, or the same to rounding? False for a NaN."""
    return new <= old + 1e-4 * hoped + 50 * np.finfo(namespace(new).asarray(new).dtype).eps * abs(old)


def either(condition: Numbers, one: Any, other: Any) -> Any:
    """One tree or the other, number by number where it is not known yet which."""
    if not is_jax(condition):
        return one if condition else other
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)


# --- the step ---


def on_working_set(g: Regulariser, x: Numbers, gradient: Numbers, H: Numbers, W: Numbers) -> Numbers:
    """u, of which only the coordinates W may differ from x; H is the matrix on W."""
    form = coordinate_form(g, x.size)
    if form is None:  # W is everything
        return by_prox(g, x, gradient, H, top(H))

    def search(x: np.ndarray, gradient: np.ndarray, H: np.ndarray, W: np.ndarray, *numbers: np.ndarray) -> np.ndarray:
        u, W = x.copy(), W.astype(int)
        u[W] = minimiser(CoordinateForm(*numbers, group=form.group).at(W), x[W], gradient[W], H)
        return u

    return hosted(search, x.size, x, gradient, H, W, *form[:-1])


def foreseen(gradient: Numbers, H: Numbers, W: Numbers, change: Numbers) -> Numbers:
    """The gradient after a change of x, as far as H knows: on the coordinates W."""
    more = H @ change[W]
    return gradient.at[W].add(more) if is_jax(gradient, H) else gradient + np.bincount(W, more, minlength=len(gradient))


def next_working_set(g: Regulariser, x: Numbers, gradient: Numbers, width: int) -> Numbers:
    """The coordinates to ask about at x: `width` of them in a program, at least so many where shapes are free."""
    form = coordinate_form(g, x.size)
    if form is None or width >= x.size:
        return namespace(x, gradient).arange(x.size, dtype=np.int32)
    if not is_jax(x, gradient, *form[:-1]):
        return working_set(form, x, gradient, width).astype(np.int32)

    def first(x: np.ndarray, gradient: np.ndarray, *numbers: np.ndarray) -> np.ndarray:
        return ranked(CoordinateForm(*numbers, group=form.group), x, gradient, width)

    return hosted(first, width, x, gradient, *form[:-1]).astype(np.int32)


def in_metric(
    g: Regulariser, x: Numbers, gradient: Numbers, S: Numbers, Y: Numbers, first: Numbers, even: bool = False
) -> Numbers:
    """u over all coordinates, with the matrix of limited-memory BFGS of the pairs (S, Y), which is never formed."""
    form = coordinate_form(g, x.size)
    if form is not None:

        def search(x, gradient, S, Y, first, *numbers: np.ndarray) -> np.ndarray:
            return minimiser(CoordinateForm(*numbers, group=form.group), x, gradient, Compact.of_pairs(S, Y, first))

        return hosted(search, x.size, x, gradient, S, Y, first, *form[:-1])
    few = turned(g, namespace(x, gradient, S, Y).concatenate([x[None], gradient[None], S, Y]))
    if few is not None:
        x, gradient, S, Y = few.given[0], few.given[1], few.given[2 : len(S) + 2], few.given[len(S) + 2 :]
        return few.back(in_metric(few.g, x, gradient, S, Y, first, even=True))  # in a basis no axis means anything
    size, columns = x.size, 2 * len(S)
    found = hosted(
        lambda *given: np.concatenate([part.ravel() for part in Compact.of_pairs(*given, even=even)]),
        size * (1 + columns) + columns,
        S,
        Y,
        first,
    )
    B = Compact(found[:size], found[size : size * (1 + columns)].reshape(size, columns), found[-columns:])
    R = namespace(found).linalg.qr(B.Q, mode="r")
    return by_prox(g, x, gradient, B, B.diagonal.max() + abs(top((-R * B.signs) @ R.T)), INEXACT)


def top(B: Numbers) -> Numbers:
    """The largest eigenvalue of a symmetric matrix; of a large one a little more, and never much less."""
    if is_jax(B) or len(B) <= GRAM_WIDTH:
        return namespace(B).linalg.eigvalsh(B)[-1]
    rough: Any = {"tol": 1e-3}
    start = np.random.default_rng(0).standard_normal(len(B))
    return 1.001 * float(eigsh(B, k=1, which="LA", v0=start, return_eigenvectors=False, **rough)[0])


def by_prox(g: Regulariser, x: Numbers, gradient: Numbers, B: Any, L: Numbers, share: float = 0.0) -> Numbers:
    """u by FISTA with restarts, for a g that is known by its prox alone; L bounds the eigenvalues of B.

    It ends when a step is at the level of rounding, or this `share` of the first one.
    """
    if is_jax(x, gradient):
        return _fista(g, x, gradient, B, L, share)
    with precision(x.dtype):
        return np.asarray(_compiled_fista(g, x, gradient, B, L, share))


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


_compiled_fista = compiled(_fista)
