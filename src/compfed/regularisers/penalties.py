"""Penalties and constraints: of each coefficient by itself, of coefficients together, and convex sets."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jax import Array
from jax.core import Tracer

from compfed import prox
from compfed._utils.array_namespace import ArrayT, Numbers, cast_like, namespace
from compfed._utils.records import count, labels, nonnegative, number, optional, positive, record
from compfed.errors import InputError
from compfed.regularisers.base import (
    BaseRegulariser,
    ConvexSet,
    Regulariser,
    Subspace,
    alpha_max_by_bisection,
    boundary_tolerance,
    indicator,
    ratio,
)
from compfed.regularisers.coordinate_form import CoordinateForm, separable_form


@record
class Zero(BaseRegulariser):
    """g(x) = 0: no penalty.

    Examples
    --------
    >>> Zero().prox(np.array([1.0, -2.0]), 0.5)
    array([ 1., -2.])
    """

    def __call__(self, x: ArrayT) -> ArrayT:
        return cast_like(0.0, x)

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        return x

    def coordinate_form(self, d: int) -> CoordinateForm:
        return separable_form(d)

    def alpha_max(self, gradient: ArrayT) -> ArrayT:
        return indicator((gradient == 0).all(), gradient)


@record
class L1(BaseRegulariser):
    """g(x) = sum_j lam_j |x_j|: the lasso.

    Parameters
    ----------
    lam : float or array of shape (d,)
        Weight of the penalty; an array gives each coefficient its own.

    Examples
    --------
    >>> L1(0.5).prox(np.array([-2.0, 0.2, 2.0]), 1.0)
    array([-1.5,  0. ,  1.5])
    """

    lam: float | np.ndarray = nonnegative()

    def __call__(self, x: ArrayT) -> ArrayT:
        return (cast_like(self.lam, x) * abs(x)).sum()

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        return prox.soft_threshold(x, t * self.lam)

    def coordinate_form(self, d: int) -> CoordinateForm:
        return separable_form(d, l1=self.lam)

    def alpha_max(self, gradient: ArrayT) -> ArrayT:
        return ratio(abs(gradient), self.lam).max()


@record
class ElasticNet(BaseRegulariser):
    """g(x) = sum_j l1_j |x_j| + l2_j x_j^2 / 2.

    Parameters
    ----------
    l1, l2 : float or array of shape (d,)
        Weights of the two terms; arrays give each coefficient its own.

    Examples
    --------
    >>> ElasticNet(l1=0.5, l2=1.0).prox(np.array([-2.0, 0.2, 2.0]), 1.0)
    array([-0.75,  0.  ,  0.75])
    """

    l1: float | np.ndarray = nonnegative()
    l2: float | np.ndarray = nonnegative()

    def __call__(self, x: ArrayT) -> ArrayT:
        return (cast_like(self.l1, x) * abs(x)).sum() + 0.5 * (cast_like(self.l2, x) * x * x).sum()

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        return prox.soft_threshold(x, t * self.l1) / (1.0 + cast_like(t * self.l2, x))

    def coordinate_form(self, d: int) -> CoordinateForm:
        return separable_form(d, l1=self.l1, l2=self.l2)

    def alpha_max(self, gradient: ArrayT) -> ArrayT:
        return ratio(abs(gradient), self.l1).max()


@record
class Ridge(BaseRegulariser):
    """g(x) = lam ||x||^2 / 2.

    Parameters
    ----------
    lam : float

    Examples
    --------
    >>> Ridge(1.0).prox(np.array([2.0, -4.0]), 1.0)
    array([ 1., -2.])
    """

    lam: float = nonnegative(scalar=True)

    def __call__(self, x: ArrayT) -> ArrayT:
        return 0.5 * cast_like(self.lam, x) * (x * x).sum()

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        return x / (1.0 + cast_like(t * self.lam, x))

    def coordinate_form(self, d: int) -> CoordinateForm:
        return separable_form(d, l2=self.lam)

    def alpha_max(self, gradient: ArrayT) -> ArrayT:
        return indicator((gradient == 0).all(), gradient)


# --- weakly convex penalties: sparse like L1, but large coefficients are not shrunk ---


class WeaklyConvex(BaseRegulariser):
    """A penalty that is convex after adding a multiple of ||x||^2: its prox is unique for steps below `largest_step`."""

    lam: float | np.ndarray
    gamma: float
    least_gamma: float

    def check(self) -> None:
        if isinstance(self.gamma, float) and not self.gamma > self.least_gamma:
            raise InputError(f"{type(self).__name__}(gamma={self.gamma!r}): gamma must be > {self.least_gamma:g}.")

    def _check_step(self, t: Array | float) -> None:
        """While tracing neither number is known: the code that chooses the step has to compare it with `largest_step`."""
        limit = self.largest_step
        if not isinstance(t, Tracer) and not isinstance(limit, Tracer) and np.any(np.asarray(t) >= np.asarray(limit)):
            steps = f"has a prox for steps t < {limit}; got t = {t}. Take a smaller step or a larger gamma."
            raise InputError(f"{type(self).__name__}(gamma={self.gamma}) {steps}")

    def alpha_max(self, gradient: ArrayT) -> ArrayT:
        """The least alpha such that x = 0 is stationary for <gradient, x> + alpha g(x), which is not convex."""
        return ratio(abs(gradient), self.lam).max()


@record
class MCP(WeaklyConvex):
    """g(x) = sum_j (lam |x_j| - x_j^2 / (2 gamma) if |x_j| <= gamma lam, else gamma lam^2 / 2).

    Parameters
    ----------
    lam : float or array of shape (d,)
        Weight of the penalty near 0.
    gamma : float, default=3.0
        Larger than 1. Coefficients beyond gamma lam are not shrunk; the prox is defined for steps below gamma.

    References
    ----------
    Zhang, "Nearly unbiased variable selection under minimax concave penalty", Annals of Statistics, 2010.

    Examples
    --------
    >>> MCP(1.0, gamma=3.0).prox(np.array([0.5, 2.0, 4.0]), 1.0)
    array([0. , 1.5, 4. ])
    """

    lam: float | np.ndarray = nonnegative()
    gamma: float = positive(default=3.0)
    least_gamma = 1.0

    @property
    def largest_step(self) -> float:
        return self.gamma

    def __call__(self, x: ArrayT) -> ArrayT:
        xp, lam, gamma = namespace(x, self.lam, self.gamma), cast_like(self.lam, x), cast_like(self.gamma, x)
        size = xp.minimum(xp.abs(x), gamma * lam)  # constant from there on
        return (lam * size - 0.5 * size * size / gamma).sum()

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        self._check_step(t)
        xp, lam, gamma = namespace(x, t, self.lam, self.gamma), cast_like(self.lam, x), cast_like(self.gamma, x)
        t = cast_like(t, x)
        # The inner `where` avoids NaN for a step that is found to be too long only later.
        shrunk = prox.soft_threshold(x, t * lam) / xp.where(t < gamma, 1.0 - t / gamma, 1.0)
        return xp.where(xp.abs(x) <= gamma * lam, shrunk, x)


@record
class SCAD(WeaklyConvex):
    """g(x) = sum_j of the even function whose derivative is lam on [0, lam] and falls linearly to 0 at gamma lam.

    That is lam |x_j| up to lam, (2 gamma lam |x_j| - x_j^2 - lam^2) / (2 (gamma - 1)) up to gamma lam, and
    lam^2 (gamma + 1) / 2 beyond.

    Parameters
    ----------
    lam : float or array of shape (d,)
        Weight of the penalty near 0.
    gamma : float, default=3.7
        Larger than 2. Coefficients beyond gamma lam are not shrunk; the prox is defined for steps below gamma - 1.

    References
    ----------
    Fan, Li, "Variable selection via nonconcave penalized likelihood and its oracle properties", JASA, 2001.

    Examples
    --------
    >>> SCAD(1.0).prox(np.array([0.5, 1.5, 5.0]), 1.0)
    array([0. , 0.5, 5. ])
    """

    lam: float | np.ndarray = nonnegative()
    gamma: float = positive(default=3.7)
    least_gamma = 2.0

    @property
    def largest_step(self) -> float:
        return self.gamma - 1.0

    def __call__(self, x: ArrayT) -> ArrayT:
        xp, lam, gamma = namespace(x, self.lam, self.gamma), cast_like(self.lam, x), cast_like(self.gamma, x)
        size = xp.minimum(xp.abs(x), gamma * lam)  # constant from there on
        excess = xp.maximum(size - lam, 0.0)
        return (lam * size - 0.5 * excess * excess / (gamma - 1.0)).sum()

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        self._check_step(t)
        xp, lam, gamma = namespace(x, t, self.lam, self.gamma), cast_like(self.lam, x), cast_like(self.gamma, x)
        t, size = cast_like(t, x), xp.abs(x)
        middle = prox.soft_threshold(x, t * lam * gamma / (gamma - 1.0)) / (1.0 - t / (gamma - 1.0))
        beyond = xp.where(size <= gamma * lam, middle, x)
        return xp.where(size <= (1.0 + t) * lam, prox.soft_threshold(x, t * lam), beyond)


# --- norms that couple coefficients ---

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
            unfit = f"it does not fit a model of shape {x.shape}. Give one label per coefficient."
            raise InputError(f"{type(self).__name__} has {len(self.groups)} labels in groups; {unfit}")
        return _numbered(self.groups)[0].copy()

    def group_weights(self) -> np.ndarray:
        """w_k of each group."""
        return np.sqrt(_numbered(self.groups)[1]) if self.weights is None else self.weights

    def thresholds(self, x: Numbers) -> Numbers:
        """lam w_k of each group."""
        return cast_like(self.lam, x) * cast_like(self.group_weights(), x)

    def norms(self, x: Numbers) -> Numbers:
        """||x_(group k)|| of each group."""
        return prox.group_norms(x, self.group_of(x), len(_numbered(self.groups)[1]))

    def shrink(self, x: Numbers, t: Array | float) -> Numbers:
        """The prox of t lam sum_k w_k ||x_(group k)||."""
        thresholds = cast_like(t, x) * self.thresholds(x)
        return prox.group_soft_threshold(x, thresholds, self.group_of(x), len(_numbered(self.groups)[1]))

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
        return self.shrink(prox.soft_threshold(x, t * self.l1), t)

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
        return prox.max_norm_prox(x, cast_like(t * self.lam, x))

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
        return prox.sorted_l1_prox(x, cast_like(t, x) * self._weights(x))

    def alpha_max(self, gradient: ArrayT) -> ArrayT:
        xp = namespace(gradient, self.lam)
        return ratio(xp.cumsum(_falling(abs(gradient))), xp.cumsum(self._weights(gradient))).max()

    def _weights(self, x: Numbers) -> Numbers:
        if np.shape(self.lam) != x.shape:
            raise InputError(f"SortedL1 has {np.size(self.lam)} numbers in lam; it does not fit a model of {x.shape}.")
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
        return prox.total_variation_prox(x, t * self.lam)


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
        return cast_like(self.lam, x) * prox.singular_values(x, self.columns).sum()

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        return prox.map_singular_values(x, self.columns, lambda s: prox.soft_threshold(s, t * self.lam))

    def alpha_max(self, gradient: ArrayT) -> ArrayT:
        return ratio(prox.singular_values(gradient, self.columns).max(), self.lam)

    def subspace(self, points: Numbers) -> Subspace | None:
        return column_space(self, points, self.columns)


def column_space(g: Regulariser, points: Numbers, columns: int) -> Subspace | None:
    """g in a basis of the columns of all `points` as matrices; None if that is not smaller.

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


