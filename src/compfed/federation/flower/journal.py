"""What a server keeps of a run on its own disk: every message whose answers are all in, before the next one leaves.

    FOLDER/run.json             name of the run, its sites
    FOLDER/journal/00000012     the answers to message 12
    FOLDER/messages.jsonl       a line per message and site: questions, bytes, seconds, hash
    FOLDER/events.jsonl         a line for everything that did not go as it should

A fit is a function of its answers, to the last bit. A server that was killed is started again with the same settings in
the same folder: it asks the same questions, is answered from the journal as far as that goes, and goes on from there.
"""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

from compfed.errors import InputError
from compfed.federation.messages import from_bytes, pack, to_bytes, unpack
from compfed.tools import durable

Replies = dict[int, tuple[Any, ...]]


class Journal:
    """The messages of a run. Without a folder nothing is written, and nothing can be resumed."""

    def __init__(self, folder: Path | None, run: str | None, names: tuple[str, ...]):
        self.folder, self.run = folder, run or f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"
        self.events: list[dict[str, Any]] = []
        if folder is None:
            return
        path = folder / "run.json"
        if not path.exists():
            durable.write(path, json.dumps({"run": self.run, "sites": list(names)}).encode())
        kept = json.loads(path.read_text())
        if (run is not None and run != kept["run"]) or list(names) != kept["sites"]:
            raise InputError(
                f"{folder} holds run {kept['run']} of the sites {', '.join(kept['sites'])}; this is run {self.run} of "
                f"{', '.join(names)}. Give another folder, or the same sites."
            )
        self.run = kept["run"]
        if (told := folder / "events.jsonl").exists():  # of a run that goes on
            self.events += [json.loads(line) for line in told.read_text().splitlines()]

    def read(self, number: int, asked: dict[int, str]) -> Replies | None:
        """The answers to a message that was answered before; refuses other questions under its number."""
        if self.folder is None or not (path := self._path(number)).exists():
            return None
        kept = unpack(from_bytes(path.read_bytes()))
        if {int(i): name for i, name in kept["asked"].items()} != asked:
            raise InputError(
                f"{self.folder} holds a run whose message {number} asked something else. A run is resumed with the "
                "settings it was started with; give another folder for a new one."
            )
        return {int(i): answers for i, answers in kept["answers"].items()}

    def write(self, number: int, asked: dict[int, str], replies: Replies) -> None:
        """Commit a message: from here on its answers are what they are."""
        if self.folder is not None:
            durable.write(self._path(number), to_bytes(pack({"asked": asked, "answers": replies})))

    def line(self, **said: Any) -> None:
        """The line of a message in the audit."""
        if self.folder is not None:
            durable.append(self.folder / "messages.jsonl", {"time": round(time.time(), 3), **said})

    def event(self, number: int, site: str, what: str) -> None:
        """Something for the operator to know."""
        self.events.append({"time": round(time.time(), 3), "number": number, "site": site, "what": what})
        if self.folder is not None:
            durable.append(self.folder / "events.jsonl", self.events[-1])

    def _path(self, number: int) -> Path:
        assert self.folder is not None
        return self.folder / "journal" / f"{number:08d}"
