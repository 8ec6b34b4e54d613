"""Compiled programs: their number in memory, their cache on disk, their precision and settings, the CPU devices they run on.

JAX keeps every program that it compiles. `jit` counts those of this library, and `limit_programs` drops them when there
are many.

Programs are also cached on disk, so that a new process need not compile again what an earlier one has. The cache is in the
user's cache folder; COMPFED_CACHE=PATH puts it elsewhere, COMPFED_CACHE=off turns it off. It is JAX's own cache, of which a
process has one: the caller's programs that take long to compile are cached there too. Where the caller has configured JAX's
cache (JAX_COMPILATION_CACHE_DIR, jax_compilation_cache_dir, jax_enable_compilation_cache), nothing is changed.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed._utils.validation import check_bool, check_int
from compfed.errors import ForkError, InputError

MAX_PROGRAMS = 256  # one takes 1 to 4 MB, and a new shape of data needs several
MAX_DISK_CACHE_BYTES = 2**30
MIN_COMPILE_SECONDS = 0.05  # of a program worth writing to disk: reading one takes a few milliseconds
CPU_LATENCY_FILE = "/dev/cpu_dma_latency"  # Linux: an open file with 4 bytes, the longest wake-up time in us
_awake = False  # whether `use_all_cores` was told to keep the cores awake


# --- programs in memory ---

_programs: list[Any] = []


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`jax.jit` whose programs `limit_programs` counts and drops; a decorator, with or without options."""
    if function is None:
        return functools.partial(jit, **options)
    program = jax.jit(function, **options)
    _programs.append(program)
    return program


def count_programs() -> int:
    """The number of compiled programs of this library in memory."""
    return sum(program._cache_size() for program in _programs)  # JAX has no public count


def limit_programs(most: int = MAX_PROGRAMS) -> None:
    """Drop all programs where there are more than `most`: work on new shapes does not come back to old ones."""
    if count_programs() > most:
        for program in _programs:
            program.clear_cache()


# --- programs on disk ---


def disk_cache_folder() -> Path | None:
    """The folder of the disk cache, one for each kind of processor; None if there is none."""
    chosen = os.environ.get("COMPFED_CACHE")
    if chosen is not None and chosen.strip().lower() in ("", "0", "off", "no", "none", "false"):
        return None
    try:
        return (Path(chosen).expanduser() if chosen else _user_cache_folder() / "compfed") / f"programs-{_processor()}"
    except RuntimeError:  # the user has no home folder
        return None


@functools.cache
def enable_disk_cache() -> None:
    """Turn the disk cache on, once in a process; where that is impossible, do without it silently."""
    folder, config = disk_cache_folder(), jax.config
    if folder is None or config.jax_compilation_cache_dir or not config.jax_enable_compilation_cache:  # pyright: ignore[reportAttributeAccessIssue]  # made at run time
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:  # read-only, or full
        return
    _limit_disk_cache(folder)
    config.update("jax_compilation_cache_dir", str(folder))
    if config.jax_persistent_cache_min_compile_time_secs == 1.0:  # pyright: ignore[reportAttributeAccessIssue]  # JAX's default
        config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_SECONDS)
    # JAX compiles again what another process is writing, or was writing when it died: that is harmless
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")


def _user_cache_folder() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _processor() -> str:
    """A hash of the processor's features: machines that share a home folder may have different processors."""
    features = platform.machine() + platform.processor()
    with suppress(OSError, StopIteration), open("/proc/cpuinfo") as lines:
        features += next(line for line in lines if line.startswith(("flags", "Features")))
    return hashlib.sha256(features.encode()).hexdigest()[:8]


