"""Compiled programs, of which JAX keeps every one: here those of this library, and how many of them stay."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

MOST = 256  # programs that stay; one takes 1 to 4 MB, and a new shape of data needs several
_made: list[Any] = []


def compiled(function: Callable[..., Any] | None = None, **how: Any) -> Any:
    """`jax.jit`, whose programs are counted and forgotten (`make_room`); as a decorator or as a function."""
    if function is None:
        return functools.partial(compiled, **how)
    program = jax.jit(function, **how)
    _made.append(program)
    return program


def programs_kept() -> int:
    """How many of our programs are kept now."""
    return sum(program._cache_size() for program in _made)  # jax has no public count


def make_room(most: int = MOST) -> None:
    """Forget all programs where more than `most` are kept: who goes on with new shapes comes back to none of them."""
    if programs_kept() > most:
        for program in _made:
            program.clear_cache()
