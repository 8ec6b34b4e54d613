"""Every regulariser with its docstring worked out in NumPy, for the tests of regularisers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from problems import soft
from scipy.optimize import lsq_linear

from compfed import regularisers as reg

Vector = np.ndarray
D = 6
WEIGHTS = np.array([0.0, 0.3, 0.5, 1.0, 2.0, 0.7])
LOWER = np.array([-np.inf, -1.0, 0.0, -0.5, 0.2, -2.0])
UPPER = np.array([0.5, np.inf, 0.0, 0.5, 0.3, np.inf])
OFFSET = np.array([0.5, -1.0, 0.0, 2.0, 0.1, -0.3])
FALLING = np.array([2.0, 1.5, 1.5, 0.6, 0.3, 0.0])
GROUPS = (7, 2, 7, 5, 2, 2)  # labels need be neither in order nor without gaps
MEMBERS = {2: [1, 4, 5], 5: [3], 7: [0, 2]}  # in the order of the labels, which is that of the weights
GROUP_WEIGHTS = {2: 0.5, 5: 0.0, 7: 2.0}
ROOTS = {2: np.sqrt(3), 5: 1.0, 7: np.sqrt(2)}
ROWS = {0: [0, 1], 1: [2, 3], 2: [4, 5]}


class Case(NamedTuple):
    """A regulariser, and its docstring worked out in NumPy."""

    g: Any
    value: Callable[[Vector], Any]  # on the domain
    prox: Callable[[Vector, float], Vector]
    inside: Callable[[Vector], Vector] | None = None  # where g may be infinite: some point of the domain for any vector
    convex: bool = True


def shrunk(u: Vector, radius: float) -> Vector:
    """The projection on the L2 ball."""
    return u / max(1.0, float(np.linalg.norm(u)) / radius) if radius > 0 else np.zeros_like(u)


def onto_simplex(v: Vector, radius: float) -> Vector:
    """By bisection of the number to subtract."""
    low, high = v.min() - radius, v.max()
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > radius else (low, middle)
    return np.maximum(v - high, 0)


def onto_l1_ball(x: Vector, radius: float) -> Vector:
    if np.abs(x).sum() <= radius:
        return x
    return np.sign(x) * onto_simplex(np.abs(x), radius)


def group_norm(x: Vector, weights: dict[int, float], members: dict[int, list[int]]) -> float:
    return sum(weights[k] * float(np.linalg.norm(x[members[k]])) for k in members)


def group_prox(x: Vector, t: float, weights: dict[int, float], members: dict[int, list[int]]) -> Vector:
    """By Moreau's identity: what is left of each group after its projection on the dual ball."""
    p = x.copy()
    for k, inside in members.items():
        p[inside] = x[inside] - shrunk(x[inside], t * weights[k])
    return p


def through_svd(x: Vector, change: Callable[[Vector], Vector]) -> Vector:
    U, s, Vt = np.linalg.svd(x.reshape(-1, 2), full_matrices=False)
    return (U @ np.diag(change(s)) @ Vt).ravel()


def nuclear_norm(x: Vector) -> float:
    """The sum of the singular values of a 3 x 2 matrix, from the trace and the determinant of X^T X."""
    A = x.reshape(-1, 2).T @ x.reshape(-1, 2)
    return float(np.sqrt(np.trace(A) + 2 * np.sqrt(max(np.linalg.det(A), 0.0))))


def sorted_l1_prox(x: Vector, t: float) -> Vector:
    """Isotonic regression by its min-max formula: u_k = min_{i <= k} max_{j >= k} mean(v_i, ..., v_j)."""
    order = np.argsort(-np.abs(x))
    v = np.abs(x)[order] - t * FALLING
    u = [min(max(v[i : j + 1].mean() for j in range(k, D)) for i in range(k + 1)) for k in range(D)]
    p = np.zeros(D)
    p[order] = np.maximum(u, 0)
    return np.sign(x) * p


def tv_prox(x: Vector, t: float) -> Vector:
    """x - D^T z, where z solves the dual: min ||x - D^T z|| over |z_j| <= t, by an active-set method."""
    if t == 0:
        return x
    backwards = np.diff(np.eye(len(x)), axis=0).T
    solved = lsq_linear(backwards, x, bounds=(-t, t), method="bvls", tol=1e-16)
    return x - backwards @ solved.x


