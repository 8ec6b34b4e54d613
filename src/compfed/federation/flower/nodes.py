"""Who is who: nodes of Flower come and go, sites are known by the index they register with."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from compfed.errors import InputError
from compfed.federation.flower.records import from_records, to_records
from compfed.tools.versions import versions


@dataclass(frozen=True)
class Patience:
    """Seconds and times."""

    timeout: float = 120.0  # until a message is sent again: Flower takes up to a minute to notice a lost process
    attempts: int = 20
    wait: float = 600.0  # for a site that is not connected, at first or later
    pause: float = 5.0  # between two looks for a site that is not connected
    poll: float = 0.2


class NoGrid(Exception):
    """The SuperLink took no message. It may be restarting."""

    def __init__(self, problem: Exception):
        super().__init__(f"the SuperLink took no message ({type(problem).__name__})")


def pulled(grid: Grid, messages: Sequence[Message], patience: Patience) -> Iterator[tuple[int, Message]]:
    """Send messages; every reply with the place of its message, as they come, until all are there or time is up.

    An error of Flower's own comes from the SuperLink's node id: what a reply belongs to is told by the message it replies to.
    """
    try:
        place = dict(zip(grid.push_messages(messages), range(len(messages)), strict=True))
    except Exception as problem:
        raise NoGrid(problem) from None
    end = time.monotonic() + patience.timeout
    while place:
        try:
            replies = list(grid.pull_messages(list(place)))
        except Exception:  # the SuperLink is busy or restarting: what is not pulled now is pulled later, or sent again
            replies = []
        for reply in replies:
            if (at := place.pop(reply.metadata.reply_to_message_id, None)) is not None:
                yield at, reply
        if not place or time.monotonic() >= end:
            return
        time.sleep(patience.poll)


class Nodes:
    """Which node is which site."""

    def __init__(self, grid: Grid, sites: Sequence[str] | int, patience: Patience):
        self.grid, self.patience = grid, patience
        self.names: list[str | None] = [None] * sites if isinstance(sites, int) else list(sites)
        if not self.names or len(set(self.names) - {None}) < len([name for name in self.names if name]):
            raise InputError(f"sites={sites!r}: give the names of the sites, each once, or how many there are.")
        self.node_of: dict[int, int] = {}
        self.strangers: dict[int, str] = {}  # nodes that did not register, and why

    def wait_for_all(self) -> tuple[str, ...]:
        """The names of all sites, once every one of them has registered."""
        end = time.monotonic() + self.patience.wait
        everyone = range(len(self.names))
        while missing := sorted(set(everyone) - set(self.of(everyone))):
            if time.monotonic() >= end:
                who = ", ".join(self.names[i] or f"number {i}" for i in missing)
                others = "".join(f" Node {node}: {why}." for node, why in self.strangers.items())
                raise InputError(
                    f"{len(missing)} of {len(self.names)} sites did not register in {self.patience.wait:g} s: {who}. "
                    f"Start them (compfed site --config ...) and try again.{others}"
                )
            time.sleep(min(self.patience.pause, 2.0))
        return tuple(str(name) for name in self.names)

    def of(self, sites: Sequence[int]) -> dict[int, int]:
        """The nodes of those sites that are connected."""
        try:
            online = set(self.grid.get_node_ids())
        except Exception:  # the SuperLink is busy or restarting: whoever was there is asked all the same
            return {site: self.node_of[site] for site in sites if site in self.node_of}
        self.node_of = {site: node for site, node in self.node_of.items() if node in online}
        if any(site not in self.node_of for site in sites):
            self._register(sorted(online - set(self.node_of.values())))
        return {site: self.node_of[site] for site in sites if site in self.node_of}

    def _register(self, nodes: Sequence[int]) -> None:
        """Ask unknown nodes who they are."""
        if not nodes:
            return
        ttl = max(2 * self.patience.timeout, 60.0)
        asked = [
            Message(to_records({"compfed": versions()["compfed"]}), node, MessageType.QUERY, ttl=ttl) for node in nodes
        ]
        self.strangers = dict.fromkeys(nodes, "it did not say who it is")
        try:
            replies = list(pulled(self.grid, asked, self.patience))
        except NoGrid:
            replies = []
        for place, reply in replies:
            node = nodes[place]
            if reply.has_error():
                self.strangers[node] = f"Flower says: {reply.error.reason or reply.error.code}"
                continue
            try:
                said, _ = from_records(reply.content)
            except InputError as problem:
                self.strangers[node] = str(problem)
                continue
            self._known(node, said.get("site"), str(said.get("name")))

    def _known(self, node: int, site: object, name: str) -> None:
        if type(site) is not int or not 0 <= site < len(self.names):
            raise InputError(
                f"a site called {name!r} registered as number {site}; this federation has numbers 0 to "
                f"{len(self.names) - 1}. Correct `index` in its site.toml."
            )
        if site in self.node_of and self.node_of[site] != node:
            raise InputError(
                f"two nodes registered as site number {site}: {self.names[site]!r} and {name!r}. Every site needs an "
                "`index` of its own in its site.toml."
            )
        if self.names[site] not in (None, name) or name in (other for i, other in enumerate(self.names) if i != site):
            raise InputError(
                f"site number {site} registered as {name!r}; this federation calls its sites "
                f"{', '.join(other or '?' for other in self.names)}. Correct `name` or `index` in its site.toml."
            )
        self.names[site], self.node_of[site] = name, node
        self.strangers.pop(node, None)
