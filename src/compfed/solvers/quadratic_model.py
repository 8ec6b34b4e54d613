"""Minimiser of a quadratic model plus a penalty: the step of a second-order solver.

    u = argmin  <gradient, u - x> + (u - x)^T B (u - x) / 2 + g(u)

Where g acts on single coefficients or on groups of them (`CoordinateForm`), u is found to rounding, in NumPy: sweeps of
coordinate descent find out which coefficients sit at a kink or a bound, and a Newton step on all others together ends the
search, at once where g is piecewise quadratic. Every other g is known by its prox alone: restarted FISTA, compiled.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.linalg import get_lapack_funcs
from scipy.sparse.linalg import eigsh

from compfed._utils.array_namespace import Numbers
from compfed._utils.compilation import jit, precision
from compfed.algorithms.fista import Restart
from compfed.losses.lipschitz import GRAM_WIDTH
from compfed.prox import group_shrinkage, soft_threshold, soft_threshold_number
from compfed.regularisers import Regulariser
from compfed.regularisers.base import BaseRegulariser
from compfed.regularisers.coordinate_form import CoordinateForm, coordinate_form

MAX_SIGN_SETS = 30
MAX_SWEEPS = 200  # of coordinate descent, each followed by a Newton step
MAX_STALE_SWEEPS = 30  # without halving the distance: then the next evaluation of f helps more than another sweep
MAX_HALVINGS = 10  # of a Newton step
FIRST_WORKING_SET = 64  # coordinates, where the matrix is that of BFGS
MAX_PROX_STEPS = 20_000  # of FISTA
BFGS_TOLERANCE = 1e-4  # relative to the first step: the matrix of BFGS is a guess, its minimiser needs few digits
OUTSIDE_DOMAIN = 1e30  # stands for an infinite g: the state of a solver is finite
EPS = float(np.finfo(float).eps)
SINGULAR = 1e-13  # reciprocal condition number below which rounding decides the solution of a linear system
SHIFT = 1e-12  # of the diagonal of a singular matrix
PULL = 1e-3  # share of a right-hand side along flat directions, above which it is not taken for rounding errors
_factor, _solve_factored, _condition = get_lapack_funcs(("potrf", "potrs", "pocon"), dtype=np.float64)


# --- steps for any regulariser ---


def penalty_value(g: Regulariser, x: np.ndarray) -> float:
    """g(x), or OUTSIDE_DOMAIN where it is infinite."""
    form = coordinate_form(g, x.size)
    if form is not None:
        return min(form.value(x), OUTSIDE_DOMAIN)
    with precision(x.dtype):
        return min(float(_value(g, x)), OUTSIDE_DOMAIN)


_value = jit(lambda g, x: g(x))


def sufficient_decrease(new: float, old: float, predicted: float) -> bool:
    """Whether F fell by a share of the predicted decrease, or is the same to rounding. False for a NaN."""
    return bool(new <= old + 1e-4 * predicted + 50 * EPS * abs(old))


def newton_step(g: Regulariser, x: np.ndarray, gradient: np.ndarray, H: np.ndarray, W: np.ndarray) -> np.ndarray:
    """u, of which only the coordinates W may differ from x; H is the Hessian on W."""
    form = coordinate_form(g, x.size)
    if form is None:  # then W has all coordinates
        return fista(g, x, gradient, H, _largest_eigenvalue(H))
    u = x.copy()
    u[W] = minimiser(form.at(W), x[W], gradient[W], H)
    return u


def next_working_set(g: Regulariser, x: np.ndarray, gradient: np.ndarray, width: int) -> np.ndarray:
    """The coordinates whose Hessian is needed at x: at least `width` of them, all where g has no form."""
    form = coordinate_form(g, x.size)
    if form is None or width >= x.size:
        return np.arange(x.size, dtype=np.int32)
    return working_set(form, x, gradient, width).astype(np.int32)


def covers(g: Regulariser, x: np.ndarray, gradient: np.ndarray, W: np.ndarray) -> bool:
    """Whether W has all coordinates that are at no kink at x, or would leave theirs."""
    form = coordinate_form(g, x.size)
    if form is None or len(W) == x.size:
        return len(W) == x.size
    moving = kink_margin(form, x, gradient) > 0
    moving[W] = False
    return not moving.any()


def bfgs_step(
    g: Regulariser, x: np.ndarray, gradient: np.ndarray, S: np.ndarray, Y: np.ndarray, first: float, even: bool = False
) -> np.ndarray:
    """u over all coordinates, with the matrix of limited-memory BFGS of the pairs (S, Y), which is never formed."""
    form = coordinate_form(g, x.size)
    if form is not None:
        return minimiser(form, x, gradient, BFGSMatrix.of_pairs(S, Y, first))
    reduced = g.subspace(np.stack([x, gradient, *S, *Y])) if isinstance(g, BaseRegulariser) else None
    if reduced is not None:
        x, gradient, S, Y = (*reduced.points[:2], reduced.points[2 : len(S) + 2], reduced.points[len(S) + 2 :])
        # The basis is arbitrary, so all its axes are treated alike.
        return reduced.lift(bfgs_step(reduced.g, x, gradient, S, Y, first, even=True))
    B = BFGSMatrix.of_pairs(S, Y, first, even=even)
    R = np.asarray(np.linalg.qr(B.Q, mode="r"))
    bound = B.diagonal.max() + abs(_largest_eigenvalue((-R * B.signs) @ R.T))
    return fista(g, x, gradient, B, bound, BFGS_TOLERANCE)


# --- working sets: the coordinates that are furthest from optimal, or, at a kink of g, nearest to leaving it ---


def kink_margin(form: CoordinateForm, x: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Gradient less the slope of the kink or bound at x: negative where a coordinate stays, positive where it will leave.

    Infinite for coordinates that are at no kink or bound.
    """
    held = ((x <= form.lower) & (gradient > 0)) | ((x >= form.upper) & (gradient < 0))
    excess = np.where(held, -np.abs(gradient), np.abs(gradient)) - form.l1
    margin = np.where(form.at_kink_or_bound(x), excess, np.inf)
    if form.separable:
        return margin
    grouped, member = form.group >= 0, np.maximum(form.group, 0)
    force = form.norms(soft_threshold(gradient, form.l1))[member]
    of_group = np.where(force > 0, force, margin) - form.group_weight[member]
    return np.where(grouped & np.isfinite(margin), of_group, margin)


