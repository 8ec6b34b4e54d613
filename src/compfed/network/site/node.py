"""The node of a site (`compfed site run`): one process, which dials out, replies to queries and runs no code of others."""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import random
import signal
import socket
import ssl
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
from cryptography import x509

from compfed._utils.files import locked, make_folder, write_private
from compfed._utils.text import join_names
from compfed.data.readers import TableError
from compfed.errors import InputError
from compfed.network import keys
from compfed.network.flower import FleetConnection, LinkError, Rejected
from compfed.network.settings import parse_address
from compfed.network.site.service import SiteService
from compfed.network.site.settings import QUERY_NAMES, SiteSettings

Say = Callable[[str], object]
SAY: Say = functools.partial(print, flush=True)  # a log shows a line at once
SHORTEST, LONGEST = 0.5, 15.0  # seconds between two attempts to connect
COMPILED_BYTES = 2**28  # of local steps that were compiled before
QUIET = 10.0  # seconds without a message after which a summary of the run is printed
REMIND = 600.0  # seconds after which the same problem is printed again

LEAVES = {
    "Describe": "the number of rows, the names of the columns, the classes and how many rows have each",
    "Moments": "the mean and the mean square of every column, to about 32 digits",
    "Lipschitz": "one number, a bound on the curvature of its loss, and the bin that it falls into",
    "Evaluate": "its loss at models, the gradient, and second derivatives on some coefficients: sums over all rows",
    "HeldOut": "the loss of models on rows held out, summed",
    "LocalUpdate": "the model after local steps, or its change",
    "FinishRound": "nothing but that it arrived",
}


def disclosure_text(settings: SiteSettings) -> str:
    """A text that lists what can leave this site."""
    lines = [f"Site {settings.name!r}: the rows of {settings.data} stay here. The operator can ask for:"]
    for name in QUERY_NAMES:
        refused = name in settings.disclosure.queries
        lines.append(f"  {'never ' if refused else ''}{name}: {'refused' if refused else LEAVES[name]}")
    lines.append(f"  With fewer than {settings.disclosure.min_rows} rows: nothing at all.")
    if settings.disclosure.max_hessian_share < float("inf"):
        lines.append(f"  Hessians on at most {settings.disclosure.max_hessian_share:g} x rows coefficients.")
    log = settings.state / "log.jsonl"
    lines.append(f"Every reply is written down in {log} before it leaves. No code of others runs here.")
    return "\n".join(lines)


