"""Files that are written whole or not at all, and folders that are known to take them before minutes of work.

Files that are there whole or not at all, whatever happens to the process or the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compfed.errors import InputError

LITTLE = 2**20  # bytes that a disk must have room for before a run begins


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name to write under; the file gets its own name when all of it is there. What was there before stays till then."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """The text as UTF-8, whatever the locale."""
    with whole_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def check_writable(folder: Path, what: str) -> None:
    """Refuse a folder that cannot be made or written to; `what` says who asked for it. Nothing is left behind."""
    made: list[Path] = []
    try:
        for part in reversed([folder, *folder.parents]):
            if not part.exists():
                part.mkdir()
                made.append(part)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(LITTLE))
    except (OSError, ValueError) as problem:  # a name with a zero byte is a ValueError
        if isinstance(problem, (FileExistsError, NotADirectoryError)):
            raise InputError(f"{what} is a file, or below one; give the name of a folder.") from None
        reason = getattr(problem, "strerror", None) or str(problem)
        raise InputError(f"{what}: nothing can be written there ({reason}); give another folder.") from None
    finally:
        for part in reversed(made):
            part.rmdir()


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for their owner only."""
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)


def write(path: Path, data: bytes, flush: bool = True) -> None:
    """Write to a temporary file, flush it to the disk, rename it: a reader sees the old file or the new one.

    Only its owner can read the file. Without `flush` the file is atomic for other processes, not across a power cut.
    """
    make_folder(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if flush:
                os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    if flush:
        flush_folder(path.parent)


def flush_folder(path: Path) -> None:
    """A new name in a folder is durable once the folder is on the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def append(path: Path, line: dict[str, Any], flush: bool = False) -> None:
    """One line of JSON more, which only its owner can read: the whole line, or an error and nothing of it."""
    make_folder(path.parent)
    data = (json.dumps(line) + "\n").encode()
    with locked(path) as handle:
        size = os.fstat(handle).st_size
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(handle, data[written:], size + written)
            if flush:
                os.fsync(handle)
        except OSError:
            os.ftruncate(handle, size)
            raise


@contextlib.contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[int]:
    """Open a file and hold its lock, which ends with this process at the latest; its handle.

    Without `wait`, `BlockingIOError` says that another process holds it.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield handle
    finally:
        os.close(handle)


def write_checked(path: Path, data: bytes) -> None:
    """Write a file with its checksum in front; `read_checked` notices damage."""
    write(path, hashlib.sha256(data).digest() + data)


def read_checked(path: Path) -> bytes | None:
    """What `write_checked` was given; None if there is no such file, or if it is damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    return content[32:] if hashlib.sha256(content[32:]).digest() == content[:32] else None
