"""The boundary between the server and its sites: questions with typed answers, and nothing else.

At the server: weights, regulariser, algorithm, model, trace. At a site: rows, labels, its loss, its memory. See
docs/architecture.md.
"""

from compfed.federation.accounting import Communication
from compfed.federation.limits import QueryLimits
from compfed.federation.queries import (
    QUERIES,
    Curvature,
    Describe,
    HeldOut,
    Lipschitz,
    Moments,
    Query,
    Refusal,
    Result,
    Round,
    SiteRefusal,
    ValueAndGradient,
)
from compfed.federation.server.moments import describe
from compfed.federation.server.program import Federation, Program, Request, ask, gather, run_program
from compfed.federation.site.disclosure import DisclosurePolicy
from compfed.federation.site.in_process import InProcess
from compfed.federation.site.site import Site

__all__ = [
    "QUERIES",
    "Communication",
    "Curvature",
    "Describe",
    "DisclosurePolicy",
    "Federation",
    "HeldOut",
    "InProcess",
    "Lipschitz",
    "Moments",
    "Program",
    "Query",
    "QueryLimits",
    "Refusal",
    "Request",
    "Result",
    "Round",
    "Site",
    "SiteRefusal",
    "ValueAndGradient",
    "ask",
    "describe",
    "gather",
    "run_program",
]
