"""A look at a federation before anything is fitted: sizes, labels, and how far its sites differ. One message."""

from __future__ import annotations

from compfed.errors import InputError
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
    for name, answer in zip(federation.names, answers, strict=True):
        shape, first = (_shape(a) for a in (answer, answers[0]))
        if shape != first:
            raise InputError(
                f"site {name!r} has {shape[0]} columns and {shape[1]} label(s) per row; site {federation.names[0]!r} has "
                f"{first[0]} and {first[1]}. All sites need the same columns and labels."
            )
    return summarised(federation.names, answers[0].columns, [answer.facts for answer in answers])


def _shape(answer: Describe.Answer) -> tuple[int, int]:
    """Columns, and labels per row."""
    assert answer.facts is not None, "asked for in detail"
    return answer.width, answer.facts.label_mean.size
