"""Regularisers written elsewhere: any object with a value and a prox."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed._utils.compilation import numpy_callback
from compfed._utils.records import fixed, record
from compfed.errors import InputError
from compfed.regularisers.base import Combinable, Regulariser, indicator


class Identity:
    """An object that equals itself only, whatever its own notion of equality: a key for what JAX has compiled."""

    def __init__(self, target: Any):
        self.target = target
        self.__name__ = type(target).__name__  # what a trace says of it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.target is other.target

    def __hash__(self) -> int:
        return id(self.target)

    def __repr__(self) -> str:
        return repr(self.target)


@record
class Adapted(Combinable):
    """g(x) = obj(x), with prox obj.prox(x, t): made by `from_object`."""

    source: Identity = fixed()

    @property
    def largest_step(self) -> Any:
        return getattr(self.source.target, "largest_step", super().largest_step)

    def __call__(self, x: Array) -> Array:
        x = jnp.asarray(x)
        if _traceable(self.source, "__call__", x.shape, x.dtype.name):
            value = jnp.asarray(self.source.target(x))
        else:
            value = numpy_callback(lambda x, t: _value(self.source.target(x)), (), x, 0.0)
        return indicator(value, x) if value.dtype == bool else value.astype(x.dtype)  # see _value

    def prox(self, x: Array, t: Array | float) -> Array:
        x = jnp.asarray(x)
        if _traceable(self.source, "prox", x.shape, x.dtype.name):
            return jnp.asarray(self.source.target.prox(x, t), x.dtype)
        return numpy_callback(self.source.target.prox, x.shape, x, t)


def from_object(obj: Any) -> Regulariser:
    """g from any object with `obj(x)`, the value, and `obj.prox(x, t)`, the prox of t times it.

    A record, or anything else that JAX knows as a tree, is returned as it is. Methods that JAX can trace are compiled
    with the rest; others get NumPy arrays on the host, one call per client and step, which is slow but works (so do
    the operators of PyProximal). The object is compared by identity: changed after its first use, it goes unnoticed.

    >>> import numpy as np
    >>> class Cone:
    ...     def __call__(self, x): return 0.0 if np.all(np.asarray(x) >= 0) else np.inf
    ...     def prox(self, x, t): return np.maximum(np.asarray(x), 0.0)
    >>> from_object(Cone()).prox(np.array([-1.0, 2.0], np.float32), 0.5)
    Array([0., 2.], dtype=float32)
    """
    name = type(obj).__name__
    if isinstance(obj, type):
        raise InputError(f"got the class {obj.__name__}; give an instance, such as {obj.__name__}(...).")
    for method, use in (("__call__", "g(x), the value"), ("prox", "g.prox(x, t), the prox of t g")):
        if not callable(getattr(obj, method, None)):
            raise InputError(f"{name} has no {method}; a regulariser needs {use}.")
    return obj if not jax.tree_util.all_leaves([obj]) else Adapted(Identity(obj))


def adopt(whole: Any, *names: str) -> None:
    """The parts of a new record of regularisers, checked; objects written elsewhere are adapted."""
    for name in names:
        given = getattr(whole, name)
        try:
            taken = tuple(map(from_object, given)) if isinstance(given, tuple) else from_object(given)
        except InputError as problem:
            raise InputError(f"{type(whole).__name__}({name}={given!r}): {problem}") from None
        object.__setattr__(whole, name, taken)


def _value(answer: Any) -> Any:
    """Some libraries answer "is x in the set?": yes is 0, no is inf."""
    return (0.0 if answer else np.inf) if np.asarray(answer).dtype == bool else answer


@functools.lru_cache(maxsize=256)
def _traceable(source: Identity, method: str, shape: tuple[int, ...], dtype: str) -> bool:
    """Whether JAX can trace the method. Either way it must give the right shape, which is found out here."""
    obj, expected = source.target, () if method == "__call__" else shape
    call, known = (obj, ()) if method == "__call__" else (obj.prox, (0.5,))
    try:
        found = jax.eval_shape(call, jax.ShapeDtypeStruct(shape, dtype), *known).shape
        traceable = True
    except Exception:  # whatever NumPy code makes of a tracer
        traceable = False
        found = np.shape(_called(obj, method, call, np.ones(shape, dtype), *known))
    if found != expected:
        raise InputError(
            f"{type(obj).__name__}: {method} returns shape {found} for a model of shape {shape}; it must return {expected}."
        )
    return traceable


def _called(obj: Any, method: str, call: Any, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Exception as error:
        raise InputError(
            f"{type(obj).__name__}: {method} fails on a model of shape {arguments[0].shape}: {error}"
        ) from error