def ranked(form: CoordinateForm, x: np.ndarray, gradient: np.ndarray, width: int) -> np.ndarray:
    """`width` coordinates: first those at no kink, then those nearest to leaving theirs.

    If at least `width` are at no kink, the ones furthest from optimal among all.
    """
    width, margin = min(width, len(x)), kink_margin(form, x, gradient)
    distance = np.abs(form.min_subgradient(x, gradient))
    free = np.isinf(margin)
    if free.sum() >= width:
        return np.argsort(-distance, kind="stable")[:width]
    # Few of many are wanted: only coordinates that can be among them are sorted.
    some = np.flatnonzero(margin >= -np.partition(-margin, width - 1)[width - 1])
    first = np.lexsort((np.where(free, -distance, -margin)[some], ~free[some]))
    return some[first[:width]]


def working_set(form: CoordinateForm, x: np.ndarray, gradient: np.ndarray, least: int) -> np.ndarray:
    """All coordinates at no kink, then those nearest to leaving theirs: at least `least` of them, in whole groups."""
    free = int(np.sum(~form.at_kink_or_bound(x)))
    wanted = max(least, free + 1, int(1.5 * free))
    taken = np.zeros(len(x), bool)
    taken[ranked(form, x, gradient, wanted)] = True
    if not form.separable:
        some = np.unique(form.group[taken])
        taken |= np.isin(form.group, some[some >= 0])
    return np.flatnonzero(taken)


# --- the matrix of limited-memory BFGS ---


