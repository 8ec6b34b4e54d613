"""Survival at the server: baseline hazards, concordance, and a Cox model with one baseline for all sites, from sums at agreed times."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from compfed.errors import InputError
from compfed.estimators.programs.fit import FitOptions, Fitted, PreparedProblem, Relaxed, describe_sites, scaled
from compfed.estimators.programs.gap_and_uniqueness import non_unique_coefficients
from compfed.estimators.programs.scores import LinearModel, models_without
from compfed.federation.queries import AtRisk
from compfed.federation.queries.at_risk import MAX_COMMON
from compfed.federation.server.program import Federation, Program, Request
from compfed.federation.server.trial import Evaluated, Trial
from compfed.federation.spec import FederatedProblem, ObjectiveSpec
from compfed.losses import CoxPartialLikelihood
from compfed.losses.base import ignore_overflow, symmetric_matrix
from compfed.losses.lipschitz import gram
from compfed.problem_spec import safe_norm
from compfed.regularisers import Zero
from compfed.solvers.auto import make_search
from compfed.solvers.base import Start
from compfed.splits import cv_splits

# --- what is asked ---


def at_risk(
    objective: ObjectiveSpec, x: np.ndarray, grid: np.ndarray, groups: tuple[int, ...] = (), pairs: bool = False
) -> AtRisk:
    """Events and rows at risk at the times of a grid, of all rows."""
    return AtRisk(replace(objective, subset=None), x, grid, groups, pairs)


def ask_at_risk(query: AtRisk) -> Program[AtRisk.Reply]:
    """One message."""
    ((found,),) = yield [Request((query,))]
    return found


def pairs_of_folds(
    federation: Federation, options: FitOptions, alpha: float, objective: ObjectiveSpec, width: int, folds: int, seed: int
) -> Program[np.ndarray]:  # fmt: skip
    """Pairs of rows of a fold, in order, in reverse order and of the same risk, by the model without it; summed over folds."""
    if any(e.min_rows > 1 for e in federation.enrolments):
        raise InputError(
            f"cv={folds}: sites with a disclosure policy count pairs over all rows, not over those of a fold. Leave out cv: the "
            "concordance is then that of this model, which is optimistic on the rows of its fit."
        )
    everything = yield from describe_sites(federation, options)
    splits = cv_splits(folds, seed, everything.rows.tolist(), False)
    of_all = LinearModel(objective.loss, np.zeros((width, 1)), np.zeros(1), None, None)
    models = yield from models_without(federation, options, alpha, of_all, splits, everything)
    asked = [
        Request((AtRisk(objective, one.coef[:, 0], np.array([1.0]), pairs=True, subset=split),))
        for one, split in zip(models, splits, strict=True)
    ]
    found = yield asked
    return np.sum([one.pairs for (one,) in found], axis=0)


def cumulative_hazard(found: AtRisk.Reply) -> np.ndarray:
    """Breslow's estimate at the times of the grid, of a row of relative risk 1: sums of events over risks."""
    at, events = found.at_risk[0], found.events[0]
    return np.cumsum(np.divide(events, at, out=np.zeros_like(at), where=at > 0))


# --- one baseline for all sites ---


class CommonSums(NamedTuple):
    """The partial likelihood of all sites together at one model."""

    value: float
    gradient: np.ndarray
    terms: float
    hessian: np.ndarray


