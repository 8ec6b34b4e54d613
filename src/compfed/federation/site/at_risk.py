"""The reply of a site to `AtRisk`: events and rows at risk at the times of a grid.

Under a disclosure policy the times of a site are made coarser before anything is counted, in the same way whatever is asked: rows in
the order of their times are cut into blocks of at least `min_rows` events, and all rows of a block have one time, the mean
of its events. So a grid, however fine and however often moved, finds these means and no time of a row; and every difference of two
counts is of whole blocks. With groups, blocks are joined until each group has `min_rows` events in each. Risks are rounded to
`RISK_DIGITS` binary digits of the sum, and pairs to multiples of the number of rows: sums of exponentials of few rows at many models,
with all their digits, would tell the rows (Prony's method: `tests/attacks/by_survival.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from compfed._utils.array_namespace import product
from compfed.errors import InputError
from compfed.federation.queries import AtRisk
from compfed.losses.base import upper_triangle
from compfed.losses.cox import ENTRY, EVENT, OFFSET, STRATUM, TIME, WEIGHT

if TYPE_CHECKING:
    from compfed.federation.site.rows import Rows
    from compfed.federation.site.site import Site

RISK_DIGITS = 10  # of the sum over a risk set, under a policy


class TimesAtRisk(NamedTuple):
    """The rows that count, as a grid sees them."""

    rows: np.ndarray  # places in the table
    group: np.ndarray
    entry: np.ndarray
    time: np.ndarray
    event: np.ndarray
    weight: np.ndarray
    risk: np.ndarray  # z


def times_at_risk(query: AtRisk, rows: Rows, min_rows: int) -> TimesAtRisk:
    """The rows of weight > 0 with their groups; with coarser times under a policy."""
    data = rows.dataset(query.objective)
    used = np.flatnonzero(rows.weights_of(query.subset) > 0)
    y = data.y[used]
    z = np.asarray(product(data.A, np.asarray(query.x, float)))[used] if len(query.x) else np.zeros(len(used))
    entry, time, event = y[:, ENTRY], y[:, TIME], y[:, EVENT] > 0
    group = _groups(query, rows)[used]
    if min_rows > 1:
        entry, time = coarser(entry, time, event, group, min_rows)
    return TimesAtRisk(used, group, entry, time, event, y[:, WEIGHT], z + y[:, OFFSET] * (len(query.x) > 0))


def _groups(query: AtRisk, rows: Rows) -> np.ndarray:
    if not query.groups:
        return np.zeros(len(rows.labels), int)
    columns = rows.features[:, list(query.groups)]
    found = np.asarray(columns.toarray() if hasattr(columns, "toarray") else columns)
    if not np.isin(found, (0, 1)).all() or (found.sum(axis=1) > 1).any():
        raise InputError(
            f"site {rows.name!r}: the columns of groups must be 0 or 1, and one of them 1 in a row at most."
        )
    return (found @ np.arange(1, len(query.groups) + 1)).astype(int)


def coarser(
    entry: np.ndarray, time: np.ndarray, event: np.ndarray, group: np.ndarray, min_rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Entries and times in blocks of at least `min_rows` events of each group: a time is the mean of the events of its block.

    The cuts do not depend on what is asked: those with groups are some of those without.
    """
    ends = _ends_of_blocks(time[event], min_rows)  # the last event time of each block but the last
    block = np.searchsorted(ends, time)
    present = np.unique(group[event])
    joined, count, at = np.zeros(len(ends) + 1, int), np.zeros(len(present), int), 0
    each = np.array(
        [[np.count_nonzero(event & (block == b) & (group == g)) for g in present] for b in range(len(ends) + 1)]
    )
    for b in range(len(ends) + 1):
        joined[b], count = at, count + each[b]
        if (count >= min_rows).all() and (each[b + 1 :].sum(axis=0) >= min_rows).all():
            at, count = at + 1, np.zeros(len(present), int)
    block = joined[block]
    mean = np.array([time[event & (block == b)].mean() for b in range(at + 1)])
    before = np.concatenate([[-np.inf], mean])
    # a row that enters in a block is at risk from the next one on, and at least in its own
    first = np.minimum(np.where(np.isfinite(entry), joined[np.searchsorted(ends, entry)] + 1, 0), block)
    return before[first], mean[block]


def _ends_of_blocks(times: np.ndarray, min_rows: int) -> np.ndarray:
    """Where blocks of event times end, each after at least `min_rows` of them; the last block takes the rest."""
    times, ends, first = np.sort(times), [], 0
    while len(times) - first >= 2 * min_rows:
        last = times[first + min_rows - 1]
        after = int(np.searchsorted(times, last, side="right"))
        if len(times) - after < min_rows:
            break
        ends.append(last)
        first = after
    return np.array(ends)


