"""Losses on arrays of NumPy and of JAX: the same numbers, each in its own library; Hessians, terms and Lipschitz constants."""

from __future__ import annotations

import tracemalloc
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from compfed import losses
from compfed._utils import array_namespace as arrays
from compfed.errors import InputError
from compfed.losses import lipschitz as curvature

ROWS, WIDTH = 23, 5
RNG = np.random.default_rng(0)
A = RNG.standard_normal((ROWS, WIDTH))
WEIGHT = RNG.random(ROWS) * (np.arange(ROWS) != 4)  # one row does not count
SIGNS = np.where(RNG.random(ROWS) < 0.4, 1.0, -1.0)
NUMBERS = RNG.standard_normal(ROWS)

LINEAR: dict[str, tuple[Any, np.ndarray]] = {
    "Squared": (losses.Squared(), NUMBERS),
    "Logistic": (losses.Logistic(), SIGNS),
    "SquaredHinge": (losses.SquaredHinge(), SIGNS),
    "Huber": (losses.Huber(delta=0.8), NUMBERS),
    "SmoothedQuantile": (losses.SmoothedQuantile(quantile=0.3, smoothing=1.7), NUMBERS),
    "Poisson": (losses.Poisson(), np.arange(ROWS) % 4.0),
    "ClassWeightedLogistic": (losses.ClassWeightedLogistic(class_weights=[0.5, 3.0]), SIGNS),
    "WithOffset": (losses.WithOffset(losses.Poisson()), np.column_stack([np.arange(ROWS) % 4.0, NUMBERS])),
    "Gamma": (losses.Gamma(), 0.5 + np.arange(ROWS) % 4.0),
    "NegativeBinomial": (losses.NegativeBinomial(theta=1.7), np.arange(ROWS) % 4.0),
    "NegativeBinomialLikelihood": (losses.NegativeBinomialLikelihood(theta=1.7), np.arange(ROWS) % 4.0),
    "Softmax": (losses.Softmax(outputs=3), np.arange(ROWS) % 3.0),
    "ClassWeightedSoftmax": (
        losses.ClassWeightedSoftmax(outputs=3, class_weights=[0.5, 1.0, 3.0]),
        np.arange(ROWS) % 3.0,
    ),
    "MultiSquared": (losses.MultiSquared(outputs=2), RNG.standard_normal((ROWS, 2))),
}
NETWORK = losses.from_function(
    lambda w, a, y: (jnp.tanh(a @ w["in"] + w["bias"]) @ w["out"] - y) ** 2,
    {"in": RNG.standard_normal((WIDTH, 2)), "bias": np.zeros(2), "out": np.array([0.5, -0.5])},
)
LOSSES: dict[str, tuple[Any, np.ndarray]] = {**LINEAR, "from_function": (NETWORK, NUMBERS)}
linear = pytest.mark.parametrize("name", LINEAR)
each = pytest.mark.parametrize("name", LOSSES)


