"""Files that are written whole or not at all: atomic writes, locked appends, checksums, and folders that can be written."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compfed.errors import InputError

ROOM_NEEDED = 2**20  # bytes that a disk must have room for before a run begins


# --- atomic writes ---


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary name to write to, and rename it to `path` at the end. After an error the old file is still there."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, whatever the locale."""
    with atomic_path(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def write_private(path: Path, data: bytes, flush: bool = True) -> None:
    """Write a file that only its owner can read; missing folders are made.

    With `flush` the file is on the disk when this returns: it survives a power cut. Without, it is atomic for other
    processes only.
    """
    make_folder(path.parent)
    with atomic_path(path) as unfinished:
        handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if flush:
                os.fsync(file.fileno())
    if flush:
        flush_folder(path.parent)


def write_checked(path: Path, data: bytes, flush: bool = True) -> None:
    """Write a private file with its checksum in front; `read_checked` detects damage."""
    write_private(path, hashlib.sha256(data).digest() + data, flush=flush)


def read_checked(path: Path) -> bytes | None:
    """Read the data that `write_checked` wrote; None if the file is missing or damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    return content[32:] if hashlib.sha256(content[32:]).digest() == content[:32] else None


@contextmanager
def owner_only() -> Iterator[None]:
    """Inside, new files and folders are for their owner only, whatever writes them."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


# --- logs ---


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[int]:
    """Open a private file, hold its lock and yield its handle. The lock ends with this process at the latest.

    Without `wait`, `BlockingIOError` says that another process holds the lock.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield handle
    finally:
        os.close(handle)


def append_line(path: Path, line: bytes, flush: bool = False, expected_size: int | None = None) -> None:
    """Append a line to a private file: the whole line, or an error and nothing of it.

    `expected_size` is the size of the file as its writer left it; another size is an error.
    """
    make_folder(path.parent)
    with locked(path) as handle:
        size = os.fstat(handle).st_size
        if expected_size not in (None, size):
            raise InputError(f"{path} was changed by another process. Use a folder of its own for every run.")
        data, written = line + b"\n", 0
        try:
            while written < len(data):
                written += os.pwrite(handle, data[written:], size + written)
            if flush:
                os.fsync(handle)
        except OSError:
            os.ftruncate(handle, size)
            raise
    if flush and size == 0:
        flush_folder(path.parent)


# --- folders ---


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for their owner only."""
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)


def flush_folder(path: Path) -> None:
    """Write a folder to the disk: only then a new name in it survives a power cut."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def check_writable(folder: Path, what: str) -> None:
    """Refuse a folder that cannot be made or written to, before minutes of work. Nothing is left behind.

    `what` names the option or argument that the folder came from.
    """
    made: list[Path] = []
    try:
        for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
            missing.mkdir()
            made.append(missing)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(ROOM_NEEDED))
    except (OSError, ValueError) as problem:  # a name with a zero byte is a ValueError
        if isinstance(problem, (FileExistsError, NotADirectoryError)):
            raise InputError(f"{what} is a file, or below one; give the name of a folder.") from None
        reason = getattr(problem, "strerror", None) or str(problem)
        raise InputError(f"{what}: nothing can be written there ({reason}); give another folder.") from None
    finally:
        for path in reversed(made):
            path.rmdir()
