"""The reply of a site to `Concordance`: scores of the larger class in threes, and ranks of the smaller one among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from compfed.federation.queries.concordance import BLOCK, Concordance
from compfed.federation.site.scoring import linear_predictor

if TYPE_CHECKING:
    from compfed.federation.site.site import Site


def concordance(query: Concordance, site: Site) -> Concordance.Reply:
    """One of the three steps; the totals of a step are in the query of the next."""
    data, scores, smaller = site.rows.dataset(query.objective), list[np.ndarray](), list[np.ndarray]()
    for x, subset in zip(query.x, query.subsets_of_x, strict=True):
        used = site.rows.weights_of(subset) > 0
        _, z, y = linear_predictor(query.objective.loss, np.asarray(x, data.A.dtype), data)
        scores.append(z[used])
        smaller.append((y[used] > 0) == bool(query.minority))
    z, few = np.concatenate(scores), np.concatenate(smaller)
    others = agreed_sites(site) - 1
    many = np.sort(z[~few])
    none = Concordance.Reply(np.zeros(3), np.zeros(query.edges.shape), np.zeros(3))
    if not query.edges.size:
        return none._replace(moments=np.array([len(many), many.sum(), many @ many]))
    below = np.searchsorted(many, query.edges, side="right") // BLOCK * BLOCK
    if not query.counts.size:
        return none._replace(below=below.astype(float))
    own = 0.5 * (np.searchsorted(many, z[few], "left") + np.searchsorted(many, z[few], "right")).sum()
    low, high = counts_of_others(query.counts, below, len(many), others)
    at = np.searchsorted(query.edges, z[few], "left")
    return none._replace(pairs=np.array([own, np.append(0.0, low)[at].sum(), high[at].sum()]))


def counts_of_others(totals: np.ndarray, own: np.ndarray, mine: int, others: int) -> tuple[np.ndarray, np.ndarray]:
    """Bounds on the rows of other sites at most each edge; the upper ones with all of their rows last.

    Each of the others rounded down by 2 at most.
    """
    all_others = max(float(totals[-1]) - mine, 0.0)
    told = np.clip(totals[:-1] - own, 0.0, all_others)
    low = np.maximum.accumulate(told)
    high = np.append(np.minimum(told + (BLOCK - 1) * others, all_others), all_others)
    return low, np.minimum.accumulate(high[::-1])[::-1]


def agreed_sites(site: Site) -> int:
    """How many sites add to the totals."""
    return 1 if site.guard.agreement is None else site.guard.agreement.n
