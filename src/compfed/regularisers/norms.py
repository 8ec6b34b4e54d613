"""Norms that couple coefficients: groups, order of size, neighbours, singular values."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from jax import Array

from compfed._utils.array_namespace import ArrayT, Numbers, cast_like, namespace
from compfed._utils.records import count, labels, nonnegative, optional, record
from compfed.errors import InputError
from compfed.prox import (
    group_norms,
    group_soft_threshold,
    map_singular_values,
    max_norm_prox,
    singular_values,
    soft_threshold,
    sorted_l1_prox,
    total_variation_prox,
)
from compfed.regularisers.base import BaseRegulariser, Regulariser, Subspace, alpha_max_by_bisection, ratio
from compfed.regularisers.coordinate_form import CoordinateForm, separable_form

# --- groups ---


@lru_cache(maxsize=8)  # a solver asks many times, and there may be many labels
def _numbered(groups: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """(the group of each coefficient, numbered 0, 1, ... in the order of the labels; the size of each group)."""
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    return group, sizes


class _GroupPenalty(BaseRegulariser):
    """Weighted norms of groups, for the two classes below."""

    lam: float
    groups: tuple[int, ...]
    weights: np.ndarray | None

    def check(self) -> None:
        n = len(set(self.groups))
        if self.weights is not None and np.shape(self.weights) != (n,):
            name, shape = type(self).__name__, np.shape(self.weights)
            raise InputError(f"{name}: weights has shape {shape}; there are {n} groups: give one weight per group.")

    def group_of(self, x: Numbers) -> np.ndarray:
        """The group of each coefficient, numbered 0, 1, ... in the order of the labels."""
        if x.shape != (len(self.groups),):
            raise InputError(
                f"{type(self).__name__} has {len(self.groups)} labels in groups; it does not fit a model of shape "
                f"{x.shape}. Give one label per coefficient."
            )
        return _numbered(self.groups)[0].copy()

    def group_weights(self) -> np.ndarray:
        """w_k of each group."""
        return np.sqrt(_numbered(self.groups)[1]) if self.weights is None else self.weights

    def thresholds(self, x: Numbers) -> Numbers:
        """lam w_k of each group."""
        return cast_like(self.lam, x) * cast_like(self.group_weights(), x)

    def norms(self, x: Numbers) -> Numbers:
        """||x_(group k)|| of each group."""
        return group_norms(x, self.group_of(x), len(_numbered(self.groups)[1]))

    def shrink(self, x: Numbers, t: Array | float) -> Numbers:
        """The prox of t lam sum_k w_k ||x_(group k)||."""
        thresholds = cast_like(t, x) * self.thresholds(x)
        return group_soft_threshold(x, thresholds, self.group_of(x), len(_numbered(self.groups)[1]))

    def form_with(self, l1: float | np.ndarray, d: int) -> CoordinateForm:
        weight, group = np.asarray(self.group_weights(), float) * self.lam, self.group_of(np.empty(d))
        return separable_form(d, l1=l1)._replace(group_weight=weight, group=group)


@record
class GroupL2(_GroupPenalty):
    """g(x) = lam sum_k w_k ||x_(group k)||: the group lasso.

    Parameters
    ----------
    lam : float
        Weight of the penalty.
    groups : sequence of int
        The label of each coefficient, equal for the members of a group.
    weights : array of shape (n_groups,), optional
        w_k in the order of the labels; the square root of the group's size if left out.

    Examples
    --------
    >>> GroupL2(1.0, groups=(0, 0, 1), weights=np.ones(2)).prox(np.array([3.0, 4.0, 0.5]), 1.0)
    array([2.4, 3.2, 0. ])
    """

    lam: float = nonnegative(scalar=True)
    groups: tuple[int, ...] = labels()
    weights: np.ndarray | None = optional(nonnegative(), default=None)

    @classmethod
    def of_rows(cls, lam: float, rows: int, columns: int) -> GroupL2:
        """g(X) = lam sum_i ||X_i|| for the rows X_i of X = x.reshape(rows, columns): the multi-task L2,1 norm.

        >>> GroupL2.of_rows(0.1, rows=2, columns=3).groups
        (0, 0, 0, 1, 1, 1)
        """
        return cls(lam, tuple(np.repeat(np.arange(rows), columns).tolist()), np.ones(rows))

    def __call__(self, x: ArrayT) -> ArrayT:
        return (self.thresholds(x) * self.norms(x)).sum()

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        return self.shrink(x, t)

    def coordinate_form(self, d: int) -> CoordinateForm:
        return self.form_with(0.0, d)

    def alpha_max(self, gradient: ArrayT) -> ArrayT:
        return ratio(self.norms(gradient), self.thresholds(gradient)).max()


@record
class SparseGroup(_GroupPenalty):
    """g(x) = sum_j l1_j |x_j| + lam sum_k w_k ||x_(group k)||: the sparse group lasso.

    The prox shrinks the groups after soft thresholding: shrinking keeps every sign, so that the subgradient which
    soft thresholding chose stays one.

    Parameters
    ----------
    l1 : float or array of shape (d,)
        Weight of the first term; an array gives each coefficient its own.
    lam : float
        Weight of the second term.
    groups : sequence of int
        The label of each coefficient, equal for the members of a group.
    weights : array of shape (n_groups,), optional
        w_k in the order of the labels; the square root of the group's size if left out.

    References
    ----------
    Yu, "On decomposing the proximal map", NeurIPS, 2013.

    Examples
    --------
    >>> SparseGroup(1.0, 1.0, groups=(0, 0, 1), weights=np.ones(2)).prox(np.array([4.0, 5.0, 0.5]), 1.0)
    array([2.4, 3.2, 0. ])
    """

    l1: float | np.ndarray = nonnegative()
    lam: float = nonnegative(scalar=True)
    groups: tuple[int, ...] = labels()
    weights: np.ndarray | None = optional(nonnegative(), default=None)

    def __call__(self, x: ArrayT) -> ArrayT:
        return (cast_like(self.l1, x) * abs(x)).sum() + (self.thresholds(x) * self.norms(x)).sum()

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        return self.shrink(soft_threshold(x, t * self.l1), t)

    def coordinate_form(self, d: int) -> CoordinateForm:
        return self.form_with(self.l1, d)

    def alpha_max(self, gradient: ArrayT) -> ArrayT:
        return alpha_max_by_bisection(self, gradient)


# --- order of size, and neighbours ---


@record
class LinfNorm(BaseRegulariser):
    """g(x) = lam max_j |x_j|.

    Parameters
    ----------
    lam : float

    Examples
    --------
    >>> LinfNorm(1.0).prox(np.array([3.0, 1.0, -2.5]), 1.0)
    array([ 2.25,  1.  , -2.25])
    """

    lam: float = nonnegative(scalar=True)

    def __call__(self, x: ArrayT) -> ArrayT:
        return cast_like(self.lam, x) * abs(x).max()

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        return max_norm_prox(x, cast_like(t * self.lam, x))

    def alpha_max(self, gradient: ArrayT) -> ArrayT:
        return ratio(abs(gradient).sum(), self.lam)


@record
class SortedL1(BaseRegulariser):
    """g(x) = sum_k lam_k |x|_(k), with |x|_(1) >= |x|_(2) >= ... and lam_1 >= lam_2 >= ... >= 0 (OWL, SLOPE).

    Parameters
    ----------
    lam : array of shape (d,)
        Weights that do not increase. Equal differences group equal coefficients (OSCAR); a constant is L1.

    References
    ----------
    Bogdan, van den Berg, Sabatti, Su, Candès, "SLOPE: adaptive variable selection via convex optimization", Annals of
    Applied Statistics, 2015.

    Examples
    --------
    >>> SortedL1(np.array([2.0, 1.0])).prox(np.array([3.0, -2.5]), 1.0)
    array([ 1.25, -1.25])
    """

    lam: np.ndarray = nonnegative()

    def check(self) -> None:
        if np.ndim(self.lam) != 1:
            raise InputError(f"SortedL1(lam={self.lam!r}): lam must be one number per coefficient, largest first.")
        if isinstance(self.lam, np.ndarray) and not (np.diff(self.lam) <= 0).all():
            raise InputError(f"SortedL1(lam={self.lam!r}): lam must not increase. Give np.sort(lam)[::-1].")

    def __call__(self, x: ArrayT) -> ArrayT:
        return (self._weights(x) * _falling(abs(x))).sum()

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        return sorted_l1_prox(x, cast_like(t, x) * self._weights(x))

    def alpha_max(self, gradient: ArrayT) -> ArrayT:
        xp = namespace(gradient, self.lam)
        return ratio(xp.cumsum(_falling(abs(gradient))), xp.cumsum(self._weights(gradient))).max()

    def _weights(self, x: Numbers) -> Numbers:
        if np.shape(self.lam) != x.shape:
            raise InputError(
                f"SortedL1 has {np.size(self.lam)} numbers in lam; it does not fit a model of shape {x.shape}."
            )
        return cast_like(self.lam, x)


def _falling(v: Numbers) -> Numbers:
    return -namespace(v).sort(-v)


@record
class TotalVariation1D(BaseRegulariser):
    """g(x) = lam sum_j |x_{j+1} - x_j|: coefficients in a row, such as time points, are piecewise constant.

    The prox is exact and direct, in O(d). Rounding adds up along the row: in float32, to 1e-6 of the largest
    coefficient for d = 2000 and 1e-5 for d = 100 000.

    Parameters
    ----------
    lam : float

    References
    ----------
    Johnson, "A dynamic programming algorithm for the fused lasso and L0-segmentation", JCGS, 2013.

    Examples
    --------
    >>> TotalVariation1D(1.0).prox(np.array([0.0, 3.0, 0.0]), 0.5)
    array([0.5, 2. , 0.5])
    """

    lam: float = nonnegative(scalar=True)

    def __call__(self, x: ArrayT) -> ArrayT:
        return cast_like(self.lam, x) * abs(namespace(x).diff(x)).sum()

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        return total_variation_prox(x, t * self.lam)


# --- singular values of a model matrix X = x.reshape(-1, columns) ---


@record
class Nuclear(BaseRegulariser):
    """g(x) = lam (sum of the singular values of X), X = x.reshape(-1, columns): low rank.

    Parameters
    ----------
    lam : float
        Weight of the penalty.
    columns : int
        Number of columns of X, such as the outputs of the model.

    Examples
    --------
    >>> Nuclear(1.0, columns=2).prox(np.array([2.0, 0.0, 0.0, 0.5]), 1.0)
    array([1., 0., 0., 0.])
    """

    lam: float = nonnegative(scalar=True)
    columns: int = count()

    def __call__(self, x: ArrayT) -> ArrayT:
        return cast_like(self.lam, x) * singular_values(x, self.columns).sum()

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        return map_singular_values(x, self.columns, lambda s: soft_threshold(s, t * self.lam))

    def alpha_max(self, gradient: ArrayT) -> ArrayT:
        return ratio(singular_values(gradient, self.columns).max(), self.lam)

    def subspace(self, points: Numbers) -> Subspace | None:
        return column_space(self, points, self.columns)


def column_space(g: Regulariser, points: Numbers, columns: int) -> Subspace | None:
    """g in a basis of the columns of all `points` as matrices; None if that is no smaller.

    A function of singular values does not change when X is multiplied by an orthogonal matrix, and grows with the part of X
    outside a subspace. So the minimiser of g plus a quadratic lies in the span of the columns that the quadratic is made of.
    """
    if points[0].size <= len(points) * columns**2:
        return None
    xp = namespace(points)
    matrices = points.reshape(len(points), -1, columns)
    basis, reduced = xp.linalg.qr(xp.moveaxis(matrices, 0, 1).reshape(matrices.shape[1], -1))
    reduced = xp.moveaxis(reduced.reshape(len(reduced), len(points), columns), 1, 0)
    return Subspace(g, reduced.reshape(len(points), -1), lambda u: (basis @ u.reshape(-1, columns)).ravel())
