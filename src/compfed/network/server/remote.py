"""A federation whose sites are behind a network. Messages are numbered and resent until every reply is there.

A message is complete when every site that it went to has replied, to exactly these queries and with its own signature;
then, and not before, the next one leaves. A site replies to a repeated message with the same bytes, so resending is safe.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import jax
from cryptography.hazmat.primitives.asymmetric import ec

from compfed._utils.text import printable
from compfed.errors import InputError
from compfed.federation.codec import digest, payload
from compfed.federation.limits import MAX_REASON
from compfed.federation.queries import Describe, FinishRound, LocalUpdate, Query, Refusal
from compfed.federation.server.replies import fault
from compfed.network.envelope import Header, message_bytes, query_counts, query_hash, read_reply
from compfed.network.flower import FRAMING, LARGEST, LinkError, Reply
from compfed.network.keys import fingerprint
from compfed.network.server.run_log import Problem, RunLog
from compfed.network.server.write_ahead_log import Replies, WriteAheadLog
from compfed.network.settings import RetryPolicy

CHECK_CONNECTED = 2.0  # seconds between two checks of who is connected, while replies are missing
UNUSABLE = 3  # replies of one site to one message that cannot be used, before the run stops
LONGEST_PAUSE = 15.0  # seconds between two attempts with a site that fails


class NoReply(InputError):
    """A site gave no usable reply, however often the message was resent."""


@dataclass
class _SiteState:
    """The operator's record of a site in this run."""

    known: set[str] = field(default_factory=set)  # hashes of the records that the site has
    after: int = 0  # the last message that it replied to
    width: int | None = None  # columns of its table, once known
    rounds: list[Query] = field(default_factory=list)  # its rounds of methods that keep state at a site


class Link(Protocol):
    """Carries bytes to sites, which are known by name, and brings their replies."""

    def open(self) -> None:
        """Make sure that messages can be sent; raises `LinkError`."""
        ...

    def connected(self) -> dict[str, str]:
        """The sites that are connected; the text changes whenever a site signs in again."""
        ...

    def push(self, messages: Mapping[str, bytes], ttl: float) -> dict[str, str]:
        """Send; the id of each message that was taken."""
        ...

    def pull(self, ids: Collection[str]) -> dict[str, Reply]:
        """The replies that have arrived, by the id of their message; waits a moment if there are none."""
        ...

    def reset(self) -> None:
        """Forget the run at the SuperLink: it failed, or the SuperLink was restarted."""
        ...

    def close(self) -> None: ...


