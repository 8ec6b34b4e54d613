"""What an operator can see of a run: a log with a line per reply and per problem, and what is awaited right now.

FOLDER/log.jsonl     a line per reply (site, queries, bytes, seconds, hash) and per problem
FOLDER/status.json   the state of the run, for `compfed federation status`
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compfed._utils import files as durable
from compfed._utils.text import printable

LINES_KEPT = 1000


class RunLog:
    """The log of a run, and its current state. Safe to read from another thread (`snapshot`)."""

    def __init__(self, folder: Path | None, sites: Sequence[str]):
        self.folder, self.sites = folder, tuple(sites)
        self.problems: deque[dict[str, Any]] = deque(maxlen=LINES_KEPT)
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)  # for a display: answered messages and problems, in words
        self._lock = threading.RLock()
        self._state: dict[str, Any] = {
            "state": "starting",
            "message": 0,
            "queries": [],
            "waiting": {},
            "connected": None,
            "link": "",
        }
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
        """Something that the operator should know."""
        with self._lock:
            entry = {"number": self._state["message"], "site": site, "problem": printable(what)}
            self.problems.append({"time": round(time.time(), 3), **entry})
            self.lines.append(
                f"  ! message {entry['number']}, site {site}: {entry['problem']}" if site else f"  ! {entry['problem']}"
            )
        self._write(entry)

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
        with self._lock:
            self._state["connected"] = list(sites)

    def end(self, state: str, **facts: Any) -> None:
        """The run has ended, well or not."""
        with self._lock:
            self._state |= {"state": state, "waiting": {}, **facts}
        self.save(flush=True)

    def snapshot(self) -> dict[str, Any]:
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
            durable.write(self.folder / "status.json", json.dumps(content, indent=1).encode(), flush=flush)

    def _write(self, entry: dict[str, Any]) -> None:
        if self.folder is not None:
            durable.append(self.folder / "log.jsonl", {"time": round(time.time(), 3), **entry})
