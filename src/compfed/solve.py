"""`cf.solve_federated(problem)`: the federated minimiser over a problem whose sites are in this process.

The centralised minimiser x*, certified by its gradient mapping.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed._utils.compilation import jit
from compfed._utils.precision import precision
from compfed._utils.validation import check_callable, check_int, check_nonnegative
from compfed.algorithms import Algorithm
from compfed.errors import InputError
from compfed.federation.queries import Evaluate, Lipschitz
from compfed.federation.server.evaluation import Trial, evaluation, lipschitz_bounds
from compfed.federation.server.program import Federation, Program, Request, run_program
from compfed.federation.spec import FederatedProblem
from compfed.losses import Loss
from compfed.monitor import Progress
from compfed.problem.evaluation import gradients
from compfed.problem.local_dataset import PaddedDataset
from compfed.problem.problem import Problem
from compfed.problem_spec import safe_norm
from compfed.regularisers import Regulariser
from compfed.simulation.federation import Simulated
from compfed.simulation.plain import spec_of
from compfed.simulation.simulate import checked_tol
from compfed.solvers.auto import is_second_order, minimising, starting
from compfed.solvers.search import FederatedSolution, Search, Start


def solve_federated(
    problem: Problem,
    algorithm: str | Algorithm = "auto",
    *,
    tau: int = 5,
    tol: float = 1e-12,
    max_rounds: int = 20_000,
    x0: Any = None,
    scale: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    federation: Federation | None = None,
    seconds_per_round: float = 1.0,
) -> FederatedSolution:
    """Run rounds until the gradient mapping is at most `tol` times `scale`; no step size is asked for.

    - `algorithm`: "auto", the name of a method, or an instance with steps of your own. "auto" takes the method expected
      to cost the least, where a round costs `seconds_per_round` beside its bytes; `trace.provenance["choice"]` says why.
    - `x0`: the start of the method's own variable, as in `simulate`; the minimum does not depend on it.
    - `scale`: the norm of grad f at the start of the problem, unless given.
    - `federation`: who answers, if not the sites of the problem in this process, compiled.

    Always in double precision, whatever the problem's own: in single precision a gradient mapping of zero proves little.
    A step that turns out too long (the model blows up, or 500 rounds bring the objective no lower) is halved, and the
    run goes on from the best model so far; `notes` and a `StepSizeWarning` say so.

    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)
    >>> minimum = cf.solve_federated(problem)
    >>> minimum.converged, bool(np.allclose(minimum.x, cf.solve_pooled(problem).x, atol=1e-8))
    (True, True)
    """
    if not isinstance(problem, Problem):
        raise InputError(f"solve_federated needs a compfed.Problem; got {type(problem).__name__}.")
    given = None if scale is None else check_nonnegative(scale, "scale")
    search = Search(
        algorithm, check_int(tau, "tau", 1), checked_tol(tol), check_int(max_rounds, "max_rounds", 1), seed,
        check_callable(progress, "progress"), check_nonnegative(seconds_per_round, "seconds_per_round"),
    )  # fmt: skip
    problem = problem.astype("float64")
    start = problem.start if x0 is None else problem.point(x0, "x0")
    federation = Simulated.of(problem) if federation is None else federation
    if len(federation.names) != problem.n:
        raise InputError(
            f"the federation has {len(federation.names)} sites, the problem {problem.n}; they must be the same."
        )
    minimum, cost = run_program(federation, minimising_from(federation, spec_of(problem), search, start, given))
    return replace(minimum, communication=cost)


def minimising_from(
    federation: Federation, spec: FederatedProblem, search: Search, x0: np.ndarray, scale: float | None
) -> Program[FederatedSolution]:
    """One message for the Lipschitz constants and the scale, then rounds."""
    if scale is not None or np.array_equal(x0, spec.start):
        start = yield from starting(spec, search, x0, scale)
        return (yield from minimising(federation, spec, search, start))
    both = np.stack([x0, spec.start])  # where it starts, and where the scale is taken
    upper_bound = is_second_order(spec, search)
    queries = Lipschitz(spec.objective, x0, upper_bound), Evaluate(spec.objective, both)
    ((bound, summed),) = yield [Request(queries, weights=spec.weights)]
    at, scale = evaluation(spec, Trial(x0), summed), safe_norm(summed.gradient[1])
    start = Start(x0, *lipschitz_bounds(spec, bound), scale, at, upper_bound=upper_bound)
    return (yield from minimising(federation, spec, search, start))


@dataclass(frozen=True)
class PooledSolution:
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


def solve_pooled(problem: Problem, max_iterations: int = 100_000) -> PooledSolution:
    """Minimise F over pooled data by restarted FISTA until the gradient mapping is at rounding level.

    Always in float64, whatever the problem's own precision. Says what it reached, and warns when that is not enough.

    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> cf.solve_pooled(cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)).converged
    True
    """
    if not isinstance(problem, Problem):
        raise InputError(f"solve_pooled needs a compfed.Problem; got {type(problem).__name__}.")
    check_int(max_iterations, "max_iterations", 1)
    problem = problem.astype("float64")
    with precision(problem.dtype):
        x, _, iterations = _restarted_fista(
            problem.loss, problem.regulariser, problem.dataset, problem.start, 1.0 / problem.lipschitz, max_iterations
        )
    x = np.asarray(x)
    if not np.isfinite(x).all():
        raise InputError(
            f"solve_pooled diverged: the curvature of {type(problem.loss).__name__} has no bound, and the step that suits the "
            "start is too long elsewhere. Use compfed.solve_federated, which adapts it, or scale features and labels down."
        )
    reached = float(np.linalg.norm(problem.gradient_mapping(x)))
    # Rounding of L x and of the sums in the gradient, with a margin for long sums.
    rounding = 100 * np.finfo(float).eps * (problem.lipschitz * np.linalg.norm(x) + np.linalg.norm(problem.gradient(x)))
    converged = reached <= max(rounding, 1e-14)
    if not converged:
        warnings.warn(
            f"solve_pooled stopped after {int(iterations)} iterations with gradient mapping {reached:.1e} "
            f"(rounding level is {rounding:.1e}). Give more max_iterations, or add a little ridge to the loss.",
            stacklevel=2,
        )
    return PooledSolution(x, problem.objective(x), reached, int(iterations), bool(converged))


@jit
def _restarted_fista(loss: Loss, g: Regulariser, data: PaddedDataset, x0: Array, step: float, max_iterations: int):
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
