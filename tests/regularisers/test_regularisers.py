"""Every regulariser: value and prox come from one formula, and the prox is the prox of that value."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import soft
from regulariser_cases import (
    CASES,
    CONVEX,
    FALLING,
    GROUPS,
    LOWER,
    MEMBERS,
    OFFSET,
    ROOTS,
    SETS,
    UPPER,
    WEIGHTS,
    D,
    mcp,
    onto_l1_ball,
    prox,
    scad,
    shrunk,
    step,
    through_svd,
    tv_prox,
    value,
)

from compfed import prox as elementary
from compfed import regularisers
from compfed import regularisers as reg
from compfed.errors import InputError

each = pytest.mark.parametrize("name", CASES)
each_convex = pytest.mark.parametrize("name", CONVEX)
few = settings(max_examples=15, deadline=None, derandomize=True, database=None)
numbers = {"seed": st.integers(0, 2**32 - 1), "scale": st.sampled_from([0.1, 1.0, 5.0]), "t": st.floats(1e-3, 10.0)}

pytestmark = pytest.mark.usefixtures("double_precision")


def some_vector(seed: int, scale: float) -> np.ndarray:
    """Rounded to a grid every third time: zeros and ties."""
    x = scale * np.random.default_rng(seed).standard_normal(D)
    return np.round(x) if seed % 3 == 0 else x


def test_every_regulariser_of_the_package_is_here():
    public = {n for n in regularisers.__all__ if inspect.isclass(getattr(regularisers, n))} - {"Regulariser"}
    assert public <= {type(case.g).__name__ for case in CASES.values()}
    assert all(isinstance(case.g, regularisers.Regulariser) for case in CASES.values())


@each_convex
def test_three_point_inequality(name):
    """t (g(u) - g(p)) >= (z - p)^T (u - p) for all u, exactly when p = prox_{t g}(z)."""
    g, _, _, inside, _ = CASES[name]

    @few
    @given(**numbers)
    def holds(seed, scale, t):
        rng = np.random.default_rng(seed)
        z = some_vector(seed, scale)
        p = np.asarray(prox(g, z, t))
        # far points, and points next to p: the second kind convicts a p that is only nearly right
        for u in (scale * rng.standard_normal(D), p + 1e-3 * rng.standard_normal(D), np.zeros(D), z):
            u = u if inside is None else inside(u)
            assert t * (value(g, u) - value(g, p)) - (z - p) @ (u - p) >= -1e-10

    holds()


@each
def test_docstring_formula(name):
    g, by_hand, prox_by_hand, inside, _ = CASES[name]

    @few
    @given(**numbers)
    def equal(seed, scale, t):
        x, t = some_vector(seed, scale), step(name, t)
        np.testing.assert_allclose(prox(g, x, t), prox_by_hand(x, t), rtol=1e-13, atol=1e-12)
        u = x if inside is None else inside(x)
        np.testing.assert_allclose(value(g, u), by_hand(u), rtol=1e-12)

    equal()


@pytest.mark.identity(32)
@each_convex
def test_prox_is_non_expansive(name):
    """Firmly: ||p - q||^2 <= <p - q, v - w>."""
    g = CASES[name].g

    @few
    @given(**numbers)
    def holds(seed, scale, t):
        v, w = scale * np.random.default_rng(seed).standard_normal((2, D))
        difference = np.asarray(prox(g, v, t) - prox(g, w, t))
        assert np.linalg.norm(difference) <= np.linalg.norm(v - w) * (1 + 1e-14) + 1e-15
        assert difference @ difference <= difference @ (v - w) + 1e-13 * scale**2

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


@pytest.mark.parametrize(
    ("name", "dual"),
    [
        ("L1", lambda x: np.clip(x, -0.8, 0.8)),
        ("L1-weighted", lambda x: np.clip(x, -WEIGHTS, WEIGHTS)),
        ("GroupL2", lambda x: sum(shrunk(x * np.isin(np.arange(D), m), 0.8 * ROOTS[k]) for k, m in MEMBERS.items())),
        ("LinfNorm", lambda x: onto_l1_ball(x, 0.8)),
        ("L1Ball", lambda x: prox(reg.LinfNorm(1.5), x, 1.0)),
        ("L2Ball", lambda x: prox(reg.GroupL2(1.5, (0,) * D, np.ones(1)), x, 1.0)),
        ("Nuclear", lambda x: through_svd(x, lambda s: np.minimum(s, 0.8))),
        ("NonNegative", lambda x: np.minimum(x, 0)),
    ],
)
def test_moreau_identity(name, dual):
    """x = prox_{t g}(x) + t P(x / t), P the projection on the dual ball; for a set, t = 1 and P the other prox."""
    g = CASES[name].g

    @few
    @given(**numbers)
    def holds(seed, scale, t):
        x, t = some_vector(seed, scale), 1.0 if name in SETS else t
        np.testing.assert_allclose(prox(g, x, t) + t * dual(x / t), x, rtol=0, atol=1e-13 * max(1.0, scale))

    holds()


@pytest.mark.parametrize("name", SETS)
def test_indicators_are_zero_or_infinite(name):
    g, _, _, inside, _ = CASES[name]
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
@pytest.mark.parametrize("g", [reg.L2Ball(0.1), reg.L1Ball(0.1), reg.Simplex(0.1)], ids=lambda g: type(g).__name__)
def test_a_projection_lies_in_its_set_in_high_dimension(g, dtype):
    for seed, centre in enumerate([0.0, 1e3, -1e3]):
        x = jnp.asarray(centre + np.random.default_rng(seed).standard_normal(20_000), dtype)
        p = prox(g, x, 1.0)
        assert value(g, p) == 0.0
        assert value(g, 1.001 * p) == np.inf


@pytest.mark.parametrize("kind", ["one tall, many at the level", "far from 0", "nearly equal"])
def test_projection_on_the_simplex_keeps_its_digits(kind):
    """In float32, against the same formula in extended precision: what stands out by little is as exact as the rest."""
    rng, d, radius = np.random.default_rng(0), 20_000, np.float32(0.1)
    x = {
        "one tall, many at the level": np.append(0.0, np.full(d - 1, -0.0999)),
        "far from 0": 1e3 + rng.standard_normal(d),
        "nearly equal": -1e3 + 1e-3 * rng.standard_normal(d),
    }[kind].astype(np.float32)
    falling = np.sort(x.astype(np.longdouble))[::-1]
    levels = (np.cumsum(falling) - radius) / np.arange(1, d + 1)
    expected = np.maximum(x - levels[(falling > levels).sum() - 1], 0).astype(float)
    np.testing.assert_allclose(prox(reg.Simplex(float(radius)), x, 1.0), expected, rtol=0, atol=4e-7 * expected.max())


@each
def test_small_t(name):
    g, _, by_hand, _, _ = CASES[name]
    x = np.random.default_rng(1).standard_normal(D)
    limit = by_hand(x, 0.0)  # x itself, or its projection on the domain
    np.testing.assert_allclose(prox(g, x, 0.0), limit, rtol=0, atol=2e-15)
    for t in (1e-4, 1e-8, 1e-12):
        # subgradients of the cases are at most 10 per coefficient here; rounding comes on top
        assert np.abs(prox(g, x, t) - limit).max() <= 10 * t + 2e-15


@each_convex
def test_large_t(name):
    """For t to infinity the prox tends to the nearest minimiser of g."""
    g, _, by_hand, _, _ = CASES[name]
    x = np.random.default_rng(5).standard_normal(D)
    for t in (1e6, 1e12):
        np.testing.assert_allclose(prox(g, x, t), by_hand(x, t), rtol=0, atol=1e-13)
    assert np.isfinite(prox(g, x, 1e300)).all()


AT_ZERO = {  # where 0 does not minimise g
    "Box-of-arrays": np.clip(0.0, LOWER, UPPER),
    "Simplex": np.full(D, 2.0 / D),
    "Shifted": np.clip(OFFSET, -0.24, 0.24),  # by t lam = 0.24 towards the offset
}


@each
def test_at_zero(name):
    """Where 0 minimises g it stays; nothing is NaN."""
    p = np.asarray(prox(CASES[name].g, np.zeros(D), 0.3))
    np.testing.assert_allclose(p, AT_ZERO.get(name, 0.0), rtol=0, atol=1e-15 if name in AT_ZERO else 0)


@each
def test_jit_and_vmap(name):
    g, by_value, by_hand, inside, _ = CASES[name]
    X = np.random.default_rng(2).standard_normal((3, D))
    t = np.linspace(0.1, step(name, 2.0), 3)
    expected = [by_hand(x, s) for x, s in zip(X, t, strict=True)]
    U = X if inside is None else np.array([inside(x) for x in X])
    p, v = jax.jit(jax.vmap(lambda x, t, u: (g.prox(x, t), g(u))))(X, t, U)
    np.testing.assert_allclose(p, expected, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(v, [by_value(u) for u in U], rtol=1e-12)


@pytest.mark.parametrize("name", ["L1", "GroupL2", "Simplex", "TotalVariation1D", "SumOf-ball", "Adapted-NumPy"])
def test_without_jit(name):
    g, by_value, by_hand, inside, _ = CASES[name]
    x = np.random.default_rng(2).standard_normal(D)
    np.testing.assert_allclose(g.prox(jnp.asarray(x), 0.3), by_hand(x, 0.3), rtol=1e-13, atol=1e-14)
    u = x if inside is None else inside(x)
    np.testing.assert_allclose(g(jnp.asarray(u)), by_value(u), rtol=1e-12)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("Adapted")])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_arrays_give_numpy_arrays_of_their_dtype(name, dtype):
    g, by_value, by_hand, inside, _ = CASES[name]
    x = np.random.default_rng(2).standard_normal(D)
    p, u = g.prox(x.astype(dtype), 0.3), x if inside is None else inside(x)
    v = g(u.astype(dtype))
    assert type(p) is np.ndarray
    assert isinstance(v, np.ndarray | np.floating)
    assert p.dtype == v.dtype == dtype
    rough = dtype == np.float32
    np.testing.assert_allclose(p, by_hand(x, 0.3), rtol=1e-5 if rough else 1e-13, atol=2e-6 if rough else 1e-14)
    if not rough:  # rounded to float32, a point may leave its set
        np.testing.assert_allclose(v, by_value(u), rtol=1e-12)


@jax.jit
def prox_and_value(g, x, t, u):
    return g.prox(x, t), g(u)


@each
def test_float32_stays_float32(name):
    g, by_value, by_hand, inside, _ = CASES[name]
    x = np.random.default_rng(4).standard_normal(D)
    u = x if inside is None else 0.9 * inside(x) + 0.1 * inside(np.zeros(D))
    with jax.enable_x64(False):
        p, v = prox_and_value(g, x.astype(np.float32), 0.3, u.astype(np.float32))
    assert p.dtype == v.dtype == np.float32
    # also next to double-precision parameters and steps
    shape = jax.ShapeDtypeStruct((D,), np.float32)
    shapes = jax.eval_shape(prox_and_value, g, shape, jnp.asarray(0.3), shape)
    assert [s.dtype for s in shapes] == [np.float32, np.float32]
    np.testing.assert_allclose(p, by_hand(x, 0.3), rtol=1e-5, atol=2e-6)
    if name not in ("Box-of-arrays", "Simplex"):  # bounds 0.2 and 0.3, and the sum, move when rounded to float32
        np.testing.assert_allclose(v, by_value(u), rtol=1e-5)


def test_changing_lambda_does_not_recompile():
    traced = []

    @jax.jit
    def f(g, x):
        traced.append(1)
        return g.prox(x, 0.5)

    x = np.arange(6.0) - 2
    for lam in (0.1, 0.7, 3.0):
        np.testing.assert_allclose(f(reg.L1(lam), x), soft(x, 0.5 * lam))
    assert len(traced) == 1
    for lam in (0.1, 0.7, 3.0):
        f(reg.GroupL2(lam, GROUPS), x)
    assert len(traced) == 2


def test_a_family_of_lambdas_is_one_vmap():
    x, lams = jnp.arange(6.0) - 2, np.array([0.0, 0.5, 1.0])
    family = jax.vmap(lambda lam: reg.L1(lam).prox(x, 1.0))(lams)
    np.testing.assert_allclose(family, [soft(np.asarray(x), lam) for lam in lams])
    family = jax.jit(jax.vmap(lambda lam: reg.GroupL2(lam, GROUPS).prox(x, 1.0)))(lams)
    np.testing.assert_allclose(family, [prox(reg.GroupL2(lam, GROUPS), np.asarray(x), 1.0) for lam in lams])


def test_records_are_rebuilt_by_jax_without_being_checked():
    """JAX puts axes and None in the leaves; a step of 0 in that place is no mistake of the user."""
    leaves, structure = jax.tree.flatten(reg.L1(0.5))
    assert leaves == [0.5]
    assert jax.tree.unflatten(structure, [None]).lam is None
    assert jax.tree.unflatten(structure, [-1]).lam == -1
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(reg.ElasticNet(0.1, 0.2))]
    assert paths == [".l1", ".l2"]


# alpha_max

FREE = {  # coefficients that no factor can hold at 0: the gradient must vanish there
    "L1-weighted": [0], "ElasticNet-weighted": [0], "GroupL2-weighted": [3], "OnBlock": [0, 4, 5],
    "Zero": range(D), "Ridge": range(D), "Box": range(D), "L2Ball": range(D), "L1Ball": range(D),
    "NuclearBall": range(D), "Rescaled-ball": range(D), "SumOf-ball": [0], "Blocks": [2],
}  # fmt: skip
NEVER = ["Box-of-arrays", "Simplex"]  # 0 is not even in the set


@pytest.mark.parametrize("name", [name for name in CASES if hasattr(CASES[name].g, "alpha_max")])
def test_alpha_max(name):
    """x = 0 minimises <gradient, x> + c g(x) exactly when prox_{c g}(-gradient) = 0: above the factor, not below."""
    g = CASES[name].g

    def zero_for(v, c):
        return not np.any(prox(g, -v, step(name, c)))

    for seed in range(6):
        v = 0.3 * np.random.default_rng(seed).standard_normal(D)
        if name == "Blocks":
            v[3:] = np.abs(v[3:])  # pushes against x >= 0
        if len(FREE.get(name, [])):
            assert g.alpha_max(v) == np.inf or name == "OnBlock"  # which leaves the rest to the caller
            assert not zero_for(v, 1e9)
            v[FREE[name]] = 0.0
        c = g.alpha_max(v)
        if name in NEVER:
            assert c == np.inf
        elif name == "NonNegative" or not v.any():
            assert c == (0.0 if (v >= 0).all() else np.inf)
            assert zero_for(v, 1.0) == (c == 0.0)
        else:
            assert 0 < c < getattr(g, "largest_step", np.inf)
            assert zero_for(v, c * (1 + 1e-12))
            assert not zero_for(v, c * (1 - 1e-12))
    assert g.alpha_max(np.zeros(D)) == (np.inf if name in NEVER else 0.0)


def test_alpha_max_in_single_precision():
    v = np.random.default_rng(0).standard_normal(D)
    for name in ("L1", "SparseGroup"):
        g = CASES[name].g
        c = g.alpha_max(v.astype(np.float32))
        assert c.dtype == np.float32
        np.testing.assert_allclose(c, g.alpha_max(v), rtol=1e-5)


# one class at a time


@pytest.mark.parametrize("t", [0.0, 1e-18, 1e-3, 0.3, 1.0, 30.0, 1e9])
@pytest.mark.parametrize("kind", ["noise", "steps", "integers", "ramp", "alternating", "constant"])
def test_total_variation_satisfies_its_optimality_conditions(kind, t):
    """p is the prox exactly when z = cumsum(p - x) stays in [-t lam, t lam], ends at 0, and is t lam sign(jump) at jumps."""
    rng, d = np.random.default_rng(0), 2000
    x = {
        "noise": rng.standard_normal(d),
        "steps": np.repeat(rng.standard_normal(20), 100) + 0.3 * rng.standard_normal(d),
        "integers": np.round(2 * rng.standard_normal(d)),
        "ramp": np.linspace(-3, 3, d),
        "alternating": (-1.0) ** np.arange(d),
        "constant": np.full(d, 0.7),
    }[kind]
    p = np.asarray(prox(reg.TotalVariation1D(0.8), x, t))
    z, jump, edge = np.cumsum(p - x), np.diff(p), 0.8 * t
    assert np.abs(z).max() <= edge + 1e-10
    assert abs(z[-1]) <= 1e-10
    jumps = np.abs(jump) > 1e-10
    np.testing.assert_allclose(z[:-1][jumps], edge * np.sign(jump[jumps]), rtol=0, atol=1e-10)


def test_total_variation_of_short_rows():
    g = reg.TotalVariation1D(0.5)
    np.testing.assert_array_equal(prox(g, np.array([3.0]), 2.0), [3.0])
    np.testing.assert_allclose(prox(g, np.array([3.0, 1.0]), 1.0), [2.5, 1.5])  # each moves by t lam
    np.testing.assert_allclose(prox(g, np.array([3.0, 1.0]), 4.0), [2.0, 2.0])  # until they meet
    np.testing.assert_allclose(prox(g, np.array([0.0, 3.0, 0.0]), 1.0), [0.5, 2.0, 0.5])  # a peak pays twice
    np.testing.assert_allclose(prox(g, np.array([0.0, 1.0, 3.0]), 1.0), [0.5, 1.0, 2.5])
    assert value(g, np.array([3.0])) == 0.0


@pytest.mark.parametrize("decimals", [0, 8])
def test_sorted_l1_pools_like_isotonic_regression(decimals):
    from sklearn.isotonic import isotonic_regression

    rng, d = np.random.default_rng(1), 500
    x, lam = np.round(3 * rng.standard_normal(d), decimals), np.sort(rng.random(d))[::-1]
    order = np.argsort(-np.abs(x))
    sizes = isotonic_regression(np.abs(x)[order] - 0.9 * lam, increasing=False)
    expected = np.zeros(d)
    expected[order] = np.maximum(sizes, 0)
    np.testing.assert_allclose(prox(reg.SortedL1(lam), x, 0.9), np.sign(x) * expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(prox(reg.SortedL1(np.full(d, 0.4)), x, 0.9), soft(x, 0.36), rtol=0, atol=1e-13)


def test_members_in_step_agree_with_members_one_by_one():
    """On a GPU a `vmap` runs the long loops in step, on a CPU one after the other; here the first kind on a CPU."""
    X, t = np.random.default_rng(0).standard_normal((4, D)), np.array([0.0, 0.1, 0.5, 2.0])
    in_step = jax.jit(jax.vmap(inspect.unwrap(elementary.fused_lasso_signal)))(X, t)
    np.testing.assert_allclose(in_step, [tv_prox(x, s) for x, s in zip(X, t, strict=True)], rtol=0, atol=1e-13)
    in_step = jax.jit(jax.vmap(inspect.unwrap(elementary._pool_adjacent_violators)))(X)
    np.testing.assert_allclose(in_step, [elementary.isotonic_nonincreasing(x) for x in X], rtol=0, atol=1e-15)


def test_sorted_l1_makes_ties():
    p = np.asarray(prox(reg.SortedL1(FALLING), np.array([3.0, 2.9, -2.8, 0.5, 0.1, 0.0]), 1.0))
    assert abs(p[0]) < abs(p[1]) + 1e-12  # 3 - 2 < 2.9 - 1.5: pooled
    np.testing.assert_allclose(np.abs(p[:3]), (3 + 2.9 + 2.8 - 5) / 3)


@pytest.mark.parametrize(("g", "penalty"), [(reg.MCP(0.6, gamma=2.5), mcp), (reg.SCAD(0.6), scad)], ids=["MCP", "SCAD"])
def test_weakly_convex_penalties(g, penalty):
    """The prox beats a fine grid, and `largest_step` is where t g + ||.||^2 / 2 stops being convex."""
    grid = np.linspace(-5, 5, 200_001)
    for t in (0.1, 1.0, 0.95 * g.largest_step):
        x = np.array([-4.0, -1.3, -0.7, 0.2, 0.9, 1.7])
        p = np.asarray(prox(g, x, t))
        for v, best in zip(x, p, strict=True):
            costs = t * penalty(grid) + 0.5 * (grid - v) ** 2
            assert t * penalty(best) + 0.5 * (best - v) ** 2 <= costs.min() + 1e-14
            assert abs(grid[costs.argmin()] - best) <= 2e-4
    convex = [
        np.diff(t * penalty(grid) + 0.5 * grid**2, n=2).min() > -1e-13 for t in np.array([0.99, 1.01]) * g.largest_step
    ]
    assert convex == [True, False]


@pytest.mark.parametrize("g", [reg.MCP(0.6, gamma=2.5), reg.SCAD(0.6, gamma=3.5)], ids=["MCP", "SCAD"])
def test_too_large_a_step_is_refused_where_it_is_known(g):
    x = jnp.arange(-3.0, 3.0)
    for t in (2.5, 7.0, np.float64(3.0), jnp.asarray(3.0)):
        with pytest.raises(InputError, match=r"prox for steps t < 2\.5; got t = .*smaller step or a larger gamma"):
            g.prox(x, t)
    for t in (2.5, 7.0):
        assert np.isfinite(prox(g, x, t)).all()  # traced: not known, hence not refused
