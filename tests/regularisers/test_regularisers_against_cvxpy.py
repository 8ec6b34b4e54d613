"""The prox of every convex regulariser, and of every sum it is known for, against an interior-point solver."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import cvxpy as cp
import numpy as np
import pytest
from regulariser_cases import (
    CASES,
    CONVEX,
    FALLING,
    GROUP_WEIGHTS,
    GROUPS,
    LOWER,
    MEMBERS,
    OFFSET,
    ROOTS,
    ROWS,
    UPPER,
    WEIGHTS,
    D,
    prox,
    value,
)
from scipy.optimize import brentq

from compfed import regularisers as reg
from compfed.regularisers.combinations import without_factors
from compfed.regularisers.penalties import RULES

pytestmark = pytest.mark.usefixtures("double_precision")


def nothing(u: cp.Variable) -> list[Any]:
    return []


def matrix(u: Any) -> Any:
    return cp.reshape(u, (3, 2), order="C")


def groups(u: Any, weights: dict[int, float] = ROOTS, members: dict[int, list[int]] = MEMBERS) -> Any:
    return sum(weights[k] * cp.norm2(u[members[k]]) for k in members)


def largest(u: Any, k: int) -> Any:
    """The sum of the k largest |u_j|; cvxpy's cannot be evaluated for all of them."""
    return cp.sum_largest(cp.abs(u), k) if k < D else cp.norm1(u)


def sorted_l1(u: Any) -> Any:
    steps = -np.diff(np.append(FALLING, 0.0))
    return sum(s * largest(u, k + 1) for k, s in enumerate(steps))


def tv(u: Any) -> Any:
    return cp.norm1(cp.diff(u))


def bounded(u: Any) -> list[Any]:
    return [u[1:] >= LOWER[1:], u[[0, 2, 3, 4]] <= UPPER[[0, 2, 3, 4]]]


def box(u: Any) -> list[Any]:
    return [u >= -0.4, u <= 0.9]


def positive(u: Any) -> list[Any]:
    return [u >= 0]


class Convex(NamedTuple):
    """g in cvxpy's words: what is minimised, the constraints, and the radius of an L2 ball around zero."""

    objective: Callable[[Any], Any]
    constraints: Callable[[Any], list[Any]] = nothing
    radius: float = np.inf


