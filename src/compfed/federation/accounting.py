"""Accounting: the messages and bytes that a network carries, by kind of query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
