"""What a site keeps of a run on its own disk. A reply is on disk before it is sent.

    STATE/runs/RUN/run.json          the table and the place of the site that the run began with
    STATE/runs/RUN/records/HASH      records that travel once
    STATE/runs/RUN/00000012.reply    after message 12: the state of the methods under way, and the replies

The files of the last two messages are kept. A message that comes again is answered from its file, identically. One that
follows a message whose file is gone, or damaged, is not answered: the site says so, and the operator sends everything
that the site needs again.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from compfed._utils import files as durable
from compfed._utils.precision import precision
from compfed.errors import InputError
from compfed.federation.codec import digest, from_bytes, named, pack, to_bytes, unnamed, unpack
from compfed.federation.queries import FinishRound, LocalUpdate, Query
from compfed.federation.site.site import RUNS_KEPT as STATES_KEPT
from compfed.federation.site.site import Site
from compfed.federation.spec import RunSpec

REPLIES_KEPT = 2
RUNS_KEPT = 20
RECORDS_KEPT = 256
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")

ClientStates = dict[str, tuple[bool, dict[str, np.ndarray]]]  # job -> (result pending, arrays of its state by name)


class Evaluation(NamedTuple):
    """The file of a message."""

    queries: str  # hash of the queries
    replies: tuple[Any, ...]
    states: ClientStates


class RunFiles:
    """The files of one run at one site."""

    def __init__(self, state: Path, run: str, accepts: Collection[str], max_bytes: int):
        if not RUN_NAME.fullmatch(run):
            raise InputError("the name of a run may have letters, digits, '_' and '-', at most 100.")
        self.folder, self.accepts, self.max_bytes = state / "runs" / run, accepts, max_bytes
        self.records = RecordFiles(self.folder / "records", accepts)

    def began(self, facts: dict[str, Any]) -> dict[str, Any]:
        """What the run began with: these facts, if it begins now."""
        data = durable.read_checked(self.folder / "run.json")
        return facts if data is None else json.loads(data)

    def read(self, number: int) -> Evaluation | None:
        data = durable.read_checked(self._path(number))
        if data is None:
            return None
        kept = unpack(from_bytes(data), self.accepts)
        return Evaluation(kept["queries"], kept["replies"], kept["states"])

    def write(self, number: int, answered: Evaluation, facts: dict[str, Any]) -> None:
        """Keep what a message left, and forget all but the last ones before it."""
        data = to_bytes(pack(answered._asdict()))
        self._make_room(len(data) + self.records.pending_bytes())
        if not (self.folder / "run.json").exists():
            durable.write_checked(self.folder / "run.json", json.dumps(facts).encode())
        self.records.commit()
        durable.write_checked(self._path(number), data)
        for path in sorted(self.folder.glob("*.reply"))[:-REPLIES_KEPT]:
            path.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        """Forget the oldest runs, until the state folder is within its limit."""
        runs = [path for path in self.folder.parent.glob("*") if path != self.folder]
        runs.sort(key=lambda path: path.stat().st_mtime)
        used = {path: _size(path) for path in [*runs, self.folder]}
        while runs and (len(runs) >= RUNS_KEPT or sum(used.values()) + size > self.max_bytes):
            oldest = runs.pop(0)
            shutil.rmtree(oldest, ignore_errors=True)
            del used[oldest]
        if sum(used.values()) + size > self.max_bytes:
            raise InputError(
                f"this run needs more than the {self.max_bytes} bytes of state that the site allows (max_state_bytes)."
            )

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.reply"


class RecordFiles:
    """Records that travel once, a file each. New ones are written by `commit`, once the message is answered."""

    def __init__(self, folder: Path, accepts: Collection[str]):
        self.folder, self.accepts = folder, accepts
        self._read: dict[str, Any] = {}
        self._new: dict[str, bytes] = {}

    def __contains__(self, name: object) -> bool:
        return re.fullmatch("[0-9a-f]{64}", str(name)) is not None and (name in self._read or self._load(str(name)))

    def __getitem__(self, name: str) -> Any:
        return self._read[name]

    def __setitem__(self, name: str, record: Any) -> None:
        if name not in self:
            self._new[name] = to_bytes(pack(record))
            self._read[name] = record

    def _load(self, name: str) -> bool:
        data = durable.read_checked(self.folder / name)
        if data is None:
            return False
        record = unpack(from_bytes(data), self.accepts)
        if digest(record) != name:
            return False
        self._read[name] = record
        (self.folder / name).touch()  # used: the oldest are forgotten first
        return True

    def forget_new(self) -> None:
        """Forget the records of a message that was not answered."""
        for name in self._new:
            del self._read[name]
        self._new = {}

    def pending_bytes(self) -> int:
        return sum(map(len, self._new.values()))

    def commit(self) -> None:
        for name, data in self._new.items():
            durable.write_checked(self.folder / name, data)
        if self._new:
            kept = sorted(self.folder.glob("*"), key=lambda path: path.stat().st_mtime)
            for path in kept[:-RECORDS_KEPT]:
                path.unlink(missing_ok=True)
        self._new = {}
        for name in list(self._read)[:-RECORDS_KEPT]:
            del self._read[name]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def jobs_of(queries: Iterable[Query]) -> dict[str, RunSpec]:
    """The jobs whose rounds these queries are about, by hash."""
    return {
        digest(query.run_spec): query.run_spec for query in queries if isinstance(query, (LocalUpdate, FinishRound))
    }


def restore(site: Site, queries: Sequence[Query], kept: ClientStates) -> None:
    """Give a site its client states of the jobs that it is asked about."""
    site.memories.clear()
    for name, run_spec in jobs_of(queries).items():
        if name in kept:
            pending, arrays = kept[name]
            with precision(np.dtype(run_spec.objective.dtype)):
                like = run_spec.algorithm.init(jnp.asarray(run_spec.x0))[1]
                site.remember(run_spec, jax.tree.map(jnp.asarray, unnamed(arrays, like)), pending)


def client_states(site: Site, kept: ClientStates) -> ClientStates:
    """What to keep after a message: the states of the jobs that it was about, and of the others as they were."""
    new = {
        name: (memory.pending, named(memory.c)) for name, memory in site.memories.items() if jax.tree.leaves(memory.c)
    }
    together = {**{name: old for name, old in kept.items() if name not in new}, **new}
    return dict(list(together.items())[-STATES_KEPT:])
