"""Files that are there whole or not at all, whatever happens to the process or the machine."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
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
    if not flush:
        return
    folder = os.open(path.parent, os.O_RDONLY)  # the new name is durable once the folder is
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def append(path: Path, line: dict[str, Any]) -> None:
    """One line of JSON more, which only its owner can read; lines of several processes do not mix."""
    make_folder(path.parent)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, (json.dumps(line) + "\n").encode())
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
