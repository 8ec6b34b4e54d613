"""`solve_federated` and `solve_pooled`: the minimiser of a problem whose rows are in this process."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array

from compfed._utils.compilation import jit, precision
from compfed._utils.html_table import html_table
from compfed._utils.validation import check_callable, check_int, check_nonnegative, check_positive
from compfed.algorithms import FISTA, Algorithm
from compfed.algorithms.fista import Restart
from compfed.errors import InputError
from compfed.federation.queries import Evaluate, Lipschitz
from compfed.federation.server.program import Federation, Program, Request, run_program
from compfed.federation.server.trial import Trial, evaluation, lipschitz_bounds
from compfed.federation.spec import FederatedProblem
from compfed.losses import Loss
from compfed.monitor import Progress
from compfed.problem.local_loss import gradients, values_and_gradients
from compfed.problem.padded_dataset import PaddedDataset
from compfed.problem.problem import Problem
from compfed.problem_spec import safe_norm
from compfed.regularisers import Regulariser
from compfed.simulation.local_federation import Simulated, rounds_over
from compfed.simulation.options import check_tol
from compfed.solvers.auto import choose, evaluate_start, rounds_and_bytes, solve
from compfed.solvers.base import FederatedSolution, Method, SearchOptions, SecondOrder, Start
from compfed.solvers.second_order import ProximalNewton
from compfed.stopping import check_certified

LONG = 2e6  # numbers in the rows, from which a pass over them takes a millisecond or more
REFERENCE = 1e-10  # norm of the gradient mapping of an x* over that of the start
MAX_IDLE = 300  # iterations that may bring nothing better, at first


def solve_federated(
    problem: Problem,
    algorithm: str | Method | Algorithm | SecondOrder = "auto",
    *,
    tau: int = 5,
    tol: float = 1e-12,
    max_rounds: int = 20_000,
    x0: npt.ArrayLike | None = None,
    scale: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    federation: Federation | None = None,
    seconds_per_round: float = 1.0,
) -> FederatedSolution:
    """Minimise F(x) = sum_i p_i f_i(x) + g(x) over sites, with nothing to tune.

    Rounds run until the norm of the gradient mapping is at most ``tol * scale``. The search is in double precision, whatever
    the problem's own: in single precision a gradient mapping of zero proves little.

    Parameters
    ----------
    problem : Problem
        Loss, regulariser and sites.
    algorithm : str, class or instance, default="auto"
        "auto", the name of a method (`compfed list algorithms`, "ProximalNewton", "ProximalBFGS"), its class, or an instance
        with steps of your own. "auto" takes the method that is expected to cost the least.
    tau : int, default=5
        Local steps per round, for methods that have them.
    tol : float, default=1e-12
        Stop when the norm of the gradient mapping is at most this share of `scale`.
    max_rounds : int, default=20_000
        Stop after so many rounds.
    x0 : array of shape (d,), optional
        Where the method's own variable starts, as in `simulate`. The minimum does not depend on it.
    scale : float, optional
        The norm of grad f at the start of the problem, unless given.
    seed : int, default=0
        Of methods that draw something.
    progress : callable, optional
        Called with the rounds done and the rounds in all.
    federation : Federation, optional
        The sites to ask. Unless given, the sites of the problem in this process, compiled.
    seconds_per_round : float, default=1.0
        Cost of a message beside its bytes, for "auto". ``trace.provenance["choice"]`` has the expected costs.

    Returns
    -------
    FederatedSolution
        The model, its certificate, its trace and its costs.

    Warns
    -----
    StepSizeWarning
        When a step proved too long (the model diverged, or 500 rounds brought the objective no lower). It is halved, and the
        run continues from the best model so far.

    See Also
    --------
    solve_pooled : the same minimum from the pooled rows, for comparison.

    Examples
    --------
    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)
    >>> solution = cf.solve_federated(problem)
    >>> solution.converged, bool(np.allclose(solution.x, cf.solve_pooled(problem).x, atol=1e-8))
    (True, True)
    """
    if not isinstance(problem, Problem):
        raise InputError(f"solve_federated needs a compfed.Problem; got {type(problem).__name__}.")
    given = None if scale is None else check_nonnegative(scale, "scale")
    search = SearchOptions(
        algorithm, check_int(tau, "tau", 1), check_tol(tol), check_int(max_rounds, "max_rounds", 1), seed,
        check_callable(progress, "progress"), check_nonnegative(seconds_per_round, "seconds_per_round"), rounds_over,
    )  # fmt: skip
    problem = problem.astype("float64")
    start = problem.start if x0 is None else problem.point(x0, "x0")
    sites: Federation = Simulated.of(problem) if federation is None else federation
    if len(sites.names) != problem.n:
        raise InputError(
            f"the federation has {len(sites.names)} sites, the problem {problem.n}; they must be the same."
        )
    solution, cost = run_program(sites, _solve_from(sites, FederatedProblem.of(problem), search, start, given))
    return replace(solution, communication=cost)


def _solve_from(
    federation: Federation, spec: FederatedProblem, search: SearchOptions, x0: np.ndarray, scale: float | None
) -> Program[FederatedSolution]:
    """One message for the Lipschitz bounds and the scale, then rounds."""
    if scale is not None or np.array_equal(x0, spec.start):
        start = yield from evaluate_start(spec, search, x0, scale)
        return (yield from solve(federation, spec, search, start))
    both = np.stack([x0, spec.start])  # where it starts, and where the scale is taken
    upper_bound = choose(spec, search).second_order
    queries = Lipschitz(spec.objective, x0, upper_bound), Evaluate(spec.objective, both)
    ((bound, summed),) = yield [Request(queries, weights=spec.weights, weighting=spec.weighting)]
    at, scale = evaluation(spec, Trial(x0), summed), safe_norm(summed.gradient[1])
    start = Start(x0, *lipschitz_bounds(spec, bound), scale, at, upper_bound=upper_bound)
    return (yield from solve(federation, spec, search, start))


@dataclass(frozen=True)
class PooledSolution:
    """The minimiser x* that `solve_pooled` found. ``np.asarray(solution)`` is x, so it serves wherever a vector does.

    Attributes
    ----------
    x : ndarray of shape (d,)
        The model.
    objective : float
        F(x).
    gradient_mapping : float
        Norm of the gradient mapping at x, which is zero at a minimiser.
    iterations : int
        Iterations of `method`.
    converged : bool
        Whether the gradient mapping of the pooled rows is zero to rounding.
    convex : bool or None
        Whether the problem is convex; None if that is not known. Unless True, x is stationary and may not be a minimum.
    method : str
        "FISTA" or "ProximalNewton". Whoever found x, the gradient mapping is taken anew from the pooled rows.

    Examples
    --------
    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> solution = cf.solve_pooled(cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites))
    >>> np.asarray(solution).shape
    (4,)
    """

    x: np.ndarray
    objective: float
    gradient_mapping: float
    iterations: int
    converged: bool
    convex: bool | None = True
    method: str = "FISTA"

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.x, dtype=dtype) if copy or dtype else self.x

    @property
    def claim(self) -> str:
        """What convergence shows: "minimum" of a convex problem, else "stationary point"."""
        return "minimum" if self.convex else "stationary point"

    def _repr_html_(self) -> str:
        rows = [
            ["method", self.method],
            ["iterations", f"{self.iterations}"],
            ["objective", f"{self.objective:.12g}"],
            ["gradient mapping", f"{self.gradient_mapping:.1e}"],
            ["coefficients that are not zero", f"{np.count_nonzero(self.x)} of {self.x.size}"],
        ]
        return html_table(f"Converged to a {self.claim}" if self.converged else "NOT converged", rows)

    def __repr__(self) -> str:
        state = f"converged to a {self.claim}" if self.converged else "NOT converged"
        return (
            f"PooledSolution({state}: gradient mapping {self.gradient_mapping:.1e} after {self.iterations} iterations of "
            f"{self.method}, objective {self.objective:.12g}, {np.count_nonzero(self.x)} of {self.x.size} coefficients non-zero)"
        )


def solve_pooled(problem: Problem, max_iterations: int = 100_000, L: float | None = None) -> PooledSolution:
    """Minimise F(x) = sum_i p_i f_i(x) + g(x) over the pooled rows, in double precision.

    A convex problem of at least two million numbers is solved by `ProximalNewton`, since passes over its rows cost most. All
    others, and those where that falls short, are solved by restarted FISTA. The certificate does not depend on the method:
    the gradient mapping at x, evaluated anew over the pooled rows.

    Parameters
    ----------
    problem : Problem
        Loss, regulariser and sites.
    max_iterations : int, default=100_000
        Stop after so many iterations. FISTA stops earlier when it gets no nearer, after 300 iterations and more.
    L : float, optional
        Lipschitz constant of the gradient of f, for the steps and the gradient mapping: `problem.lipschitz` unless given. For a
        loss without a bound, such as one from `from_function`, that is the curvature at its start, and FISTA begins there:
        it doubles L whenever f lies above its quadratic bound. A loss that is flat at its start has none there.

    Returns
    -------
    PooledSolution
        The model, and the gradient mapping that it reached.

    Warns
    -----
    UserWarning
        When the gradient mapping is not zero to rounding, with the reason and the way out.

    See Also
    --------
    solve_federated : the same minimum from sums over the sites.

    Examples
    --------
    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> cf.solve_pooled(cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)).converged
    True
    """
    if not isinstance(problem, Problem):
        raise InputError(f"solve_pooled needs a compfed.Problem; got {type(problem).__name__}.")
    check_int(max_iterations, "max_iterations", 1)
    problem = problem.astype("float64")
    L = problem.lipschitz if L is None else check_positive(L, "L")
    found = _by_newton(problem, max_iterations, L) if _passes_are_long(problem) else None
    if found is None or not found.converged:
        found = _by_fista(problem, problem.start if found is None else found.x, max_iterations, L)
    if not found.converged:
        warnings.warn(
            f"solve_pooled stopped after {found.iterations} iterations with gradient mapping {found.gradient_mapping:.1e} "
            f"(rounding level is {_rounding(problem, found.x, L):.1e}). {why_stopped(problem, found, max_iterations, L)}",
            stacklevel=2,
        )
    return found


def why_stopped(problem: Problem, found: PooledSolution, max_iterations: int = 100_000, L: float | None = None) -> str:
    """The reason why a search ended before its minimum, and the way out."""
    ridge = "" if problem.strong_convexity > 0 else ", or add a little ridge to the loss"
    spent = found.iterations >= max_iterations
    if problem.loss.curvature is None:
        start = "Its max_iterations are spent: more may help, unless" if spent else "More of them will not help: either"
        return (
            f"{start} the gradient of {type(problem.loss).__name__} jumps (at the kink of abs, max or relu: take a smooth function, as "
            "sqrt(z**2 + 1e-6) for abs(z)), or it is less precise than float64 (a cast to float32), or f has no minimum."
        )
    if spent:
        return f"Its max_iterations are spent: give more max_iterations{ridge}."
    if L is not None and problem.lipschitz > L:
        return f"L={L:g} is below the Lipschitz constant {problem.lipschitz:.6g}, so that the steps are too long: leave L out."
    return (
        f"More of them will not help: scale the features to similar sizes{ridge}, or use "
        "compfed.solve_federated(problem, 'ProximalNewton')."
    )


def _passes_are_long(problem: Problem) -> bool:
    """Whether a pass over the rows takes so long that few passes matter, and second-order steps are possible."""
    return problem.dataset.A.size >= LONG and ProximalNewton in rounds_and_bytes(FederatedProblem.of(problem), FISTA)


def _by_newton(problem: Problem, most: int, L: float) -> PooledSolution | None:
    """The end of a search with second derivatives; None where it leaves the numbers' range."""
    found = solve_federated(problem, "ProximalNewton", tol=1e-15, max_rounds=most)
    return _certified(problem, found.x, found.rounds, "ProximalNewton", L) if np.isfinite(found.x).all() else None


