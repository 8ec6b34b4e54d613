"""Every regulariser: value and prox come from one formula, and the prox is the prox of that value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import soft

from compfed import regularisers
from compfed.regularisers import L1, Box, ElasticNet, L2Ball, NonNegative, Zero

D = 6
WEIGHTS = np.array([0.0, 0.3, 0.5, 1.0, 2.0, 0.7])
LOWER = np.array([-np.inf, -1.0, 0.0, -0.5, 0.2, -2.0])
UPPER = np.array([0.5, np.inf, 0.0, 0.5, 0.3, np.inf])


class Case(NamedTuple):
    """A regulariser, and its docstring worked out in NumPy."""

    g: Any
    value: Callable[[np.ndarray], float]  # on the domain
    prox: Callable[[np.ndarray, float], np.ndarray]
    inside: Callable[[np.ndarray], np.ndarray] | None = None  # for indicators: some point of the set for any vector


def shrunk(u: np.ndarray, radius: float) -> np.ndarray:
    return u / max(1.0, np.linalg.norm(u) / radius)


CASES = {
    "Zero": Case(Zero(), lambda x: 0.0, lambda x, t: x),
    "L1": Case(L1(0.8), lambda x: 0.8 * np.abs(x).sum(), lambda x, t: soft(x, 0.8 * t)),
    "L1-weighted": Case(
        L1(WEIGHTS),
        lambda x: float(WEIGHTS @ np.abs(x)),
        lambda x, t: np.where(np.abs(x) > t * WEIGHTS, x - t * WEIGHTS * np.sign(x), 0.0),
    ),
    "ElasticNet": Case(
        ElasticNet(l1=0.5, l2=2.0),
        lambda x: 0.5 * np.abs(x).sum() + 1.0 * (x @ x),
        lambda x, t: soft(x, 0.5 * t) / (1 + 2.0 * t),
    ),
    "ElasticNet-weighted": Case(
        ElasticNet(l1=WEIGHTS, l2=2.0 * WEIGHTS),
        lambda x: float(WEIGHTS @ np.abs(x) + WEIGHTS @ (x * x)),
        lambda x, t: np.where(np.abs(x) > t * WEIGHTS, x - t * WEIGHTS * np.sign(x), 0.0) / (1 + 2 * t * WEIGHTS),
    ),
    "Box": Case(
        Box(-0.4, 0.9),
        lambda x: 0.0,
        lambda x, t: np.minimum(np.maximum(x, -0.4), 0.9),
        lambda u: np.clip(u, -0.4, 0.9),
    ),
    "Box-of-arrays": Case(
        Box(LOWER, UPPER),
        lambda x: 0.0,
        lambda x, t: np.minimum(np.maximum(x, LOWER), UPPER),
        lambda u: np.clip(u, LOWER, UPPER),
    ),
    "NonNegative": Case(NonNegative(), lambda x: 0.0, lambda x, t: np.where(x > 0, x, 0.0), np.abs),
    "L2Ball": Case(L2Ball(1.5), lambda x: 0.0, lambda x, t: shrunk(x, 1.5), lambda u: shrunk(u, 1.5)),
}
INDICATORS = [name for name, case in CASES.items() if case.inside is not None]

each = pytest.mark.parametrize("name", CASES)
few = settings(max_examples=25, deadline=None, derandomize=True, database=None)
numbers = {"seed": st.integers(0, 2**32 - 1), "scale": st.sampled_from([0.1, 1.0, 5.0]), "t": st.floats(1e-3, 10.0)}


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@jax.jit
def prox(g, x, t):
    return g.prox(x, t)


@jax.jit
def value(g, x):
    return g(x)


@jax.jit
def three_point(g, u, z, t):
    """t (g(u) - g(p)) - (z - p)^T (u - p), which is >= 0 for all u exactly when p = prox_{t g}(z)."""
    p = g.prox(z, t)
    return t * (g(u) - g(p)) - (z - p) @ (u - p)


def test_every_regulariser_of_the_module_is_here():
    found = {
        name
        for name, cls in inspect.getmembers(regularisers, inspect.isclass)
        if cls.__module__ == regularisers.__name__ and hasattr(cls, "prox") and name != "Regulariser"
    }
    assert found == {type(case.g).__name__ for case in CASES.values()}
    assert all(isinstance(case.g, regularisers.Regulariser) for case in CASES.values())


@each
def test_three_point_inequality(name):
    g, _, _, inside = CASES[name]

    @few
    @given(**numbers)
    def holds(seed, scale, t):
        rng = np.random.default_rng(seed)
        z = scale * rng.standard_normal(D)
        p = np.asarray(prox(g, z, t))
        # far points, and points next to p: the second kind convicts a p that is only nearly right
        for u in (scale * rng.standard_normal(D), p + 1e-3 * rng.standard_normal(D), np.zeros(D), z):
            u = u if inside is None else inside(u)
            assert three_point(g, u, z, t) >= -1e-10

    holds()


@each
def test_docstring_formula(name):
    g, by_hand, prox_by_hand, inside = CASES[name]

    @few
    @given(**numbers)
    def equal(seed, scale, t):
        x = scale * np.random.default_rng(seed).standard_normal(D)
        np.testing.assert_allclose(prox(g, x, t), prox_by_hand(x, t), rtol=1e-13, atol=1e-15)
        u = x if inside is None else inside(x)
        np.testing.assert_allclose(value(g, u), by_hand(u), rtol=1e-13)

    equal()


@pytest.mark.parametrize(
    ("name", "function", "constraints"),
    [
        ("L1", lambda u: 0.8 * cp.norm1(u), lambda u: []),
        ("ElasticNet-weighted", lambda u: WEIGHTS @ cp.abs(u) + WEIGHTS @ cp.square(u), lambda u: []),
        ("Box-of-arrays", lambda u: 0.0, lambda u: [u[1:] >= LOWER[1:], u[[0, 2, 3, 4]] <= UPPER[[0, 2, 3, 4]]]),
        ("NonNegative", lambda u: 0.0, lambda u: [u >= 0]),
        ("L2Ball", lambda u: 0.0, lambda u: [cp.norm2(u) <= 1.5]),
    ],
)
def test_value_and_prox_against_cvxpy(name, function, constraints):
    g, t = CASES[name].g, 0.7
    z = 2.0 * np.random.default_rng(3).standard_normal(D)
    u = cp.Variable(D)
    minimum: Any = cp.Problem(cp.Minimize(t * function(u) + 0.5 * cp.sum_squares(u - z)), constraints(u)).solve()
    p = np.asarray(prox(g, z, t))
    assert u.value is not None
    np.testing.assert_allclose(p, u.value, atol=1e-4)  # an interior-point method's accuracy
    # the least value is known more accurately than the point: an error e in the point costs e^2
    np.testing.assert_allclose(t * float(value(g, p)) + 0.5 * np.sum((p - z) ** 2), minimum, rtol=1e-6)


@pytest.mark.identity(32)
@each
def test_prox_is_non_expansive(name):
    g = CASES[name].g

    @few
    @given(**numbers)
    def holds(seed, scale, t):
        v, w = scale * np.random.default_rng(seed).standard_normal((2, D))
        assert np.linalg.norm(prox(g, v, t) - prox(g, w, t)) <= np.linalg.norm(v - w) * (1 + 1e-14)

    holds()


@pytest.mark.identity(32)
@pytest.mark.parametrize("name", ["L1", "L1-weighted"])
def test_prox_of_l1_is_a_semigroup(name):
    g = CASES[name].g

    @few
    @given(seed=numbers["seed"], s=st.floats(0.0, 0.5), t=st.floats(0.0, 0.5))
    def holds(seed, s, t):
        v = np.random.default_rng(seed).uniform(-1, 1, D)
        np.testing.assert_allclose(prox(g, prox(g, v, t), s), prox(g, v, s + t), rtol=0, atol=1e-15)

    holds()


@pytest.mark.parametrize("name", INDICATORS)
def test_indicators_are_zero_or_infinite(name):
    g, _, _, inside = CASES[name]
    assert inside is not None
    rng = np.random.default_rng(0)
    outside = 0
    for x in 3.0 * rng.standard_normal((20, D)):
        assert value(g, inside(x)) == 0.0
        moved = np.abs(x - CASES[name].prox(x, 1.0)).max() > 1e-9
        assert value(g, x) == (np.inf if moved else 0.0)
        assert value(g, prox(g, x, 1.0)) == 0.0, "a projection must lie in the set"
        np.testing.assert_array_equal(prox(g, x, 1e-9), prox(g, x, 1e9))
        outside += moved
    assert outside > 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_projection_on_the_ball_lies_in_the_ball_in_high_dimension(dtype):
    g = L2Ball(0.1)
    for seed in range(10):
        x = jnp.asarray(np.random.default_rng(seed).standard_normal(20_000), dtype)
        assert value(g, prox(g, x, 1.0)) == 0.0
        assert value(g, 1.001 * prox(g, x, 1.0)) == np.inf


@each
def test_small_t(name):
    g, _, _, inside = CASES[name]
    x = np.random.default_rng(1).standard_normal(D)
    limit = x if inside is None else CASES[name].prox(x, 0.0)  # the projection, for an indicator
    np.testing.assert_allclose(prox(g, x, 0.0), limit, rtol=0, atol=1e-15)
    for t in (1e-4, 1e-8, 1e-12):
        # subgradients of the cases above are at most 10 per coefficient here
        assert np.abs(prox(g, x, t) - limit).max() <= 10 * t


@each
def test_at_zero(name):
    """Where 0 minimises g it stays; nothing is NaN."""
    p = np.asarray(prox(CASES[name].g, np.zeros(D), 0.3))
    np.testing.assert_array_equal(p, np.clip(0.0, LOWER, UPPER) if name == "Box-of-arrays" else 0.0)


@each
def test_jit_and_vmap(name):
    g, _, by_hand, inside = CASES[name]
    X = np.random.default_rng(2).standard_normal((5, D))
    t = np.linspace(0.1, 2.0, 5)
    expected = [by_hand(x, s) for x, s in zip(X, t, strict=True)]
    np.testing.assert_allclose(jax.jit(jax.vmap(g.prox))(X, t), expected, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(g.prox(jnp.asarray(X[0]), t[0]), expected[0], rtol=1e-13, atol=1e-15)
    U = X if inside is None else np.array([inside(x) for x in X])
    np.testing.assert_allclose(jax.vmap(g)(U), [CASES[name].value(u) for u in U], rtol=1e-13)


@each
def test_float32_stays_float32(name):
    g, by_value, by_hand, inside = CASES[name]
    x = np.random.default_rng(4).standard_normal(D)
    u = x if inside is None else 0.9 * inside(x) + 0.1 * inside(np.zeros(D))
    with jax.enable_x64(False):
        p = prox(g, x.astype(np.float32), 0.3)
        v = value(g, u.astype(np.float32))
    assert p.dtype == v.dtype == np.float32
    np.testing.assert_allclose(p, by_hand(x, 0.3), rtol=1e-5, atol=1e-6)
    if name != "Box-of-arrays":  # its bounds 0.2 and 0.3 move when rounded to float32
        np.testing.assert_allclose(v, by_value(u), rtol=1e-5)


def test_changing_lambda_does_not_recompile():
    traced = []

    @jax.jit
    def f(g, x):
        traced.append(1)
        return g.prox(x, 0.5)

    x = np.arange(6.0) - 2
    for lam in (0.1, 0.7, 3.0):
        np.testing.assert_allclose(f(L1(lam), x), soft(x, 0.5 * lam))
    assert len(traced) == 1


def test_a_family_of_lambdas_is_one_vmap():
    x, lams = jnp.arange(6.0) - 2, np.array([0.0, 0.5, 1.0])
    family = jax.vmap(lambda lam: L1(lam).prox(x, 1.0))(lams)
    np.testing.assert_allclose(family, [soft(np.asarray(x), lam) for lam in lams])


def test_records_are_rebuilt_by_jax_without_being_checked():
    """JAX puts axes and None in the leaves; a step of 0 in that place is no mistake of the user."""
    leaves, structure = jax.tree.flatten(L1(0.5))
    assert leaves == [0.5]
    assert jax.tree.unflatten(structure, [None]).lam is None
    assert jax.tree.unflatten(structure, [-1]).lam == -1
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(ElasticNet(0.1, 0.2))]
    assert paths == [".l1", ".l2"]