def by_pieces(x: Vector, t: float, phi: Callable[[Vector], Vector], slopes: list[tuple[float, float]]) -> Vector:
    """The prox of a penalty whose pieces have derivative a + b u for u > 0: the best of all stationary points."""
    p = np.zeros_like(x)
    for j, v in enumerate(np.abs(x)):
        candidates = np.array([0.0, *[max((v - t * a) / (1 + t * b), 0.0) for a, b in slopes]])
        p[j] = candidates[np.argmin(t * phi(candidates) + 0.5 * (candidates - v) ** 2)]
    return np.sign(x) * p


def mcp(x: Vector) -> Vector:
    u = np.abs(x)
    return np.where(u <= 2.5 * 0.6, 0.6 * u - u * u / (2 * 2.5), 0.5 * 2.5 * 0.6**2)


def scad(x: Vector) -> Vector:
    u, lam, gamma = np.abs(x), 0.6, 3.7
    middle = (2 * gamma * lam * u - u * u - lam * lam) / (2 * (gamma - 1))
    return np.where(u <= lam, lam * u, np.where(u <= gamma * lam, middle, lam * lam * (gamma + 1) / 2))


class Plain:
    """A user's own 0.8 ||x||_1 in NumPy; works in place, as JAX arrays do not allow."""

    def __call__(self, x):
        return 0.8 * np.abs(x).sum()

    def prox(self, x, t):
        if t > 0:
            x[np.abs(x) <= 0.8 * t] = 0.0
            x -= 0.8 * t * np.sign(x)
        return x


class Traced:
    """A user's own 0.8 ||x||_1 in JAX."""

    def __call__(self, x):
        return 0.8 * jnp.abs(x).sum()

    def prox(self, x, t):
        return jnp.clip(x - 0.8 * t, 0.0, None) + jnp.clip(x + 0.8 * t, None, 0.0)


def small(u: Vector) -> Vector:
    """In all the balls below."""
    return u / max(1.0, float(np.abs(u).sum()))


def l1(x: Vector) -> float:
    return float(np.abs(x).sum())


