"""The minimiser of a quadratic model with a penalty, against another solver, its optimality conditions and brute force."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compfed._utils.compilation import numpy_callback
from compfed.losses.base import symmetric_matrix, upper_triangle
from compfed.regularisers import (
    L1,
    Box,
    ElasticNet,
    GroupL2,
    NonNegative,
    Nuclear,
    OnBlock,
    Ridge,
    Shifted,
    SparseGroup,
    TotalVariation1D,
    Zero,
)
from compfed.regularisers.coordinate_form import CoordinateForm, coordinate_form, separable_form
from compfed.solvers.quadratic_model import (
    OUTSIDE_DOMAIN,
    BFGSMatrix,
    _quadratic_plus_norm,
    _Search,
    bfgs_step,
    fista,
    minimiser,
    newton_step,
    penalty_value,
    ranked,
    solve_symmetric,
    sufficient_decrease,
    working_set,
)

pytestmark = pytest.mark.usefixtures("double_precision")

D = 10
WEIGHTS = np.array([0.0, 0.6, 1.0, 2.0, 0.4, 1.4, 0.0, 0.8, 1.2, 0.2])
OFFSET = np.array([0.5, -1.0, 0.0, 2.0, 0.125, -0.25, 0.75, 0.0, -0.5, 1.0])
LOWER = np.array([-np.inf, -0.25, 0.0, -0.5, -2.0, -np.inf, 0.25, -1.0, 0.0, -0.125])
UPPER = np.array([0.5, np.inf, 0.0, 0.5, 2.0, np.inf, 0.5, 0.0, np.inf, 0.125])
GROUPS = (0, 0, 0, 1, 1, 2, 2, 2, 2, 3)
MEMBERS = [np.flatnonzero(np.array(GROUPS) == k) for k in range(4)]


class Case(NamedTuple):
    """A regulariser, the same for cvxpy, and where it holds coefficients: at kinks, and at bounds."""

    g: Any
    penalty: Callable[[Any], Any]
    kink: Any = 0.0
    lower: Any = -np.inf
    upper: Any = np.inf


def norms(U: Any, weights: Any) -> Any:
    return sum(w * cp.norm2(U[G]) for w, G in zip(weights, MEMBERS, strict=True) if w)


ROOTS = np.sqrt([len(G) for G in MEMBERS])
CASES: dict[str, Case] = {
    "no penalty": Case(Zero(), lambda U: 0.0),
    "L1": Case(L1(0.5), lambda U: 0.5 * cp.norm1(U)),
    "weights, some of them zero": Case(L1(WEIGHTS), lambda U: WEIGHTS @ cp.abs(U)),
    "elastic net": Case(ElasticNet(WEIGHTS, 0.7), lambda U: WEIGHTS @ cp.abs(U) + 0.35 * cp.sum_squares(U)),
    "L1 and a free intercept": Case(OnBlock(L1(0.8), 0, D - 1), lambda U: 0.8 * cp.norm1(U[:-1])),
    "box": Case(Box(LOWER, UPPER), lambda U: 0.0, lower=LOWER, upper=UPPER),
    "L1 in a box": Case(L1(WEIGHTS) + Box(LOWER, UPPER), lambda U: WEIGHTS @ cp.abs(U), lower=LOWER, upper=UPPER),
    "non-negative": Case(NonNegative() + L1(0.2), lambda U: 0.2 * cp.norm1(U), lower=0.0),
    "shifted L1": Case(Shifted(L1(0.9), OFFSET), lambda U: 0.9 * cp.norm1(U - OFFSET), kink=OFFSET),
    "groups": Case(GroupL2(0.6, GROUPS), lambda U: 0.6 * norms(U, ROOTS)),
    "groups, one of them free": Case(
        GroupL2(0.9, GROUPS, np.array([1.0, 0.0, 2.0, 1.0])), lambda U: 0.9 * norms(U, [1, 0, 2, 1])
    ),
    "sparse groups": Case(
        SparseGroup(0.4 * WEIGHTS, 0.4, GROUPS), lambda U: 0.4 * WEIGHTS @ cp.abs(U) + 0.4 * norms(U, ROOTS)
    ),
    "sparse groups with a ridge": Case(
        SparseGroup(0.3, 0.5, GROUPS) + Ridge(0.8),
        lambda U: 0.3 * cp.norm1(U) + 0.5 * norms(U, ROOTS) + 0.4 * cp.sum_squares(U),
    ),
    "shifted groups": Case(
        Shifted(GroupL2(4.0, GROUPS), OFFSET), lambda U: 4.0 * norms(U - OFFSET, ROOTS), kink=OFFSET
    ),
}
each = pytest.mark.parametrize("name", CASES)


class Model(NamedTuple):
    """(u - centre)^T B (u - centre) / 2, with B = A^T A / rows."""

    A: np.ndarray
    centre: np.ndarray

    @property
    def B(self) -> np.ndarray:
        return self.A.T @ self.A / len(self.A)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        return self.B @ (x - self.centre)


def model(seed: int, rows: int = 25, d: int = D) -> Model:
    """Columns of sizes from 0.2 to 3, and a centre whose coefficients are as large as their penalties."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((rows, d)) * np.geomspace(0.2, 3.0, d)[rng.permutation(d)]
    return Model(A, 1.5 * rng.standard_normal(d))


