"""A federation whose sites are behind Flower. Messages are numbered, repeated until answered, and never half done.

A message is committed when every site it went to has answered it, with answers to exactly these questions; then, and not
before, the next one leaves. Sites answer a message that comes again identically, so repeating one is harmless.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from compfed.errors import InputError
from compfed.federation.answers import fault
from compfed.federation.flower.journal import Journal, Replies
from compfed.federation.flower.nodes import Nodes, NoGrid, Patience, pulled
from compfed.federation.flower.records import asked, from_records, to_records
from compfed.federation.messages import Packed, digest, pack, payload, to_bytes, unpack
from compfed.federation.questions import Question, Result, Round


class Unanswered(InputError):
    """A site gave no usable answer, however often it was asked."""


@dataclass
class _Known:
    """What the server knows of a site's memory of the run."""

    told: set[str]
    after: int = 0  # the last message it answered
    rounds: list[Question] = field(
        default_factory=list
    )  # the rounds it took part in whose method remembers something at a site


class Remote:
    """Sites behind Flower's grid, in the order of the index each registered with.

    - `sites`: their names, in order, or how many there are.
    - `folder`: where the journal of the run is; a run that was killed goes on from there.
    - `patience`: seconds until a message is repeated, how often, and how long to wait for sites to come.
    """

    def __init__(
        self,
        grid: Grid,
        sites: Sequence[str] | int,
        *,
        folder: str | Path | None = None,
        run: str | None = None,
        patience: Patience | None = None,
    ):
        self.grid, self.patience = grid, patience or Patience()
        self.nodes = Nodes(grid, sites, self.patience)
        self.names = self.nodes.wait_for_all()
        self.journal = Journal(None if folder is None else Path(folder), run, self.names)
        self.told: set[str] = set()  # for counting bytes; what each site knows is in `_known`
        self.numbers = itertools.count()  # of its jobs: the same in a run that goes on in another process
        self.number = 0
        self._known: defaultdict[int, _Known] = defaultdict(lambda: _Known(set()))
        self._remembers: dict[str, bool] = {}

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: Any) -> None:
        """Sites keep what they know of the run, for a server that comes back to it."""

    @property
    def events(self) -> list[dict[str, Any]]:
        """Everything that did not go as it should."""
        return self.journal.events

    def send(self, messages: Mapping[int, Sequence[Question]]) -> Replies:
        self.number += 1
        questions = {i: tuple(asks) for i, asks in messages.items()}
        hashes = {i: asked(asks) for i, asks in questions.items()}
        replies = self.journal.read(self.number, hashes)
        if replies is None:
            replies = _Exchange(self, questions).answered()
            self.journal.write(self.number, hashes, replies)
        for i, asks in questions.items():
            self._learnt(i, asks)
        return replies

    def _learnt(self, site: int, questions: Sequence[Question]) -> None:
        known = self._known[site]
        payload(tuple(questions), known.told)
        known.after = self.number
        known.rounds += [q for q in questions if isinstance(q, (Round, Result)) and self._kept_at_sites(q)]

    def _kept_at_sites(self, question: Round | Result) -> bool:
        """Does the method of a round remember anything at a site?"""
        job = question.job
        if (name := digest(job)) not in self._remembers:
            shape = jax.eval_shape(lambda x: job.algorithm.init(x)[1], jax.ShapeDtypeStruct(job.x0.shape, job.x0.dtype))
            self._remembers[name] = bool(jax.tree.leaves(shape))
        return self._remembers[name]

    def contents(self, site: int, questions: tuple[Question, ...], forgot: bool) -> tuple[dict[str, Any], Packed]:
        """A message to a site; to one that forgot the run, with all it has to know again."""
        known = self._known[site]
        told, after, again = (set(), 0, tuple(known.rounds)) if forgot else (known.told, known.after, ())
        return {"run": self.journal.run, "number": self.number, "after": after}, pack((again, questions), told)

    def tell_of_loss(self, site: int, reason: str) -> None:
        rounds = len(self._known[site].rounds)
        healed = f"{rounds} rounds are done again there" if rounds else "no method under way remembers anything there"
        self.journal.event(self.number, self.names[site], f"{reason} It is told everything again; {healed}.")


