"""Regularisers made of regularisers, sums, objects from elsewhere, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import soft
from regulariser_cases import CASES, FALLING, GROUPS, WEIGHTS, D, Plain, Traced, mcp, prox, scad, tv_prox, value
from scipy.optimize import brentq

import compfed as cf
from compfed import regularisers as reg
from compfed._utils.records import describe, leaf_names, with_leaf
from compfed.errors import InputError

pytestmark = pytest.mark.usefixtures("double_precision")


# sums


@pytest.mark.parametrize("name", ["Zero", "L1-weighted", "NonNegative", "GroupL2", "SparseGroup", "Nuclear", "SortedL1",
                                  "LinfNorm", "TotalVariation1D"])  # fmt: skip
def test_a_norm_and_a_ball_by_the_multiplier(name):
    """With a multiplier m for ||u||^2 <= r^2, p = prox_{t g / (1 + m)}(z / (1 + m)): a root in m instead of a composition."""
    case, radius, outside = CASES[name], 0.5, []
    g = case.g + reg.L2Ball(radius)
    for seed in range(4):
        z, t = 2.0 * np.random.default_rng(seed).standard_normal(D), 0.4

        def point(m, z=z, t=t):
            return case.prox(z / (1 + m), t / (1 + m))

        outside.append(np.linalg.norm(point(0.0)) > radius)
        m: Any = brentq(lambda m: np.linalg.norm(point(m)) - radius, 0.0, 1e3, xtol=1e-15) if outside[-1] else 0.0
        np.testing.assert_allclose(prox(g, z, t), point(m), rtol=0, atol=1e-12)
    assert sum(outside) >= 2


@pytest.mark.parametrize(("g", "penalty"), [(reg.MCP(0.6, gamma=2.5), mcp), (reg.SCAD(0.6), scad)], ids=["MCP", "SCAD"])
def test_weakly_convex_in_a_box_against_a_grid(g, penalty):
    """Coefficient by coefficient the cost is convex for small steps, so that clipping its minimiser is right."""
    x = np.array([-3.0, -1.1, 0.3, 0.8, 1.6, 4.0])
    for bounds, box in (((-0.5, 1.2), reg.Box(-0.5, 1.2)), ((0.0, 6.0), reg.NonNegative())):
        grid = np.linspace(*bounds, 100_001)
        for t in (0.3, 0.9 * g.largest_step):
            expected = [grid[np.argmin(t * penalty(grid) + 0.5 * (grid - v) ** 2)] for v in x]
            np.testing.assert_allclose(prox(g + box, x, t), expected, rtol=0, atol=2e-4)


UNKNOWN = {
    "weighted L1 and total variation": (reg.L1(WEIGHTS), reg.TotalVariation1D(0.7)),
    "bounds that differ and total variation": (reg.TotalVariation1D(0.7), reg.Box(-WEIGHTS, WEIGHTS)),
    "two groupings": (reg.GroupL2(1.0, GROUPS), reg.GroupL2.of_rows(1.0, 3, 2)),
    "low rank and sparse": (reg.Nuclear(1.0, 2), reg.L1(1.0)),
    "two boxes": (reg.Box(-1.0, 1.0), reg.NonNegative()),
    "groups in a box": (reg.GroupL2(1.0, GROUPS), reg.Box(-1.0, 1.0)),
    "a ridge is no norm": (reg.ElasticNet(0.5, 1.0), reg.L2Ball(1.0)),
    "sorted and positive": (reg.SortedL1(FALLING), reg.NonNegative()),
    "moved": (reg.Shifted(reg.L1(1.0), 0.3), reg.NonNegative()),
}


@pytest.mark.parametrize("pair", UNKNOWN.values(), ids=UNKNOWN)
def test_other_sums_are_refused(pair):
    for a, b in (pair, pair[::-1], (2.0 * pair[0], pair[1])):
        with pytest.raises(
            InputError, match=r"is not known in closed form. Known: any g \+ Ridge; .*L1.*Box.*L2Ball\."
        ):
            _ = a + b


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (reg.TotalVariation1D(0.7), reg.L1(WEIGHTS)),
        (reg.SortedL1(FALLING), reg.NonNegative()),
        (reg.GroupL2(1.0, GROUPS), reg.L1(1.0)),
        (reg.GroupL2(1.0, GROUPS), reg.Box(-0.5, 1.0)),
    ],
    ids=lambda g: type(g).__name__,
)
def test_composing_where_no_rule_says_so_is_wrong(first, last):
    """The rules are not too narrow: these compositions violate the three-point inequality of the sum."""
    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(20):
        z = 2.0 * rng.standard_normal(D)
        p = np.asarray(prox(last, prox(first, z, 0.6), 0.6))
        for u in prox(last, p + 0.1 * rng.standard_normal((20, D)), 0.0):  # near p, and in the domain
            gap = 0.6 * (value(first, u) + value(last, u) - value(first, p) - value(last, p))
            worst = min(worst, float(gap - (z - p) @ (u - p)))
    assert worst < -1e-4


def test_a_ridge_may_be_added_to_anything():
    x, t = np.random.default_rng(0).standard_normal(D), 0.8
    for g in (
        reg.Zero() + reg.Ridge(0.5),
        reg.Ridge(0.2) + reg.Ridge(0.3),
        reg.Ridge(0.5) + reg.Zero(),
        0.5 * reg.Ridge(1.0) + reg.Zero(),
    ):
        np.testing.assert_allclose(prox(g, x, t), x / 1.4, rtol=1e-14)
    same, net = reg.L1(0.3) + reg.Ridge(0.5), reg.ElasticNet(0.3, 0.5)
    np.testing.assert_allclose(prox(same, x, t), prox(net, x, t), rtol=1e-14, atol=1e-16)
    np.testing.assert_allclose(value(same, x), value(net, x))
    own = reg.Ridge(0.5) + reg.from_object(Plain())
    np.testing.assert_allclose(prox(own, x, t), soft(x, 0.8 * t) / 1.4, rtol=1e-14, atol=1e-16)


# the rest of the algebra


def test_operators():
    g, x = reg.L1(0.3), np.arange(-3.0, 3.0)
    two: list[Any] = [2.0 * g, g * 2.0, 2 * g, np.float64(2.0) * g, jnp.asarray(2.0) * g, reg.Scaled(g, 2.0)]  # pyright: ignore[reportOperatorIssue]
    for doubled in two:
        assert isinstance(doubled, reg.Scaled)
        np.testing.assert_allclose(prox(doubled, x, 0.5), soft(x, 0.3))
    assert isinstance(g + reg.Ridge(1.0), reg.SumOf)
    np.testing.assert_allclose(prox(3.0 * (2.0 * g), x, 0.5), soft(x, 0.9))


def test_a_rescaled_norm_is_a_scaled_norm():
    """g(x / s) = g(x) / s for a norm."""
    x = np.random.default_rng(0).standard_normal(D)
    for g in (reg.LinfNorm(0.8), reg.GroupL2(0.8, GROUPS)):
        np.testing.assert_allclose(
            prox(reg.Rescaled(g, 4.0), x, 0.7), prox(reg.Scaled(g, 0.25), x, 0.7), rtol=0, atol=1e-14
        )
        np.testing.assert_allclose(value(reg.Rescaled(g, 4.0), x), value(reg.Scaled(g, 0.25), x), rtol=1e-13)


def test_boundaries_survive_moving_and_stretching():
    """A projection lies in its set although x - offset and x / scale are rounded."""
    rng = np.random.default_rng(0)
    offset = rng.standard_normal(D)
    cases = [reg.Shifted(g, o) for g in (reg.Box(-0.4, 0.9), reg.Simplex(1.0), reg.L1Ball(0.7)) for o in (0.3, 1e3)]
    cases += [reg.Shifted(reg.Rescaled(g, 7.0), offset) for g in (reg.Box(-WEIGHTS, WEIGHTS), reg.Simplex(1.0))]
    for g in [*cases, reg.Rescaled(reg.Box(-0.4, 0.9), 0.3)]:
        for x in 3.0 * rng.standard_normal((10, D)):
            p = np.asarray(prox(g, x, 1.0))
            assert value(g, p) == 0.0
            assert value(g, x) == (np.inf if np.abs(p - x).max() > 1e-6 else 0.0)


def test_largest_steps():
    g = reg.MCP(0.6, gamma=2.0)
    assert reg.largest_step(g) == 2.0
    assert reg.largest_step(4.0 * g) == 0.5
    for h in (reg.Shifted(g, 1.0), reg.OnBlock(g, 0, 3), g + reg.Box(-1.0, 1.0)):
        assert reg.largest_step(h) == 2.0
    assert reg.largest_step(reg.Rescaled(g, 3.0)) == 18.0
    assert reg.largest_step(reg.Blocks((g, reg.SCAD(0.6, gamma=2.5), reg.L1(1.0)), (2, 2, 2))) == 1.5
    assert reg.largest_step(g + reg.Ridge(0.25)) == 4.0  # t / (1 + t / 4) < 2
    assert reg.largest_step(g + reg.Ridge(0.5)) == reg.largest_step(reg.L1(1.0)) == reg.largest_step(Plain()) == np.inf
    assert reg.largest_step(reg.L1(1.0) + reg.Ridge(1.0)) == np.inf
    traced = jax.jit(
        lambda g: (g.largest_step, (g + reg.Ridge(0.25)).largest_step, reg.Blocks((g, g), (1, 1)).largest_step)
    )
    assert [float(v) for v in traced(g)] == [2.0, 4.0, 2.0]
    x = jnp.arange(-2.0, 4.0)
    assert np.isfinite((g + reg.Ridge(0.25)).prox(x, 3.9)).all()  # above 2: the ridge makes it convex
    for h, t in ((4.0 * g, 0.6), (reg.Rescaled(g, 3.0), 18.0), (g + reg.Ridge(0.25), 4.0)):
        with pytest.raises(InputError, match="has a prox for steps"):
            h.prox(x, t)


def test_numbers_inside_are_named_and_told():
    g = reg.Blocks((0.5 * reg.L1(0.1), reg.OnBlock(reg.GroupL2(0.2, (0, 0, 1)), 0, 3)), (2, 4))
    assert leaf_names(g) == ["parts.0.g.lam", "parts.0.factor", "parts.1.g.lam", "parts.1.g.weights"]
    changed = with_leaf(g, "parts.1.g.lam", 0.7)
    assert changed.parts[1].g.lam == 0.7
    assert changed.parts[0] == g.parts[0]
    with pytest.raises(InputError, match="lam must be a finite number >= 0"):
        with_leaf(g, "parts.1.g.lam", -1.0)
    cached = json.loads(json.dumps(describe(g)))
    assert cached["parts"][1]["g"] == {"name": "GroupL2", "lam": 0.2, "groups": [0, 0, 1], "weights": None}
    assert json.dumps(describe(reg.from_object(Plain()))) == '{"name": "Adapted", "source": "Plain"}'


def test_a_problem_takes_them():
    """An intercept left free, in the last column: the minimiser's gradient vanishes there and only there is unpenalised."""
    rng = np.random.default_rng(0)
    A = [np.c_[rng.standard_normal((20, 3)), np.ones(20)] for _ in range(2)]
    y = [a @ np.array([2.0, 0.0, -1.0, 5.0]) + 0.1 * rng.standard_normal(20) for a in A]
    problem = cf.Problem(cf.losses.Squared(), reg.OnBlock(reg.L1(0.5), 0, 3), cf.data.from_arrays(A, y))
    x = cf.solve_pooled(problem).x
    gradient = problem.gradient(x)
    kept = np.flatnonzero(x[:3])
    np.testing.assert_allclose(gradient[kept], -0.5 * np.sign(x[kept]), atol=1e-8)
    assert (np.abs(gradient[:3]) <= 0.5 + 1e-8).all()
    assert abs(gradient[3]) < 1e-8
    assert x[3] > 4.0
    own = problem.replace(regulariser=reg.Blocks((Plain(), reg.Zero()), (3, 1)))
    with pytest.raises(InputError, match="does not work with 4 coefficients: OnBlock"):
        problem.replace(regulariser=reg.OnBlock(reg.L1(0.5), 0, 5))
    np.testing.assert_allclose(
        cf.solve_pooled(own).x,
        cf.solve_pooled(problem.replace(regulariser=reg.OnBlock(reg.L1(0.8), 0, 3))).x,
        atol=1e-9,
    )


