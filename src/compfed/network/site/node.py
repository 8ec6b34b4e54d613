"""`compfed site run`: the node of a site. One process, which dials out, answers queries and runs nobody's code."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from compfed._utils import files as durable
from compfed.data.readers import TableError
from compfed.errors import InputError
from compfed.network import keys
from compfed.network.flower import FleetConnection, LinkError, Rejected
from compfed.network.site.service import SiteService
from compfed.network.site.settings import QUERY_NAMES, SiteSettings

SAY = functools.partial(print, flush=True)  # a log shows a line at once
SHORTEST, LONGEST = 0.5, 15.0  # seconds between two attempts to connect
COMPILED_BYTES = 2**28  # of local steps that were compiled before
QUIET = 10.0  # seconds without a message after which a run is summed up
REMIND = 600.0  # seconds after which the same problem is said again

LEAVES = {
    "Describe": "the number of rows, the names of the columns, the classes and how many rows have each",
    "Moments": "the mean of every column, and its mean squared distance from that",
    "Lipschitz": "one number: a bound on the curvature of its loss",
    "Evaluate": "its loss at a model, the gradient, and second derivatives on a set of coefficients: weighted sums over all rows",
    "HeldOut": "the loss of models on rows held out, summed",
    "LocalUpdate": "the model after local steps, or its change",
    "FinishRound": "nothing but that it arrived",
}


def what_leaves(settings: SiteSettings) -> str:
    """What can leave this site, in plain words."""
    lines = [f"Site {settings.name!r}: the rows of {settings.data} stay here. What the operator can ask for:"]
    for name in QUERY_NAMES:
        refused = name in settings.refuses.queries
        lines.append(f"  {'never ' if refused else ''}{name}: {'refused' if refused else LEAVES[name]}")
    lines.append(f"  With fewer than {settings.refuses.min_rows} rows: nothing at all.")
    if settings.refuses.max_hessian_share < float("inf"):
        lines.append(f"  Hessians on at most {settings.refuses.max_hessian_share:g} x rows coefficients.")
    lines.append(
        f"Every reply is written down in {settings.state / 'log.jsonl'} before it leaves. No code of others runs here."
    )
    return "\n".join(lines)


class SiteNode:
    """Keeps a site connected, and answers."""

    def __init__(self, settings: SiteSettings, say: Callable[[str], Any] = SAY):
        settings.check_files()
        self.settings, self.say = settings, say
        self.service = SiteService(settings, keys.read_identity(settings.key))
        self._connection: FleetConnection | None = None
        self._stopped = threading.Event()
        self._said, self._said_at = "", 0.0
        self._run, self._replies, self._bytes, self._at = "", 0, 0, 0.0

    # --- the connection ---

    def loop(self) -> None:
        """Stay connected until `stop`; after a failure connect again, with back-off."""
        pause = SHORTEST
        while not self._stopped.is_set():
            try:
                with self._signed_in() as connection:
                    self._tell(f"connected to {self.settings.superlink}")
                    while not self._stopped.is_set():
                        self._answer_one(connection)
                        pause = SHORTEST
            except LinkError as problem:
                if self._stopped.is_set():
                    return
                self._tell(f"not connected: {self._reason(problem).rstrip('.')}. Trying again.")
            except OSError as problem:
                self._tell(f"the state cannot be written: {problem.strerror}. Trying again.")
            except Exception as problem:  # whatever a SuperLink provokes, the site stays
                self._tell(f"an unexpected error ({type(problem).__name__}). Trying again.")
            self._stopped.wait(pause * random.uniform(0.8, 1.2))
            pause = min(2 * pause, LONGEST)

    @contextmanager
    def _signed_in(self) -> Iterator[FleetConnection]:
        settings = self.settings
        path = settings.state / "node.json"
        known = _known_node(path)
        connection = FleetConnection(settings.superlink, settings.ca, self.service.key, known)
        try:
            node = connection.sign_in()
            if node != known:
                durable.write(path, json.dumps({"node_id": node}).encode())
            self._connection = connection
            yield connection
        finally:
            self._connection = None
            connection.close()

    def _answer_one(self, connection: FleetConnection) -> None:
        began = time.monotonic()
        try:
            delivery = connection.receive()
        except Rejected as refused:
            if refused.status != 403:
                raise
            return  # a message of a run that has ended meanwhile
        except InputError as problem:  # not even an envelope: there is nobody to reply to
            self._tell(f"a message was ignored: {problem}")
            return
        if delivery is None:
            self._summarise()
            if time.monotonic() - began < 0.1:  # a SuperLink that does not hold requests open
                self._stopped.wait(0.2)
            return
        reply = self.service.reply(delivery.data)
        self._report(len(reply))
        if self.service.replies % 8 == 0:
            prune(self.settings.state / "compiled", COMPILED_BYTES)
        try:
            connection.reply(delivery, reply)
        except Rejected as refused:
            if refused.status == 401:
                raise
            if refused.status != 403:  # 403: the run has ended at the SuperLink; the reply is on disk if it is needed
                self._tell(f"a reply was not taken: {refused}")

    def _report(self, size: int) -> None:
        """Say when a run begins, and what was refused."""
        run, refused = self.service.last
        if run and run != self._run:
            self._summarise()
            self._run, self._replies, self._bytes = run, 0, 0
            self._say(f"run {run}: the operator asks, this site answers")
        if refused:
            self._tell(f"not answered: {refused}")
        self._replies, self._bytes = self._replies + 1, self._bytes + size
        self._at = time.monotonic()

    def _summarise(self) -> None:
        """Say how much a run was answered, once it has been quiet for some seconds."""
        if self._replies and time.monotonic() - self._at > QUIET:
            self._say(
                f"run {self._run}: {self._replies} replies, {self._bytes / 1e3:.0f} kB; see {self.settings.state / 'log.jsonl'}"
            )
            self._replies, self._bytes = 0, 0

    def _reason(self, problem: LinkError) -> str:
        if isinstance(problem, Rejected) and (problem.code == 2004 or problem.status == 401):
            mine = keys.fingerprint(self.service.key.public_key())
            return f"the operator has not admitted the key {mine} of site {self.settings.name!r} yet; send them the public key"
        return str(problem)

    def _tell(self, text: str) -> None:
        """Say something, once; the same thing again only after some time."""
        if text != self._said or time.monotonic() - self._said_at > REMIND:
            self._say(text)
            self._said, self._said_at = text, time.monotonic()

    def _say(self, text: str) -> None:
        self.say(f"{time.strftime('%H:%M:%S')} {text}")

    def stop(self) -> None:
        """Sign out, from another thread."""
        self._stopped.set()
        if (connection := self._connection) is not None:
            connection.close()


def _known_node(path: Path) -> int:
    """The node id of an earlier start; 0 if there is none."""
    try:
        return int(json.loads(path.read_text())["node_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


@contextmanager
def alone(settings: SiteSettings) -> Iterator[None]:
    """One process per state folder."""
    durable.make_folder(settings.state)
    try:
        with durable.locked(settings.state / "lock", wait=False):
            yield
    except BlockingIOError:
        raise InputError(f"another `compfed site run` uses {settings.state}. Stop it first.") from None


def prune(folder: Path, most: int) -> None:
    """Remove the oldest files of a folder, until it has at most so many bytes."""
    with contextlib.suppress(OSError):  # there is none yet
        files = sorted(
            ((path.stat(), path) for path in folder.iterdir()), key=lambda found: found[0].st_mtime, reverse=True
        )
        used = 0
        for facts, path in files:
            used += facts.st_size
            if used > most:
                path.unlink(missing_ok=True)


def configure_jax(settings: SiteSettings) -> None:
    """For this whole process: local steps are compiled once at a site, and run on its CPU."""
    chosen: dict[str, Any] = {
        "jax_compilation_cache_dir": str(settings.state / "compiled"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
        "jax_platforms": "cpu",
    }
    prune(settings.state / "compiled", COMPILED_BYTES)
    for name, value in chosen.items():
        jax.config.update(name, value)


def run_site(path: Path, say: Callable[[str], Any] = SAY) -> int:
    """Run the node of a site until SIGTERM or Ctrl-C, then end the process."""
    os.umask(0o077)
    settings = SiteSettings.read(path)
    configure_jax(settings)
    node = SiteNode(settings, say)
    with alone(settings):
        say(what_leaves(settings))
        try:
            rows = len(node.service.open().labels)  # what is wrong with the rows is better known now than in a round
        except (
            TableError
        ) as problem:  # values of rows are for `check`, which a person runs, and not for the log of a service
            raise InputError(
                f"the rows cannot be used: {problem.public_reason} `compfed site check` shows where."
            ) from None
        if rows < settings.refuses.min_rows:
            say(
                f"WARNING: the table has fewer rows than min_rows = {settings.refuses.min_rows}: every query will be refused."
            )
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        worker = threading.Thread(target=node.loop, daemon=True, name="compfed-site")
        worker.start()
        while not stop.wait(0.2) and worker.is_alive():
            if node.service.is_overdue():
                _replace(node, path)
        ended = stop.is_set()
        node.stop()
        say(f"{time.strftime('%H:%M:%S')} {'stopped' if ended else 'ended by an error of its own; start it again'}")
    sys.stdout.flush()
    os._exit(0 if ended else 1)  # compiled code in the other thread is not waited for; files are whole or not there


def _replace(node: SiteNode, path: Path) -> None:
    """Start this program anew in the same process: a reply takes too long, and compiled code cannot be interrupted."""
    node.service.mark_overdue()
    node.say(
        f"{time.strftime('%H:%M:%S')} a message took more than {node.settings.budget.max_seconds:g} s; it will be refused"
    )
    with contextlib.suppress(Exception):
        node.stop()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "compfed.cli", "site", "run", "--config", str(path)])