def _by_fista(problem: Problem, x0: np.ndarray, most: int, L: float) -> PooledSolution:
    """FISTA, again from the best point with twice as many idle iterations, as long as that at least halves the gradient mapping."""
    loss, g, step, max_idle, done, last = problem.loss, problem.regulariser, 1.0 / L, MAX_IDLE, 0, np.inf
    with precision(problem.dtype):
        x = g.prox(jnp.asarray(x0), step)
    while True:
        with precision(problem.dtype):
            x, norm, iterations, step = _restarted_fista(
                loss, g, problem.dataset, x, step, most - done, max_idle, backtrack=loss.curvature is None
            )
        done, norm, step = done + int(iterations), float(norm), float(step)
        if not np.isfinite(np.asarray(x)).all():
            raise InputError(
                f"solve_pooled diverged: the curvature of {type(loss).__name__} has no bound, and the step that suits the "
                "start is too long elsewhere. Use compfed.solve_federated, which adapts it, or scale features and labels down."
            )
        found = _certified(problem, np.asarray(x), done, "FISTA", L)
        if found.converged or done >= most or not norm < 0.5 * last:
            return found
        last, max_idle = norm, 2 * max_idle


def _certified(problem: Problem, x: np.ndarray, iterations: int, method: str, L: float) -> PooledSolution:
    """x with its gradient mapping over the pooled rows."""
    L = _scale_at(problem, x, L)
    reached = float(np.linalg.norm(problem.gradient_mapping(x, 1.0 / L)))
    converged = reached <= max(_rounding(problem, x, L), 1e-14)
    return PooledSolution(x, problem.objective(x), reached, iterations, converged, problem.convex, method)


