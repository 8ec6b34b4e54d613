"""Losses: value, derivative, gradient and curvature against finite differences, SciPy and scikit-learn."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from scipy.special import expit, gammaln, log_expit, xlogy
from scipy.stats import nbinom
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, mean_gamma_deviance, mean_pinball_loss, mean_poisson_deviance, mean_squared_error
from sklearn.svm import LinearSVC

import compfed as cf
from compfed import losses
from compfed.errors import InputError

Z = np.linspace(-8, 8, 101)
SIGNS = np.where(np.arange(101) % 3 == 0, 1.0, -1.0)
COUNTS = np.arange(101.0) % 7
QUANTILE = losses.SmoothedQuantile(quantile=0.3, smoothing=0.8)

# Losses of one prediction, with labels they are made for.
LOSSES: dict[str, tuple[Any, np.ndarray]] = {
    "Logistic": (losses.Logistic(), SIGNS),
    "Squared": (losses.Squared(), SIGNS + 0.3 * Z),
    "SquaredHinge": (losses.SquaredHinge(), SIGNS),
    "Huber": (losses.Huber(delta=1.35), SIGNS),
    "SmoothedQuantile": (QUANTILE, SIGNS),
    "Poisson": (losses.Poisson(), COUNTS),
    "Gamma": (losses.Gamma(), COUNTS + 0.5),
    "NegativeBinomial": (losses.NegativeBinomial(theta=2.5), COUNTS),
    "NegativeBinomialLikelihood": (losses.NegativeBinomialLikelihood(theta=2.5), COUNTS),
    "ClassWeightedLogistic": (losses.ClassWeightedLogistic(class_weights=[4.0, 0.3]), SIGNS),
}
each = pytest.mark.parametrize("name", LOSSES)

pytestmark = pytest.mark.usefixtures("double_precision")


@jax.jit
def value(loss, z, y):
    return loss.value(z, y)


@jax.jit
def slope(loss, z, y):
    return loss.derivative(z, y)


# --- formulas ---


def test_logistic_formulas():
    np.testing.assert_allclose(value(losses.Logistic(), Z, SIGNS), np.log(1 + np.exp(-SIGNS * Z)), rtol=1e-12)
    np.testing.assert_allclose(value(losses.Logistic(), Z, SIGNS), -log_expit(SIGNS * Z), rtol=1e-13)
    np.testing.assert_allclose(slope(losses.Logistic(), Z, SIGNS), -SIGNS * expit(-SIGNS * Z), rtol=1e-13)
    np.testing.assert_allclose(np.mean(value(losses.Logistic(), Z, SIGNS)), log_loss(SIGNS, expit(Z)), rtol=1e-12)


def test_squared_formulas():
    y = 0.3 * Z + SIGNS
    np.testing.assert_allclose(value(losses.Squared(), Z, y), (Z - y) ** 2 / 2, rtol=1e-14)
    np.testing.assert_allclose(slope(losses.Squared(), Z, y), Z - y, rtol=1e-14)
    np.testing.assert_allclose(np.mean(value(losses.Squared(), Z, y)), mean_squared_error(y, Z) / 2, rtol=1e-13)


def test_squared_hinge_formulas():
    hinge = np.maximum(0, 1 - SIGNS * Z)
    np.testing.assert_allclose(value(losses.SquaredHinge(), Z, SIGNS), hinge**2, rtol=1e-14)
    np.testing.assert_allclose(slope(losses.SquaredHinge(), Z, SIGNS), -2 * SIGNS * hinge, rtol=1e-14)
    assert (hinge == 0).any(), "some rows are beyond the margin, where the loss is flat"


def test_gamma_formulas():
    y = COUNTS + 0.5
    np.testing.assert_allclose(value(losses.Gamma(), Z, y), y * np.exp(-Z) + Z, rtol=1e-13)
    half = np.mean(value(losses.Gamma(), Z, y) - np.log(y) - 1)
    np.testing.assert_allclose(half, mean_gamma_deviance(y, np.exp(Z)) / 2, rtol=1e-12)


@pytest.mark.parametrize("theta", [0.3, 2.5, 1e6])
def test_negative_binomial_formulas(theta):
    """The log-likelihood of SciPy, up to terms of y alone."""
    loss = losses.NegativeBinomial(theta=theta)
    found = value(loss, Z, COUNTS) - value(loss, np.zeros_like(Z), COUNTS)
    p, at_one = theta / (theta + np.exp(Z)), theta / (theta + 1)
    expected = nbinom.logpmf(COUNTS, theta, at_one) - nbinom.logpmf(COUNTS, theta, p)
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("theta", [1e-3, 0.3, 2.5, 1e4])
def test_the_negative_binomial_likelihood_is_that_of_scipy(theta):
    """With its terms in theta, and without log(y!)."""
    loss = losses.NegativeBinomialLikelihood(theta=theta)
    expected = -nbinom.logpmf(COUNTS, theta, theta / (theta + np.exp(Z))) - gammaln(COUNTS + 1)
    np.testing.assert_allclose(value(loss, Z, COUNTS), expected, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(loss.value(Z, COUNTS), expected, rtol=1e-8, atol=1e-8)
    at = np.log(np.maximum(COUNTS, 1e-300))
    np.testing.assert_allclose(loss.saturated(COUNTS), loss.value(at, COUNTS), rtol=1e-8, atol=1e-8)


def test_class_weights_multiply_the_loss():
    loss = losses.ClassWeightedLogistic(class_weights=[0.3, 4.0])
    w = np.where(SIGNS > 0, 4.0, 0.3)
    np.testing.assert_allclose(value(loss, Z, SIGNS), w * np.log(1 + np.exp(-SIGNS * Z)), rtol=1e-12)
    theta = 0.7 * slope(loss, Z, SIGNS)
    grid = np.linspace(-60, 60, 240_001)  # the conjugate is the largest theta z - loss
    for k in (5, 30, 60, 90):
        best = np.max(theta[k] * grid - w[k] * np.logaddexp(0, -SIGNS[k] * grid))
        np.testing.assert_allclose(loss.conjugate(np.asarray(theta), SIGNS)[k], best, rtol=1e-6)


@pytest.mark.parametrize("delta", [0.2, 1.35, 100.0])
def test_huber_is_that_of_scipy(delta):
    np.testing.assert_allclose(value(losses.Huber(delta), Z, SIGNS), scipy.special.huber(delta, Z - SIGNS), rtol=1e-13)
    if delta == 100.0:  # beyond all residuals it is half the square
        np.testing.assert_allclose(value(losses.Huber(delta), Z, SIGNS), (Z - SIGNS) ** 2 / 2, rtol=1e-13)


@pytest.mark.parametrize(("quantile", "smoothing"), [(0.3, 0.8), (0.5, 0.1), (0.95, 3.0)])
def test_smoothed_quantile_is_the_maximum_it_says(quantile, smoothing):
    r = SIGNS - Z
    u = np.linspace(quantile - 1, quantile, 100_001)  # steps of 1e-5: the parabola is off by less than smoothing 1e-10
    best = np.array([(u * r_l - smoothing * u**2 / 2).max() for r_l in r])
    found = value(losses.SmoothedQuantile(quantile, smoothing), Z, SIGNS)
    np.testing.assert_allclose(found, best, rtol=0, atol=1e-9)


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.8])
def test_smoothed_quantile_tends_to_the_pinball_loss_of_scikit_learn(quantile):
    """The maximum over u of u r - s u^2 / 2 is below that of u r by at most s max(q, 1 - q)^2 / 2."""
    pinball = mean_pinball_loss(SIGNS, Z, alpha=quantile)
    for smoothing in (1.0, 1e-2, 1e-6):
        below = pinball - np.mean(value(losses.SmoothedQuantile(quantile, smoothing), Z, SIGNS))
        assert 0 < below <= smoothing * max(quantile, 1 - quantile) ** 2 / 2


def test_poisson_formulas():
    np.testing.assert_allclose(value(losses.Poisson(), Z, COUNTS), np.exp(Z) - COUNTS * Z, rtol=1e-13)
    # the deviance is twice the loss above its least value, which is at z = log y
    least = COUNTS - xlogy(COUNTS, COUNTS)
    deviance = 2 * np.mean(value(losses.Poisson(), Z, COUNTS) - least)
    np.testing.assert_allclose(deviance, mean_poisson_deviance(COUNTS, np.exp(Z)), rtol=1e-12)


SCORES = np.random.default_rng(0).normal(0, 3, (30, 4))
CLASSES = np.arange(30) % 4


def test_softmax_formulas():
    loss = losses.Softmax(outputs=4)
    p = scipy.special.softmax(SCORES, axis=1)
    np.testing.assert_allclose(value(loss, SCORES, 1.0 * CLASSES), -np.log(p[np.arange(30), CLASSES]), rtol=1e-12)
    np.testing.assert_allclose(np.mean(value(loss, SCORES, 1.0 * CLASSES)), log_loss(CLASSES, p), rtol=1e-12)
    np.testing.assert_allclose(slope(loss, SCORES, 1.0 * CLASSES), p - np.eye(4)[CLASSES], atol=1e-14)


def test_softmax_with_two_classes_is_the_logistic_loss_of_their_difference():
    two, signs = SCORES[:, :2], np.where(CLASSES % 2 == 1, 1.0, -1.0)
    np.testing.assert_allclose(
        value(losses.Softmax(outputs=2), two, CLASSES % 2.0),
        value(losses.Logistic(), two[:, 1] - two[:, 0], signs),
        rtol=1e-12,
    )


def test_multi_squared_is_the_sum_of_the_squared_losses():
    y = np.random.default_rng(1).standard_normal((30, 4))
    each_output = [value(losses.Squared(), SCORES[:, k], y[:, k]) for k in range(4)]
    np.testing.assert_allclose(
        value(losses.MultiSquared(outputs=4), SCORES, y), np.sum(each_output, axis=0), rtol=1e-13
    )


# --- derivatives ---


@each
def test_slope_is_the_derivative_of_value(name):
    (loss, y), h = LOSSES[name], 1e-5
    difference = (value(loss, Z + h, y) - value(loss, Z - h, y)) / (2 * h)
    np.testing.assert_allclose(slope(loss, Z, y), difference, rtol=1e-7, atol=2e-9)


@each
def test_curvature_is_the_least_bound_on_the_second_derivative(name):
    (loss, y), h = LOSSES[name], 1e-4
    second = np.asarray(slope(loss, Z + h, y) - slope(loss, Z - h, y)) / (2 * h)
    assert second.min() >= -1e-9  # convex
    m = np.exp(Z)
    unbounded = {"Poisson": m, "Gamma": y / m, "NegativeBinomial": (y + 2.5) * 2.5 * m / (2.5 + m) ** 2}
    unbounded["NegativeBinomialLikelihood"] = unbounded["NegativeBinomial"]
    if name in unbounded:
        assert loss.curvature is None
        np.testing.assert_allclose(second, unbounded[name], rtol=1e-7, atol=1e-9)
        return
    assert second.max() <= loss.curvature * (1 + 1e-7)
    assert second.max() >= loss.curvature * (1 - 1e-7)  # Z contains 0, where the logistic curvature is largest


@jax.jit
def second_derivative(loss, z, y):
    return jax.vmap(jax.jacfwd(loss.derivative))(z, y)


def test_softmax_curvature():
    """The second derivative is diag(p) - p p^T; its largest eigenvalue is 1/2, at two classes of equal probability."""
    tie = np.array([[40.0, 40.0, 0.0, -3.0]])
    z = np.concatenate([SCORES, tie])
    H = np.asarray(second_derivative(losses.Softmax(outputs=4), z, np.arange(31.0) % 4))
    p = scipy.special.softmax(z, axis=1)
    np.testing.assert_allclose(H, [np.diag(q) - np.outer(q, q) for q in p], atol=1e-14)
    eigenvalues = np.linalg.eigvalsh(H)
    assert eigenvalues.min() >= -1e-15  # convex
    assert eigenvalues.max() <= losses.Softmax(outputs=4).curvature * (1 + 1e-14)
    np.testing.assert_allclose(eigenvalues[-1, -1], losses.Softmax(outputs=4).curvature, rtol=1e-14)


def test_multi_squared_curvature():
    H = second_derivative(losses.MultiSquared(outputs=4), SCORES, SCORES + 1)
    np.testing.assert_allclose(
        H, np.broadcast_to(losses.MultiSquared(outputs=4).curvature * np.eye(4), H.shape), atol=1e-14
    )


# --- the model: gradient(x, A, y, weight) = grad of weight @ values(x, A, y), for every loss ---

ROWS, WIDTH = 7, 3
NETWORK = losses.from_function(
    lambda w, a, y: (jnp.tanh(a @ w["in"] + w["bias"]) @ w["out"] - y) ** 2,
    {"in": np.ones((WIDTH, 2)), "bias": np.zeros(2), "out": np.array([0.5, -0.5])},
)
MODELS: dict[str, tuple[Any, np.ndarray, int]] = {
    **{name: (loss, y[:ROWS], WIDTH) for name, (loss, y) in LOSSES.items()},
    "Softmax": (losses.Softmax(outputs=4), np.arange(ROWS) % 4.0, 4 * WIDTH),
    "MultiSquared": (losses.MultiSquared(outputs=2), np.arange(2.0 * ROWS).reshape(ROWS, 2) / 5, 2 * WIDTH),
    "from_function": (NETWORK, np.arange(ROWS) / 5.0, 2 * WIDTH + 4),
}


@jax.jit
def weighted_sums(loss, X, A, y, weight):
    return jax.vmap(lambda x: weight @ loss.values(x, A, y))(X)


@jax.jit
def weighted_gradient(loss, x, A, y, weight):
    return loss.gradient(x, A, y, weight)


@pytest.mark.parametrize("name", MODELS)
def test_gradient_is_the_derivative_of_the_weighted_sum(name):
    loss, y, d = MODELS[name]
    rng = np.random.default_rng(3)
    A, weight, x, h = rng.standard_normal((ROWS, WIDTH)), rng.random(ROWS), rng.standard_normal(d), 1e-5
    weight[2] = 0.0  # a row that does not count
    assert loss.size(WIDTH) == d
    steps = h * np.concatenate([np.eye(d), -np.eye(d)])
    sums = np.asarray(weighted_sums(loss, x + steps, A, y, weight))
    found = weighted_gradient(loss, x, A, y, weight)
    np.testing.assert_allclose(found, (sums[:d] - sums[d:]) / (2 * h), rtol=1e-7, atol=2e-9)
    A[2] = 1e3  # and so it may be anything
    np.testing.assert_allclose(weighted_gradient(loss, x, A, y, weight), found, rtol=1e-12)


@each
def test_values_are_those_of_the_predictions(name):
    loss, y, _ = MODELS[name]
    rng = np.random.default_rng(4)
    A, x = rng.standard_normal((ROWS, WIDTH)), rng.standard_normal(WIDTH)
    np.testing.assert_allclose(loss.values(x, A, y), value(loss, A @ x, y), rtol=1e-12)


def test_several_outputs_are_the_columns_of_a_matrix():
    """x.reshape(-1, K): the coefficients of output k are every K-th entry from k."""
    rng = np.random.default_rng(5)
    A, X, y = (jnp.asarray(rng.standard_normal(shape)) for shape in ((ROWS, WIDTH), (WIDTH, 2), (ROWS, 2)))
    x = jnp.array([X[j, k] for j in range(WIDTH) for k in range(2)])
    z = np.stack([A @ X[:, 0], A @ X[:, 1]], axis=1)
    np.testing.assert_allclose(
        losses.MultiSquared(outputs=2).values(x, A, y), ((z - y) ** 2).sum(axis=1) / 2, rtol=1e-12
    )


# --- extreme arguments: exact where the exact value is a number of this precision, never NaN ---


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("margin", [-1e4, -100.0, 100.0, 1e4])
def test_logistic_at_extreme_margins(margin, dtype):
    for y in (-1.0, 1.0):
        z = jnp.asarray(y * margin, dtype)
        v, s = losses.Logistic().value(z, jnp.asarray(y, dtype)), losses.Logistic().derivative(z, jnp.asarray(y, dtype))
        assert v.dtype == s.dtype == dtype
        # log(1 + exp(-m)) is -m for a large negative margin and exp(-m) for a large positive one
        np.testing.assert_allclose(v, -margin if margin < 0 else np.exp(-margin).astype(dtype), rtol=1e-6, atol=1e-37)
        np.testing.assert_allclose(s, -y if margin < 0 else -y * np.exp(-margin), rtol=1e-6, atol=1e-37)


def test_logistic_keeps_its_digits_for_well_classified_rows():
    """log(1 + e^-30) written naively has three correct digits; here it must have them all."""
    np.testing.assert_allclose(value(losses.Logistic(), 30.0, 1.0), np.log1p(np.exp(-30.0)), rtol=1e-14)


# (loss, y) -> value and slope at z, to leading order for |z| large
FAR: dict[str, tuple[Any, float, Any, Any]] = {
    "SquaredHinge": (losses.SquaredHinge(), 1.0, lambda z: z**2 if z < 0 else 0, lambda z: 2 * z if z < 0 else 0),
    "Huber": (losses.Huber(delta=0.5), 3.0, lambda z: 0.5 * abs(z), lambda z: 0.5 * np.sign(z)),
    "SmoothedQuantile": (
        losses.SmoothedQuantile(quantile=0.3, smoothing=0.01),
        3.0,
        lambda z: 0.7 * z if z > 0 else -0.3 * z,
        lambda z: 0.7 if z > 0 else -0.3,
    ),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FAR)
def test_losses_far_from_the_label(name, dtype):
    loss, y, far_value, far_slope = FAR[name]
    largest = float(np.sqrt(np.finfo(dtype).max)) / 4 if name == "SquaredHinge" else float(np.finfo(dtype).max) / 2
    for z in (-largest, -1e15, 1e15, largest):
        v, s = (f(jnp.asarray(z, dtype), jnp.asarray(y, dtype)) for f in (loss.value, loss.derivative))
        assert v.dtype == s.dtype == dtype
        np.testing.assert_allclose(v, far_value(z), rtol=1e-6)
        np.testing.assert_allclose(s, far_slope(z), rtol=1e-6)


@pytest.mark.parametrize(("dtype", "largest"), [(np.float32, 88.0), (np.float64, 709.0)])
def test_poisson_at_extreme_predictions(dtype, largest):
    for z, y in [(largest, 3.0), (-largest, 3.0), (-1e30, 3.0), (-1e30, 0.0)]:
        v, s = (
            f(jnp.asarray(z, dtype), jnp.asarray(y, dtype))
            for f in (losses.Poisson().value, losses.Poisson().derivative)
        )
        assert v.dtype == s.dtype == dtype
        np.testing.assert_allclose(v, np.exp(z) - y * z, rtol=2e-5)
        np.testing.assert_allclose(s, np.exp(z) - y, rtol=2e-5)
    beyond = jnp.asarray(2 * largest, dtype)
    assert value(losses.Poisson(), beyond, 3.0) == slope(losses.Poisson(), beyond, 3.0) == np.inf  # and not inf - inf


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_softmax_at_extreme_scores(dtype):
    loss, top = losses.Softmax(outputs=3), float(np.finfo(dtype).max) / 4
    # (scores, label, value, slope)
    cases: list[tuple[Any, int, float, Any]] = [
        ((top, -top, 0.0), 0, 0.0, (0, 0, 0)),
        ((top, -top, 0.0), 2, top, (1, 0, -1)),
        ((top, -top, 0.0), 1, 2 * top, (1, -1, 0)),
        ((-top, -top, -top), 1, np.log(3), (1 / 3, -2 / 3, 1 / 3)),
        ((1e4, 1e4, -1e4), 0, np.log(2), (-1 / 2, 1 / 2, 0)),
    ]
    scores, labels, values, slopes = (np.array(column, float) for column in zip(*cases, strict=True))
    z, y = jnp.asarray(scores, dtype), jnp.asarray(labels, dtype)
    v, s = value(loss, z, y), slope(loss, z, y)
    assert v.dtype == s.dtype == dtype
    # the scores themselves are rounded, so a value has their absolute accuracy
    error = 1e-6 * np.abs(values) + 2 * np.finfo(dtype).eps * np.abs(scores[:, 0])
    assert (np.abs(v - values) <= error).all()
    np.testing.assert_allclose(s, slopes, rtol=1e-6, atol=1e-37)


# --- labels ---

TWO_CLASSES = [losses.Logistic(), losses.SquaredHinge()]


@pytest.mark.parametrize("loss", TWO_CLASSES)
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
def test_coding_of_two_classes(loss, labels, coded):
    np.testing.assert_array_equal(loss.encode(np.array(labels, float)), coded)


@pytest.mark.parametrize("loss", TWO_CLASSES)
@pytest.mark.parametrize("labels", [[1.0, 2.0], [-1.0, 0.0], [-1.0, 0.0, 1.0], [0.5, 1.0], np.arange(10.0)])
def test_two_class_losses_refuse_other_labels(loss, labels):
    message = (
        rf"{type(loss).__name__} needs labels in \{{-1, \+1\}} or \{{0, 1\}}; there are others\. "
        r"Recode the two classes, or use losses\.Squared .*, losses\.Softmax for more"
    )
    with pytest.raises(InputError, match=message):
        loss.encode(np.array(labels))


@pytest.mark.parametrize("loss", [losses.Squared(), losses.Huber(), losses.SmoothedQuantile(), NETWORK])
def test_numeric_labels_are_taken_as_they_are(loss):
    labels = np.array([0.0, 1.0, 7.5, -3.0])
    np.testing.assert_array_equal(loss.encode(labels), labels)


def test_labels_of_a_function_may_have_any_shape():
    labels = np.arange(12.0).reshape(2, 3, 2)
    np.testing.assert_array_equal(NETWORK.encode(labels), labels)


def test_poisson_labels():
    labels = np.array([0.0, 2.0, 1.5])  # rates as well as counts
    np.testing.assert_array_equal(losses.Poisson().encode(labels), labels)
    with pytest.raises(InputError, match=r"Poisson needs labels >= 0 \(counts or rates\); some are below 0\. Correct"):
        losses.Poisson().encode(np.array([1.0, -0.5, 3.0]))


def test_softmax_labels():
    labels = np.array([0.0, 2.0, 0.0])  # a class may be absent
    np.testing.assert_array_equal(losses.Softmax(outputs=3).encode(labels), labels)
    message = (
        r"Softmax\(outputs=3\) needs labels in 0\.\.2; there are others\. Number the classes from 0 .* more outputs"
    )
    for wrong in ([1, 2, 3], [0, 1.5], [-1, 1], np.arange(40.0)):
        with pytest.raises(InputError, match=message):
            losses.Softmax(outputs=3).encode(np.array(wrong, float))


def test_multi_squared_labels():
    labels = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(losses.MultiSquared(outputs=2).encode(labels), labels)
    for wrong in (labels[:, :1], labels[:, 0]):
        shape = r"labels of shape \(rows, 1\)" if wrong.ndim == 2 else r"labels of shape \(rows\)"
        with pytest.raises(
            InputError, match=rf"MultiSquared\(outputs=2\) needs labels of shape \(rows, 2\); got {shape}"
        ):
            losses.MultiSquared(outputs=2).encode(wrong)


@pytest.mark.parametrize("loss", [*(loss for loss, _ in LOSSES.values()), losses.Softmax(outputs=2)])
def test_losses_of_one_outcome_refuse_several(loss):
    message = (
        rf"{type(loss).__name__} needs one label per row; got labels of shape \(rows, 2\)\. Use losses\.MultiSquared"
    )
    with pytest.raises(InputError, match=message):
        loss.encode(np.zeros((4, 2)))


# --- numbers of a loss ---


@pytest.mark.parametrize("name", MODELS)
def test_numbers_are_leaves_and_outputs_are_not(name):
    loss = MODELS[name][0]
    numbers = {
        "Huber": [1.35],
        "SmoothedQuantile": [0.3, 0.8],
        "NegativeBinomial": [2.5],
        "NegativeBinomialLikelihood": [2.5],
    }.get(name, [])
    assert loss.ridge == 0.0
    leaves = jax.tree.leaves(dataclasses.replace(loss, ridge=0.25))
    if name == "ClassWeightedLogistic":
        np.testing.assert_array_equal(leaves.pop(), [4.0, 0.3])
    assert leaves == [*numbers, 0.25]


def test_wrong_numbers_are_refused():
    for wrong, message in [
        (lambda: losses.Huber(delta=0.0), r"Huber\(delta=0\.0\): delta must be a finite number > 0"),
        (lambda: losses.SmoothedQuantile(quantile=1.0), r"quantile=1\.0\): quantile must be between 0 and 1"),
        (lambda: losses.SmoothedQuantile(quantile=0.0), r"quantile=0\.0\): quantile must be a finite number > 0"),
        (lambda: losses.SmoothedQuantile(smoothing=-1.0), r"smoothing=-1\.0\): smoothing must be a finite number > 0"),
        (lambda: losses.Softmax(outputs=0), r"Softmax\(outputs=0\): outputs must be a whole number >= 1"),
        (lambda: losses.MultiSquared(outputs=2.5), r"outputs=2\.5\): outputs must be a whole number >= 1"),  # pyright: ignore[reportArgumentType]  # the mistake
        (lambda: losses.Poisson(ridge=-1.0), r"Poisson\(ridge=-1\.0\): ridge must be finite and >= 0"),
    ]:
        with pytest.raises(InputError, match=message):
            wrong()


# --- minimisers: scikit-learn on the pooled rows ---

RIDGE = 0.3


@pytest.fixture(scope="module")
def table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(features, scores of three outcomes, site of each row)."""
    rng = np.random.default_rng(8)
    A = rng.standard_normal((60, 4))
    return A, A @ rng.standard_normal((4, 3)) + rng.standard_normal((60, 3)), np.repeat([0, 1, 2], [30, 20, 10])