FORMULAS: dict[str, Convex] = {
    "Zero": Convex(lambda u: 0.0),
    "L1": Convex(lambda u: 0.8 * cp.norm1(u)),
    "L1-weighted": Convex(lambda u: WEIGHTS @ cp.abs(u)),
    "ElasticNet": Convex(lambda u: 0.5 * cp.norm1(u) + cp.sum_squares(u)),
    "ElasticNet-weighted": Convex(lambda u: WEIGHTS @ cp.abs(u) + WEIGHTS @ cp.square(u)),
    "Ridge": Convex(lambda u: 0.3 * cp.sum_squares(u)),
    "Box": Convex(lambda u: 0.0, box),
    "Box-of-arrays": Convex(lambda u: 0.0, bounded),
    "NonNegative": Convex(lambda u: 0.0, positive),
    "L2Ball": Convex(lambda u: 0.0, lambda u: [cp.norm2(u) <= 1.5]),
    "L1Ball": Convex(lambda u: 0.0, lambda u: [cp.norm1(u) <= 1.5]),
    "Simplex": Convex(lambda u: 0.0, lambda u: [u >= 0, cp.sum(u) == 2.0]),
    "GroupL2": Convex(lambda u: 0.8 * groups(u)),
    "GroupL2-weighted": Convex(lambda u: 0.8 * groups(u, GROUP_WEIGHTS)),
    "GroupL2-rows": Convex(lambda u: 0.8 * groups(u, dict.fromkeys(ROWS, 1.0), ROWS)),
    "SparseGroup": Convex(lambda u: 0.3 * cp.norm1(u) + 0.8 * groups(u)),
    "Nuclear": Convex(lambda u: 0.8 * cp.normNuc(matrix(u))),
    "NuclearBall": Convex(lambda u: 0.0, lambda u: [cp.normNuc(matrix(u)) <= 1.5]),
    "LinfNorm": Convex(lambda u: 0.8 * cp.norm_inf(u)),
    "SortedL1": Convex(sorted_l1),
    "TotalVariation1D": Convex(lambda u: 0.8 * tv(u)),
    "Scaled": Convex(lambda u: 2.0 * groups(u)),
    "Shifted": Convex(lambda u: 0.8 * cp.norm1(u - OFFSET)),
    "Shifted-box": Convex(lambda u: 0.0, lambda u: [u - 0.3 >= -0.4, u - 0.3 <= 0.9]),
    "Rescaled": Convex(lambda u: 0.6 * cp.norm1(u / 3) + 0.9 * cp.sum_squares(u / 3)),
    "Rescaled-ball": Convex(lambda u: 0.0, lambda u: [cp.norm1(u / 3) <= 0.5]),
    "OnBlock": Convex(lambda u: 0.8 * cp.norm1(u[1:4])),
    "Blocks": Convex(lambda u: 0.8 * cp.norm1(u[:2]), lambda u: [u[3:] >= 0]),
    "SumOf-positive-lasso": Convex(lambda u: 0.8 * cp.norm1(u), positive),
    "SumOf-fused-lasso": Convex(lambda u: 0.4 * cp.norm1(u) + 0.7 * tv(u)),
    "SumOf-ridge": Convex(lambda u: sorted_l1(u) + 0.25 * cp.sum_squares(u)),
    "SumOf-ball": Convex(lambda u: WEIGHTS @ cp.abs(u), radius=1.5),
    "SumOf-positive-groups": Convex(lambda u: 0.8 * groups(u), positive),
    "Adapted-NumPy": Convex(lambda u: 0.8 * cp.norm1(u)),
    "Adapted-JAX": Convex(lambda u: 0.8 * cp.norm1(u)),
}