class SiteNode:
    """Keeps a site connected, and replies to messages."""

    def __init__(self, settings: SiteSettings, say: Say = SAY):
        settings.check_files()
        self.settings, self.say = settings, say
        self.service = SiteService(settings, keys.read_identity(settings.key))
        self._connection: FleetConnection | None = None
        self._stopped = threading.Event()
        self._printed, self._printed_at = "", 0.0
        self._run, self._replies, self._bytes, self._at = "", 0, 0, 0.0

    # --- the connection ---

    def loop(self) -> None:
        """Stay connected until `stop`; after a failure connect again, with back-off."""
        pause = SHORTEST
        while not self._stopped.is_set():
            try:
                with self._signed_in() as connection:
                    self._print_once(f"connected to {self.settings.superlink}")
                    while not self._stopped.is_set():
                        self._reply_once(connection)
                        pause = SHORTEST
            except LinkError as problem:
                if self._stopped.is_set():
                    return
                self._print_once(f"not connected: {self._reason(problem).rstrip('.')}. Trying again.")
            except OSError as problem:
                self._print_once(f"the state cannot be written: {problem.strerror}. Trying again.")
            except Exception as problem:  # whatever a SuperLink sends, the site goes on
                self._print_once(f"an unexpected error ({type(problem).__name__}). Trying again.")
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
                write_private(path, json.dumps({"node_id": node}).encode())
            self._connection = connection
            yield connection
        finally:
            self._connection = None
            connection.close()

    def _reply_once(self, connection: FleetConnection) -> None:
        began = time.monotonic()
        try:
            delivery = connection.receive()
        except Rejected as refused:
            if refused.status != 403:
                raise
            return  # a message of a run that has ended meanwhile
        except InputError as problem:  # without a header there is nothing to reply to
            self._print_once(f"a message was ignored: {problem}")
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
                self._print_once(f"a reply was not taken: {refused}")

    def _report(self, size: int) -> None:
        """Print when a run begins, and what was refused."""
        run, refused = self.service.last
        if run and run != self._run:
            self._summarise()
            self._run, self._replies, self._bytes = run, 0, 0
            self._say(f"run {run}: the operator sends queries, this site replies")
        if refused:
            self._print_once(f"refused: {refused}")
        self._replies, self._bytes = self._replies + 1, self._bytes + size
        self._at = time.monotonic()

    def _summarise(self) -> None:
        """Print how many replies a run got, once no message has come for some seconds."""
        if self._replies and time.monotonic() - self._at > QUIET:
            log = self.settings.state / "log.jsonl"
            self._say(f"run {self._run}: {self._replies} replies, {self._bytes / 1e3:.0f} kB; see {log}")
            self._replies, self._bytes = 0, 0

    def _reason(self, problem: LinkError) -> str:
        if isinstance(problem, Rejected) and (problem.code == 2004 or problem.status == 401):
            mine = keys.fingerprint(self.service.key.public_key())
            return f"the operator has not admitted the key {mine} of site {self.settings.name!r} yet; send them the public key"
        return str(problem)

    def _print_once(self, text: str) -> None:
        """Print a line; the same line again only after some time."""
        if text != self._printed or time.monotonic() - self._printed_at > REMIND:
            self._say(text)
            self._printed, self._printed_at = text, time.monotonic()

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
    make_folder(settings.state)
    try:
        with locked(settings.state / "lock", wait=False):
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
    """Set up JAX for this whole process: local steps are compiled once at a site, and run on its CPU."""
    chosen: dict[str, str | float] = {
        "jax_compilation_cache_dir": str(settings.state / "compiled"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
        "jax_platforms": "cpu",
    }
    prune(settings.state / "compiled", COMPILED_BYTES)
    for name, value in chosen.items():
        jax.config.update(name, value)


def run_site(path: Path, say: Say = SAY) -> int:
    """Run the node of a site until SIGTERM or Ctrl-C, then end the process."""
    os.umask(0o077)
    settings = SiteSettings.read(path)
    configure_jax(settings)
    node = SiteNode(settings, say)
    with alone(settings):
        say(disclosure_text(settings))
        try:
            rows = len(node.service.open().labels)  # rows that cannot be used are better found now than in a round
        except TableError as problem:  # values of rows may be shown by `check`, and never in the log of a service
            raise InputError(
                f"the rows cannot be used: {problem.public_reason} `compfed site check` shows where."
            ) from None
        if rows < settings.disclosure.min_rows:
            least = settings.disclosure.min_rows
            say(f"WARNING: the table has fewer rows than min_rows = {least}: every query will be refused.")
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


# --- before a site takes part (`compfed site check`) ---


def check(path: Path, say: Say = print) -> bool:
    """Print what would happen if this site took part; return whether everything is in order."""
    settings = SiteSettings.read(path)
    problems: list[str] = []
    say(f"{path}: the settings of site {settings.name!r} can be read.")
    _check_state(settings, problems)
    _check_table(settings, say, problems)
    _check_files(settings, say, problems)
    say(disclosure_text(settings))
    for problem in problems:
        say(f"PROBLEM  {problem}")
    if not problems:
        say(
            f"Everything is in order. Next: compfed site run --config {path} (restart it if it runs: settings are read once)"
        )
    return not problems


def _check_state(settings: SiteSettings, problems: list[str]) -> None:
    there = next((path for path in (settings.state, *settings.state.parents) if path.exists()), Path("/"))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK) or there.is_relative_to("/proc"):
        problems.append(f"state = {str(settings.state)!r} cannot be written by this user.")


def _check_table(settings: SiteSettings, say: Say, problems: list[str]) -> None:
    try:
        site = settings.site()
    except InputError as problem:
        problems.append(str(problem))
        return
    say(
        f"{settings.data}: {len(site.labels)} rows, {site.width} columns: {join_names(list(site.columns or ()), most=12)}."
    )
    values, counts = np.unique(site.labels, return_counts=True)
    if site.labels.ndim == 1 and len(values) <= 20:
        listed = ", ".join(f"{value} ({count} rows)" for value, count in zip(values, counts, strict=True))
        say(f"Label {settings.label!r}: {listed}. A classifier takes these as classes; all sites must have the same.")
    else:
        say(f"Label {settings.label!r}: numbers, for a regression.")
    if len(site.labels) < settings.disclosure.min_rows:
        problems.append(
            f"there are {len(site.labels)} rows and min_rows = {settings.disclosure.min_rows}: every query would be refused."
        )


def _check_files(settings: SiteSettings, say: Say, problems: list[str]) -> None:
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
