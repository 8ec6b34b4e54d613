"""What is fitted: which loss, which penalty, which intercept without features. The rest is the same for all estimators.

A family knows no rows. It is told of the labels what the sites answered, and of the columns their common scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from compfed.problem.losses import Loss
from compfed.problem.regularisers import ElasticNet, Regulariser


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
