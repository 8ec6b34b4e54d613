"""`Describe`: how many rows there are, and their labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from compfed.federation.enrolment import Agreement, Enrolment
from compfed.federation.limits import QueryChecks, check_boolean
from compfed.federation.query import Field, FieldValues, Query, Weighting, check_finite
from compfed.splits import RowSubset, SiteFold


class Description(NamedTuple):
    """The sum of the replies to `Describe`. Facts of single sites are those of the enrolments."""

    rows: np.ndarray  # of each site; of a subset, each site's part is estimated from the total
    row_count: int  # of all sites
    weights: np.ndarray  # of each site's rows, likewise
    weight: float  # of all rows
    sites: int  # that have any of them
    widths: tuple[int, ...]
    columns: tuple[tuple[str, ...] | None, ...]
    label_kinds: tuple[str, ...]  # NumPy's letter for the type of each site's labels
    label_shapes: tuple[tuple[int, ...], ...]
    classes: np.ndarray  # of all sites
    class_weights: (
        np.ndarray
    )  # sum over the rows; where sites count the same, sum over the sites of the shares within each
    label_sum: np.ndarray | None  # sum over the rows, or over the sites of their means; None where labels are classes
    site_classes: tuple[np.ndarray | None, ...] = ()  # of each site that lists them
    offsets: tuple[bool, ...] = ()  # whether the rows of each site have offsets


@dataclass(frozen=True, eq=False)
class Describe(Query):
    """Rows, columns and labels. With `classes`, labels are names to list; otherwise numbers to add.

    `subset` asks for some of the rows only: which labels a fold trains with, and how much its rows weigh. Labels are added in
    one weighting, that of the message: in two, the totals would tell the labels of single sites.
    """

    classes: bool = False
    subset: RowSubset | None = None

    leaves = "the number of rows, the names of the columns, the classes and how many rows have each"
    own_weighting = "rows"

    class Reply(NamedTuple):
        rows: int
        weight: float  # of the rows together; their number unless rows are weighted
        classes: np.ndarray  # the labels found; none where labels are numbers
        class_weights: np.ndarray  # how much the rows of each weigh
        label_mean: np.ndarray  # sum_l q_l y_l: a number, or one per outcome; 0 where labels are names

    @property
    def rows(self) -> RowSubset | None:
        return self.subset

    def check(self, checks: QueryChecks) -> None:
        check_boolean("classes", self.classes)
        checks.subset(self.subset)

    def layout(self, agreement: Agreement, weighting: Weighting) -> dict[str, Field]:
        R, own = agreement.factor_bits(weighting), weighting != "given"
        sizes = {"weight": agreement.weight_bits, "rows": agreement.row_bits, "sites": agreement.site_bits}
        found = {name: Field((), bits, bounded=True) for name, bits in sizes.items()}
        if self.classes:
            return {**found, "class_weights": Field((len(agreement.classes),), R, bounded=own)}
        return {**found, "label_sum": Field(agreement.enrolments[0].label_shape, R + agreement.label_bits, bounded=own)}

    def contribution(self, reply: Reply, factor: float, agreement: Agreement) -> FieldValues:
        r, some = reply, reply.weight > 0
        check_finite("Describe", {"weight": r.weight, "class_weights": r.class_weights, "label_mean": r.label_mean})
        found = {"weight": np.array(r.weight), "rows": np.array(float(r.rows)), "sites": np.array(float(some))}
        w = factor if some else 0.0
        if not self.classes:
            return {**found, "label_sum": np.asarray(w * r.label_mean, float)}
        each = np.zeros(len(agreement.classes))
        # whole numbers of rows stay whole
        each[np.searchsorted(agreement.classes, r.classes)] = r.class_weights * (w / (r.weight or 1.0))
        return {**found, "class_weights": each}

    def assemble(
        self, totals: FieldValues, divisor: float, enrolments: Sequence[Enrolment], agreement: Agreement
    ) -> Description:
        t, every, weight = totals, enrolments, float(totals["weight"])
        rows, weights = np.array([e.rows for e in every]), np.array([e.weight for e in every])
        if self.subset is not None:
            if isinstance(self.subset, SiteFold) and len(every) == agreement.n:
                there = (np.arange(agreement.n) == self.subset.number) == self.subset.held_out
                rows, weights = rows * there, weights * there
            rows = np.rint(rows * (float(t["rows"]) / (rows.sum() or 1))).astype(int)
            weights = weights * (weight / (weights.sum() or 1.0))
        return Description(
            rows=rows, row_count=round(float(t["rows"])), weights=weights, weight=weight, sites=round(float(t["sites"])),
            widths=tuple(e.width for e in every), columns=tuple(e.columns for e in every),
            label_kinds=tuple(e.label_kind for e in every), label_shapes=tuple(e.label_shape for e in every),
            classes=agreement.classes[t["class_weights"] > 0] if self.classes else np.empty(0),
            class_weights=t["class_weights"][t["class_weights"] > 0] if self.classes else np.empty(0),
            label_sum=t.get("label_sum"),
            site_classes=tuple(e.classes for e in every), offsets=tuple(e.offset for e in every),
        )  # fmt: skip
