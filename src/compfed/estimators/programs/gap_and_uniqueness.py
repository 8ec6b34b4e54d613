"""How far a fit can be from the least objective (a duality gap), and whether its minimiser is unique.

The duality gap bounds F(x) - F(x*) without x*, for a linear model with an l1 or elastic-net penalty:

    min_x sum_l p_l loss(a_l^T x, y_l) + g(x)  =  max_theta - sum_l p_l loss*(theta_l, y_l) - g*(-A^T (p theta))

theta_l is the derivative of the loss of row l at x, shifted so that the free intercept is optimal and scaled into the domain
of g*. The shift can move a derivative at the end of the domain of loss* out of it. So theta is mixed with a little of the
derivatives at the null model, which are far from the end and need no shift. The gradient at x is A^T (p theta): the server
knows shift, mixture and scale, and one more query gives the sum of the conjugates there.

Uniqueness is decided at the server, from the last Hessian of a second-order search: near x, or at x where second derivatives
jump. Both are zero along the same directions, those that change no prediction of a row with curvature.

Let x minimise f + g, v = grad f(x), and
H d = 0 for the Hessian H of f at x. Along d the loss is a line of slope <v, d>, so that x + s d minimises too, for small
s > 0, exactly if g falls by as much as that line rises. Coefficient by coefficient this leaves to d

    a number of any sign where x_j is not zero and has no ridge: l1 |x_j| is a line there;
    a number of the sign of -v_j where x_j is zero and at its kink, |v_j| = l1_j (or at a bound, likewise);
    nothing elsewhere,

and for a group of coefficients one number along x_g, or along -v_g. Two columns that are the same, or one that is a sum of
others, make such a d (R. J. Tibshirani, "The lasso problem and uniqueness", Electronic Journal of Statistics 2013).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linprog

from compfed.federation.queries import Evaluate
from compfed.federation.server.program import Program, Request
from compfed.federation.server.trial import Trial, evaluation
from compfed.federation.spec import FeatureScaling, FederatedProblem
from compfed.losses import Softmax
from compfed.problem_spec import optimality_at
from compfed.regularisers import ElasticNet, OnBlock
from compfed.regularisers.coordinate_form import CoordinateForm, coordinate_form
from compfed.solvers.base import FederatedSolution, Start


class Certified(NamedTuple):
    """What more is known of a minimiser than the norm of its gradient mapping."""

    gap: float | None
    others: np.ndarray | None  # positions of coefficients that differ in another minimiser; None if not known


def certify_further(
    spec: FederatedProblem, minimum: FederatedSolution, scaling: FeatureScaling | None, null: Start | None = None
) -> Program[Certified]:
    """The duality gap, and whether the minimiser is unique; one message where either takes one.

    Without a scaling no gap is asked for. `null` is the model without features, and f there.
    """
    dual = None if scaling is None else _dual_point(spec, scaling, minimum, null)
    W = _missing_hessian(spec, minimum)
    if dual is None and W is None:
        return Certified(None, non_unique_coefficients(spec, minimum))
    query = Evaluate(spec.objective, minimum.x[None], W, None if dual is None else dual.at[None])
    ((summed,),) = yield [Request((query,), weights=spec.weights, weighting=spec.weighting)]
    if W is not None:
        H = evaluation(spec, Trial(minimum.x, W), summed).H
        minimum = replace(minimum, kept={"W": W, "H": H, "summed": H})  # pyright: ignore[reportArgumentType]
    gap = None if dual is None else _gap(spec, minimum, dual, float(summed.value[0]), float(summed.conjugate[0]))
    return Certified(gap, non_unique_coefficients(spec, minimum))


class _DualPoint(NamedTuple):
    at: np.ndarray  # (shift, stretch, mix, z) of `Evaluate`
    v: np.ndarray  # A^T (p theta), before it is stretched
    l1: np.ndarray
    l2: np.ndarray


def _dual_point(
    spec: FederatedProblem, scaling: FeatureScaling, minimum: FederatedSolution, null: Start | None
) -> _DualPoint | None:
    """The dual point of the module's docstring; None where none is known."""
    g = spec.regulariser.g if isinstance(spec.regulariser, OnBlock) else spec.regulariser
    loss: Any = spec.loss  # two of the losses have a conjugate
    if not isinstance(g, ElasticNet) or not hasattr(loss, "conjugate") or minimum.at is None:
        return None
    gradient = minimum.at.gradient
    shift = float(gradient[-1]) if scaling.intercept else 0.0  # sum_l p_l theta_l
    mix, at_null, v = 0.0, 0.0, gradient[: scaling.penalised]  # columns are centred: the shift does not change it
    if shift != 0 and null is not None and null.at is not None:
        at_null = float(null.x[-1])
        mix = 2 * abs(shift) / (2 * abs(shift) + loss.conjugate_margin(at_null))
        v = (1 - mix) * v + mix * null.at.gradient[: scaling.penalised]
    l1, l2 = np.broadcast_to(g.l1, v.shape), np.broadcast_to(g.l2, v.shape)
    hard = l2 == 0  # where g* is an indicator
    if (l1[hard] == 0).any():  # g* is finite at zero alone: scaling finds no other dual point
        return None
    excess = np.abs(v[hard]) > l1[hard]
    stretch = float(np.min(l1[hard][excess] / np.abs(v[hard][excess]), initial=1.0))
    return _DualPoint(np.array([shift, stretch, mix, at_null]), v, l1, l2)


