"""`Inference`: what a likelihood and its standard errors need beside f_i and its Hessian at one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from compfed.errors import InputError
from compfed.federation.enrolment import Agreement, Enrolment
from compfed.federation.limits import QueryChecks, check_boolean, check_finite_array
from compfed.federation.query import (
    Field,
    FieldValues,
    Query,
    Sizes,
    Weighting,
    factor_field,
    flag,
    hidden,
)
from compfed.federation.spec import ObjectiveSpec
from compfed.losses import ManyOutputs, OneOutput
from compfed.losses.offset import unwrapped
from compfed.splits import RowSubset

LOG_BITS = 12  # of the logarithm of a double, and one more
CLUSTERS = 10  # sites, at least, of a covariance that is clustered by site
SUMS = ("squares", "saturated", "constant", "products")


@dataclass(frozen=True, eq=False)
class Inference(Query):
    """Sums over all rows at one model x, with r_l the derivative of the loss of row l in its prediction, w_l its weight:

    `squares` of w_l r_l^2; `saturated` of w_l times the least loss of the label; `constant` of w_l times what the loss leaves
    out of -log P(y_l), a function of the label (`Loss.of_label`); and the `products` of a sandwich covariance, on `coords`:

        sum_l w_l s_l s_l^T,    s_l = r_l a_l the gradient of the loss of row l,

    with w_l^2 in place of w_l where weights are those of a sample (`squared_weights`). With `clustered` it is s s^T of the
    site's whole gradient s = sum_l w_l s_l. With `shape` the last entry of s_l is the derivative in log(theta) of a negative
    binomial likelihood. Under a profile a_l is less the mean of the rows of its site, weighted by the second derivatives: that is the
    score that is left when the intercept of the site has been fitted.
    """

    objective: ObjectiveSpec
    x: np.ndarray  # (d,)
    coords: np.ndarray  # (w,); none for no products
    squared_weights: bool = False
    clustered: bool = False
    shape: bool = False

    leaves = "sums of functions of its labels and of squared residuals, and the products of row gradients that a robust covariance adds"
    is_divided = True

    class Reply(NamedTuple):
        squares: float  # all are means over the rows of the site
        saturated: float
        constant: float
        products: np.ndarray  # (entries,): an upper triangle

    @property
    def rows(self) -> RowSubset | None:
        return None

    @property
    def entries(self) -> int:
        """The numbers of the triangle of products."""
        w = self.coords.size
        w += bool(w) and bool(self.shape)
        return w * (w + 1) // 2

    def check(self, checks: QueryChecks) -> None:
        """A smooth loss of all rows, in double precision."""
        d, loss = checks.objective(self.objective), self.objective.loss
        if not isinstance(loss, (OneOutput, ManyOutputs)) or loss.jumps:
            raise InputError(f"{type(loss).__name__} is no loss of predictions with a continuous second derivative")
        if self.objective.subset is not None or self.objective.dtype != "float64":
            raise InputError("Inference is of all rows, in float64")
        check_finite_array("x", self.x, (d,))
        checks.hessian(self.coords, 1, d)
        for name in ("squared_weights", "clustered", "shape"):
            check_boolean(name, getattr(self, name))
        if self.shape and not callable(getattr(unwrapped(loss), "shape_derivative", None)):
            raise InputError(f"{type(loss).__name__} has no shape to be estimated; leave out shape")
        if self.shape and self.objective.profile:
            raise InputError("Inference has no products with a shape and a profile; leave out one of them")

    def layout(self, agreement: Agreement, weighting: Weighting) -> dict[str, Field]:
        factors, counts = agreement.factor_bits(weighting), Field((), agreement.site_bits, bounded=True)
        size = Sizes(self.objective, self.x, agreement, factors)
        labels = factors + max(agreement.label_bits, 0) + LOG_BITS
        twice = agreement.weight_bits if self.squared_weights or self.clustered else 0

        def squares() -> np.ndarray:
            return size.value().max()

        def products() -> np.ndarray:
            return twice + 2 * size.gradient().max() - factors

        return {
            "factor": factor_field(agreement, weighting), "infinite": counts, "outside": counts,
            "squares": Field((), squares), "saturated": Field((), labels), "constant": Field((), labels),
            "products": Field((self.entries,), products),
        }  # fmt: skip

    def contribution(self, reply: Reply, factor: float, agreement: Agreement) -> FieldValues:
        """Where a sum is infinite a flag tells it, and nothing else is told."""
        with np.errstate(over="ignore", invalid="ignore"):
            terms = {name: factor * np.asarray(value, float) for name, value in reply._asdict().items()}
        far_out = np.array(factor != 0 and not all(np.isfinite(term).all() for term in terms.values()))
        found: FieldValues = {"factor": np.array(factor), "infinite": flag(far_out), "outside": np.array(0.0)}
        shown = {name: hidden(term, far_out) for name, term in terms.items()}
        return found | (shown if factor != 0 else {name: np.zeros(term.shape) for name, term in terms.items()})

    def assemble(
        self, totals: FieldValues, divisor: float, enrolments: Sequence[Enrolment], agreement: Agreement
    ) -> Reply | None:
        """The means over all rows; None, to be asked again, where a number did not fit its field."""
        if totals["outside"].any():
            return None
        means = {name: totals[name] / divisor for name in SUMS}
        if totals["infinite"].any():
            means = {name: np.full_like(mean, np.nan) for name, mean in means.items()}
        squares, saturated, constant = (float(means[name]) for name in SUMS[:3])
        return Inference.Reply(squares, saturated, constant, means["products"])
