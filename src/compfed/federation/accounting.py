"""Accounting: the messages and bytes that a network carries, by kind of query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Communication:
    """Rounds (a message to the sites and their replies) and bytes, per site and on average over the sites.

    Bytes are those of the numbers sent; names and framing are not counted. `models` counts the models whose queries
    were in the messages: models / rounds is how many shared one on average.
    """

    rounds: int = 0
    bytes_down: float = 0.0
    bytes_up: float = 0.0
    models: int = 0
    by_query: Mapping[str, tuple[int, float, float]] = field(default_factory=dict)  # models, bytes down, bytes up

    @property
    def models_per_message(self) -> float:
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
