"""Losses made of any differentiable JAX function of a pytree of parameters: a user's own, which need no file here.

A loss of the library is a record in `linear.py` (CONTRIBUTING.md, "Add a loss").
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array

from compfed._utils.array_namespace import Numbers, is_jax
from compfed._utils.compilation import jit, precision
from compfed._utils.records import fixed, nonnegative, record, truth
from compfed.errors import InputError
from compfed.losses.base import Loss
from compfed.losses.lipschitz import largest_hessian_eigenvalue
from compfed.losses.many_models import LossEvaluation

ROWS_AT_ONCE = 256  # rows whose gradients, each as large as the model, are in memory at a time

Method = TypeVar("Method", bound=Callable[..., Numbers])
Params: TypeAlias = Any  # a pytree: dicts, lists and tuples of arrays


class Model:
    """A function of a pytree of parameters, with the parameters as one flat vector. Compared by identity."""

    def __init__(self, function: Callable[[Params, Array, Array], Array], params: Params):
        leaves, self.structure = jax.tree.flatten(params)
        arrays = [np.asarray(leaf, float) for leaf in leaves]
        self.function = function
        self.shapes = [a.shape for a in arrays]
        self.start = np.concatenate([a.ravel() for a in arrays])
        if not np.isfinite(self.start).all():
            raise InputError("params has NaN or infinite entries; a run starts there, so they must be finite.")

    def unravel(self, x: Array | np.ndarray) -> Params:
        """The pytree of parameters in a flat vector."""
        # Slices, not jax.flatten_util: NumPy's float64 stays float64 whatever JAX's default precision.
        ends = np.cumsum([0, *(math.prod(shape) for shape in self.shapes)]).tolist()
        parts = zip(ends[:-1], ends[1:], self.shapes, strict=True)
        return jax.tree.unflatten(self.structure, [x[start:end].reshape(shape) for start, end, shape in parts])


def _also_for_numpy(method: Method) -> Method:
    """Let a method in JAX also take NumPy arrays: compiled, in the precision of x, with a NumPy result."""
    program = jit(method)

    @functools.wraps(method)
    def call(self: FromFunction, x: Numbers, *arrays: Numbers, **named: Numbers) -> Numbers:
        if is_jax(self.ridge, x, *arrays, *named.values()):
            return method(self, x, *arrays, **named)
        with precision(x.dtype), jax.ensure_compile_time_eval():  # a number now, even while something else is traced
            return np.asarray(program(self, x, *arrays, **named))

    return call  # pyright: ignore[reportReturnType]  # the same signature, by functools.wraps


@record
class FromFunction(Loss):
    """loss(x; a, y) = function(params, a, y), with params the pytree that x unravels to. See `from_function`."""

    model: Model = fixed()
    ridge: float = nonnegative(default=0.0)
    convex: bool | None = truth(default=None)

    @property
    def start(self) -> np.ndarray:
        """Where a run starts: a network must not start at zero."""
        return self.model.start

    def size(self, width: int) -> int:
        return self.model.start.size

    def unravel(self, x: npt.ArrayLike) -> Params:
        """The pytree of parameters in a flat model."""
        if np.shape(x) != self.model.start.shape:
            raise InputError(f"x has shape {np.shape(x)}; the parameters are {self.model.start.size} numbers in a row.")
        return self.model.unravel(x if isinstance(x, Array) else np.asarray(x))

    def ravelled(self, x: Any, name: str = "x") -> Any:
        """The flat model of a pytree of parameters; anything that is one array or a list of numbers is left as it is."""
        structure, shapes = self.model.structure, self.model.shapes
        if isinstance(x, np.ndarray | Array) or (isinstance(x, list) and all(np.ndim(leaf) == 0 for leaf in x)):
            return x
        leaves, given = jax.tree.flatten(x)
        if given != structure or [np.shape(leaf) for leaf in leaves] != shapes:
            got = jax.tree.unflatten(given, [np.shape(leaf) for leaf in leaves])
            needed = jax.tree.unflatten(structure, shapes)
            raise InputError(
                f"{name} is not a pytree of this loss's parameters: its shapes are {got!s:.120}; they must be {needed!s:.120}, or "
                f"one array of shape ({self.model.start.size},)."
            )
        return np.concatenate([np.asarray(leaf).ravel() for leaf in leaves])

    @_also_for_numpy
    def values(self, x: Numbers, A: Numbers, y: Numbers) -> Numbers:
        return jax.vmap(self.model.function, (None, 0, 0))(self.model.unravel(x), A, y)

    @_also_for_numpy
    def gradient(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers) -> Numbers:
        return jax.grad(lambda x: q @ self.values(x, A, y))(x)

    @_also_for_numpy
    def hessian(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers, W: Numbers | None = None) -> Numbers:
        """sum_l q_l d^2 loss(x; a_l, y_l) / dx_W dx_W; only x_W is differentiated."""
        x, W = jnp.asarray(x), jnp.arange(x.size) if W is None else W
        return jax.hessian(lambda part: q @ self.values(x.at[W].set(part), A, y))(x[W])

    @_also_for_numpy
    def _gradient_terms(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers) -> Numbers:
        """sum_l q_l ||grad loss(x; a_l, y_l)||."""

        def length(row: tuple[Array, Array]) -> Array:
            return jnp.linalg.norm(jax.grad(lambda x: self.model.function(self.model.unravel(x), *row))(x))

        return q @ jax.lax.map(length, (A, y), batch_size=ROWS_AT_ONCE)

    def evaluate(
        self, X: np.ndarray, A: Numbers, y: np.ndarray, Q: np.ndarray, which: np.ndarray, row_norms: np.ndarray
    ) -> LossEvaluation:
        pairs = list(zip(X, Q[which], strict=True))
        value = np.array([q @ self.values(x, A, y) for x, q in pairs])
        gradient = np.array([self.gradient(x, A, y, q) for x, q in pairs])
        return LossEvaluation(value, gradient, np.array([self._gradient_terms(x, A, y, q) for x, q in pairs]))

    def lipschitz(self, A: Numbers, q: Numbers, x: Numbers | None = None, y: Numbers | None = None) -> float:
        """max |lambda| of sum_l q_l d^2 loss(x; a_l, y_l) / dx^2 at x, by power iteration."""
        if x is None or y is None:
            raise InputError("the curvature of a function has no bound: lipschitz needs a model x and the labels y.")
        with precision(x.dtype):
            found = float(_largest_hessian_eigenvalue(self, x, A, y, q))
        return found if np.isfinite(found) else np.inf


@jit
def _largest_hessian_eigenvalue(loss: FromFunction, x: Array, A: Array, y: Array, q: Array) -> Array:
    return largest_hessian_eigenvalue(lambda x: loss.gradient(x, A, y, q), x)


def from_function(
    function: Callable[[Params, Array, Array], Array], params: Params, ridge: float = 0.0, *, convex: bool | None = None
) -> FromFunction:
    """loss(x; a, y) = function(params, a, y) for any differentiable JAX function, such as a neural network.

    Unless `convex` says so, such a loss is not known to be convex: a solver finds a stationary point.

    Parameters
    ----------
    function : callable
        Takes the parameters, the features a of one row (shape (width,)) and its label y, and returns a number. It is
        mapped over the rows.
    params : pytree of arrays
        Dicts, lists and arrays. They give the shape of the model and the point where a run starts, unless it is given x0=....
    ridge : float, default=0.0
        Adds (ridge / 2) ||x||^2 to the loss of every site.
    convex : bool, optional
        Whether the function is convex in its parameters: True or False; nobody knows if left out. It decides between "minimum"
        and "stationary point" in results; `cf.testing.check(loss, X, y)` tries it.

    Returns
    -------
    FromFunction
        `loss.unravel(x)` is the pytree of a flat model x.

    Examples
    --------
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
        return FromFunction(Model(function, params), ridge, convex)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        way_out = ""
        if any(
            callable(leaf) for leaf in jax.tree.leaves(params)
        ):  # a module of equinox has its functions among its leaves
            way_out = (
                " Take the arrays out of a module: params, static = eqx.partition(model, eqx.is_array), and call "
                "eqx.combine(params, static) in the function."
            )
        raise InputError(f"params must be a pytree of arrays of numbers: {error}.{way_out}") from None
