"""The operator's commands: the SuperLink, and a run."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compfed.deployment.processes import end, environment, program, start
from compfed.deployment.settings import FederationSettings
from compfed.errors import InputError

STARTS, PAUSE = 6, 10.0  # of a run that stops before its end; seconds between


def superlink(settings: FederationSettings) -> list[str]:
    """The command of the SuperLink: TLS, only sites whose key is registered, a database that outlives it."""
    keys = settings.keys
    if not (keys / "server.pem").exists():
        raise InputError(f"{keys} has no server.pem. Run: compfed federation keys {settings.home}")
    return [
        program("flower-superlink"), "--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "server.pem"),
        "--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth", "--database",
        str(settings.home / "flower" / "superlink.db"), "--host", settings.host, "--port", settings.port,
    ]  # fmt: skip


def serve(settings: FederationSettings, log: Path | None = None) -> subprocess.Popen[Any]:
    """Start the SuperLink."""
    return start(superlink(settings), environment(settings.home / "flower"), log)


def run(settings: FederationSettings, folder: Path) -> dict[str, Any]:
    """Start a run, or go on with the one in the folder; a line per message as they come; how it ended.

    A run of Flower that stops before its end (the server app or the SuperLink was killed) is followed by another, which
    goes on from the journal.
    """
    folder = folder.absolute()
    ended = folder / "ended.json"
    if ended.exists() and "error" not in json.loads(ended.read_text()):
        raise InputError(f"{folder} holds a run that has ended; give another folder.")
    ended.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    env = _connected(settings)
    config = f'settings="{settings.home / "federation.toml"}" folder="{folder}"'
    command = [program("flwr"), "run", str(settings.home / "app"), "compfed", "--stream", "-c", config]
    for _ in range(STARTS):
        process = start(command, env, folder / "flower.log")
        try:
            for line in followed(folder, process):
                print(line, flush=True)
        finally:
            end(process)
        if ended.exists():
            said = json.loads(ended.read_text())
            if "error" in said:
                raise InputError(said["error"])
            return said
        print("  ! the run stopped before its end; going on from its journal", flush=True)
        time.sleep(PAUSE)
    raise InputError(
        f"the run stopped {STARTS} times; {folder / 'flower.log'} says why. The same command goes on with it."
    )


def _connected(settings: FederationSettings) -> dict[str, str]:
    """The environment for commands to the SuperLink, once the keys of all sites are registered there."""
    home = settings.home / "flower" / "operator"
    env = environment(home)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "compfed"\n\n[superlink.compfed]\naddress = "{settings.superlink}"\n'
        f'root-certificates = "{settings.keys / "ca.crt"}"\n'
    )
    for name in settings.sites:
        command = [program("flwr"), "supernode", "register", str(settings.keys / f"{name}.key.pub"), "compfed"]
        said = subprocess.run(command, env=env, capture_output=True, text=True)
        if said.returncode and "already" not in said.stdout + said.stderr:
            raise InputError(f"the key of site {name!r} could not be registered at {settings.superlink}: {_last(said)}")
    return env


def followed(folder: Path, process: subprocess.Popen[Any]) -> Iterator[str]:
    """A line per message and one per event, until the run has ended."""
    seen = {"messages.jsonl": 0, "events.jsonl": 0}
    together: dict[int, list[dict[str, Any]]] = {}
    while True:
        over = process.poll() is not None or (folder / "ended.json").exists()
        for name in seen:
            lines = (folder / name).read_text().splitlines() if (folder / name).exists() else []
            for said in map(json.loads, lines[seen[name] :]):
                if name == "events.jsonl":
                    yield f"  ! message {said['number']}, site {said['site']}: {said['what']}"
                else:
                    together.setdefault(said["number"], []).append(said)
            seen[name] = len(lines)
        for number in sorted(together):
            if over or number < max(together) or (folder / "journal" / f"{number:08d}").exists():
                yield _line(number, together.pop(number))
        if over:
            return
        time.sleep(0.5)


def _line(number: int, replies: list[dict[str, Any]]) -> str:
    kinds = ", ".join(dict.fromkeys(kind for said in replies for kind in said["questions"]))
    sites = "  ".join(f"{said['site']} {said['seconds']:.1f} s" for said in sorted(replies, key=lambda r: r["site"]))
    up, down = (sum(said[key] for said in replies) / 1e3 for key in ("bytes_up", "bytes_down"))
    return f"  {number:4d}  {sites}  {down:8.1f} kB down {up:8.1f} kB up  {kinds}"


def _last(said: subprocess.CompletedProcess[str]) -> str:
    return " ".join((said.stdout + said.stderr).split())[-300:]
