"""Our own JAX settings where we compute, double precision among them, without changing the caller's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import numpy as np

from compfed._utils.compilation import enable_disk_cache, limit_programs
from compfed.errors import InputError

DTYPES = ("float64", "float32")
# What our programs are written for. A user's own settings would crash them (strict promotion, transfer guards), stop them
# at numbers that they deal with (debug_nans), or give other random draws.
SETTINGS: tuple[tuple[Any, Any], ...] = (
    (jax.default_prng_impl, "threefry2x32"),
    (jax.threefry_partitionable, True),
    (jax.numpy_dtype_promotion, "standard"),
    (jax.numpy_rank_promotion, "allow"),
    (jax.default_matmul_precision, None),
    (jax.transfer_guard, "allow"),
    (jax.debug_nans, False),
    (jax.debug_infs, False),
    (jax.no_tracing, False),
)
_here = threading.local()  # JAX's settings are a thread's own


def check_dtype(dtype: object) -> np.dtype:
    """The NumPy dtype named by `dtype`, if it is one we compute in."""
    try:
        found = np.dtype(dtype)  # pyright: ignore[reportArgumentType, reportCallIssue]  # any object; judged below
    except TypeError:
        found = None
    if found is None or found.name not in DTYPES:
        raise InputError(f"dtype={dtype!r} is not a dtype compfed computes in. Use one of {', '.join(DTYPES)}.")
    return found


@contextmanager
def precision(dtype: np.dtype) -> Iterator[None]:
    """A block in which JAX arrays may have `dtype` and JAX is as our programs expect it."""
    with jax_settings(), jax.enable_x64(dtype == np.float64):
        yield


@contextmanager
def jax_settings() -> Iterator[None]:
    """A block in which JAX is as our programs expect it, in the caller's precision. The outermost makes room first."""
    if getattr(_here, "inside", False):
        yield
        return
    enable_disk_cache()
    limit_programs()
    with ExitStack() as stack:
        for setting, value in SETTINGS:
            stack.enter_context(setting(value))
        _here.inside = True
        try:
            yield
        finally:
            _here.inside = False