def known(g: Any, d: int = D) -> CoordinateForm:
    form = coordinate_form(g, d)
    assert form is not None
    return form


def of_cvxpy(case: Case, m: Model) -> np.ndarray:
    U = cp.Variable(m.A.shape[1])
    bounds = [U[j] >= b for j, b in enumerate(np.broadcast_to(case.lower, U.shape)) if np.isfinite(b)]
    bounds += [U[j] <= b for j, b in enumerate(np.broadcast_to(case.upper, U.shape)) if np.isfinite(b)]
    smooth = cp.sum_squares(m.A @ U - m.A @ m.centre) / (2 * len(m.A))
    program = cp.Problem(cp.Minimize(smooth + case.penalty(U)), bounds)
    with warnings.catch_warnings():  # "may be inaccurate": tighter than an interior point can promise
        warnings.simplefilter("ignore", UserWarning)
        program.solve(solver=cp.CLARABEL, **{f"tol_{name}": 1e-13 for name in ("gap_abs", "gap_rel", "feas")})
    assert U.value is not None
    return np.asarray(U.value)


def away(g: Any, u: np.ndarray, r: np.ndarray) -> np.ndarray:
    """u - prox_g(u - r), which is zero exactly where -r is a subgradient of g; the prox is g's own."""
    return np.abs(u - np.asarray(g.prox(jnp.asarray(u - r), 1.0)))


def violated(g: Any, m: Model, u: np.ndarray, x: np.ndarray) -> float:
    """How far u is from optimal, relative to the terms of the gradient at u and at the start x."""
    size = np.abs(m.B) @ (np.abs(u - m.centre) + np.abs(x - m.centre)) + 1.0
    return float(np.max(away(g, u, m.gradient(u)) / size))


def error_bound(g: Any, m: Model, u: np.ndarray) -> float:
    """How far u can be from the minimiser: (1 + L) / mu times the prox residual, with the eigenvalues mu to L of B.

    Reference: Pang, "A posteriori error bounds for the linearly-constrained variational inequality problem", 1987.
    """
    eigenvalues = np.linalg.eigvalsh(m.B)
    return float((1.0 + eigenvalues[-1]) / eigenvalues[0] * np.linalg.norm(away(g, u, m.gradient(u))))


ROUNDING = 3e-14  # of a violation, relative to its terms
# --- the minimiser ---


@each
@pytest.mark.parametrize("seed", [0, 1])
def test_it_is_that_of_another_solver_with_exact_zeros(name, seed):
    case, m, x = CASES[name], model(seed), np.zeros(D)
    x = np.clip(x, case.lower, case.upper)
    u, expected = minimiser(known(case.g), x, m.gradient(x), m.B), of_cvxpy(case, m)
    np.testing.assert_allclose(u, expected, rtol=0, atol=5e-6)
    for at in (case.kink, case.lower, case.upper):
        at = np.broadcast_to(at, (D,))
        there = np.abs(expected - at) < 1e-6
        np.testing.assert_array_equal(u[there], at[there])


