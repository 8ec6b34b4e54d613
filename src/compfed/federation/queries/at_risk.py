"""`AtRisk`: events and rows at risk at agreed times, for baseline hazards, Kaplan-Meier curves and log-rank tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from compfed.errors import InputError
from compfed.federation.enrolment import Agreement, Enrolment
from compfed.federation.limits import QueryChecks, check_boolean, check_finite_array, check_integer
from compfed.federation.query import NEW_RUN, Field, FieldValues, Query, Weighting, check_finite, flag, hidden
from compfed.federation.spec import ObjectiveSpec
from compfed.losses import SiteLoss
from compfed.splits import RowSubset

MAX_TIMES = 1000  # of a grid
MAX_GROUPS = 20
MAX_COMMON = 40  # columns of a model with one baseline for all sites
RISK_BITS = 8  # of exp(z): a guess, as a number that is too large is asked for again
RISKS = ("at_risk", "died")  # sums of exp(z), not below 0
MATRICES = ("first", "second", "died_first", "died_second", "event_risk", "event_rows")


@dataclass(frozen=True, eq=False)
class AtRisk(Query):
    """Sums over the rows at risk at each time of a grid, by group: rows have their time rounded up to the next one.

    A row is at risk at the times t of the grid with entry < t <= time, and its event counts at the first one that is not before its
    time. r = w exp(z) is its weight times its relative risk at the model x; without columns r = w. The group of a row is the
    number (from 1) of the column in `groups` that is 1, and 0 where none is. Strata play no part.

    With `pairs` also how many pairs of rows of a site, in a stratum, have the larger risk where the event was earlier, the smaller, or
    the same. With `second`, and one group, also what a Cox model with one baseline for all sites needs: at each time the sums of
    r a and r a a^T over the rows at risk and over the events, and over all events those of w z and w a.

    Of the rows in `subset`, where one is given: the pairs of a fold, for a model that was fitted without it.

    Under a disclosure policy times are coarser, risks are rounded, and `second` and `subset` are refused (`federation.site.at_risk`).
    """

    objective: ObjectiveSpec
    x: np.ndarray  # (d,)
    grid: np.ndarray  # (times,), increasing
    groups: tuple[int, ...] = ()  # columns of the table that are 0 or 1
    pairs: bool = False
    second: bool = False
    subset: RowSubset | None = None

    leaves = (
        "at agreed times, in blocks of at least min_rows events: events, and sums over the rows at risk; pairs in order"
    )

    class Reply(NamedTuple):
        events: np.ndarray  # (groups, times): weights of the rows with an event
        at_risk: np.ndarray  # (groups, times): sum of r
        pairs: np.ndarray  # (3,): rows in order, in reverse order, of the same risk; (0,) unless asked
        counts: np.ndarray  # (times,): rows with an event; (0,) without `second`, as all below
        died: np.ndarray  # (times,): sum of r over the events
        first: np.ndarray  # (times, d): sum of r a
        second: np.ndarray  # (times, d (d + 1) / 2): sum of r a a^T
        died_first: np.ndarray
        died_second: np.ndarray
        event_risk: np.ndarray  # (1,): sum of w z over all events
        event_rows: np.ndarray  # (d,): sum of w a

    def weighed_by(self, weighting: Weighting) -> str:
        return "rows"

    @property
    def rows(self) -> RowSubset | None:
        return self.subset

    @property
    def told_of(self) -> tuple[tuple[RowSubset | None, ...], int]:
        rows, columns = super().told_of
        return rows, columns + (1 + len(self.groups)) * (columns > 0)  # without a model: time, event and groups

    def check(self, checks: QueryChecks) -> None:
        d = checks.objective(self.objective)
        if not isinstance(self.objective.loss, SiteLoss) or self.objective.subset is not None:
            raise InputError("rows at risk are those of a Cox model; their own `subset` says which")
        checks.subset(self.subset)
        check_finite_array("x", self.x, (d,))
        if not isinstance(self.grid, np.ndarray) or self.grid.ndim != 1 or not 1 <= self.grid.size <= MAX_TIMES:
            raise InputError(f"the grid must have 1 to {MAX_TIMES} times")
        check_finite_array("grid", self.grid, self.grid.shape)
        if (self.grid[1:] <= self.grid[:-1]).any():
            raise InputError("the times of the grid must increase")
        if type(self.groups) is not tuple or len(set(self.groups)) < len(self.groups) or len(self.groups) >= MAX_GROUPS:
            raise InputError(f"groups must be at most {MAX_GROUPS - 1} columns, each once")
        for column in self.groups:
            check_integer("groups", column, 0, checks.site.width - 1)
        check_boolean("pairs", self.pairs)
        check_boolean("second", self.second)
        if self.second and (self.groups or d > MAX_COMMON):
            raise InputError(f"matrices at risk are for one group and at most {MAX_COMMON} columns")
        checks.numbers(2 * self.grid.size * (d * d + 4) * (len(self.groups) + 1), f"{self.grid.size} times")

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        times, d = len(self.grid), len(self.x)
        cells = len(self.groups) + 1, times
        triangle = (times, d * (d + 1) // 2)
        found = {"events": cells, "at_risk": cells, "pairs": (3 * self.pairs,)}
        more = {
            "counts": (times,),
            "died": (times,),
            "first": (times, d),
            "second": triangle,
            "died_first": (times, d),
            "died_second": triangle,
        }
        more |= {"event_risk": (1,), "event_rows": (d,)}
        return found | {name: shape if self.second else (0,) for name, shape in more.items()}

    def layout(self, agreement: Agreement, weighting: Weighting) -> dict[str, Field]:
        """Weights and counts are bounded by the enrolments; risks are asked for again where they are larger than usual."""
        R, rows, shapes = agreement.weight_bits, agreement.row_bits, self._shapes()
        found = {"outside": Field((), agreement.site_bits, bounded=True)}
        found |= {
            "events": Field(shapes["events"], R, bounded=True),
            "pairs": Field(shapes["pairs"], 2 * rows + 8, bounded=True),
        }
        found["counts"] = Field(shapes["counts"], rows, bounded=True)
        return found | {name: Field(shapes[name], R + RISK_BITS) for name in (*RISKS, *MATRICES)}

    def contribution(self, reply: Reply, factor: float, agreement: Agreement) -> FieldValues:
        """The sums as they are; those of risks hidden where one is not finite."""
        found = {name: np.asarray(value, float) for name, value in reply._asdict().items()}
        check_finite("AtRisk", {name: found[name] for name in ("events", "pairs", "counts")})
        far_out = np.array(not all(np.isfinite(found[name]).all() for name in (*RISKS, *MATRICES)))
        found |= {name: hidden(found[name], far_out) for name in (*RISKS, *MATRICES)}
        return {**found, "outside": flag(far_out)}

    def assemble(
        self, totals: FieldValues, divisor: float, enrolments: Sequence[Enrolment], agreement: Agreement
    ) -> Reply | None:
        """The sums; refuses those that honest sites cannot give."""
        t = dict(totals)
        if t.pop("outside").any():
            return None
        weight = sum(e.weight for e in enrolments)
        bad = (t["events"] < 0).any() or t["events"].sum() > weight * (1 + 1e-9) or (t["pairs"] < 0).any()
        if bad or any((t[name] < 0).any() for name in RISKS):
            raise InputError(f"AtRisk: the sums are none of rows at risk; a site sent a wrong reply. {NEW_RUN}")
        return AtRisk.Reply(**{name: t[name] for name in AtRisk.Reply._fields})