class RemoteFederation:
    """Sites behind a network, in the order of the roster. `cf.network.connect` makes one.

    Parameters
    ----------
    link : Link
        Carries bytes to the sites and back.
    roster : mapping of name to public key
        The sites, in order. A reply that is not signed with the key of its site is not used.
    folder : path, optional
        Where the write-ahead log and the log of the run are. A run that was killed continues from there. Without a
        folder nothing is written.
    retry : RetryPolicy, optional
        How long to wait for replies and how often to resend.

    Raises
    ------
    NoReply
        From `send`, where a site gave no usable reply in the time and number of attempts of `retry`.

    Examples
    --------
    >>> import compfed as cf
    >>> with cf.network.connect("clinics/federation.toml") as federation:  # doctest: +SKIP
    ...     model = cf.FederatedLasso(alpha=0.1).fit_federation(federation)
    ...     print(federation.problems)
    """

    def __init__(
        self,
        link: Link,
        roster: Mapping[str, ec.EllipticCurvePublicKey],
        *,
        folder: Path | None = None,
        retry: RetryPolicy | None = None,
    ):
        self.link, self.roster, self.retry = link, dict(roster), retry or RetryPolicy()
        self.names = tuple(self.roster)
        self.log = WriteAheadLog(folder, {name: fingerprint(key) for name, key in roster.items()})
        self.run_log = RunLog(folder, self.names)
        self.cached: set[str] = set()  # counts bytes; what each site has is in `_sites`
        self.numbers = itertools.count()  # of the runs of local-update methods: the same when a run is resumed
        self.number = 0
        self._displays = contextlib.ExitStack()
        self._sites: defaultdict[int, _SiteState] = defaultdict(_SiteState)
        self._stateful: dict[str, bool] = {}

    def __enter__(self) -> RemoteFederation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            self._end(kind, problem)
        finally:
            self.close()

    def _end(self, kind: type[BaseException] | None, problem: BaseException | None) -> None:
        """Write the last message to the log, and the state of the run."""
        if kind is None:
            self.log.commit()
        with contextlib.suppress(OSError):  # the disk may be full
            if kind is None:
                self.run_log.end("closed")  # `operator.run` writes "finished" once the model is saved
            elif issubclass(kind, Exception):
                self.run_log.end("failed", reason=printable(str(problem)))
            else:
                self.run_log.end("stopped")

    def attach(self, display: contextlib.AbstractContextManager[object]) -> None:
        """Show the run until the federation is closed."""
        self._displays.enter_context(display)

    def close(self) -> None:
        """End the run at the SuperLink. Sites keep their state, for an operator who resumes the run."""
        self.link.close()
        self._displays.close()

    @property
    def problems(self) -> list[Problem]:
        """The last thousand problems of the run: time, number of the message, site, and the problem in words."""
        return list(self.run_log.problems)

    def send(self, messages: Mapping[int, Sequence[Query]]) -> Replies:
        """Send one message to each site named and return one reply from each."""
        self.log.commit()  # the program asks for more: it accepted the last replies
        self.number += 1
        queries = {i: tuple(asked) for i, asked in messages.items()}
        hashes = {i: query_hash(asked) for i, asked in queries.items()}
        replies = self.log.replies(self.number, hashes)
        if replies is None:
            replies = _Exchange(self, queries, hashes).replies()
            self.log.stage(self.number, hashes, replies)
        for i, asked in queries.items():
            self._learn(i, asked, replies[i])
        return replies

    def _learn(self, site: int, queries: Sequence[Query], replies: tuple[Any, ...]) -> None:
        state = self._sites[site]
        state.width = next((reply.width for reply in replies if isinstance(reply, Describe.Reply)), state.width)
        payload(tuple(queries), state.known)
        state.after = self.number
        state.rounds += [q for q in queries if isinstance(q, (LocalUpdate, FinishRound)) and self._is_stateful(q)]

    def _is_stateful(self, query: LocalUpdate | FinishRound) -> bool:
        """Does the method of a round keep state at a site?"""
        run_spec = query.run_spec
        if (name := digest(run_spec)) not in self._stateful:
            shape = jax.eval_shape(
                lambda x: run_spec.algorithm.init(x)[1], jax.ShapeDtypeStruct(run_spec.x0.shape, run_spec.x0.dtype)
            )
            self._stateful[name] = bool(jax.tree.leaves(shape))
        return self._stateful[name]

    def message(self, site: int, queries: tuple[Query, ...], lost: bool) -> bytes:
        """A message to a site; to one that lost its state, with everything that it has to do again."""
        state = self._sites[site]
        known, after, again = (set(), 0, tuple(state.rounds)) if lost else (state.known, state.after, ())
        header = Header(self.log.run, self.number, after, site, self.names, query_hash(queries))
        data = message_bytes(header, queries, again, known)
        if len(data) > LARGEST - FRAMING:
            raise InputError(
                f"message {self.number} has {len(data)} bytes; at most {LARGEST - FRAMING} can be sent. Ask for less at once: fewer "
                "alphas or folds."
            )
        return data


@dataclass
class _Awaited:
    """A site whose reply is missing."""

    sent: str = ""  # id of the message under way
    at: float = 0.0  # when it was sent
    signed_in: str = ""  # the site's sign-in when it was sent
    size: int = 0
    attempts: int = 0
    unusable: int = 0
    lost: bool = False  # the site reported that its state is lost
    pause_until: float = 0.0
    absent_since: float | None = None
    trouble: str = ""