class BFGSMatrix(NamedTuple):
    """B = diag(diagonal) - Q diag(signs) Q^T, with Q of few columns: a matrix that is never formed."""

    diagonal: np.ndarray  # (d,)
    Q: np.ndarray  # (d, k)
    signs: np.ndarray  # (k,)

    def apply(self, v: Numbers) -> Numbers:
        """B v."""
        return self.diagonal * v - self.Q @ (self.signs * (v @ self.Q))

    def block(self, W: np.ndarray) -> np.ndarray:
        """Rows and columns W of B."""
        return np.diag(self.diagonal[W]) - (self.Q[W] * self.signs) @ self.Q[W].T

    @classmethod
    def of_pairs(cls, S: np.ndarray, Y: np.ndarray, first: float, even: bool = False) -> BFGSMatrix:
        """The matrix of BFGS after the pairs (s, y) in the rows of S and Y; rows of zeros stand for none.

        The first matrix is diagonal. Its entry w_j is the largest y_j^2 / <s, y> of all pairs, which adapts to the units of
        the columns, or 1 for all columns if `even`. All entries are multiplied by the least <y, y / w> / <s, y>. Without a
        pair they are `first`. Then B <- B - a a^T + b b^T, one pair after another, with a = B s / sqrt(s^T B s) and
        b = y / sqrt(<s, y>).
        """
        a, curved = np.zeros_like(S), np.sum(S * Y, axis=1)
        known = np.flatnonzero(curved > 0)
        b = np.where(curved > 0, 1.0, 0.0)[:, None] * Y / np.sqrt(np.where(curved > 0, curved, 1.0))[:, None]
        diagonal = np.full(S.shape[1], float(first))
        if known.size:
            w = np.max(b**2, axis=0)
            w = np.ones_like(w) if even else np.maximum(w, 1e-10 * w.max())
            diagonal = np.min((b[known] ** 2) @ (1.0 / w)) * w
        for k in known:
            Bs = diagonal * S[k] + (b[:k] @ S[k]) @ b[:k] - (a[:k] @ S[k]) @ a[:k]
            a[k] = Bs / np.sqrt(max(S[k] @ Bs, np.finfo(float).tiny))
        return cls(diagonal, np.concatenate([a, b]).T, np.repeat([1.0, -1.0], len(S)))


# --- a penalty with a coordinate form: coordinate descent and Newton steps ---


def minimiser(form: CoordinateForm, x: np.ndarray, gradient: np.ndarray, B: np.ndarray | BFGSMatrix) -> np.ndarray:
    """u, for a g that has a coordinate form."""
    without_weight = np.append(form.group_weight, 0.0)[form.group] == 0
    form = form._replace(group=np.where(without_weight, -1, form.group))
    if isinstance(B, np.ndarray):
        return _minimiser(form, x, gradient, B)
    W = working_set(form, x, gradient, FIRST_WORKING_SET)
    while True:  # minimise over few coordinates, then check all of them, until no other one has to move
        u = x.copy()
        u[W] = _minimiser(form.at(W), x[W], gradient[W], B.block(W))
        r = gradient + B.apply(u - x)
        distance = np.abs(form.min_subgradient(u, r))
        distance[W] = 0.0
        if not (distance > _rounding(np.abs(gradient) + np.abs(r) + B.diagonal * np.abs(u - x))).any():
            return u
        W = np.union1d(W, working_set(form, u, r, min(len(x), 2 * len(W))))


def _rounding(size: np.ndarray) -> np.ndarray:
    """A bound on the rounding error of a sum of terms of this size."""
    return 32 * EPS * (size + size.sum() / max(size.size, 1))


def _minimiser(form: CoordinateForm, x: np.ndarray, gradient: np.ndarray, B: np.ndarray) -> np.ndarray:
    u = by_sets_of_signs(form, x, gradient, B)
    if u is not None:
        return u
    search, best, stale = _Search(form, x, gradient, B), np.inf, 0
    for _ in range(MAX_SWEEPS):
        search.sweep(*search.newton())
        distance = search.distance()
        best, stale = (distance, 0) if distance < 0.5 * best else (best, stale + 1)
        # Converged to rounding, or near it without progress.
        if distance <= 1.0 or (stale >= 3 and distance <= 1e4) or stale >= MAX_STALE_SWEEPS:
            break
    return search.u


