"""The prox of every convex regulariser, and of every sum it is known for, against an interior-point solver."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import cvxpy as cp
import jax
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

from compfed.regularisers import (
    L1,
    MCP,
    SCAD,
    Box,
    ElasticNet,
    GroupL2,
    L2Ball,
    LinfNorm,
    NonNegative,
    Nuclear,
    Ridge,
    Simplex,
    SortedL1,
    SparseGroup,
    SumOf,
    TotalVariation1D,
    Zero,
)
from compfed.regularisers.sums import RULES, core


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def nothing(u: cp.Variable) -> list[Any]:
    return []


def matrix(u: Any) -> Any:
    return cp.reshape(u, (3, 2), order="C")


def groups(u: Any, weights: dict[int, float] = ROOTS, members: dict[int, list[int]] = MEMBERS) -> Any:
    return sum(weights[k] * cp.norm2(u[members[k]]) for k in members)


def sorted_l1(u: Any) -> Any:
    steps = -np.diff(np.append(FALLING, 0.0))
    return sum(s * cp.sum_largest(cp.abs(u), k + 1) for k, s in enumerate(steps))


def tv(u: Any) -> Any:
    return cp.norm1(cp.diff(u))


def bounded(u: Any) -> list[Any]:
    return [u[1:] >= LOWER[1:], u[[0, 2, 3, 4]] <= UPPER[[0, 2, 3, 4]]]


def box(u: Any) -> list[Any]:
    return [u >= -0.4, u <= 0.9]


def positive(u: Any) -> list[Any]:
    return [u >= 0]


def ball(u: Any) -> list[Any]:
    return [cp.norm2(u) <= 1.5]


Convex = tuple[Callable[[Any], Any], Callable[[Any], list[Any]]]
FORMULAS: dict[str, Convex] = {
    "Zero": (lambda u: 0.0, nothing),
    "L1": (lambda u: 0.8 * cp.norm1(u), nothing),
    "L1-weighted": (lambda u: WEIGHTS @ cp.abs(u), nothing),
    "ElasticNet": (lambda u: 0.5 * cp.norm1(u) + cp.sum_squares(u), nothing),
    "ElasticNet-weighted": (lambda u: WEIGHTS @ cp.abs(u) + WEIGHTS @ cp.square(u), nothing),
    "Ridge": (lambda u: 0.3 * cp.sum_squares(u), nothing),
    "Box": (lambda u: 0.0, box),
    "Box-of-arrays": (lambda u: 0.0, bounded),
    "NonNegative": (lambda u: 0.0, positive),
    "L2Ball": (lambda u: 0.0, ball),
    "L1Ball": (lambda u: 0.0, lambda u: [cp.norm1(u) <= 1.5]),
    "Simplex": (lambda u: 0.0, lambda u: [u >= 0, cp.sum(u) == 2.0]),
    "GroupL2": (lambda u: 0.8 * groups(u), nothing),
    "GroupL2-weighted": (lambda u: 0.8 * groups(u, GROUP_WEIGHTS), nothing),
    "GroupL2-rows": (lambda u: 0.8 * groups(u, dict.fromkeys(ROWS, 1.0), ROWS), nothing),
    "SparseGroup": (lambda u: 0.3 * cp.norm1(u) + 0.8 * groups(u), nothing),
    "Nuclear": (lambda u: 0.8 * cp.normNuc(matrix(u)), nothing),
    "NuclearBall": (lambda u: 0.0, lambda u: [cp.normNuc(matrix(u)) <= 1.5]),
    "LinfNorm": (lambda u: 0.8 * cp.norm_inf(u), nothing),
    "SortedL1": (sorted_l1, nothing),
    "TotalVariation1D": (lambda u: 0.8 * tv(u), nothing),
    "Scaled": (lambda u: 2.0 * groups(u), nothing),
    "Shifted": (lambda u: 0.8 * cp.norm1(u - OFFSET), nothing),
    "Shifted-box": (lambda u: 0.0, lambda u: [u - 0.3 >= -0.4, u - 0.3 <= 0.9]),
    "Rescaled": (lambda u: 0.6 * cp.norm1(u / 3) + 0.9 * cp.sum_squares(u / 3), nothing),
    "Rescaled-ball": (lambda u: 0.0, lambda u: [cp.norm1(u / 3) <= 0.5]),
    "OnBlock": (lambda u: 0.8 * cp.norm1(u[1:4]), nothing),
    "Blocks": (lambda u: 0.8 * cp.norm1(u[:2]), lambda u: [u[3:] >= 0]),
    "SumOf-positive-lasso": (lambda u: 0.8 * cp.norm1(u), positive),
    "SumOf-fused-lasso": (lambda u: 0.4 * cp.norm1(u) + 0.7 * tv(u), nothing),
    "SumOf-ridge": (lambda u: sorted_l1(u) + 0.25 * cp.sum_squares(u), nothing),
    "SumOf-ball": (lambda u: WEIGHTS @ cp.abs(u), ball),
    "SumOf-positive-groups": (lambda u: 0.8 * groups(u), positive),
    "Adapted-NumPy": (lambda u: 0.8 * cp.norm1(u), nothing),
    "Adapted-JAX": (lambda u: 0.8 * cp.norm1(u), nothing),
}

# Every other pair of the rules in sums.py.
SUMS: dict[str, tuple[Any, Convex]] = {
    "Zero+Box": (Zero() + Box(-0.4, 0.9), (lambda u: 0.0, box)),
    "L1+Box": (L1(WEIGHTS) + Box(LOWER, UPPER), (lambda u: WEIGHTS @ cp.abs(u), bounded)),
    "ElasticNet+Box": (
        Box(LOWER, UPPER) + ElasticNet(WEIGHTS, WEIGHTS),
        (lambda u: WEIGHTS @ cp.abs(u) + 0.5 * WEIGHTS @ cp.square(u), bounded),
    ),
    "Zero+NonNegative": (NonNegative() + Zero(), (lambda u: 0.0, positive)),
    "ElasticNet+NonNegative": (
        ElasticNet(WEIGHTS, WEIGHTS) + NonNegative(),
        (lambda u: WEIGHTS @ cp.abs(u) + 0.5 * WEIGHTS @ cp.square(u), positive),
    ),
    "TV+ElasticNet": (
        TotalVariation1D(0.7) + ElasticNet(0.4, 0.6),
        (lambda u: 0.7 * tv(u) + 0.4 * cp.norm1(u) + 0.3 * cp.sum_squares(u), nothing),
    ),
    "TV+Box": (TotalVariation1D(0.7) + Box(-0.4, 0.9), (lambda u: 0.7 * tv(u), box)),
    "TV+NonNegative": (NonNegative() + TotalVariation1D(0.7), (lambda u: 0.7 * tv(u), positive)),
    "L1+GroupL2": (GroupL2(0.8, GROUPS) + L1(WEIGHTS), (lambda u: 0.8 * groups(u) + WEIGHTS @ cp.abs(u), nothing)),
    "Zero+L2Ball": (Zero() + L2Ball(1.5), (lambda u: 0.0, ball)),
    "NonNegative+L2Ball": (NonNegative() + L2Ball(1.5), (lambda u: 0.0, lambda u: [*positive(u), *ball(u)])),
    "GroupL2+L2Ball": (GroupL2(0.8, GROUPS) + L2Ball(1.5), (lambda u: 0.8 * groups(u), ball)),
    "SparseGroup+L2Ball": (
        SparseGroup(0.3, 0.8, GROUPS) + L2Ball(1.5),
        (lambda u: 0.3 * cp.norm1(u) + 0.8 * groups(u), ball),
    ),
    "Nuclear+L2Ball": (Nuclear(0.8, 2) + L2Ball(1.5), (lambda u: 0.8 * cp.normNuc(matrix(u)), ball)),
    "SortedL1+L2Ball": (SortedL1(FALLING) + L2Ball(1.5), (sorted_l1, ball)),
    "LinfNorm+L2Ball": (LinfNorm(0.8) + L2Ball(1.5), (lambda u: 0.8 * cp.norm_inf(u), ball)),
    "TV+L2Ball": (TotalVariation1D(0.8) + L2Ball(1.5), (lambda u: 0.8 * tv(u), ball)),
    "Simplex+Ridge": (
        Simplex(2.0) + 3.0 * Ridge(0.4),
        (lambda u: 0.6 * cp.sum_squares(u), lambda u: [u >= 0, cp.sum(u) == 2.0]),
    ),
    "L1+GroupL2+Ridge": (
        L1(0.3) + GroupL2(0.8, GROUPS) + Ridge(0.5),
        (lambda u: 0.3 * cp.norm1(u) + 0.8 * groups(u) + 0.25 * cp.sum_squares(u), nothing),
    ),
}
ALL = {**{name: (CASES[name].g, FORMULAS[name]) for name in CONVEX}, **SUMS}


# Several cones at once: the solver stalls sooner. These have a second oracle in test_regularisers_algebra.py.
HARD = [name for name in SUMS if name.endswith("+L2Ball")] + ["SumOf-ball"]


def inputs() -> list[tuple[np.ndarray, float, bool]]:
    """(z, t, whether it is generic); zeros and ties make the solver's problem degenerate, and its point less exact."""
    rng = np.random.default_rng(3)
    spread = 2.0 * rng.standard_normal(D)
    return [
        (spread, 0.7, True),
        (spread, 1e-3, True),
        (spread, 40.0, True),
        (100 * rng.standard_normal(D), 3.0, True),
        (np.zeros(D), 0.5, False),
        (np.array([1.0, 1.0, -2.0, 0.0, 2.0, 1.0]), 0.45, False),
        (np.array([2.0, 2.0, 2.0, -2.0, -2.0, -2.0]), 0.6, False),
    ]


