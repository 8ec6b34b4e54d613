"""A problem as the server knows it: everything but the rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from compfed.federation.view import View
from compfed.problem.losses import Loss
from compfed.problem.regularisers import Regulariser
from compfed.tools.records import describe
from compfed.trace import Members


@dataclass(frozen=True, eq=False)
class Task:
    """min_x sum_i p_i f_i(x) + g(x), where f_i is what site i makes of the view."""

    view: View
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
        return self.view.loss

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.view.dtype)

    @property
    def start(self) -> np.ndarray:
        """Where a run starts unless told otherwise: zero, or the parameters a loss was made with."""
        return np.asarray(getattr(self.loss, "start", np.zeros(self.d)), self.dtype)

    def with_regulariser(self, g: Regulariser) -> Task:
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
