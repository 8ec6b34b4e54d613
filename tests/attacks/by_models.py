"""Attacks by chosen models over all rows of a site: no subset is asked for.

Rows are in the coordinates of the scaling that any honest fit uses; x = (slope u, -slope t) looks at the rows whose projection
u^T a is near t.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from attacks.by_subsets import fedavg_run, fold, small_folds, update_query
from attacks.target import Target, distinct, unscaled
from scipy.special import expit

from compfed.federation import Evaluate, LeaveOneOut, Moments, Refusal, Score
from compfed.federation.spec import FeatureScaling, ObjectiveSpec
from compfed.losses import Huber, Logistic, Loss, SmoothedQuantile, Squared, SquaredHinge
from compfed.losses.base import upper_triangle

Gradients = Callable[[ObjectiveSpec, np.ndarray], np.ndarray]


def direction(width: int, seed: int) -> np.ndarray:
    u = np.random.default_rng(seed).standard_normal(width)
    return u / np.linalg.norm(u)


def models(u: np.ndarray, slope: float, t: np.ndarray) -> np.ndarray:
    return np.column_stack([np.tile(slope * u, (len(t), 1)), -slope * t])


# --- steps: gradients that jump where one row changes sides ---


def half_space(target: Target) -> np.ndarray:
    """Logistic gradients at w = 1e8 u: moving the intercept, rows change sides one by one."""
    return bisected(target, Logistic(), 1e8, target.gradients)


def half_space_by_rounds(target: Target) -> np.ndarray:
    """The same gradients from FedAvg with tau = 1, where w is the model that the server broadcasts."""

    def gradients(objective: ObjectiveSpec, X: np.ndarray) -> np.ndarray:
        run = fedavg_run(objective, target.width + 1, target.rows, batch=None)
        replies = target.ask(*[update_query(run, 0, x) for x in X])
        eta = run.algorithm.eta  # pyright: ignore[reportAttributeAccessIssue]
        return np.array(
            [
                np.full(len(x), np.nan) if isinstance(r, Refusal) else -r.u["delta"] / eta
                for x, r in zip(X, replies, strict=True)
            ]
        )

    return bisected(target, Logistic(), 1e6, gradients, depth=20)


def tiny_quantile(target: Target) -> np.ndarray:
    """The quantile loss with a tiny smoothing is a step at w = u already."""
    return bisected(target, SmoothedQuantile(smoothing=1e-9), 1.0, target.gradients)


def tiny_huber(target: Target) -> np.ndarray:
    """Huber's loss with a tiny delta; its gradients are divided by 2 delta."""
    delta = 1e-6
    return bisected(
        target, Huber(delta=delta), 1.0, lambda objective, X: target.gradients(objective, X) / (2 * delta), depth=14
    )


def bisected(target: Target, loss: Loss, slope: float, gradients: Gradients, depth: int = 26) -> np.ndarray:
    """Halve the intervals of the intercept that hold more than one row, until none does; neighbours differ by a row."""
    scaling, n = target.scaling(), target.rows
    objective, u = target.objective(loss, scaling), direction(target.width, 0)
    t = np.linspace(-30.0, 30.0, 9)
    G = gradients(objective, models(u, slope, t))
    for _ in range(depth):
        rows_between = n * np.abs(np.diff(G[:, -1]))
        crowded = np.flatnonzero(rows_between > 1.5)  # NaN, of a refusal, is not
        if not len(crowded):
            break
        middle = 0.5 * (t[crowded] + t[crowded + 1])
        t, G = np.append(t, middle), np.vstack([G, gradients(objective, models(u, slope, middle))])
        order = np.argsort(t)
        t, G = t[order], G[order]
        keep = np.isfinite(G[:, -1])
        t, G = t[keep], G[keep]
        if len(t) < 2:
            break
    steps = n * np.diff(G, axis=0)
    single = np.abs(np.abs(steps[:, -1]) - 1) < 1e-3
    return distinct(unscaled(scaling, steps[single, :-1] / steps[single, -1:]), target)


# --- scores: counts below thresholds ---

NUDGE = 1e-6  # of a direction: small enough for the rows to keep their order


