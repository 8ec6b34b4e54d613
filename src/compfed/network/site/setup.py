"""`compfed site init` and `compfed site check`: before a site takes part."""

from __future__ import annotations

import datetime
import os
import socket
import ssl
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cryptography import x509

from compfed._utils.text import join_names
from compfed.errors import InputError
from compfed.network import keys
from compfed.network.settings_file import parse_address
from compfed.network.site.node import what_leaves
from compfed.network.site.settings import TEMPLATE, SiteSettings


def init(folder: Path, name: str, superlink: str) -> tuple[list[Path], str, str]:
    """Make the identity key and a site.toml; the files, the public key and its fingerprint."""
    keys.check_site_name(name, "--name")
    parse_address(superlink, "--superlink")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    paths = [folder / "node.key", folder / "node.key.pub", folder / "site.toml"]
    for path in paths:
        if path.exists():
            raise InputError(f"{path} is there already. Move it away, or give another folder (--folder).")
    key = keys.new_identity()
    line = keys.public_line(key.public_key())
    keys.write_identity(paths[0], key)
    keys.write_new(paths[1], f"{line} {name}\n".encode(), 0o644)
    keys.write_new(paths[2], TEMPLATE.format(name=name, superlink=superlink).encode(), 0o600)
    return paths, line, keys.fingerprint(key.public_key())


def check(path: Path, say: Callable[[str], Any] = print) -> bool:
    """Say what would happen if this site took part; is everything in order?"""
    settings = SiteSettings.read(path)
    problems: list[str] = []
    say(f"{path}: the settings of site {settings.name!r} can be read.")
    _check_state(settings, problems)
    _check_table(settings, say, problems)
    _check_files(settings, say, problems)
    say(what_leaves(settings))
    for problem in problems:
        say(f"PROBLEM  {problem}")
    if not problems:
        say(
            f"Everything is in order. Next: compfed site run --config {path} (if it runs already, restart it: settings are read once)"
        )
    return not problems


def _check_state(settings: SiteSettings, problems: list[str]) -> None:
    there = next((path for path in (settings.state, *settings.state.parents) if path.exists()), Path("/"))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK) or there.is_relative_to("/proc"):
        problems.append(f"state = {str(settings.state)!r} cannot be written by this user.")


def _check_table(settings: SiteSettings, say: Callable[[str], Any], problems: list[str]) -> None:
    try:
        site = settings.site()
    except InputError as problem:
        problems.append(str(problem))
        return
    say(f"{settings.data}: {len(site.labels)} rows, {site.width} columns: {join_names(list(site.columns or ()), most=12)}.")
    values, counts = np.unique(site.labels, return_counts=True)
    if site.labels.ndim == 1 and len(values) <= 20:
        listed = ", ".join(f"{value} ({count} rows)" for value, count in zip(values, counts, strict=True))
        say(f"Label {settings.label!r}: {listed}. A classifier takes these as classes; all sites must have the same.")
    else:
        say(f"Label {settings.label!r}: numbers, for a regression.")
    if len(site.labels) < settings.refuses.min_rows:
        problems.append(
            f"there are {len(site.labels)} rows and min_rows = {settings.refuses.min_rows}: every query would be refused."
        )


def _check_files(settings: SiteSettings, say: Callable[[str], Any], problems: list[str]) -> None:
    try:
        settings.check_files()
        key = keys.read_identity(settings.key)
        say(
            f"{settings.key}: the identity key, fingerprint {keys.fingerprint(key.public_key())}. The operator must have the same."
        )
        if settings.key.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            problems.append(f"others can read {settings.key}: chmod 600 {settings.key}")
        ca = x509.load_pem_x509_certificate(settings.ca.read_bytes())
        now = datetime.datetime.now(datetime.UTC)
        if not ca.not_valid_before_utc <= now <= ca.not_valid_after_utc:
            problems.append(
                f"{settings.ca} is valid from {ca.not_valid_before_utc} to {ca.not_valid_after_utc}; today is {now:%Y-%m-%d}."
            )
    except InputError as problem:
        problems.append(str(problem))
        return
    except ValueError:
        problems.append(f"{settings.ca} is not a certificate. The operator sends ca.crt.")
        return
    host, port = parse_address(settings.superlink, "superlink")
    try:
        context = ssl.create_default_context(cafile=str(settings.ca))
        with socket.create_connection((host, port), 5) as plain, context.wrap_socket(plain, server_hostname=host):
            say(
                f"{settings.superlink}: the SuperLink can be reached, and its certificate is signed by {settings.ca.name}."
            )
    except ssl.SSLError as problem:
        problems.append(
            f"{settings.superlink}: the certificate is not accepted ({problem.reason}). Ask the operator for their ca.crt."
        )
    except OSError as problem:
        say(
            f"NOTE     {settings.superlink} cannot be reached now ({problem.strerror or problem}); the operator may not have started it."
        )