def by_sets_of_signs(form: CoordinateForm, x: np.ndarray, gradient: np.ndarray, B: np.ndarray) -> np.ndarray | None:
    """u for an l1 penalty, with a ridge or none: a guess at the signs of all coefficients, one linear system, a better guess.

    Near the end the signs of x are those of u, and one system gives it. None where bounds or groups come in, where the system is
    nearly singular, or where `MAX_SIGN_SETS` guesses do not end.
    """
    if not form.separable or np.isfinite(form.lower).any() or np.isfinite(form.upper).any():
        return None
    l1, v = form.l1, x - form.kink
    free, sign = l1 == 0, np.sign(v)
    force = gradient + form.l2 * v
    K = B + np.diag(form.l2)
    slack = _rounding(np.abs(gradient) + np.abs(K) @ np.abs(v) + l1)
    for _ in range(MAX_SIGN_SETS):
        moving = free | (sign != 0)
        S, step = np.flatnonzero(moving), np.where(moving, 0.0, -v)
        right = -(force + l1 * sign)[S]
        if step.any():
            right -= (K @ step)[S]
        factor = _conditioned_factor(K[np.ix_(S, S)], SINGULAR) if S.size else None
        if S.size:
            if factor is None:
                return None
            step[S] = _solve_factored(factor, right)[0]
        passed = ~free & ((v + step) * sign < 0)
        if passed.any():
            sign[passed] = 0.0
            continue
        r = force + K @ step
        leaving = ~moving & (np.abs(r) > l1 + slack)
        if not leaving.any():
            return np.where(moving, x + step, form.kink)
        sign[leaving] = -np.sign(r[leaving])
    return None


