"""A look at a federation before anything is fitted: sizes, labels, and how far its sites differ. One message."""

from __future__ import annotations

from compfed.federation.conversation import Federation, ask
from compfed.federation.questions import Describe
from compfed.tools.site_facts import Summary, summarised


def describe(federation: Federation) -> Summary:
    """`cf.data.describe` over whoever answers; no row leaves its site.

    >>> import compfed as cf
    >>> t = cf.data.bundled.diabetes()
    >>> sites = cf.data.from_table(t.X, t.y, t.sites)
    >>> str(describe(cf.federation.InProcess(sites))) == str(cf.data.describe(sites))
    True
    """
    answers = [answer for (answer,) in ask(federation, Describe(detail=True))]
    return summarised(federation.names, answers[0].columns, [answer.facts for answer in answers])
