"""How a federation makes sums: one message to every site that is asked something, and what it cost.

Every federation exchanges messages in this way. They differ in how a message is carried to the sites, and in how contributions
are added (`federation.adding`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from compfed.errors import InputError
from compfed.federation.accounting import Communication, payload
from compfed.federation.adding import Adder
from compfed.federation.enrolment import Agreement
from compfed.federation.queries import QUERIES, LocalUpdate
from compfed.federation.query import LARGEST_LIFT, LIFT, Query, Refusal, Weighted, merged
from compfed.federation.server.program import Request, Summed

ONE_SITE = (
    "sums are masked, and {what} would show the server one site's part. Leave it out, or let every site set "
    "secure_sum = false in its site.toml."
)


class Carried(NamedTuple):
    """What the sites sent back, and the bytes that went to and came from an average site, where they were measured."""

    parts: Mapping[int, Any]  # by place
    bytes_down: float | None = None
    bytes_up: float | None = None


Carry = Callable[[Mapping[int, tuple[Weighted, ...]]], Carried]


@dataclass
class MessageExchange:
    """Exchanges messages with the sites of an agreement.

    Parameters
    ----------
    agreement : Agreement
    adder : Adder
    carry : callable
        Carries queries to sites, by place, and returns what each sent.
    masked : bool
        Whether only the words of all sites together mean anything.
    """

    agreement: Agreement
    adder: Adder
    carry: Carry
    masked: bool = False
    sent: set[str] = field(default_factory=set)  # hashes of the records that the sites have received
    numbers: float = 0.0  # that an average site released

    def __post_init__(self) -> None:
        self._lifts: dict[type, int] = {}

    def __call__(self, requests: Sequence[Request]) -> tuple[list[Summed], Communication]:
        """The sums of one message. Queries with a number that is too large for its field are repeated with larger ones.

        A round is not repeated. The larger fields of its first exchange serve the later ones.
        """
        found = [list[Any]([None] * len(request.queries)) for request in requests]
        costs = [Communication() for _ in requests]
        cost, left = Communication(), [list(range(len(request.queries))) for request in requests]
        self._lifts = {kind: lift for kind, lift in self._lifts.items() if kind is LocalUpdate}
        while any(left):
            now = [k for k, places in enumerate(left) if places]
            asked = [
                self._weighted(replace(requests[k], queries=tuple(requests[k].queries[j] for j in left[k])))
                for k in now
            ]
            sums, spent = self._message([requests[k] for k in now], asked)
            cost = cost.then(replace(_together(spent), rounds=1))
            rest = iter(sums)
            for k, one in zip(now, spent, strict=True):
                costs[k] = costs[k].then(replace(one, rounds=1))
                for j in left[k]:
                    found[k][j] = merged(requests[k].queries[j], found[k][j], next(rest))
                left[k] = [j for j in left[k] if _is_outside(requests[k].queries[j], found[k][j])]
            self._raise_lifts({type(requests[k].queries[j]) for k, places in enumerate(left) for j in places})
        self.numbers += cost.numbers
        return [Summed(sums, one) for sums, one in zip(found, costs, strict=True)], cost

    def _raise_lifts(self, kinds: set[type]) -> None:
        for kind in kinds:
            self._lifts[kind] = self._lifts.get(kind, 0) + LIFT
            if self._lifts[kind] > LARGEST_LIFT:
                raise InputError(f"{kind.__name__}: a site has a number that is not finite in its reply.")

    def _message(
        self, requests: Sequence[Request], asked: Sequence[tuple[Weighted, ...]]
    ) -> tuple[list[Any], list[Communication]]:
        """The sum of every query, one request after the other, and the cost of every request."""
        messages: dict[int, list[Weighted]] = {}
        sites = [self._sites(request) for request in requests]
        for request, queries, places in zip(requests, asked, sites, strict=True):
            if self.masked and len(places) < self.agreement.n:
                raise InputError(ONE_SITE.format(what="a query to some of the sites"))
            given = request.weighting is None and request.weights is not None
            for k, i in enumerate(places):
                mine = queries
                if given and request.weights is not None:
                    mine = tuple(replace(weighted, factor=float(request.weights[k])) for weighted in queries)
                messages.setdefault(i, []).extend(mine)
        # before it leaves: sites whose columns or classes differ are found here
        spent = [self._cost(request, queries) for request, queries in zip(requests, asked, strict=True)]
        parts, down, up = self.carry({i: tuple(queries) for i, queries in sorted(messages.items())})
        if down is not None and up is not None:
            spent = _measured(spent, down, up)
        flat = [weighted for queries in asked for weighted in queries]
        places = [one for one, queries in zip(sites, asked, strict=True) for _ in queries]
        return self.adder.sums(flat, places, parts, self.agreement), spent

    def _sites(self, request: Request) -> Sequence[int]:
        return range(self.agreement.n) if request.sites is None else request.sites

    def _weighted(self, request: Request) -> tuple[Weighted, ...]:
        """The queries of a request, with the weighting and the size of the fields."""
        for query in request.queries:
            if type(query) not in QUERIES:  # a closed list: a subclass is another query
                known = ", ".join(kind.__name__ for kind in QUERIES)
                raise InputError(f"{type(query).__name__} is not a query that sites know; they know {known}.")
        given = request.weighting is None and request.weights is not None
        if given and self.masked:
            raise InputError(ONE_SITE.format(what="a weight that the server chooses for a site"))
        return tuple(
            Weighted(query, "given" if given else request.weighting or query.own_weighting, self._lifts.get(type(query), 0))
            for query in request.queries
        )  # fmt: skip

    def cost(self, request: Request) -> Communication:
        """What a request would cost, whose numbers do not matter; the records in it count as sent."""
        return self._cost(request, self._weighted(request))

    def _cost(self, request: Request, queries: Sequence[Weighted]) -> Communication:
        """What the numbers of a request take in a message, for an average site."""
        share, cost = len(self._sites(request)) / self.agreement.n, Communication()
        for j, weighted in enumerate(queries):
            down = payload(weighted.query, self.sent) * share
            layout = weighted.layout(self.agreement)
            up = self.adder.bytes_of(layout) * share
            models = request.models if request.counts and j == 0 else 0
            kinds = {type(weighted.query).__name__: (request.models, down, up)}
            cost = cost.beside(Communication(0, down, up, models, kinds, layout.words * share))
        return cost


def _together(costs: Sequence[Communication]) -> Communication:
    total = Communication()
    for cost in costs:
        total = total.beside(cost)
    return total


def _measured(costs: Sequence[Communication], down: float, up: float) -> list[Communication]:
    """The costs with the bytes that were measured: names and framing belong to the requests in proportion to their numbers."""
    total = _together(costs)

    def part(cost: Communication, kind: str) -> Communication:
        share_down = cost.bytes_down / total.bytes_down if total.bytes_down else 1 / len(costs)
        share_up = cost.bytes_up / total.bytes_up if total.bytes_up else 1 / len(costs)
        framing = (down - total.bytes_down) * share_down, (up - total.bytes_up) * share_up
        return cost.beside(Communication(0, *framing, 0, {kind: (0, *framing)}))

    return [part(cost, "framing") for cost in costs]


def _is_outside(query: Query, summed: object) -> bool:
    """Whether a sum has to be asked for again, with larger fields."""
    return not isinstance(summed, Refusal) and query.outside(summed) is not None
