"""Default step sizes, from the Lipschitz bounds of a problem.

The rule of each method is its own class method `from_bounds`. `Bounds` in `base.py` has the formulas that the rules share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from numpy.typing import ArrayLike

from compfed._utils.validation import check_int, check_positive
from compfed.algorithms.base import Algorithm, Bounds
from compfed.algorithms.registry import find
from compfed.errors import InputError
from compfed.problem_spec import check_lipschitz

if TYPE_CHECKING:
    from compfed.problem.problem import Problem

A = TypeVar("A", bound=Algorithm)


def lipschitz_bounds(problem: Problem, tau: int, at: ArrayLike | None = None) -> Bounds:
    """The bounds a server would know: the L_i of the sites, or their curvature at a model where the loss has no bound."""
    if not hasattr(problem, "client_lipschitz"):
        subset = ", such as some clients of it: problem.subset(range(100))" if hasattr(problem, "subset") else ""
        raise InputError(f"step sizes need a compfed.Problem{subset}; got {type(problem).__name__}.")
    bounded = at is None or problem.loss.curvature is not None
    L = problem.client_lipschitz if bounded or at is None else problem.curvature_at(at)[1]
    check_lipschitz(float(problem.weights @ L), problem.regulariser)
    return Bounds.of(L, problem.weights, problem.strong_convexity, tau, problem.d)


def default_steps(
    algorithm: str | type[A], problem: Problem, tau: int = 5, scale: float = 1.0, at: ArrayLike | None = None
) -> A:
    """An algorithm with step sizes from the Lipschitz bounds of a problem.

    For instance eta = min(1, 4 / tau) / max_i L_i for the drift-corrected methods; each method has its own rule.

    Parameters
    ----------
    algorithm : str or class
        The name of a method, such as "DecoupledProx", or its class.
    problem : Problem
        The problem to be solved.
    tau : int, default=5
        Local steps per round.
    scale : float, default=1.0
        Multiplies the main step.
    at : array of shape (d,), optional
        For a loss whose curvature has no bound (Poisson, `from_function`): the steps suit the neighbourhood of this model.

    Returns
    -------
    Algorithm
        The method with its steps set, ready for `simulate`.

    Raises
    ------
    InputError
        The method has no rule for its steps, or the loss has no bound and `at` is missing.

    Examples
    --------
    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)
    >>> algorithm = cf.algorithms.default_steps("DecoupledProx", problem)
    >>> trace = cf.simulate(problem, algorithm, 100, x_star=cf.solve_pooled(problem))
    >>> bool(trace["optimality"][-1] < 1e-6)
    True
    """
    check_int(tau, "tau", 1)
    check_positive(scale, "scale")
    bounds = lipschitz_bounds(problem, tau, at)
    method = find(algorithm) if isinstance(algorithm, str) else algorithm
    if not (isinstance(method, type) and issubclass(method, Algorithm)):
        raise InputError(f"algorithm must be a name such as 'DecoupledProx' or a class of algorithms; got {method!r}.")
    return method.from_bounds(bounds, scale)  # pyright: ignore[reportReturnType]  # only the caller knows which class a name is
