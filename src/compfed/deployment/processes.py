"""Flower's programs as processes of ours: started in a group of their own, ended with all they started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def program(name: str) -> str:
    """A program of the environment this Python is of, whatever the PATH says."""
    return str(Path(sys.executable).parent / name)


def environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """For Flower: a home of its own, nothing sent anywhere, and our programs found first."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **OFFLINE, "FLWR_HOME": str(home), "PATH": path, **(more or {})}


def start(command: Sequence[str], env: Mapping[str, str], log: Path | None = None) -> subprocess.Popen[Any]:
    if log is None:
        return subprocess.Popen(command, env=env, start_new_session=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)


def end(process: subprocess.Popen[Any], patience: float = 10.0) -> None:
    """End a process, everything in its group and everything it started: politely, then not.

    Flower's SuperLink puts what it starts in groups of their own, which would end by themselves some time later.
    """
    family = descendants(process.pid)
    for sent, wait in ((signal.SIGTERM, patience), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, sent)  # the group outlives its leader as long as anybody is in it
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait)
        for pid in family:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, sent)
        until = time.monotonic() + wait
        while (family := [pid for pid in family if _alive(pid)]) and time.monotonic() < until:
            time.sleep(0.1)


def end_left_behind(pid_file: Path, mark: str) -> None:
    """End the group of a process that somebody who was killed has started: if it lives, and its command has the mark."""
    pid = pid_file.read_text().strip() if pid_file.exists() else ""
    if not pid.isdigit():
        return
    for sent, wait in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
        command = subprocess.run(["ps", "-ww", "-o", "args=", "-p", pid], capture_output=True, text=True).stdout
        if mark not in command:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(int(pid), sent)
        until = time.monotonic() + wait
        while _alive(int(pid)) and time.monotonic() < until:
            time.sleep(0.1)


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True).stdout
    children: dict[int, list[int]] = {}
    for child, parent in (map(int, line.split()) for line in listed.splitlines()):
        children.setdefault(parent, []).append(child)
    found = [pid]
    for known in found:
        found += children.get(known, [])
    return found[1:]


def _alive(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return bool(state.strip()) and not state.strip().startswith("Z")