def _scale_at(problem: Problem, x: np.ndarray, L: float) -> float:
    """L, or the curvature at x if that is larger and the loss has no bound on it: L is of the start then."""
    curvature = problem.curvature_at(x)[0] if problem.loss.curvature is None else L
    return max(L, curvature) if np.isfinite(curvature) else L


def _rounding(problem: Problem, x: np.ndarray, L: float) -> float:
    """Rounding of L x and of the sums in the gradient, with a margin for long sums."""
    L = _scale_at(problem, x, L)
    return float(100 * np.finfo(float).eps * (L * np.linalg.norm(x) + np.linalg.norm(problem.gradient(x))))


def check_reference(problem: Problem, x_star: npt.ArrayLike) -> np.ndarray:
    """x* as a vector, if its certificate holds: that of a solution, or for a plain vector its gradient mapping."""
    x = problem.point(check_certified(x_star), "x_star")
    if not isinstance(x_star, (PooledSolution, FederatedSolution)):
        exact = problem.astype("float64")
        reached, start = (float(np.linalg.norm(exact.gradient_mapping(point))) for point in (x, exact.start))
        if reached > max(REFERENCE * start, _rounding(exact, x, exact.lipschitz)):
            raise InputError(
                f"x_star has a gradient mapping of norm {reached:.1e}, that of the start is {start:.1e}: it must be at most "
                f"{REFERENCE:g} of that, or distances to it mean nothing. Use x_star=cf.solve_pooled(problem), or rank by "
                "criterion='objective'."
            )
    return x