def minimiser(loss: Any, A: np.ndarray, y: np.ndarray, where: np.ndarray) -> np.ndarray:
    sites = cf.data.from_table(A, y, where)
    return cf.solve_pooled(cf.Problem(loss, cf.regularisers.Zero(), sites, weights=sites.shares)).x


def test_squared_hinge_is_the_support_vector_machine(table):
    """scikit-learn: ||x||^2 / 2 + C * sum over rows; ours is ridge ||x||^2 / 2 + mean over rows."""
    A, scores, where = table
    model = LinearSVC(C=1 / (60 * RIDGE), fit_intercept=False, dual="auto", tol=1e-10, max_iter=10_000)
    model.fit(A, scores[:, 0] > 0)
    np.testing.assert_allclose(
        minimiser(losses.SquaredHinge(RIDGE), A, scores[:, 0] > 0, where), model.coef_[0], rtol=1e-5, atol=1e-7
    )


def test_softmax_is_multinomial_regression(table):
    A, scores, where = table
    y = scores.argmax(axis=1)
    model = LogisticRegression(C=1 / (60 * RIDGE), fit_intercept=False, tol=1e-10, max_iter=10_000).fit(A, y)
    X = minimiser(losses.Softmax(outputs=3, ridge=RIDGE), A, y, where).reshape(4, 3)
    np.testing.assert_allclose(X.T, model.coef_, rtol=1e-5, atol=1e-7)


