"""A regulariser written coefficient by coefficient in NumPy is the regulariser: its own value and prox are the oracle."""

from __future__ import annotations

import functools
import inspect
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from form_cases import CASES, GROUPS, LOWER, OFFSET, UPPER, WEIGHTS, WITHOUT, D

from compfed import regularisers
from compfed.errors import InputError
from compfed.regularisers import L1, Blocks, GroupL2, OnBlock, Ridge, Shifted, SparseGroup, Zero
from compfed.regularisers.coordinate_form import CoordinateForm, coordinate_form

STEPS = np.array([1e-3, 0.05, 0.1, 0.4, 0.7, 1.5, 3.0])  # D of them: also one for each coefficient

each = pytest.mark.parametrize("name", CASES)
pytestmark = pytest.mark.usefixtures("double_precision")


class Oracle(NamedTuple):
    """What the regulariser itself says at X = points(), and at points of its domain."""

    values: np.ndarray
    proxes: np.ndarray  # [step, point]
    values_inside: np.ndarray  # at proxes[0]; random points alone would nearly all be out of bounds
    traced: tuple[np.ndarray, ...]  # its form, when all its numbers are tracers


def ask(g: Any, X: Any) -> Oracle:
    proxes = jax.vmap(lambda t: jax.vmap(lambda x: g.prox(x, t))(X))(STEPS)
    found = coordinate_form(g, D)
    assert found is not None
    assert isinstance(found.group, np.ndarray)
    values, inside = jax.vmap(jax.vmap(g))(jnp.stack([X, proxes[0]]))
    return Oracle(values, proxes, inside, found)


@functools.cache
def oracles() -> dict[str, Oracle]:
    """One compilation for all cases and tests: case by case takes nearly twice as long."""
    quick = {"xla_backend_optimization_level": 0}
    every = jax.jit(lambda cases, X: {name: ask(g, X) for name, g in cases.items()}, compiler_options=quick)
    found = every(CASES, points())
    return jax.tree.map(np.asarray, found)


def form(name: str) -> CoordinateForm:
    found = coordinate_form(CASES[name], D)
    assert found is not None
    return found


def points() -> np.ndarray:
    """At random; and at zeros, kinks and bounds of the cases, coefficient by coefficient."""
    rng = np.random.default_rng(0)
    finite = [np.where(np.isfinite(b), b, 0.0) for b in (LOWER, UPPER)]
    marks = np.stack([np.zeros(D), OFFSET, *finite, *(b + OFFSET for b in finite), 2.0 * OFFSET])
    marked = marks[rng.integers(len(marks), size=(20, D)), np.arange(D)]
    free = 2.0 * rng.standard_normal((10, D))
    mixed = np.where(rng.random((10, D)) < 0.5, free, marked[:10])
    return np.concatenate([free, np.round(free), mixed, marked, marks])


def test_every_regulariser_of_the_package_is_here():
    public = {n for n in regularisers.__all__ if inspect.isclass(getattr(regularisers, n))} - {"Regulariser"}
    assert public <= {type(g).__name__ for g in (*CASES.values(), *WITHOUT.values())}


@each
def test_it_is_plain_numpy(name):
    found = form(name)
    assert all(type(part) is np.ndarray for part in found)
    assert all(part.dtype == np.float64 for part in found[:-1])
    assert all(part.shape == (D,) for part in (*found[:5], found.group))
    assert set(found.group) - {-1} == set(range(len(found.pull)))


@each
def test_value(name):
    found, own = form(name), oracles()[name]
    np.testing.assert_allclose([found.value(x) for x in points()], own.values, rtol=1e-13, atol=1e-13)
    inside = [found.value(x) for x in own.proxes[0]]
    assert np.isfinite(inside).all()
    np.testing.assert_allclose(inside, own.values_inside, rtol=1e-13, atol=1e-13)


@each
def test_prox(name):
    found = form(name)
    for t, P in zip(STEPS, oracles()[name].proxes, strict=True):
        ours = np.array([found.prox(x, t) for x in points()])
        np.testing.assert_allclose(ours, P, rtol=1e-13, atol=1e-13)
        assert ((ours == found.kink) == (found.kink == P)).all()
        assert ((ours >= found.lower) & (ours <= found.upper)).all()


@each
def test_prox_with_a_step_for_each_coefficient(name):
    """The metric is diagonal, so that coefficients, or groups, are still apart: each moves as with its step for all."""
    found, P = form(name), oracles()[name].proxes
    own = np.array([int(np.argmax(found.group == k)) if k >= 0 else j for j, k in enumerate(found.group)])
    for order in (own, own[::-1]) if found.separable else (own,):
        ours = np.array([found.prox(x, STEPS[order]) for x in points()])
        np.testing.assert_allclose(ours, P[order, :, np.arange(D)].T, rtol=1e-13, atol=1e-13)


