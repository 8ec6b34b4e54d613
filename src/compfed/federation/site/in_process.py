"""A federation whose sites are in this process: every message goes to them one by one.

Over it the server loop is the `reference` engine. `engines.Simulated` is the same with its rounds compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from compfed.data import Sites
from compfed.errors import InputError
from compfed.federation.accounting import Communication
from compfed.federation.enrolment import Enrolment
from compfed.federation.queries import Query, Replies, Weighted
from compfed.federation.server.exact import ExactSums
from compfed.federation.server.program import Request, Sums
from compfed.federation.site.disclosure import DisclosurePolicy
from compfed.federation.site.site import Site, room_for
from compfed.schema import Schema


class InProcess:
    """Sites in this process, asked one after another.

    Parameters
    ----------
    sites : Sites or sequence of Site
    refuses : DisclosurePolicy, optional
        The rules of every site: a rehearsal of a network. Without one there are none.
    exact : bool, default=False
        Add replies exactly, with the bits of a network, rather than in double precision.

    Examples
    --------
    >>> import compfed as cf
    >>> from compfed.federation import Describe, InProcess, ask
    >>> federation = InProcess(cf.data.from_arrays([[[1.0], [2.0]], [[3.0]]], [[0, 1], [1]]))
    >>> (description,) = ask(federation, Describe())
    >>> description.rows.tolist()
    [2, 1]
    """

    def __init__(self, sites: Sites | Sequence[Site], policy: DisclosurePolicy | None = None, *, exact: bool = False):
        self.sites, self.exact = _listed(sites, policy), exact
        self.cached: set[str] = set()
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
        return getattr(self.sites[0], "schema", None)

    @cached_property
    def enrolments(self) -> tuple[Enrolment, ...] | None:
        """The facts that the server knows site by site; None where there is no wall: neither exact sums nor a policy."""
        walled = self.exact or any(getattr(site, "policy", None) is not None for site in self.sites)
        return tuple(site.enrol() for site in self.sites) if walled else None

    @property
    def exchange(self) -> Callable[[Sequence[Request]], tuple[Sums, Communication]] | None:
        """Queries in, exact sums out; None where sums are made in double precision."""
        return self._exact_sums.exchange if self.exact else None

    @cached_property
    def _exact_sums(self) -> ExactSums:
        assert self.enrolments is not None
        return ExactSums(self.names, self.enrolments, self._contributions, self.cached)

    def _contributions(self, messages: Mapping[int, tuple[Weighted, ...]]) -> dict[int, np.ndarray]:
        agreement = self._exact_sums.agreement
        return {i: self.sites[i].contribute(asked, agreement) for i, asked in messages.items()}

    def send(self, messages: Mapping[int, Sequence[Query]]) -> dict[int, Replies]:
        return {i: self.sites[i].reply(queries) for i, queries in messages.items()}


def _listed(sites: Any, policy: DisclosurePolicy | None) -> list[Site]:
    if isinstance(sites, Sequence) and all(hasattr(site, "reply") for site in sites):
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
    none = [None] * len(sites)
    weights, offsets, raw = (
        none if given is None else given for given in (sites.row_weights, sites.offsets, sites.raw)
    )
    total = int(sites.sizes.sum())
    return [
        Site(
            A, y, name=name, index=i, number=number, row_weights=weights[i], columns=sites.columns, policy=policy,
            limits=None, room=room_for(len(y) / total), offset=offsets[i], raw=raw[i], schema=sites.schema,
        )
        for i, (A, y, name, number) in enumerate(rows)
    ]  # fmt: skip
