"""Double precision where we compute, without changing the caller's JAX settings."""

from __future__ import annotations

from contextlib import AbstractContextManager

import jax
import numpy as np

from compfed.errors import InputError

DTYPES = ("float64", "float32")


def checked_dtype(dtype: object) -> np.dtype:
    """The NumPy dtype named by `dtype`, if it is one we compute in."""
    try:
        found = np.dtype(dtype)  # pyright: ignore[reportArgumentType, reportCallIssue]  # any object; judged below
    except TypeError:
        found = None
    if found is None or found.name not in DTYPES:
        raise InputError(f"dtype={dtype!r} is not a dtype compfed computes in. Use one of {', '.join(DTYPES)}.")
    return found


def precision(dtype: np.dtype) -> AbstractContextManager[object]:
    """A block in which JAX arrays may have `dtype`."""
    return jax.enable_x64(dtype == np.float64)