def _limit_disk_cache(folder: Path, most: int = MAX_DISK_CACHE_BYTES) -> None:
    """Delete the older half of a cache that is too large; several processes may do so at a time."""
    with suppress(OSError):
        files = sorted((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in os.scandir(folder))
        if sum(size for _, size, _ in files) > most:
            for _, _, path in files[: len(files) // 2 + 1]:
                with suppress(OSError):
                    os.unlink(path)


# --- processes and cores ---

_forked_after_start = False


def has_started() -> bool:
    """Whether JAX has started its devices in this process: from then on it refuses another number of them."""
    config, given = jax.config, jax.config.jax_num_cpu_devices  # pyright: ignore[reportAttributeAccessIssue]  # made at run time
    try:
        config.update("jax_num_cpu_devices", 1 if given != 1 else 2)
    except RuntimeError:
        return True
    config.update("jax_num_cpu_devices", given)
    return False


def _note_fork() -> None:
    global _forked_after_start
    _forked_after_start = has_started()


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_note_fork)


def check_not_forked() -> None:
    """Refuse to compute in a child that was forked after JAX had started: it would wait for threads that are not there."""
    if _forked_after_start:
        raise ForkError


def use_all_cores(count: int | None = None, *, awake: bool = False) -> int:
    """Let ``simulate`` and ``grid`` distribute the clients over the CPU cores of this machine.

    JAX sees one CPU device by default. This sets their number, for the whole process, and must come before JAX computes
    anything. ``jax.devices()`` then lists that many CPU devices. Programs that name no device still run on the first
    one, and so does all of compfed except rounds of all clients that read more than a megabyte of rows. A GPU is used as
    before.

    Parameters
    ----------
    count : int, optional
        The number of cores; all that this process may use by default.
    awake : bool, default=False
        Whether to ask Linux to let no core sleep while rounds are shared out, which takes power. After a round the cores wait for
        each other, and waking one takes up to a third of a round of mini-batches. Without effect where this process may not
        write ``/dev/cpu_dma_latency``, as only root may by default.

    Returns
    -------
    int
        The number of CPU devices.

    Raises
    ------
    InputError
        If JAX has already started with another number of devices.

    Examples
    --------
    In a new process:

    >>> import compfed as cf
    >>> cf.use_all_cores(4)  # doctest: +SKIP
    4
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = cores if count is None else check_int(count, "count", 1)
    keep_awake = check_bool(awake, "awake")
    try:
        jax.config.update("jax_num_cpu_devices", wanted)
    except RuntimeError as error:
        if (there := jax.local_device_count("cpu")) != wanted:
            raise InputError(
                f"use_all_cores({wanted}): JAX has started in this process already, with {there} CPU device(s). Call it before "
                f"anything else that uses JAX, or set JAX_NUM_CPU_DEVICES={wanted} in the environment."
            ) from error
    global _awake
    _awake = keep_awake
    return wanted


@contextmanager
def keep_cores_awake() -> Iterator[None]:
    """Ask Linux to let no core sleep inside this block, where the caller asked for it and this process may."""
    if not _awake:
        yield
        return
    with ExitStack() as stack:
        with suppress(OSError):  # not Linux, or not allowed: rounds take longer, and nothing else changes
            file = stack.enter_context(open(CPU_LATENCY_FILE, "r+b", buffering=0))
            file.write(bytes(4))  # 0 us, until the file is closed
        yield


def numpy_callback(f: Callable[[np.ndarray, float], Any], shape: tuple[int, ...], x: Array, t: Array | float) -> Array:
    """f(x, t) of the given shape, called with NumPy arrays from a compiled program.

    JAX may make the call in a thread without double precision, where it would round x and refuse the result. Hence the
    bits travel as whole numbers.
    """
    dtype = np.dtype(x.dtype)
    words = jax.lax.bitcast_convert_type(jnp.append(x, jnp.asarray(t, x.dtype)), jnp.uint32)

    def call(words: Array) -> np.ndarray:
        numbers = np.array(words).reshape(-1).view(dtype)
        result = np.array(f(numbers[:-1], float(numbers[-1])), dtype).reshape(shape)
        return result[..., None].view(np.uint32).reshape(shape + words.shape[1:])

    result = jax.ShapeDtypeStruct(shape + words.shape[1:], np.uint32)
    return jax.lax.bitcast_convert_type(jax.pure_callback(call, result, words, vmap_method="sequential"), dtype)


# --- our settings of JAX, without changing the caller's ---

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
        stack.callback(setattr, _thread, "inside", False)
        yield
