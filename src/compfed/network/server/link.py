"""The operator's link to the sites: registers their keys, holds a run at the SuperLink, carries bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric import ec

from compfed._utils import files as durable
from compfed.network.flower import LinkError, NodeState, Operator, Reply


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


class FlowerLink:
    """A link through a SuperLink of Flower."""

    def __init__(self, address: str, keys: Path, secret: bytes, roster: Mapping[str, ec.EllipticCurvePublicKey]):
        self.address, self._keys, self._roster = address, keys, roster
        self._operator = Operator(address, keys / "ca.crt", secret)
        self._nodes: dict[str, int] = {}

    def open(self) -> None:
        if self._operator.started:
            return
        with durable.locked(self._keys / "operator.lock"):  # of two operators each takes the run that it created
            self._nodes = self._operator.register(self._roster)
            self._operator.start()

    def connected(self) -> dict[str, str]:
        states = self._operator.nodes()
        found: dict[str, NodeState | None] = {name: states.get(node) for name, node in self._nodes.items()}
        if None in found.values():
            raise LinkError("the SuperLink has forgotten the keys of the sites")
        return {name: state.since for name, state in found.items() if state is not None and state.online}

    def push(self, messages: Mapping[str, bytes], ttl: float) -> dict[str, str]:
        names = {self._nodes[name]: name for name in messages}
        sent = self._operator.push({self._nodes[name]: data for name, data in messages.items()}, ttl)
        return {names[node]: message for node, message in sent.items()}

    def pull(self, ids: Collection[str]) -> dict[str, Reply]:
        return self._operator.pull(ids)

    def reset(self) -> None:
        self._operator.finish()

    def close(self) -> None:
        self._operator.close()
