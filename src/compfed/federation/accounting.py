"""Where bytes and messages are counted: `payload` is the bytes of the numbers in a query or a reply.

What rounds will cost is predicted from the shapes of their messages (`algorithms.costs`).
Bytes on the wire are counted in `network/server.py`: the size of each answered message and of its reply, before gRPC and TLS.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import numpy as np

from compfed.federation.codec import digest


def payload(value: object, cached: set[str]) -> int:
    """Bytes of the numbers in a query or a reply. Records in `cached` cost nothing; `cached` gains the others.

    Numbers and arrays count; names, labels of a message and its framing do not.
    """
    if value is None or isinstance(value, (str, int)):
        return 0
    if isinstance(value, float):
        return 8
    if isinstance(value, (np.ndarray, jax.Array)):
        return value.nbytes
    if isinstance(value, (tuple, list)):
        return sum(payload(item, cached) for item in value)
    if getattr(value, "sent_once", False):
        if (name := digest(value)) in cached:
            return 0
        cached.add(name)
    if (names := _field_names(type(value))) is not None:
        return sum(payload(getattr(value, name), cached) for name in names)
    return sum(payload(item, cached) for item in value.values()) if isinstance(value, Mapping) else 0


@functools.cache
def _field_names(cls: type) -> tuple[str, ...] | None:
    """The fields of a dataclass; None of another class."""
    return tuple(f.name for f in dataclasses.fields(cls)) if dataclasses.is_dataclass(cls) else None


@dataclass(frozen=True)
class Communication:
    """Messages and bytes of a computation, per site and on average over the sites.

    Parameters
    ----------
    rounds : int
        Messages to the sites, each with its replies.
    bytes_down, bytes_up : float
        Bytes of the numbers sent to and by a site; names and framing are not counted.
    models : int
        Models whose queries were in the messages.
    by_query : mapping of str to (models, bytes down, bytes up)
        The same by kind of query.

    Examples
    --------
    >>> import compfed as cf
    >>> first = cf.federation.Communication(rounds=3, bytes_up=80.0)
    >>> first.then(first).rounds, first.beside(first).rounds
    (6, 3)
    """

    rounds: int = 0
    bytes_down: float = 0.0
    bytes_up: float = 0.0
    models: int = 0
    by_query: Mapping[str, tuple[int, float, float]] = field(default_factory=dict)  # models, bytes down, bytes up

    @property
    def models_per_message(self) -> float:
        """How many models shared a message, on average."""
        return self.models / self.rounds if self.rounds else 0.0

    def then(self, later: Communication) -> Communication:
        """The cost of this, followed by `later`."""
        return self._with(later, self.rounds + later.rounds)

    def beside(self, other: Communication) -> Communication:
        """The cost of this and `other` in the same messages."""
        return self._with(other, max(self.rounds, other.rounds))

    def over(self, n: int) -> Communication:
        """The cost of one of n sites, averaged over all of them."""
        kinds = {kind: (models, down / n, up / n) for kind, (models, down, up) in self.by_query.items()}
        return Communication(self.rounds, self.bytes_down / n, self.bytes_up / n, self.models, kinds)

    def _with(self, other: Communication, rounds: int) -> Communication:
        kinds = {**self.by_query}
        for kind, more in other.by_query.items():
            had = kinds.get(kind, (0, 0.0, 0.0))
            kinds[kind] = (had[0] + more[0], had[1] + more[1], had[2] + more[2])
        return Communication(
            rounds,
            self.bytes_down + other.bytes_down,
            self.bytes_up + other.bytes_up,
            self.models + other.models,
            kinds,
        )


def query_cost(kind: str, down: float, up: float, models: int = 1, counts: bool = True) -> Communication:
    """The cost of a query about so many models; `counts` unless it travels with another query about the same models."""
    return Communication(0, down, up, models if counts else 0, {kind: (models, down, up)})