def _gap(
    spec: FederatedProblem, minimum: FederatedSolution, dual_point: _DualPoint, value: float, conjugate: float
) -> float | None:
    """An upper bound on F(x) - F(x*): F(x) minus the dual value, and rounding."""
    (_, stretch, _, _), v, l1, l2 = dual_point
    hard = l2 == 0
    assert minimum.at is not None
    over = np.maximum(np.abs(stretch * v[~hard]) - l1[~hard], 0.0)
    dual = -conjugate - float(np.sum(over**2 / (2 * l2[~hard])))
    primal = optimality_at(spec.regulariser, minimum.x, value, minimum.at.gradient, 1.0).objective
    size = minimum.at.terms * (1.0 + float(np.abs(minimum.x).sum()))  # of the terms of both, before they cancel
    gap = max(primal - dual, 0.0) + 4 * np.finfo(float).eps * (abs(primal) + abs(dual) + size)
    return float(gap) if np.isfinite(gap) else None


KINK = 1e-8  # a zero coefficient is at its kink if the gradient is this near to it, relative to its size
FLAT = 20 * np.finfo(float).eps  # times their number: eigenvalues of H, relative to the largest, that are zero


def _missing_hessian(spec: FederatedProblem, minimum: FederatedSolution) -> np.ndarray | None:
    """The coordinates on which uniqueness needs a Hessian that the search does not have; None for none."""
    kept = minimum.kept or {}
    if not minimum.converged or "H" not in kept or "summed" in kept or spec.max_hessian_columns < np.inf:
        return None
    if spec.policy and not spec.loss_is_quadratic:  # a rounded one would not tell
        return None
    unknown = coordinate_form(spec.regulariser, spec.d) is None or isinstance(spec.loss, Softmax)
    return None if unknown else kept["W"]


