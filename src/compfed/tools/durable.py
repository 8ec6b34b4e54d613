"""Files that are there whole or not at all, whatever happens to the process or the machine."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write(path: Path, data: bytes) -> None:
    """Write to a temporary file, flush it to the disk, rename it: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)  # the new name is durable once the folder is
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def append(path: Path, line: dict[str, Any]) -> None:
    """One line of JSON more; lines of several processes do not mix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
