"""A federation whose sites are behind a network. Messages are numbered and resent until every reply is there.

The first message of a run asks every site to enrol; sums follow (`federation.adding`). A message is complete when every
site that it went to has replied, to exactly these queries and with its own signature; then, and not before, the next one
leaves. A site replies to a repeated message with the same numbers, so resending is safe. Where sums are masked, the words of a
single site mean nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from pathlib import Path

import numpy as np

from compfed._utils.plain import JsonObject
from compfed._utils.text import join_names, printable
from compfed.errors import InputError
from compfed.federation import exact_sum
from compfed.federation.accounting import Communication, payload
from compfed.federation.adding import Exactly
from compfed.federation.codec import digest
from compfed.federation.enrolment import Agreement, Enrolment, kept_columns, left_out_note
from compfed.federation.numbers import NEEDS_A_PERSON, left_text
from compfed.federation.queries import FinishRound, LocalUpdate
from compfed.federation.queries.rounds import keeps_state
from compfed.federation.query import Query, Weighted
from compfed.federation.sentence import Stated
from compfed.federation.server.agreement import common_schema
from compfed.federation.server.arrivals import enrolment_fault, words_fault
from compfed.federation.server.exchange import Carried, MessageExchange
from compfed.federation.server.program import Request, Summed
from compfed.network.envelope import (
    ENROL,
    Body,
    Header,
    message_bytes,
    query_counts,
    query_hash,
    read_enrolment,
    read_reply,
)
from compfed.network.flower import FRAMING, LARGEST, FlowerLink, LinkError
from compfed.network.keys import Roster, fingerprint
from compfed.network.run_folder import Replies, RunLog, WriteAheadLog
from compfed.network.settings import RetryPolicy
from compfed.schema import Schema

CHECK_CONNECTED = 2.0  # seconds between two checks of who is connected, while replies are missing
RUN_AGAIN = "Run the same command again; the run continues."
UNUSABLE = 3  # replies of one site to one message that cannot be used, before the run stops
PENDING_PAUSE = 3.0  # seconds between two questions to a site whose steward has not decided
LONGEST_PAUSE = 15.0  # seconds between two attempts with a site that fails


class TableChanged(InputError):
    """The table of a site is not the one that the run began with."""


class NoReply(InputError):
    """A site gave no usable reply, however often the message was resent."""


@dataclass
class _SiteState:
    """The operator's record of a site in this run."""

    known: set[str] = field(default_factory=set)  # hashes of the records that the site has
    after: int = 0  # the last message that it replied to
    rounds: list[Query] = field(default_factory=list)  # its rounds of methods that keep state at a site


