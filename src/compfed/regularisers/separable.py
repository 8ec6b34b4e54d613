"""Penalties of each coefficient by itself: lasso, elastic net, ridge, MCP and SCAD."""

from __future__ import annotations

import numpy as np
from jax import Array
from jax.core import Tracer

from compfed._utils.array_namespace import ArrayT, cast_like, namespace
from compfed._utils.records import nonnegative, positive, record
from compfed.errors import InputError
from compfed.prox import soft_threshold
from compfed.regularisers.base import BaseRegulariser, indicator, ratio
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
        return soft_threshold(x, t * self.lam)

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
        return soft_threshold(x, t * self.l1) / (1.0 + cast_like(t * self.l2, x))

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


class _WeaklyConvex(BaseRegulariser):
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
            raise InputError(
                f"{type(self).__name__}(gamma={self.gamma}) has a prox for steps t < {limit}; got t = {t}. "
                "Take a smaller step or a larger gamma."
            )

    def alpha_max(self, gradient: ArrayT) -> ArrayT:
        """The least alpha such that x = 0 is stationary for <gradient, x> + alpha g(x), which is not convex."""
        return ratio(abs(gradient), self.lam).max()


@record
class MCP(_WeaklyConvex):
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
        shrunk = soft_threshold(x, t * lam) / xp.where(t < gamma, 1.0 - t / gamma, 1.0)
        return xp.where(xp.abs(x) <= gamma * lam, shrunk, x)


@record
class SCAD(_WeaklyConvex):
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
        middle = soft_threshold(x, t * lam * gamma / (gamma - 1.0)) / (1.0 - t / (gamma - 1.0))
        beyond = xp.where(size <= gamma * lam, middle, x)
        return xp.where(size <= (1.0 + t) * lam, soft_threshold(x, t * lam), beyond)
