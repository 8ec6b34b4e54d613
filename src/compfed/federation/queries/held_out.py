"""`HeldOut`: the loss of models on rows that they were not fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from compfed.federation.enrolment import Agreement, Enrolment
from compfed.federation.limits import QueryChecks
from compfed.federation.query import Field, FieldValues, Query, Sizes, Weighting, check_finite, flag, hidden, there
from compfed.federation.spec import ObjectiveSpec
from compfed.splits import RowSubset


class HeldOutSum(NamedTuple):
    """The sum of the replies to `HeldOut`."""

    weight: float  # of all rows held out
    loss: (
        np.ndarray
    )  # (models,): sum over these rows; where sites count the same, sum over the sites of their mean losses
    sites: int  # that hold out any row


@dataclass(frozen=True, eq=False)
class HeldOut(Query):
    """The loss of the models in the rows of x on the rows of `subset`, scaled and encoded as in `objective`."""

    objective: ObjectiveSpec
    subset: RowSubset
    x: np.ndarray  # (models, d)

    leaves = "the loss of models on rows held out, summed"
    own_weighting = "rows"

    class Reply(NamedTuple):
        weight: float  # of the rows held out
        loss: np.ndarray  # (models,): sum_l q_l loss_l, q_l the shares of those rows

    @property
    def rows(self) -> RowSubset | None:
        return self.subset

    @property
    def subsets(self) -> tuple[RowSubset | None, ...]:
        return self.subset, self.objective.subset

    def check(self, checks: QueryChecks) -> None:
        d = checks.objective(self.objective)
        checks.row_wise(self.objective, "losses on rows held out (HeldOut)")
        checks.subset(self.subset, needed=True)
        checks.models(self.x, d)

    def layout(self, agreement: Agreement, weighting: Weighting) -> dict[str, Field]:
        size = Sizes(self.objective, self.x, agreement, agreement.factor_bits(weighting))
        counts = Field((len(self.x),), agreement.site_bits, bounded=True)
        sizes = {"weight": agreement.weight_bits, "sites": agreement.site_bits}
        whole = {name: Field((), bits, bounded=True) for name, bits in sizes.items()}
        return {**whole, "infinite": counts, "outside": counts, "loss": Field((len(self.x),), size.value)}

    def contribution(self, reply: Reply, factor: float, agreement: Agreement) -> FieldValues:
        check_finite("HeldOut", {"weight": reply.weight})
        some = float(reply.weight > 0)
        w = factor if some else 0.0
        loss = w * hidden(reply.loss, ~np.isfinite(w * reply.loss)) if some else np.zeros(reply.loss.shape)
        whole = {"weight": np.array(reply.weight), "sites": np.array(some), "infinite": flag(np.isnan(loss))}
        return {**whole, "outside": np.zeros(loss.shape), "loss": loss}

    def assemble(
        self, totals: FieldValues, divisor: float, enrolments: Sequence[Enrolment], agreement: Agreement
    ) -> HeldOutSum:
        far = there(totals)
        loss = np.where(np.isfinite(far), totals["loss"], far)
        return HeldOutSum(float(totals["weight"]), loss, round(float(totals["sites"])))

    def outside(self, summed: HeldOutSum | None) -> np.ndarray | None:
        wrong = np.ones(1, bool) if summed is None else np.isnan(summed.loss)
        return wrong if wrong.any() else None