# Every other pair of the rules in sums.py.
FREE = np.where(np.equal(GROUPS, 7), 0.0, np.inf)
SUMS: dict[str, tuple[Any, Convex]] = {
    "Zero+Box": (reg.Zero() + reg.Box(-0.4, 0.9), Convex(lambda u: 0.0, box)),
    "L1+Box": (reg.L1(WEIGHTS) + reg.Box(LOWER, UPPER), Convex(lambda u: WEIGHTS @ cp.abs(u), bounded)),
    "ElasticNet+Box": (
        reg.Box(LOWER, UPPER) + reg.ElasticNet(WEIGHTS, WEIGHTS),
        Convex(lambda u: WEIGHTS @ cp.abs(u) + 0.5 * WEIGHTS @ cp.square(u), bounded),
    ),
    "Zero+NonNegative": (reg.NonNegative() + reg.Zero(), Convex(lambda u: 0.0, positive)),
    "ElasticNet+NonNegative": (
        reg.ElasticNet(WEIGHTS, WEIGHTS) + reg.NonNegative(),
        Convex(lambda u: WEIGHTS @ cp.abs(u) + 0.5 * WEIGHTS @ cp.square(u), positive),
    ),
    "TV+ElasticNet": (
        reg.TotalVariation1D(0.7) + reg.ElasticNet(0.4, 0.6),
        Convex(lambda u: 0.7 * tv(u) + 0.4 * cp.norm1(u) + 0.3 * cp.sum_squares(u)),
    ),
    "TV+Box": (reg.TotalVariation1D(0.7) + reg.Box(-0.4, 0.9), Convex(lambda u: 0.7 * tv(u), box)),
    "TV+NonNegative": (reg.NonNegative() + reg.TotalVariation1D(0.7), Convex(lambda u: 0.7 * tv(u), positive)),
    "GroupL2+Box": (  # holds the group of label 7 at 0
        reg.GroupL2(0.8, GROUPS) + reg.Box(-FREE, FREE),
        Convex(lambda u: 0.8 * groups(u), lambda u: [u[0] == 0, u[2] == 0]),
    ),
    "L1+GroupL2": (reg.GroupL2(0.8, GROUPS) + reg.L1(WEIGHTS), Convex(lambda u: 0.8 * groups(u) + WEIGHTS @ cp.abs(u))),
    "Zero+L2Ball": (reg.Zero() + reg.L2Ball(1.5), Convex(lambda u: 0.0, radius=1.5)),
    "NonNegative+L2Ball": (reg.NonNegative() + reg.L2Ball(1.5), Convex(lambda u: 0.0, positive, radius=1.5)),
    "GroupL2+L2Ball": (reg.GroupL2(0.8, GROUPS) + reg.L2Ball(1.5), Convex(lambda u: 0.8 * groups(u), radius=1.5)),
    "SparseGroup+L2Ball": (
        reg.SparseGroup(0.3, 0.8, GROUPS) + reg.L2Ball(1.5),
        Convex(lambda u: 0.3 * cp.norm1(u) + 0.8 * groups(u), radius=1.5),
    ),
    "Nuclear+L2Ball": (
        reg.Nuclear(0.8, 2) + reg.L2Ball(1.5),
        Convex(lambda u: 0.8 * cp.normNuc(matrix(u)), radius=1.5),
    ),
    "SortedL1+L2Ball": (reg.SortedL1(FALLING) + reg.L2Ball(1.5), Convex(sorted_l1, radius=1.5)),
    "LinfNorm+L2Ball": (reg.LinfNorm(0.8) + reg.L2Ball(1.5), Convex(lambda u: 0.8 * cp.norm_inf(u), radius=1.5)),
    "TV+L2Ball": (reg.TotalVariation1D(0.8) + reg.L2Ball(1.5), Convex(lambda u: 0.8 * tv(u), radius=1.5)),
    "Simplex+Ridge": (
        reg.Simplex(2.0) + 3.0 * reg.Ridge(0.4),
        Convex(lambda u: 0.6 * cp.sum_squares(u), lambda u: [u >= 0, cp.sum(u) == 2.0]),
    ),
    "L1+GroupL2+Ridge": (
        reg.L1(0.3) + reg.GroupL2(0.8, GROUPS) + reg.Ridge(0.5),
        Convex(lambda u: 0.3 * cp.norm1(u) + 0.8 * groups(u) + 0.25 * cp.sum_squares(u)),
    ),
}
ALL = {**{name: (CASES[name].g, FORMULAS[name]) for name in CONVEX}, **SUMS}


def inputs() -> list[tuple[np.ndarray, float]]:
    """Points and steps: at random, with zeros, with ties, far from zero, tiny steps and huge ones."""
    rng = np.random.default_rng(3)
    spread = 2.0 * rng.standard_normal(D)
    return [
        (spread, 0.7),
        (spread, 1e-3),
        (spread, 1e-7),
        (spread, 40.0),
        (100 * rng.standard_normal(D), 3.0),
        (np.zeros(D), 0.5),
        (np.array([1.0, 1.0, -2.0, 0.0, 2.0, 1.0]), 0.45),
        (np.array([2.0, 2.0, 2.0, -2.0, -2.0, -2.0]), 0.6),
    ]


def solvers(problem: cp.Problem) -> Iterator[dict[str, Any]]:
    """Ways to solve a small problem, one of which is exact to nine digits or more.

    A quadratic program is polished: solved once more as equations on its active constraints. An interior-point method
    asked for more digits than the problem lets it have may stop far off, hence several tolerances.
    """
    if problem.is_qp():
        for eps in (1e-9, 1e-7, 1e-5):
            yield {"solver": cp.OSQP, "eps_abs": eps, "eps_rel": eps, "polishing": True, "max_iter": 100_000}
    for eps in (1e-14, 1e-13, 1e-15, 1e-12, 1e-11):
        tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), eps)
        yield {"solver": cp.CLARABEL, "max_step_fraction": 0.9, **tight}  # short steps stay near the central path


