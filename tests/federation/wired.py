"""A federation in this process whose messages are bytes: each is written, read and checked as over a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compfed.federation import Query, Site
from compfed.federation.codec import REPLY_RECORDS, from_bytes, pack, to_bytes, unpack
from compfed.federation.limits import QueryLimits
from compfed.federation.server.replies import fault


class Wired:
    """Sites with the limits of a network. A reply that the checks find at fault is an error of the test."""

    def __init__(self, sites: Sequence[Site], accepts: Sequence[str] = ()):
        self.sites, self.accepts = list(sites), accepts
        self.names = tuple(site.name for site in sites)
        self.cached: set[str] = set()
        self.read: list[dict[str, Any]] = [{} for _ in sites]
        self.sent: list[tuple[tuple[Query, ...], bytes, bytes]] = []  # queries, their bytes, the reply's bytes

    def send(self, messages: Mapping[int, Sequence[Query]]) -> dict[int, tuple[Any, ...]]:
        replies = {}
        for i, queries in messages.items():
            down = to_bytes(pack(tuple(queries)))
            up = to_bytes(pack(self.sites[i].reply(unpack(from_bytes(down), self.accepts, self.read[i]))))
            replies[i] = unpack(from_bytes(up), records=REPLY_RECORDS)
            assert fault(queries, replies[i]) is None
            self.sent.append((tuple(queries), down, up))
        return replies


Rows = Sequence[tuple[Any, np.ndarray]]  # features and labels of each site


def sites_of(rows: Rows, limits: QueryLimits | None = None) -> list[Site]:
    return [Site(A, y, name=f"site{i}", index=i, limits=limits) for i, (A, y) in enumerate(rows)]


def wired(rows: Rows, accepts: Sequence[str] = (), limits: QueryLimits | None = None) -> Wired:
    """Sites with the limits of a network, asked through bytes."""
    return Wired(sites_of(rows, QueryLimits() if limits is None else limits), accepts)


def table(kind: str, seed: int = 0, sites: int = 2) -> Rows:
    """Rows and labels of a kind: numbers, words, three classes, counts, amounts, two outcomes."""
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
    }
    return list(zip(A, labels[kind], strict=True))
