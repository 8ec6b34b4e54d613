"""Attacks of the operator of a network, who sends any bytes to any site and reads the words of every reply.

The sites are those of the tests of the network: a `SiteService` each, with its folder, its keys, its ledger and its masks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from network.memory_link import MemoryLink, key_of

from compfed.federation import Evaluate, Query, exact_sum
from compfed.federation.adding import MessageLayout, decode
from compfed.federation.enrolment import Agreement, Enrolment
from compfed.federation.query import Weighted
from compfed.federation.spec import FeatureScaling, ObjectiveSpec
from compfed.losses import Squared
from compfed.network.envelope import ENROL, Body, Header, message_bytes, query_hash, read_reply


class Refused(Exception):
    """A site sent a reason in place of words."""


class Operator:
    """An operator who keeps to the form of messages and to nothing else."""

    def __init__(self, paths: Sequence[Path], run: str = "run", names: Sequence[str] | None = None):
        self.link = MemoryLink(paths)
        self.run, self.names = run, tuple(self.link.paths if names is None else names)
        self.number, self.signed = 1, dict[str, bytes]()
        self.services = {name: self.link.service(name) for name in self.names}

    def _sent(self, name: str, header: Header, body: Body) -> dict[str, Any]:
        data = self.services[name].reply(message_bytes(header, body))
        fields = read_reply(data, key_of(self.link.paths[name]).public_key())
        if fields["kind"] not in ("enrolled", "words"):
            raise Refused(fields["reason"])
        self.signed.setdefault(name, data)
        return fields

    def enrol(self) -> tuple[Enrolment, ...]:
        """Message 1 to every site."""
        head = [Header(self.run, 1, 0, place, self.names, ENROL) for place in range(len(self.names))]
        fields = [self._sent(name, header, Body(())) for name, header in zip(self.names, head, strict=True)]
        self.enrolments = tuple(found["enrolment"] for found in fields)
        return self.enrolments

    @property
    def agreement(self) -> Agreement:
        return Agreement(self.names, self.enrolments)

    def words(
        self,
        asked: Sequence[Weighted] | Mapping[str, Sequence[Weighted]],
        number: int | None = None,
        last_sum: str = "",
    ) -> dict[str, np.ndarray]:
        """The words of every site; the same queries to all, or others to each."""
        self.number = self.number + 1 if number is None else number
        every = asked if isinstance(asked, Mapping) else dict.fromkeys(self.names, tuple(asked))
        enrolments = tuple(np.frombuffer(self.signed[name], np.uint8) for name in self.names)
        found = {}
        for name, queries in every.items():
            place, queries = self.names.index(name), tuple(queries)
            header = Header(self.run, self.number, self.number - 1, place, self.names, query_hash(queries), last_sum)
            found[name] = self._sent(name, header, Body(queries, (), enrolments))["words"]
        return found

    def totals(self, asked: Sequence[Weighted]) -> tuple[list[Any], int]:
        """The sum of every query, and how many numbers of the sites were out of range."""
        total = added(self.words(asked))
        outside = exact_sum.check_total(total, len(self.names))
        sites = [range(len(self.names))] * len(asked)
        return decode(MessageLayout(asked, self.agreement), total[exact_sum.FRAME :], sites), outside


def added(words: Mapping[str, np.ndarray]) -> np.ndarray:
    first, *rest = words.values()
    for more in rest:
        first = exact_sum.add(first, more)
    return first


def rows(query: Query, lift: int = 0) -> Weighted:
    return Weighted(query, "rows", lift)


# --- one site out of range ---


def left_out(operator: Operator, column: int, centre: float) -> list[tuple[int, float]]:
    """Gradients of the squared loss of one column in ever smaller units: numbers of single sites leave the range one by one.

    At x = 0 the gradient is -sum_l y_l (a_lj - centre) / unit. For every unit: whether a number is out of range at some site, and
    the sum times the unit. Where that is not the sum of all sites, it must not be the sum of those that are left.
    """
    found = []
    for unit in 2.0 ** -np.arange(48.0, 60.0, 0.5):
        scaling = FeatureScaling(np.array([centre]), np.array([unit]), intercept=False)
        objective = ObjectiveSpec(Squared(), scaling, columns=np.array([column]))
        (reply,), _ = operator.totals([rows(Evaluate(objective, np.zeros((1, 1))))])
        found.append((int(np.isnan(reply.value[0])), float(reply.gradient[0, 0]) * unit))
    return found


def another_query(query: Evaluate) -> Evaluate:
    """A query that differs in the last digit of one number."""
    return replace(query, x=np.nextafter(query.x, 1.0))
