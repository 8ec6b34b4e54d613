"""`Score`: how well one model predicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from compfed.errors import InputError
from compfed.federation.enrolment import Agreement, Enrolment
from compfed.federation.limits import QueryChecks, check_finite_array
from compfed.federation.query import Field, FieldValues, Query, Sizes, Weighting, check_finite, flag, hidden
from compfed.federation.spec import ObjectiveSpec
from compfed.losses import Logistic, Softmax
from compfed.losses.offset import unwrapped
from compfed.splits import RowSubset

SCORE_MOMENTS, SCORE_LINE = 7, 6  # numbers of an outcome in `Score.Reply.moments`, of a line in `Score.Reply.lines`
LOG_BITS = 12  # of the logarithm of a double, and one more
MAX_EDGES = 4096  # thresholds of one score
MAX_LINES = 16  # recalibrations of one score
UNBOUNDED = ("loss", "saturated", "moments")  # the sums of losses and labels


@dataclass(frozen=True, eq=False)
class Score(Query):
    """How well one model predicts the rows of `subset` (all rows for None): sums, and rows of each class below thresholds.

    With classes, z_k is the log-odds of class k against the others, p_k its probability, k the second class alone where there
    are two. `edges` has thresholds for every z_k. `low` and `high` bound the sums over the rows with z_k at most each edge:
    [k, 0] of the rows of other classes, [k, 1] of class k; [.., 0] of their weights, [.., 1] of weight times p_k. Without a
    disclosure policy both are the sum. With one, sums end at whole blocks of `min_rows` rows (`federation.site.scoring`).
    `confusion_low` and `confusion_high` are such bounds for rows of class i (row) whose most likely class is j (column), where
    there are three classes or more.

    With two classes, `lines` has pairs (a, b): the same model with the log-odds a + b z in place of z. For each the reply has the
    sums of the loss, of r and r z, and of h, h z and h z^2, with r and h the first and second derivatives of the loss in its
    log-odds; NaN where a disclosure policy would refuse the model.

    With labels that are numbers, `moments` has the sums of u, v, u^2, v^2, u v, (u - v)^2 and |u - v| for every outcome,
    u the prediction and v the label, both less `centre`.
    """

    objective: ObjectiveSpec
    x: np.ndarray  # (d,)
    edges: np.ndarray  # (scores, E), each row increasing; (0, 0) without classes
    centre: np.ndarray  # (outcomes,); (0,) with classes
    lines: np.ndarray  # (lines, 2)
    subset: RowSubset | None = None

    leaves = "how many rows of each class have scores below thresholds, to whole blocks of min_rows rows, and sums of losses and errors"

    class Reply(NamedTuple):
        weight: float  # of the rows
        loss: float  # their sum, without the ridge
        saturated: float  # sum of the least loss that any prediction could have
        brier: float  # sum of squared differences of probabilities and classes; 0 without classes
        class_weights: np.ndarray  # (classes,)
        moments: np.ndarray  # (7, outcomes)
        lines: np.ndarray  # (lines, 6)
        low: np.ndarray  # (scores, 2, 2, E)
        high: np.ndarray
        confusion_low: np.ndarray  # (classes, classes), or (0, 0)
        confusion_high: np.ndarray

    def weighed_by(self, weighting: Weighting) -> str:
        return "rows"

    @property
    def rows(self) -> RowSubset | None:
        return self.subset

    @property
    def subsets(self) -> tuple[RowSubset | None, ...]:
        return self.subset, self.objective.subset

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the arrays of a reply."""
        classes = 0 if self.objective.classes is None else len(self.objective.classes)
        table = (classes, classes) if classes > 2 else (0, 0)
        counts = (len(self.edges), 2, 2, self.edges.shape[1])
        return {
            "class_weights": (classes,), "moments": (SCORE_MOMENTS, len(self.centre)), "lines": (len(self.lines), SCORE_LINE),
            "low": counts, "high": counts, "confusion_low": table, "confusion_high": table,
        }  # fmt: skip

    def check(self, checks: QueryChecks) -> None:
        """One model, and thresholds that increase."""
        d, loss = checks.objective(self.objective), unwrapped(self.objective.loss)
        if not callable(getattr(loss, "inverse_link", None)):
            raise InputError(f"{type(loss).__name__} predicts neither a mean nor classes; Score cannot be asked for it")
        checks.subset(self.subset)
        check_finite_array("x", self.x, (d,))
        outputs, by_class = getattr(loss, "outputs", 1), self.objective.classes is not None
        if by_class != isinstance(loss, (Logistic, Softmax)):
            raise InputError("Score takes classes with the losses Logistic and Softmax, and with no other")
        edges, classes = self.edges, 0 if self.objective.classes is None else self.objective.classes.size
        if by_class and classes != (2 if isinstance(loss, Logistic) else outputs):
            raise InputError(f"{type(loss).__name__} does not fit {classes} classes")
        if not isinstance(edges, np.ndarray) or edges.ndim != 2 or edges.shape[1] > MAX_EDGES:
            raise InputError(f"edges must be an array with at most {MAX_EDGES} thresholds in each row")
        check_finite_array("edges", edges, (outputs, edges.shape[1]) if by_class else (0, 0))
        if (np.diff(edges, axis=1) <= 0).any():
            raise InputError("edges must increase")
        check_finite_array("centre", self.centre, (0,) if by_class else (outputs,))
        lines = self.lines
        if not isinstance(lines, np.ndarray) or lines.ndim != 2 or len(lines) > MAX_LINES:
            raise InputError(f"lines must be an array with a pair in each row, at most {MAX_LINES} of them")
        check_finite_array("lines", lines, (len(lines), 2))
        scaling = self.objective.scaling
        if len(lines) and not (isinstance(loss, Logistic) and scaling is not None and scaling.intercept):
            raise InputError("lines need the loss Logistic and a model with an intercept")
        checks.numbers(8 * edges.size + classes**2, f"{edges.size} thresholds")

    def layout(self, agreement: Agreement, weighting: Weighting) -> dict[str, Field]:
        """Counts are below the weight of all rows; sums of losses and of squares are as large as those of `HeldOut`."""
        R, shapes, size = agreement.weight_bits, self.shapes(), Sizes(self.objective, self.x, agreement, 0)

        def bits() -> np.ndarray:
            return R + size.value().max()

        counts = Field((), agreement.site_bits, bounded=True)
        found = {"weight": Field((), R, bounded=True), "infinite": counts, "outside": counts}
        labels = R + max(agreement.label_bits, 0) + LOG_BITS  # of y log y
        found |= {"loss": Field((), bits), "saturated": Field((), labels, bounded=True)}
        found |= {"brier": Field((), R + 1, bounded=True), "moments": Field(shapes["moments"], bits)}
        refused = Field(shapes["lines"][:1], agreement.site_bits, bounded=True)
        found |= {"lines": Field(shapes["lines"], bits), "no_line": refused}
        every = ("class_weights", "low", "high", "confusion_low", "confusion_high")
        return {**found, **{name: Field(shapes[name], R, bounded=True) for name in every}}

    def contribution(self, reply: Reply, factor: float, agreement: Agreement) -> FieldValues:
        """The sums as they are; those of labels and losses are hidden where one of them is not finite."""
        found = {name: np.asarray(value, float) for name, value in reply._asdict().items()}
        check_finite("Score", {name: value for name, value in found.items() if name not in (*UNBOUNDED, "lines")})
        far_out = np.array(not all(np.isfinite(found[name]).all() for name in UNBOUNDED))
        found |= {name: hidden(found[name], far_out) for name in UNBOUNDED}
        refused = flag(np.asarray(np.isnan(found["lines"]).any(axis=1)))
        return {**found, "infinite": flag(far_out), "outside": np.array(0.0), "no_line": refused}

    def assemble(
        self, totals: FieldValues, divisor: float, enrolments: Sequence[Enrolment], agreement: Agreement
    ) -> Reply | None:
        t = dict(totals)
        if t["outside"].any():  # its counts are noise
            return None
        far_out = UNBOUNDED if t["infinite"].any() else ()
        t |= {name: np.full_like(t[name], np.nan) for name in far_out}
        t["lines"] = np.where(t["no_line"][:, None] != 0, np.nan, t["lines"])
        numbers: list[Any] = [float(t[name]) for name in ("weight", "loss", "saturated", "brier")]
        return Score.Reply(*numbers, *(t[name] for name in self.shapes()))