class _Search:
    """The state of a search: u, and the gradient r = gradient + B (u - x) of the model there."""

    def __init__(self, form: CoordinateForm, x: np.ndarray, gradient: np.ndarray, B: np.ndarray):
        self.form, self.x, self.gradient, self.B = form, x, gradient, B
        self.u, self.r = x.copy(), gradient.copy()
        self.groups: dict[int, tuple[np.ndarray, ...]] = {}  # members, their columns of B, eigenvalues and -vectors

    def distance(self) -> float:
        """The distance from optimality, as a multiple of its rounding error."""
        size = np.abs(self.gradient) + np.abs(self.B) @ np.abs(self.u - self.x) + self.form.l1
        size = size + self.form.l2 * np.abs(self.u - self.form.kink)
        force = np.abs(self.form.min_subgradient(self.u, self.r))
        return float(np.max(force / np.maximum(_rounding(size), np.finfo(float).tiny), initial=0.0))

    # --- coordinate descent ---

    def sweep(self, share: float, sizes: np.ndarray) -> None:
        """Minimise over coordinates and groups one by one, after a Newton step of this share, which groups of `sizes` took.

        Single coordinates need it if there was no Newton step. No Newton step makes a group zero. So groups need it if they
        were zero or have shrunk to less than half, and all of them if the step was shortened.
        """
        form, u, r, B = self.form, self.u, self.r, self.B
        moving = (form.min_subgradient(u, r) != 0) & (form.group < 0) & (share == 0)
        for j in np.flatnonzero(moving).tolist():
            curvature = B[j, j] + form.l2[j]
            if curvature <= 0:
                continue
            z = B[j, j] * (u[j] - form.kink[j]) - r[j]
            new = form.kink[j] + soft_threshold_number(z, form.l1[j]) / curvature
            change = min(max(new, form.lower[j]), form.upper[j]) - u[j]
            u[j] += change
            r += change * B[j]
        not_optimal = form.group[(form.group >= 0) & (form.min_subgradient(u, self.r) != 0)]
        due = (sizes == 0) | (form.norms(u - form.kink) < 0.5 * sizes) | (share < 1)
        for k in np.unique(not_optimal).tolist():
            if due[k]:
                self._minimise_group(k)

    def _minimise_group(self, k: int) -> None:
        """Minimise over group k; if it has an l1 too, take a prox step of length 1 / (largest curvature).

        u is the trial point, r = gradient + B (u - x) the gradient of the quadratic model there, B the model's Hessian, and `kink`
        the point where the penalty of a coordinate has its corner.
        """
        form = self.form
        if k not in self.groups:
            G = np.flatnonzero(form.group == k)
            self.groups[k] = G, self.B[:, G], *np.linalg.eigh(self.B[np.ix_(G, G)] + np.diag(form.l2[G]))
        G, columns, eigenvalues, axes = self.groups[k]
        v, L, weight = self.u[G] - form.kink[G], eigenvalues[-1], form.group_weight[k]
        if L > 0 and not form.l1[G].any():
            b = eigenvalues * (v @ axes) - (self.r[G] + form.l2[G] * v) @ axes
            new = axes @ _quadratic_plus_norm(eigenvalues, b, weight)
        elif L > 0:
            new = soft_threshold(v - self.r[G] / L, form.l1[G] / L)
            new = new * group_shrinkage(np.linalg.norm(new), weight / L) / (1.0 + form.l2[G] / L)
        else:  # flat: at the kink, if the weight exceeds the slope
            new = v * (np.linalg.norm(self.r[G]) > weight)
        self.u[G] = form.kink[G] + new
        self.r += columns @ (new - v)

    # --- Newton steps ---

    def newton(self) -> tuple[float, np.ndarray]:
        """A Newton step on the coordinates that are free to move. A coordinate that would pass its kink stops there.

        Returns the share of the step that decreased the model, and the norms of the groups before it.
        """
        form, u, sizes = self.form, self.u, self.form.norms(self.u - self.form.kink)
        least = form.min_subgradient(u, self.r)
        resting = form.at_kink_or_bound(u)
        free = np.flatnonzero(~resting | ((least != 0) & (form.group < 0)))
        step = np.zeros(0)
        while free.size:
            K = self.B[np.ix_(free, free)] + np.diag(form.l2[free]) + self._norm_hessian(free)
            step = -solve_symmetric(K, least[free], pulled=bool(form.l1[free].any()))
            back = resting[free] & (step * least[free] >= 0)  # these would leave their kink on the wrong side
            if not back.any():
                break
            free = free[~back]
        return (self._line_search(free, step, resting[free]) if free.size else 0.0), sizes

    def _line_search(self, free: np.ndarray, step: np.ndarray, resting: np.ndarray) -> float:
        """Take the longest share of a step that decreases the model; returns the share, 0 if there is none."""
        form, u, before = self.form, self.u, self._value(self.u, self.r)
        hidden = 32 * EPS * (abs(before) + np.abs(self.gradient + self.r) @ np.abs(u - self.x))
        violation = self._violation(u, self.r)
        bound = np.where(step > 0, form.upper[free], form.lower[free])
        ahead = ((form.kink[free] - u[free]) * step > 0) & (form.l1[free] > 0) & ~resting
        stops = np.clip(np.where(ahead, form.kink[free], bound), form.lower[free], form.upper[free])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            reached = np.where(step != 0, (stops - u[free]) / step, np.inf)
        first = float(np.min(reached, where=reached > 0, initial=1.0))
        # The model decreases up to the first stop. Along a flat direction a step may be far too long for any halving.
        halvings = (0.5 ** np.arange(MAX_HALVINGS)).tolist()
        for share in sorted({*halvings, first, *self._closest_to_zero(free, step)}, reverse=True):
            new = u.copy()
            new[free] += share * step
            passed = np.where(step > 0, new[free] > stops, (step < 0) & (new[free] < stops))
            new[free[passed]] = stops[passed]
            if not form.separable:
                self._stop_groups_at_zero(new)
            r = self.gradient + self.B @ (new - self.x)
            exact = share == 1 and form.separable and not passed.any()  # the minimum of a quadratic
            change = -np.inf if exact else self._value(new, r) - before
            # Where rounding hides the change of the value, the gradient still tells which of two points is nearer.
            if change < -hidden or (change <= hidden and self._violation(new, r) < 0.5 * violation):
                self.u, self.r = new, r
                return float(share)
        return 0.0

    def _violation(self, u: np.ndarray, r: np.ndarray) -> float:
        """The norm of the least subgradient of the model at u, where its gradient is r."""
        return float(np.linalg.norm(self.form.min_subgradient(u, r)))

    def _closest_to_zero(self, free: np.ndarray, step: np.ndarray) -> list[float]:
        """The first share of a step at which a group is closest to zero, and half of it: there its norm curves most."""
        form, direction = self.form, np.zeros_like(self.u)
        if form.separable:
            return []
        direction[free] = step
        inward = -self._group_sums(direction * (self.u - form.kink))
        reached = inward / np.maximum(form.norms(direction) ** 2, np.finfo(float).tiny)
        first = float(np.min(reached, where=reached > 0, initial=1.0))
        return [first, 0.5 * first]

    def _stop_groups_at_zero(self, new: np.ndarray) -> None:
        """Groups that would pass zero stop there."""
        form = self.form
        passed = self._group_sums((new - form.kink) * (self.u - form.kink)) <= 0
        passed = (form.group >= 0) & passed[form.group]
        new[passed] = form.kink[passed]

    def _group_sums(self, each: np.ndarray) -> np.ndarray:
        grouped = self.form.group >= 0
        return np.bincount(self.form.group[grouped], each[grouped], minlength=len(self.form.group_weight))

    def _value(self, u: np.ndarray, r: np.ndarray) -> float:
        return float(0.5 * (self.gradient + r) @ (u - self.x)) + self.form.value(u)

    def _norm_hessian(self, free: np.ndarray) -> np.ndarray:
        """The second derivative of the norms of groups that are not zero."""
        if self.form.separable:
            return np.zeros(())
        form, group = self.form, self.form.group[free]
        v = (self.u - form.kink)[free]
        size = np.append(form.norms(self.u - form.kink), 0.0)[group]
        nonzero = (group >= 0) & (size > 0)
        curvature = np.where(nonzero, np.append(form.group_weight, 0.0)[group] / np.where(nonzero, size, 1.0), 0.0)
        unit = v / np.where(nonzero, size, 1.0)
        return np.diag(curvature) - (group[:, None] == group) * np.outer(curvature * unit, unit)


