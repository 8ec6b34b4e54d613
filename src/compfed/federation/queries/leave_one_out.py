"""`LeaveOneOut`: the loss of every row under a model that is fitted without it, approximately."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from compfed.errors import InputError
from compfed.federation.enrolment import Agreement, Enrolment
from compfed.federation.limits import QueryChecks, check_boolean, check_finite_array
from compfed.federation.query import Field, FieldValues, Query, Sizes, Weighting, factor_field, flag, hidden, there
from compfed.federation.spec import ObjectiveSpec
from compfed.losses import ManyOutputs, OneOutput
from compfed.splits import RowSubset

LOG_BITS = 12  # of the logarithm of a double, and one more


@dataclass(frozen=True, eq=False)
class LeaveOneOut(Query):
    """The loss of every row at the model that one Newton step without the row leads to, for each model in the rows of x.

    With u_l the weight of row l at its site (with `equal_sites` its share there), z_l its prediction, l' and l'' the derivatives
    of its loss in z, a_l its features on `coords`, and H the matrix in `hessian`, in units of sums over rows: the total second
    derivative, penalty included, on the coefficients that are free to move,

        h_l = u_l a_l^T H^-1 a_l,    z_l without row l = z_l + h_l l'_l / (1 - h_l l''_l).

    With several outputs z_l and l'_l are vectors, and h_l and l''_l matrices. References: Rad, Maleki, "A scalable estimate of
    the out-of-sample prediction error via approximate leave-one-out cross-validation", JRSS B 2020; Wang, Zhou, Lu, Maleki,
    Mirrokni, "Approximate leave-one-out for fast parameter tuning in high dimensions", ICML 2018.
    """

    objective: ObjectiveSpec
    x: np.ndarray  # (models, d)
    coords: np.ndarray  # (w,)
    hessian: np.ndarray  # (models, w (w + 1) / 2): upper triangles
    equal_sites: bool = False

    leaves = "the loss of its rows under models fitted without them, approximately: a sum and a sum of squares for each model"
    is_divided = True

    class Reply(NamedTuple):
        loss: np.ndarray  # (models,): the mean loss of rows left out, less `least`
        squares: np.ndarray  # (models,): the mean of its squares
        least: np.ndarray  # (models,): the mean of the least loss that any prediction could have, of the labels alone

    def weighed_by(self, weighting: Weighting) -> str:
        own = super().weighed_by(weighting)
        return own if (own == "sites") == self.equal_sites else f"{own}, left out in the other weighting"

    @property
    def rows(self) -> RowSubset | None:
        return None

    def check(self, checks: QueryChecks) -> None:
        """A smooth loss of all rows, in double precision."""
        d, loss = checks.objective(self.objective), self.objective.loss
        if not isinstance(loss, (OneOutput, ManyOutputs)) or loss.jumps:
            raise InputError(f"{type(loss).__name__} is no loss of predictions with a continuous second derivative")
        if self.objective.subset is not None or self.objective.profile or self.objective.dtype != "float64":
            raise InputError("LeaveOneOut is of all rows, in float64, without a profile")
        models = checks.models(self.x, d)
        checks.hessian(self.coords, models, d)
        w, outputs = self.coords.size, getattr(loss, "outputs", 1)
        checks.numbers(2 * checks.rows * outputs * outputs, f"{outputs} outputs")
        check_finite_array("hessian", self.hessian, (models, w * (w + 1) // 2))
        check_boolean("equal_sites", self.equal_sites)

    def layout(self, agreement: Agreement, weighting: Weighting) -> dict[str, Field]:
        models, factors = (len(self.x),), agreement.factor_bits(weighting)
        size = Sizes(self.objective, self.x, agreement, factors)
        counts = Field(models, agreement.site_bits, bounded=True)
        return {
            "factor": factor_field(agreement, weighting),
            "infinite": counts,
            "outside": counts,
            "loss": Field(models, size.value),
            # a generous guess for the loss, and a fair one for its square
            "squares": Field(models, size.value),
            "least": Field(models, factors + max(agreement.label_bits, 0) + LOG_BITS),
        }

    def contribution(self, reply: Reply, factor: float, agreement: Agreement) -> FieldValues:
        """Where a row has no loss left out, a flag tells it, and nothing else of the model is told."""
        with np.errstate(over="ignore", invalid="ignore"):
            terms = {name: factor * np.asarray(value, float) for name, value in reply._asdict().items()}
        far_out = np.any([~np.isfinite(t) for t in terms.values()], axis=0) & (factor != 0)
        found: FieldValues = {"factor": np.array(factor), "infinite": flag(far_out), "outside": np.zeros(far_out.shape)}
        shown = {name: hidden(t, far_out) for name, t in terms.items()}
        return found | (shown if factor != 0 else {name: np.zeros(t.shape) for name, t in terms.items()})

    def assemble(
        self, totals: FieldValues, divisor: float, enrolments: Sequence[Enrolment], agreement: Agreement
    ) -> Reply:
        far = there(totals)
        means = (np.where(np.isfinite(far), totals[name] / divisor, far) for name in ("loss", "squares", "least"))
        return LeaveOneOut.Reply(*means)

    def outside(self, summed: Reply | None) -> np.ndarray | None:
        wrong = np.ones(1, bool) if summed is None else np.isnan(summed.loss)
        return wrong if wrong.any() else None
