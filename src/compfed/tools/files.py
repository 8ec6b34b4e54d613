"""Files that are written whole or not at all, and folders that are known to take them before minutes of work."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
