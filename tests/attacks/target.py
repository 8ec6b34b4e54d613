"""Sites to attack, and what an attacker may do with one: send queries of the closed list and read the replies.

`make_site` is the only place that knows how a site gets its policy.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

import compfed as cf
from compfed.federation import DisclosurePolicy, Evaluate, Moments, Query, Refusal, Rows, Site
from compfed.federation.enrolment import Agreement
from compfed.federation.numbers import About, largest_share, released, table_of
from compfed.federation.query import Weighted
from compfed.federation.spec import FeatureScaling, ObjectiveSpec
from compfed.losses import Loss
from compfed.splits import RowSubset

POLICY = DisclosurePolicy()
BEYOND = "more numbers than a rule may approve"
CHUNK = 10_000  # models of one query: the limit of a site


def make_site(
    rows: np.ndarray, labels: np.ndarray, policy: DisclosurePolicy | None, index: int = 0, name: str | None = None
) -> Site:
    """A site of a network that answers under a policy; under no rule without one."""
    name = f"site{index}" if name is None else name
    return Site(Rows(rows, labels, name=name, index=index), policy=policy, secret=b"of the site alone")


def breast_cancer(rows: int = 143) -> tuple[np.ndarray, np.ndarray]:
    """Site 0 of the breast cancer table, 143 x 30; for fewer rows, a sample of all its sites that has both classes.

    The sample is the first in which no row has half of the variance of a column: attacks on it meet the rules for queries.
    """
    table = cf.data.bundled.breast_cancer()
    chosen = np.flatnonzero(table.sites == 0)
    for seed in range(100 if rows < len(chosen) else 0):
        chosen = np.random.default_rng(seed).permutation(len(table.y))[:rows]
        apart = (table.X[chosen] - table.X[chosen].mean(axis=0)) ** 2
        if rows < POLICY.min_rows or (apart.max(axis=0) <= 0.5 * apart.sum(axis=0)).all():
            break
    return table.X[chosen], table.y[chosen]


class Target:
    """A site as a curious server knows it: its number of rows and columns, and the replies to its queries.

    Queries, models and refusals are counted. `rows` and `width` are known from the enrolment, `number` decides the public
    random draws of a site. Numbers are counted as the service of a site without masks does; with a `line` a message beyond that
    share is refused.
    """

    def __init__(self, site: Site, line: float = np.inf):
        self._site, self.line = site, line
        self._told = Counter[About]()
        self.rows, self.width = len(site.rows.labels), site.rows.width
        self.index, self.number = site.rows.index, site.rows.number
        self.labels = np.zeros(self.rows)  # for the masks of subsets: an attacker has no labels
        self.buckets_of_rows, self.splits, self.agreed_buckets = None, (), 1
        self.messages = self.queries = self.models = self.answered = 0
        self.refusals: list[tuple[Query, str]] = []
        self.free = True  # did it answer a score with many thresholds?

    def ask(self, *queries: Query) -> tuple[Any, ...]:
        """The reply to each query, or a Refusal."""
        self.messages, self.queries = self.messages + 1, self.queries + len(queries)
        replies = self._counted(queries, self._replies(queries))
        sizes = [0 if getattr(query, "x", None) is None else len(np.atleast_2d(query.x)) for query in queries]  # pyright: ignore[reportAttributeAccessIssue]
        self.models += sum(sizes)
        self.answered += sum(n for n, r in zip(sizes, replies, strict=True) if not isinstance(r, Refusal))
        self.refusals += [(q, r.reason) for q, r in zip(queries, replies, strict=True) if isinstance(r, Refusal)]
        return replies

    def _replies(self, queries: Sequence[Query]) -> tuple[Any, ...]:
        return self._site.reply(queries)

    @functools.cached_property
    def _agreement(self) -> Agreement | None:
        try:
            return None if self._site.policy is None else Agreement((self._site.name,), (self._site.enrol(),))
        except cf.InputError:  # a site that takes part in no run
            return None

    def _counted(self, queries: Sequence[Query], replies: tuple[Any, ...]) -> tuple[Any, ...]:
        if self._agreement is None:
            return replies
        answered = [q for q, reply in zip(queries, replies, strict=True) if not isinstance(reply, Refusal)]
        new = self._told + released([Weighted(q, q.own_weighting) for q in answered], self._site.rows, self._agreement)
        if largest_share([(table_of(self._site.rows), new)]) > self.line:
            return tuple(Refusal(f"site: {BEYOND}") for _ in queries)
        self._told = new
        return replies

    @property
    def share(self) -> float:
        """The largest share of the numbers in a set of rows that left about it."""
        return largest_share([(table_of(self._site.rows), self._told)])

    def main_reason(self) -> str:
        """The reason that was given most often."""
        reasons = Counter(reason.partition(": ")[2] for _, reason in self.refusals)
        return reasons.most_common(1)[0][0] if reasons else ""

    def scaling(self, columns: np.ndarray | None = None) -> FeatureScaling:
        """The mean and the standard deviation of every column, as any honest fit asks for them."""
        (moments,) = self.ask(Moments())
        if isinstance(moments, Refusal):
            return FeatureScaling(np.zeros(self.width), np.ones(self.width), intercept=True)
        mean = moments.mean
        variance = (moments.square - mean**2) + (moments.square_low - 2 * mean * moments.mean_low)
        sd = np.sqrt(np.maximum(variance, 1e-12 * np.abs(mean) + 1e-300))
        chosen = slice(None) if columns is None else columns
        return FeatureScaling(mean[chosen], sd[chosen], intercept=True)

    def objective(self, loss: Loss, scaling: FeatureScaling, subset: RowSubset | None = None) -> ObjectiveSpec:
        return ObjectiveSpec(loss, scaling, subset=subset)

    def gradients(self, objective: ObjectiveSpec, X: np.ndarray) -> np.ndarray:
        """The gradient at every row of X; NaN where the site refuses. A refused block is asked again in halves."""
        out, size = np.full(X.shape, np.nan), min(CHUNK, max(len(X) // 8, 1))
        blocks = [slice(i, min(i + size, len(X))) for i in range(0, len(X), size)]
        while blocks:
            block = blocks.pop()
            (reply,) = self.ask(Evaluate(objective, X[block]))
            if not isinstance(reply, Refusal):
                out[block] = reply.gradient
            elif block.stop - block.start > max(1, len(X) // 200):
                middle = (block.start + block.stop) // 2
                blocks += [slice(block.start, middle), slice(middle, block.stop)]
        return out


class SumTarget(Target):
    """Several sites whose server sees totals over all of them, as under masks: moments and evaluations only."""

    def __init__(self, sites: Sequence[Site]):
        super().__init__(sites[-1])  # whose index is the largest: public records fit all sites
        self.sites, self.rows = sites, sum(len(site.rows.labels) for site in sites)

    def _replies(self, queries: Sequence[Query]) -> tuple[Any, ...]:
        every = [site.reply(queries) for site in self.sites]
        return tuple(self._total(query, parts) for query, *parts in zip(queries, *every, strict=True))

    def _total(self, query: Query, parts: Sequence[Any]) -> Any:
        refused = [part for part in parts if isinstance(part, Refusal)]
        if refused:
            return refused[0]
        subset = query.objective.subset if isinstance(query, Evaluate) else query.subset  # pyright: ignore[reportAttributeAccessIssue]
        weights = [float(site.rows.weights_of(subset).sum()) for site in self.sites]
        names = ("mean", "mean_low", "square", "square_low") if isinstance(query, Moments) else ("gradient",)
        sums = {name: np.average([getattr(part, name) for part in parts], axis=0, weights=weights) for name in names}
        return parts[0]._replace(**sums, **({"weight": sum(weights)} if isinstance(query, Moments) else {}))


def unscaled(scaling: FeatureScaling, Z: np.ndarray) -> np.ndarray:
    """Rows in their own units."""
    return Z * scaling.scale + scaling.centre


def distinct(candidates: np.ndarray | Sequence[np.ndarray], target: Target, near: float = 1e-4) -> np.ndarray:
    """At most one candidate per row of the site: finite ones, the first of those that are nearly equal."""
    found = np.reshape(np.asarray(candidates, float), (-1, target.width))
    found = found[np.isfinite(found).any(axis=1)]
    if not len(found):
        return found
    Z = np.nan_to_num(found)
    Z /= np.where(Z.std(axis=0) > 0, Z.std(axis=0), 1.0)
    kept: list[int] = []
    for i, z in enumerate(Z):
        if len(kept) < target.rows and (not kept or np.abs(Z[kept] - z).max(axis=1).min() > near):
            kept.append(i)
    return found[kept]