# objects from elsewhere


class Cone:
    """Answers "is x inside?", as some libraries do; equal to everything and not hashable, as some objects are."""

    def __eq__(self, other):
        return True

    def __call__(self, x):
        return bool((np.asarray(x) >= 0).all())

    def prox(self, x, tau):
        return np.maximum(np.asarray(x), 0.0)


def test_records_are_taken_as_they_are():
    for g in (reg.L1(0.3), reg.Zero(), reg.L1(0.3) + reg.NonNegative()):
        assert reg.from_object(g) is g


def test_an_answer_of_yes_and_no_is_an_indicator():
    g = reg.from_object(Cone())  # pyright: ignore[reportArgumentType]  # in NumPy
    assert value(g, np.array([1.0, 0.0])) == 0.0
    assert value(g, np.array([1.0, -1.0])) == np.inf
    np.testing.assert_array_equal(prox(g, np.array([1.0, -1.0]), 0.5), [1.0, 0.0])


def test_compiled_once_per_object():
    traced = []

    @jax.jit
    def f(g, x):
        traced.append(1)
        return g.prox(x, 0.5)

    one, other, x = Cone(), Cone(), np.arange(-3.0, 3.0)
    for obj in (one, one, other):
        np.testing.assert_array_equal(f(reg.from_object(obj), x), np.maximum(x, 0))  # pyright: ignore[reportArgumentType]  # in NumPy
    assert len(traced) == 2


