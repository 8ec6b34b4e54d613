"""The service of a site: bytes come in, signed bytes go out, and everything that leaves is on disk first.

    STATE/log.jsonl                  a line per reply, with sizes and hashes
    STATE/runs/RUN/run.json          the table and the place of the site that the run began with
    STATE/runs/RUN/records/HASH      records that travel once
    STATE/runs/RUN/00000012.reply    after message 12: the client states of the runs under way, and the replies

The files of the last two messages are kept. A message that comes again gets the reply in its file, to the last bit. A
message that follows one whose file is gone, or damaged, gets no reply: the site reports that its state is lost, and the
operator sends everything that the site needs again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
import traceback
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from compfed._utils import files
from compfed._utils.compilation import precision
from compfed._utils.text import printable
from compfed.data.readers import TableError
from compfed.errors import InputError
from compfed.federation.codec import NotCached, digest, from_bytes, named, pack, to_bytes, unnamed, unpack
from compfed.federation.queries import FinishRound, LocalUpdate, Query, Refusal
from compfed.federation.server.replies import fault
from compfed.federation.site.site import RUNS_KEPT, Site, StateLost
from compfed.federation.spec import RunSpec
from compfed.network.envelope import Header, query_counts, query_hash, read_header, read_queries, reply_bytes
from compfed.network.flower import FRAMING, LARGEST
from compfed.network.site.settings import SiteSettings

LOG, OVERDUE = "log.jsonl", "overdue.json"
LONGEST_LOG = 2**26  # bytes; then a new log is begun
REPLIES_KEPT = 2
RUN_FOLDERS_KEPT = 20
RECORDS_KEPT = 256
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


class SiteService:
    """Replies to messages with the rows of one site."""

    def __init__(self, settings: SiteSettings, key: ec.EllipticCurvePrivateKey):
        self.settings, self.key = settings, key
        self._site: Site | None = None
        self._table = ""
        self._stamp: tuple[int, ...] | None = None
        self._files: RunFiles | None = None  # of the last run: its records need not be read again
        self.began: tuple[float, Header] | None = None  # the message under way, and since when
        self.replies = 0
        self.last = "", ""  # the run of the last message, and why it was refused

    def open(self) -> Site:
        """The site with its rows; they are read again when their file has changed."""
        stamp = _stamp(self.settings.data)
        if self._site is None or stamp != self._stamp:
            self._site, self._table = self.settings.rows()
            self._stamp = stamp
        return self._site

    def reply(self, data: bytes) -> bytes:
        """The signed reply to a message. There is always one; an error in it quotes no value of the rows."""
        header, limit = Header("", 0, 0, 0, (), ""), self.settings.limits.max_message_bytes
        try:
            header, body = read_header(data)  # of bounded size; the reply says which message it is about
            if len(data) > limit:
                raise InputError(f"a message has more than the {limit} bytes that it reads (max_message_bytes).")
            self._begin(header)
            replies, facts = self._replies(header, body)
            signed = self._signed(header, "replies", {"replies": replies})
            if len(signed) > LARGEST - FRAMING:
                raise InputError(f"the reply has {len(signed)} bytes; at most {LARGEST - FRAMING} can be sent.")
            sizes = {"bytes_in": len(data), "bytes_out": len(signed), "sha256_out": hashlib.sha256(signed).hexdigest()}
            self._log({"run": header.run, "number": header.number, **facts, **sizes})  # before it leaves
            self.last = header.run, next(iter(facts["refused"]["first"]), "")
            return signed
        except StateLost as problem:
            kind, reason = "lost", str(problem)
        except TableError as problem:  # its text may quote a row
            kind, reason = "refused", f"its rows cannot be used: {problem.public_reason}"
        except InputError as problem:
            kind, reason = "refused", printable(str(problem))
        except OSError as problem:
            kind, reason = "failed", f"its state cannot be written, or its table cannot be read ({problem.strerror})."
            self._log_anyhow(_where(problem))
        except Exception as problem:  # the text of an exception may hold values that must not leave
            kind, reason = "failed", f"it failed with {type(problem).__name__}; its log says where."
            self._log_anyhow(_where(problem))
        finally:
            self.began = None
            self.replies += 1
        self.last = printable(header.run, 100), f"{kind}, message {header.number}: {reason}"
        self._log_anyhow({"run": self.last[0], "number": header.number, "kind": kind, "reason": reason})
        return self._signed(header, kind, {"reason": reason})

    # --- the time limit ---

    def _begin(self, header: Header) -> None:
        mark = files.read_checked(self.settings.state / OVERDUE)
        most = self.settings.budget.max_seconds
        if mark is not None and json.loads(mark)[:2] == [header.run, header.number] and most <= json.loads(mark)[2]:
            raise InputError(f"message {header.number} takes more than the {most:g} s that it allows (max_seconds).")
        self.began = time.monotonic(), header

    def is_overdue(self) -> bool:
        """Has the message under way used up its time?"""
        began = self.began
        return began is not None and time.monotonic() - began[0] > self.settings.budget.max_seconds

    def mark_overdue(self) -> None:
        """Remember to refuse this message: the process is about to be replaced, as compiled code cannot be interrupted."""
        began = self.began
        if began is not None:
            self._log_anyhow({"run": began[1].run, "number": began[1].number, "kind": "overdue"})
            mark = [began[1].run, began[1].number, self.settings.budget.max_seconds]
            with contextlib.suppress(OSError):
                files.write_checked(self.settings.state / OVERDUE, json.dumps(mark).encode())

    def _signed(self, header: Header, kind: str, content: dict[str, Any]) -> bytes:
        facts = {"run": header.run, "number": header.number, "queries": header.queries, "table": self._table}
        return reply_bytes({**facts, "site": self.settings.name, "kind": kind, **content}, self.key)

    def _replies(self, header: Header, body: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The replies to the queries of a message, on disk before they leave; and facts for the log."""
        kept, site = self._run_files(header.run), self.open()
        facts = self._pinned(header, kept)
        try:
            again, queries = read_queries(body, self.settings.accepts, kept.records)
        except NotCached:
            raise StateLost("It does not have a record that the message refers to.") from None
        if query_hash(queries) != header.queries:
            raise InputError(f"message {header.number} does not hold the queries that its header names.")
        done = kept.read(header.number)
        if done is not None and done.queries != header.queries:
            raise InputError(f"message {header.number} of run {header.run} came before with other queries.")
        repeated = done is not None
        if done is not None and any(isinstance(reply, Refusal) for reply in done.replies):
            done = None  # the policy of the site may have changed since
        if done is None:
            before = kept.read(header.after) if header.after else ReplyFile("", (), {})
            if before is None:
                raise StateLost(f"It has no state after message {header.after} of this run.")
            site.index = site.number = header.place
            restore(site, (*again, *queries), before.states)
            self._redo(site, again)
            replies = site.reply(queries)
            wrong = fault(queries, replies)
            if wrong is not None:  # it is not kept: once the cause is removed, it is computed again
                raise InputError(f"it computed a reply that cannot be used: {wrong}.")
            done = ReplyFile(header.queries, replies, client_states(site, before.states))
            kept.write(header.number, done, facts)
        reasons = [printable(reply.reason) for reply in done.replies if isinstance(reply, Refusal)]
        refused = {"count": len(reasons), "first": reasons[:3]}
        return done.replies, {"queries": query_counts(queries), "refused": refused, "repeated": repeated}

    def _run_files(self, run: str) -> RunFiles:
        if self._files is None or self._files.folder.name != run:
            settings = self.settings
            self._files = RunFiles(settings.state, run, settings.accepts, settings.budget.max_state_bytes)
        self._files.records.forget_new()
        return self._files

    def _pinned(self, header: Header, kept: RunFiles) -> dict[str, Any]:
        """The facts that the run began with; a message for another table, or another place among the sites, is refused."""
        if header.names[header.place] != self.settings.name:
            raise InputError(
                f"a message is for the site {printable(header.names[header.place], 80)!r}; this is {self.settings.name!r}."
            )
        facts = {"table": self._table, "place": header.place, "names": list(header.names)}
        began = kept.began(facts)
        if began["table"] != self._table:
            raise InputError(
                f"its table has changed since run {header.run} began. Restore the table, or start a new run in another folder."
            )
        if began != facts:
            raise InputError(f"the sites of run {header.run} are not those that it began with.")
        return facts

    def _redo(self, site: Site, again: tuple[Any, ...]) -> None:
        """Do rounds again whose state was lost; their replies are known and not sent."""
        refused = next((reply for reply in site.reply(again) if isinstance(reply, Refusal)), None)
        if refused is not None:
            raise InputError(f"a round could not be done again: {refused.reason}")

    # --- the log ---

    def _log(self, line: dict[str, Any]) -> None:
        path = self.settings.state / LOG
        if path.exists() and path.stat().st_size > LONGEST_LOG:
            os.rename(path, path.with_name(f"log-{time.time_ns()}.jsonl"))  # older logs are never removed here
        files.append_line(path, json.dumps({"time": round(time.time(), 3), **line}).encode(), flush=True)

    def _log_anyhow(self, line: dict[str, Any]) -> None:
        """Log a line for which no reply leaves: a full disk does not matter then."""
        with contextlib.suppress(OSError):
            self._log(line)


