"""The log of a run and its display: a line per reply and per problem, and which reply is awaited.

FOLDER/log.jsonl     a line per reply (site, queries, bytes, seconds, hash) and per problem
FOLDER/status.json   the state of the run, for `compfed federation status`
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO, TypedDict

from compfed._utils.files import append_line, write_private
from compfed._utils.text import printable, text_table

LINES_KEPT = 1000
REFRESH = 0.5  # seconds between two redraws, on a terminal
SILENCE = 8.0  # seconds without a line after which a run without a terminal prints what it waits for


class Problem(TypedDict):
    """A problem of a run: when, at which message, at which site ("" for none), and what happened."""

    time: float
    number: int
    site: str
    problem: str


class RunLog:
    """The log of a run, and its current state. Safe to read from another thread (`snapshot`)."""

    def __init__(self, folder: Path | None, sites: Sequence[str]):
        self.folder, self.sites = folder, tuple(sites)
        self.problems: deque[Problem] = deque(maxlen=LINES_KEPT)
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)  # for a display: complete messages and problems, in words
        self._lock = threading.RLock()
        self._state: dict[str, Any] = {"state": "starting", "message": 0, "queries": [], "waiting": {}}
        self._state |= {"connected": None, "link": ""}
        self._last: dict[str, dict[str, Any]] = {}
        self._message: dict[str, Any] = {}

    def begin(self, number: int, kinds: Sequence[str], sites: Sequence[str]) -> None:
        """A message is about to be sent."""
        now = time.time()
        with self._lock:
            self._message = {"number": number, "kinds": list(dict.fromkeys(kinds)), "began": now, "replies": {}}
            self._state |= {"state": "running", "message": number, "queries": self._message["kinds"]}
            self._state["waiting"] = dict.fromkeys(sites, now)
        self.save()

    def reply(self, site: str, **facts: Any) -> None:
        """A usable reply arrived."""
        with self._lock:
            self._state["waiting"].pop(site, None)
            self._last[site] = {"time": time.time(), "seconds": facts["seconds"]}
            self._message["replies"][site] = facts
            done = not self._state["waiting"]
        self._write({"site": site, "number": self._message["number"], **facts})
        self.save()
        if done:
            self._finish_message()

    def _finish_message(self) -> None:
        message = self._message
        down, up = (sum(r[key] for r in message["replies"].values()) / 1e3 for key in ("bytes_down", "bytes_up"))
        seconds = time.time() - message["began"]
        line = f"message {message['number']:3d}  {seconds:6.1f} s  {down:8.1f} kB down {up:8.1f} kB up  {', '.join(message['kinds'])}"
        with self._lock:
            self.lines.append(line)

    def problem(self, site: str, what: str) -> None:
        """Log a problem for the operator to see; `site` is "" where no site caused it."""
        with self._lock:
            number, what = self._state["message"], printable(what)
            self.problems.append({"time": round(time.time(), 3), "number": number, "site": site, "problem": what})
            self.lines.append(f"  ! message {number}, site {site}: {what}" if site else f"  ! {what}")
        self._write({"number": number, "site": site, "problem": what})

    def link(self, trouble: str) -> None:
        """The SuperLink cannot be used, and why; "" when it can."""
        with self._lock:
            if trouble == self._state["link"]:
                return
            self._state["link"] = trouble
        if trouble:
            self.problem("", f"the SuperLink cannot be used: {trouble}")
        self.save()

    def connected(self, sites: Sequence[str]) -> None:
        """These sites are connected."""
        with self._lock:
            self._state["connected"] = list(sites)

    def end(self, state: str, **facts: Any) -> None:
        """The run has ended, well or not."""
        with self._lock:
            self._state |= {"state": state, "waiting": {}, **facts}
        self.save(flush=True)

    def snapshot(self) -> dict[str, Any]:
        """The state of the run now."""
        with self._lock:
            return {**self._state, "waiting": dict(self._state["waiting"]), "last": dict(self._last)}

    def take_lines(self) -> list[str]:
        """The lines since the last call."""
        with self._lock:
            lines = list(self.lines)
            self.lines.clear()
            return lines

    def save(self, flush: bool = False) -> None:
        """Write status.json."""
        if self.folder is not None:
            content = {**self.snapshot(), "pid": os.getpid(), "updated": round(time.time(), 3)}
            write_private(self.folder / "status.json", json.dumps(content, indent=1).encode(), flush=flush)

    def _write(self, entry: dict[str, Any]) -> None:
        if self.folder is not None:
            append_line(self.folder / "log.jsonl", json.dumps({"time": round(time.time(), 3), **entry}).encode())


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
        lines = self.log.take_lines()
        if self.brief:  # a script has output of its own: problems only
            lines = [line for line in lines if line.lstrip().startswith("!")]
        text += "".join(f"{line}\n" for line in lines)
        now = time.monotonic()
        if lines:
            self._printed_at = now
        if screen and not last:
            width = shutil.get_terminal_size().columns - 1  # a line that wraps would be two
            table = [line[:width] for line in site_table(self.log.snapshot(), self.log.sites).splitlines()]
            text += "\n".join(table) + "\n"
            self._drawn = len(table)
        elif not last and now - self._printed_at >= SILENCE and (not self.brief or is_stalled(self.log.snapshot())):
            text += happening(self.log.snapshot()) + "\n"
            self._printed_at = now
        if text:
            self.out.write(text)
            self.out.flush()


def is_stalled(state: dict[str, Any]) -> bool:
    """Has the current message been awaited for some seconds?"""
    now = time.time()
    return bool(state["link"]) or any(now - at >= SILENCE for at in state["waiting"].values())


def happening(state: dict[str, Any]) -> str:
    """The state of a run in one sentence."""
    if state["link"]:
        return f"Waiting for the SuperLink: {state['link']}."
    if not state["message"]:
        return "Connecting to the SuperLink."
    if not state["waiting"]:
        return f"Message {state['message']} is complete; the fit computes the next one."
    since = max(time.time() - at for at in state["waiting"].values())
    absent = [name for name in state["waiting"] if state["connected"] is not None and name not in state["connected"]]
    words = f"Message {state['message']} ({', '.join(state['queries'])}): waiting for {', '.join(state['waiting'])} since {since:.0f} s"
    return words + (f"; not connected: {', '.join(absent)}." if absent else ".")


def site_table(state: dict[str, Any], sites: tuple[str, ...]) -> str:
    """A line per site: whether it is connected, when its last reply came, and whether one is awaited."""
    rows, now = [], time.time()
    for name in sites:
        last = state["last"].get(name)
        connected = "?" if state["connected"] is None else "yes" if name in state["connected"] else "NO"
        seen = "-" if last is None else f"{max(now - last['time'], 0):.0f} s ago"
        took = "-" if last is None else f"{last['seconds']:.1f} s"
        waiting = state["waiting"].get(name)
        doing = f"awaited since {now - waiting:.0f} s" if waiting else "replied" if last else "-"
        rows.append([name, connected, seen, took, doing])
    return text_table(["site", "connected", "last reply", "took", "now"], rows) + "\n" + happening(state)