def non_unique_coefficients(spec: FederatedProblem, minimum: FederatedSolution) -> np.ndarray | None:
    """Positions of coefficients that differ in another minimiser; empty if there is no other, None if not known.

    It is not known where the search did not converge or has no Hessian, where a coefficient at its kink was outside the
    working set, for penalties without a coordinate form, for the softmax, whose classes share a free constant, and where sites
    round their Hessians (a disclosure policy; those of squared losses have all digits).
    """
    if spec.policy and not spec.loss_is_quadratic:
        return None
    form = coordinate_form(spec.regulariser, spec.d)
    at, kept = minimum.at, minimum.kept or {}
    if form is None or at is None or "summed" not in kept or isinstance(spec.loss, Softmax):
        return None
    if not minimum.converged or form.l1[form.group >= 0].any():  # members of a group with an l1 of their own
        return None
    directions = _flat_directions(form, minimum.x, at.gradient, 10 * minimum.certificate.gradient_mapping)
    W, H = np.asarray(kept["W"]), kept["summed"]
    place = np.full(spec.d, -1)
    place[W] = np.arange(len(W))
    known = [one for one in directions if (place[one.members] >= 0).all()]
    B = np.zeros((len(W), len(known)))
    for k, one in enumerate(known):
        B[place[one.members], k] = one.entries
    d = _feasible(_null_space(B.T @ H @ B), np.array([one.one_sided for one in known], bool))
    if d is None:
        return np.empty(0, int) if len(known) == len(directions) else None
    moved = np.linalg.norm(B @ d, axis=1)
    return np.sort(W[moved > 1e-6 * moved.max()])


class FlatDirection(NamedTuple):
    """A direction in which g may fall as fast as f rises: some coefficients, and their entries."""

    members: np.ndarray
    entries: np.ndarray
    one_sided: bool  # the opposite direction is not flat


def _flat_directions(form: CoordinateForm, x: np.ndarray, v: np.ndarray, rounding: float) -> list[FlatDirection]:
    """The directions of the module's docstring, one for each coefficient or group that has one."""
    l1, l2 = form.l1, form.l2
    u, slack = x - form.kink, KINK * (l1 + np.abs(v)) + rounding
    single = (form.group < 0) & (l2 == 0)
    up = single & (x < form.upper) & (np.abs(v + np.where(u >= 0, l1, -l1)) <= slack)
    down = single & (x > form.lower) & (np.abs(v + np.where(u > 0, l1, -l1)) <= slack)
    found = [
        FlatDirection(np.array([j]), np.array([1.0 if up[j] else -1.0]), up[j] != down[j])
        for j in np.flatnonzero(up | down)
    ]
    pulls, order = form.group_weight, np.argsort(form.group, kind="stable")
    cuts = np.searchsorted(form.group[order], np.arange(len(pulls) + 1))
    size, norm, curved = (form.norms(a) for a in (u, v, l2))
    at_kink = norm >= (1 - KINK) * pulls - rounding
    for k in np.flatnonzero((curved == 0) & ((pulls <= rounding) | (size > 0) | at_kink)):
        members = order[cuts[k] : cuts[k + 1]]
        if pulls[k] <= rounding:  # zero to rounding
            found += [FlatDirection(np.array([j]), np.ones(1), False) for j in members]
        elif size[k] > 0:
            found.append(FlatDirection(members, u[members] / size[k], False))
        elif norm[k] > 0:
            found.append(FlatDirection(members, -v[members] / norm[k], True))
    return found


def _null_space(H: np.ndarray) -> np.ndarray:
    """A basis of the null space of H, decided after scaling its diagonal to ones."""
    if not H.size:
        return H
    size = np.sqrt(np.maximum(np.diag(H), 0.0))
    unit = np.where(size > FLAT * size.max(), size, 1.0)
    values, vectors = np.linalg.eigh(H / np.outer(unit, unit))
    return vectors[:, values <= FLAT * len(values) * max(values.max(), 0.0)] / unit[:, None]


def _feasible(null: np.ndarray, one_sided: np.ndarray) -> np.ndarray | None:
    """Columns of null vectors that are >= 0 in the one-sided entries; None if there is none but zero."""
    if not null.size:
        return None
    bound = null[one_sided] / np.linalg.norm(null, axis=1).max()
    if not len(bound):
        return null
    _, values, rows = np.linalg.svd(bound)
    still = rows[np.count_nonzero(values > 1e-9) :]  # combinations that are zero in the one-sided entries
    if len(still):
        return null @ still.T
    found = linprog(-bound.sum(axis=0), A_ub=-bound, b_ub=np.zeros(len(bound)), bounds=(-1.0, 1.0))
    moves = found.success and -found.fun > 1e-5
    return (null @ found.x)[:, None] if moves else None
