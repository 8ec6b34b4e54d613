"""From a federation to a fitted model, at the server: gather what the sites say, prepare the problem, solve, publish.

Every step is a talk (`federation.conversation`): it asks, and reads no row. `fit` and a network run the same lines.

What is fitted: which loss, which penalty, which intercept without features. The rest is the same for all estimators.

A family knows no rows. It is told of the labels what the sites answered, and of the columns their common scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from compfed._utils.text import join_names
from compfed._utils.validation import check_distinct_names
from compfed.errors import InputError
from compfed.estimators.programs.certificate import duality_gap, exchangeable
from compfed.federation.queries import Describe, Evaluate, Moments
from compfed.federation.server.moments import pooled_mean, spread
from compfed.federation.server.program import Federation, Program, Request
from compfed.federation.server.sums import Description, MomentsSum
from compfed.federation.spec import FeatureScaling, FederatedProblem, ObjectiveSpec
from compfed.losses import Loss
from compfed.problem_spec import safe_norm
from compfed.regularisers import ElasticNet, OnBlock, Regulariser, Zero
from compfed.solvers.auto import minimising, starting
from compfed.solvers.certificate import Certificate
from compfed.solvers.search import FederatedSolution, Search, Start
from compfed.splits import RowSubset

NULL_SEARCH = 50  # messages, at most, for an intercept that has no formula


@dataclass(frozen=True)
class Plan:
    """What to fit, and how."""

    family: Family
    search: Search
    fit_intercept: bool = True
    standardize: bool = False
    equal_sites: bool = False  # every site counts the same, rather than every row


@dataclass(frozen=True)
class Gathered:
    """The sites' sums about their rows: all rows, or a subset of them."""

    subset: RowSubset | None
    rows: np.ndarray  # of each site
    totals: np.ndarray  # weight of each site's rows
    weights: np.ndarray  # p_i
    labels: Labels
    columns: tuple[str, ...] | None
    width: int
    moments: MomentsSum


@dataclass(frozen=True)
class Prepared:
    """A problem in its frame, before a penalty is chosen, and its null model: no feature, the best intercept."""

    plan: Plan
    spec: FederatedProblem
    scaling: FeatureScaling
    null: Start
    gathered: Gathered

    def at(self, alpha: float) -> FederatedProblem:
        """The problem with a penalty."""
        return self.spec.with_regulariser(self.regulariser(alpha))

    def regulariser(self, alpha: float) -> Regulariser:
        return _penalty(self.plan, self.scaling, alpha)

    @property
    def null_gradient(self) -> np.ndarray:
        assert self.null.at is not None
        return self.null.at.gradient

    def published(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray | float]:
        """coef_ and intercept_ of a flat model."""
        return self.plan.family.published(*self.scaling.coefficients(x))


def _penalty(plan: Plan, scaling: FeatureScaling, alpha: float) -> Regulariser:
    scale = np.ones_like(scaling.scale) if plan.standardize else scaling.scale
    penalty = plan.family.penalty(alpha, scale, scaling.outputs)
    return OnBlock(penalty, 0, scaling.penalised) if scaling.intercept else penalty


# --- gather ---


def gathering(federation: Federation, plan: Plan, subset: RowSubset | None = None) -> Program[Gathered]:
    """One message: rows, columns and labels of the sites, and the moments of their columns."""
    counted = np.ones(len(federation.names)) if plan.equal_sites else None  # each site once, or each row
    (sites,), (moments,) = yield [
        Request((Describe(plan.family.of_classes, subset),)),
        Request((Moments(subset),), weights=counted, counts=False),
    ]
    _check_columns(federation.names, sites)
    if plan.family.of_classes:
        _check_kinds(federation.names, sites)
    weights = site_weights(sites.weights, plan.equal_sites)
    labels = _labels(sites, plan)
    return Gathered(subset, sites.rows, sites.weights, weights, labels, sites.columns[0], sites.widths[0], moments)


def site_weights(totals: Sequence[float], equal: bool) -> np.ndarray:
    """p_i: a site's share of the (weighted) rows, or the same for every site that has any."""
    total = np.asarray(totals, float)
    if not total.any():
        raise InputError("a fold holds out every row, or none; give other folds.")
    return (total > 0) / (total > 0).sum() if equal else total / total.sum()


def _check_columns(names: Sequence[str], sites: Description) -> None:
    """All sites must have the same columns."""
    for name, width, columns in zip(names, sites.widths, sites.columns, strict=True):
        if width != sites.widths[0] or columns != sites.columns[0]:
            apart = _columns_apart(names[0], sites.columns[0], sites.widths[0], name, columns, width)
            raise InputError(
                f"{apart} All sites need the same columns in the same order: over a network, `features` in site.toml names "
                "them and their order."
            )


