"""From a federation to a fitted model, at the server: describe the sites, prepare the problem, solve, certify.

Every step is a server program (`federation.server.program`): it asks queries and reads no row. The estimators run the same
lines over sites in this process and over a network.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from compfed._utils.text import join_names
from compfed._utils.validation import check_distinct_names
from compfed.errors import ClassesDifferWarning, InputError
from compfed.estimators.programs.gap_and_uniqueness import certify_further
from compfed.estimators.programs.likelihood import Likelihood, Normal
from compfed.estimators.programs.per_column import read_bounds, read_factors
from compfed.federation.enrolment import check_columns, has_policy, max_hessian_columns
from compfed.federation.queries import Describe, Description, Evaluate, Moments, MomentsSum
from compfed.federation.server.moments import pooled_mean, spread
from compfed.federation.server.program import Federation, Program, Request
from compfed.federation.spec import FeatureScaling, FederatedProblem, ObjectiveSpec
from compfed.losses import Loss, OneOutput, SiteLoss, Squared, WithOffset
from compfed.losses.offset import unwrapped
from compfed.problem_spec import safe_norm
from compfed.regularisers import Box, ElasticNet, NonNegative, OnBlock, Regulariser, SumOf, Zero
from compfed.regularisers.coordinate_form import CoordinateForm, coordinate_form
from compfed.solvers.auto import allowed_columns, evaluate_start, solve, solve_all
from compfed.solvers.base import FederatedSolution, SearchOptions, Start
from compfed.splits import Fold, RowSubset
from compfed.stopping import Certificate

INTERCEPT_MESSAGES = 50  # at most, for an intercept that has no formula
NO_ROWS = "a fold holds out every row, or none; give other folds."


# --- the model family ---


@dataclass(frozen=True)
class Labels:
    """The labels of all sites together, as sums."""

    classes: np.ndarray | None  # their names, where labels are names
    shares: np.ndarray | None  # the weight of each class, summing to 1
    mean: np.ndarray | None  # of numbers: one per outcome
    one_column: bool = True  # one number per row, rather than a row of numbers


class Family:
    """Loss, penalty and null intercept of an estimator: least squares, unless a subclass says otherwise.

    Subclasses are frozen dataclasses and know no rows.
    """

    classifies: ClassVar[bool] = False  # labels are names of classes, not numbers
    has_intercept: ClassVar[bool] = True  # without one, a constant added to all predictions changes nothing

    def with_columns(self, names: tuple[str, ...] | None, width: int) -> Family:
        """The family for these columns, for a penalty that refers to some of them."""
        return self

    def loss(self, labels: Labels) -> Loss:
        return Squared()

    def penalty(self, alpha: float, scale: np.ndarray, outputs: int) -> Regulariser:
        """The penalty of u = scale * w, for coefficients w of shape (width, outputs)."""
        raise NotImplementedError

    def constraint(self, scale: np.ndarray, outputs: int) -> Regulariser | None:
        """The bounds of u = scale * w, if there are any."""
        return None

    def column_scale(self, scale: np.ndarray, standardize: bool) -> np.ndarray:
        """The scale of each column that the penalty allows (one per group, for a penalty of groups)."""
        return scale

    def fits_scale(self, standardize: bool) -> bool:
        """Whether the penalty of folds can be stated in the scaling of all rows, where columns have one scale for each fold."""
        return True

    def likelihood(self, labels: Labels) -> Likelihood:
        """The likelihood whose negative logarithm the loss is; raises `InputError` with the reason where it is none."""
        return Normal()

    def null_intercept(self, labels: Labels) -> np.ndarray | None:
        """The best intercepts without features; None where that takes a search."""
        return labels.mean

    def representative(self, coef: np.ndarray, refit: bool = False) -> np.ndarray:
        """Coefficients (width, outputs) to publish, of all with the same predictions and the same penalty, or none in a refit."""
        return coef

    def coef_and_intercept(self, coef: np.ndarray, intercept: np.ndarray) -> tuple[np.ndarray, np.ndarray | float]:
        """coef_ and intercept_ from (width, outputs) and (outputs,)."""
        return coef[:, 0], float(intercept[0])


@dataclass(frozen=True, eq=False)
class ElasticNetFamily(Family):
    """A family with the penalty alpha sum_j factor_j (l1_ratio |w_j| + (1 - l1_ratio) / 2 w_j^2), for w within bounds.

    `factors` and `bounds` are those that the user gave, and arrays after `with_columns`. A column of factor inf is left out: its
    bounds are 0 and 0, and its factor is 0.
    """

    l1_ratio: float
    positive: bool = False
    factors: Any = None
    bounds: Any = None

    def with_columns(self, names: tuple[str, ...] | None, width: int) -> Family:
        factors, bounds = read_factors(self.factors, names, width), read_bounds(self.bounds, names, width)
        if factors is None and bounds is None:
            return self
        lower, upper = (np.full(width, -np.inf), np.full(width, np.inf)) if bounds is None else bounds
        if self.positive:
            lower = np.maximum(lower, 0.0)
        if factors is not None:
            out = np.isinf(factors)
            factors, lower, upper = (np.where(out, 0.0, values) for values in (factors, lower, upper))
        bounded = (lower > -np.inf).any() or (upper < np.inf).any()
        return replace(self, factors=factors, bounds=(lower, upper) if bounded else None)

    def penalty(self, alpha: float, scale: np.ndarray, outputs: int) -> Regulariser:
        s, alphas = np.repeat(scale, outputs), alpha
        if self.factors is not None:
            alphas = alpha * np.repeat(self.factors, outputs)
        return ElasticNet(l1=alphas * self.l1_ratio / s, l2=alphas * (1.0 - self.l1_ratio) / s**2)

    def constraint(self, scale: np.ndarray, outputs: int) -> Regulariser | None:
        if self.bounds is not None:
            lower, upper = (np.repeat(side * scale, outputs) for side in self.bounds)
            return Box(lower, upper)
        return NonNegative() if self.positive else None


@dataclass(frozen=True)
class FitOptions:
    """The parameters of an estimator, checked."""

    family: Family
    search: SearchOptions
    fit_intercept: bool = True
    standardize: bool = False
    equal_sites: bool = False  # every site counts the same, rather than every row
    gammas: tuple[float, ...] = (1.0,)  # shares of the penalised fit beside a refit on its support; 1 needs no refit
    site_effects: bool = False  # an intercept of its own for every site, which stays there
    cv_tol: float = 0.0  # of fits without the rows of a fold, where it is larger than that of the search
    frugal: bool = False  # whether a path that only chooses alpha is to release few numbers (`plan`)

    @property
    def weighting(self) -> Literal["rows", "sites"]:
        """How a site weighs its own part of a sum."""
        return "sites" if self.equal_sites else "rows"

    @property
    def scales_subsets(self) -> bool:
        """Whether a subset of the rows has a scaling, or a spread of its columns, of its own."""
        return self.standardize or not self.family.fits_scale(self.standardize)

    def penalty(self, scaling: FeatureScaling, spread: np.ndarray, alpha: float) -> Regulariser:
        """The penalty at alpha of scaled coefficients; `spread` is that of the columns over the rows to fit to."""
        scale = scaling.scale / spread if self.standardize else scaling.scale
        penalty = self.family.penalty(alpha, scale, scaling.outputs)
        # bounds are those of w, standardised or not
        constraint = self.family.constraint(scaling.scale, scaling.outputs)
        penalty = penalty if constraint is None else SumOf(penalty, constraint)
        return OnBlock(penalty, 0, scaling.penalised) if scaling.intercept else penalty


# --- describe the sites ---


@dataclass(frozen=True)
class PooledSummary:
    """Row counts, labels and column moments of the sites: of all rows, or of a subset of them."""

    subset: RowSubset | None
    rows: np.ndarray  # of each site
    totals: np.ndarray  # weight of each site's rows
    weights: np.ndarray  # p_i
    labels: Labels
    columns: tuple[str, ...] | None
    width: int
    moments: MomentsSum | None  # None where the scaling of all rows will do
    offset: bool = False  # do rows have offsets?

    def spread_about(self, centre: np.ndarray | None = None) -> np.ndarray:
        """The root mean square distance of every column from its mean, or from a centre."""
        assert self.moments is not None, "the moments of this summary were not asked for"
        return spread(self.moments, pooled_mean(self.moments) if centre is None else centre)


def describe_sites(
    federation: Federation, options: FitOptions, subset: RowSubset | None = None, moments: bool = True
) -> Program[PooledSummary]:
    """One message: rows, columns and labels of the sites, and the moments of their columns unless those are not needed."""
    counted = np.ones(len(federation.names)) if options.equal_sites else None  # each site once, or each row
    asked = [Request((Describe(options.family.classifies, subset),), weighting=options.weighting)]
    if moments:
        asked.append(Request((Moments(subset),), weights=counted, weighting=options.weighting, counts=False))
    (sites,), *rest = yield asked
    summed = rest[0][0] if rest else None
    check_columns(federation.names, sites.widths, sites.columns)
    totals = np.asarray(sites.weights, float)
    if not sites.weight:
        raise InputError(NO_ROWS)
    each = (totals > 0).astype(float) if options.equal_sites else totals
    labels = _labels(federation.names, sites, options, sites.sites if options.equal_sites else sites.weight)
    if options.family.classifies and subset is None:
        _warn_of_classes(federation, sites)
    columns, width = sites.columns[0], sites.widths[0]
    offset = _all_or_none(federation.names, sites.offsets)
    return PooledSummary(subset, sites.rows, totals, each / each.sum(), labels, columns, width, summed, offset)


def _all_or_none(names: Sequence[str], offsets: Sequence[bool]) -> bool:
    """Whether all sites have offsets; refuses some."""
    if any(offsets) and not all(offsets):
        one, other = names[offsets.index(True)], names[offsets.index(False)]
        raise InputError(
            f"the rows of site {one!r} have an offset, those of site {other!r} have none. Give one at every site (0 where there "
            "is nothing to add), or at none."
        )
    return any(offsets)


def _warn_of_classes(federation: Federation, sites: Description) -> None:
    """Warn where every site has two classes and the sites together have more: 0 and 1 at one, 1 and 2 at another."""
    schema = federation.schema
    agreed = schema is not None and schema.label is not None and schema.label.classes is not None
    each = [classes for classes in sites.site_classes if classes is not None and len(classes)]
    if agreed or len(sites.classes) <= 2 or len(each) < 2 or any(len(classes) != 2 for classes in each):
        return
    pairs = {
        " and ".join(map(str, classes.tolist())): name for name, classes in zip(federation.names, each, strict=False)
    }
    shown = join_names([f"{pair} (site {name!r})" for pair, name in pairs.items()], "; ", 3)
    warnings.warn(
        f"every site has two classes, and together they have {len(sites.classes)}: {shown}. Do the sites write the same "
        "classes differently? Then write them alike; if not, a schema with all classes says so.",
        ClassesDifferWarning,
        stacklevel=2,
    )


def _labels(names: Sequence[str], sites: Description, options: FitOptions, total: float) -> Labels:
    """Class shares or the mean label, over all sites of this total weight."""
    if not options.family.classifies:
        if len(set(sites.label_shapes)) > 1:
            shapes = sorted(set(sites.label_shapes))
            raise InputError(f"the sites have labels of different shapes, {shapes}; all need the same outcomes.")
        summed = sites.label_sum
        assert summed is not None, "labels are numbers of one shape"
        return Labels(None, None, np.atleast_1d(summed / total), one_column=np.ndim(summed) == 0)
    words = [kind in "UO" for kind in sites.label_kinds]
    if any(words) and not all(words):  # as words, 1 and "1.0" would be two classes
        one, other = names[words.index(True)], names[words.index(False)]
        raise InputError(
            f"the classes are words at site {one!r} and numbers at site {other!r}; write them in the same way at every site."
        )
    check_distinct_names("labels are the classes of rows", sites.classes)
    return Labels(sites.classes, sites.class_weights / total, None)


# --- prepare the problem ---


@dataclass(frozen=True)
class PreparedProblem:
    """The smooth part of a problem on scaled features, and its null model: no feature, the best intercept."""

    options: FitOptions
    spec: FederatedProblem
    scaling: FeatureScaling
    spread: np.ndarray  # of the columns, over the rows to fit to
    null: Start
    summary: PooledSummary
    max_hessian_columns: float | None = None  # of these rows, where `spec` has those of all rows

    def at(self, alpha: float) -> FederatedProblem:
        """The problem with a penalty."""
        return self.spec.with_regulariser(self.options.penalty(self.scaling, self.spread, alpha))

    def coef_and_intercept(
        self, x: np.ndarray, refit: bool = False, common: float | None = None
    ) -> tuple[np.ndarray, np.ndarray | float]:
        """coef_ and intercept_ of a flat model; where sites have their own intercepts, with the best `common` one."""
        x, scaling = (
            (x, self.scaling) if common is None else (np.append(x, common), replace(self.scaling, intercept=True))
        )
        family, (coef, intercept) = self.options.family, scaling.coefficients(x)
        return family.coef_and_intercept(family.representative(coef, refit), intercept)

    def coefs_and_intercepts(self, path: Sequence[Relaxed]) -> tuple[np.ndarray, np.ndarray]:
        """coef_ and intercept_ of every model of a path."""
        coefs, intercepts = zip(*(self.mixture(model) for model in path), strict=True)
        return np.array(coefs), np.array(intercepts)

    def mixture(self, model: Relaxed) -> tuple[np.ndarray, np.ndarray | float]:
        """coef_ and intercept_ of gamma * penalised fit + (1 - gamma) * refit."""
        if model.common is not None:  # one prediction per row: there is one representative
            return self.coef_and_intercept(model.x, common=model.common)
        penalised = self.coef_and_intercept(model.penalised.x)
        if model.refit is None or model.gamma == 1:
            return penalised
        refitted, share = self.coef_and_intercept(model.refit.x, refit=True), model.gamma
        coef, intercept = (share * a + (1 - share) * b for a, b in zip(penalised, refitted, strict=True))
        return coef, intercept  # pyright: ignore[reportReturnType]  # an array and what the family makes of the intercept

    # --- problems without a penalty, on some of the coefficients ---

    @property
    def form(self) -> CoordinateForm:
        """The penalty at alpha = 1 with its bounds, coefficient by coefficient."""
        form = coordinate_form(self.at(1.0).regulariser, self.spec.d)
        assert form is not None, "only penalties of coefficients and groups have a support"
        return form

    def unpenalised(self) -> np.ndarray:
        """Which coefficients have no penalty and are not held at 0: factors of 0; not the intercepts."""
        g = self.at(1.0).regulariser
        form = coordinate_form(g, self.spec.d)
        if form is None:
            return np.zeros(self.spec.d, bool)
        weight = np.append(form.group_weight, 0.0)[form.group]
        free = (form.l1 == 0) & (form.l2 == 0) & (weight == 0) & (form.lower < form.upper)
        free[self.scaling.penalised :] = False
        return free

    def support(self, x: np.ndarray) -> np.ndarray:
        """Which coefficients a refit may use: those that are not 0 as published, whole groups, and the unpenalised ones."""
        coef, _ = self.coef_and_intercept(x)
        used = self.unpenalised()
        used[: self.scaling.penalised] |= (np.atleast_2d(coef).T != 0).ravel()
        used[self.scaling.penalised :] = True
        form = self.form
        groups = np.unique(form.group[used])
        return used | np.isin(form.group, groups[groups >= 0])

    def restricted(self, kept: np.ndarray) -> FederatedProblem:
        """The problem without a penalty, the coefficients outside `kept` held at 0. Bounds still apply."""
        form = self.form
        lower, upper = (np.where(kept, side, 0.0) for side in (form.lower, form.upper))
        own = replace(self.spec, hessian_columns=self.own_hessian_columns, max_hessian_columns=self.own_max)
        return own.with_regulariser(Box(lower, upper))

    @property
    def own_max(self) -> float:
        """Columns on which sites give a Hessian of these rows, to a search that shares none."""
        return self.spec.max_hessian_columns if self.max_hessian_columns is None else self.max_hessian_columns

    @property
    def own_hessian_columns(self) -> tuple[int, ...] | None:
        """Of a search that shares no Hessians: sites count the columns of all rows, which are too many for a subset."""
        return self.spec.hessian_columns if self.summary.subset is None else None

    @property
    def gives_own_hessians(self) -> bool:
        """Whether sites give Hessians of these rows on all columns."""
        return self.own_max >= self.summary.width and self.own_hessian_columns == self.spec.hessian_columns


def _with_rows(loss: Loss, offset: bool, site_effects: bool) -> Loss:
    """The loss with an offset of each row; refuses offsets and site effects for several predictions per row."""
    if isinstance(loss, SiteLoss):  # has the offsets in its labels
        return loss
    for given, what in ((offset, "an offset"), (site_effects, "site_effects='profile'")):
        if given and not isinstance(loss, OneOutput):
            raise InputError(
                f"{what} is for one prediction per row; {type(loss).__name__} has several (three classes or more, or several "
                "outcomes). Leave it out, or fit one outcome at a time."
            )
    return WithOffset(loss) if offset else loss


def prepare(
    federation: Federation,
    options: FitOptions,
    summary: PooledSummary,
    classes: np.ndarray | None,
    shared: Scaled | None = None,
) -> Program[PreparedProblem]:
    """Scale the features so that the problem is well conditioned, and evaluate the null model.

    `classes` are those of all rows, where the summary is of a subset. With the scaling of all rows (`shared`), the problem of a
    subset is stated in that, as far as the penalty allows: sites then keep one scaled copy of their rows.
    """
    options = replace(options, family=options.family.with_columns(summary.columns, summary.width))
    family, labels = options.family, replace(summary.labels, classes=classes)
    loss = _with_rows(family.loss(labels), summary.offset, options.site_effects)
    outputs, profile = loss.size(1), options.site_effects
    intercept = options.fit_intercept and not profile and family.has_intercept
    if labels.mean is not None and len(labels.mean) != outputs and not isinstance(loss, SiteLoss):
        raise InputError(f"the sites have {len(labels.mean)} outcomes per row; this model takes {outputs}.")
    fits = shared is not None and family.fits_scale(options.standardize)
    scaling, columns_spread = (
        shared if summary.moments is None and shared is not None else scaled(options, summary, classes)
    )
    if shared is not None and fits:
        scaling = shared.scaling
    spec = FederatedProblem(
        objective=ObjectiveSpec(loss, scaling, classes, summary.subset, profile=profile),
        weighting=options.weighting,
        regulariser=Zero(),
        weights=summary.weights,
        names=federation.names,
        numbers=tuple(range(len(federation.names))),
        sizes=np.maximum(summary.rows, 1),
        width=summary.width + int(intercept),
        max_hessian_columns=max_hessian_columns(
            federation.enrolments,
            summary.subset.folds if isinstance(summary.subset, Fold) else 0,
            getattr(loss, "jumps", False),
        ),
        policy=has_policy(federation.enrolments),
    )
    null = np.zeros(spec.d)
    if intercept:
        best = family.null_intercept(labels)
        if best is None or summary.offset:
            best = yield from _search_intercept(spec, near(best, labels))
        null[scaling.penalised :] = best
    penalised = spec.with_regulariser(options.penalty(scaling, columns_spread, 1.0))
    # of another loss the Hessian of all rows serves a subset as well
    start = yield from evaluate_start(
        penalised, options.search, null, hessian=summary.subset is None or not fits or spec.loss_is_quadratic
    )
    if summary.subset is None or shared is None:
        spec = replace(spec, hessian_columns=allowed_columns(spec, start))
    return PreparedProblem(options, spec, scaling, columns_spread, start, summary)


class Scaled(NamedTuple):
    """The scaling of some rows, and the spread of their columns."""

    scaling: FeatureScaling
    spread: np.ndarray


def scaled(options: FitOptions, summary: PooledSummary, classes: np.ndarray | None) -> Scaled:
    """The scaling of the rows of a summary."""
    family = options.family.with_columns(summary.columns, summary.width)
    outputs = family.loss(replace(summary.labels, classes=classes)).size(1)
    assert summary.moments is not None, "the moments of this summary were not asked for"
    centred = options.fit_intercept or not family.has_intercept
    centre = pooled_mean(summary.moments) if centred else np.zeros(summary.width)
    # a standard deviation is about the mean, whether columns are centred or not
    away = summary.spread_about(None if options.standardize else centre)
    intercept = options.fit_intercept and not options.site_effects and family.has_intercept
    return Scaled(FeatureScaling(centre, family.column_scale(away, options.standardize), intercept, outputs), away)


def _search_intercept(spec: FederatedProblem, centre: float) -> Program[np.ndarray]:
    """The intercept that minimises f without features. The first message asks around `centre`, ever further away.

    Sites with a policy count what leaves against their labels alone: fewer points then, in more messages.
    """
    nothing = np.empty(0)
    scaling, columns = FeatureScaling(nothing, nothing, True), nothing.astype(int)
    objective = replace(spec.objective, scaling=scaling, columns=columns, profile=False)
    reach = 12 if spec.loss.curvature is not None else 6  # an exponential overflows further out
    far = np.ldexp(max(abs(centre), 1.0), np.arange(-12, reach, 6 if spec.policy else 1))
    points = np.concatenate([centre - far[::-1], [centre], centre + far])[None]
    return (yield from _intercepts(replace(spec, objective=objective), np.empty((1, 0)), points, moves=False))


def common_intercepts(prepared: PreparedProblem, models: np.ndarray) -> Program[np.ndarray]:
    """The best common intercept for each model of a profile, in the coordinates of the scaling. A few messages."""
    spec, loss = prepared.spec, unwrapped(prepared.spec.loss)
    scaling = replace(prepared.scaling, intercept=True)
    objective = replace(spec.objective, scaling=scaling, profile=False)
    wide = getattr(loss, "delta", None) or 1.0
    start = prepared.options.family.null_intercept(prepared.summary.labels)
    if start is None or prepared.summary.offset:
        start = yield from _search_intercept(spec, near(start, prepared.summary.labels))
    points = float(start[0]) + wide * np.linspace(-1.0, 1.0, 9)
    every = np.broadcast_to(points, (len(models), points.size))
    return (yield from _intercepts(replace(spec, objective=objective, width=spec.width + 1), models, every, moves=True))


def near(best: np.ndarray | None, labels: Labels) -> float:
    """A point near the best intercept, to search around."""
    near = labels.mean if best is None else best
    return 0.0 if near is None else float(near[0])


def _intercepts(spec: FederatedProblem, models: np.ndarray, points: np.ndarray, moves: bool) -> Program[np.ndarray]:
    """For each model the intercept that minimises f: the zero of its derivative, which grows with the intercept.

    A message asks for the derivative at many points: at the given ones first, then between the two where it changes sign, with
    the zero of the line between them, and of a polynomial where the derivative is smooth. A piecewise linear derivative is done
    once both are on one piece. Where it does not change sign, the points move on, or the nearest one is taken.
    """
    smooth = not getattr(spec.loss, "jumps", False)
    enough, best, flat = 1e-13 if smooth else 1e-15, points[:, points.shape[1] // 2].copy(), np.empty(0)
    places = {k: points[k] for k in range(len(models))}  # of the models that are under way
    ends = {
        k: np.empty((3, 0)) for k in places
    }  # where the derivative changes sign: points, derivatives, what is enough
    for _ in range(INTERCEPT_MESSAGES):
        x = np.concatenate([np.column_stack([np.tile(models[k], (len(at), 1)), at]) for k, at in places.items()])
        request = Request((Evaluate(spec.objective, x),), weights=spec.weights, weighting=spec.weighting, models=len(x))
        ((summed,),) = yield [request]
        cuts = np.cumsum([len(at) for at in places.values()])[:-1]
        parts = zip(np.split(summed.gradient[:, -1], cuts), np.split(summed.terms, cuts), strict=True)
        for (k, at), (slopes, terms) in zip(list(places.items()), parts, strict=True):
            known = np.concatenate([ends[k], [at, slopes, enough * terms]], axis=1)
            known = known[:, np.argsort(known[0])]
            best[k], asked = _next_points(known[0], known[1], known[2], smooth, moves, 2 if spec.policy else 16)
            flat = flat if flat.size else known[1, [0, -1]]  # far out every row has its largest derivative
            if spec.policy and not smooth and _has_steps(known[1], flat):
                asked = np.empty(0)
            ends[k] = known[:, np.isin(known[0], asked)] if asked.size else known[:, :0]
            places[k] = asked[~np.isin(asked, known[0])]
        places = {k: at for k, at in places.items() if at.size}
        if not places:
            break
    return best


def _next_points(
    at: np.ndarray, slopes: np.ndarray, enough: np.ndarray, smooth: bool, moves: bool, points: int
) -> tuple[float, np.ndarray]:
    """The best point so far, and those to ask for next, so many between two and these; none at the end."""
    there = np.isfinite(slopes)  # an exponential overflows far out
    at, slopes, enough = at[there], slopes[there], enough[there]
    nearest, nothing = int(np.abs(slopes).argmin()), np.empty(0)
    best, span = float(at[nearest]), at[-1] - at[0]
    if np.abs(slopes[nearest]) <= enough[nearest]:
        return best, nothing
    if slopes[0] > 0 or slopes[-1] < 0:
        away = np.linspace(-2.0, 0.0, len(at)) if slopes[0] > 0 else np.linspace(0.0, 2.0, len(at))
        return best, best + span * away if moves else nothing
    i = int(np.flatnonzero(slopes > 0)[0])
    low, high = at[i - 1], at[i]
    if high - low <= 4 * np.spacing(max(abs(low), abs(high))):
        return best, nothing
    zeros = [low - slopes[i - 1] * (high - low) / (slopes[i] - slopes[i - 1])]
    if smooth:
        near = slice(max(i - 4, 0), i + 4)
        zeros.append(np.clip(_inverse(slopes[near], at[near]), low, high))
    return best, np.unique([*np.linspace(low, high, points + 2), *zeros])


def _has_steps(slopes: np.ndarray, flat: np.ndarray) -> bool:
    """Whether the derivative is rounded, as sites with a policy do, and what is left to find is the place of a step."""
    return bool((np.isin(slopes[1:], slopes[:-1]) & ~np.isin(slopes[1:], flat)).any())


def _inverse(slopes: np.ndarray, at: np.ndarray) -> float:
    """The point of slope 0 on the polynomial through these points, as a function of the slope (Neville's scheme)."""
    s, first = np.unique(slopes, return_index=True)
    p = at[first].astype(float)
    for k in range(1, len(s)):
        p = (s[k:] * p[:-1] - s[:-k] * p[1:]) / (s[k:] - s[:-k])
    return float(p[0])


# --- fit ---


@dataclass(frozen=True)
class Relaxed:
    """A penalised fit, and the refit on its support with which it is mixed, if any."""

    penalised: FederatedSolution
    refit: FederatedSolution | None = None
    gamma: float = 1.0
    common: float | None = None  # the best common intercept, where every site has one of its own

    @property
    def x(self) -> np.ndarray:
        """The flat mixture gamma * penalised fit + (1 - gamma) * refit."""
        if self.refit is None or self.gamma == 1:
            return self.penalised.x
        return self.gamma * self.penalised.x + (1 - self.gamma) * self.refit.x


@dataclass(frozen=True)
class Fitted:
    """A minimiser with its certificates."""

    prepared: PreparedProblem
    minimum: FederatedSolution  # that of the certificate: the refit, where there is one
    gap: float | None
    others: np.ndarray | None  # positions of coefficients that differ in another minimiser; None if not known
    model: Relaxed

    @property
    def coef_and_intercept(self) -> tuple[np.ndarray, np.ndarray | float]:
        """coef_ and intercept_."""
        return self.prepared.mixture(self.model)

    @property
    def certificate(self) -> Certificate:
        """The certificate of the published model, with the rounding of the change back to the original scale."""
        found, prepared = self.minimum.certificate, self.prepared
        coef, intercept = prepared.scaling.coefficients(self.minimum.x)
        sizes = np.abs(prepared.scaling.centre) @ np.abs(coef) + np.abs(intercept)  # of the terms of a prediction
        curvature = prepared.spec.loss.curvature
        L = prepared.null.L if curvature is None else float(curvature)
        lost = 0.5 * float(np.finfo(float).eps) * L * safe_norm(sizes)
        unique = None if self.others is None else not self.others.size
        return replace(found, duality_gap=self.gap, unique=unique, rounding=found.rounding + lost)

    @property
    def undecided(self) -> list[str]:
        """Names of the columns, or the intercept, whose coefficients differ in another minimiser."""
        if self.others is None:
            return []
        scaling, columns = self.prepared.scaling, self.prepared.summary.columns
        features = np.unique(self.others[self.others < scaling.penalised] // scaling.outputs)
        named = [f"column {j}" if columns is None else repr(columns[j]) for j in features.tolist()]
        return named + ["the intercept"] * bool((self.others >= scaling.penalised).any())


def describe_and_prepare(
    federation: Federation, options: FitOptions, subset: RowSubset | None = None
) -> Program[PreparedProblem]:
    """Describe the sites and prepare the problem of all rows, or of a subset."""
    summary = yield from describe_sites(federation, options, subset)
    return (yield from prepare(federation, options, summary, summary.labels.classes))


def fit(federation: Federation, options: FitOptions, alpha: float, subset: RowSubset | None = None) -> Program[Fitted]:
    """A fit with a given alpha, to all rows or to a subset."""
    prepared = yield from describe_and_prepare(federation, options, subset)
    return (yield from certify(prepared, alpha, (yield from search(federation, prepared, alpha))))


def search(federation: Federation, prepared: PreparedProblem, alpha: float) -> Program[Relaxed]:
    """The minimiser at alpha, and its refit where the fit is relaxed."""
    options = prepared.options
    minimum = yield from solve(federation, prepared.at(alpha), options.search, prepared.null)
    ((refitted,),) = yield from refit_on_supports(federation, [(prepared, [minimum])])
    return Relaxed(minimum, refitted, options.gammas[0])


def certify(prepared: PreparedProblem, alpha: float, model: Relaxed) -> Program[Fitted]:
    """The minimiser with its duality gap, where one is known, and whether it is unique.

    Those of a relaxed fit are the certificates of the refit, unless the penalised fit did not converge.
    """
    minimum = model.penalised
    if model.refit is not None and minimum.converged:
        minimum = model.refit
        model = (yield from with_common_intercepts(prepared, [model]))[0]
        refitted = prepared.restricted(prepared.support(model.penalised.x))
        found = yield from certify_further(refitted, minimum, None)
        return Fitted(prepared, minimum, None, found.others, model)
    spec = prepared.at(alpha)
    gap, others = yield from certify_further(spec, minimum, prepared.scaling, prepared.null)
    model = (yield from with_common_intercepts(prepared, [model]))[0]
    return Fitted(prepared, minimum, gap, others, model)


def with_common_intercepts(prepared: PreparedProblem, models: Sequence[Relaxed]) -> Program[list[Relaxed]]:
    """The models, with the best common intercept of each where sites have their own."""
    if not prepared.options.site_effects or all(model.common is not None for model in models):
        return list(models)
    found = yield from common_intercepts(prepared, np.array([model.x for model in models]))
    return [replace(model, common=float(b)) for model, b in zip(models, found, strict=True)]


def refit_on_supports(
    federation: Federation, fits: Sequence[tuple[PreparedProblem, Sequence[FederatedSolution]]]
) -> Program[list[list[FederatedSolution | None]]]:
    """The minimiser without a penalty on the support of each model of some paths; None without relax.

    Once for the models of a path that have one support. All searches share their messages.
    """
    if all(gamma == 1 for gamma in fits[0][0].options.gammas):
        return [[None] * len(path) for _, path in fits]
    supports = [[prepared.support(m.x) for m in path] for prepared, path in fits]
    first: dict[tuple[int, bytes], tuple[PreparedProblem, FederatedSolution, np.ndarray]] = {}
    for k, (prepared, path) in enumerate(fits):
        for model, support in zip(path, supports[k], strict=True):
            first.setdefault((k, support.tobytes()), (prepared, model, support))
    tasks = [
        (prepared.restricted(support), refit_start(prepared, model, support))
        for prepared, model, support in first.values()
    ]
    search = replace(fits[0][0].options.search, progress=None)
    found = dict(zip(first, (yield from solve_all(federation, tasks, search)), strict=True))
    return [[found[k, support.tobytes()] for support in each] for k, each in enumerate(supports)]


def refit_start(prepared: PreparedProblem, model: FederatedSolution, support: np.ndarray) -> Start:
    """A refit starts from the penalised model, whose evaluation is known."""
    if model.x[~support].any():  # it is published in another form, with more zeros
        return replace(prepared.null, x=np.where(support, model.x, 0.0), at=None)
    same = prepared.gives_own_hessians or prepared.summary.subset is None
    return replace(prepared.null, x=model.x, at=model.at, kept=model.kept if same else None)