def score_steps(target: Target) -> np.ndarray:
    """Where counts of `Score` jump, a row has that score. The same for directions u + NUDGE e_j gives its columns.

    Without a policy thresholds are bisected. Where a site allows few of them, or moves them to a grid, the intercept is
    shifted in their place: the threshold 0 is on every grid.
    """
    scaling = target.scaling()
    objective = ObjectiveSpec(Logistic(), scaling, np.array([0, 1]))
    u = direction(target.width, 0)
    first, rows = _steps(target, objective, u, [np.linspace(-6.0, 6.0, 121)] * 2), []
    if not any(len(t) for t in first):
        return np.empty((0, target.width))
    for e in np.eye(target.width):
        near = [np.unique([t + 20 * NUDGE * side for t in found for side in (-1, 1)]) for found in first]
        moved = _steps(target, objective, u + NUDGE * e, near)
        if [len(t) for t in moved] != [len(t) for t in first]:
            return np.empty((0, target.width))
        rows.append((np.concatenate(moved) - np.concatenate(first)) / NUDGE)
    return distinct(unscaled(scaling, np.array(rows).T), target)


def _steps(target: Target, objective: ObjectiveSpec, w: np.ndarray, start: list[np.ndarray]) -> list[np.ndarray]:
    """The scores at which the count of each class jumps."""
    found = []
    for group in (0, 1):
        t = start[group]
        counts = _counts(target, objective, w, t)[group]
        while True:
            t, counts = t[np.isfinite(counts)], counts[np.isfinite(counts)]  # of a refusal it is NaN
            if len(t) < 2 or not np.isfinite(_counts(target, objective, w, t[:1])).all():
                return [np.empty(0), np.empty(0)]
            jumps = np.flatnonzero(np.diff(counts) > 0)
            wide = jumps[np.diff(t)[jumps] > 1e-12]
            if not len(wide):
                break
            parts = np.linspace(0, 1, max(2000 // len(wide), 2) + 1)[1:-1] if target.free else np.array([0.5])
            new = np.unique((t[wide, None] + parts * np.diff(t)[wide, None]).ravel())
            t, counts = np.append(t, new), np.append(counts, _counts(target, objective, w, new)[group])
            t, at = np.unique(t, return_index=True)
            counts = counts[at]
        found.append((t[jumps] + t[jumps + 1]) / 2)
    return found


def _counts(target: Target, objective: ObjectiveSpec, w: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Lower bounds on the rows of each class with w^T a <= t; NaN where the site refuses."""
    nothing = np.empty(0), np.empty((0, 2))
    if target.free:
        (reply,) = target.ask(Score(objective, np.append(w, 0.0), t[None], *nothing))
        if not isinstance(reply, Refusal):
            return reply.low[0, :, 0]
        target.free = False
    queries = [Score(objective, np.append(w, -at), np.zeros((1, 1)), *nothing) for at in t]
    counts = [np.full(2, np.nan) if isinstance(r, Refusal) else r.low[0, :, 0, 0] for r in target.ask(*queries)]
    return np.array(counts).T


# --- kinks: each model looks at many rows, and the gradient is piecewise linear in the intercept ---


def huber_kinks(target: Target) -> np.ndarray:
    """Huber's loss with its default delta: the slope of the gradient changes where one row enters or leaves."""
    return kinks(target, Huber())


def hinge_kinks(target: Target) -> np.ndarray:
    """The squared hinge: half of all rows count at every model."""
    return kinks(target, SquaredHinge())


def quantile_kinks(target: Target) -> np.ndarray:
    """The quantile loss with a smoothing as wide as the labels are spread."""
    return kinks(target, SmoothedQuantile(smoothing=2.0))


def kinks(target: Target, loss: Loss, directions: int = 2, points: int = 10_000) -> np.ndarray:
    """Second differences of gradients on a grid of intercepts: where they are not zero, one row has changed pieces."""
    scaling = target.scaling()
    objective, found = target.objective(loss, scaling), []
    for seed in range(directions):
        u = direction(target.width, seed)
        t = answered_interval(target, objective, u, points)
        slope = np.diff(target.gradients(objective, models(u, 1.0, t)), axis=0) / np.diff(t)[:, None]
        bend = np.nan_to_num(np.diff(slope, axis=0))  # at the inner points
        unit = np.abs(bend[:, -1]).max(initial=0.0)
        bent = np.abs(bend[:, -1]) > 1e-7 * unit
        starts = np.flatnonzero(bent & ~np.roll(bent, 1))
        for start in starts:  # a kink between two points bends at both
            jump = bend[start : start + 2].sum(axis=0)
            alone = start + 2 < len(bent) and not bent[start + 2] and np.isfinite(slope[start : start + 4]).all()
            if alone and abs(jump[-1]) > 1e-7 * unit:
                found.append((abs(jump[-1]), unscaled(scaling, jump[:-1] / jump[-1])))
    if not found:
        return np.empty((0, target.width))
    sizes = np.array([size for size, _ in found])
    one = np.median(sizes)  # of one row; two rows in one place bend twice as much
    return distinct([row for size, row in found if abs(size / one - 1) < 1e-3], target)


def answered_interval(target: Target, objective: ObjectiveSpec, u: np.ndarray, points: int) -> np.ndarray:
    """A grid of intercepts over the interval in which the site answers, found with a few models first."""
    t = np.linspace(-7.0, 7.0, min(57, points // 10))
    answered = [np.isfinite(target.gradients(objective, x[None])).all() for x in models(u, 1.0, t)]
    inside = t[answered] if any(answered) else t
    return np.linspace(inside[0], inside[-1], points - len(t))


def hessian_pieces(target: Target, piece: int = 4, points: int = 2_000) -> np.ndarray:
    """Hessians of the squared hinge on a few columns and the intercept: neighbours on a grid differ by a a^T of one row."""
    scaling, d = target.scaling(), target.width
    objective, u = target.objective(SquaredHinge(), scaling), direction(d, 0)
    X = models(u, 1.0, np.linspace(-7.0, 7.0, points))
    columns = np.full((points - 1, d), np.nan)
    jump = np.full(points - 1, np.nan)
    for j in range(0, d, piece):
        coords = np.r_[j : min(j + piece, d), d]
        H = np.full((points, len(coords)), np.nan)
        for start in range(0, points, 250):
            (reply,) = target.ask(Evaluate(objective, X[start : start + 250], coords=coords))
            if not isinstance(reply, Refusal):
                for k, packed in enumerate(reply.hessian):
                    H[start + k] = SquaredHinge().unpack_hessian(packed, coords)[-1]
        steps = np.diff(H, axis=0)
        jump = np.where(np.isfinite(steps[:, -1]), steps[:, -1], jump)
        columns[:, coords[:-1]] = steps[:, :-1]
    found = np.abs(jump) > 1e-9
    if not found.any():
        return np.empty((0, d))
    one = np.abs(jump[found]).min()
    found &= np.abs(np.abs(jump) / one - 1) < 1e-3
    return distinct(unscaled(scaling, columns[found] / jump[found, None]), target)


# --- smooth: gradients of the logistic loss at moderate slopes are sums of sigmoids ---

SLOPES = (2, 3, 4, 6, 8, 10, 13, 16, 20, 25, 32, 40)


def deconvolved(target: Target, directions: int = 2, points: int = 1_600) -> np.ndarray:
    """Separate the rows of sums of sigmoids, each of which looks at many rows: at every intercept all slopes that are answered.

    The gradient at x = (s u, -s t) is the mean of sigmoid(s (p_l - t)) (a_l, 1) less a constant, p_l = u^T a_l. Gauss-Newton
    finds the p_l, least squares the a_l. A candidate is kept if u^T a_l is the p_l that it came from.
    """
    scaling, n = target.scaling(), target.rows
    objective, found = target.objective(Logistic(), scaling), []
    for seed in range(directions):
        u, grid = direction(target.width, seed), np.linspace(-4.0, 4.0, points)
        s, t = (a.ravel() for a in np.meshgrid(np.array(SLOPES, float), grid, indexing="ij"))
        G = np.vstack([target.gradients(objective, models(u, slope, grid)) for slope in SLOPES])
        answered = np.isfinite(G[:, -1])
        if answered.sum() < 3 * n:
            continue
        s, t, G = s[answered], t[answered], G[answered]
        p = projections(s, t, G[:, -1], n)
        kernel = np.column_stack([expit(s[:, None] * (p - t[:, None])), np.ones(len(t))]) / n
        rows = np.linalg.lstsq(kernel, G, rcond=1e-15)[0][:-1]
        own = np.abs(rows[:, :-1] @ u - p) + np.abs(rows[:, -1] - 1)
        found += [(error, unscaled(scaling, row[:-1])) for error, row in zip(own, rows, strict=True) if error < 0.02]
    found.sort(key=lambda pair: pair[0])
    return distinct([row for _, row in found], target, near=0.02)


def projections(s: np.ndarray, t: np.ndarray, N: np.ndarray, n: int) -> np.ndarray:
    """The p_l of N(s, t) = mean_l sigmoid(s (p_l - t)) + constant: damped Gauss-Newton from the quantiles."""
    steepest = np.array([np.flatnonzero(t == at)[s[t == at].argmax()] for at in np.unique(t)])
    p = np.interp(np.arange(n) + 0.5, np.maximum.accumulate(n * (N[steepest[0]] - N[steepest])), t[steepest])
    p = p + 1e-6 * np.arange(n)  # rows in one place would stay there
    some = np.random.default_rng(0).permutation(len(t))[: 12 * n]
    s, t, N = s[some, None], t[some, None], N[some]

    def residual(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        S = expit(s * (p - t))
        fit = S.mean(axis=1)
        return fit - N + (N - fit).mean(), S

    (best, S), damping = residual(p), 1e-2
    for _ in range(200):
        J = s * S * (1 - S) / n
        U, w, V = np.linalg.svd(J - J.mean(axis=0), full_matrices=False)
        trial = p - np.clip(V.T @ (w / (w**2 + (damping * w[0]) ** 2) * (U.T @ best)), -0.1, 0.1)
        error, at = residual(trial)
        better = error @ error < best @ best
        p, best, S = (trial, error, at) if better else (p, best, S)
        damping = max(damping / 4, 1e-15) if better else 4 * damping
        if damping > 1 or np.abs(best).max() < 1e-15:
            break
    return np.sort(p)


# --- rank one: a Hessian is a sum of one matrix of rank one for each row, with a factor that depends on the model ---

SCALE = 2.0  # standard deviation of the predictions of a random model: all rows count at such a model


def eigenvectors(target: Target, folds: int | None = None) -> np.ndarray:
    """Folds with no more rows than there are columns: two Hessians of such a fold have its rows as joint eigenvectors.

    The Hessians are differences of logistic gradients at ordinary models, so none is asked for. With rows a_l, H_k = sum_l h_kl
    a_l a_l^T, and H_1^-1 H_2 has eigenvectors that H_1 maps to the a_l, once for each row.
    """
    scaling, d = target.scaling(), target.width + 1
    if folds is None:  # a site deals its rows into ten groups at most, or into fewer: folds are unions of these
        least = max(2, -(-4 * target.rows // (3 * d)))
        folds = min((f for f in (2, 5, 10) if f >= least), default=least)
    found: list[np.ndarray] = []
    for k in range(folds):
        objective = target.objective(Logistic(), scaling, fold(target, k, folds))
        H = by_differences(target, objective, random_models(2, d, k))
        if not np.isfinite(H).all():
            continue
        w, V = np.linalg.eigh(H.sum(axis=0))
        V = V[:, w > 1e-9 * w[-1]]
        one, other = V.T @ H @ V
        rows = np.real(V @ np.linalg.eig(np.linalg.solve(one, other).T)[1]).T
        found += [unscaled(scaling, row[:-1] / row[-1]) for row in rows]
    return distinct(found, target)


def random_models(number: int, d: int, seed: int) -> np.ndarray:
    return SCALE / np.sqrt(d) * np.random.default_rng(seed).standard_normal((number, d))


def by_differences(target: Target, objective: ObjectiveSpec, X: np.ndarray, step: float = 1e-3) -> np.ndarray:
    """Hessians as central differences of gradients: 2 d models each; NaN where one is refused."""
    d = X.shape[1]
    near = X[:, None, None] + step * np.stack([np.eye(d), -np.eye(d)])
    G = target.gradients(objective, near.reshape(-1, d)).reshape(len(X), 2, d, d)
    H = (G[:, 0] - G[:, 1]) / (2 * step)
    return 0.5 * (H + H.transpose(0, 2, 1))


def span_of_hessians(target: Target, hessians: int = 200) -> np.ndarray:
    """Logistic Hessians over all rows at ordinary models, as many as there are rows: they span the a_l a_l^T of the rows.

    Only on as many columns as the site allows.
    """
    known, d = target.scaling(), target.width
    for columns in (d, d // 2, 13, 8):
        j = np.arange(columns)
        scaling = FeatureScaling(known.centre[j], known.scale[j], intercept=True)
        objective, coords = ObjectiveSpec(Logistic(), scaling, columns=j), np.arange(columns + 1, dtype=np.int32)
        queries = [Evaluate(objective, x[None], coords=coords) for x in random_models(hessians, columns + 1, 0)]
        replies = [reply for reply in target.ask(*queries) if not isinstance(reply, Refusal)]
        if replies:
            H = np.array([Logistic().unpack_hessian(reply.hessian[0], coords) for reply in replies])
            found = np.full((target.rows, d), np.nan)
            rows = rank_ones(H, target.rows)[:, :-1]
            found[: len(rows), :columns] = unscaled(scaling, rows)
            return found[: len(rows)]
    return np.empty((0, d))


def span_by_gradients(target: Target, budget: int = 100_000) -> np.ndarray:
    """The same for one fold after another, with differences of gradients in place of Hessians. Works on totals too."""
    scaling, d, found = target.scaling(), target.width + 1, []
    folds = len(small_folds(target))
    if folds == 0:
        return np.empty((0, target.width))
    rows = -(-target.rows // folds)
    hessians = rows + 6
    for k in range(min(folds, budget // (2 * d * hessians))):
        objective = target.objective(Logistic(), scaling, fold(target, k, folds))
        (reply,) = target.ask(Moments(subset=objective.subset))
        H = by_differences(target, objective, 0.6 * random_models(hessians, d, k))
        H = H[np.isfinite(H).all(axis=(1, 2))]
        inside = rows if isinstance(reply, Refusal) else round(float(reply.weight))
        if len(H) >= inside:
            found += list(unscaled(scaling, rank_ones(H, inside)[:, :-1]))
    return distinct(found, target, near=1e-3)


def rank_ones(H: np.ndarray, number: int) -> np.ndarray:
    """The vectors (a, 1) whose a a^T is in the span of the matrices H: at most `number` of them.

    Subspace power method (Kileel, Pereira: Subspace power method for symmetric tensor decomposition, 2019): where P projects
    onto the span, v <- P(v v^T) v converges to such vectors from random starts.
    """
    w, V = np.linalg.eigh(H.sum(axis=0))
    V, w = V[:, w > 1e-10 * w[-1]], w[w > 1e-10 * w[-1]]
    N = (V / np.sqrt(w)).T @ H @ (V / np.sqrt(w))
    d, rng = len(w), np.random.default_rng(0)
    span = np.linalg.svd(N.reshape(len(N), -1), full_matrices=False)[2][:number]
    kept = np.empty((0, H.shape[1]))
    for _ in range(6):
        v = rng.standard_normal((2 * number, d))
        v /= np.linalg.norm(v, axis=1)[:, None]
        for _ in range(400):
            P = ((v[:, :, None] * v[:, None]).reshape(len(v), -1) @ span.T @ span).reshape(len(v), d, d)
            v = np.einsum("sij,sj->si", P, v) + 0.3 * v
            v /= np.linalg.norm(v, axis=1)[:, None]
        inside = (((v[:, :, None] * v[:, None]).reshape(len(v), -1) @ span.T) ** 2).sum(axis=1)
        rows = v[inside > 1 - 1e-6] @ (V * np.sqrt(w)).T
        for row in rows / rows[:, -1:]:
            if not len(kept) or np.abs(kept - row).max(axis=1).min() > 1e-3:
                kept = np.vstack([kept, row])
        if len(kept) >= number:
            break
    return kept[:number]


# --- the conjugate as an oracle ---


def conjugate_vertices(target: Target, vertices: int | None = None, steps: int = 34) -> np.ndarray:
    """`Evaluate.dual`: the conjugate of the logistic loss is infinite unless shift <= min_l sigmoid(slope u^T a_l).

    So bisection over the shift tells the smallest projection of all rows on any direction u: the support function of the
    rows, whose gradient in u is a row. In many columns nearly every row is a vertex of the hull. Every model is near zero.
    """
    scaling, d, slope, h = target.scaling(), target.width, 0.2, 0.02
    objective, found = target.objective(Logistic(), scaling), []
    vertices = 2 * target.rows if vertices is None else vertices
    batch = 10_000 // (d + 1)
    for first in range(0, vertices, batch):
        base = np.array([direction(d, 1000 + first + k) for k in range(min(batch, vertices - first))])
        U = (base[:, None] + h * np.vstack([np.zeros(d), np.eye(d)])).reshape(-1, d)
        least = smallest_projection(target, objective, slope * U, steps) / slope
        least = least.reshape(len(base), d + 1)
        rows = (least[:, 1:] - least[:, :1]) / h
        own = np.abs(np.einsum("ij,ij->i", rows, base) - least[:, 0])  # a vertex has this projection
        found += [unscaled(scaling, row) for row, error in zip(rows, own, strict=True) if error < 1e-3]
    return distinct(found, target, near=1e-3)


def smallest_projection(target: Target, objective: ObjectiveSpec, W: np.ndarray, steps: int) -> np.ndarray:
    """min_l w^T a_l for every row w of W, by bisection over whether the conjugate is finite."""
    X = np.column_stack([W, np.zeros(len(W))])
    low, high = np.full(len(W), -20.0), np.full(len(W), 20.0)
    for _ in range(steps):
        middle = 0.5 * (low + high)
        dual = np.column_stack([expit(middle), np.ones(len(W)), np.zeros(len(W)), np.zeros(len(W))])
        (reply,) = target.ask(Evaluate(objective, X, dual=dual))
        if isinstance(reply, Refusal):
            return np.full(len(W), np.nan)
        finite = np.isfinite(reply.conjugate)
        low, high = np.where(finite, middle, low), np.where(finite, high, middle)
    return low


# --- the poles of leave-one-out ---


def leverage_vertices(target: Target, vertices: int = 40) -> np.ndarray:
    """`LeaveOneOut` with a Hessian that is small along one direction u: infinite once some row has a leverage of 1.

    So bisection over how small it is tells max_l u^T a_l, the support function of the rows, whose gradient in u is a row. The
    intercept is a column of ones: with a large part of u there, no projection is below 0. A refusal is taken for an infinite loss.
    """
    scaling, d, h = target.scaling(), target.width, 1e-3
    objective, found = target.objective(Squared(), scaling), []
    for k in range(vertices):
        base = np.append(direction(d, 2000 + k), 20.0)
        start = least_curvature(target, objective, base, -20.0, 20.0)
        near = [least_curvature(target, objective, base + h * e, start - 0.05, start + 0.05) for e in np.eye(d, d + 1)]
        most = np.exp2(0.5 * np.array([start, *near])) * np.linalg.norm(base + h * np.eye(d + 1, k=-1), axis=1)
        row = (most[1:] - most[0]) / h
        if abs(row @ base[:d] + 20.0 - most[0]) < 1e-2:  # a vertex has this projection
            found.append(unscaled(scaling, row))
        if target.refusals:
            break  # where a refusal begins depends on a sum over rows: one direction shows it
    return distinct(found, target, near=1e-3)


def least_curvature(target: Target, objective: ObjectiveSpec, u: np.ndarray, low: float, high: float) -> float:
    """log2 of the curvature along u at which the loss of rows left out becomes finite: max_l (u^T a_l)^2 / |u|^2."""
    coords, along = np.arange(len(u)), np.outer(u, u) / (u @ u)
    across, parts = 1e7 * (np.eye(len(u)) - along), 16  # models of one query
    while high - low > 1e-9:
        tried = np.linspace(low, high, parts + 2)[1:-1]
        H = np.array([upper_triangle(2.0**t * along + across) for t in tried])
        query = LeaveOneOut(objective, np.zeros((parts, len(u))), coords, H)
        (reply,) = target.ask(query)
        if isinstance(reply, Refusal):  # of one of them
            single = [replace(query, x=query.x[:1], hessian=one[None]) for one in H]
            finite = np.array(
                [not isinstance(one, Refusal) and np.isfinite(one.loss[0]) for one in target.ask(*single)]
            )
        else:
            finite = np.isfinite(reply.loss)
        first = int(np.argmax(finite)) if finite.any() else parts
        low, high = np.concatenate([[low], tried, [high]])[first : first + 2]
    return float(high)