def _columns_apart(
    one: str, first: tuple[str, ...] | None, first_width: int, other: str, columns: tuple[str, ...] | None, width: int
) -> str:
    """Where the columns of two sites differ, by name."""
    if first is None or columns is None:
        return f"site {other!r} has {width} columns, site {one!r} has {first_width} columns."
    missing = [c for c in first if c not in columns]
    extra = [c for c in columns if c not in first]
    found = []
    if missing:
        found.append(f"site {other!r} has no column {join_names(list(map(repr, missing)))}, which site {one!r} has.")
    if extra:
        found.append(f"site {other!r} has a column {join_names(list(map(repr, extra)))} that site {one!r} has not.")
    if found:
        return " ".join(found)
    at = next(j for j, (a, b) in enumerate(zip(first, columns, strict=True)) if a != b)
    return f"column {at} is {columns[at]!r} at site {other!r} and {first[at]!r} at site {one!r}."


def _check_kinds(names: Sequence[str], sites: Description) -> None:
    """Classes are words at every site, or numbers at every site: as words, 1 and "1.0" would be two classes."""
    words = [kind in "UO" for kind in sites.label_kinds]
    if any(words) and not all(words):
        one, other = names[words.index(True)], names[words.index(False)]
        raise InputError(
            f"the classes are words at site {one!r} and numbers at site {other!r}; write them in the same way at every site."
        )


def _labels(sites: Description, plan: Plan) -> Labels:
    counted = (sites.weights > 0).sum() if plan.equal_sites else sites.weights.sum()
    if plan.family.of_classes:
        check_distinct_names("labels are the classes of rows", sites.classes)
        shares = sites.class_shares if plan.equal_sites else sites.class_weights
        return Labels(sites.classes, shares / counted, None)
    if len(set(sites.label_shapes)) > 1:
        shapes = sorted(set(sites.label_shapes))
        raise InputError(f"the sites have labels of different shapes, {shapes}; all need the same outcomes.")
    total = sites.label_means if plan.equal_sites else sites.label_sum
    assert total is not None, "labels are numbers of one shape"
    return Labels(None, None, np.atleast_1d(total / counted), one_column=np.ndim(total) == 0)


# --- prepare ---


def preparing(federation: Federation, plan: Plan, gathered: Gathered, classes: np.ndarray | None) -> Program[Prepared]:
    """The smooth part of the problem in well-conditioned coordinates. `classes` are those of all rows."""
    plan = replace(plan, family=plan.family.with_columns(gathered.columns))
    family, labels = plan.family, replace(gathered.labels, classes=classes)
    loss = family.loss(labels)
    outputs = loss.size(1)
    if labels.mean is not None and len(labels.mean) != outputs:
        raise InputError(f"the sites have {len(labels.mean)} outcomes per row; this model takes {outputs}.")
    centre, scale = _scaling(plan, gathered)
    scaling = FeatureScaling(centre, family.column_scale(scale, plan.standardize), plan.fit_intercept, outputs)
    objective = ObjectiveSpec(loss, scaling, classes, gathered.subset)
    spec = FederatedProblem(
        objective=objective,
        regulariser=Zero(),
        weights=gathered.weights,
        names=federation.names,
        numbers=tuple(range(len(federation.names))),
        sizes=np.maximum(gathered.rows, 1),
        width=gathered.width + int(plan.fit_intercept),
    )
    null = np.zeros(spec.d)
    if plan.fit_intercept:
        best = family.null_intercept(labels)
        null[scaling.penalised :] = (yield from _searched_intercept(spec, labels)) if best is None else best
    start = yield from starting(spec.with_regulariser(_penalty(plan, scaling, 1.0)), plan.search, null)
    return Prepared(plan, spec, scaling, start, gathered)


def _scaling(plan: Plan, gathered: Gathered) -> tuple[np.ndarray, np.ndarray]:
    """(centre, scale) of every column; without an intercept columns are not centred."""
    centre = pooled_mean(gathered.moments) if plan.fit_intercept else np.zeros(gathered.width)
    return centre, spread(gathered.moments, centre)


def _searched_intercept(spec: FederatedProblem, labels: Labels) -> Program[np.ndarray]:
    """The intercept that minimises f without features: where its slope, which grows with it, is zero.

    A message asks for the slope at many points: around the mean label at first, then between the two where it changes
    sign, with the zero of the line between them. Slopes that are pieces of lines are done once both are on one piece.
    """
    assert labels.mean is not None
    nothing = np.empty(0)
    objective = replace(spec.objective, scaling=FeatureScaling(nothing, nothing, True), columns=nothing.astype(int))
    mean = float(labels.mean[0])
    far = np.ldexp(max(abs(mean), 1.0), np.arange(-12, 12))
    points, best = np.concatenate([mean - far[::-1], [mean], mean + far]), labels.mean
    for _ in range(NULL_SEARCH):
        ((summed,),) = yield [Request((Evaluate(objective, points[:, None]),), weights=spec.weights)]
        slopes, terms = summed.gradient[:, -1], summed.terms
        nearest = int(np.abs(slopes).argmin())
        best = points[[nearest]]
        if np.abs(slopes[nearest]) <= 1e-15 * terms[nearest] or slopes[0] > 0 or slopes[-1] < 0:
            break
        i = int(np.flatnonzero(slopes > 0)[0])
        low, high = points[i - 1], points[i]
        zero = low - slopes[i - 1] * (high - low) / (slopes[i] - slopes[i - 1])
        points = np.unique([*np.linspace(low, high, 18), zero])
        if high - low <= 4 * np.spacing(max(abs(low), abs(high))):
            break
    return best


