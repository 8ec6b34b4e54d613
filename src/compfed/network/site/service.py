"""The replies of a site: bytes come in, signed bytes go out, and everything that leaves is written down first."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import traceback
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from compfed._utils import files as durable
from compfed._utils.text import printable
from compfed.data.readers import TableError
from compfed.errors import InputError
from compfed.federation.codec import NotCached
from compfed.federation.queries import Refusal
from compfed.federation.server.replies import fault
from compfed.federation.site.site import Site
from compfed.network.envelope import Header, query_counts, query_hash, read_header, read_queries, reply_bytes
from compfed.network.flower import FRAMING, LARGEST
from compfed.network.site.settings import SiteSettings
from compfed.network.site.state import Evaluation, RunFiles, client_states, restore

LOG, OVERDUE = "log.jsonl", "overdue.json"
LONGEST_LOG = 2**26  # bytes; then a new log is begun


class StateLost(Exception):
    """A message builds on state that this site does not have."""


class SiteService:
    """Replies to messages with the rows of one site."""

    def __init__(self, settings: SiteSettings, key: ec.EllipticCurvePrivateKey):
        self.settings, self.key = settings, key
        self._site: Site | None = None
        self._table = ""
        self._stamp: tuple[int, ...] | None = None
        self._files: RunFiles | None = None  # of the last run: its records need not be read again
        self.began: tuple[float, Header] | None = None  # the message that is being answered, and since when
        self.replies = 0
        self.last = "", ""  # the run of the last message, and why it was not answered

    def open(self) -> Site:
        """The site with its rows; they are read again when their file has changed."""
        stamp = _stamp(self.settings.data)
        if self._site is None or stamp != self._stamp:
            self._site, self._table = self.settings.rows()
            self._stamp = stamp
        return self._site

    def reply(self, data: bytes) -> bytes:
        """The signed reply to a message. There is always one; what went wrong is said without a number of the rows."""
        header, limit = Header("", 0, 0, 0, (), ""), self.settings.limits.max_message_bytes
        try:
            header, body = read_header(data)  # of bounded size; the reply says which message it is about
            if len(data) > limit:
                raise InputError(f"a message has more than the {limit} bytes that it reads (max_message_bytes).")
            self._begin(header)
            replies, facts = self._answer(header, body)
            signed = self._signed(header, "replies", {"replies": replies})
            if len(signed) > LARGEST - FRAMING:
                raise InputError(f"the reply has {len(signed)} bytes; at most {LARGEST - FRAMING} can be sent.")
            sizes = {"bytes_in": len(data), "bytes_out": len(signed), "sha256_out": hashlib.sha256(signed).hexdigest()}
            self._log({"run": header.run, "number": header.number, **facts, **sizes})  # before it leaves
            self.last = header.run, next(iter(facts["refused"]["first"]), "")
            return signed
        except StateLost as problem:
            kind, reason = "lost", str(problem)
        except TableError as problem:  # its own words may quote a row
            kind, reason = "refused", f"its rows cannot be used: {problem.public_reason}"
        except InputError as problem:
            kind, reason = "refused", printable(str(problem))
        except OSError as problem:
            kind, reason = "failed", f"its state cannot be written, or its table cannot be read ({problem.strerror})."
            self._log_anyhow(_where(problem))
        except Exception as problem:  # the words of an exception may hold what must not leave
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
        mark = durable.read_checked(self.settings.state / OVERDUE)
        most = self.settings.budget.max_seconds
        if mark is not None and json.loads(mark)[:2] == [header.run, header.number] and most <= json.loads(mark)[2]:
            raise InputError(f"message {header.number} takes more than the {most:g} s that it allows (max_seconds).")
        self.began = time.monotonic(), header

    def is_overdue(self) -> bool:
        """Has the message that is being answered used up its time?"""
        began = self.began
        return began is not None and time.monotonic() - began[0] > self.settings.budget.max_seconds

    def mark_overdue(self) -> None:
        """Remember to refuse this message: the process is about to be replaced, as compiled code cannot be interrupted."""
        began = self.began
        if began is not None:
            self._log_anyhow({"run": began[1].run, "number": began[1].number, "kind": "overdue"})
            mark = [began[1].run, began[1].number, self.settings.budget.max_seconds]
            with contextlib.suppress(OSError):
                durable.write_checked(self.settings.state / OVERDUE, json.dumps(mark).encode())

    def _signed(self, header: Header, kind: str, content: dict[str, Any]) -> bytes:
        facts = {"run": header.run, "number": header.number, "queries": header.queries, "table": self._table}
        return reply_bytes({**facts, "site": self.settings.name, "kind": kind, **content}, self.key)

    def _answer(self, header: Header, body: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The replies to the queries of a message, on disk before they leave; and facts for the log."""
        files, site = self._run_files(header.run), self.open()
        facts = self._pinned(header, files)
        try:
            again, queries = read_queries(body, self.settings.accepts, files.records)
        except NotCached:
            raise StateLost("It does not have a record that the message refers to.") from None
        if query_hash(queries) != header.queries:
            raise InputError(f"message {header.number} does not hold the queries that its header names.")
        done = files.read(header.number)
        if done is not None and done.queries != header.queries:
            raise InputError(f"message {header.number} of run {header.run} came before with other queries.")
        repeated = done is not None
        if done is not None and any(isinstance(reply, Refusal) for reply in done.replies):
            done = None  # the site may have lifted its refusal since: it is decided again
        if done is None:
            before = files.read(header.after) if header.after else Evaluation("", (), {})
            if before is None:
                raise StateLost(f"It has no state after message {header.after} of this run.")
            site.index = site.number = header.place
            restore(site, (*again, *queries), before.states)
            self._redo(site, again)
            replies = site.reply(queries)
            wrong = fault(queries, replies)
            if wrong is not None:  # it is not kept: once the cause is mended, it is computed again
                raise InputError(f"it computed a reply that cannot be used: {wrong}.")
            done = Evaluation(header.queries, replies, client_states(site, before.states))
            files.write(header.number, done, facts)
        reasons = [printable(reply.reason) for reply in done.replies if isinstance(reply, Refusal)]
        refused = {"count": len(reasons), "first": reasons[:3]}
        return done.replies, {"queries": query_counts(queries), "refused": refused, "repeated": repeated}

    def _run_files(self, run: str) -> RunFiles:
        if self._files is None or self._files.folder.name != run:
            self._files = RunFiles(
                self.settings.state, run, self.settings.accepts, self.settings.budget.max_state_bytes
            )
        self._files.records.forget_new()
        return self._files

    def _pinned(self, header: Header, files: RunFiles) -> dict[str, Any]:
        """What the run began with; refuses a message that builds on another table, or another place among the sites."""
        if header.names[header.place] != self.settings.name:
            raise InputError(
                f"a message is for the site {printable(header.names[header.place], 80)!r}; this is {self.settings.name!r}."
            )
        facts = {"table": self._table, "place": header.place, "names": list(header.names)}
        began = files.began(facts)
        if began["table"] != self._table:
            raise InputError(
                f"its table has changed since run {header.run} began. Restore the table, or start a new run in another folder."
            )
        if began != facts:
            raise InputError(f"the sites of run {header.run} are not those that it began with.")
        return facts

    def _redo(self, site: Site, again: tuple[Any, ...]) -> None:
        """Do rounds again whose state was lost; their replies are known and go nowhere."""
        refused = next((reply for reply in site.reply(again) if isinstance(reply, Refusal)), None)
        if refused is not None:
            raise InputError(f"a round could not be done again: {refused.reason}")

    # --- the log ---

    def _log(self, line: dict[str, Any]) -> None:
        path = self.settings.state / LOG
        if path.exists() and path.stat().st_size > LONGEST_LOG:
            os.rename(path, path.with_name(f"log-{time.time_ns()}.jsonl"))  # older logs are never removed here
        durable.append(path, {"time": round(time.time(), 3), **line}, flush=True)

    def _log_anyhow(self, line: dict[str, Any]) -> None:
        """Log something of which nothing leaves: a full disk does not matter then."""
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
    """Where an exception came from: its kind and the places in the code, and none of its words."""
    frames = traceback.extract_tb(problem.__traceback__)
    return {"failed": type(problem).__name__, "at": [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames]}
