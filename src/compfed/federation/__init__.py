"""The wall between the server and its sites: queries and the sum of the replies, and nothing else.

The server has weights, regulariser, algorithm, model and trace; a site has rows, labels, its loss and its client state.
`federation.server` and `federation.site` are the two sides; what both sides share is in this package. See
docs/explanation/architecture.md.
"""

from compfed.federation.accounting import Communication
from compfed.federation.limits import QueryLimits
from compfed.federation.queries import (
    QUERIES,
    Describe,
    Evaluate,
    FinishRound,
    HeldOut,
    Inference,
    LeaveOneOut,
    Lipschitz,
    LocalUpdate,
    Moments,
    Score,
    Tabulate,
)
from compfed.federation.query import Query, Refusal, SiteRefusal
from compfed.federation.server.program import Federation, Program, Request, ask, for_site, gather, run_program
from compfed.federation.site.disclosure import DisclosurePolicy
from compfed.federation.site.in_process import InProcess
from compfed.federation.site.rows import Rows
from compfed.federation.site.site import Site
from compfed.federation.table_one import TableOne

__all__ = [
    "QUERIES", "Communication", "Describe", "DisclosurePolicy", "Evaluate", "Federation", "FinishRound", "HeldOut", "InProcess",
    "Inference", "LeaveOneOut", "Lipschitz", "LocalUpdate", "Moments", "Program", "Query", "QueryLimits", "Refusal", "Request", "Rows",
    "Score", "Site", "SiteRefusal", "TableOne", "Tabulate", "ask", "for_site", "gather", "run_program",
]  # fmt: skip