# --- constraints: g is 0 in a convex set and infinite outside, and its prox is the projection on the set ---


@record
class Box(ConvexSet):
    """g(x) = 0 if lower_j <= x_j <= upper_j for all j, else inf.

    Parameters
    ----------
    lower, upper : float or array of shape (d,)
        The bounds, infinite ones allowed; arrays give each coefficient its own.

    Examples
    --------
    >>> Box(-1.0, 1.0).prox(np.array([-2.0, 0.5]), 1.0)
    array([-1. ,  0.5])
    """

    lower: float | np.ndarray = number()
    upper: float | np.ndarray = number()

    def check(self) -> None:
        known = all(isinstance(bound, (float, np.ndarray)) for bound in (self.lower, self.upper))
        if known and not np.all(np.asarray(self.lower) <= np.asarray(self.upper)):
            raise InputError(f"Box(lower={self.lower}, upper={self.upper}): lower must be <= upper everywhere.")

    def __call__(self, x: ArrayT) -> ArrayT:
        return indicator(((x >= cast_like(self.lower, x)) & (x <= cast_like(self.upper, x))).all(), x)

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        lower, upper = cast_like(self.lower, x), cast_like(self.upper, x)
        return namespace(x, lower, upper).clip(x, lower, upper)

    def coordinate_form(self, d: int) -> CoordinateForm:
        return separable_form(d, lower=self.lower, upper=self.upper)


