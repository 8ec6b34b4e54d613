"""What a message costs. It is counted where a message is made (`federation.server.exchange`), and read everywhere else.

In one process it is the numbers of the queries (`payload`) and of the contributions: 8 bytes each, or 16 where they are added
exactly, as over a network. Over a network it is the bytes of the message bodies, before gRPC and TLS (`network/server.py`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import numpy as np

from compfed._utils.html_table import html_table
from compfed.federation.codec import digest


def payload(value: object, cached: set[str]) -> int:
    """Bytes of the numbers in a query. Records in `cached` cost nothing; `cached` gains the others.

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
        Messages to the sites, each with its replies. The enrolment that opens a run over a network is not one of them.
    bytes_down, bytes_up : float
        Bytes sent to and by a site. Over a network those of the message bodies, the enrolment's included; in one process
        those of the numbers.
    models : int
        Models whose queries were in the messages.
    by_query : mapping of str to (models, bytes down, bytes up)
        The same by kind of query.
    numbers : float
        Numbers in the replies of a site (`federation.numbers`).

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
    numbers: float = 0

    def _repr_html_(self) -> str:
        rows = [
            [kind, f"{models}", f"{down / 1e3:.1f}", f"{up / 1e3:.1f}"]
            for kind, (models, down, up) in self.by_query.items()
        ]
        rows.append(["all", f"{self.models}", f"{self.bytes_down / 1e3:.1f}", f"{self.bytes_up / 1e3:.1f}"])
        caption = f"{self.rounds} messages to each site"
        return html_table(caption, rows, ["query", "models", "kB to a site", "kB from a site"])

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
        return Communication(self.rounds, self.bytes_down / n, self.bytes_up / n, self.models, kinds, self.numbers / n)

    def times(self, n: int) -> Communication:
        """The cost of n such requests, in messages that others count."""
        kinds = {kind: (n * models, n * down, n * up) for kind, (models, down, up) in self.by_query.items() if n}
        return Communication(
            self.rounds * n, n * self.bytes_down, n * self.bytes_up, n * self.models, kinds, n * self.numbers
        )

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
            self.numbers + other.numbers,
        )
