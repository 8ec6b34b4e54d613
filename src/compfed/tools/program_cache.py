"""Compiled programs kept on disk: a new process need not compile what an earlier one has.

They are in the user's cache folder, `folder()`. COMPFED_CACHE=PATH puts them elsewhere, COMPFED_CACHE=off keeps none. It is JAX's own
cache, of which a process has one: programs of the caller that take long to compile are kept there too. Who has told JAX where
to keep programs (JAX_COMPILATION_CACHE_DIR, jax_compilation_cache_dir), or to keep none, is left alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import sys
import tempfile
import warnings
from pathlib import Path

import jax

MOST = 2**30  # bytes in the folder at which the oldest half goes
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


def _make_room(place: Path, most: int = MOST) -> None:
    """Forget the oldest half where there is too much; several processes may do so at a time."""
    with contextlib.suppress(OSError):
        files = sorted((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in os.scandir(place))
        if sum(size for _, size, _ in files) > most:
            for _, _, path in files[: len(files) // 2 + 1]:
                with contextlib.suppress(OSError):
                    os.unlink(path)
