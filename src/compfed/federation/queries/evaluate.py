"""`Evaluate`: f_i, its gradient and parts of its Hessian at many models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from compfed.errors import InputError
from compfed.federation.enrolment import Agreement, Enrolment
from compfed.federation.limits import QueryChecks, check_boolean, check_floats
from compfed.federation.query import (
    Field,
    FieldValues,
    Query,
    Sizes,
    Weighting,
    check_finite,
    factor_field,
    flag,
    hidden,
    there,
)
from compfed.federation.spec import ObjectiveSpec
from compfed.losses import Loss
from compfed.splits import RowSubset

ORDINARY = 1e100  # a loss below this is far from where its gradient overflows


@dataclass(frozen=True, eq=False)
class Evaluate(Query):
    """f_i and grad f_i at every row of x; on the coordinates `coords` also the Hessian.

    `terms` is how large the terms of the gradient are before they cancel. `hessian` is the matrix of a quadratic model of
    f_i around x, without the ridge, which the server knows: the second derivative, or what the loss has in its place
    (`Loss.model_hessian`). Only its upper triangle travels. With `single` it is worked out in single precision, which is enough
    for a step.

    With `dual` = (shift, stretch, mix, z), one row per model, also the conjugate of the loss at a dual point, which bounds
    how far F(x) is from its minimum: sum_l q_l loss*(theta_l, y_l), where theta is made of the derivatives at x and of those
    at the constant prediction z, theta_l = stretch ((1 - mix) (derivative_l(x) - shift) + mix derivative_l(z)).
    """

    objective: ObjectiveSpec
    x: np.ndarray  # (models, d)
    coords: np.ndarray | None = None
    dual: np.ndarray | None = None  # (models, 4)
    single: bool = False

    leaves = "its loss at models, the gradient, and second derivatives on some coefficients: sums over all rows"
    is_divided = True

    class Reply(NamedTuple):
        value: np.ndarray  # (models,)
        gradient: np.ndarray  # (models, d)
        terms: np.ndarray  # (models,)
        hessian: np.ndarray | None = None  # (models, |coords| (|coords| + 1) / 2), or fewer where the loss says how
        conjugate: np.ndarray | None = None  # (models,)

    @property
    def rows(self) -> RowSubset | None:
        return self.objective.subset

    def check(self, checks: QueryChecks) -> None:
        d = checks.objective(self.objective)
        models = checks.models(self.x, d)
        check_boolean("single", self.single)
        if self.coords is not None:
            checks.hessian(self.coords, models, d)
        if self.dual is not None:
            check_floats("dual", self.dual, (models, 4))
            if not callable(getattr(self.objective.loss, "conjugate", None)):
                raise InputError(f"{type(self.objective.loss).__name__} has no conjugate; leave out dual")

    def layout(self, agreement: Agreement, weighting: Weighting) -> dict[str, Field]:
        models, d = self.x.shape
        size = Sizes(self.objective, self.x, agreement, agreement.factor_bits(weighting))
        counts = Field((models,), agreement.site_bits, bounded=True)
        found = {
            "factor": factor_field(agreement, weighting),
            "infinite": counts,
            "outside": counts,
            "value": Field((models,), size.value),
            "gradient": Field((models, d), size.gradient),
            "terms": Field((models,), lambda: size.gradient().max(axis=1, initial=0) + d.bit_length()),
        }
        if (coords := self.coords) is not None:
            entries = hessian_size(self.objective.loss, coords)
            found["hessian"] = Field((models, entries), lambda: size.hessian_of(coords, entries))
        if self.dual is not None:
            found["conjugate"], found["no_conjugate"] = Field((models,), size.value), counts
        return found

    def contribution(self, reply: Reply, factor: float, agreement: Agreement) -> FieldValues:
        """Where a model is far out, a number is infinite: a flag tells it, and nothing else of the model is told.

        Raises `InputError` where a gradient is NaN although the loss is an ordinary number: the site computes wrongly.
        """
        w, r = factor, reply
        ordinary = np.abs(np.asarray(r.value, float)) < ORDINARY
        if w != 0 and (ordinary & np.isnan(np.asarray(r.gradient, float)).any(axis=1)).any():
            check_finite("Evaluate", {"gradient": r.gradient})
        parts = {"value": r.value, "gradient": r.gradient, "terms": r.terms, "hessian": r.hessian}
        with np.errstate(over="ignore", invalid="ignore"):
            terms = {name: w * np.asarray(part, float) for name, part in parts.items() if part is not None}
        far_out = np.zeros(len(terms["value"]), bool)
        if w != 0:
            for term in terms.values():
                # a look at the whole first: it is nearly always finite
                if not (finite := np.isfinite(term)).all():
                    far_out |= ~finite.reshape(len(term), -1).all(axis=1)
        found: FieldValues = {"factor": np.array(w), "infinite": flag(far_out)}
        found["outside"] = np.zeros(len(far_out))
        shown = terms if not far_out.any() else {name: hidden(t, far_out) for name, t in terms.items()}
        found |= shown if w != 0 else {name: np.zeros(t.shape) for name, t in terms.items()}
        if r.conjugate is not None:
            term = w * r.conjugate if w != 0 else np.zeros(r.conjugate.shape)
            found["conjugate"] = hidden(term, ~np.isfinite(term))
            found["no_conjugate"] = flag(~np.isfinite(term))
        return found

    def assemble(
        self, totals: FieldValues, divisor: float, enrolments: Sequence[Enrolment], agreement: Agreement
    ) -> Reply:
        t, far = totals, there(totals)

        def mean(name: str) -> np.ndarray:
            values = t[name] / divisor
            if not far.any():  # 0 for every model
                return values
            value = far.reshape((-1,) + (1,) * (values.ndim - 1))
            return np.where(np.isfinite(value), values, value if name == "value" else np.nan)

        conjugate = None
        if "conjugate" in t:
            conjugate = np.where(t["no_conjugate"] != 0, np.inf, t["conjugate"] / divisor)
        dtype = np.float64 if self.objective.dtype == "float64" else np.float32
        value, gradient, terms = (mean(name).astype(dtype, copy=False) for name in ("value", "gradient", "terms"))
        return Evaluate.Reply(value, gradient, terms, mean("hessian") if "hessian" in t else None, conjugate)

    def outside(self, summed: Reply | None) -> np.ndarray | None:
        wrong = np.ones(1, bool) if summed is None else np.isnan(summed.value)
        return wrong if wrong.any() else None


def hessian_size(loss: Loss, coords: np.ndarray) -> int:
    """The numbers of a packed Hessian on these coordinates."""
    outputs = getattr(loss, "outputs", 1)
    if outputs > 1 and loss.packed_size(outputs) == 1:  # one matrix for all outputs, on the features that they are of
        return loss.packed_size(outputs * len(np.unique(np.asarray(coords) // outputs)))
    return loss.packed_size(len(coords))