def test_multi_squared_is_ridge_regression_of_several_outcomes(table):
    A, scores, where = table
    model = Ridge(alpha=60 * RIDGE, fit_intercept=False).fit(A, scores)
    X = minimiser(losses.MultiSquared(outputs=3, ridge=RIDGE), A, scores, where).reshape(4, 3)
    np.testing.assert_allclose(X.T, model.coef_, rtol=1e-10)


def test_quantile_of_a_constant_model(table):
    """The minimiser over constants of the pinball loss is the quantile; smoothing moves it by little."""
    y = table[1][:, 0]
    found = minimiser(losses.SmoothedQuantile(0.8, smoothing=0.01), np.ones((60, 1)), y, table[2])
    assert np.quantile(y, 0.8, method="lower") - 0.01 <= found[0] <= np.quantile(y, 0.8, method="higher") + 0.01


# --- any function of a pytree ---


def test_a_logistic_loss_by_hand_is_the_logistic_loss(table):
    """The same problem written twice: an intercept in a dict, and a column of ones in front."""
    A, scores, _ = table
    y, where = np.sign(scores[:, 0]), np.repeat([0, 1, 2], 20)
    by_hand = losses.from_function(
        lambda w, a, y: jnp.log1p(jnp.exp(-y * (a @ w["slopes"] + w["intercept"]))),
        {"slopes": np.zeros(4), "intercept": 0.0},
        ridge=RIDGE,
    )
    g = cf.regularisers.L1(0.02)
    mine = cf.Problem(by_hand, g, cf.data.from_table(A, y, where))
    ones = np.column_stack([np.ones(60), A])  # keys of a dict are in alphabetical order: the intercept comes first
    known = cf.Problem(losses.Logistic(ridge=RIDGE), g, cf.data.from_table(ones, y, where))
    assert mine.d == known.d == 5
    for x in np.random.default_rng(0).standard_normal((3, 5)):
        np.testing.assert_allclose(mine.objective(x), known.objective(x), rtol=1e-13)
        np.testing.assert_allclose(mine.gradient(x), known.gradient(x), rtol=1e-11, atol=1e-14)
        np.testing.assert_allclose(mine.client_gradients(x), known.client_gradients(x), rtol=1e-11, atol=1e-14)
    # a function has no known bound on its curvature: L is that at the start, for this one a quarter of A^T A / m
    np.testing.assert_allclose(mine.lipschitz, np.linalg.eigvalsh(ones.T @ ones / 240)[-1] + RIDGE, rtol=1e-7)
    mine_x, known_x = cf.solve_pooled(mine).x, cf.solve_pooled(known).x
    np.testing.assert_allclose(mine_x, known_x, rtol=1e-8, atol=1e-11)
    fitted = by_hand.unravel(mine_x)
    np.testing.assert_allclose(fitted["intercept"], known_x[0], rtol=1e-8, atol=1e-11)
    np.testing.assert_allclose(fitted["slopes"], known_x[1:], rtol=1e-8, atol=1e-11)


