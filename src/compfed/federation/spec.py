"""How a site is asked to look at its rows: with which loss, in which coordinates, and which of them count.

A view is made by the server from sums; it holds no row. Sites keep the views and jobs they were told of, so that each
travels once.

A problem as the server knows it: everything but the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from compfed.losses import Loss
from compfed.problem_spec import ProblemSpec

if TYPE_CHECKING:
    from compfed.algorithms.base import Algorithm
    from compfed.regularisers import Regulariser


@dataclass(frozen=True, eq=False)
class FeatureScaling:
    """The coordinates a linear model is worked out in: features centred and scaled, the intercept last.

    With z = (a - centre) / scale and u = scale * w the prediction a^T w + b is z^T u + b', b' = b + centre^T w. Centring
    and scaling change neither the problem nor its solution: a penalty on w becomes one on u / scale. They change how
    fast it is solved, from hopeless to quick where features are in different units.
    """

    centre: np.ndarray  # (width,), zero without an intercept
    scale: np.ndarray  # (width,)
    intercept: bool
    outputs: int = 1

    @property
    def penalised(self) -> int:
        """Number of coefficients before the intercept."""
        return self.centre.size * self.outputs

    def model(self, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        """The flat model of coefficients (width, outputs) and intercepts (outputs,)."""
        u = coef * self.scale[:, None]
        return np.concatenate([u.ravel(), intercept + self.centre @ coef]) if self.intercept else u.ravel()

    def coefficients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(coef, intercept) on the original scale of a flat model."""
        coef = x[: self.penalised].reshape(-1, self.outputs) / self.scale[:, None] + 0.0  # no -0.0
        return coef, (x[self.penalised :] - self.centre @ coef) if self.intercept else np.zeros(self.outputs)


class RowsOfASite(Protocol):
    """What a part may ask of a site to find its own rows."""

    @property
    def index(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def labels(self) -> np.ndarray: ...
    @property
    def splits(self) -> Any: ...


class RowSubset(Protocol):
    """Some of the rows: those a fold trains with, or those it holds out."""

    @property
    def held_out(self) -> bool: ...
    def mask(self, site: RowsOfASite) -> np.ndarray:
        """Which of a site's rows these are."""
        ...


@dataclass(frozen=True, eq=False)
class Fold:
    """Fold `number` of `folds`, dealt inside every site from (seed, site, row), class by class for a classifier.

    Each site shuffles its rows with a draw of its own and deals them out, starting at fold `first[site]`: where the
    site before it stopped, so that no fold stays empty.
    """

    number: int
    folds: int
    seed: int
    first: np.ndarray
    by_class: bool
    held_out: bool

    def assign_folds(self, site: RowsOfASite) -> np.ndarray:
        """The fold of every row of a site."""
        y = site.labels
        order = np.random.default_rng([self.seed, site.number]).permutation(len(y))
        if self.by_class:
            order = order[np.argsort(y[order], kind="stable")]
        fold = np.empty(len(y), int)
        fold[order] = (self.first[site.index] + np.arange(len(y))) % self.folds
        return fold

    def mask(self, site: RowsOfASite) -> np.ndarray:
        return (self.assign_folds(site) == self.number) == self.held_out


@dataclass(frozen=True, eq=False)
class SiteFold:
    """Fold `number` is site `number`."""

    number: int
    held_out: bool

    def mask(self, site: RowsOfASite) -> np.ndarray:
        return np.full(len(site.labels), (site.index == self.number) == self.held_out)


@dataclass(frozen=True, eq=False)
class PredefinedSplit:
    """Split `number` of those that the sites were built with: for folds that speak of the rows of one table."""

    number: int
    held_out: bool

    def mask(self, site: RowsOfASite) -> np.ndarray:
        return site.splits[self.number][1 if self.held_out else 0]


@dataclass(frozen=True, eq=False)
class Holdout:
    """A share of every site's rows, drawn inside it from (seed, site, row), class by class for a classifier.

    Of two rows or more at least one is held out and one is kept; a single row is kept.
    """

    share: float
    seed: int
    by_class: bool
    held_out: bool

    def mask(self, site: RowsOfASite) -> np.ndarray:
        y = site.labels
        order = np.random.default_rng([self.seed, site.number]).permutation(len(y))
        if self.by_class:
            order = order[np.argsort(y[order], kind="stable")]
        steps = np.floor(self.share * np.arange(len(y) + 1) + 0.5)  # every k-th row, so that each class gives its share
        out = np.zeros(len(y), bool)
        out[order] = np.diff(steps) > 0
        if len(y) > 1 and (out.all() or not out.any()):
            out[order[0]] = not out[order[0]]
        return out == self.held_out if len(y) > 1 else np.full(len(y), not self.held_out)


@dataclass(frozen=True, eq=False)
class ObjectiveSpec:
    """f_i as the server wants it: this loss, of these rows, in this frame."""

    sent_once: ClassVar[bool] = True

    loss: Loss
    scaling: FeatureScaling | None = None
    classes: np.ndarray | None = None  # a label is its position among these
    subset: RowSubset | None = None
    dtype: str = "float64"
    columns: np.ndarray | None = None  # of the features only these; none at all for a model of an intercept alone


@dataclass(frozen=True, eq=False)
class RunSpec:
    """One run of an algorithm: what a site must know to take part in its rounds."""

    sent_once: ClassVar[bool] = True

    number: int  # tells two runs of the same thing apart
    algorithm: Algorithm
    regulariser: Regulariser
    objective: ObjectiveSpec
    x0: np.ndarray
    seed: int
    batch_size: int | None
    capacity: int  # rows of the largest site: decides how mini-batches are drawn, everywhere alike
    everyone: bool = True  # does every site take part in every round?


@dataclass(frozen=True, eq=False, kw_only=True)
class FederatedProblem(ProblemSpec):
    """A problem as the server knows it: f_i is what site i computes for the `objective`."""

    objective: ObjectiveSpec
    loss: Loss = field(init=False)
    dtype: np.dtype = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss", self.objective.loss)
        object.__setattr__(self, "dtype", np.dtype(self.objective.dtype))
