"""The minimiser of a quadratic model with a penalty: what a second-order step at the server comes to.

    u = argmin  <gradient, u - x> + (u - x)^T B (u - x) / 2 + g(u)

Where g acts on single coefficients or on groups of them (`Form`), u is found to rounding, in NumPy: sweeps of coordinate
descent find out which coefficients sit at a kink or a bound, and a Newton step on all others together ends the search,
at once where g is piecewise quadratic. Every other g is known by its prox alone: restarted FISTA.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.linalg import get_lapack_funcs

from compfed.regularisers.coordinate_form import CoordinateForm
from compfed.solvers.bfgs_matrix import Compact
from compfed.solvers.working_set import norms, settled, subgradient, working_set

SWEEPS = 200  # of coordinate descent at most, each followed by a Newton step
STALE = 30  # sweeps that do not bring it to half the distance: the next evaluation knows more than the next sweep
EPS = float(np.finfo(float).eps)
_solve, _factor, _solve_factored = get_lapack_funcs(("posv", "potrf", "potrs"), dtype=np.float64)
SHARES = 10  # halvings of a Newton step
ROOM = 64  # coordinates a search over many starts with


# --- the minimiser ---


def minimiser(form: CoordinateForm, x: np.ndarray, gradient: np.ndarray, B: np.ndarray | Compact) -> np.ndarray:
    """u, for a g that has a form."""
    idle = np.append(form.pull, 0.0)[form.group] == 0  # a group without a pull is none
    form = form._replace(group=np.where(idle, -1, form.group))
    if isinstance(B, np.ndarray):
        return _minimiser(form, x, gradient, B)
    W = working_set(form, x, gradient, ROOM)
    while True:  # a search on few coordinates, and a look at all of them, until none asks for more
        u = x.copy()
        u[W] = _minimiser(form.at(W), x[W], gradient[W], B.block(W))
        r = gradient + B.apply(u - x)
        left = np.abs(subgradient(form, u, r))
        left[W] = 0.0
        wrong = left > _rounding(np.abs(gradient) + np.abs(r) + B.diagonal * np.abs(u - x))
        if not wrong.any():
            return u
        W = np.union1d(W, working_set(form, u, r, min(len(x), 2 * len(W))))


def _rounding(size: np.ndarray) -> np.ndarray:
    """What rounding may leave of a sum of terms of this size."""
    return 32 * EPS * (size + size.sum() / max(size.size, 1))


def _minimiser(form: CoordinateForm, x: np.ndarray, gradient: np.ndarray, B: np.ndarray) -> np.ndarray:
    search, best, stale = _Search(form, x, gradient, B), np.inf, 0
    for _ in range(SWEEPS):
        search.sweep(*search.newton())
        left = search.left()
        best, stale = (left, 0) if left < 0.5 * best else (best, stale + 1)
        # no better, and near rounding: as good as it gets
        if left <= 1.0 or (stale >= 3 and left <= 1e4) or stale >= STALE:
            break
    return search.u


class _Search:
    """A search under way: u, and the gradient r = gradient + B (u - x) of the model there."""

    def __init__(self, form: CoordinateForm, x: np.ndarray, gradient: np.ndarray, B: np.ndarray):
        self.form, self.x, self.gradient, self.B = form, x, gradient, B
        self.u, self.r = x.copy(), gradient.copy()
        self.groups: dict[int, tuple[np.ndarray, ...]] = {}  # members, their columns of B, eigenvalues and -vectors

    def left(self) -> float:
        """How far from the minimum, as a multiple of what rounding allows."""
        size = np.abs(self.gradient) + np.abs(self.B) @ np.abs(self.u - self.x) + self.form.l1
        size = size + self.form.l2 * np.abs(self.u - self.form.kink)
        force = np.abs(subgradient(self.form, self.u, self.r))
        return float(np.max(force / np.maximum(_rounding(size), np.finfo(float).tiny), initial=0.0))

    # --- coordinate descent ---

    def sweep(self, share: float, sizes: np.ndarray) -> None:
        """Coordinates and groups towards their own minimum, one by one, after so large a share of a Newton step.

        Single coordinates need it if there was none. Groups need it more often, for no Newton step makes one zero: if the
        step was shortened all of them, else those that were zero or have shrunk to less than half.
        """
        form, u, r, B = self.form, self.u, self.r, self.B
        moving = (subgradient(form, u, r) != 0) & (form.group < 0) & (share == 0)
        for j in np.flatnonzero(moving).tolist():
            curve = B[j, j] + form.l2[j]
            if curve <= 0:
                continue
            z, at = B[j, j] * (u[j] - form.kink[j]) - r[j], form.l1[j]
            new = form.kink[j] + (z - at if z > at else z + at if z < -at else 0.0) / curve
            change = min(max(new, form.lower[j]), form.upper[j]) - u[j]
            u[j] += change
            r += change * B[j]
        astir = form.group[(form.group >= 0) & (subgradient(form, u, self.r) != 0)]
        due = (sizes == 0) | (norms(form, u - form.kink) < 0.5 * sizes) | (share < 1)
        for k in np.unique(astir).tolist():
            if due[k]:
                self._shrink(k)

    def _shrink(self, k: int) -> None:
        """A group to its minimum; to that of a prox step, as long as the curvature allows, if |.| acts on it too."""
        form = self.form
        if k not in self.groups:
            G = np.flatnonzero(form.group == k)
            self.groups[k] = G, self.B[:, G], *np.linalg.eigh(self.B[np.ix_(G, G)] + np.diag(form.l2[G]))
        G, columns, curves, axes = self.groups[k]
        v, L = self.u[G] - form.kink[G], curves[-1]
        if L > 0 and not form.l1[G].any():
            new = axes @ _pulled(curves, curves * (v @ axes) - (self.r[G] + form.l2[G] * v) @ axes, form.pull[k])
        elif L > 0:
            new = v - self.r[G] / L
            new = np.sign(new) * np.maximum(np.abs(new) - form.l1[G] / L, 0.0)
            size = math.sqrt(new @ new)
            new *= (max(0.0, 1.0 - form.pull[k] / (L * size)) if size > 0 else 0.0) / (1.0 + form.l2[G] / L)
        else:  # flat: at the kink, if the pull is stronger than the slope
            new = v * (np.linalg.norm(self.r[G]) > form.pull[k])
        self.u[G] = form.kink[G] + new
        self.r += columns @ (new - v)

    # --- all that can move freely, together ---

    def newton(self) -> tuple[float, np.ndarray]:
        """A Newton step on the coordinates that can move, to the side they go to; who would pass a kink stops there.

        The share of the step that brought the model lower, and how large the groups were before.
        """
        form, u, sizes = self.form, self.u, norms(self.form, self.u - self.form.kink)
        least = subgradient(form, u, self.r)
        resting = settled(form, u)
        free = np.flatnonzero(~resting | ((least != 0) & (form.group < 0)))
        step = np.zeros(0)
        while free.size:
            step = -solved(self.B[np.ix_(free, free)] + np.diag(form.l2[free]) + self._bend(free), least[free])
            back = resting[free] & (step * least[free] >= 0)  # it would leave its kink on the other side
            if not back.any():
                break
            free = free[~back]
        return (self._moved(free, step, resting[free]) if free.size else 0.0), sizes

    def _moved(self, free: np.ndarray, step: np.ndarray, resting: np.ndarray) -> float:
        form, u, before = self.form, self.u, self._value(self.u, self.r)
        bound = np.where(step > 0, form.upper[free], form.lower[free])
        ahead = ((form.kink[free] - u[free]) * step > 0) & (form.l1[free] > 0) & ~resting
        stops = np.clip(np.where(ahead, form.kink[free], bound), form.lower[free], form.upper[free])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            reached = np.where(step != 0, (stops - u[free]) / step, np.inf)
        first = float(np.min(reached, where=reached > 0, initial=1.0))
        # up to the first stop the model falls: along a flat direction a step may be far too long for any halving
        for share in sorted({*(0.5 ** np.arange(SHARES)).tolist(), first, *self._nearest(free, step)}, reverse=True):
            new = u.copy()
            new[free] += share * step
            passed = np.where(step > 0, new[free] > stops, (step < 0) & (new[free] < stops))
            new[free[passed]] = stops[passed]
            if not form.separable:
                self._stopped(new)
            r = self.gradient + self.B @ (new - self.x)
            whole = share == 1 and form.separable and not passed.any()  # the minimum of a quadratic
            if whole or self._value(new, r) < before:
                self.u, self.r = new, r
                return float(share)
        return 0.0

    def _nearest(self, free: np.ndarray, step: np.ndarray) -> list[float]:
        """The shares of a step at which a group comes nearest to zero, the first of them and a half of it: there it bends."""
        form, way = self.form, np.zeros_like(self.u)
        if form.separable:
            return []
        way[free] = step
        grouped, many = form.group >= 0, len(form.pull)
        towards = -np.bincount(form.group[grouped], (way * (self.u - form.kink))[grouped], minlength=many)
        reached = towards / np.maximum(norms(form, way) ** 2, np.finfo(float).tiny)
        first = float(np.min(reached, where=reached > 0, initial=1.0))
        return [first, 0.5 * first]

    def _stopped(self, new: np.ndarray) -> None:
        """Groups that would pass zero stop there."""
        form, grouped = self.form, self.form.group >= 0
        ahead = ((new - form.kink) * (self.u - form.kink))[grouped]
        gone = np.bincount(form.group[grouped], ahead, minlength=len(form.pull)) <= 0
        gone = grouped & gone[form.group]
        new[gone] = form.kink[gone]

    def _value(self, u: np.ndarray, r: np.ndarray) -> float:
        return float(0.5 * (self.gradient + r) @ (u - self.x)) + self.form.value(u)

    def _bend(self, free: np.ndarray) -> Any:
        """The second derivative of the norms of groups that are not zero."""
        if self.form.separable:
            return 0.0
        form, group = self.form, self.form.group[free]
        v = (self.u - form.kink)[free]
        size = np.append(norms(form, self.u - form.kink), 0.0)[group]
        there = (group >= 0) & (size > 0)
        strength = np.where(there, np.append(form.pull, 0.0)[group] / np.where(there, size, 1.0), 0.0)
        ahead = v / np.where(there, size, 1.0)
        return np.diag(strength) - (group[:, None] == group) * np.outer(strength * ahead, ahead)


def _pulled(curves: np.ndarray, b: np.ndarray, pull: float) -> np.ndarray:
    """argmin of sum_j curves_j w_j^2 / 2 - b_j w_j + pull |w|: zero, or w_j = b_j / (curves_j + pull / size) with size = |w|.

    The size is where h(size) = |b / (curves size + pull)| is 1. 1 / h is concave, so that Newton's method from the left
    never goes too far; the largest curvature gives such a start. What is flat, and pushed by rounding alone, stays where it is.
    """
    force = math.sqrt(b @ b)
    flat = (curves <= 8 * len(curves) * EPS * curves[-1]) & (np.abs(b) <= 32 * EPS * force)
    curves, b = np.where(flat, 0.0, curves), np.where(flat, 0.0, b)
    if force <= pull:
        return np.zeros_like(b)
    size = (force - pull) / curves[-1]
    for _ in range(50):
        part = b / (curves * size + pull)
        h = math.sqrt(part @ part)
        step = (h - 1.0) * h * h / (curves @ (part**2 / (curves * size + pull)))
        size += step
        if not step > 4 * EPS * size:
            break
    return b * size / (curves * size + pull)


def solved(K: np.ndarray, b: np.ndarray) -> np.ndarray:
    """K^-1 b for a symmetric K >= 0; where K is singular to rounding, a solution as far as there is one."""
    _, x, failed = _solve(K, b)
    if not failed:
        return x
    # a little more on the diagonal, and what that leaves wrong corrected in turns
    factor, failed = _factor(K + 1e-12 * np.trace(K) / len(K) * np.eye(len(K)))
    if failed:
        values, vectors = np.linalg.eigh(K)
        kept = values > len(K) * EPS * max(values[-1], 0.0)
        return vectors[:, kept] @ ((vectors[:, kept].T @ b) / values[kept])
    x = _solve_factored(factor, b)[0]
    for _ in range(3):
        x += _solve_factored(factor, b - K @ x)[0]
    return x