CASES = {
    "Zero": Case(reg.Zero(), lambda x: 0.0, lambda x, t: x),
    "L1": Case(reg.L1(0.8), lambda x: 0.8 * l1(x), lambda x, t: soft(x, 0.8 * t)),
    "L1-weighted": Case(
        reg.L1(WEIGHTS),
        lambda x: WEIGHTS @ np.abs(x),
        lambda x, t: np.where(np.abs(x) > t * WEIGHTS, x - t * WEIGHTS * np.sign(x), 0.0),
    ),
    "ElasticNet": Case(
        reg.ElasticNet(l1=0.5, l2=2.0),
        lambda x: 0.5 * l1(x) + 1.0 * (x @ x),
        lambda x, t: soft(x, 0.5 * t) / (1 + 2.0 * t),
    ),
    "ElasticNet-weighted": Case(
        reg.ElasticNet(l1=WEIGHTS, l2=2.0 * WEIGHTS),
        lambda x: WEIGHTS @ np.abs(x) + WEIGHTS @ (x * x),
        lambda x, t: np.where(np.abs(x) > t * WEIGHTS, x - t * WEIGHTS * np.sign(x), 0.0) / (1 + 2 * t * WEIGHTS),
    ),
    "Ridge": Case(reg.Ridge(0.6), lambda x: 0.3 * (x @ x), lambda x, t: x / (1 + 0.6 * t)),
    "Box": Case(
        reg.Box(-0.4, 0.9),
        lambda x: 0.0,
        lambda x, t: np.minimum(np.maximum(x, -0.4), 0.9),
        lambda u: np.clip(u, -0.4, 0.9),
    ),
    "Box-of-arrays": Case(
        reg.Box(LOWER, UPPER),
        lambda x: 0.0,
        lambda x, t: np.minimum(np.maximum(x, LOWER), UPPER),
        lambda u: np.clip(u, LOWER, UPPER),
    ),
    "NonNegative": Case(reg.NonNegative(), lambda x: 0.0, lambda x, t: np.where(x > 0, x, 0.0), np.abs),
    "L2Ball": Case(reg.L2Ball(1.5), lambda x: 0.0, lambda x, t: shrunk(x, 1.5), lambda u: shrunk(u, 1.5)),
    "L1Ball": Case(reg.L1Ball(1.5), lambda x: 0.0, lambda x, t: onto_l1_ball(x, 1.5), small),
    "Simplex": Case(
        reg.Simplex(2.0),
        lambda x: 0.0,
        lambda x, t: onto_simplex(x, 2.0),
        lambda u: 2.0 * np.exp(u - u.max()) / np.exp(u - u.max()).sum(),
    ),
    "GroupL2": Case(
        reg.GroupL2(0.8, GROUPS),
        lambda x: 0.8 * group_norm(x, ROOTS, MEMBERS),
        lambda x, t: group_prox(x, 0.8 * t, ROOTS, MEMBERS),
    ),
    "GroupL2-weighted": Case(
        reg.GroupL2(0.8, np.array(GROUPS), np.array(list(GROUP_WEIGHTS.values()))),  # pyright: ignore[reportArgumentType]  # an array of labels will do
        lambda x: 0.8 * group_norm(x, GROUP_WEIGHTS, MEMBERS),
        lambda x, t: group_prox(x, 0.8 * t, GROUP_WEIGHTS, MEMBERS),
    ),
    "GroupL2-rows": Case(
        reg.GroupL2.of_rows(0.8, rows=3, columns=2),
        lambda x: 0.8 * np.linalg.norm(x.reshape(3, 2), axis=1).sum(),
        lambda x, t: group_prox(x, 0.8 * t, dict.fromkeys(ROWS, 1.0), ROWS),
    ),
    "SparseGroup": Case(
        reg.SparseGroup(0.3, 0.8, GROUPS),
        lambda x: 0.3 * l1(x) + 0.8 * group_norm(x, ROOTS, MEMBERS),
        lambda x, t: group_prox(soft(x, 0.3 * t), 0.8 * t, ROOTS, MEMBERS),
    ),
    "Nuclear": Case(
        reg.Nuclear(0.8, columns=2),
        lambda x: 0.8 * nuclear_norm(x),
        lambda x, t: x - through_svd(x, lambda s: np.minimum(s, 0.8 * t)),  # Moreau: the spectral ball
    ),
    "NuclearBall": Case(
        reg.NuclearBall(1.5, columns=2),
        lambda x: 0.0,
        lambda x, t: through_svd(x, lambda s: onto_l1_ball(s, 1.5)),
        lambda u: u * min(1.0, 1.5 / max(nuclear_norm(u), 1e-300)) * (1 - 1e-12),
    ),
    "LinfNorm": Case(
        reg.LinfNorm(0.8),
        lambda x: 0.8 * np.abs(x).max(),
        lambda x, t: x - (onto_l1_ball(x, 0.8 * t) if t > 0 else 0.0),  # Moreau
    ),
    "SortedL1": Case(reg.SortedL1(FALLING), lambda x: FALLING @ np.sort(np.abs(x))[::-1], sorted_l1_prox),
    "TotalVariation1D": Case(
        reg.TotalVariation1D(0.8),
        lambda x: 0.8 * sum(abs(b - a) for a, b in itertools.pairwise(x)),
        lambda x, t: tv_prox(x, 0.8 * t),
    ),
    "MCP": Case(
        reg.MCP(0.6, gamma=2.5),
        lambda x: mcp(x).sum(),
        lambda x, t: by_pieces(x, t, mcp, [(0.6, -1 / 2.5), (0.0, 0.0)]),
        convex=False,
    ),
    "SCAD": Case(
        reg.SCAD(0.6),
        lambda x: scad(x).sum(),
        lambda x, t: by_pieces(x, t, scad, [(0.6, 0.0), (3.7 * 0.6 / 2.7, -1 / 2.7), (0.0, 0.0)]),
        convex=False,
    ),
    "Scaled": Case(
        2.5 * reg.GroupL2(0.8, GROUPS),
        lambda x: 2.0 * group_norm(x, ROOTS, MEMBERS),
        lambda x, t: group_prox(x, 2.0 * t, ROOTS, MEMBERS),
    ),
    "Scaled-MCP": Case(
        reg.Scaled(reg.MCP(0.6, gamma=2.5), 0.5),
        lambda x: 0.5 * mcp(x).sum(),
        lambda x, t: by_pieces(x, 0.5 * t, mcp, [(0.6, -1 / 2.5), (0.0, 0.0)]),
        convex=False,
    ),
    "Shifted": Case(
        reg.Shifted(reg.L1(0.8), OFFSET),
        lambda x: 0.8 * l1(x - OFFSET),
        lambda x, t: OFFSET + soft(x - OFFSET, 0.8 * t),
    ),
    "Shifted-box": Case(
        reg.Shifted(reg.Box(-0.4, 0.9), 0.3),
        lambda x: 0.0,
        lambda x, t: np.clip(x, -0.4 + 0.3, 0.9 + 0.3),
        lambda u: np.clip(u, -0.4 + 0.3, 0.9 + 0.3),
    ),
    "Rescaled": Case(  # |x / 3| has slope 1 / 3, (x / 3)^2 has curvature 2 / 9
        reg.Rescaled(reg.ElasticNet(l1=0.6, l2=1.8), 3.0),
        lambda x: 0.2 * l1(x) + 0.1 * (x @ x),
        lambda x, t: soft(x, 0.2 * t) / (1 + 0.2 * t),
    ),
    "Rescaled-ball": Case(reg.Rescaled(reg.L1Ball(0.5), 3.0), lambda x: 0.0, lambda x, t: onto_l1_ball(x, 1.5), small),
    "OnBlock": Case(
        reg.OnBlock(reg.L1(0.8), 1, 4),
        lambda x: 0.8 * l1(x[1:4]),
        lambda x, t: np.r_[x[0], soft(x[1:4], 0.8 * t), x[4:]],
    ),
    "Blocks": Case(
        reg.Blocks((reg.L1(0.8), reg.Zero(), reg.NonNegative()), (2, 1, 3)),
        lambda x: 0.8 * l1(x[:2]),
        lambda x, t: np.r_[soft(x[:2], 0.8 * t), x[2], np.maximum(x[3:], 0)],
        lambda u: np.r_[u[:3], np.abs(u[3:])],
    ),
    "SumOf-positive-lasso": Case(
        reg.L1(0.8) + reg.NonNegative(), lambda x: 0.8 * x.sum(), lambda x, t: np.maximum(x - 0.8 * t, 0), np.abs
    ),
    "SumOf-fused-lasso": Case(
        0.5 * reg.L1(0.8) + reg.TotalVariation1D(0.7),
        lambda x: 0.4 * l1(x) + 0.7 * l1(np.diff(x)),
        lambda x, t: soft(tv_prox(x, 0.7 * t), 0.4 * t),
    ),
    "SumOf-ridge": Case(
        reg.SortedL1(FALLING) + reg.Ridge(0.5),
        lambda x: FALLING @ np.sort(np.abs(x))[::-1] + 0.25 * (x @ x),
        lambda x, t: sorted_l1_prox(x / (1 + 0.5 * t), t / (1 + 0.5 * t)),
    ),
    "SumOf-ball": Case(
        reg.L2Ball(1.5) + reg.L1(WEIGHTS),
        lambda x: WEIGHTS @ np.abs(x),
        lambda x, t: shrunk(np.where(np.abs(x) > t * WEIGHTS, x - t * WEIGHTS * np.sign(x), 0.0), 1.5),
        lambda u: shrunk(u, 1.5),
    ),
    "SumOf-positive-groups": Case(
        reg.SumOf(reg.GroupL2(0.8, GROUPS), reg.NonNegative()),
        lambda x: 0.8 * group_norm(x, ROOTS, MEMBERS),
        lambda x, t: group_prox(np.maximum(x, 0), 0.8 * t, ROOTS, MEMBERS),
        np.abs,
    ),
    "Adapted-NumPy": Case(reg.from_object(Plain()), lambda x: 0.8 * l1(x), lambda x, t: soft(x, 0.8 * t)),
    "Adapted-JAX": Case(reg.from_object(Traced()), lambda x: 0.8 * l1(x), lambda x, t: soft(x, 0.8 * t)),
}
CONVEX = [name for name, case in CASES.items() if case.convex]
SETS = [
    "Box",
    "Box-of-arrays",
    "NonNegative",
    "L2Ball",
    "L1Ball",
    "Simplex",
    "NuclearBall",
    "Shifted-box",
    "Rescaled-ball",
]


def step(name: str, t: float) -> float:
    """t, or less where the prox is not defined for t."""
    return min(t, 0.9 * float(getattr(CASES[name].g, "largest_step", np.inf)))


@jax.jit
def prox(g, x, t):
    return g.prox(x, t)


@jax.jit
def value(g, x):
    return g(x)
