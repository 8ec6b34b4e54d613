"""Files that are there whole or not at all, whatever happens to the process or the machine."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


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