@each
@pytest.mark.parametrize("seed", range(5))
def test_its_conditions_hold_to_rounding_from_any_start(name, seed):
    """At kinks and bounds, far away on the wrong side, at random, and at the minimiser itself."""
    case, m = CASES[name], model(seed)
    rng = np.random.default_rng(seed)
    x = np.clip(np.zeros(D), case.lower, case.upper)
    first = minimiser(known(case.g), x, m.gradient(x), m.B)
    for start in (x, case.kink + np.zeros(D), -40.0 * first, 3.0 * rng.standard_normal(D), first):
        x = np.clip(start, case.lower, case.upper)
        u = minimiser(known(case.g), x, m.gradient(x), m.B)
        assert violated(case.g, m, u, x) <= ROUNDING
        assert np.linalg.norm(u - first) <= error_bound(case.g, m, u) + error_bound(case.g, m, first) + 1e-15
        np.testing.assert_allclose(u, first, rtol=0, atol=1e-10)
        np.testing.assert_array_equal(u == case.kink, first == case.kink)


def test_the_cases_hold_some_coefficients_and_not_all():
    """Otherwise the tests above would say little."""
    for name, case in CASES.items():
        if name == "no penalty":
            continue
        x = np.clip(np.zeros(D), case.lower, case.upper)
        u = minimiser(known(case.g), x, model(0).gradient(x), model(0).B)
        held = (u == case.kink) | (u == case.lower) | (u == case.upper)
        assert 0 < held.sum() < D, name


@each
@pytest.mark.parametrize("seed", range(4))
def test_more_columns_than_rows(name, seed):
    """B is singular and the minimiser need not be unique: the conditions hold, and the value is that of another solver."""
    case, m = CASES[name], model(seed, rows=6)
    x = np.clip(np.zeros(D), case.lower, case.upper)
    u = minimiser(known(case.g), x, m.gradient(x), m.B)
    assert violated(case.g, m, u, x) <= 1e-12
    if seed == 0:
        value = [m.gradient(v) @ (v - m.centre) / 2 + float(case.g(jnp.asarray(v))) for v in (u, of_cvxpy(case, m))]
        bounded = np.isfinite(case.lower).any() or np.isfinite(case.upper).any()  # the other may be a little outside
        # 1e-14: where nothing is penalised the minimum is 0, and rounding is all that both have
        assert value[0] <= value[1] * (1 + 1e-9) + 1e-14 or (bounded and np.isinf(value[1]))


@pytest.mark.parametrize("case", ["no penalty", "L1"])
def test_two_equal_columns(case):
    m = model(3)
    m.A[:, 4] = m.A[:, 7]
    g = CASES[case].g
    u = minimiser(known(g), np.zeros(D), m.gradient(np.zeros(D)), m.B)
    assert violated(g, m, u, np.zeros(D)) <= 1e-12
    assert np.abs(u).max() < 100


@pytest.mark.parametrize("name", ["L1", "no penalty", "groups"])
def test_a_start_where_all_is_at_rest_is_left_alone(name):
    """A gradient of exactly zero, as at the end of a search without a penalty; warnings are errors here."""
    u = minimiser(known(CASES[name].g), np.zeros(D), np.zeros(D), model(0).B)
    np.testing.assert_array_equal(u, np.zeros(D))


# Where curvature is missing, the way along the flat direction is long and ends at a kink. The rows, the labels, the start,
# and the weights of the L1.
FLAT: dict[str, tuple[Any, Any, Any, Any]] = {
    "one row, two columns, warm": ([[1.24837198, 1.24152907]], [0.09735846], [1.72100197, 0.23949022], 0.01215396),
    "a free column": ([[0.60083144, 0.77571849]], [0.03973402], [0.95578699, -1.68836581], [0.0, 0.00308224]),
    "two rows, four columns, from zero": (
        [[0.4874862, -1.54421106, -1.13778133, 0.30008585], [-1.1156329, -0.71260137, -0.06788256, 0.28165607]],
        [-1.61068751, -0.00374273],
        np.zeros(4),
        0.12449543,
    ),
}


@pytest.mark.parametrize("name", FLAT)
def test_a_flat_direction_is_followed_to_its_kink(name):
    rows, labels, x, weights = (np.asarray(part) for part in FLAT[name])
    d = rows.shape[1]
    B, gradient = rows.T @ rows / len(rows), rows.T @ (rows @ x - labels) / len(rows)
    u = minimiser(separable_form(d, l1=weights), x, gradient, B)
    r = gradient + B @ (u - x)
    assert away(L1(weights), u, r).max() <= 1e-12