def _quadratic_plus_norm(eigenvalues: np.ndarray, b: np.ndarray, weight: float) -> np.ndarray:
    """argmin over w of sum_j eigenvalues_j w_j^2 / 2 - b_j w_j + weight ||w||.

    That is zero, or w_j = b_j / (eigenvalues_j + weight / size) with size = ||w||, at the size where
    h(size) = ||b / (eigenvalues size + weight)|| is 1. 1 / h is concave, so that Newton's method from the left never
    overshoots; the largest eigenvalue gives such a start. Flat directions in which b is rounding alone are left at 0.
    """
    force = math.sqrt(b @ b)
    flat = (eigenvalues <= 8 * len(eigenvalues) * EPS * eigenvalues[-1]) & (np.abs(b) <= 32 * EPS * force)
    eigenvalues, b = np.where(flat, 0.0, eigenvalues), np.where(flat, 0.0, b)
    if force <= weight:
        return np.zeros_like(b)
    size = (force - weight) / eigenvalues[-1]
    for _ in range(50):
        unit = b / (eigenvalues * size + weight)
        h = math.sqrt(unit @ unit)
        step = (h - 1.0) * h * h / (eigenvalues @ (unit**2 / (eigenvalues * size + weight)))
        size += step
        if not step > 4 * EPS * size:
            break
    return b * size / (eigenvalues * size + weight)