def at_risk(query: AtRisk, site: Site) -> AtRisk.Reply:
    """The sums of one site."""
    policy = site.policy
    t = times_at_risk(query, site.rows, 1 if policy is None else policy.min_rows)
    groups, times, grid = len(query.groups) + 1, len(query.grid), query.grid
    last = np.searchsorted(grid, t.time)  # the time at which a row is at risk for the last time
    first = np.searchsorted(grid, t.entry, side="right")
    with np.errstate(over="ignore", invalid="ignore"):
        r = t.weight * np.exp(t.risk)
    happened = t.event & (last < times)

    def by_cell(at: np.ndarray, values: np.ndarray) -> np.ndarray:
        return np.bincount(t.group * (times + 2) + at + 1, values, groups * (times + 2)).reshape(groups, times + 2)[
            :, 1:
        ]

    leaving, entering = by_cell(last, r), by_cell(first - 1, r)
    at = np.cumsum((leaving - entering)[:, ::-1], axis=1)[:, ::-1][:, :times]
    events, died = (by_cell(last, np.where(happened, v, 0.0))[:, :times] for v in (t.weight, r))
    at = np.maximum(at, died)  # what rounding takes away
    pairs = np.empty(0)
    if query.pairs:
        pairs = ordered_pairs(t.time, t.event, t.risk, site.rows.dataset(query.objective).y[t.rows, STRATUM])
    if policy is not None:
        at = _rounded(at)
        pairs = np.rint(pairs / site.rows.count) * site.rows.count
    matrices = (np.empty(0),) * 8
    if query.second:
        matrices = _matrices(query, site, t, r, first, last, happened)
    return query.Reply(events, at, pairs, *matrices)


def _rounded(sums: np.ndarray) -> np.ndarray:
    """Positive numbers to `RISK_DIGITS` binary digits."""
    mantissa, exponent = np.frexp(sums)
    return np.ldexp(np.rint(np.ldexp(mantissa, RISK_DIGITS)), exponent - RISK_DIGITS)


def _matrices(
    query: AtRisk, site: Site, t: TimesAtRisk, r: np.ndarray, first: np.ndarray, last: np.ndarray, happened: np.ndarray
) -> tuple[np.ndarray, ...]:
    """What a model with one baseline for all sites needs at each time."""
    A, times = np.asarray(site.rows.dense(query.objective).A)[t.rows], len(query.grid)
    d = A.shape[1]

    def sums(at: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        one, two = np.zeros((times + 1, d)), np.zeros((times + 1, d * (d + 1) // 2))
        for k in np.unique(at[chosen]).tolist():
            mine = chosen & (at == k)
            B = A[mine] * r[mine, None]
            one[k], two[k] = B.sum(axis=0), upper_triangle(B.T @ A[mine])
        return one, two

    leaving, entering = sums(last, np.ones(len(r), bool)), sums(first - 1, first > 0)
    S = [np.cumsum((a - b)[::-1], axis=0)[::-1][:times] for a, b in zip(leaving, entering, strict=True)]
    D = [part[:times] for part in sums(last, happened)]
    w = t.weight[happened]
    counts = np.bincount(last[happened], minlength=times).astype(float)
    died = np.bincount(last[happened], r[happened], minlength=times)
    return counts, died, S[0], S[1], D[0], D[1], np.array([w @ t.risk[happened]]), w @ A[happened]


def ordered_pairs(time: np.ndarray, event: np.ndarray, risk: np.ndarray, stratum: np.ndarray) -> np.ndarray:
    """Pairs of a stratum of which one had an event while the other was still at risk: in order, in reverse order, of the same risk.

    A pair is in order where the row with the earlier event has the larger risk. Rows that are censored at the time of the event
    were at risk after it; events at the same time are no pair.
    """
    found = np.zeros(3)
    for s in np.unique(stratum):
        mine = np.flatnonzero(stratum == s)
        ranks = np.unique(risk[mine], return_inverse=True)[1]
        found += _pairs_by_rank(time[mine], event[mine], ranks)
    return found


def _pairs_by_rank(time: np.ndarray, event: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """The same of one stratum, with risks as ranks: from the last time backwards, in a tree of counts of ranks."""
    tree, size = np.zeros(int(rank.max(initial=0)) + 2, int), int(rank.max(initial=0)) + 1
    order = np.lexsort((event, -time))  # at one time the censored rows come first: they are at risk after its events
    found, total, k = np.zeros(3), 0, 0

    def below(at: int) -> int:  # rows of a rank < at
        count = 0
        while at > 0:
            count += int(tree[at])
            at -= at & -at
        return count

    def add(at: int) -> None:
        at += 1
        while at <= size:
            tree[at] += 1
            at += at & -at

    while k < len(order):
        i, together = order[k], [order[k]]
        while k + len(together) < len(order) and event[i] and time[order[k + len(together)]] == time[i]:
            together.append(order[k + len(together)])  # events at one time
        for j in together if event[i] else ():
            less, upto = below(int(rank[j])), below(int(rank[j]) + 1)
            found += [less, total - upto, upto - less]
        for j in together:
            add(int(rank[j]))
        total, k = total + len(together), k + len(together)
    return found