# --- solve ---


@dataclass(frozen=True)
class Fitted:
    """A model on the original scale, and how it was reached."""

    prepared: Prepared
    minimum: FederatedSolution
    gap: float | None
    others: np.ndarray | None  # coefficients that another minimiser has otherwise; None if not known

    @property
    def certificate(self) -> Certificate:
        """Of the model as it is published, with what is lost on the way from the coordinates it was worked out in."""
        found, prepared = self.minimum.certificate, self.prepared
        coef, intercept = prepared.scaling.coefficients(self.minimum.x)
        sizes = np.abs(prepared.scaling.centre) @ np.abs(coef) + np.abs(intercept)  # of what adds up to a prediction
        curved = prepared.spec.loss.curvature
        steep = prepared.null.L if curved is None else float(curved)
        lost = 0.5 * float(np.finfo(float).eps) * steep * safe_norm(sizes)
        unique = None if self.others is None else not self.others.size
        return replace(found, duality_gap=self.gap, unique=unique, rounding=found.rounding + lost)

    @property
    def undecided(self) -> list[str]:
        """Names of the columns whose coefficients are one choice of many, and of the intercept."""
        if self.others is None:
            return []
        scaling, columns = self.prepared.scaling, self.prepared.gathered.columns
        features = np.unique(self.others[self.others < scaling.penalised] // scaling.outputs)
        named = [f"column {j}" if columns is None else repr(columns[j]) for j in features.tolist()]
        return named + ["the intercept"] * bool((self.others >= scaling.penalised).any())


def prepared_of(federation: Federation, plan: Plan, subset: RowSubset | None = None) -> Program[Prepared]:
    """Gather and prepare, with all rows or with some."""
    gathered = yield from gathering(federation, plan, subset)
    return (yield from preparing(federation, plan, gathered, gathered.labels.classes))


def fitting(federation: Federation, plan: Plan, alpha: float, subset: RowSubset | None = None) -> Program[Fitted]:
    """The whole of a fit, to all rows or to some."""
    prepared = yield from prepared_of(federation, plan, subset)
    minimum = yield from minimising(federation, prepared.at(alpha), plan.search, prepared.null)
    return (yield from certified(prepared, alpha, minimum))


def certified(prepared: Prepared, alpha: float, minimum: FederatedSolution) -> Program[Fitted]:
    """The minimum with its duality gap, where one is known."""
    spec = prepared.at(alpha)
    gap = yield from duality_gap(spec, prepared.scaling, minimum, prepared.null)
    return Fitted(prepared, minimum, gap, exchangeable(spec, minimum))


@dataclass(frozen=True)
class Labels:
    """The labels of all sites together, as sums."""

    classes: np.ndarray | None  # their names, where labels are names
    shares: np.ndarray | None  # the weight of each class, summing to 1
    mean: np.ndarray | None  # of numbers: one per outcome
    one_column: bool = True  # was there one number per row, not a row of numbers?


class Family:
    """Subclasses are frozen dataclasses; `of_classes` says that labels are names, not numbers."""

    of_classes: ClassVar[bool] = False

    def with_columns(self, names: tuple[str, ...] | None) -> Family:
        """The same, told how the columns are called."""
        return self

    def loss(self, labels: Labels) -> Loss:
        raise NotImplementedError

    def penalty(self, alpha: float, scale: np.ndarray, outputs: int) -> Regulariser:
        """The penalty of u = scale * w, for coefficients w of shape (width, outputs)."""
        raise NotImplementedError

    def column_scale(self, scale: np.ndarray, standardize: bool) -> np.ndarray:
        """The scale of each column that the penalty can live with (one per group, for a penalty of groups)."""
        return scale

    def null_intercept(self, labels: Labels) -> np.ndarray | None:
        """The best intercepts without features; None where that takes a search."""
        return labels.mean

    def published(self, coef: np.ndarray, intercept: np.ndarray) -> tuple[np.ndarray, np.ndarray | float]:
        """coef_ and intercept_ from (width, outputs) and (outputs,)."""
        return coef[:, 0], float(intercept[0])


def elastic_net(alpha: float, l1_ratio: float, scale: np.ndarray, outputs: int) -> ElasticNet:
    """alpha (l1_ratio ||w||_1 + (1 - l1_ratio) / 2 ||w||^2) as a penalty of u = scale * w."""
    s = np.repeat(scale, outputs)
    return ElasticNet(l1=alpha * l1_ratio / s, l2=alpha * (1.0 - l1_ratio) / s**2)
