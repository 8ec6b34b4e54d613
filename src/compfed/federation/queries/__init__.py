"""The closed list of queries: what a server may ask, and what each site adds to the sum. Nothing else crosses the wall.

One file each; the two of a round share one. A query is a record of arrays that owns its reply, the layout of the reply in a
message, its contribution and the sum, its limits, and what leaves in words (`federation.query`). Several queries share a
message, and several models (the rows of x) share a query. How a site computes its reply is in `federation.site.answers`, what
it refuses in `federation.site.disclosure`.
"""

from __future__ import annotations

import importlib
import pkgutil

from compfed.federation.queries.at_risk import AtRisk
from compfed.federation.queries.concordance import Concordance
from compfed.federation.queries.describe import Describe, Description
from compfed.federation.queries.evaluate import Evaluate
from compfed.federation.queries.held_out import HeldOut, HeldOutSum
from compfed.federation.queries.inference import Inference
from compfed.federation.queries.leave_one_out import LeaveOneOut
from compfed.federation.queries.lipschitz import Lipschitz
from compfed.federation.queries.moments import Moments, MomentsSum
from compfed.federation.queries.rounds import FinishRound, LocalUpdate, UpdateSum
from compfed.federation.queries.score import Score
from compfed.federation.queries.tabulate import Tabulate, TabulateSum
from compfed.federation.query import Query

__all__ = [
    "LEAVES", "QUERIES", "AtRisk", "Concordance", "Describe", "Description", "Evaluate", "FinishRound", "HeldOut",
    "HeldOutSum", "Inference", "LeaveOneOut", "Lipschitz", "LocalUpdate", "Moments", "MomentsSum", "Score", "Tabulate",
    "TabulateSum", "UpdateSum",
]  # fmt: skip


def _queries() -> tuple[type[Query], ...]:
    """The queries that the files of this package define: a class of another place is not asked, nor answered."""
    files = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    classes = [thing for file in files for thing in vars(file).values() if isinstance(thing, type)]
    return tuple(dict.fromkeys(c for c in classes if issubclass(c, Query) and c.__module__.startswith(f"{__name__}.")))


QUERIES = _queries()
LEAVES = {query.__name__: query.leaves for query in QUERIES}  # every query, and what it makes leave
