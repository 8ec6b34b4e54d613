"""What the server makes of f(x) and grad f(x) with its own g: the objective, and how far x is from the minimiser."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.linalg import get_blas_funcs

from compfed.errors import InputError
from compfed.problem.regularisers import Regulariser, largest_step
from compfed.problem.regularisers.form import form_of
from compfed.tools.precision import precision
from compfed.tools.programs import compiled

(_norm,) = get_blas_funcs(("nrm2",), dtype=np.float64)


def length(v: np.ndarray) -> float:
    """||v||, also where its square would be too large or too small for a number."""
    return float(_norm(np.ravel(np.asarray(v, float)))) if np.size(v) else 0.0


class AtPoint(NamedTuple):
    """F(x), and (x - prox_{step g}(x - step grad f(x))) / step, which is zero exactly at the minimiser."""

    objective: float
    mapping: np.ndarray

    @property
    def norm(self) -> float:
        return length(self.mapping)


def at_point(g: Regulariser, x: np.ndarray, value: float, gradient: np.ndarray, step: float) -> AtPoint:
    """From f(x) = value and grad f(x) = gradient. Nothing is compiled where g acts on single coefficients or groups."""
    form = form_of(g, x.size) if x.dtype == np.float64 else None
    if form is not None:
        return AtPoint(float(value) + form.value(x), form.mapping(x, gradient, step))
    with precision(x.dtype):
        penalty, mapping = _penalty_and_mapping(g, jnp.asarray(x), jnp.asarray(gradient), step)
        return AtPoint(float(value) + float(penalty), np.asarray(mapping))


@compiled
def _penalty_and_mapping(g: Regulariser, x: Array, gradient: Array, step: float) -> tuple[Array, Array]:
    return g(x), (x - g.prox(x - step * gradient, step)) / step


def usable(L: float, g: Regulariser) -> float:
    """L, if steps of length 1/L can be taken: it is a positive number, and the prox of g allows that length."""
    if not 0 < L < np.inf:
        raise InputError(
            f"the gradient of this problem has Lipschitz constant {L}: its features are all zero, or so large that "
            "their squares overflow. Rescale them."
        )
    limit = float(largest_step(g))
    if limit <= 1.0 / L:
        raise InputError(
            f"{type(g).__name__} is weakly convex: its prox needs steps below {limit:.3g}, and here 1/L = {1.0 / L:.3g}. "
            "Enlarge its gamma, or scale the features up."
        )
    return float(L)
