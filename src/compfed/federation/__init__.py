"""The boundary between the server and its sites: questions with typed answers, and nothing else.

At the server: weights, regulariser, algorithm, model, trace. At a site: rows, labels, its loss, its memory. See
docs/architecture.md.
"""

from compfed.federation.accounting import Communication
from compfed.federation.limits import QueryLimits
from compfed.federation.queries import (
    QUESTIONS,
    Curvature,
    Describe,
    HeldOut,
    Moments,
    Question,
    Refused,
    Result,
    Round,
    SiteRefusal,
    Steepness,
    ValueAndGradient,
)
from compfed.federation.server.moments import describe
from compfed.federation.server.program import Federation, Request, Talk, ask, converse, in_parallel
from compfed.federation.site.disclosure import Refusals
from compfed.federation.site.in_process import InProcess
from compfed.federation.site.site import Site

__all__ = [
    "QUESTIONS", "Communication", "Curvature", "Describe", "Federation", "HeldOut", "InProcess", "Moments", "QueryLimits",
    "Question", "Refusals", "Refused", "Request", "Result", "Round", "Site", "SiteRefusal", "Steepness", "Talk", "ValueAndGradient", "ask",
    "converse", "describe", "in_parallel",
]  # fmt: skip
