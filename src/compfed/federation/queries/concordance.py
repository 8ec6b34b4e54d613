"""`Concordance`: how often a row with the event has a higher score than one without, where sums are masked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from compfed.errors import InputError
from compfed.federation.enrolment import Agreement, Enrolment
from compfed.federation.limits import QueryChecks, check_finite_array, check_integer
from compfed.federation.query import Field, FieldValues, Query, Sizes, Weighting, check_finite, flag, hidden
from compfed.federation.spec import ObjectiveSpec
from compfed.losses import Logistic
from compfed.losses.offset import unwrapped
from compfed.splits import RowSubset

BLOCK = 3  # counts of a site are whole multiples of this, rounded down
MOST_EDGES = 200  # thresholds of a query
MOST_PARTS = 10  # models, each of rows of its own


@dataclass(frozen=True, eq=False)
class Concordance(Query):
    """Pairs of a row of the class `minority` and a row of the other class, by their scores, in three steps.

    Row k of x is the model of the rows of subset k; its score is z, the log-odds. Without edges the reply has the number, the sum
    and the sum of squares of the scores of the larger class. With edges it has how many of them are at most each edge, rounded
    down to a multiple of 3 at each site. With `counts`, the totals of those counts, and the number of all rows of the larger class
    last, the reply has the pairs of the rows of the smaller class with those of the larger class below them, ties by half: `own`
    exactly with rows of the site, and bounds `low` and `high` with rows of the other sites, of which a site knows the totals less
    its own part.
    """

    objective: ObjectiveSpec
    x: np.ndarray  # (parts, d)
    subsets_of_x: tuple[RowSubset | None, ...]
    minority: int  # 0 or 1
    edges: np.ndarray  # (E,)
    counts: np.ndarray  # (E + 1,), or (0,)

    leaves = (
        "of the scores of the larger class their sum, the sum of squares and counts below thresholds, in whole threes; of the smaller "
        "class sums of ranks"
    )

    class Reply(NamedTuple):
        moments: np.ndarray  # (3,): number, sum and sum of squares; zeros with edges
        below: np.ndarray  # (E,); zeros with counts
        pairs: np.ndarray  # (3,): own, low, high; zeros without counts

    @property
    def rows(self) -> RowSubset | None:
        return self.subsets_of_x[0] if len(self.subsets_of_x) == 1 else None

    @property
    def subsets(self) -> tuple[RowSubset | None, ...]:
        return (*self.subsets_of_x, self.objective.subset)

    @property
    def told_of(self) -> tuple[tuple[RowSubset | None, ...], int]:
        return self.subsets_of_x, super().told_of[1]

    def weighed_by(self, weighting: Weighting) -> str:
        return "rows"

    def check(self, checks: QueryChecks) -> None:
        d = checks.objective(self.objective)
        if not isinstance(unwrapped(self.objective.loss), Logistic) or self.objective.classes is None:
            raise InputError("Concordance is of the loss Logistic and two classes")
        if self.objective.classes.size != 2 or self.objective.profile or self.objective.subset is not None:
            raise InputError("Concordance is of two classes, of all rows and without a profile")
        if checks.site.weighted:
            raise InputError("Concordance counts rows, which have no weights")
        if type(self.subsets_of_x) is not tuple or not 1 <= len(self.subsets_of_x) <= MOST_PARTS:
            raise InputError(f"Concordance has 1 to {MOST_PARTS} sets of rows")
        for subset in self.subsets_of_x:
            checks.subset(subset)
        if checks.models(self.x, d) != len(self.subsets_of_x):
            raise InputError("x must have one model for each set of rows")
        check_integer("minority", self.minority, 0, 1)
        if not isinstance(self.edges, np.ndarray) or self.edges.ndim != 1 or self.edges.size > MOST_EDGES:
            raise InputError(f"edges must be an array of at most {MOST_EDGES} thresholds")
        check_finite_array("edges", self.edges, self.edges.shape)
        if (self.edges[1:] <= self.edges[:-1]).any():
            raise InputError("edges must increase")
        if not isinstance(self.counts, np.ndarray) or self.counts.shape not in ((0,), (self.edges.size + 1,)):
            raise InputError("counts must have one number for each edge and one more, or none")
        check_finite_array("counts", self.counts, self.counts.shape)
        most = float(self.counts[-1]) if self.counts.size else 0.0
        if (np.diff(self.counts) < 0).any() or (self.counts < 0).any() or not most < 2**48:
            raise InputError("counts must not fall")

    def layout(self, agreement: Agreement, weighting: Weighting) -> dict[str, Field]:
        R, size = agreement.row_bits, Sizes(self.objective, self.x, agreement, agreement.row_bits)
        sites = Field((), agreement.site_bits, bounded=True)
        found = {"infinite": sites, "outside": sites}
        if self.counts.size:  # halves of pairs of rows
            return {**found, "pairs": Field((3,), 2 * R + int(np.frexp(self.counts[-1])[1]), bounded=True)}
        if self.edges.size:
            return {**found, "below": Field(self.edges.shape, R, bounded=True)}
        return {**found, "moments": Field((3,), lambda: np.broadcast_to(size.value().max(), 3))}

    def contribution(self, reply: Reply, factor: float, agreement: Agreement) -> FieldValues:
        far_out = np.array(not np.isfinite(reply.moments).all())
        found: FieldValues = {"infinite": flag(far_out), "outside": np.array(0.0)}
        if self.counts.size:
            check_finite("Concordance", {"pairs": reply.pairs})
            return {**found, "pairs": np.asarray(reply.pairs, float)}
        if self.edges.size:
            return {**found, "below": np.asarray(reply.below, float)}
        return {**found, "moments": hidden(np.asarray(reply.moments, float), far_out)}

    def assemble(
        self, totals: FieldValues, divisor: float, enrolments: Sequence[Enrolment], agreement: Agreement
    ) -> Reply | None:
        if totals["outside"].any():
            return None
        nothing = {"moments": np.zeros(3), "below": np.zeros(self.edges.shape), "pairs": np.zeros(3)}
        found = Concordance.Reply(**{**nothing, **{name: totals[name] for name in nothing if name in totals}})
        return found._replace(moments=np.full(3, np.nan)) if totals["infinite"].any() else found