@pytest.mark.parametrize(
    ("x", "centre", "expected"),
    [
        (2.0, 0.9, 1.0),
        (1.0, 0.9, 1.0),
        (2.0, -9.0, 1.0),
        (3.0, -9.0, 1.0),
        (2.0, 1.9, 1.4),
        (1.0, 9.0, 3.0),
        (2.0, 9.0, 3.0),
    ],
)
def test_a_kink_outside_the_bounds_is_not_gone_to(x, centre, expected):
    """(u - centre)^2 / 2 + |u| / 2 over [1, 3], where |u| is u: centre - 1/2, clipped."""
    for side in (1.0, -1.0):
        box = Box(1.0, 3.0) if side > 0 else Box(-3.0, -1.0)
        at = np.array([side * x])
        u = minimiser(known(L1(0.5) + box, 1), at, at - side * centre, np.eye(1))
        np.testing.assert_allclose(u, side * expected, rtol=1e-15)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1))
def test_ties_and_degenerate_numbers(seed):
    """Small whole numbers everywhere, so that coefficients are at kinks and bounds by accident too, and B positive definite.

    A convex function of u is least where no coordinate alone goes down, if what is not smooth is a sum over coordinates:
    derivatives to the right are >= 0 and to the left <= 0.
    """
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 7))
    A = rng.integers(-2, 3, (3, d)).astype(float)
    B = A.T @ A + np.eye(d)
    l1, l2 = rng.integers(0, 3, d).astype(float), rng.integers(0, 2, d).astype(float)
    lower = np.where(rng.random(d) < 0.5, -rng.integers(0, 3, d), -np.inf)
    upper = np.where(rng.random(d) < 0.5, rng.integers(0, 3, d), np.inf)
    kink = np.clip(rng.integers(-1, 2, d), lower, upper)
    x = np.clip(rng.integers(-3, 4, d), lower, upper).astype(float)
    gradient = rng.integers(-6, 7, d).astype(float)
    u = minimiser(separable_form(d, l1, l2, lower, upper)._replace(kink=kink), x, gradient, B)
    assert ((u >= lower) & (u <= upper)).all()
    smooth = gradient + B @ (u - x) + l2 * (u - kink)
    right, left = smooth + np.where(u >= kink, l1, -l1), smooth + np.where(u > kink, l1, -l1)
    assert (right[u < upper] >= -1e-12).all()
    assert (left[u > lower] <= 1e-12).all()


# --- a penalty that is known by its prox alone ---


@pytest.mark.parametrize("g", [Nuclear(0.7, columns=5), TotalVariation1D(0.6)], ids=["nuclear", "total variation"])
def test_a_penalty_without_a_form(g):
    m, x = model(0), np.linspace(-1.0, 1.0, D)
    u = newton_step(g, x, m.gradient(x), m.B, np.arange(D))
    assert violated(g, m, u, x) <= 1e-12

    def penalty(U: Any) -> Any:
        if isinstance(g, Nuclear):
            return 0.7 * cp.normNuc(cp.reshape(U, (2, 5), order="C"))
        return 0.6 * cp.norm1(cp.diff(U))

    np.testing.assert_allclose(u, of_cvxpy(Case(g, penalty), m), rtol=0, atol=1e-5)


# --- the matrix of limited-memory BFGS ---


