"""The operator: connects to the sites from a script, a notebook or `compfed federation run`."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from compfed._utils.files import write_private
from compfed._utils.plain import JsonObject
from compfed._utils.text import join_names, text_table
from compfed.errors import InputError
from compfed.estimators.model_file import save_model
from compfed.estimators.run_files import write_run
from compfed.federation.enrolment import hessian_note
from compfed.network.flower import FlowerLink, LinkError
from compfed.network.run_folder import RunLog, read_status, run_lock
from compfed.network.server import NoReply, RemoteFederation
from compfed.network.settings import FederationSettings

if TYPE_CHECKING:
    from compfed.estimators.base import FederatedModel
    from compfed.estimators.evaluation import Evaluation


REFRESH = 0.5  # seconds between two redraws, on a terminal
SHOWN = 12  # sites that are named one by one
ROWS_BESIDE = 5  # lines of a terminal beside the sites of a table: its head, what happens, the cursor
SILENCE = 8.0  # seconds without a line after which a run without a terminal prints what it waits for


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
        A federation for every estimator's `fit_federation`, for `evaluate` and the solvers. Use it in a `with`
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
    folder = None if folder is None else Path(folder)
    with contextlib.ExitStack() as stack:
        if folder is not None:
            stack.enter_context(run_lock(folder))
        federation = _connect(settings, folder)
        federation.attach(stack.pop_all())
    if progress:
        federation.attach(Display(federation.run_log, sys.stderr, brief=True))
    return federation


@contextmanager
def _superlink(settings: FederationSettings) -> Iterator[FlowerLink]:
    """A link to the SuperLink, closed after an error; where it cannot be used, the error says how to start one."""
    settings.check_keys()
    link = FlowerLink(settings.dial, settings.keys, settings.roster)
    try:
        yield link
    except BaseException as problem:
        link.close()
        if isinstance(problem, LinkError):
            way_out = f"Start it: compfed federation serve {settings.home}"
            raise InputError(f"the SuperLink cannot be used: {problem}. {way_out}") from None
        raise


def _connect(settings: FederationSettings, folder: Path | None) -> RemoteFederation:
    with _superlink(settings) as link:
        link.open()
        return RemoteFederation(link, settings.roster, folder=folder, retry=settings.retry, why=settings.why)


def run(settings: FederationSettings, folder: Path) -> tuple[FederatedModel, Evaluation | None]:
    """Fit the estimator of federation.toml, or continue a run that was interrupted.

    Returns the fitted model, and its evaluation where federation.toml asks for one and the sites allow it.
    """
    folder = folder.absolute()
    with run_lock(folder):
        if read_status(folder).get("state") == "finished":
            raise InputError(f"{folder} holds a run that has finished. Give another folder for a new one (--out).")
        config = json.loads(json.dumps(settings.resolved(), default=str))
        federation = _connect(settings, folder)
        log = federation.run_log
        try:
            if federation.log.messages:
                _check_config(folder, config)
                log.lines.append(f"Continuing run {federation.log.run} after message {max(federation.log.messages)}.")
            write_private(folder / "config.json", json.dumps(config, indent=2).encode())
            federation.attach(Display(log))
            with federation:
                if note := hessian_note(federation.names, federation.enrolments):
                    log.lines.append(f"  ! {note}")
                model = settings.new_estimator().fit_federation(federation)
                save_model(model, folder)  # what follows may be refused
                if settings.summary:
                    _summarise(model, federation, settings.summary)
                evaluation = _evaluate(model, federation, settings.evaluate) if settings.evaluate else None
            write_run(model, folder, config, evaluation)
        except OSError as problem:
            with contextlib.suppress(OSError):  # the disk may be full
                log.end("failed", reason=str(problem.strerror))
            way_out = "Make room and run the same command again; the run continues."
            raise InputError(f"{problem.filename or folder}: {problem.strerror}. {way_out}") from None
        except BaseException:
            federation.close()
            raise
        cost = model.communication_
        log.end(
            "finished", rounds=cost.rounds, bytes_up=cost.bytes_up, bytes_down=cost.bytes_down,
            certificate=str(model.certificate_),
        )  # fmt: skip
        return model, evaluation


def _summarise(model: FederatedModel, federation: RemoteFederation, errors: str) -> None:
    """Ask for the standard errors of a model, of a penalised fit by its refit; a line for the operator where a site refuses them."""
    try:
        model.summary(se=errors, refit=True)
    except NoReply:
        raise
    except InputError as problem:
        federation.run_log.lines.append(f"  ! The model is saved; it has no standard errors: {problem}")


def _evaluate(model: FederatedModel, federation: RemoteFederation, folds: bool | int) -> Evaluation | None:
    """The evaluation of a model, by models without their fold or, with True, on the rows it was fitted to.

    None, and a line for the operator, where a site refuses it.
    """
    try:
        return model.evaluate(federation) if folds is True else model.evaluate(federation, cv=folds)
    except NoReply:
        raise
    except InputError as problem:
        federation.run_log.lines.append(f"  ! The model is saved; it was not evaluated: {problem}")
        return None


def _check_config(folder: Path, config: JsonObject) -> None:
    """Raise an error that names the setting which differs from the one that the run began with."""
    try:
        began = json.loads((folder / "config.json").read_text())
        old, new = ({"estimator": each["estimator"], **each["parameters"]} for each in (began, config))
    except (OSError, ValueError, LookupError, TypeError):  # no such file, or not ours: the log refuses other queries
        return
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            values = f"{name} = {new.get(name)!r}, and the run in {folder} began with {old.get(name)!r}"
            raise InputError(f"{values}. Restore it, or give another folder (--out).")


def site_states(settings: FederationSettings) -> dict[str, str]:
    """Whether each site is connected, in words; raises `InputError` if the SuperLink cannot be reached."""
    with _superlink(settings) as link:
        link.register()
        states = link.states()
        link.close()
    words = {}
    for name, (online, since) in states.items():
        time_of_day = f"{since[11:19]} UTC"
        known = f"connected since {time_of_day}" if online else f"signed out at {time_of_day}"
        words[name] = known if since else "never connected"
    return words


# --- on the operator's screen ---


class Display:
    """Shows a run while it goes on. On a terminal a table is redrawn below the lines; elsewhere there are plain lines.

    A `brief` display shows problems, and which reply is awaited when nothing has happened for some seconds.
    """

    def __init__(self, log: RunLog, out: TextIO | None = None, brief: bool = False):
        self.log, self.out, self.brief = log, sys.stdout if out is None else out, brief
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True, name="compfed-display")
        self._drawn, self._printed_at = 0, time.monotonic()

    def __enter__(self) -> Display:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._refresh(last=True)

    def _loop(self) -> None:
        while not self._stopped.wait(REFRESH):
            self._refresh()

    def _refresh(self, last: bool = False) -> None:
        screen, text = self.out.isatty() and not self.brief, ""
        if self._drawn:
            text += f"\x1b[{self._drawn}F\x1b[J"  # up to where the table began, and clear from there
            self._drawn = 0
        lines, state, now = self.log.take_lines(), self.log.state, time.monotonic()
        if self.brief:  # a script has output of its own: problems only
            lines = [line for line in lines if line.lstrip().startswith("!")]
        text += "".join(f"{line}\n" for line in lines)
        if lines:
            self._printed_at = now
        stalled = bool(state["link"]) or any(time.time() - at >= SILENCE for at in state["waiting"].values())
        if screen and not last:
            columns, rows = shutil.get_terminal_size()
            table = site_table(state, self.log.sites, most=max(rows - ROWS_BESIDE, 1)).splitlines()
            table = [line[: columns - 1] for line in table]  # a line that wraps would be two
            text += "\n".join(table) + "\n"
            self._drawn = len(table)
        elif not last and now - self._printed_at >= SILENCE and (stalled or not self.brief):
            text += happening(state) + "\n"
            self._printed_at = now
        if text:
            self.out.write(text)
            self.out.flush()


def happening(state: JsonObject) -> str:
    """The state of a run in one sentence."""
    if state["link"]:
        return f"Waiting for the SuperLink: {state['link']}."
    if not state["message"]:
        return "Connecting to the SuperLink."
    if not state["waiting"]:
        return f"Message {state['message']} is complete; the fit computes the next one."
    since = max(time.time() - at for at in state["waiting"].values())
    absent = [name for name in state["waiting"] if state["connected"] is not None and name not in state["connected"]]
    awaited = sorted(state["waiting"], key=lambda name: (name not in absent, state["waiting"][name]))
    several = f"{len(awaited)} sites: " if len(awaited) > SHOWN else ""
    words = f"Message {state['message']} ({join_names(state['queries'])}): waiting for {several}{join_names(awaited)} since {since:.0f} s"
    return words + (f"; not connected: {join_names(absent)}." if absent else ".")


def site_table(state: JsonObject, sites: tuple[str, ...], most: int = 1000) -> str:
    """A line per site: whether it is connected, when its last reply came, and whether one is awaited.

    With more than `most` sites those that hold the run up come first, and one line counts the others.
    """
    rows, now, connected, waiting, last = [], time.time(), state["connected"], state["waiting"], state["last"]

    def urgency(name: str) -> tuple[bool, float, float]:
        absent = connected is not None and name not in connected
        took = last[name]["seconds"] if name in last else 0.0
        return not absent, waiting.get(name, math.inf), -took

    shown = list(sites) if len(sites) <= most else sorted(sites, key=urgency)[: most - 1]
    for name in shown:
        reply = last.get(name)
        online = "?" if connected is None else "yes" if name in connected else "NO"
        seen = "-" if reply is None else f"{max(now - reply['time'], 0):.0f} s ago"
        took = "-" if reply is None else f"{reply['seconds']:.1f} s"
        doing = f"awaited since {now - waiting[name]:.0f} s" if name in waiting else "replied" if reply else "-"
        rows.append([name, online, seen, took, doing])
    table = text_table(["site", "connected", "last reply", "took", "now"], rows)
    if others := [name for name in sites if name not in set(shown)]:
        missing = sum(name in waiting for name in others)
        table += f"\nand {len(others)} more sites, {missing} of them awaited"
    return f"{table}\n{happening(state)}"


def states_text(states: dict[str, str]) -> str:
    """The sites and their states, for a terminal: a line per site, or per state where there are many sites, the worst first."""
    if len(states) <= SHOWN:
        return text_table(["site", "state"], [list(pair) for pair in states.items()])
    found: dict[str, list[str]] = {}
    for name, words in states.items():
        found.setdefault(re.sub(r" (since|at) .*", "", words), []).append(name)
    order = sorted(found, key=lambda words: (words == "connected", words))
    rows = [[words, str(len(found[words])), join_names(found[words], most=SHOWN)] for words in order]
    return text_table(["state", "sites", "names"], rows)
