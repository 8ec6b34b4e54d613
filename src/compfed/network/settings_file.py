"""Settings files: TOML whose keys are all known, with errors that a person can act on."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from compfed.errors import InputError


def read_toml(path: Path, way_out: str) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as problem:
        raise InputError(f"{path}: {problem.strerror}. {way_out}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise InputError(f"{path} is not TOML: {problem}.") from None


def check_table(given: Any, known: Collection[str], where: str) -> dict[str, Any]:
    """A table of a settings file; a key that is not known is refused with the nearest name."""
    if not isinstance(given, dict):
        raise InputError(f"{where} must be a table with the keys {', '.join(known)}; got {given!r}.")
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            raise InputError(f"{where}: {name!r} is not a setting. {hint}There are {', '.join(known)}.")
    return given


def parse_address(text: object, where: str) -> tuple[str, int]:
    """(host, port) of "host:port"."""
    host, _, port = str(text).rpartition(":")
    if (
        not isinstance(text, str)
        or not re.fullmatch(r"[A-Za-z0-9.:\[\]-]+", host)
        or not re.fullmatch("[0-9]{1,5}", port)
        or not 0 < int(port) < 2**16
    ):
        raise InputError(f"{where} = {text!r} must be HOST:PORT, such as fed.example.org:8443.")
    return host.strip("[]"), int(port)


def check_text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise InputError(f"{where} = {value!r} must be text.")
    return value
