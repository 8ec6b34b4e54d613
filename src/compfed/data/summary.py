"""What the sites on this machine look like: sizes, labels and how far they differ."""

from __future__ import annotations

from compfed.data.sites import Sites
from compfed.errors import InputError
from compfed.tools.site_facts import Summary, facts_of, summarised


def describe(sites: Sites) -> Summary:
    """Sizes and labels per site, columns that do not vary, and how far the sites are from the pooled table.

    Labels count as classes when there are at most 20 distinct ones, all whole numbers.

    >>> from compfed.data import from_table
    >>> X = [[1.0, 5.0], [2.0, 5.0], [3.0, 5.0], [4.0, 5.0]]
    >>> print(describe(from_table(X, [0, 0, 0, 1], ["north", "north", "north", "south"])))
    2 site(s), 4 rows, 2 features
    <BLANKLINE>
    site   rows   share     y=0     y=1  constant columns
    -----  ----  ------  ------  ------  ----------------
    north     3   75.0%  100.0%    0.0%                 1
    south     1   25.0%    0.0%  100.0%                 2
    all       4  100.0%   75.0%   25.0%                 1
    <BLANKLINE>
    sizes: largest / smallest = 3
    labels: total variation of label shares, site against all: at most 0.75 (site south)
    features: shift of a column's mean in pooled sd: at most 1.34 (column 0, site south)
    constant everywhere: column(s) 1
    """
    if not isinstance(sites, Sites):
        raise InputError(
            f"describe takes a federation from compfed.data, such as from_table(X, y, sites); got {type(sites).__name__}."
        )
    facts = [facts_of(A, y) for A, y in zip(sites.features, sites.labels, strict=True)]
    return summarised(sites.names, sites.columns, facts)