@record
class NonNegative(ConvexSet):
    """g(x) = 0 if x_j >= 0 for all j, else inf.

    Examples
    --------
    >>> NonNegative().prox(np.array([-2.0, 0.5]), 1.0)
    array([0. , 0.5])
    """

    def __call__(self, x: ArrayT) -> ArrayT:
        return indicator((x >= 0).all(), x)

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        return namespace(x).maximum(x, 0.0)

    def coordinate_form(self, d: int) -> CoordinateForm:
        return separable_form(d, lower=0.0)


@record
class L2Ball(ConvexSet):
    """g(x) = 0 if ||x|| <= radius, else inf.

    Parameters
    ----------
    radius : float
        Larger than 0.

    Examples
    --------
    >>> L2Ball(1.0).prox(np.array([3.0, 4.0]), 1.0)
    array([0.6, 0.8])
    """

    radius: float = positive()

    def __call__(self, x: ArrayT) -> ArrayT:
        # The projection itself may round to just outside: a few units in the last place count as inside.
        norm = namespace(x).linalg.norm(x)
        return indicator(norm <= cast_like(self.radius, x) * boundary_tolerance(x), x)

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        return prox.project_l2_ball(x, cast_like(self.radius, x))


@record
class L1Ball(ConvexSet):
    """g(x) = 0 if sum_j |x_j| <= radius, else inf.

    Parameters
    ----------
    radius : float
        Larger than 0.

    Examples
    --------
    >>> L1Ball(1.0).prox(np.array([2.0, -1.5]), 1.0)
    array([ 0.75, -0.25])
    """

    radius: float = positive()

    def __call__(self, x: ArrayT) -> ArrayT:
        return indicator(abs(x).sum() <= cast_like(self.radius, x) * boundary_tolerance(x), x)

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        return prox.project_l1_ball(x, cast_like(self.radius, x))