def nothing(w, a, y):
    return jnp.zeros(())


NESTED = {"layers": [{"W": np.arange(6.0).reshape(3, 2), "b": np.zeros(2)}, (np.full((2, 1, 2), 0.1), 7)], "scale": 1.5}


def test_nested_parameters_come_back_as_they_were():
    loss = losses.from_function(nothing, NESTED)
    assert loss.size(width=99) == loss.start.size == 6 + 2 + 4 + 1 + 1, "the parameters decide, not the features"
    back = loss.unravel(loss.start)
    assert jax.tree.structure(back) == jax.tree.structure(NESTED)
    for given, found in zip(jax.tree.leaves(NESTED), jax.tree.leaves(back), strict=True):
        np.testing.assert_array_equal(found, given)
        assert found.shape == np.shape(given)
    x = np.random.default_rng(0).standard_normal(14)
    again = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(loss.unravel(x))])
    np.testing.assert_array_equal(again, x)


@pytest.mark.parametrize("x64", [False, True])
def test_parameters_keep_the_precision_of_the_model(x64):
    """A run gives NumPy's float64 even where JAX's own default is float32."""
    loss = losses.from_function(nothing, NESTED)
    x = np.random.default_rng(0).standard_normal(14)
    with jax.enable_x64(x64):
        for dtype in (np.float32, np.float64):
            leaves = jax.tree.leaves(loss.unravel(x.astype(dtype)))
            assert {leaf.dtype for leaf in leaves} == {np.dtype(dtype)}
            np.testing.assert_array_equal(np.concatenate([leaf.ravel() for leaf in leaves]), x.astype(dtype))


