"""The disclosure policy of a site: which queries it refuses, and why.

`Site` asks it before it answers (`site.py`); what would take too much memory or time is refused in `federation/limits.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from compfed.federation.queries import QUERIES, Evaluate, Query


@dataclass(frozen=True)
class DisclosurePolicy:
    """The queries a site refuses.

    Parameters
    ----------
    min_rows : int, default=1
        With fewer rows than this the site refuses everything.
    max_hessian_share : float, default=inf
        No Hessian on more coordinates than this share of the rows; 0 for no Hessian at all.
    queries : names, default=()
        Names of queries that are always refused, such as "HeldOut".
    """

    min_rows: int = 1
    max_hessian_share: float = np.inf
    queries: Collection[str] = ()

    def blanket_reason(self, query: Query, rows: int) -> str | None:
        """Why a site refuses every query of this kind; None if it does not. Names the rule, never the number of rows.

        Decided before anything else of a query is read: the reason of a limit may depend on the rows.
        """
        name = type(query).__name__
        if type(query) not in QUERIES:  # a closed list: a subclass is another query
            return f"{name} is not a query it knows"
        if name in self.queries:
            return f"it does not answer {name}"
        if rows < self.min_rows:
            return "it has fewer rows than its min_rows"
        return None

    def reason(self, query: Query, rows: int) -> str | None:
        """Why a site with so many rows refuses this query; None if it does not."""
        if (reason := self.blanket_reason(query, rows)) is not None:
            return reason
        coords = np.size(query.coords) if isinstance(query, Evaluate) and query.coords is not None else 0
        if coords > self.max_hessian_share * rows:
            return (
                f"{coords} coordinates are more than {self.max_hessian_share:g} of the number of its rows; a Hessian on so "
                "many says too much about single rows"
            )
        return None
