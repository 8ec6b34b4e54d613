"""What was asked of an engine, checked: one clear error before any work is done."""

from __future__ import annotations

from typing import Any

import numpy as np

from compfed.algorithms.base import Algorithm
from compfed.engines.prepared_algorithm import ready
from compfed.engines.recorder import Run
from compfed.engines.resuming import fitting
from compfed.errors import InputError
from compfed.problem.lazy_problem import LazyProblem
from compfed.problem.problem import Problem
from compfed.tools.checks import whole
from compfed.tools.sampling import SCHEMES, Scheme
from compfed.trace import Trace


def checked(
    problem: Problem | LazyProblem,
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
    sampling: Scheme | None = None,
    kind: type[Problem | LazyProblem] = Problem,
) -> Run:
    """The request, or one clear error before any work is done."""
    check_kind(problem, kind)
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
    prepared = ready(algorithm, problem, k, seed)
    return Run(
        problem=problem,
        algorithm=prepared,
        rounds=rounds,
        batch_size=batch_size,
        participants=k,
        record_every=record_every,
        seed=seed,
        x0=problem.start if x0 is None else problem.point(x0, "x0"),
        reference=None if reference is None else problem.point(reference, "reference"),
        resume=None if resume is None else fitting(resume, problem, prepared, x0),
        sampling=checked_sampling(sampling, type(prepared), problem.weights, k),
    )


def check_kind(problem: Any, kind: type[Problem | LazyProblem] = Problem) -> None:
    """Are the rows where the engine looks for them?"""
    if not isinstance(problem, kind):
        other = {LazyProblem: " Use simulate_cohorts.", Problem: " Use simulate."}.get(type(problem), "")
        raise InputError(f"the first argument must be a compfed.{kind.__name__}; got {type(problem).__name__}.{other}")


def _checked_batch(problem: Problem | LazyProblem, batch_size: Any) -> int | None:
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


def _checked_participants(problem: Problem | LazyProblem, participants: Any) -> int:
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


def checked_sampling(sampling: Any, method: type[Algorithm], weights: np.ndarray, k: int) -> Scheme | None:
    """How a sample of k clients stands for all: as asked for, or as the method prefers; None where all take part."""
    if sampling is not None and (not isinstance(sampling, str) or sampling not in SCHEMES):
        raise InputError(
            f"sampling={sampling!r} must be one of {', '.join(map(repr, SCHEMES))}, or None for the method's own."
        )
    if k == len(weights):
        return None
    own, name = method.schemes, method.__name__
    equal = np.ptp(weights) == 0  # then all schemes are the same
    if not own and sampling is None and not equal:
        raise InputError(
            f"{name} does not say how a sample of clients with unequal weights stands for all. Its server uses `mean` alone: "
            f"schemes = ('proportional', 'ratio') in the class, and 'uniform' too if answers are changes. It uses share * mean: "
            f"schemes = ('ratio',). For this run alone: sampling='proportional', 'uniform' or 'ratio'."
        )
    if own and sampling is not None and sampling not in own and not equal:
        raise InputError(
            f"sampling={sampling!r} does not suit {name}, whose weights or memory would no longer add up; it can run with "
            f"{' or '.join(map(repr, own))}. Leave sampling out for {own[0]!r}."
        )
    return sampling or (own[0] if own else "ratio")
