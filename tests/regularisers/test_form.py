"""The coordinate form of a regulariser against its own value and prox."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from form_cases import CASES, GROUPS, LOWER, OFFSET, UPPER, WEIGHTS, WITHOUT, D

from compfed import regularisers
from compfed.errors import InputError
from compfed.regularisers import L1, Blocks, GroupL2, OnBlock, Zero
from compfed.regularisers.coordinate_form import CoordinateForm, coordinate_form

STEPS = np.array([1e-3, 0.05, 0.1, 0.4, 0.7, 1.5, 3.0])  # D of them: also one for each coefficient

each = pytest.mark.parametrize("name", CASES)
pytestmark = pytest.mark.usefixtures("double_precision")


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
    assert set(found.group) - {-1} == set(range(len(found.group_weight)))


@each
def test_value(name):
    found, g = form(name), CASES[name]
    for x in points():
        inside = g.prox(x, 0.4)  # random points alone would nearly all be out of bounds
        np.testing.assert_allclose(found.value(x), g(x), rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(found.value(inside), g(inside), rtol=1e-13, atol=1e-13)
        assert np.isfinite(found.value(inside))


@each
def test_the_gradient_mapping_is_that_of_the_prox(name):
    """At points of its domain, for steps of all sizes; zero groups and coefficients at kinks and bounds among them."""
    found, g, rng = form(name), CASES[name], np.random.default_rng(7)
    for t in (1e-3, 0.3, 4.0):
        for point in points():
            x, gradient = g.prox(point, 0.5), 2.0 * rng.standard_normal(D)
            expected = (x - g.prox(x - t * gradient, t)) / t
            np.testing.assert_allclose(found.gradient_mapping(x, gradient, t), expected, rtol=1e-9, atol=1e-11)


@each
def test_the_least_subgradient_is_zero_exactly_at_a_minimiser(name):
    """u = prox_g(z) minimises <u - z, .> + g; elsewhere a small step against the least subgradient is descent."""
    found, g = form(name), CASES[name]
    for z in points():
        u = g.prox(z, 1.0)
        np.testing.assert_allclose(found.min_subgradient(u, u - z), 0.0, atol=1e-13)
        x = g.prox(z + 0.3, 0.5)
        x = np.where(np.abs(x - found.kink) < 1e-9, found.kink, x)  # no group that is nearly zero, where a norm bends
        least = found.min_subgradient(x, x - z)
        if np.linalg.norm(least) > 1e-12:
            step = 1e-6 * least / np.linalg.norm(least)
            after = np.clip(x - step, found.lower, found.upper)
            assert (x - z) @ (after - x) + 0.5 * (after - x) @ (after - x) + g(after) - g(x) < 0


@each
def test_some_coefficients_and_the_others(name):
    found, rng = form(name), np.random.default_rng(2)
    chosen = np.where(found.group >= 0, rng.random(D + 1)[found.group], rng.random(D)) < 0.5
    W, rest = rng.permutation(np.flatnonzero(chosen)), np.flatnonzero(~chosen)
    assert 0 < len(W) < D
    one, two = found.at(W), found.at(rest)
    assert len(one.group_weight) + len(two.group_weight) == len(found.group_weight)
    for x in CASES[name].prox(points()[0], 0.1), *points():
        np.testing.assert_allclose(one.value(x[W]) + two.value(x[rest]), found.value(x), rtol=1e-13, atol=1e-13)
        mapping = found.gradient_mapping(x, x, 0.4)
        np.testing.assert_allclose(one.gradient_mapping(x[W], x[W], 0.4), mapping[W], rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", WITHOUT)
def test_none(name):
    assert coordinate_form(WITHOUT[name], D) is None


def test_separable_is_without_groups():
    assert form("L1+Box").separable
    assert not form("GroupL2").separable
    assert form("Blocks-of-groups").at(np.array([2, 6])).separable


def test_sums_whose_prox_would_be_wrong_have_no_form():
    """SumOf refuses these pairs too; a form must not depend on that."""
    groups = form("GroupL2")
    for other in form("GroupL2"), form("ElasticNet-weighted"), form("Box-of-arrays"):
        assert groups.plus(other) is None
        assert other.plus(groups) is None
    assert groups.plus(form("ElasticNet")) is not None


def test_what_is_refused():
    found = form("GroupL2")
    with pytest.raises(InputError, match="cuts a group"):
        found.at(np.array([0, 1]))
    with pytest.raises(InputError, match=r"shape \(7,\); the model has 5"):
        coordinate_form(L1(WEIGHTS), 5)
    for g in GroupL2(0.8, GROUPS), OnBlock(L1(0.1), 0, 7), Blocks((L1(0.1), Zero()), (6, 1)):
        with pytest.raises(InputError, match="model"):
            coordinate_form(g, 5)


@pytest.mark.parametrize("name", ["L1", "ElasticNet", "GroupL2", "SparseGroup"])
def test_the_gradient_mapping_loses_no_digits_to_a_short_step(name):
    """At x with v != 0 it is gradient + g'(x): with a gradient that cancels g' to 1e-11 the difference must show."""
    found = form(name)
    x = np.linspace(1.0, 2.0, D) + found.kink
    slope = (np.array([found.value(x + 1e-6 * e) - found.value(x - 1e-6 * e) for e in np.eye(D)])) / 2e-6
    exact = found.gradient_mapping(x, np.zeros(D), 1e-14)  # g'(x), to a few eps
    np.testing.assert_allclose(exact, slope, rtol=1e-6)
    off = 1e-11 * np.arange(1.0, D + 1)
    np.testing.assert_allclose(found.gradient_mapping(x, off - exact, 1e-14), off, rtol=0, atol=1e-13)
