"""Compiled programs, of which JAX keeps every one: here those of this library, and how many of them stay.

Compiled programs kept on disk: a new process need not compile what an earlier one has.

They are in the user's cache folder, `folder()`. COMPFED_CACHE=PATH puts them elsewhere, COMPFED_CACHE=off keeps none. It is JAX's own
cache, of which a process has one: programs of the caller that take long to compile are kept there too. Who has told JAX where
to keep programs (JAX_COMPILATION_CACHE_DIR, jax_compilation_cache_dir), or to keep none, is left alone.

The cores of this machine as devices of JAX.

A call from a compiled program back to NumPy.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed._utils.validation import whole
from compfed.errors import InputError

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


MOST_PROGRAM_CACHE = 2**30  # bytes in the folder at which the oldest half goes
LEAST_SECONDS = 0.05  # that a program took to compile: reading one back takes a few thousandths
_asked = False


def folder() -> Path | None:
    """Where programs are kept; None for nowhere. One folder for each kind of processor: programs are made for it."""
    chosen = os.environ.get("COMPFED_CACHE")
    if chosen is not None and chosen.strip().lower() in ("", "0", "off", "no", "none", "false"):
        return None
    try:
        return (Path(chosen).expanduser() if chosen else _users_folder() / "compfed") / f"programs-{_processor()}"
    except RuntimeError:  # nobody's home
        return None


def keep_programs() -> None:
    """Start keeping programs, once in a process; where that cannot be done, nothing is said and nothing is kept."""
    global _asked
    if _asked:
        return
    _asked = True
    place = folder()
    if place is None or jax.config.jax_compilation_cache_dir or not jax.config.jax_enable_compilation_cache:  # pyright: ignore[reportAttributeAccessIssue]  # made at run time
        return
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError:  # a home that is read-only, or full
        return
    _make_room(place)
    jax.config.update("jax_compilation_cache_dir", str(place))
    if jax.config.jax_persistent_cache_min_compile_time_secs == 1.0:  # pyright: ignore[reportAttributeAccessIssue]  # JAX's default
        jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
    # a program that another process is just writing, or was when it died, is compiled anew: nobody need know
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")


def _users_folder() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _processor() -> str:
    """A home may be shared by machines whose processors differ in what they can do."""
    mark = platform.machine() + platform.processor()
    with contextlib.suppress(OSError, StopIteration), open("/proc/cpuinfo") as lines:
        mark += next(line for line in lines if line.startswith(("flags", "Features")))
    return hashlib.sha256(mark.encode()).hexdigest()[:8]


def _make_room(place: Path, most: int = MOST_PROGRAM_CACHE) -> None:
    """Forget the oldest half where there is too much; several processes may do so at a time."""
    with contextlib.suppress(OSError):
        files = sorted((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in os.scandir(place))
        if sum(size for _, size, _ in files) > most:
            for _, _, path in files[: len(files) // 2 + 1]:
                with contextlib.suppress(OSError):
                    os.unlink(path)


LATENCY = "/dev/cpu_dma_latency"  # how soon a core must be awake, in us, as Linux is told by whoever has it open


def use_all_cores(count: int | None = None) -> int:
    """Let `simulate` and `grid` share out the clients over the cores of this machine (or over `count` of them); says how many.

    JAX sees one CPU device unless told otherwise, and must be told before it computes anything in this process: call this
    first. It is a setting of JAX, and holds for the whole process: `jax.devices()` then lists that many CPU devices, and
    programs that use every device they find use them. Programs that name no device run on the first, as before, and so does
    all of compfed but rounds of every client that read more than a megabyte of rows. A GPU is used as before.

    After a round the cores wait for each other. One that has nothing to do may be put to sleep meanwhile, and take as long to
    wake as a third of a round of mini-batches, in a virtual machine above all. Where this process may (`/dev/cpu_dma_latency`, for
    root unless it is opened to others), it asks Linux to let none sleep while such rounds are worked out.
    """
    # the cores this process may use, where the system says so
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = cores if count is None else whole(count, "count", 1)
    try:
        jax.config.update("jax_num_cpu_devices", wanted)
    except RuntimeError as error:
        there = jax.local_device_count("cpu")
        if there != wanted:
            raise InputError(
                f"use_all_cores: JAX has started in this process already, with {there} CPU device{'s' * (there > 1)} where "
                f"{wanted} are asked for. Call it before anything else that uses JAX, or set JAX_NUM_CPU_DEVICES={wanted} in "
                "the environment."
            ) from error
    return wanted


@contextmanager
def awake() -> Iterator[None]:
    """No core sleeps while this lasts, if this process may ask for that."""
    try:
        file = os.open(LATENCY, os.O_WRONLY)
    except OSError:  # not Linux, or not allowed: rounds take longer, and nothing else changes
        yield
        return
    try:
        with suppress(OSError):
            os.write(file, bytes(4))  # 0 us, until it is closed
        yield
    finally:
        os.close(file)


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