class RemoteFederation:
    """Sites behind a network, in the order of the roster. `cf.network.connect` makes one.

    Parameters
    ----------
    link : FlowerLink
        Carries bytes to the sites and back.
    roster : mapping of name to public key
        The sites, in order. A reply that is not signed with the key of its site is not used.
    folder : path, optional
        Where the write-ahead log and the log of the run are. A run that was killed continues from there. Without a
        folder nothing is written.
    retry : RetryPolicy, optional
        How long to wait for replies and how often to resend.
    why : str, default=""
        The reason for computing in full what would release more numbers than a rule may approve. A person at each site then has to
        approve it. Without one a choice of alpha takes a cheaper way where there is one.

    Raises
    ------
    NoReply
        From `exchange`, where a site gave no usable reply in the time and number of attempts of `retry`.

    Examples
    --------
    >>> import compfed as cf
    >>> with cf.network.connect("clinics/federation.toml") as federation:  # doctest: +SKIP
    ...     model = cf.FederatedLasso(alpha=0.1).fit_federation(federation)
    ...     print(federation.problems)
    """

    def __init__(
        self,
        link: FlowerLink,
        roster: Roster,
        *,
        folder: Path | None = None,
        retry: RetryPolicy | None = None,
        why: str = "",
    ):
        self.link, self.roster, self.retry = link, dict(roster), retry or RetryPolicy()
        self.log = WriteAheadLog(folder, {name: fingerprint(key) for name, key in roster.items()})
        self.run_log = RunLog(folder, tuple(self.roster))
        self.number = 0
        self.sentence = ""  # what was stated about the computation under way
        self.why = why
        self._signed_enrolments: tuple[np.ndarray, ...] = ()
        self._last_sum = ""
        self._bytes = 0, 0  # down and up, of the message bodies since the last count
        self._connected: dict[str, str] | None = None  # the sites that are connected, and when they signed in
        self._checked = 0.0  # when the SuperLink was asked that
        self._displays = contextlib.ExitStack()
        self._sites: defaultdict[int, _SiteState] = defaultdict(_SiteState)
        self._stateful: dict[str, bool] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.roster)

    def __enter__(self) -> RemoteFederation:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, _: object) -> None:
        state = "closed" if kind is None else "failed" if issubclass(kind, Exception) else "stopped"
        reason = {"reason": printable(str(problem))} if state == "failed" else {}
        try:
            if kind is None:
                self.log.commit()
            with contextlib.suppress(OSError):  # the disk may be full
                self.run_log.end(state, **reason)  # `operator.run` writes "finished" once the model is saved
        finally:
            self.close()

    def attach(self, display: contextlib.AbstractContextManager[object]) -> None:
        """Show the run until the federation is closed."""
        self._displays.enter_context(display)

    def close(self) -> None:
        """End the run at the SuperLink. Sites keep their state, for an operator who resumes the run."""
        self.link.close()
        self._displays.close()

    @property
    def problems(self) -> list[JsonObject]:
        """The last thousand problems of the run: time, number of the message, site, and the problem in words."""
        return list(self.run_log.problems)

    @property
    def enrolments(self) -> tuple[Enrolment, ...]:
        """The facts of every site, from the first message of the run."""
        return self._enrolments

    @cached_property
    def _enrolments(self) -> tuple[Enrolment, ...]:
        replies = self._complete(dict.fromkeys(range(len(self.names)), ()))
        self._signed_enrolments = tuple(data for i in sorted(replies) for data in replies[i])
        header = Header(self.log.run, 1, 0, 0, self.names, ENROL)
        found = tuple(
            read_enrolment(data.tobytes(), header, i, self.roster)[0] for i, data in enumerate(self._signed_enrolments)
        )
        for name, enrolment in zip(self.names, found, strict=True):
            if enrolment.secure_sum != found[0].secure_sum:
                one, other = (self.names[0], name) if found[0].secure_sum else (name, self.names[0])
                way_out = "All sites of a federation set secure_sum alike in site.toml."
                raise InputError(f"site {one!r} masks its sums (secure_sum) and site {other!r} does not. {way_out}")
            self.log.tables.setdefault(name, enrolment.table)
        kept = kept_columns(found)
        if note := left_out_note(kept):
            self.run_log.lines.append(f"  ! {note}")
        return kept

    @property
    def schema(self) -> Schema | None:
        """The schema that all sites encode their tables with; None without one. Refuses sites that have different ones."""
        return common_schema(self.names, self.enrolments)

    @cached_property
    def messages(self) -> MessageExchange:
        """How messages are exchanged with these sites, and what they cost."""
        agreement = Agreement(self.names, self.enrolments)
        return MessageExchange(agreement, Exactly(), self._carry, masked=self.enrolments[0].secure_sum)

    def state(self, stated: Stated) -> None:
        """State what the next messages are for, and how many numbers they release at most: the sites decide about that."""
        self.sentence = stated.text
        text = left_text(stated.numbers, self.enrolments, self.numbers)
        mark = "!" if NEEDS_A_PERSON in text else " "
        self.run_log.lines.append(f"  {mark} {stated.kind}: {text}")

    @property
    def numbers(self) -> float:
        """Numbers that each site released in this run so far."""
        return self.messages.numbers

    def exchange(self, requests: Sequence[Request]) -> tuple[Sequence[Summed], Communication]:
        """Send one message to every site that is asked something; return the exact sums, and what they cost."""
        return self.messages(requests)

    def _carry(self, messages: Mapping[int, tuple[Weighted, ...]]) -> Carried:
        """Send one message to each site named and return the words of each, and the bytes of the bodies."""
        replies = self._complete(messages)
        words = {i: np.asarray(replies[i][0]) for i in replies}
        self._last_sum = hashlib.sha256(b"".join(words[i].tobytes() for i in sorted(words))).hexdigest()
        if self.messages.masked:
            self._last_sum = hashlib.sha256(reduce(exact_sum.add, words.values()).tobytes()).hexdigest()
        down, up = self._bytes  # those of the enrolment are counted with the first message that asks something
        self._bytes = (0, 0)
        return Carried(words, down / len(self.names), up / len(self.names))

    def _complete(self, messages: Mapping[int, tuple[Weighted, ...]]) -> Replies:
        """The replies to a message: from the log where it has them, otherwise from the sites."""
        self.log.commit()  # the program asks for more: it accepted the last replies
        self.number += 1
        hashes = {i: query_hash(asked, self.sentence) for i, asked in messages.items()}
        found = self.log.replies(self.number, hashes)
        if found is None:
            sending = _Sending(self, dict(messages), hashes)
            found = sending.replies(), sending.bytes
            self.log.stage(self.number, hashes, *found)
        replies, (down, up) = found
        self._bytes = self._bytes[0] + down, self._bytes[1] + up
        for i, asked in messages.items():
            self._learn(i, asked)
        return replies

    def _learn(self, site: int, queries: Sequence[Weighted]) -> None:
        state = self._sites[site]
        payload(tuple(queries), state.known)
        state.after = self.number
        asked = [weighted.query for weighted in queries]
        state.rounds += [q for q in asked if isinstance(q, (LocalUpdate, FinishRound)) and self._is_stateful(q)]

    def _is_stateful(self, query: LocalUpdate | FinishRound) -> bool:
        """Does the method of a round keep state at a site?"""
        if (name := digest(query.run_spec)) not in self._stateful:
            self._stateful[name] = keeps_state(query)
        return self._stateful[name]