def solutions(z: np.ndarray, t: float, formula: Convex) -> Iterator[tuple[np.ndarray, float]]:
    """argmin_u t g(u) + ||u - z||^2 / 2 and the least value, by ever less ambitious calls of the solver.

    How many digits it can reach depends on the problem; asked for more it may stop far off, or give up.
    """
    u = cp.Variable(D)
    problem = cp.Problem(cp.Minimize(t * formula[0](u) + 0.5 * cp.sum_squares(u - z)), formula[1](u))
    for tolerance in (1e-15, 1e-13, 1e-12, 1e-11, 1e-10):
        with warnings.catch_warnings(), contextlib.suppress(cp.SolverError):
            warnings.simplefilter("ignore", UserWarning)  # "may be inaccurate": the comparison is the judge
            problem.solve(solver=cp.CLARABEL, tol_gap_abs=tolerance, tol_gap_rel=tolerance, tol_feas=tolerance)
            assert u.value is not None
            yield u.value, float(problem.value)  # pyright: ignore[reportArgumentType]  # a number once solved


@pytest.mark.parametrize("name", ALL)
def test_prox_and_value_against_cvxpy(name):
    g, formula = ALL[name]
    for z, t, generic in inputs():
        p, size = np.asarray(prox(g, z, t)), max(1.0, np.abs(z).max())
        # the least value is known more accurately than the point: an error e in the point costs e^2 / 2
        cost = t * float(value(g, p)) + 0.5 * np.sum((p - z) ** 2)
        near = 1e-5 if name in HARD else 1e-8 if generic else 1e-6
        equal = (1e-10 if "ball" in name.lower() else 1e-12) * size**2  # a curved boundary is met less exactly
        misses = []
        for u, least in solutions(z, t, formula):
            misses.append((np.abs(p - u).max() / size, abs(cost - least)))
            if misses[-1][0] <= near and misses[-1][1] <= equal:
                break
        else:
            pytest.fail(f"no call of the solver agrees at z = {z}, t = {t}: (point, value) are off by {misses}")


def test_every_known_sum_is_checked():
    checked = {frozenset((type(core(g.a)), type(core(g.b)))) for g, _ in ALL.values() if isinstance(g, SumOf)}
    known = {frozenset(pair) for rule in RULES for pair in itertools.product(rule.first, rule.last)}
    assert {pair for pair in known - checked if not pair & {MCP, SCAD}} == set()


@pytest.mark.parametrize(
    ("name", "dual"),
    [
        ("SortedL1", lambda v: [cp.sum_largest(cp.abs(v), k + 1) <= FALLING[: k + 1].sum() for k in range(D)]),
        ("TotalVariation1D", lambda v: [cp.sum(v) == 0, cp.abs(cp.cumsum(v)) <= 0.8]),
    ],
)
def test_moreau_identity_with_the_dual_ball(name, dual):
    """x = prox_{t g}(x) + t P(x / t), P the projection on {v : <v, u> <= g(u) for all u}."""
    for x, t, _ in inputs():
        left = np.asarray(x - prox(CASES[name].g, x, t))
        errors = (np.abs(left - t * v).max() for v, _ in solutions(x / t, 1.0, (lambda v: 0.0, dual)))
        assert any(error <= 1e-7 * max(1.0, t) for error in errors)
