"""Exact sums at the server: words of 128 bits from every site are added as whole numbers, and rounded once.

The order of the sites does not matter, nor whether the words are masked: the same bits in one process and over a network. A
refusal ends the run, because a sum without one site would not be the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import is_
from typing import Any

import numpy as np

from compfed.errors import InputError
from compfed.federation import exact_sum
from compfed.federation.accounting import Communication, payload, query_cost
from compfed.federation.contributions import WORD_BYTES, decode, merged, outside_models, word_count
from compfed.federation.enrolment import Agreement, Enrolment
from compfed.federation.queries import (
    LARGEST_LIFT,
    LIFT,
    LocalUpdate,
    Moments,
    Query,
    Weighted,
    Weighting,
)
from compfed.federation.server.program import Request, Sums

Send = Callable[[Mapping[int, tuple[Weighted, ...]]], Mapping[int, np.ndarray]]
ONE_SITE = (
    "sums are masked, and {what} would show the server one site's part. Leave it out, or let every site set "
    "secure_sum = false in its site.toml."
)


class ExactSums:
    """Adds the contributions of all sites.

    Parameters
    ----------
    names : sequence of str
    enrolments : sequence of Enrolment
    send : callable
        Carries queries to sites, by place, and returns the words of each.
    cached : set of str
        Hashes of the records that the sites have received, for the count of bytes.
    masked : bool
        Whether only the words of all sites together mean anything.
    """

    def __init__(
        self, names: Sequence[str], enrolments: Sequence[Enrolment], send: Send, cached: set[str], masked: bool = False
    ):
        self.agreement = Agreement(tuple(names), tuple(enrolments))
        self.send, self.cached, self.masked = send, cached, masked
        self._lifts: dict[type, int] = {}

    def exchange(self, requests: Sequence[Request]) -> tuple[Sums, Communication]:
        """One message to every site; queries with a number that is too large for its field are repeated with larger ones.

        A round is not repeated. The larger fields of its first exchange serve the later ones.
        """
        cost, found = Communication(), [list[Any]([None] * len(request.queries)) for request in requests]
        self._lifts = {kind: lift for kind, lift in self._lifts.items() if kind is LocalUpdate}
        left = [list(range(len(request.queries))) for request in requests]  # which queries have no sum yet
        while any(left):
            now = [
                replace(request, queries=tuple(request.queries[j] for j in places))
                for request, places in zip(requests, left, strict=True)
                if places
            ]
            asked = [self._weighted(request) for request in now]
            messages = self._messages(now, asked)
            cost = cost.then(self._cost(now, asked))  # before it leaves: sites whose classes differ are found here
            words = self.send(messages)
            sums = iter(self._decode(now, asked, self._add(messages, words)))
            for have, places in zip(found, left, strict=True):
                for j, summed in zip(places, next(sums) if places else (), strict=True):
                    have[j] = summed if have[j] is None else merged(have[j], summed)
                places[:] = [j for j in places if outside_models(have[j]) is not None]
            for kind in {type(requests[k].queries[j]) for k, places in enumerate(left) for j in places}:
                self._lifts[kind] = self._lifts.get(kind, 0) + LIFT
                if self._lifts[kind] > LARGEST_LIFT:
                    raise InputError(f"{kind.__name__}: a site has a number that is not finite in its reply.")
        return [tuple(sums) for sums in found], cost

    def _weighted(self, request: Request, k: int = 0) -> tuple[Weighted, ...]:
        """The queries of a request; with given weights, as they go to the k-th of its sites."""
        given = request.weighting is None and request.weights is not None
        if given and self.masked:
            raise InputError(ONE_SITE.format(what="a weight that the server chooses for a site"))
        factor = float(request.weights[k]) if given and request.weights is not None else 1.0
        return tuple(
            Weighted(
                query, "given" if given else request.weighting or _own_weighting(query), self._lifts.get(type(query), 0), factor
            )
            for query in request.queries
        )  # fmt: skip

    def _messages(
        self, requests: Sequence[Request], asked: Sequence[tuple[Weighted, ...]]
    ) -> dict[int, tuple[Weighted, ...]]:
        messages: dict[int, list[Weighted]] = {}
        for request, queries in zip(requests, asked, strict=True):
            if self.masked and request.sites is not None and len(request.sites) < self.agreement.n:
                raise InputError(ONE_SITE.format(what="a query to some of the sites"))
            given = any(query.weighting == "given" for query in queries)
            for k, i in enumerate(self._sites(request)):
                messages.setdefault(i, []).extend(self._weighted(request, k) if given else queries)
        return {i: tuple(queries) for i, queries in sorted(messages.items())}

    def _sites(self, request: Request) -> Sequence[int]:
        return range(self.agreement.n) if request.sites is None else request.sites

    def _add(
        self, messages: Mapping[int, tuple[Weighted, ...]], words: Mapping[int, np.ndarray]
    ) -> dict[int, np.ndarray]:
        """The sum where all sites received the same queries, under -1; otherwise the words of each site."""
        first = next(iter(messages.values()))
        everyone = len(messages) == self.agreement.n
        if everyone and all(len(each) == len(first) and all(map(is_, each, first)) for each in messages.values()):
            total = reduce(exact_sum.add, [words[i] for i in messages])
            exact_sum.check_total(total, len(messages))
            return {-1: total[exact_sum.FRAME :]}
        for i in messages:
            exact_sum.check_total(words[i], 1)
        return {i: words[i][exact_sum.FRAME :] for i in messages}

    def _decode(
        self,
        requests: Sequence[Request],
        asked: Sequence[tuple[Weighted, ...]],
        totals: dict[int, np.ndarray],
    ) -> Sums:
        flat = [weighted for each in asked for weighted in each]
        sites = [self._sites(request) for request, each in zip(requests, asked, strict=True) for _ in each]
        words = totals[-1] if -1 in totals else self._add_slices(flat, sites, totals)
        results = iter(decode(flat, words, self.agreement, sites))
        return [tuple(next(results) for _ in each) for each in asked]

    def _add_slices(
        self, flat: Sequence[Weighted], sites: Sequence[Sequence[int]], totals: dict[int, np.ndarray]
    ) -> np.ndarray:
        """The sums of queries that went to different sites: each over the words of its own."""
        at, sums = dict.fromkeys(totals, 0), []
        for weighted, places in zip(flat, sites, strict=True):
            count = word_count(weighted, self.agreement)
            sums.append(reduce(exact_sum.add, [totals[i][at[i] : at[i] + count] for i in places]))
            for i in places:
                at[i] += count
        return np.concatenate(sums)

    def _cost(self, requests: Sequence[Request], asked: Sequence[tuple[Weighted, ...]]) -> Communication:
        n, cost = self.agreement.n, Communication(rounds=1)
        for request, queries in zip(requests, asked, strict=True):
            share = 1.0 if request.sites is None else len(request.sites) / n
            for j, weighted in enumerate(queries):
                down = payload(weighted.query, self.cached) * share
                up = WORD_BYTES * word_count(weighted, self.agreement) * share
                counted = request.counts and j == 0
                cost = cost.beside(query_cost(type(weighted.query).__name__, down, up, request.models, counted))
        return cost


def _own_weighting(query: Query) -> Weighting:
    """Without a weighting, moments are weighted by rows, and other replies count once."""
    return "rows" if isinstance(query, Moments) else "once"
