"""The operator: connects to the sites from a script, a notebook or `compfed federation run`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compfed._utils.files import locked, make_folder, write_private
from compfed.errors import InputError
from compfed.network.flower import FlowerLink, LinkError, Operator
from compfed.network.model_file import save_model
from compfed.network.server.remote import RemoteFederation
from compfed.network.server.run_log import Display
from compfed.network.settings import FederationSettings

if TYPE_CHECKING:
    from compfed.estimators.base import FederatedModel


def connect(
    path: str | Path = "federation.toml", *, folder: str | Path | None = None, progress: bool = True
) -> RemoteFederation:
    """Connect to the sites of a federation, from any Python process on the operator's machine.

    Parameters
    ----------
    path : path, default="federation.toml"
        The settings of the federation, or their folder.
    folder : path, optional
        Where to keep the write-ahead log. A script that was killed continues from there when it is run again. Without a
        folder nothing is kept.
    progress : bool, default=True
        Print problems on stderr, and which reply is awaited whenever nothing has happened for some seconds.

    Returns
    -------
    RemoteFederation
        A federation for every estimator's `fit_federation`, for `score_federation` and the solvers. Use it in a `with`
        statement: leaving it ends the run.

    Raises
    ------
    InputError
        Where a setting, a key or the SuperLink is missing, or another process runs in `folder`.

    Examples
    --------
    >>> import compfed as cf
    >>> with cf.network.connect("clinics/federation.toml") as federation:  # doctest: +SKIP
    ...     model = cf.FederatedLassoCV().fit_federation(federation)
    """
    settings = FederationSettings.read(path, check_estimator=False)
    with contextlib.ExitStack() as stack:
        if folder is not None:
            stack.enter_context(run_lock(Path(folder)))
        federation = _connect(settings, folder)
        federation.attach(stack.pop_all())
    if progress:
        federation.attach(Display(federation.run_log, sys.stderr, brief=True))
    return federation


def _connect(settings: FederationSettings, folder: str | Path | None) -> RemoteFederation:
    settings.check_keys()
    link = FlowerLink(settings.dial, settings.keys, settings.secret(), settings.roster)
    try:
        link.open()
        return RemoteFederation(
            link, settings.roster, folder=None if folder is None else Path(folder), retry=settings.retry
        )
    except LinkError as problem:
        link.close()
        raise InputError(
            f"the SuperLink cannot be used: {problem}. Start it: compfed federation serve {settings.home}"
        ) from None
    except BaseException:
        link.close()
        raise


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """One process per run folder, for as long as it lives."""
    make_folder(folder)
    found = {path.name for path in folder.iterdir()}
    if found and not found & {"lock", "status.json"}:
        raise InputError(f"{folder} holds other files. Give a new folder for the run (--out).")
    with contextlib.ExitStack() as stack:
        try:
            handle = stack.enter_context(locked(folder / "lock", wait=False))
        except BlockingIOError:
            raise InputError(
                f"a run is going on in {folder} (process {is_alive(folder) or 'unknown'}). Wait for it, or: compfed federation stop "
                f"DIR --out {folder}"
            ) from None
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
        os.ftruncate(handle, 0)


def run(settings: FederationSettings, folder: Path) -> FederatedModel:
    """Fit the estimator of federation.toml, or continue a fit that was interrupted; return the fitted model."""
    folder = folder.absolute()
    with run_lock(folder):
        state = read_status(folder)
        if state.get("state") == "finished":
            raise InputError(f"{folder} holds a run that has finished. Give another folder for a new one (--out).")
        config = json.loads(json.dumps(settings.resolved(), default=str))
        federation = _connect(settings, folder)
        log = federation.run_log
        try:
            if federation.log.messages:
                _check_config(folder, config)
            write_private(folder / "config.json", json.dumps(config, indent=2).encode())
            if federation.log.messages:
                log.lines.append(f"Continuing run {federation.log.run} after message {max(federation.log.messages)}.")
            federation.attach(Display(log))
            with federation:
                model = settings.new_estimator().fit_federation(federation)
            with contextlib.suppress(AttributeError):
                model.trace_.save(folder / "trace.npz")
            save_model(model, folder)
        except OSError as problem:
            with contextlib.suppress(OSError):  # the disk may be full
                log.end("failed", reason=str(problem.strerror))
            raise InputError(
                f"{problem.filename or folder}: {problem.strerror}. Make room and run the same command again; the run continues."
            ) from None
        except BaseException:
            federation.close()
            raise
        cost = model.communication_
        log.end(
            "finished", rounds=cost.rounds, bytes_up=cost.bytes_up, bytes_down=cost.bytes_down,
            certificate=str(model.certificate_),
        )  # fmt: skip
        return model


def _check_config(folder: Path, config: dict[str, Any]) -> None:
    """Raise an error that names the setting which differs from the one that the run began with."""
    try:
        began = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return
    for table in ("estimator", "parameters"):
        old, new = began.get(table), config[table]
        pairs = (
            [(table, old, new)] if not isinstance(old, dict) else [(k, old.get(k), new.get(k)) for k in {**old, **new}]
        )
        for name, was, now in pairs:
            if was != now:
                raise InputError(
                    f"{name} = {now!r}, and the run in {folder} began with {was!r}. Restore it, or give another folder (--out)."
                )


def read_status(folder: Path) -> dict[str, object]:
    """The status.json of the last run in a folder; empty if there is none."""
    try:
        found = json.loads((folder / "status.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def is_alive(folder: Path) -> int | None:
    """The id of the process that runs in a folder; None if there is none."""
    try:
        handle = os.open(folder / "lock", os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: several may ask at once
        return None
    except BlockingIOError:
        owner = os.pread(handle, 20, 0).decode("ascii", "replace").strip()
        return int(owner) if owner.isdigit() else None
    finally:
        os.close(handle)


def stop(folder: Path, seconds: float = 20.0) -> bool:
    """Stop the run in a folder; return whether there was one."""
    process = is_alive(folder)
    if process is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)
    end = time.monotonic() + seconds
    while is_alive(folder) is not None:
        if time.monotonic() > end:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.1)
    return True


def site_states(settings: FederationSettings) -> dict[str, str]:
    """Whether each site is connected, in words; raises `InputError` if the SuperLink cannot be reached."""
    operator = Operator(settings.dial, settings.keys / "ca.crt", settings.secret())
    try:
        ids = operator.register(settings.roster)
        nodes = operator.nodes()
    except LinkError as problem:
        raise InputError(
            f"the SuperLink cannot be used: {problem}. Start it: compfed federation serve {settings.home}"
        ) from None
    finally:
        operator.close()
    words = {}
    for name, node in ids.items():
        state = nodes[node]
        since = state.since[11:19] + " UTC" if state.since else ""
        words[name] = (
            f"connected since {since}" if state.online else f"signed out at {since}" if since else "never connected"
        )
    return words
