"""The JAX settings that our programs need, double precision among them, without changing the caller's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import jax
import numpy as np

from compfed._utils.compilation import check_not_forked, enable_disk_cache, limit_programs
from compfed.errors import InputError

DTYPES = ("float64", "float32")
# A caller's own settings would crash our programs (strict promotion, transfer guards), stop them at values that they
# handle (debug_nans), or change the random draws.
SETTINGS = (
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
_thread = threading.local()  # JAX's settings belong to a thread


def check_dtype(dtype: object) -> np.dtype:
    """The NumPy dtype named by `dtype`, if compfed computes in it."""
    try:
        found = np.dtype(dtype)  # pyright: ignore[reportArgumentType, reportCallIssue]  # any object; judged below
    except TypeError:
        found = None
    if found is None or found.name not in DTYPES:
        raise InputError(f"dtype={dtype!r} is not a dtype compfed computes in. Use one of {', '.join(DTYPES)}.")
    return found


@contextmanager
def precision(dtype: np.dtype) -> Iterator[None]:
    """A block in which JAX computes in `dtype` and has our settings."""
    check_not_forked()
    with jax_settings(), jax.enable_x64(dtype == np.float64):
        yield


@contextmanager
def jax_settings() -> Iterator[None]:
    """A block in which JAX has our settings, in the caller's precision. The outermost one limits the programs first."""
    if getattr(_thread, "inside", False):
        yield
        return
    enable_disk_cache()
    limit_programs()
    with ExitStack() as stack:
        for setting, value in SETTINGS:
            stack.enter_context(setting(value))  # pyright: ignore[reportArgumentType]  # each takes its own value
        _thread.inside = True
        try:
            yield
        finally:
            _thread.inside = False
