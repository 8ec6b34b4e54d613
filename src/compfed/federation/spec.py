"""Specifications that queries hold: how a site evaluates its rows, and one run of an algorithm.

The server makes them from sums; they hold no row. Sites keep the ones they have received, so that each travels once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from compfed.losses import Loss
from compfed.problem_spec import ProblemSpec
from compfed.splits import RowSubset

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
    """How a site evaluates f_i: the loss, the scaling of its features, the classes of its labels, and which rows count."""

    sent_once: ClassVar[bool] = True

    loss: Loss
    scaling: FeatureScaling | None = None
    classes: np.ndarray | None = None  # a label is its position among these
    subset: RowSubset | None = None
    dtype: str = "float64"
    columns: np.ndarray | None = None  # of the features only these; none at all for a model of an intercept alone
    profile: bool = False  # f_i(x) = min_b sum_l q_l loss(a_l^T x + b, y_l): an intercept that stays at the site


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
    weighting: Literal["rows", "sites"] | None = None  # how a site finds its own weight; None where p_i were given
    max_hessian_columns: float = np.inf  # on which every site gives a Hessian
    policy: bool = False  # a site has one that protects rows: it rounds Hessians, and refuses models on few rows
    hessian_columns: tuple[int, ...] | None = None  # coordinates to ask for, where sites give it on some columns only
    loss: Loss = field(init=False)
    dtype: np.dtype = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss", self.objective.loss)
        object.__setattr__(self, "dtype", np.dtype(self.objective.dtype))

    @property
    def loss_is_quadratic(self) -> bool:
        """Whether the Hessian of f is the same at every model."""
        return getattr(self.loss, "quadratic", False)

    @classmethod
    def of(cls, problem: ProblemSpec) -> FederatedProblem:
        """A problem of this process as the server knows it, without rows."""
        shared = {f.name: getattr(problem, f.name) for f in fields(ProblemSpec) if f.name not in ("loss", "dtype")}
        equal = len(set(problem.weights.tolist())) == 1  # each site counts itself once: sums can be masked
        objective = ObjectiveSpec(problem.loss, dtype=problem.dtype.name)
        return cls(objective=objective, weighting="sites" if equal else None, **shared)
