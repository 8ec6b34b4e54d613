"""A federation whose sites live in other processes: bytes through pipes, and nothing else. For tests only."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from compfed.errors import InputError
from compfed.federation import Refusal, Request
from compfed.federation.accounting import Communication
from compfed.federation.adding import InDoubles
from compfed.federation.codec import from_bytes, pack, to_bytes, unpack
from compfed.federation.enrolment import Agreement, Enrolment
from compfed.federation.query import Weighted
from compfed.federation.server.exchange import Carried, MessageExchange
from compfed.federation.server.program import Summed
from compfed.federation.site.site import Site


def _serve(pipe: Any, make_site: Callable[[int], Site], index: int, accepts: Sequence[str]) -> None:
    """A site's process: make the rows here, enrol, then reply until an empty message comes."""
    site, cached = make_site(index), dict[str, Any]()
    pipe.send_bytes(to_bytes(pack((site.name, site.enrol()))))
    names, enrolments = unpack(from_bytes(pipe.recv_bytes()))
    agreement = Agreement(names, enrolments)
    while data := pipe.recv_bytes():
        try:
            given = site.contributions(unpack(from_bytes(data), accepts, cached), agreement)
            parts = tuple(part.reason if isinstance(part, Refusal) else part for part in given)
            pipe.send_bytes(b"+" + to_bytes(pack(parts)))
        except InputError as error:
            pipe.send_bytes(b"-" + str(error).encode())


class Piped:
    """One process per site. `make_site` is called there: this process never has the rows."""

    schema, problems = None, ()

    def __init__(self, make_site: Callable[[int], Site], n: int, accepts: Sequence[str] = ()):
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        self.bytes_sent = 0
        self._known = set[str]()  # records that every site has received
        for i in range(n):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, make_site, i, accepts), daemon=True)
            process.start()
            self.pipes.append(mine)
            self.processes.append(process)
        enrolled = [unpack(from_bytes(pipe.recv_bytes())) for pipe in self.pipes]
        self.names: tuple[str, ...] = tuple(name for name, _ in enrolled)
        self.enrolments: tuple[Enrolment, ...] = tuple(enrolment for _, enrolment in enrolled)
        for pipe in self.pipes:
            pipe.send_bytes(to_bytes(pack((self.names, self.enrolments))))

    @cached_property
    def messages(self) -> MessageExchange:
        return MessageExchange(Agreement(self.names, self.enrolments), InDoubles(), self._carry)

    def exchange(self, requests: Sequence[Request]) -> tuple[Sequence[Summed], Communication]:
        return self.messages(requests)

    def _carry(self, messages: Mapping[int, tuple[Weighted, ...]]) -> Carried:
        for i, asked in messages.items():
            data = to_bytes(pack(asked, self._known))
            self.bytes_sent += len(data)
            self.pipes[i].send_bytes(data)
        if len(messages) == len(self.pipes):
            self._known |= self.messages.sent  # travelled with this message, and by their hash from now on
        replies = {i: self.pipes[i].recv_bytes() for i in messages}
        for data in replies.values():
            if data[:1] == b"-":
                raise InputError(data[1:].decode())
        found = {i: unpack(from_bytes(data[1:])) for i, data in replies.items()}
        return Carried({
            i: tuple(Refusal(part) if isinstance(part, str) else part for part in parts) for i, parts in found.items()
        })  # fmt: skip

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send_bytes(b"")
        for process in self.processes:
            process.join(timeout=20)

    def __enter__(self) -> Piped:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