@ignore_overflow
def common_likelihood(found: AtRisk.Reply, ties: str, weight: float) -> CommonSums:
    """The loss of rows whose risk sets have all sites in them, from their sums at each time (the formulas of `losses.cox`)."""
    there = found.counts > 0
    n, d, S0, D0 = (part[there] for part in (found.counts, found.events[0], found.at_risk[0], found.died))
    S1, D1, S2, D2 = (part[there] for part in (found.first, found.died_first, found.second, found.died_second))
    width = found.first.shape[1]
    each = np.rint(n).astype(int) if ties == "efron" else np.ones(len(n), int)
    place, starts = np.repeat(np.arange(len(n)), each), np.cumsum(each) - each
    c = (np.arange(len(place)) - starts[place]) / each[place]
    mean, left = (d / each)[place], S0[place] - c * D0[place]
    alpha, beta = (np.bincount(place, mean * part / left, len(n)) for part in (1.0, c))
    squares = [np.bincount(place, mean * part * (S0[place] / left) ** 2, len(n)) for part in (1.0, c, c * c)]
    value = float(mean @ np.log(left) - found.event_risk[0])
    gradient = alpha @ S1 - beta @ D1 - found.event_rows
    U, V = S1 / S0[:, None], D1 / S0[:, None]
    crossed = U.T @ (V * squares[1][:, None])
    H = (
        symmetric_matrix(alpha @ S2 - beta @ D2, width)
        - gram(U, squares[0])
        + crossed
        + crossed.T
        - gram(V, squares[2])
    )
    terms = float(alpha @ np.linalg.norm(S1, axis=1) + np.linalg.norm(found.event_rows))
    return CommonSums(value / weight, gradient / weight, terms / weight, H / weight)


def fit_common(
    federation: Federation, options: FitOptions, alpha: float, grid: np.ndarray, ties: str
) -> Program[Fitted]:
    """The minimiser with one baseline hazard for all sites, on an agreed grid of times: one message for each trial."""
    if any(e.min_rows > 1 for e in federation.enrolments):
        raise InputError(
            "baseline='common' asks every site for a matrix at each time, and that of a time with one event is the row of the event: sites "
            "with a disclosure policy refuse it. Take baseline='site', R's strata(site), which asks for no time: where the sites have a "
            "common baseline, it estimates the same hazard ratios. Only sites without a policy (enforce = false) can take part otherwise."
        )
    summary = yield from describe_sites(federation, options)
    if summary.width > MAX_COMMON:
        raise InputError(
            f"baseline='common' is for at most {MAX_COMMON} columns, as every time has a matrix; there are {summary.width}. Take "
            "baseline='site'."
        )
    options = replace(options, family=options.family.with_columns(summary.columns, summary.width))
    scaling, spread = scaled(options, summary, None)
    loss = CoxPartialLikelihood(ties=ties)
    options.family.loss(summary.labels)  # refuses labels without an event
    spec = FederatedProblem(
        objective=ObjectiveSpec(loss, scaling), weighting=options.weighting, regulariser=Zero(), weights=summary.weights,
        names=federation.names, numbers=tuple(range(len(federation.names))), sizes=np.maximum(summary.rows, 1),
        width=summary.width,
    )  # fmt: skip
    everywhere, weight = np.arange(spec.d, dtype=np.int32), float(summary.totals.sum())

    def request(x: np.ndarray) -> Request:
        return Request((AtRisk(spec.objective, x, grid, second=True),))

    def evaluated(x: np.ndarray, found: AtRisk.Reply) -> Evaluated:
        at = common_likelihood(found, ties, weight)
        return Evaluated(x, at.value, at.gradient, at.terms, everywhere, at.hessian)

    null = np.zeros(spec.d)
    ((found,),) = yield [request(null)]
    if not found.counts.any():
        raise InputError("no event is at or before the last of times; give later ones.")
    at = evaluated(null, found)
    L = max(float(np.trace(at.H)), 1e-300)  # pyright: ignore[reportArgumentType]  # it has one
    start = Start(null, L, L, safe_norm(at.gradient), at, upper_bound=True)
    prepared = PreparedProblem(options, spec, scaling, spread, start, summary)
    search = make_search(prepared.at(alpha), replace(options.search, algorithm="ProximalNewton"), start)
    while search.under_way:
        trial: Trial = search.trial
        sums = yield [request(trial.x)]
        search.observe(evaluated(trial.x, sums[0][0]), sums[0].cost, asked=True)
    minimum = search.solution
    assert minimum is not None
    others = non_unique_coefficients(prepared.at(alpha), minimum)
    return Fitted(prepared, minimum, None, others, Relaxed(minimum))
