"""Losses made of any differentiable JAX function of a pytree of parameters."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed._utils.array_namespace import Numbers, is_jax
from compfed._utils.compilation import jit
from compfed._utils.precision import precision
from compfed._utils.records import fixed, nonnegative, record
from compfed.errors import InputError
from compfed.losses.base import Evaluated, SentAsTriangle
from compfed.losses.lipschitz import steepest

ROWS_AT_ONCE = 256  # a row's gradient has as many numbers as the model: of so many rows they are held at a time

Method = TypeVar("Method", bound=Callable[..., Numbers])


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


def _also_for_numpy(method: Method) -> Method:
    """The method, which for arrays of NumPy is compiled, runs in the precision of x and gives arrays of NumPy."""
    program = jit(method)

    @functools.wraps(method)
    def call(self: FromFunction, x: Numbers, *arrays: Numbers, **named: Numbers) -> Numbers:
        if is_jax(self.ridge, x, *arrays, *named.values()):
            return method(self, x, *arrays, **named)
        with precision(x.dtype), jax.ensure_compile_time_eval():  # numbers now, even while something else is traced
            return np.asarray(program(self, x, *arrays, **named))

    return call  # pyright: ignore[reportReturnType]  # the same signature, by functools.wraps


@record
class FromFunction(SentAsTriangle):
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

    @_also_for_numpy
    def values(self, x: Numbers, A: Numbers, y: Numbers) -> Numbers:
        return jax.vmap(self.model.function, (None, 0, 0))(self.model.unravel(x), A, y)

    @_also_for_numpy
    def gradient(self, x: Numbers, A: Numbers, y: Numbers, weight: Numbers) -> Numbers:
        return jax.grad(lambda x: weight @ self.values(x, A, y))(x)

    @_also_for_numpy
    def hessian(self, x: Numbers, A: Numbers, y: Numbers, weight: Numbers, W: Numbers | None = None) -> Numbers:
        """sum_l weight_l d^2 loss(x; a_l, y_l) / dx_W dx_W; only x_W is differentiated."""
        x, W = jnp.asarray(x), jnp.arange(x.size) if W is None else W
        return jax.hessian(lambda part: weight @ self.values(x.at[W].set(part), A, y))(x[W])

    def model_hessian(self, x: Numbers, A: Numbers, y: Numbers, weight: Numbers, W: Numbers | None = None) -> Numbers:
        return self.hessian(x, A, y, weight, W)

    @_also_for_numpy
    def gradient_terms(self, x: Numbers, A: Numbers, y: Numbers, weight: Numbers) -> Numbers:
        """sum_l weight_l ||grad loss(x; a_l, y_l)||."""

        def length(row: tuple[Array, Array]) -> Array:
            return jnp.linalg.norm(jax.grad(lambda x: self.model.function(self.model.unravel(x), *row))(x))

        return weight @ jax.lax.map(length, (A, y), batch_size=ROWS_AT_ONCE)

    def evaluated(self, X: Numbers, A: Numbers, y: Numbers, weight: Numbers, lengths: Numbers) -> Evaluated:
        value = np.array([weight @ self.values(x, A, y) for x in X])
        gradient = np.array([self.gradient(x, A, y, weight) for x in X])
        return Evaluated(value, gradient, np.array([self.gradient_terms(x, A, y, weight) for x in X]))

    def steepness(
        self, A: np.ndarray, weight: np.ndarray, x: np.ndarray | None = None, y: np.ndarray | None = None
    ) -> float:
        """max |lambda| of sum_l weight_l d^2 loss(x; a_l, y_l) / dx^2 at x, by power iteration."""
        if x is None or y is None:
            raise InputError("the curvature of a function has no bound: steepness needs a model x and the labels y.")
        with precision(x.dtype):
            found = float(_steepest(self, x, A, y, weight))
        return found if np.isfinite(found) else np.inf

    def curvature_bound(
        self, A: np.ndarray, weight: np.ndarray, lengths: np.ndarray, x: np.ndarray | None, y: np.ndarray
    ) -> float:
        return self.steepness(A, weight, x, y)

    def encode(self, labels: np.ndarray) -> np.ndarray:
        return labels


@jit
def _steepest(loss: FromFunction, x: Array, A: Array, y: Array, weight: Array) -> Array:
    return steepest(lambda x: loss.gradient(x, A, y, weight), x)


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