@record
class Simplex(ConvexSet):
    """g(x) = 0 if x_j >= 0 for all j and sum_j x_j = radius, else inf.

    Parameters
    ----------
    radius : float, default=1.0
        Larger than 0.

    Examples
    --------
    >>> Simplex().prox(np.array([1.0, 0.5, 0.0]), 1.0)
    array([0.75, 0.25, 0.  ])
    """

    radius: float = positive(default=1.0)

    def __call__(self, x: ArrayT) -> ArrayT:
        radius = cast_like(self.radius, x)
        on_plane = abs(x.sum() - radius) <= radius * (boundary_tolerance(x) - 1.0)
        return indicator((x >= 0).all() & on_plane, x)

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        return prox.project_simplex(x, cast_like(self.radius, x))


@record
class NuclearBall(ConvexSet):
    """g(x) = 0 if the singular values of X = x.reshape(-1, columns) sum to at most radius, else inf.

    Parameters
    ----------
    radius : float
        Larger than 0.
    columns : int
        Number of columns of X, such as the outputs of the model.

    Examples
    --------
    >>> NuclearBall(1.0, columns=2).prox(np.array([2.0, 0.0, 0.0, 0.5]), 1.0)
    array([1., 0., 0., 0.])
    """

    radius: float = positive()
    columns: int = count()

    def __call__(self, x: ArrayT) -> ArrayT:
        total = prox.singular_values(x, self.columns).sum()
        return indicator(total <= cast_like(self.radius, x) * boundary_tolerance(x), x)

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        return prox.map_singular_values(x, self.columns, lambda s: prox.project_l1_ball(s, cast_like(self.radius, s)))

    def subspace(self, points: Numbers) -> Subspace | None:
        return column_space(self, points, self.columns)


