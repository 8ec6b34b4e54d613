"""Federations in this process and tables to fill them with. `Wired` writes, reads and checks every message as over a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compfed.federation import InProcess, Query, Rows, Site, exact_sum, secure_sum
from compfed.federation.codec import REPLY_RECORDS, from_bytes, pack, to_bytes, unpack
from compfed.federation.limits import QueryLimits
from compfed.federation.query import Weighted
from compfed.federation.server.arrivals import words_fault
from compfed.federation.server.exchange import Carried


class Wired(InProcess):
    """Sites whose queries and words travel as bytes. Words that the server's checks refuse are an error of the test."""

    def __init__(self, sites: Sequence[Site], accepts: Sequence[str] = ()):
        super().__init__(sites, exact=True)
        self.accepts = accepts
        self.read: list[dict[str, Any]] = [{} for _ in sites]
        self.sent: list[tuple[tuple[Query, ...], bytes, bytes]] = []  # queries, their bytes, the reply's bytes

    def _carry(self, messages: Mapping[int, tuple[Weighted, ...]]) -> Carried:
        words, agreement = {}, self.messages.agreement
        for i, asked in messages.items():
            down = to_bytes(pack(asked))
            read = unpack(from_bytes(down), self.accepts, self.read[i])
            self.sites[i].guard.join(agreement)
            found = self.messages.adder.encode(read, self.sites[i].contributions(read, agreement), agreement)
            up = to_bytes(pack(found))
            words[i] = unpack(from_bytes(up), records=REPLY_RECORDS)
            assert words_fault(words[i], exact_sum.FRAME + sum(w.layout(agreement).words for w in asked)) is None
            self.sent.append((tuple(weighted.query for weighted in asked), down, up))
        return Carried(words)


class Masked(InProcess):
    """Sites in this process whose words are masked, as over a network."""

    def __init__(self, sites: Any):
        super().__init__(sites, exact=True)
        private = [bytes([i + 1]) * 32 for i in range(len(self.sites))]
        public = [secure_sum.public_key(key) for key in private]
        self.masks = [secure_sum.Masks.agree(key, public, i, bytes(32)) for i, key in enumerate(private)]
        self.number, self.words = 0, list[dict[int, np.ndarray]]()
        self.messages.masked = True

    def _carry(self, messages: Mapping[int, tuple[Weighted, ...]]) -> Carried:
        self.number += 1
        plain = super()._carry(messages).parts
        masked = {i: exact_sum.add(w, self.masks[i].mask(self.number, "q", "s", len(w))) for i, w in plain.items()}
        assert not any(np.array_equal(plain[i], masked[i]) for i in plain)
        self.words.append(masked)
        return Carried(masked)


Table = Sequence[tuple[Any, np.ndarray]]  # features and labels of each site


def sites_of(rows: Table, limits: QueryLimits | None = None) -> list[Site]:
    return [Site(Rows(A, y, name=f"site{i}", index=i), limits=limits) for i, (A, y) in enumerate(rows)]


def replies(site: Site, *queries: Query) -> tuple[Any, ...]:
    """What a site replies, for a test to look into."""
    return site.reply(queries)


def wired(rows: Table, accepts: Sequence[str] = (), limits: QueryLimits | None = None) -> Wired:
    """Sites with the limits of a network, asked through bytes."""
    return Wired(sites_of(rows, QueryLimits() if limits is None else limits), accepts)


def table(kind: str, seed: int = 0, sites: int = 2) -> Table:
    """Rows and labels of a kind: numbers, words, three classes, counts, amounts, two outcomes, times and events."""
    rng = np.random.default_rng(seed)
    A = [rng.standard_normal((12 + 3 * i, 4)) * [1.0, 0.1, 10.0, 3.0] + i for i in range(sites)]
    z = [a @ [1.0, 3.0, 0.0, -0.2] + rng.standard_normal(len(a)) for a in A]
    labels: dict[str, list[np.ndarray]] = {
        "numbers": z,
        "words": [np.where(v > np.median(v), "well", "ill") for v in z],
        "three": [np.digitize(v, np.quantile(v, [0.3, 0.6])) for v in z],
        "counts": [np.rint(np.exp(0.2 * v).clip(0, 9)) for v in z],
        "amounts": [np.exp(0.2 * v).clip(0.1, 9) for v in z],
        "two": [np.c_[v, -v + 1] for v in z],
        "survival": [np.c_[np.rint(9 * np.exp(-0.2 * v).clip(0.1, 9)), np.arange(len(v)) % 4 > 0] for v in z],
    }
    return list(zip(A, labels[kind], strict=True))