def solve_symmetric(K: np.ndarray, b: np.ndarray, *, pulled: bool = False) -> np.ndarray:
    """K^-1 b for a symmetric K >= 0; where K is singular to rounding, a solution as far as there is one.

    `pulled` says that b has the slope of a penalty in it, which a flat direction of K need not balance: there is no
    solution then, and the step along that direction is long. The search ends it where a coefficient becomes zero.

    Whether Cholesky's method succeeds on a singular matrix is decided by rounding, and its solution may then be of any length.
    So each factor is taken only if it is well enough conditioned, in units in which the diagonal of K is 1.
    """
    diagonal = np.diag(K)
    unit = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    K, b = unit[:, None] * K * unit, unit * b
    factor = _conditioned_factor(K, SINGULAR)
    if factor is not None:
        return unit * _solve_factored(factor, b)[0]
    # Add a little to the diagonal, and correct the error of that by iterative refinement.
    factor = _conditioned_factor(K + SHIFT * np.eye(len(K)), SHIFT / 10)
    if factor is None:
        return unit * _solve_singular(K, b, pulled)
    x = _solve_factored(factor, b)[0]
    for _ in range(3):
        x += _solve_factored(factor, b - K @ x)[0]
    return unit * x


def _solve_singular(K: np.ndarray, b: np.ndarray, pulled: bool) -> np.ndarray:
    """The shortest solution; a long step along flat directions with a pull. Negative eigenvalues show the rounding of K."""
    values, vectors = np.linalg.eigh(K)
    parts = vectors.T @ b
    flat = values <= max(len(K) * EPS * values[-1], -2.0 * values[0], 0.0)
    curvature = np.where(flat, np.inf, values)
    if pulled and np.linalg.norm(parts[flat]) > PULL * np.linalg.norm(b):
        curvature[flat] = SHIFT
    return vectors @ (parts / curvature)


def _conditioned_factor(K: np.ndarray, least: float) -> np.ndarray | None:
    """The Cholesky factor of K, unless its reciprocal condition number is estimated below `least`."""
    factor, failed = _factor(K)
    if failed:
        return None
    reciprocal, _ = _condition(factor, np.linalg.norm(K, 1))
    return factor if reciprocal >= least else None


# --- a penalty known by its prox alone: restarted FISTA ---


def _largest_eigenvalue(B: np.ndarray) -> float:
    """The largest eigenvalue of a symmetric matrix; of a large one, an estimate that is a little too large."""
    if len(B) <= GRAM_WIDTH:
        return float(np.linalg.eigvalsh(B)[-1])
    start = np.random.default_rng(0).standard_normal(len(B))
    top = eigsh(B, k=1, which="LA", v0=start, return_eigenvectors=False, tol=1e-3)  # pyright: ignore[reportArgumentType]  # a float
    return 1.001 * float(top[0])


def fista(
    g: Regulariser, x: np.ndarray, gradient: np.ndarray, B: np.ndarray | BFGSMatrix, L: float, tolerance: float = 0.0
) -> np.ndarray:
    """u by FISTA with restarts, for a g that is known by its prox alone; L bounds the eigenvalues of B.

    It ends when a step is at the level of rounding, or at most `tolerance` times the first one.
    """
    with precision(x.dtype):
        return np.asarray(_fista(g, x, gradient, B, L, tolerance))


@jit
def _fista(g: Regulariser, x: Array, gradient: Array, B: Array | BFGSMatrix, L: Array, tolerance: Array) -> Array:
    eps = jnp.finfo(x.dtype).eps
    L = jnp.where(L > 0, L, 1.0)
    first = jnp.linalg.norm(g.prox(x - gradient / L, 1.0 / L) - x)
    small = tolerance * first + eps * (jnp.linalg.norm(x) + jnp.linalg.norm(gradient) / L)

    def step(carry):
        u, y, t, _, k = carry
        change = B.apply(y - x) if isinstance(B, BFGSMatrix) else B @ (y - x)
        new = g.prox(y - (gradient + change) / L, 1.0 / L)
        t, beta = Restart()(t, y, u, new)
        return new, new + beta * (new - u), t, jnp.linalg.norm(new - y), k + 1

    def unfinished(carry):
        u, _, _, moved, k = carry
        return (moved > small + eps * jnp.linalg.norm(u)) & (k < MAX_PROX_STEPS)

    start = (x, x, jnp.ones((), x.dtype), jnp.full((), jnp.inf, x.dtype), 0)
    return jax.lax.while_loop(unfinished, step, start)[0]
