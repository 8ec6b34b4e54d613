"""From a federation to a fitted model, at the server: describe the sites, prepare the problem, solve, certify.

Every step is a server program (`federation.server.program`): it asks queries and reads no row. The estimators run the same
lines over sites in this process and over a network. `r2_score` evaluates a fitted model on rows that stay at their sites.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from compfed._utils.text import join_names
from compfed._utils.validation import check_distinct_names
from compfed.errors import ClassesDifferWarning, InputError
from compfed.estimators.programs.gap_and_uniqueness import duality_gap, non_unique_coefficients
from compfed.federation.enrolment import check_columns, max_hessian_columns
from compfed.federation.queries import Describe, Evaluate, HeldOut, Moments
from compfed.federation.server.moments import pooled_mean, spread
from compfed.federation.server.program import Federation, Program, Request, enrolments_of
from compfed.federation.spec import FeatureScaling, FederatedProblem, ObjectiveSpec
from compfed.federation.sums import Description, MomentsSum
from compfed.losses import Loss, Squared
from compfed.problem_spec import safe_norm
from compfed.regularisers import ElasticNet, NonNegative, OnBlock, Regulariser, SumOf, Zero
from compfed.solvers.auto import evaluate_start, solve
from compfed.solvers.base import FederatedSolution, SearchOptions, Start
from compfed.splits import Fold, RowSubset, SiteFold
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

    def with_columns(self, names: tuple[str, ...] | None) -> Family:
        """The family with the names of the columns, for a penalty that refers to them."""
        return self

    def loss(self, labels: Labels) -> Loss:
        return Squared()

    def penalty(self, alpha: float, scale: np.ndarray, outputs: int) -> Regulariser:
        """The penalty of u = scale * w, for coefficients w of shape (width, outputs)."""
        raise NotImplementedError

    def column_scale(self, scale: np.ndarray, standardize: bool) -> np.ndarray:
        """The scale of each column that the penalty allows (one per group, for a penalty of groups)."""
        return scale

    def null_intercept(self, labels: Labels) -> np.ndarray | None:
        """The best intercepts without features; None where that takes a search."""
        return labels.mean

    def coef_and_intercept(self, coef: np.ndarray, intercept: np.ndarray) -> tuple[np.ndarray, np.ndarray | float]:
        """coef_ and intercept_ from (width, outputs) and (outputs,)."""
        return coef[:, 0], float(intercept[0])


@dataclass(frozen=True)
class ElasticNetFamily(Family):
    """A family with the penalty alpha (l1_ratio ||w||_1 + (1 - l1_ratio) / 2 ||w||^2), and w >= 0 if it must be positive."""

    l1_ratio: float
    positive: bool = False

    def penalty(self, alpha: float, scale: np.ndarray, outputs: int) -> Regulariser:
        s = np.repeat(scale, outputs)
        penalty = ElasticNet(l1=alpha * self.l1_ratio / s, l2=alpha * (1.0 - self.l1_ratio) / s**2)
        return SumOf(penalty, NonNegative()) if self.positive else penalty


@dataclass(frozen=True)
class FitOptions:
    """The parameters of an estimator, checked."""

    family: Family
    search: SearchOptions
    fit_intercept: bool = True
    standardize: bool = False
    equal_sites: bool = False  # every site counts the same, rather than every row

    @property
    def weighting(self) -> Literal["rows", "sites"]:
        """How a site weighs its own part of a sum."""
        return "sites" if self.equal_sites else "rows"

    def penalty(self, scaling: FeatureScaling, alpha: float) -> Regulariser:
        scale = np.ones_like(scaling.scale) if self.standardize else scaling.scale
        penalty = self.family.penalty(alpha, scale, scaling.outputs)
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
    moments: MomentsSum


def describe_sites(
    federation: Federation, options: FitOptions, subset: RowSubset | None = None
) -> Program[PooledSummary]:
    """One message: rows, columns and labels of the sites, and the moments of their columns."""
    counted = np.ones(len(federation.names)) if options.equal_sites else None  # each site once, or each row
    (sites,), (moments,) = yield [
        Request((Describe(options.family.classifies, subset),)),
        Request((Moments(subset),), weights=counted, weighting=options.weighting, counts=False),
    ]
    check_columns(federation.names, sites.widths, sites.columns)
    totals = np.asarray(sites.weights, float)
    if not sites.weight:
        raise InputError(NO_ROWS)
    each = (totals > 0).astype(float) if options.equal_sites else totals
    labels = _labels(federation.names, sites, options, sites.sites if options.equal_sites else sites.weight)
    if options.family.classifies and subset is None:
        _warn_of_classes(federation, sites)
    columns, width = sites.columns[0], sites.widths[0]
    return PooledSummary(subset, sites.rows, totals, each / each.sum(), labels, columns, width, moments)


def _warn_of_classes(federation: Federation, sites: Description) -> None:
    """Warn where every site has two classes and the sites together have more: 0 and 1 at one, 1 and 2 at another."""
    schema = getattr(federation, "schema", None)
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
    equal = options.equal_sites
    if not options.family.classifies:
        if len(set(sites.label_shapes)) > 1:
            shapes = sorted(set(sites.label_shapes))
            raise InputError(f"the sites have labels of different shapes, {shapes}; all need the same outcomes.")
        summed = sites.label_means if equal else sites.label_sum
        assert summed is not None, "labels are numbers of one shape"
        return Labels(None, None, np.atleast_1d(summed / total), one_column=np.ndim(summed) == 0)
    words = [kind in "UO" for kind in sites.label_kinds]
    if any(words) and not all(words):  # as words, 1 and "1.0" would be two classes
        one, other = names[words.index(True)], names[words.index(False)]
        raise InputError(
            f"the classes are words at site {one!r} and numbers at site {other!r}; write them in the same way at every site."
        )
    check_distinct_names("labels are the classes of rows", sites.classes)
    return Labels(sites.classes, (sites.class_shares if equal else sites.class_weights) / total, None)


# --- prepare the problem ---


@dataclass(frozen=True)
class PreparedProblem:
    """The smooth part of a problem on scaled features, and its null model: no feature, the best intercept."""

    options: FitOptions
    spec: FederatedProblem
    scaling: FeatureScaling
    null: Start
    summary: PooledSummary

    def at(self, alpha: float) -> FederatedProblem:
        """The problem with a penalty."""
        return self.spec.with_regulariser(self.options.penalty(self.scaling, alpha))

    def coef_and_intercept(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray | float]:
        """coef_ and intercept_ of a flat model."""
        return self.options.family.coef_and_intercept(*self.scaling.coefficients(x))

    def coefs_and_intercepts(self, path: Sequence[FederatedSolution]) -> tuple[np.ndarray, np.ndarray]:
        """coef_ and intercept_ of every model of a path."""
        coefs, intercepts = zip(*(self.coef_and_intercept(minimum.x) for minimum in path), strict=True)
        return np.array(coefs), np.array(intercepts)


def prepare(
    federation: Federation, options: FitOptions, summary: PooledSummary, classes: np.ndarray | None
) -> Program[PreparedProblem]:
    """Scale the features so that the problem is well conditioned, and evaluate the null model.

    `classes` are those of all rows, where the summary is of a subset.
    """
    options = replace(options, family=options.family.with_columns(summary.columns))
    family, labels = options.family, replace(summary.labels, classes=classes)
    loss = family.loss(labels)
    outputs = loss.size(1)
    if labels.mean is not None and len(labels.mean) != outputs:
        raise InputError(f"the sites have {len(labels.mean)} outcomes per row; this model takes {outputs}.")
    centre = pooled_mean(summary.moments) if options.fit_intercept else np.zeros(summary.width)
    scale = family.column_scale(spread(summary.moments, centre), options.standardize)
    scaling = FeatureScaling(centre, scale, options.fit_intercept, outputs)
    spec = FederatedProblem(
        objective=ObjectiveSpec(loss, scaling, classes, summary.subset),
        weighting=options.weighting,
        regulariser=Zero(),
        weights=summary.weights,
        names=federation.names,
        numbers=tuple(range(len(federation.names))),
        sizes=np.maximum(summary.rows, 1),
        width=summary.width + int(options.fit_intercept),
        max_hessian_columns=max_hessian_columns(
            enrolments_of(federation),
            summary.subset.folds if isinstance(summary.subset, Fold) else 0,
            getattr(loss, "jumps", False),
        ),
    )
    null = np.zeros(spec.d)
    if options.fit_intercept:
        best = family.null_intercept(labels)
        null[scaling.penalised :] = (yield from _search_intercept(spec, labels)) if best is None else best
    start = yield from evaluate_start(spec.with_regulariser(options.penalty(scaling, 1.0)), options.search, null)
    return PreparedProblem(options, spec, scaling, start, summary)


def _search_intercept(spec: FederatedProblem, labels: Labels) -> Program[np.ndarray]:
    """The intercept that minimises f without features: the zero of its derivative, which grows with the intercept.

    A message asks for the derivative at many points: around the mean label at first, then between the two where it changes
    sign, with the zero of the line between them. A piecewise linear derivative is done once both are on one piece.
    """
    assert labels.mean is not None
    nothing = np.empty(0)
    objective = replace(spec.objective, scaling=FeatureScaling(nothing, nothing, True), columns=nothing.astype(int))
    mean = float(labels.mean[0])
    far = np.ldexp(max(abs(mean), 1.0), np.arange(-12, 12))
    points, best = np.concatenate([mean - far[::-1], [mean], mean + far]), labels.mean
    for _ in range(INTERCEPT_MESSAGES):
        ((summed,),) = yield [
            Request((Evaluate(objective, points[:, None]),), weights=spec.weights, weighting=spec.weighting)
        ]
        derivatives, terms = summed.gradient[:, -1], summed.terms
        nearest = int(np.abs(derivatives).argmin())
        best = points[[nearest]]
        if np.abs(derivatives[nearest]) <= 1e-15 * terms[nearest] or derivatives[0] > 0 or derivatives[-1] < 0:
            break
        i = int(np.flatnonzero(derivatives > 0)[0])
        low, high = points[i - 1], points[i]
        zero = low - derivatives[i - 1] * (high - low) / (derivatives[i] - derivatives[i - 1])
        points = np.unique([*np.linspace(low, high, 18), zero])
        if high - low <= 4 * np.spacing(max(abs(low), abs(high))):
            break
    return best


# --- fit ---


@dataclass(frozen=True)
class Fitted:
    """A minimiser with its certificates."""

    prepared: PreparedProblem
    minimum: FederatedSolution
    gap: float | None
    others: np.ndarray | None  # positions of coefficients that differ in another minimiser; None if not known

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
    minimum = yield from solve(federation, prepared.at(alpha), options.search, prepared.null)
    return (yield from certify(prepared, alpha, minimum))


def certify(prepared: PreparedProblem, alpha: float, minimum: FederatedSolution) -> Program[Fitted]:
    """The minimiser with its duality gap, where one is known, and whether it is unique."""
    spec = prepared.at(alpha)
    gap = yield from duality_gap(spec, prepared.scaling, minimum, prepared.null)
    return Fitted(prepared, minimum, gap, non_unique_coefficients(spec, minimum))


# --- score ---

ALL_ROWS = SiteFold(-1, held_out=False)  # every site but one that does not exist


def r2_score(
    federation: Federation, coef: np.ndarray, intercept: float, columns: tuple[str, ...] | None
) -> Program[float]:
    """R^2 = 1 - sum_l (y_l - x_l^T w - b)^2 / sum_l (y_l - mean y)^2 over the rows of all sites. Two messages."""
    ((sites,),) = yield [Request((Describe(),))]
    described = zip(federation.names, sites.widths, sites.columns, sites.label_shapes, strict=True)
    for name, width, names, shape in described:
        if width != coef.size or (columns is not None and names not in (None, columns)):
            raise InputError(f"site {name!r} has other columns than the model was fitted with; nothing was scored.")
        if shape:
            raise InputError(f"site {name!r} has {shape[0]} outcomes per row; the model has one.")
    mean = float(sites.label_sum / sites.weight)
    scaling = FeatureScaling(np.zeros(coef.size), np.ones(coef.size), intercept=True)
    models = np.array([np.append(coef, intercept), np.append(np.zeros(coef.size), mean)])
    ((held_out,),) = yield [Request((HeldOut(ObjectiveSpec(Squared(), scaling), ALL_ROWS, models),), models=2)]
    residual, total = held_out.loss
    if total == 0.0:  # all labels are the same: as sklearn.metrics.r2_score has it
        return 1.0 if residual == 0.0 else 0.0
    return float(1.0 - residual / total)