class _Exchange:
    """One message to each of some sites, repeated until all of them have replied."""

    def __init__(self, remote: RemoteFederation, queries: dict[int, tuple[Query, ...]], hashes: dict[int, str]):
        self.remote, self.queries, self.hashes = remote, queries, hashes
        self.found: Replies = {}
        self.awaited = {i: _Awaited() for i in queries}
        self.connected: dict[str, str] | None = None
        self.checked = 0.0
        self.link_down_since: float | None = None

    def replies(self) -> Replies:
        """Send, wait and resend until every site has replied."""
        remote = self.remote
        kinds = [type(query).__name__ for asked in self.queries.values() for query in asked]
        remote.run_log.begin(remote.number, kinds, [remote.names[i] for i in self.queries])
        while self.awaited:
            try:
                remote.link.open()
                self._check_connected()
                self._send()
                self._collect()
                self.link_down_since = None
                remote.run_log.link("")
            except LinkError as problem:
                self._link_failed(problem)
        return {i: self.found[i] for i in self.queries}

    def _link_failed(self, problem: LinkError) -> None:
        now, retry = time.monotonic(), self.remote.retry
        self.remote.run_log.link(printable(str(problem)))
        self.link_down_since = self.link_down_since or now
        if now - self.link_down_since > retry.wait:
            raise NoReply(
                f"the SuperLink could not be used for {retry.wait:g} s: {problem}. Start it (compfed federation serve DIR) and "
                "run the same command again; the run continues."
            )
        self.remote.link.reset()
        self.connected = None
        for awaited in self.awaited.values():
            awaited.sent = ""
        time.sleep(retry.pause)

    def _check_connected(self) -> None:
        """Ask the SuperLink which sites are connected, at most every `CHECK_CONNECTED` seconds."""
        now = time.monotonic()
        stale = self.connected is None or now - self.checked > CHECK_CONNECTED
        if stale and (
            self.connected is None or any(now - a.at > CHECK_CONNECTED or not a.sent for a in self.awaited.values())
        ):
            self.connected, self.checked = self.remote.link.connected(), now
            self.remote.run_log.connected(list(self.connected))

    def _send(self) -> None:
        """Send to everybody who has no message under way, or signed in again, or took too long."""
        remote, now = self.remote, time.monotonic()
        assert self.connected is not None
        due: dict[int, bytes] = {}
        for i, site in self.awaited.items():
            name = remote.names[i]
            if name not in self.connected:
                self._absent(i, site, now)
                continue
            site.absent_since = None
            if site.sent and site.signed_in == self.connected[name] and now - site.at < remote.retry.timeout:
                continue
            if site.sent:
                self._trouble(i, "it signed in again" if site.signed_in != self.connected[name] else "no reply in time")
            if now < site.pause_until:
                continue
            if site.attempts >= remote.retry.attempts:
                raise NoReply(
                    f"message {remote.number} of run {remote.log.run} was sent to site {name!r} {site.attempts} times and is not "
                    f"answered: {site.trouble}. No reply to it was used. Run the same command again; the run continues."
                )
            due[i] = remote.message(i, self.queries[i], site.lost)
        if not due:
            return
        ttl = max(4 * remote.retry.timeout, 600.0)
        sent = remote.link.push({remote.names[i]: data for i, data in due.items()}, ttl)
        for i, data in due.items():
            site = self.awaited[i]
            site.sent, site.at, site.size = sent.get(remote.names[i], ""), time.monotonic(), len(data)
            site.signed_in = self.connected[remote.names[i]]
            site.attempts += 1
            if not site.sent:
                self._trouble(i, "the SuperLink took no message for it")
                site.pause_until = time.monotonic() + remote.retry.pause

    def _absent(self, i: int, site: _Awaited, now: float) -> None:
        remote, name = self.remote, self.remote.names[i]
        site.sent = ""
        if site.absent_since is None:
            site.absent_since = now
            self._trouble(i, "not connected")
        if now - site.absent_since > remote.retry.wait:
            raise NoReply(
                f"site {name!r} was not connected for {remote.retry.wait:g} s. Ask it to start `compfed site run`, and run the "
                "same command again; the run continues."
            )

    def _collect(self) -> None:
        """Read the replies that have arrived; wait a moment if there are none."""
        remote = self.remote
        places = {site.sent: i for i, site in self.awaited.items() if site.sent}
        if not places:
            time.sleep(min(remote.retry.pause, 0.5))
            self.connected = None
            return
        for message, reply in remote.link.pull(list(places)).items():
            i = places.get(message)
            if i is None:
                continue
            site = self.awaited[i]
            site.sent = ""
            if reply.data is None:
                self._trouble(i, reply.problem)
                self.connected = None
            else:
                self._read(i, site, reply.data)

    def _read(self, i: int, site: _Awaited, data: bytes) -> None:
        """Use a reply, if it is one to this message and can be used. Whatever is wrong with it is its site's fault."""
        remote, name = self.remote, self.remote.names[i]
        seconds = time.monotonic() - site.at
        try:
            fields = read_reply(data, remote.roster[name])
            kind = self._checked(i, fields)
            replies: Any = fields.get("replies")
            wrong = fault(self.queries[i], replies, width=remote._sites[i].width) if kind == "replies" else None
            if wrong is not None:
                raise InputError(f"its reply cannot be used: {wrong}")
        except TableChanged:
            raise
        except InputError as problem:
            self._unusable(i, site, str(problem))
            return
        except Exception as problem:  # a reply that breaks the reader
            self._unusable(i, site, f"its reply cannot be read ({type(problem).__name__})")
            return
        if kind == "replies":
            replies = tuple(_in_plain_words(name, reply) for reply in replies)
        reason = printable(str(fields.get("reason", "")))
        if kind == "refused":
            raise InputError(f"site {name!r}: {reason}")
        if kind == "lost":
            self._lost(i, site, reason)
        elif kind == "failed":
            self._trouble(i, reason)
            site.pause_until = time.monotonic() + min(remote.retry.pause * 2**site.attempts, LONGEST_PAUSE)
        else:
            self.found[i] = replies
            del self.awaited[i]
            remote.run_log.reply(
                name, queries=query_counts(self.queries[i]), bytes_down=site.size, bytes_up=len(data),
                seconds=round(seconds, 3), sha256_up=hashlib.sha256(data).hexdigest(),
            )  # fmt: skip

    def _checked(self, i: int, fields: dict[str, Any]) -> str:
        """The kind of a reply, once it is known to be a reply of this site to this message, from the same table."""
        remote, name = self.remote, self.remote.names[i]
        kind = fields["kind"]
        if kind not in ("replies", "refused", "failed", "lost"):
            raise InputError(f"its reply is of the kind {printable(kind, 40)!r}; it was not used")
        expected = {"run": remote.log.run, "number": remote.number, "site": name}
        if kind in ("refused", "failed") and not fields["run"]:  # the site could not read the header of the message
            expected = {"site": name}
        if kind in ("replies", "lost"):
            expected["queries"] = self.hashes[i]
        for key, value in expected.items():
            if fields.get(key) != value:
                got = printable(str(fields.get(key)), 80)
                hint = ". Were the keys of two sites exchanged? Compare the fingerprints" if key == "site" else ""
                raise InputError(f"its reply is for {key} {got!r}, not {value!r}; it was not used{hint}")
        if kind == "replies":
            table = remote.log.tables.setdefault(name, fields["table"])
            if table != fields["table"]:
                raise _changed_table(name, remote.log.run)
        return kind

    def _lost(self, i: int, site: _Awaited, reason: str) -> None:
        if site.lost:
            self._unusable(i, site, f"it lost its state again: {reason}")
            return
        site.lost = True
        rounds = len(self.remote._sites[i].rounds)
        again = f"{rounds} rounds are done again there" if rounds else "no method under way keeps state there"
        self._trouble(i, f"{reason} Everything is sent to it again; {again}.")

    def _unusable(self, i: int, site: _Awaited, reason: str) -> None:
        site.unusable, reason = site.unusable + 1, printable(reason)
        self._trouble(i, reason)
        site.pause_until = time.monotonic() + self.remote.retry.pause
        if site.unusable >= UNUSABLE:
            raise NoReply(
                f"site {self.remote.names[i]!r} sent {site.unusable} replies to message {self.remote.number} that cannot be used: "
                f"{reason}. None of them was used. Run the same command again once the site is mended; the run continues."
            )

    def _trouble(self, i: int, what: str) -> None:
        what = printable(what)
        if what != self.awaited[i].trouble:
            self.remote.run_log.problem(self.remote.names[i], what)
        self.awaited[i].trouble = what


def _in_plain_words(name: str, reply: object) -> object:
    """A refusal without control characters, which names the site that it came from; other replies as they are."""
    if not isinstance(reply, Refusal):
        return reply
    reason = printable(reply.reason, MAX_REASON)
    return Refusal(reason if f"site {name!r}" in reason else f"site {name!r}: {reason}")


class TableChanged(InputError):
    """The table of a site is not the one that the run began with."""


def _changed_table(name: str, run: str) -> TableChanged:
    return TableChanged(
        f"the table of site {name!r} has changed since run {run} began. Restore it, or start a new run in another folder"
    )