@jit(static_argnames="backtrack")
def _restarted_fista(
    loss: Loss,
    g: Regulariser,
    data: PaddedDataset,
    x0: Array,
    step: Array | float,
    max_iterations: int,
    max_idle: int,
    backtrack: bool,
):
    """(best x, its gradient mapping norm, iterations, step). Stops when `max_idle` iterations bring nothing better.

    With `backtrack` a step is halved until f(x+) <= f(y) + <grad f(y), x+ - y> + ||x+ - y||^2 / (2 step) (Beck, Teboulle 2009),
    and stays so. Norms of gradient mappings of different steps do not compare, so the search for the best y begins anew then.
    """

    def value_and_gradient(y: Array) -> tuple[Array, Array]:
        values, grads = values_and_gradients(loss, data, y[None])
        return values[0] + 0.5 * loss.ridge * (y @ y), grads[0] + loss.ridge * y

    def mapping(y: Array, step: Array) -> tuple[Array, Array]:
        x = g.prox(y - step * gradients(loss, data, y[None])[0], step)
        return x, jnp.linalg.norm(y - x) / step

    def shortened(y: Array, step: Array) -> tuple[Array, Array]:
        """The step at y that the quadratic bound allows, and whether f is a number at y."""
        value, gradient = value_and_gradient(y)
        usable = jnp.isfinite(value) & jnp.isfinite(gradient).all()

        def too_long(step: Array) -> Array:
            move = g.prox(y - step * gradient, step) - y
            bound = value + gradient @ move + move @ move / (2.0 * step)
            return usable & (step > 1e-100) & ~(value_and_gradient(y + move)[0] <= bound + 1e-12 * jnp.abs(value))

        return jax.lax.while_loop(too_long, lambda step: 0.5 * step, step), usable

    def iterate(carry):
        x, y, t, best, best_norm, since, k, step = carry
        usable = True
        if backtrack:
            shorter, usable = shortened(y, step)
            best_norm, step = jnp.where(shorter < step, jnp.inf, best_norm), shorter
        new, norm = mapping(y, step)  # it certifies y, so y is remembered
        if backtrack:  # where the extrapolation leaves the numbers' range, the next one begins at x
            new, norm = jnp.where(usable, new, x), jnp.where(usable, norm, jnp.inf)
        better = norm < best_norm
        best, since = jnp.where(better, y, best), jnp.where(better, 0, since + 1)
        t, beta = Restart()(t, y, x, new)
        return new, new + beta * (new - x), t, best, jnp.minimum(norm, best_norm), since, k + 1, step

    start = (x0, x0, jnp.ones(()), x0, jnp.full((), jnp.inf), 0, 0, jnp.asarray(step, x0.dtype))
    _, _, _, best, norm, _, k, step = jax.lax.while_loop(
        lambda c: (c[5] < max_idle) & (c[6] < max_iterations) & (c[4] > 0), iterate, start
    )
    # One more proximal step: never further from x*, and it puts exact zeros where g asks for them.
    return mapping(best, step)[0], norm, k, step
