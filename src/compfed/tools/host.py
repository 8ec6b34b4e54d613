"""A call from a compiled program back to NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


def hosted(f: Callable[..., np.ndarray], size: int, *arrays: Any) -> Any:
    """f(*arrays), a vector of `size` numbers, in NumPy and double precision; in a compiled program, by a call back."""
    if not any(isinstance(a, Array) for a in arrays):
        return f(*(np.asarray(a, float) for a in arrays))
    shapes = [np.shape(a) for a in arrays]
    ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])

    def call(packed: np.ndarray, _: float) -> np.ndarray:
        parts = [packed[a:b] for a, b in itertools.pairwise(ends)]
        return f(*(part.astype(float).reshape(shape) for part, shape in zip(parts, shapes, strict=True)))

    dtype = next(a.dtype for a in arrays if isinstance(a, Array) and jnp.issubdtype(a.dtype, jnp.inexact))
    return on_host(call, (size,), jnp.concatenate([jnp.ravel(jnp.asarray(a, dtype)) for a in arrays]), 0.0)


def on_host(f: Callable[[np.ndarray, float], Any], shape: tuple[int, ...], x: Array, t: Array | float) -> Array:
    """f(x, t), called with NumPy arrays while the compiled program waits.

    The call may come in a thread in which double precision is off: JAX would round x on its way there and refuse the
    answer on its way back. Hence bits travel, not numbers.
    """
    dtype = np.dtype(x.dtype)
    words = jax.lax.bitcast_convert_type(jnp.append(x, jnp.asarray(t, x.dtype)), jnp.uint32)

    def call(words: Any) -> np.ndarray:
        numbers = np.array(words).reshape(-1).view(dtype)
        answer = np.array(f(numbers[:-1], float(numbers[-1])), dtype).reshape(shape)
        return answer[..., None].view(np.uint32).reshape(shape + words.shape[1:])

    answer = jax.ShapeDtypeStruct(shape + words.shape[1:], np.uint32)
    return jax.lax.bitcast_convert_type(jax.pure_callback(call, answer, words, vmap_method="sequential"), dtype)