def pairs(seed: int, memory: int = 4, d: int = D) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and the change of the gradient of a quadratic along them."""
    S = np.random.default_rng(seed).standard_normal((memory, d))
    return S, S @ model(seed, rows=40, d=d).B


def dense(B: BFGSMatrix, d: int = D) -> np.ndarray:
    return np.column_stack([B.apply(e) for e in np.eye(d)])


def test_compact_is_the_recursion_of_bfgs():
    """B <- B - B s s^T B / s^T B s + y y^T / y^T s, pair after pair, from its own diagonal."""
    S, Y = pairs(0)
    compact = BFGSMatrix.of_pairs(S, Y, 1.0)
    B = np.diag(compact.diagonal)
    for s, y in zip(S, Y, strict=True):
        B = B - np.outer(B @ s, B @ s) / (s @ B @ s) + np.outer(y, y) / (y @ s)
    np.testing.assert_allclose(dense(compact), B, rtol=0, atol=1e-12 * np.abs(B).max())
    np.testing.assert_allclose(compact.block(np.array([7, 2])), B[np.ix_([7, 2], [7, 2])], rtol=1e-10)


def test_the_secant_equation_and_a_positive_matrix():
    """B s = y for the newest pair, and B stays positive definite."""
    S, Y = pairs(1, memory=6)
    B = BFGSMatrix.of_pairs(S, Y, 1.0)
    np.testing.assert_allclose(B.apply(S[-1]), Y[-1], rtol=0, atol=1e-12 * np.abs(Y).max())
    assert np.linalg.eigvalsh(dense(B))[0] > 0


def test_rows_of_zeros_stand_for_no_pair():
    none = np.zeros((2, D))
    np.testing.assert_array_equal(dense(BFGSMatrix.of_pairs(none, none, 3.0)), 3.0 * np.eye(D))
    S, Y = pairs(2)
    padded = BFGSMatrix.of_pairs(np.vstack([none, S]), np.vstack([none, Y]), 3.0)
    np.testing.assert_allclose(dense(padded), dense(BFGSMatrix.of_pairs(S, Y, 3.0)), rtol=1e-12)


def test_one_pair_along_a_coordinate_learns_its_curvature_alone():
    """After s = e_j, y = h e_j the curvature along e_j is h."""
    s, y = np.zeros((1, D)), np.zeros((1, D))
    s[0, 3], y[0, 3] = 2.0, 10.0
    B = dense(BFGSMatrix.of_pairs(s, y, 1.0))
    np.testing.assert_allclose(B[3, 3], 5.0, rtol=1e-12)
    np.testing.assert_allclose(B - np.diag(np.diag(B)), 0.0, atol=1e-15)


def test_columns_in_other_units_have_their_matrix_in_other_units():
    """x_j -> c_j x_j turns s into c s, y into y / c and B into B / c c^T, except for what was known before any pair."""
    S, Y = pairs(3)
    c = np.geomspace(1e-2, 1e2, D)
    one, other = dense(BFGSMatrix.of_pairs(S, Y, 1.0)), dense(BFGSMatrix.of_pairs(c * S, Y / c, 1.0))
    np.testing.assert_allclose(other * np.outer(c, c), one, rtol=0, atol=1e-9 * np.abs(one).max())


WIDE = 150  # more than the search over a compact matrix starts with
WIDE_GROUPS = tuple((np.arange(WIDE) // 4).tolist())


@pytest.mark.parametrize(
    "g",
    [L1(0.3), ElasticNet(0.2, 0.1), GroupL2(0.4, WIDE_GROUPS), Box(-0.2, 0.3), Zero(), Shifted(L1(0.3), 0.5)],
    ids=lambda g: type(g).__name__,
)
@pytest.mark.parametrize("size", [0.3, 5.0], ids=["few move", "all move"])
def test_over_a_compact_matrix_it_is_that_over_the_dense_one(g, size):
    S, Y = pairs(0, memory=5, d=WIDE)
    B, rng = BFGSMatrix.of_pairs(S, Y, 2.0), np.random.default_rng(1)
    x = np.clip(np.where(rng.random(WIDE) < 0.1, 0.2, 0.0), -0.2, 0.3)
    gradient = size * rng.standard_normal(WIDE)
    form = known(g, WIDE)
    u, whole = minimiser(form, x, gradient, B), minimiser(form, x, gradient, dense(B, WIDE))
    np.testing.assert_allclose(u, whole, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(u == form.kink, whole == form.kink)
    assert away(g, u, gradient + dense(B, WIDE) @ (u - x)).max() <= 1e-9


def test_in_the_metric_of_bfgs_a_penalty_without_a_form_is_met_by_its_prox():
    """The matrix is a guess, and a few digits of its minimiser are enough; all of them, where they are asked for."""
    S, Y = pairs(0)
    x, gradient = np.linspace(-1.0, 1.0, D), np.sin(np.arange(D))
    g, compact = Nuclear(0.3, columns=5), BFGSMatrix.of_pairs(S, Y, 2.0)
    rough, fine = bfgs_step(g, x, gradient, S, Y, 2.0), fista(g, x, gradient, compact, 30.0)
    left = [away(g, u, gradient + dense(compact) @ (u - x)).max() for u in (x, rough, fine)]
    assert left[1] < 1e-2 * left[0]
    assert left[2] < 1e-11 * left[0]
    assert np.linalg.eigvalsh(dense(compact))[-1] < 30.0  # as the call above says


# --- which coordinates ask for attention ---


@each
@pytest.mark.parametrize("least", [1, 4, D])
def test_a_working_set_holds_what_is_at_no_kink_and_whole_groups(name, least):
    form, rng = known(CASES[name].g), np.random.default_rng(5)
    for _ in range(20):
        x = np.clip(np.where(rng.random(D) < 0.6, form.kink, rng.standard_normal(D)), form.lower, form.upper)
        W = working_set(form, x, rng.standard_normal(D), least)
        assert len(W) >= least
        assert (np.diff(W) > 0).all()
        penalised = (form.l1 > 0) | (np.append(form.group_weight, 0.0)[form.group] > 0)
        if form.separable:
            away = ~((x == form.kink) & penalised) & (x > form.lower) & (x < form.upper)
        else:  # a group as a whole, but a coordinate with an |.| of its own that is zero may be left
            moved = np.isin(form.group, form.group[x != form.kink])
            away = (moved & ~((x == form.kink) & (form.l1 > 0))) | ~penalised
            groups = np.unique(form.group[W])
            assert np.isin(form.group, groups[groups >= 0]).sum() == (form.group[W] >= 0).sum()
        assert set(np.flatnonzero(away)) <= set(W.tolist())


def test_the_nearest_to_leaving_come_first():
    """At zero, |gradient| - weight decides; what is off its kink comes before, the least settled ahead."""
    form = separable_form(6, l1=[1.0, 1.0, 1.0, 2.0, 0.0, 1.0])
    x = np.array([0.0, 0.0, 0.5, 0.0, 0.0, -0.5])
    gradient = np.array([0.9, -3.0, -1.2, 2.5, 0.1, 4.0])  # margins: -0.1, 2, off, 0.5, free, off
    # off their kinks: |-1.2 + 1| = 0.2, free 0.1, |4 - 1| = 3
    assert ranked(form, x, gradient, 6).tolist() == [5, 2, 4, 1, 3, 0]
    assert working_set(form, x, gradient, 1).tolist() == [1, 2, 4, 5]  # 1.5 times the three that are off
    assert working_set(form, x, gradient, 5).tolist() == [1, 2, 3, 4, 5]


def test_a_bound_that_is_pushed_against_is_not_left():
    form = separable_form(3, lower=0.0)
    order = ranked(form, np.zeros(3), np.array([5.0, -0.1, 1.0]), 3)
    assert order[0] == 1
    assert order.tolist()[1:] == [2, 0]  # the harder pushed, the later


def test_groups_are_ranked_by_their_force():
    """||gradient|| - group_weight of a group at zero: 5 - 1, 1 - 1."""
    form = known(GroupL2(1.0, (0, 0, 1, 1), np.ones(2)), 4)
    order = ranked(form, np.zeros(4), np.array([0.6, 0.8, 3.0, -4.0]), 4)
    assert set(order[:2].tolist()) == {2, 3}
    assert working_set(form, np.zeros(4), np.array([0.6, 0.8, 3.0, -4.0]), 1).tolist() == [2, 3]


def test_only_the_working_set_moves():
    m, W = model(0), np.array([8, 1, 4])
    x = np.linspace(-1.0, 1.0, D)
    u = newton_step(L1(0.3), x, m.gradient(x), m.B[np.ix_(W, W)], W)
    rest = np.setdiff1d(np.arange(D), W)
    np.testing.assert_array_equal(u[rest], x[rest])
    # the rest held, it is a problem in three coordinates
    expected = minimiser(separable_form(3, l1=0.3), x[W], m.gradient(x)[W], m.B[np.ix_(W, W)])
    np.testing.assert_allclose(u[W], expected, rtol=1e-12)


# --- linear systems, triangles ---


@pytest.mark.parametrize("rank", [1, 4, 8])
def test_a_system_is_solved_as_far_as_it_has_a_solution(rank):
    """b is in the range of K: what is left of it is rounding, however singular K is."""
    rng = np.random.default_rng(rank)
    A = rng.standard_normal((rank, 8))
    K = A.T @ A
    b = K @ rng.standard_normal(8)
    x = solve_symmetric(K, b)
    assert np.abs(K @ x - b).max() <= 1e-12 * np.abs(b).max()
    if rank == 8:
        np.testing.assert_allclose(x, np.linalg.solve(K, b), rtol=1e-6)


@pytest.mark.parametrize("noise", [0.0, 1e-29, -1e-29, 1e-20, 1e-16, -1e-16, -2e-15, 1e-13, -1e-12, 3e-12, -1e-9])
@pytest.mark.parametrize("units", [1.0, 1e3], ids=["one unit", "many units"])
def test_rounding_makes_no_step_along_a_flat_direction(noise, units):
    """K is singular but for the rounding errors of its sum, of either sign; so is b. What is left is the shortest solution."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((8, 8)))[0]
    exact = np.array([0.0, 0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    unit = np.geomspace(1.0, units, 8)[rng.permutation(8)]
    K = unit[:, None] * ((Q * np.where(exact > 0, exact, [noise, 0.3 * noise, *[0.0] * 6])) @ Q.T) * unit
    z = Q @ np.where(exact > 0, 1.0, 0.0)
    b = unit * (Q @ (exact * (Q.T @ z)) + 1e-17 * Q[:, 0])
    x = solve_symmetric((K + K.T) / 2, b)
    assert np.linalg.norm(unit * x) <= 2.0 * np.linalg.norm(z)
    assert np.abs((K @ x - b) / unit).max() <= 1e-11 + abs(noise)


def test_units_of_very_different_sizes_are_no_singular_matrix():
    """x_j -> c_j x_j: the solution of a system with a diagonal from 1e-20 to 1e20 has all its digits."""
    rng, c = np.random.default_rng(1), np.geomspace(1e-10, 1e10, 8)
    A = rng.standard_normal((30, 8))
    K, x = c[:, None] * (A.T @ A) * c, rng.standard_normal(8) / c
    np.testing.assert_allclose(solve_symmetric(K, K @ x) * c, x * c, rtol=1e-10)


def test_a_matrix_of_zeros_moves_nothing():
    np.testing.assert_array_equal(solve_symmetric(np.zeros((3, 3)), np.zeros(3)), np.zeros(3))
    assert np.isfinite(solve_symmetric(np.zeros((3, 3)), np.ones(3))).all()


@pytest.mark.parametrize("w", [0, 1, 5])
def test_a_triangle_there_and_back(w):
    A = np.random.default_rng(w).standard_normal((w, w))
    matrix = A + A.T
    triangle = upper_triangle(matrix)
    assert triangle.shape == (w * (w + 1) // 2,)
    np.testing.assert_array_equal(triangle, [matrix[i, j] for i in range(w) for j in range(i, w)])
    np.testing.assert_array_equal(symmetric_matrix(triangle, w), matrix)
    inside = jax.jit(lambda t: upper_triangle(symmetric_matrix(t, w)))(jnp.asarray(triangle))
    np.testing.assert_array_equal(inside, triangle)


# --- calls from a compiled program to NumPy ---


def test_a_call_with_one_array_and_one_number():
    found = jax.jit(lambda x, t: numpy_callback(lambda x, t: x * t, (3,), x, t))(jnp.arange(3.0), 0.1)
    np.testing.assert_array_equal(found, np.arange(3.0) * 0.1)


# --- regularisers of singular values, in few dimensions ---


@pytest.mark.parametrize("free", [0, 3])
def test_a_tall_matrix_is_searched_in_the_span_of_its_columns(free):
    rng = np.random.default_rng(free)
    size = 80 + free
    x, gradient, s = rng.standard_normal((3, size))
    y = rng.uniform(1, 3, size) * s

    def lifted(lam):
        return OnBlock(Nuclear(lam, columns=2), 0, 80) if free else Nuclear(lam, columns=2)

    # without a pair the matrix is a multiple of one: a prox step, whatever the basis
    S = Y = np.zeros((2, size))
    plain_step = lifted(0.7).prox(x - gradient / 2.0, 1 / 2.0)
    reduced = lifted(0.7).subspace(np.stack([x, gradient, *S, *Y]))
    assert reduced is not None
    assert reduced.points.shape[1] == 2 * 12 + free
    np.testing.assert_allclose(bfgs_step(lifted(0.7), x, gradient, S, Y, 2.0), plain_step, atol=1e-12)
    # B s = y: where the gradient is y and nothing is penalised, the step is -s
    S, Y = np.stack([0 * s, s]), np.stack([0 * y, y])
    np.testing.assert_allclose(bfgs_step(lifted(0.0), x, y, S, Y, 2.0), x - s, atol=1e-3)


def test_a_short_matrix_stays_as_it_is():
    rng = np.random.default_rng(0)
    assert (Nuclear(0.5, columns=2)).subspace(rng.standard_normal((6, 24))) is None
    assert (OnBlock(Nuclear(0.5, columns=2), 1, 25)).subspace(rng.standard_normal((6, 25))) is None
    assert (L1(0.5)).subspace(rng.standard_normal((2, 80))) is None


@given(st.integers(1, 4), st.integers(0, 10_000), st.floats(0, 5))
@settings(max_examples=60, deadline=None)
def test_the_minimum_of_a_group_is_found_at_once(size, seed, group_weight):
    rng = np.random.default_rng(seed)
    curves, b = 10.0 ** rng.uniform(-6, 3, size), rng.standard_normal(size)
    curves.sort()
    w = _quadratic_plus_norm(curves, b, group_weight)
    length = np.linalg.norm(w)
    if length == 0:
        assert np.linalg.norm(b) <= group_weight
    else:
        left = curves * w - b + group_weight * w / length
        assert np.abs(left).max() <= 1e-12 * (np.abs(b).max() + group_weight)


# --- whether to take a trial ---


def test_a_trial_is_taken_only_if_it_helps():
    assert sufficient_decrease(1.0 - 0.5e-4, 1.0, -0.5)
    assert not sufficient_decrease(1.0 - 0.4e-4, 1.0, -0.5)  # less than a ten-thousandth of what was hoped for
    assert sufficient_decrease(1.0 + 1e-15, 1.0, 0.0)  # rounding
    assert not sufficient_decrease(1.0 + 1e-12, 1.0, 0.0)
    assert not sufficient_decrease(np.nan, 1.0, -0.5)
    assert not sufficient_decrease(np.inf, 1.0, -0.5)


def test_outside_its_domain_a_penalty_is_far_and_finite():
    points: list[Any] = [np.array([-1.0, 2.0]), jnp.array([-1.0, 2.0])]
    for x in points:
        assert penalty_value(NonNegative(), x) == OUTSIDE_DOMAIN
        assert penalty_value(L1(0.5), x) == 1.5
        assert penalty_value(Nuclear(0.5, columns=1), x) == pytest.approx(0.5 * np.sqrt(5.0))


@pytest.mark.parametrize("lam", [0.0, 1e-300, 0.3])
def test_groups_with_flat_directions(lam):
    """Copied columns: the curvature within a group is zero along a line, to rounding of either sign. Checked by the mapping."""
    rng = np.random.default_rng(0)
    one = rng.standard_normal((4, 2))
    A = np.column_stack([one, one, 2 * one[:, :1]])
    B, gradient = A.T @ A, -A.T @ rng.standard_normal(4)
    form = coordinate_form(GroupL2(lam, (0, 1, 0, 1, 1), np.ones(2)), 5)
    assert form is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        u = minimiser(form, np.zeros(5), gradient, B)
    r, t = gradient + B @ u, 1.0 / np.linalg.norm(B, 2)
    for members in ([0, 2], [1, 3, 4]):
        moved = (u - t * r)[members]
        size = np.linalg.norm(moved)
        np.testing.assert_allclose(u[members], moved * max(1.0 - t * lam / size, 0.0), atol=1e-12)


def test_a_step_is_cut_where_a_group_bends(monkeypatch):
    """Groups that share directions: steps halved and halved again pass the point where one of them is nearest to zero."""
    X = np.array([[2.0, 2, 0, 0, 2, 4], [-1, -1, 0, 1, -1, -2]])
    Z = X - X.mean(axis=0)
    B, gradient = Z.T @ Z / 2, -Z.T @ np.array([-1.0, 1.4]) / 2
    form = coordinate_form(GroupL2(1e-3, (0, 0, 1, 1, 2, 2)), 6)
    assert form is not None
    sweeps = 0
    sweep = _Search.sweep

    def counted(self: Any, *given: Any) -> None:
        nonlocal sweeps
        sweeps += 1
        sweep(self, *given)

    monkeypatch.setattr(_Search, "sweep", counted)
    u = minimiser(form, np.zeros(6), gradient, B)
    r = gradient + B @ u
    for members in ([0, 1], [2, 3], [4, 5]):
        force = r[members] + np.sqrt(2) * 1e-3 * u[members] / max(np.linalg.norm(u[members]), 1e-300)
        assert np.linalg.norm(force) < 1e-12 or (
            not u[members].any() and np.linalg.norm(r[members]) <= np.sqrt(2) * 1e-3
        )
    assert sweeps <= 20