@each
def test_some_coefficients_and_the_others(name):
    found, rng = form(name), np.random.default_rng(2)
    chosen = np.where(found.group >= 0, rng.random(D + 1)[found.group], rng.random(D)) < 0.5
    W, rest = rng.permutation(np.flatnonzero(chosen)), np.flatnonzero(~chosen)
    assert 0 < len(W) < D
    one, two = found.at(W), found.at(rest)
    assert len(one.pull) + len(two.pull) == len(found.pull)
    for x in found.prox(points()[0], 0.1), *points():
        np.testing.assert_allclose(one.value(x[W]) + two.value(x[rest]), found.value(x), rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(one.prox(x[W], 0.4), found.prox(x, 0.4)[W], rtol=1e-14, atol=0)
    np.testing.assert_array_equal(one.smooth, found.smooth[W])


@pytest.mark.parametrize("name", WITHOUT)
def test_none(name):
    assert coordinate_form(WITHOUT[name], D) is None


@pytest.mark.parametrize(
    ("name", "smooth"),
    [
        ("Zero", [0, 1, 2, 3, 4, 5, 6]),
        ("Ridge", [0, 1, 2, 3, 4, 5, 6]),
        ("L1-weighted", [0, 6]),
        ("L1+Box", [6]),
        ("NonNegative", []),
        ("GroupL2", []),
        ("GroupL2-weighted", [3, 6]),
        ("OnBlock-L1", [0, 5, 6]),
        ("Blocks-of-groups", []),
        ("OnBlock-GroupL2", [0, 1, 2]),
    ],
)
def test_smooth_coefficients(name, smooth):
    assert np.flatnonzero(form(name).smooth).tolist() == smooth


def test_separable_is_without_groups():
    assert form("L1+Box").separable
    assert not form("GroupL2").separable
    assert form("Blocks-of-groups").at(np.array([2, 6])).separable


@each
def test_numbers_that_are_traced(name):
    """The whole regulariser was the argument of a compiled function, so that every number in it was a tracer."""
    for ours, expected in zip(oracles()[name].traced, form(name), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-15, atol=0)


def test_a_grid_in_single_precision():
    lams = np.array([0.1, 0.2, 0.4])

    def pulls(lam):
        found = coordinate_form(OnBlock(SparseGroup(lam, 2.0 * lam, (0, 0, 1)), 1, 4) + Ridge(lam), 4)
        assert found is not None
        return found.l1, found.l2, found.pull

    with jax.enable_x64(False):
        l1, l2, pull = jax.vmap(pulls)(lams)
    np.testing.assert_allclose(l1, np.outer(lams, [0, 1, 1, 1]), rtol=1e-6)
    np.testing.assert_allclose(l2, np.outer(lams, np.ones(4)), rtol=1e-6)
    np.testing.assert_allclose(pull, np.outer(2.0 * lams, np.sqrt([2, 1])), rtol=1e-6)


def test_traced_kinks_are_not_compared():
    g = Shifted(L1(0.4), np.zeros(D)) + Ridge(0.7)
    assert coordinate_form(g, D) is not None
    jax.jit(lambda g: np.testing.assert_equal(coordinate_form(g, D), None))(g)


def test_sums_whose_prox_would_be_wrong_have_no_form():
    """Pairs that SumOf does not take either; a form must not depend on that."""
    groups = form("GroupL2")
    for other in form("GroupL2"), form("ElasticNet-weighted"), form("Box-of-arrays"):
        assert groups.plus(other) is None
        assert other.plus(groups) is None
    assert groups.plus(form("ElasticNet")) is not None


def test_what_is_refused():
    found = form("GroupL2")
    with pytest.raises(InputError, match="cuts a group"):
        found.at(np.array([0, 1]))
    with pytest.raises(InputError, match="differ within a group"):
        found.prox(np.ones(D), np.arange(1.0, D + 1))
    with pytest.raises(InputError, match=r"shape \(7,\); the model has 5"):
        coordinate_form(L1(WEIGHTS), 5)
    for g in GroupL2(0.8, GROUPS), OnBlock(L1(0.1), 0, 7), Blocks((L1(0.1), Zero()), (6, 1)):
        with pytest.raises(InputError, match="model"):
            coordinate_form(g, 5)


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_mapping_is_that_of_the_prox(name):
    """At points of its domain, for steps of all sizes; zero groups and coefficients at kinks and bounds among them."""
    found, rng = form(name), np.random.default_rng(7)
    for t in (1e-3, 0.3, 4.0):
        for _ in range(20):
            x, gradient = found.prox(rng.standard_normal(D), 0.5), 2.0 * rng.standard_normal(D)
            expected = (x - found.prox(x - t * gradient, t)) / t
            np.testing.assert_allclose(found.mapping(x, gradient, t), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["L1", "ElasticNet", "GroupL2", "SparseGroup"])
def test_the_gradient_mapping_loses_no_digits_to_a_short_step(name):
    """At x with v != 0 it is gradient + g'(x): with a gradient that cancels g' to 1e-11 the difference must show."""
    found = form(name)
    x = np.linspace(1.0, 2.0, D) + found.kink
    slope = (np.array([found.value(x + 1e-6 * e) - found.value(x - 1e-6 * e) for e in np.eye(D)])) / 2e-6
    exact = found.mapping(x, np.zeros(D), 1e-14)  # g'(x), to a few eps
    np.testing.assert_allclose(exact, slope, rtol=1e-6)
    off = 1e-11 * np.arange(1.0, D + 1)
    np.testing.assert_allclose(found.mapping(x, off - exact, 1e-14), off, rtol=0, atol=1e-13)
