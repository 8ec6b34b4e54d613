"""Regularisers of groups of coefficients: a group is zero, or none of it need be."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed._utils.records import labels, nonnegative, optional, record
from compfed.errors import InputError
from compfed.regularisers.base import Combinable, least_factor, like, ratio, soft
from compfed.regularisers.coordinate_form import CoordinateForm, numbers, plain, times


@lru_cache(maxsize=8)  # a search asks many times, and labels may be many
def _numbered(groups: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """(the group of each coefficient, numbered 0, 1, ... in the order of the labels; how many each has)."""
    _, member, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    return member, sizes


class _Grouped(Combinable):
    """Norms over groups, for the two classes below."""

    lam: float
    groups: tuple[int, ...]
    weights: np.ndarray | None

    def check(self) -> None:
        n = len(set(self.groups))
        if self.weights is not None and np.shape(self.weights) != (n,):
            name, shape = type(self).__name__, np.shape(self.weights)
            raise InputError(f"{name}: weights has shape {shape}; there are {n} groups: give one weight per group.")

    def members(self, x: Any) -> np.ndarray:
        """The group of each coefficient, numbered 0, 1, ... in the order of the labels."""
        if x.shape != (len(self.groups),):
            raise InputError(
                f"{type(self).__name__} has {len(self.groups)} labels in groups; it does not fit a model of shape "
                f"{x.shape}. Give one label per coefficient."
            )
        return _numbered(self.groups)[0].copy()

    def thresholds(self, x: Array) -> Array:
        """lam * w_g of each group."""
        return like(x, self.lam) * like(x, self.group_weights())

    def group_weights(self) -> Any:
        """w_g of each group."""
        return np.sqrt(_numbered(self.groups)[1]) if self.weights is None else self.weights

    def form_with(self, l1: Any, d: int) -> CoordinateForm:
        pull = times(numbers(self.group_weights()), self.lam)
        return plain(d, l1=l1)._replace(pull=pull, group=self.members(np.empty(d)))

    def norms(self, x: Array) -> Array:
        """||x_g|| of each group."""
        member = self.members(x)
        return jnp.sqrt(jax.ops.segment_sum(x * x, member, num_segments=int(member.max()) + 1))

    def shrink(self, x: Array, t: Array | float) -> Array:
        """Each group multiplied by (1 - t lam w_g / ||x_g||)_+."""
        norms, thresholds = self.norms(x), like(x, t) * self.thresholds(x)
        factor = jnp.where(norms > thresholds, 1.0 - thresholds / jnp.where(norms > 0, norms, 1.0), 0.0)
        return x * factor[self.members(x)]


@record
class GroupL2(_Grouped):
    """g(x) = lam * sum_g w_g ||x_g||: the group lasso.

    - `groups`: one whole number per coefficient, equal for the members of a group;
    - `weights`: w_g, one per group in the order of the labels; the square root of its size unless given.
    """

    lam: float = nonnegative(scalar=True)
    groups: tuple[int, ...] = labels()
    weights: np.ndarray | None = optional(nonnegative(), default=None)

    @classmethod
    def of_rows(cls, lam: float, rows: int, columns: int) -> GroupL2:
        """g(X) = lam * sum_i ||X_i|| for the rows X_i of X = x.reshape(rows, columns): the multi-task L2,1 norm.

        >>> GroupL2.of_rows(0.1, rows=2, columns=3).groups
        (0, 0, 0, 1, 1, 1)
        """
        return cls(lam, tuple(np.repeat(np.arange(rows), columns).tolist()), np.ones(rows))

    def __call__(self, x: Array) -> Array:
        return (self.thresholds(x) * self.norms(x)).sum()

    def prox(self, x: Array, t: Array | float) -> Array:
        return self.shrink(x, t)

    def form(self, d: int) -> CoordinateForm:
        return self.form_with(0.0, d)

    def critical(self, gradient: Array) -> Array:
        return ratio(self.norms(gradient), self.thresholds(gradient)).max()


@record
class SparseGroup(_Grouped):
    """g(x) = l1 * sum_j |x_j| + lam * sum_g w_g ||x_g||; `groups` and `weights` as in GroupL2.

    The prox shrinks the groups after soft thresholding: shrinking keeps every sign, so that the subgradient which
    soft thresholding chose stays one (Yu, "On decomposing the proximal map", 2013).
    """

    l1: float | np.ndarray = nonnegative()
    lam: float = nonnegative(scalar=True)
    groups: tuple[int, ...] = labels()
    weights: np.ndarray | None = optional(nonnegative(), default=None)

    def __call__(self, x: Array) -> Array:
        return (like(x, self.l1) * jnp.abs(x)).sum() + (self.thresholds(x) * self.norms(x)).sum()

    def prox(self, x: Array, t: Array | float) -> Array:
        return self.shrink(soft(x, t * self.l1), t)

    def form(self, d: int) -> CoordinateForm:
        return self.form_with(self.l1, d)

    def critical(self, gradient: Array) -> Array:
        return least_factor(self, gradient)