def _stamp(path: Path) -> tuple[int, ...]:
    """Changes whenever a file is written."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _where(problem: BaseException) -> dict[str, Any]:
    """Where an exception came from: its type and the places in the code, without its text."""
    frames = traceback.extract_tb(problem.__traceback__)
    return {"failed": type(problem).__name__, "at": [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames]}


# --- the files of a run ---

ClientStates = dict[str, tuple[bool, dict[str, np.ndarray]]]  # hash of a run -> (result pending, its state by name)


class ReplyFile(NamedTuple):
    """The file of a message: its replies, and the client states after it."""

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
        """The facts that the run began with: these, if it begins now."""
        data = files.read_checked(self.folder / "run.json")
        return facts if data is None else json.loads(data)

    def read(self, number: int) -> ReplyFile | None:
        """The file of a message; None if it is gone or damaged."""
        data = files.read_checked(self._path(number))
        if data is None:
            return None
        kept = unpack(from_bytes(data), self.accepts)
        return ReplyFile(kept["queries"], kept["replies"], kept["states"])

    def write(self, number: int, reply: ReplyFile, facts: dict[str, Any]) -> None:
        """Write the file of a message, and remove all but the last ones before it."""
        data = to_bytes(pack(reply._asdict()))
        self._make_room(len(data) + self.records.pending_bytes())
        if not (self.folder / "run.json").exists():
            files.write_checked(self.folder / "run.json", json.dumps(facts).encode())
        self.records.commit()
        files.write_checked(self._path(number), data)
        for path in sorted(self.folder.glob("*.reply"))[:-REPLIES_KEPT]:
            path.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        """Remove the oldest runs, until the state folder is within its limit."""
        runs = [path for path in self.folder.parent.glob("*") if path != self.folder]
        runs.sort(key=lambda path: path.stat().st_mtime)
        used = {path: _size(path) for path in [*runs, self.folder]}
        while runs and (len(runs) >= RUN_FOLDERS_KEPT or sum(used.values()) + size > self.max_bytes):
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
    """Records that travel once, a file each. New ones are written by `commit`, once the message has its reply."""

    def __init__(self, folder: Path, accepts: Collection[str]):
        self.folder, self.accepts = folder, accepts
        self._read: dict[str, object] = {}
        self._new: dict[str, bytes] = {}

    def __contains__(self, name: object) -> bool:
        return re.fullmatch("[0-9a-f]{64}", str(name)) is not None and (name in self._read or self._load(str(name)))

    def __getitem__(self, name: str) -> object:
        return self._read[name]

    def __setitem__(self, name: str, record: object) -> None:
        if name not in self:
            self._new[name] = to_bytes(pack(record))
            self._read[name] = record

    def _load(self, name: str) -> bool:
        data = files.read_checked(self.folder / name)
        if data is None:
            return False
        record = unpack(from_bytes(data), self.accepts)
        if digest(record) != name:
            return False
        self._read[name] = record
        (self.folder / name).touch()  # used: the oldest are removed first
        return True

    def forget_new(self) -> None:
        """Drop the records of a message that got no reply."""
        for name in self._new:
            del self._read[name]
        self._new = {}

    def pending_bytes(self) -> int:
        """Bytes of the records that `commit` will write."""
        return sum(map(len, self._new.values()))

    def commit(self) -> None:
        """Write the new records, and remove all but the last ones."""
        for name, data in self._new.items():
            files.write_checked(self.folder / name, data)
        if self._new:
            kept = sorted(self.folder.glob("*"), key=lambda path: path.stat().st_mtime)
            for path in kept[:-RECORDS_KEPT]:
                path.unlink(missing_ok=True)
        self._new = {}
        for name in list(self._read)[:-RECORDS_KEPT]:
            del self._read[name]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def runs_of(queries: Iterable[Query]) -> dict[str, RunSpec]:
    """The runs whose rounds these queries are about, by hash."""
    return {
        digest(query.run_spec): query.run_spec for query in queries if isinstance(query, (LocalUpdate, FinishRound))
    }


def restore(site: Site, queries: Sequence[Query], kept: ClientStates) -> None:
    """Give a site the client states of the runs that these queries are about."""
    site.memories.clear()
    for name, run_spec in runs_of(queries).items():
        if name in kept:
            pending, arrays = kept[name]
            with precision(np.dtype(run_spec.objective.dtype)):
                like = run_spec.algorithm.init(jnp.asarray(run_spec.x0))[1]
                site.remember(run_spec, jax.tree.map(jnp.asarray, unnamed(arrays, like)), pending)


def client_states(site: Site, kept: ClientStates) -> ClientStates:
    """The client states after a message: new ones of the runs that it was about, and the others as they were."""
    new = {
        name: (memory.pending, named(memory.c)) for name, memory in site.memories.items() if jax.tree.leaves(memory.c)
    }
    together = {**{name: old for name, old in kept.items() if name not in new}, **new}
    return dict(list(together.items())[-RUNS_KEPT:])
