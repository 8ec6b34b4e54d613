"""Approximate leave-one-out at the server: alpha from one path, and one more message.

Let x be the minimiser at an alpha, s_l the share of row l in the weight of all rows, z_l its prediction, l' and l'' the derivatives
of its loss in z, and H the second derivative of f + g on the coefficients that are free to move: not at a kink of g, and not at a
bound. One Newton step on f + g without the term s_l loss_l leads to the prediction

    z_l + h_l l'_l / (1 - h_l l''_l),    h_l = s_l a_l^T H^-1 a_l,

and the mean loss of the rows there stands for that of exact leave-one-out. The penalty of the other rows stays what it is: with
the penalty of a mean over the other rows, as folds have it, this is the loss at alpha (1 - s_l). For a squared loss with a quadratic
penalty the step is exact. Groups and several outputs have the matrix H of the same definition.

It is no approximation where rows decide about themselves. The measure of that is `LeftOut.ratio`: the loss of the rows left out over
their loss in the fit, both above the least loss that any prediction could have. Above `DRIFTS` the choice is left to folds.

References: Rad, Maleki, "A scalable estimate of the out-of-sample prediction error via approximate leave-one-out
cross-validation", JRSS B 2020; Wang, Zhou, Lu, Maleki, Mirrokni, "Approximate leave-one-out for fast parameter tuning in high
dimensions", ICML 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import get_lapack_funcs

from compfed.errors import InputError
from compfed.estimators.programs import fit
from compfed.estimators.programs.fit import FitOptions, PreparedProblem
from compfed.estimators.programs.path_and_cv import (
    EXTENSIONS,
    NOT_EXTENDED,
    AlphaGrid,
    ModelPath,
    Selection,
    cross_validate,
    edge_of_grid,
    falls_at_the_end,
    solve_paths,
)
from compfed.federation.queries import Evaluate, LeaveOneOut
from compfed.federation.query import SiteRefusal
from compfed.federation.server.program import Federation, Program, Request
from compfed.federation.server.trial import Evaluated
from compfed.federation.spec import FederatedProblem
from compfed.losses import MultiSquared, Squared
from compfed.losses.base import upper_triangle
from compfed.losses.offset import unwrapped
from compfed.regularisers.coordinate_form import CoordinateForm, coordinate_form
from compfed.solvers.auto import solve
from compfed.solvers.base import FederatedSolution

FRUGAL_TOL = 1e-4  # of the models of a path that only choose alpha, where few numbers are to leave
DRIFTS = 2.0  # times their loss in the fit: where rows left out lose more, the approximation is off by 5 to 20 %, or far more
FOLDS = 5  # that choose in its place
NUMBERS = 2**21  # of the second derivatives in one message: 16 MB, or twice that where sums are exact
DEPENDENT = 1e-10  # of its diagonal: what a column of H leaves beside the others, where it depends on them

_pstrf = get_lapack_funcs(("pstrf",), dtype=np.float64)[0]


def choose_by_leave_one_out(
    federation: Federation, options: FitOptions, grid: AlphaGrid, seed: int, rule: str
) -> Program[Selection]:
    """Fit every alpha to all rows, and choose one by approximate leave-one-out; by folds where that is no approximation."""
    _check_options(grid.name, options)
    prepared = yield from fit.describe_and_prepare(federation, options)
    _check_problem(grid.name, prepared)
    if options.frugal:  # the models only choose alpha
        search = replace(options.search, tol=max(options.search.tol, FRUGAL_TOL))
        prepared = replace(prepared, options=replace(prepared.options, search=search))
    alphas, models, refused = (yield from grid.values(federation, prepared)), list[FederatedSolution](), ""
    left, more, progress = LeftOut.none(), alphas, options.search.progress
    reason = ""
    while True:
        try:
            before = [models[-1]] if models else ()
            (found,) = yield from solve_paths(federation, [prepared], more, progress, before)
            added = yield from leave_out(prepared, more, found)
        except SiteRefusal as refusal:
            said = str(refusal).rstrip(".")
            if models:  # the grid stays as it was
                refused = f" Smaller ones were tried, and a site refused them: {said}."
                alphas = alphas[: len(models)]
            else:
                reason = f"a site refuses it: {said}"
            break
        models, left = models + found, left.then(added)
        if not _falls(left, alphas) or not np.isfinite(grid.ratio) or len(alphas) >= _most(grid):
            break
        if not grid.survives_refusals and any(e.min_rows > 1 for e in federation.enrolments):
            refused = NOT_EXTENDED
            break
        more = alphas[-1] * grid.ratio ** np.arange(1, (grid.n_alphas + 1) // 2 + 1)
        alphas, progress = np.concatenate([alphas, more]), None
    reason = reason or left.doubt(alphas, prepared.spec)
    folds = 0 if options.frugal else _folds(federation)
    few = "Too few numbers may leave for folds" if options.frugal else "There are too few rows for folds"
    note = "" if not reason else f"{grid.name}(cv='loo'): {reason}."
    if reason and folds >= 2:
        selection = yield from cross_validate(federation, options, grid, folds, seed, rule, 0)
        return replace(selection, note=f"{note} {folds} folds chose alpha in its place; cv={folds} does so at once.")
    if not np.isfinite(left.mean).any():
        raise InputError(f"{note} {few}, which would stand in for it. Give an alpha.")
    best, within = left.choice()
    chosen = best if rule == "best" else within
    if options.frugal:
        prepared = replace(prepared, options=replace(prepared.options, search=options.search))
        models[chosen] = yield from _to_the_end(federation, prepared, float(alphas[chosen]), models[chosen])
    fitted = yield from fit.certify(prepared, float(alphas[chosen]), fit.Relaxed(models[chosen]))
    edge = edge_of_grid(grid, alphas, left.mean, best, models[0], refused)
    losses, every = left.mean[:, None, None], [fit.Relaxed(model) for model in models]
    path = ModelPath(prepared, None, models, [None] * len(models), np.full((len(models), 1), np.nan))
    note = f"{note} {few}, which would choose in its place." if note else ""
    return Selection(
        alphas, options.gammas, losses, chosen, 0, best, within, [path], [every], [], fitted, edge, left.error[:, None], note
    )  # fmt: skip


def _to_the_end(
    federation: Federation, prepared: PreparedProblem, alpha: float, model: FederatedSolution
) -> Program[FederatedSolution]:
    """The minimiser to the tolerance that was asked for, from a model of a path that was not."""
    start = replace(prepared.null, x=model.x, at=model.at, kept=model.kept)
    return (yield from solve(federation, prepared.at(alpha), replace(prepared.options.search, progress=None), start))


def _falls(left: LeftOut, alphas: np.ndarray) -> bool:
    """Whether smaller alphas are worth a try: the loss falls at the end, and is known."""
    known = np.isfinite(left.mean).all()
    return bool(known and left.ratio[-1] <= DRIFTS and falls_at_the_end(alphas, left.mean))


def _most(grid: AlphaGrid) -> int:
    """Values of alpha in a grid that was extended as often as it may be."""
    return grid.n_alphas + EXTENSIONS * ((grid.n_alphas + 1) // 2)


def _folds(federation: Federation) -> int:
    """The folds that can stand in: no more than the buckets of a site with a policy, or than rows."""
    buckets = [e.buckets for e in federation.enrolments if e.min_rows > 1]
    return min([FOLDS, *buckets, sum(e.rows for e in federation.enrolments)])


def _check_options(name: str, options: FitOptions) -> None:
    way_out = "Use folds (cv=5)."
    if options.site_effects:
        raise InputError(
            f"{name}(cv='loo'): with site_effects='profile' every site fits its own intercept anew without the row, which the "
            f"approximation leaves out. {way_out}"
        )
    if any(gamma != 1 for gamma in options.gammas):
        raise InputError(
            f"{name}(cv='loo'): a relaxed fit jumps where a row decides which variables are chosen, and the approximation keeps "
            f"them. {way_out}"
        )


def _check_problem(name: str, prepared: PreparedProblem) -> None:
    """Refuse a loss or a penalty for which one Newton step says nothing."""
    spec = prepared.at(1.0)
    if getattr(spec.loss, "jumps", False):
        raise InputError(
            f"{name}(cv='loo'): the second derivative of {type(unwrapped(spec.loss)).__name__} jumps, and approximate leave-one-out needs "
            "a continuous one. Use folds (cv=5)."
        )
    if coordinate_form(spec.regulariser, spec.d) is None:
        raise InputError(
            f"{name}(cv='loo'): its penalty is not one of single coefficients or groups, and which of them are free to move is not "
            "known. Use folds (cv=5)."
        )


# --- losses ---


@dataclass(frozen=True)
class LeftOut:
    """Approximate leave-one-out at each alpha; infinite where it is not known."""

    mean: np.ndarray  # loss
    error: np.ndarray  # its standard error, from the variance of the losses of the rows
    ratio: np.ndarray  # of the loss of rows left out to their loss in the fit, both above the least possible one

    @classmethod
    def none(cls) -> LeftOut:
        return cls(np.empty(0), np.empty(0), np.empty(0))

    def then(self, more: LeftOut) -> LeftOut:
        """With those at smaller alphas."""
        return LeftOut(*(np.concatenate(pair) for pair in zip(vars(self).values(), vars(more).values(), strict=True)))

    def choice(self) -> tuple[int, int]:
        """Positions of the least loss, and of the largest alpha within one standard error of it."""
        best = int(self.mean.argmin())
        return best, int(np.flatnonzero(self.mean <= self.mean[best] + self.error[best])[0])

    def doubt(self, alphas: np.ndarray, spec: FederatedProblem) -> str:
        """Why this is no way to choose among these alphas; "" if it is."""
        if not len(self.mean):
            return ""
        best = int(self.mean.argmin())
        known = np.isfinite(self.mean)
        if known.all() or (known[best] and best + 1 < len(alphas) and known[best + 1]):
            if self.ratio[best] <= DRIFTS:
                return ""
            return (
                f"the loss is least at alpha={alphas[best]:.3g}, where rows left out lose {self.ratio[best]:.3g} times as much as in "
                f"the fit; above {DRIFTS:g} it is no approximation of leave-one-out"
            )
        why = "there a row has a leverage of 1"
        if spec.max_hessian_columns < np.inf:
            why += f", or the sites allow no second derivatives on so many columns (at most {int(spec.max_hessian_columns)})"
        return f"the loss is not known at alpha={alphas[int(np.flatnonzero(~known)[0])]:.3g} and below: {why}"


def leave_out(prepared: PreparedProblem, alphas: np.ndarray, models: Sequence[FederatedSolution]) -> Program[LeftOut]:
    """Approximate leave-one-out at each alpha. Wide models take several messages, of at most `NUMBERS` numbers each."""
    free = [_free(prepared, float(alpha), model.x) for alpha, model in zip(alphas, models, strict=True)]
    allowed, left, first = _allowed(prepared, [one.coords for one in free]), LeftOut.none(), 0
    sizes = np.cumsum([one.coords.size * (one.coords.size + 1) // 2 for one in free])
    while first < len(free):
        before = int(sizes[first - 1]) if first else 0
        end = max(int(np.searchsorted(sizes, before + NUMBERS, side="right")), first + 1)
        known = [one if k < allowed else None for k, one in enumerate(free[first:end], first)]
        left, first = left.then((yield from _leave_out(prepared, models[first:end], known))), end
    return left


def _leave_out(
    prepared: PreparedProblem, models: Sequence[FederatedSolution], free: Sequence[Free | None]
) -> Program[LeftOut]:
    """Two messages: the second derivatives that are not known yet, and the losses of rows left out."""
    spec, summary = prepared.spec, prepared.summary
    known = yield from _evaluated(
        spec, models, [None if one is None else one.coords for one in free], prepared.options.frugal
    )
    equal = prepared.options.equal_sites
    units = float((summary.totals > 0).sum() if equal else summary.totals.sum())  # of sums over rows
    steps: dict[bytes, list[tuple[int, np.ndarray, np.ndarray]]] = {}
    for k, (one, (_, H)) in enumerate(zip(free, known, strict=True)):
        if one is None or H is None or not np.isfinite(H).all():
            continue
        whole = units * (H + one.curvature)
        kept = independent(whole)
        coords = one.coords[kept]
        steps.setdefault(coords.tobytes(), []).append((k, coords, upper_triangle(whole[np.ix_(kept, kept)])))
    mean, squares, least = (np.full(len(models), np.inf) for _ in range(3))
    if steps:
        places = [[k for k, _, _ in group] for group in steps.values()]
        requests = [
            _request(spec, LeaveOneOut(
                spec.objective, np.array([models[k].x for k, _, _ in group]), group[0][1],
                np.array([packed for _, _, packed in group]), equal,
            ))
            for group in steps.values()
        ]  # fmt: skip
        for at, (reply,) in zip(places, (yield requests), strict=True):
            mean[at], squares[at], least[at] = reply.loss, reply.squares, reply.least
    fitted, there = np.array([value for value, _ in known]) - least, np.isfinite(mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(there & (mean > 0), mean / np.maximum(fitted, 0.0), np.where(there, 1.0, np.inf))
        variance = np.where(there, np.maximum(squares - mean**2, 0.0), np.inf)
    rows = int(np.sum(summary.rows))
    return LeftOut(np.where(there, mean + least, np.inf), np.sqrt(variance / max(rows - 1, 1)), ratio)


def _request(spec: FederatedProblem, query: Evaluate | LeaveOneOut) -> Request:
    return Request((query,), weights=spec.weights, weighting=spec.weighting, models=len(query.x))


def _evaluated(
    spec: FederatedProblem, models: Sequence[FederatedSolution], free: Sequence[np.ndarray | None], frugal: bool = False
) -> Program[list[tuple[float, np.ndarray | None]]]:
    """f at every model without the ridge, and its Hessian on these coordinates with it; no message where the path has them.

    The Hessian of a squared loss is the same at all models: it is asked for at one, on all coordinates.
    """
    ridge = float(spec.loss.ridge)
    at = [m.at if m.at is not None and np.array_equal(m.at.x, m.x) else None for m in models]
    wanted = {k: W for k, W in enumerate(free) if W is not None}
    if isinstance(unwrapped(spec.loss), (Squared, MultiSquared)):
        every = np.unique(np.concatenate([np.empty(0, np.int32), *wanted.values()])).astype(np.int32)
        has = next((k for k in wanted if _part(at[k], every) is not None), len(models) - 1)
        wanted = {has: every} if wanted else {}
    hessians = {k: H for k, W in wanted.items() if (H := _part(at[k], W)) is not None}
    if frugal:  # the matrix of the search, which is corrected along its steps, in place of one more from the sites
        near = {k: _part(_with_matrix(models[k]), W) for k, W in wanted.items() if k not in hessians}
        hessians |= {k: H for k, H in near.items() if H is not None}
    values = {k: one.value for k, one in enumerate(at) if one is not None}
    asked: dict[bytes, tuple[np.ndarray | None, list[int]]] = {}
    for k in range(len(models)):
        W = wanted[k] if k in wanted and k not in hessians else None
        if W is not None or k not in values:
            asked.setdefault(b"none" if W is None else W.tobytes(), (W, []))[1].append(k)
    if asked:
        queries = [
            Evaluate(spec.objective, np.array([models[k].x for k in group]), W if W is None or W.size else None)
            for W, group in asked.values()
        ]
        for (W, group), (reply,) in zip(asked.values(), (yield [_request(spec, q) for q in queries]), strict=True):
            for place, k in enumerate(group):
                values[k] = float(reply.value[place])
                if W is not None:
                    H = np.zeros((0, 0)) if not W.size else spec.loss.unpack_hessian(reply.hessian[place], W)
                    hessians[k] = H + ridge * np.eye(len(W))
    found = list[tuple[float, np.ndarray | None]]()
    for k, (model, W) in enumerate(zip(models, free, strict=True)):
        source = k if k in wanted else next(iter(wanted), -1)
        H = None if W is None else _cut(hessians[source], wanted[source], W)
        found.append((values[k] - 0.5 * ridge * float(model.x @ model.x), H))
    return found


def _with_matrix(model: FederatedSolution) -> Evaluated | None:
    """The evaluation of a model, with the matrix that its search ended with for its Hessian."""
    kept = model.kept or {}
    return model.at._replace(W=kept["W"], H=kept["H"]) if model.at is not None and "H" in kept else None


def _part(at: Evaluated | None, W: np.ndarray) -> np.ndarray | None:
    """The Hessian of an evaluation on some coordinates; None where it is not known on all of them."""
    if at is None or at.H is None or at.W is None or not np.isin(W, at.W).all():
        return None
    return _cut(at.H, at.W, W)


def _cut(H: np.ndarray, W: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Rows and columns `part` of a matrix on the coordinates W."""
    order = np.argsort(W, kind="stable")
    place = order[np.searchsorted(W, part, sorter=order)]
    return H[np.ix_(place, place)]


