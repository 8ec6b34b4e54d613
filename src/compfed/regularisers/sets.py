"""Constraints: g is 0 in a convex set and infinite outside, and its prox is the projection on the set."""

from __future__ import annotations

import numpy as np
from jax import Array

from compfed._utils.array_namespace import ArrayT, Numbers, cast_like, namespace
from compfed._utils.records import count, number, positive, record
from compfed.errors import InputError
from compfed.prox import map_singular_values, project_l1_ball, project_l2_ball, project_simplex, singular_values
from compfed.regularisers.base import ConvexSet, Subspace, boundary_tolerance, indicator
from compfed.regularisers.coordinate_form import CoordinateForm, separable_form
from compfed.regularisers.norms import column_space


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
        return project_l2_ball(x, cast_like(self.radius, x))


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
        return project_l1_ball(x, cast_like(self.radius, x))


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
        return project_simplex(x, cast_like(self.radius, x))


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
        total = singular_values(x, self.columns).sum()
        return indicator(total <= cast_like(self.radius, x) * boundary_tolerance(x), x)

    def prox(self, x: ArrayT, t: Array | float) -> ArrayT:
        return map_singular_values(x, self.columns, lambda s: project_l1_ball(s, cast_like(self.radius, s)))

    def subspace(self, points: Numbers) -> Subspace | None:
        return column_space(self, points, self.columns)
