"""The operator's commands: the SuperLink, and a run."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from pathlib import Path
from typing import Any

from compfed.deployment.processes import end, environment, program, start
from compfed.deployment.settings import FederationSettings
from compfed.deployment.watching import watch
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
    env = register(settings)
    config = f'settings="{settings.home / "federation.toml"}" folder="{folder}"'
    command = [program("flwr"), "run", str(settings.home / "app"), "compfed", "--stream", "-c", config]
    for _ in range(STARTS):
        process = start(command, env, folder / "flower.log")
        try:
            watch(folder, settings.sites, process)
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


def register(settings: FederationSettings) -> dict[str, str]:
    """Register the keys of all sites at the SuperLink; the environment for commands to it."""
    home = settings.home / "flower" / "operator"
    env = environment(home)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "compfed"\n\n[superlink.compfed]\naddress = "{settings.superlink}"\n'
        f'root-certificates = "{settings.keys / "ca.crt"}"\n'
    )
    public = {name: settings.keys / f"{name}.key.pub" for name in settings.sites}
    for name, path in public.items():
        if not path.exists():
            raise InputError(
                f"there is no {path}: the key of site {name!r}. Run: compfed federation keys {settings.home}"
            )
    hashes = [f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n" for name, path in public.items()]
    database, done = settings.home / "flower" / "superlink.db", home / "registered"
    known = done.read_text() if done.exists() and database.exists() else ""  # it takes Flower seconds to say "already"
    for (name, path), line in zip(public.items(), hashes, strict=True):
        command = [program("flwr"), "supernode", "register", str(path), "compfed"]
        if line in known:
            continue
        said = subprocess.run(command, env=env, capture_output=True, text=True)
        if said.returncode and "already" not in said.stdout + said.stderr:
            raise InputError(f"the key of site {name!r} could not be registered at {settings.superlink}: {_last(said)}")
    done.write_text("".join(hashes))
    return env


def _last(said: subprocess.CompletedProcess[str]) -> str:
    return " ".join((said.stdout + said.stderr).split())[-300:]
