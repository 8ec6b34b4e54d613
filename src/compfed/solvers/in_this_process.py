"""`cf.minimise(problem)`: the federated minimiser over a problem whose sites are in this process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from compfed.algorithms import Algorithm
from compfed.engines.recorder import Progress
from compfed.engines.reference_engine import task_of
from compfed.engines.simulated_federation import Simulated
from compfed.engines.simulator import checked_tol
from compfed.errors import InputError
from compfed.federation.conversation import Federation, Request, Talk, converse
from compfed.federation.questions import Steepness, ValueAndGradient
from compfed.federation.task import Task
from compfed.problem import Problem
from compfed.problem.gradient_mapping import length
from compfed.solvers.by_questions import read
from compfed.solvers.federated import asks_questions, minimising, starting
from compfed.solvers.search import Minimum, Search, Start
from compfed.tools.checks import a_function, nonnegative, whole


def minimise(
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
) -> Minimum:
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
    >>> minimum = cf.minimise(problem)
    >>> minimum.converged, bool(np.allclose(minimum.x, cf.solve(problem).x, atol=1e-8))
    (True, True)
    """
    if not isinstance(problem, Problem):
        raise InputError(f"minimise needs a compfed.Problem; got {type(problem).__name__}.")
    given = None if scale is None else nonnegative(scale, "scale")
    search = Search(
        algorithm, whole(tau, "tau", 1), checked_tol(tol), whole(max_rounds, "max_rounds", 1), seed, a_function(progress, "progress"),
        nonnegative(seconds_per_round, "seconds_per_round"),
    )  # fmt: skip
    problem = problem.astype("float64")
    start = problem.start if x0 is None else problem.point(x0, "x0")
    federation = Simulated.of(problem) if federation is None else federation
    if len(federation.names) != problem.n:
        raise InputError(
            f"the federation has {len(federation.names)} sites, the problem {problem.n}; they must be the same."
        )
    minimum, cost = converse(federation, minimising_from(federation, task_of(problem), search, start, given))
    return replace(minimum, communication=cost)


def minimising_from(
    federation: Federation, task: Task, search: Search, x0: np.ndarray, scale: float | None
) -> Talk[Minimum]:
    """One message for the Lipschitz constants and the scale, then rounds."""
    if scale is not None or np.array_equal(x0, task.start):
        start = yield from starting(task, search, x0, scale)
        return (yield from minimising(federation, task, search, start))
    both = np.stack([x0, task.start])  # where it starts, and where the scale is taken
    rough = asks_questions(task, search)
    (answers,) = yield [Request((Steepness(task.view, x0, rough), ValueAndGradient(task.view, both)))]
    gradient = task.weights @ np.array([said.gradient[1] for _, said in answers])
    seen = read(task, x0, None, [said[1:] for said in answers])
    L = np.array([steep.L for steep, _ in answers])
    return (yield from minimising(federation, task, search, Start(x0, L, length(gradient), seen, rough=rough)))
