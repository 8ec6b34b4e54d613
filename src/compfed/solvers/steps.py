"""Step sizes from Lipschitz bounds, so that nobody has to tune; `scale` is the one knob left for those who do.

Here are the bounds of a problem; the rule of a method stands with the method (`Algorithm.suggested`).
"""

from __future__ import annotations

from typing import Any

import compfed.algorithms as alg
from compfed.algorithms.bounds import Bounds
from compfed.errors import InputError
from compfed.problem.gradient_mapping import usable
from compfed.problem.lazy_problem import LazyProblem
from compfed.problem.problem import Problem
from compfed.solvers.choice_of_method import automatic, named, of_first_order
from compfed.tools.checks import positive, whole


def bounds(problem: Problem, tau: int, at: Any = None) -> Bounds:
    """What a server would know: the L_i of the sites, or their curvature `at` a model where a loss has no bound."""
    if not isinstance(problem, Problem):
        some = ", such as some clients of it: problem.subset(range(100))" if isinstance(problem, LazyProblem) else ""
        raise InputError(f"step sizes need a compfed.Problem{some}; got {type(problem).__name__}.")
    unbounded = at is not None and problem.loss.curvature is None
    L = problem.curvature_at(at)[1] if unbounded else problem.client_lipschitz
    usable(float(problem.weights @ L), problem.regulariser)
    return Bounds.of(L, problem.weights, problem.strong_convexity, tau, problem.d)


def suggest(
    algorithm: str | type[alg.Algorithm], problem: Problem, tau: int = 5, scale: float = 1.0, at: Any = None
) -> Any:
    """The algorithm with step sizes that suit the problem; `scale` multiplies its main step.

    For a loss whose curvature has no bound (Poisson, `from_function`) the steps suit the neighbourhood of `at`.

    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)
    >>> trace = cf.simulate(problem, suggest("DecoupledProx", problem), 100, reference=cf.solve(problem))
    >>> bool(trace["optimality"][-1] < 1e-6)
    True
    """
    whole(tau, "tau", 1)
    positive(scale, "scale")
    found = bounds(problem, tau, at)
    auto = algorithm == "auto"
    method = automatic(problem, 1.0, of_first_order(found, problem.n)).method if auto else named(algorithm)
    return method.suggested(found, scale)
