r"""Losses: site i has f_i(x) = sum_l q_il loss(x; a_il, y_il) + (ridge / 2) ||x||^2, with q_il = 1/m_i or a row weight.

For a linear model a loss is a function of the prediction z = a^T x and the label y: `value`, its derivative `slope` in
z, and `curvature`, a bound on its second derivative. With several outputs the model is a matrix X = x.reshape(-1, K),
z = X^T a has K entries, and `curvature` bounds the largest eigenvalue of the second derivative. `from_function` takes
any differentiable JAX function of a pytree of parameters.

The ridge belongs to f_i, because the theory asks every f_i to be strongly convex. Formulas give loss(z, y).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import logsumexp

from compfed.errors import InputError
from compfed.tools.records import count, fixed, nonnegative, positive, record


class Loss(Protocol):
    """What a problem needs to know of a loss."""

    @property
    def ridge(self) -> float: ...
    @property
    def curvature(self) -> float | None:
        """A bound on the second derivative in the prediction; None where there is none."""
        ...

    def size(self, width: int) -> int:
        """d: the number of coefficients of a model of `width` features."""
        ...

    def values(self, x: Array, A: Array, y: Array) -> Array:
        """The loss of every row of A at x."""
        ...

    def gradient(self, x: Array, A: Array, y: Array, weight: Array) -> Array:
        """sum_l weight_l grad loss(x; a_l, y_l)."""
        ...

    def encode(self, labels: np.ndarray) -> np.ndarray:
        """The labels as the formulas have them; refuses others."""
        ...


class _OneOutput:
    """A linear model with one prediction z = a^T x."""

    value: Callable[[Array, Array], Array]
    slope: Callable[[Array, Array], Array]

    def size(self, width: int) -> int:
        return width

    def values(self, x: Array, A: Array, y: Array) -> Array:
        return self.value(A @ x, y)

    def gradient(self, x: Array, A: Array, y: Array, weight: Array) -> Array:
        return (self.slope(A @ x, y) * weight) @ A

    def encode(self, labels: np.ndarray) -> np.ndarray:
        return _one_column(labels, self)


class _ManyOutputs:
    """A linear model with K predictions z = X^T a, X = x.reshape(-1, K)."""

    outputs: int
    value: Callable[[Array, Array], Array]
    slope: Callable[[Array, Array], Array]

    def size(self, width: int) -> int:
        return width * self.outputs

    def values(self, x: Array, A: Array, y: Array) -> Array:
        return self.value(A @ x.reshape(-1, self.outputs), y)

    def gradient(self, x: Array, A: Array, y: Array, weight: Array) -> Array:
        slope = self.slope(A @ x.reshape(-1, self.outputs), y)
        return (A.T @ (slope * weight[:, None])).reshape(-1)


def _one_column(labels: np.ndarray, loss: Any) -> np.ndarray:
    if labels.ndim != 1:
        raise InputError(
            f"{type(loss).__name__} needs one label per row; got labels of shape {labels.shape}. "
            "Use losses.MultiSquared for several numeric outcomes."
        )
    return labels


def _two_classes(labels: np.ndarray, loss: Any) -> np.ndarray:
    """Labels in {0, 1} or {-1, +1}, as {-1, +1}."""
    found = np.unique(_one_column(labels, loss))
    if np.isin(found, (-1, 1)).all():
        return labels
    if np.isin(found, (0, 1)).all():
        return 2 * labels - 1
    shown = ", ".join(f"{v:g}" for v in found[:6]) + (", ..." if found.size > 6 else "")
    raise InputError(
        f"{type(loss).__name__} needs labels in {{-1, +1}} or {{0, 1}}; found {shown}. "
        "Recode the two classes, or use losses.Squared for a numeric outcome, losses.Softmax for more classes."
    )


@record
class Squared(_OneOutput):
    """loss(z, y) = (z - y)^2 / 2."""

    ridge: float = nonnegative(default=0.0)

    @property
    def curvature(self) -> float:
        return 1.0

    def value(self, z: Array, y: Array) -> Array:
        return 0.5 * (z - y) ** 2

    def slope(self, z: Array, y: Array) -> Array:
        return z - y


@record
class Logistic(_OneOutput):
    """loss(z, y) = log(1 + exp(-y z)), labels y in {-1, +1}; labels in {0, 1} are read as {-1, +1}."""

    ridge: float = nonnegative(default=0.0)

    @property
    def curvature(self) -> float:
        return 0.25

    def value(self, z: Array, y: Array) -> Array:
        return jnp.logaddexp(0.0, -y * z)

    def slope(self, z: Array, y: Array) -> Array:
        return -y * jax.nn.sigmoid(-y * z)

    def encode(self, labels: np.ndarray) -> np.ndarray:
        return _two_classes(labels, self)


@record
class SquaredHinge(_OneOutput):
    """loss(z, y) = max(0, 1 - y z)^2, labels y in {-1, +1}; labels in {0, 1} are read as {-1, +1}."""

    ridge: float = nonnegative(default=0.0)

    @property
    def curvature(self) -> float:
        return 2.0

    def value(self, z: Array, y: Array) -> Array:
        return jnp.maximum(0.0, 1.0 - y * z) ** 2

    def slope(self, z: Array, y: Array) -> Array:
        return -2.0 * y * jnp.maximum(0.0, 1.0 - y * z)

    def encode(self, labels: np.ndarray) -> np.ndarray:
        return _two_classes(labels, self)


@record
class Huber(_OneOutput):
    """loss(z, y) = r^2 / 2 if |r| <= delta else delta |r| - delta^2 / 2, with r = z - y."""

    delta: float = positive(default=1.35)
    ridge: float = nonnegative(default=0.0)

    @property
    def curvature(self) -> float:
        return 1.0

    def value(self, z: Array, y: Array) -> Array:
        inner = jnp.clip(z - y, -self.delta, self.delta)
        return inner * (z - y - 0.5 * inner)

    def slope(self, z: Array, y: Array) -> Array:
        return jnp.clip(z - y, -self.delta, self.delta)


@record
class SmoothedQuantile(_OneOutput):
    """loss(z, y) = max over u in [quantile - 1, quantile] of u r - smoothing u^2 / 2, with r = y - z.

    For smoothing -> 0 this is the pinball loss max(quantile r, (quantile - 1) r), whose minimiser is the quantile.
    """

    quantile: float = positive(default=0.5)
    smoothing: float = positive(default=0.1)
    ridge: float = nonnegative(default=0.0)

    def check(self) -> None:
        if isinstance(self.quantile, float) and not self.quantile < 1:
            raise InputError(f"SmoothedQuantile(quantile={self.quantile}): quantile must be between 0 and 1.")

    @property
    def curvature(self) -> float:
        return 1.0 / self.smoothing

    def value(self, z: Array, y: Array) -> Array:
        u = self._dual(z, y)
        return u * (y - z - 0.5 * self.smoothing * u)

    def slope(self, z: Array, y: Array) -> Array:
        return -self._dual(z, y)

    def _dual(self, z: Array, y: Array) -> Array:
        return jnp.clip((y - z) / self.smoothing, self.quantile - 1.0, self.quantile)


@record
class Poisson(_OneOutput):
    """loss(z, y) = exp(z) - y z, counts y >= 0 with mean exp(z)."""

    ridge: float = nonnegative(default=0.0)

    @property
    def curvature(self) -> None:  # exp has no bound: steps come from the curvature where the model is
        return None

    def value(self, z: Array, y: Array) -> Array:
        return jnp.exp(z) - y * z

    def slope(self, z: Array, y: Array) -> Array:
        return jnp.exp(z) - y

    def encode(self, labels: np.ndarray) -> np.ndarray:
        if _one_column(labels, self).min() < 0:
            raise InputError(f"Poisson needs labels >= 0 (counts or rates); the smallest is {labels.min():g}.")
        return labels


@record
class Softmax(_ManyOutputs):
    """loss(z, y) = log sum_k exp(z_k) - z_y, labels y in {0, ..., outputs - 1}."""

    outputs: int = count()
    ridge: float = nonnegative(default=0.0)

    @property
    def curvature(self) -> float:
        return 0.5

    def value(self, z: Array, y: Array) -> Array:
        return logsumexp(z, axis=-1) - (z * self._one_hot(z, y)).sum(axis=-1)

    def slope(self, z: Array, y: Array) -> Array:
        return jax.nn.softmax(z, axis=-1) - self._one_hot(z, y)

    def _one_hot(self, z: Array, y: Array) -> Array:
        return (y[..., None] == jnp.arange(self.outputs)).astype(z.dtype)

    def encode(self, labels: np.ndarray) -> np.ndarray:
        found = np.unique(_one_column(labels, self))
        if not np.isin(found, np.arange(self.outputs)).all():
            shown = ", ".join(f"{v:g}" for v in found[:12]) + (", ..." if found.size > 12 else "")
            raise InputError(
                f"Softmax(outputs={self.outputs}) needs labels in 0..{self.outputs - 1}; found {shown}. "
                "Number the classes from 0 (sklearn.preprocessing.LabelEncoder), or give more outputs."
            )
        return labels


@record
class MultiSquared(_ManyOutputs):
    """loss(z, y) = ||z - y||^2 / 2 with `outputs` outcomes per row."""

    outputs: int = count()
    ridge: float = nonnegative(default=0.0)

    @property
    def curvature(self) -> float:
        return 1.0

    def value(self, z: Array, y: Array) -> Array:
        return 0.5 * ((z - y) ** 2).sum(axis=-1)

    def slope(self, z: Array, y: Array) -> Array:
        return z - y

    def encode(self, labels: np.ndarray) -> np.ndarray:
        if labels.ndim != 2 or labels.shape[1] != self.outputs:
            raise InputError(
                f"MultiSquared(outputs={self.outputs}) needs labels of shape (rows, {self.outputs}); "
                f"got {labels.shape}."
            )
        return labels


class Model:
    """A pytree of parameters as one flat vector, and a function of it. Compared by identity."""

    def __init__(self, function: Callable[[Any, Array, Array], Array], params: Any):
        leaves, self.structure = jax.tree.flatten(params)
        arrays = [np.asarray(leaf, float) for leaf in leaves]
        self.function = function
        self.shapes = [a.shape for a in arrays]
        self.start = np.concatenate([a.ravel() for a in arrays])
        if not np.isfinite(self.start).all():
            raise InputError("params has NaN or infinite entries; a run starts there, so they must be finite.")

    def unravel(self, x: Array | np.ndarray) -> Any:
        # slices, because NumPy's float64 stays float64 that way whatever JAX's default precision
        ends = np.cumsum([0, *(math.prod(shape) for shape in self.shapes)]).tolist()
        parts = zip(ends[:-1], ends[1:], self.shapes, strict=True)
        return jax.tree.unflatten(self.structure, [x[start:end].reshape(shape) for start, end, shape in parts])


@record
class FromFunction:
    """loss(x; a, y) = function(params, a, y), with params the pytree that x unravels to. See `from_function`."""

    model: Model = fixed()
    ridge: float = nonnegative(default=0.0)

    @property
    def curvature(self) -> None:
        return None

    @property
    def start(self) -> np.ndarray:
        """Where a run starts: a network must not start at zero."""
        return self.model.start

    def size(self, width: int) -> int:
        return self.model.start.size

    def unravel(self, x: Any) -> Any:
        """The pytree of parameters in a flat model."""
        if np.shape(x) != self.model.start.shape:
            raise InputError(f"x has shape {np.shape(x)}; the parameters are {self.model.start.size} numbers in a row.")
        return self.model.unravel(x if hasattr(x, "reshape") else np.asarray(x))

    def values(self, x: Array, A: Array, y: Array) -> Array:
        return jax.vmap(self.model.function, (None, 0, 0))(self.model.unravel(x), A, y)

    def gradient(self, x: Array, A: Array, y: Array, weight: Array) -> Array:
        return jax.grad(lambda x: weight @ self.values(x, A, y))(x)

    def encode(self, labels: np.ndarray) -> np.ndarray:
        return labels


def from_function(function: Callable[[Any, Array, Array], Array], params: Any, ridge: float = 0.0) -> FromFunction:
    """loss = function(params, a, y), one row a and its label y, for any differentiable JAX function.

    `params` is a pytree (dicts, lists, arrays): it gives the shape of the model and the point where a run starts.
    `loss.unravel(trace.x)` is the trained pytree.

    >>> import compfed as cf
    >>> loss = from_function(lambda w, a, y: (a @ w["slope"] + w["bias"] - y) ** 2 / 2, {"slope": np.zeros(4), "bias": 0.0})
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> problem = cf.Problem(loss, cf.regularisers.Zero(), sites)
    >>> model = loss.unravel(cf.simulate(problem, cf.algorithms.DecoupledProx(eta=0.2), 50).x)
    >>> model["slope"].shape, model["bias"].shape
    ((4,), ())
    """
    if not callable(function):
        raise InputError(f"from_function needs a function of (params, row, label); got {type(function).__name__}.")
    try:
        return FromFunction(Model(function, params), ridge)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"params must be a pytree of arrays of numbers: {error}") from None