def test_a_run_starts_at_the_parameters(table):
    A, scores, where = table
    params = {"W": np.full((4, 3), 0.25), "b": np.arange(3.0)}
    loss = losses.from_function(lambda w, a, y: ((a @ w["W"] + w["b"] - y) ** 2).sum() / 2, params, ridge=RIDGE)
    problem = cf.Problem(loss, cf.regularisers.Zero(), cf.data.from_table(A, scores, where))
    np.testing.assert_array_equal(problem.start, [0.25] * 12 + [0, 1, 2])
    trace = cf.simulate(problem, cf.algorithms.ProximalGradient(eta=0.1), 1)
    np.testing.assert_allclose(trace["objective"][0], problem.objective(problem.start), rtol=1e-14)
    np.testing.assert_allclose(trace.x, problem.start - 0.1 * problem.gradient(problem.start), rtol=1e-12, atol=1e-14)
    # the mean over sites of squared residuals, each site's rows averaged
    residual = A @ params["W"] + params["b"] - scores
    mean = np.mean([(residual[where == i] ** 2).sum(axis=1).mean() / 2 for i in range(3)])
    start = np.asarray(problem.start)
    np.testing.assert_allclose(problem.objective(start), mean + RIDGE / 2 * start @ start, rtol=1e-13)


def test_what_from_function_refuses():
    f = nothing
    for wrong, message in [
        (lambda: losses.from_function(3, np.zeros(2)), r"needs a function of \(params, row, label\); got int"),  # pyright: ignore[reportArgumentType]  # the mistake
        (lambda: losses.from_function(f, {"w": "zero"}), r"params must be a pytree of arrays of numbers: .*'zero'"),
        (lambda: losses.from_function(f, {}), r"params must be a pytree of arrays of numbers"),
        (lambda: losses.from_function(f, {"w": 1 + 2j}), r"params must be a pytree of arrays of numbers"),
        (lambda: losses.from_function(f, [np.zeros(2), np.nan]), r"params has NaN or infinite entries"),
        (
            lambda: losses.from_function(f, np.zeros(2), ridge=-1.0),
            r"FromFunction\(ridge=-1\.0\): ridge must be finite",
        ),
        (
            lambda: losses.from_function(f, np.zeros(2)).unravel(np.zeros(3)),
            r"x has shape \(3,\); .* 2 numbers in a row",
        ),
    ]:
        with pytest.raises(InputError, match=message):
            wrong()