def model(loss: Any, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(loss.size(WIDTH))


def chosen(loss: Any) -> np.ndarray:
    """Coordinates in no order, and of several outputs, where there are several: the first entries and the last."""
    return np.array([loss.size(WIDTH) - 1, 0, 3, 1])


def results(loss: Any, x: Any, A: Any, y: Any, weight: Any) -> dict[str, Any]:
    return {
        "values": loss.values(x, A, y),
        "gradient": loss.gradient(x, A, y, weight),
        "hessian": loss.hessian(x, A, y, weight),
        "part": loss.hessian(x, A, y, weight, chosen(loss)),
    }


jitted = jax.jit(results)


def formulas(loss: Any, z: Any, y: Any) -> dict[str, Any]:
    return {name: getattr(loss, name)(z, y) for name in ("value", "derivative", "second_derivative")}


def predictions(loss: Any, x: np.ndarray) -> np.ndarray:
    return A @ (x.reshape(WIDTH, -1) if hasattr(loss, "outputs") else x)


# --- two libraries, one formula ---


@pytest.mark.parametrize(
    ("dtype", "rtol"), [(np.float64, 1e-12), pytest.param(np.float32, 2e-5, marks=pytest.mark.thorough)]
)
@each
def test_numpy_and_jax_agree(name, dtype, rtol):
    loss, y = LOSSES[name]
    given = [array.astype(dtype) for array in (model(loss), A, y, WEIGHT)]
    found = results(loss, *given)
    with jax.enable_x64(dtype == np.float64):
        expected = jitted(loss, *map(jnp.asarray, given))
    for quantity, value in found.items():
        assert isinstance(value, (np.ndarray, np.floating)), quantity
        assert value.dtype == expected[quantity].dtype == dtype, quantity
        assert value.shape == expected[quantity].shape, quantity
        scale = np.abs(expected[quantity]).max()
        np.testing.assert_allclose(value, expected[quantity], rtol=rtol, atol=rtol * scale, err_msg=quantity)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@linear
def test_formulas_of_the_prediction_agree(name, dtype):
    loss, y = LINEAR[name]
    z, y = predictions(loss, model(loss)).astype(dtype), y.astype(dtype)
    with jax.enable_x64(dtype == np.float64):
        expected = formulas(loss, jnp.asarray(z), jnp.asarray(y))
    for quantity, value in formulas(loss, z, y).items():
        assert isinstance(value, np.ndarray)
        assert isinstance(expected[quantity], jax.Array)
        assert value.dtype == expected[quantity].dtype == dtype, quantity
        rtol = 100 * np.finfo(dtype).eps
        np.testing.assert_allclose(value, expected[quantity], rtol=rtol, atol=rtol, err_msg=quantity)


@linear
def test_numpy_stays_in_numpy(name, monkeypatch):
    """No operation of JAX is run: every one of them is a primitive that is bound, here to an error."""

    class Untouchable:
        def __getattr__(self, attribute):
            raise AssertionError(f"jax.numpy.{attribute} was used on arrays of NumPy")

    def bind(self, *args, **params):
        raise AssertionError(f"the primitive {self} was run on arrays of NumPy")

    monkeypatch.setattr(arrays, "jnp", Untouchable())
    monkeypatch.setattr(jax.extend.core.Primitive, "bind", bind)
    loss, y = LINEAR[name]
    for value in results(loss, model(loss), A, y, WEIGHT).values():
        assert isinstance(value, (np.ndarray, np.floating))
    for value in formulas(loss, predictions(loss, model(loss)), y).values():
        assert isinstance(value, np.ndarray)
    assert isinstance(loss.lipschitz(A, WEIGHT, model(loss), y), float)


@each
def test_one_array_of_jax_makes_the_result_one(name):
    loss, y = LOSSES[name]
    given = [model(loss), A, y, WEIGHT]
    expected = results(loss, *given)
    with jax.enable_x64(True):
        for i in range(4):
            mixed = [jnp.asarray(array) if i == j else array for j, array in enumerate(given)]
            gradient = loss.gradient(*mixed)
            assert isinstance(gradient, jax.Array)
            np.testing.assert_allclose(gradient, expected["gradient"], rtol=1e-11, atol=1e-13)


def test_numbers_of_a_loss_may_be_traced_where_the_arrays_are_not():
    """A grid over delta is one vmap, whatever the predictions come as."""
    z, y = predictions(losses.Squared(), model(losses.Squared())), NUMBERS
    with jax.enable_x64(True):
        found = jax.vmap(lambda delta: losses.Huber.derivative(_with(losses.Huber(), delta=delta), z, y))(
            jnp.array([0.3, 2.0])
        )
    for delta, slope in zip([0.3, 2.0], found, strict=True):
        np.testing.assert_array_equal(slope, np.clip(z - y, -delta, delta))


def _with(loss: Any, **numbers: Any) -> Any:
    return jax.tree.unflatten(jax.tree.structure(loss), [numbers["delta"], loss.ridge])


def test_a_function_of_numpy_arrays_keeps_its_precision_and_may_be_used_while_tracing():
    x = model(NETWORK)
    with jax.enable_x64(False):  # JAX's own default
        assert NETWORK.gradient(x, A, NUMBERS, WEIGHT).dtype == np.float64
        doubled = jax.jit(lambda t: t * NETWORK.values(x, A, NUMBERS).astype(np.float32))(2.0)
    np.testing.assert_allclose(doubled, 2 * NETWORK.values(x, A, NUMBERS), rtol=1e-6)


# --- second derivatives: JAX differentiates `values` twice ---


@jax.jit
def hessian_of_values(loss, x, A, y, weight):
    return jax.hessian(lambda x: weight @ loss.values(x, A, y))(x)


@each
def test_hessian_is_the_second_derivative_of_the_values(name):
    loss, y = LOSSES[name]
    for seed in range(3):
        x = model(loss, seed)
        with jax.enable_x64(True):
            H = np.asarray(hessian_of_values(loss, x, A, y, WEIGHT))
        atol = 1e-13 * np.abs(H).max()
        np.testing.assert_allclose(loss.hessian(x, A, y, WEIGHT), H, rtol=1e-11, atol=atol)
        for W in (chosen(loss), np.arange(loss.size(WIDTH)), np.array([2]), np.array([], int)):
            found = loss.hessian(x, A, y, WEIGHT, W)
            assert found.shape == (len(W), len(W))
            np.testing.assert_allclose(found, H[np.ix_(W, W)], rtol=1e-11, atol=atol)


@each
def test_coordinates_of_a_hessian_may_be_traced(name):
    loss, y = LOSSES[name]
    x, W = model(loss), chosen(loss)
    with jax.enable_x64(True):
        found = jax.jit(lambda loss, *arrays: loss.hessian(*arrays))(loss, x, A, y, WEIGHT, W)
    np.testing.assert_allclose(found, loss.hessian(x, A, y, WEIGHT, W), rtol=1e-11, atol=1e-13)


@linear
def test_weight_is_the_second_derivative_in_the_prediction(name):
    loss, y = LINEAR[name]
    z = predictions(loss, model(loss))
    with jax.enable_x64(True):
        second = jax.vmap(jax.hessian(loss.value))(jnp.asarray(z), jnp.asarray(y))
    np.testing.assert_allclose(loss.second_derivative(z, y), second, rtol=1e-11, atol=1e-14)


def test_both_sides_of_a_kink_are_among_the_rows():
    """Else the tests above would not see where the second derivative of these losses is zero."""
    for name, most in ("SquaredHinge", 2.0), ("Huber", 1.0), ("SmoothedQuantile", 1 / 1.7):
        loss, y = LINEAR[name]
        np.testing.assert_allclose(np.unique(loss.second_derivative(predictions(loss, model(loss)), y)), [0.0, most])


def test_logistic_weight_keeps_its_digits():
    """p (1 - p) = exp(-|z|) / (1 + exp(-|z|))^2, for margins at which 1 - p is rounded to 0 or p to 1."""
    z = np.array([-700.0, -40.0, 40.0, 700.0])
    np.testing.assert_allclose(losses.Logistic().second_derivative(z, np.ones(4)), np.exp(-np.abs(z)), rtol=1e-14)


# --- the terms of the gradient ---


@each
def test_gradient_terms_are_the_norms_of_the_rows(name):
    loss, y = LOSSES[name]
    x = model(loss)
    with jax.enable_x64(True):
        rows = np.asarray(jax.jit(jax.jacobian(lambda x: loss.values(x, jnp.asarray(A), jnp.asarray(y))))(x))
    expected = sum(w * np.linalg.norm(row) for w, row in zip(WEIGHT, rows, strict=True))
    found = loss.evaluate(x[None], A, y, WEIGHT[None], np.zeros(1, int), np.linalg.norm(A, axis=1))
    np.testing.assert_allclose(found.terms, [expected], rtol=1e-12)
    np.testing.assert_allclose(found.value, [WEIGHT @ loss.values(x, A, y)], rtol=1e-12)
    np.testing.assert_allclose(found.gradient, [loss.gradient(x, A, y, WEIGHT)], rtol=1e-12, atol=1e-14)


# --- Lipschitz constants ---


def top(H: np.ndarray) -> float:
    return float(np.abs(np.linalg.eigvalsh(H)).max())


@pytest.fixture(params=[1000, 4])
def gram_width(request, monkeypatch):
    """With A^T A or A A^T, and, as for wide tables, by products with vectors only."""
    monkeypatch.setattr(curvature, "GRAM_WIDTH", request.param)


@pytest.mark.usefixtures("gram_width")
@each
def test_lipschitz_bounds_the_hessian(name):
    loss, y = LOSSES[name]
    for seed in range(3):
        x = model(loss, seed)
        found = loss.lipschitz(A, WEIGHT, x, y)
        reached = top(loss.hessian(x, A, y, WEIGHT))
        assert reached <= found * (1 + 1e-8)
        if loss.curvature is None or name in ("Squared", "MultiSquared"):
            np.testing.assert_allclose(found, reached, rtol=1e-7 if name == "from_function" else 1e-10)


# where the second derivative of every row is its bound: at zero for two classes, else at the labels
REACHED: dict[str, Any] = {
    "Logistic": losses.Logistic(),
    "SquaredHinge": losses.SquaredHinge(),
    "Softmax": losses.Softmax(outputs=2),
    "Huber": losses.Huber(),
    "SmoothedQuantile": losses.SmoothedQuantile(0.3, 1.7),
}


@pytest.mark.parametrize("shape", [(23, 5), (3, 5), (5, 5), (12, 9)])
@pytest.mark.usefixtures("gram_width")
@pytest.mark.parametrize("name", REACHED)
def test_lipschitz_is_reached(name, shape):
    """By tables tall and wide."""
    loss, rng = REACHED[name], np.random.default_rng(2)
    A, weight, x = rng.standard_normal(shape), WEIGHT[: shape[0]], np.zeros(loss.size(shape[1]))
    y = np.where(SIGNS[: shape[0]] > 0, 1.0, 0.0 if name == "Softmax" else -1.0)
    if name in ("Huber", "SmoothedQuantile"):
        x = rng.standard_normal(shape[1])
        y = A @ x
    np.testing.assert_allclose(loss.lipschitz(A, weight), top(loss.hessian(x, A, y, weight)), rtol=1e-10)


@pytest.mark.usefixtures("gram_width")
def test_lipschitz_that_overflows_is_infinite_and_that_of_nothing_is_zero():
    for name, (loss, y) in LINEAR.items():
        # far out the negative binomial loss is straight
        assert loss.lipschitz(1e200 * A, WEIGHT, model(loss), y) == (0.0 if "NegativeBinomial" in name else np.inf)
        assert loss.lipschitz(0 * A, WEIGHT, model(loss), y) == 0.0
    assert losses.Poisson().lipschitz(A, WEIGHT, 1e4 * model(losses.Poisson())) == np.inf
    assert NETWORK.lipschitz(1e200 * A, WEIGHT, 1e200 * model(NETWORK), NUMBERS) == np.inf


def test_lipschitz_of_single_precision_is_computed_in_double():
    large = (1e25 * A).astype(np.float32)  # whose squares overflow there
    expected = np.linalg.eigvalsh((large.T.astype(float) * WEIGHT) @ large.astype(float))[-1]
    np.testing.assert_allclose(losses.Squared().lipschitz(large, WEIGHT), expected, rtol=1e-12)


def test_lipschitz_asks_for_what_it_needs():
    with pytest.raises(InputError, match=r"the curvature of Poisson has no bound: lipschitz needs a model x"):
        losses.Poisson().lipschitz(A, WEIGHT)
    with pytest.raises(InputError, match=r"the curvature of a function has no bound: .* a model x and the labels y"):
        NETWORK.lipschitz(A, WEIGHT, model(NETWORK))


@pytest.mark.parametrize("gram_width", [1000, 10])
def test_a_wide_table_has_no_square_matrix(monkeypatch, gram_width):
    monkeypatch.setattr(curvature, "GRAM_WIDTH", gram_width)
    wide = np.random.default_rng(4).standard_normal((20, 4000))
    tracemalloc.start()
    found = losses.Squared().lipschitz(wide, np.ones(20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4000 * 4000 * 8 / 10
    np.testing.assert_allclose(found, np.linalg.norm(wide, 2) ** 2, rtol=1e-10)


# --- overflow: pytest makes warnings errors ---


@linear
def test_an_overflow_is_an_infinity_and_no_warning(name):
    loss, y = LINEAR[name]
    for factor in (1e5, 1e200):
        results(loss, factor * model(loss), A, y, WEIGHT)
    if name == "Poisson":
        values = loss.values(1e5 * model(loss), A, y)
        assert np.isinf(values).any()
        assert not np.isnan(values).any()


@pytest.mark.parametrize(("dtype", "error"), [("float64", 1e-15), ("float32", 4e-7)])
def test_softplus_is_exact_to_rounding(dtype, error):
    """Against the logarithm in extended precision; far out, against what it tends to."""
    z = np.concatenate([np.linspace(-40, 40, 4001), [-1e-9, 0.0, 1e-9]]).astype(dtype)
    wide = z.astype(np.longdouble)
    exact = np.maximum(wide, 0) + np.log1p(np.exp(-np.abs(wide)))
    with jax.enable_x64(dtype == "float64"):
        found = jax.jit(arrays.softplus)(jnp.asarray(z))
        assert found.dtype == dtype
        assert np.abs(np.asarray(found) / exact - 1).max() <= error
        far = jnp.array([-np.inf, -1e30, 1e30, np.inf, np.nan], dtype)
        np.testing.assert_array_equal(arrays.softplus(far), np.array([0, 0, 1e30, np.inf, np.nan], dtype))
        slope = jax.vmap(jax.grad(arrays.softplus))(jnp.asarray(z[::100]))
    np.testing.assert_allclose(slope, 1 / (1 + np.exp(-z[::100].astype(float))), rtol=10 * error)
