"""Problem: min_x F(x) = sum_i p_i f_i(x) + g(x), and everything one may want to know about it at a point."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from compfed._utils.precision import check_dtype, precision
from compfed._utils.validation import check_positive
from compfed.data import LazySites, Sites
from compfed.errors import InputError
from compfed.losses import Loss
from compfed.losses.lipschitz import largest_eigenvalue, largest_eigenvalues
from compfed.problem.evaluation import client_gradients, curvatures, gradients, objectives_and_mappings
from compfed.problem.local_dataset import store
from compfed.problem_spec import Statement, check_fits, usable
from compfed.regularisers import Regulariser, from_object
from compfed.trace import Members


class Problem(Statement):
    """min_x sum_i p_i f_i(x) + g(x), with f_i the mean loss over the rows of site i (plus the loss's ridge).

    The rows count equally within a site unless `sites` has row weights.

    - `weights`: p_i, 1/n unless given (0: the site is there and does not count); `sites.shares` makes the problem that
      of the pooled table.
    - `dtype`: "float64" (default) or "float32": the precision of every run on this problem.
    """

    sites: Sites

    def __init__(
        self,
        loss: Loss,
        regulariser: Regulariser,
        sites: Sites,
        weights: Any = None,
        dtype: Any = "float64",
    ):
        if isinstance(sites, LazySites):
            raise InputError(
                "a Problem has all its rows on the device; for LazySites use compfed.LazyProblem, or load some of them: "
                "sites.loaded(clients)."
            )
        if not isinstance(sites, Sites):
            raise InputError(
                f"sites must come from compfed.data (from_arrays, from_table, ...); got {type(sites).__name__}."
            )
        super().__init__(loss, regulariser, sites, weights, dtype)
        labels = loss.encode(np.concatenate(sites.labels))
        self.store, self.order = store(sites, labels, self.weights, self.dtype)
        # what was worked out of its rows; the copies that `replace` makes share it
        self.of_the_data: dict[str, Any] = {}
        self._check_loss(self.store.A, self.store.y)

    def __repr__(self) -> str:
        parts = f"{type(self.loss).__name__}, {type(self.regulariser).__name__}, {self.sites!r}"
        return f"Problem({parts}, {self.d} coefficients, {self.dtype.name})"

    def replace(self, loss: Loss | None = None, regulariser: Regulariser | None = None) -> Problem:
        """The same data with another loss or regulariser; nothing is copied, and equal shapes compile once."""
        loss = self.loss if loss is None else loss
        regulariser = self.regulariser if regulariser is None else from_object(regulariser)
        if loss is self.loss and regulariser is self.regulariser:
            return self
        # another loss may read the labels differently
        if type(loss) is not type(self.loss) or loss.size(self.sites.width) != self.d:
            return Problem(loss, regulariser, self.sites, self.weights, self.dtype)
        check_fits(regulariser, self.d)
        new = copy.copy(self)
        new.loss, new.regulariser = loss, regulariser
        return new

    def astype(self, dtype: Any) -> Problem:
        """The same problem in another precision."""
        if check_dtype(dtype) == self.dtype:
            return self
        return Problem(self.loss, self.regulariser, self.sites, self.weights, dtype)

    def objective(self, x: Any) -> float:
        """F(x) = sum_i p_i f_i(x) + g(x)."""
        with precision(self.dtype):
            return float(
                objectives_and_mappings(self.loss, self.regulariser, self.store, self.point(x)[None], 1.0)[0][0]
            )

    def gradient(self, x: Any) -> np.ndarray:
        """sum_i p_i grad f_i(x)."""
        with precision(self.dtype):
            return np.asarray(gradients(self.loss, self.store, self.point(x)[None])[0])

    def client_gradients(self, x: Any) -> np.ndarray:
        """grad f_i(x), one row per site."""
        with precision(self.dtype):
            return np.asarray(client_gradients(self.loss, self.store, self.point(x)))[np.argsort(self.order)]

    def gradient_mapping(self, x: Any, step: float | None = None) -> np.ndarray:
        """(x - prox_{step g}(x - step grad f(x))) / step, zero exactly at the minimiser; step is 1/L unless given."""
        with precision(self.dtype):
            t = 1.0 / self.lipschitz if step is None else check_positive(step, "step")
            return np.asarray(
                objectives_and_mappings(self.loss, self.regulariser, self.store, self.point(x)[None], t)[1][0]
            )

    @property
    def lipschitz(self) -> float:
        """L: Lipschitz constant of the gradient of f = sum_i p_i f_i.

        For a loss whose curvature has no bound: the largest curvature of f at `start`.
        """
        bound = self.loss.curvature
        L = self._curvature_at_start[0] if bound is None else self._top_eigenvalue * bound + float(self.loss.ridge)
        return usable(float(L), self.regulariser)

    @property
    def client_lipschitz(self) -> np.ndarray:
        """L_i of every site, likewise."""
        bound = self.loss.curvature
        if bound is None:
            return self._curvature_at_start[1]
        return self._client_top_eigenvalues * bound + float(self.loss.ridge)

    def curvature_at(self, x: Any) -> tuple[float, np.ndarray]:
        """Largest eigenvalue, in size, of the second derivative of f at x, and the same of every f_i."""
        with precision(self.dtype):
            total, clients = curvatures(self.loss, self.store, self.point(x))
            return float(total), np.asarray(clients, float)[np.argsort(self.order)]

    @property
    def _curvature_at_start(self) -> tuple[float, np.ndarray]:
        if self.of_the_data.get("curvature", (None,))[0] is not self.loss:
            self.of_the_data["curvature"] = self.loss, self.curvature_at(self.start)
        return self.of_the_data["curvature"][1]

    @property
    def _top_eigenvalue(self) -> float:
        if "top" not in self.of_the_data:
            weights = [p * q for p, q in zip(self.weights, self.sites.row_shares, strict=True)]
            self.of_the_data["top"] = largest_eigenvalue(self.sites.features, weights)
        return self.of_the_data["top"]

    @property
    def _client_top_eigenvalues(self) -> np.ndarray:
        if "tops" not in self.of_the_data:
            self.of_the_data["tops"] = largest_eigenvalues(self.sites.features, self.sites.row_shares)
        return self.of_the_data["tops"]

    def members(self) -> Members:
        """The sites, for whoever goes on from here."""
        return Members(self.sites.names, self.sites.sizes, self.weights, self.sites.marks)
