"""Cores: sums over rows run side by side, and BLAS keeps to one thread meanwhile.

The products of a site are narrow. On several threads BLAS takes longer for them, and its idle threads spin. So it is held at
one thread while programs run, and sites, or parts of one site's rows, share the cores. Sums are added in a fixed order: the
bits do not depend on the number of cores.
"""

from __future__ import annotations

import contextvars
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

S = TypeVar("S")
T = TypeVar("T")

_cores: contextvars.ContextVar[int] = contextvars.ContextVar("cores", default=1)


@functools.cache
def _controller() -> ThreadpoolController:
    """Of the BLAS libraries that NumPy and SciPy have loaded; to look for them takes milliseconds."""
    import scipy.linalg  # noqa: F401  # which has a BLAS of its own

    return ThreadpoolController()


_lock = threading.Lock()
_held: list[Any] = []  # by each thread that runs programs; the first knows what the caller chose
_here = threading.local()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS at one thread; afterwards it has the number that the caller chose.

    Where programs run side by side, on threads of the caller, all restore what the first one found: another one found 1. From
    where the first ends, BLAS may have more threads.
    """
    if getattr(_here, "inside", False):
        yield
        return
    with _lock:
        _held.append(_controller().limit(limits=1, user_api="blas"))
        _here.inside = True
    try:
        yield
    finally:
        with _lock:
            _held[0].restore_original_limits()
            _held.pop()
            _here.inside = False


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def cores(count: int) -> Iterator[None]:
    """Let `map_in_order` use so many cores."""
    token = _cores.set(count)
    try:
        yield
    finally:
        _cores.reset(token)


def map_in_order(function: Callable[[S], T], items: Sequence[S]) -> list[T]:
    """[function(item) for item in items], side by side where several cores may be used."""
    count = min(_cores.get(), len(items))
    if count < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(count) as pool:
        here = [contextvars.copy_context() for _ in items]  # settings of NumPy travel with the context
        tasks = [pool.submit(context.run, _alone, function, item) for context, item in zip(here, items, strict=True)]
        return [task.result() for task in tasks]


def _alone(function: Callable[[S], T], item: S) -> T:
    """On one core: what runs side by side is not divided again."""
    with cores(1), np.errstate():
        return function(item)
