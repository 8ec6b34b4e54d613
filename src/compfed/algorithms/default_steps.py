"""Default step sizes, from the Lipschitz bounds of a problem.

The rule of each method is its own class method `from_bounds`. `Bounds` in `base.py` has the formulas that the rules share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from compfed._utils.validation import check_int, check_numbers, check_positive
from compfed.algorithms.base import Algorithm, Bounds
from compfed.algorithms.registry import find
from compfed.errors import InputError
from compfed.problem_spec import check_lipschitz

if TYPE_CHECKING:
    from compfed.problem.problem import Problem

A = TypeVar("A", bound=Algorithm)


def lipschitz_bounds(problem: Problem, tau: int, at: ArrayLike | None = None, L: ArrayLike | None = None) -> Bounds:
    """The bounds a server would know: the L_i of the sites, or those given, or their curvature at a model."""
    if L is not None:
        given = check_numbers(L, "L")
        if given.shape not in ((), (problem.n,)) or not (np.isfinite(given).all() and (given > 0).all()):
            raise InputError(f"L={L!r:.80} must be a finite number > 0, or one for each of the {problem.n} sites.")
        each = np.broadcast_to(given, problem.n)
        check_lipschitz(float(problem.weights @ each), problem.regulariser)
        return Bounds.of(each, problem.weights, problem.strong_convexity, tau, problem.d)
    if not hasattr(problem, "client_lipschitz"):
        subset = ", such as some clients of it: problem.subset(range(100))" if hasattr(problem, "subset") else ""
        raise InputError(f"step sizes need a compfed.Problem{subset}; got {type(problem).__name__}.")
    bounded = problem.loss.curvature is not None
    if not bounded and at is None:
        raise InputError(
            f"the curvature of {type(problem.loss).__name__} has no bound, so no step is safe everywhere. Give L=..., a bound on the "
            "curvature of every f_i where the run will go, or at=x for steps that suit the neighbourhood of a model x, or set "
            "the steps yourself."
        )
    found = problem.client_lipschitz if bounded or at is None else problem.curvature_at(at)[1]
    check_lipschitz(float(problem.weights @ found), problem.regulariser)
    return Bounds.of(found, problem.weights, problem.strong_convexity, tau, problem.d)


def default_steps(
    algorithm: str | type[A], problem: Problem, tau: int = 5, scale: float = 1.0, at: ArrayLike | None = None,
    L: ArrayLike | None = None,
) -> A:  # fmt: skip
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
        For a loss whose curvature has no bound (Poisson, `from_function`): the steps suit the neighbourhood of this model, and
        follow from an estimate of the curvature there.
    L : float or array of shape (n,), optional
        A bound on the curvature of every f_i, or one for each site, in place of what the problem knows.

    Returns
    -------
    Algorithm
        The method with its steps set, ready for `simulate`.

    Raises
    ------
    InputError
        The method has no rule for its steps, or the loss has no bound and both `at` and `L` are missing.

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
    bounds = lipschitz_bounds(problem, tau, at, L)
    method = find(algorithm) if isinstance(algorithm, str) else algorithm
    if not (isinstance(method, type) and issubclass(method, Algorithm)):
        raise InputError(f"algorithm must be a name such as 'DecoupledProx' or a class of algorithms; got {method!r}.")
    return method.from_bounds(bounds, scale)  # pyright: ignore[reportReturnType]  # only the caller knows which class a name is
