"""The closed list of questions a server may ask, and what a site answers. Nothing else crosses the boundary.

A question is a record; `answer(site)` is what the site does with its own rows, and pure but for a site's memory of its
rounds. Answers are used through their weighted sum, in the order of the sites; those of `Describe` and `Steepness` are
looked at one by one. Several questions travel in one message, and several models (the rows of x) in one question.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from scipy.sparse import issparse

from compfed.errors import InputError
from compfed.federation.spec import RunSpec, RowSubset, ObjectiveSpec
from compfed.losses.base import unwarned
from compfed.problem import sparse_rows
from compfed.site_summary import Facts, facts_of

if TYPE_CHECKING:
    from compfed.federation.site.site import LocalDataset, Site


class Refusal(NamedTuple):
    """What a site answers to a question that it will not, or cannot, answer."""

    reason: str  # for a person: names the site, the question and why


class SiteRefusal(InputError):
    """A site did not answer; `replies` holds what was answered to the other questions of the same message."""

    def __init__(self, reason: str, replies: Any = None):
        super().__init__(reason)
        self.replies = replies


class Query(Protocol):
    def answer(self, site: Site) -> Any:
        """What a site says, from its own rows alone."""
        ...


@dataclass(frozen=True, eq=False)
class Describe:
    """How many rows, which columns, which labels. With `classes`, labels are names to list; otherwise numbers to add.

    `part` asks for some of the rows only: which labels a fold trains with, and how much its rows weigh. With `detail`
    also means and spreads of columns and labels, for a person to look at.
    """

    classes: bool = False
    subset: RowSubset | None = None
    detail: bool = False

    class Answer(NamedTuple):
        rows: int
        weight: float  # of the rows together; their number unless rows are weighted
        width: int
        columns: tuple[str, ...] | None
        classes: np.ndarray  # the labels found; none where labels are numbers
        class_weights: np.ndarray  # how much the rows of each weigh
        label_mean: np.ndarray  # sum_l q_l y_l: a number, or one per outcome; NaN where labels are names
        facts: Facts | None = None

    def answer(self, site: Site) -> Answer:
        facts = facts_of(site.whole(), site.labels) if self.detail else None
        return self._counted(site)._replace(facts=facts)

    def _counted(self, site: Site) -> Answer:
        weights = site.weights_of(self.subset)
        rows, weight = int(np.count_nonzero(weights)), float(weights.sum())
        if self.classes:
            site.check_classes()
            found, codes = np.unique(site.labels[weights > 0], return_inverse=True)
            each = np.bincount(codes, weights[weights > 0], minlength=len(found))
            return self.Answer(rows, weight, site.width, site.columns, found, each, np.array(np.nan))
        if site.labels.dtype.kind not in "biuf":
            raise InputError(
                f"the labels of site {site.name!r} are words, not numbers. Use a classifier, or encode them."
            )
        shares = weights / weight if weight > 0 else weights
        mean = np.asarray(shares @ site.labels)
        return self.Answer(rows, weight, site.width, site.columns, np.empty(0), np.empty(0), mean)


@dataclass(frozen=True, eq=False)
class Moments:
    """The mean of every column, and of the squared distance from that.

    The mean is rounded, by `rest`: with it the squared distance from any other point is known to the last digits, also of a
    column whose mean is large (`scaling.spread`). Sums of squares would lose them all.
    """

    subset: RowSubset | None = None

    class Answer(NamedTuple):
        mean: np.ndarray
        rest: np.ndarray
        square: np.ndarray

    def answer(self, site: Site) -> Answer:
        A, q = site.features, site.shares_of(self.subset)
        if issparse(A):
            return self.Answer(*sparse_rows.moments(A, q))
        away = np.subtract(
            A, A[0], dtype=float
        )  # around a row of its own: a constant column has exactly its value as mean
        mean = A[0] + q @ away
        np.subtract(A, mean, out=away)  # in place, as rows may be many
        rest = q @ away
        return self.Answer(mean, rest, q @ np.square(away, out=away))


@dataclass(frozen=True, eq=False)
class Lipschitz:
    """L_i, the Lipschitz constant of grad f_i; for a loss whose curvature has no bound, its curvature at x.

    With `roughly` a bound that takes one look at the rows: for steps it would be too large, for a certificate it will do.
    """

    objective: ObjectiveSpec
    x: np.ndarray | None = None
    roughly: bool = False

    class Answer(NamedTuple):
        L: float

    def answer(self, site: Site) -> Answer:
        seen, loss = site.look(self.objective), self.objective.loss
        at = None if loss.curvature is not None else (seen.start if self.x is None else self.x)
        if self.roughly:
            steep = loss.curvature_bound(seen.A, seen.q, seen.lengths, at, seen.y)
        else:
            steep = loss.steepness(seen.A, seen.q, at, seen.y)
        return self.Answer(float(steep) + float(loss.ridge))


@dataclass(frozen=True, eq=False)
class ValueAndGradient:
    """f_i and grad f_i at every row of x, and `terms`: how large the terms of the gradient are before they cancel.

    With `dual` = (shift, stretch, mix, z), one row per model, also the conjugate of the loss at a dual point, which bounds
    how far F(x) is from its minimum: sum_l q_l loss*(theta_l, y_l), where theta is made of the slopes at x and of those at
    the constant prediction z, theta_l = stretch ((1 - mix) (slope_l(x) - shift) + mix slope_l(z)).
    """

    objective: ObjectiveSpec
    x: np.ndarray  # (models, d)
    dual: np.ndarray | None = None  # (models, 4)

    class Answer(NamedTuple):
        value: np.ndarray  # (models,)
        gradient: np.ndarray  # (models, d)
        terms: np.ndarray  # (models,)
        conjugate: np.ndarray | None  # (models,)

    @unwarned
    def answer(self, site: Site) -> Answer:
        seen, loss = site.look(self.objective), self.objective.loss
        x = np.asarray(self.x, seen.A.dtype)
        half = 0.5 * float(loss.ridge)
        value, gradient, terms = loss.evaluated(x, seen.A, seen.y, seen.q, seen.lengths)
        value, gradient = value + half * np.sum(x * x, axis=1), gradient + 2 * half * x
        conjugate = None
        if self.dual is not None:
            conjugate = np.array([self._conjugate(seen, v, *at) for v, at in zip(x, self.dual, strict=True)])
        return self.Answer(value, gradient, terms, conjugate)

    def _conjugate(
        self, seen: LocalDataset, x: np.ndarray, shift: float, stretch: float, mix: float, z: float
    ) -> float:
        loss: Any = self.objective.loss  # the server asks this only of a loss with a conjugate
        theta = (1 - mix) * (loss.slope(seen.A @ x, seen.y) - shift)
        if mix > 0:
            theta = theta + mix * loss.slope(np.full(len(theta), z), seen.y)
        theta = stretch * theta
        return float(seen.q @ loss.conjugate(theta, seen.y))


@dataclass(frozen=True, eq=False)
class Curvature:
    """The matrix of a quadratic model of f_i around x, on the coordinates W, without the ridge, which the server knows.

    It is the second derivative, or what the loss has in its place (`Loss.model_hessian`). Only the upper triangle travels.
    """

    objective: ObjectiveSpec
    x: np.ndarray  # (d,)
    W: np.ndarray

    class Answer(NamedTuple):
        triangle: np.ndarray  # |W| (|W| + 1) / 2 numbers, or fewer where the loss says how

    def answer(self, site: Site) -> Answer:
        seen, loss = site.look(self.objective), self.objective.loss
        return self.Answer(np.asarray(loss.model_triangle(self.x, seen.A, seen.y, seen.q, self.W)))


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The loss of the models in the rows of x on the rows that `part` holds out, seen as `view` sees those it keeps."""

    objective: ObjectiveSpec
    subset: RowSubset
    x: np.ndarray  # (models, d)

    class Answer(NamedTuple):
        weight: float  # of the rows held out
        loss: np.ndarray  # (models,): sum_l q_l loss_l, q_l the shares of those rows

    def answer(self, site: Site) -> Answer:
        seen, weights = site.look(self.objective), site.weights_of(self.subset)
        q = weights / (weights.sum() or 1.0)
        loss = np.array([q @ np.asarray(self.objective.loss.values(v, seen.A, seen.y)) for v in self.x])
        return self.Answer(float(weights.sum()), loss)


@dataclass(frozen=True, eq=False)
class Round:
    """Exchange `exchange` of round r of a job: the server's message d down, the site's answer u up.

    The site's memory of the job moves on. A method that closes its rounds hears their result in the next message.
    """

    run_spec: RunSpec
    r: int
    exchange: int
    d: Mapping[str, np.ndarray]

    class Answer(NamedTuple):
        u: Mapping[str, np.ndarray]
        finite: bool  # is what the site remembers now finite too?

    def answer(self, site: Site) -> Answer:
        return self.Answer(*site.take_part(self.run_spec, self.r, self.exchange, self.d))


@dataclass(frozen=True, eq=False)
class Result:
    """The result of round r for its participants, where the next round may have others."""

    run_spec: RunSpec
    r: int
    d: Mapping[str, np.ndarray]

    class Answer(NamedTuple):
        finite: bool

    def answer(self, site: Site) -> Answer:
        return self.Answer(site.hear(self.run_spec, self.r, self.d))


QUERIES: tuple[type, ...] = (
    Describe, Moments, Lipschitz, ValueAndGradient, Curvature, HeldOut, Round, Result,
)  # fmt: skip
