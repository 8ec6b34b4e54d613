"""Many values of alpha, at the server: the minimiser at each of them (a path), and the choice of one by cross-validation.

All folds of a cross-validation and the path over all rows share their messages. The server says which rows a fold has: every
site splits its own rows, or one whole site is left out. The sites find the rows (`splits.RowSubset`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning

from compfed._utils.compilation import precision
from compfed._utils.validation import check_int, check_numbers, is_int, is_number
from compfed.errors import InputError
from compfed.estimators.programs import fit
from compfed.estimators.programs.fit import (
    FitOptions,
    Fitted,
    PooledSummary,
    PreparedProblem,
    Relaxed,
    refit_on_supports,
)
from compfed.federation.enrolment import Enrolment
from compfed.federation.queries import Evaluate, HeldOut
from compfed.federation.queries.held_out import HeldOutSum
from compfed.federation.query import SiteRefusal
from compfed.federation.server.program import Federation, Program, QuerySums, Request, gather
from compfed.federation.server.trial import Evaluated
from compfed.federation.spec import FederatedProblem
from compfed.losses import SiteLoss
from compfed.monitor import Progress
from compfed.solvers.auto import choose, finish, make_search, solve
from compfed.solvers.base import FederatedSolution, SearchOptions, SolverState, Start, first_state
from compfed.solvers.first_order import solve_all_by_rounds
from compfed.solvers.quadratic_model import newton_step
from compfed.solvers.search import HessianSharing, Search, run_searches
from compfed.solvers.second_order import known_hessian
from compfed.splits import LEAVE_ONE_SITE_OUT, RowSubset, check_folds, cv_splits, training_rows
from compfed.stopping import rounding_error

STRIDE = 8  # every eighth alpha first, then the rest
NEAR = 1e-3  # gradient mapping of all anchors, relative to their scale, at which the rest start beside them
AT_ANCHORS, BETWEEN = 4, 1  # Hessians of all rows that a fold takes, before it asks for its own
SIDE_BY_SIDE = 25  # values of alpha that share their rounds; the next block starts where these ended


# --- the values of alpha ---


@dataclass(frozen=True)
class AlphaGrid:
    """The values of alpha from the largest down: given ones, or n_alphas from alpha_max to eps times that, in even ratios."""

    name: str  # of the caller, for messages
    alphas: npt.ArrayLike | None
    n_alphas: int
    eps: float
    survives_refusals: bool = False  # whether a fit goes on where a site refuses a model

    def __post_init__(self) -> None:
        """Refuse parameters that cannot be used, before any work."""
        check_int(self.n_alphas, f"{self.name}: n_alphas", 1)
        if not is_number(self.eps) or not 0 < float(self.eps) < 1:
            raise InputError(f"{self.name}(eps={self.eps!r}): eps must be a number between 0 and 1.")
        if self.alphas is not None:
            values = check_numbers(self.alphas, "alphas")
            if values.ndim != 1 or not values.size or not ((values >= 0) & (values < np.inf)).all():
                raise InputError(f"alphas={self.alphas!r} must be a list of finite numbers >= 0.")

    @property
    def count(self) -> int:
        """How many there are."""
        return self.n_alphas if self.alphas is None else int(np.size(self.alphas))

    @property
    def ratio(self) -> float:
        """Of an alpha to the next larger one; NaN where that is not defined."""
        return float(self.eps) ** (1 / (self.n_alphas - 1)) if self.alphas is None and self.n_alphas > 1 else np.nan

    def values(self, federation: Federation, prepared: PreparedProblem) -> Program[np.ndarray]:
        """Given ones are sorted; alpha_max takes one gradient, that of the null model, summed over the sites."""
        if self.alphas is not None:
            return np.sort(check_numbers(self.alphas, "alphas"))[::-1]
        g, gradient = prepared.at(1.0).regulariser, (yield from _null_gradient(federation, prepared))
        with precision(np.dtype(float)):
            largest = float(g.alpha_max(gradient))  # pyright: ignore[reportAttributeAccessIssue]  # every penalty here has it
        if not np.isfinite(largest):
            raise InputError(
                f"{self.name}: no alpha makes all coefficients zero, because the penalty of some has no kink "
                "(l1_ratio=0). Give alphas."
            )
        if largest == 0:
            raise InputError(
                f"{self.name}: all coefficients are zero at every alpha: no feature helps to predict y, which may "
                "be constant. Give alphas, or other data."
            )
        return np.geomspace(largest, self.eps * largest, self.n_alphas)


def _null_gradient(federation: Federation, prepared: PreparedProblem) -> Program[np.ndarray]:
    """The gradient where all penalised coefficients are 0 and the others optimal; 0 for the others, and where it is rounding alone.

    With unpenalised columns it is enlarged by its error, so that the coefficients are exactly 0 at the alpha_max that follows.
    """
    free, null, error = prepared.unpenalised(), prepared.null, 0.0
    at = null.at
    if free.any():
        kept = free.copy()
        kept[prepared.scaling.penalised :] = True
        search = replace(prepared.options.search, progress=None)
        found = yield from solve(federation, prepared.restricted(kept), search, null)
        at, error = found.at, 10 * (found.certificate.gradient_mapping + found.certificate.rounding)
    assert at is not None
    gradient = np.where(free, 0.0, at.gradient)
    if np.linalg.norm(gradient[: prepared.scaling.penalised]) <= 10 * _rounding(prepared, at):
        return np.zeros_like(gradient)
    return np.where(free, 0.0, gradient + np.copysign(error, gradient))


def _rounding(prepared: PreparedProblem, at: Evaluated) -> float:
    """What rounding can make of a gradient that is zero. The intercepts of a profile count too, though they stay at the sites."""
    x = at.x
    if prepared.options.site_effects:
        labels = prepared.summary.labels
        x = np.append(x, fit.near(prepared.options.family.null_intercept(labels), labels))
    return rounding_error(prepared.spec.sizes, x, prepared.null.L, at.terms)


# --- the path ---


def solve_paths(
    federation: Federation,
    problems: Sequence[PreparedProblem],
    alphas: np.ndarray,
    progress: Progress | None = None,
    before: Sequence[FederatedSolution | None] = (),
    splits: Sequence[RowSubset | None] = (),
) -> Program[list[list[FederatedSolution]]]:
    """The minimisers at falling alphas: of all rows, then of the rows to train with of each split, if any.

    `before` has those at a larger alpha, if known; `splits` hold rows out whose loss is wanted. All searches share their
    messages. Second-order searches take every few alphas first, the anchors, from the null model, and then those between, from
    a guess between two anchors. First-order methods take blocks of alphas side by side, each block from the end of the one
    before. A round then serves a whole block, so that local work is the bottleneck: "auto" is FISTA here, which needs one
    gradient per round.
    """
    none = [None] * len(problems)
    before, splits = before or none, splits or none
    search = replace(problems[0].options.search, progress=None)  # which is that of a single search
    if not choose(problems[0].at(float(alphas[0])), search, problems[0].null).second_order:
        paths = [
            _first_order_path(federation, prepared, alphas, search, last)
            for prepared, last in zip(problems, before, strict=True)
        ]
        return (yield from gather(paths))
    grid = _Grid(problems, alphas, before, splits)

    done = 0

    def report() -> None:
        nonlocal done
        now = sum(not search.under_way for search in grid.searches.values())
        if progress is not None and now > done:
            progress(now, len(problems) * len(alphas))
        done = now

    anchors = [grid.start(p, k) for k in grid.anchors for p in range(len(problems))]
    near = NEAR if grid.guesses else 0.0
    yield from run_searches(anchors, [grid.share(k, AT_ANCHORS) for k in grid.anchors if grid.guesses], near, report)
    rest = [grid.between(p, k) for k in range(len(alphas)) if k not in grid.anchors for p in range(len(problems))]
    sharings = [grid.share(k, BETWEEN) for k in range(len(alphas)) if grid.guesses]
    yield from run_searches(anchors + rest, sharings, progress=report)
    every = [grid.searches[p, k] for p in range(len(problems)) for k in range(len(alphas))]
    found = yield from finish(federation, every)
    return [found[k : k + len(alphas)] for k in range(0, len(found), len(alphas))]


class _Grid:
    """The second-order searches of some paths: one for each problem p and alpha k."""

    def __init__(
        self,
        problems: Sequence[PreparedProblem],
        alphas: np.ndarray,
        before: Sequence[FederatedSolution | None],
        splits: Sequence[RowSubset | None],
    ):
        self.problems, self.alphas, self.before, self.splits = problems, alphas, before, splits
        self.searches: dict[tuple[int, int], Search] = {}
        self.starts = [self._start(p) for p in range(len(problems))]
        # guesses between anchors need a matrix on all coordinates, and shared Hessians one scaling
        first = problems[0]
        smooth = not getattr(first.spec.loss, "jumps", False)
        one_scaling = all(prepared.scaling is first.scaling for prepared in problems)
        self.partial = first.spec.hessian_columns is not None
        known = self.partial or all(_matrix(start) is not None for start in self.starts)
        self.guesses = smooth and one_scaling and known
        # a guess needs an anchor on either side; without guesses the last alpha is sooner reached from its neighbour
        anchors = set(range(0, len(alphas), STRIDE))
        if self.guesses:
            anchors.add(len(alphas) - 1)
        self.anchors = sorted(anchors)

    def _start(self, p: int) -> Start:
        """From the model at the next larger alpha, or the null model; folds with the matrix of all rows, unless they have one."""
        prepared, last, whole = self.problems[p], self.before[p], self.problems[0]
        if last is not None and last.kept is not None:
            return replace(prepared.null, x=last.x, at=last.at, kept=last.kept)
        start, H = prepared.null, None if whole.null.at is None else whole.null.at.H
        has_own = start.at is not None and start.at.H is not None
        if has_own or H is None or whole.null.at is None or prepared.scaling is not whole.scaling:
            return start
        return replace(start, kept=known_hessian(np.asarray(whole.null.at.W), H))

    def start(self, p: int, k: int) -> Search:
        """The search at an anchor."""
        return self._made(
            p, k, make_search(self.problems[p].at(float(self.alphas[k])), self._options(p), self.starts[p])
        )

    def _options(self, p: int) -> SearchOptions:
        return replace(self.problems[p].options.search, progress=None)

    def _made(self, p: int, k: int, search: Search) -> Search:
        self.searches[p, k] = search
        search.split = self.splits[p]
        return search

    def share(self, k: int, limit: int) -> HessianSharing:
        """The Hessians of all rows at alpha k, shared by the searches there."""
        # a site may give fewer columns of a fold than of all rows
        alone = limit if all(prepared.gives_own_hessians for prepared in self.problems) else math.inf
        return HessianSharing([self.searches[p, k] for p in range(len(self.problems))], alone)

    def between(self, p: int, k: int) -> Search:
        """The search at an alpha between two anchors: from a guess between them, or else from the nearest one."""
        left = max(anchor for anchor in self.anchors if anchor < k)
        right = min((anchor for anchor in self.anchors if anchor > k), default=left)
        one, other, prepared = self.searches[p, left], self.searches[p, right], self.problems[p]
        spec, share = prepared.at(float(self.alphas[k])), (k - left) / max(right - left, 1)
        if self.guesses and one.metric is not None and other.metric is not None:
            ask = p == 0 and not spec.loss_is_quadratic and not prepared.options.frugal
            made = make_search(
                spec, self._options(p), prepared.null, guess_between(spec, one.state, other.state, share, ask)
            )
            made.eager = False
        else:  # of two as near, the one at the larger alpha: its model is sparser
            nearest = (one if k - left <= abs(right - k) else other).solution
            known = nearest is not None and nearest.kept is not None
            start = prepared.null
            if nearest is not None and known:
                start = replace(start, x=nearest.x, at=nearest.at, kept=nearest.kept)
            made = make_search(spec, self._options(p), start)
        return self._made(p, k, made)


def _matrix(start: Start) -> np.ndarray | None:
    """The matrix on all coordinates with which a search begins; None without one."""
    H = start.at.H if start.at is not None and start.at.H is not None else (start.kept or {}).get("H")
    return H if H is not None and len(H) == start.x.size else None


def guess_between(
    spec: FederatedProblem, left: SolverState, right: SolverState, share: float, ask: bool
) -> SolverState:
    """The first trial at an alpha between two others: from a cubic through both, as far as points and gradients tell it.

    With x, H and the gradient g between those of the two points, g - share (1 - share) / 2 (H_right - H_left)(x_right -
    x_left) is the gradient at x to third order. The minimiser of the quadratic model there is the trial; `ask` for its Hessian.
    """
    W, t = left.kept["W"], share
    low, high = (side.kept.get("summed", side.kept["H"]) for side in (left, right))
    x, H = (1 - t) * left.at.x + t * right.at.x, (1 - t) * low + t * high
    g = (1 - t) * left.at.gradient + t * right.at.gradient
    g = g - 0.5 * t * (1 - t) * ((high - low) @ (right.at.x - left.at.x))
    asked = W if spec.hessian_columns is None else np.array(spec.hessian_columns, np.int32)
    kept = {name: part for name, part in left.kept.items() if name != "summed"} | {"H": H}
    return first_state(newton_step(spec.regulariser, x, g, H, W), asked if ask else None, kept)


def _first_order_path(
    federation: Federation,
    prepared: PreparedProblem,
    alphas: np.ndarray,
    search: SearchOptions,
    last: FederatedSolution | None,
) -> Program[list[FederatedSolution]]:
    search = replace(search, algorithm="FISTA" if search.algorithm == "auto" else search.algorithm)
    found = list[FederatedSolution]()
    for k in range(0, len(alphas), SIDE_BY_SIDE):
        specs = [prepared.at(float(alpha)) for alpha in alphas[k : k + SIDE_BY_SIDE]]
        start = prepared.null if last is None else replace(prepared.null, x=last.x)
        found += yield from solve_all_by_rounds(federation, specs, search, start)
        last = found[-1]
    return found


def warn_if_not_converged(
    name: str, found: Sequence[FederatedSolution], search: SearchOptions, stacklevel: int = 3
) -> None:
    """One warning for all fits that did not converge."""
    short = [m.certificate.relative for m in found if not m.converged]
    if short:
        warnings.warn(
            f"{name}: {len(short)} of {len(found)} fits stopped at max_rounds={search.max_rounds} or before, with a gradient "
            f"mapping of up to {max(short):.1e} of its scale; tol is {search.tol:g}. Give more max_rounds, a larger tol, or "
            "an exact algorithm.",
            ConvergenceWarning,
            stacklevel=stacklevel,
        )


# --- cross-validation ---


@dataclass(frozen=True)
class Selection:
    """The result of a cross-validation."""

    alphas: np.ndarray
    gammas: tuple[float, ...]
    losses: np.ndarray  # (alphas, gammas, splits)
    chosen: int  # position of the alpha that was taken
    gamma: int  # position of the gamma that was taken
    best: int
    within_error: int | None  # the largest alpha within one standard error of the best; None with a single split
    paths: Sequence[ModelPath]  # of all rows, then of the splits
    models: Sequence[Sequence[Relaxed]]  # of all rows: for each gamma, one for each alpha
    splits: Sequence[RowSubset]  # held out
    fitted: Fitted
    edge: str  # a sentence, where the best alpha is the smallest or the largest and the loss still falls there
    errors: np.ndarray | None = None  # (alphas, gammas): standard errors that are not those of the splits
    note: str = ""  # a sentence, where the choice was made in another way than was asked for


@dataclass(frozen=True)
class ModelPath:
    """The models of some rows: one per alpha, their refits if any, and their mean losses on held-out rows."""

    prepared: PreparedProblem
    split: RowSubset | None  # held out
    models: list[FederatedSolution]
    refits: list[FederatedSolution | None]
    losses: np.ndarray  # (alphas, gammas)

    def then(self, more: ModelPath) -> ModelPath:
        """With the models at smaller alphas."""
        losses = np.concatenate([self.losses, more.losses])
        return replace(self, models=self.models + more.models, refits=self.refits + more.refits, losses=losses)

    def mixed(self, gamma: float) -> list[Relaxed]:
        """The models with this gamma."""
        return [Relaxed(m, refit, gamma) for m, refit in zip(self.models, self.refits, strict=True)]

    @property
    def fits(self) -> list[FederatedSolution]:
        """All fits, each refit once."""
        refits = {id(refit): refit for refit in self.refits if refit is not None}
        return [*self.models, *refits.values()]


def cross_validate(
    federation: Federation, options: FitOptions, grid: AlphaGrid, cv: object, seed: int, rule: str, listed: int
) -> Program[Selection]:
    """Fit every alpha to every split and to all rows, and choose one."""
    if options.site_effects and isinstance(cv, str) and cv == LEAVE_ONE_SITE_OUT:
        raise InputError(
            "cv='leave-one-site-out' with site_effects='profile': a site that is left out has no rows to fit its own intercept "
            "to, and no intercept of another site is meant for it. Use folds inside the sites (cv=5)."
        )
    check_cv(federation.names, federation.enrolments, cv)
    rows = [enrolment.rows for enrolment in federation.enrolments]
    splits = cv_splits(cv, seed, rows, options.family.classifies, listed)
    if rule == "one_standard_error" and len(splits) < 2:
        raise InputError(f"{grid.name}: rule='one_standard_error' needs two splits or more; cv gives one.")
    subsets = [None, *(training_rows(split) for split in splits)]
    everything, *summaries = yield from gather(
        [fit.describe_sites(federation, options, one, one is None or options.scales_subsets) for one in subsets]
    )
    classes = everything.labels.classes
    if classes is not None:
        check_classes_of_splits(grid.name, federation.names, summaries, rows, classes)
    shared = fit.scaled(options, everything, classes)
    prepared = yield from gather(
        [fit.prepare(federation, options, s, classes, shared) for s in [everything, *summaries]]
    )
    refused = prepared[0].null.refused  # a Hessian of all rows: then those of folds are refused too
    whole = prepared[0].spec  # a site counts the columns of all rows, so folds take the Hessians of all rows
    loose = replace(options.search, tol=max(options.search.tol, options.cv_tol))
    prepared = [
        replace(
            one,
            options=one.options if one is prepared[0] else replace(one.options, search=loose),
            null=replace(one.null, refused=one.null.refused or refused),
            spec=replace(one.spec, hessian_columns=whole.hessian_columns, max_hessian_columns=whole.max_hessian_columns)
            if one.scaling is shared.scaling
            else one.spec,
            max_hessian_columns=one.spec.max_hessian_columns,
        )
        for one in prepared
    ]
    alphas = yield from grid.values(federation, prepared[0])
    empty = np.empty((0, len(options.gammas)))
    start = [ModelPath(one, split, [], [], empty) for one, split in zip(prepared, [None, *splits], strict=True)]
    paths = yield from _continue_all(federation, start, alphas, options.search.progress)
    alphas, paths, refused = yield from _extend(federation, grid, alphas, paths)
    losses = _losses(paths)
    best, within, gamma_of = choose_model(losses)
    chosen = best if rule == "best" or within is None else within
    gamma = int(gamma_of[chosen])
    every = [model for share in options.gammas for model in paths[0].mixed(share)]
    every = yield from fit.with_common_intercepts(prepared[0], every)
    models = [every[k : k + len(alphas)] for k in range(0, len(every), len(alphas))]
    fitted = yield from fit.certify(prepared[0], float(alphas[chosen]), models[gamma][chosen])
    edge = edge_of_grid(grid, alphas, _mean_losses(paths), best, paths[0].models[0], refused)
    return Selection(alphas, options.gammas, losses, chosen, gamma, best, within, paths, models, splits, fitted, edge)


def _losses(paths: Sequence[ModelPath]) -> np.ndarray:
    """(alphas, gammas, splits)."""
    return np.stack([path.losses for path in paths[1:]], axis=-1)


def _mean_losses(paths: Sequence[ModelPath]) -> np.ndarray:
    """The mean loss of each alpha, with its best gamma."""
    return _losses(paths).mean(axis=-1).min(axis=1)


# --- an optimum at the edge of the grid ---

NOT_EXTENDED = " The grid was not extended, because sites with a disclosure policy may refuse smaller ones, which would end the run."
EXTENSIONS = 2  # of an automatic grid, each as long as half of the first
STILL_FALLS = 1e-3  # fall of the mean loss towards the edge, for a factor of 10 in alpha, as a share of its fall from the null model


def _extend(
    federation: Federation, grid: AlphaGrid, alphas: np.ndarray, paths: list[ModelPath]
) -> Program[tuple[np.ndarray, list[ModelPath], str]]:
    """Smaller alphas in the same ratio, while the loss still falls at the smallest one of an automatic grid.

    A site may refuse models that rest on few rows. The grid then stays as it is, and the reason is returned. Where a refusal
    ends the run the grid is not extended.
    """
    if not np.isfinite(grid.ratio):
        return alphas, paths, ""
    for _ in range(EXTENSIONS):
        if not falls_at_the_end(alphas, _mean_losses(paths)):
            break
        if not grid.survives_refusals and any(e.min_rows > 1 for e in federation.enrolments):
            return alphas, paths, NOT_EXTENDED
        more = alphas[-1] * grid.ratio ** np.arange(1, (grid.n_alphas + 1) // 2 + 1)
        try:
            paths = yield from _continue_all(federation, paths, more, None)
        except SiteRefusal as refusal:
            return alphas, paths, f" Smaller ones were tried, and a site refused them: {str(refusal).rstrip('.')}."
        alphas = np.concatenate([alphas, more])
    return alphas, paths, ""


def falls_at_the_end(alphas: np.ndarray, mean: np.ndarray) -> bool:
    """Whether the mean loss is least at the last alpha and still falls there by more than STILL_FALLS.

    A flat end does not count: beyond it the model is that without a penalty, as good as any. Of two alphas one is always last.
    """
    if len(alphas) < 3 or mean.argmin() != len(mean) - 1 or min(alphas[-2:]) == 0:
        return False
    decades = abs(float(np.log10(alphas[-2] / alphas[-1])))
    return bool(mean[-2] - mean[-1] > STILL_FALLS * min(decades, 1.0) * (mean.max() - mean[-1]))


def edge_of_grid(
    grid: AlphaGrid, alphas: np.ndarray, mean: np.ndarray, best: int, largest: FederatedSolution, refused: str
) -> str:
    """What to tell a person about a best alpha at the edge of the grid; "" if there is nothing to tell.

    The largest alpha of an automatic grid is that of the null model, which may well be the best one.
    """
    found = f"{grid.name}: the held-out loss is least at "
    if falls_at_the_end(alphas, mean):
        automatic = grid.alphas is None
        way_out = f"a smaller eps than {grid.eps:g}" if automatic else "smaller alphas"
        tried = ""
        if automatic:
            tried = refused or f" The grid was extended {EXTENSIONS} times."
        return (
            f"{found}the smallest alpha, {alphas[-1]:.3g}, and still falls there: a smaller one may predict better.{tried} Give "
            f"{way_out}, or standardize=True where columns have different units."
        )
    if grid.alphas is not None and best == 0 and falls_at_the_end(alphas[::-1], mean[::-1]) and largest.x.any():
        return (
            f"{found}the largest alpha, {alphas[0]:.3g}: a larger one may predict better. Give larger alphas, or none."
        )
    return ""


# --- folds ---


def check_cv(names: Sequence[str], enrolments: Sequence[Enrolment], cv: object) -> None:
    """Refuse folds that the policy of a site does not allow, before the first query."""
    if isinstance(cv, str) and cv == LEAVE_ONE_SITE_OUT and enrolments[0].secure_sum:
        raise InputError(
            "cv='leave-one-site-out': sums are masked, and leaving out one site would show its part of a sum by subtraction. "
            "Use folds inside the sites (cv=5), or let every site set secure_sum = false in its site.toml."
        )
    if is_int(cv) and any(e.min_rows > 1 for e in enrolments):
        check_folds(names, [e.buckets for e in enrolments], [e.min_rows for e in enrolments], int(cv))


def _continue_all(
    federation: Federation, paths: Sequence[ModelPath], alphas: np.ndarray, progress: Progress | None
) -> Program[list[ModelPath]]:
    """All paths with these alphas added, which are smaller than those before, and their mean losses on the rows held out."""
    problems, gammas = [path.prepared for path in paths], paths[0].prepared.options.gammas
    before = [path.models[-1] if path.models else None for path in paths]
    whole = isinstance(problems[0].spec.loss, SiteLoss)
    wanted = [path.split if gammas == (1.0,) and not whole else None for path in paths]
    found = yield from solve_paths(federation, problems, alphas, progress, before, wanted)
    refits = yield from refit_on_supports(federation, list(zip(problems, found, strict=True)))
    more = [
        replace(path, models=models, refits=again, losses=np.full((len(alphas), len(gammas)), np.nan))
        for path, models, again in zip(paths, found, refits, strict=True)
    ]
    losses = yield from (_held_out_likelihoods if whole else _held_out_losses)(more, len(alphas))
    return [path.then(replace(rest, losses=each)) for path, rest, each in zip(paths, more, losses, strict=True)]


def _held_out_losses(paths: Sequence[ModelPath], alphas: int) -> Program[list[np.ndarray]]:
    """(alphas, gammas) mean losses of each path on the rows that its split holds out; one message, where some are not known."""
    models, asked, known = [], list[Request](), list[dict[int, HeldOutSum]]()
    for path in paths:
        models.append([model for gamma in path.prepared.options.gammas for model in path.mixed(gamma)])
        found = {k: m.penalised.held_out for k, m in enumerate(models[-1]) if m.refit is None and m.penalised.held_out}
        known.append(found)
        x = np.array([model.x for k, model in enumerate(models[-1]) if k not in found])
        if path.split is not None and len(x):
            query = HeldOut(path.prepared.spec.objective, path.split, x)
            asked.append(Request((query,), weighting=path.prepared.options.weighting, models=len(x)))
    sums: Iterator[QuerySums] = iter((yield asked) if asked else [])
    losses = []
    for path, each, found in zip(paths, models, known, strict=True):
        mean = np.full(len(each), np.nan)
        for k, one in found.items():
            mean[k] = _mean_losses_of(path, one)[0]
        rest = [k for k in range(len(each)) if k not in found]
        if path.split is not None and rest:
            (held_out,) = next(sums)
            mean[rest] = _mean_losses_of(path, held_out)
        losses.append(mean.reshape(len(path.prepared.options.gammas), alphas).T)
    return losses


def _held_out_likelihoods(paths: Sequence[ModelPath], alphas: int) -> Program[list[np.ndarray]]:
    """(alphas, gammas) losses per event held out of each path: by how much more all rows lose than those to train with.

    With l the log partial likelihood it is V = l_all(x) - l_train(x) at a model x without the fold (Verweij and van Houwelingen,
    Statistics in Medicine 1993): the rows held out are compared with all rows at risk. One message, two values for each model.
    """
    everything, folds = paths[0].prepared, paths[1:]
    gammas = everything.options.gammas
    whole, events = _weight_and_events(everything.summary, everything.options.equal_sites)
    asked = list[Request]()
    for path in folds:
        one = path.prepared
        x = np.array([model.x for gamma in gammas for model in path.mixed(gamma)])
        if one.scaling is not everything.scaling:
            coefs = [one.scaling.coefficients(model)[0] for model in x]
            seen = np.array([everything.scaling.model(coef, np.zeros(1)) for coef in coefs])
        else:
            seen = x
        pairs = ((everything.spec, seen), (one.spec, x))
        asked += [
            Request((Evaluate(spec.objective, at),), weights=spec.weights, weighting=spec.weighting, models=len(at))
            for spec, at in pairs
        ]
    sums: Iterator[QuerySums] = iter((yield asked) if asked else [])
    losses = [np.full((alphas, len(gammas)), np.nan)]
    for path in folds:
        (of_all,), (of_some,) = next(sums), next(sums)
        mine, trained = _weight_and_events(path.prepared.summary, path.prepared.options.equal_sites)
        if events - trained <= 1e-9 * events:
            raise InputError("cv: a split holds out no row with an event. Use fewer folds, or another seed.")
        V = (whole * of_all.value - mine * of_some.value) / (events - trained)
        losses.append(V.reshape(len(gammas), alphas).T)
    return losses


def _weight_and_events(summary: PooledSummary, equal_sites: bool) -> tuple[float, float]:
    """What a mean over rows (or sites) is multiplied with to be a sum, and the events in that sum."""
    weight = float(np.count_nonzero(summary.totals)) if equal_sites else float(summary.totals.sum())
    assert summary.labels.mean is not None
    return weight, weight * float(summary.labels.mean[-1])


def _mean_losses_of(path: ModelPath, held_out: HeldOutSum) -> np.ndarray:
    """Mean losses from the sums over the rows that a split holds out."""
    options = path.prepared.options
    if not held_out.sites:
        raise InputError(fit.NO_ROWS)
    if options.site_effects and not np.isfinite(held_out.loss).all():
        raise InputError(
            "cv: a split trains the intercept of a site (site_effects='profile') on rows of one class, and tests it on the other: "
            "the held-out loss is infinite. Use fewer folds, or leave out sites with a class of a single row."
        )
    return held_out.loss / (held_out.sites if options.equal_sites else held_out.weight)


def choose_model(losses: np.ndarray) -> tuple[int, int | None, np.ndarray]:
    """Positions of the best alpha and of the largest within one standard error, and the best gamma of every alpha.

    `losses` has shape (alphas, gammas, splits). Each alpha counts with its best gamma: the two are chosen together.
    """
    gamma_of = losses.mean(axis=-1).argmin(axis=1)
    best, within = best_and_within_error(losses[np.arange(len(losses)), gamma_of])
    return best, within, gamma_of


def best_and_within_error(losses: np.ndarray) -> tuple[int, int | None]:
    """Positions in losses (alphas, splits): the least on average, and the first within one standard error of it."""
    mean = losses.mean(axis=1)
    best, splits = int(mean.argmin()), losses.shape[1]
    if splits < 2:
        return best, None
    error = losses[best].std(ddof=1) / np.sqrt(splits)
    return best, int(np.flatnonzero(mean <= mean[best] + error)[0])  # alphas fall: the first is the largest


def check_classes_of_splits(
    name: str, sites: Sequence[str], summaries: Sequence[PooledSummary], rows: Sequence[int], classes: np.ndarray
) -> None:
    """Refuse a split that trains without one of the classes: its held-out rows would have an infinite loss."""
    for split in summaries:
        found = split.labels.classes
        absent = classes if found is None else np.setdiff1d(classes, found)
        if absent.size:
            out = [site for site, here, m in zip(sites, split.rows, rows, strict=True) if here < m]
            raise InputError(
                f"{name}: one split has no row of class {absent[0]!s} to learn from; it holds out rows of: {', '.join(out)}. "
                "Use fewer folds, another seed, folds inside the sites, or leave the class out."
            )
