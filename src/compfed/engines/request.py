"""What was asked of an engine, checked: one clear error before any work is done."""

from __future__ import annotations

from typing import Any

import numpy as np

from compfed.algorithms.base import Algorithm
from compfed.engines.prepared_algorithm import ready
from compfed.engines.recorder import Run
from compfed.errors import InputError
from compfed.problem.problem import Problem
from compfed.tools.checks import whole
from compfed.trace import Trace


def checked(
    problem: Problem,
    algorithm: Algorithm,
    rounds: int,
    *,
    batch_size: int | None,
    participants: int | None,
    record_every: int,
    seed: int,
    x0: Any,
    reference: Any,
    resume: Trace | None,
) -> Run:
    """The request, or one clear error before any work is done."""
    if not isinstance(problem, Problem):
        raise InputError(f"the first argument must be a compfed.Problem; got {type(problem).__name__}.")
    if not isinstance(algorithm, Algorithm):
        ready(algorithm, problem, problem.n)  # says what is wrong with it
    rounds = whole(rounds, "rounds", 0)
    record_every = whole(record_every, "record_every", 1)
    for name, value in (("rounds", rounds), ("record_every", record_every)):
        if value >= 2**31:
            raise InputError(f"{name}={value} must be below 2**31: rounds are counted in 32 bits.")
    seed = whole(seed, "seed", 0)
    if seed >= 2**32:
        raise InputError(f"seed={seed} must be below 2**32: that is what a key is made from.")
    batch_size, k = _checked_batch(problem, batch_size), _checked_participants(problem, participants)
    if resume is not None:
        _check_resume(resume, problem, algorithm, x0)
    return Run(
        problem=problem,
        algorithm=ready(algorithm, problem, k),
        rounds=rounds,
        batch_size=batch_size,
        participants=k,
        record_every=record_every,
        seed=seed,
        x0=problem.start if x0 is None else problem.point(x0, "x0"),
        reference=None if reference is None else problem.point(reference, "reference"),
        resume=resume,
    )


def _checked_batch(problem: Problem, batch_size: Any) -> int | None:
    """At most as many rows as the smallest site has; None for all of them."""
    if batch_size is None:
        return None
    batch_size = whole(batch_size, "batch_size", 1, " Leave it out for full gradients.")
    smallest = int(problem.sites.sizes.argmin())
    if batch_size > problem.sites.sizes[smallest]:
        raise InputError(
            f"batch_size={batch_size} is larger than the smallest site, {problem.sites.names[smallest]!r} with "
            f"{problem.sites.sizes[smallest]} rows. Use at most that, or leave it out for full gradients."
        )
    return batch_size


def _checked_participants(problem: Problem, participants: Any) -> int:
    """Clients per round: all of them unless told otherwise."""
    k = problem.n if participants is None else whole(participants, "participants", 1)
    if k > problem.n:
        raise InputError(f"participants={k} is more than the {problem.n} clients there are.")
    idle = np.flatnonzero(problem.weights == 0)
    if idle.size and k < problem.n:
        raise InputError(
            f"site {problem.sites.names[idle[0]]!r} has weight 0, and a sample of participants={k} could consist of such "
            "sites only. Leave the site out."
        )
    return k


def _check_resume(resume: Trace, problem: Problem, algorithm: Algorithm, x0: Any) -> None:
    if not isinstance(resume, Trace):
        raise InputError(f"resume must be a Trace (Trace.load reads a saved one); got {type(resume).__name__}.")
    if resume.state is None:
        raise InputError("resume: this trace has no state to go on from.")
    if x0 is not None:
        raise InputError("give x0 (a new start) or resume (going on), not both.")
    before, now = resume.provenance.get("algorithm", {}).get("name"), type(algorithm).__name__
    if before != now:
        raise InputError(f"resume: the trace is of {before}, the algorithm is {now}; they must be the same.")
    if resume.provenance["dtype"] != problem.dtype.name:
        was = resume.provenance["dtype"]
        raise InputError(
            f"resume: the trace is {was}, the problem is {problem.dtype.name}; use problem.astype({was!r})."
        )
    if resume.x.shape != (problem.d,) or resume.provenance["problem"]["clients"] != problem.n:
        raise InputError(
            f"resume: the trace belongs to a problem of another shape than this one ({problem.n} x {problem.d})."
        )