def test_inside_a_scan_and_for_many_clients():
    def descend(g, x):
        return jax.lax.scan(lambda x, t: (g.prox(x - 0.1, t), None), x, jnp.array([0.1, 0.2, 0.3]))[0]

    X = np.random.default_rng(0).standard_normal((4, D))
    expected = jax.vmap(lambda x: descend(reg.L1(0.8), x))(X)
    for g in (reg.from_object(Plain()), reg.from_object(Traced())):
        found = jax.jit(jax.vmap(lambda x, g=g: descend(g, x)))(X)
        np.testing.assert_allclose(found, expected, atol=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_long_model_goes_to_the_host_and_back(dtype):
    """Called while its input is still being computed, the host answers in a thread that knows no double precision."""
    x = np.random.default_rng(0).standard_normal(30_000).astype(dtype)
    g, p = reg.from_object(Plain()), jnp.asarray(x)
    for _ in range(20):
        p = prox(g, p + np.zeros_like(x), 0.025)
    v = value(g, p + np.zeros_like(x))
    assert p.dtype == v.dtype == dtype
    np.testing.assert_allclose(p, soft(x, dtype(0.4)), rtol=0, atol=100 * np.finfo(dtype).eps)
    np.testing.assert_allclose(v, 0.8 * np.abs(soft(x, dtype(0.4))).sum(), rtol=1e-5 if dtype == np.float32 else 1e-13)


def with_methods(**methods: Any) -> Any:
    return type("Own", (), {name: staticmethod(method) for name, method in methods.items()})()


BAD = {
    "no prox": (lambda: reg.from_object(with_methods(__call__=np.sum)), r"Own has no prox; a regulariser needs g\.prox\(x, t\)"),
    "no value": (lambda: reg.from_object(with_methods(prox=lambda x, t: x)), r"Own has no __call__; .* g\(x\), the value"),
    "a class": (lambda: reg.from_object(Cone), r"got the class Cone; give an instance, such as Cone\(\.\.\.\)"),  # pyright: ignore  # the mistake
    "a prox of another shape": (
        lambda: reg.from_object(with_methods(__call__=np.sum, prox=lambda x, t: x[1:])).prox(jnp.ones(4), 1.0),
        r"Own: prox returns shape \(3,\) for a model of shape \(4,\); it must return \(4,\)",
    ),
    "a prox of another shape in NumPy": (
        lambda: prox(reg.from_object(with_methods(__call__=np.sum, prox=lambda x, t: np.asarray(x)[1:])), np.ones(4), 1.0),
        r"Own: prox returns shape \(3,\) for a model of shape \(4,\)",
    ),
    "a value of another shape": (
        lambda: reg.from_object(with_methods(__call__=np.abs, prox=lambda x, t: x))(jnp.ones(4)),
        r"Own: __call__ returns shape \(4,\) for a model of shape \(4,\); it must return \(\)",
    ),
    "a prox that fails": (
        lambda: reg.from_object(with_methods(__call__=np.sum, prox=lambda x: x)).prox(jnp.ones(4), 1.0),
        r"Own: prox fails on a model of shape \(4,\): .*positional argument",
    ),
    "negative lambda": (lambda: reg.GroupL2(-1.0, GROUPS), r"GroupL2\(lam=-1\.0\): lam must be a finite number >= 0"),
    "many lambdas for a norm": (lambda: reg.LinfNorm(WEIGHTS), r"lam must be a finite number >= 0"),  # pyright: ignore[reportArgumentType]  # the mistake
    "labels that are no labels": (lambda: reg.GroupL2(1.0, (0.5, 1)), r"groups must be a sequence of whole numbers"),  # pyright: ignore[reportArgumentType]  # the mistake
    "no labels": (lambda: reg.GroupL2(1.0, ()), r"groups must be a sequence of whole numbers"),
    "too few weights": (lambda: reg.GroupL2(1.0, GROUPS, np.ones(2)), r"weights has shape \(2,\); there are 3 groups"),
    "too few labels": (lambda: reg.SparseGroup(1.0, 1.0, (0, 1)).prox(jnp.ones(3), 1.0), r"SparseGroup has 2 labels .*\(3,\)"),
    "growing lambdas": (lambda: reg.SortedL1(WEIGHTS), r"SortedL1\(lam=.*lam must not increase\. Give np\.sort"),
    "one lambda to sort": (lambda: reg.SortedL1(1.0), r"lam must be one number per coefficient"),  # pyright: ignore[reportArgumentType]  # the mistake
    "too few lambdas": (lambda: reg.SortedL1(np.ones(1)).prox(jnp.ones(3), 1.0), r"SortedL1 has 1 numbers in lam.*\(3,\)"),
    "no such matrix": (lambda: reg.Nuclear(1.0, 4)(jnp.ones(6)), r"6 coefficients is not a matrix with columns=4: give a divisor"),
    "no columns": (lambda: reg.Nuclear(1.0, 0), r"columns must be a whole number >= 1"),
    "gamma of MCP": (lambda: reg.MCP(1.0, gamma=1.0), r"MCP\(gamma=1\.0\): gamma must be > 1\."),
    "gamma of SCAD": (lambda: reg.SCAD(1.0, gamma=2.0), r"SCAD\(gamma=2\.0\): gamma must be > 2\."),
    "a negative factor": (lambda: -1.0 * reg.L1(1.0), r"Scaled\(factor=-1\.0\): factor must be a finite number > 0"),
    "a factor per coefficient": (lambda: reg.Scaled(reg.L1(1.0), WEIGHTS), r"factor must be a finite number > 0"),  # pyright: ignore[reportArgumentType]  # the mistake
    "a scale per coefficient": (lambda: reg.Rescaled(reg.L1(1.0), WEIGHTS), r"scale must be a finite number > 0"),  # pyright: ignore[reportArgumentType]  # the mistake
    "moved to nowhere": (lambda: reg.Shifted(reg.L1(1.0), np.inf), r"Shifted\(offset=inf\): offset must be finite"),
    "a number for g": (lambda: reg.Scaled(3.0, 2.0), r"Scaled\(g=3\.0\): float has no __call__; a regulariser needs"),  # pyright: ignore  # the mistake
    "a class for g": (lambda: reg.OnBlock(reg.L1, 0, 2), r"OnBlock\(g=.*got the class L1; give an instance"),  # pyright: ignore  # the mistake
    "plus a number": (lambda: reg.L1(1.0) + 1.0, r"SumOf\(b=1\.0\): float has no __call__"),  # pyright: ignore  # the mistake
    "an empty block": (lambda: reg.OnBlock(reg.L1(1.0), 3, 3), r"OnBlock\(start=3, stop=3\): start must be below stop"),
    "a block from -1": (lambda: reg.OnBlock(reg.L1(1.0), -1, 3), r"start must be a whole number >= 0"),
    "a block beyond the end": (lambda: reg.OnBlock(reg.L1(1.0), 0, 4)(jnp.ones(3)), r"OnBlock\(stop=4\) does not fit .* 3 coef"),
    "blocks without sizes": (lambda: reg.Blocks((reg.L1(1.0), reg.Zero()), (3,)), r"give a tuple with one part per size"),
    "blocks of nothing": (lambda: reg.Blocks((reg.L1(1.0),), (0,)), r"Blocks\(sizes=\(0,\)\): every size must be >= 1"),
    "blocks of another model": (lambda: reg.Blocks((reg.Zero(),), (3,)).prox(jnp.ones(4), 1.0), r"has 3 coef.*the model has 4"),
    "alpha_max without convexity": (
        lambda: ((2.0 * reg.MCP(1.0) + reg.Box(-1.0, 1.0)) + reg.Ridge(1.0)).alpha_max(np.ones(4)),
        r"a sum with MCP has no alpha_max: it is not convex",
    ),
    "no such method inside": (
        lambda: (2.0 * reg.Shifted(reg.L1(1.0), 1.0)).alpha_max(jnp.ones(4)),
        r"Shifted has no alpha_max",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("mistake", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_used_is_refused(mistake, message):
    with pytest.raises(InputError, match=message):
        mistake()


def test_fused_lasso_of_equal_weights_is_the_composition():
    x = np.random.default_rng(0).standard_normal(D)
    np.testing.assert_allclose(
        prox(reg.TotalVariation1D(0.7) + reg.L1(0.4), x, 0.5), soft(tv_prox(x, 0.35), 0.2), atol=1e-13
    )
