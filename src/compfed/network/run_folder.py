"""The folder of a run: its write-ahead log, its log, its status, and the lock of the process that runs in it.

FOLDER/write_ahead.log   the replies to every message, on disk before the next message leaves
FOLDER/log.jsonl         a line per reply (site, queries, bytes, seconds, hash) and per problem
FOLDER/status.json       the state of the run, for `compfed federation status`
FOLDER/lock              held by the process that runs there; its process id
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import signal
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from compfed._utils.files import append_line, locked, make_folder, write_private
from compfed._utils.plain import JsonObject
from compfed._utils.text import join_names, printable
from compfed.errors import InputError
from compfed.federation.codec import from_bytes, pack, to_bytes, unpack

Replies = dict[int, tuple[Any, ...]]
NAME = "write_ahead.log"
LINES_KEPT = 1000


# --- the write-ahead log ---


class WriteAheadLog:
    """The replies to every message of a run. Without a folder nothing is written, and nothing can be resumed.

    A fit is a function of the replies. An operator's process that was killed is started again with the same settings in
    the same folder: it sends the same queries, takes the replies from the log as far as the log goes, and continues
    from there. The log is the only memory of a run: the SuperLink keeps nothing.

    One line per message: a checksum, which covers the line before as well, and JSON. The first line names the run and
    its sites. A last line without its end was torn by a crash and is dropped; any other damage is an error.
    """

    def __init__(self, folder: Path | None, sites: Mapping[str, str]):
        self.sites, self.path = dict(sites), None if folder is None else folder / NAME
        self.run = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"
        self.tables: dict[str, str] = {}  # keyed hash of each site's table, once it is pinned
        self.messages: dict[int, JsonObject] = {}
        self._pending: tuple[int, Mapping[int, str], Replies, tuple[int, int]] | None = (
            None  # complete, not accepted by the program yet
        )
        self._last, self._size, self._begun = "", 0, False
        if self.path is not None and self.path.exists():
            self._read()

    def _read(self) -> None:
        assert self.path is not None
        data = self.path.read_bytes()
        self._size = data.rfind(b"\n") + 1  # what follows was torn by a crash
        for number, line in enumerate(data[: self._size].splitlines(), 1):
            checksum, _, text = line.partition(b" ")
            if checksum.decode("ascii", "replace") != _checksum(self._last, text):
                wrong = f"{self.path}, line {number}, is damaged: its checksum does not match"
                raise InputError(f"{wrong}. Restore the file from a backup, or start again in another folder.")
            self._last, entry = checksum.decode(), json.loads(text)
            if number == 1:
                self._begin(entry)
            else:
                self.messages[entry["number"]] = entry
                self.tables |= entry["tables"]
        if self._size < len(data):
            os.truncate(self.path, self._size)

    def _begin(self, entry: JsonObject) -> None:
        changed = set(entry["sites"].items()) ^ set(self.sites.items())
        if changed:
            names = join_names(sorted({name for name, _ in changed}), most=12)
            way_out = "Give another folder, or the sites that the run was started with."
            raise InputError(f"{self.path} holds run {entry['run']} of other sites or keys ({names}). {way_out}")
        self.run, self._begun = entry["run"], True

    def replies(self, number: int, hashes: Mapping[int, str]) -> tuple[Replies, tuple[int, int]] | None:
        """The replies to a message that is in the log, and its bytes down and up; other queries under its number are refused.

        `hashes` has the `query_hash` of the queries to each site, by the number of the site.
        """
        entry = self.messages.get(number)
        if entry is None:
            return None
        if {int(i): name for i, name in entry["queries"].items()} != dict(hashes):
            rule = "A run is resumed with the settings that it was started with, and the same version of compfed"
            wrong = f"{self.path} holds a run whose message {number} had other queries"
            raise InputError(f"{wrong}. {rule}; give another folder for a new run.")
        replies = {int(i): unpack(from_bytes(base64.b64decode(data))) for i, data in entry["replies"].items()}
        down, up = entry["bytes"]
        return replies, (down, up)

    def stage(self, number: int, hashes: Mapping[int, str], replies: Replies, size: tuple[int, int]) -> None:
        """Keep the replies to a message until the program sends the next one, which means that it accepted them.

        The first replies describe columns and classes. The program raises an error where the sites differ there, and the
        log gets no line: once that is corrected, the run can be started again in the same folder.
        """
        self._pending = number, hashes, replies, size

    def commit(self) -> None:
        """Write the staged message."""
        if self._pending is not None and self.path is not None:
            number, hashes, replies, size = self._pending
            if not self._begun:
                self._append({"run": self.run, "sites": self.sites})
                self._begun = True
            data = {str(i): base64.b64encode(to_bytes(pack(each))).decode() for i, each in replies.items()}
            entry = {"number": number, "queries": dict(hashes), "tables": self.tables, "bytes": size, "replies": data}
            self._append(entry)
        self._pending = None

    def _append(self, entry: JsonObject) -> None:
        """Append a line, which is on the disk when this returns; after an error nothing of it is there."""
        assert self.path is not None
        text = json.dumps(entry).encode()
        checksum = _checksum(self._last, text)
        line = checksum.encode() + b" " + text
        try:
            append_line(self.path, line, flush=True, expected_size=self._size)
        except OSError as problem:
            way_out = "Make room and start the same command again: the run continues from here."
            raise InputError(f"{self.path}: {problem.strerror}. The message was not used. {way_out}") from None
        self._size, self._last = self._size + len(line) + 1, checksum


def _checksum(last: str, text: bytes) -> str:
    return hashlib.sha256(last.encode() + b" " + text).hexdigest()[:32]


# --- the log and the status ---


class SiteProblem(NamedTuple):
    """What is wrong with a site, for a display."""

    number: int  # of the message
    site: str
    what: str


def sites_named(names: Sequence[str]) -> str:
    """Sites in words: "site a", or how many there are and the first of them."""
    return f"site {names[0]}" if len(names) == 1 else f"{len(names)} sites ({join_names(names)})"


class RunLog:
    """The log of a run, and its current state.

    One thread writes; another may read: the state is never changed, but replaced as a whole.
    """

    def __init__(self, folder: Path | None, sites: Sequence[str]):
        self.folder, self.sites = folder, tuple(sites)
        self.problems: deque[JsonObject] = deque(maxlen=LINES_KEPT)
        self.lines: deque[str | SiteProblem] = deque(maxlen=LINES_KEPT)  # for a display: complete messages and problems
        self.state: JsonObject = {
            "state": "starting", "message": 0, "queries": [], "waiting": {}, "connected": None, "link": "", "last": {}
        }  # fmt: skip
        self._began, self._down, self._up = 0.0, 0, 0  # of the current message: time, and bytes
        self._new: dict[str, JsonObject] = {}  # replies since `settle`

    def begin(self, number: int, kinds: Sequence[str], sites: Sequence[str]) -> None:
        """A message is about to be sent."""
        self._began, self._down, self._up = time.time(), 0, 0
        waiting = dict.fromkeys(sites, self._began)
        self._replace(state="running", message=number, queries=list(dict.fromkeys(kinds)), waiting=waiting)

    def reply(self, site: str, **facts: Any) -> None:
        """A usable reply arrived; the state shows it after `settle`."""
        self._new[site] = {"time": time.time(), "seconds": facts["seconds"]}
        self._down, self._up = self._down + facts["bytes_down"], self._up + facts["bytes_up"]
        self._write({"site": site, "number": self.state["message"], **facts})

    def settle(self) -> None:
        """Bring the state up to date, once for all replies that came together."""
        if not self._new:
            return
        new, self._new = self._new, {}
        waiting = {name: since for name, since in self.state["waiting"].items() if name not in new}
        self._replace(waiting=waiting, last={**self.state["last"], **new})
        if not waiting:
            took = f"message {self.state['message']:3d}  {time.time() - self._began:6.1f} s"
            moved = f"{self._down / 1e3:8.1f} kB down {self._up / 1e3:8.1f} kB up"
            self.lines.append(f"{took}  {moved}  {', '.join(self.state['queries'])}")

    def problem(self, site: str, what: str) -> None:
        """Log a problem for the operator to see; `site` is "" where no site caused it."""
        number, what = self.state["message"], printable(what)
        self.problems.append({"time": round(time.time(), 3), "number": number, "site": site, "problem": what})
        self.lines.append(SiteProblem(number, site, what) if site else f"  ! {what}")
        self._write({"number": number, "site": site, "problem": what})

    def link(self, trouble: str) -> None:
        """The SuperLink cannot be used, and why; "" when it can."""
        if trouble != self.state["link"]:
            if trouble:
                self.problem("", f"the SuperLink cannot be used: {trouble}")
            self._replace(link=trouble)

    def connected(self, sites: Sequence[str]) -> None:
        """These sites are connected."""
        self.state = {**self.state, "connected": list(sites)}

    def end(self, state: str, **facts: Any) -> None:
        """The run has ended, well or not."""
        self._replace(flush=True, state=state, waiting={}, **facts)

    def take_lines(self) -> list[str]:
        """The lines since the last call; sites with the same problem share one."""
        taken, lines = [self.lines.popleft() for _ in range(len(self.lines))], dict[object, list[str]]()
        for line in taken:
            if isinstance(line, SiteProblem):
                lines.setdefault((line.number, line.what), []).append(line.site)
            else:
                lines[object()] = [line]
        return [
            sites[0] if not isinstance(key, tuple) else f"  ! message {key[0]}, {sites_named(sites)}: {key[1]}"
            for key, sites in lines.items()
        ]

    def _replace(self, flush: bool = False, **changed: Any) -> None:
        """Change the state, and write status.json."""
        self.state = {**self.state, **changed}
        if self.folder is not None:
            content = {**self.state, "pid": os.getpid(), "updated": round(time.time(), 3)}
            write_private(self.folder / "status.json", json.dumps(content, indent=1).encode(), flush=flush)

    def _write(self, entry: JsonObject) -> None:
        if self.folder is not None:
            append_line(self.folder / "log.jsonl", json.dumps({"time": round(time.time(), 3), **entry}).encode())


# --- the process that runs in a folder ---


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """One process per run folder, for as long as it lives."""
    make_folder(folder)
    if any(folder.iterdir()) and not has_run(folder):
        raise InputError(f"{folder} holds other files. Give a new folder for the run (--out).")
    with contextlib.ExitStack() as stack:
        try:
            handle = stack.enter_context(locked(folder / "lock", wait=False))
        except BlockingIOError:
            way_out = f"Wait for it, or: compfed federation stop DIR --out {folder}"
            process = is_alive(folder) or "unknown"
            raise InputError(f"a run is going on in {folder} (process {process}). {way_out}") from None
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
        os.ftruncate(handle, 0)


def has_run(folder: Path) -> bool:
    """Whether a process runs in a folder, or did."""
    return any((folder / name).exists() for name in ("lock", "status.json"))


def read_status(folder: Path) -> dict[str, object]:
    """The status.json of the last run in a folder; empty if there is none."""
    try:
        found = json.loads((folder / "status.json").read_text())
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


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
    process, end = is_alive(folder), time.monotonic() + seconds
    if process is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)  # once: a second one would interrupt its end
        while is_alive(folder) is not None:
            if time.monotonic() > end:
                os.kill(process, signal.SIGKILL)
            time.sleep(0.1)
    return True