def _allowed(prepared: PreparedProblem, coords: Sequence[np.ndarray]) -> int:
    """At how many alphas, the largest first, the sites give Hessians: on so many columns in all."""
    columns, scaling = set[int](), prepared.scaling
    if not prepared.spec.max_hessian_columns:
        return 0
    for k, W in enumerate(coords):
        columns |= {int(j) for j in np.unique(W[scaling.penalised > W] // scaling.outputs)}
        if len(columns) > prepared.spec.max_hessian_columns:
            return k
    return len(coords)


# --- the coefficients that are free to move ---


@dataclass(frozen=True)
class Free:
    """Coefficients that are free to move, and the second derivative of the penalty on them."""

    coords: np.ndarray
    curvature: np.ndarray


def _free(prepared: PreparedProblem, alpha: float, x: np.ndarray) -> Free:
    form = coordinate_form(prepared.at(alpha).regulariser, prepared.spec.d)
    assert form is not None, "checked before the path"
    return free_to_move(form, x)


def free_to_move(form: CoordinateForm, x: np.ndarray) -> Free:
    """Coefficients at no kink and at no bound; of a group that is not zero all of them.

    The second derivative of w ||v|| is w (I - v v^T / ||v||^2) / ||v||.
    """
    free = np.flatnonzero(~form.at_kink(x) & (x > form.lower) & (x < form.upper)).astype(np.int32)
    curvature = np.diag(form.l2[free])
    groups = form.group[free]
    for group in np.unique(groups[groups >= 0]):
        inside = np.flatnonzero(groups == group)
        v, weight = (x - form.kink)[free[inside]], float(form.group_weight[group])
        size = float(np.linalg.norm(v))
        if weight > 0 and size > 0:
            v = v / size
            curvature[np.ix_(inside, inside)] += weight / size * (np.eye(len(inside)) - np.outer(v, v))
    return Free(free, curvature)


def independent(H: np.ndarray) -> np.ndarray:
    """Columns of a positive semidefinite H that span all of them: a row's leverage is the same on these alone.

    Two equal columns of a table make H singular. Along a direction in which neither the predictions nor the penalty change,
    the minimiser without a row is not unique, and its prediction is.
    """
    if not H.size:
        return np.empty(0, int)
    scale = np.sqrt(np.maximum(np.diag(H), 0.0))
    unit = np.where(scale > 0, scale, 1.0)
    *_, places, rank, _ = _pstrf(H / np.outer(unit, unit), tol=DEPENDENT, lower=1)
    return np.sort(places[:rank] - 1)
