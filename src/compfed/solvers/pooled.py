"""The centralised minimiser x*, certified by its gradient mapping."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed.errors import InputError
from compfed.problem.losses import Loss
from compfed.problem.measures import gradients
from compfed.problem.padded_rows import Store
from compfed.problem.problem import Problem
from compfed.problem.regularisers import Regulariser
from compfed.tools.checks import whole
from compfed.tools.precision import precision
from compfed.tools.programs import compiled


@dataclass(frozen=True)
class Solution:
    """x*, and how good it is. Usable wherever a vector is: np.asarray(solution) is x."""

    x: np.ndarray
    objective: float
    gradient_mapping: float  # norm of the gradient mapping at x
    iterations: int
    converged: bool  # did the gradient mapping reach rounding level?

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.x, dtype=dtype) if copy or dtype else self.x

    def __repr__(self) -> str:
        state = "converged" if self.converged else "NOT converged"
        return (
            f"Solution({state}: gradient mapping {self.gradient_mapping:.1e} after {self.iterations} iterations, "
            f"objective {self.objective:.12g}, {np.count_nonzero(self.x)} of {self.x.size} coefficients non-zero)"
        )


def solve(problem: Problem, max_iterations: int = 100_000) -> Solution:
    """Minimise F over pooled data by restarted FISTA until the gradient mapping is at rounding level.

    Always in float64, whatever the problem's own precision. Says what it reached, and warns when that is not enough.

    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> cf.solve(cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)).converged
    True
    """
    if not isinstance(problem, Problem):
        raise InputError(f"solve needs a compfed.Problem; got {type(problem).__name__}.")
    whole(max_iterations, "max_iterations", 1)
    problem = problem.astype("float64")
    with precision(problem.dtype):
        x, _, iterations = _restarted_fista(
            problem.loss, problem.regulariser, problem.store, problem.start, 1.0 / problem.lipschitz, max_iterations
        )
    x = np.asarray(x)
    if not np.isfinite(x).all():
        raise InputError(
            f"solve diverged: the curvature of {type(problem.loss).__name__} has no bound, and the step that suits the "
            "start is too long elsewhere. Use compfed.minimise, which adapts it, or scale features and labels down."
        )
    reached = float(np.linalg.norm(problem.gradient_mapping(x)))
    # Rounding of L x and of the sums in the gradient, with a margin for long sums.
    rounding = 100 * np.finfo(float).eps * (problem.lipschitz * np.linalg.norm(x) + np.linalg.norm(problem.gradient(x)))
    converged = reached <= max(rounding, 1e-14)
    if not converged:
        warnings.warn(
            f"solve stopped after {int(iterations)} iterations with gradient mapping {reached:.1e} "
            f"(rounding level is {rounding:.1e}). Give more max_iterations, or add a little ridge to the loss.",
            stacklevel=2,
        )
    return Solution(x, problem.objective(x), reached, int(iterations), bool(converged))


@compiled
def _restarted_fista(loss: Loss, g: Regulariser, data: Store, x0: Array, step: float, max_iterations: int):
    """(best x seen, its gradient mapping norm, iterations). Stops when 300 iterations bring nothing better."""

    def mapping(y: Array) -> tuple[Array, Array]:
        x = g.prox(y - step * gradients(loss, data, y[None])[0], step)
        return x, jnp.linalg.norm(y - x) / step

    def iterate(carry):
        x, y, t, best, best_norm, since, k = carry
        new, norm = mapping(y)  # certifies y, so y is what is remembered
        better = norm < best_norm
        best, since = jnp.where(better, y, best), jnp.where(better, 0, since + 1)
        overshot = (y - new) @ (new - x) > 0
        t_new = jnp.where(overshot, 1.0, 0.5 * (1.0 + jnp.sqrt(1.0 + 4.0 * t * t)))
        beta = jnp.where(overshot, 0.0, (t - 1.0) / t_new)
        return new, new + beta * (new - x), t_new, best, jnp.minimum(norm, best_norm), since, k + 1

    x0 = g.prox(x0, step)
    start = (x0, x0, jnp.ones(()), x0, jnp.full((), jnp.inf), 0, 0)
    _, _, _, best, norm, _, k = jax.lax.while_loop(
        lambda c: (c[5] < 300) & (c[6] < max_iterations) & (c[4] > 0), iterate, start
    )
    # One more proximal step: never further from x*, and it puts exact zeros where g asks for them.
    return mapping(best)[0], norm, k
