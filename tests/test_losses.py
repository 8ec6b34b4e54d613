"""Losses: value, slope and curvature against finite differences, SciPy and scikit-learn."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, log_expit
from sklearn.metrics import log_loss, mean_squared_error

from compfed.errors import InputError
from compfed.losses import Logistic, Squared

LOSSES = {"Logistic": Logistic(), "Squared": Squared()}
Z = np.linspace(-8, 8, 101)
Y = np.where(np.arange(101) % 3 == 0, 1.0, -1.0)

each = pytest.mark.parametrize("name", LOSSES)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@jax.jit
def value(loss, z, y):
    return loss.value(z, y)


@jax.jit
def slope(loss, z, y):
    return loss.slope(z, y)


def test_logistic_formulas():
    np.testing.assert_allclose(value(Logistic(), Z, Y), np.log(1 + np.exp(-Y * Z)), rtol=1e-12)
    np.testing.assert_allclose(value(Logistic(), Z, Y), -log_expit(Y * Z), rtol=1e-13)
    np.testing.assert_allclose(slope(Logistic(), Z, Y), -Y * expit(-Y * Z), rtol=1e-13)
    np.testing.assert_allclose(np.mean(value(Logistic(), Z, Y)), log_loss(Y, expit(Z)), rtol=1e-12)


def test_squared_formulas():
    y = 0.3 * Z + Y
    np.testing.assert_allclose(value(Squared(), Z, y), (Z - y) ** 2 / 2, rtol=1e-14)
    np.testing.assert_allclose(slope(Squared(), Z, y), Z - y, rtol=1e-14)
    np.testing.assert_allclose(np.mean(value(Squared(), Z, y)), mean_squared_error(y, Z) / 2, rtol=1e-13)


@each
def test_slope_is_the_derivative_of_value(name):
    loss, h = LOSSES[name], 1e-5
    difference = (value(loss, Z + h, Y) - value(loss, Z - h, Y)) / (2 * h)
    np.testing.assert_allclose(slope(loss, Z, Y), difference, rtol=1e-7, atol=1e-9)


@each
def test_curvature_is_the_least_bound_on_the_second_derivative(name):
    loss, h = LOSSES[name], 1e-4
    second = np.asarray(slope(loss, Z + h, Y) - slope(loss, Z - h, Y)) / (2 * h)
    assert second.min() >= -1e-9  # convex
    assert second.max() <= loss.curvature * (1 + 1e-7)
    assert second.max() >= loss.curvature * (1 - 1e-7)  # Z contains 0, where the logistic curvature is largest


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("margin", [-1e4, -100.0, 100.0, 1e4])
def test_logistic_at_extreme_margins(margin, dtype):
    for y in (-1.0, 1.0):
        z = jnp.asarray(y * margin, dtype)
        v, s = Logistic().value(z, jnp.asarray(y, dtype)), Logistic().slope(z, jnp.asarray(y, dtype))
        assert v.dtype == s.dtype == dtype
        # log(1 + exp(-m)) is -m for a large negative margin and exp(-m) for a large positive one
        np.testing.assert_allclose(v, -margin if margin < 0 else np.exp(-margin).astype(dtype), rtol=1e-6, atol=1e-37)
        np.testing.assert_allclose(s, -y if margin < 0 else -y * np.exp(-margin), rtol=1e-6, atol=1e-37)


def test_logistic_keeps_its_digits_for_well_classified_rows():
    """log(1 + e^-30) written naively has three correct digits; here it must have them all."""
    np.testing.assert_allclose(value(Logistic(), 30.0, 1.0), np.log1p(np.exp(-30.0)), rtol=1e-14)


@pytest.mark.parametrize(
    ("labels", "coded"),
    [
        ([0, 1, 1], [-1, 1, 1]),
        ([-1, 1, 1], [-1, 1, 1]),
        ([1, 1], [1, 1]),
        ([0, 0], [-1, -1]),
        ([-1, -1], [-1, -1]),
    ],
)
def test_logistic_label_coding(labels, coded):
    np.testing.assert_array_equal(Logistic().encode(np.array(labels, float)), coded)


@pytest.mark.parametrize("labels", [[1.0, 2.0], [-1.0, 0.0], [-1.0, 0.0, 1.0], [0.5, 1.0], np.arange(10.0)])
def test_logistic_refuses_other_labels(labels):
    with pytest.raises(
        InputError, match=r"\{-1, \+1\} or \{0, 1\}; found .*Recode the two classes, or use losses.Squared"
    ):
        Logistic().encode(np.array(labels))


def test_squared_takes_labels_as_they_are():
    labels = np.array([0.0, 1.0, 7.5, -3.0])
    np.testing.assert_array_equal(Squared().encode(labels), labels)


@each
def test_ridge_is_a_leaf(name):
    assert jax.tree.leaves(type(LOSSES[name])(ridge=0.25)) == [0.25]
    assert LOSSES[name].ridge == 0.0