def solutions(z: np.ndarray, t: float, formula: Convex) -> Iterator[tuple[np.ndarray, float]]:
    """argmin_u t g(u) + ||u - z||^2 / 2 and the least value, by one solver after the other.

    A ball beside other terms is met through its multiplier: with lambda (||u||^2 - r^2) / 2 added to the objective, the
    lambda >= 0 for which the minimiser has norm r. The two cones at once would leave an interior-point method at 1e-6.
    """
    objective, constraints, radius = formula
    u, scaled, step = cp.Variable(D), cp.Parameter(D), cp.Parameter(nonneg=True)
    problem = cp.Problem(cp.Minimize(step * objective(u) + 0.5 * cp.sum_squares(u - scaled)), constraints(u))
    for settings in solvers(problem):

        def minimiser(shrink: float) -> np.ndarray:
            """shrink = 1 / (1 + lambda): the objective is divided by 1 + lambda."""
            scaled.value, step.value = shrink * z, shrink * t
            problem.solve(**settings)  # noqa: B023  # called in this turn of the loop only
            if u.value is None:
                raise cp.SolverError("gave up")
            return u.value

        with warnings.catch_warnings(), contextlib.suppress(cp.SolverError):
            warnings.simplefilter("ignore", UserWarning)  # "may be inaccurate": the comparison is the judge
            p = minimiser(1.0)
            if np.linalg.norm(p) > radius:
                p = minimiser(brentq(lambda s: float(np.linalg.norm(minimiser(s))) - radius, 0.0, 1.0, xtol=1e-15))  # pyright: ignore[reportArgumentType]
            u.value, scaled.value, step.value = p, z, t
            yield p, float(problem.objective.value)  # pyright: ignore[reportArgumentType]  # a number now


@pytest.mark.parametrize("name", ALL)
def test_prox_and_value_against_cvxpy(name):
    g, formula = ALL[name]
    for z, t in inputs():
        p, size = np.asarray(prox(g, z, t)), max(1.0, np.abs(z).max())
        cost = t * float(value(g, p)) + 0.5 * np.sum((p - z) ** 2)
        misses = []
        for u, least in solutions(z, t, formula):
            misses.append((np.abs(p - u).max() / size, abs(cost - least) / size**2))
            if max(misses[-1]) <= 1e-8:
                break
        else:
            pytest.fail(f"no solver agrees at z = {z}, t = {t}: (point, value) are off by {misses}")


def test_every_known_sum_is_checked():
    checked = {
        frozenset((type(without_factors(g.a)), type(without_factors(g.b))))
        for g, _ in ALL.values()
        if isinstance(g, reg.SumOf)
    }
    known = {frozenset(pair) for rule in RULES for pair in itertools.product(rule.first, rule.last)}
    assert {pair for pair in known - checked if not pair & {reg.MCP, reg.SCAD}} == set()


@pytest.mark.parametrize(
    ("name", "dual"),
    [
        ("SortedL1", lambda v, t: [largest(v, k) <= t * FALLING[:k].sum() for k in range(1, D + 1)]),
        ("TotalVariation1D", lambda v, t: [cp.sum(v) == 0, cp.abs(cp.cumsum(v)) <= 0.8 * t]),
    ],
)
def test_moreau_identity_with_the_dual_ball(name, dual):
    """x = prox_{t g}(x) + P(x), P the projection on {v : <v, u> <= t g(u) for all u}."""
    for x, t in inputs():
        left, size = np.asarray(x - prox(CASES[name].g, x, t)), max(1.0, np.abs(x).max())
        found = solutions(x, 1.0, Convex(lambda v: 0.0, lambda v, t=t: dual(v, t)))
        assert any(np.abs(left - v).max() <= 1e-8 * size for v, _ in found)
