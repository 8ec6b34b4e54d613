"""Options that several commands share."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

Command: TypeAlias = Callable[[argparse.Namespace], int]
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # a command adds its parser to these


def integer(text: str) -> int:
    """An integer that fits 32 bits, as sizes, counts and seeds must."""
    number = int(text)
    if abs(number) >= 2**32:
        raise argparse.ArgumentTypeError(f"{text} is too large: it must be below 2**32")
    return number


integer.__name__ = "whole number"  # argparse: invalid whole number value: 'x'


def output_folder(path: Path) -> Path:
    """The folder for results, if files can be written there: checked before anything is computed."""
    from compfed._utils.files import check_writable

    check_writable(path, f"--out {path}")
    return path


def method_names(text: str | None) -> list[str] | None:
    """The methods that were named; classes of modules in the current folder can be named too."""
    if not text:
        return None
    if os.getcwd() not in sys.path:  # a console script starts with its own folder instead
        sys.path.insert(0, os.getcwd())
    return text.split(",")


def needs_flower(run: Command) -> Command:
    """A command that says what to install where Flower is missing. Files that it writes are for their owner only."""

    def checked(args: argparse.Namespace) -> int:
        from compfed.network import check_installed

        os.umask(0o077)
        check_installed()
        return run(args)

    return checked