# --- sums: prox_{t (a + b)} as the prox of one after that of the other ---


class Rule(NamedTuple):
    """prox_{first + last} = prox_last o prox_first; `alike`: if `last` has one number for all coefficients.

    `holding`: if `last` holds whole groups of `first` at 0 and leaves the others free.
    """

    first: tuple[type, ...]
    last: tuple[type, ...]
    alike: bool = False
    holding: bool = False

    def __str__(self) -> str:
        first, last = (" or ".join(cls.__name__ for cls in part) for part in (self.first, self.last))
        alike = " with one number for all coefficients" * self.alike
        return f"{first} + {last}{alike}" + " that holds whole groups at 0" * self.holding

    def holds(self, first: Regulariser, last: Regulariser) -> bool:
        """Whether this is the rule for these two, without their factors."""
        alike = all(np.ndim(value) == 0 for value in vars(last).values())
        known = isinstance(first, self.first) and isinstance(last, self.last) and (alike or not self.alike)
        return known and (not self.holding or _holds_whole_groups(first, last))


def _holds_whole_groups(penalty: Regulariser, box: Regulariser) -> bool:
    """Whether a box is {0} for whole groups, and has no bounds for the others. Assumed while tracing."""
    assert isinstance(penalty, GroupL2)
    assert isinstance(box, Box)
    if isinstance(box.lower, Tracer) or isinstance(box.upper, Tracer):
        return True
    group, sizes = _numbered(penalty.groups)
    lower, upper = (np.broadcast_to(np.asarray(side, float), group.shape) for side in (box.lower, box.upper))
    held, free = (lower == 0) & (upper == 0), np.isinf(lower) & np.isinf(upper)
    members = np.bincount(group[held], minlength=len(sizes))
    return bool((held | free).all() and ((members == 0) | (members == sizes)).all())


# prox_{a + b} = prox_b o prox_a whenever the subgradient that prox_a chose is still one after prox_b, that is if the
# subdifferential of a at p = prox_a(x) is contained in that at prox_b(p) (Yu 2013). These are the cases where it is.
RULES = (
    # A strictly convex function of one number, minimised over an interval: the free minimiser, clipped.
    Rule((Zero, L1, ElasticNet, MCP, SCAD), (Box, NonNegative)),
    # Subgradients of the total variation depend on the order of neighbours, and one nondecreasing function, applied
    # to all coefficients, keeps the order. With weights that differ, L1(weights) is not such a function.
    Rule((TotalVariation1D,), (L1, ElasticNet, Box, NonNegative), alike=True),
    # A group that is held at 0 does not change the others.
    Rule((GroupL2,), (Box,), holding=True),
    # Shrinking a group keeps its signs, or makes it zero, where every old subgradient is one.
    Rule((L1, NonNegative), (GroupL2,)),
    # The projection on the ball is a multiple of x, and the subgradients of a norm are those of a multiple.
    Rule((Zero, L1, NonNegative, GroupL2, SparseGroup, Nuclear, SortedL1, LinfNorm, TotalVariation1D), (L2Ball,)),
)