class _Exchange:
    """One message to each of some sites, repeated until all of them have answered it."""

    def __init__(self, remote: Remote, questions: dict[int, tuple[Question, ...]]):
        self.remote, self.questions = remote, questions
        self.replies: Replies = {}
        self.forgot: set[int] = set()
        self.trouble: dict[int, str] = {}  # what was last wrong with each

    @property
    def waiting(self) -> list[int]:
        return [i for i in self.questions if i not in self.replies]

    def answered(self) -> Replies:
        """The replies of all. A site that is not connected is waited for: only what was sent counts as an attempt."""
        remote, patience = self.remote, self.remote.patience
        attempts, patient_until, told = 0, time.monotonic() + patience.wait, {}
        while attempts < patience.attempts:
            sent = self._attempt()
            if not self.waiting:
                return {i: self.replies[i] for i in self.questions}
            if sent or time.monotonic() >= patient_until:
                attempts += 1
            if sent:
                patient_until = time.monotonic() + patience.wait
            for i in self.waiting:
                if i in self.trouble and (sent or told.get(i) != self.trouble[i]):
                    remote.journal.event(remote.number, remote.names[i], self.trouble[i])
            told = dict(self.trouble)
        said = "; ".join(f"site {remote.names[i]!r}: {self.trouble.get(i, 'lost its memory')}" for i in self.waiting)
        raise Unanswered(
            f"message {remote.number} of run {remote.journal.run} was sent {patience.attempts} times and is not "
            f"answered by everyone: {said}. No answer to it was used. Started again in the same folder, the run goes on "
            "from here."
        )

    def _attempt(self) -> bool:
        """Ask whoever has not answered, and wait for them; was there anybody to ask?"""
        remote, messages, sent = self.remote, [], []
        nodes = remote.nodes.of(self.waiting)
        for i in self.waiting:
            self.trouble[i] = "no reply in time" if i in nodes else "not connected"
            if i in nodes:
                envelope, packed = remote.contents(i, self.questions[i], i in self.forgot)
                sent.append((i, len(to_bytes(packed))))
                ttl = max(2 * remote.patience.timeout, 60.0)
                messages.append(Message(to_records(envelope, packed), nodes[i], MessageType.TRAIN, ttl=ttl))
        if not messages:
            time.sleep(remote.patience.pause)
            return False
        began = time.monotonic()
        try:
            for place, reply in pulled(remote.grid, messages, remote.patience):
                site, size = sent[place]
                if reply.has_error():
                    self.trouble[site] = f"Flower says: {reply.error.reason or f'error {reply.error.code}'}"
                else:
                    self._heard(site, reply.content, size, time.monotonic() - began)
        except NoGrid as problem:
            self.trouble.update(dict.fromkeys((site for site, _ in sent), str(problem)))
            time.sleep(remote.patience.pause)
        return True

    def _heard(self, site: int, records: RecordDict, down: int, seconds: float) -> None:
        """Use a reply, if it is one to this message."""
        remote, name = self.remote, self.remote.names[site]
        try:
            said, packed = from_records(records)
            expected = {"run": remote.journal.run, "number": remote.number, "site": site}
            for key, value in expected.items():
                if said.get(key) != value:
                    raise InputError(f"its reply is to {key} {said.get(key)!r}, not {value!r}; it was not used")
            answers = None if packed is None else unpack(packed)
            wrong = None if packed is None else fault(self.questions[site], answers)
            if wrong is not None:
                raise InputError(f"its answer cannot be used: {wrong}")
        except (InputError, TypeError, KeyError, IndexError, AttributeError) as problem:
            self.trouble[site] = str(problem)
            return
        if said.get("kind") == "refused":
            raise InputError(str(said.get("reason")))
        if said.get("kind") == "lost" and site not in self.forgot:
            self.forgot.add(site)
            self.trouble.pop(site, None)
            remote.tell_of_loss(site, str(said.get("reason")))
        elif packed is None:
            self.trouble[site] = str(said.get("reason"))
        else:
            self.replies[site] = answers  # pyright: ignore[reportArgumentType]  # `fault` looked at it
            remote.journal.line(
                number=remote.number,
                site=name,
                questions=[type(question).__name__ for question in self.questions[site]],
                bytes_down=down,
                bytes_up=len(data := to_bytes(packed)),
                seconds=round(seconds, 3),
                sha256_up=hashlib.sha256(data).hexdigest(),
            )
