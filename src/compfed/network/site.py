"""A site's side of a federation over a network: one process, which dials out, replies to queries and runs no code of others.

Bytes come in (`SiteService`), signed bytes go out, and everything that leaves is on disk first:

    STATE/log.jsonl                  a line per reply of today, with sizes and hashes
    STATE/log-2026-11-18.jsonl       of an earlier day (UTC); kept for `log_days`
    STATE/service.json               how the service is (`site_status.py`)
    STATE/runs/RUN/run.json          the table and the place of the site that the run began with
    STATE/runs/RUN/session           the session key and the enrolments of all sites (`session.py`)
    STATE/runs/RUN/records/HASH      records that travel once
    STATE/runs/RUN/00000012.reply    after message 12: the client states of the runs under way, and the replies

The files of the last two messages are kept. A message that comes again gets the reply in its file, to the last bit. A
message that follows one whose file is gone, or damaged, gets no reply: the site reports that its state is lost, and the
operator sends everything that the site needs again. `SiteNode` keeps the site connected (`compfed site run`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import compfed
from compfed._utils import files
from compfed._utils.compilation import precision
from compfed._utils.plain import JsonObject
from compfed._utils.text import printable
from compfed._utils.threads import available_cores, cores, one_blas_thread
from compfed.data.table_problems import TableError
from compfed.errors import InputError
from compfed.federation import exact_sum, secure_sum
from compfed.federation.adding import Exactly
from compfed.federation.codec import NotCached, digest, from_bytes, named, pack, to_bytes, unnamed, unpack
from compfed.federation.enrolment import Agreement, Enrolment
from compfed.federation.numbers import About, released, table_of
from compfed.federation.queries import FinishRound, LocalUpdate
from compfed.federation.query import Query, Refusal, SiteRefusal
from compfed.federation.sentence import MOST, RunSentence, Stated, decide
from compfed.federation.site.disclosure import DisclosurePolicy
from compfed.federation.site.ledger import Ledger, Roster
from compfed.federation.site.memory import RUNS_KEPT, ClientMemory, StateLost
from compfed.federation.site.site import Site
from compfed.network import keys
from compfed.network.approvals import Pending, asked_beyond
from compfed.network.envelope import (
    NEW_RUN,
    Body,
    Header,
    query_counts,
    query_hash,
    read_body,
    read_header,
    reply_bytes,
)
from compfed.network.extract import freeze
from compfed.network.flower import FRAMING, LARGEST, FleetConnection, LinkError, Rejected
from compfed.network.roster import roster_fingerprint
from compfed.network.session import Session, check_roster, masked, reason_under_masks, weightings
from compfed.network.site_settings import SiteSettings, disclosure_text, table_hash
from compfed.network.site_status import Health

SAY = functools.partial(print, flush=True)  # a log shows a line at once
LOG, OVERDUE = "log.jsonl", "overdue.json"
LONGEST_LOG = 2**26  # bytes; then a new log is begun, also on the same day
UNDER_WAY = 86_400.0  # seconds after its last reply in which a run is not dropped for others
REPLIES_KEPT, RUN_FOLDERS_KEPT, RECORDS_KEPT = 2, 20, 256
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
SHORTEST, LONGEST = 0.5, 15.0  # seconds between two attempts to connect
COMPILED_BYTES = 2**28  # of local steps that were compiled before
QUIET = 10.0  # seconds without a message after which a summary of the run is printed
ENOUGH = "Nothing more leaves in it."
REMIND = 600.0  # seconds after which the same problem is printed again


def _made_of(header: Header, session: Session, body: Body) -> str:
    """The hash of all that the words of a reply follow from, beside the rows: the same words are counted once."""
    agreed = session.public.tobytes(), session.enrolments
    rounds = [digest(query) for query in body.again]
    return hashlib.sha256(repr((header.queries, header.after, agreed, rounds)).encode()).hexdigest()


# --- replies ---


class Ended(InputError):
    """A run that a refusal has ended at this site. The same words whatever was refused; `why` is for its log."""

    def __init__(self, run: str, why: str = "a refusal has ended this run here"):
        self.why = why
        super().__init__(
            f"it refuses a query of run {run} and ends the run here; the steward reads why in its log.jsonl. What most often helps: a "
            "stronger penalty (alpha, or eps of a path), fewer columns, or a smaller cv."
        )


class SiteService:
    """Replies to messages with the rows of one site."""

    def __init__(self, settings: SiteSettings, key: keys.PrivateKey):
        self.settings, self.key = settings, key
        self._site: Site | None = None
        self._table = ""
        self._stamp: tuple[int, ...] = ()  # changes whenever the file of the rows is written
        self._files: RunFiles | None = None  # of the last run: its records need not be read again
        self._ledger: Ledger | None = None
        self._agreed: tuple[str, Agreement, secure_sum.Masks | None] | None = None  # of the last session
        self.began: tuple[float, Header] | None = None  # the message under way, and since when
        self.replies = 0
        self.last = "", ""  # the run of the last message, and why it was refused

    def open(self) -> Site:
        """The site with its rows; they are read again when their file has changed."""
        stamp: tuple[int, ...] = ()
        with contextlib.suppress(OSError):
            found = self.settings.source.stat()
            stamp = found.st_mtime_ns, found.st_size, found.st_ino
        if self._site is None or stamp != self._stamp:
            site = self.settings.site()
            self._site, self._table, self._stamp = site, table_hash(site, self.key), stamp
        return self._site

    def reply(self, data: bytes) -> bytes:
        """The signed reply to a message. There is always one; an error in it quotes no value of the rows."""
        header, limit = Header("", 0, 0, 0, (), ""), self.settings.limits.max_message_bytes
        why = ""
        try:
            header, body = read_header(
                data, self.settings.name
            )  # of bounded size; the reply says which message it is about
            if len(data) > limit:
                raise InputError(f"a message has more than the {limit} bytes that it reads (max_message_bytes).")
            self._begin(header)
            kind, content, facts = self._content(header, body)
            signed = self._signed(header, kind, content)
            if len(signed) > LARGEST - FRAMING:
                raise InputError(f"the reply has {len(signed)} bytes; at most {LARGEST - FRAMING} can be sent.")
            sizes = {"bytes_in": len(data), "bytes_out": len(signed), "sha256_out": hashlib.sha256(signed).hexdigest()}
            self._log({"run": header.run, "number": header.number, **facts, **sizes})  # before it leaves
            self.last = header.run, ""
            return signed
        except StateLost as problem:
            kind, reason = "lost", str(problem)
        except Pending as problem:
            kind, reason = "pending", str(problem)
        except TableError as problem:  # its text may quote a row
            kind, reason = "refused", f"its rows cannot be used: {problem.public_reason}"
        except InputError as problem:
            kind, reason = "refused", printable(str(problem))
            why = problem.why if isinstance(problem, Ended) else ""
        except Exception as problem:  # the text of an exception may hold values that must not leave
            kind, reason = "failed", f"it failed with {type(problem).__name__}; its log says where."
            if isinstance(problem, OSError):
                reason = f"its state cannot be written, or its table cannot be read ({problem.strerror})."
            self._log_anyhow(_where(problem))
        finally:
            self.began = None
            self.replies += 1
        before, self.last = self.last, (printable(header.run, 100), f"{kind}, message {header.number}: {why or reason}")
        if kind != "pending" or self.last != before:  # the operator asks every few seconds
            self._log_anyhow({"run": self.last[0], "number": header.number, "kind": kind, "reason": why or reason})
        return self._signed(header, kind, {"reason": reason})

    # --- the time limit ---

    def _begin(self, header: Header) -> None:
        mark = json.loads(files.read_checked(self.settings.state / OVERDUE) or b"[0, 0, 0]")
        most = self.settings.budget.max_seconds
        if mark[:2] == [header.run, header.number] and most <= mark[2]:
            raise InputError(f"message {header.number} takes more than the {most:g} s that it allows (max_seconds).")
        self.began = time.monotonic(), header

    def is_overdue(self) -> bool:
        """Has the message under way used up its time?"""
        began = self.began
        return began is not None and time.monotonic() - began[0] > self.settings.budget.max_seconds

    def mark_overdue(self) -> None:
        """Remember to refuse this message: the process is about to be replaced, as compiled code cannot be interrupted."""
        if (began := self.began) is not None:
            header = began[1]
            self._log_anyhow({"run": header.run, "number": header.number, "kind": "overdue"})
            mark = [header.run, header.number, self.settings.budget.max_seconds]
            with contextlib.suppress(OSError):
                files.write_checked(self.settings.state / OVERDUE, json.dumps(mark).encode())

    def _signed(self, header: Header, kind: str, content: JsonObject) -> bytes:
        facts = {"run": header.run, "number": header.number, "queries": header.queries, "table": self._table}
        return reply_bytes({**facts, "site": self.settings.name, "kind": kind, **content}, self.key)

    def _content(self, header: Header, data: bytes) -> tuple[str, JsonObject, JsonObject]:
        """The kind and content of the reply to a message, on disk before they leave; and facts for the log."""
        kept, site = self._run_files(header.run), self.open()
        pinned = self._pinned(header, kept)
        try:
            body = read_body(data, self.settings.accepts, kept.records)
        except NotCached:
            raise StateLost("It does not have a record that the message refers to.") from None
        if query_hash(body.queries, body.sentence) != header.queries:
            raise InputError(f"message {header.number} does not hold the queries that its header names.")
        if not body.queries:
            content = self._enrol(header, kept, site)
            kept.pin(pinned)
            return "enrolled", content, {"queries": {"Enrol": 1}, "repeated": False}
        session, agreement, masks = self._join(header, kept, site, body)
        done = kept.read(header.number)
        if done is None and session.ended:
            raise Ended(header.run)
        site.rows.index = site.rows.number = header.place
        site.guard.join(agreement)
        kept.pin(pinned)  # a site that lost its state has forgotten this too
        if done is not None and done.queries != header.queries:
            raise InputError(f"message {header.number} of run {header.run} came before with other queries.")
        repeated = done is not None
        if done is None:
            last = max(session.last, kept.newest())
            if masks is not None and header.number != last + 1:
                after = f"the last message that this site answered is {last}"
                raise InputError(f"message {header.number} of run {header.run} cannot be answered: {after}. {NEW_RUN}")
            following = session.after(header, body.queries)
            try:
                self._check_masked(header, site, body, session, agreement)
                self._begin_sentence(header, site, body, agreement)
                numbers = self._charged(header, site, body, agreement, session)
                words, states = self._words(header, kept, site, body, agreement, session, following)
            except SiteRefusal as problem:
                self._end(header, kept, session, str(problem))
                raise
            except (InputError, OSError):
                raise
            except Exception as problem:  # what fails on some rows and not on others is an oracle, as a refusal is
                if self.settings.enforce:
                    self._log_anyhow(_where(problem))
                self._end(header, kept, session, f"it failed with {type(problem).__name__}")
                raise
            assert numbers.total() == len(words) - exact_sum.FRAME, "every word that leaves is counted"
            words = words if masks is None else masked(words, masks, header, following.asked)
            done = ReplyFile(header.queries, words, states, following.asked, following.rounds)
            # first: what is kept is sent without another look
            counts, new = query_counts(body.queries), weightings(body.queries) if self.settings.secure_sum else ()
            made_of = _made_of(header, session, body)
            self.ledger().record(header.run, header.number, made_of, counts, numbers, words.nbytes, new)
            kept.write(header.number, done)
        if session.last < header.number:
            # not flushed: after a power cut, the file of the reply tells that this number is taken
            replace(session, last=header.number, asked=done.asked, rounds=done.rounds).write(kept.session, flush=False)
        return "words", {"words": done.words}, {"queries": query_counts(body.queries), "repeated": repeated}

    def _enrol(self, header: Header, kept: RunFiles, site: Site) -> JsonObject:
        """The enrolment of this site in a run, and the public half of a key for its session."""
        if header.number != 1:
            raise InputError(f"message {header.number} asks this site to enrol; the first message of a run does.")
        self._check_run(header, site)
        session = Session.read(kept.session)
        if session is None:
            if (
                kept.folder / "run.json"
            ).exists() or header.run in self.ledger().runs:  # with another key it is another run
                raise InputError(f"the session of run {header.run} at this site is lost. {NEW_RUN}")
            session = Session(secure_sum.new_session_key())
            session.write(kept.session)
        return {"enrolment": self._enrolment(site), "session_key": session.public}

    def _enrolment(self, site: Site) -> Enrolment:
        return replace(site.enrol(), table=self._table, version=compfed.__version__, share_used=self.ledger().share())

    def _check_run(self, header: Header, site: Site, enter: bool = False) -> None:
        """Refuse a run with other sites than those agreed on, or whose sums would show rows by subtraction from others.

        It is in the ledger (`enter`) once it may begin: enrolments alone leave no line there.
        """
        keys_of_sites = (
            self.settings.read_roster() if self.settings.secure_sum or self.settings.roster.exists() else None
        )
        if keys_of_sites is not None:
            check_roster(header, keys_of_sites)
        text = json.dumps(header.names) if keys_of_sites is None else roster_fingerprint(keys_of_sites)
        ledger = self._ledger = self.settings.ledger()  # read again: `compfed site allow` may have written to it
        hashes = ledger.row_hashes(*site.rows.as_read())
        policy = self.settings.disclosure if self.settings.enforce else DisclosurePolicy(min_rows=1)
        (ledger.open_run if enter else ledger.check_run)(header.run, Roster(text, header.names), hashes, policy)
        if self.settings.enforce and not self.settings.extracts():
            freeze(self.settings, self.settings.data.read_bytes())
            self._site, before = None, self._table
            self.open()
            if self._table != before:
                raise InputError("its table was written while a run began. Start a new run.")

    def ledger(self) -> Ledger:
        """The ledger of the table."""
        if self._ledger is None:
            self._ledger = self.settings.ledger()
        return self._ledger

    def _join(
        self, header: Header, kept: RunFiles, site: Site, body: Body
    ) -> tuple[Session, Agreement, secure_sum.Masks | None]:
        """The session of a run, what its sites agree on, and the masks of this site, if it masks its sums."""
        session, secure = Session.read(kept.session), self.settings.secure_sum
        if session is None and secure:
            raise InputError(f"the session of run {header.run} at this site is lost. {NEW_RUN}")
        if session is None:  # the state was lost, or the server left out the first message
            self._check_run(header, site)
            session = Session(secure_sum.new_session_key())
        if not session.enrolments:
            if not body.enrolments:
                raise StateLost("It does not have the enrolments of the sites.")
            roster, given = (
                self.settings.read_roster() if secure else None,
                [data.tobytes() for data in body.enrolments],
            )
            self._check_run(header, site)  # again: the ledger may be lost, and a message need not be the first
            session = session.joined(header, given, self._enrolment(site), roster, check_key=secure)
            session.write(kept.session)
        name = hashlib.sha256(repr((header.run, header.names, header.place, session.enrolments)).encode()).hexdigest()
        if self._agreed is None or self._agreed[0] != name:
            self._agreed = name, session.agreement(header), session.masks(header) if secure else None
        if self._agreed[1].enrolments[header.place].secure_sum != secure:
            raise InputError(f"secure_sum has changed in site.toml since run {header.run} began. {NEW_RUN}")
        newest = kept.newest()
        if session.last < newest and (file := kept.read(newest)) is not None:  # the power was cut after it was written
            session = replace(session, last=newest, asked=file.asked, rounds=file.rounds)
        return session, self._agreed[1], self._agreed[2]

    def _check_masked(self, header: Header, site: Site, body: Body, session: Session, agreement: Agreement) -> None:
        """Refuse queries whose totals, with those of others, would tell the part of one site."""
        if not self.settings.secure_sum:
            return
        session.check_order(header, body.again)
        for weighted in body.queries:
            if (reason := reason_under_masks(weighted, agreement)) is not None:
                kind = type(weighted.query).__name__
                raise SiteRefusal(f"site {self.settings.name!r} refuses {kind}: sums are masked, and {reason}.")
        if self.settings.enforce and len(weightings(body.queries) | self.ledger().weightings) > 1:
            raise SiteRefusal(
                f"site {self.settings.name!r} adds the numbers of a table in one weighting for its life, by rows or by sites, as its "
                "masked sums would tell single sites' parts in two. Use the weighting of the first run."
            )

    def _end(self, header: Header, kept: RunFiles, session: Session, why: str) -> None:
        """Under a policy a refusal ends the run at this site, and so does a failure."""
        if self.settings.enforce:
            replace(session, ended=True).write(kept.session)
            raise Ended(header.run, printable(why)) from None

    def _words(
        self,
        header: Header,
        kept: RunFiles,
        site: Site,
        body: Body,
        agreement: Agreement,
        session: Session,
        following: Session,
    ) -> tuple[np.ndarray, ClientStates]:
        """The words of the replies to a message, and the client states after it. A refusal ends the run."""
        before = kept.read(header.after) if header.after > 1 else ReplyFile("", np.empty((0, 2), np.uint64), {})
        if before is None:
            raise StateLost(f"It has no state after message {header.after} of this run.")
        restore(site.memory, (*body.again, *(weighted.query for weighted in body.queries)), before.states)
        refused = next((reply for reply in site.reply(body.again) if isinstance(reply, Refusal)), None)
        if refused is not None:  # other replies are known, and not sent
            raise SiteRefusal(f"a round could not be done again: {refused.reason}")
        with one_blas_thread(), cores(available_cores()):
            noise = functools.partial(
                secure_sum.noise_words, session.private, header.run, header.number, following.asked
            )
            words = Exactly(noise).encode(body.queries, site.contributions(body.queries, agreement), agreement)
        return words, client_states(site.memory, before.states)

    def _begin_sentence(self, header: Header, site: Site, body: Body, agreement: Agreement) -> None:
        """Decide about what a run states, by what it can release at most, and enter it in the ledger."""
        ledger, text = self.ledger(), body.sentence
        entry, before = ledger.runs.get(header.run), ledger.share()
        if entry is not None and entry.table is not None and entry.sentence == text:
            return
        table = table_of(site.rows, agreement, self.settings.secure_sum)
        if text:
            stated, rules = Stated.read(text), self.settings.approval
            sentence, most = self._sentence(stated, header, site), stated.numbers
            words = sentence.words(table, before, self.settings.secure_sum)

            def ask(reason: str) -> bool:
                return self.settings.approvals().allows(sentence, header.run, words, reason)

            found = decide(before + most / table.cells, site.policy, rules.objection(sentence, ledger), ask)
        else:
            most, stated_nothing = MOST, "a run that states nothing cannot be approved"
            found = decide(before, site.policy, "" if self.settings.approval.covers_everything else stated_nothing)
        if not found.by:
            raise InputError(f"site {self.settings.name!r} does not take part in this run: {found.why}.")
        if entry is None:
            self._check_run(header, site, enter=True)
        self.ledger().begin(header.run, text, found.by, most, table)

    def _charged(
        self, header: Header, site: Site, body: Body, agreement: Agreement, session: Session
    ) -> Counter[About]:
        """The charge to the ledger for a reply: the numbers about to leave, by what they are about.

        Refuses more than the run may release.
        """
        ledger, policy, numbers = self.ledger(), site.policy, released(body.queries, site.rows, agreement)
        entry = ledger.run(header.run)
        assert entry.table is not None, "the run has begun"
        if policy is None:
            return numbers
        if entry.answered.get(header.number) == _made_of(header, session, body):
            return numbers  # counted before the site was stopped
        if entry.sentence and (
            wrong := asked_beyond(Stated.read(entry.sentence), entry.asked[entry.sentence], body.queries)
        ):
            raise SiteRefusal(f"site {self.settings.name!r}: {wrong}.")
        if numbers.total() > entry.left:
            raise InputError(
                f"site {self.settings.name!r}: the run would release more numbers than it stated. {ENOUGH}"
            )
        limit = policy.share_by_rule if entry.by == "rule" else policy.max_share
        if ledger.share((entry.table, numbers)) > limit:
            most = f"over {limit:.0%} of the numbers in its table, or in the rows of a fold, would have left"
            raise InputError(f"site {self.settings.name!r}: {most}. {ENOUGH}")
        # several runs may have begun before any of them released its numbers
        if entry.by == "rule" and (wrong := self.settings.approval.beyond_the_month(numbers.total(), ledger)):
            raise InputError(f"site {self.settings.name!r}: {wrong}. {ENOUGH}")
        return numbers

    def _sentence(self, stated: Stated, header: Header, site: Site) -> RunSentence:
        """What a run will compute here, complete."""
        schema, has_roster = site.rows.file.schema, self.settings.secure_sum or self.settings.roster.exists()
        known = self.settings.read_roster() if has_roster else dict.fromkeys(header.names)
        roster = tuple((name, "" if key is None else keys.fingerprint(key)) for name, key in known.items())
        hashed = "" if schema is None else hashlib.sha256(schema.to_toml().encode()).hexdigest()
        columns = site.rows.columns or tuple(site.rows.table.columns)
        extract = next((path.name for path in reversed(self.settings.extracts())), "")
        return RunSentence(stated, hashed, tuple(columns), roster, compfed.__version__, extract)

    def _run_files(self, run: str) -> RunFiles:
        if self._files is None or self._files.folder.name != run:
            self._files = RunFiles(self.settings, run)
        self._files.records.forget_new()
        return self._files

    def _pinned(self, header: Header, kept: RunFiles) -> JsonObject:
        """The facts that the run began with; a message for another table, or with other sites, is refused."""
        facts = {"table": self._table, "place": header.place, "names": list(header.names)}
        data = files.read_checked(kept.folder / "run.json")
        began = facts if data is None else json.loads(data)  # a run that begins now
        if began["table"] != self._table:
            way_out = "Restore the table, or start a new run in another folder."
            raise InputError(f"its table has changed since run {header.run} began. {way_out}")
        if began != facts:
            raise InputError(f"the sites of run {header.run} are not those that it began with.")
        return facts

    # --- the log ---

    def _log(self, line: JsonObject) -> None:
        path = self.settings.state / LOG
        turn_log(path, self.settings.log_days)
        files.append_line(path, json.dumps({"time": round(time.time(), 3), **line}).encode(), flush=True)

    def _log_anyhow(self, line: JsonObject) -> None:
        """Log a line for which no reply leaves: a full disk does not matter then."""
        with contextlib.suppress(OSError):
            self._log(line)


def turn_log(path: Path, days: int) -> None:
    """Put a log aside that is of an earlier day (UTC), under that day, or too long; remove those that are older than so many days."""
    try:
        last = path.stat()
    except FileNotFoundError:
        return
    day, today = (time.strftime("%Y-%m-%d", time.gmtime(seconds)) for seconds in (last.st_mtime, time.time()))
    if day == today and last.st_size <= LONGEST_LOG:
        return
    # of one day, names with a time come first in the order of names, too
    name = (
        f"log-{day}"
        if day != today
        else f"log-{day}-{time.strftime('%H%M%S', time.gmtime())}-{time.time_ns() % 10**9:09d}"
    )
    if path.with_name(f"{name}.jsonl").exists():  # the clock was put back
        name = f"{name}-{time.time_ns()}"
    os.rename(path, path.with_name(f"{name}.jsonl"))
    for old in path.parent.glob("log-*.jsonl"):
        if old.stat().st_mtime < time.time() - 86_400 * days:
            old.unlink(missing_ok=True)


def _where(problem: BaseException) -> JsonObject:
    """Where an exception came from: its type and the places in the code, without its text."""
    frames = traceback.extract_tb(problem.__traceback__)
    return {"failed": type(problem).__name__, "at": [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames]}


# --- the files of a run ---

ClientStates = dict[str, tuple[bool, dict[str, np.ndarray]]]  # hash of a run -> (result pending, its state by name)


class ReplyFile(NamedTuple):
    """The file of a message: the words of its replies, and the client states after it."""

    queries: str  # hash of the queries
    words: np.ndarray
    states: ClientStates
    asked: str = ""  # hashes of the queries, and of the rounds, of all messages up to this one
    rounds: str = ""


class RunFiles:
    """The files of one run at one site."""

    def __init__(self, settings: SiteSettings, run: str):
        if not RUN_NAME.fullmatch(run):
            raise InputError("the name of a run may have letters, digits, '_' and '-', at most 100.")
        self.folder, self.accepts = settings.state / "runs" / run, settings.accepts
        self.approvals = settings.approvals()
        self.max_bytes, self.max_days = settings.budget.max_state_bytes, settings.retention_days
        self.records = RecordFiles(self.folder / "records", self.accepts)

    def read(self, number: int) -> ReplyFile | None:
        """The file of a message; None if it is gone or damaged."""
        data = files.read_checked(self._path(number))
        return None if data is None else ReplyFile(**unpack(from_bytes(data), self.accepts))

    def newest(self) -> int:
        """The number of the last message that has a file; 0 if none has one."""
        return max((int(path.stem) for path in self.folder.glob("*.reply")), default=0)

    @property
    def session(self) -> Path:
        """The file of the session."""
        return self.folder / "session"

    def pin(self, facts: JsonObject) -> None:
        """Write down the facts that the run begins with."""
        if not (self.folder / "run.json").exists():
            self._make_room(0)
            files.write_checked(self.folder / "run.json", json.dumps(facts).encode())

    def write(self, number: int, reply: ReplyFile) -> None:
        """Write the file of a message, and remove all but the last ones before it."""
        data = to_bytes(pack(reply._asdict()))
        self._make_room(len(data) + self.records.pending_bytes())
        self.records.commit()
        files.write_checked(self._path(number), data)
        for path in sorted(self.folder.glob("*.reply"))[:-REPLIES_KEPT]:
            path.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        """Remove runs that are older than the site keeps them, and the oldest until the state folder is within its limit.

        A run that was answered in the last day, or waits for a person, stays, and takes the place of no other: enrolments in many
        runs drop none of these, and these no run that has just enrolled.
        """
        runs = [path for path in self.folder.parent.glob("*") if path != self.folder]
        runs.sort(key=lambda path: path.stat().st_mtime)
        while self.max_days is not None and runs and runs[0].stat().st_mtime < time.time() - 86_400 * self.max_days:
            shutil.rmtree(runs.pop(0), ignore_errors=True)
        used = {path: _size(path) for path in [*runs, self.folder]}
        if len(runs) < RUN_FOLDERS_KEPT and sum(used.values()) + size <= self.max_bytes:
            return
        waiting = {asked.run for asked in self.approvals.all() if asked.state in ("waiting", "approved")}
        last = time.time() - UNDER_WAY
        loose = [
            path
            for path in runs
            if path.name not in waiting and not (path.stat().st_mtime > last and any(path.glob("*.reply")))
        ]
        while loose and (len(loose) >= RUN_FOLDERS_KEPT or sum(used.values()) + size > self.max_bytes):
            oldest = loose.pop(0)
            shutil.rmtree(oldest, ignore_errors=True)
            del used[oldest]
        if sum(used.values()) + size > self.max_bytes:
            allowed = f"the {self.max_bytes} bytes of state that the site allows (max_state_bytes)"
            raise InputError(f"this run needs more than {allowed}.")

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
        record = None if data is None else unpack(from_bytes(data), self.accepts)
        if record is None or digest(record) != name:
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


def restore(memory: ClientMemory, queries: Sequence[Query], kept: ClientStates) -> None:
    """Give a site the client states of the runs whose rounds these queries are about."""
    memory.states.clear()
    rounds = [query for query in queries if isinstance(query, (LocalUpdate, FinishRound))]
    for name, run_spec in {digest(query.run_spec): query.run_spec for query in rounds}.items():
        if name in kept:
            pending, arrays = kept[name]
            with precision(np.dtype(run_spec.objective.dtype)):
                like = run_spec.algorithm.init(jnp.asarray(run_spec.x0))[1]
                memory.remember(run_spec, jax.tree.map(jnp.asarray, unnamed(arrays, like)), pending)


def client_states(memory: ClientMemory, kept: ClientStates) -> ClientStates:
    """The client states after a message: new ones of the runs that it was about, and the others as they were."""
    new = {name: (state.pending, named(state.c)) for name, state in memory.states.items() if jax.tree.leaves(state.c)}
    together = {**{name: old for name, old in kept.items() if name not in new}, **new}
    return dict(list(together.items())[-RUNS_KEPT:])


# --- the process of a site ---


class SiteNode:
    """Keeps a site connected, and replies to messages."""

    def __init__(self, settings: SiteSettings, say: Callable[[str], object] = SAY):
        settings.check_files()
        self.settings, self._out = settings, say
        self.service = SiteService(settings, keys.read_identity(settings.key))
        self.health = Health(settings.state)
        self._connection: FleetConnection | None = None
        self._stopped = threading.Event()
        self._printed, self._printed_at = "", 0.0
        self._run, self._replies, self._bytes, self._at = "", 0, 0, 0.0

    def loop(self) -> None:
        """Stay connected until `stop`; after a failure connect again, with back-off."""
        pause = SHORTEST
        while not self._stopped.is_set():
            try:
                with self._signed_in() as connection:
                    self._print_once(f"connected to {self.settings.superlink}")
                    self.health.connected()
                    while not self._stopped.is_set():
                        self._reply_once(connection)
                        pause = SHORTEST
            except LinkError as problem:
                if self._stopped.is_set():
                    return
                self._not_connected(self._reason(problem).rstrip("."), "not connected: ")
            except OSError as problem:
                self._not_connected(f"the state cannot be written: {problem.strerror}")
            except Exception as problem:  # whatever a SuperLink sends, the site goes on
                self._not_connected(f"an unexpected error ({type(problem).__name__})")
            self._stopped.wait(pause * random.uniform(0.8, 1.2))
            pause = min(2 * pause, LONGEST)

    def _not_connected(self, reason: str, head: str = "") -> None:
        self._print_once(f"{head}{reason}. Trying again.")
        self.health.lost(reason)

    @contextmanager
    def _signed_in(self) -> Iterator[FleetConnection]:
        settings, path = self.settings, self.settings.state / "node.json"
        try:
            known = int(json.loads(path.read_text())["node_id"])  # of an earlier start
        except (OSError, ValueError, KeyError, TypeError):
            known = 0
        connection = FleetConnection(settings.superlink, settings.ca, self.service.key, known)
        try:
            node = connection.sign_in()
            if node != known:
                files.write_private(path, json.dumps({"node_id": node}).encode())
            self._connection = connection
            yield connection
        finally:
            self._connection = None
            connection.close()

    def _reply_once(self, connection: FleetConnection) -> None:
        began = time.monotonic()
        try:
            delivery = connection.receive()
        except Rejected as refused:
            if refused.status != 403:
                raise
            return  # a message of a run that has ended meanwhile
        except InputError as problem:  # without a header there is nothing to reply to
            self._print_once(f"a message was ignored: {problem}")
            return
        if delivery is None:
            self.health.connected()
            self._summarise()
            if time.monotonic() - began < 0.1:  # a SuperLink that does not hold requests open
                self._stopped.wait(0.2)
            return
        metadata, data = delivery
        self.health.working()
        reply = self.service.reply(data)
        self.health.replied(*self.service.last, len(reply))
        self._report(len(reply))
        if self.service.replies % 8 == 0:
            prune(self.settings.state / "compiled", COMPILED_BYTES)
        try:
            connection.reply(metadata, reply)
        except Rejected as refused:
            if refused.status == 401:
                raise
            if refused.status != 403:  # 403: the run has ended at the SuperLink; the reply is on disk if it is needed
                self._print_once(f"a reply was not taken: {refused}")

    def _report(self, size: int) -> None:
        """Print when a run begins, and what was refused."""
        run, refused = self.service.last
        if run and run != self._run:
            self._summarise()
            self._run, self._replies, self._bytes = run, 0, 0
            self.say(f"run {run}: the operator sends queries, this site replies")
        if refused:
            self._print_once(f"refused: {refused}")
        self._replies, self._bytes = self._replies + 1, self._bytes + size
        self._at = time.monotonic()

    def _summarise(self) -> None:
        """Print how many replies a run got, once no message has come for some seconds."""
        if self._replies and time.monotonic() - self._at > QUIET:
            log = self.settings.state / "log.jsonl"
            self.say(f"run {self._run}: {self._replies} replies, {self._bytes / 1e3:.0f} kB; see {log}")
            self._replies, self._bytes = 0, 0

    def _reason(self, problem: LinkError) -> str:
        if isinstance(problem, Rejected) and (problem.code == 2004 or problem.status == 401):
            mine = keys.fingerprint(self.service.key.public_key())
            return f"the operator has not admitted the key {mine} of site {self.settings.name!r} yet; send them the public key"
        return str(problem)

    def _print_once(self, text: str) -> None:
        """Print a line; the same line again only after some time."""
        if text != self._printed or time.monotonic() - self._printed_at > REMIND:
            self.say(text)
            self._printed, self._printed_at = text, time.monotonic()

    def say(self, text: str) -> None:
        """Print a line, with the time."""
        self._out(f"{time.strftime('%H:%M:%S')} {text}")

    def stop(self) -> None:
        """Sign out, from another thread."""
        self._stopped.set()
        if (connection := self._connection) is not None:
            connection.close()


@contextmanager
def alone(settings: SiteSettings) -> Iterator[None]:
    """One process per state folder."""
    files.make_folder(settings.state)
    try:
        with files.locked(settings.state / "lock", wait=False) as handle:
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)  # for `compfed site status`
            yield
    except BlockingIOError:
        raise InputError(f"another `compfed site run` uses {settings.state}. Stop it first.") from None


def prune(folder: Path, most: int) -> None:
    """Remove the oldest files of a folder, until it has at most so many bytes."""
    with contextlib.suppress(OSError):  # there is none yet
        used = 0
        for path in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True):
            used += path.stat().st_size
            if used > most:
                path.unlink(missing_ok=True)


def configure_jax(settings: SiteSettings) -> None:
    """Set up JAX for this whole process: local steps are compiled once at a site, and run on its CPU."""
    prune(settings.state / "compiled", COMPILED_BYTES)
    jax.config.update("jax_compilation_cache_dir", str(settings.state / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_platforms", "cpu")


def run_site(path: Path) -> int:
    """Run the node of a site until SIGTERM or Ctrl-C, then end the process."""
    os.umask(0o077)
    settings = SiteSettings.read(path)
    configure_jax(settings)
    node = SiteNode(settings)
    with alone(settings):
        SAY(disclosure_text(settings))
        try:
            rows = len(node.service.open().rows.labels)  # rows that cannot be used are better found now than in a round
        except TableError as problem:  # values of rows may be shown by `check`, and never in the log of a service
            wrong = f"the rows cannot be used: {problem.public_reason}"
            raise InputError(f"{wrong} `compfed site check` shows where.") from None
        if settings.enforce and rows < (least := settings.disclosure.min_rows):
            SAY(f"WARNING: the table has fewer rows than min_rows = {least}: every query will be refused.")
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        worker = threading.Thread(target=node.loop, daemon=True, name="compfed-site")
        worker.start()
        while not stop.wait(0.2) and worker.is_alive():
            if node.service.is_overdue():
                _replace(node, path)
        ended = stop.is_set()
        node.stop()
        node.say("stopped" if ended else "ended by an error of its own; start it again")
    sys.stdout.flush()
    os._exit(0 if ended else 1)  # compiled code in the other thread is not waited for; files are whole or not there


def _replace(node: SiteNode, path: Path) -> None:
    """Start this program anew in the same process: a reply takes too long, and compiled code cannot be interrupted."""
    node.service.mark_overdue()
    node.say(f"a message took more than {node.settings.budget.max_seconds:g} s; it will be refused")
    with contextlib.suppress(Exception):
        node.stop()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "compfed.cli", "site", "run", "--config", str(path)])
