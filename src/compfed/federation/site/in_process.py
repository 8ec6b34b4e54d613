"""A federation whose sites are in this process: every message goes to them one by one.

Over it the server's loop is the reference engine, `simulation.run_plain`. `simulation.Simulated` is the same with compiled rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from compfed._utils.threads import available_cores, cores, map_in_order
from compfed.data import Sites
from compfed.data.encoding import numeric_schema
from compfed.errors import InputError
from compfed.federation.accounting import Communication
from compfed.federation.adding import Exactly, InDoubles
from compfed.federation.enrolment import Agreement, Enrolment, kept_columns
from compfed.federation.queries import Evaluate, HeldOut
from compfed.federation.query import Weighted
from compfed.federation.server.exchange import Carried, MessageExchange
from compfed.federation.server.program import Request, Summed
from compfed.federation.site.disclosure import DisclosurePolicy
from compfed.federation.site.rows import FileTable, Rows, room_for
from compfed.federation.site.site import Site
from compfed.losses.base import LinearModel
from compfed.schema import Schema


class InProcess:
    """Sites in this process, asked one after another, or side by side where that is faster.

    Parameters
    ----------
    sites : Sites or sequence of Site
    policy : DisclosurePolicy, optional
        The rules of every site: a rehearsal of a network. Without one there are none.
    exact : bool, default=False
        Add contributions exactly, with the bits of a network, rather than in double precision.

    Examples
    --------
    >>> import compfed as cf
    >>> from compfed.federation import Describe, InProcess, ask
    >>> federation = InProcess(cf.data.from_arrays([[[1.0], [2.0]], [[3.0]]], [[0, 1], [1]]))
    >>> (description,) = ask(federation, Describe())
    >>> description.rows.tolist()
    [2, 1]
    """

    problems: Sequence[Mapping[str, Any]] = ()

    def __init__(self, sites: Sites | Sequence[Site], policy: DisclosurePolicy | None = None, *, exact: bool = False):
        self.sites, self.exact = _listed(sites, policy), exact
        if not self.sites:
            raise InputError("a federation needs at least one site; got none.")
        if len(set(self.names)) < len(self.names):
            raise InputError(
                f"two sites of a federation have the same name: {', '.join(self.names)}. Give each its own."
            )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(site.name for site in self.sites)

    @property
    def schema(self) -> Schema | None:
        """The schema that the sites encoded their rows with; None without one."""
        return self.sites[0].rows.file.schema

    @property
    def walled(self) -> bool:
        """Whether it rehearses a network: with exact sums, or sites that have a policy."""
        return self.exact or any(site.policy is not None for site in self.sites)

    @property
    def enrolments(self) -> tuple[Enrolment, ...]:
        """The facts that the server knows site by site."""
        return self.messages.agreement.enrolments

    @cached_property
    def messages(self) -> MessageExchange:
        """How messages are exchanged with these sites, and what they cost."""
        agreement = Agreement(self.names, kept_columns([site.enrol() for site in self.sites]))
        return MessageExchange(agreement, Exactly() if self.exact else InDoubles(), self._carry)

    def exchange(self, requests: Sequence[Request]) -> tuple[Sequence[Summed], Communication]:
        return self.messages(requests)

    def _carry(self, messages: Mapping[int, tuple[Weighted, ...]]) -> Carried:
        agreement, adder = self.messages.agreement, self.messages.adder

        def answer(i: int) -> object:
            site, asked = self.sites[i], messages[i]
            site.guard.join(agreement)
            return adder.encode(asked, site.contributions(asked, agreement), agreement)

        side_by_side = sum(_work(self.sites[i], asked) for i, asked in messages.items()) > WORTH_A_THREAD
        with cores(available_cores() if side_by_side else 1):
            return Carried(dict(zip(messages, map_in_order(answer, list(messages)), strict=True)))


WORTH_A_THREAD = 2e7  # multiplications in a message


def _work(site: Site, asked: Sequence[Weighted]) -> float:
    """Multiplications that evaluations take at a site; 0 if a query needs more than NumPy, whose settings are a thread's own."""
    queries = [weighted.query for weighted in asked]
    evaluations = [query for query in queries if isinstance(query, (Evaluate, HeldOut))]
    if len(evaluations) < len(queries) or not all(isinstance(q.objective.loss, LinearModel) for q in evaluations):
        return -np.inf
    return float(sum(query.x.size for query in evaluations)) * len(site.rows.labels)


def _listed(sites: Any, policy: DisclosurePolicy | None) -> list[Site]:
    if isinstance(sites, Sequence) and all(isinstance(site, Site) for site in sites):
        return list(sites)
    table: Any = sites
    return sites_of(table, policy)


def sites_of(sites: Sites, policy: DisclosurePolicy | None = None) -> list[Site]:
    """One `Site` for each of the sites of a table."""
    if not isinstance(sites, Sites):
        raise InputError(
            f"sites must come from compfed.data (from_files, ...), or be a list of Site; got {type(sites).__name__}."
        )
    rows = zip(sites.features, sites.labels, sites.names, sites.ids, strict=True)
    none: Any = [None] * len(sites)
    weights, offsets, raw = sites.sample_weight or none, sites.offsets or none, sites.raw or none
    strata = sites.strata or none
    label: Any = sites.source.get("label")  # of files
    proposal = None
    if sites.schema is None and sites.raw is not None and sites.columns is not None and label is not None:
        proposal = numeric_schema(sites.columns, label if isinstance(label, str) else tuple(label))
    total, found = int(sites.sizes.sum()), []
    for i, (A, y, name, number) in enumerate(rows):
        mine = Rows(
            A, y, name=name, index=i, number=number, sample_weight=weights[i], columns=sites.columns, offset=offsets[i],
            strata=strata[i],
            room=room_for(len(y) / total), file=FileTable(raw[i], sites.schema, proposal),
        )  # fmt: skip
        found.append(Site(mine, policy=policy, limits=None))
    return found
