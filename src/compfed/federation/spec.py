"""How a site is asked to look at its rows: with which loss, in which coordinates, and which of them count.

A view is made by the server from sums; it holds no row. Sites keep the views and jobs they were told of, so that each
travels once.

A problem as the server knows it: everything but the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from compfed._utils.records import describe
from compfed.losses import Loss
from compfed.regularisers import Regulariser
from compfed.splits import RowSubset
from compfed.trace import Members

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


@dataclass(frozen=True, eq=False)
class ProblemSpec:
    """min_x sum_i p_i f_i(x) + g(x), where f_i is what site i makes of the view."""

    objective: ObjectiveSpec
    regulariser: Regulariser
    weights: np.ndarray  # p_i
    names: tuple[str, ...]
    numbers: tuple[int, ...]  # of the sites' random draws
    sizes: np.ndarray  # rows at each site
    width: int  # columns of a row as the view has it
    source: dict[str, Any] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return len(self.names)

    @property
    def d(self) -> int:
        return self.loss.size(self.width)

    @property
    def loss(self) -> Loss:
        return self.objective.loss

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.objective.dtype)

    @property
    def start(self) -> np.ndarray:
        """Where a run starts unless told otherwise: zero, or the parameters a loss was made with."""
        return np.asarray(getattr(self.loss, "start", np.zeros(self.d)), self.dtype)

    def with_regulariser(self, g: Regulariser) -> ProblemSpec:
        return replace(self, regulariser=g)

    def members(self) -> Members:
        """The sites, for whoever goes on from here."""
        return Members(self.names, self.sizes, self.weights)

    def describe(self) -> dict[str, Any]:
        """The problem in a few plain values, for provenance."""
        return {
            "loss": describe(self.loss),
            "regulariser": describe(self.regulariser),
            "clients": self.n,
            "samples": {
                "total": int(self.sizes.sum()),
                "smallest": int(self.sizes.min()),
                "largest": int(self.sizes.max()),
            },
            "features": self.d,
            "uniform_weights": bool(np.ptp(self.weights) == 0),
            "source": self.source,
        }
