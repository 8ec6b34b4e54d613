"""What a site does not answer, and why."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from compfed.federation.queries import QUERIES, Curvature, Query, Round


@dataclass(frozen=True)
class DisclosurePolicy:
    """What a site does not answer.

    - `min_rows`: nothing at all, with fewer rows than this.
    - `max_hessian_share`: no second derivative on more coordinates than this share of the rows.
    - `questions`: names of questions that are never answered, such as "Curvature".
    """

    min_rows: int = 1
    max_hessian_share: float = np.inf
    queries: Collection[str] = ()

    def blanket_reason(self, query: Query, rows: int) -> str | None:
        """Why a site does not answer any query of this kind; None if it does. Names the rule, never the number of rows.

        Decided before anything else of a query is looked at: what a limit would say may depend on the rows.
        """
        name = type(query).__name__
        if type(query) not in QUERIES:  # a closed list: a subclass is another question
            return f"{name} is not a question it knows"
        if name in self.queries:
            return f"it does not answer {name}"
        if rows < self.min_rows:
            return "it has fewer rows than its min_rows"
        return None

    def reason(self, query: Query, rows: int) -> str | None:
        """Why a site with so many rows does not answer this query; None if it does."""
        if (reason := self.blanket_reason(query, rows)) is not None:
            return reason
        curved = _coordinates(query)
        if curved and "Curvature" in self.queries:
            return "it does not answer Curvature, and a round of this method asks for it"
        if curved > self.max_hessian_share * rows:
            return (
                f"{curved} coordinates are more than {self.max_hessian_share:g} of the number of its rows; curvature on so "
                "many says too much about single rows"
            )
        return None


def _coordinates(query: Query) -> int:
    """On how many coordinates a question, or a round of a second-order method, asks for curvature."""
    if isinstance(query, Curvature):
        return np.size(query.W)
    if isinstance(query, Round) and query.run_spec.algorithm.by_questions:
        return np.size(query.d.get("W", ()))
    return 0
