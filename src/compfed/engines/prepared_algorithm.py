"""An algorithm as it will run on a problem, or one clear error before the first round. Reads no row."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from compfed.algorithms.base import Algorithm
from compfed.algorithms.contract import check_contract
from compfed.engines.costs import largest_prox_step
from compfed.engines.recorder import Described
from compfed.errors import InputError, RunWarning
from compfed.problem.regularisers import largest_step


def ready(algorithm: Any, problem: Described, participants: int, seed: int = 0) -> Algorithm:
    """The algorithm with its choices made for this run; its stages fit together, and its steps suit the prox."""
    if not isinstance(algorithm, Algorithm):
        got = f"{algorithm.__name__} (the class)" if isinstance(algorithm, type) else repr(algorithm)
        raise InputError(f"algorithm must be an instance such as cf.algorithms.DecoupledProx(eta=1.0); got {got}.")
    prepared = algorithm.seeded(seed).prepared(problem, participants)
    check_contract(prepared, problem.d, problem.dtype, problem.regulariser)
    limit = float(largest_step(problem.regulariser))
    if limit < np.inf and (used := largest_prox_step(prepared)) >= limit:
        raise InputError(
            f"{type(algorithm).__name__} takes the prox of {type(problem.regulariser).__name__} with steps up to "
            f"{used:.3g}; a weakly convex regulariser needs steps below {limit:.3g}. Reduce eta (or tau, eta_g), or "
            "enlarge its gamma."
        )
    if problem.dtype == np.float32 and prepared.integrates_rounding():
        said = _drifts(type(algorithm).__name__, participants < problem.n)
        warnings.warn(said, RunWarning, stacklevel=4)  # where simulate was called
    return prepared


def _drifts(name: str, sampled: bool) -> str:
    way_out = "let every client take part (participants=None)" if sampled else "leave upload out"
    return (
        f"{name} in float32 with the upload 'model': rounding errors of the corrections are kept and add up, and the model "
        f"drifts away from the minimiser (up to 1e-3 after 20,000 rounds). Use problem.astype('float64'), or {way_out}."
    )
