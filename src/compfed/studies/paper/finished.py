"""The finished steps of a reproduction, on disk as soon as they are done: a run that is stopped goes on from them."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from compfed._utils.files import write_text
from compfed._utils.text import versions
from compfed.errors import InputError
from compfed.studies.paper.keys import Group, Key, Traces
from compfed.studies.paper.setting import Size
from compfed.trace import Trace


class Finished:
    """Steps by name, in a folder. The list of them is there while a run is unfinished, and gone when it is done.

    Only steps of the same size, made with the same versions, are taken up.
    """

    def __init__(self, out: Path, size: Size):
        self.out, self._lock = out, threading.Lock()
        self._list = out / "unfinished.json"
        self._made_with = json.loads(json.dumps({"size": asdict(size), "versions": versions()}))
        self._steps: dict[str, list[list[Any]]] = {}  # of each step, [group, name, value, number of traces]
        try:
            found = json.loads(self._list.read_text(encoding="utf-8"))
            if found["made_with"] == self._made_with:
                self._steps = found["steps"]
        except (OSError, ValueError, KeyError, TypeError):
            pass  # there is no such list, or none that can be read: everything is to be done

    def __len__(self) -> int:
        return len(self._steps)

    def traces(self, step: str) -> Traces | None:
        """What a finished step gave; None for one that is to be done."""
        try:
            return {
                (key := Key(Group(group), name, value)): [Trace.load(self._path(key, i)) for i in range(count)]
                for group, name, value, count in self._steps[step]
            }
        except (InputError, OSError, KeyError, ValueError, TypeError):
            return None

    def add(self, step: str, traces: Traces) -> None:
        """Write the traces of a step, then say that they are there."""
        for key, runs in traces.items():
            for i, trace in enumerate(runs):
                trace.save(self._path(key, i))
        with self._lock:
            self._steps[step] = [[str(key.group), key.name, key.value, len(runs)] for key, runs in traces.items()]
            write_text(self._list, json.dumps({"made_with": self._made_with, "steps": self._steps}) + "\n")

    def done(self) -> None:
        """Everything is done: the next run begins anew."""
        self._list.unlink(missing_ok=True)

    def _path(self, key: Key, i: int) -> Path:
        return self.out / "traces" / f"{re.sub(r'[^a-z0-9.]+', '-', str(key).lower()).strip('-')}-{i}"
