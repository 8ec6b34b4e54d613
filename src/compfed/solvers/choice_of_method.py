"""Which method a search runs, and the step that certifies what it finds. At the server."""

from __future__ import annotations

import numpy as np

import compfed.algorithms as alg
from compfed.algorithms.bounds import Bounds
from compfed.errors import InputError
from compfed.federation.task import Task
from compfed.problem.gradient_mapping import usable


def chosen(asked: str | type[alg.Algorithm], bounds: Bounds, n: int) -> type[alg.Algorithm]:
    """The method asked for; "auto" is the one that takes the longer step per round over n sites.

    A round of AcceleratedDecoupledProx is a step of length min(tau, 4) / L_max, one of FISTA of length 1 / L: local
    steps are worth it unless one site is far steeper than f. With a single site there is no communication to save, and
    FISTA needs fewer gradients.
    """
    if asked == "auto":
        longer = bounds.corrected(1.0) * bounds.tau > 1.0 / bounds.L
        return alg.AcceleratedDecoupledProx if n > 1 and longer else alg.FISTA
    cls = alg.find(asked) if isinstance(asked, str) else asked
    if not (isinstance(cls, type) and issubclass(cls, alg.Algorithm)):
        raise InputError(f"algorithm must be a name such as 'DecoupledProx' or a class of algorithms; got {cls!r}.")
    return cls


def certificate_step(task: Task, L: np.ndarray) -> float:
    """1 / sum_i p_i L_i: the step of the gradient mapping that certifies a model; refuses what allows none."""
    return 1.0 / usable(float(task.weights @ L), task.regulariser)
