"""A run as its operator sees it: a line per message and per event, and on a terminal a table with a line per site."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

from compfed.tools.text import text_table

PAUSE = 0.5  # seconds between two looks


class Running(Protocol):
    def poll(self) -> int | None: ...


class Watch:
    """Reads the files that a run appends to; `news()` is what they gained since the last look."""

    def __init__(self, folder: Path, sites: Sequence[str]):
        self.folder, self.sites = folder, sites
        self.seen = {"messages.jsonl": 0, "events.jsonl": 0}
        self.together: dict[int, list[dict[str, Any]]] = {}  # replies to messages that not everyone has answered
        self.last: dict[str, dict[str, Any]] = {}  # the last reply of each site
        self.trouble: dict[str, tuple[int, str]] = {}  # the last event of each site, and its message

    def news(self, over: bool) -> list[str]:
        """A line for every event and every message that was answered by all; of the others too, when the run is over."""
        lines = []
        for said in self._appended("events.jsonl"):
            self.trouble[said["site"]] = said["number"], said["what"]
            lines.append(f"  ! message {said['number']}, site {said['site']}: {said['what']}")
        for said in self._appended("messages.jsonl"):
            self.last[said["site"]] = said
            self.together.setdefault(said["number"], []).append(said)
        for number in sorted(self.together):
            if over or number < max(self.together) or (self.folder / "journal" / f"{number:08d}").exists():
                lines.append(_line(number, self.together.pop(number)))
        return lines

    def table(self, now: float) -> str:
        """A line per site: when it was last heard, how long it took, and what it is doing."""
        number = 1 + max((int(path.name) for path in (self.folder / "journal").glob("[0-9]*")), default=0)
        rows = []
        for name in self.sites:
            last = self.last.get(name)
            at, what = self.trouble.get(name, (0, ""))
            state = f"answered message {number}" if last and last["number"] >= number else f"asked, message {number}"
            state = what if at >= number and state.startswith("asked") else state
            seen = "-" if last is None else f"{max(now - last['time'], 0):.0f} s ago"
            rows.append([name, seen, "-" if last is None else f"{last['seconds']:.1f}", state[:60]])
        return text_table(["site", "last seen", "seconds", "state"], rows)

    def _appended(self, name: str) -> list[dict[str, Any]]:
        """The lines that a file gained; a last line that is not whole yet comes with the next look."""
        path = self.folder / name
        if not path.exists():
            return []
        with path.open("rb") as file:
            file.seek(self.seen[name])
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.seen[name] += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


def watch(folder: Path, sites: Sequence[str], process: Running, out: TextIO | None = None) -> None:
    """Show a run until it has ended."""
    out = out or sys.stdout
    assert out is not None
    seen, screen, drawn = Watch(folder, sites), out.isatty(), 0
    while True:
        over = process.poll() is not None or (folder / "ended.json").exists()
        lines = seen.news(over)
        if drawn:
            out.write(f"\x1b[{drawn}F\x1b[J")  # up to where the table began, and clear from there
        drawn = 0
        for line in lines:
            out.write(line + "\n")
        if screen and not over:
            table = seen.table(time.time())
            out.write(table + "\n")
            drawn = table.count("\n") + 1
        out.flush()
        if over:
            return
        time.sleep(PAUSE)


def _line(number: int, replies: list[dict[str, Any]]) -> str:
    kinds = ", ".join(dict.fromkeys(kind for said in replies for kind in said["questions"]))
    sites = "  ".join(f"{said['site']} {said['seconds']:.1f} s" for said in sorted(replies, key=lambda r: r["site"]))
    up, down = (sum(said[key] for said in replies) / 1e3 for key in ("bytes_up", "bytes_down"))
    return f"  {number:4d}  {sites}  {down:8.1f} kB down {up:8.1f} kB up  {kinds}"