@dataclass
class _Awaited:
    """A site whose reply is missing."""

    place: int
    name: str
    queries: tuple[Weighted, ...]
    hash: str  # of the queries
    sent: str = ""  # id of the message under way
    at: float = 0.0  # when it was sent
    signed_in: str = ""  # the site's sign-in when it was sent
    size: int = 0
    attempts: int = 0
    unusable: int = 0
    lost: bool = False  # the site reported that its state is lost
    pause_until: float = 0.0
    absent_since: float | None = None
    pending_since: float | None = None  # when it first said that a person has to approve the run
    trouble: str = ""


class _Sending:
    """One message to each of some sites, repeated until all of them have replied."""

    def __init__(self, remote: RemoteFederation, queries: dict[int, tuple[Weighted, ...]], hashes: dict[int, str]):
        self.remote, self.retry = remote, remote.retry
        self.awaited = {i: _Awaited(i, remote.names[i], asked, hashes[i]) for i, asked in queries.items()}
        self.found: Replies = {}
        self.bytes = 0, 0  # of the message bodies, down and up, repetitions included
        self.words: dict[str, int] = {}  # of a reply, by the hash of its queries
        self.made: dict[object, bytes] = {}  # messages, by what they depend on: most sites get the same bytes
        if any(site.name not in (remote._connected or ()) for site in self.awaited.values()):
            remote._connected = None
        self.link_down_since: float | None = None

    def replies(self) -> Replies:
        """Send, wait and resend until every site has replied."""
        remote, order = self.remote, list(self.awaited)
        kinds = [kind for site in self.awaited.values() for kind in query_counts(site.queries)] or ["Enrol"]
        remote.run_log.begin(remote.number, kinds, [site.name for site in self.awaited.values()])
        while self.awaited:
            try:
                remote.link.open()
                self._send(self._check_connected())
                self._collect()
                self.link_down_since = None
                remote.run_log.link("")
            except LinkError as problem:
                self._link_failed(problem)
        return {i: self.found[i] for i in order}

    def _link_failed(self, problem: LinkError) -> None:
        now = time.monotonic()
        self.remote.run_log.link(printable(str(problem)))
        self.link_down_since = self.link_down_since or now
        if now - self.link_down_since > self.retry.wait:
            wrong = f"the SuperLink could not be used for {self.retry.wait:g} s: {problem}"
            raise NoReply(f"{wrong}. Start it (compfed federation serve DIR). {RUN_AGAIN}")
        self.remote.link.reset()
        self.remote._connected = None
        for site in self.awaited.values():
            site.sent = ""
        time.sleep(self.retry.pause)

    def _check_connected(self) -> dict[str, str]:
        """The sites that are connected, asked for at most every `CHECK_CONNECTED` seconds."""
        now, remote = time.monotonic(), self.remote
        fresh = now - remote._checked <= CHECK_CONNECTED
        fresh = fresh or all(site.sent and now - site.at <= CHECK_CONNECTED for site in self.awaited.values())
        if remote._connected is None or not fresh:
            remote._connected, remote._checked = remote.link.connected(), now
            remote.run_log.connected(list(remote._connected))
        return remote._connected

    def _send(self, connected: dict[str, str]) -> None:
        """Send to everybody who has no message under way, or signed in again, or took too long."""
        due = [(site, self._message(site)) for site in self.awaited.values() if self._is_due(site, connected)]
        if not due:
            return
        ttl = max(4 * self.retry.timeout, 600.0)
        sent = self.remote.link.push({site.name: data for site, data in due}, ttl)
        for site, data in due:
            site.sent, site.at, site.size = sent.get(site.name, ""), time.monotonic(), len(data)
            site.signed_in = connected[site.name]
            site.attempts += 1
            self.bytes = self.bytes[0] + len(data), self.bytes[1]
            if not site.sent:
                self._trouble(site, "the SuperLink took no message for it", self.retry.pause)

    def _is_due(self, site: _Awaited, connected: dict[str, str]) -> bool:
        now = time.monotonic()
        if site.name not in connected:
            site.sent = ""
            if site.absent_since is None:
                site.absent_since = now
                self._trouble(site, "not connected")
            if now - site.absent_since > self.retry.wait:
                absent = [repr(other.name) for other in self.awaited.values() if other.absent_since is not None]
                which = (
                    f"site {absent[0]} was"
                    if len(absent) == 1
                    else f"{len(absent)} sites ({join_names(absent, most=12)}) were"
                )
                ask = "it" if len(absent) == 1 else "them"
                raise NoReply(
                    f"{which} not connected for {self.retry.wait:g} s. Ask {ask} to start `compfed site run`. {RUN_AGAIN}"
                )
            return False
        site.absent_since = None
        again = site.signed_in != connected[site.name]
        if site.sent and not again and now - site.at < self.retry.timeout:
            return False
        if site.sent:
            self._trouble(site, "it signed in again" if again else "no reply in time")
        if now >= site.pause_until and site.attempts >= self.retry.attempts:
            message = f"message {self.remote.number} of run {self.remote.log.run}"
            wrong = f"was sent to site {site.name!r} {site.attempts} times and is not answered: {site.trouble}"
            raise NoReply(f"{message} {wrong}. No reply to it was used. {RUN_AGAIN}")
        return now >= site.pause_until

    def _message(self, site: _Awaited) -> bytes:
        """A message to a site; to one that lost its state, with everything that it has to do again."""
        remote, state = self.remote, self.remote._sites[site.place]
        known, after, again = (set(), 0, tuple(state.rounds)) if site.lost else (state.known, state.after, ())
        header = Header(remote.log.run, remote.number, after, site.place, remote.names, site.hash, remote._last_sum)
        enrolments = remote._signed_enrolments if after <= 1 else ()
        depends_on = site.place if site.lost else (site.hash, after, frozenset(known))
        if (data := self.made.get(depends_on)) is None:
            data = self.made[depends_on] = message_bytes(
                header, Body(site.queries, again, enrolments, remote.sentence if site.queries else ""), known
            )
        if len(data) > (most := LARGEST - FRAMING):
            wrong = f"message {remote.number} has {len(data)} bytes; at most {most} can be sent"
            raise InputError(f"{wrong}. Ask for less at once: fewer alphas or folds.")
        return data

    def _collect(self) -> None:
        """Read the replies that have arrived; wait a moment if there are none."""
        sites = {site.sent: site for site in self.awaited.values() if site.sent}
        if not sites:
            time.sleep(min(self.retry.pause, 0.5))
            self.remote._connected = None
            return
        arrived = self.remote.link.pull(list(sites))
        try:
            for message, reply in arrived.items():
                site = sites.get(message)
                if site is None:
                    continue
                site.sent = ""
                if reply.data is None:
                    self._trouble(site, reply.problem)
                    self.remote._connected = None
                else:
                    self.bytes = self.bytes[0], self.bytes[1] + len(reply.data)
                    self._read(site, reply.data)
        finally:
            self.remote.run_log.settle()

    def _read(self, site: _Awaited, data: bytes) -> None:
        """Use a reply, if it is one to this message and can be used. Whatever is wrong with it is its site's fault."""
        seconds = time.monotonic() - site.at
        try:
            fields = read_reply(data, self.remote.roster[site.name])
            self._check(site, fields)
        except TableChanged:
            raise
        except InputError as problem:
            self._unusable(site, str(problem))
            return
        except Exception as problem:  # a reply that breaks the reader
            self._unusable(site, f"its reply cannot be read ({type(problem).__name__})")
            return
        kind, reason = fields["kind"], printable(str(fields.get("reason", "")))
        if kind == "pending":  # a person may take days
            self._pending(site, reason)
            return
        if kind == "refused":
            own = f"site {site.name!r}"  # many a reason begins with it
            raise InputError(reason if reason.startswith(own) else f"{own}: {reason}")
        if kind == "failed":
            self._trouble(site, reason, min(self.retry.pause * 2**site.attempts, LONGEST_PAUSE))
        elif kind == "lost" and site.lost:
            self._unusable(site, f"it lost its state again: {reason}")
        elif kind == "lost":
            site.lost = True
            rounds = len(self.remote._sites[site.place].rounds)
            again = f"{rounds} rounds are done again there" if rounds else "no method under way keeps state there"
            self._trouble(site, f"{reason} Everything is sent to it again; {again}.")
        else:
            found = np.frombuffer(data, np.uint8) if kind == "enrolled" else fields["words"]
            self.found[site.place] = (found,)
            del self.awaited[site.place]
            self.remote.run_log.reply(
                site.name, queries=query_counts(site.queries) or {"Enrol": 1}, bytes_down=site.size, bytes_up=len(data),
                seconds=round(seconds, 3), sha256_up=hashlib.sha256(data).hexdigest(),
            )  # fmt: skip

    def _check(self, site: _Awaited, fields: JsonObject) -> None:
        """Raise an error unless this is a usable reply of this site to this message, from the same table."""
        remote, kind = self.remote, fields["kind"]
        good = ("words", "pending") if site.queries else ("enrolled",)
        if kind not in (*good, "refused", "failed", "lost"):
            raise InputError(f"its reply is of the kind {printable(kind, 40)!r}; it was not used")
        expected = {"run": remote.log.run, "number": remote.number, "site": site.name}
        if kind in ("refused", "failed") and not fields["run"]:  # the site could not read the header of the message
            expected = {"site": site.name}
        if kind in (*good, "lost"):
            expected["queries"] = site.hash
        for key, value in expected.items():
            if fields.get(key) != value:
                got = printable(str(fields.get(key)), 80)
                hint = ". Were the keys of two sites exchanged? Compare the fingerprints" if key == "site" else ""
                raise InputError(f"its reply is for {key} {got!r}, not {value!r}; it was not used{hint}")
        if kind in ("words", "enrolled"):
            if remote.log.tables.setdefault(site.name, fields["table"]) != fields["table"]:
                wrong = f"the table of site {site.name!r} has changed since run {remote.log.run} began"
                raise TableChanged(f"{wrong}. Restore it, or start a new run in another folder")
            wrong = self._fault(site, fields)
            if wrong is not None:
                raise InputError(f"its reply cannot be used: {wrong}")

    def _fault(self, site: _Awaited, fields: JsonObject) -> str | None:
        """What is wrong with an enrolment, or with the words of a reply; None if nothing is."""
        if not site.queries:
            key = fields.get("session_key")
            if not isinstance(key, np.ndarray) or key.dtype != np.uint8 or key.shape != (32,):
                return "its session key is not one of 32 bytes"
            return enrolment_fault(fields.get("enrolment"))
        if (count := self.words.get(site.hash)) is None:
            agreement = self.remote.messages.agreement
            count = exact_sum.FRAME + sum(weighted.layout(agreement).words for weighted in site.queries)
            self.words[site.hash] = count
        return words_fault(fields.get("words"), count)

    def _pending(self, site: _Awaited, reason: str) -> None:
        """Ask again later: a person at the site decides about the run."""
        site.attempts, now = 0, time.monotonic()
        site.pending_since = site.pending_since or now
        self._trouble(site, reason, max(self.retry.pause, PENDING_PAUSE))
        if now - site.pending_since > self.retry.approval:
            ask = "Ask its data steward to run `compfed site runs` there"
            raise NoReply(
                f"nobody at site {site.name!r} decided about run {self.remote.log.run}: {site.trouble}. {ask}. {RUN_AGAIN}"
            )

    def _unusable(self, site: _Awaited, reason: str) -> None:
        site.unusable, reason = site.unusable + 1, printable(reason)
        self._trouble(site, reason, self.retry.pause)
        if site.unusable >= UNUSABLE:
            wrong = (
                f"site {site.name!r} sent {site.unusable} replies to message {self.remote.number} that cannot be used"
            )
            raise NoReply(f"{wrong}: {reason}. None of them was used. Once the site is mended: {RUN_AGAIN}")

    def _trouble(self, site: _Awaited, what: str, pause: float = 0.0) -> None:
        """Log what is wrong with a site, once, and leave it alone for some seconds."""
        what = printable(what)
        if what != site.trouble:
            self.remote.run_log.problem(site.name, what)
        site.trouble = what
        if pause:
            site.pause_until = time.monotonic() + pause
