"""A trial point of a second-order solver, and the sum of the sites' evaluations of f there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from compfed.federation.queries import Evaluate, Lipschitz
from compfed.federation.queries.lipschitz import largest_lipschitz
from compfed.federation.server.program import Request
from compfed.federation.spec import FederatedProblem
from compfed.losses.base import ignore_overflow


class Trial(NamedTuple):
    """Where f is to be evaluated, and on which coordinates its Hessian is wanted; None for no Hessian."""

    x: np.ndarray
    W: np.ndarray | None = None


class Evaluated(NamedTuple):
    """f at a model: sums over all sites, weighted."""

    x: np.ndarray
    value: float
    gradient: np.ndarray
    terms: float  # size of the terms of the gradient, before they cancel
    W: np.ndarray | None = None  # where the Hessian is known
    H: np.ndarray | None = None
    L: float | None = None  # sum_i p_i L_i there, where the loss has no bound on its curvature
    L_max: float | None = None  # and a bound on the largest L_i

    def without_hessian(self) -> Evaluated:
        return self._replace(W=None, H=None)


def evaluate_request(spec: FederatedProblem, trial: Trial) -> Request:
    """The request for value and gradient at a trial, and the Hessian on W unless that is empty."""
    coords = trial.W if trial.W is not None and len(trial.W) else None
    return Request((Evaluate(spec.objective, trial.x[None], coords),), weights=spec.weights, weighting=spec.weighting)


@ignore_overflow
def evaluation(spec: FederatedProblem, trial: Trial, summed: Evaluate.Reply, model: int = 0) -> Evaluated:
    """One model of the sum of the replies to `Evaluate`."""
    H = np.zeros((0, 0)) if trial.W is not None and not len(trial.W) else None
    if summed.hessian is not None and trial.W is not None:
        H = spec.loss.unpack_hessian(summed.hessian[model], trial.W) + float(spec.loss.ridge) * np.eye(len(trial.W))
    return Evaluated(
        trial.x, float(summed.value[model]), summed.gradient[model], float(summed.terms[model]), trial.W, H
    )


def lipschitz_bounds(spec: FederatedProblem, summed: Lipschitz.Reply) -> tuple[float, float]:
    """(sum_i p_i L_i, a bound on max_i L_i) from the sum of the replies to `Lipschitz`.

    No L_i is above the sum divided by its own weight, and none above the last bin that is not empty.
    """
    L = float(summed.L)
    L_max = L / float(np.min(spec.weights[spec.weights > 0]))
    return L, L_max if summed.counts is None else max(L, min(L_max, largest_lipschitz(summed.counts)))
