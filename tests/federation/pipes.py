"""A federation whose sites live in other processes: bytes through pipes, and nothing else. For tests only."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compfed.errors import InputError
from compfed.federation import Query
from compfed.federation.codec import from_bytes, pack, to_bytes, unpack
from compfed.federation.site.site import Site


def _serve(pipe: Any, make_site: Callable[[int], Site], index: int, accepts: Sequence[str]) -> None:
    """A site's process: make the rows here, then reply until an empty message comes."""
    site, cached = make_site(index), dict[str, Any]()
    pipe.send_bytes(site.name.encode())
    while data := pipe.recv_bytes():
        try:
            replies = site.reply(unpack(from_bytes(data), accepts, cached))
            pipe.send_bytes(b"+" + to_bytes(pack(replies)))
        except InputError as error:
            pipe.send_bytes(b"-" + str(error).encode())


class Piped:
    """One process per site. `make_site` is called there: this process never has the rows."""

    def __init__(self, make_site: Callable[[int], Site], n: int, accepts: Sequence[str] = ()):
        context = multiprocessing.get_context("spawn")
        self.cached: set[str] = set()
        self.pipes, self.processes = [], []
        self.bytes_sent = 0
        for i in range(n):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, make_site, i, accepts), daemon=True)
            process.start()
            self.pipes.append(mine)
            self.processes.append(process)
        self.names = tuple(pipe.recv_bytes().decode() for pipe in self.pipes)

    def send(self, messages: Mapping[int, Sequence[Query]]) -> dict[int, tuple[Any, ...]]:
        for i, queries in messages.items():
            # records in `cached` travel as their hash; `cached` gains the others after this message
            data = to_bytes(pack(tuple(queries), self.cached))
            self.bytes_sent += len(data)
            self.pipes[i].send_bytes(data)
        replies = {i: self.pipes[i].recv_bytes() for i in messages}
        for data in replies.values():
            if data[:1] == b"-":
                raise InputError(data[1:].decode())
        return {i: unpack(from_bytes(data[1:])) for i, data in replies.items()}

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send_bytes(b"")
        for process in self.processes:
            process.join(timeout=20)

    def __enter__(self) -> Piped:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
