"""The write-ahead log of a run: the replies to every message, on disk before the next message leaves.

A fit is a function of the replies. An operator's process that was killed is started again with the same
settings in the same folder: it sends the same queries, takes the replies from the log as far as the log goes, and
continues from there. The log is the only memory of a run: the SuperLink keeps nothing.

One line per message: a checksum, which covers the line before as well, and JSON. The first line names the run and its
sites. A last line without its end was torn by a crash and is dropped; any other damage is an error.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compfed._utils.files import append_line
from compfed.errors import InputError
from compfed.federation.codec import from_bytes, pack, to_bytes, unpack

Replies = dict[int, tuple[Any, ...]]
NAME = "write_ahead.log"
CHECKSUM = 32  # characters


class WriteAheadLog:
    """The messages of a run. Without a folder nothing is written, and nothing can be resumed."""

    def __init__(self, folder: Path | None, sites: Mapping[str, str]):
        self.sites, self.path = dict(sites), None if folder is None else folder / NAME
        self.run = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"
        self.tables: dict[str, str] = {}  # keyed hash of each site's table, once it is pinned
        self.messages: dict[int, dict[str, Any]] = {}
        self._pending: tuple[int, dict[str, Any]] | None = None  # complete, and not yet accepted by the program
        self._last, self._size, self._begun = "", 0, False
        if self.path is not None and self.path.exists():
            self._read()

    # --- reading ---

    def _read(self) -> None:
        assert self.path is not None
        data = self.path.read_bytes()
        self._size = data.rfind(b"\n") + 1  # what follows was torn by a crash
        for number, line in enumerate(data[: self._size].splitlines(), 1):
            entry = self._checked(line, number)
            if number == 1:
                self._begin(entry)
            else:
                self.messages[entry["number"]] = entry
                self.tables |= entry["tables"]
        if self._size < len(data):
            with self.path.open("r+b") as file:
                file.truncate(self._size)

    def _checked(self, line: bytes, number: int) -> dict[str, Any]:
        checksum, _, text = line.partition(b" ")
        if checksum.decode("ascii", "replace") != _checksum(self._last, text):
            raise InputError(
                f"{self.path}, line {number}, is damaged: its checksum does not match. Restore the file from a backup, or "
                "start again in another folder."
            )
        self._last = checksum.decode()
        return json.loads(text)

    def _begin(self, entry: dict[str, Any]) -> None:
        if entry["sites"] != self.sites:
            changed = sorted(set(entry["sites"].items()) ^ set(self.sites.items()))
            raise InputError(
                f"{self.path} holds run {entry['run']} of other sites or keys ({', '.join(sorted({name for name, _ in changed}))}). "
                "Give another folder, or the sites that the run was started with."
            )
        self.run, self._begun = entry["run"], True

    def replies(self, number: int, hashes: Mapping[int, str]) -> Replies | None:
        """The replies to a message that is in the log; other queries under its number are refused."""
        entry = self.messages.get(number)
        if entry is None:
            return None
        if {int(i): name for i, name in entry["queries"].items()} != dict(hashes):
            raise InputError(
                f"{self.path} holds a run whose message {number} had other queries. A run is resumed with the settings that it "
                "was started with, and the same version of compfed; give another folder for a new run."
            )
        return {int(i): unpack(from_bytes(base64.b64decode(data))) for i, data in entry["replies"].items()}

    # --- writing ---

    def stage(self, number: int, hashes: Mapping[int, str], replies: Replies) -> None:
        """Keep the replies to a message until the program sends the next one, which means that it accepted them.

        The first replies describe columns and classes. The program raises an error where the sites differ there, and the
        log gets no line: once that is corrected, the run can be started again in the same folder.
        """
        self._pending = number, {"queries": hashes, "replies": replies}

    def commit(self) -> None:
        """Write the staged message."""
        if self._pending is None or self.path is None:
            self._pending = None
            return
        number, staged = self._pending
        if not self._begun:
            self._append({"run": self.run, "sites": self.sites})
            self._begun = True
        queries = {str(i): name for i, name in staged["queries"].items()}
        replies = {str(i): base64.b64encode(to_bytes(pack(each))).decode() for i, each in staged["replies"].items()}
        self._append({"number": number, "queries": queries, "tables": self.tables, "replies": replies})
        self._pending = None

    def _append(self, entry: dict[str, Any]) -> None:
        """Append a line, which is on the disk when this returns; after an error nothing of it is there."""
        assert self.path is not None
        text = json.dumps(entry).encode()
        checksum = _checksum(self._last, text)
        line = checksum.encode() + b" " + text
        try:
            append_line(self.path, line, flush=True, expected_size=self._size)
        except OSError as problem:
            raise InputError(
                f"{self.path}: {problem.strerror}. The message was not used. Make room and start the same command again: "
                "the run continues from here."
            ) from None
        self._size, self._last = self._size + len(line) + 1, checksum


def _checksum(last: str, text: bytes) -> str:
    return hashlib.sha256(last.encode() + b" " + text).hexdigest()[:CHECKSUM]
