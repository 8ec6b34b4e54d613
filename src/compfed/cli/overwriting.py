"""What a command writes never takes the place of an earlier result, unless --overwrite says so."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path

from compfed.errors import InputError


def add_overwrite(add: Callable[..., object]) -> None:
    """Add --overwrite to a command."""
    add("--overwrite", action="store_true", help="replace an earlier result (default: an error)")


def check_new(path: Path, args: argparse.Namespace, *, holds: str = "") -> None:
    """Refuse to write where an earlier result is, before any work is done; name a place that is free.

    `holds` is a file whose presence makes a folder an earlier result; without it, `path` itself is the result.
    """
    if not args.overwrite and (path / holds).exists():
        what = f"{path} is there already" if not holds else f"{path} holds an earlier result"
        raise InputError(f"--out: {what}. Replace it with --overwrite, or keep it with --out {free_name(path)}.")


def free_name(path: Path) -> Path:
    """The first of path-2, path-3, ... that is not there."""
    return next(name for k in itertools.count(2) if not (name := path.with_stem(f"{path.stem}-{k}")).exists())
